"""The command `autotune devices`: list this machine's OpenCL devices, and how far their clocks can be trusted."""

import argparse
import contextlib
import sys

from autotune.cli.arguments import JSON, command, flag
from autotune.cli.output import print_json
from autotune.codec import write
from autotune.errors import DeviceSelectionError
from autotune.model.device import Device


@command(
    flag("--no-clocks", "ask the drivers only, run nothing on the devices"),
    JSON,
    examples=("devices", "devices --no-clocks --json"),
)
def devices_command(options: argparse.Namespace) -> int:
    """List every OpenCL device, also those of phones on a cable; of those here, how far their clocks can be trusted."""
    from autotune.device.clocks import try_calibration
    from autotune.device.discovery import discover
    from autotune.device.profile import find_profile
    from autotune.display.results import print_devices

    behind, lines = _phones()
    try:
        devices = discover()
    except DeviceSelectionError:
        if not lines:
            raise
        devices = []
    profiles = {device.slug: find_profile(device) for device in [*devices, *behind]}
    clocks = {} if options.no_clocks else {device.selector: try_calibration(device.selector) for device in devices}
    if not options.json:
        print_devices(devices, {slug: profile.traps for slug, profile in profiles.items()}, sys.stdout, clocks)
        for line in lines:
            print(line)
        return 0
    rows = []
    for device in [*devices, *behind]:
        profile, clock = profiles[device.slug], clocks.get(device.selector)
        shown = {"trouble": clock} if isinstance(clock, str) else clock  # why they could not be calibrated
        more = {"selector": device.selector, "profile": profile.name, "traps": profile.traps, "clocks": shown}
        rows.append({**write(device), **write(more)})
    print_json(rows)
    return 0


def _phones() -> tuple[list[Device], list[str]]:
    """Return the devices of the phones that adb shows, and a line about each phone; nothing without adb."""
    from autotune.device.discovery import discover_behind
    from autotune.device.link import reachable_machines

    found: list[Device] = []
    lines: list[str] = []
    with contextlib.suppress(DeviceSelectionError):
        for phone in reachable_machines():
            try:
                if phone.trouble:
                    raise phone.trouble
                there = discover_behind(phone.link)
            except DeviceSelectionError as error:
                lines.append(f"{phone.link}  {phone.model}: not ready: {error}")
            else:
                found += there
                named = ", ".join(f"{device.slug} ({device.selector})" for device in there)
                lines.append(f"{phone.link}  {phone.model}: ready: {named}")
    return found, lines
