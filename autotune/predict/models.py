"""Fits the models that `autotune.lookup.predictor` evaluates: neighbours, a sum of costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.lookup.predictor import MOST_SHARED, Costs, Model, Neighbours, Point
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.predict.costs import Prices, Work, bare_cost, weigh

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
