"""The plans of attention: one launch, or a second one that joins the parts of rows."""

from autotune.kernels.attention.problem import UNIT_BYTES, WORDS
from autotune.kernels.combination import COUNTERS, SECOND_LAUNCH, standards
from autotune.kernels.matrix_units import SUB_GROUP
from autotune.kernels.qgemm.formats import UNIT
from autotune.model.configuration import Configuration
from autotune.model.plan import Role
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import by_value
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula, divisible

BASELINE = Configuration.of("naive", work_group_size=0)

_FLAGS = {"windowed": "window > 0", "one_query": "q_length == 1"}
"""What templates ask of the sizes."""

_DTYPE = by_value("dtype", {dtype: dtype for dtype in WORDS["dtype"]})
_KV_DTYPE = by_value("kv_type", {"float32": "float32", "float16": "float16", "": "uint8"})
_FLOATS = "'float32'"
_TILED = "batch * kv_heads * key_tiles * tile_k"
"""Keys of all heads in whole tiles."""
_ARGUMENTS = """'q', 'k', 'v', 'lengths', 'mask' if bias == 'mask' else 'slopes' if bias == 'alibi' else 'lengths',
    'sink' if sinks == 'sinks' else 'lengths', 'table' if layout == 'pages' else 'lengths', 'output', scale, cap,
    q_length, kv_length, kv_heads, group, capacity, window, page, all_pages"""
"""Where an operand is absent, the lengths stand for it."""
_V_ROWS = "'v_rows' if copied else 'lengths'"


def _launch(when: str, *parts: str) -> LaunchFormula:
    return LaunchFormula(
        kernel="attention",
        global_size="split * items, ceil_div(rows, tile_rows), batch * kv_heads",
        local_size="items, 1, 1",
        arguments=", ".join([_ARGUMENTS, *parts]),
        when=f"algorithm in ('decode', 'prefill', 'matrix_tile') and {when}",
    )


PLAN = PlanFormula(
    absent={
        **dict.fromkeys(("split", "tile_q", "tile_k", "work_group_size", "work_group_q", "work_group_k",
                         "micro_tile_q", "sub_groups_q", "sub_groups_k"), 1),
        "combine": SECOND_LAUNCH,
    },
    names={
        "rows": "group * q_length",
        "by_matrices": "algorithm == 'matrix_tile'",
        "tile_rows": "16 * sub_groups_q * micro_tile_q if by_matrices"
        " else work_group_q * micro_tile_q if algorithm == 'prefill' else tile_q",
        "items": f"{SUB_GROUP} * sub_groups_q * sub_groups_k if by_matrices"
        " else work_group_q * work_group_k if algorithm == 'prefill' else work_group_size",
        "all_rows": "batch * kv_heads * rows",
        "all_pages": "pool if pool > 0 else batch * ceil_div(capacity, page)",
        "tokens": "all_pages * page * kv_heads",
        # Elements of the arrays of K and V that hold 32 elements of a row: blocks are bytes.
        "kv_unit": f"{UNIT} if kv_type in ('float32', 'float16') else ({UNIT_BYTES})",
        "key_tiles": "ceil_div(kv_length, tile_k)",
        "copied": "algorithm == 'columns' and kv_type != 'float32'",
        "is_one_launch": f"combine != '{SECOND_LAUNCH}'",
        "splits": "split > 1",
        **_FLAGS,
    },
    buffers=(
        *(
            BufferFormula(name=name, role=role, dtype=dtype, elements=elements, when=when)
            for name, role, dtype, elements, when in (
                ("q", Role.INPUT, _DTYPE, "all_rows * k_size", "True"),
                ("k", Role.INPUT, _KV_DTYPE, f"tokens * k_size * kv_unit // {UNIT}", "True"),
                ("v", Role.INPUT, _KV_DTYPE, f"tokens * v_size * kv_unit // {UNIT}", "True"),
                ("lengths", Role.INPUT, "'int32'", "batch", "True"),
                ("mask", Role.INPUT, _DTYPE, "batch * q_length * capacity", "bias == 'mask'"),
                ("slopes", Role.INPUT, _FLOATS, "kv_heads * group", "bias == 'alibi'"),
                ("sink", Role.INPUT, _FLOATS, "kv_heads * group", "sinks == 'sinks'"),
                ("table", Role.INPUT, "'int32'", "batch * ceil_div(capacity, page)", "layout == 'pages'"),
                ("output", Role.OUTPUT, _DTYPE, "all_rows * v_size", "True"),
                ("parts", Role.SCRATCH, _FLOATS, "all_rows * split * v_size", "splits"),
                ("stats", Role.SCRATCH, _FLOATS, "all_rows * split * 2", "splits"),
                ("k_columns", Role.SCRATCH, _FLOATS, f"{_TILED} * k_size", "algorithm == 'columns'"),
                ("v_rows", Role.SCRATCH, _FLOATS, f"{_TILED} * v_size", "copied"),
            )
        ),
        BufferFormula(elements="batch * kv_heads * ceil_div(rows, tile_rows)", when="is_one_launch", **COUNTERS),
    ),
    launches=(
        LaunchFormula(
            kernel="attention",
            global_size=f"round_up(rows, work_group_size) if work_group_size > 0 else {divisible('rows')},"
            " batch * kv_heads",
            local_size="work_group_size, 1", local_when="work_group_size > 0", arguments=_ARGUMENTS,
            when="algorithm == 'naive'",
        ),
        LaunchFormula(
            kernel="arrange", global_size="key_tiles, batch * kv_heads", local_size="1, 1",
            arguments=f"{_ARGUMENTS}, 'k_columns', {_V_ROWS}", when="algorithm == 'columns'",
        ),
        LaunchFormula(
            kernel="attention", global_size="ceil_div(rows, tile_q), batch * kv_heads", local_size="1, 1",
            arguments=f"{_ARGUMENTS}, 'k_columns', {_V_ROWS}, key_tiles", when="algorithm == 'columns'",
        ),
        _launch("not splits"),
        _launch("splits and not is_one_launch", "'parts', 'stats', split"),
        _launch("is_one_launch", "'parts', 'stats', split, 'counters'"),
        LaunchFormula(
            kernel="combine", global_size="items, rows, batch * kv_heads", local_size="items, 1, 1",
            arguments=f"{_ARGUMENTS}, 'parts', 'stats', split", when="splits and not is_one_launch",
        ),
    ),
    scalars={"scale": 0.125, "cap": 30.0},
    build_options=standards(),
    template_values={
        **{name: name for name in ("k_size", "v_size", "causality", "layout", "bias", "capping", "sinks", "kv_type")},
        "stored_type": by_value("dtype", {dtype: NUMBER_TYPES[dtype].in_c for dtype in WORDS["dtype"]}),
        "sum_type": "'float'",
        "splits": "splits",
        **{name: name for name in _FLAGS},
    },
    variant=dict.fromkeys(_FLAGS, 2),
)  # fmt: skip
