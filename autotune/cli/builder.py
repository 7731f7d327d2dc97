"""The command `autotune builder`: one machine of a farm, which builds what `autotune compile --farm` queues."""

import argparse
from contextlib import suppress

from autotune.cli.arguments import DATABASE, command, flag, integer, repeated
from autotune.cli.output import tell
from autotune.device.processors import usable_cores
from autotune.errors import DeviceSelectionError
from autotune.model.device import Device


@command(
    DATABASE,
    repeated("--device", "D", "build only for this device"),
    integer("--jobs", 1, 1024, "number of build processes; one for each core by default"),
    flag("--quiet", "no line for each batch"),
    examples=("builder --db postgresql://autotune@10.0.0.5/autotune --jobs 16",),
)
def builder_command(options: argparse.Namespace) -> int:
    """Build what autotune compile --farm queues, for the devices of this machine; any number of builders share it."""
    from autotune.cli.interrupts import Interrupts
    from autotune.cli.serve import open_patiently
    from autotune.device.discovery import find_devices
    from autotune.search.builder import Builder
    from autotune.search.faults import with_checkup
    from autotune.store.database import require_server

    require_server(options.db)
    chosen = find_devices(options.device)
    jobs = options.jobs or usable_cores()
    with open_patiently(options.db) as store, Interrupts("the running builds") as interrupts:
        for device in dict.fromkeys(chosen):
            store.add_device(with_checkup(device, store))  # so that it can be named wherever builds are queued
        builder = Builder(store, chosen, jobs, (lambda _: None) if options.quiet else tell)
        tell(f"building for {', '.join(dict.fromkeys(device.slug for device in chosen))} in {jobs} processes")
        builder.run(lambda: interrupts.are_requested)
    return 0


def devices_of_farm(stored: list[Device]) -> list[Device]:
    """Return the devices of this machine, and those that only the database knows: each as it was seen last."""
    from autotune.device.discovery import discover

    here: list[Device] = []
    with suppress(DeviceSelectionError):  # this machine need not have one
        here = discover()
    slugs = {device.slug for device in here}
    return here + list({device.slug: device for device in stored if device.slug not in slugs}.values())
