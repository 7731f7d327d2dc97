"""The commands `autotune worker`, which offers devices to a service, and `autotune workers`, which forgets a worker."""

import argparse
import time
from typing import TYPE_CHECKING

from autotune.cli.arguments import SERVER, TOKEN, argument, command, repeated
from autotune.cli.output import print_note
from autotune.device.link import find_link, reachable_machines
from autotune.model.trial import Job, Trial
from autotune.service.cli.jobs import open_client, token_of

if TYPE_CHECKING:
    from autotune.cli.device_lock import DeviceLock
    from autotune.measure.worker import Worker


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
    from autotune.cli.device_lock import DeviceLock
    from autotune.cli.devices import checked
    from autotune.cli.interrupts import Interrupts
    from autotune.device.discovery import find_devices
    from autotune.measure.worker import worker_for
    from autotune.service.remote.worker import Offer, Service, offer_all, own_name, own_secret

    name, secret = options.name or own_name(), own_secret()
    service = Service(urls=options.server, token=token_of(options), name=name, secret=secret)
    chosen = find_devices([one for name in options.device for one in every_link(name)])
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


def every_link(selector: str) -> list[str]:
    """Return the links to all phones that can be used for ``adb``, any other selector as it is.

    Raises DeviceSelectionError when there is no phone, with what is wrong with those that adb shows.
    """
    if selector != "adb":
        return [selector]
    usable = [machine.link for machine in reachable_machines() if not machine.trouble]
    return usable or [find_link("adb").name]


class LockedWorker:
    """A worker that holds the lock of its device during each trial only, so that local runs can measure in between."""

    def __init__(self, worker: "Worker", lock: "DeviceLock") -> None:
        self._worker = worker
        self._lock = lock
        self._waits_since: float | None = None
        self._waited_s = self._before_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds that the latest trial has waited for the device so far; callable from any thread."""
        since = self._waits_since
        return self._waited_s + self._worker.waited_s - self._before_s if since is None else time.monotonic() - since

    def run(self, job: Job) -> Trial:
        self._waits_since = time.monotonic()
        with self._lock:
            self._waited_s, self._waits_since = time.monotonic() - self._waits_since, None
            self._before_s = self._worker.waited_s
            return self._worker.run(job)

    def close(self) -> None:
        self._worker.close()
