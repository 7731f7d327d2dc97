"""One service works on a file at a time: a claim in the database itself, which its holder renews by a heartbeat.

The heartbeat, a number that the holder raises every few seconds, is the only sign that it runs. A service that wants
the claim watches that number by its own clock, so that it need neither compare clocks of several machines nor look for
processes on another machine. The claim is taken at once only if its holder was a process on the same machine that has
certainly ended. A service that was suspended and continues finds that another one has its claim, and ends.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import BigInteger, String, Text, delete, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.errors import StoreError
from autotune.store.models import Base, columns, insert_once, value_of
from autotune.store.owner import Owner, is_gone, new_owner
from autotune.store.transactions import Transactions

BEAT_S = 3.0
"""Time between two heartbeats."""
LEASE_S = 15.0
"""A holder that has been silent for this long loses its claim to any service that wants it."""
PAUSE_S = 0.2


class ClaimRow(Base):
    """The one service, and its heartbeat."""

    __tablename__ = "service_claim"

    id: Mapped[int] = mapped_column(primary_key=True)
    role: Mapped[str] = mapped_column(String(16), unique=True)
    host: Mapped[str] = mapped_column(Text)
    process_id: Mapped[int] = mapped_column(BigInteger)
    process_start: Mapped[str] = mapped_column(Text)
    run: Mapped[str] = mapped_column(String(32))
    beats: Mapped[int] = mapped_column(BigInteger)


_SERVICE = "service"


class Claim:
    """The right to be the only service on a database. Methods raise StoreError when the database fails."""

    def __init__(self, transactions: Transactions, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a claim that is not held yet."""
        self._transactions = transactions
        self._clock = clock
        self._me = new_owner()
        self._beaten = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether no other service can have the claim yet; if not, as after a suspension, nothing may be launched."""
        return self._clock() - self._beaten < LEASE_S

    def is_held(self) -> bool:
        """Renew the heartbeat, and return whether this service has the claim, still or again."""
        now = self._clock()
        is_held = self._transactions.write(self._beat)
        self._beaten = now if is_held else float("-inf")
        return is_held

    def close(self) -> None:
        """Release the claim."""
        self._transactions.write(lambda session: session.execute(delete(ClaimRow).filter_by(run=self._me.run)))

    @contextmanager
    def kept(self, on_lost: Callable[[], None], patience_s: float) -> Iterator[None]:
        """Renew the heartbeat in a thread until the context ends, then release the claim within `patience_s`.

        `on_lost` is called in that thread, again and again, once another service has the claim.
        """
        is_over = threading.Event()
        beating = threading.Thread(target=self._keep, args=(is_over, on_lost), daemon=True, name="claim")
        beating.start()
        try:
            yield
        finally:
            is_over.set()
            beating.join(patience_s)  # the thread may be stuck in the database

    def _keep(self, is_over: threading.Event, on_lost: Callable[[], None]) -> None:
        while not is_over.wait(BEAT_S):
            with suppress(StoreError):  # tried again; until then another service may take the claim
                if not self.is_held():
                    on_lost()
        with suppress(StoreError):
            self.close()

    def take(self, seen: ClaimRow | None) -> bool:
        """Try to take the claim, from the holder `seen` that is gone; return False if it has been renewed since."""
        if seen is not None:
            sign = {"run": seen.run, "beats": seen.beats}
            self._transactions.write(lambda session: session.execute(delete(ClaimRow).filter_by(**sign)))
        return self.is_held()

    def _beat(self, session: Session) -> bool:
        raised = update(ClaimRow).filter_by(run=self._me.run).values(beats=ClaimRow.beats + 1)
        result: Any = session.execute(raised, execution_options={"synchronize_session": False})
        if result.rowcount:
            return True
        row = ClaimRow(role=_SERVICE, beats=0, **columns(self._me, ClaimRow))
        insert_once(session.connection(), row, "role")
        return session.scalars(select(ClaimRow.run)).first() == self._me.run


def claimed(
    transactions: Transactions,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Claim:
    """Wait until the claim is held, and return it. Raises StoreError when another running service has it."""
    claim = Claim(transactions, clock)
    seen, since = transactions.read(_holder), clock()
    while not claim.take(seen if _has_ended(seen, clock() - since) else None):
        pause(PAUSE_S)
        found = transactions.read(_holder)
        if found is not None and seen is not None and found.run == seen.run and found.beats != seen.beats:
            hint = "stop that service, or name another database with --db"
            raise StoreError(f"another service is using {transactions.location}", hint=hint)
        if found is None or seen is None or found.run != seen.run:
            seen, since = found, clock()
    return claim


def _holder(session: Session) -> ClaimRow | None:
    row = session.scalars(select(ClaimRow)).one_or_none()
    if row is not None:
        session.expunge(row)
    return row


def _has_ended(row: ClaimRow | None, silent_s: float) -> bool:
    if row is None:
        return False
    return is_gone(value_of(Owner, row)) or silent_s > LEASE_S
