"""The batches of sources that a farm builds: entries of a queue on PostgreSQL, which builders on many machines take.

A batch names what is to be built: a device with its driver, a problem, and rows of a search space, each with the hash
of its source. The sources are rendered by the builder, which must come to the same hashes. A batch leaves the queue in
the transaction that stores the last of its builds.

Batches are queued under a lock, so that their ids grow in the order in which they are committed: who wants to know what
others have queued since reads on from the last id that it knows.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Self

from sqlalchemy import text
from sqlalchemy.orm import Session

from autotune.codec import COUNT, SLUG, Items, Node, read, write
from autotune.errors import TableError
from autotune.kernels import find_family
from autotune.kernels.render import template_hash
from autotune.lookup.values import read_family, readers_for
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.store.shared_queue import Queue
from autotune.store.transactions import Transactions, reads, writes
from autotune.store.trials import ExampleBuild, insert_builds

if TYPE_CHECKING:
    from autotune.store.shared_queue import Job

TASK = "build"
BATCH = 100
"""Sources of a batch."""
_ALONE = ":alone"
"""End of the name of the queue of sources that are to be built alone."""


@dataclass(frozen=True, kw_only=True)
class BuildTarget:
    """What must be equal on the machines that queue and build a batch: the compiler, and the code that renders."""

    slug: Annotated[str, SLUG]
    version: str
    driver: str
    family: str
    algorithm: str
    template_hash: str
    space_version: Annotated[int, COUNT]

    @classmethod
    def of(cls, device: Device, family: str, algorithm: str) -> Self:
        """Return what this installation has for a device."""
        found = find_family(family)
        plain = {"slug": device.slug, "version": device.version, "driver": device.driver}
        return cls(
            **write(plain),
            family=family,
            algorithm=algorithm,
            template_hash=template_hash(found, algorithm),
            space_version=found.space_version,
        )

    @property
    def queue(self) -> str:
        """Name of the queue of its batches."""
        return f"builds:{sha256(repr(self).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sources of one algorithm to build for one device."""

    target: BuildTarget
    limits: DeviceLimits
    """Those of the device where the batch was queued: the rows number the search space within them."""
    problem: Problem
    rows: Annotated[tuple[int, ...], Items(BATCH, least=1)]
    """Row of one configuration of each source in the space of the algorithm alone."""
    hashes: Annotated[tuple[str, ...], Items(BATCH, least=1)]
    """Hashes of the sources, in the order of the rows."""
    is_alone: bool = False
    """Whether a builder died with it, so that it holds one source, which is built while nothing else is."""

    @property
    def queue(self) -> str:
        return self.target.queue + (_ALONE if self.is_alone else "")

    def without(self, known: Collection[str]) -> "list[Batch]":
        """Return the sources that are not among these hashes, each as a batch to be built alone."""
        left = [pair for pair in zip(self.rows, self.hashes, strict=True) if pair[1] not in known]
        return [replace(self, rows=(row,), hashes=(source,), is_alone=True) for row, source in left]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A batch that a builder took. `batch` is None if this version cannot read it."""

    job: "Job"
    batch: Batch | None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What has happened in a backlog since the last look."""

    over: tuple[str, ...]
    """Hashes of the sources whose batches have left the queue: their builds are stored, or they are queued anew."""
    queued: frozenset[str]
    """Sources that wait or are being built."""
    being_built: int
    """Batches that builders have taken."""


class BuildFarm:
    """The farm as a builder uses it. Every method is one transaction, and raises StoreError when that fails."""

    def __init__(self, transactions: Transactions) -> None:
        """Called by `Store.farm` only, after the tables of the queue were made."""
        self._transactions = transactions
        self._queue = Queue(TASK)

    @writes
    def take(self, session: Session, targets: Iterable[BuildTarget], *, alone: bool) -> Taken | None:
        """Take the next batch for these targets: of those to be built `alone`, or of the others."""
        queues = [target.queue + (_ALONE if alone else "") for target in targets]
        job = self._queue.take(session, queues)
        return None if job is None else _taken(job)

    @writes
    def keep(
        self,
        session: Session,
        taken: Taken,
        device: Device,
        builds: Sequence[ExampleBuild],
        *,
        is_over: bool = False,
        again: Sequence[Batch] = (),
    ) -> bool:
        """Store builds of a batch; if it `is_over`, remove it and queue `again` in its place.

        Does nothing and returns False if the batch has been taken away from the builder that had it.
        """
        if again:
            self._queue.lock(session)
        if not _is_taken(session, taken.job):
            return False
        insert_builds(session, device, builds)
        if is_over:
            self._queue.remove(session, taken.job)
            _add(session, self._queue, again)
        return True

    @writes
    def give_back(self, session: Session, taken: Taken) -> None:
        """Let other builders take a batch. Does nothing if it has been taken away."""
        if _is_taken(session, taken.job):
            self._queue.put_back(session, taken.job, taken.job.queue)

    @writes
    def beat(self, session: Session) -> list[Taken]:
        """Show the others that this builder runs, and return what it still has."""
        self._queue.renew(session)
        return [_taken(job) for job in self._queue.ours(session)]

    @reads
    def stalled(self, session: Session, targets: Iterable[BuildTarget]) -> list[Taken]:
        """Return the batches for these targets whose builder has died."""
        queues = {target.queue for target in targets}
        jobs = self._queue.stalled(session)
        return [_taken(job) for job in jobs if job.queue.removesuffix(_ALONE) in queues]

    def waiting(self) -> dict[BuildTarget, int]:
        """Count the batches that wait for a builder, by what they need; those of a version not known are left out."""
        query = text(
            "SELECT args -> 'target', count(*) FROM procrastinate_jobs "
            "WHERE task_name = :task AND status = 'todo' GROUP BY 1"
        )
        rows = self._transactions.read(lambda session: session.execute(query, {"task": TASK}).all())
        found = {}
        for plain, count in rows:
            with suppress(TableError):
                found[read(BuildTarget, Node(plain))] = count
        return found

    def withdraw(self, slug: str, family: str, algorithms: Sequence[str]) -> int:
        """Remove the batches for a device that no builder has taken, and return their number.

        Only of these algorithms, unless there are none; for any driver and code, also those that nobody has any more.
        """
        query = text(
            "DELETE FROM procrastinate_jobs WHERE task_name = :task AND status = 'todo' "
            "AND args #>> '{target,slug}' = :slug AND args #>> '{target,family}' = :family "
            "AND (:all OR args #>> '{target,algorithm}' = ANY(:algorithms)) RETURNING id"
        )
        told = {"task": TASK, "slug": slug, "family": family, "all": not algorithms, "algorithms": list(algorithms)}
        return self._transactions.write(lambda session: len(session.execute(query, told).all()))

    def leave(self) -> None:
        """End taking part: what this builder still has is stalled at once."""
        self._transactions.write(self._queue.leave)

    def backlog(self, targets: Iterable[BuildTarget]) -> "Backlog":
        """Return what is queued for these targets, as those who queue see it."""
        return Backlog(self._transactions, self._queue, list(targets))


