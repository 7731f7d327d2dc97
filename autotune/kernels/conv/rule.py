"""The rule for untuned convolutions: a list in order of preference, of which the first that is valid is taken.

`ESTIMATE` says for which problems each entry is meant; Python and exported C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

from autotune.kernels.conv.plan import BASELINE
from autotune.kernels.conv.problem import MAX_ELEMENTS, OUT_HEIGHT, OUT_WIDTH
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import Machine
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

ANY, ROWS, QUADS, PLANES = range(4)
"""Layouts that a candidate is meant for: any, nhwc, nc4hw4, nchw."""

_PIXELS = f"batch * ({OUT_HEIGHT}) * ({OUT_WIDTH})"
_TILES = f"ceil_div({_PIXELS}, tile_pixels) * ceil_div(filters // groups, tile_filters) * groups"
ESTIMATE = Expression(
    f"(order + 1) * ((layouts == {ANY} or layouts == ({ROWS} if layout == 'nhwc' else {QUADS} if layout == 'nc4hw4'"
    f" else {PLANES})) and least_filters <= filters // groups and least_channels <= channels // groups"
    f" and least_width <= ({OUT_WIDTH}) and least_pixels <= {_PIXELS}"
    " and channels // groups * kernel_height * kernel_width <= most_products"
    f" and (wanted == 0 or {_TILES} >= wanted)) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. `wanted` is how many tiles of `tile_pixels` by `tile_filters` the output must have."""

_ALL = {
    "layouts": ANY, "least_filters": 1, "least_channels": 1, "least_width": 1, "least_pixels": 1,
    "most_products": MAX_ELEMENTS, "tile_pixels": 1, "tile_filters": 1, "wanted": 0,
}  # fmt: skip
_Listed = Iterator[tuple[Configuration, dict[str, int]]]
_LARGE_GPU = 24
"""Compute units from which on a GPU is taken as a large one."""
_REGISTERS_OF_OUTPUT = 9
"""Registers that a work-item of `depthwise` needs for each output: the sum, and what is loaded for it."""
_REGISTERS_BESIDES = 12
"""Registers that a work-item of `direct` needs for addresses and counters, besides those for pixels and filters."""
_WINOGRAD_CHANNELS = 32
"""Channels and filters from which on fewer products outweigh the transforms: on PoCL, 64 took half the time."""


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    found: dict[Configuration, dict[str, int]] = {}
    units, machine = max(limits.compute_units, 1), Starts(starts).machine
    listed = _of_phone(units, 16 if machine.is_small else 64, machine)
    if limits.is_cpu:
        listed = _of_processor(min(max(limits.native_vector_float32, 4), 16))
    elif limits.constraint_values()["has_ptx"] == 1 or units >= _LARGE_GPU:
        listed = _of_large_gpu(units, 64 if machine.is_small else 256)
    for configuration, numbers in listed:
        found.setdefault(configuration, {**_ALL, **numbers})
    return ranked(starts, found | {BASELINE: _ALL}, _ALL)


