"""What people see in a terminal: the progress of a run, and the tables of results. The one owner of rich.

Progress goes to standard error, results to standard output. Without a terminal progress becomes plain lines, and
tables take the width they need.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.family import Configuration, Device, Problem, find_family
from autotune.trial import BuildState, Calibration, Request, Timer, Trial, TrialState, Winner

if TYPE_CHECKING:
    from autotune.compiling import AlgorithmReport, Progress, Report
    from autotune.presets import Preset
    from autotune.search import Budget, Listener, Outcome

PIPE_COLUMNS = 1000
"""Width of tables that no terminal bounds."""
PLAIN_LINE_EVERY_S = 10.0


# Numbers for people


def time_text(time_ns: float) -> str:
    """Four digits and a unit: ``12.34 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.4g} {unit}"
    return f"{time_ns:.4g} ns"


def rate_text(problem: Problem, time_ns: float) -> str:
    """Four digits and a unit: GFLOP/s, or GB/s where there is less than one operation for each byte moved."""
    if problem.flops < problem.bytes_moved:
        return f"{problem.bytes_moved / time_ns:.4g} GB/s"
    return f"{problem.flops / time_ns:.4g} GFLOP/s"


def duration_text(seconds: float) -> str:
    """Whole seconds: ``1:23`` or ``1:02:03``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bytes_text(size: int) -> str:
    for unit, bound in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bound:
            return f"{size / bound:.4g} {unit}"
    return f"{size} bytes"


def failures_text(failures: Mapping[str, int]) -> str:
    """``3 failed (2 compile failed, 1 timed out)``; empty when none did."""
    kinds = ", ".join(f"{count} {state}" for state, count in failures.items() if count)
    return f"{sum(failures.values())} failed ({kinds})" if kinds else ""


def gain_text(winner: Winner) -> str:
    """Gain over the default, with its interval where finals have confirmed it."""
    if winner.is_default:
        return "1x (the default)"
    if not winner.is_final:
        return f"{winner.gain_over_default:.3g}x (provisional)"
    return f"{winner.gain_over_default:.3g}x ({winner.gain_low:.3g} to {winner.gain_high:.3g})"


def drift_text(slowdown: float) -> str:
    """``1.4 times slower than at the start: times are corrected``."""
    if slowdown == 1:
        return "as fast as at the start again"
    how = f"{slowdown:.3g} times slower" if slowdown > 1 else f"{1 / slowdown:.3g} times faster"
    return f"{how} than at the start: times are corrected"


def baseline_gain_text(winner: Winner) -> str:
    return f"{winner.gain_over_baseline:.3g}x" if winner.gain_over_baseline else "-"


# Progress of a run


class _Progress(ABC):
    """A search.Listener that keeps what there is to tell; subclasses say when and how."""

    def __init__(self, budget: "Budget", clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()
        self._total = 1
        self._number = 0
        self._all_trials = 0
        self._begin(Request, 0)

    def _begin(self, request: Any, resumed: int) -> None:
        self._request = request
        self._resumed = resumed
        self._trials = 0
        self._best_ns = float("inf")
        self._failures: Counter[str] = Counter()
        self._is_in_finals = False

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None:
        self._begin(request, resumed)
        self._number, self._total = number, total
        continuing = f"; continuing: {resumed} trials stored" if resumed else ""
        self._say(f"{self._title()}: {space_size} configurations{continuing}")

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None:  # noqa: ARG002
        is_better = best_ns < self._best_ns
        self._trials, self._best_ns = new_trials, best_ns
        self._all_trials += 1
        if trial.state is not TrialState.COMPLETE:
            self._failures[trial.state.value] += 1
        self._show(is_better=is_better)

    def finals_started(self, request: Request, finalists: int) -> None:  # noqa: ARG002
        self._is_in_finals = True
        self._say(f"  finals: {finalists} configurations measured in turns")
        self._show(is_better=False)

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None:  # noqa: ARG002
        rest = f"; it rests for {duration_text(rest_s)}" if rest_s else ""
        self._say(f"  the device runs {drift_text(slowdown)}{rest}")

    def problem_finished(self, outcome: "Outcome") -> None:
        self._say(f"  {_outcome_line(outcome)}")

    def _title(self) -> str:
        label = self._request.label
        return f"[{self._number}/{self._total}] {self._request.problem.label}" + (f" ({label})" if label else "")

    def _status(self) -> str:
        """``trial 12/60, best 85.3 GFLOP/s, 1 failed (1 timed out), 0:45 left``."""
        limit = f"/{self._budget.trials}" if self._budget.trials else ""
        left = self._seconds_left()
        parts = [
            "finals" if self._is_in_finals else f"trial {self._trials}{limit}",
            f"best {rate_text(self._request.problem, self._best_ns)}" if self._best_ns < float("inf") else "",
            failures_text(self._failures),
            f"{duration_text(left)} left" if left is not None else "",
        ]
        return ", ".join(part for part in parts if part)

    def _seconds_left(self) -> float | None:
        """Until the budget ends, by the clock or by the pace so far, whichever comes first."""
        elapsed = self._clock() - self._started
        bounds = [self._budget.seconds - elapsed] if self._budget.seconds is not None else []
        if self._budget.trials and self._all_trials and not self._is_in_finals:
            open_problems = self._total - self._number
            open_trials = max(0, self._budget.trials - self._trials) + open_problems * self._budget.trials
            bounds.append(elapsed / self._all_trials * open_trials)
        return max(0.0, min(bounds)) if bounds else None

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
        if is_better or self._clock() - self._said >= PLAIN_LINE_EVERY_S:
            self._say(f"  {self._status()}")


class LiveProgress(_Progress):
    """One status line, kept up to date under the lines that stay."""

    def __init__(self, budget: "Budget", live: Live) -> None:
        super().__init__(budget)
        self._live = live

    def render(self) -> Text:
        """Drawn several times a second, so that the time left runs down during a long trial."""
        is_running = self._number > 0
        return Text(f"{self._title()}: {self._status()}" if is_running else "", no_wrap=True, overflow="ellipsis")

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

    def problem_finished(self, outcome: "Outcome") -> None:
        pass


@contextmanager
def progress(budget: "Budget", stream: IO[str], *, is_quiet: bool) -> "Iterator[Listener]":
    """The listener that fits where `stream` leads: live on a terminal, else plain lines."""
    console = _console(stream)
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
def building(stream: IO[str], *, is_quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """A listener for what is built: one line kept up to date on a terminal, else a line every ten seconds."""
    console = _console(stream)
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

    def show(self, progress: "Progress") -> None:
        if not progress.seen or self._clock() - self._said >= PLAIN_LINE_EVERY_S:
            self._said = self._clock()
            print(building_line(progress), file=self._stream, flush=True)


def building_line(progress: "Progress") -> str:
    """``512x512x512 microtile: 40/1000 configurations, 12 sources built, 1 failed, 2 spill``."""
    parts = [
        f"{progress.seen}/{progress.configurations} configurations",
        f"{progress.built_sources} sources built",
        f"{progress.known_sources} known" if progress.known_sources else "",
        f"{progress.failed_sources} failed" if progress.failed_sources else "",
        f"{progress.spilling_sources} spill" if progress.spilling_sources else "",
    ]
    return f"{progress.problem.label} {progress.algorithm}: {', '.join(part for part in parts if part)}"


def _outcome_line(outcome: "Outcome") -> str:
    winner, trials = outcome.winner, f"{outcome.new_trials} trial{'' if outcome.new_trials == 1 else 's'}"
    if outcome.resumed_trials:
        trials += f" after {outcome.resumed_trials} stored"
    failed = failures_text(outcome.failures)
    facts = f"({trials}{', ' + failed if failed else ''})"
    if winner is None:
        return f"nothing ran right {facts}"
    gain = "the default stays" if winner.is_default else f"{gain_text(winner)} over the default"
    rate = rate_text(winner.problem, winner.time_ns)
    return f"{winner.configuration.algorithm}: {time_text(winner.time_ns)}, {rate}, {gain} {facts}"


# Results


def print_devices(
    devices: Sequence[Device],
    traps: Mapping[str, Sequence[str]],
    stream: IO[str],
    clocks: Mapping[str, Calibration | str] | None = None,
) -> None:
    """Every device in a paragraph; `traps` are known troubles by slug, `clocks` calibrations by selector."""
    console = _console(stream)
    for number, device in enumerate(devices):
        if number:
            console.print()
        console.print(f"{device.selector}  {device.slug}", style="bold", soft_wrap=True)
        rows = _device_rows(device) + _clock_rows((clocks or {}).get(device.selector))
        rows += [("beware", trap) for trap in traps.get(device.slug, ())]
        _print_pairs(console, rows)


def _device_rows(device: Device) -> list[tuple[str, str]]:
    limits = device.limits
    images = f"up to {limits.max_image_width} x {limits.max_image_height}" if limits.has_images else "none"
    if limits.image_pitch_alignment:
        images += f", row pitch in steps of {limits.image_pitch_alignment} pixels"
    sizes = ", ".join(map(str, limits.sub_group_sizes))
    sub_groups = f"of {sizes} work-items" if sizes else "yes, sizes not told" if limits.has_sub_groups else "none"
    kind = "dedicated" if limits.local_memory_is_dedicated else "part of global memory"
    return [
        ("vendor, model", ", ".join(filter(None, (device.vendor, device.model)))),
        ("family", device.family),
        ("name", device.name),
        ("platform", device.platform),
        ("version", ", ".join(filter(None, (device.version, device.opencl_c_version)))),
        ("driver", device.driver),
        ("compute units", str(limits.compute_units)),
        ("work-group", f"up to {limits.max_work_group_size} work-items"),
        ("local memory", f"{bytes_text(limits.local_memory_bytes)}, {kind}"),
        (
            "global memory",
            f"{bytes_text(limits.global_memory_bytes)}, {bytes_text(limits.max_allocation_bytes)} at once"
            + (", shared with the host" if limits.shares_host_memory else ""),
        ),
        ("images", images),
        ("sub-groups", sub_groups),
    ]


def _clock_rows(calibration: Calibration | str | None) -> list[tuple[str, str]]:
    if calibration is None or isinstance(calibration, str):
        return [("timer", f"not calibrated: {calibration}")] if calibration else []
    is_event = calibration.timer is Timer.EVENT
    told = f", said to be {time_text(calibration.told_tick_ns)}" if calibration.told_tick_ns else ""
    timer = f"events, a tick is {time_text(calibration.tick_ns)} at most{told}"
    overhead, latency = time_text(calibration.launch_overhead_ns), time_text(calibration.launch_latency_ns)
    return [
        ("timer", timer if is_event else f"the host's clock, since {calibration.reason}"),
        ("launch", f"{overhead} each in a row, {latency} until the end of one is known"),
    ]


def print_outcomes(outcomes: "Sequence[Outcome]", stream: IO[str]) -> None:
    """The table of a run; for several requests the time of all calls before and after, for one all parameters."""
    if not outcomes:
        return
    console = _console(stream)
    columns = ("shape", "calls", "winner", "time", "rate", "over default", _over_baseline(outcomes), "from")
    rows = [_outcome_row(outcome) for outcome in outcomes]
    hidden = {name for name, values in zip(columns, zip(*rows, strict=True), strict=True) if not any(values)}
    _print_table(console, columns, rows, hidden=hidden)
    winners = [outcome.winner for outcome in outcomes if outcome.winner]
    if len(outcomes) == 1 and winners:
        console.print(str(winners[0].configuration), soft_wrap=True)
    elif winners:
        console.print(total_text(outcomes), soft_wrap=True)


def _over_baseline(outcomes: "Sequence[Outcome]") -> str:
    """``over naive``; ``over baseline`` for several families whose plainest kernels have different names."""
    families = {outcome.request.problem.family for outcome in outcomes}
    names = {find_family(family).baseline.algorithm for family in families}
    return f"over {names.pop() if len(names) == 1 else 'baseline'}"


def _outcome_row(outcome: "Outcome") -> tuple[str, ...]:
    request, winner = outcome.request, outcome.winner
    name = request.problem.label, str(request.calls)
    if winner is None:
        return (*name, "none", "-", "-", "-", "-", request.label)
    return (
        *name,
        winner.configuration.algorithm,
        time_text(winner.time_ns),
        rate_text(winner.problem, winner.time_ns),
        gain_text(winner),
        baseline_gain_text(winner),
        request.label,
    )


def total_ns(outcomes: "Sequence[Outcome]") -> tuple[float, float]:
    """Time of all calls of the requests that have a winner: with the defaults, and tuned."""
    won = [(outcome.request.calls, outcome.winner) for outcome in outcomes if outcome.winner]
    return sum(calls * w.default_ns for calls, w in won), sum(calls * w.time_ns for calls, w in won)


def total_text(outcomes: "Sequence[Outcome]") -> str:
    before, after = total_ns(outcomes)
    won = [outcome for outcome in outcomes if outcome.winner]
    calls = sum(outcome.request.calls for outcome in won)
    without = len(outcomes) - len(won)
    left_out = f"; {without} of {len(outcomes)} shapes have no winner and are not counted" if without else ""
    return (
        f"total of {calls} calls: {time_text(before)} before (default), {time_text(after)} after: "
        f"{before / after:.3g}x{left_out}"
    )


def print_compilations(reports: "Sequence[Report]", stream: IO[str]) -> None:
    """For each problem a table with a line for each algorithm, then compilers' complaints and spills."""
    console = _console(stream)
    columns = (
        "algorithm", "space", "configurations", "sources", "built", "failed", "spilling", "limited", "build", "code",
    )  # fmt: skip
    for report in reports:
        console.print(f"{report.device.slug}, driver {report.device.driver}: {report.problem.label}", soft_wrap=True)
        _print_table(console, columns, [_compilation_row(algorithm) for algorithm in report.algorithms])
        for algorithm in report.algorithms:
            for message, count in algorithm.messages:
                console.print(f"{algorithm.algorithm}: {count} failed: {message}", soft_wrap=True)
            sizes = ", ".join(f"{n} up to {bytes_text(size)}" for size, n in algorithm.private_memory.items())
            if sizes:
                console.print(f"{algorithm.algorithm}: private memory: {sizes}", soft_wrap=True)


