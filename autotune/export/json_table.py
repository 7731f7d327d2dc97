"""The JSON table: everything known about each winner, for programs; `lookup/json_table.py` reads it back."""

import json
from typing import Any

from autotune.codec import MAX_BYTES, write
from autotune.errors import TableError
from autotune.export.contents import DeviceTable, plain_part
from autotune.lookup.json_table import FORMAT, PLAIN_SCHEMA_VERSION, SCHEMA_VERSION, plain_entry
from autotune.lookup.values import plain_predictor


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
    lines = [f"{_compact(name)}: {_compact(value)}" for name, value in write(table.device).items()]
    entries = ",\n".join(_compact(plain_entry(winner)) for winner in table.winners)
    lines.append(f'"entries": [{_lines(entries)}]')
    if table.predictors:
        predictors = ",\n".join(_compact(plain_predictor(predictor)) for predictor in table.predictors)
        lines.append(f'"predictors": [{_lines(predictors)}]')
    return "{\n" + ",\n".join(lines) + "\n}"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _lines(text: str) -> str:
    return f"\n{text}\n" if text else ""
