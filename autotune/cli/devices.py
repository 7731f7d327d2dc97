"""The command `autotune devices`: list this machine's OpenCL devices, and how far their clocks can be trusted."""

import argparse
import sys

from autotune.cli.arguments import JSON, command, flag
from autotune.cli.output import print_json
from autotune.codec import write


@command(
    flag("--no-clocks", "ask the drivers only, run nothing on the devices"),
    JSON,
    examples=("devices", "devices --no-clocks --json"),
)
def devices_command(options: argparse.Namespace) -> int:
    """List every OpenCL device, and how far its clocks can be trusted."""
    from autotune.device.clocks import try_calibration
    from autotune.device.discovery import discover
    from autotune.device.profile import find_profile
    from autotune.display.results import print_devices

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
