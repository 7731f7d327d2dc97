"""The service itself: who waits for what, who searches where. The routes ask it, workers feed it."""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

from autotune.codec import Node
from autotune.errors import AutotuneError, TableError
from autotune.kernels import find_family
from autotune.kernels.render import provenance_now
from autotune.model.device import Device
from autotune.predict import refresh_predictors
from autotune.remote.wire import code_version, read_job, read_trial
from autotune.service.events import Feed
from autotune.service.fleet import CANCEL_PATIENCE_S, Fleet, Helper, RemoteWorker, Station
from autotune.service.job_search import Errand, Search
from autotune.service.lookups import Lookups
from autotune.store import Holder, Store
from autotune.store.jobs import JobState
from autotune.store.service_claim import Claim
from autotune.turns import Turns, held

_LOG = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the queue is looked at when nothing calls for it, and lookups for new winners."""
WAKE_S = 0.02
"""From a call for it until then: with many devices there are more calls."""
REFRESHING_SHARE = 0.1
"""Of the time, the most that lookups are made anew: with many winners it takes long, and there is always a new one."""
MAX_SEARCHES = 100
"""At a time: each holds its search space, some 20 MB. Devices beyond that wait for their turn."""
AT_WORK = 2
"""Searches that compute at a time, while the others wait for their devices, the database or a rest: more threads would
keep the event loop from its turn, and gain nothing, as one interpreter runs one of them at a time."""
END_S = 8.0
"""How long the end of the service waits for searches to put their things in order, and for the database with them."""
HURRY_S = 1.0
"""And then, when the database is waited for no more. What is not stored, the worker that measured it tells again."""
END_LOOK_S = 0.05


class Service:
    """Everything that lives as long as the process. Methods are called in the event loop."""

    def __init__(self, store: Store, on_superseded: Callable[[], None] = lambda: None) -> None:
        """`on_superseded` is called when another service has taken the database over, and this one is to end."""
        self.store = store
        self._on_superseded = on_superseded
        self._claim: Claim | None = None
        self.feed = Feed()
        self.fleet = Fleet(self.wake, self.take_late, self._settle, self._may_launch)
        self.lookups = Lookups(store)
        self.searches: dict[int, Search] = {}
        """By the id of the problem of the job."""
        self.is_stopping = False
        self._troubles: Counter[int] = Counter()
        """Devices that could not be used, by the id of the problem of the job."""
        self._is_in_doubt = False
        """Whether the database may have something as running that nobody searches."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: set[threading.Thread] = set()
        self._learning = threading.Lock()
        self._turns = Turns(AT_WORK)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """No other service works on the database. Raises StoreError where one does."""
        self._claim = self.store.claim_service()
        with self._claim.kept(self._tell_superseded, HURRY_S):
            yield

    async def start(self) -> None:
        """Go on where the service before was ended."""
        self._loop = asyncio.get_running_loop()
        self.feed.bind(self._loop)
        lost = await asyncio.to_thread(self.store.quarantine_lost)
        queued = await asyncio.to_thread(self.store.jobs.recover)
        if lost or queued:
            _LOG.info("%s trials were lost, %s problems go on", len(lost), queued)
        await asyncio.to_thread(code_version)  # takes a while once, which the first worker would hold all others up for
        await self._refresh_lookups()
        keeping = (self._keep_dispatching(), self._keep_refreshing())
        self._tasks = [asyncio.create_task(work) for work in keeping]

    def begin_stop(self) -> None:
        """Searches end, waiting workers and readers are let go."""
        self.is_stopping = True
        self.fleet.stop()
        self.feed.close()
        self._wake.set()

    def stop_from_signal(self) -> None:
        """As `begin_stop`, from a handler of signals."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.begin_stop)

    async def stop(self) -> None:
        """Returns when the ledger is in order, or after a while."""
        self.begin_stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._searches_end(END_S)
        self.store.hurry()
        await self._searches_end(HURRY_S)

    async def _searches_end(self, patience_s: float) -> None:
        """Returns then, or when time is up. Asks again and again: the threads that could wait may be stuck as well."""
        end = time.monotonic() + patience_s
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < end:
            await asyncio.sleep(END_LOOK_S)

    def wake(self) -> None:
        """Something may be there for a device."""
        self._wake.set()

    def cancel(self, job_id: int) -> None:
        """Stop what is searched for a job, after the running trial; a worker that does not bring that is left alone."""
        for search in self.searches.values():
            if search.errand.job.id == job_id:
                search.is_cancelled = True
                self._hurry(search)
                if self._loop is not None:
                    self._loop.call_later(CANCEL_PATIENCE_S, self.wake)
        self.feed.tell(job_id, "job", None)

    def search_on(self, station: Station) -> Search | None:
        """What a station works on."""
        return next((search for search in self.searches.values() if station in search.stations()), None)

    def _hurry(self, search: Search) -> None:
        for station in search.stations():
            self.fleet.hurry(station)

    async def take_late(self, name: str, device: Device, result: Node, *, has_our_templates: bool = True) -> str:
        """A trial that nobody waits for any more has ended on the worker of that name; why it does not count.

        Raises StoreError.
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
        await asyncio.to_thread(self.store.settle_trials, slug, holder)

    async def forget_worker(self, name: str) -> bool:
        """Let the name be enrolled anew, with another secret; whether it was known. Raises StoreError."""
        for station in self.fleet.stations():
            if station.name == name:
                self.fleet.lose(station, "it was forgotten")
        return await asyncio.to_thread(self.store.workers.forget, name)

    async def _keep_dispatching(self) -> None:
        while not self.is_stopping:  # a cancellation that meets the end of a wait is lost
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

    def _may_launch(self) -> bool:
        return self._claim is None or self._claim.is_fresh

    def _tell_superseded(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._give_way)

    def _give_way(self) -> None:
        _LOG.error("another service has taken over %s: this one ends", self.store.location)
        for search in self.searches.values():
            search.is_superseded = True
        self._on_superseded()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """The service outlives whatever fails, such as a database that is away for a while."""
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
        """Give what is queued to stations that are free; those with nothing of their own help others."""
        for search in self.searches.values():
            if search.is_cancelled:
                self._hurry(search)
        self.fleet.sweep()
        free = [station for station in self.fleet.stations() if station.state == "idle"]
        has_helpers = any(len(search.helpers) for search in self.searches.values())
        if self.is_stopping or not (free or has_helpers):
            return
        if self._is_in_doubt:
            await asyncio.to_thread(self.store.jobs.recover, list(self.searches))
            self._is_in_doubt = False
        waiting = await asyncio.to_thread(self.store.jobs.waiting)
        leaders = self.fleet.leaders()
        for station in in_fair_order(free, Counter(s.errand.station.device.slug for s in self.searches.values())):
            if len(self.searches) >= MAX_SEARCHES or self.is_stopping:
                break
            open_to = _open_to(station, leaders)
            if (
                waiting & open_to
                and station.state == "idle"
                and not await self._engage(station, begins=len(open_to) > 1)
            ):
                waiting -= open_to
        self._send_to_help([station for station in free if station.state == "idle"])
        self._recall_helpers(waiting.difference(*(_open_to(station, leaders) for station in free)), leaders)

    def _send_to_help(self, stations: Sequence[Station]) -> None:
        """Each to the search of an equal device that has fewest helpers."""
        open_searches: dict[str, list[Search]] = {}
        for search in self.searches.values() if stations and not self.is_stopping else ():
            if search.wants_help:
                open_searches.setdefault(search.errand.station.device.slug, []).append(search)
        for station in stations:
            alike = [s for s in open_searches.get(station.device.slug, ()) if s.errand.station.model == station.model]
            helper = Helper(self.fleet, station, asyncio.get_running_loop())
            if alike and min(alike, key=lambda search: len(search.helpers)).helpers.join(helper):
                station.is_taken = True

    def _recall_helpers(self, waiting: set[tuple[str, str]], leaders: dict[str, str]) -> None:
        """One for each device that something waits for, which is better than to help."""
        for kind in waiting if len(self.searches) < MAX_SEARCHES else ():
            of_kind = [search for search in self.searches.values() if kind in _open_to(search.errand.station, leaders)]
            if of_kind:
                max(of_kind, key=lambda search: len(search.helpers)).helpers.recall_one()

    async def _engage(self, station: Station, *, begins: bool) -> bool:
        """Whether there was something for it."""
        station.is_taken = True
        try:
            take = functools.partial(self.store.jobs.take, begins=begins)
            taken = await asyncio.to_thread(take, station.device.slug, station.name, station.model_digest)
            if taken is not None:
                self._begin(Errand(job=taken[0], problem=taken[1], station=station))
        except BaseException:
            self._is_in_doubt = True  # the answer of the database may be lost, or there be no thread
            station.is_taken = False
            raise
        station.is_taken = taken is not None
        return station.is_taken

    def _begin(self, errand: Errand) -> None:
        """Raises RuntimeError when the system gives no thread."""
        search = Search(errand, self.store, self.feed, lambda: self.is_stopping, self._troubles)
        worker = RemoteWorker(self.fleet, errand.station, asyncio.get_running_loop())
        thread = threading.Thread(target=self._search, args=(search, worker), daemon=True, name=f"job {errand.job.id}")
        thread.start()
        self.searches[errand.problem.id] = search
        self._threads.add(thread)

    def _search(self, search: Search, worker: RemoteWorker) -> None:
        """In a thread of its own."""
        try:
            with self._turns.taken():
                self._note_cancelled(search)
                search.run(worker)
                self._learn(search)
        finally:
            worker.call_in_loop(lambda: self._ended(search))

    def _note_cancelled(self, search: Search) -> None:
        """A job that was cancelled between its taking and its place among the searches."""
        with contextlib.suppress(AutotuneError):
            if self.store.jobs.is_cancelled(search.errand.job.id):
                search.is_cancelled = True

    def _ended(self, search: Search) -> None:
        self.searches.pop(search.errand.problem.id, None)
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        self.fleet.release(search.errand.station)
        self.feed.tell(search.errand.job.id, "job", None)

    def _learn(self, search: Search) -> None:
        """Predictors anew when a job has ended; failing costs no result."""
        job = None
        with contextlib.suppress(AutotuneError):
            job = self.store.jobs.get(search.errand.job.id)
        if job is None or job.state not in (JobState.DONE, JobState.FAILED):
            return
        try:
            families = {problem.request.problem.family for problem in job.problems}
            with held(self._learning):  # all devices share a file
                refresh_predictors(self.store, search.errand.station.device, families)
                self.lookups.renew_predictors()
        except (AutotuneError, OSError) as error:
            _LOG.warning("predictors are not made anew: %s", error)


def _open_to(station: Station, leaders: dict[str, str]) -> set[tuple[str, str]]:
    """Slug and model of the jobs that a station may take: none that was begun on other drivers or limits."""
    slug, model = station.device.slug, station.model_digest
    return {(slug, model), (slug, "")} if leaders.get(slug, model) == model else {(slug, model)}


def in_fair_order(stations: Sequence[Station], searches: Counter[str]) -> list[Station]:
    """Those first of whose model fewest searches run: where there are more devices than searches, the others help."""
    count = searches.copy()
    ranked = []
    for number, station in enumerate(stations):
        ranked.append((count[station.device.slug], number, station))
        count[station.device.slug] += 1
    return [station for _, _, station in sorted(ranked, key=lambda entry: entry[:2])]
