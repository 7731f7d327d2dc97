"""The events of a search as a service sends them to those who follow a job, and the reader of them.

The request of an event is not sent with it: a follower knows the problems of the job by their number.
"""

from dataclasses import replace
from typing import Any

from autotune.codec import Node, Reader, read, write
from autotune.kernels import find_family
from autotune.lookup.json_table import plain_entry, read_entry
from autotune.lookup.values import read_family, readers_for
from autotune.model.events import KINDS, Event, Outcome, ProblemFinished
from autotune.model.trial import Request, Winner


def plain_event(event: Event) -> dict[str, Any]:
    """Return an event as `read_event` reads it."""
    if isinstance(event, ProblemFinished):
        return {"outcome": plain_outcome(event.outcome)}
    plain: dict[str, Any] = write(event, without=("request",))
    return plain


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as `read_outcome` reads it. Its winner is an entry of a table."""
    winner = plain_entry(outcome.winner) if outcome.winner else None
    return {**write(outcome, without=("request", "winner")), "winner": winner}


def read_request(node: Node) -> Request:
    """Read the request of one of a job's problems, whose other members are ignored."""
    readers = readers_for(read_family(node.member("family")))
    return read(Request, node, beside=tuple(node.members()), readers=readers)


def read_event(name: str, node: Node, device: str, request: Request) -> Event:
    """Read the event of this name, a key of `KINDS`. `device` is a slug."""
    readers = {**_readers(device, request), Outcome: lambda item: read_outcome(item, device, request)}
    return read(KINDS[name], node, given={"request": request}, beside=("problem",), readers=readers)


def read_outcome(node: Node, device: str, request: Request) -> Outcome:
    """Read the outcome of a request that was searched on a device."""
    return read(Outcome, node, given={"request": request}, readers=_readers(device, request))


def _readers(device: str, request: Request) -> dict[type, Reader]:
    def read_winner(node: Node) -> Winner:
        return replace(read_entry(device, node), source="measured")

    return {**readers_for(find_family(request.problem.family)), Winner: read_winner}
