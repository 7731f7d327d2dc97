"""How long the operations of a network take on a device: as measured, as others like them, and at the device's limits.

What was not measured is taken to reach the same share of its limit as the measured problems of its family do, in the
median: those of equal types that the same limit binds, where there are any. Without measured limits there is no such
estimate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import median

from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.model.device import DeviceLimits
from autotune.model.machine import Rates
from autotune.model.problem import Problem
from autotune.model.trial import Winner
from autotune.networks.operation import Operation, Step


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """Times of all calls of an operation, nanoseconds; NaN where they cannot be estimated."""

    operation: Operation
    now_ns: float
    """With the default."""
    tuned_ns: float
    possible_ns: float
    """At the device's limit."""
    is_measured: bool


class Prospects:
    """What is known of a device: the winners measured on it, and its rates."""

    def __init__(self, winners: Sequence[Winner], rates: Rates, limits: DeviceLimits) -> None:
        self._winners: Mapping[Problem, Winner] = {one.problem: one for one in winners}
        self._rates, self._limits = rates, limits

    def of_step(self, step: Step) -> list[Prospect]:
        return [self._of(one) for one in step.operations]

    def _of(self, operation: Operation) -> Prospect:
        problem, calls = operation.problem, operation.calls
        if problem is None:
            memory = max(self._rates.buffer, self._rates.image)
            least = operation.bytes_moved / memory if memory else nan
            return Prospect(
                operation=operation, now_ns=least, tuned_ns=least, possible_ns=least, is_measured=False
            )  # fmt: skip
        least, winner = self._least_ns(problem), self._winners.get(problem.as_tuned)
        if winner:
            now, tuned = winner.default_ns, winner.time_ns
        else:
            now, tuned = (least / share for share in self._shares(problem))
        return Prospect(
            operation=operation,
            now_ns=calls * now,
            tuned_ns=calls * min(now, tuned),
            possible_ns=calls * (least if isnan(now) else min(least, now, tuned)),
            is_measured=winner is not None,
        )

    def _least_ns(self, problem: Problem) -> float:
        bounds = self._rates.bounds(problem, self._limits)
        return bounds[0].time_ns if bounds else nan

    def _limit_of(self, problem: Problem) -> str:
        bounds = self._rates.bounds(problem, self._limits)
        return bounds[0].name if bounds else ""

    def _shares(self, problem: Problem) -> tuple[float, float]:
        """Return the median share of their limit that defaults and winners like a problem reach; NaN without any."""
        alike = [one for one in self._winners.values() if one.problem.is_comparable(problem)]
        alike = alike or [one for one in self._winners.values() if one.problem.family == problem.family]
        if not alike:
            return nan, nan
        alike = [one for one in alike if self._limit_of(one.problem) == self._limit_of(problem)] or alike
        least = [self._least_ns(one.problem) for one in alike]
        default = median(min(1.0, ns / one.default_ns) for ns, one in zip(least, alike, strict=True))
        tuned = median(min(1.0, ns / one.time_ns) for ns, one in zip(least, alike, strict=True))
        return default, max(default, tuned)

    def of_formats(self, step: Step) -> dict[str, float]:
        """Return the time of a step, tuned, if all its quantised weights had one format, by the name of each format.

        Different kernels multiply with one token and with many. So a format is left out unless products with it were
        measured for the numbers of tokens that the step has.
        """
        quantised = [one for one in step.operations if one.problem is not None and one.family == "qgemm"]
        others = sum(one.tuned_ns for one in map(self._of, step.operations) if one.operation not in quantised)
        found: dict[str, float] = {}
        asked = [(one.calls, one.problem) for one in quantised if isinstance(one.problem, QGemmProblem)]
        for name, weights in FORMATS.items():
            known = {one.n == 1 for one in self._winners if isinstance(one, QGemmProblem) and one.weights == name}
            is_like = {problem.n == 1 for _, problem in asked} <= known
            if is_like and not any(problem.k % weights.block for _, problem in asked):
                times = [calls * self._tuned_ns(replace(problem, weights=name)) for calls, problem in asked]
                found[name] = others + sum(times)
        return {name: ns for name, ns in found.items() if asked and not isnan(ns)}

    def _tuned_ns(self, problem: Problem) -> float:
        winner = self._winners.get(problem)
        return winner.time_ns if winner else self._least_ns(problem) / self._shares(problem)[1]
