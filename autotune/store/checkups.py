"""What is known of a device under its driver: its checkup, how its trials ended, and faults from imported tables.

The checkup is one document, replaced by a newer one.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlalchemy import String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.model.checkup import PROBES_VERSION, Checkup
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.trial import TrialState
from autotune.store.insertion import insert_once
from autotune.store.models import Base, DeviceRow, ProblemRow, TrialRow, device_row, plain_text


class CheckupRow(Base):
    """The checkup of one device under one driver."""

    __tablename__ = "checkups"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """Over slug, driver and version, which may be longer than an index takes."""
    device: Mapped[str] = mapped_column(Text)
    """Slug."""
    driver: Mapped[str] = mapped_column(Text)
    version: Mapped[str] = mapped_column(Text)
    probes_version: Mapped[int]
    document: Mapped[str] = mapped_column(Text)
    """JSON of Checkup."""


def read_checkup(session: Session, device: Device) -> Checkup | None:
    """That of the device under its driver; None where none was made by these probes."""
    query = select(CheckupRow).where(CheckupRow.fingerprint == _fingerprint(device))
    row = session.scalars(query).one_or_none()
    if row is None or row.probes_version != PROBES_VERSION:
        return None
    return Checkup.from_dict(json.loads(row.document))


def keep_checkup(session: Session, device: Device, checkup: Checkup) -> None:
    """In the place of an earlier one of the same device and driver."""
    fingerprint, document = _fingerprint(device), plain_text(json.dumps(checkup.to_dict()))
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


# What trials tell of a driver


@dataclass(frozen=True, kw_only=True)
class Ending:
    """That some trial of a configuration ended in a state, by which version and template."""

    family: str
    configuration: Configuration
    state: TrialState
    template_hash: str
    tool_version: str


def read_endings(session: Session, device: Device, states: Collection[TrialState]) -> list[Ending]:
    """Those of a device under its driver in some states, each once whatever the problem."""
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
    return [
        Ending(
            family=row.family,
            configuration=Configuration.from_dict(json.loads(row.configuration)),
            state=TrialState(row.state),
            template_hash=row.template_hash,
            tool_version=row.tool_version,
        )
        for row in session.execute(query)
    ]


def read_imported_faults(session: Session, device: Device) -> list[Fault]:
    """What came with tables about the device under its driver."""
    query = select(DeviceRow.limits).where(DeviceRow.fingerprint == device_row(device).fingerprint)
    found = session.scalars(query).one_or_none()
    limits = DeviceLimits.from_dict(json.loads(found)) if found else DeviceLimits()
    return [fault for fault in limits.faults if fault.is_imported]


def import_faults(session: Session, device: Device) -> None:
    """Add the faults of a device from a table to those known of it here; its row must be there."""
    row = session.scalars(select(DeviceRow).where(DeviceRow.fingerprint == device_row(device).fingerprint)).one()
    limits = DeviceLimits.from_dict(json.loads(row.limits))
    imported = [replace(fault, is_imported=True) for fault in device.limits.faults]
    faults = tuple(dict.fromkeys([*imported, *limits.faults]))
    row.limits = json.dumps(replace(limits, faults=faults).to_dict(), sort_keys=True)
