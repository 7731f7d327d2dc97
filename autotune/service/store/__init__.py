"""The store of a service: besides what every store has, its jobs, its workers, and the claim of a single service.

One service works on a file (`service_claim.py`), any number on a server (`entries.py`).
"""

from typing import Any

from sqlalchemy import Connection

from autotune.service.store import service_claim
from autotune.service.store.job_rows import check_attempt
from autotune.service.store.jobs import JobLedger
from autotune.service.store.workers import WorkerLedger
from autotune.store import Store
from autotune.store.owner import Owner


class ServiceStore(Store):
    """An open database of a service. Every method is one transaction and raises StoreError when the database fails."""

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

    def claim_service(self) -> service_claim.Claim:
        """Claim the right to be the only service on this database. Raises StoreError when another service has it."""
        return service_claim.claimed(self)

    def check_owner(self, connection: Connection, owner: Owner) -> None:
        """Raise StoreError if the attempt for which a worker measures is over."""
        if owner.holder is not None and owner.holder.attempt is not None:
            check_attempt(connection, owner.holder.attempt)
