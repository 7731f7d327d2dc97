"""Reads an SQLite file with the standard library alone.

Nothing is written: another program may be using the file, and its folder may be read-only.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from autotune.errors import NotADatabaseError, StoreError
from autotune.paths import APPLICATION_ID, is_newest_revision

Ask = Callable[..., list[tuple[Any, ...]]]
"""Runs a query, with ? for its parameters, which follow it; returns the rows."""

_WAIT_S = 10.0
"""Time to wait while another program has the file locked."""


class File:
    """A database in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def reading(self) -> Iterator[Ask]:
        with _reported(self.path), closing(_connect(self.path)) as connection:
            # One transaction, so that all queries see the same state whatever is written meanwhile.
            connection.execute("BEGIN")

            def ask(query: str, *parameters: str) -> list[tuple[Any, ...]]:
                return connection.execute(query, parameters).fetchall()

            yield ask

    def is_filled(self, ask: Ask) -> bool:
        names = {name for (name,) in ask("SELECT name FROM sqlite_master")}
        if not names:
            return False
        is_ours = ask("PRAGMA application_id") == [(APPLICATION_ID,)]
        if not is_ours or not names >= {"alembic_version", "best_configurations", "devices"}:
            raise NotADatabaseError(f"{self} is a database of another program", hint="name another database")
        is_newest_revision(self, str(ask("SELECT max(version_num) FROM alembic_version")[0][0]))
        return True


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise NotADatabaseError(
                f"{path} is damaged: {error}", hint="restore it from a backup or an export"
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreError(
                f"{path} is locked by another program", hint="try again when that program has ended"
            ) from error
        raise StoreError(f"{path} cannot be read: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path.absolute().as_uri() + read_only_options(path), uri=True, timeout=_WAIT_S, isolation_level=None
    )
    connection.execute("PRAGMA query_only = 1")
    return connection


def read_only_options(path: Path) -> str:
    """Return the URI options to open a file that may have a write-ahead log, in a folder that may be read-only.

    Raises StoreError if a log or a journal holds changes that cannot be read there.
    """
    # A connection that may write removes the log's files if it is the last to close; a read-only one leaves them.
    if os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK | os.X_OK):
        return "?mode=rw"
    if _opens(path, "?mode=ro"):
        return "?mode=ro"
    # Reading a log requires files beside the database, which cannot be created in a read-only folder. `immutable`
    # assures SQLite that there are no writers, but then changes still in a log or a journal would be missed.
    beside = [path.with_name(path.name + ending) for ending in ("-wal", "-journal")]
    if any(file.exists() and file.stat().st_size for file in beside):
        hint = "copy the file and the -wal and -journal files beside it to a writable folder, and open the copy"
        raise StoreError(f"{path} was not closed properly, and its folder is not writable", hint=hint)
    return "?mode=ro&immutable=1"


def _opens(path: Path, uri_options: str) -> bool:
    with closing(sqlite3.connect(path.absolute().as_uri() + uri_options, uri=True, timeout=_WAIT_S)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                return False
            raise
    return True
