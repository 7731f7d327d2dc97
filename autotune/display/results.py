"""Prints the results of commands as tables and paragraphs."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, TypeVar

from autotune.display.console import Page
from autotune.display.words import (
    bytes_text,
    duration_text,
    gain_and_doubt_text,
    percent_text,
    recheck_text,
    remedy_text,
)
from autotune.kernels import find_family
from autotune.manual import Topic, for_terminal
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Argument, Buffer, LocalMemory, Plan, Structure
from autotune.model.trial import BuildState, Calibration, Request, Timer, TrialState, Winner, time_text

if TYPE_CHECKING:
    from autotune.lookup.misses import Miss
    from autotune.model.events import Outcome
    from autotune.networks.presets import Preset
    from autotune.search.compilation import AlgorithmReport, Report, Spread
    from autotune.search.recheck import Overview, Recheck

_PAGE_COLUMNS = 100
"""Width of a page of the manual: longer lines are hard to read."""

_Item = TypeVar("_Item")
_Columns = Mapping[str, Callable[[_Item], str]]
"""The cell of each column of a table, by the name of the column."""


def _table(page: Page, columns: "_Columns[_Item]", items: Iterable[_Item]) -> None:
    page.table(list(columns), [[cell(item) for cell in columns.values()] for item in items])


def print_devices(
    devices: Sequence[Device],
    traps: Mapping[str, Sequence[str]],
    stream: IO[str],
    clocks: Mapping[str, Calibration | str] | None = None,
) -> None:
    """Print a paragraph for every device.

    `traps` are known problems by slug; `clocks` are calibrations, or why there is none, by selector.
    """
    page = Page(stream)
    for number, device in enumerate(devices):
        if number:
            page.line()
        page.title(f"{device.selector}  {device.slug}")
        rows = _device_rows(device) + _clock_rows((clocks or {}).get(device.selector))
        rows += [("beware", trap) for trap in traps.get(device.slug, ())]
        page.pairs(rows)


def _device_rows(device: Device) -> list[tuple[str, str]]:
    limits = device.limits
    images = f"up to {limits.max_image_width} x {limits.max_image_height}" if limits.has_images else "none"
    if limits.image_pitch_alignment:
        images += f", row pitch in steps of {limits.image_pitch_alignment} pixels"
    sizes = ", ".join(map(str, limits.sub_group_sizes))
    sub_groups = f"of {sizes} work-items" if sizes else "yes, sizes not reported" if limits.has_sub_groups else "none"
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
    reported = f", reported as {time_text(calibration.told_tick_ns)}" if calibration.told_tick_ns else ""
    timer = f"events, a tick is {time_text(calibration.tick_ns)} at most{reported}"
    overhead, latency = time_text(calibration.launch_overhead_ns), time_text(calibration.launch_latency_ns)
    return [
        ("timer", timer if is_event else f"the host's clock, since {calibration.reason}"),
        ("launch", f"{overhead} each in a row, {latency} until one is known to have ended"),
    ]


def print_outcomes(
    outcomes: "Sequence[Outcome]", stream: IO[str], *, is_wide: bool = False, is_markdown: bool = False, tokens: int = 0
) -> None:
    """Print the results of a run as a table.

    Below it follow the parameters of the winner for a single request, or the total time of all calls before and after
    for several. `tokens` is how many a step of a language model takes in, of which the requests are the products.
    """
    if not outcomes:
        return
    page = Page(stream, is_wide=is_wide, is_markdown=is_markdown)
    _table(page, _outcome_columns(outcomes), outcomes)
    winners = [outcome.winner for outcome in outcomes if outcome.winner]
    if len(outcomes) == 1 and winners:
        page.line(str(winners[0].configuration), indent="  ")
    elif _confirmed(outcomes):
        page.line(total_text(outcomes))
        if tokens and len(_confirmed(outcomes)) == len(outcomes):
            before, after = (tokens * 1e9 / time_ns for time_ns in total_ns(outcomes))
            page.line(f"with these products alone, {before:.3g} tokens/s before, {after:.3g} after")


def print_failures(outcomes: "Sequence[Outcome]", slug: str, stream: IO[str]) -> None:
    """If nearly all trials of a problem failed, print why they did and what to do about it."""
    failed = [outcome for outcome in outcomes if outcome.is_mostly_failed and outcome.commonest_failure]
    if not failed:
        return
    worst = max(failed, key=lambda outcome: outcome.new_trials)
    cause = worst.commonest_failure
    assert cause is not None
    page = Page(stream)
    count = f"{sum(worst.failures.values())} of {worst.new_trials} trials of {worst.request.problem.label}"
    others = f" (so did most of {len(failed) - 1} more)" if len(failed) > 1 else ""
    page.line(f"Nearly everything failed on {slug}: {count}{others}.")
    message = f": {cause.message}" if cause.message else ""
    page.line(f"Most often ({cause.count} times) it {_FAILED[cause.state]}{message}")
    advice = remedy_text(worst.request.problem, slug)
    page.line(f"{advice[0].upper()}{advice[1:]}.")


_FAILED = {
    TrialState.INVALID: "broke a limit of the device",
    TrialState.COMPILE_FAILED: "did not compile",
    TrialState.LAUNCH_FAILED: "could not be launched",
    TrialState.WRONG_RESULT: "gave wrong results",
    TrialState.TIMED_OUT: "exceeded the time limit",
    TrialState.CUT_SHORT: "was cut short",
    TrialState.CRASHED: "crashed",
    TrialState.TOO_SLOW: "was far too slow",
    TrialState.TOOL_FAILED: "ended with an unexpected error of autotune",
}


def _over_baseline(outcomes: "Sequence[Outcome]") -> str:
    """Return a column title: ``vs naive``, or ``vs baseline`` if the families have differently named baselines."""
    families = {outcome.request.problem.family for outcome in outcomes}
    names = {find_family(family).baseline.algorithm for family in families}
    return f"vs {names.pop() if len(names) == 1 else 'baseline'}"


def _outcome_columns(outcomes: "Sequence[Outcome]") -> "_Columns[Outcome]":
    def of_winner(text: Callable[[Winner], str], without: str = "-") -> "Callable[[Outcome], str]":
        return lambda outcome: text(outcome.winner) if outcome.winner else without

    return {
        "shape": lambda outcome: outcome.request.problem.label,
        "time": of_winner(lambda winner: time_text(winner.time_ns)),
        "rate": of_winner(lambda winner: winner.problem.rate_text(winner.time_ns)),
        "vs default": of_winner(gain_and_doubt_text),
        "kernel": of_winner(lambda winner: winner.configuration.algorithm, "none"),
        "calls": lambda outcome: str(outcome.request.calls),
        "from": lambda outcome: outcome.request.label,
        _over_baseline(outcomes): of_winner(
            lambda winner: f"{gain:.3g}x" if (gain := winner.gain_over_baseline) else "-"
        ),
        "trials": lambda outcome: str(outcome.new_trials),
        "spent": lambda outcome: duration_text(outcome.seconds) if outcome.seconds else "",
        "may still gain": lambda outcome: "" if outcome.gain_left is None else percent_text(outcome.gain_left),
        "samples": of_winner(lambda winner: str(winner.samples) if winner.is_final else "", ""),
        "verifications": of_winner(lambda winner: str(winner.verifications or ""), ""),
    }


def print_rechecks(rechecks: "Sequence[Recheck]", stream: IO[str]) -> None:
    """Print a table of rechecked winners, and below it the messages of those that failed."""
    if not rechecks:
        return
    page = Page(stream)
    columns: _Columns[Recheck] = {
        "shape": lambda recheck: recheck.before.problem.label,
        "result": recheck_text,
        "before": lambda recheck: time_text(recheck.before.time_ns),
        "now": lambda recheck: time_text(recheck.after.time_ns) if recheck.after else "-",
        "vs default": lambda recheck: gain_and_doubt_text(recheck.after) if recheck.after else "-",
        "kernel": lambda recheck: (recheck.after or recheck.before).configuration.algorithm,
        "samples": lambda recheck: str(recheck.after.samples) if recheck.after else "",
        "verifications": lambda recheck: str(recheck.after.verifications) if recheck.after else "",
    }
    _table(page, columns, rechecks)
    for recheck in rechecks:
        if recheck.message:
            page.line(f"{recheck.before.problem.label}: {recheck.before.configuration}", indent="  ")
            page.line(f"  {recheck.message}", indent="  ")


def print_overviews(overviews: "Sequence[Overview]", stream: IO[str]) -> None:
    """Print a paragraph for every device."""
    page = Page(stream)
    for number, overview in enumerate(overviews):
        if number:
            page.line()
        page.title(overview.device)
        page.pairs(_overview_rows(overview))


def _overview_rows(overview: "Overview") -> list[tuple[str, str]]:
    problems = f"{overview.problems} problem{'' if overview.problems == 1 else 's'}"
    return [
        ("driver", overview.driver),
        ("tuned", problems + _counts(overview.verdicts)),
        ("out of date", str(overview.stale_problems) + _counts(overview.stale, "{} measured with another {}")),
        ("last measured", overview.last_measured or "never"),
        ("trials stored", str(sum(overview.trials.values())) + _counts(overview.trials)),
        *([("run again", f"{overview.repeats} times, as in finals")] if overview.repeats else []),
        *((word, str(count)) for word, count in overview.set_aside.items()),
    ]


def _counts(counts: Mapping[str, int], form: str = "{} {}") -> str:
    listed = ", ".join(form.format(count, word) for word, count in counts.items() if count)
    return f": {listed}" if listed else ""


def total_ns(outcomes: "Sequence[Outcome]") -> tuple[float, float]:
    """Return the time of all calls of requests with a confirmed winner, nanoseconds: with the defaults, and tuned."""
    won = [(outcome.request.calls, outcome.winner) for outcome in _confirmed(outcomes) if outcome.winner]
    return sum(calls * w.default_ns for calls, w in won), sum(calls * w.time_ns for calls, w in won)


def _confirmed(outcomes: "Sequence[Outcome]") -> "list[Outcome]":
    return [outcome for outcome in outcomes if outcome.winner and outcome.winner.is_final]


def total_text(outcomes: "Sequence[Outcome]") -> str:
    before, after = total_ns(outcomes)
    won = _confirmed(outcomes)
    calls = sum(outcome.request.calls for outcome in won)
    without = len(outcomes) - len(won)
    left_out = f"; {without} of {len(outcomes)} shapes have no confirmed winner and are not counted" if without else ""
    return (
        f"total of {calls} calls: {time_text(before)} before (default), {time_text(after)} after: "
        f"{before / after:.3g}x{left_out}"
    )


def print_compilations(reports: "Sequence[Report]", stream: IO[str]) -> None:
    """Print for each problem a table with a row for each algorithm, then compiler errors and private memory."""
    page = Page(stream)
    columns: _Columns[AlgorithmReport] = {
        "algorithm": lambda report: report.algorithm,
        "configurations": lambda report: str(report.configurations),
        "built": lambda report: str(report.states[BuildState.BUILT]),
        "failed": _failed_builds,
        "spilling": lambda report: str(report.spilling),
        "limited": lambda report: str(report.limited),
        "build": lambda report: _spread(report.build_ns, time_text),
        "code": lambda report: _spread(report.binary_bytes, lambda size: bytes_text(round(size))),
        "sources": lambda report: str(report.sources),
        "space": lambda report: str(report.space),
    }
    for report in reports:
        page.line(f"{report.device.slug}, driver {report.device.driver}: {report.problem.label}")
        _table(page, columns, report.algorithms)
        for algorithm in report.algorithms:
            for message, count in algorithm.messages:
                page.line(f"{algorithm.algorithm}: {count} failed: {message}", indent="  ")
            sizes = ", ".join(f"{n} up to {bytes_text(size)}" for size, n in algorithm.private_memory.items())
            if sizes:
                page.line(f"{algorithm.algorithm}: private memory: {sizes}", indent="  ")


def _failed_builds(report: "AlgorithmReport") -> str:
    failed = {state.value: n for state, n in report.states.items() if state is not BuildState.BUILT and n}
    return ", ".join(f"{n} {state}" for state, n in failed.items()) or "0"


def _spread(spread: "Spread | None", text: Callable[[float], str]) -> str:
    return f"{text(spread.median)}, at most {text(spread.most)}" if spread else "-"


def print_configuration(configuration: Configuration, facts: Sequence[tuple[str, str]], stream: IO[str]) -> None:
    """Print the result of a lookup: `facts` first, then one parameter per line."""
    page = Page(stream)
    page.pairs([*facts, ("algorithm", configuration.algorithm)])
    page.pairs([(f"  {name}", str(value)) for name, value in configuration.values])


def print_plan(plan: Plan, stream: IO[str]) -> None:
    """Print the buffers to allocate and the kernels to enqueue, in order, with their arguments in order."""
    page = Page(stream)
    page.line()
    page.table(
        ("buffer", "type", "elements", "bytes", "use", "layout"),
        [(b.name, b.dtype, str(b.elements), str(b.size_bytes), b.role.value, _layout(b)) for b in plan.buffers],
    )
    for launch in plan.launches:
        page.line()
        page.title(f"{launch.kernel}({', '.join(_argument(argument) for argument in launch.arguments)})")
        local = " x ".join(map(str, launch.local_size)) if launch.local_size else "left to the driver (NULL)"
        sizes = [("global size", " x ".join(map(str, launch.global_size))), ("local size", local)]
        page.pairs([*sizes, *([("only prepares", launch.prepares)] if launch.prepares else [])])


def _layout(buffer: Buffer) -> str:
    parts = [
        f"image of {buffer.image_width} x {buffer.image_height} {'RGBA'[: buffer.channels]} pixels"
        if buffer.image_width
        else "",
        f"over {buffer.view_of}" if buffer.view_of else "",
        f"rows of {buffer.row_pitch}" if buffer.row_pitch else "",
        "zeroed before the first call" if buffer.is_zeroed else "",
    ]
    return ", ".join(filter(None, parts))


def _argument(argument: Argument) -> str:
    if argument is None or isinstance(argument, str):
        return argument or "NULL"
    if isinstance(argument, Structure):
        return f"the bytes {argument.content.hex()}"
    if isinstance(argument, LocalMemory):
        return f"{bytes_text(argument.size_bytes)} of local memory"
    return f"{argument.dtype} {argument.name or argument.value}"


def print_misses(misses: "Sequence[tuple[Miss, int]]", stream: IO[str]) -> None:
    """Print misses, each with the number of processes that looked it up."""
    rows = [(miss.device, miss.problem.label, str(count)) for miss, count in misses]
    Page(stream).table(("device", "shape", "processes"), rows)


def print_presets(presets: "Sequence[tuple[Preset, Sequence[Request]]]", stream: IO[str]) -> None:
    """Print a row for every preset, and a row for every language model, which has many."""
    page = Page(stream)
    rows = [
        (
            preset.name,
            str(len(requests)),
            str(sum(request.calls for request in requests)),
            f"{sum(request.calls * request.problem.flops for request in requests) / 1e9:.3f}",
            preset.meaning,
        )
        for preset, requests in presets
        if not preset.group
    ]
    page.table(("preset", "shapes", "calls", "GFLOP", "what it is"), rows, ends_in_prose=True)
    of_models: dict[str, dict[str, float]] = {}
    steps: dict[str, None] = {}
    for preset, requests in presets:
        if preset.group:
            weights, _, step = preset.name.removeprefix(f"{preset.group}-").partition("-")
            steps[step] = None
            moved = sum(request.calls * request.problem.bytes_moved for request in requests) / 1e6
            of_models.setdefault(preset.group, {}).setdefault(weights, moved)
    page.line()
    page.line(
        f"Language models with quantised weights: MODEL-WEIGHTS-STEP, where STEP is {', '.join(steps)}, such as "
        f"{next((preset.name for preset, _ in presets if preset.group), '')}"
    )
    page.line()
    models = [
        (model, ", ".join(moved), ", ".join(f"{size:.0f}" for size in moved.values()))
        for model, moved in of_models.items()
    ]
    page.table(("model", "weights", "MB that one token reads"), models)


def print_requests(requests: Sequence[Request], stream: IO[str]) -> None:
    rows = [(request.problem.label, str(request.calls), request.label) for request in requests]
    Page(stream).table(("shape", "calls", "from"), rows)


def print_manual(topic: Topic, stream: IO[str]) -> None:
    """Print a page: rendered and paged on a terminal if rich is installed, otherwise as Markdown."""
    if not Page(stream).is_terminal or find_spec("rich") is None:
        stream.write(topic.text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=stream, width=min(shutil.get_terminal_size().columns, _PAGE_COLUMNS))
    # As git does: less shows colors, and exits at once if the text fits the screen.
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        console.print(Markdown(for_terminal(topic.text), hyperlinks=False))
