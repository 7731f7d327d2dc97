"""What measurements on many devices say about one kernel: each case is a problem on a device, with the times known.

Cases come from tables that ``autotune export --format json`` wrote, from databases, and from measurements of others
in the JSON form of `Measurements`. All are read as hostile input.
"""

import contextlib
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf, nan
from pathlib import Path
from typing import Annotated, ClassVar

from autotune.codec import Bounds, Items, Node, Null, Pattern, parse, read, read_file, visible
from autotune.errors import TableError
from autotune.kernels import DEFAULT_FAMILY, find_family
from autotune.lookup.json_table import FORMAT as TABLE
from autotune.lookup.json_table import read_contents
from autotune.lookup.legality import Legality
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import TrialState, Winner
from autotune.store import Store, StoredTrial
from autotune.store.database import HEADER

FORMAT = "autotune-measurements"
MAX_ROWS = 2**18
"""Configurations of one problem on one device."""

DEVICE_FACTS = (
    "is_cpu", "compute_units", "max_work_group_size", "local_memory_bytes", "local_memory_is_dedicated",
    "global_memory_bytes", "native_vector_float32", "has_images", "has_float16", "shares_host_memory",
)  # fmt: skip
"""Limits of a device that a rule may ask for, as `DeviceLimits` names them; and ``device_family``, its profile."""

_C_KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"
)
RESERVED = {"options", *_C_KEYWORDS.split(), *keyword.kwlist}
"""Names that sizes, facts and parameters cannot have, since C and Python code uses them."""
NAME = Pattern(r"(?a:[A-Za-z]\w{0,62})", "must be a name of up to 63 letters, digits and underscores")
WORD = Pattern(r"(?a:[\w.+(),/:@ -]{0,200})", "may have letters, digits, spaces and . + ( ) , / : @ _ - only")
"""A text that can stand in a literal of C and of Python as it is."""

