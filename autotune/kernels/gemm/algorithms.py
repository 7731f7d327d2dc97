"""What algorithms of GEMM share, their parameters and constraints, and those without a tile per work-item.

These are `naive` and `dot`, with one output per work-item, and `row` and `column`, for few rows or few columns, which
are limited by the speed of reading the larger operand.

Constraints may name every parameter, the problem's fields (m, n, k, lda, trans_a, batch, element_bytes, ...; see
`GemmProblem.constraint_values`) and the device's limits (`DeviceLimits`).
"""

from collections.abc import Callable, Sequence

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.kernels.gemm.problem import COLUMN_OF_ROWS, MODES, ROWS_OF_COLUMNS, Mode
from autotune.model.configuration import Value
from autotune.model.problem import NUMBER_TYPES
from autotune.space.family import Algorithm, Constraint, Parameter, constraint, features, parameter


def newer_parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    """Return a parameter that configurations of space version 1 lack; its first value does what they did."""
    return parameter(name, values, meaning, neutral=values[0])


def modes_where(holds: Callable[[Mode], bool]) -> tuple[str, ...]:
    return tuple(name for name, mode in MODES.items() if holds(mode))


_FLOAT16 = modes_where(lambda mode: mode.operand.name == "float16")
_FLOATS = modes_where(lambda mode: not mode.operand.is_whole)
_WIDE_FLOATS = modes_where(lambda mode: mode.accumulator.name == "float32")
_INT8 = modes_where(lambda mode: mode.operand.name == "int8")

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
    ("off", "khr", "arm", "ptx"),
    "multiply and add four pairs of int8 at a time, by cl_khr_integer_dot_product, cl_arm_integer_dot_product_int8 or "
    "NVIDIA's instruction",
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


FEATURES = features(
    "work_group_m * work_group_n",
    "micro_tile_m * micro_tile_n",
    "work_group_m * micro_tile_m",
    "work_group_n * micro_tile_n",
)


WHOLE_NUMBERS = (
    constraint("no_relaxed_integers", f"relaxed_math == 'off' or mode in {_FLOATS}", "integers are exact in any case"),
    constraint(
        "has_mad",
        f"multiply_add in ('operator', 'packed') or mode in {_WIDE_FLOATS} "
        f"or (mode in {_FLOATS} and has_half_functions == 1)",
        "mad() needs floating point, and that of float16 the functions of cl_khr_fp16",
    ),
)


