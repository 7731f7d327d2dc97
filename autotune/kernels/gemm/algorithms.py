"""What can be chosen for GEMM: its algorithms, their parameters and their constraints.

Constraints may name every parameter, the problem's fields (m, n, k, lda, trans_a, batch, element_bytes, ...; see
`GemmProblem.constraint_values`) and the device's limits (`DeviceLimits`).
"""

from collections.abc import Sequence

from autotune.combining import COMBINE, HAS_ORDERING
from autotune.expression import Expression
from autotune.family import Algorithm, Constraint, Parameter, Value


def _parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    return Parameter(name=name, values=tuple(values), meaning=meaning)


def _newer_parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    """One that configurations of space version 1 lack: its first value does what they did."""
    return Parameter(name=name, values=tuple(values), meaning=meaning, neutral=values[0])


def _constraint(name: str, condition: str, because: str) -> Constraint:
    return Constraint(name=name, condition=Expression(condition), because=because)


_EDGES = _parameter(
    "edges",
    ("guard", "pad"),
    "guard: work on A and B where they are, with guarded edges; pad: first copy them into zero-padded rows",
)
_LOADS = _parameter(
    "loads", ("vload", "aligned"), "vload promises 4-byte alignment only; aligned reads whole aligned vectors"
)
_MATH = _parameter("relaxed_math", ("off", "on"), "build with -cl-fast-relaxed-math")
_MULTIPLY_ADD = _parameter("multiply_add", ("operator", "mad"), "write a * b + c, or mad(a, b, c)")
_INTEGER_DOT = _newer_parameter(
    "integer_dot",
    ("off", "khr", "arm"),
    "multiply and add four pairs of int8 at a time, by cl_khr_integer_dot_product or cl_arm_integer_dot_product_int8",
)
_WAVE_SIZE = _newer_parameter(
    "wave_size", ("any", "half", "full"), "work-items Adreno runs in step: the compiler's choice, or what is required"
)
_QCOM_16_BIT = _newer_parameter(
    "qcom_16_bit", ("off", "on"), "build with -qcom-accelerate-16-bit: whole waves of float16 on Adreno"
)
_REGISTER_CAP = _newer_parameter(
    "register_cap", (0, 64, 128), "registers NVIDIA's compiler may give a work-item; 0: as many as it likes"
)
_REGISTER_ALLOCATION = _newer_parameter(
    "register_allocation", (0, 32, 64), "registers Arm's compiler gives a work-item; 0 leaves them to it"
)
_WORK_GROUP = (
    _parameter("work_group_m", (0, 1, 2, 4, 8, 16, 32), "work-items along m; 0 leaves the work-group to the driver"),
    _parameter("work_group_n", (0, 1, 2, 4, 8, 16, 32, 64, 128), "work-items along n; 0: the driver chooses"),
)

_WORK_GROUP_LIMITS = (
    _constraint(
        "work_group_whole_or_driver",
        "(work_group_m == 0 and work_group_n == 0) or (work_group_m > 0 and work_group_n > 0)",
        "the driver chooses both dimensions of the work-group or none",
    ),
    _constraint(
        "work_group_fits_device",
        "work_group_m * work_group_n <= max_work_group_size and work_group_n <= max_work_group_0 "
        "and work_group_m <= max_work_group_1",
        "the work-group exceeds what the device allows",
    ),
)


_FEATURES = tuple(
    Expression(text)
    for text in (
        "work_group_m * work_group_n",
        "micro_tile_m * micro_tile_n",
        "work_group_m * micro_tile_m",
        "work_group_n * micro_tile_n",
    )
)


_WHOLE_NUMBERS = (
    _constraint("no_relaxed_integers", "mode != 'int8' or relaxed_math == 'off'", "integers are exact in any case"),
    _constraint("no_mad_of_integers", "mode != 'int8' or multiply_add == 'operator'", "mad() is for fractions"),
)


_HAS_INTEGER_DOT = _constraint(
    "has_integer_dot",
    "integer_dot == 'off' or (mode == 'int8' and ((integer_dot == 'khr' and has_khr_integer_dot == 1) "
    "or (integer_dot == 'arm' and has_arm_integer_dot == 1)))",
    "the device has no such product, or the numbers are not int8",
)
_HAS_WAVE_SIZE = _constraint(
    "has_wave_size", "wave_size == 'any' or has_wave_sizes == 1", "the device lets nobody choose the size of a wave"
)


