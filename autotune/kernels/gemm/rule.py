"""The rule for untuned GEMMs: choose a configuration by problem size and device limits from a profile's starts.

Candidates are the profile's starts and variants of them: other work-group shapes, half the rows per work-item, narrower
loads where rows do not start at aligned addresses, a split k, work-groups of one row, and on phones several columns for
a work-item of `column`. The valid candidate with the smallest `ESTIMATE` (`estimate.py`) is chosen. Ties go to the
earliest start: a profile's order still says what suits a device.

Source: Qualcomm's description of SGEMM on Adreno (fewest part-filled work-groups, large work-groups, separate kernels
for small sizes).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.kernels.combination import one_launch_variants
from autotune.kernels.gemm.estimate import ESTIMATE, LEAST_LANES, numbers_of
from autotune.kernels.gemm.problem import GemmProblem
from autotune.kernels.gemm.tile_algorithms import ALGORITHMS
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import Machine
from autotune.space.family import Starts

_SPARE = 100
"""Penalty on a start's substitute for other numeric modes, so that plain float32 prefers the start itself."""
_PHONE_TILES = ((1, 4), (1, 8), (2, 4), (4, 4), (4, 8), (8, 4), (8, 8))
"""Shapes of a micro-tile (rows, columns) on phones, whose vectors have 4 elements."""
_REGISTERS_BESIDES = 12
"""Registers that a work-item of `microtile` needs for other addresses and counters."""
_CONVERTED = 8
"""Further registers where it converts the integers that it loads."""
_CPU_TILES = ((4, 8), (6, 8), (8, 8), (4, 16), (6, 16), (8, 16), (4, 32), (6, 32), (12, 32), (4, 64), (6, 64))
"""Shapes of a micro-tile (rows, columns); some of them fit the registers of any processor."""
_MOST_JOINED = 16
"""Most parts of k that the last work-group of a macro-tile joins. By the host's clock over a batch, on an H200, one
launch took 0.91 of the time of two with 2 parts (median of 9 configurations), 0.97 with 4 (23), 0.89 with 8 (20)."""

_SPLITS = (2, 3, 4, 5, 6, 8, 12, 16, 32)
"""Splits of k of the variants; a profile's starts may have larger ones."""

_SMALL_MATRICES = 32 * 32
"""Most outputs of a work-group by matrix units whose k is split."""

Candidates = Mapping[Configuration, Mapping[str, int]]
"""The configurations from which a device's default is chosen, each with the numbers that `ESTIMATE` needs."""


