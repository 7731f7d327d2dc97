"""From what a person names (a file, a URL, or nothing) to an engine that may be used.

Engines here never connect by themselves: what is at the place is looked at first.
"""

import os
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, QueuePool

from autotune.errors import NotADatabaseError, StoreError
from autotune.lookup.sqlite_table import read_only_options
from autotune.paths import default_database, install_hint
from autotune.store.failures import BUSY_TIMEOUT_S, attempt, file_failures, not_writable

BEGIN = "autotune_begin"
"""Execution option: the statement that begins a transaction on SQLite."""

_HEADER = b"SQLite format 3\0"

_CONNECTING = {
    "connect_timeout": 10,
    # A connection that was cut, with nobody there to say so, is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Of libpq, seconds but for the last one's milliseconds; what the URL says holds over them."""

IDLE_LIMIT_S = 30.0
"""After so long in the middle of a transaction the server lets go of what a client held that is gone without a word."""

_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a database is: a file of SQLite, or the URL of a server."""

    path: Path | None = None
    url: str = ""

    def __str__(self) -> str:
        return str(self.path) if self.path else shown(make_url(self.url))


def parse_target(target: str | Path | None) -> Target:
    """Raises StoreError for a URL that cannot be understood."""
    if target is None:
        return Target(path=default_database())
    if isinstance(target, Path) or "://" not in target:
        if not str(target):
            raise StoreError("the name of the database is empty", hint="name a file or a URL")
        return Target(path=Path(target))
    try:
        url = make_url(target)
    except (ArgumentError, ValueError) as error:
        # The text is not shown: it may hold a password.
        hint = "write it as dialect://user:password@host/database"
        raise StoreError("the URL of the database cannot be understood", hint=hint) from error
    if url.drivername in ("postgres", "postgresql"):
        # SQLAlchemy's own choice would be a driver of before.
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "postgresql":
        return Target(url=url.render_as_string(hide_password=False))
    if url.get_backend_name() != "sqlite":
        hint = "name an SQLite file, or postgresql://user@host/database"
        raise StoreError(f"no database of the kind {url.drivername[:40]!r} can be used", hint=hint)
    if not url.database or url.query or url.database.startswith(("file:", ":memory:")):
        raise StoreError(f"{target[:200]!r} does not name a plain file", hint="give the path of the file instead")
    return Target(path=Path(url.database))


def shown(url: URL) -> str:
    """The URL as people may see it: without passwords."""
    told = {name: value for name, value in url.query.items() if name not in _SECRETS}
    return url.set(drivername=url.get_backend_name(), query=told).render_as_string(hide_password=True)


def server_engine(target: Target) -> Engine:
    """An engine for PostgreSQL. Raises StoreError when its driver is not installed."""
    url = make_url(target.url)
    options: dict[str, Any] = {}
    if url.get_driver_name() == "psycopg":
        connecting = {name: value for name, value in _CONNECTING.items() if name not in url.query}
        # Statements kept by the server break when another program migrates, and behind some connection poolers.
        options = {"connect_args": {**connecting, "prepare_threshold": None}, "use_native_hstore": False}
    try:
        engine = create_engine(url, isolation_level="READ COMMITTED", **options)
    except NoSuchModuleError as error:
        raise StoreError(f"no driver is known by the scheme of {target}", hint="try postgresql://...") from error
    except ImportError as error:
        hint = install_hint("postgres") if error.name == "psycopg" else f"pip install {error.name}"
        raise StoreError(f"the driver for {target} is not installed", hint=hint) from error
    event.listen(engine, "connect", _set_up_session)
    return engine


def _set_up_session(connection: DBAPIConnection, _: object) -> None:
    cursor = connection.cursor()
    limits = {"lock_timeout": BUSY_TIMEOUT_S, "idle_in_transaction_session_timeout": IDLE_LIMIT_S}
    cursor.execute("; ".join(f"SET {name} = '{1000 * limit_s:.0f}ms'" for name, limit_s in limits.items()))
    cursor.close()
    connection.commit()


def file_engine(path: Path, *, read_only: bool = False, foreign_keys: bool = True, pooled: bool = True) -> Engine:
    """An engine for an SQLite file, which is made when it is not there unless `read_only`."""
    uri = path.absolute().as_uri() + (attempt(lambda: read_only_options(path), str(path)) if read_only else "")

    def connect() -> sqlite3.Connection:
        # isolation_level None: transactions begin where this file says so, not where sqlite3 guesses.
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        connection.execute(f"PRAGMA query_only = {int(read_only)}")
        # With WAL, FULL waits for the disk at every commit. A kill of the process or of the machine then loses at
        # most the trial in flight; NORMAL could lose the last few to a power cut. The wait is a few milliseconds,
        # a trial many times that.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool if pooled else NullPool)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


def check_file(path: Path) -> bool:
    """Whether an SQLite file with contents is there. Raises NotADatabaseError when it is anything else."""
    with file_failures(str(path)):
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(status.st_mode):
            raise NotADatabaseError(f"{path} is a folder", hint="name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise NotADatabaseError(f"{path} is not a plain file", hint="name another file")
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    if header and header != _HEADER:
        raise NotADatabaseError(f"{path} is not a database", hint="name another file; this one was left as it is")
    return bool(header)


def prepare_writing(path: Path) -> None:
    """Make the folder, and check that it and the file may be written. Raises ReadOnlyDatabaseError, StoreError."""
    folder = path.absolute().parent
    with file_failures(str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise not_writable("file", path)
    # SQLite writes its journal beside the file.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise not_writable("folder", folder)


def use_write_ahead_log(path: Path) -> None:
    """Let readers and a writer work at the same time; kept in the file. Raises StoreError."""

    def switch() -> None:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            # Asking needs no lock, switching needs the file alone.
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()

    attempt(switch, str(path))
