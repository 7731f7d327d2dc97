"""Queues that several processes on one PostgreSQL share: jobs, workers and heartbeats of procrastinate.

`Queue` is what any task needs: a process that takes part is a worker, whose heartbeat shows that it runs; what a worker
with a late heartbeat had taken is stalled, and somebody decides what becomes of it. `SharedQueue` holds the searches:
each open problem of a job is an entry, in a queue named after its device; a service is a worker, and the problems of a
stalled one are queued again for another.

Everything here is a step of a transaction of a ledger. So the queue and the tables never disagree, whenever a process
is killed. In a transaction, the row of a job is locked before its entries in the queue; only `fetch` goes the other
way, and it skips entries that are locked.
"""

import hashlib
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from autotune.errors import StoreError
from autotune.paths import APPLICATION_ID, install_hint

if TYPE_CHECKING:
    from procrastinate.jobs import Job as Job  # noqa: PLC0414 - for the other queues, too
    from procrastinate.manager import JobManager

STALLED_S = 15.0
"""A process whose heartbeat is older than this, by the clock of the database, has lost to the others what it took."""
FORGOTTEN_S = 24 * 3600.0
"""A process that has been silent for this long is removed from the table of workers."""
LONGEST_NAME = 40
"""Most characters of the name of a queue."""
TASK = "search"

_LOCK = APPLICATION_ID + 1
"""Key of the advisory lock under which the tables are made and stalled entries are collected."""
_AT_ONCE = datetime.fromtimestamp(0, UTC)
"""When an entry that is put back is due. This machine's clock may be ahead of the database's, which decides."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a service has by its last heartbeat: ids of problems of jobs."""

    problems: frozenset[int]
    """Problems that it took: all others now belong to another service or have ended."""
    cancelled: frozenset[int]
    """Those of them whose job was cancelled."""


def queue_of(device: str, model: str = "") -> str:
    """Return the name of the queue of a device: of jobs not begun yet, or of those begun on one with this `model`.

    A name too long for procrastinate, which makes a channel of PostgreSQL of it, is shortened.
    """
    name = f"{device}/{model}" if model else device
    return name if len(name) <= LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()[:LONGEST_NAME]


class Queue:
    """The entries of one task, as one process uses them."""

    def __init__(self, task: str) -> None:
        """Raises StoreError when procrastinate is not installed."""
        try:
            import procrastinate.jobs
        except ModuleNotFoundError as error:
            hint = install_hint("postgres")
            raise StoreError(f"{error.name} is not installed, which sharing PostgreSQL needs", hint=hint) from error
        self.task = task
        self._status = procrastinate.jobs.Status
        self._job = partial(procrastinate.jobs.Job, task_name=task)
        self._worker: int | None = None

    def prepare(self, session: Session) -> bool:
        """Make the tables of the queue unless they exist; return whether they were made."""
        from procrastinate.schema import SchemaManager

        self.lock(session)  # before looking: what is looked up once, PostgreSQL may remember while it waits
        if manager(session).check_connection():
            return False
        SchemaManager(manager(session).connector).apply_schema()
        return True

    def lock(self, session: Session, *, waits: bool = True) -> bool:
        """Let no other process collect stalled entries until the transaction ends; return False if another one does.

        That is only returned unless this `waits`.
        """
        take: Any = func.pg_advisory_xact_lock if waits else func.pg_try_advisory_xact_lock
        return session.scalar(select(take(_LOCK))) is not False

    def add(self, session: Session, queue: str, told: Sequence[dict[str, Any]], locks: Sequence[str] = ()) -> list[int]:
        """Queue entries and return their ids. Of those with equal `locks`, one is queued and one taken at a time."""
        found: list[int] = []
        if told:
            named: Sequence[str | None] = locks or [None] * len(told)
            pairs = zip(told, named, strict=True)
            jobs = [self._job(queue=queue, lock=lock, queueing_lock=lock, task_kwargs=its) for its, lock in pairs]
            found = [job.id for job in manager(session).batch_defer_jobs(jobs) if job.id is not None]
        return found

    def take(self, session: Session, queues: Sequence[str]) -> "Job | None":
        """Take the next entry of these queues; None if there is none."""
        self._join(session)
        assert self._worker is not None
        return _ended(manager(session).fetch_job(list(queues), self._worker))

    def remove(self, session: Session, job: "Job") -> None:
        """Remove an entry that was taken."""
        _ended(manager(session).finish_job(job, self._status.SUCCEEDED, delete_job=True))

    def put_back(self, session: Session, job: "Job", queue: str) -> None:
        """Queue an entry that was taken again."""
        _ended(manager(session).retry_job(job, queue=queue, retry_at=_AT_ONCE))

    def stalled(self, session: Session) -> "list[Job]":
        """Return the entries that were taken by a process whose heartbeat is late, or that has left."""
        return list(_ended(manager(session).get_stalled_jobs(task_name=self.task, seconds_since_heartbeat=STALLED_S)))

    def renew(self, session: Session) -> None:
        """Renew the heartbeat of this process."""
        self._join(session)
        assert self._worker is not None
        _ended(manager(session).update_heartbeat(self._worker))
        _ended(manager(session).prune_stalled_workers(FORGOTTEN_S))

    def leave(self, session: Session) -> None:
        """End taking part: what this process still has is stalled at once."""
        if self._worker is not None:
            _ended(manager(session).unregister_worker(self._worker))

    def ours(self, session: Session) -> "list[Job]":
        """Return what this process has taken."""
        if self._worker is None:
            return []
        return manager(session).list_jobs(worker_id=self._worker, status=self._status.DOING.value)

    def _join(self, session: Session) -> None:
        """Register this process, again if it was silent for so long that it was forgotten."""
        known = text("SELECT id FROM procrastinate_workers WHERE id = :id")
        if self._worker is None or session.execute(known, {"id": self._worker}).first() is None:
            self._worker = _ended(manager(session).register_worker())


