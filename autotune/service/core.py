"""The core of the service: decides which search runs on which device. Routes query it, workers send it results.

It decides which devices are free; an executor (`executor.py`) brings them problems. On a file there is one service. Any
number share a database on a server: each searches for the devices that call it (`engine.py`).
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from autotune.codec import Node
from autotune.errors import AutotuneError, StoreError, TableError
from autotune.kernels import find_family
from autotune.kernels.render import code_version, provenance_now
from autotune.model.device import Device
from autotune.model.events import Event
from autotune.paths import install_hint
from autotune.service import fleet
from autotune.service.events import Feed
from autotune.service.executor import LEAVE_S, Executor, LocalExecutor
from autotune.service.fleet import Fleet, in_fair_order, open_to
from autotune.service.lookups import Lookups
from autotune.service.remote.wire import read_job, read_trial
from autotune.service.searches import MOST_DEATHS, Processes, Search
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobProblem, JobState, TuningJob
from autotune.store import Holder

_LOG = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the queue is checked without a wake-up, and how often lookups check for new winners."""
WAKE_S = 0.02
"""Delay from a wake-up to the check of the queue: with many devices, one check then serves several wake-ups."""
REFRESHING_SHARE = 0.1
"""Maximum share of the time spent rebuilding lookups: many winners make it slow, and there is always a new winner."""
MAX_SEARCHES = 100
"""Maximum number of searches at a time: each holds its search space, some 20 MB. Further devices wait."""
END_S = 8.0
"""How long a stopping service waits for its searches to end in order, and for the database with them."""
END_LOOK_S = 0.05
RELEASED = "its name was released by autotune workers forget"