_FEATURES_OF_DEVICE = (
    # Before others, which is when the search space can still leave out a value at little cost.
    _HAS_INTEGER_DOT,
    _HAS_WAVE_SIZE,
    _constraint(
        "has_qcom_16_bit",
        "qcom_16_bit == 'off' or (has_qcom_compiler == 1 and mode in ('float16', 'float16-acc16'))",
        "the option is of Qualcomm's compiler, and for float16",
    ),
    _constraint(
        "has_register_cap", "register_cap == 0 or has_register_cap == 1", "the option is of NVIDIA's compiler"
    ),
    _constraint(
        "has_register_allocation",
        "register_allocation == 0 or (register_allocation == 32 and allocates_32_registers == 1) "
        "or (register_allocation == 64 and allocates_64_registers == 1)",
        "the device allocates no such number of registers, or cannot be told to",
    ),
)


_PARTS_TO_COMBINE = _constraint(
    "parts_to_combine", "combine == 'launch' or split_k > 1", "without parts there is nothing to join"
)


def _aligned(rows: str) -> Constraint:
    return _constraint("aligned_rows", f"loads == 'vload' or {rows}", "rows do not start at aligned addresses")


_NAIVE = Algorithm(
    name="naive",
    meaning="one output a work-item, scalar loop over k",
    parameters=_WORK_GROUP,
    constraints=(
        *_WORK_GROUP_LIMITS,
        _constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to do"),
        _constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to do"),
    ),
)

