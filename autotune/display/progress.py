"""The progress of a run, of building and of verifying: a live line on a terminal, else plain lines."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from autotune.display.console import console_on
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
from autotune.problem import Problem
from autotune.trial import Request, Trial, TrialState, Winner

if TYPE_CHECKING:
    from autotune.compiling import Progress
    from autotune.search import Budget, Listener, Outcome, Total
    from autotune.search.rechecking import Recheck, RecheckListener

PLAIN_LINE_EVERY_S = 10.0


@dataclass(kw_only=True)
class _State:
    """How far one problem has come."""

    request: Request
    number: int
    trials: int = 0
    best_ns: float = float("inf")
    gain_left: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    is_in_finals: bool = False
    is_finished: bool = False


class _Progress(ABC):
    """A search.Listener that keeps what there is to tell; subclasses say when and how."""

    def __init__(self, budget: "Budget", clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()
        self._total = 1
        self._all_trials = 0
        self._states: dict[Problem, _State] = {}
        self._current: _State | None = None
        self._titled: Problem | None = None
        """Whose title stands above the lines said last."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None:
        state = _State(request=request, number=number)
        self._states[request.problem] = self._current = state
        self._total, self._titled = total, request.problem
        continuing = f"; continuing: {resumed} trials stored" if resumed else ""
        self._say(f"{self._title(state)}: {space_size} configurations{continuing}")

    def budget_judged(self, trials: float, least_s: float, seconds: float) -> None:
        if self._total > 1 and least_s > seconds:
            self._say(
                f"  {self._total} shapes need about {duration_text(least_s)} at least; the budget of "
                f"{duration_text(seconds)} leaves out trials and finals of some"
            )
        else:
            self._say(f"  about {max(1, round(trials))} trials fit into the budget")

    def share_started(self, request: Request, total: "Total") -> None:
        self._current = state = self._states[request.problem]
        gain = f"{percent_text(state.gain_left)} left to gain; " if state.gain_left is not None else ""
        before, now = time_text(total.default_ns), time_text(total.best_ns)
        if self._titled != request.problem:
            self._titled = request.problem
            self._say(f"{self._title(state)} goes on: {gain}all calls take {before} by the defaults, {now} so far")

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None:
        self._current = state = self._states[request.problem]
        is_better = best_ns < state.best_ns
        state.trials, state.best_ns = new_trials, best_ns
        self._all_trials += 1
        if trial.state is not TrialState.COMPLETE:
            state.failures[trial.state.value] += 1
        self._show(is_better=is_better)

    def gain_estimated(self, request: Request, gain_left: float) -> None:
        self._states[request.problem].gain_left = gain_left

    def finals_started(self, request: Request, finalists: int) -> None:
        self._current = state = self._states[request.problem]
        state.is_in_finals = True
        self._say_of(request, f"finals: {finalists} configurations measured in turns")
        self._show(is_better=False)

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:
        rest = f"; it rests for {duration_text(rest_s)}" if rest_s else ""
        self._say_of(request, f"the device runs {drift_text(slowdown)}{rest}")

    def problem_finished(self, outcome: "Outcome") -> None:
        self._states[outcome.request.problem].is_finished = True
        self._say_of(outcome.request, _outcome_line(outcome))

    def _say_of(self, request: Request, line: str) -> None:
        """A line that stays, under the title of its problem."""
        if self._titled != request.problem:
            self._titled = request.problem
            self._say(self._title(self._states[request.problem]))
        self._say(f"  {line}")

    def _title(self, state: _State) -> str:
        label = state.request.label
        return f"[{state.number}/{self._total}] {state.request.problem.label}" + (f" ({label})" if label else "")

    def _status(self, state: _State) -> str:
        """``trial 12/60, best 85.3 GFLOP/s, 2.1% left to gain, 1 failed (1 timed out), 0:45 left``."""
        limit = f"/{self._budget.trials}" if self._budget.trials else ""
        parts = [
            "finals" if state.is_in_finals else f"trial {state.trials}{limit}",
            f"best {rate_text(state.request.problem, state.best_ns)}" if state.best_ns < float("inf") else "",
            f"{percent_text(state.gain_left)} left to gain" if state.gain_left is not None else "",
            failures_text(state.failures),
            self._left(),
        ]
        return ", ".join(part for part in parts if part)

    def _left(self) -> str:
        """Until the budget ends: by the clock, or by the pace of the trials so far where that is sooner."""
        elapsed = self._clock() - self._started
        by_clock = self._budget.seconds - elapsed if self._budget.seconds is not None else float("inf")
        by_pace = self._open_trials() * elapsed / self._all_trials if self._all_trials else float("inf")
        if by_pace < by_clock:
            return f"about {duration_text(by_pace)} of trials to go"
        return f"{duration_text(max(0.0, by_clock))} left" if by_clock < float("inf") else ""

    def _open_trials(self) -> float:
        """Infinite without a limit, and in finals, which are no trials."""
        limit, states = self._budget.trials, self._states.values()
        if not limit or any(s.is_in_finals and not s.is_finished for s in states):
            return float("inf")
        return self._total * limit - sum(limit if s.is_finished else min(s.trials, limit) for s in states)

    @abstractmethod
    def _say(self, line: str) -> None:
        """A line that stays."""

    @abstractmethod
    def _show(self, *, is_better: bool) -> None:
        """The state as it is now."""


