"""What is left to gain: from what the next trial is expected to save to what a good number of trials will save.

The model's expected improvement of one trial (Jones, Schonlau, Welch 1998) is a small number that varies greatly. Four
times the mean of the last three estimates is what the next 25 trials save, on average over five recorded spaces; for a
single search it gives the order of magnitude only. Whether a search ends depends on ten times the largest of the three,
since otherwise a chance low of an uncertain estimate would end it. `scripts/bench_search --gain` compares both with
what replayed searches went on to find.
"""

import math
from collections import deque

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


class GainLeft:
    """What is left to gain in one search, from its latest estimates."""

    def __init__(self) -> None:
        self._estimates: deque[float] = deque(maxlen=LATEST)
        self._trials = 0

    def is_due(self, trials: int) -> bool:
        """Return whether an estimate is due after this many trials of the search."""
        return not self._estimates or trials >= self._trials + EVERY_TRIALS

    def observe(self, next_gain: float, trials: int) -> None:
        """Take in an estimate: `next_gain` is the share of the best time that the next trial is expected to save."""
        self._estimates.append(next_gain)
        self._trials = trials

    @property
    def share(self) -> float | None:
        """Share of the best time that the next 25 trials are expected to save; None before there is an estimate."""
        return _saved(FACTOR * sum(self._estimates) / len(self._estimates)) if self._estimates else None

    @property
    def at_most(self) -> float:
        """Share of the best time that the gain left rarely exceeds; 1 before there are enough estimates."""
        return _saved(CAUTIOUS_FACTOR * max(self._estimates)) if len(self._estimates) == LATEST else 1.0

    def is_below(self, threshold: float) -> bool:
        """Return whether less than `threshold` is left, by the cautious estimate."""
        return self.at_most < threshold


def _saved(log_gain: float) -> float:
    return -math.expm1(-log_gain)
