"""The command `autotune devices`: list this machine's OpenCL devices, and how far their clocks can be trusted."""

import argparse
import sys

from autotune.cli.output import (
    plain_calibration,
    print_json,
)


def devices_command(options: argparse.Namespace) -> int:
    from autotune.device.discovery import discover, to_plain
    from autotune.device.profile import find_profile
    from autotune.measure.calibration import try_calibration

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
