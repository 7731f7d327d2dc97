"""Turns what the user names (a file, a URL, or nothing) into an engine.

Creating an engine does not connect to the database, so that the target can be inspected first.
"""

import contextlib
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
from autotune.lookup.database import limit_file, read_only_options
from autotune.paths import default_database, install_hint
from autotune.store.failures import BUSY_TIMEOUT_S, attempt, file_failures, not_writable

BEGIN = "autotune_begin"
"""Execution option: the statement that begins a transaction on SQLite."""

HEADER = b"SQLite format 3\0"

_CONNECTING = {
    "connect_timeout": 10,
    # A connection that was cut without notice is detected within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of libpq in seconds, the last one in milliseconds; those given in the URL take precedence."""

IDLE_LIMIT_S = 30.0
"""The server ends a transaction that was idle for this long, and so releases the locks of a client that vanished."""

_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a database is: an SQLite file, or the URL of a server."""

    path: Path | None = None
    url: str = ""

    def __str__(self) -> str:
        return str(self.path) if self.path else shown(make_url(self.url))


def parse_target(target: str | Path | None) -> Target:
    """Parse a path or URL; None is the user's own database. Raises StoreError for a text that cannot be used."""
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
        # SQLAlchemy's own choice would be an older driver.
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "postgresql":
        return Target(url=url.render_as_string(hide_password=False))
    if url.get_backend_name() != "sqlite":
        hint = "name an SQLite file, or postgresql://user@host/database"
        raise StoreError(f"databases of the kind {url.drivername[:40]!r} are not supported", hint=hint)
    if not url.database or url.query or url.database.startswith(("file:", ":memory:")):
        raise StoreError(f"{target[:200]!r} does not name a plain file", hint="give the path of the file instead")
    return Target(path=Path(url.database))


def shown(url: URL) -> str:
    """Return the URL without passwords, for display."""
    shown = {name: value for name, value in url.query.items() if name not in _SECRETS}
    return url.set(drivername=url.get_backend_name(), query=shown).render_as_string(hide_password=True)


def server_engine(target: Target) -> Engine:
    """Return an engine for PostgreSQL. Raises StoreError when its driver is not installed."""
    url = make_url(target.url)
    options: dict[str, Any] = {}
    if url.get_driver_name() == "psycopg":
        connecting = {name: value for name, value in _CONNECTING.items() if name not in url.query}
        # Server-side prepared statements break when another program migrates, and behind some connection poolers.
        options = {"connect_args": {**connecting, "prepare_threshold": None}, "use_native_hstore": False}
    try:
        engine = create_engine(url, isolation_level="READ COMMITTED", **options)
    except NoSuchModuleError as error:
        raise StoreError(f"the scheme of {target} names an unknown driver", hint="try postgresql://...") from error
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
    """Return an engine for an SQLite file, which is created if it is missing unless `read_only`."""
    uri = path.absolute().as_uri() + (attempt(lambda: read_only_options(path), str(path)) if read_only else "")

    def connect() -> sqlite3.Connection:
        # isolation_level None: this module begins transactions explicitly, sqlite3 does not begin them implicitly.
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        if read_only:
            limit_file(connection)
        connection.execute(f"PRAGMA query_only = {int(read_only)}")
        # With WAL, FULL waits for the disk at every commit. When the process or the machine is killed, at most the
        # trial in flight is lost; NORMAL could lose the last few to a power cut. The wait takes a few milliseconds, a
        # trial many times that.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool if pooled else NullPool)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


def check_file(path: Path) -> bool:
    """Return whether a non-empty SQLite file exists. Raises NotADatabaseError when the path is anything else."""
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
            header = file.read(len(HEADER))
    if header and header != HEADER:
        raise NotADatabaseError(f"{path} is not a database", hint="name another file; this one was left as it is")
    return bool(header)


def prepare_writing(path: Path) -> None:
    """Create the folder, and check that it and the file are writable. Raises ReadOnlyDatabaseError, StoreError."""
    folder = path.absolute().parent
    with file_failures(str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise not_writable("file", path)
    # SQLite writes its journal beside the file.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise not_writable("folder", folder)


def use_write_ahead_log(path: Path) -> None:
    """Let readers and a writer work at the same time; the setting is stored in the file. Raises StoreError."""

    def switch() -> None:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            # Reading the mode needs no lock; switching it needs exclusive access to the file.
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")

    attempt(switch, str(path))
