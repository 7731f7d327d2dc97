"""Input of a search: its budget, its limits and its clock. What it reports is in `model/events.py`."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one run; without any of them it ends when every configuration is measured."""

    trials: int | None = None
    """New trials of each problem."""
    seconds: float | None = None
    """Time for all problems together."""
    until_gain: float | None = None
    """The search of a problem ends when less than this share of its time is expected to be left to gain."""


class Clock:
    """The monotonic clock of a search, in seconds. Tests inject one that does not wait."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Conditions under which the search of one problem ends."""

    trials: int | None
    seconds: float
    """Time for this problem alone; infinite where problems share a budget."""
    should_stop: Callable[[], bool]
    left_s: Callable[[], float] = lambda: math.inf
    """Returns the seconds left of the budget of all problems."""
    retries_quarantined: bool = False
    """Whether the search begins with the quarantined configurations."""
    until_gain: float = 0.0
    """Share of the best time; the search ends when less is expected to be left to gain."""
    clock: Clock = field(default_factory=Clock)
