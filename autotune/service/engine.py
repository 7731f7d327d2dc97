"""Several services on one PostgreSQL: procrastinate brings queued problems to free devices.

Each problem is deferred as a task, in the queue of its device (`entries.py`). A service that has a free device runs a
worker of procrastinate on its queues until that has one problem, and through its search. The worker renews a
heartbeat. Problems of workers without one are queued again by any other service. A service that was only suspended
must not launch what it was given then: each trial begins only if its attempt is not over (`check_attempt`), and is
given to a device only for a while after the service has seen that its heartbeats are in time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from procrastinate import App, BaseRetryStrategy, JobContext, PsycopgConnector, RetryDecision
from procrastinate.exceptions import ConnectorException, ProcrastinateException
from procrastinate.jobs import Job, Status

from autotune.errors import DatabaseAwayError, StoreError
from autotune.service.executor import LEAVE_S, Host
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.entries import TASK, Entries, queue_of
from autotune.store.failures import AWAY_PATIENCE_S

BEAT_S = 3.0
"""Time between two heartbeats of a worker, and between two looks at those of the others."""
STALLED_S = 15.0
"""A problem is queued again when the heartbeat of its worker is older than this, by the clock of the database."""
LATE_SHARE = 0.4
"""Part of STALLED_S after which our own heartbeats are late."""
FRESH_SHARE = 0.8
"""Part of the rest of STALLED_S for which trials are launched once no heartbeat was late: clocks differ in speed."""
FORGOTTEN_S = 24 * 3600.0
"""A worker that has been silent for this long is removed."""
CONNECTIONS = 4
_LONG_AGO = datetime.fromtimestamp(0, UTC)

_LOG = logging.getLogger(__name__)


class _AtOnce(BaseRetryStrategy):
    """Retries what failed, such as for want of the database or of a process, as soon as a device is free.

    When that is the database decides: the clock of this machine may be ahead of its clock.
    """

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:  # noqa: ARG002
        return RetryDecision(retry_at=_LONG_AGO)


class EngineExecutor:
    """Shares the jobs of a database with other services by procrastinate."""

    def __init__(self, store: ServiceStore, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = store.jobs
        self._entries = Entries(store)
        self._host = host
        self._clock = clock
        connecting = {**store.connecting, "prepare_threshold": None}
        self._app = App(
            connector=PsycopgConnector(kwargs=connecting, min_size=1, max_size=CONNECTIONS, timeout=AWAY_PATIENCE_S)
        )
        self._app.task(name=TASK, pass_context=True, retry=_AtOnce())(self._search)
        self._held: dict[int, int] = {}
        """Entries of the problems that are searched here, by the id of the problem."""
        self._workers: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        self._looked = self._fresh_until = float("-inf")
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # while the database is away, the store says so

    @property
    def may_launch(self) -> bool:
        return self._clock() < self._fresh_until

    async def start(self) -> None:
        """Connect, make the tables of procrastinate unless they exist, and begin to look after the heartbeats."""
        asyncio.get_running_loop().set_exception_handler(_note_failure)
        try:
            await self._app.open_async()
            if not await self._app.check_connection_async():
                await self._make_tables()
        except ConnectorException as error:
            raise _away(error) from error
        self._keeping = asyncio.create_task(self._keep_looking())

    async def _make_tables(self) -> None:
        try:
            await self._app.schema_manager.apply_schema_async()
        except ConnectorException:
            if not await self._app.check_connection_async():  # or another service made them at the same time
                raise

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=LEAVE_S)
        await self._app.close_async()  # no worker can report any more: what it has not is stalled soon

    async def prepare(self) -> None:
        """Do nothing: `engage` brings the entries up to date."""

    def hurry(self) -> None:
        self._is_due.set()

    async def engage(self, station: Station, *, begins: bool) -> bool:
        """Run a worker of procrastinate for a station until it has found a problem to search, or that there is none."""
        await asyncio.to_thread(self._entries.update)
        slug, begun = station.device.slug, asyncio.Event()
        queues = [queue_of(slug, station.model_digest), *([queue_of(slug)] if begins else [])]
        worker = asyncio.create_task(
            self._app.run_worker_async(
                queues=queues,
                name=station.name,
                concurrency=1,
                wait=False,
                listen_notify=False,  # which would take a connection for each device
                abort_job_polling_interval=FORGOTTEN_S,  # one look for all of them is enough
                delete_jobs="always",
                additional_context={"station": station, "begins": begins, "begun": begun},
                install_signal_handlers=False,
                update_heartbeat_interval=BEAT_S,
                stalled_worker_timeout=FORGOTTEN_S,
                worker_middleware=[_stop_after_a_search],
            )
        )
        self._workers.add(worker)
        worker.add_done_callback(lambda ended: self._note_end(ended, has_searched=begun.is_set()))
        has_begun = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({worker, has_begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_begun.cancel()
        if not begun.is_set() and (error := worker.exception()) is not None:
            raise _away(error) from error
        return begun.is_set()

    def _note_end(self, worker: "asyncio.Task[None]", *, has_searched: bool) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            _LOG.warning("a worker of procrastinate has ended: %s", error)
        if has_searched:
            self._host.wake()

    async def _search(self, context: JobContext, problem: int) -> None:
        """Search a problem on the station of a worker; the task that procrastinate runs."""
        station: Station = context.additional_context["station"]
        begins: bool = context.additional_context["begins"]
        slug, model, address, entry = station.device.slug, station.model_digest, self._host.address, context.job.id
        assert entry is not None
        taken = await asyncio.to_thread(
            lambda: self._jobs.take(slug, station.name, model, begins=begins, service=address, entry=entry)
        )
        if taken is None:
            return  # cancelled, or it has a new entry
        search = self._host.begin(*taken, station)
        context.additional_context["begun"].set()
        self._held[problem] = entry
        try:
            await self._host.over(search)
        finally:
            del self._held[problem]

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self.look()
            except (StoreError, ConnectorException) as error:  # until it succeeds again, nothing is launched
                _LOG.warning("the engine cannot be used: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), BEAT_S)
            self._is_due.clear()

    async def look(self) -> None:
        """Bring the entries up to date, give up what is cancelled or others have taken, and queue what they have lost.

        Raises StoreError and procrastinate's ConnectorException.
        """
        await asyncio.to_thread(self._entries.update)
        looked, held, searches = self._clock(), dict(self._held), dict(self._host.searches)
        late, stalled = await self._stalled(LATE_SHARE * STALLED_S), await self._stalled(STALLED_S)
        current = await asyncio.to_thread(self._jobs.held, [search.problem for search in searches.values()])
        aborted = set(await self._app.job_manager.list_jobs_to_abort_async())
        for problem, search in searches.items():
            if problem not in current:
                search.supersede()
            elif held.get(problem) in aborted and not search.is_cancelled:
                self._host.cancel_search(search)
        if not {job.id for job in late}.intersection(held.values()):
            self._fresh_until = looked + FRESH_SHARE * (1 - LATE_SHARE) * STALLED_S
        # Where this service itself was cut off from the database, so may all the others have been.
        is_steady, self._looked = self._clock() - self._looked < STALLED_S, looked
        if is_steady:
            await self.collect(stalled)

    async def collect(self, stalled: Sequence[Job]) -> None:
        """Queue again the problems of workers that are gone.

        Their entries are removed and not retried: a worker that was only suspended ends its entry when it goes on.
        """
        for job in stalled:
            problem = job.task_kwargs["problem"]
            assert isinstance(problem, int) and job.id is not None
            if await asyncio.to_thread(self._jobs.release, problem, job.id):
                _LOG.info("problem %s is queued again: its service does not answer", problem)
                with contextlib.suppress(ConnectorException):  # another service was faster
                    await self._app.job_manager.finish_job(job, Status.ABORTED, delete_job=True)
                self._host.wake()

    async def _stalled(self, seconds: float) -> Sequence[Job]:
        """Return the entries of workers whose heartbeat is older than so many seconds, or that were removed."""
        return list(await self._app.job_manager.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=seconds))


async def _stop_after_a_search(call_next: Callable[[], Awaitable[Any]], context: JobContext, worker: Any) -> None:
    """Have the worker take nothing more once it has searched or failed: the service decides what its device does next.

    It goes on after an entry that is no longer needed.
    """
    goes_on = False
    try:
        await call_next()
        goes_on = not context.additional_context["begun"].is_set()
    finally:
        if not goes_on:
            worker.stop()


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say in a line that a worker could not end its entry, as when another service has removed it since.

    This task of procrastinate's is not awaited, so the loop would log its error with a traceback.
    """
    if isinstance(error := context.get("exception"), ProcrastinateException):
        _LOG.info("an entry of the engine was gone: %s", error.__cause__ or error)
    else:
        loop.default_exception_handler(context)


def _away(error: BaseException) -> DatabaseAwayError:
    return DatabaseAwayError(f"the engine cannot be used: {error.__cause__ or error}")
