"""The devices that workers offer, and the trials they are given. Only the event loop uses this.

A `Station` is one device of one worker process. It polls: every request, called a turn, shows that the station is
alive, may deliver a result and may fetch a trial. A trial is sent until a turn shows that it has arrived, and a result
until an answer shows that it is stored, so that neither a broken connection nor a killed process loses or duplicates
anything. A search stores a trial before it has the next one measured on that device, which therefore shows it; the
result for a search that is gone, or that no search waits for any more, such as after a restart of the service, is
stored here if that worker had the trial. A station that is silent for too long, comes back as another process, or does
not deliver its trial in time has lost that trial, which is quarantined.
"""

import asyncio
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from autotune.codec import Node
from autotune.errors import TableError, WorkerError, WorkerLostError
from autotune.model.device import Device
from autotune.model.trial import now_utc
from autotune.service.job_search import Stopping
from autotune.service.remote.wire import read_trial
from autotune.service.shares import may_take
from autotune.service.station import Assignment, Station
from autotune.service.store.workers import model_of
from autotune.store import Holder

SILENT_S = 60.0
"""A station that sent nothing for so long is lost; a worker that measures sends something every few seconds."""
TROUBLED_S = 60.0
"""How long a device that could not be used is left alone."""
DOUBT_S = 15.0
"""How long a new worker waits to see whether an earlier one of its name is alive, which polls more often."""
MOST_WAITING_S = 12 * 3600.0
"""How long a trial may wait for a device on which another program measures, as reported by its worker."""
HOLD_S = 1.0
"""Delay before a worker asks again for a trial that cannot be given yet."""
CANCEL_PATIENCE_S = 5.0
"""How long to wait for the running trial of a cancelled job."""
STORED_S = 10.0
"""How long the answer to a result waits until the result is stored, before its worker has to deliver it again."""
MAX_STATIONS = 2000
MAX_WAIT_S = 30.0


class NameTakenError(WorkerError):
    """Two live workers share a name."""


class NotStoredError(WorkerError):
    """A result was accepted, and its search may not have stored it yet."""


