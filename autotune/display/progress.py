"""Progress of a search and of verification: a live bar on a terminal, otherwise plain lines."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from autotune.display.console import Picture
from autotune.display.words import (
    drift_text,
    duration_text,
    failures_text,
    percent_text,
    recheck_text,
    verdict_text,
)
from autotune.model import events
from autotune.model.problem import Problem
from autotune.model.trial import Request, TrialState, Winner, time_text

if TYPE_CHECKING:
    from autotune.search import Budget
    from autotune.search.recheck import Recheck, RecheckListener

PLAIN_LINE_EVERY_S = 10.0

_DOING = {
    "start": "starting",
    "build": "building",
    "run": "measuring",
    "inputs": "checking",
    "wait": "waiting",
    "": "building",
}
"""Activity by phase of the child process; without a phase, kernels are being built ahead."""
_REPLACING = {TrialState.CRASHED: "crashed", TrialState.TIMED_OUT: "timed out", TrialState.CUT_SHORT: "cut short"}
"""Trial states that cost the process it ran in; per problem, the first of each is reported, the others are counted."""


@dataclass(kw_only=True)
class _State:
    """Progress of one problem."""

    request: Request
    number: int
    trials: int = 0
    best_ns: float = float("inf")
    gain_left: float | None = None
    failures: dict[str, int] = field(default_factory=dict)
    is_in_finals: bool = False
    is_finished: bool = False


class _Progress(ABC):
    """A listener that keeps the state to show; subclasses decide when and how to show it."""

    def __init__(self, budget: "Budget", clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()
        self._total = 1
        self._all_trials = 0
        self._states: dict[Problem, _State] = {}
        self._current: _State | None = None

    def __call__(self, event: events.Event) -> None:
        """Take in an event of the search, and show what it says, by the method that has the name of the event."""
        problem = event.request.problem
        if isinstance(event, events.ProblemStarted):
            if not self._states:
                self._started = self._clock()  # the budget does not include checking the device
            self._states[problem] = _State(request=event.request, number=event.number)
            self._total = event.total
        if not isinstance(event, events.ProblemFinished):  # another may be searched by now, on an equal device
            self._current = self._states[problem]
        getattr(self, event.name)(self._states[problem], event)

    def problem_started(self, state: _State, event: events.ProblemStarted) -> None:
        continuing = f"; continuing: {event.resumed_trials} trials stored" if event.resumed_trials else ""
        count = event.configurations
        amount = f"{count / 1e6:.2g} million" if count >= 1e6 else str(count)
        self._mention(state, f"searching {amount} configurations{continuing}")

    def trial_finished(self, state: _State, event: events.TrialFinished) -> None:
        is_better, trial = event.best_ns < state.best_ns, event.trial
        state.trials, state.best_ns, state.failures = event.new_trials, event.best_ns, event.failures
        self._all_trials += 1
        if trial.state in _REPLACING and state.failures.get(trial.state.value) == 1:
            reason = f" ({trial.message[:200]})" if trial.message else ""
            show = self._say if trial.state is TrialState.CRASHED else self._mention
            show(state, f"a trial {_REPLACING[trial.state]}, and its process was replaced{reason}")
        self._show(is_better=is_better)

    def device_drifted(self, state: _State, event: events.DeviceDrifted) -> None:
        rest = f"; pausing for {duration_text(event.rest_s)}" if event.rest_s else ""
        self._say(state, f"the device runs {drift_text(event.slowdown)}{rest}")

    def gain_estimated(self, state: _State, event: events.GainEstimated) -> None:
        state.gain_left = event.gain_left

    def budget_judged(self, state: _State, event: events.BudgetJudged) -> None:
        if event.least_s > event.seconds:
            self._say(
                state,
                f"{self._total} shapes need at least about {duration_text(event.least_s)}; with the budget of "
                f"{duration_text(event.seconds)}, some shapes go without trials and finals",
            )
        else:
            self._mention(state, f"about {max(1, round(event.trials))} trials fit into the budget")

    def share_started(self, state: _State, event: events.ShareStarted) -> None:
        gain = _gain_left_text(state.gain_left)
        saved = percent_text(1 - event.best_ns / event.default_ns if event.default_ns else 0.0)
        self._mention(
            state, f"continues: {gain}{'; ' if gain else ''}the best single trials would save {saved} of the time"
        )

    def finals_started(self, state: _State, event: events.FinalsStarted) -> None:
        state.is_in_finals = True
        self._mention(state, f"comparing the best {event.finalists}, the default among them")
        self._show(is_better=False)

    def problem_finished(self, state: _State, event: events.ProblemFinished) -> None:
        state.is_finished = True
        self._say(state, _outcome_line(event.outcome))

    def _title(self, state: _State) -> str:
        label = state.request.label
        return f"[{state.number}/{self._total}] {state.request.problem.label}" + (f" ({label})" if label else "")

    def _status(self, state: _State) -> str:
        """Describe a problem: ``trial 12/60, best 85.3 GFLOP/s, may still gain 2.1%, 1 failed (1 timed out)``."""
        limit = f"/{self._budget.trials}" if self._budget.trials else ""
        parts = [
            "comparing" if state.is_in_finals else f"trial {state.trials}{limit}",
            f"best {state.request.problem.rate_text(state.best_ns)}" if state.best_ns < float("inf") else "",
            _gain_left_text(state.gain_left),
            failures_text(state.failures),
        ]
        return ", ".join(filter(None, parts))

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._started

    def _left(self) -> str:
        """Describe the time until the budget ends, by the clock or by the pace of the trials, whichever is sooner."""
        elapsed = self._elapsed_s
        by_clock = self._budget.seconds - elapsed if self._budget.seconds is not None else float("inf")
        by_pace = self._open_trials() * elapsed / self._all_trials if self._all_trials else float("inf")
        if by_pace < by_clock:
            return f"about {duration_text(by_pace)} of trials to go"
        if by_clock <= 0:
            return f"{duration_text(-by_clock)} past the budget"
        return f"{duration_text(by_clock)} left" if by_clock < float("inf") else ""

    def _open_trials(self) -> float:
        """Return the trials left; infinite without a limit and during finals, which do not count as trials."""
        limit, states = self._budget.trials, self._states.values()
        if not limit or any(s.is_in_finals and not s.is_finished for s in states):
            return float("inf")
        return self._total * limit - self._trials_done(limit)

    def _trials_done(self, limit: int) -> int:
        return sum(limit if s.is_finished else min(s.trials, limit) for s in self._states.values())

    @abstractmethod
    def _say(self, state: _State, line: str) -> None:
        """Print a permanent line."""

    @abstractmethod
    def _mention(self, state: _State, line: str) -> None:
        """Print a line that only a log needs: a terminal shows the same information live."""

    @abstractmethod
    def _show(self, *, is_better: bool) -> None:
        """Show the current state."""


class PlainProgress(_Progress):
    """Prints lines for a pipe or a log: one for every better trial, and one every ten seconds."""

    def __init__(self, budget: "Budget", stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(budget, clock)
        self._stream = stream
        self._said = clock()
        self._titled: _State | None = None
        """Problem whose title was printed last."""

    def _say(self, state: _State, line: str) -> None:
        self._said = self._clock()
        if self._titled is not state:
            self._titled = state
            print(self._title(state), file=self._stream)
        print(f"  {line}", file=self._stream, flush=True)

    _mention = _say

    def _show(self, *, is_better: bool) -> None:
        if self._current and (is_better or self._clock() - self._said >= PLAIN_LINE_EVERY_S):
            self._say(self._current, ", ".join(filter(None, (self._status(self._current), self._left()))))


class LiveProgress(_Progress):
    """Shows a bar for the budget and a line for the current problem; each problem leaves one line, its result."""

    def __init__(
        self, budget: "Budget", phase: Callable[[], str] = str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`phase` returns the current phase of the child process, a key of `_DOING`."""
        super().__init__(budget, clock)
        self.say: Callable[[str], None] = print
        self._phase = phase

    def picture(self) -> Picture:
        finished = sum(state.is_finished for state in self._states.values())
        done, total = self._share()
        return Picture(
            title=f"{finished} of {self._total} shapes" if self._total > 1 else "",
            done=done,
            total=total,
            left=self._left(),
            line=self._line(self._current) if self._current else "starting",
        )

    def _share(self) -> tuple[float, float | None]:
        """Return the used fraction of the budget (the larger one of time and trials) and its total, 1.

        The total is None without limits.
        """
        seconds, trials = self._budget.seconds, self._budget.trials
        by_clock = min(self._elapsed_s / seconds, 1.0) if seconds else 0.0
        by_trials = self._trials_done(trials) / (trials * self._total) if trials else 0.0
        return max(by_clock, by_trials), 1.0 if seconds or trials else None

    def _line(self, state: _State) -> str:
        label = state.request.problem.label
        if state.is_in_finals:
            return f"{label}  {self._status(state)}"
        return f"{label}  {_DOING.get(self._phase(), 'measuring')}  {self._status(state)}"

    def _say(self, state: _State, line: str) -> None:
        self.say(f"{self._title(state) if self._total > 1 else state.request.problem.label}: {line}")

    def _mention(self, state: _State, line: str) -> None:
        pass

    def _show(self, *, is_better: bool) -> None:
        pass


