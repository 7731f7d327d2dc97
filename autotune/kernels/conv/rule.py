"""The rule for untuned convolutions: of the candidates that are valid, the one with the least `ESTIMATE` is taken.

On a large GPU that estimates the time of products by tiles, from how many tiles each compute unit gets, and how many
steps a tile takes. Elsewhere, and among depthwise kernels, it is the place in a list in order of preference. Python and
exported C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

from autotune.kernels.combination import LAST_GROUP, SECOND_LAUNCH
from autotune.kernels.conv.plan import BASELINE
from autotune.kernels.conv.problem import MAX_ELEMENTS, OUT_HEIGHT, OUT_WIDTH
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import Machine
from autotune.model.problem import Problem
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

ANY, ROWS, QUADS, HALVES = range(4)
"""What a candidate is meant for: any layout, nhwc, nc4hw4; nhwc of float16."""

_PIXELS = f"batch * ceil_div({OUT_HEIGHT}, side) * ceil_div({OUT_WIDTH}, side)"
_TILES = f"ceil_div({_PIXELS}, tile_pixels) * ceil_div(filters // groups, tile_filters) * groups * side_taps"
_ROUNDS = f"ceil_div({_TILES} * parts, max(compute_units, 1))"
_TAPS = "(kernel_height * kernel_width if side_taps == 1 else 1)"
_TIME = (
    f"fixed + ceil_div({_TAPS} * ceil_div(channels // groups, depth), parts) * (step + {_ROUNDS} * tile)"
    f" + {_ROUNDS} * finish + ceil_div({_TILES}, max(compute_units, 1)) * join"
    f" + side_taps * {_PIXELS} * (channels + filters) // max(compute_units, 1) * move"
)
ESTIMATE = Expression(
    f"order + {_TIME} if (layouts == {ANY} or (layouts == {ROWS} and layout == 'nhwc') or (layouts == {QUADS} and"
    f" layout == 'nc4hw4') or (layouts == {HALVES} and layout == 'nhwc' and mode == 'float16'))"
    " and least_filters <= filters // groups and least_channels <= channels // groups"
    f" and channels // groups % multiple == 0 and least_width <= ({OUT_WIDTH}) and least_pixels <= {_PIXELS}"
    " and channels // groups * kernel_height * kernel_width <= most_products"
    f" and (wanted == 0 or {_TILES} >= wanted) else -1"
)
"""Place of a candidate in the order plus its time in tenths of nanoseconds, or -1 if the rule does not mean it for the
problem; over values of the problem, the compute units and the numbers of a candidate.

