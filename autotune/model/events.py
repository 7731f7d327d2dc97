"""The events of a search. The terminal, the service and the followers of its jobs receive the same ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar, get_args

from autotune.codec import MAX_NUMBER, Bounds, Null
from autotune.model.trial import Request, Trial, TrialState, Winner, time_text

_POSITIVE = Bounds(0, MAX_NUMBER, excludes_least=True)


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
    """None when nothing ran correctly, or the default could not be measured; see `no_winner_reason`."""
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
    is_default_open: bool = False
    """Whether the default was not measured though it may run: then nothing wins."""

    NEARLY_ALL: ClassVar[float] = 0.8

    def __repr__(self) -> str:
        """Return the result in one line, which notebooks show."""
        winner = self.winner
        result = f"{time_text(winner.time_ns)}, {winner.configuration}" if winner else self.no_winner_reason
        return f"<Outcome {self.request.problem.label}: {result}>"

    @property
    def no_winner_reason(self) -> str:
        """Why there is no winner; empty when there is one."""
        if self.winner:
            return ""
        if self.is_default_open:
            return "the search ended before the default was measured"
        return "no configuration gave correct results"

    @property
    def is_mostly_failed(self) -> bool:
        """Whether nearly all trials failed, which points to the device or its driver rather than the kernels."""
        harmless = (TrialState.TOO_SLOW.value, TrialState.CUT_SHORT.value, TrialState.INVALID.value)
        failed = sum(count for state, count in self.failures.items() if state not in harmless)
        return failed > 0 and failed >= self.NEARLY_ALL * self.new_trials


@dataclass(frozen=True, kw_only=True)
class _OfProblem:
    name: ClassVar[str]
    """Name under which a service sends the event."""
    request: Request


@dataclass(frozen=True, kw_only=True)
class ProblemStarted(_OfProblem):
    """The first event of each problem."""

    name = "problem_started"
    number: int
    """From 1."""
    total: int
    """Number of problems."""
    configurations: int
    """Size of the search space."""
    resumed_trials: int


@dataclass(frozen=True, kw_only=True)
class TrialFinished(_OfProblem):
    """A trial of the search ended and is stored; those of the finals are not reported."""

    name = "trial_finished"
    trial: Trial
    new_trials: int
    best_ns: Annotated[float, _POSITIVE, Null(inf)]
    failures: dict[str, int]
    """Number of new trials by state, without the complete ones."""


@dataclass(frozen=True, kw_only=True)
class DeviceDrifted(_OfProblem):
    """The device takes `slowdown` times as long as at its first trial; it rests for `rest_s` seconds, if any."""

    name = "device_drifted"
    slowdown: Annotated[float, _POSITIVE]
    rest_s: float


@dataclass(frozen=True, kw_only=True)
class GainEstimated(_OfProblem):
    """`gain_left` is the share of the best time that more trials are expected to save."""

    name = "gain_estimated"
    gain_left: float


@dataclass(frozen=True, kw_only=True)
class BudgetJudged(_OfProblem):
    """The first trials of a run with a time budget of `seconds` are done: about `trials` trials fit into it."""

    name = "budget_judged"
    trials: float
    seconds: float
    least_s: float = 0.0
    """Duration of a short search of every problem, if several share the budget."""


@dataclass(frozen=True, kw_only=True)
class ShareStarted(_OfProblem):
    """The search of a problem resumes after others: it is expected to save most of the time of all calls."""

    name = "share_started"
    calls: int
    """Number of calls of the problems measured so far; both times below are the sums over these calls."""
    default_ns: float
    best_ns: float


@dataclass(frozen=True, kw_only=True)
class FinalsStarted(_OfProblem):
    """The fastest configurations and the default are compared."""

    name = "finals_started"
    finalists: int


@dataclass(frozen=True, kw_only=True)
class ProblemFinished(_OfProblem):
    """The last event of each problem."""

    name = "problem_finished"
    outcome: Outcome


Event = (
    ProblemStarted
    | TrialFinished
    | DeviceDrifted
    | GainEstimated
    | BudgetJudged
    | ShareStarted
    | FinalsStarted
    | ProblemFinished
)
Listener = Callable[[Event], None]
"""Receives the events of a search in the order in which they happen."""

KINDS: Mapping[str, type[Event]] = {kind.name: kind for kind in get_args(Event)}
"""Classes of events by the name under which a service sends them."""
