"""When a search ends: its budget and its clock, what is left to gain, and how long each of its trials may take."""

import math
import statistics
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from autotune.model.trial import BUILD_LIMIT_S, Job, Trial

FEWEST_TRIALS = 15
"""Before this many trials, the model's estimate for the next one is meaningless."""
EVERY_TRIALS = 5
"""Trials between two estimates."""
LATEST = 3
HORIZON_TRIALS = 25
FACTOR = 4.0
CAUTIOUS_FACTOR = 10.0
NOTHING = 0.001
"""Share of the time; if less is left, more trials of a time budget would be wasted."""
LEAST_TRIALS = 3
"""Complete trials needed before there is a usual time."""
RECENT_TRIALS = 20
USUAL_PERCENT = 90
LIMIT_FACTOR = 5.0
LEAST_BUILD_S = 20.0
"""Some configurations unroll far more than the usual ones."""
LEAST_RUN_S = 20.0
"""Verifying tiny kernels takes time on the host, and PoCL spends seconds compiling a large tile at its launch."""
FIRST_SHARE = 1 / 6
"""Share of the time left that a trial may build, and run as well, before any has completed."""
LONGER_SHARE = 0.8
"""Share of the time left in place of FIRST_SHARE, when nothing else has worked."""
SLOW_SHARE = 0.4
"""Upper limit of FIRST_SHARE on a device where the programs of its checkup take long."""
RUN_SHARE, BUILD_SHARE = 1 / 10, 1 / 5
"""Shares of the time left once trials have completed, if longer than a few times the usual. Plain kernels, which may be
all that has run so far, build in a tenth of the time of wide ones. Where builds run ahead, one that hangs leaves the
device free."""
LEAST_S = 5.0
"""Shortest limit: other programs may delay a sound kernel on a busy machine for seconds."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one run; without any of them it ends when every configuration is measured."""

    trials: int | None = None
    """New trials of each problem."""
    seconds: float | None = None
    """Time for all problems together."""
    until_gain: float | None = None
    """The search of a problem ends when less than this share of its time is expected to be left to gain."""

    @property
    def least_gain(self) -> float:
        """The share of the best time below which a search ends; by default a number of trials is used up."""
        if self.until_gain is not None:
            return self.until_gain
        return NOTHING if self.seconds is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """How an application uses the device: it works for a while, then pauses."""

    burst_ns: float
    pause_ns: float


