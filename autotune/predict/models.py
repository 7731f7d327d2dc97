"""Models fitted: neighbours, a small tree, a linear score; as `autotune.lookup.predictor` evaluates them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import log2

import numpy as np
from numpy.typing import NDArray

from autotune.family import Configuration, Problem
from autotune.lookup.predictor import Linear, Model, Neighbours, Node, Point, Term, Tree, features

_DEEPEST = 4
_LEAST_IN_LEAF = 2
_LEAST_GAIN = 0.002
"""Mean loss that a split of a tree must save over all sizes."""
MOST_POINTS = 96
"""Measured sizes that neighbours are sought among, so that a lookup stays quick."""
_RIDGE = 3.0
_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a model is fitted to: chosen configurations (rows) at measured sizes (columns)."""

    configurations: tuple[Configuration, ...]
    problems: tuple[Problem, ...]
    losses: NDArray[np.float64]
    """Measured or estimated."""
    is_valid: NDArray[np.bool_]
    is_measured: NDArray[np.bool_]
    tuned_ns: NDArray[np.float64]
    compute_units: int

    @property
    def places(self) -> NDArray[np.float64]:
        return np.log2(np.array([problem.size_vector for problem in self.problems], dtype=np.float64))


def fit_one_neighbour(samples: Samples) -> Model:
    return _neighbours(samples, 1)


def fit_neighbours(samples: Samples) -> Model:
    return _neighbours(samples, 3)


def fit_tree(samples: Samples) -> Model:
    """Greedy splits by sums of logarithms of sizes: single sizes, ratios and products of two, and all together."""
    places = samples.places
    axes = [axis for axis in range(places.shape[1]) if np.ptp(places[:, axis]) > 0]
    nodes: list[Node] = []
    _grow(nodes, samples.losses, places, _directions(axes, places.shape[1]), np.arange(len(places)), 0)
    return Tree(nodes=tuple(nodes))


def fit_linear(samples: Samples) -> Model:
    """For each configuration a ridge regression of the logarithm of its time; estimates count a third."""
    times = np.log2(samples.tuned_ns) + samples.losses / np.log(2.0)
    names = axis_names(type(samples.problems[0]))
    terms = []
    for row, configuration in enumerate(samples.configurations):
        tile, split = shares(configuration, names)
        x = np.array([_features(problem, tile, split, samples.compute_units) for problem in samples.problems])
        importance = np.where(samples.is_measured[row], 1.0, 1 / 3) * samples.is_valid[row]
        weights = _ridge(x, times[row], importance)
        terms.append(Term(tile=tile, split=split, weights=tuple(round(float(w), 6) for w in weights)))
    return Linear(terms=tuple(terms))


FITS: dict[str, Callable[[Samples], Model]] = {
    "neighbours": fit_neighbours,
    "one neighbour": fit_one_neighbour,
    "tree": fit_tree,
    "linear": fit_linear,
}


def axis_names(problem_type: type[Problem]) -> tuple[str, ...]:
    """The field that each number of a size vector is; empty where it is none."""
    fields = problem_type.__dataclass_fields__
    needed = [name for name, field in fields.items() if field.type is int and _has_no_default(field)]
    primes = dict(zip(needed, (3, 5, 7, 11, 13), strict=False))
    vector = problem_type.from_dict(primes).size_vector
    names = [next((name for name, prime in primes.items() if prime == size), "") for size in vector]
    return tuple(name or ("batch" if "batch" in fields else "") for name in names)


def shares(configuration: Configuration, names: Sequence[str]) -> tuple[tuple[int, ...], int]:
    """What a work-group does of each size, 0 where it is not shared out, and the work-groups that share a tile.

    Read from the names of parameters: ``work_group_m`` times ``micro_tile_m`` of size m. Where the driver chooses
    the work-group, a work-item stands for it.
    """
    values = dict(configuration.values)

    def number(name: str) -> int:
        value = values.get(name, 0)
        return value if isinstance(value, int) else 0

    tile = []
    for name in names:
        parts = [number(p) for p in (f"work_group_{name}", f"micro_tile_{name}")]
        is_shared = any(f"{kind}_{name}" in values for kind in ("work_group", "micro_tile")) and name != "k"
        if name == "batch":
            tile.append(max(1, number("rows_per_group")))
        else:
            tile.append(max(1, parts[0]) * max(1, parts[1]) if is_shared else 0)
    return tuple(tile), max(1, number("split_k"), number("parts"))


def _has_no_default(field: object) -> bool:
    from dataclasses import MISSING

    return getattr(field, "default", None) is MISSING


