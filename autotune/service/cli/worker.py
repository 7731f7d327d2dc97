"""The commands `autotune worker`, which offers devices to a service, and `autotune workers`, which forgets a worker."""

import argparse

from autotune.cli.arguments import SERVER, TOKEN, argument, command, repeated
from autotune.cli.output import print_note
from autotune.service.cli.jobs import open_client, token_of


def _addresses(text: str) -> list[str]:
    """Return the addresses in a list with commas. Raises UsageError."""
    from autotune.service.remote.connection import Connection

    return [Connection(url).url for url in text.split(",")]


@command(
    argument(
        "--server",
        metavar="URL,URL",
        required=True,
        type=_addresses,
        help="address of autotune serve, such as http://10.0.0.5:8765; of several, the next is used when one is gone",
    ),
    TOKEN,
    argument("--name", metavar="NAME", help="name of this machine, for people; its host name if left out"),
    repeated("--device", "D", "offer only this device; adb: every phone on a cable"),
    examples=(
        "worker --server http://10.0.0.5:8765 --token-file worker-token",
        "worker --server http://10.0.0.5:8765 --device adb --name hub",
        "worker --server http://10.0.0.5:8765,http://10.0.0.6:8765 --device adreno --name phone-3",
    ),
)
def worker_command(options: argparse.Namespace) -> int:
    """Offer the devices of this machine to a service; makes outgoing connections only."""
    from autotune.cli.device_lock import DeviceLock, LockedWorker
    from autotune.cli.devices import checked
    from autotune.cli.interrupts import Interrupts
    from autotune.device.discovery import find_devices
    from autotune.device.link import every_link
    from autotune.measure.worker import worker_for
    from autotune.service.remote.worker import Offer, Service, offer_all, own_name, own_secret

    name, secret = options.name or own_name(), own_secret()
    service = Service(urls=options.server, token=token_of(options), name=name, secret=secret)
    chosen = find_devices([link for name in options.device for link in every_link(name)])
    sound = [checked(device) for device in dict.fromkeys(chosen)]
    with Interrupts("the running trial") as interrupts:

        def should_stop() -> bool:
            return interrupts.are_requested

        workers = [worker_for(device.selector, print_note, should_stop, opens_early=False) for device in sound]
        offers = [
            Offer(service, device, LockedWorker(worker, DeviceLock(device, should_stop)), print_note)
            for device, worker in zip(sound, workers, strict=True)
        ]
        offer_all(offers, should_stop)
    return 0


@command(
    argument("action", choices=["forget"], help="forget: let the name be enrolled again, for example after a new disk"),
    argument("name", metavar="NAME", help="name of the worker"),
    *SERVER,
    examples=("workers forget phone-3 --server http://10.0.0.5:8765 --token-file token",),
)
def workers_command(options: argparse.Namespace) -> int:
    """Administer the workers of a service."""
    with open_client(options) as client:
        client.forget_worker(options.name)
    print_note(f"{options.name} is forgotten; the next worker with that name will be enrolled as new")
    return 0
