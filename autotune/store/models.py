"""The tables as typed models, the view as a table to select from, and conversions between rows and values.

The migrations in `db/migrations` create the schema; a test checks that models and migrations agree. JSON is stored as
text, in the same form on every database, so that equal values are equal texts.
"""

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar, TypeVar

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

from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildState, Measurement, Provenance, Timer, Trial, TrialState, Verdict, Winner

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


def device_row(device: Device) -> DeviceRow:
    """Return a row without an id."""
    strings = (device.slug, device.platform, device.name, device.version, device.opencl_c_version, device.driver)
    return DeviceRow(
        fingerprint=hashlib.sha256(json.dumps(strings).encode()).hexdigest(),
        slug=plain_text(device.slug),
        vendor=plain_text(device.vendor),
        model=plain_text(device.model),
        family=plain_text(device.family),
        platform=plain_text(device.platform),
        name=plain_text(device.name),
        version=plain_text(device.version),
        opencl_c_version=plain_text(device.opencl_c_version),
        driver=plain_text(device.driver),
        limits=json.dumps(device.limits.to_dict(), sort_keys=True),
    )


def to_device(row: DeviceRow) -> Device:
    """Return the device without its selector, which is valid on one machine only."""
    return Device(
        slug=row.slug,
        vendor=row.vendor,
        model=row.model,
        family=row.family,
        platform=row.platform,
        name=row.name,
        version=row.version,
        opencl_c_version=row.opencl_c_version,
        driver=row.driver,
        limits=DeviceLimits.from_dict(json.loads(row.limits)),
    )


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
    return TrialRow(
        identity=identity,
        device_id=device_id,
        problem_id=problem_id,
        purpose=purpose,
        configuration=trial.configuration.key,
        algorithm=trial.configuration.algorithm,
        state=trial.state.value,
        message=plain_text(trial.message),
        seed=trial.seed,
        **_measurement_columns(trial.measurement),
        **_provenance_columns(provenance),
    )


def to_trial(row: TrialRow) -> Trial:
    """The inverse of `trial_row`."""
    return Trial(
        configuration=Configuration.from_dict(json.loads(row.configuration)),
        state=TrialState(row.state),
        measurement=_to_measurement(row) if row.timer is not None else None,
        message=row.message,
        seed=row.seed,
    )


def build_row(
    build: Build, configuration: Configuration, provenance: Provenance, device_id: int, problem_id: int
) -> BuildRow:
    """Return a row without an id."""
    return BuildRow(
        device_id=device_id,
        problem_id=problem_id,
        configuration=configuration.key,
        algorithm=configuration.algorithm,
        **{name: value for name, value in vars(build).items() if name not in ("binary", "state", "message")},
        state=build.state.value,
        message=plain_text(build.message),
        **_provenance_columns(provenance),
    )


def to_build(row: Any) -> Build:
    """Return the build of a row of `builds`."""
    return Build(
        source_hash=row.source_hash,
        state=BuildState(row.state),
        message=row.message,
        build_ns=row.build_ns,
        private_memory_bytes=row.private_memory_bytes,
        work_group_limit=row.work_group_limit,
        binary_bytes=row.binary_bytes,
    )


def winner_row(winner: Winner, problem_id: int) -> WinnerRow:
    """Return a row without an id."""
    return WinnerRow(
        device=winner.device,
        problem_id=problem_id,
        configuration=winner.configuration.key,
        algorithm=winner.configuration.algorithm,
        time_ns=winner.time_ns,
        default_ns=winner.default_ns,
        baseline_ns=winner.baseline_ns,
        gain_low=winner.gain_low,
        gain_high=winner.gain_high,
        samples=winner.samples,
        is_default=winner.is_default,
        source=winner.source,
        verdict=winner.verdict.value,
        verifications=winner.verifications,
        **_provenance_columns(winner.provenance),
    )


def to_winner(row: Any) -> Winner:
    """Return the winner of a row of the view."""
    return Winner(
        device=row.device,
        problem=to_problem(row.family, row.spec),
        configuration=Configuration.from_dict(json.loads(row.configuration)),
        time_ns=row.time_ns,
        default_ns=row.default_ns,
        baseline_ns=row.baseline_ns,
        gain_low=_number(row.gain_low),
        gain_high=_number(row.gain_high),
        samples=row.samples,
        is_default=bool(row.is_default),
        verdict=Verdict(row.verdict),
        verifications=row.verifications,
        provenance=to_provenance(row),
        source=row.source,
    )


def to_provenance(row: Any) -> Provenance:
    """Return the provenance of a trial's row or of a row of the view."""
    return Provenance(
        driver=row.driver,
        template_hash=row.template_hash,
        space_version=row.space_version,
        tool_version=row.tool_version,
        measured_at=row.measured_at,
    )


def plain_text(text: str) -> str:
    """Return the text with characters that not every database stores (NUL, lone surrogates) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _provenance_columns(provenance: Provenance) -> dict[str, Any]:
    return {**vars(provenance), "driver": plain_text(provenance.driver)}


_MEASURED = {
    field.name: "samples" if field.name == "samples_ns" else field.name
    for field in dataclasses.fields(Measurement)
    if field.compare
}
"""Columns of a measurement by the names of its fields."""
_SENSED = {field.name for field in dataclasses.fields(Measurement) if field.default is None}
"""Fields that may be unknown."""


def _measurement_columns(measurement: Measurement | None) -> dict[str, Any]:
    if measurement is None:
        return {}
    columns = {column: getattr(measurement, name) for name, column in _MEASURED.items()}
    return {**columns, "samples": json.dumps(measurement.samples_ns), "timer": measurement.timer.value}


def _to_measurement(row: TrialRow) -> Measurement:
    found = {name: getattr(row, column) for name, column in _MEASURED.items()}
    for name in found.keys() - _SENSED:  # a NaN is stored as null
        found[name] = math.nan if found[name] is None else found[name]
    samples_ns = tuple(json.loads(row.samples or "[]"))
    return Measurement(**{**found, "samples_ns": samples_ns, "timer": Timer(row.timer)})


def _number(value: float | None) -> float:
    # SQLite has no NaN: it stores null.
    return math.nan if value is None else value
