"""The plans of reductions: reduce the rows, or parts of them and then join the parts."""

from autotune.kernels.combination import COUNTERS, standards
from autotune.kernels.reduce.problem import DTYPES
from autotune.kernels.shared_rows import OF_ROWS
from autotune.model.plan import Role
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import by_value
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula, divisible

_DTYPE = by_value("dtype", {dtype: dtype for dtype in DTYPES})

_FLAGS = {
    "whole_pass": "vectors >= in_pass",
    "ragged_pass": "vectors % in_pass != 0",
    "ragged_vector": "channels % vector_width != 0",
    "ragged_batch": "batch % rows != 0",
}
"""The guards that the sizes need: a row is whole passes, a ragged pass, single elements."""

PLAN = PlanFormula(
    absent={"rows_per_group": 1, "row_of": "work_group", "parts": 1, "combine": "launch", "standard": "none"},
    names={
        "splits": "algorithm == 'split_row'",
        "is_one_launch": "combine != 'launch'",
        **OF_ROWS,
        "vectors": "channels // vector_width",
        **_FLAGS,
    },
    buffers=(
        BufferFormula(name="input", role=Role.INPUT, dtype=_DTYPE, elements="batch * pitch"),
        BufferFormula(name="output", role=Role.OUTPUT, dtype=_DTYPE, elements="batch"),
        BufferFormula(name="parts", role=Role.SCRATCH, dtype="'float32'", elements="batch * parts", when="splits"),
        BufferFormula(elements="batch", when="is_one_launch", **COUNTERS),
    ),
    launches=(
        LaunchFormula(
            kernel="reduce",
            global_size=f"ceil_div(batch, rows) * work_group_size if work_group_size > 0 else {divisible('batch')}",
            local_size="work_group_size",
            local_when="work_group_size > 0",
            arguments="'input', pitch, 'output', batch, channels",
            when="not splits",
        ),
        LaunchFormula(
            kernel="reduce",
            global_size="parts * work_group_size, batch",
            local_size="work_group_size, 1",
            arguments="'input', pitch, 'output', channels, 'parts', 'counters'",
            when="is_one_launch",
        ),
        LaunchFormula(
            kernel="reduce",
            global_size="parts * work_group_size, batch",
            local_size="work_group_size, 1",
            arguments="'input', pitch, 'parts', channels",
            when="splits and not is_one_launch",
        ),
        LaunchFormula(
            kernel="combine",
            global_size="work_group_size * batch",
            local_size="work_group_size",
            arguments="'parts', 'output', channels",
            when="splits and not is_one_launch",
        ),
    ),
    build_options=standards(cl2_too="standard == 'CL2.0'", cl3_too="standard == 'CL3.0'"),
    template_values={
        "operation": "operation",
        "stored_type": by_value("dtype", {dtype: NUMBER_TYPES[dtype].in_c for dtype in DTYPES}),
        "sum_type": "'float'",
        **{name: name for name in _FLAGS},
    },
    variant=dict.fromkeys(_FLAGS, 2),
)
