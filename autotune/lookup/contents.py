"""The sources of a table's data: values in memory, the shipped files, or one layered over another.

`database.py` has the one that reads a database.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from autotune.lookup.answer import Entry, table_order
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.paths import data_folder

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.machine import Rates
    from autotune.model.trial import Winner

Row = tuple[str, str, float, str, str]
"""An unparsed entry: problem key, configuration as JSON, time in nanoseconds, driver, hash of measured templates."""
Reader = Callable[[Row], Entry | None]


class Shelf:
    """The entries of one family on one device; rows are parsed when they are needed."""

    def __init__(self, rows: Mapping[str, Entry | Row] | None = None, reader: Reader = lambda _: None) -> None:
        """`rows` are keyed by problem key; `reader` returns None for a row that only another version knows."""
        self.rows = dict(rows or {})
        self.reader = reader
        self._kinds: dict[object, list[Entry]] | None = None

    def over(self, other: "Shelf") -> "Shelf":
        """Return both combined; for a problem in both, this one's entry. Only one of them has unparsed rows."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        return Shelf({**other.read_all(), **self.read_all()})

    def exact(self, problem: Problem) -> Entry | None:
        row = self.rows.get(problem.key)
        return self.reader(row) if isinstance(row, tuple) else row

    def comparable(self, problem: Problem) -> list[Entry]:
        """Return the entries of comparable problems, in the order that decides between equally near ones."""
        if self._kinds is None:
            kinds: dict[object, list[Entry]] = {}
            for entry in sorted(self.read_all().values(), key=lambda entry: table_order(entry.problem)):
                kinds.setdefault(entry.problem.kind, []).append(entry)
            self._kinds = kinds  # last, since another thread may be looking
        return self._kinds.get(problem.kind, [])

    def read_all(self) -> dict[str, Entry]:
        """Return every entry, keyed by problem key."""
        read = {key: self.reader(row) if isinstance(row, tuple) else row for key, row in self.rows.items()}
        return {key: entry for key, entry in read.items() if entry is not None}


class Contents:
    """The devices of a table and their entries: values in memory.

    Subclasses load what is requested: they override `_load`, which then fills the dictionaries.
    """

    def __init__(self, devices: Iterable[Device] = (), entries: Iterable[tuple[str, Entry]] = ()) -> None:
        """Of two devices with the same slug, the last one wins."""
        self._devices = {device.slug: device for device in devices}
        self._shelves: dict[tuple[str, str], Shelf] = {}
        for slug, entry in entries:
            self._shelves.setdefault((slug, entry.problem.family), Shelf()).rows[entry.problem.key] = entry

    def slugs(self) -> Sequence[str]:
        """Return the slugs of the devices, in order."""
        return sorted(self._devices)

    def device(self, slug: str) -> Device | None:
        return self._devices.get(slug)

    def shelf(self, slug: str, family: str) -> Shelf:
        self._load(slug, family)
        return self._shelves.get((slug, family)) or Shelf()

    def rates(self, device: Device) -> "Rates | None":  # noqa: ARG002 - for subclasses
        """Return the measured rates of a device under its driver; None without any."""
        return None

    def _load(self, slug: str, family: str) -> None:
        """Load the entries of a family on a device."""


class Shipped(Contents):
    """A folder of JSON tables, one per device, each named by the slug of its device."""

    def __init__(self, folder: "Path") -> None:
        super().__init__()
        self._files = {path.stem: path for path in folder.glob("*.json")}

    def slugs(self) -> Sequence[str]:
        return sorted(self._files)

    def device(self, slug: str) -> Device | None:
        self._load(slug, "")
        return super().device(slug)

    def _load(self, slug: str, _family: str) -> None:
        if slug in self._files and slug not in self._devices:
            read = read_json(self._files[slug])
            self._shelves |= read._shelves
            self._devices |= read._devices  # last, since another thread may be looking


@cache
def shipped() -> Shipped:
    """Return the tables of this installation, each of which a process reads once."""
    return Shipped(data_folder("db") / "tables")


class Layers(Contents):
    """One source layered over another: where both have a device or an entry, the upper one's is used."""

    def __init__(self, upper: Contents, lower: Contents) -> None:
        super().__init__()
        self._upper = upper
        self._lower = lower

    def slugs(self) -> Sequence[str]:
        return sorted({*self._upper.slugs(), *self._lower.slugs()})

    def device(self, slug: str) -> Device | None:
        return self._upper.device(slug) or self._lower.device(slug)

    def rates(self, device: Device) -> "Rates | None":
        return self._upper.rates(device) or self._lower.rates(device)

    def shelf(self, slug: str, family: str) -> Shelf:
        return self._upper.shelf(slug, family).over(self._lower.shelf(slug, family))


def read_json(path: "Path") -> Contents:
    """Read an exported table. Raises TableError."""
    from autotune.lookup.json_table import read_contents

    contents = read_contents(path)
    return Contents(contents.devices, entries_of(contents.devices, contents.winners))


def entries_of(devices: Iterable[Device], winners: "Iterable[Winner]") -> list[tuple[str, Entry]]:
    """Return the winners as entries of a table, each with the slug of its device."""
    versions = {(device.slug, device.driver): device.version for device in devices}
    return [
        (
            winner.device,
            Entry(
                problem=winner.problem,
                configuration=winner.configuration,
                time_ns=winner.time_ns,
                driver=winner.provenance.driver,
                version=versions.get((winner.device, winner.provenance.driver), ""),
                template_hash=winner.provenance.template_hash,
            ),
        )
        for winner in winners
    ]