`wanted` is how many tiles of `tile_pixels` by `tile_filters` the output must have. Winograd's algorithm has `side_taps`
products for each square of `side` pixels, and `move` is the cost of a transformed number. A `step` takes `depth`
channels, and the `tile` in it again for each round of work-groups that a compute unit gets.
"""

_ALL = {
    "layouts": ANY, "least_filters": 1, "least_channels": 1, "multiple": 1, "least_width": 1, "least_pixels": 1,
    "most_products": MAX_ELEMENTS, "tile_pixels": 1, "tile_filters": 1, "wanted": 0, "side": 1, "side_taps": 1,
    "parts": 1, "depth": 1, "fixed": 0, "step": 0, "tile": 0, "finish": 0, "join": 0, "move": 0,
}  # fmt: skip
_ASKED = sorted(ESTIMATE.names - {"order", *_ALL})
_estimate = ESTIMATE.taking(*_ASKED, *_ALL, "order")
_Listed = Iterator[tuple[Configuration, dict[str, int]]]
_LARGE_GPU = 24
"""Compute units from which on a GPU is taken as a large one."""
_REGISTERS_OF_OUTPUT = 9
"""Registers that a work-item of `depthwise` needs for each output: the sum, and what is loaded for it."""
_REGISTERS_BESIDES = 12
"""Registers that a work-item of `direct` needs for addresses and counters, besides those for pixels and filters."""
_LAST = {"fixed": 10**15}  # of what is taken only where nothing else is valid


def by_rule(problem: Problem, limits: DeviceLimits, starts: Starts) -> list[Configuration]:
    """Return the candidates that are meant for a problem, those with the least estimate first; not all are valid."""
    values = {**limits.constraint_values(), **problem.to_dict()}
    asked = [values[name] for name in _ASKED]
    ranks = ((_estimate(*asked, *numbers.values()), found) for found, numbers in candidates(starts, limits).items())
    return [found for _, found in sorted((rank for rank in ranks if rank[0] >= 0), key=lambda rank: rank[0])]


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    found: dict[Configuration, dict[str, int]] = {}
    units, machine = max(limits.compute_units, 1), Starts(starts).machine
    listed = _of_phone(units, 16 if machine.is_small else 64, machine)
    if limits.is_cpu:
        listed = _of_processor(min(max(limits.native_vector_float32, 4), 16))
    elif limits.constraint_values()["has_ptx"] == 1 or units >= _LARGE_GPU:
        listed = _of_large_gpu(units, 64 if machine.is_small else 256, limits)
    for configuration, numbers in listed:
        found.setdefault(configuration, {**_ALL, **numbers})
    return ranked(starts, found | {BASELINE: _ALL | _LAST}, _ALL)


def _of_processor(lanes: int) -> _Listed:
    """Yield tiles whose sums fill the vector registers, filters in vectors as wide as these."""
    widths = [width for width in (16, 8, 4, 2, 1) if width <= lanes]
    for width, pixels in product(widths, (8, 7, 4, 2, 1)):
        yield from _by_channels(width, pixels, 1, 1)
    tiles = [(1, 1, pixels, 2 * min(lanes, 8), min(lanes, 8)) for pixels in (8, 4, 1)]
    yield from _of_squares("registers", widths, (4, 1), tiles)
    for width in widths:
        wide = max(16, width) if width > 4 else 2 * width
        shapes = [
            (4, 4 * width, 256), (4, 2 * width, 256), (6, wide, MAX_ELEMENTS), (4, wide, MAX_ELEMENTS),
            *((pixels, width, MAX_ELEMENTS) for pixels in (6, 4, 2, 1)),
        ]  # fmt: skip
        for pixels, filters, products in shapes:
            numbers = {"least_filters": filters // 2 + 1, "least_pixels": pixels, "most_products": products}
            yield _direct((1, 1, pixels, filters, width), multiply_add="operator"), numbers


def _of_large_gpu(units: int, most_items: int, limits: DeviceLimits) -> _Listed:
    for layouts, width, group_f in ((HALVES, 4, 16), (HALVES, 4, 8), (ROWS, 2, 32), (ROWS, 2, 16), (ROWS, 2, 8)):
        for configuration, numbers in _by_channels(width, 1, 8, group_f):
            yield configuration, numbers | {"layouts": max(layouts, numbers["layouts"])}
    yield from _of_rows(min(most_items, 128))
    splits = [(1, SECOND_LAUNCH)]
    if limits.ordering:
        splits += [(parts, LAST_GROUP + limits.ordering) for parts in (2, 4, 8, 16, 3, 6, 12)]
    if limits.has_matrix_units:
        yield from _by_matrices(splits)
    squares = [(8, 16, 4, 4, 4), (16, 16, 2, 4, 4), (8, 8, 4, 4, 4), (8, 8, 2, 4, 4), (8, 8, 1, 4, 4)]
    yield from _of_squares("local", (2,), (16, 32), squares)
    yield from _by_tiles(splits)
    for configuration, numbers in _by_registers(units, most_items, 4, "operator"):
        yield configuration, numbers | _LAST


def _of_phone(units: int, most_items: int, machine: Machine) -> _Listed:
    for configuration, numbers in _of_rows(most_items):
        outputs = configuration.number("vector_width") * configuration.number("tile_p")
        if outputs * _REGISTERS_OF_OUTPUT <= machine.registers_most:
            yield configuration, numbers
    # Mesa's Adreno compiler fuses mad() alone.
    for configuration, numbers in _by_registers(units, most_items, machine.outputs_most or MAX_ELEMENTS, "mad"):
        pixels, filters, channels = map(configuration.number, ("tile_p", "tile_f", "channel_vector"))
        # Of a pixel, what was loaded, its place, and whether it is inside.
        if pixels * (filters + channels + 8) + filters + _REGISTERS_BESIDES <= machine.registers_most:
            yield configuration, numbers


def _of_rows(most_items: int) -> _Listed:
    groups = (most_items // 8, 8), (16, 1), (1, 1)
    for width, pixels, group in product((4, 2, 1), (4, 2, 1), groups):
        yield from _by_channels(width, pixels, *group)


def _by_channels(width: int, pixels: int, group_p: int, group_f: int) -> _Listed:
    """Yield depthwise configurations, of parts of rows of so many pixels."""
    orders = (("filters", ROWS), ("pixels", ANY)) if group_f > 1 else (("pixels", ANY),)
    for loads, (first, layouts) in product(("aligned", "vload") if width > 1 else ("vload",), orders):
        yield Configuration.of(
            "depthwise", work_group_p=group_p, work_group_f=group_f, first=first, tile_p=pixels, vector_width=width,
            loads=loads,
        ), {"layouts": layouts, "least_width": pixels}  # fmt: skip


_Tile = tuple[int, int, int, int, int]
"""Work-items of a work-group along pixels and filters, pixels and filters of each, and filters of a vector."""


def _tiled(algorithm: str, tile: _Tile, **values: Value) -> Configuration:
    names = ("work_group_p", "work_group_f", "tile_p", "tile_f", "vector_width")
    return Configuration.of(algorithm, **dict(zip(names, tile, strict=True)), **values)


# Fitted to event times on an H200: 3,948 of `implicit`, 179 of `winograd`, 2,553 of `matrix_tile`.
_OF_LANES = (1480, 130, 49, 555, 1800, 6080, 1530)
_OF_MATRICES = (790, 3, 3, 88, 3300, 12890, 1740)
_OF_TRANSFORMS = {"fixed": 100_000, "move": 2, "side": 4, "side_taps": 36}


def _costs(pixels: int, filters: int, depth: int, parts: int, weights: tuple[int, ...]) -> dict[str, int]:
    """Return the costs of a product by tiles, in tenths of nanoseconds.

    Its weights are those of a step and of a channel in it; in thousandths, of a multiply-add, of a number loaded and of
    a sum; of joining, and of each part joined.
    """
    step, channel, multiply_add, load, finish, join, part = weights
    return {
        "tile_pixels": pixels, "tile_filters": filters, "depth": depth, "parts": parts, "step": step + channel * depth,
        "tile": depth * (multiply_add * pixels * filters + load * (pixels + filters)) // 1000,
        "finish": finish * pixels * filters // 1000, "fixed": (join + part * parts) if parts > 1 else 0,
        "join": 114 * parts * pixels * filters // 1000 if parts > 1 else 0,
    }  # fmt: skip


def _of_squares(memory: str, widths: Sequence[int], depths: Sequence[int], tiles: Sequence[_Tile]) -> _Listed:
    """Yield Winograd's algorithm, from registers for so many channels and filters that it pays (PoCL)."""
    least = {"least_channels": 32, "least_filters": 32, "least_pixels": 128}
    for tile, width, depth in product(tiles, widths, depths):
        costs = _costs(tile[0] * tile[2], tile[1] * tile[3], depth, 1, _OF_LANES) | _OF_TRANSFORMS
        yield _tiled(
            "winograd", tile, output_side=4, transform_width=width, steps="float32", product=memory, first="pixels",
            tile_k=depth, unroll=1 if memory == "registers" else min(depth, 4), multiply_add="operator",
            load_width=1 if memory == "registers" else 4,
        ), {**(costs if memory == "local" else least), "layouts": ROWS if width > 4 else ANY}  # fmt: skip


