"""What is known of each configuration at each size, and an estimate where it was not measured.

A loss is the natural logarithm of a time over the tuned one of that size: 0 is as fast as tuned, 0.05 about 5% slower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from autotune.family import Algorithm, Configuration, Device, KernelFamily, Problem, find_family
from autotune.lookup.answer import table_order
from autotune.lookup.legality import Legality
from autotune.store import StoredTrial
from autotune.trial import TrialState, Winner

NOMINATED = 8
"""Configurations that each size proposes: its fastest."""
WORST_LOSS = log(8.0)
"""For what is slower still, and for what is not valid."""

_SAME_SCALE = 1.5
"""Distance between sizes, in powers of two, over which what is known of a configuration fades."""
_LIKE_SCALE = 0.7
_LIKE_WEIGHT = 0.5
"""Of another configuration at the same size, however alike, against the same one at another."""
_PRIOR_LOSS = 0.7
_PRIOR_WEIGHT = 0.15
"""What is expected of a configuration that nothing is known of: half the speed."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One kind of problem on one device. Rows are candidates, columns are problems."""

    device: Device
    family: KernelFamily
    problems: tuple[Problem, ...]
    tuned_ns: NDArray[np.float64]
    default_losses: NDArray[np.float64]
    candidates: tuple[Configuration, ...]
    winners: NDArray[np.intp]
    """For each problem the number of its winner."""
    nominations: NDArray[np.bool_]
    is_valid: NDArray[np.bool_]
    losses: NDArray[np.float64]
    """NaN where nothing was measured."""
    alike: tuple[NDArray[np.float64], NDArray[np.float64]]
    """From similar configurations at the same size: sums of weighted losses, and of weights."""

    @property
    def places(self) -> NDArray[np.float64]:
        """Logarithms to base 2 of the sizes, a row for each problem."""
        return np.log2(np.array([problem.size_vector for problem in self.problems], dtype=np.float64))

    def completed(self, columns: NDArray[np.intp]) -> NDArray[np.float64]:
        """Losses of all candidates at some of the problems, from what was measured at these alone."""
        measured = self.losses[:, columns]
        is_known = ~np.isnan(measured)
        places = self.places[columns]
        nearness = np.exp(-np.linalg.norm(places[:, None] - places[None, :], axis=2) / _SAME_SCALE)
        like_sum, like_weight = (part[:, columns] for part in self.alike)
        total = np.where(is_known, measured, 0.0) @ nearness + _LIKE_WEIGHT * like_sum + _PRIOR_WEIGHT * _PRIOR_LOSS
        weight = is_known @ nearness + _LIKE_WEIGHT * like_weight + _PRIOR_WEIGHT
        filled = np.where(is_known, measured, total / weight)
        return np.where(self.is_valid[:, columns], filled, WORST_LOSS)


def observe(device: Device, family: str, trials: Iterable[StoredTrial], winners: Iterable[Winner]) -> list[Observed]:
    """What is known of each kind of problem that has winners."""
    known = find_family(family)
    times = _times(trials)
    kinds: dict[object, list[Winner]] = {}
    for winner in winners:
        if not _misfits(known, winner.configuration):
            kinds.setdefault(winner.problem.kind, []).append(winner)
    return [
        _observe_kind(device, known, sorted(found, key=lambda winner: table_order(winner.problem)), times)
        for found in kinds.values()
    ]


def _times(trials: Iterable[StoredTrial]) -> dict[Problem, dict[Configuration, float]]:
    """The newest time of every configuration that never failed on a problem."""
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
        default_losses=np.array([max(0.0, log(winner.default_ns / winner.time_ns)) for winner in winners]),
        candidates=candidates,
        winners=np.array([numbers[winner.configuration] for winner in winners], dtype=np.intp),
        nominations=nominations,
        is_valid=_validity(device, family, candidates, problems),
        losses=losses,
        alike=_alike(family, candidates, measured),
    )


def _measured_losses(
    family: KernelFamily, winner: Winner, times: dict[Configuration, float]
) -> dict[Configuration, float]:
    losses = {
        configuration: min(WORST_LOSS, max(0.0, log(time / winner.time_ns)))
        for configuration, time in times.items()
        if not _misfits(family, configuration)
    }
    # What lay below the tuned time in a single trial was luck: the finals decided.
    return {**losses, winner.configuration: -1e-9}


def _misfits(family: KernelFamily, configuration: Configuration) -> bool:
    """Whether it is of another version of the family."""
    return configuration.algorithm not in {a.name for a in family.algorithms} or bool(family.misfits(configuration))


def _validity(
    device: Device, family: KernelFamily, candidates: Sequence[Configuration], problems: Sequence[Problem]
) -> NDArray[np.bool_]:
    legality = Legality(family, device.limits)
    values = [problem.constraint_values() for problem in problems]
    rows = [[not legality.violation(configuration, of) for of in values] for configuration in candidates]
    return np.array(rows, dtype=bool).reshape(len(candidates), len(problems))


def _alike(
    family: KernelFamily, candidates: Sequence[Configuration], measured: Sequence[dict[Configuration, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    total = np.zeros((len(candidates), len(measured)))
    weight = np.zeros_like(total)
    for algorithm in family.algorithms:
        rows = [number for number, c in enumerate(candidates) if c.algorithm == algorithm.name]
        codes = _codes(algorithm, [candidates[row] for row in rows])
        for column, found in enumerate(measured):
            others = {c: loss for c, loss in found.items() if c.algorithm == algorithm.name}
            theirs = _codes(algorithm, list(others))
            steps = np.minimum(1.0, 0.5 * np.abs(codes[:, None] - theirs[None, :])).sum(axis=2)
            likeness = np.exp(-steps / _LIKE_SCALE)
            total[rows, column] = likeness @ np.array(list(others.values()), dtype=np.float64)
            weight[rows, column] = likeness.sum(axis=1)
    return total, weight


def _codes(algorithm: Algorithm, configurations: Sequence[Configuration]) -> NDArray[np.float64]:
    """The places of values among those of their parameters, a row for each configuration."""
    places = {p.name: {value: place for place, value in enumerate(p.values)} for p in algorithm.parameters}
    codes = [[places[name][value] for name, value in configuration.values] for configuration in configurations]
    return np.array(codes, dtype=np.float64).reshape(len(configurations), len(places))
