"""One service works on a database at a time: a claim that ends with the process that holds it, however it ends.

On a server it is an advisory lock of one session, in the schema that is used; poolers that share sessions among
clients do not go with it. Beside a file it is a lock on an empty file of its own, which the system lets go of.
"""

import sqlite3
import time
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import StoreError
from autotune.store.failures import attempt
from autotune.store.models import APPLICATION_ID
from autotune.store.opening import Target, server_engine

PATIENCE_S = 10.0
"""How long a claim on a server is waited for, as that of a service that was killed a moment ago."""
PAUSE_S = 0.5
BESIDE = ".service"

_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""Seconds; the server is to notice that the machine of a service is gone."""
_LOCK = text("SELECT pg_try_advisory_lock(:key, hashtext(coalesce(current_schema(), '')))")


class Claim(Protocol):
    """The right to be the only service on a database."""

    def is_held(self) -> bool:
        """Whether it still is, or is again after the server was away. Raises StoreError while that cannot be told."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class FileClaim:
    """Beside an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._place = path.resolve()
        self._lock = sqlite3.connect(
            self._place.with_name(self._place.name + BESIDE), timeout=0, isolation_level=None, check_same_thread=False
        )

    def is_held(self) -> bool:
        """Raises StoreError."""
        if self._lock.in_transaction:
            return True
        try:
            self._lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            raise StoreError(
                f"cannot lock {self._place}{BESIDE}: {error}", hint="may its folder be written?"
            ) from error
        return True

    def close(self) -> None:
        self._lock.close()


class ServerClaim:
    """In a session of its own, which lasts as long as the claim does."""

    def __init__(self, target: Target) -> None:
        self._engine = server_engine(target).execution_options(isolation_level="AUTOCOMMIT")
        self._place = str(target)
        self._session: Connection | None = None

    def is_held(self) -> bool:
        """Raises StoreError."""
        if self._session is not None and self._is_there(self._session):
            return True
        return attempt(self._claim, self._place)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._engine.dispose()  # a session that is kept for later keeps the lock

    def _is_there(self, session: Connection) -> bool:
        try:
            session.execute(text("SELECT 1"))
        except SQLAlchemyError:
            self.close()
            return False
        return True

    def _claim(self) -> bool:
        session = self._engine.connect()
        try:
            session.exec_driver_sql(_KEEPALIVES)
            is_ours = bool(session.execute(_LOCK, {"key": APPLICATION_ID}).scalar())
        except BaseException:
            session.close()
            raise
        self._session = session
        if not is_ours:
            self.close()
        return is_ours


def claimed(claim: Claim, place: str, patience_s: float) -> Claim:
    """The claim, once it is held. Raises StoreError when another service holds it for longer than that."""
    end = time.monotonic() + patience_s
    try:
        while not (is_held := claim.is_held()) and time.monotonic() < end:
            time.sleep(PAUSE_S)
    except BaseException:
        claim.close()
        raise
    if not is_held:
        claim.close()
        raise StoreError(f"another service works on {place}", hint="end that one, or name another database with --db")
    return claim
