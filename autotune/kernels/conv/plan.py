"""The plans of convolution: packing weights, an image of the input if asked for, and the convolution."""

from autotune.kernels.combination import COUNTERS, SECOND_LAUNCH, standards
from autotune.kernels.conv.problem import (
    DTYPES,
    INPUT_ELEMENTS,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUT_ELEMENTS,
    WEIGHT_ELEMENTS,
)
from autotune.kernels.matrix_units import ITEMS
from autotune.model.configuration import Configuration
from autotune.model.plan import Role
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import by_value
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula, divisible

BASELINE = Configuration.of("naive", work_group_size=0)

_DTYPE = by_value("mode", DTYPES)
_SUM = by_value("mode", {"float16-acc16": "float16", "": "float32"})
_STEPS = by_value("steps", {"float16": "float16", "float32": "float32"})
_PACKED = f"({_STEPS}) if in_squares else ({_DTYPE})"
_RESULT = """'bias' if bias == 'bias' else 'output', 'residual' if residual == 'residual' else 'output', 'output',
    slope"""
"""Where an operand is absent, the output stands for it."""
_SIZES = """batch, height, width, channels, filters, out_height, out_width, kernel_height, kernel_width, stride_y,
    stride_x, pad_top, pad_left, dilation_y, dilation_x, groups"""
_ARGUMENTS = f"'image' if in_image else 'input', 'packed', {_RESULT}, {_SIZES}"

PACKING = (
    "0 if algorithm == 'naive' else (((block_f * 128 + (step_c if in_tiles else channel_vector)) * 8"
    " + (output_side if in_squares else 0)) * 2 + (1 if by_rows else 0)) * 2 + (1 if steps == 'float16' else 0)"
)
"""How a configuration packs weights, as a number: tiles have up to 128 filters and steps of up to 64 channels."""

_GROUP = "work_group_f if filters_first else items_p, items_p if filters_first else work_group_f, 1"
_GROUPED = """work_group_f * groups_f if filters_first else items_p * groups_p,
    items_p * groups_p if filters_first else work_group_f * groups_f"""


def _buffer(role: Role, name: str, elements: str, when: str = "True", dtype: str = _DTYPE) -> BufferFormula:
    return BufferFormula(name=name, role=role, dtype=dtype, elements=elements, when=when)


def _product(when: str, parts: str) -> LaunchFormula:
    return LaunchFormula(
        kernel="conv", global_size=f"{_GROUPED}, split_k", local_size=_GROUP,
        arguments=f"{_ARGUMENTS}, blocks_of_group{parts}", when=f"packs and not in_squares and {when}",
    )  # fmt: skip


_WINDOW = "(kernel_height if kernel_height == kernel_width and kernel_width in (1, 3, 5) else 0)"
_READS_STEP = f"dilation_x == 1 and direction == 'plain' and (layout == 'nchw' or {_WINDOW} > 1)"

_FLAGS = {
    "window": (_WINDOW, f"({_WINDOW} + 1) // 2", 4),
    "padded": ("direction == 'transposed' or pad_top + pad_left + pad_bottom + pad_right > 0", "", 2),
    "grouped": ("filters != groups if by_channels else groups > 1", "", 2),
    "ragged_channels": ("filters % vector_f != 0 and layout == 'nhwc' if by_channels else own_channels % step_c != 0",
        "", 2),
    "step": (f"stride_x if by_channels and stride_x <= 2 and {_READS_STEP} else 0", "", 3),
}  # fmt: skip
"""What templates ask of the sizes: a value, the digit for it where that is another number, and how many there are.

`window` is the side of usual square windows, 0 for all others; `step` is a usual distance of windows along a row, where
the kernel reads it."""