_DOT = Algorithm(
    name="dot",
    meaning="one output a work-item, vector dot products along k",
    parameters=(
        *_WORK_GROUP,
        _parameter("vector_width", (2, 4, 8, 16), "elements of k in one product"),
        _parameter("unroll", (1, 2, 4), "vectors of k in one step of the loop"),
        _parameter("b_storage", ("buffer", "transposed"), "gather columns of B, or first copy B transposed"),
        _EDGES,
        _LOADS,
        _MATH,
        _INTEGER_DOT,
    ),
    constraints=(
        *_WORK_GROUP_LIMITS,
        _constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to do"),
        _constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to do"),
        _constraint("step_within_k", "vector_width * unroll < 2 * k", "one step is more than all of k"),
        _aligned(
            "edges == 'pad' or ((trans_a == 1 or (lda % vector_width == 0 and stride_a % vector_width == 0)) "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        _constraint(
            "transposed_b_is_ready",
            "trans_b == 0 or (b_storage == 'buffer' and edges == 'guard')",
            "the k of a transposed B lies in its rows already",
        ),
        _WHOLE_NUMBERS[0],
        _HAS_INTEGER_DOT,
        _constraint(
            "integer_dot_of_rows",
            "integer_dot == 'off' or (vector_width >= 4 and (trans_a == 0 or edges == 'pad') "
            "and (trans_b == 1 or b_storage == 'transposed'))",
            "four elements of k have to lie side by side",
        ),
    ),
)


def _view_fits(operand: str, rows: str) -> Constraint:
    pitch, stride = f"ld{operand}", f"stride_{operand}"
    return _constraint(
        f"view_of_{operand}_fits",
        f"{operand}_storage != 'image_view' or (has_image_from_buffer == 1 and trans_{operand} == 0 "
        f"and {pitch} % (4 * max(image_pitch_alignment, 1)) == 0 and (batch == 1 or {stride} % {pitch} == 0) "
        f"and (batch - 1) * ({stride} // {pitch}) + {rows} <= max_image_height)",
        f"the device cannot read {operand.upper()} where it is as an image with its pitch and height",
    )


_MICROTILE = Algorithm(
    name="microtile",
    meaning="a register micro-tile a work-item; A and B from images or buffers",
    parameters=(
        _parameter("micro_tile_m", (1, 2, 3, 4, 6, 8, 12, 16), "rows of C a work-item computes"),
        _parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64), "columns of C a work-item computes"),
        _parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        _parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        _parameter("a_vector_width", (1, 2, 4, 8), "elements of k in one load of A"),
        _newer_parameter(
            "a_storage",
            ("buffer", "image", "image_view"),
            "read A from its buffer, first copy it into an RGBA image, or read its buffer as an image",
        ),
        _parameter(
            "b_storage",
            ("buffer", "image", "image_view"),
            "read B from its buffer, first copy it into an RGBA image, or read its buffer as an image",
        ),
        _newer_parameter(
            "b_in_local", ("off", "on"), "first copy the columns of B that a work-group reads into its local memory"
        ),
        *_WORK_GROUP,
        _EDGES,
        _LOADS,
        _MULTIPLY_ADD,
        _MATH,
        _INTEGER_DOT,
        _WAVE_SIZE,
        _QCOM_16_BIT,
        _REGISTER_CAP,
        _REGISTER_ALLOCATION,
    ),
    constraints=(
        _constraint(
            "columns_fit_local_memory",
            "b_in_local == 'off' or (is_cpu == 1 and b_storage == 'buffer' and edges == 'guard' and work_group_n == 1 "
            "and work_group_m >= 4 and k * micro_tile_n * accumulator_bytes <= local_memory_bytes)",
            "all of k must fit, and pay by several micro-tiles; local memory of a GPU is for local_tile",
        ),
        *_FEATURES_OF_DEVICE,
        *_WORK_GROUP_LIMITS,
        _constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_n <= 4 * vector_width",
            "a micro-tile is one to four whole vectors wide",
        ),
        _constraint("a_vectors_fill_step", "unroll % a_vector_width == 0", "a step of k is whole vectors of A"),
        _constraint(
            "accumulators_fit",
            "micro_tile_m * micro_tile_n <= 128 or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 512)",
            "the accumulators do not fit the registers",
        ),
        _constraint(
            "rows_to_do",
            "work_group_m * micro_tile_m - micro_tile_m < m and micro_tile_m < 2 * m",
            "part of every work-group would have no row to do",
        ),
        _constraint(
            "columns_to_do",
            "work_group_n * micro_tile_n - micro_tile_n < n and micro_tile_n < 2 * n",
            "part of every work-group would have no column to do",
        ),
        _constraint("step_within_k", "unroll < 2 * k", "one step is more than all of k"),
        _constraint(
            "tile_within_row",
            "edges == 'pad' or b_storage != 'buffer' or micro_tile_n <= n",
            "the last micro-tile of a row is moved back to end with it, so a row must hold one",
        ),
        _constraint(
            "image_fits",
            "b_storage == 'buffer' or (has_images == 1 and vector_width == 4 "
            "and n <= 4 * max_image_width and (b_storage == 'image_view' or k * batch <= max_image_height))",
            "the device has no image of that size, or pixels and vectors differ in length",
        ),
        _constraint(
            "image_of_a_fits",
            "a_storage == 'buffer' or (has_images == 1 and a_vector_width == 4 "
            "and k <= 4 * max_image_width and (a_storage == 'image_view' or m * batch <= max_image_height))",
            "the device has no image of that size, or pixels and vectors differ in length",
        ),
        _view_fits("b", "k"),
        _view_fits("a", "m"),
        _constraint(
            "image_needs_no_padding",
            "(a_storage == 'buffer' and b_storage == 'buffer') or edges == 'guard'",
            "an image pads itself",
        ),
        _aligned(
            "edges == 'pad' or ((a_storage != 'buffer' or (lda % a_vector_width == 0 "
            "and stride_a % a_vector_width == 0)) and (b_storage != 'buffer' or (ldb % vector_width == 0 "
            "and stride_b % vector_width == 0 and n % vector_width == 0)))"
        ),
        _constraint(
            "transposed_b_is_packed",
            "trans_b == 0 or edges == 'pad' or b_storage == 'image'",
            "the kernel reads rows of B, which a transposed B has only after packing",
        ),
        _constraint(
            "transposed_a_by_elements",
            "trans_a == 0 or edges == 'pad' or a_vector_width == 1 or a_storage == 'image'",
            "the k of a transposed A does not lie in a row",
        ),
        *_WHOLE_NUMBERS,
        _constraint(
            "alignment_matters",
            "loads == 'vload' or (vector_width > 1 and b_storage == 'buffer') "
            "or (a_vector_width > 1 and a_storage == 'buffer')",
            "single elements are always aligned, and so are pixels",
        ),
        _constraint(
            "integer_dot_of_packed_rows",
            "integer_dot == 'off' or (edges == 'pad' and a_vector_width >= 4)",
            "four elements of k have to lie side by side, which packing sees to",
        ),
        _constraint(
            "waves_are_filled",
            "wave_size == 'any' or work_group_m * work_group_n >= 64",
            "half a wave is 64 work-items on most of these devices",
        ),
        _constraint(
            "one_word_on_waves", "qcom_16_bit == 'off' or wave_size == 'any'", "the option is about waves too"
        ),
        _constraint(
            "register_cap_matters",
            "register_cap == 0 or (micro_tile_m * micro_tile_n >= 32 "
            "and accumulator_bytes * micro_tile_m * micro_tile_n <= 4 * register_cap)",
            "a small tile needs few registers in any case, or the accumulators alone need more",
        ),
        _constraint(
            "register_allocation_suffices",
            "register_allocation == 0 or accumulator_bytes * micro_tile_m * micro_tile_n <= 4 * register_allocation",
            "the accumulators alone need more registers",
        ),
    ),
    features=_FEATURES,
)

