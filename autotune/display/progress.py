"""Progress of a run, of builds and of verification: a live bar on a terminal, otherwise plain lines."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, assert_never

from autotune.display.words import (
    drift_text,
    duration_text,
    failures_text,
    percent_text,
    rate_text,
    recheck_text,
    time_text,
    verdict_text,
)
from autotune.model import events
from autotune.model.problem import Problem
from autotune.model.trial import Request, TrialState, Winner

if TYPE_CHECKING:
    from autotune.display.live import Picture
    from autotune.search import Budget
    from autotune.search.compilation import Progress
    from autotune.search.verification import Recheck, RecheckListener

PLAIN_LINE_EVERY_S = 10.0

_DOING = {"start": "starting", "build": "building", "run": "measuring", "": "building"}
"""Activity by phase of the child process; without a phase, kernels are being built ahead."""
_REPLACING = {TrialState.CRASHED: "crashed", TrialState.TIMED_OUT: "timed out"}
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
        """Take in an event of the search, and show what it says."""
        if isinstance(event, events.ProblemStarted):
            self._begin(event)
        state = self._states[event.request.problem]
        if not isinstance(event, events.ProblemFinished):  # another may be searched by now, on an equal device
            self._current = state
        match event:
            case events.ProblemStarted(configurations=count, resumed_trials=resumed):
                continuing = f"; continuing: {resumed} trials stored" if resumed else ""
                self._mention(state, f"searching {_count_text(count)} configurations{continuing}")
            case events.TrialFinished():
                self._count_trial(state, event)
            case events.DeviceDrifted(slowdown=slowdown, rest_s=rest_s):
                rest = f"; pausing for {duration_text(rest_s)}" if rest_s else ""
                self._say(state, f"the device runs {drift_text(slowdown)}{rest}")
            case events.GainEstimated(gain_left=gain_left):
                state.gain_left = gain_left
            case events.BudgetJudged(seconds=seconds, least_s=least_s) if least_s > seconds:
                self._say(
                    state,
                    f"{self._total} shapes need at least about {duration_text(least_s)}; with the budget of "
                    f"{duration_text(seconds)}, some shapes go without trials and finals",
                )
            case events.BudgetJudged(trials=trials):
                self._mention(state, f"about {max(1, round(trials))} trials fit into the budget")
            case events.ShareStarted(default_ns=default_ns, best_ns=best_ns):
                gain = f"may still gain {percent_text(state.gain_left)}; " if state.gain_left is not None else ""
                saved = percent_text(1 - best_ns / default_ns if default_ns else 0.0)
                self._mention(state, f"continues: {gain}the best single trials would save {saved} of the time")
            case events.FinalsStarted(finalists=finalists):
                state.is_in_finals = True
                self._mention(state, f"comparing the best {finalists}, the default among them")
                self._show(is_better=False)
            case events.ProblemFinished(outcome=outcome):
                state.is_finished = True
                self._say(state, _outcome_line(outcome))
            case _:
                assert_never(event)

    def _begin(self, event: events.ProblemStarted) -> None:
        if not self._states:
            self._started = self._clock()  # the budget does not include checking the device
        self._states[event.request.problem] = _State(request=event.request, number=event.number)
        self._total = event.total

    def _count_trial(self, state: _State, event: events.TrialFinished) -> None:
        is_better, trial = event.best_ns < state.best_ns, event.trial
        state.trials, state.best_ns, state.failures = event.new_trials, event.best_ns, event.failures
        self._all_trials += 1
        if trial.state in _REPLACING and state.failures.get(trial.state.value) == 1:
            reason = f" ({trial.message[:200]})" if trial.message else ""
            tell = self._say if trial.state is TrialState.CRASHED else self._mention
            tell(state, f"a trial {_REPLACING[trial.state]}, and its process was replaced{reason}")
        self._show(is_better=is_better)

    def _title(self, state: _State) -> str:
        label = state.request.label
        return f"[{state.number}/{self._total}] {state.request.problem.label}" + (f" ({label})" if label else "")

    def _status(self, state: _State) -> str:
        """Describe a problem: ``trial 12/60, best 85.3 GFLOP/s, may still gain 2.1%, 1 failed (1 timed out)``."""
        limit = f"/{self._budget.trials}" if self._budget.trials else ""
        parts = [
            "comparing" if state.is_in_finals else f"trial {state.trials}{limit}",
            f"best {rate_text(state.request.problem, state.best_ns)}" if state.best_ns < float("inf") else "",
            f"may still gain {percent_text(state.gain_left)}" if state.gain_left is not None else "",
            failures_text(state.failures),
        ]
        return ", ".join(part for part in parts if part)

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
        self,
        budget: "Budget",
        say: Callable[[str], None],
        phase: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`phase` returns the current phase of the child process, a key of `_DOING`."""
        super().__init__(budget, clock)
        self._say_line = say
        self._phase = phase

    def picture(self) -> "Picture":
        from autotune.display.live import Picture

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
        self._say_line(f"{self._title(state) if self._total > 1 else state.request.problem.label}: {line}")

    def _mention(self, state: _State, line: str) -> None:
        pass

    def _show(self, *, is_better: bool) -> None:
        pass


