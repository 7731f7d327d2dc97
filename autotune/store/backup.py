"""Copies databases to files: backups, which can be restored, and snapshots, which open in a read-only folder.

A backup holds everything, and is made by SQLite itself, or by pg_dump and pg_restore. A snapshot is an SQLite file
without jobs, workers and trials in flight, perhaps of one device only. It gets its schema from the models rather than
from the migrations: a service makes copies in several threads, and Alembic keeps process-wide state.
"""

import contextlib
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, false, insert, select, true, union
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.orm import Session

from autotune.errors import NotADatabaseError, StoreError
from autotune.paths import APPLICATION_ID, schema_revisions
from autotune.store.database import Target, check_file, file_engine, prepare_writing, server_engine
from autotune.store.failures import attempt, copying_to, file_failures
from autotune.store.migration import Schema, read_schema
from autotune.store.models import DeviceRow, ProblemRow, all_tables
from autotune.store.winners import VIEW

_DUMP_HEADER = b"PGDMP"
Read = Callable[[Callable[[Session], None]], None]
"""Does work in a transaction that only reads, perhaps several times."""

_ROWS_AT_ONCE = 1000
_OF_PROCESSES = ("in_flight", "jobs", "job_problems", "workers")
"""Tables with the state of running processes, which means nothing in a copy."""

_VERSION = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY)"


def back_up(target: Target, file: Path) -> None:
    """Write a consistent backup of a database that may be in use; an earlier backup at `file` is replaced.

    Raises StoreError, also if there is no database, and NotADatabaseError if `file` is neither missing nor a backup.
    """
    if target.path:
        if not check_file(target.path):
            raise StoreError(f"there is no database {target.path}", hint="name another with --db")
        if file.exists() and file.samefile(target.path):
            raise StoreError(f"{file} is the database itself", hint="name another file")
        check_file(file)
        _copy(target.path, file)
        return
    if file.exists() and not _is_dump(file):
        raise NotADatabaseError(f"{file} is not a backup", hint="name another file; this one was left as it is")
    prepare_writing(file)
    with _replacing(file) as draft:
        options = ["--format=custom", "--no-owner", "--no-privileges", f"--schema={_schema_name(target)}"]
        _run("pg_dump", target, [*options, f"--file={draft}"])


def restore(target: Target, file: Path, *, replaces: bool = False) -> None:
    """Make a database the one in a backup. Nothing may use the database meanwhile.

    A file that is there already is replaced only if `replaces`; a database server must be given an empty database.
    Raises StoreError, also when the database is in use, and NotADatabaseError when `file` is not a backup.
    """
    if target.path:
        _restore_file(target.path, file, replaces=replaces)
        return
    if not _is_dump(file):
        raise NotADatabaseError(f"{file} is not a backup of a PostgreSQL database", hint="name another file")
    if _schema_in(server_engine(target), str(target)) is not Schema.NOTHING:
        raise StoreError(f"{target} is not empty", hint="create an empty database with createdb, and name it with --db")
    # Restores what is in the schema and not the schema, which is there.
    options = ["--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction"]
    _run("pg_restore", target, [*options, f"--schema={_schema_name(target)}", str(file.absolute())])
    if _schema_in(server_engine(target), str(target)) is Schema.NOTHING:
        raise StoreError(f"{file} holds no tables for the schema {_schema_name(target)} of {target}")


def _is_dump(file: Path) -> bool:
    with file_failures(str(file)), file.open("rb") as dump:
        return dump.read(len(_DUMP_HEADER)) == _DUMP_HEADER


def _restore_file(path: Path, file: Path, *, replaces: bool) -> None:
    if not check_file(file):
        raise StoreError(f"there is no backup {file}")
    if _schema_in(file_engine(file, read_only=True), str(file)) is Schema.NOTHING:
        raise StoreError(f"{file} is empty")
    if check_file(path):
        if path.samefile(file):
            raise StoreError(f"{file} is the database itself", hint="name another file")
        if not replaces:
            raise StoreError(f"{path} is there already", hint="--force replaces it")
        _require_unused(path)
    _copy(file, path)


def _copy(source: Path, to: Path) -> None:
    """Copy a database, which may be in use, to a file that opens in a read-only folder and replaces `to`."""
    prepare_writing(to)
    with _replacing(to) as draft:

        def copy() -> None:
            with (
                copying_to(str(to)),
                contextlib.closing(sqlite3.connect(source)) as whole,
                contextlib.closing(sqlite3.connect(draft)) as new,
            ):
                whole.backup(new)
                new.execute("PRAGMA journal_mode = DELETE")
                found = new.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise StoreError(f"{source} is damaged: {str(found)[:200]}")

        attempt(copy, str(source))