def _by_matrices(splits: Sequence[tuple[int, str]]) -> _Listed:
    shapes = (
        (64, 64, 32, 32, 4), (64, 32, 32, 16, 4), (32, 64, 16, 32, 3), (32, 32, 16, 16, 3), (64, 128, 32, 64, 4),
        (128, 128, 64, 32, 4),
    )  # fmt: skip
    deep = [(64, *split) for split in splits[:5]] + [(32, *splits[0]), (16, *splits[0])]
    for (pixels, filters, own_p, own_f, stages), (depth, parts, combine) in product(shapes, deep):
        yield Configuration.of(
            "matrix_tile", macro_tile_m=pixels, macro_tile_n=filters, sub_group_tile_m=own_p, sub_group_tile_n=own_f,
            tile_k=depth, stages=stages, split_k=parts, combine=combine,
        ), _costs(pixels, filters, depth, parts, _OF_MATRICES) | {"layouts": HALVES, "multiple": 8}  # fmt: skip


def _by_tiles(splits: Sequence[tuple[int, str]]) -> _Listed:
    """Yield tiles in local memory."""
    deep, wide = [(8, 8, 4, 4, 4), (8, 8, 8, 4, 4), (16, 4, 2, 4, 4)], [(16, 8, 4, 8, 4), (16, 16, 8, 4, 4)]
    narrow, usual = [(16, 4, 2, 2, 2), (32, 2, 2, 2, 2), (32, 1, 1, 1, 1)], [*deep, wide[0]]
    listed: tuple[tuple[int, list[_Tile], tuple[int, ...], int], ...] = (
        (ROWS, deep, (32, 16), 8), (ROWS, wide, (32,), 8), (ROWS, [(16, 16, 8, 8, 4)], (16,), 3),
        (ROWS, [*deep, *narrow], (8, 4), 1), (QUADS, usual, (16, 4), 3), (QUADS, narrow, (4,), 1),
        (ANY, usual, (16, 4, 1), 3), (ANY, narrow, (16, 4, 1), 1),
    )  # fmt: skip
    readings = {ROWS: ("filters", 4, 4, "aligned"), QUADS: ("pixels", 4, 1, "vload"), ANY: ("filters", 1, 1, "vload")}
    for layouts, tiles, depths, several in listed:
        first, load, multiple, loads = readings[layouts]
        for tile, depth, (parts, combine) in product(tiles, depths, splits[:several]):
            costs = _costs(tile[0] * tile[2], tile[1] * tile[3], depth, parts, _OF_LANES)
            yield _tiled(
                "implicit", tile, first=first, tile_k=depth, unroll=min(depth, 4), load_width=load, loads=loads,
                multiply_add="operator", split_k=parts, combine=combine,
            ), costs | {"layouts": layouts, "multiple": multiple}  # fmt: skip


