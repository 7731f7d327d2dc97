"""What all tables have in common, those of devices and problems, and conversions between rows and values.

The migrations in `db/migrations` create the schema; a test checks that models and migrations agree. JSON is stored as
text, in the same form on every database, so that equal values are equal texts.
"""

import dataclasses
import enum
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin

from sqlalchemy import BigInteger, Connection, Double, Index, MetaData, String, Text, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from autotune.codec import write
from autotune.errors import ProblemError
from autotune.kernels import FILES, find_family
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.problem import Problem
from autotune.plugins import TABLES

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


def all_tables() -> MetaData:
    """Return the tables of the whole schema, those of the wings included."""
    for module in TABLES:
        import_module(module)
    return Base.metadata


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


class ProvenanceColumns:
    """Columns of Provenance, of its names."""

    driver: Mapped[str] = mapped_column(Text)
    template_hash: Mapped[str] = mapped_column(Text)
    space_version: Mapped[int]
    tool_version: Mapped[str] = mapped_column(Text)
    measured_at: Mapped[str] = mapped_column(Text)


# Rows and values: a field of a dataclass is stored in the column of its name.


def columns(value: Any, table: type[Base]) -> dict[str, Any]:
    """Return the columns of a table that store fields of a dataclass; None has none."""
    names = _names(table)
    return {name: _stored(item) for name, item in vars(value).items() if name in names} if value else {}


@cache
def _names(table: type[Base]) -> frozenset[str]:
    return frozenset(table.__table__.columns.keys())


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
        return lambda value: parsed(value, tuple)
    if wanted in (Configuration, DeviceLimits):
        return lambda value: parsed(value, wanted.from_dict)
    return lambda value: value


def parsed(text: str, make: Callable[[Any], _Made]) -> _Made:
    """Return what `make` makes of the JSON in a column. Raises ValueError for what no version has written."""
    try:
        return make(json.loads(text))
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


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
    return parsed(spec, find_family(family).problem_type.from_dict)


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
    _LOG.warning("rows are left out: %s (%s lists the files of your own kernels)", reason, FILES)


def plain_text(text: str) -> str:
    """Return the text with characters that not every database stores (NUL, lone surrogates) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


# Rows inserted exactly once, however many programs insert them and however often.


def insert_once(connection: Connection, row: Base, *unique: str) -> bool:
    """Insert a row unless one with the same values in the columns `unique` exists; return whether it was inserted.

    Waits for the transaction of another program that is inserting the same row.
    """
    values = {column.name: getattr(row, column.name) for column in row.__table__.columns if not column.primary_key}
    statement = _insertion(type(row), unique, connection.dialect.name)
    result: Any = connection.execute(statement, values)
    return bool(result.rowcount == 1)


@cache
def _insertion(kind: type[Base], unique: tuple[str, ...], dialect: str) -> Any:
    """Return the statement. Cached, since building it takes longer than executing it."""
    # Both databases have the clause; SQLAlchemy has a separate function for each.
    insert: Any = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = insert(kind.__table__).on_conflict_do_nothing(index_elements=unique).inline()
    return statement.execution_options(preserve_rowcount=True)


def device_id(session: Session, device: Device, *, is_seen_here: bool) -> int:
    """Return the id of a device's row, inserted if missing; its limits are updated if `is_seen_here`.

    Faults that came with imported tables stay: a device is often described without them. The faults of a device that
    is not seen here come with a table, and are added to the stored ones as imported.
    """
    row = device_row(device)
    query = select(DeviceRow).where(DeviceRow.fingerprint == row.fingerprint)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), row, "fingerprint")
        found = session.scalars(query).one()
    if is_seen_here and found.limits != row.limits:
        imported = (fault for fault in parsed(found.limits, DeviceLimits.from_dict).faults if fault.is_imported)
        found.limits = _stored(_with_faults(device.limits, device.limits.faults, imported))
    elif not is_seen_here and device.limits.faults:
        stored = parsed(found.limits, DeviceLimits.from_dict)
        imported = (dataclasses.replace(fault, is_imported=True) for fault in device.limits.faults)
        found.limits = _stored(_with_faults(stored, imported, stored.faults))
    return found.id


def _with_faults(limits: DeviceLimits, *faults: Iterable[Fault]) -> DeviceLimits:
    """Return the limits with these faults; of equal ones the first."""
    return dataclasses.replace(limits, faults=tuple(dict.fromkeys(itertools.chain(*faults))))


def problem_id(session: Session, problem: Problem) -> int:
    """Return the id of a problem's row, inserted if missing."""
    query = select(ProblemRow.id).where(ProblemRow.family == problem.family, ProblemRow.spec == problem.key)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), problem_row(problem), "family", "spec")
        found = session.scalars(query).one()
    return found
