"""Fits the models that `autotune.lookup.predictor` evaluates: neighbours, a small tree, a sum of costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autotune.lookup.predictor import MOST_SHARED, Costs, Model, Neighbours, Node, Point, Tree
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.predict.costs import Prices, Work, bare_cost, weigh

_DEEPEST = 4
_LEAST_IN_LEAF = 2
_LEAST_GAIN = 0.002
"""Mean loss that a split of a tree must save over all sizes."""
MOST_POINTS = 96
"""Maximum number of measured sizes among which neighbours are searched, so that a lookup stays fast."""
_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The data a model is fitted to: chosen configurations (rows) at measured sizes (columns)."""

    configurations: tuple[Configuration, ...]
    problems: tuple[Problem, ...]
    losses: NDArray[np.float64]
    """Measured or estimated; shape (configurations, problems)."""
    works: tuple[Work, ...]
    """The work of each configuration."""
    prices: Prices

    @property
    def places(self) -> NDArray[np.float64]:
        return np.log2(np.array([problem.size_vector for problem in self.problems], dtype=np.float64))


def fit_one_neighbour(samples: Samples) -> Model:
    return _neighbours(samples, 1)


def fit_neighbours(samples: Samples) -> Model:
    return _neighbours(samples, 3)


def fit_tree(samples: Samples) -> Model:
    """Split greedily by sums of logarithms of sizes: single sizes, ratios and products of two, the product of all."""
    places = samples.places
    axes = [axis for axis in range(places.shape[1]) if np.ptp(places[:, axis]) > 0]
    nodes: list[Node] = []
    _grow(nodes, samples.losses, places, _directions(axes, places.shape[1]), np.arange(len(places)), 0)
    return Tree(nodes=tuple(nodes))


def fit_costs(samples: Samples) -> Model:
    """Weigh the work of each configuration by prices fitted to all trials.

    Falls back to neighbours if `Costs` cannot express it: the configurations divide different sizes among work-groups,
    or too many.
    """
    shared = {tuple(part > 0 for part in work.tile) for work in samples.works}
    if len(shared) > 1 or sum(next(iter(shared))) > MOST_SHARED:
        return fit_neighbours(samples)
    terms = [
        replace(bare_cost(work), weights=weigh(work, samples.prices[work.configuration.algorithm]))
        for work in samples.works
    ]
    return Costs(terms=tuple(terms))


FITS: dict[str, Callable[[Samples], Model]] = {
    "neighbours": fit_neighbours,
    "one neighbour": fit_one_neighbour,
    "tree": fit_tree,
    "costs": fit_costs,
}


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
    """Choose at most `most` rows, each as far as possible from those chosen before; all if there are few. Sorted."""
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
    """Add the node for some of the sizes and all nodes below it; return its number."""
    number = len(nodes)
    inside = losses[:, columns].mean(axis=1)
    # Configurations that are alike at these sizes are ordered by their losses at all sizes.
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
