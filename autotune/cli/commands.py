"""The commands besides `run`: devices, presets, lookup, export, import."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.output import plain_request, plain_tuned, print_json, tell, write
from autotune.cli.run import FAMILY
from autotune.errors import DeviceSelectionError, UsageError
from autotune.family import find_family

if TYPE_CHECKING:
    from autotune.family import Device


def devices_command(options: argparse.Namespace) -> int:
    from autotune.device.discovery import discover, to_plain
    from autotune.profile import find_profile

    devices = discover()
    profiles = [find_profile(device) for device in devices]
    if options.json:
        print_json(
            [
                {**to_plain(device), "profile": profile.name, "traps": list(profile.traps)}
                for device, profile in zip(devices, profiles, strict=True)
            ]
        )
        return 0
    from autotune.display import print_devices

    traps = {device.slug: profile.traps for device, profile in zip(devices, profiles, strict=True)}
    print_devices(devices, traps, sys.stdout)
    return 0


def presets_command(options: argparse.Namespace) -> int:
    from autotune.presets import PRESETS, preset

    chosen = {name: preset(name) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json({name: [plain_request(r) for r in requests] for name, requests in chosen.items()})
        return 0
    from autotune.display import print_presets, print_requests

    if options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0


def lookup_command(options: argparse.Namespace) -> int:
    source = options.table or _database_file(options.db)
    from autotune.lookup import TuningTable

    problem = find_family(FAMILY).problem_type.from_dict({"m": options.m, "n": options.n, "k": options.k})
    table = TuningTable.open(source)
    device = _named_device(options.device, table.devices)
    tuned = table.find(device.slug, problem)
    if options.json:
        print_json({"device": device.slug, "problem": problem.to_dict(), **plain_tuned(tuned)})
        return 0
    from autotune.display import print_configuration, time_text

    facts = [("shape", problem.label), ("device", device.slug), ("match", tuned.match.value)]
    if options.explain:
        facts.append(("because", tuned.because))
        if tuned.source_problem is not None:
            facts.append(("measured for", tuned.source_problem.label))
    if tuned.time_ns is not None:
        facts.append(("time", time_text(tuned.time_ns)))
    print_configuration(tuned.configuration, facts, sys.stdout)
    return 0


def _database_file(database: str | None) -> Path | None:
    """The SQLite file that --db names, None for the user's own. Raises UsageError for a database server."""
    if database is None:
        return None
    if database.startswith("sqlite:///"):
        return Path(database.removeprefix("sqlite:///"))
    if "://" in database:
        raise UsageError("lookup reads files", hint="autotune export --format json, then lookup --table FILE")
    return Path(database)


def export_command(options: argparse.Namespace) -> int:
    if options.format == "sqlite" and options.output is None:
        raise UsageError("a SQLite table is a file", hint="--output FILE")
    from autotune.export import export_table
    from autotune.store import Store

    with Store.open(options.db, read_only=True) as store:
        slug = _named_device(options.device, store.devices()).slug if options.device else None
        if options.format == "sqlite":
            store.snapshot(options.output, slug)
        else:
            write(options.output, export_table(store, slug, FAMILY, options.format))
    if options.output is not None:
        tell(f"wrote {options.output}")
    return 0


def import_command(options: argparse.Namespace) -> int:
    from autotune.export import read_table
    from autotune.store import Store

    devices, winners = read_table(options.file)
    with Store.open(options.db) as store:
        added, kept = store.import_winners(winners, devices)
    print(f"{added} taken over, {kept} left as they were")
    return 0


def _named_device(selector: str, known: "Sequence[Device]") -> "Device":
    """A device of a table by its slug, else one of this machine, else one of the table by any other name."""
    from autotune.device.discovery import discover, select

    wanted = selector.strip().lower()
    for device in known:
        if device.slug == wanted:
            return device
    try:
        return select(selector, discover())
    except DeviceSelectionError:
        with contextlib.suppress(DeviceSelectionError):
            return select(selector, known)
        raise
