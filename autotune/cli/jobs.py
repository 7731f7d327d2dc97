"""The commands `autotune submit`, `autotune jobs` and `autotune cancel`, which call a service."""

import argparse
from typing import Any

from autotune.cli.arguments import JSON, QUIET, SERVER, WANTED, WIDE, command, flag, integer
from autotune.cli.output import print_json, tell
from autotune.cli.remote import follow, open_client, submitted
from autotune.errors import UsageError

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
    """Submit shapes to tune to a service, without waiting for the results."""
    with open_client(options) as client:
        job = submitted(client, options)
        if options.json:
            print_json(job)
        else:
            print(f"job {job['id']}: {_counted(job)} for {job['device']}")
            tell(f"follow it: autotune jobs {job['id']} --follow --server {options.server}")
    return 0


@command(
    integer("JOB", 1, MAX_JOB, "number of a job", nargs="?"),
    flag("--follow", "show the job's progress until it ends, then its table"),
    QUIET,
    WIDE,
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
                    tell("there are no jobs yet")
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
