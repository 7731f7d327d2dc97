"""What is stored about a device: its checkup, how its trials ended, faults from imported tables, and its predictors.

Checkups and predictors are documents, replaced by newer ones.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlalchemy import Index, String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.codec import parse, read, write
from autotune.model.checkup import PROBES_VERSION, Checkup
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.trial import TrialState
from autotune.store.insertion import insert_once
from autotune.store.models import Base, DeviceRow, ProblemRow, TrialRow, device_row, plain_text, value_of


class CheckupRow(Base):
    """The checkup of one device under one driver."""

    __tablename__ = "checkups"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of slug, driver and version, which may be too long for an index."""
    device: Mapped[str] = mapped_column(Text)
    """Slug."""
    driver: Mapped[str] = mapped_column(Text)
    version: Mapped[str] = mapped_column(Text)
    probes_version: Mapped[int]
    document: Mapped[str] = mapped_column(Text)
    """JSON of Checkup."""


def read_checkup(session: Session, device: Device) -> Checkup | None:
    """Return the checkup of the device under its driver; None without one by the current version of the probes."""
    query = select(CheckupRow).where(CheckupRow.fingerprint == _fingerprint(device))
    row = session.scalars(query).one_or_none()
    if row is None or row.probes_version != PROBES_VERSION:
        return None
    return read(Checkup, parse(row.document))


def keep_checkup(session: Session, device: Device, checkup: Checkup) -> None:
    """Store a checkup, replacing an earlier one of the same device and driver."""
    fingerprint, document = _fingerprint(device), plain_text(json.dumps(write(checkup)))
    row = CheckupRow(
        fingerprint=fingerprint,
        device=device.slug,
        driver=plain_text(device.driver),
        version=plain_text(device.version),
        probes_version=checkup.version,
        document=document,
    )
    if not insert_once(session.connection(), row, "fingerprint"):
        changes = {"probes_version": checkup.version, "document": document}
        session.execute(update(CheckupRow).where(CheckupRow.fingerprint == fingerprint).values(changes))


def _fingerprint(device: Device) -> str:
    return hashlib.sha256(json.dumps([device.slug, device.driver, device.version]).encode()).hexdigest()


# What trials show about a driver


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A state in which some trial of a configuration ended, with the version and template that ran it."""

    family: str
    configuration: Configuration
    state: TrialState
    template_hash: str
    tool_version: str


def read_endings(session: Session, device: Device, states: Collection[TrialState]) -> list[Ending]:
    """Return the endings of a device under its driver in these states, each once for all problems."""
    columns = (TrialRow.configuration, TrialRow.state, TrialRow.template_hash, TrialRow.tool_version)
    query = (
        select(ProblemRow.family, *columns)
        .join(ProblemRow, ProblemRow.id == TrialRow.problem_id)
        .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
        .where(
            DeviceRow.slug == device.slug,
            DeviceRow.version == plain_text(device.version),
            TrialRow.driver == plain_text(device.driver),
            TrialRow.state.in_([state.value for state in states]),
        )
        .distinct()
    )
    return [value_of(Ending, row) for row in session.execute(query)]


def read_imported_faults(session: Session, device: Device) -> list[Fault]:
    """Return the faults that imported tables list for the device under its driver."""
    query = select(DeviceRow.limits).where(DeviceRow.fingerprint == device_row(device).fingerprint)
    found = session.scalars(query).one_or_none()
    limits = DeviceLimits.from_dict(json.loads(found)) if found else DeviceLimits()
    return [fault for fault in limits.faults if fault.is_imported]


def import_faults(session: Session, device: Device) -> None:
    """Add the faults of a device from a table to those stored for it; its row must exist."""
    row = session.scalars(select(DeviceRow).where(DeviceRow.fingerprint == device_row(device).fingerprint)).one()
    limits = DeviceLimits.from_dict(json.loads(row.limits))
    imported = [replace(fault, is_imported=True) for fault in device.limits.faults]
    faults = tuple(dict.fromkeys([*imported, *limits.faults]))
    row.limits = json.dumps(write(replace(limits, faults=faults)), sort_keys=True)


# Predictors


class PredictorsRow(Base):
    """The predictors of one device."""

    __tablename__ = "predictors"
    __table_args__ = (Index(None, "device", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    """Slug; predictors apply to the device under every driver."""
    document: Mapped[str] = mapped_column(Text)
    """Text written by `autotune.lookup.values`."""


def read_documents(session: Session) -> dict[str, str]:
    """Return the documents by slug of the device."""
    return {row.device: row.document for row in session.scalars(select(PredictorsRow).order_by(PredictorsRow.device))}


def keep_document(session: Session, slug: str, document: str) -> None:
    """Store the document of a device, replacing an earlier one."""
    if not insert_once(session.connection(), PredictorsRow(device=slug, document=document), "device"):
        session.execute(update(PredictorsRow).where(PredictorsRow.device == slug).values(document=document))
