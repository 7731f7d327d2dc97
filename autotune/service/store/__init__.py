"""The store of a service: besides what every store has, its jobs, its workers, and the other services.

One service works on a file (`service_claim.py`), any number on a server (`shared_queue.py`, `notices.py`).
"""

import threading
from functools import cached_property

from sqlalchemy import Connection

from autotune.service.store import service_claim
from autotune.service.store.job_rows import check_attempt
from autotune.service.store.jobs import JobLedger
from autotune.service.store.notices import Notices
from autotune.service.store.shared_queue import SharedQueue
from autotune.service.store.workers import WorkerLedger
from autotune.store import Store
from autotune.store.owner import Owner

_MAKING_JOBS = threading.Lock()
"""A store has one ledger of jobs, and with it one place among the services that share the database."""


class ServiceStore(Store):
    """An open database of a service. Every method is one transaction and raises StoreError when the database fails."""

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

    def check_owner(self, connection: Connection, owner: Owner) -> None:
        """Raise StoreError if the attempt for which a worker measures is over."""
        if owner.holder is not None and owner.holder.attempt is not None:
            check_attempt(connection, owner.holder.attempt)
