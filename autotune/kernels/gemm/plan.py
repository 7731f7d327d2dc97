"""The plans of GEMM: packing if the configuration asks for it, the product, and adding up the parts of a split k."""

from operator import attrgetter

from autotune.kernels.combination import COUNTERS, standards
from autotune.kernels.gemm.problem import COLUMN_OF_ROWS, ROWS_OF_COLUMNS, by_mode
from autotune.model.plan import Role
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula, divisible

LEAST_COMBINING = 32
"""Least work-items in a work-group that adds up parts; if the product's has fewer, the driver chooses."""

MANY_PARTS, _SHARERS = 32, 8
"""Parts of a `local_tile` above which several work-items share those of a result, and how many do. On an
H100, one work-item for 128 parts took 7 us longer than eight, for 256 parts 14 to 20; sixteen were no better."""

_INPUT, _SUM, _RESULT = (by_mode(attrgetter(f"{use}.name")) for use in ("operand", "accumulator", "result"))

_NAMES = {
    # Where C is a column of rows of A or few rows of columns of B, the kernel computes the product of the transposes.
    "column_of_rows": f"algorithm in ('row', 'strip') and {COLUMN_OF_ROWS}",
    "rows_of_columns": f"algorithm == 'column' and {ROWS_OF_COLUMNS}",
    "is_turned": "column_of_rows or rows_of_columns",
    "m_of_c": "n if is_turned else m",
    "n_of_c": "m if is_turned else n",
    "pitch_of_c": "m if column_of_rows else ldc",
    "by_matrices": "algorithm == 'matrix_tile'",
    "tile_m": "macro_tile_m * micro_tile_m * (work_group_m if algorithm == 'local_tile' else tiles_m)",
    "tile_n": "macro_tile_n * micro_tile_n * (work_group_n if algorithm == 'local_tile' else 1)",
    "steps_k": "vector_width if algorithm in ('dot', 'column') else 1",
    "of_k": "4 if integer_dot != 'off' else 2 if multiply_add == 'packed' else 1",
    "step_k": "tile_k * of_k if algorithm == 'local_tile' else tile_k if by_matrices else unroll * steps_k",
    "rows": "round_up(m_of_c, tile_m)",
    "columns": "round_up(n_of_c, tile_n)",
    "depth": "round_up(k, step_k)",
    "pads": "edges == 'pad'",
    "is_one_launch": "combine != 'launch'",
    "has_parts": "split_k > 1 and combine == 'launch'",
    # Where A and B are read: an image has pitch 0, and the distance of matrices in rows.
    "a_packed": "pads and a_storage == 'buffer'",
    "a_row_step": "1 if trans_a == 1 else lda",
    "a_column_step": "lda if trans_a == 1 else 1",
    "a_rows_apart": "stride_a // lda if a_storage == 'image_view' else m",
    "b_transposed": "b_storage == 'transposed' or (by_matrices and pads)",
    "b_packed": "b_transposed or (pads and b_storage == 'buffer')",
    "b_in_quads": "b_packed and not b_transposed and integer_dot != 'off'",
    "b_row_step": "1 if trans_b == 1 else ldb",
    "b_column_step": "ldb if trans_b == 1 else 1",
    "b_rows_apart": "stride_b // ldb if b_storage == 'image_view' else k",
    "b_rows": "n if b_transposed else depth",
    "b_columns": "round_up(depth, vector_width) if b_transposed else columns",
    # Work-items in dimensions 0 and 1.
    "sub_groups": "(macro_tile_m // sub_group_tile_m) * (macro_tile_n // sub_group_tile_n)",
    "across": "ceil_div(n_of_c, macro_tile_n * micro_tile_n)",
    "down": "ceil_div(m_of_c, tile_m if algorithm in ('panel', 'matrix_tile') else micro_tile_m)",
    "deep_0": "sub_groups * 32 if by_matrices else work_group_k if algorithm == 'column' else 1",
    "deep_1": "work_group_k if algorithm == 'row' else 1",
    "local_0": "work_group_n * deep_0",
    "local_1": "work_group_m * deep_1",
    "groups_0": "ceil_div(across, max(work_group_n, 1))",
    "groups_1": "ceil_div(down, max(work_group_m, 1))",
    "global_0": f"groups_0 * local_0 if work_group_n > 0 else {divisible('across')}",
    "global_1": f"groups_1 * local_1 if work_group_n > 0 else {divisible('down')}",
    "macro_tiles": "groups_0 * groups_1 * batch",
    "macro_tile": "work_group_n * macro_tile_n * micro_tile_n * work_group_m * macro_tile_m * micro_tile_m",
    "combining": "max(local_0 * local_1, 1)",
    "sharers": f"{_SHARERS} if algorithm == 'local_tile' and split_k > {MANY_PARTS} else 1",
}


