"""What to use before anything is tuned: a configuration by size and limits, from what the profile names.

Candidates are the profile's starts and variants of them: other shapes of the work-group, half the rows a work-item
computes, k shared out. Of the valid ones that is taken whose `ESTIMATE` is least, the time of the busiest compute
unit in multiply-adds of one lane. So part-filled work-groups count like filled ones, idle compute units gain
nothing, large micro-tiles save loads, several work-groups at once hide waiting, and copies and launches must pay.

The estimate is whole numbers only and one text for Python and for exported C, so that both agree on every choice.
Where several estimates are equal the first start holds: a profile's order still says what suits a device.

Sources: Qualcomm's description of SGEMM on Adreno (fewest part-filled work-groups, large ones, own kernels for small
sizes). The weights below fit times of an NVIDIA H200 and of PoCL; they rank, and predict no times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.combining import one_launch_variants
from autotune.expression import Expression
from autotune.family import Configuration, DeviceLimits, Value
from autotune.kernels.gemm.algorithms import ALGORITHMS
from autotune.kernels.gemm.problem import GemmProblem

_TILES = "(m + rows - 1) // rows * ((n + columns - 1) // columns) * batch * split"
_ROUNDS = f"(({_TILES} + chunk * compute_units - 1) // (chunk * compute_units))"
_COPIES = "batch * (copies_a * m * k + copies_b * k * n + copies_c * m * n) // compute_units"
_WORK = "(work + gather * (1 - trans_b) * min(n - 1, 16))"
ESTIMATE = Expression(f"((k + parts - 1) // parts * ({_ROUNDS} * {_WORK} + wait) + besides + {_COPIES}) * doubt")
"""Over the problem, the device's limits, and what `_numbers` tells of a candidate."""


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """What costs how many multiply-adds of one lane; on a CPU how many eighths of a vector operation."""

    near: int
    """An element loaded from a cache; half as much from an image's or from local memory, twice by `vload`."""
    far: int
    """An element that a work-group loads once for all its work-items."""
    copy: int
    """An element read or written once more by another kernel."""
    launch: int
    latency: int
    """Waiting for memory, shared among the steps of k under way at once."""


_GPU = _Weights(near=2, far=24, copy=64, launch=2_000_000, latency=100_000)
_CPU = _Weights(near=8, far=32, copy=100, launch=250_000, latency=0)
_CPU_LANES = 8
_MOST_JOINED = 8
"""Parts of k that the last work-group may join as fast as a second launch does: on an H200 it took 0.94 to 0.99 of the
kernels' time with 2 parts at five shapes (medians over configurations), 0.99 to 1.05 with 4 but for one of 1.29, 1.0 to
1.07 with 8, 1.07 to 1.18 with 16. So little tells the two apart that the estimate does not: the search tries both."""

Candidates = Mapping[Configuration, Mapping[str, int]]
"""What the default of one device is chosen from, and what `ESTIMATE` knows of each."""