PLAN = PlanFormula(
    absent={
        **dict.fromkeys(("tile_p", "tile_f", "tile_k", "vector_width", "channel_vector", "unroll"), 1),
        **dict.fromkeys(("output_side", "transform_width", "work_group_p", "work_group_f", "work_group_size"), 1),
        **dict.fromkeys(("macro_tile_m", "macro_tile_n", "sub_group_tile_m", "sub_group_tile_n", "split_k"), 1),
        **dict.fromkeys(("input_storage", "weights_storage"), "buffer"),
        "combine": SECOND_LAUNCH, "steps": "float32", "first": "pixels",
    },
    names={
        "out_height": OUT_HEIGHT, "out_width": OUT_WIDTH, "positions": "batch * out_height * out_width",
        "in_image": "input_storage != 'buffer'", "in_pixel": "ceil_div(channels, 4)",
        "by_channels": "algorithm == 'depthwise'", "in_squares": "algorithm == 'winograd'",
        "by_matrices": "algorithm == 'matrix_tile'", "packs": "algorithm != 'naive'",
        "in_tiles": "algorithm in ('implicit', 'winograd') or by_matrices", "filters_first": "first == 'filters'",
        # Filters and channels of a group; those that fill the last four of nc4hw4 are written by the last group.
        "own_groups": "1 if by_channels else groups", "own": "filters // own_groups",
        "own_channels": "1 if by_channels else channels // groups",
        "own_stored": "own + (round_up(filters, 4) - filters if layout == 'nc4hw4' else 0)",
        # Of packed weights: filters of a block, channels.
        "step_c": "max(tile_k, transform_width) if in_tiles else channel_vector * unroll",
        "vector_f": "1 if layout == 'nchw' else vector_width",
        "block_f": "vector_f if by_channels else macro_tile_n * tile_f * (work_group_f if in_tiles else 1)",
        "block_p": "macro_tile_m * tile_p * (work_group_p if in_tiles else 1)",
        "blocks_of_group": "ceil_div(own_stored, block_f)", "blocks": "blocks_of_group * own_groups",
        "packed_filters": "blocks * block_f",
        "all_channels": "round_up(own_channels, step_c if in_tiles else channel_vector)",
        "by_rows": "by_channels or (algorithm == 'direct' and first == 'filters')",
        "taps": "(output_side + 2) * (output_side + 2) if in_squares else kernel_height * kernel_width",
        # Of Winograd's algorithm: squares of the output along columns and rows, and in all; filters of the products.
        "rows": "ceil_div(out_height, output_side)", "columns": "ceil_div(out_width, output_side)",
        "square_count": "batch * rows * columns", "all_filters": "round_up(packed_filters, transform_width)",
        # Work-groups along pixels and filters, and work-items.
        "items_p": f"{ITEMS} if by_matrices else work_group_p",
        "row_tiles": "ceil_div(out_width, tile_p * (vector_width if layout == 'nchw' else 1))",
        "places": "square_count if in_squares else positions",
        "across": "batch * out_height * row_tiles if by_channels else ceil_div(places, block_p)",
        "groups_p": "across if in_tiles else ceil_div(across, work_group_p)",
        "groups_f": "blocks if in_tiles else ceil_div(blocks, work_group_f)",
        **{name: value for name, (value, _, _) in _FLAGS.items()},
    },
    buffers=(
        _buffer(Role.INPUT, "input", INPUT_ELEMENTS),
        _buffer(Role.INPUT, "weights", WEIGHT_ELEMENTS),
        _buffer(Role.INPUT, "bias", "filters", "bias == 'bias'"),
        _buffer(Role.INPUT, "residual", OUTPUT_ELEMENTS, "residual == 'residual'"),
        _buffer(Role.OUTPUT, "output", OUTPUT_ELEMENTS),
        _buffer(Role.SCRATCH, "packed", "taps * packed_filters * all_channels", "packs", _PACKED),
        BufferFormula(name="image", role=Role.SCRATCH, dtype=_DTYPE, image="4 * width, batch * in_pixel * height",
            when="input_storage == 'image'"),
        BufferFormula(name="image", role=Role.VIEW, dtype=_DTYPE, image="4 * width, batch * in_pixel * height",
            view_of="input", row_pitch="4 * width", when="input_storage == 'image_view'"),
        _buffer(Role.SCRATCH, "c_parts", "split_k * groups_p * groups_f * block_p * block_f", "split_k > 1", _SUM),
        BufferFormula(elements="groups_p * groups_f", when="split_k > 1", **COUNTERS),
        _buffer(Role.SCRATCH, "squares", "taps * square_count * all_channels", "in_squares", _STEPS),
        _buffer(Role.SCRATCH, "products", "taps * square_count * all_filters", "in_squares", "'float32'"),
    ),
    launches=(
        LaunchFormula(kernel="conv", arguments=f"'input', 'weights', {_RESULT}, {_SIZES}", when="algorithm == 'naive'",
            global_size=f"(round_up(out_height * out_width, work_group_size) if work_group_size > 0"
            f" else {divisible('out_height * out_width')}), round_up(filters, 4) if layout == 'nc4hw4' else filters,"
            " batch", local_size="work_group_size, 1, 1", local_when="work_group_size > 0"),
        LaunchFormula(kernel="pack", global_size="packed_filters, all_channels, taps", prepares="weights",
            arguments="'weights', 'packed', block_f, blocks_of_group, own, own_channels, 1 if by_rows else 0",
            when="packs and not in_squares"),
        LaunchFormula(kernel="transform_weights", global_size="packed_filters, all_channels", prepares="weights",
            arguments="'weights', 'packed', filters, channels, block_f", when="in_squares"),
        LaunchFormula(kernel="to_image", global_size="width, height, batch * in_pixel",
            arguments="'input', 'image', height, width, channels", when="input_storage == 'image'"),
        _product("split_k == 1", ""),
        _product("split_k > 1", ", 'c_parts', 'counters'"),
        LaunchFormula(kernel="transform_input", when="in_squares",
            global_size=f"all_channels // transform_width, {divisible('square_count')}",
            arguments="'input', 'squares', square_count, rows, columns, height, width, channels, pad_top, pad_left,"
            " all_channels"),
        LaunchFormula(kernel="multiply", global_size=f"{_GROUPED}, taps", local_size=_GROUP,
            arguments="'squares', 'packed', 'products', square_count, blocks, all_channels, all_filters",
            when="in_squares"),
        LaunchFormula(kernel="transform_output",
            global_size=f"ceil_div(own_stored, transform_width), {divisible('square_count')}",
            arguments="'products', square_count, rows, columns, all_filters, filters, out_height, out_width,"
            f" {_RESULT}", when="in_squares"),
    ),
    scalars={"slope": 0.125},
    build_options=standards(),
    template_values={
        **{name: name for name in ("layout", "direction", "bias", "residual", "activation", *_FLAGS)},
        "stored_type": by_value("mode", {mode: NUMBER_TYPES[dtype].in_c for mode, dtype in DTYPES.items()}),
        "step_type": by_value("steps", {"float16": "half", "float32": "float"}),
        "sum_type": by_value("mode", {"float16-acc16": "half", "": "float"}),
    },
    variant={digit or name: base for name, (_, digit, base) in _FLAGS.items()},
)  # fmt: skip
