"""Parameters that several GEMM algorithms share, and the constraints on them."""

from collections.abc import Callable, Sequence

from autotune.kernels.gemm.problem import MODES, Mode
from autotune.model.configuration import Value
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import Expression
from autotune.space.family import Constraint, Parameter, constraint, parameter


def newer_parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    """Return a parameter that configurations of space version 1 lack; its first value does what they did."""
    return parameter(name, values, meaning, neutral=values[0])


def _modes(holds: Callable[[Mode], bool]) -> tuple[str, ...]:
    return tuple(name for name, mode in MODES.items() if holds(mode))


_FLOAT16 = _modes(lambda mode: mode.operand.name == "float16")
_FLOATS = _modes(lambda mode: not mode.operand.is_whole)
_INT8 = _modes(lambda mode: mode.operand.name == "int8")

EDGES = parameter(
    "edges",
    ("guard", "pad"),
    "guard: work on A and B where they are, with guarded edges; pad: first copy them into zero-padded rows",
)
LOADS = parameter(
    "loads", ("vload", "aligned"), "vload promises 4-byte alignment only; aligned reads whole aligned vectors"
)
MATH = parameter("relaxed_math", ("off", "on"), "build with -cl-fast-relaxed-math")
MULTIPLY_ADD = parameter("multiply_add", ("operator", "mad"), "write a * b + c, or mad(a, b, c)")
INTEGER_DOT = newer_parameter(
    "integer_dot",
    ("off", "khr", "arm"),
    "multiply and add four pairs of int8 at a time, by cl_khr_integer_dot_product or cl_arm_integer_dot_product_int8",
)
WAVE_SIZE = newer_parameter(
    "wave_size", ("any", "half", "full"), "work-items that Adreno runs in step: chosen by the compiler, or required"
)
QCOM_16_BIT = newer_parameter(
    "qcom_16_bit", ("off", "on"), "build with -qcom-accelerate-16-bit: whole waves of float16 on Adreno"
)
REGISTER_CAP = newer_parameter(
    "register_cap", (0, 64, 128), "registers NVIDIA's compiler may give a work-item; 0: no limit"
)
REGISTER_ALLOCATION = newer_parameter(
    "register_allocation", (0, 32, 64), "registers Arm's compiler gives a work-item; 0: its own choice"
)
WORK_GROUP = (
    parameter("work_group_m", (0, 1, 2, 4, 8, 16, 32), "work-items along m; 0 leaves the work-group to the driver"),
    parameter("work_group_n", (0, 1, 2, 4, 8, 16, 32, 64, 128), "work-items along n; 0: the driver chooses"),
)

WORK_GROUP_LIMITS = (
    constraint(
        "work_group_whole_or_driver",
        "(work_group_m == 0 and work_group_n == 0) or (work_group_m > 0 and work_group_n > 0)",
        "the driver chooses both dimensions of the work-group or none",
    ),
    constraint(
        "work_group_fits_device",
        "work_group_m * work_group_n <= max_work_group_size and work_group_n <= max_work_group_0 "
        "and work_group_m <= max_work_group_1",
        "the work-group exceeds what the device allows",
    ),
)


FEATURES = tuple(
    Expression(text)
    for text in (
        "work_group_m * work_group_n",
        "micro_tile_m * micro_tile_n",
        "work_group_m * micro_tile_m",
        "work_group_n * micro_tile_n",
    )
)


WHOLE_NUMBERS = (
    constraint("no_relaxed_integers", f"relaxed_math == 'off' or mode in {_FLOATS}", "integers are exact in any case"),
    constraint("no_mad_of_integers", f"multiply_add == 'operator' or mode in {_FLOATS}", "mad() needs floating point"),
)


HAS_INTEGER_DOT = constraint(
    "has_integer_dot",
    f"integer_dot == 'off' or (mode in {_INT8} and ((integer_dot == 'khr' and has_khr_integer_dot == 1) "
    "or (integer_dot == 'arm' and has_arm_integer_dot == 1)))",
    "the device has no such product, or the numbers are not int8",
)
HAS_WAVE_SIZE = constraint(
    "has_wave_size", "wave_size == 'any' or has_wave_sizes == 1", "the size of a wave cannot be chosen on the device"
)


FEATURES_OF_DEVICE = (
    # These come first, because early constraints let the search space leave out a value at little cost.
    HAS_INTEGER_DOT,
    HAS_WAVE_SIZE,
    constraint(
        "has_qcom_16_bit",
        f"qcom_16_bit == 'off' or (has_qcom_compiler == 1 and mode in {_FLOAT16})",
        "only Qualcomm's compiler has the option, for float16",
    ),
    constraint("has_register_cap", "register_cap == 0 or has_register_cap == 1", "only NVIDIA's compiler has it"),
    constraint(
        "has_register_allocation",
        "register_allocation == 0 or (register_allocation == 32 and allocates_32_registers == 1) "
        "or (register_allocation == 64 and allocates_64_registers == 1)",
        "the device cannot be made to allocate this number of registers",
    ),
)


PARTS_TO_COMBINE = constraint(
    "parts_to_combine", "combine == 'launch' or split_k > 1", "without parts there is nothing to join"
)


def vectors_work(width: str) -> Constraint:
    """Return a constraint that allows only vector widths not found broken for the types of the problem."""
    conditions = (
        f"(mode in {_modes(lambda mode: dtype not in mode.vectors)} or {width} <= max_vector_{dtype})"  # noqa: B023
        for dtype in NUMBER_TYPES
    )
    return constraint(f"{width}_works", " and ".join(conditions), "the driver gets vectors of this width wrong")


def rows_to_do(condition: str, share: str = "part") -> Constraint:
    return constraint("rows_to_do", condition, f"{share} of every work-group would have no row to compute")


def columns_to_do(condition: str, share: str = "part") -> Constraint:
    return constraint("columns_to_do", condition, f"{share} of every work-group would have no column to compute")


def accumulators_fit(condition: str) -> Constraint:
    return constraint("accumulators_fit", condition, "the accumulators do not fit the registers")


def sums_fit_local_memory(needed_bytes: str) -> Constraint:
    condition, because = f"{needed_bytes} <= local_memory_bytes", "the sums of a work-group exceed local memory"
    return constraint("sums_fit_local_memory", condition, because)


def aligned(rows: str) -> Constraint:
    return constraint("aligned_rows", f"loads == 'vload' or {rows}", "rows do not start at aligned addresses")
