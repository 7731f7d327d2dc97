"""When a search ends: its budget and its clock, and what is left to gain."""

import math
import time
from collections import deque
from dataclasses import dataclass

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
