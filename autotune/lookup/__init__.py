"""Which configuration to use, at run time: `TuningTable.find`. Standard library only, and quick to load.

A table is read from the user's database over the tables that ship, from an SQLite file, from an exported JSON table,
or, with the extra `postgres`, from a PostgreSQL server. Of a large database only what is asked for is read. Nothing is
written but the log of misses, and that by the user's own table alone.

`answer.py` says what is found, `chain.py` by which steps, `contents.py` where data come from, `predictor.py` how
sizes are answered that nobody measured.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    from autotune.lookup.predictor import Predictor

__all__ = ["Entry", "Match", "Tuned", "TuningTable", "table_order"]

_MOST_ANSWERS = 65536
"""Kept for the next time; a program that asks for ever new sizes must not grow without end."""


class TuningTable:
    """The measured configurations of one or more devices."""

    def __init__(
        self,
        devices: Sequence[Device],
        entries: Iterable[tuple[str, Entry]],
        *,
        source: str = "the table",
        predictors: "Mapping[str, Sequence[Predictor]] | None" = None,
    ) -> None:
        """`entries` come with the slug of their device, `predictors` by it; of two devices with one slug the last
        holds."""
        from autotune.lookup.contents import AtHand

        self._fill(AtHand(devices, entries, predictors or {}), source, None)

    def over(self, lower: "Contents") -> Self:
        """The same over another table, as those that ship."""
        from autotune.lookup.contents import Layers

        table = type(self).__new__(type(self))
        table._fill(Layers(self._contents, lower), self.source, None)
        return table

    @classmethod
    def open(cls, path: "str | Path | None" = None, *, log_misses: bool = True) -> Self:
        """A database, by its path or URL, or a JSON table; without a path the user's own database over what ships.

        Sizes that the user's own table lacks are noted for `autotune run --misses`, unless `log_misses` is False;
        a table that is named notes nothing. Raises TableError, NotADatabaseError, NewerSchemaError or StoreError.
        """
        from pathlib import Path

        table = cls.__new__(cls)
        if isinstance(path, str) and "://" in path:
            contents, source = _read_url(path)
            table._fill(contents, source, None, source)
            table.place = source if path.startswith("sqlite:") else path
            return table
        if path is not None:
            table._fill(_read(Path(path), may_be_missing=False), str(path), None, Path(path).name)
            return table
        from autotune.lookup.contents import Layers, Shipped
        from autotune.paths import data_folder, default_database

        own = default_database()
        contents = Layers(_read(own, may_be_missing=True), Shipped(data_folder("db") / "tables"))
        misses = None
        if log_misses:
            from autotune.lookup.misses import MissLog

            misses = MissLog.default()
        table._fill(contents, str(own), misses, "your database or the shipped tables")
        return table

    def _fill(self, contents: "Contents", source: str, misses: "MissLog | None", name: str = "") -> None:
        # Not when this module is loaded: an application that imports the lookup may never open a table.
        from autotune.lookup.chain import Chain

        self.source = source
        """For people."""
        self.place = source
        """What to open for the trials behind the table; may hold a password."""
        self._contents = contents
        self._misses = misses
        self._chain = Chain(contents, name or source)
        self._answers: dict[tuple[object, ...], Tuned] = {}
        self._asked: dict[int, Device] = {}

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those the table knows, by slug."""
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
        """The configuration for a problem, or for the plain float32 matrix product of m, n, k.

        A `Device` is held to its own limits; of a slug that the table does not know only its name can be gone by.
        Raises ProblemError for sizes that are none; of a large database also what opening it raises.
        """
        # Asked once per call of a kernel: a question asked before costs one access. A device goes by its identity,
        # since hashing all its strings would take longer than the rest.
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
        if isinstance(device, Device):
            # As long as it lives, nothing else gets its identity. After the answer, as clearing goes before it: else
            # another thread could forget the device alone.
            self._asked[id(device)] = device
        if self._misses is not None and answer.match is not Match.EXACT:
            self._misses.add(answer.device, asked)
        return answer

    def knows(self, device: Device) -> bool:
        """Whether the table has a device with the same driver and version."""
        known = self._contents.device(device.slug)
        return known is not None and (known.driver, known.version) == (device.driver, device.version)

    def predictor(self, device: str, problem: Problem) -> "Predictor | None":
        """What predicts for problems of this kind on a device, by its slug; None where nothing does."""
        from autotune.lookup.contents import sound_predictors

        found = sound_predictors(self._contents, device, find_family(problem.family))
        return next((p for p in found if p.example.is_comparable(problem)), None)


def _read(place: "Path", *, may_be_missing: bool) -> "Contents":
    from autotune.lookup.contents import AtHand, read_json

    nothing = AtHand([], [], {})
    try:
        with place.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        if may_be_missing:
            return nothing
        raise TableError(f"there is no table {place}", hint="autotune run or autotune export makes one") from None
    except OSError as error:
        raise TableError(f"{place} cannot be read: {error.strerror}") from error
    if start.startswith(b"SQLite format 3\0"):
        from autotune.lookup.database import Database
        from autotune.lookup.sqlite_table import File

        return Database(File(place))
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return read_json(place)
    if not start and may_be_missing:
        return nothing
    raise NotADatabaseError(f"{place} is neither a database nor a JSON table", hint="name another file")


def _read_url(url: str) -> "tuple[Contents, str]":
    """With a name for people. Raises what opening raises."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from pathlib import Path

        return _read(Path(rest.removeprefix("/")), may_be_missing=False), rest.removeprefix("/")
    if not scheme.startswith("postgres"):
        raise TableError(
            f"no table is found by {scheme[:40]}://", hint="name a file, or postgresql://user@host/database"
        )
    from autotune.lookup.database import Database
    from autotune.lookup.postgresql_table import Server

    server = Server(url)
    return Database(server), str(server)


def _plain_product(m: object, n: object, k: object) -> Problem:
    if m is None or n is None or k is None:
        raise ProblemError("a lookup needs a problem, or all of m, n and k")
    # index() takes the integers of other libraries, and no fractions.
    return _plain_type()(m=index(m), n=index(n), k=index(k))  # type: ignore[arg-type, call-arg]


@cache
def _plain_type() -> type[Problem]:
    return find_family("gemm").problem_type
