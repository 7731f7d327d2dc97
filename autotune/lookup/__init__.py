"""Which configuration to use, at run time: `TuningTable.find`. Standard library only, and quick to load.

A table is read once, from the user's database, from an SQLite file or from an exported JSON table, and nothing is
ever written. This file holds the answer and how it is found; how tables are read lies beside it.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Self

from autotune.errors import ConfigurationError, NotADatabaseError, ProblemError, TableError
from autotune.family import Configuration, Device, DeviceLimits, KernelFamily, Problem, find_family

if TYPE_CHECKING:
    from pathlib import Path

_MOST_ANSWERS = 65536
"""Kept for the next time; a program that asks for ever new sizes must not grow without end."""


class Match(enum.Enum):
    """What an answer rests on."""

    EXACT = "exact"
    """This problem was measured on this device."""
    NEAREST = "nearest"
    """The nearest measured problem of the same device, whose configuration is valid for this one too."""
    DEFAULT = "default"
    """Nothing measured serves: what the family chooses by rule from the sizes, the device's limits and its profile."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One measured problem of a table."""

    problem: Problem
    configuration: Configuration
    time_ns: float


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The configuration to use, and where it comes from."""

    configuration: Configuration
    match: Match
    device: str
    """Slug."""
    problem: Problem
    """What was asked for."""
    source_problem: Problem | None
    """What was measured; None for a default."""
    time_ns: float | None
    """Measured time of one call of `source_problem`; None for a default."""
    because: str
    """One line for people."""


class TuningTable:
    """The measured configurations of one or more devices."""

    def __init__(
        self, devices: Sequence[Device], entries: Iterable[tuple[str, Entry]], *, source: str = "the table"
    ) -> None:
        """`entries` come with the slug of their device; of two devices with one slug the last holds."""
        self.source = source
        self._devices = {device.slug: device for device in devices}
        places: dict[tuple[str, str], list[Entry]] = {}
        for slug, entry in entries:
            places.setdefault((slug, entry.problem.family), []).append(entry)
        self._shelves = {place: _Shelf(found) for place, found in places.items()}
        self._answers: dict[tuple[object, ...], Tuned] = {}

    @classmethod
    def open(cls, path: "str | Path | None" = None) -> Self:
        """Read a database or a JSON table; without a path the user's own database, which may not exist yet.

        Raises TableError, NotADatabaseError, NewerSchemaError or StoreError.
        """
        from pathlib import Path

        from autotune.resources import default_database

        place = default_database() if path is None else Path(path)
        try:
            with place.open("rb") as file:
                start = file.read(64)
        except FileNotFoundError:
            if path is None:
                return cls([], [], source=str(place))
            raise TableError(f"there is no table {place}", hint="autotune run or autotune export makes one") from None
        except OSError as error:
            raise TableError(f"{place} cannot be read: {error.strerror}") from error
        if start.startswith(b"SQLite format 3\0"):
            from autotune.lookup.sqlite_table import read_database

            devices, entries = read_database(place)
            return cls(devices, entries, source=str(place))
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            from autotune.lookup.json_table import read_table

            devices, winners = read_table(place)
            entries = [
                (w.device, Entry(problem=w.problem, configuration=w.configuration, time_ns=w.time_ns)) for w in winners
            ]
            return cls(devices, entries, source=str(place))
        if not start and path is None:
            return cls([], [], source=str(place))
        raise NotADatabaseError(f"{place} is neither a database nor a JSON table", hint="name another file")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those the table knows, by slug."""
        return tuple(self._devices[slug] for slug in sorted(self._devices))

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

        A `Device` that the table does not know gets its profile's default; of a slug only its name can be gone by.
        Raises ProblemError for sizes that are none.
        """
        # Asked once per call of a kernel: a question asked before costs one access.
        question = (device, problem, m, n, k)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            answer = self._answer(device, problem or _plain_product(m, n, k))
            self._answers[question] = answer
        return answer

    def _answer(self, device: str | Device, problem: Problem) -> Tuned:
        slug = device.slug if isinstance(device, Device) else device
        family = find_family(problem.family)
        known = self._devices.get(slug)
        if known is None:
            return self._default(device if isinstance(device, Device) else _guess(slug), problem, self._unknown(slug))
        shelf = self._shelves.get((slug, problem.family)) or _Shelf([])
        reasons: list[str] = []
        entry = shelf.exact.get(problem)
        if entry is not None:
            violations = _violations(family, problem, entry.configuration, known.limits)
            if not violations:
                return _tuned(entry, Match.EXACT, slug, problem, f"{problem.label} was measured on {slug}")
            reasons.append(f"what was measured for {problem.label} is no longer valid ({violations[0]})")
        else:
            reasons.append(f"{problem.label} was not measured on {slug}")
        nearest = self._nearest(family, known, problem, shelf.comparable(problem), reasons)
        return nearest or self._default(known, problem, "; ".join(reasons))

    def _nearest(
        self, family: KernelFamily, device: Device, problem: Problem, entries: list[Entry], reasons: list[str]
    ) -> Tuned | None:
        """Explains itself in `reasons` when there is none."""
        ranked = sorted(((_distance(e.problem, problem), i) for i, e in enumerate(entries)))
        for passed_over, (distance, number) in enumerate(ranked):
            entry = entries[number]
            if _violations(family, problem, entry.configuration, device.limits):
                continue
            reasons.append(
                f"the nearest of {_count(len(entries), 'comparable shape')} with a configuration valid here is "
                f"{entry.problem.label}, off by a factor of {distance:.3g}"
            )
            if passed_over:
                reasons.append(f"{_count(passed_over, 'nearer one')} would not be valid")
            return _tuned(entry, Match.NEAREST, device.slug, problem, "; ".join(reasons))
        if entries:
            reasons.append(f"of {_count(len(entries), 'comparable shape')} none has a configuration valid here")
        else:
            reasons.append("nothing comparable was measured there")
        return None

    def _default(self, device: Device, problem: Problem, reason: str) -> Tuned:
        from autotune.profile import find_profile

        profile = find_profile(device)
        starts = profile.starting(problem.family)
        family = find_family(problem.family)
        configuration = family.default(problem, device.limits, starts)
        if configuration in starts:
            origin = f"is by rule from the profile {profile.name!r}"
        elif configuration == family.baseline:
            origin = f"is the plainest kernel of {family.name}, as nothing by rule is valid"
        else:
            origin = f"is by rule from the sizes, the device's limits and the profile {profile.name!r}"
        return Tuned(
            configuration=configuration,
            match=Match.DEFAULT,
            device=device.slug,
            problem=problem,
            source_problem=None,
            time_ns=None,
            because=f"{reason}; the default {origin}",
        )

    def _unknown(self, slug: str) -> str:
        there = ", ".join(sorted(self._devices)[:10]) or "none"
        return f"{self.source} has no device {slug[:80]!r} (there: {there})"


class _Shelf:
    """What is measured of one family on one device, in the order that decides between equally near problems."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = sorted(entries, key=lambda entry: table_order(entry.problem))
        self.exact = {entry.problem: entry for entry in self.entries}

    @cached_property
    def _kinds(self) -> list[list[Entry]]:
        """Entries that are comparable with one another, together."""
        kinds: list[list[Entry]] = []
        for entry in self.entries:
            kind = next((kind for kind in kinds if kind[0].problem.is_comparable(entry.problem)), None)
            if kind is None:
                kinds.append([entry])
            else:
                kind.append(entry)
        return kinds

    def comparable(self, problem: Problem) -> list[Entry]:
        return next((kind for kind in self._kinds if kind[0].problem.is_comparable(problem)), [])


