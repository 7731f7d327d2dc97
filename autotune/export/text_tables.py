"""Tables as JSON for programs, as CSV for spreadsheets, as Markdown for people; and by size, as TOML and JSON files.

In tables by size, a kind is what two problems must share for a configuration to serve both, such as number types.
"""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, replace
from math import isfinite
from typing import Any
from urllib.parse import quote

from autotune.codec import MAX_BYTES, write
from autotune.errors import ProblemError, TableError
from autotune.export.contents import DeviceTable, plain_part
from autotune.kernels import find_family
from autotune.lookup.json_table import FORMAT, PLAIN_SCHEMA_VERSION, SCHEMA_VERSION, plain_entry
from autotune.model.configuration import Value
from autotune.model.problem import Problem
from autotune.model.trial import Verdict, Winner, time_text

_MEASURED = (
    "time_ns", "gflops", "default_ns", "gain_over_default", "gain_low", "gain_high", "baseline_ns",
    "gain_over_baseline", "samples", "verifications",
)  # fmt: skip
_JUDGED = ("is_default", "verdict")
_PROVENANCE = ("driver", "template_hash", "space_version", "tool_version", "measured_at")
_Sizes = dict[str, dict[str, Any]]


def write_json(tables: Sequence[DeviceTable], _family: str = "") -> str:
    """Return ASCII text in the form of `db/table.schema.json`, one line per member of a device and per entry.

    It holds everything known about each winner, of any families, but neither the time of export nor anything about the
    database it comes from; `lookup/json_table.py` reads it back. Raises TableError when it is too large for that.
    """
    devices = ",\n".join(_json_device(table) for table in tables)
    version = PLAIN_SCHEMA_VERSION if all(plain_part(table) == table for table in tables) else SCHEMA_VERSION
    text = f'{{\n"format": {_compact(FORMAT)},\n"schema_version": {version},\n"devices": [{_members(devices)}]\n}}\n'
    if len(text) > MAX_BYTES:
        raise TableError(f"the table has more than {MAX_BYTES // 2**20} MiB", hint="export one device at a time")
    return text


def _json_device(table: DeviceTable) -> str:
    lines = [f"{_compact(name)}: {_compact(value)}" for name, value in write(table.device).items()]
    entries = ",\n".join(_compact(plain_entry(winner)) for winner in table.winners)
    lines.append(f'"entries": [{_members(entries)}]')
    return "{\n" + ",\n".join(lines) + "\n}"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _members(text: str) -> str:
    return f"\n{text}\n" if text else ""


def write_csv(tables: Sequence[DeviceTable], family: str) -> str:
    """Return one row per winner, one column per size or parameter, empty where an algorithm has no such parameter."""
    kind = find_family(family)
    sizes = [field.name for field in dataclasses.fields(kind.problem_type)]
    parameters = kind.parameter_names
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


def write_markdown(tables: Sequence[DeviceTable], family: str) -> str:
    """Return a section for each device with a table of its winners."""
    return "\n".join(_section(table, family) for table in tables) or "Nothing is stored yet.\n"


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
        time_text(winner.time_ns),
        _rate(winner.problem, winner.time_ns),
        _gain(winner),
        "" if over_baseline is None else f"{over_baseline:.2f}x",
        _plain(winner.provenance.driver) or "unknown",
    ]


def _gain(winner: Winner) -> str:
    if winner.verdict is Verdict.DEFAULT_FAILED:
        return "default fails"
    if winner.gain_over_default is None:
        return "provisional"
    if winner.is_default:
        return "= default"
    text = f"{winner.gain_over_default:.2f}x"
    if isfinite(winner.gain_low) and isfinite(winner.gain_high):
        text += f" ({winner.gain_low:.2f} to {winner.gain_high:.2f})"
    return text


def _rate(problem: Problem, time_ns: float) -> str:
    """Return the rate, in GB/s if the problem is memory-bound: less than one operation for each byte moved."""
    if find_family(problem.family).is_command:
        return problem.rate_text(time_ns)
    is_of_memory = problem.flops < problem.bytes_moved
    rate = (problem.bytes_moved if is_of_memory else problem.flops) / time_ns
    digits = f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"
    return f"{digits} {'GB/s' if is_of_memory else 'GFLOP/s'}"


def _plain(text: str) -> str:
    """Escape a text so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|#&!~$])", r"\\\1", text)


def _code(value: Value) -> str:
    """Escape a text for a code span in a table, where a backslash only escapes the bar."""
    return str(value).replace("`", "'").replace("|", "\\|")


def write_files(tables: Sequence[DeviceTable], _family: str = "") -> str:
    """Return JSON with the text of each file by its name, such as ``blur,device=adreno-730,type=half.json``."""
    files = {f"{name}.json": _file(sizes) for name, sizes in _by_kind(tables).items()}
    return json.dumps({"format": "autotune-files", "files": files}, indent=1) + "\n"


def write_toml(tables: Sequence[DeviceTable], _family: str = "") -> str:
    """Return TOML with a table for each size within one for each family, device and kind, named as the files are."""
    lines = ["# Written by autotune: configurations by family, device and kind, then by size."]
    for name, sizes in _by_kind(tables).items():
        for size, entry in sizes.items():
            lines += ["", f"[{_toml(name)}.{_toml(size)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in entry.items() if value is not None]
    return "\n".join(lines) + "\n"


def _by_kind(tables: Sequence[DeviceTable]) -> dict[str, _Sizes]:
    """Return the winners by the names of their kinds and by size, in the order of the tables."""
    found: dict[str, _Sizes] = {}
    for table in tables:
        for winner in table.winners:
            problem = winner.problem
            kind = [problem.family, f"device={winner.device}"]
            kind += [f"{name}={quote(text, safe='')}" for name, text in problem.kind]
            found.setdefault(",".join(kind), {})[_size(problem)] = _entry(winner)
    return dict(sorted(found.items()))


def _size(problem: Problem) -> str:
    """Return the sizes, and the other numbers that do not follow from them, such as ``rows=64,columns=32,pitch=40``."""
    names = [field.name for field in fields(problem) if field.type is int and not _follows(problem, field)]
    return ",".join(f"{name}={getattr(problem, name)}" for name in names)


def _follows(problem: Problem, field: "Field[Any]") -> bool:
    """Return whether the problem is the same without the number, as with a row pitch that leaves no gap."""
    if field.name in problem.size_axes or field.default is MISSING:
        return False
    try:
        return replace(problem, **{field.name: field.default}) == problem
    except ProblemError:
        return False


def _entry(winner: Winner) -> dict[str, Any]:
    """Return what is known of a winner besides device and problem: configuration, times, provenance."""
    return {name: value for name, value in plain_entry(winner).items() if name not in ("family", "problem")}


def _file(sizes: _Sizes) -> str:
    lines = ",\n".join(f"{json.dumps(size)}: {json.dumps(entry, allow_nan=False)}" for size, entry in sizes.items())
    return f'{{\n"format": "autotune-sizes",\n"sizes": {{\n{lines}\n}}\n}}\n'


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(item)}' for name, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
