"""What is stored about a device besides trials: its checkup, faults from imported tables, and its predictors.

Checkups and predictors are documents, replaced by newer ones.
"""

import hashlib
import json
from typing import Any

from sqlalchemy import Index, String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.codec import parse, read, write
from autotune.model.checkup import PROBES_VERSION, Checkup
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.store.models import Base, DeviceRow, device_row, insert_once, plain_text
from autotune.store.transactions import Transactions, writes


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


class PredictorsRow(Base):
    """The predictors of one device."""

    __tablename__ = "predictors"
    __table_args__ = (Index(None, "device", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    """Slug; predictors apply to the device under every driver."""
    document: Mapped[str] = mapped_column(Text)
    """Text written by `autotune.lookup.values`."""


class CheckupLedger(Transactions):
    """The part of a store that holds checkups and predictors, which newer ones replace."""

    def checkup(self, device: Device) -> Checkup | None:
        """Return the checkup of a device under its driver by the current version of the probes; None without one."""
        query = select(CheckupRow.document).where(
            CheckupRow.fingerprint == _fingerprint(device), CheckupRow.probes_version == PROBES_VERSION
        )
        document = self.read(lambda session: session.scalars(query).one_or_none())
        return read(Checkup, parse(document)) if document is not None else None

    def keep_checkup(self, device: Device, checkup: Checkup) -> None:
        """Store a checkup, replacing an earlier one of the same device and driver."""
        fingerprint, document = _fingerprint(device), plain_text(json.dumps(write(checkup)))
        driver, version = plain_text(device.driver), plain_text(device.version)
        row = {"fingerprint": fingerprint, "device": device.slug, "driver": driver, "version": version}
        self._keep(CheckupRow, "fingerprint", row, {"probes_version": checkup.version, "document": document})

    def predictors(self) -> dict[str, str]:
        """Return the predictors of each device, by slug, as documents for `autotune.lookup.values`."""
        query = select(PredictorsRow).order_by(PredictorsRow.device)
        return self.read(lambda session: {row.device: row.document for row in session.scalars(query)})

    def keep_predictors(self, device_slug: str, document: str) -> None:
        """Store the predictors of a device, replacing earlier ones."""
        self._keep(PredictorsRow, "device", {"device": device_slug}, {"document": document})

    @writes
    def _keep(
        self, session: Session, table: type[Base], unique: str, subject: dict[str, Any], document: dict[str, Any]
    ) -> None:
        """Insert a row, or update the document of the one with the same value in the column `unique`."""
        if not insert_once(session.connection(), table(**subject, **document), unique):
            session.execute(update(table).filter_by(**{unique: subject[unique]}).values(document))

    def imported_faults(self, device: Device) -> list[Fault]:
        """Return the faults of a device's driver that imported tables list."""
        query = select(DeviceRow.limits).where(DeviceRow.fingerprint == device_row(device).fingerprint)
        found = self.read(lambda session: session.scalars(query).one_or_none())
        limits = DeviceLimits.from_dict(json.loads(found)) if found else DeviceLimits()
        return [fault for fault in limits.faults if fault.is_imported]


def _fingerprint(device: Device) -> str:
    return hashlib.sha256(json.dumps([device.slug, device.driver, device.version]).encode()).hexdigest()
