"""What the core finds by name: commands, links to devices, and what the wings add to the core's own commands.

The wings (`own`, `phone`, `service`) import the core; the core knows them by the names in this module alone, and loads
them when they are used. Other packages add links and commands by entry points of the groups ``autotune.links`` and
``autotune.commands``, and kernel families by ``autotune.families`` (see `kernels`).
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "devices": ("autotune.cli.devices",),
    "tuning": (
        "autotune.cli.run", "autotune.cli.model", "autotune.cli.presets", "autotune.cli.verify",
        "autotune.service.cli.report", "autotune.cli.compile",
    ),
    "kernels of your own": (
        "autotune.own.cli.init", "autotune.own.cli.check", "autotune.own.cli.tune", "autotune.own.cli.capture",
    ),
    "devices without a way back": ("autotune.phone.cli.bundle",),
    "using the results": ("autotune.cli.lookup", "autotune.cli.export"),
    "the database": ("autotune.cli.database",),
    "a service": ("autotune.service.cli.serve", "autotune.service.cli.worker", "autotune.service.cli.jobs"),
    "help": ("autotune.cli.help",),
}  # fmt: skip
"""The modules with commands, in the groups and the order in which `autotune --help` lists these."""

LINKS = {
    "adb": "autotune.phone.links.adb:AdbLink",
    "ssh": "autotune.phone.links.ssh:SshLink",
    "exec": "autotune.phone.links.command:CommandLink",
}
"""Links to devices of other machines, by the scheme with which their selectors begin."""

PARTS = {
    "tune": "autotune.own.tuning:tune",
    "command_worker": "autotune.own.command.worker:CommandWorker",
    "load_file": "autotune.own.loading:load_file",
    "use_file": "autotune.own.tuning:use_file",
    "read_foreign_results": "autotune.own.foreign:read_foreign",
    "export_trials": "autotune.own.kernel_tuner:export_trials",
    "write_report": "autotune.service.report.document:write_report",
    "run_on_service": "autotune.service.cli.jobs:run_elsewhere",
    "patient_worker": "autotune.phone.patience:PatientWorker",
}
"""Functions and classes of the wings that the core calls, by the names under which it asks `part` for them."""

TABLES = ("autotune.service.store",)
"""Modules that declare further tables of the database, which every database has."""


def part(name: str) -> Any:
    """Return one of PARTS, loaded now if it was not before."""
    return _load(PARTS[name])


def find_link(scheme: str) -> Any:
    """Return what makes a link of the rest of its name. Raises KeyError for an unknown scheme."""
    return _load(LINKS[scheme]) if scheme in LINKS else entry_points("autotune.links")[scheme].load()


def schemes() -> list[str]:
    """Return the schemes of all links, those of this package first."""
    return [*LINKS, *entry_points("autotune.links")]


@cache
def entry_points(group: str) -> Mapping[str, "EntryPoint"]:
    """Return the entry points of the installed packages in a group, by name."""
    from importlib.metadata import entry_points  # takes a few milliseconds

    return {point.name: point for point in entry_points(group=group)}


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
