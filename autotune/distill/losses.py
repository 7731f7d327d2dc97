"""The losses of configurations in cases, measured or estimated, and the features that a rule may ask for.

A loss is the natural logarithm of a time divided by the best time of its case: 0 is the best that was measured.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf, log, log2, prod

import numpy as np
from numpy.typing import NDArray

from autotune.distill.cases import Case
from autotune.model.configuration import Configuration, Value

WORST_LOSS = log(8.0)
"""Upper limit of a loss, also used for configurations that are not valid."""
NOMINATED = 16
"""Number of its fastest configurations that each case nominates."""
FIRST_STEP, NEXT_STEP = 0.3, 0.15
"""Loss expected of a configuration that was not measured, by its steps from a measured one.

Mean losses in 24 recorded spaces of Kernel Tuner's benchmark hub, of configurations that are up to one, two, ... steps
from the best: 0.42, 0.58, 0.73, 0.84, 0.94.
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
        ranked = [sorted(case.times, key=lambda c: (case.times[c], c)) for case in cases]
        everywhere = set.intersection(*map(set, ranked))
        nominated = [everywhere.union(known[:NOMINATED]) for known in ranked]
        self.configurations = sorted(set().union(*nominated))
        row = {configuration: number for number, configuration in enumerate(self.configurations)}
        shape = len(row), len(cases)
        best = [
            min(case.times[known[0]], case.default if case.default > 0 else inf)
            for case, known in zip(cases, ranked, strict=True)
        ]
        self.losses = np.full(shape, np.nan)
        self.nominations = np.zeros(shape, dtype=bool)
        for column, case in enumerate(cases):
            self.nominations[[row[c] for c in nominated[column]], column] = True
            rows = [row[c] for c in ranked[column] if c in row]
            times = np.array([case.times[self.configurations[number]] for number in rows])
            self.losses[rows, column] = np.minimum(np.log(times / best[column]), WORST_LOSS)
        self.is_measured = ~np.isnan(self.losses)
        self._estimate([[row[c] for c in known[:NOMINATED]] for known in ranked])
        self.defaults = np.log(np.array([case.default for case in cases]) / best)
        """Loss of the default in each case; NaN where it is not known."""
        # A comparison with NaN is false.
        self.costs = self.losses + _DEFEAT * (self.is_measured & (self.losses > self.defaults + TIE))

    def _estimate(self, fastest: Sequence[Sequence[int]]) -> None:
        """Estimate what was not measured from the steps to the fastest configurations that were."""
        codes = _codes(self.configurations)
        for column, (case, known) in enumerate(zip(self.cases, fastest, strict=True)):
            rows = np.flatnonzero(~self.is_measured[:, column])
            apart = np.abs(codes[rows, None] - codes[None, known])
            steps = np.where(apart > _APART, 1.0, np.minimum(apart, 2.0)).sum(axis=2)
            losses = (self.losses[known, column] + FIRST_STEP + NEXT_STEP * steps).min(axis=1)
            is_legal = np.array([case.is_legal(self.configurations[row]) for row in rows], dtype=bool)
            self.losses[rows, column] = np.where(is_legal, np.minimum(losses, WORST_LOSS), WORST_LOSS)

    def rows(self, columns: Places) -> Places:
        """Return the rows that some of these cases nominate."""
        return np.flatnonzero(self.nominations[:, columns].any(axis=1))

    def winner(self, column: int) -> int:
        """Return the row of the fastest configuration of a case."""
        return int(np.argmin(np.where(self.is_measured[:, column], self.losses[:, column], inf)))

    def nearest(self, columns: Places, column: int) -> int:
        """Return which of the columns has the nearest device and, on it, the nearest size."""
        here = self.cases[column]

        def apart(other: int) -> tuple[float, float]:
            case = self.cases[other]
            return _apart(here.device_facts, case.device_facts), _apart(here.sizes, case.sizes)

        return int(min(columns.tolist(), key=apart))

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
    return np.array([[_code(values.get(name), codes) for name in names] for values in plain])


def _code(value: Value | None, codes: Mapping[Value | None, float]) -> float:
    return codes[value] if value in codes else log2(int(value or 0))


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
