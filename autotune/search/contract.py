"""Input of a search, the events it reports while it runs, and its result."""

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


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The most frequent way in which trials of a search failed."""

    state: TrialState
    count: int
    message: str
    """Message of the first of these trials."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one request."""

    request: Request
    winner: Winner | None
    """None when nothing ran correctly, not even the default."""
    new_trials: int
    resumed_trials: int
    failures: dict[str, int]
    """Number of trials by state (value of TrialState), without the complete ones."""
    is_finished: bool
    """False when the search was stopped before its budget ended."""
    seconds: float = 0.0
    """Duration of search and finals."""
    gain_left: float | None = None
    """Share of the best time that 25 more trials were expected to save; None when no model estimated it."""
    commonest_failure: Failure | None = None

    NEARLY_ALL: ClassVar[float] = 0.8

    @property
    def is_mostly_failed(self) -> bool:
        """Whether nearly all trials failed, which points to the device or its driver rather than the kernels."""
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
    """Receives the events of a search in the order in which they happen."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None: ...

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None: ...

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:
        """The device takes `slowdown` times as long as at its first trial; it rests for `rest_s` seconds, if any."""

    def gain_estimated(self, request: Request, gain_left: float) -> None:
        """`gain_left` is the share of the best time that more trials are expected to save."""

    def budget_judged(self, trials: float, least_s: float, seconds: float) -> None:
        """The first trials of a run with a time budget of `seconds` are done: about `trials` trials fit into it.

        A short search of every problem takes at least `least_s` seconds.
        """

    def share_started(self, request: Request, total: Total) -> None:
        """The search of `request` resumes after others: it is expected to save most of the time of all calls."""

    def finals_started(self, request: Request, finalists: int) -> None: ...

    def problem_finished(self, outcome: Outcome) -> None: ...
