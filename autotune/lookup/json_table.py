"""The exported JSON table, read as hostile input: what it may hold, and errors that name the path of what is wrong.

`db/table.schema.json` says the same for other programs. What is allowed here is checked by hand, so that reading
needs the standard library only; export writes what this file accepts.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, get_args, get_origin

from autotune.errors import ProblemError, TableError
from autotune.family import Configuration, Device, DeviceLimits, KernelFamily, Problem, family_names, find_family
from autotune.trial import Provenance, Verdict, Winner

FORMAT = "autotune-table"
SCHEMA_VERSION = 1
"""Raised when a reader of the version before would misunderstand; it then refuses the table."""

MAX_BYTES = 32 * 2**20
MAX_TEXT = 1024
MAX_ITEMS = 1024
"""In a list of a device's limits."""
MAX_NUMBER = 2**63 - 1
MAX_TIME_NS = 1e15
"""Eleven days."""
MAX_FLOPS_PER_SECOND = 1e17
"""A hundred times the fastest processor there is: a time that would need more was not measured."""

DEVICE_TEXTS = ("vendor", "model", "platform", "name", "version", "opencl_c_version", "driver")
PROVENANCE_TEXTS = ("driver", "template_hash", "tool_version", "measured_at")

_MEASURED = ("time_ns", "default_ns", "baseline_ns", "gain_low", "gain_high", "samples", "is_default")
_LATER = ("verdict", "verifications")
"""Not in the first tables."""
_DERIVED = ("gflops", "gain_over_default", "gain_over_baseline")
_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Controls, line ends, marks that reorder text, halves of characters."""
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOMENT = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(Z|\+00:00)", re.ASCII)


def read_table(source: str | bytes | Path) -> tuple[list[Device], list[Winner]]:
    """Devices and imported winners of a JSON text or file. Raises TableError, one line that names the path."""
    if not isinstance(source, Path):
        return _read(_parse(source))
    try:
        return _read(_parse(_read_file(source)))
    except TableError as error:
        raise TableError(f"{source}: {error.message}", hint=error.hint) from error


def printable(text: str) -> str:
    """The text as a table may hold it: no controls, and not too long."""
    return _UNPRINTABLE.sub(" ", text)[:MAX_TEXT]


def _visible(name: str) -> str:
    return _UNPRINTABLE.sub("?", name[:80])


def undeclared(family: KernelFamily, configuration: Configuration) -> str:
    """The first thing in a configuration that its family does not declare, for people; empty when there is none."""
    algorithm = next((a for a in family.algorithms if a.name == configuration.algorithm), None)
    if algorithm is None:
        known = ", ".join(a.name for a in family.algorithms)
        return f"algorithm: {family.name} has no {configuration.algorithm[:80]!r}, only {known}"
    values = dict(configuration.values)
    for name in values:
        if name not in algorithm.by_name:
            return f"{_visible(name)}: {algorithm.name} has no such parameter"
    for name, parameter in algorithm.by_name.items():
        if name not in values:
            return f"{name}: is missing"
        if not any(type(values[name]) is type(choice) and values[name] == choice for choice in parameter.values):
            return f"{name}: {str(values[name])[:40]!r} is not among {', '.join(map(str, parameter.values))}"
    return ""


class _Node:
    """A value of the document and where it stands."""

    def __init__(self, value: Any, path: str) -> None:
        self.value = value
        self.path = path

    def wrong(self, what: str, *, hint: str = "") -> TableError:
        return TableError(f"{self.path}: {what}" if self.path else what, hint=hint)

    def record(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, "_Node"]:
        """The members of an object that has all of `required` and nothing besides `optional`."""
        members = self.members()
        for name in members:
            if name not in required and name not in optional:
                raise self.wrong(f"has an unknown member {name[:80]!r}")
        for name in required:
            if name not in members:
                raise self.wrong(f"{name} is missing")
        return members

    def members(self) -> dict[str, "_Node"]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object, not {_kind(self.value)}")
        prefix = f"{self.path}." if self.path else ""
        return {name: _Node(value, prefix + _visible(name)) for name, value in self.value.items()}

    def items(self, most: int | None = None) -> list["_Node"]:
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list, not {_kind(self.value)}")
        if most is not None and len(self.value) > most:
            raise self.wrong(f"has more than {most} items")
        return [_Node(value, f"{self.path}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"must be a text, not {_kind(self.value)}")
        if len(self.value) > MAX_TEXT:
            raise self.wrong(f"is longer than {MAX_TEXT} characters")
        if _UNPRINTABLE.search(self.value):
            raise self.wrong("has a control character")
        return self.value

    def slug(self) -> str:
        if len(self.text()) > 64 or not _SLUG.fullmatch(self.value):
            raise self.wrong("must be up to 64 small letters, digits and single hyphens")
        return str(self.value)

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong(f"must be true or false, not {_kind(self.value)}")
        return self.value

    def whole(self, most: int = MAX_NUMBER) -> int:
        if type(self.value) is not int:
            raise self.wrong(f"must be a whole number, not {_kind(self.value)}")
        if not 0 <= self.value <= most:
            raise self.wrong(f"must be from 0 to {most}, not {self.value}")
        return self.value

    def number(self, most: float) -> float:
        if type(self.value) not in (int, float):
            raise self.wrong(f"must be a number, not {_kind(self.value)}")
        if not (isfinite(self.value) and 0 < self.value <= most):
            raise self.wrong(f"must be above 0 and at most {most:g}, not {self.value}")
        return float(self.value)


def _read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _too_large()
        with path.open("rb") as file:
            # A pipe or a device has no size to look at beforehand.
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}") from error


def _too_large() -> TableError:
    return TableError(f"a table has at most {MAX_BYTES // 2**20} MiB", hint="export one device at a time")


def _parse(source: str | bytes) -> _Node:
    if len(source) > MAX_BYTES:
        raise _too_large()
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=_unique, parse_int=_parse_whole, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise TableError(f"byte {error.start} is not UTF-8 text") from error
    except RecursionError as error:
        raise TableError("lists and objects are nested too deeply") from error
    except json.JSONDecodeError as error:
        raise TableError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    return _Node(data, "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"a member {name[:80]!r} stands twice in one object")
        found[name] = value
    return found


def _parse_whole(digits: str) -> int:
    if len(digits) > 20:
        raise TableError(f"the number {digits[:20]}... is too large")
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise TableError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _read(document: _Node) -> tuple[list[Device], list[Winner]]:
    members = document.members()
    if "format" not in members or members["format"].value != FORMAT:
        raise TableError("is not a tuning table", hint=f'its "format" would be "{FORMAT}"')
    version = _Node(document.value.get("schema_version"), "schema_version").whole()
    if version > SCHEMA_VERSION:
        raise TableError(
            f"has schema version {version}, this version of autotune knows {SCHEMA_VERSION} at most",
            hint="upgrade autotune: pip install --upgrade autotune",
        )
    if version < 1:
        raise members["schema_version"].wrong("must be at least 1")
    document.record(("format", "schema_version", "devices"))
    devices: dict[str, Device] = {}
    winners: list[Winner] = []
    for node in members["devices"].items():
        device, entries = _read_device(node)
        if device.slug in devices:
            raise node.wrong(f"slug: {device.slug} stands in the table already")
        devices[device.slug] = device
        winners.extend(_read_entries(device.slug, entries))
    return list(devices.values()), winners


def _read_device(node: _Node) -> tuple[Device, _Node]:
    members = node.record(("slug", "family", *DEVICE_TEXTS, "limits", "entries"))
    texts = {name: members[name].text() for name in DEVICE_TEXTS}
    device = Device(
        slug=members["slug"].slug(),
        family=members["family"].slug(),
        limits=_read_limits(members["limits"]),
        **texts,
    )
    return device, members["entries"]


def _read_limits(node: _Node) -> DeviceLimits:
    fields = {field.name: field.type for field in dataclasses.fields(DeviceLimits)}
    members = node.record((), tuple(fields))
    limits = DeviceLimits(**{name: _read_limit(member, fields[name]) for name, member in members.items()})
    if len(limits.max_work_item_sizes) < 2:
        raise node.wrong("max_work_item_sizes: needs at least 2 items")
    return limits


def _read_limit(node: _Node, wanted: Any) -> Any:
    if get_origin(wanted) is tuple:
        return tuple(_read_limit(item, get_args(wanted)[0]) for item in node.items(MAX_ITEMS))
    if wanted is bool:
        return node.truth()
    return node.text() if wanted is str else node.whole()


def _read_entries(slug: str, node: _Node) -> list[Winner]:
    winners: list[Winner] = []
    seen: dict[tuple[str, str], int] = {}
    for number, item in enumerate(node.items()):
        winner = _read_entry(slug, item)
        place = winner.problem.family, winner.problem.key
        if place in seen:
            raise item.wrong(f"problem: {winner.problem.label} stands in entries[{seen[place]}] already")
        seen[place] = number
        winners.append(winner)
    return winners


def _read_entry(slug: str, node: _Node) -> Winner:
    members = node.record(("family", "problem", "configuration", *_MEASURED, "provenance"), (*_DERIVED, *_LATER))
    family = _read_family(members["family"])
    problem = _read_problem(members["problem"], family)
    time_ns = members["time_ns"].number(MAX_TIME_NS)
    samples, is_default = members["samples"].whole(2**31 - 1), members["is_default"].truth()
    if problem.flops / time_ns * 1e9 > MAX_FLOPS_PER_SECOND:
        raise members["time_ns"].wrong(f"{time_ns:g} ns for {problem.label} is faster than any device")
    winner = Winner(
        device=slug,
        problem=problem,
        configuration=_read_configuration(members["configuration"], family),
        time_ns=time_ns,
        default_ns=members["default_ns"].number(MAX_TIME_NS),
        baseline_ns=_optional(members["baseline_ns"], MAX_TIME_NS),
        gain_low=_gain(members["gain_low"]),
        gain_high=_gain(members["gain_high"]),
        samples=samples,
        is_default=is_default,
        verdict=_read_verdict(members.get("verdict")) or Verdict.presumed(samples=samples, is_default=is_default),
        verifications=members["verifications"].whole(2**31 - 1) if "verifications" in members else 0,
        provenance=_read_provenance(members["provenance"]),
        source="imported",
    )
    if winner.gain_low > winner.gain_high:
        raise members["gain_low"].wrong("is above gain_high")
    _check_derived(members, winner)
    return winner


def _read_family(node: _Node) -> KernelFamily:
    # A module is loaded by this name: only after it was found in the list.
    if node.text() not in family_names():
        raise node.wrong(f"there is no kernel family {node.value[:80]!r}, only {', '.join(family_names())}")
    return find_family(node.value)


def _read_problem(node: _Node, family: KernelFamily) -> Problem:
    for member in node.members().values():
        if isinstance(member.value, str):
            member.text()
    try:
        return family.problem_type.from_dict(node.value)
    except ProblemError as error:
        raise node.wrong(error.message, hint=error.hint) from error


def _read_configuration(node: _Node, family: KernelFamily) -> Configuration:
    members = node.members()
    if "algorithm" not in members:
        raise node.wrong("algorithm is missing")
    for name, member in members.items():
        if type(member.value) not in (int, str) or (name == "algorithm" and type(member.value) is not str):
            raise member.wrong(f"must be {'a text' if name == 'algorithm' else 'a whole number or a text'}")
    values = {name: member.value for name, member in members.items() if name != "algorithm"}
    configuration = family.complete(
        Configuration(algorithm=members["algorithm"].value, values=tuple(sorted(values.items())))
    )
    problem = undeclared(family, configuration)
    if problem:
        raise TableError(f"{node.path}.{problem}")
    return configuration


def _read_provenance(node: _Node) -> Provenance:
    members = node.record((*PROVENANCE_TEXTS, "space_version"))
    texts = {name: members[name].text() for name in PROVENANCE_TEXTS}
    if not _MOMENT.fullmatch(texts["measured_at"]):
        raise members["measured_at"].wrong("must be a moment in UTC such as 2026-01-31T12:00:00Z")
    return Provenance(space_version=members["space_version"].whole(2**31 - 1), **texts)


def _read_verdict(node: _Node | None) -> Verdict | None:
    known = [verdict.value for verdict in Verdict]
    if node is not None and node.value not in known:
        raise node.wrong(f"must be one of {', '.join(known)}")
    return Verdict(node.value) if node is not None else None


def _optional(node: _Node, most: float) -> float | None:
    return None if node.value is None else node.number(most)


def _gain(node: _Node) -> float:
    """A gain, or NaN where the table says null: not known."""
    gain = _optional(node, MAX_TIME_NS)
    return nan if gain is None else gain


def _check_derived(members: dict[str, _Node], winner: Winner) -> None:
    """Numbers that follow from others may be left out, but not contradict them."""
    for name in _DERIVED:
        node, told = members.get(name), getattr(winner, name)
        if node is None or (node.value is None and told is None):
            continue
        if told is None or abs(node.number(inf) - told) > 1e-6 * told:
            raise node.wrong(f"does not follow from the times, which give {told}")