def _compilation_row(algorithm: "AlgorithmReport") -> tuple[str, ...]:
    failed = {state.value: n for state, n in algorithm.states.items() if state is not BuildState.BUILT and n}
    build, code = algorithm.build_ns, algorithm.binary_bytes
    return (
        algorithm.algorithm,
        str(algorithm.space),
        str(algorithm.configurations),
        str(algorithm.sources),
        str(algorithm.states[BuildState.BUILT]),
        ", ".join(f"{n} {state}" for state, n in failed.items()) or "0",
        str(algorithm.spilling),
        str(algorithm.limited),
        f"{time_text(build.median)}, at most {time_text(build.most)}" if build else "-",
        f"{bytes_text(round(code.median))}, at most {bytes_text(round(code.most))}" if code else "-",
    )


def print_configuration(configuration: Configuration, facts: Sequence[tuple[str, str]], stream: IO[str]) -> None:
    """What a lookup found: `facts` first, then one parameter a line."""
    console = _console(stream)
    _print_pairs(console, [*facts, ("algorithm", configuration.algorithm)])
    _print_pairs(console, [(f"  {name}", str(value)) for name, value in configuration.values])


def print_presets(presets: "Sequence[tuple[Preset, Sequence[Request]]]", stream: IO[str]) -> None:
    rows = [
        (
            preset.name,
            str(len(requests)),
            str(sum(request.calls for request in requests)),
            f"{sum(request.calls * request.problem.flops for request in requests) / 1e9:.3f}",
            preset.meaning,
        )
        for preset, requests in presets
    ]
    _print_table(_console(stream), ("preset", "shapes", "calls", "GFLOP", "what it is"), rows)


def print_requests(requests: Sequence[Request], stream: IO[str]) -> None:
    rows = [(request.problem.label, str(request.calls), request.label) for request in requests]
    _print_table(_console(stream), ("shape", "calls", "from"), rows)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave to the command what rich would answer with an exit of its own."""
        raise BrokenPipeError


def _console(stream: IO[str]) -> Console:
    console = _Console(file=stream, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console


_NUMBERS = {
    "space",
    "configurations",
    "sources",
    "built",
    "spilling",
    "limited",
    "calls",
    "shapes",
    "GFLOP",
    "time",
    "rate",
}


def _print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, hidden: set[str] | None = None
) -> None:
    table = Table(box=box.ASCII2 if not console.is_terminal else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [index for index, name in enumerate(columns) if name not in (hidden or set())]
    for index in shown:
        table.add_column(columns[index], justify="right" if columns[index] in _NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    console.print(table)


def _print_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        console.print(f"  {name:{width}}  {value}", soft_wrap=True)
