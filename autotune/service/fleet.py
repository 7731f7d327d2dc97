"""The devices that workers offer, and the trials they are given. Lives in the event loop; searches call from threads.

A `Station` is one device of one worker process. It asks for its next turn again and again; every turn tells that it
is there, may bring a result and may take a trial. A trial is given until a turn shows that it has arrived, and a
result is taken once, so that a connection that breaks at any moment neither loses nor doubles anything. A station
that is silent for too long, comes back as another process, or does not bring its trial in time has lost that trial,
which is quarantined. A worker that lives on may still bring a result that nobody waits for any more, as after the
service was started anew: it is stored if that worker had the trial.
"""

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.codec import Node
from autotune.errors import TableError, WorkerError, WorkerLostError
from autotune.model.device import Device
from autotune.model.trial import Job, Trial, now_utc
from autotune.process.child import Leave
from autotune.remote.wire import plain_job, read_trial
from autotune.store import Holder
from autotune.store.workers import digest_of, model_of
from autotune.turns import idle

SILENT_S = 60.0
"""A worker that measures is heard every few seconds."""
TROUBLED_S = 60.0
"""A device that could not be used is left alone for so long."""
DOUBT_S = 15.0
"""How long another worker of the same name waits to see whether the one before lives, which is heard more often."""
LIMIT_FACTOR, EXTRA_S = 2.0, 60.0
"""A worker has so many times the limits of a trial, and so long besides, before the trial is given up."""
MOST_WAITING_S = 12 * 3600.0
"""How long a trial may wait for a device on which another program measures, as its worker says."""
HOLD_S = 1.0
"""Before a worker asks again for a trial that cannot be given yet."""
CANCEL_PATIENCE_S = 5.0
"""How long the running trial of a job that was cancelled is waited for."""
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
    deadline: float = float("inf")
    """By the monotonic clock, once it is given."""
    given: float = field(default_factory=time.monotonic)
    """When it was made, by the monotonic clock."""

    waited_s: float = 0.0
    """For another program that measures on the device, as its worker says."""

    def set_deadline(self) -> None:
        """From now on its worker has it."""
        limits_s = self.job.build_limit_s + self.job.run_limit_s
        self.deadline = time.monotonic() + LIMIT_FACTOR * limits_s + EXTRA_S

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
    session: str = field(repr=False)
    """Of the worker process, a secret: another one has lost what this one was given."""
    device: Device
    model: Device
    """The same without its place on its machine: stations that are equal in it measure the same."""
    model_digest: str
    """Of its driver and limits: a job is searched by stations that are equal in it."""
    address: str
    since: str
    heard: float
    """By the monotonic clock."""
    rank: int = 0
    """Lower where the worker was enrolled earlier."""
    turns: int = 0
    """How often it has asked."""
    is_ready: bool = False
    """Has had a turn without a trial of before: only then it can be given one."""
    is_taken: bool = False
    """By a search."""
    is_lost: bool = False
    trouble: str = ""
    troubled_until: float = 0.0
    trials: int = 0
    waited_s: float = 0.0
    """That all its trials waited for other programs on its machine."""
    assignment: Assignment | None = None
    turn: "asyncio.Event" = field(default_factory=asyncio.Event)

    @property
    def holder(self) -> Holder:
        """As whom it has trials in hand."""
        return Holder(worker=self.name, session=digest_of(self.session)[:32], selector=self.device.selector)

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
        on_late: Callable[[str, Device, Node], Awaitable[str]],
        on_ready: Callable[[str, Holder], Awaitable[None]],
        may_launch: Callable[[], bool] = lambda: True,
    ) -> None:
        """What calls for the rest of the service.

        `on_change` is called when a station has come, gone or become free; `on_late` with the name of a worker and a
        result that nobody waits for, and tells why that does not count; `on_ready` with the slug of a device whose
        worker has nothing in hand of an earlier service; `may_launch` tells whether the database is surely still this
        service's, without which no trial is given to anybody.
        """
        self._stations: dict[str, Station] = {}
        self._on_change = on_change
        self._on_late = on_late
        self._on_ready = on_ready
        self._may_launch = may_launch
        self._is_stopped = False

    def stations(self) -> list[Station]:
        """Those that are there, by name."""
        return sorted(self._stations.values(), key=lambda s: (s.name, s.device.selector, s.id))

    def get(self, station_id: str, session: str) -> Station | None:
        """The station of that id, for whoever has its session."""
        station = self._stations.get(station_id)
        return station if station and hmac.compare_digest(station.session, session) else None

    def leaders(self) -> dict[str, str]:
        """By slug, the model of the worker that was enrolled first: what nobody has begun is for its equals."""
        ranked = sorted(self._stations.values(), key=lambda station: station.rank, reverse=True)
        return {station.device.slug: station.model_digest for station in ranked}

    async def greet(self, name: str, session: str, device: Device, address: str, rank: int = 0) -> Station:
        """A worker, whose secret has been checked, offers a device, for the first time or again.

        Raises NameTakenError when another process that lives has its name and its secret, as in a copied image;
        WorkerError when there are too many.
        """
        while (known := self._same_offer(name, device)) is not None:
            if known.session == session:
                known.heard = time.monotonic()
                return known
            if await self._lives(known):
                raise NameTakenError(f"another worker is called {name} and offers {device.slug}")
            if not known.is_lost:
                self.lose(known, "its worker was started anew")
        if len(self._stations) >= MAX_STATIONS:
            raise WorkerError(f"there are {MAX_STATIONS} devices already")
        station = Station(
            id=secrets.token_hex(8),
            name=name,
            session=session,
            device=device,
            model=replace(device, selector=""),
            model_digest=model_of(device),
            address=address,
            since=now_utc(),
            heard=time.monotonic(),
            rank=rank,
        )
        self._stations[station.id] = station
        self._on_change()
        return station

    def _same_offer(self, name: str, device: Device) -> Station | None:
        offer = (name, device.slug, device.selector)
        known = self._stations.values()
        return next((s for s in known if (s.name, s.device.slug, s.device.selector) == offer), None)

    async def _lives(self, station: Station) -> bool:
        """Whether the process of a station is heard once more: it is let go of if it waits, and asks again."""
        turns, end = station.turns, time.monotonic() + DOUBT_S
        while not station.is_lost and station.turns == turns and time.monotonic() < end:
            station.turn.set()
            await asyncio.sleep(min(0.1, DOUBT_S))
        return not station.is_lost and station.turns != turns

    async def take_turn(
        self, station: Station, running: str, results: list[Node], wait_s: float
    ) -> tuple[Assignment | None, str]:
        """What a station is to measure next, None to ask again; and why a result of its does not count.

        Raises TableError for a result that cannot be read, Stopping when the service ends.
        """
        station.heard = time.monotonic()
        station.turns += 1
        refusals = [refused for result in results if (refused := await self._take_result(station, result))]
        if not running and not station.is_ready:
            await self._on_ready(station.device.slug, station.holder)
            station.is_ready = True
            self._on_change()
        if self._is_stopped:
            raise Stopping
        if station.assignment is None and not running and not refusals:
            station.turn.clear()
            try:
                async with asyncio.timeout(min(wait_s, MAX_WAIT_S)):
                    await station.turn.wait()
            except TimeoutError:
                pass
            finally:
                station.heard = time.monotonic()
        given = station.assignment
        if given is not None and given.id != running and not self._may_launch():
            given.set_deadline()  # it is not with the worker yet
            await asyncio.sleep(min(wait_s, HOLD_S))
            given = None
        return given if given is not None and given.id != running else None, "; ".join(refusals)

    def note_waiting(self, station: Station, waited_s: float) -> None:
        """The trial that a station has in hand has waited so long for its device, which is not its own time.

        No longer than it has been there, nor for ever: what a worker says is not believed beyond that.
        """
        assignment = station.assignment
        if assignment is not None:
            longest_s = min(MOST_WAITING_S, time.monotonic() - assignment.given)
            more_s = max(0.0, min(waited_s, longest_s) - assignment.waited_s)
            assignment.waited_s += more_s
            assignment.deadline += more_s
            station.waited_s += more_s

    async def _take_result(self, station: Station, node: Node) -> str:
        """Why it does not count; empty where it does."""
        members = node.record(("id", "job"), ("trial", "trouble"))
        assignment = station.assignment
        if assignment is None or members["id"].text() != assignment.id:
            return await self._on_late(station.name, station.device, node)
        if "trouble" in members:
            self._note_trouble(station, assignment, members["trouble"].text())
        elif "trial" in members:
            try:
                trial = read_trial(members["trial"], assignment.job)
            except TableError as error:
                self._note_trouble(station, assignment, str(error))
                return str(error)
            station.assignment = None
            station.trouble, station.trials = "", station.trials + 1
            assignment.finish(trial)
        else:
            raise node.wrong("has neither a trial nor a trouble")
        return ""

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
        assignment.set_deadline()
        station.assignment = assignment
        station.turn.set()

    def hurry(self, station: Station) -> None:
        """What a station measures is hardly of use any more: it is waited for, but not for long."""
        if station.assignment is not None:
            soon = time.monotonic() + CANCEL_PATIENCE_S
            station.assignment.deadline = min(station.assignment.deadline, soon)

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
        """Lose those that are silent, and those that do not bring what they were given in time."""
        now = time.monotonic()
        for station in self.stations():
            if station.heard < now - SILENT_S:
                self.lose(station, f"not heard for {SILENT_S:g} s")
            elif station.assignment is not None and station.assignment.deadline < now:
                self.lose(station, "it did not bring its result in time")

    def stop(self) -> None:
        """Nobody is to wait any more."""
        self._is_stopped = True
        for station in self.stations():
            if station.assignment is not None:
                station.assignment.fail(Stopping())
            station.turn.set()


class RemoteWorker:
    """A station as a search sees it: the contract of `autotune.measure.worker.Measures`, from any thread."""

    def __init__(self, fleet: Fleet, station: Station, loop: asyncio.AbstractEventLoop) -> None:
        self._fleet = fleet
        self._loop = loop
        self.station = station
        self.holder = station.holder
        """What the search has in flight is in the hands of this worker."""
        self._waited_before_s = station.waited_s

    @property
    def waited_s(self) -> float:
        """Seconds that trials given through this have waited for other programs on the worker's machine."""
        return self.station.waited_s - self._waited_before_s

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
