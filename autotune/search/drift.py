"""How much slower a device is than at its first trial, and what its trials would have taken then.

Runs of the sentinel, a configuration that was timed before, show it. The same sequence of trials gives the same
corrections, so the stored trials of a search are corrected the same way when they are read again.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model.configuration import Configuration
from autotune.model.trial import Trial, TrialState

SENTINEL = "sentinel"
"""Purpose of the sentinel's runs in the ledger."""
NOISE = 0.05
"""Changes up to this share are ignored."""


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A trial measured while the device changed its speed, with corrected times."""

    trial: Trial
    """The trial with times interpolated between the runs of the sentinel before and after."""
    fastest_ns: float
    """Time of the trial if corrected by the larger of the two slowdowns."""


class Drift:
    """Receives every trial in order, those of the search and those of the sentinel, and corrects their times."""

    def __init__(self, *, is_shared: bool = False) -> None:
        """`is_shared` if other programs slow the device down for moments, as they do a CPU."""
        self._is_shared = is_shared
        self.slowdown = 1.0
        """Time of a call now as a multiple of that at the device's first trial."""
        self.sentinel: Configuration | None = None
        """The configuration whose next run shows a change."""
        self._references: dict[Configuration, float] = {}
        """Paces (fastest samples, nanoseconds) at a slowdown of 1, each from a run not selected for being fast."""
        self._is_settled = False
        """Whether the first reference, which nothing else confirmed, has been checked."""
        self._since: list[Trial] = []
        """Complete trials since the last run of the sentinel, as measured."""
        self._suspected: float | None = None
        self._fastest_ns = math.inf
        """Shortest time of the search, as measured."""

    @property
    def is_suspected(self) -> bool:
        """Whether the sentinel saw a change that another run has to confirm."""
        return self._suspected is not None

    def ratio(self, run: Trial) -> float | None:
        """Return the time of a run as a multiple of that at the device's first trial; None for a new sentinel."""
        reference = self._references.get(run.configuration)
        return None if reference is None else _pace(run) / reference

    def corrected(self, trial: Trial) -> Trial:
        """Return a trial of the search as it would have been at the start, as far as is known now."""
        if trial.state is not TrialState.COMPLETE:
            return trial
        if self.sentinel is None:
            self._anchor(trial)
        self._fastest_ns = min(self._fastest_ns, trial.time_ns)
        self._since.append(trial)
        return self.scaled(trial)

    def scaled(self, trial: Trial) -> Trial:
        """Return any trial as it would have been at the start."""
        return self._divided(trial, self.slowdown)

    def _divided(self, trial: Trial, slowdown: float) -> Trial:
        """Divide the times of a trial by the slowdown, on a shared device not below the fastest time measured.

        Otherwise a trial that ran in a quiet moment, between runs of the sentinel in busy ones, would become the best
        by its correction.
        """
        if self._is_shared and slowdown > 1.0 and trial.measurement is not None:
            slowdown = min(slowdown, max(1.0, trial.time_ns / self._fastest_ns))
        return _divided(trial, slowdown)

    def observe(self, run: Trial) -> list[Revision]:
        """Take in a complete run of the sentinel; return the trials since the run before as it corrects them."""
        if run.configuration not in self._references:
            self._anchor(run)
            return []
        self.sentinel = run.configuration
        if not self._is_settled:
            self._is_settled = True
            self._references[run.configuration] = min(self._references[run.configuration], _pace(run))
        slowdown = self._judged(run)
        if slowdown is None:
            return []
        trials, before, self.slowdown = self._since, self.slowdown, slowdown
        self._since = []
        return self._revisions(trials, before)

    def _revisions(self, trials: Sequence[Trial], before: float) -> list[Revision]:
        """Correct the trials between two runs of the sentinel, in order, by slowdowns between those of the runs."""
        revised = []
        for number, trial in enumerate(trials, start=1):
            slowdown = before + (self.slowdown - before) * number / (len(trials) + 1)
            fastest = self._divided(trial, max(before, self.slowdown))
            revised.append(Revision(trial=self._divided(trial, slowdown), fastest_ns=fastest.time_ns))
        return revised

    def _anchor(self, run: Trial) -> None:
        self.sentinel = run.configuration
        self._references[run.configuration] = _pace(run) / self.slowdown

    def _judged(self, run: Trial) -> float | None:
        """Return the new slowdown; None if it is unchanged, or if a change still has to be confirmed."""
        noise = max(NOISE, _spread(run))
        seen = self.ratio(run)
        assert seen is not None
        if self._suspected is not None:
            seen = min(seen, self._suspected, key=lambda s: _change(s, self.slowdown))
        if _change(seen, self.slowdown) <= noise:
            self._suspected = None
            self._since = []
            return None
        if self._suspected is None:
            self._suspected = seen
            return None
        self._suspected = None
        return 1.0 if _change(seen, 1.0) <= noise else seen


def _divided(trial: Trial, slowdown: float) -> Trial:
    measurement = trial.measurement
    if measurement is None or slowdown == 1.0:
        return trial
    faster = dataclasses.replace(
        measurement,
        time_ns=measurement.time_ns / slowdown,
        samples_ns=tuple(ns / slowdown for ns in measurement.samples_ns),
        prepare_ns=measurement.prepare_ns / slowdown,
    )
    return dataclasses.replace(trial, measurement=faster)


def _pace(run: Trial) -> float:
    """Return the fastest sample: other work on the host slows some samples, a slower device slows all."""
    assert run.measurement is not None
    return min(run.measurement.samples_ns)


def _change(a: float, b: float) -> float:
    """Return the relative difference: 0.1 when one is 10% more than the other."""
    return max(a / b, b / a) - 1


def _spread(run: Trial) -> float:
    """Return twice the interquartile range of the samples, as a share of their median; 0 for too few."""
    samples = run.measurement.samples_ns if run.measurement else ()
    if len(samples) < 3:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return 2 * (high - low) / statistics.median(samples)