def table_order(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """The order of a table: by sizes, then by the other numbers, then by the texts. Exported C code has it too."""
    values = [getattr(problem, field.name) for field in fields(problem)]
    numbers = tuple(value for value in values if isinstance(value, int))
    return problem.size_vector, numbers, tuple(value for value in values if isinstance(value, str))


def _distance(one: Problem, other: Problem) -> float:
    """How far apart two problems are: 1.0 for equal sizes. Plain double arithmetic, so that C agrees to the bit."""
    distance = 1.0
    for a, b in zip(one.size_vector, other.size_vector, strict=True):
        distance *= a / b if a > b else b / a
    return distance


def _violations(
    family: KernelFamily, problem: Problem, configuration: Configuration, limits: DeviceLimits
) -> list[str]:
    try:
        return family.violations(problem, configuration, limits)
    except ConfigurationError as error:
        # An algorithm of another version.
        return [error.message]


def _tuned(entry: Entry, match: Match, slug: str, problem: Problem, because: str) -> Tuned:
    return Tuned(
        configuration=entry.configuration,
        match=match,
        device=slug,
        problem=problem,
        source_problem=entry.problem,
        time_ns=entry.time_ns,
        because=because,
    )


def _plain_product(m: int | None, n: int | None, k: int | None) -> Problem:
    if m is None or n is None or k is None:
        raise ProblemError("a lookup needs a problem, or all of m, n and k")
    # index() takes the integers of other libraries, and no fractions.
    return find_family("gemm").problem_type.from_dict({"m": index(m), "n": index(n), "k": index(k)})


def _guess(slug: str) -> Device:
    """A device of which only the slug is known, with the least a device can do."""
    return Device(slug=slug, vendor="", model="", family=slug.partition("-")[0], limits=DeviceLimits())


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
