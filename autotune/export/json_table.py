"""The JSON table: everything known about each winner, for programs; `lookup/json_table.py` reads it back."""

import json
from math import isfinite
from typing import Any

from autotune.errors import TableError
from autotune.export.contents import DeviceTable, plain_part
from autotune.lookup.document import MAX_BYTES
from autotune.lookup.json_table import DEVICE_TEXTS, FORMAT, PLAIN_SCHEMA_VERSION, SCHEMA_VERSION
from autotune.lookup.predictor_text import to_plain
from autotune.model.trial import Winner


def write_json(tables: list[DeviceTable]) -> str:
    """Return ASCII text in the form of `db/table.schema.json`, one line per member of a device, entry and predictor.

    It contains neither the time of export nor anything about the database it comes from. Raises TableError when it is
    too large to be read back.
    """
    devices = ",\n".join(_device(table) for table in tables)
    version = PLAIN_SCHEMA_VERSION if all(plain_part(table) == table for table in tables) else SCHEMA_VERSION
    text = f'{{\n"format": {_compact(FORMAT)},\n"schema_version": {version},\n"devices": [{_lines(devices)}]\n}}\n'
    if len(text) > MAX_BYTES:
        raise TableError(f"the table has more than {MAX_BYTES // 2**20} MiB", hint="export one device at a time")
    return text


def _device(table: DeviceTable) -> str:
    device = table.device
    members: dict[str, Any] = {
        "slug": device.slug,
        "family": device.family,
        **{name: getattr(device, name) for name in DEVICE_TEXTS},
        "limits": device.limits.to_dict(),
    }
    lines = [f"{_compact(name)}: {_compact(value)}" for name, value in members.items()]
    entries = ",\n".join(_compact(plain_entry(winner)) for winner in table.winners)
    lines.append(f'"entries": [{_lines(entries)}]')
    if table.predictors:
        predictors = ",\n".join(_compact(to_plain(predictor)) for predictor in table.predictors)
        lines.append(f'"predictors": [{_lines(predictors)}]')
    return "{\n" + ",\n".join(lines) + "\n}"


def plain_entry(winner: Winner) -> dict[str, Any]:
    """Return an entry of a table, which `read_entry` reads back."""
    return {
        "family": winner.problem.family,
        "problem": winner.problem.to_dict(),
        "configuration": winner.configuration.to_dict(),
        "time_ns": winner.time_ns,
        "gflops": winner.gflops,
        "default_ns": winner.default_ns,
        "gain_over_default": winner.gain_over_default,
        "gain_low": _known(winner.gain_low),
        "gain_high": _known(winner.gain_high),
        "baseline_ns": winner.baseline_ns,
        "gain_over_baseline": winner.gain_over_baseline,
        "samples": winner.samples,
        "is_default": winner.is_default,
        "verdict": winner.verdict.value,
        "verifications": winner.verifications,
        "provenance": vars(winner.provenance),
    }


def _known(gain: float) -> float | None:
    return gain if isfinite(gain) else None


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _lines(text: str) -> str:
    return f"\n{text}\n" if text else ""
