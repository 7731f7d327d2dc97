"""The losses of configurations in cases, measured or estimated, and the features that a rule may ask for.

A loss is the natural logarithm of a time divided by the best time of its case: 0 is the best that was measured.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import log, log2, nan, prod

import numpy as np
from numpy.typing import NDArray

from autotune.distill.cases import Case
from autotune.model.configuration import Configuration, Value

WORST_LOSS = log(8.0)
"""Upper limit of a loss, also used for configurations that are not valid."""
NOMINATED = 16
"""Number of its fastest configurations that each case nominates."""
STEP = 0.15
"""Loss expected for each step of a configuration that was not measured from one that was.

In 24 recorded spaces of Kernel Tuner's benchmark hub, configurations that are 1, 2, ... 6 steps from the best lose
0.21, 0.32, 0.41, 0.53, 0.81, 1.04 (medians over spaces of their medians).
"""
TIE = 0.01
"""Loss by which a kernel must be behind the default to lose to it."""
_DEFEAT = 10.0
"""Cost of losing to the default where both were measured; above any loss."""
_APART = 100.0
"""Codes of values that differ by more are one step apart."""

Places = NDArray[np.intp]
Numbers = NDArray[np.float64]
Feature = NDArray[np.float64] | NDArray[np.str_]


class Losses:
    """Rows are configurations, columns are cases."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.columns = np.arange(len(cases))
        fastest = [sorted(case.times, key=lambda c: (case.times[c], c))[:NOMINATED] for case in cases]
        self.configurations = sorted(set.intersection(*(set(case.times) for case in cases)).union(*fastest))
        times = np.array([[case.times.get(c, nan) for case in cases] for c in self.configurations])
        defaults = np.array([case.default for case in cases])
        best = np.fmin([case.times[known[0]] for case, known in zip(cases, fastest, strict=True)], defaults)
        self.is_measured = ~np.isnan(times)
        self.losses = np.minimum(np.log(times / best), WORST_LOSS)
        self._estimate(fastest)
        self.defaults = np.log(defaults / best)
        """Loss of the default in each case; NaN where it is not known."""
        # A comparison with NaN is false.
        self.costs = self.losses + _DEFEAT * (self.is_measured & (self.losses > self.defaults + TIE))

    def _estimate(self, fastest: Sequence[Sequence[Configuration]]) -> None:
        """Estimate what was not measured from the steps to the fastest configurations that were."""
        codes = _codes(self.configurations)
        row = {configuration: number for number, configuration in enumerate(self.configurations)}
        for column, case in enumerate(self.cases):
            known = [row[c] for c in fastest[column]]
            rows = np.flatnonzero(~self.is_measured[:, column])
            apart = np.abs(codes[rows, None] - codes[None, known])
            steps = np.where(apart > _APART, 1.0, apart).sum(axis=2)
            losses = (self.losses[known, column] + STEP * steps).min(axis=1)
            is_legal = np.array([case.is_legal(self.configurations[row]) for row in rows], dtype=bool)
            self.losses[rows, column] = np.where(is_legal, np.minimum(losses, WORST_LOSS), WORST_LOSS)

    def rows(self, columns: Places) -> Places:
        """Return the rows that were measured in some of these cases."""
        return np.flatnonzero(self.is_measured[:, columns].any(axis=1))

    def nearest_winner(self, columns: Places, column: int) -> int:
        """Return the fastest row of that of the columns which has the nearest device and, on it, the nearest size."""
        here = self.cases[column]

        def apart(other: int) -> tuple[float, float]:
            case = self.cases[other]
            return _apart(here.device_facts, case.device_facts), _apart(here.sizes, case.sizes)

        near = min(columns.tolist(), key=apart)
        return int(np.argmin(np.where(self.is_measured[:, near], self.losses[:, near], np.inf)))

    def grouped(self, name: Callable[[Case], str], columns: Places) -> dict[str, Places]:
        """Return those of the columns that share a name, by name in the order of the cases."""
        found: dict[str, list[int]] = {}
        for column in columns.tolist():
            found.setdefault(name(self.cases[column]), []).append(column)
        return {key: np.array(group) for key, group in found.items()}

    @cached_property
    def features(self) -> dict[str, Feature]:
        """Values by case of what every case has and not all share: numbers, products of sizes, texts."""
        facts = [case.facts for case in self.cases]
        shared = set.intersection(*({(name, isinstance(v, str)) for name, v in known.items()} for known in facts))
        names = [name for name in facts[0] if (name, isinstance(facts[0][name], str)) in shared]
        numbers = [name for name in names if not isinstance(facts[0][name], str)]
        sizes = [name for name in numbers if name in self.cases[0].sizes][:3]
        products = [" * ".join(some) for count in (2, 3) for some in itertools.combinations(sizes, count)]
        found: dict[str, Feature] = {n: np.array([product(n, known) for known in facts]) for n in (*numbers, *products)}
        found |= {name: np.array([known[name] for known in facts]) for name in names if name not in numbers}
        return {name: values for name, values in found.items() if len(set(values.tolist())) > 1}


def product(feature: str, facts: Mapping[str, str | float]) -> float:
    """Return the value of a numeric feature: a fact, or a product of facts such as ``m * n``."""
    return prod(float(facts[name]) for name in feature.split(" * "))


def _codes(configurations: Sequence[Configuration]) -> Numbers:
    """Return numbers whose differences are the steps between configurations: shape (configurations, parameters).

    A factor of two in a positive number is a step. Differences above _APART are one step: another text, a number in
    place of zero, a parameter that only one has.
    """
    plain = [configuration.to_dict() for configuration in configurations]
    names = sorted({name for values in plain for name in values})
    texts = sorted({value for values in plain for value in values.values() if isinstance(value, str)})
    codes: dict[Value | None, float] = {text: 2 * _APART * (2 + number) for number, text in enumerate(texts)}
    codes |= {None: -4 * _APART, 0: -2 * _APART}

    def code(value: Value | None) -> float:
        return codes[value] if value in codes else log2(int(value or 0))

    return np.array([[code(values.get(name)) for name in names] for values in plain])


def _apart(one: Mapping[str, str | float], other: Mapping[str, str | float]) -> float:
    """Return how far apart two sets of facts are: powers of two between numbers, 4 for texts that differ."""
    total = 0.0
    for name, value in one.items():
        theirs = other.get(name)
        if isinstance(value, str) or isinstance(theirs, str) or theirs is None:
            total += 4.0 * (value != theirs)
        else:
            total += abs(log2((1 + abs(value)) / (1 + abs(theirs))))
    return total
