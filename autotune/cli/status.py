"""The command `autotune status`: summarize what a database holds for each device."""

import argparse
import sys

from autotune.cli.arguments import ANY_DEVICE, DATABASE, JSON, command
from autotune.cli.lookup import named_device
from autotune.cli.output import print_json, print_note
from autotune.codec import write
from autotune.errors import AutotuneError
from autotune.model.device import Device


@command(ANY_DEVICE, DATABASE, JSON, examples=("status", "status --device adreno --json"))
def status_command(options: argparse.Namespace) -> int:
    """Show what is tuned on each device; what is out of date, and how the trials ended."""
    from autotune.display.results import print_overviews
    from autotune.search.recheck import survey
    from autotune.store import Store

    with Store.open(options.db, read_only=True) as store:
        named = named_device(options.device, store.devices()) if options.device else None
        slug = named.slug if named else None
        is_one_of_several = named is not None and options.device.strip().lower() != named.slug
        drivers = _drivers(named if is_one_of_several else None)
        found = [overview for overview in survey(store, drivers) if slug in (None, overview.device)]
    if slug and not found:
        print_note(f"nothing is stored for {slug}")
    if options.json:
        print_json(write(found))
    else:
        print_overviews(found, sys.stdout)
    return 0


def _drivers(named: Device | None) -> dict[str, str]:
    """Return the drivers of this machine's devices by slug; empty without devices, which a status does not need.

    Of several runtimes of one processor it is the driver that other commands use, unless one of them is `named`.
    """
    from autotune.device.discovery import discover, preference

    try:
        devices = sorted(discover(), key=preference)
    except AutotuneError:
        return {}
    return {device.slug: device.driver for device in [*devices, *(d for d in devices if d == named)]}