class PlainProgress(_Progress):
    """Lines for a pipe or a log: every better trial, and one every ten seconds."""

    def __init__(self, budget: "Budget", stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(budget, clock)
        self._stream = stream
        self._said = clock()

    def _say(self, line: str) -> None:
        self._said = self._clock()
        print(line, file=self._stream, flush=True)

    def _show(self, *, is_better: bool) -> None:
        if self._current and (is_better or self._clock() - self._said >= PLAIN_LINE_EVERY_S):
            self._say_of(self._current.request, self._status(self._current))


class LiveProgress(_Progress):
    """One status line, kept up to date under the lines that stay."""

    def __init__(self, budget: "Budget", live: Live) -> None:
        super().__init__(budget)
        self._live = live

    def render(self) -> Text:
        """Drawn several times a second, so that the time left runs down during a long trial."""
        state = self._current
        text = f"{self._title(state)}: {self._status(state)}" if state else ""
        return Text(text, no_wrap=True, overflow="ellipsis")

    def _say(self, line: str) -> None:
        self._live.console.print(line, soft_wrap=True)

    def _show(self, *, is_better: bool) -> None:
        if is_better:
            self._live.refresh()


class Silence:
    """A search.Listener that says nothing."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None:
        pass

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None:
        pass

    def finals_started(self, request: Request, finalists: int) -> None:
        pass

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:
        pass

    def gain_estimated(self, request: Request, gain_left: float) -> None:
        pass

    def share_started(self, request: Request, total: "Total") -> None:
        pass

    def budget_judged(self, trials: float, least_s: float, seconds: float) -> None:
        pass

    def problem_finished(self, outcome: "Outcome") -> None:
        pass


@contextmanager
def progress(budget: "Budget", stream: IO[str], *, is_quiet: bool) -> "Iterator[Listener]":
    """The listener that fits where `stream` leads: live on a terminal, else plain lines."""
    console = console_on(stream)
    if is_quiet:
        yield Silence()
    elif not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(budget, stream)
    else:
        live = Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=False)
        listener = LiveProgress(budget, live)
        live.get_renderable = listener.render  # type: ignore[method-assign]
        with live:
            yield listener


@contextmanager
def rechecking(stream: IO[str], *, is_quiet: bool) -> "Iterator[RecheckListener]":
    """A listener for winners verified again: a line for each result, and on a terminal one for what goes on."""
    console = console_on(stream)
    if is_quiet:
        yield _Rechecking(lambda _: None, lambda _: None)
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _Rechecking(lambda _: None, lambda line: print(line, file=stream, flush=True))
    else:
        with Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=False) as live:
            yield _Rechecking(
                lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis")),
                lambda line: live.console.print(line, soft_wrap=True),
            )


class _Rechecking:
    """A rechecking.RecheckListener: `show` tells what goes on, `say` is for lines that stay."""

    def __init__(self, show: Callable[[str], None], say: Callable[[str], None]) -> None:
        self._show = show
        self._say = say
        self._title = ""

    def recheck_started(self, winner: Winner, number: int, total: int) -> None:
        self._title = f"[{number}/{total}] {winner.problem.label}"
        self._show(f"{self._title}: {winner.configuration.algorithm}, {time_text(winner.time_ns)} before")

    def recheck_finished(self, recheck: "Recheck") -> None:
        self._say(f"{self._title}: {recheck_text(recheck)}")


@contextmanager
def building(stream: IO[str], *, is_quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """A listener for what is built: one line kept up to date on a terminal, else a line every ten seconds."""
    console = console_on(stream)
    if is_quiet:
        yield lambda _: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _PlainBuilding(stream).show
    else:
        with Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=False) as live:
            yield lambda progress: live.update(Text(building_line(progress), no_wrap=True, overflow="ellipsis"))


class _PlainBuilding:
    """Lines for a pipe or a log: the first of an algorithm, and one every ten seconds."""

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
    """``512x512x512 microtile: 40 of 1000 configurations, 12 sources built, 1 failed, 2 spill``."""
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


def _outcome_line(outcome: "Outcome") -> str:
    winner, trials = outcome.winner, f"{outcome.new_trials} trial{'' if outcome.new_trials == 1 else 's'}"
    if outcome.resumed_trials:
        trials += f" after {outcome.resumed_trials} stored"
    left = f"{percent_text(outcome.gain_left)} left to gain" if outcome.gain_left is not None else ""
    facts = f"({', '.join(filter(None, (trials, failures_text(outcome.failures), left)))})"
    if winner is None:
        return f"nothing ran right {facts}"
    rate = rate_text(winner.problem, winner.time_ns)
    return f"{winner.configuration.algorithm}: {time_text(winner.time_ns)}, {rate}, {verdict_text(winner)} {facts}"
