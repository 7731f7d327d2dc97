"""What a search is given, what it tells while it goes on, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autotune.trial import Request, Trial, Winner


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one run; at least one of them is given. `trials` counts new trials per problem."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What ends the search of one problem."""

    trials: int | None
    seconds: float
    should_stop: Callable[[], bool]
    retries_quarantined: bool = False
    """Whether to begin with what is in quarantine."""


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


class Listener(Protocol):
    """Told what happens, in the order in which it happens."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None: ...

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None: ...

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:
        """The device is that much slower than at its first trial; it is given a rest of so many seconds, or none."""

    def finals_started(self, request: Request, finalists: int) -> None: ...

    def problem_finished(self, outcome: Outcome) -> None: ...