def _neighbours(samples: Samples, count: int) -> Neighbours:
    points = [
        Point(
            sizes=samples.problems[column].size_vector,
            losses=tuple(np.round(samples.losses[:, column], _DIGITS).tolist()),
        )
        for column in _spread(samples.places, MOST_POINTS)
    ]
    return Neighbours(count=count, points=tuple(points))


def _spread(places: NDArray[np.float64], most: int) -> list[int]:
    """Rows, at most so many, each as far as can be from those before it; all of them in order where they are few."""
    if len(places) <= most:
        return list(range(len(places)))
    chosen = [0]
    while len(chosen) < most:
        gaps = np.linalg.norm(places[:, None] - places[chosen][None, :], axis=2).min(axis=1)
        chosen.append(int(np.argmax(gaps)))
    return sorted(chosen)


def _directions(axes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    found = []
    wanted = [{axis: 1} for axis in axes]
    for one, other in combinations(axes, 2):
        wanted += [{one: 1, other: -1}, {one: 1, other: 1}]
    if len(axes) > 2:
        wanted.append(dict.fromkeys(axes, 1))
    for exponents in wanted:
        found.append(tuple(exponents.get(axis, 0) for axis in range(count)))
    return found


def _grow(
    nodes: list[Node],
    losses: NDArray[np.float64],
    places: NDArray[np.float64],
    directions: Sequence[tuple[int, ...]],
    columns: NDArray[np.intp],
    depth: int,
) -> int:
    """Add the node for some of the sizes, and all below it; its number."""
    number = len(nodes)
    inside = losses[:, columns].mean(axis=1)
    # What is alike inside goes by how it does everywhere.
    order = np.argsort(inside + 0.01 * losses.mean(axis=1), kind="stable")
    nodes.append(Node(ranking=tuple(int(choice) for choice in order)))
    split = _best_split(losses, places, directions, columns) if depth < _DEEPEST else None
    if split is None:
        return number
    exponents, threshold = split
    is_below = places[columns] @ np.array(exponents) <= threshold
    below = _grow(nodes, losses, places, directions, columns[is_below], depth + 1)
    above = _grow(nodes, losses, places, directions, columns[~is_below], depth + 1)
    nodes[number] = Node(exponents=exponents, threshold=threshold, below=below, above=above)
    return number


def _best_split(
    losses: NDArray[np.float64],
    places: NDArray[np.float64],
    directions: Sequence[tuple[int, ...]],
    columns: NDArray[np.intp],
) -> tuple[tuple[int, ...], float] | None:
    if len(columns) < 2 * _LEAST_IN_LEAF:
        return None
    best = losses[:, columns].sum(axis=1).min() - _LEAST_GAIN * losses.shape[1]
    found = None
    for exponents in directions:
        values = places[columns] @ np.array(exponents)
        order = np.argsort(values, kind="stable")
        ordered, sums = values[order], np.cumsum(losses[:, columns[order]], axis=1)
        totals = sums[:, :-1].min(axis=0) + (sums[:, -1:] - sums[:, :-1]).min(axis=0)
        inner = slice(_LEAST_IN_LEAF - 1, len(columns) - _LEAST_IN_LEAF)
        allowed = np.where(np.diff(ordered) > 1e-9, totals, np.inf)[inner]
        at = int(np.argmin(allowed))
        if allowed[at] < best:
            best = allowed[at]
            place = at + _LEAST_IN_LEAF - 1
            found = exponents, round(float(ordered[place] + ordered[place + 1]) / 2, 6)
    return found


@lru_cache(maxsize=2**16)
def _features(problem: Problem, tile: tuple[int, ...], split: int, compute_units: int) -> tuple[float, ...]:
    """Asked for again at every size that is left out."""
    work = log2(problem.flops), log2(problem.bytes_moved)
    return features(tile, split, problem.size_vector, work, compute_units)


def _ridge(x: NDArray[np.float64], y: NDArray[np.float64], importance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights; the constant is free, the others stay near those of compute units that work in rounds."""
    # A round takes what one work-group takes: all the work, padding included, shared out over the work-groups.
    start = np.array([0.0, 1.0, 0.0, 1.0, -1.0, 1.0])
    penalty = np.diag([1e-6, *[_RIDGE] * (x.shape[1] - 1)])
    weighted = x * importance[:, None]
    solved = np.linalg.solve(weighted.T @ x + penalty, weighted.T @ (y - x @ start))
    return np.asarray(start + solved)
