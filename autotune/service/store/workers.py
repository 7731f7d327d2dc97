"""The workers that are enrolled at a service: the secret that identifies each, and the device it offers.

The first greeting under a name for a device enrols the worker that sends it; from then on the name belongs to the owner
of the secret, until an administrator forgets the worker. Only a digest of the secret is stored: a secret is 32 random
bytes, so guessing likely secrets does not find it.
"""

import enum
import hashlib
import hmac
import json
from dataclasses import dataclass, replace

from sqlalchemy import String, UniqueConstraint, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.codec import write
from autotune.model.device import Device
from autotune.service.store.job_rows import OPEN_WORDS, JobRow
from autotune.store import quarantine
from autotune.store.models import Base, insert_once, plain_text
from autotune.store.transactions import Transactions, writes

MAX_WORKERS = 10_000


class WorkerRow(Base):
    """One worker and one of its devices."""

    __tablename__ = "workers"
    __table_args__ = (UniqueConstraint("name", "device"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    device: Mapped[str] = mapped_column(String(64))
    """Slug."""
    secret_digest: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(16))
    """Digest of driver and limits of the device as last offered."""


class Standing(enum.Enum):
    """What a greeting shows about its sender."""

    KNOWN = "known"
    STRANGER = "stranger"
    """The name belongs to a worker with another secret."""
    TOO_MANY = "too many"
    """No more workers are enrolled."""


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """The answer to a greeting."""

    standing: Standing
    rank: int = 0
    """Lower for a worker that was enrolled earlier."""
    is_new: bool = False


class WorkerLedger:
    """The workers of an open database. Every method is one transaction, and raises StoreError when that fails."""

    def __init__(self, transactions: Transactions) -> None:
        """Called by `Store.workers` only."""
        self._transactions = transactions

    @writes
    def enrol(self, session: Session, name: str, secret: str, device: Device, others: int = 0) -> Enrolment:
        """Check the secret of a worker, or enrol the worker if the name is new for that device.

        `others` is how many its client has enrolled; it may enrol more only while as many places are free.
        If the driver or the limits of its device have changed, open jobs begun before continue with the new ones,
        unless another worker still offers the device as it was.
        """
        row = _row_of(session, name, device.slug)
        is_new = row is None
        if row is None:
            if (session.scalar(select(func.count()).select_from(WorkerRow)) or 0) + others >= MAX_WORKERS:
                return Enrolment(standing=Standing.TOO_MANY)
            new = WorkerRow(name=name, device=device.slug, secret_digest=digest_of(secret), model=model_of(device))
            insert_once(session.connection(), new, "name", "device")
            row = _row_of(session, name, device.slug)
        if row is None or not hmac.compare_digest(row.secret_digest, digest_of(secret)):
            return Enrolment(standing=Standing.STRANGER)
        if row.model != model_of(device):
            _succeed(session, row, model_of(device))
        return Enrolment(standing=Standing.KNOWN, rank=row.id, is_new=is_new)

    def enrolled(self) -> set[int]:
        """Return the ranks of all workers that are enrolled."""
        return self._transactions.read(lambda session: set(session.scalars(select(WorkerRow.id))))

    @writes
    def forget(self, session: Session, name: str) -> bool:
        """Remove a worker, so that its name can be enrolled with any secret; return whether the name was known."""
        result = session.execute(delete(WorkerRow).where(WorkerRow.name == plain_text(name)))
        # Only the worker could report what became of the trials that it had in hand.
        message = f"in flight on {name} when that worker was forgotten"
        quarantine.lose(session, message, worker=plain_text(name))
        return bool(result.rowcount)  # type: ignore[attr-defined]


def digest_of(secret: str) -> str:
    """Return the digest that is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def model_of(device: Device) -> str:
    """Return a digest of driver and limits: two devices of one slug and equal digests measure the same.

    The size of the memory is left out, since drivers for processors derive it from what is free.
    """
    limits = replace(device.limits, global_memory_bytes=0, max_allocation_bytes=0)
    text = json.dumps([device.slug, device.driver, write(limits)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row_of(session: Session, name: str, device: str) -> WorkerRow | None:
    return session.scalars(select(WorkerRow).filter_by(name=name, device=device)).one_or_none()


def _succeed(session: Session, row: WorkerRow, model: str) -> None:
    before, row.model = row.model, model
    session.flush()
    if session.scalars(select(WorkerRow.id).filter_by(device=row.device, model=before).limit(1)).first() is None:
        is_open = (JobRow.device == row.device, JobRow.model == before, JobRow.state.in_(OPEN_WORDS))
        session.execute(update(JobRow).where(*is_open).values(model=model))
