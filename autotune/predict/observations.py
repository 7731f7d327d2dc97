"""Collects the losses of each configuration at each size, and estimates those that were not measured.

A loss is the natural logarithm of a time divided by the tuned time of that size: 0 is as fast as tuned, 0.05 about 5%
slower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from autotune.device.profile import find_profile
from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.lookup.answer import table_order
from autotune.lookup.legality import Legality
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import TrialState, Winner
from autotune.predict.costs import Prices, Work, amounts, fit_prices
from autotune.search.task import Task
from autotune.space.family import KernelFamily
from autotune.store import StoredTrial

NOMINATED = 4
"""Number of its fastest configurations that each size nominates. Slower ones do worse than their estimates promise."""
WORST_LOSS = log(8.0)
"""Upper limit of a loss, also used for configurations that are not valid."""

_SAME_SCALE = 1.5
"""Distance between sizes, in powers of two, over which the correction for an estimate's error fades."""
_TRUST = 1.0
"""Weight of an estimate, against that of its error for the same configuration at practically the same size."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of one algorithm.

    `amounts` has shape (trials, effects); `times` in nanoseconds and `columns`, the numbers of the problems, have shape
    (trials,).
    """

    amounts: NDArray[np.float64]
    times: NDArray[np.float64]
    columns: NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The measurements of one kind of problem on one device. Rows are candidates, columns are problems."""

    device: Device
    family: KernelFamily
    problems: tuple[Problem, ...]
    tuned_ns: NDArray[np.float64]
    default_losses: NDArray[np.float64]
    candidates: tuple[Configuration, ...]
    winners: NDArray[np.intp]
    """For each problem, the row of its winner."""
    nominations: NDArray[np.bool_]
    is_valid: NDArray[np.bool_]
    losses: NDArray[np.float64]
    """NaN where nothing was measured."""
    trials: dict[str, Trials]
    """Keyed by algorithm."""

    @property
    def places(self) -> NDArray[np.float64]:
        """Logarithms to base 2 of the sizes: shape (problems, axes)."""
        return np.log2(np.array([problem.size_vector for problem in self.problems], dtype=np.float64))

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """The work of each candidate."""
        axes = self.family.problem_type.size_axes
        machine = find_profile(self.device).machine
        return tuple(Work(candidate, axes, self.device.limits, machine) for candidate in self.candidates)

    @cached_property
    def elsewhere(self) -> tuple[Problem, ...]:
        """For each problem two unmeasured ones: a larger one of whole vectors and a smaller one with odd sizes.

        All the larger ones come first.
        """
        larger = [[-(-size * 5 // 16) * 4 if size > 1 else 1 for size in p.size_vector] for p in self.problems]
        smaller = [[size * 3 // 4 | 1 for size in p.size_vector] for p in self.problems]
        resized = zip(self.problems * 2, larger + smaller, strict=True)
        return tuple(_resized(problem, sizes) for problem, sizes in resized)

    @cached_property
    def _amounts(self) -> NDArray[np.float64]:
        """Amounts of effects: shape (candidates, problems followed by those of `elsewhere`, effects)."""
        units = self.device.limits.compute_units
        return np.array([amounts(work, self.problems + self.elsewhere, units) for work in self.works])

    @cached_property
    def _is_valid_elsewhere(self) -> NDArray[np.bool_]:
        return _validity(self.device, self.family, self.candidates, self.elsewhere)

    def prices(self, columns: NDArray[np.intp]) -> Prices:
        """Return the prices of effects, by algorithm, fitted to the trials at some of the problems only."""
        found = {}
        for name, trials in self.trials.items():
            is_in = np.isin(trials.columns, columns)
            if is_in.any():
                found[name] = fit_prices(trials.amounts[is_in], trials.times[is_in])
        return found

    def completed(self, columns: NDArray[np.intp], prices: Prices) -> NDArray[np.float64]:
        """Return the losses of all candidates at some of the problems, from the measurements there and from prices.

        The result has shape (candidates, columns).
        """
        measured = self.losses[:, columns]
        is_known = ~np.isnan(measured)
        estimated = self._estimated(columns, prices)
        missed = np.where(is_known, measured - estimated, 0.0)
        places = self.places[columns]
        nearness = np.exp(-np.linalg.norm(places[:, None] - places[None, :], axis=2) / _SAME_SCALE)
        filled = np.where(is_known, measured, estimated + missed @ nearness / (is_known @ nearness + _TRUST))
        return np.where(self.is_valid[:, columns], np.minimum(filled, WORST_LOSS), WORST_LOSS)

    def losses_elsewhere(
        self, rows: NDArray[np.intp], columns: NDArray[np.intp], prices: Prices
    ) -> NDArray[np.float64]:
        """Return what some candidates lose to the best of them, by prices, at the problems `elsewhere` of some columns.

        The result has shape (rows, 2 * columns); it is 0 where no candidate is valid and estimated.
        """
        places = np.concatenate([columns, len(self.problems) + columns])
        missed = self._missed(columns, prices)
        times = np.array([self._times(row, len(self.problems) + places, prices) for row in rows])
        logs = np.log(times) + np.array([np.tile(missed[self.candidates[row].algorithm], 2) for row in rows])
        is_valid = self._is_valid_elsewhere[np.ix_(rows, places)] & ~np.isnan(logs)
        logs = np.where(is_valid, logs, np.inf)
        served = is_valid.any(axis=0)
        losses = np.zeros_like(logs)
        losses[:, served] = np.minimum(logs[:, served] - logs[:, served].min(axis=0), WORST_LOSS)
        return losses

    def _times(self, row: int, places: NDArray[np.intp], prices: Prices) -> NDArray[np.float64]:
        """Return a candidate's estimated times in nanoseconds; NaN if its algorithm has no prices."""
        known = prices.get(self.candidates[row].algorithm)
        if known is None:
            return np.full(len(places), np.nan)
        return np.asarray(np.maximum(self._amounts[row, places] @ known, 1.0))

    def _missed(self, columns: NDArray[np.intp], prices: Prices) -> dict[str, NDArray[np.float64]]:
        """Return by algorithm the median error of prices, as a logarithm, at each problem; NaN if it was not measured.

        Prices that fit where an algorithm was tried say nothing about sizes at which no search tried it.
        """
        found = {}
        for name, trials in self.trials.items():
            found[name] = np.full(len(columns), np.nan)
            if name in prices:
                apart = np.log(trials.times / np.maximum(trials.amounts @ prices[name], 1.0))
                for place in np.flatnonzero(np.isin(columns, trials.columns)):
                    found[name][place] = np.median(apart[trials.columns == columns[place]])
        return found

    def _estimated(self, columns: NDArray[np.intp], prices: Prices) -> NDArray[np.float64]:
        """Return losses estimated by prices; WORST_LOSS where the algorithm was not measured."""
        missed = self._missed(columns, prices)
        times = np.array([self._times(row, columns, prices) for row in range(len(self.candidates))])
        apart = np.array([missed[candidate.algorithm] for candidate in self.candidates])
        losses = np.log(times / self.tuned_ns[columns]) + apart
        return np.where(np.isnan(losses), WORST_LOSS, losses)


