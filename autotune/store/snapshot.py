"""Copies a database, or one device's part of it, to an SQLite file that opens in a read-only folder.

The copy gets its schema from the models rather than from the migrations: a service makes copies in several threads,
and Alembic, which runs migrations, keeps process-wide state.
"""

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, false, insert, select, true, union
from sqlalchemy.orm import Session

from autotune.errors import StoreError
from autotune.paths import APPLICATION_ID, schema_revisions
from autotune.store.database import check_file, file_engine, prepare_writing
from autotune.store.failures import attempt, copying_to, file_failures
from autotune.store.models import DeviceRow, ProblemRow, all_tables
from autotune.store.winners import VIEW

Read = Callable[[Callable[[Session], None]], None]
"""Does work in a transaction that only reads, perhaps several times."""

_ROWS_AT_ONCE = 1000
_OF_PROCESSES = ("in_flight", "jobs", "job_problems", "workers")
"""Tables with the state of running processes, which means nothing in a copy."""

_VERSION = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY)"


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
                        _copy(session.connection(), copy, table, rows)

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


def _copy(source: Connection, copy: Connection, table: Table, rows: Any) -> None:
    result = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(rows)
    for some in result.mappings().partitions():
        copy.execute(insert(table), [dict(row) for row in some])


def _compact(whole: Path, compact: Path) -> None:
    # VACUUM INTO writes a file without a write-ahead log, whatever the journal mode of the original.
    with contextlib.closing(sqlite3.connect(whole, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(compact),))
