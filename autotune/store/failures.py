"""What can go wrong with a database, told in one line; and patience with one that is in use by another program."""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autotune.errors import NotADatabaseError, ReadOnlyDatabaseError, StoreError

BUSY_TIMEOUT_S = 30.0
"""How long SQLite itself waits for a lock."""
PATIENCE_S = 60.0
"""How long it is tried again in all: SQLite does not wait for every kind of lock, and its queue is not fair."""
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5

_Result = TypeVar("_Result")


def attempt(work: Callable[[], _Result], place: str, *, waits_for_space: bool = False) -> _Result:
    """The result of `work`, tried again while another program holds `place`. Raises StoreError.

    With `waits_for_space` also while the disk is full, which others may mend as they made it.
    """
    deadline = time.monotonic() + PATIENCE_S
    pause = FIRST_PAUSE_S
    while True:
        try:
            return work()
        except (SQLAlchemyError, sqlite3.Error, OverflowError) as error:
            may_pass = _is_busy(error) or (waits_for_space and _code(error) == sqlite3.SQLITE_FULL)
            if not may_pass or time.monotonic() > deadline:
                raise _translated(error, place) from error
        # Uneven pauses keep two waiting programs from meeting again and again.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause = min(2 * pause, LONGEST_PAUSE_S)


@contextmanager
def file_failures(place: str) -> Iterator[None]:
    """Turn what the file system refuses into StoreError."""
    try:
        yield
    except PermissionError as error:
        raise not_writable("file or folder", error.filename or place) from error
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL character.
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"cannot use {place[:200]!r} as a database: {reason}", hint="name another file") from error


def not_writable(what: str, path: object) -> ReadOnlyDatabaseError:
    """The error for a file or folder that may not be written."""
    hint = "give yourself the right to write it, or name another database with --db"
    return ReadOnlyDatabaseError(f"the {what} {path} is not writable", hint=hint)


def _is_busy(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 when the error is none of SQLite's."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", 0)
    return code & 0xFF if isinstance(code, int) else 0


def _translated(error: Exception, place: str) -> StoreError:
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreError(f"{place} is locked by another program", hint="end that program, then try again")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return not_writable("database", place)
        case sqlite3.SQLITE_FULL:
            return StoreError(f"no space is left to write {place}", hint="free some; what was stored before is safe")
        case sqlite3.SQLITE_NOTADB:
            return NotADatabaseError(f"{place} is not a database", hint="name another file")
        case sqlite3.SQLITE_CORRUPT:
            hint = f"save what is left with: sqlite3 {place} .recover"
            return StoreError(f"the database {place} is damaged", hint=hint)
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"cannot open {place}", hint="see whether its folder exists and may be written")
        case _:
            return StoreError(f"the database {place} failed: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    origin = error.orig if isinstance(error, DBAPIError) else error
    return (str(origin).strip().splitlines() or [type(origin).__name__])[0][:200]
