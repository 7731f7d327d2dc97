"""Reads exported JSON tables as hostile input; errors name the path of the faulty value.

`db/table.schema.json` states the same rules for other programs. They are checked by hand here, so that reading needs
the standard library only; the export writes what this module accepts.
"""

import dataclasses
import re
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, get_args, get_origin

from autotune.errors import ProblemError, TableError
from autotune.kernels import family_names, find_family
from autotune.lookup.document import Node, parse, read_file
from autotune.lookup.predictor import Predictor
from autotune.lookup.predictor_text import read_predictors
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.problem import Problem
from autotune.model.trial import Provenance, Verdict, Winner
from autotune.paths import UPGRADE_HINT
from autotune.space.family import KernelFamily

FORMAT = "autotune-table"
SCHEMA_VERSION = 2
"""Increased when a reader of the previous version would misunderstand a table, so that it refuses the table."""
PLAIN_SCHEMA_VERSION = 1
"""Version of a table whose problems are all plain (`Problem.plain`), as without constant operands: all readers accept
it."""

MAX_ITEMS = 1024
"""Maximum length of a list in a device's limits."""
MAX_TIME_NS = 1e15
"""Eleven days."""
MAX_FLOPS_PER_SECOND = 1e17
"""A hundred times the fastest existing processor: a time that implies more was not measured."""

DEVICE_TEXTS = ("vendor", "model", "platform", "name", "version", "opencl_c_version", "driver")
PROVENANCE_TEXTS = ("driver", "template_hash", "tool_version", "measured_at")

