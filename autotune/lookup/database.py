"""The contents of an SQLite database: reads rows and returns devices, entries, and the trials of a problem.

`sqlite_table.py` runs the queries, since the lookup must not wait for SQLAlchemy to load.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, ConfigurationError, ProblemError, TableError
from autotune.kernels import find_family, is_family
from autotune.lookup.answer import Entry
from autotune.lookup.contents import Row, Shelf
from autotune.lookup.predictor import Predictor
from autotune.lookup.sqlite_table import Ask, File
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

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

_ENTRIES = """
    SELECT spec, configuration, time_ns, driver, template_hash FROM best_configurations WHERE device = ? AND family = ?
"""

_PREDICTORS = "SELECT document FROM predictors WHERE device = ?"


class Database:
    """The contents of a database: devices are read at once, the measurements of a device when they are requested.

    Rows with families, sizes or configurations unknown to this version are skipped: they belong to another version.
    """

    def __init__(self, source: File) -> None:
        """Raises NotADatabaseError, NewerSchemaError or StoreError for the source, TableError for a broken row."""
        self._source = source
        self._devices: dict[str, Device] = {}
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._predictors: dict[str, list[Predictor]] = {}
        self._versions: dict[tuple[str, str], str] = {}
        with source.reading() as ask:
            if not source.is_filled(ask):
                return
            # Of two devices with the same slug, the last one wins.
            found = [_device(row, source) for row in ask(_DEVICES)]
            self._devices = {device.slug: device for device in found}
            self._versions = _versions(found)
            if ask("SELECT count(*) FROM winners")[0][0] <= _READ_AT_ONCE:
                self._read_all(ask)

    def slugs(self) -> Sequence[str]:
        return sorted(self._devices)

    def device(self, slug: str) -> Device | None:
        return self._devices.get(slug)

    def shelf(self, slug: str, family: str) -> Shelf:
        """Raises the same errors as opening."""
        place = slug, family
        if place not in self._shelves and slug in self._devices:
            with self._source.reading() as ask:
                self._shelves[place] = self._read(ask, slug, family)
        return self._shelves.get(place) or Shelf()

    def predictors(self, slug: str, family: str) -> list[Predictor]:
        """Raises the same errors as opening."""
        if slug not in self._predictors:
            self._predictors[slug] = self._read_predictors(slug) if slug in self._devices else []
        return [p for p in self._predictors[slug] if p.example.family == family]

    def _read_predictors(self, slug: str) -> list[Predictor]:
        from autotune.lookup.values import read_document

        with self._source.reading() as ask:
            rows = ask(_PREDICTORS, slug)
        return [predictor for (document,) in rows for predictor in read_document(document, self._source, slug)]

    def _read_all(self, ask: Ask) -> None:
        places = ask("SELECT DISTINCT device, family FROM best_configurations")
        for slug, family in places:
            if is_family(family):
                shelf = self._read(ask, slug, family)
                self._shelves[slug, family] = Shelf(shelf.read_all())

    def _read(self, ask: Ask, slug: str, family: str) -> Shelf:
        rows: list[Any] = ask(_ENTRIES, slug, family)
        versions = {driver: version for (of, driver), version in self._versions.items() if of == slug}
        reader = partial(_entry, self._source, slug, find_family(family), versions)
        return Shelf({row[0]: row for row in rows}, reader)


def _device(row: Sequence[Any], source: File) -> Device:
    values = dict(zip(_DEVICE, row, strict=True))
    with _row_of(source, "devices", str(values["slug"])):
        limits = DeviceLimits.from_dict(json.loads(values.pop("limits")))
        limits.constraint_values()
        return Device(**values, limits=limits)


def _versions(devices: Iterable[Device]) -> dict[tuple[str, str], str]:
    """Return the OpenCL version by slug and driver, where it is unique: a CPU's version includes its compile target."""
    found: dict[tuple[str, str], set[str]] = {}
    for device in devices:
        found.setdefault((device.slug, device.driver), set()).add(device.version)
    return {place: next(iter(versions)) for place, versions in found.items() if len(versions) == 1}


def _entry(source: File, slug: str, family: KernelFamily, versions: Mapping[str, str], row: Row) -> Entry | None:
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
def _row_of(source: File, table: str, row: str) -> Iterator[None]:
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
        with File(Path(path)).reading() as ask:
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
