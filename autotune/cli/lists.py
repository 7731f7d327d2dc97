"""The commands that list: `autotune devices`, `autotune presets`, `autotune status` and `autotune misses`."""

import argparse
import sys

from autotune.cli.lookup import named_device
from autotune.cli.output import print_json, tell
from autotune.codec import write
from autotune.errors import AutotuneError


def devices_command(options: argparse.Namespace) -> int:
    """List this machine's OpenCL devices, and how far their clocks can be trusted."""
    from autotune.device.discovery import discover
    from autotune.device.profile import find_profile
    from autotune.display import print_devices
    from autotune.measure.calibration import try_calibration

    devices = discover()
    profiles = {device.slug: find_profile(device) for device in devices}
    clocks = {} if options.no_clocks else {device.selector: try_calibration(device.selector) for device in devices}
    if not options.json:
        print_devices(devices, {slug: profile.traps for slug, profile in profiles.items()}, sys.stdout, clocks)
        return 0
    rows = []
    for device in devices:
        profile, clock = profiles[device.slug], clocks.get(device.selector)
        told = {"trouble": clock} if isinstance(clock, str) else clock  # why they could not be calibrated
        more = {"selector": device.selector, "profile": profile.name, "traps": profile.traps, "clocks": told}
        rows.append({**write(device), **write(more)})
    print_json(rows)
    return 0


def presets_command(options: argparse.Namespace) -> int:
    """List the matrix products of published networks."""
    from autotune.display import print_presets, print_requests
    from autotune.kernels.presets import PRESETS, preset

    chosen = {name: preset(name) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json(write(chosen))
    elif options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0


def status_command(options: argparse.Namespace) -> int:
    """Summarize what a database holds for each device."""
    from autotune.display import print_overviews
    from autotune.search.overview import survey
    from autotune.store import Store

    with Store.open(options.db, read_only=True) as store:
        slug = named_device(options.device, store.devices()).slug if options.device else None
        found = [overview for overview in survey(store, _drivers()) if slug in (None, overview.device)]
    if slug and not found:
        tell(f"nothing is stored for {slug}")
    if options.json:
        print_json(write(found))
    else:
        print_overviews(found, sys.stdout)
    return 0


def _drivers() -> dict[str, str]:
    """Return the drivers of this machine's devices by slug; empty without devices, which a status does not need."""
    from autotune.device.discovery import discover

    try:
        return {device.slug: device.driver for device in discover()}
    except AutotuneError:
        return {}


def misses_command(options: argparse.Namespace) -> int:
    """List the sizes that lookups asked for and that were never measured."""
    from autotune.display import print_misses
    from autotune.lookup.misses import default_file, forget_misses, read_misses

    path = default_file()
    misses = read_misses(path)
    if options.clear:
        if misses:
            forget_misses(path, set(misses))
        print(f"{len(misses)} forgotten")
        return 0
    rows = [(miss, count) for miss, count in misses.most_common() if options.device in (None, miss.device)]
    if options.json:
        print_json([{"device": m.device, "problem": m.problem.to_dict(), "processes": n} for m, n in rows])
    elif rows:
        print_misses(rows, sys.stdout)
    else:
        tell(f"no lookup has missed a size ({path})")
    return 0
