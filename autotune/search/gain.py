"""What is left to gain: from what the next trial is expected to save, to what a good number of them will.

The model's expected improvement of one trial is a small number that jumps about. The largest of the last three
estimates, ten times over, is near what the next 25 trials save: on five recorded spaces (`scripts/bench_search`) 1.5%
where it said 3.4%, 0.5% where it said 0.8%, and nothing in 103 cases where it said less than 0.2%.
"""

import math
from collections import deque

FEWEST_TRIALS = 15
"""Before so many, what the model expects of the next one says nothing."""
EVERY_TRIALS = 5
"""Trials between two estimates."""
LATEST = 3
HORIZON_TRIALS = 25
FACTOR = 10.0
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
        return -math.expm1(-FACTOR * max(self._estimates)) if self._estimates else None

    def is_below(self, threshold: float) -> bool:
        """Whether surely enough less than that is left; never before there are enough estimates."""
        return self.share is not None and len(self._estimates) == LATEST and self.share < threshold
