"""The devices that workers offer, and the trials they are given. Lives in the event loop; searches call from threads.

A `Station` is one device of one worker process. It asks for its next turn again and again; every turn tells that it
is there, may bring a result and may take a trial. A trial is given until a turn shows that it has arrived, and a
result is taken once, so that a connection that breaks at any moment neither loses nor doubles anything. A station
that is silent for too long, or comes back as another process, has lost its trial.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from autotune.errors import WorkerError
from autotune.family import Device
from autotune.lookup.document import Node
from autotune.remote.wire import plain_job, read_trial
from autotune.trial import Job, Trial, TrialState

SILENT_S = 60.0
"""A worker that measures is heard every few seconds."""
TROUBLED_S = 60.0
"""A device that could not be used is left alone for so long."""
MAX_STATIONS = 2000
MAX_WAIT_S = 30.0


class Stopping(Exception):
    """The service ends: what is in flight will not be waited for, and is not to blame."""


@dataclass(eq=False)
class Assignment:
    """One trial for one station."""

    job: Job
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    result: "Future[Trial]" = field(default_factory=Future)

    def finish(self, trial: Trial) -> None:
        if not self.result.done():
            self.result.set_result(trial)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


@dataclass(eq=False)
class Station:
    """A device that a worker offers."""

    id: str
    name: str
    session: str
    """Of the worker process: another one has lost what this one was given."""
    device: Device
    address: str
    since: str
    heard: float
    """By the monotonic clock."""
    is_taken: bool = False
    """By a search."""
    is_lost: bool = False
    trouble: str = ""
    troubled_until: float = 0.0
    trials: int = 0
    assignment: Assignment | None = None
    turn: "asyncio.Event" = field(default_factory=asyncio.Event)

    @property
    def state(self) -> str:
        """In a word for people and programs."""
        if self.is_lost:
            return "lost"
        if time.monotonic() < self.troubled_until:
            return "troubled"
        return "busy" if self.is_taken else "idle"


class Fleet:
    """All stations. Only the event loop touches it."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a station has come, gone or become free."""
        self._stations: dict[str, Station] = {}
        self._on_change = on_change
        self._is_stopped = False

    def stations(self) -> list[Station]:
        """Those that are there, by name."""
        return sorted(self._stations.values(), key=lambda s: (s.name, s.device.selector, s.id))

    def get(self, station_id: str) -> Station | None:
        return self._stations.get(station_id)

    def greet(self, name: str, session: str, device: Device, address: str) -> Station:
        """A worker offers a device, for the first time or again. Raises WorkerError when there are too many."""
        for known in self.stations():
            if (known.name, known.device.slug, known.device.selector) != (name, device.slug, device.selector):
                continue
            if known.session == session:
                known.heard = time.monotonic()
                return known
            self.lose(known, "its worker was started anew")
        if len(self._stations) >= MAX_STATIONS:
            raise WorkerError(f"there are {MAX_STATIONS} devices already")
        station = Station(
            id=secrets.token_hex(8),
            name=name,
            session=session,
            device=device,
            address=address,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            heard=time.monotonic(),
        )
        self._stations[station.id] = station
        self._on_change()
        return station

    async def take_turn(self, station: Station, running: str, results: list[Node], wait_s: float) -> Assignment | None:
        """What a station is to measure next; None to ask again. Raises TableError for a result that cannot be read."""
        station.heard = time.monotonic()
        for result in results:
            self._take_result(station, result)
        if station.assignment is None and not running:
            station.turn.clear()
            try:
                await asyncio.wait_for(station.turn.wait(), min(wait_s, MAX_WAIT_S))
            except TimeoutError:
                pass
            finally:
                station.heard = time.monotonic()
        assignment = station.assignment
        return assignment if assignment is not None and assignment.id != running else None

    def _take_result(self, station: Station, node: Node) -> None:
        """A result that nobody waits for any more is let go."""
        members = node.record(("id",), ("trial", "trouble"))
        assignment = station.assignment
        if assignment is None or members["id"].text() != assignment.id:
            return
        if "trouble" in members:
            station.trouble = members["trouble"].text()
            station.troubled_until = time.monotonic() + TROUBLED_S
            assignment.fail(WorkerError(f"{station.name}: {station.trouble}"))
        elif "trial" in members:
            assignment.finish(read_trial(members["trial"], assignment.job))
            station.trouble, station.trials = "", station.trials + 1
        else:
            raise node.wrong("has neither a trial nor a trouble")
        station.assignment = None

    def assign(self, station: Station, assignment: Assignment) -> None:
        """Give a trial to a station that has none."""
        if self._is_stopped:
            assignment.fail(Stopping())
            return
        if station.is_lost:
            assignment.fail(WorkerError(f"{station.name} is gone"))
            return
        station.assignment = assignment
        station.turn.set()

    def release(self, station: Station) -> None:
        """A search is through with a station."""
        station.is_taken = False
        self._on_change()

    def lose(self, station: Station, why: str) -> None:
        """A station is gone; what it was measuring counts as crashed, since that may be the reason."""
        self._stations.pop(station.id, None)
        station.is_lost = True
        assignment, station.assignment = station.assignment, None
        station.turn.set()
        if assignment is not None:
            message = f"lost with {station.name}: {why}"
            job = assignment.job
            assignment.finish(
                Trial(configuration=job.configuration, state=TrialState.CRASHED, message=message, seed=job.seed)
            )
        self._on_change()

    def dismiss(self, station: Station) -> None:
        """A worker ends in order: what it was given was not begun, or broken off, and is not to blame."""
        if station.assignment is not None:
            station.assignment.fail(WorkerError(f"{station.name} was ended"))
            station.assignment = None
        self.lose(station, "it was ended")

    def sweep(self) -> None:
        """Lose those that are silent."""
        limit = time.monotonic() - SILENT_S
        for station in self.stations():
            if station.heard < limit:
                self.lose(station, f"not heard for {SILENT_S:g} s")

    def stop(self) -> None:
        """Nobody is to wait any more."""
        self._is_stopped = True
        for station in self.stations():
            if station.assignment is not None:
                station.assignment.fail(Stopping())
            station.turn.set()


class RemoteWorker:
    """A station as a search sees it: the contract of `autotune.worker.Measures`, from any thread."""

    def __init__(self, fleet: Fleet, station: Station, loop: asyncio.AbstractEventLoop) -> None:
        self._fleet = fleet
        self._station = station
        self._loop = loop

    def run(self, job: Job) -> Trial:
        """Raises WorkerError when the device cannot be used or is gone, Stopping when the service ends."""
        assignment = Assignment(job)
        self._loop.call_soon_threadsafe(self._fleet.assign, self._station, assignment)
        return assignment.result.result()

    def call_in_loop(self, work: Callable[[], None]) -> None:
        """Soon, unless the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """The station belongs to whoever took it."""


def plain_assignment(assignment: Assignment) -> dict[str, Any]:
    """As a worker reads it."""
    return {"id": assignment.id, "job": plain_job(assignment.job)}
