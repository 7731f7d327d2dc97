"""The store of a service: besides what every store has, its jobs, its workers and sums over trials.

One service works on a file, any number on a server (`entries.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine

from autotune.errors import StoreError
from autotune.service.store.held import HeldLedger
from autotune.service.store.history import HistoryLedger
from autotune.service.store.job_rows import check_attempt
from autotune.service.store.jobs import JobLedger
from autotune.service.store.together import Together
from autotune.service.store.workers import WorkerLedger
from autotune.store import Store
from autotune.store.database import Target
from autotune.store.failures import file_failures
from autotune.store.owner import Owner
from autotune.store.transactions import Work


class ServiceStore(HistoryLedger, HeldLedger, Store):
    """An open database of a service. Every method is one transaction and raises StoreError when the database fails."""

    def __init__(self, target: Target, engine: Engine, *, read_only: bool) -> None:
        super().__init__(target, engine, read_only=read_only)
        self._together = Together(self._writing, self._places)

    def write_together(self, work: Work, *, waits_for_space: bool = False) -> None:
        """Write in one transaction with the writes of other threads or, if that fails, alone."""
        if not self._together.write(work):
            super().write_together(work, waits_for_space=waits_for_space)
        elif self._outage:
            self._outage.ends(self.location)

    @property
    def is_shared(self) -> bool:
        """Whether several services may work on this database at once: on a server they may, on a file not."""
        return self._target.path is None

    @property
    def jobs(self) -> JobLedger:
        """The service's jobs."""
        return JobLedger(self)

    @property
    def workers(self) -> WorkerLedger:
        """The service's workers."""
        return WorkerLedger(self)

    @property
    def connecting(self) -> dict[str, Any]:
        """What the driver of a server needs to connect, for the engine's own connections."""
        return dict(self._writing.dialect.create_connect_args(self._writing.url)[1])

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the only service on a file until the context ends, or the process. Raises StoreError if there is another.

        The lock is held on a file in the folder of the database; the file is not removed.
        """
        if self._target.path is None:
            yield
            return
        path = self._target.path.resolve()
        lock = FileLock(path.with_name(f".{path.name}.service"), timeout=0)
        with file_failures(self.location):
            try:
                lock.acquire()
            except Timeout as error:
                hint = "stop that service, or name another database with --db"
                raise StoreError(f"another service is using {self.location}", hint=hint) from error
        try:
            yield
        finally:
            lock.release()

    def check_owner(self, connection: Connection, owner: Owner) -> None:
        """Raise StoreError if the attempt for which a worker measures is over."""
        if owner.holder is not None and owner.holder.attempt is not None:
            check_attempt(connection, owner.holder.attempt)