Fact = Annotated[str | float, WORD, Bounds(-1e18, 1e18)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A configuration with its time; null if it failed. A configuration without ``algorithm`` has the kernel's name."""

    configuration: Mapping[str, Annotated[str | int, WORD]]
    time_ms: Annotated[float, Bounds(0, 1e12, excludes_least=True), Null(inf)]


@dataclass(frozen=True, kw_only=True)
class MeasuredProblem:
    """The rows of one problem on one device. A single row is a winner, of which nothing else is known."""

    omits_defaults: ClassVar[bool] = True
    sizes: Mapping[str, Fact]
    """Whole numbers are sizes; texts are types and layouts."""
    rows: Annotated[tuple[Row, ...], Items(MAX_ROWS, least=1)]
    default_ms: Annotated[float | None, Bounds(0, 1e12, excludes_least=True)] = None
    """Time of what runs without any tuning, if it is known."""


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """A device with facts that a program can ask for before it runs a kernel."""

    device: Annotated[str, WORD]
    facts: Mapping[str, Fact]
    problems: tuple[MeasuredProblem, ...]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """A document of measurements, without its members ``format`` and ``schema_version``."""

    kernel: Annotated[str, NAME]
    devices: tuple[MeasuredDevice, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem on one device."""

    device: str
    device_facts: Mapping[str, str | float]
    sizes: Mapping[str, str | float]
    times: Mapping[Configuration, float]
    """In a unit of the case's own; infinity for a configuration that failed."""
    default: float = nan
    """Time of the default in the same unit; NaN if it is not known."""
    is_legal: Callable[[Configuration], bool] = field(default=lambda _: True, compare=False)

    @cached_property
    def facts(self) -> Mapping[str, str | float]:
        """What a rule may ask for, sizes first."""
        return {**self.sizes, **self.device_facts}

    @cached_property
    def label(self) -> str:
        return " ".join(
            f"{name}={value:.17g}" if isinstance(value, float) else value for name, value in self.sizes.items()
        )


def read_cases(paths: Iterable[Path], family: str | None = None) -> tuple[str, list[Case]]:
    """Return the name of the kernel and the cases of all files, ordered by device and sizes.

    A case of the same device and sizes in a later file replaces that of an earlier one. `family` says which one to take
    from tables and databases. Raises TableError, UsageError, StoreError, ProblemError.
    """
    kernels: dict[str, Path] = {}
    found: dict[tuple[str, str], Case] = {}
    for path in paths:
        kernel, cases = _read(path, family)
        kernels[kernel] = path
        found.update({(case.device, case.label): case for case in cases if min(case.times.values(), default=inf) < inf})
    if len(kernels) > 1:
        raise TableError(f"the files are of several kernels: {', '.join(kernels)}", hint="distill one at a time")
    if not found:
        raise TableError("the files measure nothing of this kernel", hint="choose another with --family")
    return next(iter(kernels)), [found[key] for key in sorted(found)]


def _read(path: Path, family: str | None) -> tuple[str, list[Case]]:
    if _is_database(path):
        return _of_database(path, family or DEFAULT_FAMILY)
    try:
        data = read_file(path)
        root = parse(data)
        if root.member("format").value == TABLE:
            return _of_table(data, family or DEFAULT_FAMILY)
        kernel, cases = _of_measurements(root)
    except TableError as error:
        raise TableError(f"{path}: {error.message}", hint=error.hint) from error
    if family not in (None, kernel):
        raise TableError(f"{path}: measures {kernel}, not {family}", hint="leave out --family")
    return kernel, cases


def _is_database(path: Path) -> bool:
    if path.is_file():  # reading from a pipe would take from it
        with contextlib.suppress(OSError), path.open("rb") as file:
            return file.read(len(HEADER)) == HEADER
    return False


def _of_measurements(root: Node) -> tuple[str, list[Case]]:
    members = root.members()
    if members["format"].value != FORMAT:
        raise root.wrong("is neither a table of autotune nor measurements", hint=f'those have "format": "{FORMAT}"')
    root.member("schema_version").whole(1, 1)
    document = read(Measurements, root, ignored=("format", "schema_version"))
    cases = []
    for device, place in zip(document.devices, members["devices"].items(), strict=True):
        for problem in device.problems:
            parameters = sorted({name for row in problem.rows for name in row.configuration})
            for names in ([*device.facts, *problem.sizes], parameters):
                _check_names(names, place)
            cases.append(
                Case(
                    device=device.device,
                    device_facts=device.facts,
                    sizes=problem.sizes,
                    times={_configuration(row, document.kernel): row.time_ms for row in problem.rows},
                    default=nan if problem.default_ms is None else problem.default_ms,
                )
            )
    return document.kernel, cases


def _configuration(row: Row, kernel: str) -> Configuration:
    return Configuration.from_dict({"algorithm": kernel, **row.configuration})


def _check_names(names: Sequence[str], place: Node) -> None:
    """Check that these are distinct names that C and Python can use."""
    for name in names:
        if not re.fullmatch(NAME.expression, name):
            raise place.wrong(f"the name {visible(name)!r} {NAME.description}")
        if name in RESERVED or names.count(name) > 1:
            raise place.wrong(f"the name {name} is {'reserved' if name in RESERVED else 'given twice'}")


def _of_table(data: bytes, family: str) -> tuple[str, list[Case]]:
    contents = read_contents(data)
    devices = {device.slug: device for device in contents.devices}
    winners = [winner for winner in contents.winners if winner.problem.family == family]
    return family, list(_cases(devices, family, ((winner, {}) for winner in winners)))


def _of_database(path: Path, family: str) -> tuple[str, list[Case]]:
    with Store.open(path, read_only=True) as store:
        devices = {device.slug: device for device in store.devices()}
        times = {slug: _newest_times(store.trials(slug, family)) for slug in devices}
        winners = [(winner, times[winner.device].get(winner.problem, {})) for winner in store.best(None, family)]
        return family, list(_cases(devices, family, winners))


def _newest_times(trials: Iterable[StoredTrial]) -> dict[Problem, dict[Configuration, float]]:
    """Return for each problem the newest time of every configuration that never failed on it."""
    times: dict[Problem, dict[Configuration, float]] = {}
    failed: set[tuple[Problem, Configuration]] = set()
    for stored in trials:
        trial = stored.trial
        if trial.state is TrialState.COMPLETE and trial.time_ns > 0:
            times.setdefault(stored.problem, {})[trial.configuration] = trial.time_ns
        else:
            failed.add((stored.problem, trial.configuration))
    return {problem: {c: t for c, t in found.items() if (problem, c) not in failed} for problem, found in times.items()}


def _cases(
    devices: Mapping[str, Device], family: str, winners: Iterable[tuple[Winner, Mapping[Configuration, float]]]
) -> Iterator[Case]:
    known = find_family(family)
    for winner, times in winners:
        device, problem = devices[winner.device], winner.problem
        measured = {**times, winner.configuration: winner.time_ns}.items()
        yield Case(
            device=device.slug,
            device_facts=_device_facts(device),
            sizes={**dict(zip(problem.size_axes, map(float, problem.size_vector), strict=True)), **dict(problem.kind)},
            times={known.complete(c): time for c, time in measured if not known.misfits(known.complete(c))},
            default=winner.default_ns if 0 < winner.default_ns < inf else nan,
            is_legal=partial(Legality(known, device.limits).is_valid, problem_values=problem.constraint_values()),
        )


def _device_facts(device: Device) -> dict[str, str | float]:
    limits = device.limits.constraint_values()
    return {"device_family": device.family, **{name: float(limits[name]) for name in DEVICE_FACTS}}