class Fleet:
    """All stations. Only the event loop uses it."""

    def __init__(
        self,
        on_change: Callable[[], None],
        on_late: Callable[[str, Device, Node], Awaitable[str]],
        on_ready: Callable[[str, Holder], Awaitable[None]],
        may_launch: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The arguments are callbacks into the rest of the service, and a clock in seconds.

        `on_change` is called when a station has come, gone or become free; `on_late` with the name of a worker, its
        device and a result that no search waits for, and returns why it does not count; `on_ready` with the slug and
        holder of a device whose worker has no trial left from an earlier service; `may_launch` returns whether the
        database certainly still belongs to this service, without which no trial is given to any station.
        """
        self._stations: dict[str, Station] = {}
        self._on_change = on_change
        self._on_late = on_late
        self._on_ready = on_ready
        self._may_launch = may_launch
        self._clock = clock
        self._is_stopped = False

    def stations(self) -> list[Station]:
        """Return the stations, sorted by name."""
        return sorted(self._stations.values(), key=lambda s: (s.name, s.device.selector, s.id))

    def get(self, station_id: str, session: str) -> Station | None:
        """Return the station with that id, if `session` is its session."""
        station = self._stations.get(station_id)
        return station if station and hmac.compare_digest(station.session, session) else None

    def leaders(self) -> dict[str, str]:
        """Return, by slug, the model of the worker enrolled first: only stations of that model begin new problems."""
        ranked = sorted(self._stations.values(), key=lambda station: station.rank, reverse=True)
        return {station.device.slug: station.model_digest for station in ranked}

    async def greet(self, name: str, session: str, device: Device, address: str, rank: int = 0) -> Station:
        """Return the station of a device that a worker offers, new or known. The worker's secret has been checked.

        Raises NameTakenError when another live process has its name and its secret, as in a copied image; WorkerError
        when there are too many stations; Stopping when the service ends.
        """
        while (known := self._same_offer(name, device)) is not None:
            if known.session == session:
                known.heard = self._clock()
                return known
            if await self._lives(known):
                raise NameTakenError(f"another worker named {name} already offers {device.slug}")
            if not known.is_lost:
                self.lose(known, "its worker was restarted")
        held = Counter(station.address for station in self._stations.values())
        if not may_take(held, MAX_STATIONS, client=address):
            raise WorkerError(
                f"{held[address]} devices of this address and {held.total()} of all are already offered, the most this "
                "service accepts"
            )
        station = Station(
            id=secrets.token_hex(8),
            name=name,
            session=session,
            device=device,
            model=replace(device, selector=""),
            model_digest=model_of(device),
            address=address,
            since=now_utc(),
            heard=self._clock(),
            rank=rank,
            clock=self._clock,
        )
        self._stations[station.id] = station
        self._on_change()
        return station

    def _same_offer(self, name: str, device: Device) -> Station | None:
        offer = (name, device.slug, device.selector)
        known = self._stations.values()
        return next((s for s in known if (s.name, s.device.slug, s.device.selector) == offer), None)

    async def _lives(self, station: Station) -> bool:
        """Return whether the process of a station polls once more. A turn in which it waits is ended at once."""
        turns, end = station.turns, self._clock() + DOUBT_S
        while not station.is_lost and station.turns == turns and self._clock() < end:
            if self._is_stopped:
                raise Stopping
            station.turn.set()
            await asyncio.sleep(min(0.1, DOUBT_S))
        return not station.is_lost and station.turns != turns

    async def take_turn(
        self, station: Station, running: str, results: list[Node], wait_s: float
    ) -> tuple[Assignment | None, str]:
        """Return the next trial for a station, None to ask again; and why a result of that station does not count.

        Raises TableError for a result that cannot be read, NotStoredError when the results are to be delivered again,
        Stopping when the service ends.
        """
        station.heard = self._clock()
        station.turns += 1
        refusals = [refused for result in results if (refused := await self._take_result(station, result))]
        if not running and not station.is_ready:
            await self._on_ready(station.device.slug, station.holder)
            station.is_ready = True
            self._on_change()
        if self._is_stopped:
            raise Stopping
        if station.assignment is None and not running and not refusals and not station.is_lost:
            station.turn.clear()
            try:
                async with asyncio.timeout(min(wait_s, MAX_WAIT_S)):
                    await station.turn.wait()
            except TimeoutError:
                pass
            finally:
                station.heard = self._clock()
        given = station.assignment
        if given is not None and given.id != running and given.is_off():
            given.fail(Stopping())
            station.assignment = given = None
        if given is not None and given.id != running and not self._may_launch():
            given.set_deadline(self._clock())  # the worker does not have it yet
            await asyncio.sleep(min(wait_s, HOLD_S))
            given = None
        return given if given is not None and given.id != running else None, "; ".join(refusals)

    def note_waiting(self, station: Station, waited_s: float) -> None:
        """Extend the deadline of a station's trial by the time it waited for its device, which is not its own time.

        A worker's report is believed only up to the age of the assignment and up to MOST_WAITING_S.
        """
        assignment = station.assignment
        if assignment is not None and not assignment.is_hurried:
            longest_s = min(MOST_WAITING_S, self._clock() - assignment.given)
            more_s = max(0.0, min(waited_s, longest_s) - assignment.waited_s)
            assignment.waited_s += more_s
            assignment.deadline += more_s
            station.waited_s += more_s

    async def _take_result(self, station: Station, node: Node) -> str:
        """Have a result stored. Returns why it does not count, or an empty string. Raises NotStoredError, Stopping."""
        members = node.record(("id", "job"), ("trial", "trouble"))
        its_id, assignment = members["id"].text(), station.assignment
        if assignment is not None and assignment.id == its_id:
            if "trouble" in members:
                self._note_trouble(station, assignment, members["trouble"].text())
                return ""
            if "trial" not in members:
                raise node.wrong("must have a trial or a trouble")
            try:
                trial = read_trial(members["trial"], assignment.job)
            except TableError as error:
                self._note_trouble(station, assignment, str(error))
                return str(error)
            station.assignment, station.reported, assignment.told = None, assignment, node
            station.trouble, station.trials = "", station.trials + 1
            assignment.finish(trial)
        reported = station.reported
        if reported is not None and reported.id == its_id and await self._is_stored(reported):
            return ""
        return await self._on_late(station.name, station.device, node)

    async def _is_stored(self, reported: Assignment) -> bool:
        """Return whether a result was stored by its search, or False when that is gone."""
        try:
            if not self._is_stopped:
                await asyncio.wait_for(reported.is_settled.wait(), STORED_S)
        except TimeoutError as error:
            raise NotStoredError("the result is not stored yet") from error
        if self._is_stopped:
            raise Stopping
        return reported.is_stored

    def _note_trouble(self, station: Station, assignment: Assignment, trouble: str) -> None:
        station.trouble, station.assignment = trouble, None
        station.troubled_until = self._clock() + TROUBLED_S
        assignment.fail(WorkerError(f"{station.name}: {trouble}"))

    def assign(self, station: Station, assignment: Assignment) -> None:
        """Give a trial to a station that has none, and whose last one its search has therefore stored."""
        station.settle(is_stored=True)
        if self._is_stopped:
            assignment.fail(Stopping())
            return
        if station.is_lost:
            assignment.fail(WorkerError(f"worker {station.name} is no longer connected"))  # the trial was never given
            return
        assignment.given = self._clock()
        assignment.set_deadline(assignment.given)
        station.assignment = assignment
        station.turn.set()

    def hurry(self, station: Station) -> None:
        """Wait at most CANCEL_PATIENCE_S longer for the trial of a station, which is hardly of use any more."""
        if station.assignment is not None:
            station.assignment.is_hurried = True
            soon = self._clock() + CANCEL_PATIENCE_S
            station.assignment.deadline = min(station.assignment.deadline, soon)

    def release(self, station: Station) -> None:
        """Free a station that a search has finished with; whether that stored its last result is not known.

        If not, it is stored as late before another search begins, which would measure it again.
        """
        station.is_ready &= station.reported is None
        station.settle(is_stored=False)
        station.is_taken = False
        self._on_change()

    def withdraw(self, station: Station) -> None:
        """Take a station from a search that is gone; what its worker still delivers is late, and stored."""
        station.assignment = None
        station.is_ready = False
        station.turn.set()  # its next turn shows whether its worker has something in hand
        self.release(station)

    def lose(self, station: Station, why: str) -> None:
        """Remove a station that is gone, and with it the trial that it was measuring, which may be the reason."""
        self._stations.pop(station.id, None)
        station.is_lost = True
        station.settle(is_stored=False)
        assignment, station.assignment = station.assignment, None
        station.turn.set()
        if assignment is not None:
            assignment.fail(WorkerLostError(f"lost with worker {station.name}: {why}"))
        self._on_change()

    def dismiss(self, station: Station) -> None:
        """Remove the station of a worker that ends in order. Its trial, not begun or aborted, is not to blame."""
        station.is_lost = True
        if station.assignment is not None:
            station.assignment.fail(WorkerError(f"worker {station.name} was stopped"))
            station.assignment = None
        self.lose(station, "it was stopped")

    async def take_leave(self, station: Station) -> None:
        """Dismiss a station, and store what its search has not stored: nobody delivers that again.

        Raises StoreError.
        """
        reported = station.reported
        self.dismiss(station)
        if reported is not None and reported.told is not None:
            await self._on_late(station.name, station.device, reported.told)

    def sweep(self) -> None:
        """Lose stations that are silent, and those that do not deliver their trial in time."""
        now = self._clock()
        for station in self.stations():
            if station.heard < now - SILENT_S:
                self.lose(station, f"it sent nothing for {SILENT_S:g} s")
            elif station.assignment is not None and station.assignment.deadline < now:
                self.lose(station, "it did not deliver its result in time")

    def stop(self) -> None:
        """End all waiting: of stations for trials, and of searches for results."""
        self._is_stopped = True
        for station in self.stations():
            if station.assignment is not None:
                station.assignment.fail(Stopping())
            station.settle(is_stored=False)
            station.turn.set()


def open_to(station: Station, leaders: dict[str, str]) -> set[tuple[str, str]]:
    """Return slug and model of the jobs that a station may take: not those begun with another driver or limits."""
    slug, model = station.device.slug, station.model_digest
    return {(slug, model), (slug, "")} if leaders.get(slug, model) == model else {(slug, model)}


def in_fair_order(stations: Sequence[Station], searches: Counter[str]) -> list[Station]:
    """Sort stations by the number of searches on their device, fewest first; those without a search then help."""
    count = searches.copy()
    ranked = []
    for number, station in enumerate(stations):
        ranked.append((count[station.device.slug], number, station))
        count[station.device.slug] += 1
    return [station for _, _, station in sorted(ranked, key=lambda entry: entry[:2])]