def by_rule(problem: GemmProblem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Iterator[Configuration]:
    """The valid candidates, best first."""
    values = {**limits.constraint_values(), **problem.constraint_values()}
    known = candidates(tuple(starts), limits).items()
    ranked = sorted(known, key=lambda item: int(ESTIMATE({**values, **item[1]})))
    return (c for c, _ in ranked if _is_valid(c, values))


_EXPANDED: dict[tuple[int, int], tuple[tuple[Configuration, ...], DeviceLimits, Candidates]] = {}
_MOST_EXPANDED = 64


def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Candidates:
    """The starts, then their variants; only what is declared. Kept for the next problem of the same device."""
    # By identity, since hashing the starts takes longer than the choice; what is kept cannot lose its identity.
    place = (id(starts), id(limits))
    known = _EXPANDED.get(place)
    if known is None:
        if len(_EXPANDED) >= _MOST_EXPANDED:
            _EXPANDED.clear()
        known = _EXPANDED[place] = (starts, limits, _expand(starts, limits))
    return known[2]


_ALGORITHMS = {algorithm.name: algorithm for algorithm in ALGORITHMS}


def _is_declared(configuration: Configuration) -> bool:
    algorithm = _ALGORITHMS.get(configuration.algorithm)
    given = dict(configuration.values)
    return (
        algorithm is not None
        and given.keys() == algorithm.by_name.keys()
        and all(given[name] in parameter.values for name, parameter in algorithm.by_name.items())
    )


def _is_valid(configuration: Configuration, values: Mapping[str, Value]) -> bool:
    """Whether a declared configuration keeps the constraints of its algorithm."""
    given = {**values, **dict(configuration.values)}
    return all(c.condition(given) for c in _ALGORITHMS[configuration.algorithm].constraints)


def _expand(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Candidates:
    declared = dict.fromkeys(filter(_is_declared, starts))
    splits = any(dict(start.values).get("split_k", 1) != 1 for start in declared)
    variants = [variant for start in declared for variant in _variants(start, splits)]
    variants += [variant for parted in (*declared, *variants) for variant in _in_one_launch(parted, limits)]
    known = {c: {**_numbers(c, limits), "doubt": 8} for c in declared}
    for variant in filter(_is_declared, variants):
        # A variant must promise an eighth more than what somebody found good.
        known.setdefault(variant, {**_numbers(variant, limits), "doubt": 9})
    return known


def _variants(start: Configuration, splits: bool) -> Iterator[Configuration]:
    """Other shapes of the work-group, none larger than the start's, which the kernel is known to get; see above."""
    values = dict(start.values)

    def changed(**changes: Value) -> Configuration:
        return Configuration.of(start.algorithm, **{**values, **changes})

    if start.algorithm == "microtile":
        items = start.number("work_group_m") * start.number("work_group_n")
        if items >= 32:
            shapes = [(high, items // high) for high in (2, 4, 8, 16, 32)]
            for high, wide in [*shapes, (items // 16, 8)]:
                yield changed(work_group_m=high, work_group_n=wide)
        rows = start.number("micro_tile_m")
        if rows >= 4:
            yield changed(micro_tile_m=rows // 2)
    if start.algorithm == "local_tile" and not splits and values.get("group_rows") == 0:
        yield changed(split_k=4)
        yield changed(split_k=16)


def _in_one_launch(configuration: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    split = dict(configuration.values).get("split_k", 1)
    if isinstance(split, int) and 1 < split <= _MOST_JOINED:
        yield from one_launch_variants(configuration, limits)


def _numbers(configuration: Configuration, limits: DeviceLimits) -> dict[str, int]:
    """What `ESTIMATE` knows of a configuration.

    `rows`, `columns`: outputs of a work-group, or of a work-item where the driver chooses the work-group; `chunk`
    of those share a compute unit's time. `parts`: into how many k is divided, `split` of them by work-groups.
    `work` is that of a step of k for a chunk, and `gather` what each further column adds where the k of B is far
    apart; `wait` is what a compute unit waits in a step, whatever runs on it.
    `besides` is for further launches, `copies` for each element of A, B or C that they read and write.
    """
    weights = _CPU if limits.is_cpu else _GPU
    shape = _Shape(configuration, limits)
    work = shape.work(weights)
    pads = int(shape.text("edges") == "pad")
    packs_a = pads or int(shape.text("a_storage") == "image")
    packs_b = pads or int(shape.text("b_storage") in ("image", "transposed"))
    split = shape.number("split_k")
    return {
        "rows": shape.tile_m * (1 if shape.by_driver else shape.high),
        "columns": shape.tile_n * (1 if shape.by_driver else shape.wide),
        "parts": shape.deep * split,
        "split": split,
        "chunk": shape.wide if shape.by_driver else 1,
        "work": work,
        "gather": work // 4 if shape.gathers() else 0,
        "wait": weights.latency // shape.steps_under_way(),
        "besides": weights.launch * (packs_a + packs_b + int(split > 1)),
        "copies_a": 2 * weights.copy * packs_a,
        "copies_b": 2 * weights.copy * packs_b,
        "copies_c": weights.copy * (split + 1) if split > 1 else 0,
    }


class _Shape:
    """A configuration as work-items by rows, columns and parts of k, and what each of them does."""

    def __init__(self, configuration: Configuration, limits: DeviceLimits) -> None:
        self.algorithm = configuration.algorithm
        self.is_cpu = limits.is_cpu
        self._values = dict(configuration.values)
        self.tile_m, self.tile_n = self.number("micro_tile_m"), self.number("micro_tile_n")
        self.lanes = 1 if limits.is_cpu else max(limits.sub_group_sizes, default=64)
        self.high, self.wide, self.deep = (self.number(f"work_group_{name}") for name in "mnk")
        self.by_driver = self.wide == 0
        if self.by_driver:
            self.high, self.wide = 1, self.lanes

    def number(self, name: str) -> int:
        value = self._values.get(name, 1)
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> Value:
        return self._values.get(name, "")

    def work(self, weights: _Weights) -> int:
        """Of one step of k for a work-group: multiply-adds and loads of its work-items, and what they share."""
        items = -(-self.high * self.wide * self.deep // self.lanes) * self.lanes
        shared = (self.high * self.tile_m + self.wide * self.tile_n) * self.deep
        of_item = self._work_of_item_on_cpu(weights.near) if self.is_cpu else self._work_of_item(weights.near)
        return items * of_item + weights.far * shared

    def _work_of_item(self, near: int) -> int:
        if self.algorithm == "local_tile":
            near_a = near // 2
        else:
            near_a = near * 2 if self.text("loads") == "vload" else near
        near_b = near // 2 if self.text("b_storage") in ("image", "image_view") else near_a
        near_a = near // 2 if self.text("a_storage") in ("image", "image_view") else near_a
        return self.tile_m * self.tile_n + near_a * self.tile_m + near_b * self.tile_n

    def _work_of_item_on_cpu(self, near: int) -> int:
        """A work-item fills the vector unit: vectors lie along n and meet single elements of A, or lie along k."""
        width = min(self.number("vector_width"), _CPU_LANES)
        near_a = near // width if self.algorithm in ("dot", "column") else near
        return (self.tile_m * self.tile_n * _CPU_LANES + near * self.tile_n) // width + near_a * self.tile_m

    def gathers(self) -> bool:
        """Whether elements of B from one row after the other make a vector; a CPU's column does so from its cache."""
        return self.algorithm == "dot" or (self.algorithm == "column" and not self.is_cpu)

    def steps_under_way(self) -> int:
        """Steps of k whose loads do not wait for one another."""
        if self.algorithm == "local_tile":
            return self.number("tile_k") * self.number("stages")
        along_k = self.number("vector_width") if self.algorithm in ("dot", "column") else 1
        return along_k * self.number("unroll")
