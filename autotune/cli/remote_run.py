"""`autotune run --server`: the search runs in a service and is displayed like a local one."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.cli.output import STOPPED, print_result, standard_error, tell
from autotune.cli.service_client import open_client, tell_left_out, wanted
from autotune.codec import Node
from autotune.errors import AutotuneError, UsageError
from autotune.model.events import KINDS, Listener, Outcome, ProblemFinished, ProblemStarted
from autotune.model.trial import Request
from autotune.remote.events import read_event, read_outcome, read_request

if TYPE_CHECKING:
    from autotune.remote import Client, Event


def follow(client: "Client", job: dict[str, Any], options: argparse.Namespace) -> int:
    """Show progress until a job has ended, then its table. Return the exit status.

    Raises AutotuneError when the job failed or was cancelled.
    """
    from autotune.display import progress
    from autotune.search.contract import Budget

    if job["kind"] != "tune":
        return _follow_verification(client, job)
    budget = Budget(trials=job["trials"], seconds=job["seconds"])
    with progress(budget, standard_error(), is_quiet=options.quiet) as listener:
        follower = _Follower(job, listener)
        for event in client.follow(job["id"]):
            follower.take(event)
    ended = client.job(job["id"])
    outcomes = [_outcome(ended["device"], problem) for problem in ended["problems"] if problem["outcome"]]
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


class _Follower:
    """Passes the events of a job's searches to a listener.

    If several problems run at once, only the trials of the one that started last are shown.
    """

    def __init__(self, job: dict[str, Any], listener: Listener) -> None:
        self._device = job["device"]
        self._requests = {problem["number"]: _request(problem) for problem in job["problems"]}
        self._listener = listener
        self._started: list[int] = []
        """Numbers of the problems that were reported to the listener, in that order."""
        self._is_waiting = False

    def take(self, event: "Event") -> None:
        """Take in an event of the job. Raises TableError when it is not as the service sends it."""
        node = Node(event.data, event.name)
        if event.name == "job":
            self._take_job(event.data)
        elif event.name in KINDS:
            self._pass_on(event.name, node.member("problem").whole(), node)

    def _take_job(self, job: dict[str, Any]) -> None:
        """Report the state of the job, including problems that started before this client followed it."""
        for problem in job["problems"]:
            number, progress = problem["number"], problem["progress"] or {}
            for name in progress if number not in self._started else ():
                if name in KINDS:
                    self._pass_on(name, number, Node(progress[name], name))
        is_waiting = job["state"] == "queued"
        if is_waiting and not self._is_waiting:
            tell(f"job {job['id']} waits for {job['device']}")
        self._is_waiting = is_waiting

    def _pass_on(self, name: str, number: int, node: Node) -> None:
        if number not in self._requests:
            raise node.wrong(f"the job has no problem {number}")
        event = read_event(name, node, self._device, self._requests[number])
        if isinstance(event, ProblemStarted):
            self._started.append(number)
        is_shown = number in self._started[-1:]
        if is_shown or (isinstance(event, ProblemFinished) and number in self._started):
            self._listener(event)


def _request(problem: dict[str, Any]) -> Request:
    return read_request(Node(problem, f"problem {problem['number']}"))


def _outcome(device: str, problem: dict[str, Any]) -> Outcome:
    found = read_outcome(Node(problem["outcome"], "outcome"), device, _request(problem))
    return replace(found, seconds=problem["spent_s"], is_finished=problem["state"] == "done")


def run_elsewhere(options: argparse.Namespace) -> int:
    """Run the search in the service, with the same output as a local run. Return the exit status."""
    _refuse_what_stays_here(options)

    with open_client(options) as client:
        job = client.submit(options.device, **wanted(options))
        tell_left_out(job)
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
