"""The contents of an SQLite database, read by the standard library: the lookup must not wait for SQLAlchemy to load.

Nothing is written: another program may be using the file, and its folder may be read-only.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

from autotune.codec import parse, read
from autotune.errors import AutotuneError, ConfigurationError, NotADatabaseError, ProblemError, StoreError, TableError
from autotune.kernels import find_family, is_family
from autotune.lookup.answer import Entry
from autotune.lookup.contents import Contents, Row, Shelf
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.machine import Rates, fingerprint
from autotune.model.problem import Problem
from autotune.paths import APPLICATION_ID, is_newest_revision
from autotune.space.family import KernelFamily

Ask = Callable[..., list[tuple[Any, ...]]]
"""Runs a query, with ? for its parameters, which follow it; returns the rows."""

_WAIT_S = 10.0
"""Time to wait while another program has the file locked."""
_LONGEST_S = 20.0
"""Time after which reading a file ends; a large database takes a second."""
_MOST_BYTES = 2**28
"""Of texts that one query returns."""
_MOST_TEXT_BYTES = 2**24
"""Of one text."""
_READ_AT_ONCE = 1000
"""Number of winners up to which all are read when a database is opened, so that broken rows are reported then."""

_DEVICE = ("slug", "vendor", "model", "family", "platform", "name", "version", "opencl_c_version", "driver", "limits")

_DEVICES = f"""
    SELECT {", ".join(_DEVICE)} FROM devices
    ORDER BY slug, CASE
        WHEN (SELECT count(*) FROM devices AS same WHERE same.slug = devices.slug) = 1 THEN 0
        ELSE coalesce((SELECT max(trials.id) FROM trials WHERE trials.device_id = devices.id), 0)
    END, id
"""  # noqa: S608 - of constants
"""If a slug has several drivers, the one that measured last comes last."""

BEST_CONFIGURATIONS = """\
WITH
-- The newest measured winner and the fastest imported one, confirmed by finals and provisional apart. Times from
-- elsewhere count until finals here are finished, in which a search lets the imported configuration take part.
newest AS (
    SELECT
        winners.*,
        CASE WHEN samples > 0 THEN 1 ELSE 0 END AS is_final,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id, source, CASE WHEN samples > 0 THEN 1 ELSE 0 END
            ORDER BY CASE WHEN source = 'imported' THEN time_ns ELSE 0 END, id DESC
        ) AS place
    FROM winners LEFT JOIN (
        SELECT device AS its_device, problem_id AS its_problem, MAX(id) AS newest_final
        FROM winners
        WHERE source = 'measured' AND samples > 0
        GROUP BY device, problem_id
    ) AS finals ON its_device = device AND its_problem = problem_id
    WHERE source = 'measured' OR newest_final IS NULL OR id > newest_final
),
-- Confirmed before provisional, then the faster; where they tie, the one measured here ('measured' > 'imported').
ranked AS (
    SELECT
        newest.*,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id
            ORDER BY is_final DESC, time_ns, source DESC
        ) AS rank_here
    FROM newest
    WHERE place = 1
)
SELECT
    ranked.device AS device,
    problems.family AS family,
    problems.label AS problem,
    problems.m AS m,
    problems.n AS n,
    problems.k AS k,
    ranked.algorithm AS algorithm,
    ranked.configuration AS configuration,
    ranked.time_ns AS time_ns,
    problems.flops / ranked.time_ns AS gflops,
    CASE WHEN ranked.samples > 0 THEN ranked.default_ns / ranked.time_ns END AS gain_over_default,
    ranked.gain_low AS gain_low,
    ranked.gain_high AS gain_high,
    ranked.baseline_ns / ranked.time_ns AS gain_over_baseline,
    ranked.samples AS samples,
    ranked.is_default AS is_default,
    ranked.source AS source,
    ranked.driver AS driver,
    ranked.template_hash AS template_hash,
    ranked.space_version AS space_version,
    ranked.tool_version AS tool_version,
    ranked.measured_at AS measured_at,
    problems.spec AS spec,
    ranked.default_ns AS default_ns,
    ranked.baseline_ns AS baseline_ns,
    ranked.verdict AS verdict,
    ranked.verifications AS verifications
FROM ranked
JOIN problems ON problems.id = ranked.problem_id
WHERE ranked.rank_here = 1
"""
"""The current winner of each device, family and problem."""

_ENTRIES = """
    SELECT spec, configuration, time_ns, driver, template_hash FROM best_configurations WHERE device = ? AND family = ?