class Backlog:
    """What is queued for some targets, by whomever."""

    def __init__(self, transactions: Transactions, queue: Queue, targets: Sequence[BuildTarget]) -> None:
        self._transactions = transactions
        self._queue = queue
        self._queues = [target.queue + end for target in targets for end in ("", _ALONE)]
        self._open: dict[int, tuple[str, ...]] = {}
        """Hashes of the sources of each batch that was there when last looked."""
        self._queued: set[str] = set()
        self._last = 0
        """Id of the newest batch known."""

    def add(self, batch: Batch) -> None:
        """Queue the sources of a batch that are not queued yet."""

        def work(session: Session) -> dict[int, tuple[str, ...]]:
            self._queue.lock(session)
            self._read_on(session)
            left = [pair for pair in zip(batch.rows, batch.hashes, strict=True) if pair[1] not in self._queued]
            if not left:
                return {}
            rows, hashes = zip(*left, strict=True)
            return dict.fromkeys(_add(session, self._queue, [replace(batch, rows=rows, hashes=hashes)]), hashes)

        self._note(self._transactions.write(work))

    def look(self) -> Look:
        """Return what has happened since the last call."""
        query = text("SELECT id, status::text FROM procrastinate_jobs WHERE queue_name = ANY(:queues)")

        def work(session: Session) -> dict[int, str]:
            self._read_on(session)
            return {row.id: row.status for row in session.execute(query, {"queues": self._queues})}

        states = self._transactions.read(work)
        over = [source for its in self._open.keys() - states.keys() for source in self._open.pop(its)]
        self._queued = {source for sources in self._open.values() for source in sources} if over else self._queued
        being_built = sum(state == "doing" for state in states.values())
        return Look(over=tuple(over), queued=frozenset(self._queued), being_built=being_built)

    def _read_on(self, session: Session) -> None:
        """Take note of the batches queued since; this may be repeated."""
        query = text(
            "SELECT id, args -> 'hashes' AS hashes FROM procrastinate_jobs "
            "WHERE queue_name = ANY(:queues) AND id > :last ORDER BY id"
        )
        for row in session.execute(query, {"queues": self._queues, "last": self._last}).all():
            self._note({row.id: tuple(row.hashes)})
            self._last = row.id

    def _note(self, batches: dict[int, tuple[str, ...]]) -> None:
        self._open.update(batches)
        for hashes in batches.values():
            self._queued.update(hashes)


def _add(session: Session, queue: Queue, batches: Iterable[Batch]) -> list[int]:
    return [number for batch in batches for number in queue.add(session, batch.queue, [_plain(batch)])]


def _plain(batch: Batch) -> dict[str, Any]:
    plain: dict[str, Any] = write(batch)
    return plain


def _taken(job: "Job") -> Taken:
    node = Node(job.task_kwargs)
    try:
        readers = readers_for(read_family(node.member("target").member("family")))
        batch = read(Batch, node, readers=readers)
    except TableError:
        return Taken(job=job, batch=None)
    return Taken(job=job, batch=batch if len(batch.rows) == len(batch.hashes) else None)


def _is_taken(session: Session, job: "Job") -> bool:
    """Return whether the same builder still has the entry; locks it until the transaction ends."""
    query = text(
        "SELECT id FROM procrastinate_jobs WHERE id = :id AND status = 'doing' "
        "AND worker_id IS NOT DISTINCT FROM :worker FOR UPDATE"
    )
    return session.execute(query, {"id": job.id, "worker": job.worker_id}).first() is not None
