"""The plans of products with quantised weights: packing, quantising activations if asked for, and the product."""

from operator import attrgetter

from autotune.kernels.combination import COUNTERS, SECOND_LAUNCH, standards
from autotune.kernels.matrix_units import ITEMS
from autotune.kernels.qgemm.algorithms import MATRIX_LOCAL
from autotune.kernels.qgemm.formats import UNIT, by_format
from autotune.kernels.qgemm.matrix_algorithm import BY_BLOCK, PIECE
from autotune.kernels.qgemm.problem import MODES, PACKED_ROW_BYTES, WEIGHT_BYTES
from autotune.model.plan import Role
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import by_value
from autotune.space.plan_formula import ArgumentFormula, BufferFormula, LaunchFormula, PlanFormula

_STORED = by_value("mode", dict(MODES))
_STORED_IN_C = by_value("mode", {mode: NUMBER_TYPES[stored].in_c for mode, stored in MODES.items()})
_OF_FORMATS = ("block_bytes", "file_alignment", "quant_bytes", "high_bytes")
"""What templates ask of the format."""
_FLAGS = {
    "grouped": "experts > 1",
    "ragged_m": "m % group_rows != 0",
    "ragged_n": "grouped or n % group_columns != 0",
}
"""What templates ask of the sizes."""

_W = "'w_packed' if packs else 'weights'"
_X = "'x_quants', 'x_scales'"


def _product(when: str, *, quantised: bool, grouped: bool, more: tuple[str, ...]) -> LaunchFormula:
    others = ["'starts'"] if grouped else []
    return LaunchFormula(
        kernel="qgemm",
        global_size="groups_n if in_panels else groups_m * local_0, groups_m if in_panels else groups_n * local_1",
        local_size="local_0, local_1",
        local_when="algorithm != 'naive'",
        arguments=", ".join([_W, _X if quantised else "'x'", "'y', m, n, k, experts", *others, *more]),
        when=f"not by_matrices and split_k == 1 and {when} and {'' if grouped else 'not '}grouped"
        f" and mode {'==' if quantised else '!='} 'int8'",
    )


def _sharing_k(activations: str, when: str, *, grouped: bool, split: bool) -> LaunchFormula:
    others = [*(["'starts'"] if grouped else []), *(["'c_parts', 'counters'"] if split else [])]
    return LaunchFormula(
        kernel="qgemm",
        global_size="groups_m * local_0, groups_n * local_1, split_k",
        local_size="local_0, local_1, 1",
        arguments=", ".join([_W, activations, "'y', m, n, k, experts", *others]),
        when=f"{when} and {'' if grouped else 'not '}grouped and split_k {'>' if split else '=='} 1",
    )


_W_IMAGE, _X_IMAGE = "'w_image'", "'x_image'"
_STORAGES = {
    "w_storage == 'buffer' and x_storage == 'buffer'": (),
    "x_storage == 'local'": ("staged",),
    "w_storage == 'image' and x_storage == 'buffer'": (_W_IMAGE,),
    "w_storage == 'buffer' and x_storage == 'image'": (_X_IMAGE,),
    "w_storage == 'image' and x_storage == 'image'": (_W_IMAGE, _X_IMAGE),
}
_BY_MATRICES = {
    "'x'": "by_matrices and mode == 'float16' and not sums_needed",
    "'x', 'x_sums'": "by_matrices and mode == 'float16' and sums_needed",
    _X: "by_matrices and mode != 'float16' and not sums_needed",
    f"{_X}, 'x_sums'": "by_matrices and mode != 'float16' and sums_needed",
}
"""What matrix units take of activations: as they are, or quantised or split, and with the sums of units."""