def _require_unused(path: Path) -> None:
    """Raise StoreError when another program has the database open, also if it is damaged."""
    in_use = StoreError(f"{path} is in use", hint="stop the service and all commands that use it")
    with contextlib.closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            raise in_use from error
        except sqlite3.DatabaseError:
            pass  # it is damaged, which a backup is for
    if path.with_name(path.name + "-wal").exists():  # whoever closes the database last removes it
        raise in_use


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield a path for a draft, which replaces `file` once it is complete and on the disk."""
    with file_failures(str(file)), tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".autotune-") as here:
        draft = Path(here) / "draft"
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(file)


def _schema_in(engine: Engine, location: str) -> Schema:
    try:
        return read_schema(engine, location)
    finally:
        engine.dispose()


def _schema_name(target: Target) -> str:
    engine = server_engine(target)

    def read() -> str:
        with engine.connect() as connection:
            return str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())

    try:
        return attempt(read, str(target))
    finally:
        engine.dispose()


def _run(program: str, target: Target, arguments: Sequence[str]) -> None:
    """Run a program of PostgreSQL. The password is passed in the environment: arguments are public."""
    url = make_url(target.url)
    place = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    password = {"PGPASSWORD": url.password} if url.password else {}
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            [program, f"--dbname={place}", *arguments],
            check=False, env={**os.environ, **password}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    except FileNotFoundError as error:
        hint = "install the client programs of PostgreSQL (Debian, Ubuntu: apt install postgresql-client)"
        raise StoreError(f"{program} is not installed", hint=hint) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise StoreError(f"{program} failed for {target}: {lines[-1][:500]}")


def check_snapshot_path(path: Path) -> None:
    """Raise StoreError if a snapshot cannot be written to this path."""
    if check_file(path) and path.with_name(path.name + "-wal").exists():
        raise StoreError(f"{path} is a database in use", hint="name another file")
    prepare_writing(path)


def write_snapshot(read: Read, path: Path, device_slug: str | None) -> None:
    """Copy rows, in a transaction that `read` makes, into a new file, which replaces `path` once it is complete.

    What a slow disk may take long for is done after that transaction: a server ends one that is idle.
    """
    with file_failures(str(path)), tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".autotune-") as here:
        whole, compact = Path(here) / "whole.sqlite", Path(here) / "compact.sqlite"
        with file_engine(whole, foreign_keys=False, pooled=False).connect() as copy:

            def copy_all(session: Session) -> None:
                copy.rollback()  # what an earlier try has copied
                with copying_to(str(path)):
                    _create_schema(copy)
                    for table, rows in _contents(device_slug):
                        _copy_rows(session.connection(), copy, table, rows)

            read(copy_all)
            attempt(copy.commit, str(path))
        attempt(lambda: _compact(whole, compact), str(path))
        compact.replace(path)


def _create_schema(copy: Connection) -> None:
    all_tables().create_all(copy)
    copy.exec_driver_sql(VIEW)
    copy.exec_driver_sql(_VERSION)
    copy.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (schema_revisions()[-1],))
    copy.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")


def _contents(device_slug: str | None) -> Iterable[tuple[Table, Any]]:
    """Return tables with queries for the rows to copy, referenced tables first."""
    tables = all_tables().sorted_tables
    conditions: dict[str, Any] = dict.fromkeys(_OF_PROCESSES, false())
    if device_slug is not None:
        ids = select(DeviceRow.id).where(DeviceRow.slug == device_slug)
        for table in tables:
            if table.name not in conditions and "device_id" in table.c:
                conditions[table.name] = table.c.device_id.in_(ids)
            elif table.name not in conditions and "device" in table.c:
                conditions[table.name] = table.c.device == device_slug
        users = (table for table in tables if table.name in conditions and "problem_id" in table.c)
        used = union(*(select(table.c.problem_id).where(conditions[table.name]) for table in users))
        conditions |= {"devices": DeviceRow.slug == device_slug, "problems": ProblemRow.id.in_(used)}
    return [(t, select(t).where(conditions.get(t.name, true())).order_by(t.c.id)) for t in tables]


def _copy_rows(source: Connection, copy: Connection, table: Table, rows: Any) -> None:
    result = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(rows)
    for some in result.mappings().partitions():
        copy.execute(insert(table), [dict(row) for row in some])


def _compact(whole: Path, compact: Path) -> None:
    # VACUUM INTO writes a file without a write-ahead log, whatever the journal mode of the original.
    with contextlib.closing(sqlite3.connect(whole, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(compact),))
