"""Reading a database as a table.

Nothing is written: another program may be using the file, and its folder may be read-only.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import (
    ConfigurationError,
    NewerSchemaError,
    NotADatabaseError,
    ProblemError,
    StoreError,
    TableError,
)
from autotune.family import Configuration, Device, DeviceLimits, KernelFamily, family_names, find_family
from autotune.lookup.answer import Entry
from autotune.lookup.contents import Row, Shelf
from autotune.lookup.predictor import Predictor
from autotune.resources import schema_revisions

if TYPE_CHECKING:
    from autotune.lookup.predictor_text import UnreadPredictors

_APPLICATION_ID = 0x4154554E
_WAIT_S = 10.0
"""For another program that has the file to itself for a moment."""

_READ_AT_ONCE = 1000
"""Decisions up to which all are read when a database is opened, so that what is broken shows there."""

_DEVICES = """
    SELECT slug, vendor, model, family, platform, name, version, opencl_c_version, driver, limits FROM devices
    ORDER BY slug, CASE
        WHEN (SELECT count(*) FROM devices AS same WHERE same.slug = devices.slug) = 1 THEN 0
        ELSE coalesce((SELECT max(trials.id) FROM trials WHERE trials.device_id = devices.id), 0)
    END, id
"""
"""Where one slug has several drivers, the one that measured last comes last."""

_ENTRIES = "SELECT spec, configuration, time_ns FROM best_configurations WHERE device = ? AND family = ?"


class Database:
    """The contents of a database: the devices at once, what is measured on one when it is asked for.

    Rows with families, sizes or configurations that this version does not know are left out: they serve another.
    """

    def __init__(self, path: Path) -> None:
        """Raises NotADatabaseError, NewerSchemaError or StoreError for the file, TableError for a broken row."""
        self._path = path
        self._devices: dict[str, Device] = {}
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._predictors: UnreadPredictors | None = None
        with _reported(path), closing(connect(path)) as connection:
            # One transaction: devices and entries belong together, whatever is written meanwhile.
            connection.execute("BEGIN")
            if not _check_schema(connection, path):
                return
            # Of two with one slug the last holds.
            self._devices = {row["slug"]: _device(row, path) for row in connection.execute(_DEVICES)}
            if connection.execute("SELECT count(*) FROM winners").fetchone()[0] <= _READ_AT_ONCE:
                self._read_all(connection)

    def slugs(self) -> Sequence[str]:
        return sorted(self._devices)

    def device(self, slug: str) -> Device | None:
        return self._devices.get(slug)

    def shelf(self, slug: str, family: str) -> Shelf:
        """Raises what opening raises."""
        place = slug, family
        if place not in self._shelves and slug in self._devices:
            with _reported(self._path), closing(connect(self._path)) as connection:
                self._shelves[place] = self._read(connection, slug, family)
        return self._shelves.get(place) or Shelf()

    def predictors(self, slug: str, family: str) -> list[Predictor]:
        """From the file beside the database, where there is one. Raises TableError."""
        if self._predictors is None:
            from autotune.lookup.predictor_text import UnreadPredictors, predictors_file

            self._predictors = UnreadPredictors(predictors_file(self._path))
        return [p for p in self._predictors.of(slug) if p.example.family == family]

    def _read_all(self, connection: sqlite3.Connection) -> None:
        places = connection.execute("SELECT DISTINCT device, family FROM best_configurations").fetchall()
        known = set(family_names())
        for slug, family in places:
            if family in known:
                shelf = self._read(connection, slug, family)
                self._shelves[slug, family] = Shelf(shelf.read_all())

    def _read(self, connection: sqlite3.Connection, slug: str, family: str) -> Shelf:
        rows = connection.execute(_ENTRIES, (slug, family))
        reader = partial(_entry, self._path, slug, find_family(family))
        return Shelf({row[0]: tuple(row) for row in rows}, reader)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise NotADatabaseError(f"{path} is damaged: {error}", hint="take it from a backup or an export") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreError(f"{path} is locked by another program", hint="try again when that has ended") from error
        raise StoreError(f"{path} cannot be read: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path.absolute().as_uri() + _uri_options(path), uri=True, timeout=_WAIT_S, isolation_level=None
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = 1")
    return connection


def _uri_options(path: Path) -> str:
    """How to open a file that may have a write-ahead log, in a folder that may be read-only. Raises StoreError."""
    # One that may write clears the files of the log away when it is the last to close; others leave them behind.
    if os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK | os.X_OK):
        return "?mode=rw"
    if _opens(path, "?mode=ro"):
        return "?mode=ro"
    # Without files beside it, which a read-only folder cannot take, a log cannot be read. Immutable tells SQLite
    # that nobody writes; but then what a log or a journal still holds would be missed.
    beside = [path.with_name(path.name + ending) for ending in ("-wal", "-journal")]
    if any(file.exists() and file.stat().st_size for file in beside):
        raise StoreError(
            f"{path} was not closed, and its folder is not writable", hint="copy it with the files named like it"
        )
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


def _check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether there is anything to read. Raises NotADatabaseError, NewerSchemaError."""
    names = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return False
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if application_id != _APPLICATION_ID or not names >= {"alembic_version", "best_configurations", "devices"}:
        raise NotADatabaseError(f"{path} is a database of another program", hint="name another database")
    revision = connection.execute("SELECT max(version_num) FROM alembic_version").fetchone()[0]
    known = schema_revisions()
    if revision not in known:
        raise NewerSchemaError(
            f"{path} has schema {str(revision)[:20]}, this version of autotune knows {known[-1]} at most",
            hint="upgrade autotune: pip install --upgrade autotune",
        )
    return True


def _device(row: sqlite3.Row, path: Path) -> Device:
    values = dict(row)
    with _row_of(path, "devices", str(values["slug"])):
        limits = DeviceLimits.from_dict(json.loads(values.pop("limits")))
        limits.constraint_values()
        return Device(**values, limits=limits)


def _entry(path: Path, slug: str, family: KernelFamily, row: Row) -> Entry | None:
    """None for what this version does not know. Raises TableError for a broken row."""
    with _row_of(path, "best_configurations", f"{slug}, {family.name}"):
        problem, configuration, time_ns = plain(row[0]), plain(row[1]), _time(row[2])
        try:
            return Entry(
                problem=family.problem_type.from_dict(problem),
                configuration=family.complete(Configuration.from_dict(configuration)),
                time_ns=time_ns,
            )
        except (ProblemError, ConfigurationError):
            return None


def plain(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise TypeError("not a JSON object")
    return data


def _time(value: Any) -> float:
    if not isinstance(value, float | int) or not isfinite(value) or value <= 0:
        raise ValueError("time_ns is no time")
    return float(value)


@contextmanager
def _row_of(path: Path, table: str, row: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TableError(f"{path}: a row of {table} ({row[:80]}) cannot be understood: {str(error)[:200]}") from error
