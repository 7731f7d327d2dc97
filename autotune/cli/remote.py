"""What the commands that ask a service share: its client, the job to submit, and how a job is followed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.interrupts import STOPPED
from autotune.cli.output import print_result, standard_error, tell
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from autotune.remote import Client


def open_client(options: argparse.Namespace) -> "Client":
    """Return a client of the service that --server names. Raises UsageError."""
    from autotune.remote import Client

    return Client(options.server, token_of(options))


def token_of(options: argparse.Namespace) -> str:
    """Return the first line of --token-file; empty without that option. Raises UsageError when it cannot be read."""
    if options.token_file is None:
        return ""
    try:
        lines = Path(options.token_file).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.token_file}: cannot be read as a token") from error
    return lines[0].strip() if lines else ""


def submitted(client: "Client", options: argparse.Namespace) -> dict[str, Any]:
    """Submit what the options ask for, print what was left out, and return the job.

    Raises UsageError when a file cannot be read.
    """
    from autotune.kernels.presets import read_lines

    job = client.submit(
        options.device,
        shapes=[*options.shape, *(line for path in options.shapes for line in read_lines(path) if line.strip())],
        presets=options.preset,
        family=options.family,
        trials=options.trials,
        seconds=options.budget,
        algorithms=options.algorithm,
        seed=options.seed,
    )
    for message in job["left_out"]:
        tell(f"left out: {message}")
    return job


def follow(client: "Client", job: dict[str, Any], options: argparse.Namespace) -> int:
    """Show progress until a job has ended, then its table. Return the exit status.

    Raises AutotuneError when the job failed or was cancelled.
    """
    from autotune.display.progress import progress
    from autotune.remote.events import Follower, job_outcome
    from autotune.search.budget import Budget

    if job["kind"] != "tune":
        return _follow_verification(client, job)
    budget = Budget(trials=job["trials"], seconds=job["seconds"])
    with progress(budget, standard_error(), is_quiet=options.quiet) as listener:
        follower = Follower(job, listener, tell)
        for event in client.follow(job["id"]):
            follower.take(event)
    ended = client.job(job["id"])
    outcomes = [job_outcome(ended["device"], problem) for problem in ended["problems"] if problem["outcome"]]
    print_result(options, ended["device"], outcomes, is_complete=ended["state"] == "done")
    return _status(ended)


def _follow_verification(client: "Client", job: dict[str, Any]) -> int:
    for event in client.follow(job["id"]):
        if event.name == "recheck_finished":
            problem = job["problems"][event.data["problem"]]
            tell(f"{problem['shape']}: {event.data['result']}")
    return _status(client.job(job["id"]))


def _status(job: dict[str, Any]) -> int:
    failed = [problem for problem in job["problems"] if problem["state"] == "failed"]
    if failed:
        raise AutotuneError(f"job {job['id']}: {failed[0]['shape']}: {failed[0]['message']}")
    if job["state"] == "cancelled":
        raise AutotuneError(f"job {job['id']} was cancelled; what it found by then is kept")
    return 0


def run_elsewhere(options: argparse.Namespace) -> int:
    """Run the search in the service, with the same output as a local run. Return the exit status."""
    _refuse_what_stays_here(options)
    with open_client(options) as client:
        job = submitted(client, options)
        try:
            return follow(client, job, options)
        except KeyboardInterrupt:
            client.cancel(job["id"])
            tell(f"job {job['id']} is cancelled; every trial is kept")
            return STOPPED


def _refuse_what_stays_here(options: argparse.Namespace) -> None:
    """Raises UsageError for options that a job of the service does not support."""
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
        raise UsageError(f"{names} {verb} supported only for devices of this machine", hint="leave out --server")