_LOCAL_TILE = Algorithm(
    name="local_tile",
    meaning="macro-tiles of A and B in local memory, a register micro-tile a work-item",
    parameters=(
        _parameter("work_group_m", (4, 8, 16, 32), "work-items along m"),
        _parameter("work_group_n", (4, 8, 16, 32), "work-items along n"),
        _parameter("micro_tile_m", (1, 2, 4, 6, 8, 10, 12, 16), "rows of C a work-item computes"),
        _parameter("micro_tile_n", (1, 2, 4, 8, 16), "columns of C a work-item computes"),
        _parameter("tile_k", (8, 16, 32), "depth of the tiles in local memory"),
        _parameter("vector_width", (1, 2, 4), "elements in one load from local memory and one store to C"),
        _parameter("a_load_width", (1, 2, 4), "elements in one load of A from global memory"),
        _parameter("b_load_width", (1, 2, 4), "elements in one load of B from global memory"),
        _parameter("unroll", (4, 8, 16), "steps of k in one pass of the inner loop"),
        _parameter("local_padding", (0, 4), "elements between rows of a tile in local memory"),
        _parameter(
            "stages",
            (1, 2, 3, 4),
            "tiles in local memory at once; with two the next is fetched ahead, with more NVIDIA's copy instruction "
            "fetches further ahead",
        ),
        _parameter("sub_group_columns", (0, 4, 8, 16), "32 work-items as a block of so many columns; 0: as a row"),
        _parameter("group_rows", (0, 4, 8), "rows of work-groups that run as one band; 0: row by row"),
        _parameter("split_k", (1, 2, 4, 8, 16, 32), "work-groups that share the k of one macro-tile"),
        COMBINE,
        _EDGES,
        _MULTIPLY_ADD,
    ),
    constraints=(
        HAS_ORDERING,
        _PARTS_TO_COMBINE,
        _WORK_GROUP_LIMITS[1],
        _constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0",
            "micro-tiles are made of whole vectors",
        ),
        _constraint(
            "accumulators_fit",
            "micro_tile_m * micro_tile_n <= 64 or (micro_tile_m * micro_tile_n <= 128 and local_memory_bytes > 32768)",
            "the accumulators spill, above 64 on the small compute units that have 32 KiB of local memory or less",
        ),
        _constraint("enough_work_items", "work_group_m * work_group_n >= 32", "a compute unit would be half idle"),
        _constraint(
            "group_within_cpu", "is_cpu == 0 or work_group_m * work_group_n <= 256", "a CPU runs large groups slowly"
        ),
        _constraint("unroll_divides_tile", "tile_k % unroll == 0", "the inner loop has no remainder"),
        _constraint(
            "even_share_of_a",
            "(micro_tile_m * tile_k) % (work_group_n * a_load_width) == 0",
            "every work-item loads the same number of vectors of A",
        ),
        _constraint(
            "even_share_of_b",
            "(micro_tile_n * tile_k) % (work_group_m * b_load_width) == 0",
            "every work-item loads the same number of vectors of B",
        ),
        _constraint(
            "tiles_fit_local_memory",
            "accumulator_bytes * stages * tile_k * (work_group_m * micro_tile_m + work_group_n * micro_tile_n "
            "+ 2 * local_padding) <= local_memory_bytes",
            "the tiles of A and B exceed local memory",
        ),
        _constraint(
            "rows_to_do",
            "work_group_m * micro_tile_m < 2 * m + 8",
            "most of every work-group would have no row to do",
        ),
        _constraint(
            "columns_to_do",
            "work_group_n * micro_tile_n < 2 * n + 8",
            "most of every work-group would have no column to do",
        ),
        _constraint("step_within_k", "tile_k < 2 * k + 8", "one tile is more than all of k"),
        _constraint(
            "sub_groups_fill_work_group",
            "sub_group_columns == 0 or (is_cpu == 0 and work_group_n % max(sub_group_columns, 1) == 0 "
            "and work_group_m * sub_group_columns % 32 == 0)",
            "blocks of 32 work-items do not tile the work-group, or the device is a CPU",
        ),
        _constraint(
            "bands_matter",
            "group_rows == 0 or (split_k == 1 and m > 2 * group_rows * work_group_m * micro_tile_m "
            "and n > 2 * group_rows * work_group_n * micro_tile_n)",
            "there are too few work-groups for bands to differ from rows",
        ),
        _constraint(
            "padding_aligns",
            "edges == 'guard' or lda % 4 != 0 or ldb % 4 != 0 or n % 4 != 0",
            "rows are aligned as they are",
        ),
        _constraint(
            "split_leaves_work",
            "split_k == 1 or (k >= 4 * split_k * tile_k and batch * m * n * split_k <= 33554432)",
            "each part of k holds at least four tiles, and the parts of C fit 128 MiB",
        ),
        _constraint(
            "split_fills_device",
            "split_k == 1 or (batch * m * n * split_k) // (work_group_m * micro_tile_m * work_group_n * micro_tile_n) "
            "<= 32 * compute_units",
            "there are work-groups enough without splitting k",
        ),
        _constraint(
            "aligned_rows",
            "edges == 'pad' or (lda % a_load_width == 0 and ldb % b_load_width == 0 "
            "and stride_a % a_load_width == 0 and stride_b % b_load_width == 0)",
            "rows do not start at aligned addresses, and vectors are read whole",
        ),
        _constraint(
            "copies_by_instruction",
            "stages <= 2 or (has_ptx == 1 and mode == 'float32' and edges == 'guard' "
            "and (a_load_width == 1 or trans_a == 1) and (b_load_width == 1 or trans_b == 0))",
            "only NVIDIA's compiler takes the instruction, and it does not turn what it copies",
        ),
        _WHOLE_NUMBERS[1],
        _constraint(
            "widest_vectors",
            "vector_width > 1 or micro_tile_m % 2 != 0 or micro_tile_n % 2 != 0",
            "wider vectors would fill the micro-tile",
        ),
        _constraint(
            "micro_tile_worth_local_memory",
            "micro_tile_m * micro_tile_n >= 8 or m * n < 65536",
            "each number read from local memory should be used several times",
        ),
        _constraint(
            "macro_tile_near_square",
            "(work_group_m * micro_tile_m <= 8 * work_group_n * micro_tile_n or n < 64) "
            "and (work_group_n * micro_tile_n <= 8 * work_group_m * micro_tile_m or m < 64)",
            "a long macro-tile reads more than it computes",
        ),
    ),
    features=_FEATURES,
)