HAS_INTEGER_DOT = constraint(
    "has_integer_dot",
    f"integer_dot == 'off' or (mode in {_INT8} and ((integer_dot == 'khr' and has_khr_integer_dot == 1) "
    "or (integer_dot == 'arm' and has_arm_integer_dot == 1) or (integer_dot == 'ptx' and has_ptx_integer_dot == 1)))",
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


_HALF_VECTORS = "accumulator_bytes == 4 or has_half_functions == 1"
"""NVIDIA's compiler, which computes with half without announcing it, fails at some vectors of more than two."""
PARTS_TO_COMBINE = constraint(
    "parts_to_combine",
    f"split_k == 1 if combine == 'launch' and not ({_HALF_VECTORS}) else combine == 'launch' or split_k > 1",
    "without parts there is nothing to join, or the compiler cannot join them",
)


def vectors_work(width: str, unless: str = "False") -> Constraint:
    """Return a constraint that allows only vector widths not found broken for the types of the problem.

    `unless` is a condition under which a kernel does not compute with vectors of half.
    """
    conditions = (
        f"(mode in {modes_where(lambda mode: dtype not in mode.vectors)} or {width} <= max_vector_{dtype})"  # noqa: B023
        for dtype in NUMBER_TYPES
    )
    narrow = f"({width} <= 2 or {_HALF_VECTORS} or {unless})"
    return constraint(
        f"{width}_works", " and ".join((*conditions, narrow)), "the driver gets vectors of this width wrong"
    )


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


SPLIT_LEAVES_WORK = constraint(
    "split_leaves_work",
    "split_k == 1 or (k >= 4 * split_k * tile_k and batch * m * n * split_k <= 33554432)",
    "each part of k holds at least four tiles, and the parts of C fit 128 MiB",
)
_OUTPUTS_TO_DO = rows_to_do("work_group_m - 1 < m"), columns_to_do("work_group_n - 1 < n")
_ALIGNMENT_MATTERS = constraint(
    "alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"
)

NAIVE = Algorithm(
    name="naive",
    meaning="one output per work-item, scalar loop over k",
    parameters=WORK_GROUP,
    constraints=(
        *WORK_GROUP_LIMITS,
        *_OUTPUTS_TO_DO,
    ),
)

DOT = Algorithm(
    name="dot",
    meaning="one output per work-item, vector dot products along k",
    parameters=(
        *WORK_GROUP,
        parameter("vector_width", (2, 4, 8, 16), "elements of k in one product"),
        parameter("unroll", (1, 2, 4), "vectors of k in one step of the loop"),
        parameter("b_storage", ("buffer", "transposed"), "gather columns of B, or first copy B transposed"),
        EDGES,
        LOADS,
        MATH,
        INTEGER_DOT,
    ),
    constraints=(
        *WORK_GROUP_LIMITS,
        vectors_work("vector_width"),
        *_OUTPUTS_TO_DO,
        constraint("step_within_k", "vector_width * unroll < 2 * k", "one step is longer than k"),
        aligned(
            "edges == 'pad' or ((trans_a == 1 or (lda % vector_width == 0 and stride_a % vector_width == 0)) "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        constraint(
            "transposed_b_is_ready",
            "trans_b == 0 or (b_storage == 'buffer' and edges == 'guard')",
            "the k of a transposed B lies in its rows already",
        ),
        WHOLE_NUMBERS[0],
        HAS_INTEGER_DOT,
        constraint(
            "integer_dot_of_rows",
            "integer_dot == 'off' or (vector_width >= 4 and (trans_a == 0 or edges == 'pad') "
            "and (trans_b == 1 or b_storage == 'transposed'))",
            "four elements of k have to lie side by side",
        ),
    ),
)

# Where C is a column of rows of A, `row` and `strip` compute the product of the transposes.
_M, _N = f"(n if {COLUMN_OF_ROWS} else m)", f"(m if {COLUMN_OF_ROWS} else n)"
_FEW_ROWS_OF_B = (
    constraint("few_rows", f"{_M} <= 16 and micro_tile_m < 2 * {_M}", "the algorithm is for few rows"),
    constraint("rows_of_b", f"trans_b == 0 or {COLUMN_OF_ROWS}", "the kernel reads rows of B"),
)

STRIP = Algorithm(
    name="strip",
    meaning="few rows, on processors: strips of B with rows as long as pages, added to sums in local memory",
    parameters=(
        parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item computes"),
        parameter("micro_tile_n", (1024, 2048, 4096), "columns of C a work-item computes"),
        parameter("vector_width", (4, 8, 16), "columns in one vector"),
        parameter("unroll", (2, 4, 8), "rows of B added in one pass of the loop"),
    ),
    constraints=(
        vectors_work("vector_width"),
        *_FEW_ROWS_OF_B,
        constraint("is_processor", "is_cpu == 1", "other devices read memory otherwise"),
        constraint("vectors_are_whole", f"{_N} % vector_width == 0", "columns are computed by whole vectors"),
        columns_to_do(f"micro_tile_n < 2 * {_N}"),
        accumulators_fit("micro_tile_m * unroll <= 16"),
        sums_fit_local_memory("micro_tile_m * micro_tile_n * accumulator_bytes"),
        constraint("step_within_k", "unroll <= k", "no pass of the loop would be whole"),
    ),
    features=features("micro_tile_m * micro_tile_n"),
)

ROW = Algorithm(
    name="row",
    meaning="few rows: work-items own columns and share out k; as fast as B can be read",
    parameters=(
        parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item computes"),
        parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64, 128, 256), "columns of C a work-item computes"),
        parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        parameter("work_group_n", (1, 8, 16, 32, 64, 128), "work-items along n"),
        parameter("work_group_k", (1, 2, 4, 8, 16, 32, 64, 128), "work-items that share out k"),
        parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        parameter("split_k", (1, 2, 4, 8, 16, 32, 64), "work-groups that share out k"),
        COMBINE,
        LOADS,
        WAVE_SIZE,
    ),
    constraints=(
        HAS_ORDERING,
        PARTS_TO_COMBINE,
        vectors_work("vector_width"),
        *_FEW_ROWS_OF_B,
        constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_n <= 16 * vector_width "
            "and (vector_width == 16 or micro_tile_n <= 4 * vector_width)",
            "a work-item owns whole vectors of columns, and not more than its registers hold",
        ),
        accumulators_fit(
            "micro_tile_m * micro_tile_n * unroll <= 64 "
            "or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 256 and micro_tile_n * unroll <= 512)"
        ),
        constraint("tile_within_row", f"micro_tile_n <= {_N}", "a row must hold the columns of a work-item"),
        columns_to_do(f"work_group_n * micro_tile_n - micro_tile_n < {_N}"),
        constraint(
            "work_group_fits_device",
            "work_group_n * work_group_k <= min(max_work_group_size, 1024) and work_group_n <= max_work_group_0 "
            "and work_group_k <= max_work_group_1 and (is_cpu == 0 or work_group_n * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or is too large for a CPU",
        ),
        sums_fit_local_memory("work_group_k // 2 * work_group_n * micro_tile_n * accumulator_bytes"),
        constraint("step_within_k", "work_group_k * unroll * split_k <= k", "some work-items would have no part of k"),
        constraint("parts_stay_small", "split_k == 1 or batch * m * n * split_k <= 33554432", "the parts fit 128 MiB"),
        aligned(
            "(lda % vector_width == 0 and stride_a % vector_width == 0 and m % vector_width == 0 "
            f"if {COLUMN_OF_ROWS} else "
            "ldb % vector_width == 0 and stride_b % vector_width == 0 and n % vector_width == 0)"
        ),
        _ALIGNMENT_MATTERS,
        HAS_WAVE_SIZE,
    ),
    features=features(
        "work_group_n * work_group_k",
        "micro_tile_m * micro_tile_n",
        "n // (work_group_n * micro_tile_n) * split_k",
        "work_group_k * split_k",
    ),
)