def by_rule(problem: GemmProblem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Iterator[Configuration]:
    """Yield the valid candidates, best first, without those whose loads are narrower than the rows allow."""
    values = {**limits.constraint_values(), **problem.constraint_values()}
    asked = [values[name] for name in _ASKED]
    rows_of_a = problem.lda % 4 == 0 and problem.stride_a % 4 == 0
    rows_of_b = problem.ldb % 4 == 0 and problem.stride_b % 4 == 0
    of_device = _known(Starts(starts), limits, problem.constant)
    # Where vectors of float16 are limited, narrow loads may be the only valid ones.
    known = of_device.that_matter[rows_of_a, rows_of_b] if problem.accumulator != "float16" else of_device.all
    ranked = sorted(((_estimate(*asked, *numbers), place) for place, (_, numbers) in enumerate(known)))
    return (c for c in (known[place][0] for _, place in ranked) if _is_valid(c, values))


_ASKED = ("m", "n", "k", "ldb", "ldc", "batch", "trans_a", "trans_b", "element_bytes", "compute_units")
_NUMBERS = tuple(sorted(ESTIMATE.names - set(_ASKED)))
_estimate = ESTIMATE.taking(*_ASKED, *_NUMBERS)


@dataclass(frozen=True)
class _Known:
    """The candidates of a device, and the relevant ones for aligned or unaligned rows of A and of B."""

    starts: Starts
    limits: DeviceLimits
    candidates: Candidates

    @cached_property
    def all(self) -> list[tuple[Configuration, tuple[int, ...]]]:
        """All candidates with the arguments of the estimate."""
        return [(c, tuple(numbers[name] for name in _NUMBERS)) for c, numbers in self.candidates.items()]

    @cached_property
    def that_matter(self) -> Mapping[tuple[bool, bool], list[tuple[Configuration, tuple[int, ...]]]]:
        """Relevant candidates with the arguments of the estimate, by whether rows of A and of B are aligned."""
        cases = ((False, False), (False, True), (True, False), (True, True))
        return {case: [item for item in self.all if self._matters(item[0], *case)] for case in cases}

    def _matters(self, configuration: Configuration, rows_of_a: bool, rows_of_b: bool) -> bool:
        """Return whether the rows allow its loads, and no candidate has wider ones without more doubt."""
        return configuration.algorithm != "local_tile" or all(
            self._has_right_width(configuration, f"{x}_load_width", aligned)
            for x, aligned in (("a", rows_of_a), ("b", rows_of_b))
        )

    def _has_right_width(self, configuration: Configuration, name: str, is_aligned: bool) -> bool:
        if not is_aligned:
            return configuration[name] != 4 or configuration["edges"] == "pad"
        if configuration[name] != 1 or configuration.number("stages") > 2:  # the copy transposes only by elements
            return True
        wider = (self.candidates.get(_changed(configuration, **{name: width})) for width in (2, 4))
        doubt = self.candidates[configuration]["doubt"]
        return not any(known["doubt"] <= doubt for known in wider if known)


_EXPANDED: dict[tuple[int, int, str], _Known] = {}
_MOST_EXPANDED = 64


def candidates(starts: Sequence[Configuration], limits: DeviceLimits) -> Candidates:
    """Return the starts, then their variants, without those that the algorithm does not declare."""
    return _known(Starts(starts), limits, "").candidates


def _known(starts: Starts, limits: DeviceLimits, constant: str) -> _Known:
    """Return the candidates of a device, cached for its next problem."""
    # The key is identities, since hashing the starts takes longer than the choice. A cached value holds references to
    # the objects, so their identities stay valid.
    place = (id(starts), id(limits), constant)
    known = _EXPANDED.get(place)
    if known is None:
        if len(_EXPANDED) >= _MOST_EXPANDED:
            _EXPANDED.clear()
        known = _EXPANDED[place] = _Known(starts, limits, _expand(starts, limits, constant))
    return known


_ALGORITHMS = {algorithm.name: algorithm for algorithm in ALGORITHMS}


def _is_declared(configuration: Configuration) -> bool:
    algorithm = _ALGORITHMS.get(configuration.algorithm)
    given = dict(configuration.values)
    return (
        algorithm is not None
        and given.keys() == algorithm.by_name.keys()
        and all(given[name] in parameter.values for name, parameter in algorithm.by_name.items())
    )


def _is_by_driver(configuration: Configuration) -> bool:
    return dict(configuration.values).get("work_group_n") == 0


def _is_valid(configuration: Configuration, values: Mapping[str, Value]) -> bool:
    """Return whether a declared configuration satisfies the constraints of its algorithm."""
    given = {**values, **dict(configuration.values)}
    return all(c.condition(given) for c in _ALGORITHMS[configuration.algorithm].constraints)


def _expand(starts: Starts, limits: DeviceLimits, constant: str) -> Candidates:
    machine = starts.machine

    def numbers(configuration: Configuration, doubt: int, spare: int = 0) -> dict[str, int]:
        return {**numbers_of(configuration, limits, constant, machine), "doubt": doubt, "spare": spare}

    declared = dict.fromkeys(filter(_is_declared, starts))
    known = {c: numbers(c, 9 if machine.work_group and _is_by_driver(c) else 8) for c in declared}
    for start in declared:
        for variant in filter(_is_declared, _variants(start, limits, machine)):
            # A variant must promise an eighth more than a start, which was found good on a device like this. Those of
            # `column` with work-groups of one row are for products of one to three, for which no start is legal: they
            # must promise much more.
            is_fitted = (limits.is_cpu and limits.native_vector_float32) or machine.outputs_most
            is_sure = start.algorithm == "matrix_tile" or is_fitted
            is_of_few_rows = start.algorithm == "column" and variant["micro_tile_n"] == start["micro_tile_n"]
            doubt = 40 if is_of_few_rows else 8 if is_sure else 9
            known.setdefault(variant, numbers(variant, doubt))
    for origin, of_origin in list(known.items()):
        if machine.outputs_most and not _may_convert(origin, machine):
            continue
        for variant in _of_other_modes(origin):
            known.setdefault(variant, numbers(variant, of_origin["doubt"], _SPARE))
    return known


def _changed(start: Configuration, **changes: Value) -> Configuration:
    return Configuration.of(start.algorithm, **{**dict(start.values), **changes})


def _variants(start: Configuration, limits: DeviceLimits, machine: Machine) -> Iterator[Configuration]:
    """Yield variants of a start (see the module's docstring).

    No work-group is larger than the start's, a size that the kernel is known to get.
    """
    if start.algorithm == "microtile":
        yield from _of_phone(start, machine) if machine.outputs_most else _in_registers(start, limits)
    if start.algorithm == "panel":
        tiles = start.number("tiles_m")
        yield from (_changed(start, tiles_m=tiles >> halved) for halved in range(1, tiles.bit_length() - 1))
        for tile in _tiles_of_processor(start, limits):
            yield from (_changed(tile, tiles_m=high) for high in (4, 8, 16, 32, tiles))
    if start.algorithm == "local_tile" and not limits.is_cpu:
        yield from _tile_variants(start, limits)
    if start.algorithm == "matrix_tile" and limits.has_matrix_units:
        yield from _matrix_variants(start, limits)
    yield from _rows_of_their_own(start, limits)
    if start.algorithm == "column" and machine.outputs_most:
        yield from (_changed(start, micro_tile_n=wide) for wide in (2, 4))
    if _joins(start):
        yield from one_launch_variants(start, limits)


def _in_registers(start: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield other work-groups and tiles of a `microtile`."""
    items = start.number("work_group_m") * start.number("work_group_n")
    if limits.is_cpu:
        yield from (_changed(start, work_group_m=items >> halved) for halved in range(1, items.bit_length()))
    elif items >= 32:
        shapes = [(high, items // high) for high in (2, 4, 8, 16, 32)]
        for high, wide in [*shapes, (items // 16, 8)]:
            yield _changed(start, work_group_m=high, work_group_n=wide)
    rows = start.number("micro_tile_m")
    if rows >= 4:
        yield _changed(start, micro_tile_m=rows // 2)
    for tile in _tiles_of_processor(start, limits):
        yield from (_changed(tile, work_group_m=high) for high in sorted({1, items // 4, items} - {0}))


def _of_phone(start: Configuration, machine: Machine) -> Iterator[Configuration]:
    """Yield other tiles of a start, from buffers and where they are faster from images, each in several work-groups."""
    items = start.number("work_group_m") * start.number("work_group_n") or machine.work_group
    storages: set[Value] = {start["b_storage"]}
    if machine.image_element_bytes and start["b_storage"] == "buffer" and start["edges"] == "guard":
        storages.add("image")
    for (high, wide), storage in itertools.product(_PHONE_TILES, sorted(map(str, storages), reverse=True)):
        if high * wide <= machine.outputs_most and _held(high, wide, 1) <= machine.registers_most:
            tile = _changed(_within_registers(start, high, wide, machine), b_storage=storage)
            if storage == "image" and tile["a_vector_width"] == 1:
                tile = _changed(tile, loads="vload")  # neither pixels nor single elements need to be aligned
            yield tile
            yield from (
                _changed(tile, work_group_m=group, work_group_n=items // group) for group in (2, 4, 8, 16) if items
            )


def _within_registers(start: Configuration, high: int, wide: int, machine: Machine) -> Configuration:
    """Return the start with another tile, and so few steps of k at once that registers hold what they load."""
    along_k, unroll = start.number("a_vector_width"), start.number("unroll")
    while along_k > 1 and _held(high, wide, along_k) > machine.registers_most:
        along_k //= 2
    if _held(high, wide, unroll) > machine.registers_most:
        unroll = along_k
    return _changed(start, micro_tile_m=high, micro_tile_n=wide, a_vector_width=along_k, unroll=unroll)


def _may_convert(configuration: Configuration, machine: Machine) -> bool:
    """Return whether a work-item has registers left to convert the integers that it loads."""
    if configuration.algorithm != "microtile":
        return True
    high, wide, along_k = map(configuration.number, ("micro_tile_m", "micro_tile_n", "a_vector_width"))
    return _held(high, wide, along_k) + _CONVERTED <= machine.registers_most


def _held(high: int, wide: int, along_k: int) -> int:
    """Return the registers that a work-item needs: for sums, what it loads, and the addresses of its rows of A."""
    return high * wide + along_k * high + wide + 2 * high + _REGISTERS_BESIDES


def _rows_of_their_own(start: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield a variant of `column` with work-groups of one row, for products with fewer rows than the start's."""
    is_general = start.algorithm == "column" and start["loads"] == "vload" and start["vector_width"] == 4
    if is_general and not limits.is_cpu:
        items = start.number("work_group_m") * start.number("work_group_k")
        yield _changed(start, work_group_m=1, work_group_k=items)


def _tiles_of_processor(start: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield other shapes of the profile's largest micro-tile, if it is known which of them fit the registers."""
    largest = start.number("micro_tile_m") == 8 and start.number("micro_tile_n") == 32
    if largest and limits.is_cpu and limits.native_vector_float32 >= LEAST_LANES:
        for high, wide in _CPU_TILES:
            yield _changed(start, micro_tile_m=high, micro_tile_n=wide, vector_width=min(wide, 16))


def _of_other_modes(configuration: Configuration) -> Iterator[Configuration]:
    """Yield the substitute for modes that the configuration's multiply-add or copy instruction does not support."""
    changes: dict[str, Value] = {}
    if dict(configuration.values).get("multiply_add") == "mad":
        changes["multiply_add"] = "operator"
    if configuration.algorithm == "local_tile" and configuration.number("stages") > 2:
        changes["stages"] = 2
    if changes:
        yield _changed(configuration, **changes)


def _tile_variants(start: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield narrower loads and, if k is not split, every split of k. The weights are fitted to these.

    Rows of int8 in fours are packed, so that their loads need not be narrower; float16 in twos has few starts.
    """
    is_plain = start["integer_dot"] == "off" and start["multiply_add"] != "packed"
    given = (start.number(f"{x}_load_width") for x in "ab")
    widths = (dict.fromkeys((width, 1 if is_plain else width)) for width in given)
    for a_width, b_width in itertools.product(*widths):
        loading = _changed(start, a_load_width=a_width, b_load_width=b_width)
        yield loading
        if start["split_k"] != 1 or start["group_rows"] != 0 or start["multiply_add"] == "packed":
            continue
        for parts in _SPLITS if is_plain else _SPLITS[:4]:
            parted = _changed(loading, split_k=parts)
            in_one_launch = _joins(parted) and limits.ordering == "ptx"
            yield from one_launch_variants(parted, limits) if in_one_launch else (parted,)


def _matrix_variants(start: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield tiles twice as deep, for int8, and with padding; and of the smallest tile a split k."""
    is_small = start.number("macro_tile_m") * start.number("macro_tile_n") <= _SMALL_MATRICES
    for deeper, edges in itertools.product((1, 2), ("guard", "pad")):
        tile = _changed(start, tile_k=deeper * start.number("tile_k"), edges=edges)
        yield tile
        for parts in (4, 8) if is_small else ():
            parted = _changed(tile, split_k=parts)
            yield from one_launch_variants(parted, limits) if limits.ordering == "ptx" else (parted,)


def _joins(configuration: Configuration) -> bool:
    """Return whether k is split into parts, and not into too many for the last work-group to join."""
    parts = dict(configuration.values).get("split_k", 1)
    return isinstance(parts, int) and 1 < parts <= _MOST_JOINED