class SharedQueue(Queue):
    """The queue of searches, as one service uses it."""

    def __init__(self) -> None:
        """Raises StoreError when procrastinate is not installed."""
        super().__init__(TASK)

    def defer(self, session: Session, queue: str, job_id: int, problems: Sequence[int]) -> None:
        """Queue problems of a job."""
        self.add(session, queue, [{"job": job_id, "problem": its} for its in problems], [str(its) for its in problems])

    def fetch(self, session: Session, queues: Sequence[str]) -> int | None:
        """Take the next problem of these queues and return its id; None if there is none."""
        found = self.take(session, queues)
        return None if found is None else _problem(found)

    def finish(self, session: Session, problem: int) -> None:
        """Remove a problem that was taken. Does nothing if it is not there."""
        for job in self._taken(session, problem):
            self.remove(session, job)

    def retry(self, session: Session, problem: int, queue: str) -> None:
        """Queue a problem that was taken again. Does nothing if it is not there."""
        for job in self._taken(session, problem):
            self.put_back(session, job, queue)

    def cancel(self, session: Session, job_id: int) -> None:
        """Remove the queued problems of a cancelled job, and tell the services that search the others to stop.

        They are looked for in all queues, since after an update of a driver they may be in that of the former model.
        What another transaction has locked is left to it: it finds the job cancelled.
        """
        chosen = "task_name = :task AND CAST(args->>'job' AS bigint) = :job FOR UPDATE SKIP LOCKED"
        query = text(f"SELECT id FROM procrastinate_jobs WHERE {chosen}")  # noqa: S608 - no input
        for entry in session.scalars(query, {"task": self.task, "job": job_id}).all():
            manager(session).cancel_job_by_id(entry, abort=True, delete_job=True)

    def lost(self, session: Session, searched: Collection[int] | None) -> list[int]:
        """Return problems that were taken and that nobody searches: stalled, or ours and not among `searched`."""
        found = [_problem(job) for job in self.stalled(session)]
        if searched is not None:
            found += [its for job in self.ours(session) if (its := _problem(job)) not in searched]
        return found

    def move_stranded(self, session: Session, homes: Mapping[int, str], served: Collection[str]) -> int:
        """Move queued problems out of queues that are not `served` into the home of their job; return how many.

        Such a queue is left when workers come back with another model, as after an update of their driver: their jobs
        go on with the new one. `homes` are queues by the id of an open job.
        """
        chosen = "FROM procrastinate_jobs WHERE task_name = :task AND status = 'todo'"
        named = session.scalars(text(f"SELECT DISTINCT queue_name {chosen}"), {"task": self.task}).all()
        moved = 0
        for queue in set(named).difference(served):
            # A locked entry is being fetched, and goes home by that.
            query = text(f"SELECT id, args {chosen} AND queue_name = :queue FOR UPDATE SKIP LOCKED")
            for entry, told in session.execute(query, {"task": self.task, "queue": queue}).all():
                if (home := homes.get(told["job"])) is not None:
                    change = text("UPDATE procrastinate_jobs SET queue_name = :home WHERE id = :id")
                    session.execute(change, {"home": home, "id": entry})
                    moved += 1
        return moved

    def beat(self, session: Session) -> Held:
        """Renew the heartbeat; return what this service still has."""
        self.renew(session)
        ours = self.ours(session)
        return Held(
            problems=frozenset(map(_problem, ours)),
            cancelled=frozenset(_problem(job) for job in ours if job.abort_requested),
        )

    def _taken(self, session: Session, problem: int) -> "list[Job]":
        return manager(session).list_jobs(lock=str(problem), status=self._status.DOING.value)


def _problem(job: "Job") -> int:
    told = job.task_kwargs["problem"]
    assert isinstance(told, int)
    return told


def manager(session: Session) -> "JobManager":
    """Return procrastinate's job manager on the connection of a session."""
    from autotune.service.store.procrastinate_calls import job_manager

    return job_manager(session.connection())


def _ended(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of an asynchronous method of the job manager, whose queries here never wait."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("a query has waited")