COLUMN = Algorithm(
    name="column",
    meaning="few columns: the work-items of a group share out the k of some rows; as fast as A can be read",
    parameters=(
        parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item helps with"),
        parameter("micro_tile_n", (1, 2, 4), "columns of C a work-item helps with"),
        parameter("vector_width", (1, 2, 4, 8, 16), "elements of k in one load"),
        parameter("work_group_m", (1, 2, 4, 8, 16), "groups of rows in a work-group"),
        parameter("work_group_k", (1, 8, 16, 32, 64, 128, 256), "work-items that share out k"),
        parameter("unroll", (1, 2, 4), "vectors of each row in one pass of the loop"),
        LOADS,
        WAVE_SIZE,
    ),
    constraints=(
        vectors_work("vector_width"),
        constraint(
            "few_columns",
            f"micro_tile_n < 2 * m if {ROWS_OF_COLUMNS} else n <= 16 and micro_tile_n < 2 * n",
            "the algorithm is for few columns",
        ),
        constraint("rows_of_a", f"trans_a == 0 or {ROWS_OF_COLUMNS}", "the kernel reads rows of A"),
        constraint(
            "registers_hold_it",
            "micro_tile_m * (micro_tile_n + unroll) * vector_width <= 64 "
            "or (is_cpu == 1 and micro_tile_m * (micro_tile_n + unroll) * vector_width <= 384)",
            "the registers do not hold the sums and what is loaded",
        ),
        rows_to_do(f"(work_group_m - 1) * micro_tile_m < (n if {ROWS_OF_COLUMNS} else m)"),
        constraint(
            "work_group_fits_device",
            "work_group_m * work_group_k <= min(max_work_group_size, 1024) and work_group_k <= max_work_group_0 "
            "and work_group_m <= max_work_group_1 and (is_cpu == 0 or work_group_m * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or is too large for a CPU",
        ),
        sums_fit_local_memory("work_group_m * work_group_k * accumulator_bytes"),
        constraint("step_within_k", "work_group_k * vector_width < 2 * k", "half the items would have no part of k"),
        aligned(
            "(ldb % vector_width == 0 and stride_b % vector_width == 0 "
            "and (trans_a == 1 or (lda % vector_width == 0 and stride_a % vector_width == 0)) "
            f"if {ROWS_OF_COLUMNS} else "
            "lda % vector_width == 0 and stride_a % vector_width == 0 "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        _ALIGNMENT_MATTERS,
        HAS_WAVE_SIZE,
    ),
    features=features(
        "work_group_m * work_group_k", "work_group_k * vector_width * unroll", "work_group_m * micro_tile_m"
    ),
)