PLAN = PlanFormula(
    absent={
        **dict.fromkeys(("micro_tile_m", "micro_tile_n", "work_group_m", "work_group_n", "work_group_k"), 1),
        **dict.fromkeys(("macro_tile_m", "macro_tile_n", "sub_group_tile_m", "sub_group_tile_n"), 1),
        **dict.fromkeys(("lanes", "chunk", "split_k"), 1),
        "layout": "columns",
        "packed_words": 4,
        **dict.fromkeys(("w_storage", "x_storage"), "buffer"),
        "run_type": "float32",
        **dict.fromkeys(("relaxed_math", "integer_dot"), "off"),
        "standard": "none",
        "combine": SECOND_LAUNCH,
    },
    names={
        "units": f"k // {UNIT}",
        "rows": "experts * m",
        "by_matrices": "algorithm == 'matrix_tile'",
        "in_panels": "algorithm == 'vector_rows'",
        "is_split": "by_matrices and mode == 'float32'",
        "sums_needed": f"by_matrices and {BY_BLOCK}",
        "packed_m": f"round_up(m, {PIECE}) if by_matrices else m",
        "weight_bytes": f"experts * ({WEIGHT_BYTES})",
        "packed_bytes": f"experts * packed_m * {PACKED_ROW_BYTES}",
        "packs": "algorithm != 'naive' and layout != 'file'",
        "group_rows": "macro_tile_m * micro_tile_m * work_group_m * (8 if algorithm == 'matrix_rows' else 1)",
        "group_columns": "macro_tile_n * micro_tile_n * work_group_n",
        "groups_m": "ceil_div(m, group_rows)",
        "groups_n": "ceil_div(n, group_columns) + experts - 1",
        "local_0": "lanes if algorithm == 'shared_rows' else 32 if algorithm == 'matrix_rows'"
        f" else {ITEMS} if by_matrices else work_group_m",
        "local_1": "work_group_m if algorithm == 'shared_rows' else work_group_k * work_group_n"
        " * (work_group_m if algorithm == 'matrix_rows' else 1)",
        **_FLAGS,
    },
    buffers=(
        BufferFormula(name="weights", role=Role.INPUT, dtype="'uint8'", elements="weight_bytes"),
        BufferFormula(name="x", role=Role.INPUT, dtype=_STORED, elements="n * k"),
        BufferFormula(name="starts", role=Role.INPUT, dtype="'int32'", elements="experts + 1", when="grouped"),
        BufferFormula(name="y", role=Role.OUTPUT, dtype=_STORED, elements="n * m"),
        BufferFormula(name="w_packed", role=Role.SCRATCH, dtype="'uint8'", elements="packed_bytes", when="packs"),
        BufferFormula(
            name="w_image", role=Role.VIEW, dtype="'uint32'", image="rows * units * quant_words, 1", channels=4,
            is_line=True, view_of="w_packed", when="w_storage == 'image' and packed_words == 4",
        ),
        BufferFormula(
            name="w_image", role=Role.VIEW, dtype="'uint32'", image="rows * units * quant_words, 1", channels=1,
            is_line=True, view_of="w_packed", when="w_storage == 'image' and packed_words == 1",
        ),
        BufferFormula(
            name="x_image", role=Role.VIEW, dtype=_STORED, image="n * k, 1", is_line=True, view_of="x",
            when="x_storage == 'image'",
        ),
        BufferFormula(
            name="x_quants", role=Role.SCRATCH, dtype="'uint32'", elements="n * units * (32 if is_split else 8)",
            when="mode == 'int8' or is_split",
        ),
        BufferFormula(
            name="x_scales", role=Role.SCRATCH, dtype="'float32'", elements="n if is_split else n * units * 2",
            when="mode == 'int8' or is_split",
        ),
        BufferFormula(
            name="x_sums", role=Role.SCRATCH, dtype="'uint32'", elements="n * (units // 8) * 9", when="sums_needed"
        ),
        BufferFormula(
            name="c_parts", role=Role.SCRATCH, dtype="'float32'", when="split_k > 1",
            elements="groups_m * groups_n * split_k * group_rows * group_columns",
        ),
        BufferFormula(**COUNTERS, elements="groups_m * groups_n", when="split_k > 1"),
    ),
    launches=(
        LaunchFormula(
            kernel="pack",
            global_size="units, rows",
            arguments="'weights', 'w_packed', rows, k, 0",
            when="packs and not by_matrices",
            prepares="weights",
        ),
        LaunchFormula(
            kernel="pack",
            global_size="units, experts * packed_m",
            arguments="'weights', 'w_packed', m, experts, k",
            when="packs and by_matrices",
            prepares="weights",
        ),
        LaunchFormula(
            kernel="quantise", global_size="units, n", arguments=f"'x', {_X}, units", when="mode == 'int8'"
        ),
        LaunchFormula(
            kernel="split", global_size="128, n", local_size="128, 1", arguments=f"'x', {_X}, units", when="is_split"
        ),
        LaunchFormula(
            kernel="sums", global_size="units, round_up(n, 16)", local_size="8, 16",
            arguments="'x', 'x_sums', n, units", when="sums_needed and not is_split",
        ),
        LaunchFormula(
            kernel="sums", global_size="units, round_up(n, 16)", local_size="8, 16",
            arguments="'x', 'x_scales', 'x_sums', n, units", when="sums_needed and is_split",
        ),
        *(
            _product(when, quantised=quantised, grouped=grouped, more=more)
            for when, more in _STORAGES.items()
            for quantised in (False, True)
            for grouped in (False, True)
        ),
        *(
            _sharing_k(activations, when, grouped=grouped, split=split)
            for activations, when in _BY_MATRICES.items()
            for grouped in (False, True)
            for split in (False, True)
        ),
        *(
            _sharing_k(activations, f"not by_matrices and {when}", grouped=grouped, split=True)
            for activations, when in {"'x'": "mode != 'int8'", _X: "mode == 'int8'"}.items()
            for grouped in (False, True)
        ),
    ),
    arguments={
        "staged": ArgumentFormula(
            value=f"{MATRIX_LOCAL} if algorithm == 'matrix_rows' else 4 * micro_tile_n * units * 36"
        )
    },
    build_options={
        "-cl-fast-relaxed-math": "relaxed_math == 'on'",
        **standards(cl2_too="standard == 'CL2.0'", cl3_too="standard == 'CL3.0' or integer_dot == 'khr'"),
    },
    template_values={
        "weights": "weights",
        **{name: by_format(attrgetter(name)) for name in _OF_FORMATS},
        "mode": "mode",
        "stored_type": _STORED_IN_C,
        "sum_type": "'float'",
        **{name: name for name in _FLAGS},
    },
    variant=dict.fromkeys(_FLAGS, 2),
)  # fmt: skip