_ROW = Algorithm(
    name="row",
    meaning="few rows: work-items own columns and share out k; as fast as B can be read",
    parameters=(
        _parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item computes"),
        _parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64, 128, 256), "columns of C a work-item computes"),
        _parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        _parameter("work_group_n", (1, 8, 16, 32, 64, 128), "work-items along n"),
        _parameter("work_group_k", (1, 2, 4, 8, 16, 32, 64, 128), "work-items that share out k"),
        _parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        _parameter("split_k", (1, 2, 4, 8, 16, 32, 64), "work-groups that share out k"),
        COMBINE,
        _LOADS,
        _WAVE_SIZE,
    ),
    constraints=(
        HAS_ORDERING,
        _PARTS_TO_COMBINE,
        _constraint("few_rows", "m <= 16 and micro_tile_m < 2 * m", "an algorithm for few rows"),
        _constraint("rows_of_b", "trans_b == 0", "the kernel reads rows of B"),
        _constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_n <= 16 * vector_width "
            "and (vector_width == 16 or micro_tile_n <= 4 * vector_width)",
            "a work-item owns whole vectors of columns, and not more than its registers hold",
        ),
        _constraint(
            "accumulators_fit",
            "micro_tile_m * micro_tile_n * unroll <= 64 "
            "or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 256 and micro_tile_n * unroll <= 512)",
            "the accumulators do not fit the registers",
        ),
        _constraint("tile_within_row", "micro_tile_n <= n", "a row must hold the columns of a work-item"),
        _constraint(
            "columns_to_do",
            "work_group_n * micro_tile_n - micro_tile_n < n",
            "part of every work-group would have no column to do",
        ),
        _constraint(
            "work_group_fits_device",
            "work_group_n * work_group_k <= min(max_work_group_size, 1024) and work_group_n <= max_work_group_0 "
            "and work_group_k <= max_work_group_1 and (is_cpu == 0 or work_group_n * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or what a CPU adds up well",
        ),
        _constraint(
            "sums_fit_local_memory",
            "work_group_k // 2 * work_group_n * micro_tile_n * accumulator_bytes <= local_memory_bytes",
            "the sums of a work-group exceed local memory",
        ),
        _constraint("step_within_k", "work_group_k * unroll * split_k <= k", "some work-items would have no k to do"),
        _constraint("parts_stay_small", "split_k == 1 or batch * m * n * split_k <= 33554432", "the parts fit 128 MiB"),
        _aligned("(ldb % vector_width == 0 and stride_b % vector_width == 0 and n % vector_width == 0)"),
        _constraint("alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"),
        _HAS_WAVE_SIZE,
    ),
    features=(
        Expression("work_group_n * work_group_k"),
        Expression("micro_tile_m * micro_tile_n"),
        Expression("n // (work_group_n * micro_tile_n) * split_k"),
        Expression("work_group_k * split_k"),
    ),
)

