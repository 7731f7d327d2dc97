"""The devices that workers offer, and the trials they are given. Lives in the event loop; searches call from threads.

A `Station` is one device of one worker process. It asks for its next turn again and again; every turn tells that it
is there, may bring a result and may take a trial. A trial is given until a turn shows that it has arrived, and a
result is taken once, so that a connection that breaks at any moment neither loses nor doubles anything. A station
that is silent for too long, or comes back as another process, has lost its trial, which is quarantined. Where the
worker lives on and brings a result that nobody waits for any more, as after the service was started anew, that trial
is known not to be to blame.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from autotune.child import Leave
from autotune.errors import TableError, WorkerError, WorkerLostError
from autotune.lookup.document import Node
from autotune.problem import Device
from autotune.remote.wire import plain_job, read_job, read_trial
from autotune.trial import Job, Trial
from autotune.turns import idle

SILENT_S = 60.0
"""A worker that measures is heard every few seconds."""
TROUBLED_S = 60.0
"""A device that could not be used is left alone for so long."""
MAX_STATIONS = 2000
MAX_WAIT_S = 30.0


class NameTakenError(WorkerError):
    """Two workers that live share a name."""


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
    model: Device
    """The same without its place on its machine: stations that are equal in it measure the same."""
    address: str
    since: str
    heard: float
    """By the monotonic clock."""
    is_ready: bool = False
    """Has had a turn without a trial of before: only then it can be given one."""
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
        return "idle" if self.is_ready and not self.is_taken else "busy"


class Fleet:
    """All stations. Only the event loop touches it."""

    def __init__(
        self,
        on_change: Callable[[], None],
        on_late: Callable[[Device, Trial, Job], Awaitable[None]],
    ) -> None:
        """`on_change` is called when a station has come, gone or become free; `on_late` with what nobody waits for."""
        self._stations: dict[str, Station] = {}
        self._on_change = on_change
        self._on_late = on_late
        self._is_stopped = False
        self._replaced: set[str] = set()
        """Sessions whose place another one of the same name took: if they come back, two workers share a name."""

    def stations(self) -> list[Station]:
        """Those that are there, by name."""
        return sorted(self._stations.values(), key=lambda s: (s.name, s.device.selector, s.id))

    def get(self, station_id: str) -> Station | None:
        return self._stations.get(station_id)

    def greet(self, name: str, session: str, device: Device, address: str) -> Station:
        """A worker offers a device, for the first time or again.

        Raises NameTakenError when another one lives that has its name, WorkerError when there are too many.
        """
        for known in self.stations():
            if (known.name, known.device.slug, known.device.selector) != (name, device.slug, device.selector):
                continue
            if known.session == session:
                known.heard = time.monotonic()
                return known
            if session in self._replaced:
                raise NameTakenError(f"another worker is called {name} and offers {device.slug}")
            self._replaced.add(known.session)
            self.lose(known, "its worker was started anew")
        if len(self._stations) >= MAX_STATIONS:
            raise WorkerError(f"there are {MAX_STATIONS} devices already")
        station = Station(
            id=secrets.token_hex(8),
            name=name,
            session=session,
            device=device,
            model=replace(device, selector=""),
            address=address,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            heard=time.monotonic(),
        )
        self._stations[station.id] = station
        self._on_change()
        return station

    async def take_turn(self, station: Station, running: str, results: list[Node], wait_s: float) -> Assignment | None:
        """What a station is to measure next; None to ask again.

        Raises TableError for a result that cannot be read, Stopping when the service ends.
        """
        station.heard = time.monotonic()
        for result in results:
            await self._take_result(station, result)
        if not running and not station.is_ready:
            station.is_ready = True
            self._on_change()
        if self._is_stopped:
            raise Stopping
        if station.assignment is None and not running:
            station.turn.clear()
            try:
                async with asyncio.timeout(min(wait_s, MAX_WAIT_S)):
                    await station.turn.wait()
            except TimeoutError:
                pass
            finally:
                station.heard = time.monotonic()
        assignment = station.assignment
        return assignment if assignment is not None and assignment.id != running else None

    async def _take_result(self, station: Station, node: Node) -> None:
        members = node.record(("id", "job"), ("trial", "trouble"))
        assignment = station.assignment
        if assignment is None or members["id"].text() != assignment.id:
            with contextlib.suppress(TableError):  # then nobody knows more than before
                job = read_job(members["job"], station.device.selector, ())
                await self._on_late(station.device, read_trial(members.get("trial", node), job), job)
        elif "trouble" in members:
            self._note_trouble(station, assignment, members["trouble"].text())
        elif "trial" in members:
            try:
                trial = read_trial(members["trial"], assignment.job)
            except TableError as error:
                self._note_trouble(station, assignment, str(error))
                return
            station.assignment = None
            station.trouble, station.trials = "", station.trials + 1
            assignment.finish(trial)
        else:
            raise node.wrong("has neither a trial nor a trouble")

    def _note_trouble(self, station: Station, assignment: Assignment, trouble: str) -> None:
        station.trouble, station.assignment = trouble, None
        station.troubled_until = time.monotonic() + TROUBLED_S
        assignment.fail(WorkerError(f"{station.name}: {trouble}"))

    def assign(self, station: Station, assignment: Assignment) -> None:
        """Give a trial to a station that has none."""
        if self._is_stopped:
            assignment.fail(Stopping())
            return
        if station.is_lost:
            assignment.fail(WorkerError(f"{station.name} is gone"))  # the trial was never given
            return
        station.assignment = assignment
        station.turn.set()

    def release(self, station: Station) -> None:
        """A search is through with a station."""
        station.is_taken = False
        self._on_change()

    def lose(self, station: Station, why: str) -> None:
        """A station is gone, and with it what it was measuring, which may be the reason."""
        self._stations.pop(station.id, None)
        station.is_lost = True
        assignment, station.assignment = station.assignment, None
        station.turn.set()
        if assignment is not None:
            assignment.fail(WorkerLostError(f"lost with {station.name}: {why}"))
        self._on_change()

    def dismiss(self, station: Station) -> None:
        """A worker ends in order: what it was given was not begun, or broken off, and is not to blame."""
        station.is_lost = True
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
        self._loop = loop
        self.station = station

    def run(self, job: Job, leave: Leave | None = None) -> Trial:
        """Raises WorkerError when the device cannot be used, WorkerLostError when it is gone, Stopping when the service
        ends.
        """
        if leave:
            leave.result()
        assignment = Assignment(job)
        try:
            self._loop.call_soon_threadsafe(self._fleet.assign, self.station, assignment)
        except RuntimeError as error:  # the loop has ended
            raise Stopping from error
        with idle():
            return assignment.result.result()

    def call_in_loop(self, work: Callable[[], None]) -> None:
        """Soon, unless the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """The station belongs to whoever took it."""


class Helper(RemoteWorker):
    """A station that helps the search of another one; it is free again when it is closed."""

    def close(self) -> None:
        self.call_in_loop(lambda: self._fleet.release(self.station))


def plain_assignment(assignment: Assignment) -> dict[str, Any]:
    """As a worker reads it."""
    return {"id": assignment.id, "job": plain_job(assignment.job)}
