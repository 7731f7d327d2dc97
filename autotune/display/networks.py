"""Prints what a network does, and how long it takes on a device."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import IO, TYPE_CHECKING

from autotune.display.console import Page
from autotune.display.words import bytes_text, percent_text
from autotune.model.trial import time_text

if TYPE_CHECKING:
    from autotune.model.device import Device
    from autotune.networks import Network, Operation, Step
    from autotune.networks.estimate import Prospect


def print_network(network: "Network", stream: IO[str], *, is_markdown: bool = False) -> None:
    """Print the operations of each step, those with the largest share first, and the memory of the network."""
    page = Page(stream, is_wide=True, is_markdown=is_markdown)
    page.title(network.title)
    for step in network.steps:
        page.line()
        gflop, moved = f"{step.flops / 1e9:.4g} GFLOP", bytes_text(step.bytes_moved)
        page.line(f"{step.title}: {gflop}, {moved} moved at least")
        rows = [
            (one.label, one.family or "-", _size(one), str(one.calls), *_shares(one, step), _without(one))
            for one in sorted(step.operations, key=lambda one: -max(_parts(one, step)))
        ]
        page.table(("operation", "family", "shape", "calls", "arithmetic", "bytes", ""), rows)
        without = [one for one in step.operations if one.problem is None]
        arithmetic, moved = (percent_text(sum(_parts(one, step)[index] for one in without)) for index in (0, 1))
        page.line(f"without a kernel here: {arithmetic} of the arithmetic, {moved} of the bytes")
    page.line()
    page.line(_memory_text(network))


def _memory_text(network: "Network") -> str:
    weights = f"weights: {bytes_text(network.weight_bytes)}" if network.weight_bytes else "weights: not known"
    return weights + (f"; keys and values: {bytes_text(network.cache_bytes)}" if network.cache_bytes else "")


def _parts(one: "Operation", step: "Step") -> tuple[float, float]:
    return one.flops / max(1, step.flops), one.bytes_moved / max(1, step.bytes_moved)


def _shares(one: "Operation", step: "Step") -> tuple[str, str]:
    arithmetic, moved = map(percent_text, _parts(one, step))
    return arithmetic, moved


def _size(one: "Operation") -> str:
    return one.problem.label if one.problem else one.shape or "several"


def _without(one: "Operation") -> str:
    return "" if one.problem else "no kernel here"


def print_prospects(
    network: "Network",
    steps: "Sequence[tuple[Step, Sequence[Prospect], Mapping[str, float]]]",
    device: "Device",
    stream: IO[str],
) -> None:
    """Print for each step the times of its operations now, tuned and at the limits, and how many units a second."""
    page = Page(stream, is_wide=True)
    for step, found, formats in steps:
        page.line()
        page.line(f"{step.title}, on {device.slug} (~ is an estimate)")
        rows = [
            (one.operation.label, _size(one.operation), str(one.operation.calls), *_times(one))
            for one in sorted(found, key=lambda one: -one.now_ns if one.now_ns > 0 else 0.0)
        ]
        page.table(("operation", "shape", "calls", "now", "tuned", "possible"), rows)
        _print_total(page, step, found)
        if len(formats) > 1:
            rates = ((name, step.amount * 1e9 / ns) for name, ns in sorted(formats.items(), key=lambda one: one[1]))
            page.line(f"tuned, by weights: {', '.join(f'{n} ~{rate:.3g} {step.units}/s' for n, rate in rates)}")
    page.line()
    page.line(f"{_memory_text(network)}; the device has {bytes_text(device.limits.global_memory_bytes)}")


def _times(one: "Prospect") -> tuple[str, str, str]:
    about = "" if one.is_measured else "~"
    now, tuned, least = one.now_ns, one.tuned_ns, one.possible_ns
    return _time(now, about), _time(tuned, about), _time(least, "~")


def _time(time_ns: float, about: str) -> str:
    return "-" if isnan(time_ns) else about + time_text(time_ns)


def _print_total(page: Page, step: "Step", found: "Sequence[Prospect]") -> None:
    known = [one for one in found if one.now_ns > 0]
    if not known:
        page.line("nothing is known of these on the device")
        return
    rates = [step.amount * 1e9 / sum(getattr(one, name) for one in known) for name in ("now_ns", "tuned_ns")]
    possible = sum(one.possible_ns for one in known)
    text = f"{rates[0]:.3g} {step.units}/s now, {rates[1]:.3g} tuned"
    if not isnan(possible):
        text += f", {step.amount * 1e9 / possible:.3g} possible"
    left_out = len(found) - len(known)
    page.line(f"{text}{f'; {left_out} operations, of which nothing is known, not counted' if left_out else ''}")
