"""The queue that several services on one PostgreSQL share: jobs, workers and heartbeats of procrastinate.

Each open problem of a job is a job of procrastinate, in a queue named after its device. A service is a worker: it
fetches problems of the devices that call it, and its heartbeat shows that it runs. The problems of a service whose
heartbeat is late are stalled, and are queued again for another one.

Everything here is a step of a transaction of the job ledger. So the queue and the tables of jobs never disagree,
whenever a service is killed. In a transaction, the row of a job is locked before its entries in the queue; only `fetch`
goes the other way, and it skips entries that are locked.
"""

from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from autotune.errors import StoreError
from autotune.paths import APPLICATION_ID, install_hint

if TYPE_CHECKING:
    from procrastinate.jobs import Job
    from procrastinate.manager import JobManager

STALLED_S = 15.0
"""A service whose heartbeat is older than this, by the clock of the database, has lost its searches to the others."""
FORGOTTEN_S = 24 * 3600.0
"""A service that has been silent for this long is removed from the table of workers."""
TASK = "search"

_LOCK = APPLICATION_ID + 1
"""Key of the advisory lock under which the tables are made and stalled problems are collected."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a service has by its last heartbeat: ids of problems of jobs."""

    problems: frozenset[int]
    """Problems that it took: all others now belong to another service or have ended."""
    cancelled: frozenset[int]
    """Those of them whose job was cancelled."""


def queue_of(device: str, model: str = "") -> str:
    """Return the name of the queue of a device: of jobs not begun yet, or of those begun on one with this `model`."""
    return f"{device}/{model}" if model else device


class SharedQueue:
    """The queue, as one service uses it."""

    def __init__(self) -> None:
        """Raises StoreError when procrastinate is not installed."""
        try:
            import procrastinate.jobs
        except ModuleNotFoundError as error:
            hint = install_hint("postgres")
            raise StoreError(f"{error.name} is not installed, which services on PostgreSQL need", hint=hint) from error
        self._status = procrastinate.jobs.Status
        self._job = partial(procrastinate.jobs.Job, task_name=TASK)
        self._worker: int | None = None

    def prepare(self, session: Session) -> bool:
        """Make the tables of the queue unless they exist; return whether they were made."""
        from procrastinate.schema import SchemaManager

        self.lock(session)
        if _manager(session).check_connection():
            return False
        SchemaManager(_manager(session).connector).apply_schema()
        return True

    def lock(self, session: Session) -> None:
        """Let no other service collect stalled problems until the transaction ends."""
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))

    def defer(self, session: Session, queue: str, job_id: int, problems: Sequence[int]) -> None:
        """Queue problems of a job."""
        if problems:
            _manager(session).batch_defer_jobs(
                [
                    self._job(queue=queue, lock=str(its), queueing_lock=str(its), task_kwargs=_told(job_id, its))
                    for its in problems
                ]
            )

    def fetch(self, session: Session, queues: Sequence[str]) -> int | None:
        """Take the next problem of these queues and return its id; None if there is none."""
        self._join(session)
        assert self._worker is not None
        found = _ended(_manager(session).fetch_job(list(queues), self._worker))
        return None if found is None else _problem(found)

    def finish(self, session: Session, problem: int) -> None:
        """Remove a problem that was taken. Does nothing if it is not there."""
        for job in self._taken(session, problem):
            _ended(_manager(session).finish_job(job, self._status.SUCCEEDED, delete_job=True))

    def retry(self, session: Session, problem: int, queue: str) -> None:
        """Queue a problem that was taken again. Does nothing if it is not there."""
        for job in self._taken(session, problem):
            _ended(_manager(session).retry_job(job, queue=queue))

    def cancel(self, session: Session, job_id: int, queues: Iterable[str]) -> None:
        """Remove the queued problems of a job, and tell the services that search the others to stop."""
        manager = _manager(session)
        for job in [job for queue in queues for job in manager.list_jobs(queue=queue)]:
            if job.task_kwargs["job"] == job_id and job.id is not None:
                manager.cancel_job_by_id(job.id, abort=True, delete_job=True)

    def lost(self, session: Session, searched: Collection[int] | None) -> list[int]:
        """Return problems that were taken and that nobody searches: stalled, or ours and not among `searched`."""
        stalled = _ended(_manager(session).get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=STALLED_S))
        found = [_problem(job) for job in stalled]
        if searched is not None:
            found += [its for job in self._ours(session) if (its := _problem(job)) not in searched]
        return found

    def beat(self, session: Session) -> Held:
        """Renew the heartbeat; return what this service still has."""
        self._join(session)
        assert self._worker is not None
        manager = _manager(session)
        _ended(manager.update_heartbeat(self._worker))
        _ended(manager.prune_stalled_workers(FORGOTTEN_S))
        ours = self._ours(session)
        return Held(
            problems=frozenset(map(_problem, ours)),
            cancelled=frozenset(_problem(job) for job in ours if job.abort_requested),
        )

    def leave(self, session: Session) -> None:
        """End taking part: what this service still has is stalled at once."""
        if self._worker is not None:
            _ended(_manager(session).unregister_worker(self._worker))

    def _join(self, session: Session) -> None:
        """Register this service, again if it was silent for so long that it was forgotten."""
        known = text("SELECT id FROM procrastinate_workers WHERE id = :id")
        if self._worker is None or session.execute(known, {"id": self._worker}).first() is None:
            self._worker = _ended(_manager(session).register_worker())

    def _ours(self, session: Session) -> "list[Job]":
        if self._worker is None:
            return []
        return _manager(session).list_jobs(worker_id=self._worker, status=self._status.DOING.value)

    def _taken(self, session: Session, problem: int) -> "list[Job]":
        return _manager(session).list_jobs(lock=str(problem), status=self._status.DOING.value)


def _told(job_id: int, problem: int) -> dict[str, Any]:
    return {"job": job_id, "problem": problem}


def _problem(job: "Job") -> int:
    told = job.task_kwargs["problem"]
    assert isinstance(told, int)
    return told


def _manager(session: Session) -> "JobManager":
    from autotune.store.procrastinate_calls import job_manager

    return job_manager(session.connection())


def _ended(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of an asynchronous method of the job manager, whose queries here never wait."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("a query has waited")
