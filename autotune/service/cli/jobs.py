"""The commands `submit`, `jobs` and `cancel`, which call a service, and what other commands that call one need."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import JSON, MARKDOWN, QUIET, SERVER, WANTED, WIDE, command, flag, integer
from autotune.cli.interrupts import STOPPED
from autotune.cli.output import print_json, print_note, print_result
from autotune.cli.presets import is_model, read_model, tokens_of
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from autotune.service.remote import Client

MAX_JOB = 2**31 - 1


@command(
    *WANTED,
    *SERVER,
    JSON,
    examples=(
        "submit --server http://10.0.0.5:8765 --device adreno-730 --shape 64,3136,576 --trials 200",
        "submit --server http://10.0.0.5:8765 --device mali --preset resnet50 --budget 2h",
    ),
)
def submit_command(options: argparse.Namespace) -> int:
    """Submit shapes for a service to tune; it does not wait for the results."""
    with open_client(options) as client:
        job = submitted(client, options)
        if options.json:
            print_json(job)
        else:
            print(f"job {job['id']}: {_counted(job)} for {job['device']}")
            print_note(f"follow it: autotune jobs {job['id']} --follow --server {options.server}")
    return 0


@command(
    integer("JOB", 1, MAX_JOB, "number of a job", nargs="?"),
    flag("--follow", "show the job's progress until it ends, then its table"),
    QUIET,
    WIDE,
    MARKDOWN,
    *SERVER,
    JSON,
    examples=("jobs --server http://10.0.0.5:8765", "jobs 3 --follow --server http://10.0.0.5:8765"),
)
def jobs_command(options: argparse.Namespace) -> int:
    """List the jobs of a service, or show or follow one of them."""
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
                    print_note("there are no jobs yet")
            return 0
        if options.follow:
            return follow(client, client.job(options.job), options)
        job = client.job(options.job)
        if options.json:
            print_json(job)
        else:
            print(_job_line(job))
            for problem in job["problems"]:
                print(f"  {problem['shape']}: {problem['state']}{_reason(problem)}")
    return 0


@command(integer("JOB", 1, MAX_JOB, "number of the job"), *SERVER, examples=("cancel 3 --server http://10.0.0.5:8765",))
def cancel_command(options: argparse.Namespace) -> int:
    """Stop a job of a service after the running trial; its results are kept."""
    with open_client(options) as client:
        print(_job_line(client.cancel(options.job)))
    return 0


def _counted(job: dict[str, Any]) -> str:
    count = sum(job["counts"].values())
    return f"{count} shape{'' if count == 1 else 's'}"


def _job_line(job: dict[str, Any]) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(job["counts"].items()))
    what = f"job {job['id']}: {job['kind']} on {job['device']}"
    return f"{what}: {job['state']} ({states}), {job['created_at']}{_reason(job)}"


def _reason(plain: dict[str, Any]) -> str:
    """Return the message of a job or of one of its problems after a comma; empty if there is none."""
    return f", {plain['message']}" if plain["message"] else ""


# Calls of a service


def open_client(options: argparse.Namespace) -> "Client":
    """Return a client of the service that --server names. Raises UsageError."""
    from autotune.service.remote import Client

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
    if options.depth:
        raise UsageError("a service takes presets as they are, without --depth", hint="name the shapes instead")
    tokens = tokens_of(options.tokens, options.shapes)
    job = client.submit(
        options.device,
        shapes=[*options.shape, *(line for path in options.shapes for line in lines_of_shapes(path, tokens))],
        presets=options.preset,
        family=options.family,
        trials=options.trials,
        seconds=options.budget,
        algorithms=options.algorithm,
        seed=options.seed,
    )
    for message in job["left_out"]:
        print_note(f"left out: {message}")
    return job


def follow(client: "Client", job: dict[str, Any], options: argparse.Namespace) -> int:
    """Show progress until a job has ended, then its table. Return the exit status.

    Raises AutotuneError when the job failed or was cancelled.
    """
    from autotune.display.progress import progress
    from autotune.search.budget import Budget
    from autotune.service.remote.events import Follower, job_outcome

    if job["kind"] != "tune":
        return _follow_verification(client, job)
    budget = Budget(trials=job["trials"], seconds=job["seconds"])
    with progress(budget, sys.stderr, is_quiet=options.quiet) as listener:
        follower = Follower(job, listener, print_note)
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
            print_note(f"{problem['shape']}: {event.data['result']}")
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
            print_note(f"job {job['id']} is cancelled; every trial is kept")
            return STOPPED


def _refuse_what_stays_here(options: argparse.Namespace) -> None:
    """Raises UsageError for options that a job of the service does not support."""
    local = (
        "misses",
        "deadline",
        "retry_quarantined",
        "sustained",
        "rhythm",
        "learn_from",
        "db",
        "until_gain",
        "sampler_options",
    )
    given = [name for name in local if getattr(options, name)]
    if options.sampler != "ours":
        given.append("sampler")
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(f"{names} {verb} supported only for devices of this machine", hint="leave out --server")


def lines_of_shapes(path: Path, tokens: int) -> list[str]:
    """Return the lines of a file of shapes, such as stand for the products of a model. Raises UsageError."""
    from autotune.kernels.shapes import read_lines

    if is_model(path):
        found = read_model(path, tokens)
        quantised = [one for one in found if one.problem.family == "qgemm"]
        if len(quantised) < len(found):
            hint = "autotune presets lists them, with their calls"
            print_note(f"left out: {len(found) - len(quantised)} products of family gemm; {hint}")
        return [f"{one.problem.label} x{one.calls} {one.label}" for one in quantised]
    return [line for line in read_lines(path) if line.strip()]