class Service:
    """The state that lives as long as the process. Methods are called in the event loop."""

    def __init__(self, store: ServiceStore, processes: int = 1) -> None:
        """Searches run in so many `processes`."""
        self.store = store
        self.address = ""
        """Where clients and workers reach it; other services send those there who follow its searches."""
        self.executor = _executor(store, self)
        self.feed = Feed()
        self.fleet = Fleet(self.wake, self.take_late, self._settle, lambda: self.executor.may_launch)
        self.enrolled: Counter[str] = Counter()
        """How many workers this service has enrolled, by address."""
        self.lookups = Lookups(store)
        self.searches: dict[int, Search] = {}
        """Running searches, by the id of the job's problem."""
        self.is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._processes = Processes(processes, store.target, self._take_message, self._lost, self._call_soon)

    async def start(self) -> None:
        """Continue where the previous service ended."""
        self._loop = asyncio.get_running_loop()
        self.feed.bind(self._loop)
        if lost := await asyncio.to_thread(self.store.quarantine_lost):
            _LOG.info("%s trials were lost", len(lost))
        await self.executor.start()
        await asyncio.to_thread(code_version)  # slow once; else the first worker would delay all others
        await self._refresh_lookups()
        self._tasks = [asyncio.create_task(work) for work in (self._keep_dispatching(), self._keep_refreshing())]

    def begin_stop(self) -> None:
        """End the searches, and release waiting workers and readers."""
        self.is_stopping = True
        self._processes.publish_to_all("stop")
        self.fleet.stop()
        self.feed.close()
        self._wake.set()

    def stop_from_signal(self) -> None:
        """Call `begin_stop` from a signal handler."""
        self._call_soon(self.begin_stop)

    def _call_soon(self, work: Callable[[], object]) -> None:
        """Call `work` in the event loop, from any thread, unless the loop has not begun or has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(work)

    async def stop(self) -> None:
        """Stop; return when the ledger is in order, or after a time limit."""
        self.begin_stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._searches_end(END_S)
        self.store.hurry()
        self._processes.publish_to_all("hurry")
        await self._searches_end(LEAVE_S)
        await asyncio.to_thread(self._processes.close)
        await self.executor.stop()

    async def _searches_end(self, patience_s: float) -> None:
        """Return when all searches have ended or time is up."""
        end = time.monotonic() + patience_s
        while self.searches and time.monotonic() < end:
            await asyncio.sleep(END_LOOK_S)

    def wake(self) -> None:
        """Check the queue soon, since there may be work for a device."""
        self._wake.set()

    def cancel(self, job_id: int) -> None:
        """Stop the searches of a job after the running trial; a worker that does not deliver it in time is given up."""
        for search in self.searches.values():
            if search.job.id == job_id:
                self.cancel_search(search)
        self.executor.hurry()
        self.feed.publish(job_id)

    def cancel_search(self, search: Search) -> None:
        search.cancel()
        self._hurry(search)
        if self._loop is not None:
            self._loop.call_later(fleet.CANCEL_PATIENCE_S, self.wake)

    @property
    def search_pids(self) -> list[int]:
        """Ids of the search processes."""
        return self._processes.pids

    def _hurry(self, search: Search) -> None:
        for station in search.stations():
            self.fleet.hurry(station)

    async def take_late(self, name: str, device: Device, result: Node, *, has_our_templates: bool = True) -> str:
        """ServiceStore the result of a trial that no search waits for any more, from the worker called `name`.

        Returns why the result does not count, or an empty string. Raises StoreError.
        """
        try:
            members = result.record(("id", "job"), ("trial", "trouble"))
            if "trial" not in members:
                return ""
            job = read_job(members["job"], device.selector, ())
            trial = read_trial(members["trial"], job)
        except TableError as error:
            return str(error)
        provenance = None
        if has_our_templates:
            provenance = provenance_now(device, find_family(job.problem.family), job.configuration)
        await asyncio.to_thread(self.store.add_late, device, job.problem, trial, provenance, name)
        return ""

    async def _settle(self, slug: str, holder: Holder) -> None:
        await asyncio.to_thread(self.store.settle_trials, slug, holder, self.search_pids)

    async def forget_worker(self, name: str) -> bool:
        """Allow the name to be enrolled again with another secret. Returns whether it was known. Raises StoreError."""
        for station in self.fleet.stations():
            if station.name == name:
                self.fleet.lose(station, RELEASED)
        return await asyncio.to_thread(self.store.workers.forget, name)

    async def _lose_forgotten(self) -> None:
        """Lose the workers that were forgotten at another service."""
        stations = self.fleet.stations()  # before the database is read: others may enrol meanwhile
        enrolled = await asyncio.to_thread(self.store.workers.enrolled)
        for station in stations:
            if station.rank not in enrolled:
                self.fleet.lose(station, RELEASED)

    async def _keep_dispatching(self) -> None:
        while not self.is_stopping:  # a cancellation at the very end of a wait is lost
            await self._guarded(self._dispatch)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_S)
                await asyncio.sleep(WAKE_S)
            self._wake.clear()

    async def _keep_refreshing(self) -> None:
        took_s = 0.0
        while not self.is_stopping:
            await asyncio.sleep(max(LOOK_S, took_s / REFRESHING_SHARE))
            began = time.monotonic()
            await self._guarded(self._refresh_lookups)
            took_s = time.monotonic() - began
            if self.store.is_shared:
                await self._guarded(self._lose_forgotten)
                self.feed.refresh()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` and log any error: the service survives it, such as a database that is unavailable for a while."""
        try:
            await work()
        except AutotuneError as error:
            _LOG.warning("%s", error)
            await asyncio.sleep(LOOK_S)
        except Exception:  # noqa: BLE001 - as above
            _LOG.error("unexpected", exc_info=True)
            await asyncio.sleep(LOOK_S)

    async def _refresh_lookups(self) -> None:
        table = await asyncio.to_thread(self.lookups.read_again)
        if table is not None:
            self.lookups.use(table)

    async def _dispatch(self) -> None:
        """Give queued problems to idle stations; stations without a problem of their own help other searches."""
        for search in self.searches.values():
            if search.is_cancelled:
                self._hurry(search)
        self.fleet.sweep()
        free = [station for station in self.fleet.stations() if station.state == "idle"]
        has_helpers = any(len(search.helpers) for search in self.searches.values())
        if self.is_stopping or not (free or has_helpers):
            return
        await self.executor.prepare()
        waiting = await asyncio.to_thread(self.store.jobs.waiting)
        leaders = self.fleet.leaders()
        for station in in_fair_order(free, Counter(s.station.device.slug for s in self.searches.values())):
            if len(self.searches) >= MAX_SEARCHES or self.is_stopping:
                break
            its = open_to(station, leaders)
            if waiting & its and station.state == "idle" and not await self._engage(station, begins=len(its) > 1):
                waiting -= its
        self._send_to_help([station for station in free if station.state == "idle"])
        self._recall_helpers(waiting.difference(*(open_to(station, leaders) for station in free)), leaders)

    def _send_to_help(self, stations: Sequence[Station]) -> None:
        """Send each station to the search of an equal device that has the fewest helpers."""
        open_searches: dict[str, list[Search]] = {}
        for search in self.searches.values() if stations and not self.is_stopping else ():
            if search.wants_help:
                open_searches.setdefault(search.station.device.slug, []).append(search)
        for station in stations:
            its = open_searches.get(station.device.slug, ())
            alike = [search for search in its if search.station.model == station.model and search.wants_help]
            if alike:
                min(alike, key=lambda search: len(search.helpers)).join(station)

    def _recall_helpers(self, waiting: set[tuple[str, str]], leaders: dict[str, str]) -> None:
        """Recall one helper for each device model with waiting work: that is more useful than helping."""
        for kind in waiting if len(self.searches) < MAX_SEARCHES else ():
            of_kind = [search for search in self.searches.values() if kind in open_to(search.station, leaders)]
            if of_kind:
                max(of_kind, key=lambda search: len(search.helpers)).recall_one()

    async def _engage(self, station: Station, *, begins: bool) -> bool:
        """Have a search of the next problem queued for a station started. Returns whether there was one."""
        station.is_taken = True
        has_begun = False
        try:
            has_begun = await self.executor.engage(station, begins=begins)
        finally:
            station.is_taken = has_begun
        return has_begun

    def begin(self, job: TuningJob, problem: JobProblem, station: Station) -> Search:
        """Start a search in one of the processes. Raises OSError when the system gives none."""
        search = Search(job, problem, station, self.fleet)
        self._processes.begin(search)
        self.searches[problem.id] = search
        return search

    async def over(self, search: Search) -> None:
        """Return when a search is over and its outcome recorded, or its problem queued again. Raises StoreError."""
        await search.is_over.wait()
        if search.is_superseded:
            return
        if self._processes.deaths[search.problem.id] >= MOST_DEATHS:
            message = f"{MOST_DEATHS} processes that searched it have ended"
            await asyncio.to_thread(self.store.jobs.end, search.problem, JobState.FAILED, message=message)
        await asyncio.to_thread(self.store.jobs.requeue, search.problem)
        self.wake()

    def _take_message(self, search: Search, name: str, *content: Any) -> None:
        """Take a message of a search."""
        match name:
            case "measure":
                search.measure(*content)
            case "event":
                self._tell(search, *content)
            case "released":
                search.released(*content)
            case "closed":
                search.closed()
            case "ended":
                self._ended(search, *content)
            case "unstarted":
                self._lost(search)

    def _tell(self, search: Search, name: str, told: Event | dict[str, Any] | None) -> None:
        """Send an event to the followers of the job; without a name, that a state has changed."""
        if told is None:
            self.feed.publish(search.job.id)
        else:
            encode = search.note(name, told)
            self.feed.publish(search.job.id, name, lambda: search.shown(encode))

    def _ended(self, search: Search, is_troubled: bool) -> None:
        self._forget(search)
        self._processes.troubles[search.problem.id] += is_troubled
        for station in search.stations():  # also helpers that joined as it ended
            self.fleet.release(station)
        self.feed.publish(search.job.id)

    def _lost(self, search: Search) -> None:
        """Take up a search whose process has ended."""
        self._forget(search)
        for station in search.stations():
            self.fleet.withdraw(station)

    def _forget(self, search: Search) -> None:
        if self.searches.get(search.problem.id) is search:
            del self.searches[search.problem.id]
        search.is_over.set()


def _executor(store: ServiceStore, service: Service) -> Executor:
    """Return who executes the jobs. Raises StoreError on a server where procrastinate is not installed."""
    if not store.is_shared:
        return LocalExecutor(store, service)
    try:
        from autotune.service.engine import EngineExecutor
    except ModuleNotFoundError as error:
        hint = install_hint("postgres")
        raise StoreError(f"{error.name} is not installed, which sharing PostgreSQL needs", hint=hint) from error
    return EngineExecutor(store, service)