def _by_registers(units: int, most_items: int, most_outputs: int, multiply_add: str) -> _Listed:
    """Yield tiles in registers, as many outputs as leave tiles for all compute units, of pixels of four channels."""
    readings = (
        (QUADS, "image_view", 4, "vload"), (QUADS, "buffer", 4, "vload"), (ROWS, "buffer", 4, "aligned"),
        (ROWS, "buffer", 2, "aligned"), (ANY, "buffer", 1, "vload"),
    )  # fmt: skip
    for (pixels, filters), (layouts, storage, channels, loads) in product(((4, 8), (4, 4), (2, 4), (1, 4)), readings):
        if pixels * filters > most_outputs:
            continue
        numbers = {
            "layouts": layouts, "tile_pixels": pixels, "tile_filters": filters, "least_filters": filters // 2 + 1,
            "wanted": 2 * most_items * units if pixels * filters > 8 else 0,
        }  # fmt: skip
        for group in ((most_items // 4, 4), (1, min(most_items, 64))):
            yield _direct(
                (*group, pixels, filters, min(filters, 4)), multiply_add=multiply_add, loads=loads,
                first="filters" if layouts == ROWS else "pixels", channel_vector=channels, input_storage=storage,
            ), numbers  # fmt: skip
    for (pixels, filters), group in product(((2, 4), (1, 4), (1, 1)), ((32, 1), (4, 4), (1, 16), (1, 1))):
        direct = _direct((*group, pixels, filters, filters), multiply_add=multiply_add)
        yield direct, {"least_filters": filters // 2 + 1}


def _direct(tile: _Tile, **values: Value) -> Configuration:
    usual: dict[str, Value] = {
        "first": "pixels", "channel_vector": 1, "unroll": 1, "input_storage": "buffer", "weights_storage": "buffer",
        "loads": "vload",
    }  # fmt: skip
    return _tiled("direct", tile, **{**usual, **values})
