"""The store: devices, problems, the ledger of trials and builds, and the winners. Owns SQLAlchemy and Alembic.

A `Store` is opened on an SQLite file or a database server and may be used by several programs at once. Rows of trials,
builds and winners are only ever added; rows for trials in flight and in quarantine come and go. `best_configurations`
is a view that people can query too.

Each part of the store is a file with its tables, its values and its transactions: `trials.py` (summed up by
`history.py`), `quarantine.py` (with the trials in flight), `winners.py`, `checkups.py`, `jobs.py`, `workers.py`. One
service works on a file (`service_claim.py`), any number on a server (`shared_queue.py`, `notices.py`). `models.py` has
what the tables share, `transactions.py` how they are read and written.
"""

import threading
from functools import cached_property
from pathlib import Path
from typing import Self

from autotune.errors import StoreError
from autotune.model.device import Device
from autotune.store import models, service_claim
from autotune.store.checkups import CheckupLedger
from autotune.store.database import parse_target
from autotune.store.failures import AWAY_PATIENCE_S
from autotune.store.history import FailureReason, HistoryLedger, Hour
from autotune.store.jobs import JobLedger
from autotune.store.migration import Schema, open_engine, read_schema
from autotune.store.notices import Notices
from autotune.store.owner import Attempt, Fate, Holder, Owner, new_owner
from autotune.store.quarantine import LOST, InFlight, Quarantined, QuarantineLedger
from autotune.store.shared_queue import SharedQueue
from autotune.store.snapshot import check_snapshot_path, write_snapshot
from autotune.store.trials import Ending, ExampleBuild, StoredTrial, TrialLedger
from autotune.store.winners import WinnerLedger
from autotune.store.workers import WorkerLedger

__all__ = [
    "AWAY_PATIENCE_S",
    "LOST",
    "Attempt",
    "Ending",
    "ExampleBuild",
    "FailureReason",
    "Fate",
    "Holder",
    "Hour",
    "InFlight",
    "Owner",
    "Quarantined",
    "Store",
    "StoredTrial",
    "new_owner",
]


_MAKING_JOBS = threading.Lock()
"""A store has one ledger of jobs, and with it one place among the services that share the database."""


class Store(TrialLedger, HistoryLedger, QuarantineLedger, WinnerLedger, CheckupLedger):
    """An open database. Every method is one transaction and raises StoreError when the database fails."""

    @classmethod
    def open(cls, target: str | Path | None = None, *, read_only: bool = False, makes: bool = True) -> Self:
        """Open a file or a URL, or the user's own database for None, creating or migrating it unless `read_only`.

        Without `makes`, a missing file is an error; this is for callers that have nothing to do in a new database.
        A server that does not answer now is an error; if it goes away later, it is waited for up to AWAY_PATIENCE_S.
        Raises NotADatabaseError, NewerSchemaError, ReadOnlyDatabaseError, DatabaseAwayError, or StoreError.
        """
        place = parse_target(target)
        return cls(place, open_engine(place, read_only=read_only, makes=makes), read_only=read_only)

    @property
    def is_shared(self) -> bool:
        """Whether several services may work on this database at once: on a server they may, on a file not."""
        return self._target.path is None

    @property
    def jobs(self) -> JobLedger:
        """The service's jobs. Raises StoreError on a server where procrastinate is not installed."""
        with _MAKING_JOBS:
            return self._jobs

    @cached_property
    def _jobs(self) -> JobLedger:
        return JobLedger(self, SharedQueue() if self.is_shared and not self._is_read_only else None)

    @property
    def workers(self) -> WorkerLedger:
        """The service's workers."""
        return WorkerLedger(self)

    def claim_service(self) -> service_claim.Claim:
        """Claim the right to be the only service on this database. Raises StoreError when another service has it."""
        return service_claim.claimed(self)

    def notices(self) -> Notices:
        """Return a way to tell the other services on this database something, and to hear them."""
        return Notices(self._writing)

    def add_device(self, device: Device) -> None:
        """Add a device, or update its limits if it is already stored."""
        self.write(lambda session: models.device_id(session, device, is_seen_here=True))

    def is_ready(self) -> bool:
        """Return whether the database answers now and has the newest schema. Raises StoreError when it does not answer.

        Unlike a transaction, this does not wait for a server that is away.
        """
        return read_schema(self._reading, self.location) is Schema.CURRENT

    def snapshot(self, path: str | Path, device_slug: str | None = None) -> None:
        """Write an SQLite file that opens in a read-only folder, with all rows or one device's; replaces a file there.

        Raises ReadOnlyDatabaseError, StoreError.
        """
        target = Path(path)
        if self._target.path and target.exists() and self._target.path.samefile(target):
            raise StoreError(f"{target} is the database itself", hint="name another file")
        check_snapshot_path(target)
        write_snapshot(self.read, target, device_slug)
