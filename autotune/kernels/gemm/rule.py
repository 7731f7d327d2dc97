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

from autotune.expression import Expression
from autotune.family import Configuration, DeviceLimits, Value
from autotune.kernels.gemm.algorithms import ALGORITHMS
from autotune.kernels.gemm.problem import GemmProblem

NUMBERS = ("rows", "columns", "parts", "split", "chunk", "work", "wait", "besides", "copies_a", "copies_b", "copies_c")
"""What `ESTIMATE` knows of a candidate besides the problem and the device's limits; see `_numbers`."""

_TILES = "(m + rows - 1) // rows * ((n + columns - 1) // columns) * batch * split"
_ROUNDS = f"(({_TILES} + chunk * compute_units - 1) // (chunk * compute_units))"
_COPIES = "batch * (copies_a * m * k + copies_b * k * n + copies_c * m * n) // compute_units"
ESTIMATE = Expression(f"(k + parts - 1) // parts * ({_ROUNDS} * work + wait) + besides + {_COPIES}")

_NEAR, _FAR = 2, 32
"""An element loaded, from caches or registers' worth of local memory (half), and once for each work-group."""
_CPU_VECTOR = 8
_LATENCY = 100_000
"""Lanes times cycles that a compute unit waits for memory, shared among the steps of k under way at once."""
_LAUNCH = 2_000_000
_COPY = 48


Candidates = Mapping[Configuration, Mapping[str, int]]
"""What the default of one device is chosen from, and what `ESTIMATE` knows of each."""


def by_rule(problem: GemmProblem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Configuration | None:
    """The best candidate that is valid; None when none is."""
    values = {**limits.constraint_values(), **problem.constraint_values()}
    known = candidates(tuple(starts), limits).items()
    ranked = sorted(known, key=lambda item: int(ESTIMATE({**values, **item[1]})))
    return next((c for c, _ in ranked if _is_valid(c, values)), None)


_EXPANDED: dict[tuple[int, int], tuple[tuple[Configuration, ...], DeviceLimits, Candidates]] = {}
_MOST_EXPANDED = 64


def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Candidates:
    """The starts, then their variants; only what is declared. Kept for the next problem of the same device."""
    # By identity, since hashing the starts takes longer than the choice; what is kept cannot lose its identity.
    place = (id(starts), id(limits))
    if place not in _EXPANDED:
        if len(_EXPANDED) >= _MOST_EXPANDED:
            _EXPANDED.clear()
        _EXPANDED[place] = (starts, limits, _expand(starts, limits))
    return _EXPANDED[place][2]


def _is_valid(configuration: Configuration, values: Mapping[str, Value]) -> bool:
    """Whether a declared configuration keeps the constraints of its algorithm."""
    given = {**values, **dict(configuration.values)}
    return all(c.condition(given) for c in _ALGORITHMS[configuration.algorithm].constraints)


_ALGORITHMS = {algorithm.name: algorithm for algorithm in ALGORITHMS}


def _is_declared(configuration: Configuration) -> bool:
    algorithm = _ALGORITHMS.get(configuration.algorithm)
    given = dict(configuration.values)
    return algorithm is not None and all(
        given.keys() == algorithm.by_name.keys() and given[name] in parameter.values
        for name, parameter in algorithm.by_name.items()
    )


def _expand(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Candidates:
    splits = any(dict(start.values).get("split_k", 1) != 1 for start in starts)
    variants = [variant for start in starts for variant in _variants(start, splits)]
    wanted = [c for c in dict.fromkeys([*starts, *variants]) if _is_declared(c)]
    return {c: _numbers(c, limits) for c in wanted}


def _variants(start: Configuration, splits: bool) -> Iterator[Configuration]:
    """Other work-groups of the same size, as that is known to run; k shared out where no start does so."""
    values = dict(start.values)

    def changed(**changes: Value) -> Configuration:
        return Configuration.of(start.algorithm, **{**values, **changes})

    if start.algorithm == "microtile":
        rows, items = start.number("micro_tile_m"), start.number("work_group_m") * start.number("work_group_n")
        if items >= 32:
            for size in (items, items // 2):
                for high in (2, 4, 8, 16, 32):
                    if size <= 8 * high * high and high * high <= 8 * size:
                        yield changed(work_group_m=high, work_group_n=size // high)
        if rows >= 4:
            yield changed(micro_tile_m=rows // 2)
    if start.algorithm == "local_tile" and not splits and values.get("group_rows") == 0:
        yield changed(split_k=4)
        yield changed(split_k=16)


def _numbers(configuration: Configuration, limits: DeviceLimits) -> dict[str, int]:
    """What `ESTIMATE` knows of a configuration.

    `rows`, `columns`: outputs of a work-group, or of a work-item where the driver chooses the work-group; `chunk`
    of those share a compute unit's time. `parts`: into how many k is divided, `split` of them by work-groups.
    `work` is that of a step of k for a chunk, `wait` what a compute unit waits in a step, whatever runs on it.
    `besides` are further launches, `copies` those of an element.
    """
    shape = _Shape(configuration, limits)
    pads = int(shape.text("edges") == "pad")
    packs_b = pads or int(shape.text("b_storage") in ("image", "transposed"))
    split = shape.number("split_k")
    return {
        "rows": shape.tile_m * (1 if shape.by_driver else shape.high),
        "columns": shape.tile_n * (1 if shape.by_driver else shape.wide),
        "parts": shape.deep * split,
        "split": split,
        "chunk": shape.wide if shape.by_driver else 1,
        "work": shape.work(),
        "wait": 0 if limits.is_cpu else _LATENCY // shape.steps_under_way(),
        "besides": _LAUNCH * (pads + packs_b + int(split > 1)),
        "copies_a": 2 * _COPY * pads,
        "copies_b": 2 * _COPY * packs_b,
        "copies_c": _COPY * (split + 1) if split > 1 else 0,
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

    def work(self) -> int:
        """Of one step of k for a work-group: multiply-adds and loads of its work-items, and what they share."""
        items = -(-self.high * self.wide * self.deep // self.lanes) * self.lanes
        shared = (self.high * self.tile_m + self.wide * self.tile_n) * self.deep
        return items * (self._work_of_item_on_cpu() if self.is_cpu else self._work_of_item()) + _FAR * shared

    def _work_of_item(self) -> int:
        near_a = _NEAR // 2 if self.algorithm == "local_tile" else _NEAR
        near_b = _NEAR // 2 if self.text("b_storage") == "image" else near_a
        return self.tile_m * self.tile_n + near_a * self.tile_m + near_b * self.tile_n

    def _work_of_item_on_cpu(self) -> int:
        """A work-item fills the vector unit: elements of A are single, or vectors along k."""
        single = _CPU_VECTOR // min(self.number("vector_width"), _CPU_VECTOR)
        is_along_k = self.algorithm in ("dot", "column")
        near_a = single if is_along_k else _CPU_VECTOR
        return self.tile_m * self.tile_n * single + near_a * self.tile_m + single * self.tile_n

    def steps_under_way(self) -> int:
        """Steps of k whose loads do not wait for one another."""
        if self.algorithm == "local_tile":
            return self.number("tile_k") * self.number("stages")
        along_k = self.number("vector_width") if self.algorithm in ("dot", "column") else 1
        return along_k * self.number("unroll")


