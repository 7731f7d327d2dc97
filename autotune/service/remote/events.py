"""The events of a search as a service sends them to those who follow a job, and how a follower reads them.

The request of an event is not sent with it: a follower knows the problems of the job by their number.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.codec import Node, Reader, read, write
from autotune.kernels import find_family
from autotune.lookup.json_table import plain_entry, read_entry, read_family, readers_for
from autotune.model import events
from autotune.model.events import KINDS, Listener, Outcome, ProblemFinished, ProblemStarted
from autotune.model.trial import Request, Winner
from autotune.service.remote.client import Event


def plain_event(event: events.Event) -> dict[str, Any]:
    """Return an event as `read_event` reads it."""
    if isinstance(event, ProblemFinished):
        return {"outcome": plain_outcome(event.outcome)}
    plain: dict[str, Any] = write(event, without=("request",))
    return plain


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as it is sent and stored with a job. Its winner is an entry of a table."""
    winner = plain_entry(outcome.winner) if outcome.winner else None
    return {**write(outcome, without=("request", "winner")), "winner": winner}


def read_event(name: str, node: Node, device: str, request: Request) -> events.Event:
    """Read the event of this name, a key of `KINDS`. `device` is a slug."""
    readers = {**_readers(device, request), Outcome: lambda item: _read_outcome(item, device, request)}
    return read(KINDS[name], node, given={"request": request}, ignored=("problem",), readers=readers)


def job_outcome(device: str, problem: dict[str, Any]) -> Outcome:
    """Read the outcome of one of a job's problems. Raises TableError."""
    found = _read_outcome(Node(problem["outcome"], "outcome"), device, _read_request(problem))
    return replace(found, seconds=problem["spent_s"], is_finished=problem["state"] == "done")


def _read_outcome(node: Node, device: str, request: Request) -> Outcome:
    return read(Outcome, node, given={"request": request}, readers=_readers(device, request))


def _read_request(problem: dict[str, Any]) -> Request:
    node = Node(problem, f"problems[{problem['number']}]")
    return read(Request, node, ignored=tuple(problem), readers=readers_for(read_family(node.member("family"))))


def _readers(device: str, request: Request) -> dict[type, Reader]:
    def read_winner(node: Node) -> Winner:
        return replace(read_entry(device, node), source="measured")

    return {**readers_for(find_family(request.problem.family)), Winner: read_winner}


class Follower:
    """Passes the events of a job's searches to a listener.

    If several problems run at once, only the trials of the one that started last are shown.
    """

    def __init__(self, job: dict[str, Any], listener: Listener, say: Callable[[str], None]) -> None:
        """`say` receives a line when the job waits for a device. Raises TableError."""
        self._device = job["device"]
        self._requests = {problem["number"]: _read_request(problem) for problem in job["problems"]}
        self._listener = listener
        self._say = say
        self._started: list[int] = []
        """Numbers of the problems that were reported to the listener, in that order."""
        self._latest_start: ProblemStarted | None = None
        self._is_waiting = False

    def take(self, event: Event) -> None:
        """Take in an event of the job. Raises TableError when it is not as the service sends it."""
        if event.name == "job":
            self._take_job(event.data)
        elif event.name in KINDS:
            node = Node(event.data, event.name)
            self._pass_on(event.name, node.member("problem").whole(), node)

    def _take_job(self, job: dict[str, Any]) -> None:
        """Report the state of the job, and the latest events of searches that began before the job was followed."""
        for problem in job["problems"]:
            number, progress = problem["number"], problem["progress"] or {}
            for name in progress if number not in self._started else ():
                if name in KINDS:
                    self._pass_on(name, number, Node(progress[name], name))
        is_waiting = job["state"] == "queued"
        if is_waiting and not self._is_waiting:
            self._say(f"job {job['id']} waits for {job['device']}")
        self._is_waiting = is_waiting

    def _pass_on(self, name: str, number: int, node: Node) -> None:
        if number not in self._requests:
            raise node.wrong(f"the job has no problem {number}")
        event = read_event(name, node, self._device, self._requests[number])
        if isinstance(event, ProblemStarted):
            if event == self._latest_start:
                return  # it was part of the job's state too, read while the event was on its way
            self._latest_start = event
            self._started.append(number)
        is_shown = number in self._started[-1:]
        if is_shown or (isinstance(event, ProblemFinished) and number in self._started):
            self._listener(event)