"""


class Database(Contents):
    """The contents of a database: devices are read at once, the measurements of a device when they are requested.

    Rows with families, sizes or configurations unknown to this version are skipped: they belong to another version.
    """

    def __init__(self, path: Path) -> None:
        """Raises NotADatabaseError, NewerSchemaError or StoreError for the file, TableError for a broken row.

        So do the methods that read later.
        """
        super().__init__()
        self._path = path
        self._versions: dict[tuple[str, str], str] = {}
        with _reading(path) as ask:
            if not _is_filled(path, ask):
                return
            # Of two devices with the same slug, the last one wins.
            found = [_device(row, path) for row in ask(_DEVICES)]
            self._devices = {device.slug: device for device in found}
            self._versions = _versions(found)
            if ask("SELECT count(*) FROM winners")[0][0] <= _READ_AT_ONCE:
                for slug, family in ask("SELECT DISTINCT device, family FROM best_configurations"):
                    if is_family(family):
                        self._shelves[slug, family] = Shelf(self._read(ask, slug, family).read_all())

    def rates(self, device: Device) -> Rates | None:
        with _reading(self._path) as ask:
            if not ask("SELECT name FROM sqlite_master WHERE name = 'rates'"):
                return None  # of an earlier version
            rows = ask("SELECT document FROM rates WHERE fingerprint = ?", fingerprint(device))
        return read(Rates, parse(str(rows[0][0]))) if rows else None

    def _load(self, slug: str, family: str) -> None:
        if slug in self._devices and (slug, family) not in self._shelves:
            with _reading(self._path) as ask:
                self._shelves[slug, family] = self._read(ask, slug, family)

    def _read(self, ask: Ask, slug: str, family: str) -> Shelf:
        rows: list[Any] = ask(_ENTRIES, slug, family)
        versions = {driver: version for (of, driver), version in self._versions.items() if of == slug}
        reader = partial(_entry, self._path, slug, find_family(family), versions)
        return Shelf({row[0]: row for row in rows}, reader)


def _device(row: Sequence[Any], source: Path) -> Device:
    values: dict[str, Any] = dict(zip(_DEVICE, map(str, row), strict=True))
    with _row_of(source, "devices", values["slug"]):
        limits = DeviceLimits.from_dict(json.loads(values.pop("limits")))
        limits.constraint_values()
        return Device(**values, limits=limits)


def _versions(devices: Iterable[Device]) -> dict[tuple[str, str], str]:
    """Return the OpenCL version by slug and driver, where it is unique: a CPU's version includes its compile target."""
    found: dict[tuple[str, str], set[str]] = {}
    for device in devices:
        found.setdefault((device.slug, device.driver), set()).add(device.version)
    return {place: next(iter(versions)) for place, versions in found.items() if len(versions) == 1}


def _entry(source: Path, slug: str, family: KernelFamily, versions: Mapping[str, str], row: Row) -> Entry | None:
    """Return the entry, or None if this version does not know it. Raises TableError for a broken row."""
    with _row_of(source, "best_configurations", f"{slug}, {family.name}"):
        problem, configuration, time_ns = _plain(row[0]), _plain(row[1]), _time(row[2])
        try:
            return Entry(
                problem=family.problem_type.from_dict(problem),
                configuration=family.complete(Configuration.from_dict(configuration)),
                time_ns=time_ns,
                driver=str(row[3]),
                version=versions.get(str(row[3]), ""),
                template_hash=str(row[4]),
            )
        except (ProblemError, ConfigurationError):
            return None