def _copy(kernel: str, when: str, global_size: str, arguments: str, prepares: str) -> LaunchFormula:
    return LaunchFormula(kernel=kernel, when=when, global_size=global_size, arguments=arguments, prepares=prepares)


def _image(operand: str, rows: str, columns: str) -> tuple[BufferFormula, BufferFormula]:
    """Return the image that A or B is copied to, and the one that shows it in place; a batch is stacked vertically.

    The last pixel of a row of the second may contain elements from beyond its end.
    """
    name, storage = f"{operand}_image", f"{operand}_storage"
    height = f"(batch - 1) * {operand}_rows_apart + {rows}"
    copy = BufferFormula(
        name=name, role=Role.SCRATCH, dtype=_INPUT, image=f"{columns}, {rows} * batch", when=f"{storage} == 'image'"
    )
    view = BufferFormula(
        name=name, role=Role.VIEW, dtype=_INPUT, image=f"{columns}, {height}", when=f"{storage} == 'image_view'",
        view_of=operand, row_pitch=f"ld{operand}",
    )  # fmt: skip
    return copy, view


_BUFFERS = (
    BufferFormula(name="a", role=Role.INPUT, dtype=_INPUT, elements="batch * stride_a"),
    BufferFormula(name="b", role=Role.INPUT, dtype=_INPUT, elements="batch * stride_b"),
    BufferFormula(name="c", role=Role.OUTPUT, dtype=_RESULT, elements="batch * stride_c"),
    *_image("a", "m", "k"),
    BufferFormula(name="a_packed", role=Role.SCRATCH, dtype=_INPUT, elements="batch * rows * depth", when="a_packed"),
    *_image("b", "k", "n"),
    BufferFormula(
        name="b_packed", role=Role.SCRATCH, dtype=_INPUT, elements="batch * b_rows * b_columns", when="b_packed"
    ),
    BufferFormula(
        name="c_parts",
        role=Role.SCRATCH,
        dtype=_SUM,
        elements="split_k * (macro_tiles * macro_tile if is_one_launch else batch * m * n)",
        when="has_parts or is_one_launch",
    ),
    BufferFormula(elements="macro_tiles", when="is_one_launch", **COUNTERS),
)

_FROM_A = "'a', stride_a, a_row_step, a_column_step, m, k"
_FROM_B = "'b', stride_b, b_row_step, b_column_step, k, n"
_FROM_TRANSPOSED_B = "'b', stride_b, b_column_step, b_row_step, n, k"
_TURNED_OPERANDS = "'b', ldb, stride_b, 'a', lda, stride_a"
_PLAIN_OPERANDS = (
    "'a' if a_storage == 'buffer' and not pads else 'a_packed' if a_storage == 'buffer' else 'a_image'",
    "0 if a_storage != 'buffer' else depth if pads else lda",
    "a_rows_apart if a_storage != 'buffer' else rows * depth if pads else stride_a",
    "'b_packed' if b_packed else 'b' if b_storage == 'buffer' else 'b_image'",
    "4 * columns if b_in_quads else b_columns if b_packed else ldb if b_storage == 'buffer' else 0",
    "b_rows * b_columns if b_packed else stride_b if b_storage == 'buffer' else b_rows_apart",
)
_ARGUMENTS = ", ".join(
    (
        *map("{} if is_turned else {}".format, _TURNED_OPERANDS.split(", "), _PLAIN_OPERANDS),
        "'c_parts' if has_parts else 'c', n_of_c if has_parts else pitch_of_c, m * n if has_parts else stride_c",
        "m_of_c, n_of_c, depth if pads else k, alpha, beta",
    )
)


def _product(when: str, arguments: str) -> LaunchFormula:
    return LaunchFormula(
        kernel="gemm",
        global_size="global_0, global_1, split_k * batch",
        local_size="local_0, local_1, 1",
        local_when="work_group_n > 0",
        arguments=arguments,
        when=when,
    )


