"""The algorithms of convolution with their parameters and constraints."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING, SECOND_LAUNCH
from autotune.kernels.conv.problem import IS_DEPTHWISE, MAX_ELEMENTS, OUT_HEIGHT, OUT_WIDTH
from autotune.kernels.matrix_units import FEATURES, ITEMS, SUB_GROUPS_TILE
from autotune.space.family import Algorithm, Constraint, constraint, features, parameter

_POSITIONS = f"(batch * ({OUT_HEIGHT}) * ({OUT_WIDTH}))"
_OWN, _OWN_CHANNELS = "(filters // groups)", "(channels // groups)"
_TILE_P, _TILE_F = "(work_group_p * tile_p)", "(work_group_f * tile_f)"
_FEATURES = features("work_group_p * work_group_f", "tile_p * tile_f", _TILE_P, _TILE_F)
_PRODUCTS = "tile_p * (tile_f // vector_width)"
"""Vectors of sums that a work-item has."""


def _to_do(what: str, condition: str) -> Constraint:
    return constraint(f"{what}_to_do", condition, f"most {what} of a tile would not exist")


def _vectors_work(width: str) -> Constraint:
    condition = f"{width} <= max_vector_float32 and (mode == 'float32' or {width} <= max_vector_float16)"
    return constraint(f"{width}_works", condition, "the driver gets vectors of this width wrong")


def _channels(width: str, has_buffer: str = "True") -> tuple[Constraint, Constraint]:
    """Return the constraints on loads of `width` channels, where they are from a buffer."""
    whole = f"{_OWN_CHANNELS} % {width} == 0"
    return (
        constraint("channels_side_by_side",
            f"{width} == 1 or not ({has_buffer}) or (layout == 'nhwc' and {whole}) or (layout == 'nc4hw4' and"
            f" {width} <= 4 and (groups == 1 or {whole}))", "the channels of a load do not lie side by side"),
        constraint("alignment_matters", f"loads == 'vload' or (layout == 'nhwc' and {width} > 1 and {has_buffer})",
            "single elements and pixels of four channels are always aligned"),
    )  # fmt: skip


_MULTIPLY_ADD = parameter("multiply_add", ("operator", "mad"), "how a product is added: a * b + c, or mad(a, b, c)")
_LOADS = parameter("loads", ("vload", "aligned"), "vload promises to align single elements, aligned whole vectors")
_WORK_GROUP = (
    parameter("work_group_p", (1, 2, 4, 8, 16, 32, 64), "work-items along pixels"),
    parameter("work_group_f", (1, 2, 4, 8, 16, 32, 64), "work-items along filters"),
    parameter("first", ("pixels", "filters"), "what neighbouring work-items differ in"),
)
_TILE = (
    *_WORK_GROUP,
    parameter("tile_p", (1, 2, 3, 4, 6, 7, 8, 14), "pixels, or squares of them, that a work-item computes"),
    parameter("tile_f", (1, 2, 4, 8, 16, 32, 64), "filters that a work-item computes"),
    parameter("vector_width", (1, 2, 4, 8, 16), "filters in one vector"),
)
_FITS_DEVICE = (
    constraint("work_group_fits_device", "work_group_p * work_group_f <= max_work_group_size and (work_group_f if first"
        " == 'filters' else work_group_p) <= max_work_group_0 and (work_group_p if first == 'filters' else"
        " work_group_f) <= max_work_group_1",
        "the work-group exceeds what the device allows"),
    constraint("has_half_functions", "mode != 'float16-acc16' or has_half_functions == 1",
        "vectors of half and mad() of them take cl_khr_fp16"),
    _vectors_work("vector_width"),
)  # fmt: skip
_TILE_FITS = (
    *_FITS_DEVICE,
    constraint("vectors_fill_tile", "tile_f % vector_width == 0", "the filters of a tile are not whole vectors"),
    constraint("sums_fit_registers", "tile_p * tile_f <= (256 if is_cpu == 1 else 64)",
        "the sums do not fit the registers"),
    constraint("not_depthwise", f"not {IS_DEPTHWISE}", "every filter reads one channel: see depthwise"),
)  # fmt: skip

_NAIVE = Algorithm(
    name="naive", meaning="one output per work-item",
    parameters=(parameter("work_group_size", (0, 1, 32, 64), "work-items in a work-group; 0 leaves it to the driver"),),
    constraints=(
        constraint(
            "work_group_fits_device", "work_group_size <= max_work_group_size and work_group_size <= max_work_group_0"
            f" and work_group_size < 2 * ({OUT_HEIGHT}) * ({OUT_WIDTH})",
            "the work-group exceeds what the device allows or the problem has pixels for",
        ),
    ),
)  # fmt: skip

_DIRECT = Algorithm(
    name="direct", meaning="a tile of pixels and filters per work-item, the sums in registers",
    parameters=(
        *_TILE,
        parameter("channel_vector", (1, 2, 4, 8), "channels of a pixel in one load"),
        parameter("unroll", (1, 2, 4), "loads of a pixel in one pass of the loop"),
        parameter("input_storage", ("buffer", "image", "image_view"),
            "read the input from the buffer, from an image it is copied to, or from one over its memory"),
        parameter("weights_storage", ("buffer", "constant"), "address space of the packed weights"),
        _LOADS, _MULTIPLY_ADD,
    ),
    constraints=(
        *_TILE_FITS,
        _vectors_work("channel_vector"),
        constraint("vectors_stay_few", f"{_PRODUCTS} <= 64", "the code grows too long"),
        constraint("code_stays_short", f"{_PRODUCTS} * channel_vector * unroll <= 256", "the code grows too long"),
        _to_do("pixels", f"tile_p < 2 * {_POSITIONS} and (work_group_p - 1) * tile_p < {_POSITIONS}"),
        _to_do("filters", f"tile_f < 2 * max({_OWN}, 4) and (work_group_f - 1) * tile_f < filters"),
        constraint("channels_to_do", f"unroll == 1 or channel_vector * unroll <= {_OWN_CHANNELS}",
            "a pass would be longer than the loop"),
        *_channels("channel_vector", "input_storage == 'buffer'"),
        constraint("image_fits",
            "input_storage == 'buffer' or (has_images == 1 and channel_vector == 4 and width <= max_image_width"
            f" and batch * ceil_div(channels, 4) * height <= max_image_height and (groups == 1 or {_OWN_CHANNELS} % 4"
            " == 0))", "there are no images of that size, or a pixel of one has channels of two groups"),
        constraint("view_fits", "input_storage != 'image_view' or (layout == 'nc4hw4' and has_image_from_buffer == 1"
            " and width % max(image_pitch_alignment, 1) == 0)", "an image cannot show the input where it is"),
        constraint("constant_memory_fits",
            "weights_storage == 'buffer' or element_bytes * round_up(channels // groups, 4) * (filters + groups *"
            " (tile_f + 3)) * kernel_height * kernel_width <= 65536", "constant memory need not hold more"),
    ),
    features=_FEATURES,
)  # fmt: skip

_TILED = (
    *_TILE,
    parameter("tile_k", (1, 2, 4, 8, 16, 32), "channels of the tiles in local memory"),
    parameter("unroll", (1, 2, 4, 8), "channels in one pass of the inner loop"),
    parameter("load_width", (1, 2, 4), "channels of a pixel in one load"),
)
_TILES_TOO_LARGE = "the tiles exceed local memory"


def _in_local_memory(unless: str = "False") -> tuple[Constraint, ...]:
    """Return the constraints on tiles in local memory, and, unless there are none, on their size."""
    return (
        *_TILE_FITS,
        _vectors_work("load_width"),
        _to_do("filters", f"{_TILE_F} <= 128 and {_TILE_F} < 2 * max({_OWN}, 4)"),
        constraint("unroll_divides_tile", "tile_k % unroll == 0 and tile_k % load_width == 0",
            "a pass would not be whole"),
        constraint("copies_stay_short", f"{unless} or (tile_p * tile_k <= 32 * work_group_f * load_width and"
            " tile_f * tile_k <= 64 * work_group_p)", "a work-item would copy too much of each tile"),
        constraint("tiles_fit_local_memory", f"{unless} or 4 * (tile_k * ({_TILE_P} + 1 + {_TILE_F}) + 3 * {_TILE_P}"
            " + 16) <= local_memory_bytes", _TILES_TOO_LARGE),
    )  # fmt: skip


_PARTS = parameter("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 32), "work-groups that share a tile's products", neutral=1)


def _splits(tile_p: str, tile_f: str) -> tuple[Constraint, ...]:
    """Return the constraints on the work-groups that share the products of a tile; the last to finish joins them."""
    steps = f"(kernel_height * kernel_width * ceil_div({_OWN_CHANNELS}, tile_k))"
    tiles = f"(ceil_div({_POSITIONS}, {tile_p}) * ceil_div({_OWN}, {tile_f}) * groups)"
    return (
        HAS_ORDERING,
        constraint("parts_to_combine", f"split_k == 1 if combine == '{SECOND_LAUNCH}' else split_k > 1",
            "the last work-group joins the parts, if there are any"),
        constraint("split_leaves_work",
            f"split_k == 1 or ({steps} >= 2 * split_k and (split_k - 1) * ceil_div({steps}, split_k) < {steps}"
            f" and {tiles} * {tile_p} * {tile_f} * split_k <= {2**25})",
            "every part has steps, at least two on average, and all fit 128 MiB"),
        constraint("split_fills_device", f"split_k == 1 or {tiles} * split_k <= 16 * compute_units",
            "there are enough work-groups without splitting"),
    )  # fmt: skip


_IMPLICIT = Algorithm(
    name="implicit",
    meaning="tiles of pixels and filters per work-group, through local memory; no matrix of windows is written",
    parameters=(*_TILED, _LOADS, _MULTIPLY_ADD, _PARTS, COMBINE),
    constraints=(
        *_in_local_memory(),
        *_splits(_TILE_P, _TILE_F),
        _to_do("pixels", f"{_TILE_P} < 2 * {_POSITIONS}"),
        _to_do("channels", f"tile_k < 2 * {_OWN_CHANNELS}"),
        *_channels("load_width"),
    ),
    features=_FEATURES,
)  # fmt: skip

_MATRIX_TILE = Algorithm(
    name="matrix_tile", meaning="the implicit product of float16 by matrix units, its tiles in local memory",
    parameters=(
        parameter("macro_tile_m", (32, 64, 128), "pixels a work-group computes"),
        parameter("macro_tile_n", (32, 64, 128), "filters a work-group computes"),
        parameter("sub_group_tile_m", (16, 32, 64), "pixels a sub-group computes"),
        parameter("sub_group_tile_n", (16, 32, 64), "filters a sub-group computes"),
        parameter("tile_k", (16, 32, 64), "channels of the tiles in local memory"),
        parameter("stages", (2, 3, 4), "tiles in local memory at once; all but one are fetched ahead"),
        _PARTS, COMBINE,
    ),
    constraints=(
        constraint("has_matrix_units",
            f"has_matrix_units == 1 and mode == 'float16' and layout == 'nhwc' and {_OWN_CHANNELS} % 8 == 0",
            "the device has no matrix units for these numbers, or channels are not copied by 16 bytes"),
        *SUB_GROUPS_TILE,
        constraint("even_share", f"macro_tile_m * tile_k % (8 * max({ITEMS}, 1)) == 0 and macro_tile_n * tile_k %"
            f" (8 * max({ITEMS}, 1)) == 0", "every work-item copies equally much of pixels and of weights"),
        constraint("tiles_fit_local_memory", "2 * stages * tile_k * (macro_tile_m + macro_tile_n) + 128 <="
            " max(local_memory_bytes, declared_local_memory_bytes)", _TILES_TOO_LARGE),
        _to_do("pixels", f"macro_tile_m < 2 * {_POSITIONS} or macro_tile_m == 32"),
        _to_do("filters", f"macro_tile_n < 2 * {_OWN} or macro_tile_n == 32"),
        _to_do("channels", f"tile_k < 2 * {_OWN_CHANNELS} or tile_k == 16"),
        *_splits("macro_tile_m", "macro_tile_n"),
    ),
    features=FEATURES,
)  # fmt: skip

_SIDE = "(output_side + 2)"
_SQUARES = f"(batch * ceil_div({OUT_HEIGHT}, output_side) * ceil_div({OUT_WIDTH}, output_side))"
_ALL_CHANNELS = "round_up(channels, max(transform_width, tile_k))"
_ALL_FILTERS = f"(round_up(filters, {_TILE_F}) + transform_width)"
_SCRATCH = f"({_SIDE} * {_SIDE} * {_SQUARES} * ({_ALL_CHANNELS} + {_ALL_FILTERS}))"
"""Most elements of the transformed input and of the products."""
MOST_SCRATCH_BYTES = 256 * 2**20

_WINOGRAD = Algorithm(
    name="winograd", meaning="windows of 3 x 3 by Winograd's algorithm: fewer products, between transforms in memory",
    parameters=(
        parameter("output_side", (2, 4), "pixels of a side of the squares of the output that are computed at once"),
        parameter("transform_width", (1, 2, 4, 8, 16), "channels or filters that a work-item transforms"),
        parameter("steps", ("float32", "float16"), "what transformed numbers are stored as; products are float32"),
        parameter("product", ("registers", "local"), "whether tiles of transformed numbers go through local memory"),
        *_TILED, _MULTIPLY_ADD,
    ),
    constraints=(
        constraint("is_plain_3x3",
            "kernel_height == 3 and kernel_width == 3 and stride_y == 1 and stride_x == 1 and dilation_y == 1"
            " and dilation_x == 1 and groups == 1 and direction == 'plain' and mode != 'float16-acc16'",
            "the algorithm is for windows of 3 x 3 in steps of one pixel, with sums of float32"),
        constraint("steps_keep_precision", "steps == 'float32' or (mode != 'float32' and output_side == 2)",
            "results would lose their precision"),
        *_in_local_memory("product == 'registers'"),
        _vectors_work("transform_width"),
        constraint("vectors_of_layout", "layout != 'nc4hw4' or transform_width in (1, 2, 4)",
            "what a vector needs does not lie side by side"),
        constraint("product_of_kind",
            f"(unroll == 1 and {_PRODUCTS} * tile_k <= 256) if product == 'registers' else tile_p * tile_f > 1",
            "registers are filled by a whole pass, whose code grows too long, or a tile serves no one else"),
        _to_do("squares", f"{_TILE_P} < 2 * {_SQUARES}"),
        _to_do("channels", "tile_k < 2 * channels and transform_width < 2 * max(channels, 4)"),
        constraint("scratch_fits", f"4 * {_SCRATCH} <= min({MOST_SCRATCH_BYTES}, global_memory_bytes // 4)"
            f" and 4 * max({_SCRATCH}, {_SIDE} * {_SIDE} * {_ALL_CHANNELS} * {_ALL_FILTERS}) <= max_allocation_bytes"
            f" and {_SIDE} * {_SIDE} * {_ALL_CHANNELS} * {_ALL_FILTERS} <= {MAX_ELEMENTS}",
            "what is transformed exceeds what it may take of memory"),
    ),
    features=_FEATURES,
)  # fmt: skip

_ROW_TILE = "(tile_p * (vector_width if layout == 'nchw' else 1))"
"""Of `depthwise`, pixels of a row that a work-item computes."""
_DEPTHWISE = Algorithm(
    name="depthwise",
    meaning="for as many groups as channels: pixels of a row per work-item, of a vector of filters or by vectors",
    parameters=(
        *_WORK_GROUP,
        parameter("tile_p", (1, 2, 3, 4, 6, 7, 8), "pixels, of nchw vectors of pixels, that a work-item computes"),
        parameter("vector_width", (1, 2, 4, 8, 16), "filters, of nchw pixels, in one vector"),
        _LOADS,
    ),
    constraints=(
        *_FITS_DEVICE,
        constraint("is_depthwise", IS_DEPTHWISE, "filters read more than one channel"),
        constraint("vectors_of_layout",
            "vector_width == 1 or (layout == 'nchw' and direction == 'plain') or (layout == 'nhwc' and filters =="
            " groups and vector_width <= channels) or (layout == 'nc4hw4' and filters == groups and vector_width == 4)",
            "what a vector needs does not lie side by side"),
        constraint("aligned_pixels",
            "loads == 'vload' or (vector_width > 1 and layout != 'nchw' and channels % vector_width == 0)",
            "pixels do not start at whole vectors, or single elements are read"),
        constraint("sums_fit_registers", "tile_p * vector_width <= (128 if is_cpu == 1 else 32)",
            "the sums do not fit the registers"),
        _to_do("pixels", f"{_ROW_TILE} < 2 * ({OUT_WIDTH}) and (work_group_p == 1 or work_group_p < 2 * batch *"
            f" ({OUT_HEIGHT}) * ceil_div({OUT_WIDTH}, {_ROW_TILE}))"),
        _to_do("filters", "work_group_f < 2 * ceil_div(filters, 1 if layout == 'nchw' else vector_width)"),
    ),
    features=features("work_group_p * work_group_f", "tile_p * vector_width"),
)  # fmt: skip

ALGORITHMS = (_NAIVE, _DIRECT, _IMPLICIT, _MATRIX_TILE, _WINOGRAD, _DEPTHWISE)