def observe(device: Device, family: str, trials: Iterable[StoredTrial], winners: Iterable[Winner]) -> list[Observed]:
    """Return the measurements of each kind of problem that has winners."""
    known = find_family(family)
    times = _times(trials)
    kinds: dict[object, list[Winner]] = {}
    for winner in winners:
        if not known.misfits(winner.configuration):
            kinds.setdefault(winner.problem.kind, []).append(winner)
    return [
        _observe_kind(device, known, sorted(found, key=lambda winner: table_order(winner.problem)), times)
        for found in kinds.values()
    ]


def _times(trials: Iterable[StoredTrial]) -> dict[Problem, dict[Configuration, float]]:
    """Return for each problem the newest time of every configuration that never failed on it."""
    times: dict[Problem, dict[Configuration, float]] = {}
    failed: set[tuple[Problem, Configuration]] = set()
    for stored in trials:
        trial = stored.trial
        if trial.state is TrialState.COMPLETE and trial.time_ns > 0:
            times.setdefault(stored.problem, {})[trial.configuration] = trial.time_ns
        else:
            failed.add((stored.problem, trial.configuration))
    return {problem: {c: t for c, t in found.items() if (problem, c) not in failed} for problem, found in times.items()}


def _observe_kind(
    device: Device,
    family: KernelFamily,
    winners: Sequence[Winner],
    times: dict[Problem, dict[Configuration, float]],
) -> Observed:
    tuned = np.array([winner.time_ns for winner in winners])
    measured = [_measured_losses(family, winner, times.get(winner.problem, {})) for winner in winners]
    best = [sorted(found, key=found.__getitem__)[:NOMINATED] for found in measured]
    candidates = tuple(dict.fromkeys(c for found in best for c in found))
    numbers = {configuration: number for number, configuration in enumerate(candidates)}
    nominations = np.zeros((len(candidates), len(winners)), dtype=bool)
    losses = np.full(nominations.shape, np.nan)
    for column, found in enumerate(measured):
        nominations[[numbers[c] for c in best[column]], column] = True
        for configuration, loss in found.items():
            if configuration in numbers:
                losses[numbers[configuration], column] = loss
    problems = tuple(winner.problem for winner in winners)
    return Observed(
        device=device,
        family=family,
        problems=problems,
        tuned_ns=tuned,
        default_losses=np.array([_default_loss(device, w, times.get(w.problem, {})) for w in winners]),
        candidates=candidates,
        winners=np.array([numbers[winner.configuration] for winner in winners], dtype=np.intp),
        nominations=nominations,
        is_valid=_validity(device, family, candidates, problems),
        losses=losses,
        # A winner's time is that of its finals; an imported winner has no other.
        trials=_trials(
            device, family, {w.problem: {**times.get(w.problem, {}), w.configuration: w.time_ns} for w in winners}
        ),
    )