def is_live(stream: IO[str]) -> bool:
    """Return whether a bar can be drawn on the stream; that needs rich, which a slim installation lacks."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown") and find_spec("rich") is not None


class Drawn(Protocol):
    """A listener that a terminal shows as a bar."""

    say: Callable[[str], None]
    """Prints permanent lines."""

    def picture(self) -> Picture: ...


_Drawn = TypeVar("_Drawn", bound=Drawn)


@contextmanager
def bar(stream: IO[str], listener: _Drawn) -> Iterator[_Drawn]:
    """Draw the `picture` of a listener while it is in use; what it says is printed above."""
    from autotune.display.live import LiveBar

    with LiveBar(stream, listener.picture) as live:
        listener.say = live.say
        yield listener


@contextmanager
def progress(
    budget: "Budget", stream: IO[str], *, is_quiet: bool, phase: Callable[[], str] = str
) -> Iterator[events.Listener]:
    """Provide a listener for `stream`: live on a terminal, otherwise plain lines."""
    if is_quiet:
        yield lambda _: None
    elif not is_live(stream):
        yield PlainProgress(budget, stream)
    else:
        with bar(stream, LiveProgress(budget, phase)) as listener:
            yield listener


@contextmanager
def rechecking(stream: IO[str], *, is_quiet: bool) -> "Iterator[RecheckListener]":
    """Provide a listener for rechecks: a line for each result, and on a terminal a live bar."""
    listener = Rechecking()
    if is_quiet or not is_live(stream):
        listener.say = (lambda _: None) if is_quiet else lambda line: print(line, file=stream, flush=True)
        yield listener
    else:
        with bar(stream, listener):
            yield listener


class Rechecking:
    """A RecheckListener; `say` prints permanent lines."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] = print
        self._title = ""
        self._picture = Picture()

    def recheck_started(self, winner: Winner, number: int, total: int) -> None:
        label = winner.problem.label
        self._title = f"[{number}/{total}] {label}"
        line = f"{label}  {winner.configuration.algorithm}, {time_text(winner.time_ns)} before"
        self._picture = Picture(title=f"{number - 1} of {total} verified", done=number - 1, total=total, line=line)

    def recheck_finished(self, recheck: "Recheck") -> None:
        self.say(f"{self._title}: {recheck_text(recheck)}")

    def picture(self) -> Picture:
        return self._picture


def _outcome_line(outcome: events.Outcome) -> str:
    """``165 GFLOP/s with panel, 711 us, 1.4x (1.3 to 1.6) vs default (27 trials, may still gain 2.1%)``."""
    winner, trials = outcome.winner, f"{outcome.new_trials} trial{'' if outcome.new_trials == 1 else 's'}"
    if outcome.resumed_trials:
        trials += f" after {outcome.resumed_trials} stored"
    facts = ", ".join(filter(None, (trials, failures_text(outcome.failures), _gain_left_text(outcome.gain_left))))
    if winner is None:
        return f"no winner: {outcome.no_winner_reason} ({facts})"
    rate, time_taken = winner.problem.rate_text(winner.time_ns), time_text(winner.time_ns)
    return f"{rate} with {winner.configuration.algorithm}, {time_taken}, {verdict_text(winner)} ({facts})"


def _gain_left_text(share: float | None) -> str:
    return "" if share is None else f"may still gain {percent_text(share)}"
