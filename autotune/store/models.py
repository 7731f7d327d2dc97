"""The tables as typed models, the view as a table to select from, and conversions between rows and values.

The migrations in `db/migrations` create the schema; a test checks that models and migrations agree. JSON is stored as
text, in the same form on every database, so that equal values are equal texts.
"""

import dataclasses
import enum
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from autotune.codec import write
from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Build, Measurement, Provenance, Trial, Winner

_LOG = logging.getLogger(__name__)

_Row = TypeVar("_Row")
_Made = TypeVar("_Made")


class Base(DeclarativeBase):
    """Base class of all tables."""

    type_annotation_map: ClassVar = {float: Double}
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class DeviceRow(Base):
    """A device under one driver. Rows of one slug differ in the strings that the driver reports."""

    __tablename__ = "devices"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of the slug and the raw strings, which may be too long for an index."""
    slug: Mapped[str] = mapped_column(Text, index=True)
    vendor: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    family: Mapped[str] = mapped_column(Text)
    platform: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(Text)
    version: Mapped[str] = mapped_column(Text)
    opencl_c_version: Mapped[str] = mapped_column(Text)
    driver: Mapped[str] = mapped_column(Text)
    limits: Mapped[str] = mapped_column(Text)
    """JSON of DeviceLimits."""


class ProblemRow(Base):
    """A problem; `spec` is its key."""

    __tablename__ = "problems"
    __table_args__ = (Index(None, "family", "spec", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    family: Mapped[str] = mapped_column(String(64))
    spec: Mapped[str] = mapped_column(Text)
    label: Mapped[str] = mapped_column(Text)
    m: Mapped[int | None] = mapped_column(BigInteger)
    n: Mapped[int | None] = mapped_column(BigInteger)
    k: Mapped[int | None] = mapped_column(BigInteger)
    flops: Mapped[float]


class _ProvenanceColumns:
    driver: Mapped[str] = mapped_column(Text)
    template_hash: Mapped[str] = mapped_column(Text)
    space_version: Mapped[int]
    tool_version: Mapped[str] = mapped_column(Text)
    measured_at: Mapped[str] = mapped_column(Text)


class TrialRow(_ProvenanceColumns, Base):
    """One trial. Rows are only ever added. Without a measurement its columns are null."""

    __tablename__ = "trials"
    __table_args__ = (
        Index(None, "device_id", "problem_id"),
        Index(None, "identity", unique=True),
        CheckConstraint("purpose IN ('search', 'final', 'sentinel')", name="purpose"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    purpose: Mapped[str] = mapped_column(String(16))
    configuration: Mapped[str] = mapped_column(Text)
    algorithm: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(32))
    time_ns: Mapped[float | None]
    samples: Mapped[str | None] = mapped_column(Text)
    """JSON list of nanoseconds."""
    calls_per_sample: Mapped[int | None] = mapped_column(BigInteger)
    timer: Mapped[str | None] = mapped_column(String(16))
    prepare_ns: Mapped[float | None]
    build_ns: Mapped[float | None]
    error_ratio: Mapped[float | None]
    private_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    kernel_work_group_limit: Mapped[int | None] = mapped_column(BigInteger)
    message: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(BigInteger)
    launch_overhead_ns: Mapped[float | None]
    clock_mhz: Mapped[float | None]
    temperature_c: Mapped[float | None]
    identity: Mapped[str] = mapped_column(String(32))
    """Random, or given by the caller that measured: a trial stored again after a broken connection is there once."""


class BuildRow(_ProvenanceColumns, Base):
    """One source built without running it. Rows are only ever added; the newest one of a source counts.

    Problem and configuration are one example of those that render to the source.
    """

    __tablename__ = "builds"
    __table_args__ = (Index(None, "device_id", "source_hash"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    configuration: Mapped[str] = mapped_column(Text)
    algorithm: Mapped[str] = mapped_column(Text)
    source_hash: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(32))
    build_ns: Mapped[float]
    private_memory_bytes: Mapped[int] = mapped_column(BigInteger)
    work_group_limit: Mapped[int] = mapped_column(BigInteger)
    binary_bytes: Mapped[int] = mapped_column(BigInteger)
    message: Mapped[str] = mapped_column(Text)


class WinnerRow(_ProvenanceColumns, Base):
    """One decision for a winner. Rows are only ever added; the view selects the current ones."""

    __tablename__ = "winners"
    __table_args__ = (
        Index(None, "device", "problem_id"),
        CheckConstraint("source IN ('measured', 'imported')", name="source"),
        CheckConstraint("time_ns > 0", name="time_ns"),
        CheckConstraint("samples >= 0", name="samples"),
        CheckConstraint("verifications >= 0", name="verifications"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    """Slug; a winner applies to the device under every driver."""
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    configuration: Mapped[str] = mapped_column(Text)
    algorithm: Mapped[str] = mapped_column(Text)
    time_ns: Mapped[float]
    default_ns: Mapped[float]
    baseline_ns: Mapped[float | None]
    gain_low: Mapped[float | None]
    gain_high: Mapped[float | None]
    samples: Mapped[int]
    is_default: Mapped[bool]
    source: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    verifications: Mapped[int]


BEST = Table(
    "best_configurations",
    MetaData(),  # not that of the tables, so that the view is not created as a table
    *(Column(name, Text) for name in ("device", "family", "problem")),
    *(Column(name, BigInteger) for name in ("m", "n", "k")),
    *(Column(name) for name in ("algorithm", "configuration", "time_ns", "gflops", "gain_over_default")),
    *(Column(name) for name in ("gain_low", "gain_high", "gain_over_baseline")),
    Column("samples", Integer),
    *(Column(name) for name in ("is_default", "source", "driver", "template_hash")),
    *(Column(name) for name in ("space_version", "tool_version", "measured_at", "spec", "default_ns", "baseline_ns")),
    *(Column(name) for name in ("verdict", "verifications")),
)
"""The view: the current winner of each device, family and problem."""


# Rows and values: a field of a dataclass is stored in the column of its name.


def columns(value: Any, table: type[Base]) -> dict[str, Any]:
    """Return the columns of a table that store fields of a dataclass; None has none."""
    names = table.__table__.columns.keys()
    return {name: _stored(item) for name, item in vars(value).items() if name in names} if value else {}


def value_of(kind: type[_Made], row: Any, **given: Any) -> _Made:
    """Return the dataclass of a row; `given` are the values of fields that are not in columns of their names.

    A field that is neither has its default. The inverse of `columns`.
    """
    loaders = _loaders(cast("Any", kind)).items()
    found = {name: load(getattr(row, name)) for name, load in loaders if name not in given and hasattr(row, name)}
    return kind(**found, **given)


def _stored(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.key
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, tuple | DeviceLimits):
        return json.dumps(write(value), sort_keys=True)
    return value


@cache
def _loaders(kind: Any) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _loader(field.type) for field in dataclasses.fields(kind)}


def _loader(wanted: Any) -> Callable[[Any], Any]:
    """Return the function that makes a field of this type from its column."""
    wanted = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if wanted is float:
        return lambda value: math.nan if value is None else value  # SQLite has no NaN: it stores null
    if wanted is bool or (isinstance(wanted, type) and issubclass(wanted, enum.Enum)):
        return cast("Callable[[Any], Any]", wanted)
    if get_origin(wanted) is tuple:
        return lambda value: tuple(json.loads(value))
    if wanted in (Configuration, DeviceLimits):
        return lambda value: wanted.from_dict(json.loads(value))
    return lambda value: value


def device_row(device: Device) -> DeviceRow:
    """Return a row without an id."""
    strings = (device.slug, device.platform, device.name, device.version, device.opencl_c_version, device.driver)
    fingerprint = hashlib.sha256(json.dumps(strings).encode()).hexdigest()
    return DeviceRow(fingerprint=fingerprint, **columns(device, DeviceRow))


def problem_row(problem: Problem) -> ProblemRow:
    """Return a row without an id."""
    sizes = problem.to_dict()
    m, n, k = (size if isinstance(size := sizes.get(name), int) else None for name in ("m", "n", "k"))
    return ProblemRow(
        family=problem.family, spec=problem.key, label=problem.label, m=m, n=n, k=k, flops=float(problem.flops)
    )


def to_problem(family: str, spec: str) -> Problem:
    """Return the problem of a key. Raises ProblemError when this version does not know the family or its sizes."""
    return find_family(family).problem_type.from_dict(json.loads(spec))


def known_rows(rows: Iterable[_Row], make: Callable[[_Row], _Made]) -> list[_Made]:
    """Convert rows with `make`, leaving out those that only another installation knows: other families or other sizes.

    Each distinct reason is logged once.
    """
    found = []
    for row in rows:
        try:
            found.append(make(row))
        except ProblemError as error:
            _note(error.message)
    return found


@cache
def _note(reason: str) -> None:
    _LOG.warning("skipped rows stored by another installation: %s", reason)


def trial_row(
    trial: Trial, provenance: Provenance, purpose: str, device_id: int, problem_id: int, identity: str
) -> TrialRow:
    """Return a row without an id."""
    measured = trial.measurement
    return TrialRow(
        identity=identity,
        device_id=device_id,
        problem_id=problem_id,
        purpose=purpose,
        algorithm=trial.configuration.algorithm,
        samples=json.dumps(measured.samples_ns) if measured else None,
        **columns(trial, TrialRow),
        **columns(measured, TrialRow),
        **columns(provenance, TrialRow),
    )


def to_trial(row: TrialRow) -> Trial:
    """The inverse of `trial_row`."""
    measured = None
    if row.timer is not None:
        measured = value_of(Measurement, row, samples_ns=tuple(json.loads(row.samples or "[]")))
    return value_of(Trial, row, measurement=measured)


def build_row(
    build: Build, configuration: Configuration, provenance: Provenance, device_id: int, problem_id: int
) -> BuildRow:
    """Return a row without an id."""
    return BuildRow(
        device_id=device_id,
        problem_id=problem_id,
        configuration=configuration.key,
        algorithm=configuration.algorithm,
        **columns(build, BuildRow),
        **columns(provenance, BuildRow),
    )


def winner_row(winner: Winner, problem_id: int) -> WinnerRow:
    """Return a row without an id."""
    return WinnerRow(
        problem_id=problem_id,
        algorithm=winner.configuration.algorithm,
        **columns(winner, WinnerRow),
        **columns(winner.provenance, WinnerRow),
    )


def to_winner(row: Any) -> Winner:
    """Return the winner of a row of the view."""
    provenance = value_of(Provenance, row)
    return value_of(Winner, row, problem=to_problem(row.family, row.spec), provenance=provenance)


def plain_text(text: str) -> str:
    """Return the text with characters that not every database stores (NUL, lone surrogates) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
