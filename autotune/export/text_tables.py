"""Tables as CSV for spreadsheets, and as Markdown for people."""

import csv
import dataclasses
import io
import re
from math import isfinite

from autotune.export.contents import DeviceTable
from autotune.kernels import find_family
from autotune.model.configuration import Value
from autotune.model.problem import Problem
from autotune.model.trial import Verdict, Winner
from autotune.space.family import KernelFamily

_MEASURED = (
    "time_ns", "gflops", "default_ns", "gain_over_default", "gain_low", "gain_high", "baseline_ns",
    "gain_over_baseline", "samples", "verifications",
)  # fmt: skip
_JUDGED = ("is_default", "verdict")
_PROVENANCE = ("driver", "template_hash", "space_version", "tool_version", "measured_at")


def write_csv(tables: list[DeviceTable], family: str) -> str:
    """Return one row per winner, one column per size or parameter, empty where an algorithm has no such parameter."""
    kind = find_family(family)
    sizes = [field.name for field in dataclasses.fields(kind.problem_type)]
    parameters = parameter_names(kind)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["device", "family", *sizes, "algorithm", *parameters, *_MEASURED, *_JUDGED, *_PROVENANCE])
    for table in tables:
        for winner in table.winners:
            chosen = dict(winner.configuration.values)
            cells: list[object] = [winner.device, family]
            cells += [getattr(winner.problem, name) for name in sizes]
            cells += [winner.configuration.algorithm, *(chosen.get(name) for name in parameters)]
            cells += [getattr(winner, name) for name in _MEASURED]
            cells += [int(winner.is_default), winner.verdict.value]
            cells += [*(getattr(winner.provenance, name) for name in _PROVENANCE)]
            writer.writerow([_cell(cell) for cell in cells])
    return text.getvalue()


def write_markdown(tables: list[DeviceTable], family: str) -> str:
    """Return a section for each device with a table of its winners."""
    return "\n".join(_section(table, family) for table in tables) or "Nothing is stored yet.\n"


def parameter_names(family: KernelFamily) -> list[str]:
    """Return the parameters of all algorithms, in the order in which they are declared."""
    return list(dict.fromkeys(p.name for algorithm in family.algorithms for p in algorithm.parameters))


def _cell(value: object) -> object:
    if isinstance(value, float) and not isfinite(value):
        return ""
    # A spreadsheet would run text that starts like a formula; the quotation mark prevents it.
    if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value


def _section(table: DeviceTable, family: str) -> str:
    device = table.device
    lines = [f"## {_plain(device.vendor)} {_plain(device.model)} (`{device.slug}`)", ""]
    lines += [f"Family `{family}`.", ""]
    if not table.winners:
        return "\n".join([*lines, "Nothing is measured yet.", ""])
    lines.append("| shape | algorithm | parameters | time | rate | vs default | vs baseline | driver |")
    lines.append("|---|---|---|---:|---:|---:|---:|---|")
    lines += ["| " + " | ".join(_row(winner)) + " |" for winner in table.winners]
    return "\n".join([*lines, ""])


def _row(winner: Winner) -> list[str]:
    parameters = " ".join(f"{name}={_code(value)}" for name, value in winner.configuration.values)
    over_baseline = winner.gain_over_baseline
    return [
        _plain(winner.problem.label),
        f"`{winner.configuration.algorithm}`",
        f"`{parameters}`",
        _time(winner.time_ns),
        _rate(winner.problem, winner.time_ns),
        _gain(winner),
        "" if over_baseline is None else f"{over_baseline:.2f}x",
        _plain(winner.provenance.driver) or "unknown",
    ]


def _gain(winner: Winner) -> str:
    if winner.verdict is Verdict.DEFAULT_FAILED:
        return "default fails"
    if winner.is_default:
        return "= default"
    text = f"{winner.gain_over_default:.2f}x"
    if not winner.is_final:
        return f"{text}, provisional"
    if isfinite(winner.gain_low) and isfinite(winner.gain_high):
        text += f" ({winner.gain_low:.2f} to {winner.gain_high:.2f})"
    return text


def _rate(problem: Problem, time_ns: float) -> str:
    """Return the rate, in GB/s if the problem is memory-bound: less than one operation for each byte moved."""
    is_of_memory = problem.flops < problem.bytes_moved
    rate = (problem.bytes_moved if is_of_memory else problem.flops) / time_ns
    digits = f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"
    return f"{digits} {'GB/s' if is_of_memory else 'GFLOP/s'}"


def _time(time_ns: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= factor:
            return f"{time_ns / factor:.4g} {unit}"
    return f"{time_ns:.4g} ns"


def _plain(text: str) -> str:
    """Escape a text so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|#&!~$])", r"\\\1", text)


def _code(value: Value) -> str:
    """Escape a text for a code span in a table, where a backslash only escapes the bar."""
    return str(value).replace("`", "'").replace("|", "\\|")