def _default_loss(device: Device, winner: Winner, times: dict[Configuration, float]) -> float:
    """Return the loss of today's default if that was measured, else of the default when the winner was found."""
    default = Task(device, winner.problem).default
    if default == winner.configuration:
        return 0.0
    return max(0.0, log(times.get(default, winner.default_ns) / winner.time_ns))


def _measured_losses(
    family: KernelFamily, winner: Winner, times: dict[Configuration, float]
) -> dict[Configuration, float]:
    losses = {
        configuration: min(WORST_LOSS, max(0.0, log(time / winner.time_ns)))
        for configuration, time in times.items()
        if not family.misfits(configuration)
    }
    # A time below the tuned one in a single trial was luck: the finals decided.
    return {**losses, winner.configuration: -1e-9}


def _resized(problem: Problem, sizes: Sequence[int]) -> Problem:
    try:
        return problem.resized(sizes)
    except ProblemError:
        return problem  # it is already as large as possible


def _validity(
    device: Device, family: KernelFamily, candidates: Sequence[Configuration], problems: Sequence[Problem]
) -> NDArray[np.bool_]:
    legality = Legality(family, device.limits)
    values = [problem.constraint_values() for problem in problems]
    rows = [[not legality.violation(configuration, of) for of in values] for configuration in candidates]
    return np.array(rows, dtype=bool).reshape(len(candidates), len(problems))


def _trials(
    device: Device, family: KernelFamily, times: dict[Problem, dict[Configuration, float]]
) -> dict[str, Trials]:
    """Return all trials by algorithm: without slow ones, what is only fast at small sizes would seem fast at large."""
    axes, limits, machine = family.problem_type.size_axes, device.limits, find_profile(device).machine
    rows: dict[str, list[tuple[NDArray[np.float64], float, int]]] = {}
    for column, (problem, found) in enumerate(times.items()):
        for configuration, time in found.items():
            if not family.misfits(configuration):
                row = amounts(Work(configuration, axes, limits, machine), [problem], limits.compute_units)[0]
                rows.setdefault(configuration.algorithm, []).append((row, time, column))
    return {
        name: Trials(
            amounts=np.array([row for row, _, _ in found]),
            times=np.array([time for _, time, _ in found]),
            columns=np.array([column for _, _, column in found], dtype=np.intp),
        )
        for name, found in rows.items()
    }
