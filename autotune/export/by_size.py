"""Tables whose keys are sizes, for programs that read no others: TOML, and a JSON file for each device and kind.

A kind is what two problems must share for a configuration to serve both, such as the types of the numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, replace
from typing import Any
from urllib.parse import quote

from autotune.errors import ProblemError
from autotune.export.contents import DeviceTable
from autotune.lookup.json_table import plain_entry
from autotune.model.problem import Problem
from autotune.model.trial import Winner

_Sizes = dict[str, dict[str, Any]]


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
