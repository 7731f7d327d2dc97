"""The contents of an SQLite database: reads rows and returns devices and entries.

`sqlite_table.py` runs the queries, since the lookup must not wait for SQLAlchemy to load.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any

from autotune.errors import ConfigurationError, ProblemError, TableError
from autotune.kernels import find_family, is_family
from autotune.lookup.answer import Entry
from autotune.lookup.contents import Row, Shelf
from autotune.lookup.predictor import Predictor
from autotune.lookup.sqlite_table import Ask, File
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
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
        try:
            return [predictor for (document,) in rows for predictor in read_document(document)]
        except TableError as error:
            raise TableError(f"{self._source}: what predicts on {slug}: {error.message}", hint=error.hint) from error

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
        problem, configuration, time_ns = plain(row[0]), plain(row[1]), _time(row[2])
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


def plain(text: str) -> dict[str, Any]:
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
