"""The rule for untuned row operations: a list in order of preference, of which the first that is valid is taken.

`ESTIMATE` says for which problems each entry is meant; Python and exported C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product

from autotune.kernels.rows.algorithms import IS_ROPE, IS_SPREAD
from autotune.kernels.rows.problem import MAX_LENGTH
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

_REGISTERS = 128
"""Most registers that a work-item needs."""
JOINED, SPREAD, ANY = range(3)
"""Kinds of operations: whose rows are joined; that need nothing of the rest of a row; any."""

ESTIMATE = Expression(
    "(order + 1) * (least_channels <= channels and channels <= most_channels and least_batch <= batch"
    f" and least_elements <= (channels // 2 if {IS_ROPE} else channels)"
    f" and (means == {ANY} or means == ({SPREAD} if {IS_SPREAD} else {JOINED}))"
    " and (wide == 0 or dtype == 'float16')"
    " and (operation != 'rope' or (turns_halves if dtype == 'float16' else turns_floats) == 1)) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate, of which `means` is a kind of operations, `wide` is 1 for what is meant for float16
alone, such as reading 16 bytes of it at once, and `turns_floats` and `turns_halves` are 1 for what is meant for RoPE of
neighbours. `least_elements` counts pairs where the operation is RoPE."""

_ALL = {
    "least_channels": 1, "most_channels": MAX_LENGTH, "least_batch": 1, "least_elements": 1, "means": ANY, "wide": 0,
    "turns_floats": 1, "turns_halves": 1,
}  # fmt: skip
_Numbers = dict[str, int]


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    machine = Starts(starts).machine
    group = machine.holds(_REGISTERS) if machine.is_small else 256
    has_ptx = limits.constraint_values()["has_ptx"] == 1
    return ranked(starts, _named_by_rule(limits.is_cpu, limits.compute_units, has_ptx, group), _ALL)


@cache
def _named_by_rule(is_cpu: bool, compute_units: int, has_ptx: bool, group: int) -> Mapping[Configuration, _Numbers]:
    readings: list[dict[str, Value]] = [
        {"vector_width": width, "loads": loads}
        for width in ((16, 8, 4, 2, 1) if is_cpu else (8, 4, 2, 1))
        for loads in (("aligned", "vload") if width > 1 else ("vload",))
    ]
    found: dict[Configuration, _Numbers] = {}
    for reading in readings:
        named = _of_processors(reading) if is_cpu else _of_others(reading, compute_units, has_ptx, group)
        for configuration, numbers in named:
            found.setdefault(configuration, {**_ALL, **numbers})
    for reading in readings:  # rows too short to be shared
        found.setdefault(Configuration.of("serial", work_group_size=0, unroll=1, **reading), _ALL)
    return found


def _of_processors(reading: Mapping[str, Value]) -> Iterator[tuple[Configuration, _Numbers]]:
    """Yield parts of few rows where operations need nothing of the rest of a row, then a row for each work-item."""
    width = int(reading["vector_width"])
    for unroll in (8, 4, 2, 1):
        if width * unroll <= 128:
            spread = Configuration.of("spread", work_group_size=16, rows_per_group=1, unroll=unroll, **reading)
            yield spread, {"least_channels": 16 * width * unroll}
    for unroll in (4, 1):
        yield Configuration.of("serial", work_group_size=0, unroll=unroll, **reading), {}


def _of_others(
    reading: Mapping[str, Value], compute_units: int, has_ptx: bool, largest: int
) -> Iterator[tuple[Configuration, _Numbers]]:
    """Yield shares of a row that fit the registers, then passes over longer ones; or a few vectors each."""
    width = int(reading["vector_width"])
    wide = {"wide": int(width > 4)}
    for lanes, floats in _SHARES:
        unroll, most = floats // width, lanes * floats
        if unroll > 16 or (width > 4 and floats > 16) or (lanes > largest and largest < 256):
            continue
        numbers = {**wide, "means": JOINED, "least_channels": most // 2 - width + 2, "most_channels": most + width - 1}
        for group in _groups(lanes, largest):
            yield from _joined(group, group // lanes, {"unroll": unroll, "keep": "registers", **reading}, numbers)
    if width <= 4:
        numbers = {**wide, "means": JOINED, "least_channels": 2 * largest * width}
        yield from _joined(largest, 1, {"unroll": 2, "keep": "memory", **reading}, numbers)
    # Of neighbours, a vector of two pairs is one of four elements; NVIDIA's read eight of float16 as well.
    turns = {"turns_floats": int(width <= 2), "turns_halves": int(width <= (4 if has_ptx else 2))}
    unrolled = (2, 1) if width <= 4 or has_ptx else (1,)
    every_lanes = [lanes for lanes in (256, 128, 64, 32, 16, 8, 4) if lanes <= largest]
    in_order = product(unrolled, every_lanes) if width > 4 else ((u, lanes) for lanes in every_lanes for u in unrolled)
    for unroll, lanes in in_order:
        least = {
            "least_elements": lanes * width * unroll if width > 4 else 1,
            "least_batch": compute_units if unroll > 1 else 1,
        }
        for group in _groups(lanes, largest):
            spread = Configuration.of(
                "spread", work_group_size=group, rows_per_group=group // lanes, unroll=unroll, **reading
            )
            yield spread, {**wide, **turns, **least, "means": SPREAD}


def _groups(lanes: int, largest: int) -> tuple[int, ...]:
    """Return sizes of work-groups: many rows in one, or a single row where there are not enough."""
    return (lanes,) if lanes >= largest else (largest, max(lanes, 16))


def _joined(
    group: int, rows: int, chosen: Mapping[str, Value], numbers: _Numbers
) -> Iterator[tuple[Configuration, _Numbers]]:
    """Yield a configuration that joins by NVIDIA's instruction, which only its devices take, and by local memory."""
    shared = {"work_group_size": group, "rows_per_group": rows, **chosen}
    yield Configuration.of("shuffle", **shared), numbers
    if group <= 256:  # with more, Adreno's compiler moves elements out of registers
        yield Configuration.of("local_tree", fan_in=4, **shared), numbers


_SHARES = (
    (4, 16), (8, 16), (16, 16), (32, 16), (64, 16), (128, 16), (256, 16), (256, 32), (512, 16), (512, 32), (1024, 32),
)  # fmt: skip
"""Work-items that share a row, and elements of each: as few as leave the row in registers. Of 64 elements Adreno's
compiler moves some out of them, and of 32 that are read by eight."""
