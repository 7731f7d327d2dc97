"""The commands that neither measure nor build nor write a table: devices, presets, lookup, import."""

import argparse
import re
import sys
from pathlib import Path

from autotune.cli.devices import named_device
from autotune.cli.output import plain_calibration, plain_request, plain_tuned, print_json
from autotune.errors import UsageError
from autotune.family import find_family


def devices_command(options: argparse.Namespace) -> int:
    from autotune.calibrating import try_calibration
    from autotune.device.discovery import discover, to_plain
    from autotune.profile import find_profile

    devices = discover()
    profiles = [find_profile(device) for device in devices]
    clocks = {} if options.no_clocks else {device.selector: try_calibration(device.selector) for device in devices}
    if options.json:
        print_json(
            [
                {
                    **to_plain(device),
                    "profile": profile.name,
                    "traps": list(profile.traps),
                    "clocks": plain_calibration(clocks.get(device.selector)),
                }
                for device, profile in zip(devices, profiles, strict=True)
            ]
        )
        return 0
    from autotune.display import print_devices

    traps = {device.slug: profile.traps for device, profile in zip(devices, profiles, strict=True)}
    print_devices(devices, traps, sys.stdout, clocks)
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

    words = re.findall(r"[^\s,]+", " ".join(options.shape))
    problem = find_family(options.family).problem_type.parse(",".join(words))
    table = TuningTable.open(source)
    device = named_device(options.device, table.devices)
    tuned = table.find(device, problem)
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


def import_command(options: argparse.Namespace) -> int:
    from autotune.export import read_table
    from autotune.store import Store

    devices, winners = read_table(options.file)
    with Store.open(options.db) as store:
        added, kept = store.import_winners(winners, devices)
    print(f"{added} taken over, {kept} left as they were")
    return 0
