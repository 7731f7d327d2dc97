"""What a search is given, what it tells while it goes on, and what it returns."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from autotune.model.trial import Request, Trial, TrialState, Winner


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one run; without any of them it ends when every configuration is measured."""

    trials: int | None = None
    """New ones, of each problem."""
    seconds: float | None = None
    """For all problems together."""
    until_gain: float | None = None
    """A problem's search ends where less than this share of its time is expected to be left to gain."""


class Clock:
    """The monotonic clock of a search, in seconds. Tests inject one that does not wait."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What ends the search of one problem."""

    trials: int | None
    seconds: float
    """Of this problem alone; infinite where problems share a budget."""
    should_stop: Callable[[], bool]
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds left of the budget of all problems."""
    retries_quarantined: bool = False
    """Whether to begin with what is in quarantine."""
    until_gain: float = 0.0
    """Share of the best time; the search ends where less is expected to be left to gain."""
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The commonest way in which trials of a search failed."""

    state: TrialState
    count: int
    message: str
    """Of the first of them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one request."""

    request: Request
    winner: Winner | None
    """None when nothing ran right, not even the default."""
    new_trials: int
    resumed_trials: int
    failures: dict[str, int]
    """Trials by state (value of TrialState), complete ones left out."""
    is_finished: bool
    """False when the search was stopped before its budget ended."""
    seconds: float = 0.0
    """What search and finals took."""
    gain_left: float | None = None
    """Share of the best time that 25 more trials were expected to save; None where no model was asked."""
    commonest_failure: Failure | None = None

    NEARLY_ALL: ClassVar[float] = 0.8

    @property
    def is_mostly_failed(self) -> bool:
        """Whether nearly all trials failed, so that the device or its driver is more to blame than the kernels."""
        harmless = (TrialState.TOO_SLOW.value, TrialState.INVALID.value)
        failed = sum(count for state, count in self.failures.items() if state not in harmless)
        return failed > 0 and failed >= self.NEARLY_ALL * self.new_trials


@dataclass(frozen=True, kw_only=True)
class Total:
    """Time of all calls of the problems measured so far, nanoseconds."""

    calls: int
    default_ns: float
    best_ns: float


class Listener(Protocol):
    """Told what happens, in the order in which it happens."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None: ...

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None: ...

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:
        """The device is that much slower than at its first trial; it is given a rest of so many seconds, or none."""

    def gain_estimated(self, request: Request, gain_left: float) -> None:
        """The share of the best time that more trials are expected to save."""

    def budget_judged(self, trials: float, least_s: float, seconds: float) -> None:
        """After the first trials of a run with a time budget of so many seconds: about how many trials fit into it,
        and how long a short search of every problem takes at least."""

    def share_started(self, request: Request, total: Total) -> None:
        """A search goes on that others had interrupted: there most of the time of all calls is to be saved."""

    def finals_started(self, request: Request, finalists: int) -> None: ...

    def problem_finished(self, outcome: Outcome) -> None: ...
