"""Copies a database, or one device's part of it, to an SQLite file that opens in a read-only folder.

The copy gets its schema from the models rather than from the migrations: a service makes copies in several threads,
and Alembic, which runs migrations, keeps process-wide state.
"""

import sqlite3
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, false, insert, select, union

from autotune.errors import StoreError
from autotune.paths import APPLICATION_ID, schema_revisions
from autotune.store.checkups import CheckupRow, PredictorsRow
from autotune.store.database import check_file, file_engine, prepare_writing
from autotune.store.failures import attempt, file_failures
from autotune.store.models import Base, DeviceRow, ProblemRow
from autotune.store.quarantine import QuarantineRow
from autotune.store.trials import BuildRow, TrialRow
from autotune.store.winners import VIEW, WinnerRow

_ROWS_AT_ONCE = 1000

_VERSION = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY)"


def check_snapshot_path(path: Path) -> None:
    """Raise StoreError if a snapshot cannot be written to this path."""
    if check_file(path) and path.with_name(path.name + "-wal").exists():
        raise StoreError(f"{path} is a database in use", hint="name another file")
    prepare_writing(path)


def write_snapshot(source: Connection, path: Path, device_slug: str | None) -> None:
    """Copy rows from an open transaction into a new file, which replaces `path` once it is complete."""
    with file_failures(str(path)), tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".autotune-") as here:
        whole, compact = Path(here) / "whole.sqlite", Path(here) / "compact.sqlite"
        engine = file_engine(whole, foreign_keys=False, pooled=False)
        with engine.begin() as copy:
            _create_schema(copy)
            for table, rows in _contents(device_slug):
                _copy(source, copy, table, rows)
        attempt(lambda: _compact(whole, compact), str(path))
        compact.replace(path)


def _create_schema(copy: Connection) -> None:
    Base.metadata.create_all(copy)
    copy.exec_driver_sql(VIEW)
    copy.exec_driver_sql(_VERSION)
    copy.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (schema_revisions()[-1],))
    copy.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")


def _contents(device_slug: str | None) -> Iterable[tuple[Table, Any]]:
    """Return tables with queries for the rows to copy, referenced tables first."""
    tables = Base.metadata.tables
    chosen = {name: select(table).order_by(table.c.id) for name, table in tables.items()}
    for name in (
        "in_flight",
        "jobs",
        "job_problems",
        "workers",
        "service_claim",
    ):  # state of running processes, which means nothing in a copy
        chosen[name] = chosen[name].where(false())
    if device_slug is not None:
        ids = select(DeviceRow.id).where(DeviceRow.slug == device_slug)
        used = union(
            select(TrialRow.problem_id).where(TrialRow.device_id.in_(ids)),
            select(BuildRow.problem_id).where(BuildRow.device_id.in_(ids)),
            select(QuarantineRow.problem_id).where(QuarantineRow.device_id.in_(ids)),
            select(WinnerRow.problem_id).where(WinnerRow.device == device_slug),
        )
        chosen["devices"] = chosen["devices"].where(DeviceRow.slug == device_slug)
        chosen["trials"] = chosen["trials"].where(TrialRow.device_id.in_(ids))
        chosen["builds"] = chosen["builds"].where(BuildRow.device_id.in_(ids))
        chosen["quarantine"] = chosen["quarantine"].where(QuarantineRow.device_id.in_(ids))
        chosen["winners"] = chosen["winners"].where(WinnerRow.device == device_slug)
        chosen["checkups"] = chosen["checkups"].where(CheckupRow.device == device_slug)
        chosen["predictors"] = chosen["predictors"].where(PredictorsRow.device == device_slug)
        chosen["problems"] = chosen["problems"].where(ProblemRow.id.in_(used))
    return [(table, chosen[table.name]) for table in Base.metadata.sorted_tables]


def _copy(source: Connection, copy: Connection, table: Table, rows: Any) -> None:
    result = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(rows)
    for some in result.mappings().partitions():
        copy.execute(insert(table), [dict(row) for row in some])


def _compact(whole: Path, compact: Path) -> None:
    # VACUUM INTO writes a file without a write-ahead log, whatever the journal mode of the original.
    connection = sqlite3.connect(whole, isolation_level=None)
    try:
        connection.execute("VACUUM INTO ?", (str(compact),))
    finally:
        connection.close()
