"""Runtime lookup of tuned configurations: `TuningTable.find`. Uses only the standard library, so it loads quickly.

A table is read from the user's database layered over the shipped tables, from an SQLite file, or from an exported JSON
table. From a large database only the rows that a lookup needs are read. Nothing is written except the log of misses,
and only the user's own table writes that.

`answer.py` defines the result of a lookup, `chain.py` its steps, and `contents.py` the data sources.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Self

from autotune.errors import NotADatabaseError, ProblemError, TableError
from autotune.kernels import find_family
from autotune.lookup.answer import Entry, Match, Tuned, table_order
from autotune.model.device import Device
from autotune.model.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.lookup.contents import Contents
    from autotune.lookup.misses import MissLog
    from autotune.model.machine import Rates

__all__ = ["Entry", "Match", "Tuned", "TuningTable", "table_order"]

_MOST_ANSWERS = 65536
"""Size of the cache of answers, which is cleared when full: a program may look up new sizes without end."""


class TuningTable:
    """The measured configurations of one or more devices."""

    def __init__(
        self, devices: Sequence[Device], entries: Iterable[tuple[str, Entry]], *, source: str = "the table"
    ) -> None:
        """`entries` are pairs of a device slug and an entry. Of two devices with the same slug, the last one wins."""
        from autotune.lookup.contents import Contents

        self._fill(Contents(devices, entries), source, None)

    def over(self, lower: "Contents") -> Self:
        """Return this table layered over another, such as the shipped tables; see `Layers`."""
        from autotune.lookup.contents import Layers

        table = type(self).__new__(type(self))
        table._fill(Layers(self._contents, lower), self.source, None)
        return table

    @classmethod
    def open(cls, path: "str | Path | None" = None, *, log_misses: bool = True) -> Self:
        """Open an SQLite file or a JSON table; without a path, the user's database over the shipped tables.

        Only without a path, problems that the table does not contain are logged for `autotune run --misses`, unless
        `log_misses` is False. Raises TableError, NotADatabaseError, NewerSchemaError or StoreError.
        """
        from pathlib import Path

        table = cls.__new__(cls)
        if isinstance(path, str) and "://" in path:
            path = _path_of(path)
        if path is not None:
            table._fill(_read(Path(path), may_be_missing=False), str(path), None, Path(path).name)
            return table
        from autotune.lookup.contents import Layers, shipped
        from autotune.paths import default_database

        own = default_database()
        contents = Layers(_read(own, may_be_missing=True), shipped())
        misses = None
        if log_misses:
            from autotune.lookup.misses import MissLog

            misses = MissLog.default()
        table._fill(contents, str(own), misses, "your database or the shipped tables")
        return table

    def _fill(self, contents: "Contents", source: str, misses: "MissLog | None", name: str = "") -> None:
        # Imported here because an application that imports the lookup may never open a table.
        from autotune.lookup.chain import Chain

        self.source = source
        """Name shown to users: the path of a table that was opened."""
        self._contents = contents
        self._misses = misses
        self._chain = Chain(contents, name or source)
        self._answers: dict[tuple[object, ...], Tuned] = {}
        self._asked: dict[int, str | Device] = {}

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices in the table, sorted by slug."""
        found = (self._contents.device(slug) for slug in self._contents.slugs())
        return tuple(device for device in found if device is not None)

    def find(
        self,
        device: str | Device,
        problem: Problem | None = None,
        *,
        m: int | None = None,
        n: int | None = None,
        k: int | None = None,
    ) -> Tuned:
        """Return the configuration to use for a problem, or for the plain float32 matrix product of sizes m, n, k.

        A `Device` is checked against its own limits; for a slug that the table does not know, only its name is used.
        Raises ProblemError for invalid sizes, and with a large database also the errors of `open`.
        """
        # Called once per kernel call, so a repeated question costs one dictionary access. A device is keyed by its
        # identity, since hashing all its strings would take longer than the rest.
        question = (device if device.__class__ is str else id(device), problem, m, n, k)
        answer = self._answers.get(question)
        return self._find(question, device) if answer is None else answer

    def _find(self, question: tuple[object, ...], device: str | Device) -> Tuned:
        _, given, m, n, k = question
        asked = given if isinstance(given, Problem) else _plain_product(m, n, k)
        answer = self._chain.answer(device, asked)
        if len(self._answers) >= _MOST_ANSWERS:
            self._asked.clear()
            self._answers.clear()
        self._answers[question] = answer
        if device.__class__ is not str:
            # Keeping the device alive keeps its identity unique. Devices are stored after answers and cleared before
            # them; otherwise another thread could drop the device and leave its answer.
            self._asked[id(device)] = device
        if self._misses is not None and answer.match is not Match.EXACT:
            self._misses.add(answer.device, asked)
        return answer

    def rates(self, device: Device) -> "Rates | None":
        """Return what `autotune limits` measured on a device under its driver; None if the table does not have it."""
        return self._contents.rates(device)

    def knows(self, device: Device) -> bool:
        """Return whether the table contains this device with the same driver and version."""
        known = self._contents.device(device.slug)
        return known is not None and (known.driver, known.version) == (device.driver, device.version)


def _read(place: "Path", *, may_be_missing: bool) -> "Contents":
    from autotune.lookup.contents import Contents, read_json

    try:
        with place.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        start = b""
    except OSError as error:
        raise TableError(f"{place} cannot be read: {error.strerror}") from error
    if not start and may_be_missing:
        return Contents()
    if not start:  # or another process is about to fill it
        raise TableError(f"there is no table {place}", hint="create one with autotune run or autotune export")
    if start.startswith(b"SQLite format 3\0"):
        from autotune.lookup.database import Database

        return Database(place)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return read_json(place)
    raise NotADatabaseError(f"{place} is neither a database nor a JSON table", hint="name another file")


def _path_of(url: str) -> str:
    """Return the path of an SQLite URL. Raises TableError for any other URL."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        raise TableError(
            f"cannot open a table from a URL of the kind {scheme[:40]}://",
            hint="write a file with autotune export --format sqlite, or ask the service that uses the database",
        )
    return rest.removeprefix("/")


def _plain_product(m: object, n: object, k: object) -> Problem:
    if m is None or n is None or k is None:
        raise ProblemError("a lookup needs a problem, or all of m, n and k")
    # index() accepts the integers of other libraries and rejects fractions.
    return _plain_type()(m=index(m), n=index(n), k=index(k))  # type: ignore[arg-type, call-arg]


@cache
def _plain_type() -> type[Problem]:
    return find_family("gemm").problem_type