def _of_processor(lanes: int) -> _Listed:
    """Yield tiles whose sums fill the vector registers, filters in vectors as wide as these."""
    widths = [width for width in (16, 8, 4, 2, 1) if width <= lanes]
    for width in widths:
        yield from _by_channels(width, (8, 7, 4, 2, 1), 1, 1)
    tiles = [(1, 1, pixels, 2 * min(lanes, 8), min(lanes, 8)) for pixels in (8, 4, 1)]
    yield from _of_squares("registers", widths, (4, 1), tiles)
    for width in widths:
        wide = max(16, width) if width > 4 else 2 * width
        shapes = [
            (4, 4 * width, 256),
            (4, 2 * width, 256),
            (6, wide, 0),
            (4, wide, 0),
            *((pixels, width, 0) for pixels in (6, 4, 2, 1)),
        ]
        for pixels, filters, products in shapes:
            numbers = {"least_filters": filters // 2 + 1, "least_pixels": pixels}
            numbers |= {"most_products": products or MAX_ELEMENTS}
            yield _direct((1, 1, pixels, filters, width), multiply_add="operator"), numbers


def _of_large_gpu(units: int, most_items: int) -> _Listed:
    for width, pixels in product((4, 2, 1), (4, 2, 1)):
        for group in ((min(most_items, 128) // 8, 8), (16, 1), (1, 1)):
            yield from _by_channels(width, (pixels,), *group)
    yield from _of_squares("local", (4, 2, 1), (16, 8), [(16, 16, 4, 4, 4), (8, 16, 4, 4, 4), (8, 8, 4, 4, 4)])
    yield from _by_tiles(units)
    yield from _by_registers(units, most_items, "operator")


def _of_phone(units: int, most_items: int, machine: Machine) -> _Listed:
    for width, pixels in product((4, 2, 1), (4, 2, 1)):
        if width * pixels * _REGISTERS_OF_OUTPUT > machine.registers_most:
            continue
        for group in ((most_items // 8, 8), (16, 1), (1, 1)):
            yield from _by_channels(width, (pixels,), *group)
    # Mesa's Adreno compiler fuses mad() alone.
    for configuration, numbers in _by_registers(units, most_items, "mad"):
        pixels, filters, channels = map(configuration.number, ("tile_p", "tile_f", "channel_vector"))
        # Of a pixel, what was loaded, its place, and whether it is inside.
        held = pixels * (filters + channels + 8) + filters + _REGISTERS_BESIDES
        if pixels * filters <= (machine.outputs_most or MAX_ELEMENTS) and held <= machine.registers_most:
            yield configuration, numbers


def _by_channels(width: int, pixels: tuple[int, ...], group_p: int, group_f: int) -> _Listed:
    """Yield depthwise configurations, of parts of rows of several lengths."""
    for several, loads in product(pixels, ("aligned", "vload") if width > 1 else ("vload",)):
        for first in ("filters", "pixels") if group_f > 1 else ("pixels",):
            configuration = Configuration.of(
                "depthwise", work_group_p=group_p, work_group_f=group_f, first=first, tile_p=several,
                vector_width=width, loads=loads,
            )  # fmt: skip
            yield configuration, {"layouts": ROWS if first == "filters" else ANY, "least_width": several}


_Tile = tuple[int, int, int, int, int]
"""Work-items of a work-group along pixels and filters, pixels and filters of each, and filters of a vector."""


def _of_tile(tile: _Tile) -> dict[str, Value]:
    names = ("work_group_p", "work_group_f", "tile_p", "tile_f", "vector_width")
    return dict(zip(names, tile, strict=True))


def _of_squares(memory: str, widths: Sequence[int], depths: Sequence[int], tiles: Sequence[_Tile]) -> _Listed:
    """Yield Winograd's algorithm, for enough channels and filters."""
    least = {"least_channels": _WINOGRAD_CHANNELS, "least_filters": _WINOGRAD_CHANNELS, "least_pixels": 128}
    for tile, width, depth in product(tiles, widths, depths):
        configuration = Configuration.of(
            "winograd", output_side=4, transform_width=width, steps="float32", product=memory, **_of_tile(tile),
            first="pixels", tile_k=depth, unroll=1 if memory == "registers" else min(depth, 4),
            load_width=1 if memory == "registers" else 4, multiply_add="operator",
        )  # fmt: skip
        yield configuration, {**least, "layouts": ROWS if width > 4 else ANY}  # planes are gathered by elements


def _by_tiles(units: int) -> _Listed:
    """Yield tiles in local memory, large ones first, as long as there are enough for all compute units."""
    shapes = [
        ((16, 16, 8, 8, 4), 2), ((16, 16, 8, 4, 4), 2), ((16, 16, 4, 4, 4), 2), ((16, 8, 4, 4, 4), 2),
        ((8, 8, 4, 4, 4), 1), ((8, 8, 2, 4, 4), 0), ((16, 4, 2, 4, 4), 0), ((16, 4, 2, 2, 2), 0),
        ((32, 2, 2, 2, 2), 0), ((32, 1, 1, 1, 1), 0),
    ]  # fmt: skip
    for (tile, groups), depth in product(shapes, (16, 8, 4, 2, 1)):
        numbers = {
            "tile_pixels": tile[0] * tile[2], "tile_filters": tile[1] * tile[3],
            "wanted": groups * units, "least_filters": tile[1] * tile[3] // 2 + 1,
        }  # fmt: skip
        for layouts, first, load, loads in (
            (ROWS, "filters", 4, "aligned"), (QUADS, "pixels", 4, "vload"), (ANY, "pixels", 1, "vload"),
        ):  # fmt: skip
            configuration = Configuration.of(
                "implicit", **_of_tile(tile), first=first, tile_k=depth, unroll=min(depth, 4), load_width=load,
                loads=loads, multiply_add="operator",
            )  # fmt: skip
            yield configuration, {**numbers, "layouts": layouts}


def _by_registers(units: int, most_items: int, multiply_add: str) -> _Listed:
    """Yield tiles in registers, as many outputs as leave tiles for all compute units, of pixels of four channels."""
    readings = (
        (QUADS, "image_view", 4, "vload"), (QUADS, "buffer", 4, "vload"), (ROWS, "buffer", 4, "aligned"),
        (ROWS, "buffer", 2, "aligned"), (ANY, "buffer", 1, "vload"),
    )  # fmt: skip
    for (pixels, filters), (layouts, storage, channels, loads) in product(((4, 8), (4, 4), (2, 4), (1, 4)), readings):
        numbers = {
            "layouts": layouts, "tile_pixels": pixels, "tile_filters": filters, "least_filters": filters // 2 + 1,
            "wanted": 2 * most_items * units if pixels * filters > 8 else 0,
        }  # fmt: skip
        for group in ((most_items // 4, 4), (1, most_items)):
            yield _direct(
                (*group, pixels, filters, min(filters, 4)), multiply_add=multiply_add, loads=loads,
                first="filters" if layouts == ROWS else "pixels", channel_vector=channels, input_storage=storage,
            ), numbers  # fmt: skip
    for (pixels, filters), group in product(((2, 4), (1, 4), (1, 1)), ((32, 1), (4, 4), (1, 16), (1, 1))):
        numbers = {"least_filters": filters // 2 + 1}
        yield _direct((*group, pixels, filters, filters), multiply_add=multiply_add), numbers


def _direct(tile: _Tile, **values: Value) -> Configuration:
    usual: dict[str, Value] = {
        "first": "pixels", "channel_vector": 1, "unroll": 1, "input_storage": "buffer", "weights_storage": "buffer",
        "loads": "vload",
    }  # fmt: skip
    return Configuration.of("direct", **_of_tile(tile), **{**usual, **values})