class Clock:
    """The monotonic clock of a search, in seconds. Tests inject one that does not wait."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class GainLeft:
    """What is left to gain in one search, from its latest estimates.

    The model's expected improvement of one trial (Jones, Schonlau, Welch 1998) is a small number that varies greatly.
    Four times the mean of the last three estimates is what the next 25 trials save, on average over five recorded
    spaces; for a single search it gives the order of magnitude only. Whether a search ends depends on ten times the
    largest of the three, since otherwise a chance low of an uncertain estimate would end it.
    `scripts/bench_search --gain` compares both with what replayed searches went on to find.
    """

    def __init__(self) -> None:
        self._estimates: deque[float] = deque(maxlen=LATEST)
        self._trials = 0
        self.share: float | None = None
        """Share of the best time that the next 25 trials are expected to save; None before there is an estimate."""

    def is_due(self, trials: int) -> bool:
        """Return whether an estimate is due after this many trials of the search."""
        return not self._estimates or trials >= self._trials + EVERY_TRIALS

    def observe(self, next_gain: float, trials: int) -> float:
        """Take in what the next trial is expected to save, as a share of the best time; return `share`."""
        self._estimates.append(next_gain)
        self._trials = trials
        self.share = _saved(FACTOR * sum(self._estimates) / len(self._estimates))
        return self.share

    @property
    def at_most(self) -> float:
        """Share of the best time that the gain left rarely exceeds; 1 before there are enough estimates."""
        return _saved(CAUTIOUS_FACTOR * max(self._estimates)) if len(self._estimates) == LATEST else 1.0

    def is_below(self, threshold: float) -> bool:
        """Return whether less than `threshold` is left, by the cautious estimate."""
        return self.at_most < threshold


def _saved(log_gain: float) -> float:
    return -math.expm1(-log_gain)


class TimeLimits:
    """Time limits for building and running a trial, from what the complete trials of the search took.

    A trial may take a few times the usual build time, and a few times the usual run time, that of the best
    configuration, or that of the latest trial that drew its inputs, whichever is longest. Before these are known, and
    beyond them, it may take a share of the budget's remaining time, so that no single hang ends a search; the share is
    larger on a device whose checkup took long, such as an emulated processor. The usual time is a high quantile of
    recent trials, not their median: other programs on the machine, and drivers that finish compiling at the first
    launch as PoCL does, make some sound trials many times slower than most.
    """

    def __init__(self, program_s: float = 0.0, most_build_s: float = BUILD_LIMIT_S) -> None:
        """`program_s` is how long the device takes to build and run plain kernels, as far as that is known.

        No build may take longer than `most_build_s`.
        """
        self._program_s, self._most_build_s = program_s, most_build_s
        self.first_share = FIRST_SHARE
        self.are_lifted = False
        """Whether only the jobs' own limits apply."""
        self._build_s: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._run_s: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._settled_run_s: deque[float] = deque(maxlen=RECENT_TRIALS)
        """Without the first, and those that were the first of their process."""
        self._seed: int | None = None
        self.fresh_inputs_s = 0.0
        """Time the host took to draw the inputs of the latest trial that had its own, and to judge its results."""
        self._fresh_run_s = 0.0
        """Run time of that trial. So few trials draw inputs that the usual run time does not show it, and any trial has
        to draw them again in a new process."""
        self._best_ns = float("inf")
        self._best_run_s = 0.0

    def learn(self, trial: Trial, run_s: float) -> None:
        """Take in a trial; `run_s` is the duration of inputs, reference, verifying and sampling together.

        In a new process it includes opening the device, and drawing inputs that others shared.
        """
        if trial.measurement is None:
            return
        if self._run_s and not trial.measurement.is_first:
            self._settled_run_s.append(run_s)
        self._build_s.append(trial.measurement.build_ns / 1e9)
        self._run_s.append(run_s)
        if trial.seed != self._seed:
            self._seed = trial.seed
            self.fresh_inputs_s = trial.measurement.inputs_ns / 1e9
            self._fresh_run_s = run_s
        if trial.time_ns < self._best_ns:
            self._best_ns = trial.time_ns
            self._best_run_s = run_s

    def build_s(self, left_s: float = math.inf) -> float:
        """Return the seconds a job may build; `left_s` is what is left of the budget."""
        usual_s = _usual(self._build_s) if self._is_enough else 0.0
        longest_s = max(self._build_s, default=0.0)
        return self._limit_s(self._most_build_s, longest_s, usual_s, LEAST_BUILD_S, BUILD_SHARE, left_s)

    def run_s(self, job: Job, left_s: float = math.inf) -> float:
        """Return the seconds the job may run, at most its own limit.

        A job that verifies often or is cut off gets all of its own limit.
        """
        if job.verifications or job.is_cut_off:
            return job.run_limit_s
        usual_s = max(self._best_run_s, self._fresh_run_s, _usual(self._run_s)) if self._is_enough else 0.0
        longest_s = max(self._run_s, default=0.0)
        limit_s = self._limit_s(job.run_limit_s, longest_s, usual_s, LEAST_RUN_S, RUN_SHARE, left_s)
        return limit_s + job.rhythm_s

    @property
    def _is_enough(self) -> bool:
        return len(self._run_s) >= LEAST_TRIALS

    def _limit_s(
        self, own_s: float, longest_s: float, usual_s: float, least_s: float, share: float, left_s: float
    ) -> float:
        left_s = max(0.0, left_s)
        if self.are_lifted:
            return own_s
        if not self._is_enough:
            share = share if self._run_s else self.first_share
            slow_s = min(LIMIT_FACTOR * self._program_s, SLOW_SHARE * left_s)
            return min(own_s, max(LEAST_S, share * left_s, slow_s, LIMIT_FACTOR * longest_s))
        # A hang near the end of the budget must not take five times as long as a slow device's usual trial.
        seen_s = min(LIMIT_FACTOR * usual_s, max(left_s, 2 * usual_s))
        return min(own_s, max(LEAST_S, seen_s, min(least_s, share * left_s)))

    @property
    def typical_s(self) -> float:
        """Typical duration of recent trials with building; 0 before the second."""
        return self.typical_run_s + statistics.median(list(self._build_s)[1:]) if len(self._build_s) > 1 else 0.0

    @property
    def typical_run_s(self) -> float:
        """Typical duration of recent trials without building; 0 before the second.

        Those in new processes count only where there are no others, and the oldest of them never.
        """
        settled = self._settled_run_s or list(self._run_s)[1:]
        return statistics.median(settled) if settled else 0.0


def _usual(seconds: Collection[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[USUAL_PERCENT - 1]
