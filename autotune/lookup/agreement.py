"""Checks that a predictor agrees with the table it belongs to; one that contradicts the measurements is not used."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from autotune.lookup.legality import Legality
from autotune.lookup.predictor import Predictor
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

LEAST_AGREEMENT = 0.5
"""Fraction of a table's sizes at which a predictor must choose the winner's algorithm. The published predictors of the
H100 and the H200 do so at 0.96 to 1.0 of them; one at 0.29 was two to six times slower than the default by rule."""

LEAST_JUDGED = 3
"""Minimum number of comparable sizes: with fewer, a predictor is never rejected."""
MOST_JUDGED = 64
"""Maximum number of sizes checked; from a larger table, evenly spaced ones in the order of their keys are taken."""


class Measured(Protocol):
    """An entry or a winner."""

    @property
    def problem(self) -> Problem: ...

    @property
    def configuration(self) -> Configuration: ...


_T = TypeVar("_T")


def evenly(items: Sequence[_T]) -> Sequence[_T]:
    """Return at most MOST_JUDGED of the items, evenly spaced."""
    return items[:: -(-len(items) // MOST_JUDGED) or 1]


def agrees(predictor: Predictor, family: KernelFamily, limits: DeviceLimits, table: Iterable[Measured]) -> bool:
    """Return whether a predictor may be used, given its device's limits and the measurements there (`table`)."""
    if predictor.favours != "predicted":
        return True
    legality = Legality(family, limits)
    judged = agreeing = 0
    for measured in evenly(sorted(table, key=lambda measured: measured.problem.key)):
        problem = measured.problem
        if problem.kind != predictor.example.kind or predictor.way(problem) != "predicted":
            continue
        values = problem.constraint_values()
        ranking = predictor.model.ranking(problem, limits.compute_units)
        choices = (predictor.configurations[number] for number in ranking)
        chosen = next((choice for choice in choices if legality.is_valid(choice, values)), None)
        judged += 1
        agreeing += chosen is not None and chosen.algorithm == measured.configuration.algorithm
    return judged < LEAST_JUDGED or agreeing >= LEAST_AGREEMENT * judged
