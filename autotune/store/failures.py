"""Turns database failures into one-line errors, and retries while a database is in use or away."""

import enum
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from autotune.errors import DatabaseAwayError, NotADatabaseError, ReadOnlyDatabaseError, StoreError
from autotune.lookup.database import locked

_LOG = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 30.0
"""How long SQLite itself waits for a lock."""
PATIENCE_S = 60.0
"""Total time of retries: SQLite does not wait for every kind of lock, and its queue is not fair."""
AWAY_PATIENCE_S = 300.0
"""How long a server may be away, for example while it is restarted or upgraded."""
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5

_Result = TypeVar("_Result")


class Obstacle(enum.Enum):
    """A failure that may be temporary."""

    BUSY = "busy"
    FULL = "full"
    AWAY = "away"


class Outage:
    """How long the server of one store has been away. All transactions tried meanwhile share the time limit."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts_too_long(self, place: str, error: Exception) -> bool:
        """Note that the server failed to answer; return whether the outage exceeds AWAY_PATIENCE_S."""
        if self._since is None:
            self._since = time.monotonic()
            _LOG.warning(
                "%s cannot be reached (%s): trying again for up to %.0f s", place, _first_line(error), AWAY_PATIENCE_S
            )
        return self.seconds > AWAY_PATIENCE_S

    def ends(self, place: str) -> None:
        """Note that the server has answered."""
        if self._since is not None and self.seconds > 1.0:
            _LOG.warning("%s can be reached again after %.0f s", place, self.seconds)
        self._since = None

    @property
    def seconds(self) -> float:
        since = self._since  # a copy, since another thread may end the outage meanwhile
        return time.monotonic() - since if since is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Which obstacles a transaction waits for, besides another program that holds the database."""

    waits_for_space: bool = False
    """Whether to wait while the disk is full: the programs that filled it may free space again."""
    outage: Outage | None = None
    """Outage of the server to wait for; None to fail at once when the server is away."""
    hurries: Callable[[], bool] = lambda: False
    """While it returns True, the transaction waits for nothing."""

    def is_over(self, error: Exception, place: str, deadline: float) -> bool:
        """Return whether the failure is permanent or has lasted too long; `deadline` is by the monotonic clock."""
        is_late = time.monotonic() > deadline
        match _obstacle(error):
            case Obstacle.AWAY:
                is_over = self.outage is None or self.outage.lasts_too_long(place, error)
            case Obstacle.BUSY:
                is_over = is_late
            case Obstacle.FULL:
                is_over = is_late or not self.waits_for_space
            case None:
                is_over = True
        return is_over or self.hurries()


_ORDINARY = Patience()


def attempt(work: Callable[[], _Result], place: str, patience: Patience = _ORDINARY) -> _Result:
    """Return the result of `work`, retried while another program holds `place`. Raises StoreError.

    If the connection breaks during a commit that succeeds, `work` runs a second time: it must be safe to repeat.
    """
    outage = patience.outage
    deadline = time.monotonic() + PATIENCE_S
    pause = FIRST_PAUSE_S
    has_warned = False
    while True:
        try:
            result = work()
            if outage is not None:
                outage.ends(place)
            return result
        except ValueError as error:  # of a row, or of a message in which SQLite repeats a damaged name
            raise _damaged(place) from error
        except (SQLAlchemyError, sqlite3.Error, OverflowError) as error:
            if patience.is_over(error, place, deadline):
                raise _translated(error, place, outage) from error
            if _obstacle(error) is Obstacle.FULL and not has_warned:
                has_warned = True
                _LOG.warning("no space is left to write %s: trying again for up to %.0f s", place, PATIENCE_S)
        # Random pauses keep two waiting programs from colliding again and again.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause = min(2 * pause, LONGEST_PAUSE_S)


