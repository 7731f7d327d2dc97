"""The commands around a service: serve, worker, submit, jobs, cancel, and run with a device elsewhere."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import STOPPED, print_json, standard_error, tell
from autotune.errors import DatabaseAwayError, UsageError

if TYPE_CHECKING:
    from autotune.remote import Client
    from autotune.store import Store

OPENING_PAUSE_S = 5.0
"""Before a database server that does not answer is asked again."""


def serve_command(options: argparse.Namespace) -> int:
    from autotune.service.serving import Place, read_access, serve

    place = Place(
        host=options.host,
        port=options.port,
        token_file=options.token_file,
        read_token_file=options.read_token_file,
        submit_token_file=options.submit_token_file,
        worker_token_file=options.worker_token_file,
        public_url=options.public_url,
    )
    read_access(place)
    _log_warnings()
    with open_patiently(options.db) as store:
        serve(place, store, tell)
    return 0


def open_patiently(database: str | Path | None) -> "Store":
    """A database server may start with the machine, and later than the service does. Raises as Store.open."""
    from autotune.store import AWAY_PATIENCE_S, Store

    began = time.monotonic()
    while True:
        try:
            return Store.open(database)
        except DatabaseAwayError as error:
            if time.monotonic() - began > AWAY_PATIENCE_S:
                raise
            tell(f"{error.message}; trying again for up to {AWAY_PATIENCE_S:g} s")
        time.sleep(OPENING_PAUSE_S)


def worker_command(options: argparse.Namespace) -> int:
    from autotune.cli.device_lock import DeviceLock, LockedWorker
    from autotune.cli.doctor import checked
    from autotune.cli.run import Interrupts
    from autotune.device.discovery import discover, select
    from autotune.remote.working import Offer, Service, offer_all, own_name, own_secret
    from autotune.worker import Worker

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
    tell(f"{options.name} is forgotten: the next worker of that name is enrolled")
    return 0


def submit_command(options: argparse.Namespace) -> int:
    with open_client(options) as client:
        job = client.submit(options.device, **wanted(options))
        _tell_left_out(job)
        if options.json:
            print_json(job)
        else:
            print(f"job {job['id']}: {_counted(job)} for {job['device']}")
            tell(f"follow it: autotune jobs {job['id']} --follow --server {options.server}")
    return 0


def jobs_command(options: argparse.Namespace) -> int:
    if options.follow and options.job is None:
        raise UsageError("--follow needs the number of a job", hint="autotune jobs 3 --follow --server URL")
    with open_client(options) as client:
        if options.job is None:
            jobs = client.jobs()
            if options.json:
                print_json(jobs)
            else:
                for job in jobs:
                    print(_job_line(job))
                if not jobs:
                    tell("there are no jobs yet")
            return 0
        if options.follow:
            from autotune.cli.following import follow

            return follow(client, client.job(options.job), options)
        job = client.job(options.job)
        if options.json:
            print_json(job)
        else:
            print(_job_line(job))
            for problem in job["problems"]:
                print(f"  {problem['shape']}: {problem['state']}{_reason(problem)}")
    return 0


def cancel_command(options: argparse.Namespace) -> int:
    with open_client(options) as client:
        print(_job_line(client.cancel(options.job)))
    return 0


def run_elsewhere(options: argparse.Namespace) -> int:
    """`autotune run --server`: the search runs in the service, what is shown is the same."""
    _refuse_what_stays_here(options)
    from autotune.cli.following import follow

    with open_client(options) as client:
        job = client.submit(options.device, **wanted(options))
        _tell_left_out(job)
        try:
            return follow(client, job, options)
        except KeyboardInterrupt:
            client.cancel(job["id"])
            tell(f"job {job['id']} is cancelled; every trial is kept")
            return STOPPED


def _refuse_what_stays_here(options: argparse.Namespace) -> None:
    """Raises UsageError for what a job of the service has no place for."""
    given = [
        name
        for name in ("misses", "retry_quarantined", "db", "until_gain", "sampler_options")
        if getattr(options, name)
    ]
    if options.sampler != "ours":
        given.append("sampler")
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(f"{names} {verb} for devices of this machine", hint="leave out --server")


def wanted(options: argparse.Namespace) -> dict[str, Any]:
    """What is to be tuned, as `Client.submit` takes it. Raises UsageError."""
    shapes = list(options.shape)
    for path in options.shapes:
        shapes += _lines(path)
    return {
        "shapes": shapes,
        "presets": options.preset,
        "family": options.family,
        "trials": options.trials,
        "seconds": options.budget,
        "algorithms": options.algorithm,
        "seed": options.seed,
    }


def open_client(options: argparse.Namespace) -> "Client":
    """The service that --server names. Raises UsageError."""
    from autotune.remote import Client

    return Client(options.server, token_of(options))


def token_of(options: argparse.Namespace) -> str:
    """Of --token-file; empty without. Raises UsageError."""
    if options.token_file is None:
        return ""
    try:
        lines = Path(options.token_file).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.token_file}: cannot be read as a token") from error
    return lines[0].strip() if lines else ""


def _lines(path: Path) -> list[str]:
    """Of a shapes file; what is on them is the service's to read. Raises UsageError."""
    from autotune.presets import read_lines

    return [line for line in read_lines(path) if line.strip()]


def _counted(job: dict[str, Any]) -> str:
    count = sum(job["counts"].values())
    return f"{count} shape{'' if count == 1 else 's'}"


def _job_line(job: dict[str, Any]) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(job["counts"].items()))
    what = f"job {job['id']}: {job['kind']} on {job['device']}"
    return f"{what}: {job['state']} ({states}), {job['created_at']}{_reason(job)}"


def _reason(plain: dict[str, Any]) -> str:
    """Of a job or one of its problems."""
    return f", {plain['message']}" if plain["message"] else ""


def _tell_left_out(job: dict[str, Any]) -> None:
    for message in job["left_out"]:
        tell(f"left out: {message}")


def _log_warnings() -> None:
    import logging

    logging.basicConfig(stream=standard_error(), level=logging.INFO, format="%(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
