"""Who executes the queued problems of jobs: this process alone, or an engine for all services on one database.

The service decides which device is free, and asks the executor to bring it a problem. The executor also knows whether
this service may still launch trials of what it was given.
"""

import asyncio
from typing import Protocol

from autotune.errors import StoreError
from autotune.service.searches import Search
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobProblem, TuningJob

LEAVE_S = 1.0
"""How long a stopping service waits for the database to learn that it goes."""


class Host(Protocol):
    """The service, as an executor sees it."""

    address: str
    searches: dict[int, Search]
    """Running searches, by the id of the job's problem."""

    def begin(self, job: TuningJob, problem: JobProblem, station: Station) -> Search:
        """Start the search of a problem that was taken for a station. Raises OSError."""

    async def over(self, search: Search) -> None:
        """Return when a search is over and its outcome recorded, or its problem queued again. Raises StoreError."""

    def cancel_search(self, search: Search) -> None: ...
    def wake(self) -> None: ...


class Executor(Protocol):
    """Brings queued problems to devices. Methods raise StoreError when the database fails."""

    @property
    def may_launch(self) -> bool:
        """Whether what this service searches certainly still belongs to it."""

    async def start(self) -> None: ...
    async def stop(self) -> None:
        """Stop, once the searches have ended or time is up."""

    async def prepare(self) -> None:
        """Get ready to engage stations."""

    async def engage(self, station: Station, *, begins: bool) -> bool:
        """Start a search of the next problem queued for a station; return whether there was one.

        Only if it `begins` may the problem belong to a job that has not begun.
        """

    def hurry(self) -> None:
        """Look soon for jobs that were cancelled."""


class LocalExecutor:
    """This process takes the problems from the table of jobs. It is the only service on its database."""

    def __init__(self, store: ServiceStore, host: Host) -> None:
        self._store = store
        self._host = host
        self._is_in_doubt = True
        """Whether the database may list a problem as running that no search works on."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def may_launch(self) -> bool:
        return True

    async def start(self) -> None:
        """Continue where the previous service ended."""
        await self.prepare()

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)

    async def prepare(self) -> None:
        """Queue the problems that are marked as running but are not being searched."""
        if self._is_in_doubt:
            await asyncio.to_thread(self._store.jobs.recover, list(self._host.searches))
            self._is_in_doubt = False

    async def engage(self, station: Station, *, begins: bool) -> bool:
        slug, model, address = station.device.slug, station.model_digest, self._host.address
        try:
            taken = await asyncio.to_thread(
                lambda: self._store.jobs.take(slug, station.name, model, begins=begins, service=address)
            )
            if taken is None:
                return False
            task = asyncio.create_task(self._finish(self._host.begin(*taken, station)))
        except BaseException:
            self._is_in_doubt = True  # the database's answer may be lost, or no process available
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _finish(self, search: Search) -> None:
        try:
            await self._host.over(search)
        except StoreError:
            self._is_in_doubt = True

    def hurry(self) -> None:
        """Do nothing: all searches are in this service, which cancels them."""
