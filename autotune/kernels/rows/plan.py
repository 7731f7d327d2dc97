"""The plans of row operations: one launch, whose arguments depend on the operation."""

from autotune.kernels.rows.problem import DTYPES
from autotune.kernels.shared_rows import OF_ROWS
from autotune.model.configuration import Configuration
from autotune.model.plan import Role
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import by_value
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula, divisible

BASELINE = Configuration.of("serial", work_group_size=0, vector_width=1, unroll=1, loads="vload")

_DTYPE = by_value("dtype", {dtype: dtype for dtype in DTYPES})

_ARGUMENTS = {
    ("rms_norm",): "epsilon",
    ("rms_norm_weight",): "'weight', epsilon",
    ("rms_norm_add",): "'residual', 'sum', epsilon",
    ("rms_norm_add_weight",): "'residual', 'sum', 'weight', epsilon",
    ("layer_norm",): "'weight', 'bias', epsilon",
    ("softmax",): "scale",
    ("softmax_mask", "softmax_row_mask"): "'mask', scale",
    ("swiglu",): "'up'",
    ("swiglu_halves",): "",
    ("rope", "rope_halves"): "'positions', pairs, theta",
}
"""Arguments of a kernel beyond input and output, by operation."""

_FLAGS = {
    "whole_pass": "vectors >= in_pass",
    "ragged_pass": "vectors % in_pass != 0",
    "ragged_vector": "elements % vector_width != 0",
    "ragged_batch": "batch % rows != 0",
    "same_angles": "is_rope and (items_per_row * vector_width) % pairs == 0",
}
"""The guards that the sizes need, and whether all vectors of a work-item are turned by the same angles."""


def _one_of(operations: tuple[str, ...]) -> str:
    return " or ".join(f"operation == '{operation}'" for operation in operations)


def _operand(name: str, *operations: str, elements: str, role: Role = Role.INPUT) -> BufferFormula:
    return BufferFormula(name=name, role=role, dtype=_DTYPE, elements=elements, when=_one_of(operations))


def _launch(operations: tuple[str, ...], arguments: str) -> LaunchFormula:
    return LaunchFormula(
        kernel="rows",
        global_size=f"groups * work_group_size if work_group_size > 0 else {divisible('batch')}",
        local_size="work_group_size",
        local_when="work_group_size > 0",
        arguments=", ".join(filter(None, ("'input', pitch, 'output', out_pitch, batch, channels", arguments))),
        when=_one_of(operations),
    )


PLAN = PlanFormula(
    absent={"rows_per_group": 1, "row_of": "work_group", "keep": "memory", "standard": "none"},
    names={
        "is_rope": "operation in ('rope', 'rope_halves')",
        "pairs": "max(channels // heads // 2, 1)",
        # What vectors count: the pairs of RoPE, elements otherwise.
        "elements": "channels // 2 if is_rope else channels",
        "vectors": "elements // vector_width",
        **OF_ROWS,
        # Work-groups that share a row.
        "parts": "max(ceil_div(vectors, in_pass), 1) if algorithm == 'spread' else 1",
        "groups": "ceil_div(batch, rows) * parts",
        **_FLAGS,
    },
    buffers=(
        BufferFormula(name="input", role=Role.INPUT, dtype=_DTYPE, elements="batch * pitch"),
        _operand("residual", "rms_norm_add", "rms_norm_add_weight", elements="batch * pitch"),
        _operand("weight", "rms_norm_weight", "rms_norm_add_weight", "layer_norm", elements="channels"),
        _operand("bias", "layer_norm", elements="channels"),
        _operand(
            "mask", "softmax_mask", "softmax_row_mask",
            elements="channels if operation == 'softmax_mask' else batch * pitch",
        ),
        _operand("up", "swiglu", elements="batch * pitch"),
        BufferFormula(
            name="positions", role=Role.INPUT, dtype="'int32'", elements="batch", when=_one_of(("rope", "rope_halves"))
        ),
        BufferFormula(name="output", role=Role.OUTPUT, dtype=_DTYPE, elements="batch * out_pitch"),
        _operand("sum", "rms_norm_add", "rms_norm_add_weight", elements="batch * out_pitch", role=Role.OUTPUT),
    ),
    launches=tuple(_launch(*known) for known in _ARGUMENTS.items()),
    scalars={"epsilon": 1e-5, "scale": 0.125, "theta": 10000.0},
    build_options={"-cl-std=CL2.0": "standard == 'CL2.0'", "-cl-std=CL3.0": "standard == 'CL3.0'"},
    template_values={
        "operation": "operation",
        "stored_type": by_value("dtype", {dtype: NUMBER_TYPES[dtype].in_c for dtype in DTYPES}),
        "sum_type": "'float'",
        "kept": "keep",
        **{name: name for name in _FLAGS},
    },
    variant=dict.fromkeys(_FLAGS, 2),
)  # fmt: skip