@contextmanager
def file_failures(place: str) -> Iterator[None]:
    """Turn errors of the file system into StoreError."""
    try:
        yield
    except PermissionError as error:
        raise not_writable("file or folder", error.filename or place) from error
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL character.
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"cannot use {place[:200]!r} as a database: {reason}", hint="name another file") from error


@contextmanager
def copying_to(place: str) -> Iterator[None]:
    """Raise StoreError where no space is left for a copy at `place`, which is not the database that is read."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        if _obstacle(error) is Obstacle.FULL:
            raise _translated(error, place, None) from error
        raise


def not_writable(what: str, path: object) -> ReadOnlyDatabaseError:
    """Return the error for a file or folder that is not writable."""
    hint = "change its permissions, or name another database with --db"
    return ReadOnlyDatabaseError(f"the {what} {path} is not writable", hint=hint)


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

_BUSY_STATES = ("40001", "40P01", "55P03")
"""SQLSTATEs of PostgreSQL: serialization failure, deadlock, lock not available in time."""

_AWAY_STATES = ("57P01", "57P02", "57P03", "57P05", "25P03", "53300")
"""SQLSTATEs of PostgreSQL: stopping, crashed, starting up, idle session or transaction ended, too many clients."""


def _obstacle(error: Exception) -> Obstacle | None:
    """Return the kind of temporary failure; None for a permanent error."""
    code, state = _code(error), _state(error)
    if code in _BUSY or state in _BUSY_STATES:
        return Obstacle.BUSY
    # SQLITE_IOERR_SHMSIZE: no space for the index of the write-ahead log.
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE) or state == "53100":
        return Obstacle.FULL
    return Obstacle.AWAY if _is_away(error, code, state) else None


def _is_away(error: Exception, code: int, state: str) -> bool:
    if state:
        return state.startswith("08") or state in _AWAY_STATES
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # Errors that libpq itself detects have no SQLSTATE: the server does not answer, or the connection broke.
    return isinstance(error, OperationalError) and not code and not isinstance(error.orig, sqlite3.Error)


def _code(error: Exception) -> int:
    """Return SQLite's primary result code; 0 when the error does not come from SQLite. A full disk has two codes."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", 0)
    return code if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & 0xFF if isinstance(code, int) else 0


def _state(error: Exception) -> str:
    """Return PostgreSQL's SQLSTATE; empty without one."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(origin, "sqlstate", "") or getattr(origin, "pgcode", "") or "")


def _translated(error: Exception, place: str, outage: Outage | None) -> StoreError:
    obstacle = _obstacle(error)
    match obstacle, _code(error):
        case (Obstacle.BUSY, _):
            return locked(Path(place))
        case (Obstacle.FULL, _):
            return StoreError(
                f"no space is left to write {place}", hint="free disk space; what was stored before is safe"
            )
        case (_, sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM):
            return not_writable("database", place)
        case (_, sqlite3.SQLITE_NOTADB):
            return NotADatabaseError(f"{place} is not a database", hint="name another file")
        case (_, sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_TOOBIG):
            return _damaged(place)
        case (_, sqlite3.SQLITE_CANTOPEN):
            return StoreError(f"cannot open {place}", hint="check that its folder exists and is writable")
    if _state(error) == "25006":
        return not_writable("database", place)
    reason = _first_line(error)
    if obstacle is not Obstacle.AWAY:
        return StoreError(f"the database {place} failed: {reason}")
    if outage is None:
        return DatabaseAwayError(
            f"cannot reach {place}: {reason}", hint="check that the server is running and accepts your login"
        )
    hint = "start its server, then try again; what was stored before is safe"
    return DatabaseAwayError(f"{place} has been unreachable for {outage.seconds:.0f} s: {reason}", hint=hint)


def _damaged(place: str) -> StoreError:
    return StoreError(f"the database {place} is damaged", hint=f"save what is left with: sqlite3 {place} .recover")


def _first_line(error: Exception) -> str:
    origin = error.orig if isinstance(error, DBAPIError) else error
    return (str(origin).strip().splitlines() or [type(origin).__name__])[0][:200]