_COLUMN = Algorithm(
    name="column",
    meaning="few columns: the work-items of a group share out the k of some rows; as fast as A can be read",
    parameters=(
        _parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item helps with"),
        _parameter("micro_tile_n", (1, 2, 4), "columns of C a work-item helps with"),
        _parameter("vector_width", (1, 2, 4, 8, 16), "elements of k in one load"),
        _parameter("work_group_m", (1, 2, 4, 8, 16), "groups of rows in a work-group"),
        _parameter("work_group_k", (1, 8, 16, 32, 64, 128, 256), "work-items that share out k"),
        _parameter("unroll", (1, 2, 4), "vectors of each row in one pass of the loop"),
        _LOADS,
        _WAVE_SIZE,
    ),
    constraints=(
        _constraint("few_columns", "n <= 16 and micro_tile_n < 2 * n", "an algorithm for few columns"),
        _constraint("rows_of_a", "trans_a == 0", "the kernel reads rows of A"),
        _constraint(
            "registers_hold_it",
            "micro_tile_m * (micro_tile_n + unroll) * vector_width <= 64 "
            "or (is_cpu == 1 and micro_tile_m * (micro_tile_n + unroll) * vector_width <= 384)",
            "the registers do not hold the sums and what is loaded",
        ),
        _constraint("rows_to_do", "(work_group_m - 1) * micro_tile_m < m", "part of a group would have no row to do"),
        _constraint(
            "work_group_fits_device",
            "work_group_m * work_group_k <= min(max_work_group_size, 1024) and work_group_k <= max_work_group_0 "
            "and work_group_m <= max_work_group_1 and (is_cpu == 0 or work_group_m * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or what a CPU adds up well",
        ),
        _constraint(
            "sums_fit_local_memory",
            "work_group_m * work_group_k * accumulator_bytes <= local_memory_bytes",
            "the sums of a work-group exceed local memory",
        ),
        _constraint("step_within_k", "work_group_k * vector_width < 2 * k", "half the items would have no k to do"),
        _aligned(
            "(lda % vector_width == 0 and stride_a % vector_width == 0 "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        _constraint("alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"),
        _HAS_WAVE_SIZE,
    ),
    features=(
        Expression("work_group_m * work_group_k"),
        Expression("work_group_k * vector_width * unroll"),
        Expression("work_group_m * micro_tile_m"),
    ),
)

ALGORITHMS = (_NAIVE, _DOT, _MICROTILE, _LOCAL_TILE, _ROW, _COLUMN)