_LAUNCHES = (
    _copy("pack_image", "a_storage == 'image'", "ceil_div(k, 4), m, batch", f"{_FROM_A}, 'a_image'", "a"),
    _copy("pack", "a_packed", "depth, rows, batch", f"{_FROM_A}, 'a_packed', depth", "a"),
    _copy("pack_image", "b_storage == 'image'", "ceil_div(n, 4), k, batch", f"{_FROM_B}, 'b_image'", "b"),
    _copy("pack", "b_transposed", "b_columns, n, batch", f"{_FROM_TRANSPOSED_B}, 'b_packed', b_columns", "b"),
    _copy("pack_quads", "b_in_quads", "columns, depth // 4, batch", f"{_FROM_B}, 'b_packed'", "b"),
    _copy(
        "pack", "b_packed and not (b_transposed or b_in_quads)", "columns, depth, batch",
        f"{_FROM_B}, 'b_packed', columns", "b",
    ),
    _product("not is_one_launch", _ARGUMENTS),
    _product("is_one_launch", f"{_ARGUMENTS}, 'c_parts', 'counters'"),
    # A vector of C for each work-item, in work-groups as large as the product's.
    LaunchFormula(
        kernel="combine",
        global_size="round_up(sharers * ceil_div(m * n, 4 if c_aligned else 1), max(combining, "
        f"{LEAST_COMBINING})), batch",
        local_size="combining, 1",
        local_when=f"combining >= {LEAST_COMBINING}",
        arguments="'c_parts', 'c', pitch_of_c, stride_c, m_of_c, n_of_c, alpha, beta",
        when="has_parts",
    ),
)  # fmt: skip

_FLAGS = {
    "batched": "batch > 1",
    "turned": "rows_of_columns",
    "ragged_m": "m_of_c % tile_m != 0",
    "ragged_n": "columns != n_of_c",
    "m_remainder": "m % 4",
    "n_remainder": "n % 4",
    "ragged_k": "depth != k and not pads",
    "c_aligned": "not turned and pitch_of_c % 4 == 0 and n_of_c % 4 == 0 and stride_c % 4 == 0",
}
"""What templates ask of the sizes."""

PLAN = PlanFormula(
    absent={
        **dict.fromkeys(("micro_tile_m", "micro_tile_n", "tiles_m", "tile_k", "unroll", "vector_width", "split_k"), 1),
        **dict.fromkeys(("work_group_m", "work_group_n", "work_group_k"), 1),
        **dict.fromkeys(("macro_tile_m", "macro_tile_n", "sub_group_tile_m", "sub_group_tile_n"), 1),
        **dict.fromkeys(("a_storage", "b_storage"), "buffer"),
        **dict.fromkeys(("relaxed_math", "qcom_16_bit", "integer_dot"), "off"),
        "multiply_add": "operator",
        **dict.fromkeys(("register_cap", "register_allocation"), 0),
        "edges": "guard",
        "combine": "launch",
    },
    names=_NAMES | _FLAGS,
    buffers=_BUFFERS,
    launches=_LAUNCHES,
    scalars={"alpha": 1.0, "beta": 0},
    scalar_dtype=by_mode(attrgetter("accumulator.widened")),
    build_options={
        "-cl-fast-relaxed-math": "relaxed_math == 'on'",
        **standards(cl3_too="integer_dot == 'khr'"),
        "-qcom-accelerate-16-bit": "qcom_16_bit == 'on'",
        "-cl-nv-maxrregcount={register_cap}": "register_cap != 0",
        "-fregister-allocation={register_allocation}": "register_allocation != 0",
    },
    template_values={
        "stored_type": by_mode(attrgetter("operand.in_c")),
        "sum_type": by_mode(attrgetter("accumulator.in_c")),
        "result_type": by_mode(attrgetter("result.in_c")),
        "trans_a": "1 - trans_b if is_turned else trans_a if a_storage == 'buffer' and not pads else 0",
        "trans_b": "1 - trans_a if is_turned else 1 if b_transposed "
        "else trans_b if b_storage == 'buffer' and not pads else 0",
        **{name: name for name in (*_FLAGS, "combining", "sharers")},
    },
    # Templates only depend on whether 2 or 4 divide a size.
    variant={digit: 2 for digit in _FLAGS if "remainder" not in digit}
    | {f"1 if {remainder} % 2 == 1 else {remainder}": 3 for remainder in ("m_remainder", "n_remainder")},
)