def _is_live(stream: IO[str]) -> bool:
    """Return whether a bar can be drawn on the stream; that needs rich, which a slim installation lacks."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown") and find_spec("rich") is not None


@contextmanager
def progress(
    budget: "Budget", stream: IO[str], *, is_quiet: bool, phase: Callable[[], str] = str
) -> Iterator[events.Listener]:
    """Provide a listener for `stream`: live on a terminal, otherwise plain lines."""
    if is_quiet:
        yield lambda _: None
    elif not _is_live(stream):
        yield PlainProgress(budget, stream)
    else:
        from autotune.display.live import LiveBar

        listener = LiveProgress(budget, lambda line: bar.say(line), phase)  # noqa: PLW0108 - bar is assigned below
        bar = LiveBar(stream, listener.picture)
        with bar:
            yield listener


@contextmanager
def rechecking(stream: IO[str], *, is_quiet: bool) -> "Iterator[RecheckListener]":
    """Provide a listener for rechecks: a line for each result, and on a terminal a live bar."""
    if is_quiet:
        yield _Rechecking(lambda _: None)
    elif not _is_live(stream):
        yield _Rechecking(lambda line: print(line, file=stream, flush=True))
    else:
        from autotune.display.live import LiveBar

        listener = _Rechecking(lambda line: bar.say(line))  # noqa: PLW0108 - bar is assigned below
        bar = LiveBar(stream, listener.picture)
        with bar:
            yield listener


class _Rechecking:
    """A RecheckListener; `say` prints permanent lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._title = self._line = ""
        self._number, self._total = 0, 1

    def recheck_started(self, winner: Winner, number: int, total: int) -> None:
        self._number, self._total = number, total
        self._title = f"[{number}/{total}] {winner.problem.label}"
        self._line = f"{winner.problem.label}  {winner.configuration.algorithm}, {time_text(winner.time_ns)} before"

    def recheck_finished(self, recheck: "Recheck") -> None:
        self._say(f"{self._title}: {recheck_text(recheck)}")

    def picture(self) -> "Picture":
        from autotune.display.live import Picture

        done = max(self._number - 1, 0)
        return Picture(title=f"{done} of {self._total} verified", done=done, total=self._total, line=self._line)


@contextmanager
def building(stream: IO[str], *, is_quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """Provide a listener for builds: a bar on a terminal, otherwise a line every ten seconds."""
    if is_quiet:
        yield lambda _: None
    elif not _is_live(stream):
        yield _PlainBuilding(stream).show
    else:
        from autotune.display.live import LiveBar, Picture

        shown = Picture(line="starting")

        def show(progress: "Progress") -> None:
            nonlocal shown
            began, said = start.setdefault(progress.algorithm, (time.monotonic(), progress.seen))
            pace = (time.monotonic() - began) / max(progress.seen - said, 1)
            left_s = pace * (progress.configurations - progress.seen)
            shown = Picture(
                title=progress.algorithm,
                done=progress.seen,
                total=max(progress.configurations, 1),
                left=f"about {duration_text(left_s)} to go" if progress.seen > said else "",
                line=building_line(progress),
            )

        start: dict[str, tuple[float, int]] = {}
        with LiveBar(stream, lambda: shown):
            yield show


class _PlainBuilding:
    """Prints lines for a pipe or a log: the first of an algorithm, and one every ten seconds."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._said = clock()
        self._line = ""

    def show(self, progress: "Progress") -> None:
        line = building_line(progress)
        if line != self._line and (not progress.seen or self._clock() - self._said >= PLAIN_LINE_EVERY_S):
            self._said, self._line = self._clock(), line
            print(line, file=self._stream, flush=True)


def building_line(progress: "Progress") -> str:
    """Describe builds: ``512x512x512 microtile: 40 of 1000 configurations, 12 sources built, 1 failed, 2 spill``."""
    subject, count = f"{progress.problem.label} {progress.algorithm}", progress.configurations
    if not count:
        return f"{subject}: no configuration is valid"
    if not progress.seen:
        return f"{subject}: {count} configuration{'' if count == 1 else 's'}"
    parts = [
        f"{progress.seen} of {count} configurations",
        f"{progress.built_sources} sources built",
        f"{progress.known_sources} known before" if progress.known_sources else "",
        f"{progress.failed_sources} failed" if progress.failed_sources else "",
        f"{progress.spilling_sources} spill" if progress.spilling_sources else "",
    ]
    return f"{subject}: {', '.join(part for part in parts if part)}"


def _outcome_line(outcome: events.Outcome) -> str:
    """``165 GFLOP/s with panel, 711 us, 1.4x (1.3 to 1.6) vs default (27 trials, may still gain 2.1%)``."""
    winner, trials = outcome.winner, f"{outcome.new_trials} trial{'' if outcome.new_trials == 1 else 's'}"
    if outcome.resumed_trials:
        trials += f" after {outcome.resumed_trials} stored"
    left = f"may still gain {percent_text(outcome.gain_left)}" if outcome.gain_left is not None else ""
    facts = f"({', '.join(filter(None, (trials, failures_text(outcome.failures), left)))})"
    if winner is None:
        return f"nothing ran right {facts}"
    rate, time_taken = rate_text(winner.problem, winner.time_ns), time_text(winner.time_ns)
    return f"{rate} with {winner.configuration.algorithm}, {time_taken}, {verdict_text(winner)} {facts}"


def _count_text(count: int) -> str:
    """Format a count: ``5000``, ``1.3 million``."""
    return f"{count / 1e6:.2g} million" if count >= 1e6 else str(count)