_ENTRY = (
    "family", "problem", "configuration", "time_ns", "default_ns", "baseline_ns", "gain_low", "gain_high", "samples",
    "is_default", "verdict", "verifications", "provenance",
)  # fmt: skip
_DERIVED = ("gflops", "gain_over_default", "gain_over_baseline")
_MOMENT = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(Z|\+00:00)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything in a table."""

    devices: list[Device]
    winners: list[Winner]
    predictors: dict[str, list[Predictor]]
    """Keyed by device slug."""


def read_table(source: str | bytes | Path) -> tuple[list[Device], list[Winner]]:
    """Read devices and imported winners from a JSON text or file. Raises TableError, one line that names the path."""
    contents = read_contents(source)
    return contents.devices, contents.winners


def read_contents(source: str | bytes | Path) -> Contents:
    """Read a JSON text or file. Raises TableError, one line that names the path."""
    if not isinstance(source, Path):
        return _read(parse(source))
    try:
        return _read(parse(read_file(source)))
    except TableError as error:
        raise TableError(f"{source}: {error.message}", hint=error.hint) from error


def _read(document: Node) -> Contents:
    members = document.members()
    if "format" not in members or members["format"].value != FORMAT:
        raise TableError("is not a tuning table", hint=f'its "format" would be "{FORMAT}"')
    version = Node(document.value.get("schema_version"), "schema_version").whole()
    if version > SCHEMA_VERSION:
        raise TableError(
            f"has schema version {version}, this version of autotune knows {SCHEMA_VERSION} at most",
            hint=UPGRADE_HINT,
        )
    if version < 1:
        raise members["schema_version"].wrong("must be at least 1")
    document.record(("format", "schema_version", "devices"))
    devices: dict[str, Device] = {}
    winners: list[Winner] = []
    predictors: dict[str, list[Predictor]] = {}
    for node in members["devices"].items():
        device, entries = read_device(node)
        if device.slug in devices:
            raise node.wrong(f"slug: {device.slug} stands in the table already")
        devices[device.slug] = device
        winners.extend(_read_entries(device.slug, entries))
        predictors[device.slug] = read_predictors(node.members().get("predictors", Node([], "")))
    return Contents(devices=list(devices.values()), winners=winners, predictors=predictors)


def read_device(node: Node) -> tuple[Device, Node]:
    """Return a device and its entries, which are not read yet."""
    members = node.record(("slug", "family", *DEVICE_TEXTS, "limits", "entries"), ("predictors",))
    texts = {name: members[name].text() for name in DEVICE_TEXTS}
    device = Device(
        slug=members["slug"].slug(),
        family=members["family"].slug(),
        limits=_read_limits(members["limits"]),
        **texts,
    )
    return device, members["entries"]


def _read_limits(node: Node) -> DeviceLimits:
    fields = {field.name: field.type for field in dataclasses.fields(DeviceLimits)}
    members = node.record((), tuple(fields))
    limits = DeviceLimits(**{name: _read_limit(member, fields[name]) for name, member in members.items()})
    if len(limits.max_work_item_sizes) < 2:
        raise node.wrong("max_work_item_sizes: needs at least 2 items")
    return limits


def _read_limit(node: Node, wanted: Any) -> Any:
    if get_origin(wanted) is tuple:
        return tuple(_read_limit(item, get_args(wanted)[0]) for item in node.items(MAX_ITEMS))
    if wanted is bool:
        return node.truth()
    if wanted is Fault:
        return _read_fault(node)
    return node.text() if wanted is str else node.whole()


def _read_fault(node: Node) -> Fault:
    """Read a fault. Its names may come from another version, in which case it matches nothing."""
    members = node.record(("family",), ("algorithm", "parameter", "value", "is_imported"))
    texts = {name: members[name].text() for name in members if name not in ("value", "is_imported")}
    if "algorithm" not in members and "parameter" not in members:
        raise node.wrong("needs an algorithm or a parameter")
    if ("value" in members) != ("parameter" in members):
        raise node.wrong("a parameter comes with its value")
    value = members.get("value", Node("", ""))
    return Fault(
        family=texts["family"],
        algorithm=texts.get("algorithm", ""),
        parameter=texts.get("parameter", ""),
        value=value.text() if isinstance(value.value, str) else value.whole(),
        is_imported="is_imported" in members and members["is_imported"].truth(),
    )


def _read_entries(slug: str, node: Node) -> list[Winner]:
    winners: list[Winner] = []
    seen: dict[tuple[str, str], int] = {}
    for number, item in enumerate(node.items()):
        winner = read_entry(slug, item)
        place = winner.problem.family, winner.problem.key
        if place in seen:
            raise item.wrong(f"problem: {winner.problem.label} stands in entries[{seen[place]}] already")
        seen[place] = number
        winners.append(winner)
    return winners


def read_entry(slug: str, node: Node) -> Winner:
    """Read an imported winner of the device with this slug."""
    members = node.record(_ENTRY, _DERIVED)
    family = read_family(members["family"])
    problem = read_problem(members["problem"], family)
    time_ns = members["time_ns"].number(MAX_TIME_NS)
    if problem.flops / time_ns * 1e9 > MAX_FLOPS_PER_SECOND:
        raise members["time_ns"].wrong(f"{time_ns:g} ns for {problem.label} is faster than any device")
    winner = Winner(
        device=slug,
        problem=problem,
        configuration=read_configuration(members["configuration"], family),
        time_ns=time_ns,
        default_ns=members["default_ns"].number(MAX_TIME_NS),
        baseline_ns=_optional(members["baseline_ns"], MAX_TIME_NS),
        gain_low=_gain(members["gain_low"]),
        gain_high=_gain(members["gain_high"]),
        samples=members["samples"].whole(2**31 - 1),
        is_default=members["is_default"].truth(),
        verdict=_read_verdict(members["verdict"]),
        verifications=members["verifications"].whole(2**31 - 1),
        provenance=_read_provenance(members["provenance"]),
        source="imported",
    )
    if winner.gain_low > winner.gain_high:
        raise members["gain_low"].wrong("is above gain_high")
    _check_derived(members, winner)
    return winner


def read_family(node: Node) -> KernelFamily:
    """Return the kernel family with this name."""
    # The name selects a module to import, so it must be in the list.
    if node.text() not in family_names():
        raise node.wrong(f"there is no kernel family {node.value[:80]!r}, only {', '.join(family_names())}")
    return find_family(node.value)


def read_problem(node: Node, family: KernelFamily) -> Problem:
    """Return the problem, whose sizes and types must be valid for the family."""
    for member in node.members().values():
        if isinstance(member.value, str):
            member.text()
    try:
        return family.problem_type.from_dict(node.value)
    except ProblemError as error:
        raise node.wrong(error.message, hint=error.hint) from error


def read_configuration(node: Node, family: KernelFamily) -> Configuration:
    """Return the configuration, which the family must declare."""
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
    if misfits := family.misfits(configuration):
        raise node.wrong(misfits[0])
    return configuration


def _read_provenance(node: Node) -> Provenance:
    members = node.record((*PROVENANCE_TEXTS, "space_version"))
    texts = {name: members[name].text() for name in PROVENANCE_TEXTS}
    if not _MOMENT.fullmatch(texts["measured_at"]):
        raise members["measured_at"].wrong("must be a moment in UTC such as 2026-01-31T12:00:00Z")
    return Provenance(space_version=members["space_version"].whole(2**31 - 1), **texts)


def _read_verdict(node: Node) -> Verdict:
    known = [verdict.value for verdict in Verdict]
    if node.value not in known:
        raise node.wrong(f"must be one of {', '.join(known)}")
    return Verdict(node.value)


def _optional(node: Node, most: float) -> float | None:
    return None if node.value is None else node.number(most)


def _gain(node: Node) -> float:
    """Return a gain, or NaN for null (unknown)."""
    gain = _optional(node, MAX_TIME_NS)
    return nan if gain is None else gain


def _check_derived(members: dict[str, Node], winner: Winner) -> None:
    """Check that derived numbers, which may be missing, do not contradict those that they follow from."""
    for name in _DERIVED:
        node, told = members.get(name), getattr(winner, name)
        if node is None or (node.value is None and told is None):
            continue
        if told is None or abs(node.number(inf) - told) > 1e-6 * told:
            raise node.wrong(f"does not follow from the times, which give {told}")