def _plain(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise TypeError("not a JSON object")
    return data


def _time(value: Any) -> float:
    if not isinstance(value, float | int) or not isfinite(value) or value <= 0:
        raise ValueError("time_ns is not a positive number")
    return float(value)


@contextmanager
def _row_of(source: Path, table: str, row: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TableError(f"{source}: a row of {table} ({row[:80]}) cannot be understood: {str(error)[:200]}") from error


# The trials behind a winner

_TRIALS = """
    SELECT trials.configuration, trials.time_ns, trials.prepare_ns, trials.template_hash
    FROM trials JOIN problems ON problems.id = trials.problem_id JOIN devices ON devices.id = trials.device_id
    WHERE devices.slug = ? AND devices.driver = ? AND devices.version = ?
      AND problems.family = ? AND problems.spec = ? AND trials.state = 'complete' AND trials.time_ns > 0
    ORDER BY trials.id
"""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A configuration's median time of one call, and the part of it spent converting operands to another layout."""

    configuration: Configuration
    time_ns: float
    prepare_ns: float
    template_hash: str = ""
    """Hash of the measured templates; empty if unknown."""


def read_trials(path: str | Path, device: Device, problem: Problem) -> list[Timed]:
    """Return the complete trials on this device with this driver and version, combined by configuration.

    Only trials with the templates that a configuration was last measured with count. The list is empty if the file is
    not a database of this project. Nothing is written.
    """
    from statistics import median

    try:
        with _reading(Path(path)) as ask:
            rows = ask(_TRIALS, device.slug, device.driver, device.version, problem.family, problem.key)
    except (OSError, AutotuneError):
        return []
    latest = {configuration: template_hash for configuration, _, _, template_hash in rows}
    times: dict[str, list[tuple[float, float]]] = {}
    for configuration, time_ns, prepare_ns, template_hash in rows:
        if template_hash == latest[configuration]:
            times.setdefault(configuration, []).append((time_ns, prepare_ns or 0.0))
    return [
        Timed(
            configuration=Configuration.from_dict(_plain(text)),
            time_ns=median(t for t, _ in found),
            prepare_ns=median(p for _, p in found),
            template_hash=str(latest[text]),
        )
        for text, found in times.items()
    ]


# Files


@contextmanager
def _reading(path: Path) -> Iterator[Ask]:
    with _reported(path), closing(_connect(path)) as connection:
        # One transaction, so that all queries see the same state whatever is written meanwhile.
        connection.execute("BEGIN")
        ends = monotonic() + _LONGEST_S
        connection.set_progress_handler(lambda: monotonic() > ends, 100_000)

        def ask(query: str, *parameters: str) -> list[tuple[Any, ...]]:
            rows, size = [], 0
            for row in connection.execute(query, parameters):
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > _MOST_BYTES:
                    raise NotADatabaseError(f"{path} holds more than any database of this project")
                rows.append(row)
            return rows

        yield ask


def _is_filled(path: Path, ask: Ask) -> bool:
    if not ask("SELECT 1 FROM sqlite_master LIMIT 1"):
        return False
    if not is_our_file(ask):
        raise NotADatabaseError(f"{path} is a database of another program", hint="name another database")
    is_newest_revision(path, str(ask("SELECT max(version_num) FROM alembic_version")[0][0]))
    return True


_TABLES = ("alembic_version", "devices", "problems", "trials", "winners")

_PLAIN = f"""
    SELECT count(*) FROM main.sqlite_master AS tables WHERE name IN {_TABLES} AND sql LIKE 'CREATE TABLE %'
        AND NOT EXISTS (SELECT 1 FROM pragma_table_xinfo(tables.name, 'main') WHERE hidden)
"""  # noqa: S608 - of constants


def is_our_file(ask: Callable[[str], Sequence[Any]]) -> bool:
    """Return whether a file is of this project, and its tables are tables without a column that the file computes."""
    return bool(ask("PRAGMA application_id")[0][0] == APPLICATION_ID and ask(_PLAIN)[0][0] == len(_TABLES))


def limit_file(connection: sqlite3.Connection) -> None:
    """Limit what a file of unknown origin can do to its reader. Text that is not UTF-8 is read as far as it is."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_TEXT_BYTES)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    connection.execute(f"CREATE TEMP VIEW best_configurations AS {BEST_CONFIGURATIONS}")  # instead of the file's


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # A message of SQLite that repeats a damaged name cannot be decoded.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise NotADatabaseError(f"reading {path} takes longer than {_LONGEST_S:g} s") from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG):
            raise NotADatabaseError(
                f"{path} is damaged: {error}", hint="restore it from a backup or an export"
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise locked(path) from error
        raise StoreError(f"{path} cannot be read: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path.absolute().as_uri() + read_only_options(path), uri=True, timeout=_WAIT_S, isolation_level=None
    )
    limit_file(connection)
    connection.execute("PRAGMA query_only = 1")
    return connection


def read_only_options(path: Path) -> str:
    """Return the URI options to open a file that may have a write-ahead log, in a folder that may be read-only.

    Raises StoreError if a log or a journal holds changes that cannot be read there.
    """
    # A connection that may write removes the log's files if it is the last to close; a read-only one leaves them.
    is_writable = os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK | os.X_OK)
    for options in ("?mode=rw", "?mode=ro") if is_writable else ("?mode=ro",):
        if _opens(path, options):
            return options
    # Reading a log requires files beside the database, which cannot be created in a read-only folder. `immutable`
    # assures SQLite that there are no writers, but then changes still in a log or a journal would be missed.
    logs = [path.with_name(path.name + ending) for ending in ("-wal", "-journal")]
    if any(file.exists() and file.stat().st_size for file in logs):
        hint = "copy the file and the -wal and -journal files beside it to a writable folder, and open the copy"
        raise StoreError(f"{path} was not closed properly, and its folder is not writable", hint=hint)
    return "?mode=ro&immutable=1"


def _opens(path: Path, uri_options: str) -> bool:
    with closing(sqlite3.connect(path.absolute().as_uri() + uri_options, uri=True, timeout=_WAIT_S)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHMSIZE
            if is_full or error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                return False
            raise
    return True


def locked(path: Path) -> StoreError:
    """Return the error for a lock that SQLite does not get; it tells no other program from a lack of locks."""
    try:
        import fcntl
        from tempfile import TemporaryFile

        with TemporaryFile(dir=path.absolute().parent) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError) as error:
        if getattr(error, "errno", 0) == errno.ENOLCK:
            return StoreError(
                f"the file system of {path} has no locks", hint="keep the database on a disk of this machine"
            )
    return StoreError(f"{path} is locked by another program", hint="end that program, then try again")
