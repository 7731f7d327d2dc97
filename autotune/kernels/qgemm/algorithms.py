"""The algorithms of products with quantised weights: parameters and constraints."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING, SECOND_LAUNCH
from autotune.kernels.qgemm.matrix_algorithm import MATRIX_TILE
from autotune.kernels.shared_rows import TAKES_STANDARD
from autotune.space.family import Algorithm, Constraint, Parameter, constraint, features, parameter

_ROWS = parameter("micro_tile_m", (1, 2, 4, 8), "rows of weights a work-item computes")
_COLUMNS = parameter("micro_tile_n", (1, 2, 4, 8), "columns of activations a work-item computes")
_MULTIPLY_ADD = parameter("multiply_add", ("operator", "mad"), "how a product is added: a * b + c, or mad(a, b, c)")
_INTEGER_DOT = parameter(
    "integer_dot", ("off", "khr", "arm", "ptx"), "instruction for four products of int8: Khronos', Arm's or NVIDIA's"
)
_DECODE = parameter(
    "decode", ("convert", "magic"), "how quants become floats: converted, or as part of the mantissa of a large float"
)
_WAVE_SIZE = parameter("wave_size", ("any", "half", "full"), "how many work-items Adreno runs in step")
_RELAXED_MATH = parameter("relaxed_math", ("off", "on"), "-cl-fast-relaxed-math")
_OF_SUMS = (_DECODE, _MULTIPLY_ADD, _INTEGER_DOT, _WAVE_SIZE, _RELAXED_MATH)


def _packed_words(*values: int) -> Parameter:
    return parameter("packed_words", values, "words of a row's quants that lie together when packed by columns")


_FITS_ROWS = constraint("rows_to_do", "micro_tile_m < 2 * m", "most rows of a work-item would not exist")
_FITS_COLUMNS = constraint("columns_to_do", "micro_tile_n < 2 * n", "most columns of a work-item would not exist")
_COMMON = (
    _FITS_ROWS,
    _FITS_COLUMNS,
    constraint("tile_fits_registers", "micro_tile_m * micro_tile_n <= 64", "the sums do not fit the registers"),
    constraint(
        "integer_dot_exists",
        "integer_dot == 'off' or (mode == 'int8' and ((integer_dot == 'khr' and has_khr_integer_dot == 1)"
        " or (integer_dot == 'arm' and has_arm_integer_dot == 1)"
        " or (integer_dot == 'ptx' and has_ptx_integer_dot == 1)))",
        "the device has no such instruction, or the problem has no integers to multiply",
    ),
    constraint("wide_vectors_work", "max_vector_float32 >= 4", "the driver gets vectors of four numbers wrong"),
)
_WAVES = constraint("wave_sizes_exist", "wave_size == 'any' or has_wave_sizes == 1", "it has one wave size")
_WHOLE = constraint(
    "float_matters", "mode != 'int8' or (multiply_add == 'operator' and decode == 'convert')",
    "integers are neither converted nor added so",
)  # fmt: skip

_GROUPS_TO_DO = constraint(
    "groups_to_do", "work_group_m * micro_tile_m < 2 * m", "most of a work-group would have no row"
)


def _group_fits(first: str, second: str) -> Constraint:
    sizes = f"{first} * {second} <= max_work_group_size and {first} <= max_work_group_0"
    because = "the work-group exceeds what the device allows"
    return constraint("work_group_fits_device", f"{sizes} and {second} <= max_work_group_1", because)


_NAIVE = Algorithm(
    name="naive",
    meaning="one output per work-item, from weights as the file has them",
    parameters=(_RELAXED_MATH,),
)

_SHARED_ROWS = Algorithm(
    name="shared_rows",
    meaning="work-items side by side share rows along k and join their sums",
    parameters=(
        parameter("layout", ("file", "rows"), "the weights as in the file, or quants and scales apart"),
        parameter("lanes", (1, 2, 4, 8, 16, 32, 64, 128), "work-items that share rows"),
        parameter("work_group_m", (1, 2, 4, 8, 16, 32), "sets of lanes in a work-group, each with its own rows"),
        _ROWS,
        _COLUMNS,
        parameter("chunk", (1, 2, 4), "words of 4-bit weights a lane reads at once; half the words of 8-bit weights"),
        parameter("unroll", (1, 2, 4), "units of 32 weights that a lane has under way at once"),
        parameter("x_storage", ("buffer", "local"), "memory that activations are read from"),
        parameter("sums", ("scalar", "vector"), "sums of a lane: one number, or a vector added up in the end"),
        parameter("join", ("tree", "shuffle", "sub_group"), "how lanes join their sums"),
        parameter("standard", ("none", "CL2.0", "CL3.0"), "OpenCL C version under which sub-groups are requested"),
        *_OF_SUMS,
    ),
    constraints=(
        *_COMMON,
        _WAVES,
        constraint("layout_is_another", "layout == 'file' or in_arrays == 0", "they are apart in the file"),
        constraint(
            "device_takes_ptx", "join != 'shuffle' or (has_ptx == 1 and lanes * work_group_m % 32 == 0)",
            "only NVIDIA's compiler knows it, and it needs all of 32 work-items",
        ),
        constraint(
            "one_standard", "integer_dot != 'khr' or standard != 'CL2.0'", "the instruction needs OpenCL C 3.0"
        ),
        TAKES_STANDARD,
        constraint("standard_matters", "(standard == 'none') == (join != 'sub_group')", "it is for sub-groups only"),
        _WHOLE,
        constraint("lanes_share_a_unit", "lanes * chunk >= 4", "lanes leave parts of a unit out"),
        constraint("units_to_do", "lanes * chunk * unroll < 8 * (k // 32)", "a pass of the lanes is longer than a row"),
        _group_fits("lanes", "work_group_m"),
        _GROUPS_TO_DO,
        constraint(
            "sums_fit_local_memory",
            "join == 'shuffle' or 4 * lanes * work_group_m * micro_tile_m * micro_tile_n <= local_memory_bytes",
            "the sums exceed local memory",
        ),
        constraint("loads_fit_registers", "micro_tile_m * chunk * unroll <= 32", "the weights under way do not fit"),
        constraint(
            "activations_fit_registers",
            "micro_tile_n * chunk <= 8 or (sums == 'vector' and is_cpu == 1 and micro_tile_n <= 4)",
            "the activations do not fit the registers",
        ),
        constraint(
            "vectors_work", "sums == 'scalar' or (integer_dot == 'off' and max_vector_float32 >= 4 * chunk"
            " and (mode != 'int8' or max_vector_int8 >= 4 * chunk))",
            "the dot product adds integers up, or the driver gets such vectors wrong",
        ),
        constraint("wide_chunks_work", "max_vector_float32 >= 4 * chunk", "the driver gets such vectors wrong"),
        constraint(
            "vector_sums_fit_registers",
            "sums == 'scalar' or micro_tile_m * micro_tile_n * chunk <= 32",
            "the vectors of sums do not fit the registers",
        ),
        constraint(
            "activations_fit_local_memory",
            "x_storage == 'buffer' or (mode != 'int8' and is_cpu == 0 and 4 * (micro_tile_n * (k // 32) * 36"
            " + lanes * work_group_m * micro_tile_m * micro_tile_n) <= local_memory_bytes)",
            "the activations exceed local memory, or are quantised",
        ),
        constraint(
            "magic_is_scalar", "decode == 'convert' or sums == 'scalar'", "vectors are converted whole"
        ),
        constraint("join_matters", "join == 'tree' or lanes > 1", "one lane has nothing to join"),
        constraint(
            "sub_groups_exist", "join != 'sub_group' or (has_sub_groups == 1 and work_group_m == 1 and lanes >= 16)",
            "the device has no sub-groups, or sets of lanes are not whole work-groups",
        ),
    ),
    features=features("lanes * work_group_m", "micro_tile_m * micro_tile_n", "micro_tile_m * chunk * unroll"),
)  # fmt: skip

_OWN_ROWS = Algorithm(
    name="own_rows",
    meaning="each work-item has rows of its own, from weights packed by columns",
    parameters=(
        parameter("work_group_m", (1, 8, 16, 32, 64, 128, 256), "work-items side by side along m"),
        parameter("work_group_k", (1, 2, 4, 8, 16), "work-items that share out k"),
        _ROWS,
        parameter("micro_tile_n", (1, 2, 4, 8, 16), "columns of activations a work-item computes"),
        _packed_words(1, 2, 4),
        parameter("w_storage", ("buffer", "image"), "memory that quants are read through"),
        parameter("x_storage", ("buffer", "image"), "memory that activations are read through"),
        parameter("scaling", ("sums", "weights"), "what scales and offsets are applied to"),
        parameter(
            "run_type",
            ("float32", "float16"),
            "what the products of a unit of 32 weights are added up in",
            neutral="float32",
        ),
        *_OF_SUMS,
    ),
    constraints=(
        *_COMMON,
        _WAVES,
        _group_fits("work_group_m", "work_group_k"),
        _GROUPS_TO_DO,
        constraint("units_to_do", "work_group_k <= k // 32", "some work-items would have no units"),
        constraint(
            "sums_fit_local_memory",
            "4 * (work_group_k - 1) * micro_tile_m * micro_tile_n * work_group_m <= local_memory_bytes",
            "the sums exceed local memory",
        ),
        constraint(
            "images_exist",
            "(w_storage == 'buffer' and x_storage == 'buffer') or (has_images == 1 and max_image_line > 0)",
            "the device has no images over buffers",
        ),
        constraint("pixels_are_whole", "w_storage == 'buffer' or packed_words != 2", "a pixel has one or four numbers"),
        constraint(
            "image_fits",
            "w_storage == 'buffer' or experts * m * (k // 32 * quant_words // packed_words) <= max_image_line",
            "the weights exceed the largest image over a buffer",
        ),
        constraint(
            "activations_fit_image",
            "x_storage == 'buffer' or (mode != 'int8' and n * (k // 4) <= max_image_line)",
            "the activations exceed the largest image over a buffer, or are quantised",
        ),
        constraint(
            "scaling_matters", "scaling == 'sums' or mode != 'int8'", "products of integers are scaled as sums only"
        ),
        _WHOLE,
        constraint(
            "half_runs_exist",
            "run_type == 'float32' or (mode == 'float16' and has_half_functions == 1 and scaling == 'sums'"
            " and decode == 'magic')",
            "the driver does not compute with vectors of half precision, or the problem has other activations",
        ),
    ),
    features=features("work_group_m * work_group_k", "micro_tile_m * micro_tile_n"),
)

_VECTOR_ROWS = Algorithm(
    name="vector_rows",
    meaning="rows in the lanes of vectors, from weights packed in panels of 16 rows, for processors",
    parameters=(
        parameter("micro_tile_m", (16, 32, 64), "rows of weights a work-item computes"),
        _COLUMNS,
        _RELAXED_MATH,
    ),
    constraints=(
        _FITS_COLUMNS,
        constraint("is_processor", "is_cpu == 1", "it has no vectors of 16 rows"),
        constraint("rows_are_whole", "m % micro_tile_m == 0", "the last work-items would have rows that do not exist"),
        constraint("tile_fits_registers", "micro_tile_m * micro_tile_n <= 128", "the sums do not fit the registers"),
        constraint(
            "vectors_work", "max_vector_float32 >= 16 and (mode != 'int8' or max_vector_int8 >= 16)",
            "the driver gets such vectors wrong",
        ),
    ),
    features=features("micro_tile_m * micro_tile_n"),
)  # fmt: skip

_LOCAL_TILE = Algorithm(
    name="local_tile",
    meaning="macro-tiles of decoded weights and of activations in local memory, for many columns",
    parameters=(
        parameter("work_group_m", (4, 8, 16, 32), "work-items side by side along m"),
        parameter("work_group_n", (2, 4, 8, 16, 32), "work-items side by side along n"),
        parameter("micro_tile_m", (4, 8), "rows of weights a work-item computes"),
        parameter("micro_tile_n", (4, 8), "columns of activations a work-item computes"),
        _packed_words(1, 2, 4),
        parameter("unroll", (4, 8, 16, 32), "steps along k in one pass of the inner loop"),
        parameter("split_k", (1, 2, 4, 8, 16), "work-groups that share the k of one macro-tile"),
        COMBINE,
        _DECODE,
        _MULTIPLY_ADD,
        _INTEGER_DOT,
        _RELAXED_MATH,
    ),
    constraints=(
        *_COMMON,
        _group_fits("work_group_m", "work_group_n"),
        _GROUPS_TO_DO,
        constraint("columns_shared", "work_group_n * micro_tile_n < 2 * n", "most work-items would have no column"),
        constraint(
            "one_scale_a_work_item", "mode != 'int8' or micro_tile_n <= work_group_m",
            "scales of activations are more than work-items",
        ),
        constraint(
            "tiles_fit_local_memory",
            "(128 * (work_group_m * micro_tile_m + work_group_n * micro_tile_n + 4) if mode != 'int8'"
            " else 40 * (work_group_m * micro_tile_m + work_group_n * micro_tile_n)) <= local_memory_bytes",
            "the tiles exceed local memory",
        ),
        HAS_ORDERING,
        constraint(
            "parts_to_combine",
            f"(split_k == 1) == (combine == '{SECOND_LAUNCH}')"
            " and (integer_dot != 'khr' or combine != 'last_group_cl2')",
            "the last work-group joins the parts, where there are any, and there is one version of OpenCL C",
        ),
        constraint(
            "split_leaves_work",
            "split_k == 1 or (k >= 128 * split_k and (n + (experts - 1) * work_group_n * micro_tile_n) * m * split_k"
            " <= 8388608)",
            "each part of k holds at least four units, and the parts of the output fit 32 MiB",
        ),
        constraint(
            "split_fills_device",
            "split_k == 1 or (m + work_group_m * micro_tile_m - 1) // (work_group_m * micro_tile_m)"
            " * ((n + work_group_n * micro_tile_n - 1) // (work_group_n * micro_tile_n) + experts - 1)"
            " * split_k <= 8 * compute_units",
            "there are enough work-groups without splitting k",
        ),
        constraint(
            "float_matters", "mode != 'int8' or (multiply_add == 'operator' and decode == 'convert' and unroll == 32)",
            "integers are neither converted nor added so, and all of a unit at once",
        ),
    ),
    features=features("work_group_m * work_group_n", "micro_tile_m * micro_tile_n"),
)  # fmt: skip

_MATRIX_SUMS = "32 * (work_group_k - 1) * work_group_m * micro_tile_m * micro_tile_n"
_STAGED = "min(n, micro_tile_n) * (k // 32) * (132 if mode == 'float32' else 64)"
MATRIX_LOCAL = f"max({_MATRIX_SUMS}, {_STAGED} if x_storage == 'local' else 0)"
"""Bytes of local memory of `matrix_rows`: activations as two halves, with a power of two for 32, and then sums."""

_MATRIX_ROWS = Algorithm(
    name="matrix_rows",
    meaning="rows times few columns by matrix units, from weights packed by columns",
    parameters=(
        parameter("work_group_m", (1, 2, 4, 8), "sub-groups of 32 work-items side by side along m"),
        parameter("work_group_k", (1, 2, 4, 8, 16, 32), "sub-groups that share out k"),
        parameter("micro_tile_m", (4, 8, 16), "rows of weights a work-item reads"),
        parameter("micro_tile_n", (4, 8), "columns of activations a sub-group computes"),
        _packed_words(1, 4),
        parameter("unroll", (1, 2, 4, 8), "units of 32 weights that a sub-group has under way at once"),
        parameter("reading", ("now", "ahead"), "units are read as they are used, or while the last are used"),
        parameter("x_storage", ("buffer", "local"), "memory that activations are read from"),
        parameter("w_loads", ("cached", "streamed"), "whether the first-level cache keeps weights"),
    ),
    constraints=(
        constraint("matrix_units_exist", "has_matrix_units == 1", "the device has no matrix units"),
        constraint("numbers_known", "mode != 'int8'", "integers are multiplied otherwise"),
        constraint("rows_are_read_by_four", "m % 4 == 0", "each work-item reads four rows at once"),
        constraint(
            "columns_fit", "micro_tile_n < 2 * n or (micro_tile_n == 4 and mode == 'float32')"
            " or (micro_tile_n == 8 and mode == 'float16')", "most columns of a sub-group would not exist",
        ),
        constraint("halves_fill_matrix_units", "mode != 'float16' or micro_tile_n >= 8", "a product has eight columns"),
        constraint(
            "work_group_fits_device", "32 * work_group_m * work_group_k <= max_work_group_size",
            "the work-group exceeds what the device allows",
        ),
        constraint(
            "groups_to_do", "work_group_m == 1 or 8 * micro_tile_m * work_group_m < 2 * m",
            "most of a work-group would have no row",
        ),
        constraint(
            "units_to_do", "work_group_k * unroll * packed_words < k // 32 + packed_words",
            "some sub-groups would have no units",
        ),
        constraint(
            "columns_left", "packed_words == 1 or (n == 1 and x_storage == 'local')",
            "matrix units keep the sums of units apart in columns that one column of activations leaves",
        ),
        constraint(
            "work_fits_local_memory", f"{MATRIX_LOCAL} + 1024 <= local_memory_bytes",
            "sums and activations exceed local memory, of which NVIDIA's driver does not give all",
        ),
        constraint(
            "loads_fit_registers",
            "micro_tile_m * unroll * (2 if reading == 'ahead' else 1) <= 32 and micro_tile_m * micro_tile_n <= 64",
            "the weights under way or the sums do not fit the registers",
        ),
    ),
    features=features("32 * work_group_m * work_group_k", "micro_tile_m * micro_tile_n"),
)  # fmt: skip

ALGORITHMS = (_NAIVE, _SHARED_ROWS, _OWN_ROWS, _VECTOR_ROWS, _LOCAL_TILE, _MATRIX_ROWS, MATRIX_TILE)
