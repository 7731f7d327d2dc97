"""What is left to gain: from what the next trial is expected to save, to what a good number of them will.

The model's expected improvement of one trial is a small number that jumps about. The mean of the last three estimates,
four times over, is what the next 25 trials save, on average over five recorded spaces: of a single search it tells the
size, not the number. A search ends by their largest, ten times over, since it is the lucky moments of a doubtful
estimate that would end it. `scripts/bench_search --gain` compares both with what replayed searches went on to find.
"""

import math
from collections import deque

FEWEST_TRIALS = 15
"""Before so many, what the model expects of the next one says nothing."""
EVERY_TRIALS = 5
"""Trials between two estimates."""
LATEST = 3
HORIZON_TRIALS = 25
FACTOR = 4.0
CAUTIOUS_FACTOR = 10.0
NOTHING = 0.001
"""Share of the time; where less is left, more trials of a time budget would be wasted."""


class GainLeft:
    """Follows the estimates of one search."""

    def __init__(self) -> None:
        self._estimates: deque[float] = deque(maxlen=LATEST)
        self._trials = 0

    def is_due(self, trials: int) -> bool:
        """Whether it is time for an estimate, after so many trials of this search."""
        return not self._estimates or trials >= self._trials + EVERY_TRIALS

    def observe(self, next_gain: float, trials: int) -> None:
        """`next_gain` is the share of the best time that the next trial is expected to save."""
        self._estimates.append(next_gain)
        self._trials = trials

    @property
    def share(self) -> float | None:
        """Of the best time, what the next trials are expected to save; None before there is an estimate."""
        return _saved(FACTOR * sum(self._estimates) / len(self._estimates)) if self._estimates else None

    @property
    def at_most(self) -> float:
        """Of the best time, what is rarely exceeded by what is left; all of it before there are enough estimates."""
        return _saved(CAUTIOUS_FACTOR * max(self._estimates)) if len(self._estimates) == LATEST else 1.0

    def is_below(self, threshold: float) -> bool:
        """Whether less than that is left, by the cautious estimate."""
        return self.at_most < threshold


def _saved(log_gain: float) -> float:
    return -math.expm1(-log_gain)
