"""The commands `autotune worker`, which offers devices to a service, and `autotune workers`, which forgets a worker."""

import argparse

from autotune.cli.output import tell
from autotune.cli.service_client import open_client, token_of


def worker_command(options: argparse.Namespace) -> int:
    from autotune.cli.device_lock import DeviceLock, LockedWorker
    from autotune.cli.doctor import checked
    from autotune.cli.run import Interrupts
    from autotune.device.discovery import discover, select
    from autotune.measure.worker import Worker
    from autotune.remote.work_loop import Offer, Service, offer_all, own_name, own_secret

    name, secret = options.name or own_name(), own_secret()
    service = Service(url=options.server, token=token_of(options), name=name, secret=secret)
    devices = discover()
    chosen = [select(name, devices) for name in options.device] or devices
    sound = [checked(device) for device in dict.fromkeys(chosen)]
    with Interrupts("the running trial") as interrupts:
        offers = [
            Offer(service, device, LockedWorker(Worker(), DeviceLock(device, lambda: interrupts.are_requested)), tell)
            for device in sound
        ]
        offer_all(offers, lambda: interrupts.are_requested)
    return 0


def workers_command(options: argparse.Namespace) -> int:
    with open_client(options) as client:
        client.forget_worker(options.name)
    tell(f"{options.name} is forgotten; the next worker with that name will be enrolled as new")
    return 0
