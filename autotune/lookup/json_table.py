"""Reads exported JSON tables as hostile input: only what a kernel family declares. Errors name the faulty value.

`db/table.schema.json` states the same rules for other programs. The bounds are annotations of the model, so that
reading needs the standard library only; the export writes what this module accepts.
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from autotune.codec import Node, Reader, parse, read, read_file, write
from autotune.errors import ProblemError, TableError
from autotune.kernels import family_names, find_family, is_family
from autotune.model.configuration import Configuration
from autotune.model.device import Device, Fault
from autotune.model.problem import Problem
from autotune.model.trial import Winner
from autotune.paths import UPGRADE_HINT
from autotune.space.family import KernelFamily

FORMAT = "autotune-table"
SCHEMA_VERSION = 2
"""Increased when a reader of the previous version would misunderstand a table, so that it refuses the table."""
PLAIN_SCHEMA_VERSION = 1
"""Version of a table whose problems are all plain (`Problem.plain`), as without constant operands: all readers accept
it."""

MAX_FLOPS_PER_SECOND = 1e17
"""A hundred times the fastest existing processor: a time that implies more was not measured."""

_DERIVED = ("gflops", "gain_over_default", "gain_over_baseline")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything in a table."""

    devices: list[Device]
    winners: list[Winner]


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
        raise TableError("is not a tuning table", hint=f'a tuning table has "format": "{FORMAT}"')
    version = Node(document.value.get("schema_version"), "schema_version").whole()
    if version > SCHEMA_VERSION:
        raise TableError(
            f"has schema version {version}; this version of autotune reads versions up to {SCHEMA_VERSION}",
            hint=UPGRADE_HINT,
        )
    if version < 1:
        raise members["schema_version"].wrong("must be at least 1")
    document.record(("format", "schema_version", "devices"))
    devices: dict[str, Device] = {}
    winners: list[Winner] = []
    for node in members["devices"].items():
        device, entries = read_device(node), node.member("entries")
        if device.slug in devices:
            raise node.wrong(f"slug: {device.slug} is already in the table")
        devices[device.slug] = device
        winners.extend(_read_entries(device.slug, entries))
    return Contents(devices=list(devices.values()), winners=winners)


def read_device(node: Node) -> Device:
    """Read a device; its entries are not read yet."""
    # Earlier versions wrote predictors, which nothing uses any more.
    return read(Device, node, ignored=("entries", "predictors"), readers={Fault: _read_fault})


def _read_fault(node: Node) -> Fault:
    """Read a fault. Its names may come from another version, in which case it matches nothing."""
    fault, members = read(Fault, node), node.members()
    if "algorithm" not in members and "parameter" not in members:
        raise node.wrong("needs an algorithm or a parameter")
    if ("value" in members) != ("parameter" in members):
        raise node.wrong("needs parameter and value together")
    return fault


def _read_entries(slug: str, node: Node) -> list[Winner]:
    winners: list[Winner] = []
    seen: dict[tuple[str, str], int] = {}
    for number, item in enumerate(node.items()):
        winner = read_entry(slug, item)
        place = winner.problem.family, winner.problem.key
        if place in seen:
            raise item.wrong(f"problem: {winner.problem.label} is already in entries[{seen[place]}]")
        seen[place] = number
        winners.append(winner)
    return winners


def read_entry(slug: str, node: Node) -> Winner:
    """Read an imported winner of the device with this slug."""
    readers = readers_for(read_family(node.member("family")))
    given = {"device": slug, "source": "imported"}
    winner = read(Winner, node, given=given, ignored=("family", *_DERIVED), readers=readers)
    if winner.problem.flops / winner.time_ns * 1e9 > MAX_FLOPS_PER_SECOND:
        raise node.member("time_ns").wrong(
            f"{winner.time_ns:g} ns for {winner.problem.label} is faster than any device"
        )
    if winner.gain_low > winner.gain_high:
        raise node.member("gain_low").wrong("is above gain_high")
    _check_derived(node.members(), winner)
    return winner


def plain_entry(winner: Winner) -> dict[str, Any]:
    """Return an entry of a table, which `read_entry` reads back."""
    plain = write(winner, without=("device", "source"))
    return {"family": winner.problem.family, **plain, **{name: getattr(winner, name) for name in _DERIVED}}


def _check_derived(members: dict[str, Node], winner: Winner) -> None:
    """Check that derived numbers, which may be missing, do not contradict those that they follow from."""
    for name in _DERIVED:
        node, derived = members.get(name), getattr(winner, name)
        is_claim = name == "gain_over_default" and not winner.is_final  # earlier versions wrote it all the same
        if node is None or is_claim or (node.value is None and derived is None):
            continue
        if derived is None or node.value is None or abs(node.number(0, inf) - derived) > 1e-6 * derived:
            raise node.wrong(f"does not follow from the times, which give {derived}")


def readers_for(family: KernelFamily) -> dict[type, Reader]:
    """Return the readers of problems and configurations of a family, for `codec.read`."""
    return {
        **dict.fromkeys((Problem, family.problem_type), lambda node: read_problem(node, family)),
        Configuration: lambda node: read_configuration(node, family),
    }


def read_family(node: Node) -> KernelFamily:
    """Return the kernel family with this name."""
    # The name selects code to load, so it must be registered.
    if not is_family(node.text()):
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
            raise member.wrong(f"must be {'a string' if name == 'algorithm' else 'a whole number or a string'}")
    values = {name: member.value for name, member in members.items() if name != "algorithm"}
    configuration = family.complete(
        Configuration(algorithm=members["algorithm"].value, values=tuple(sorted(values.items())))
    )
    if misfits := family.misfits(configuration):
        raise node.wrong(misfits[0])
    return configuration
