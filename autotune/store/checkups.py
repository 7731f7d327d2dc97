"""What is stored about a device apart from trials: its checkup, measured rates, and faults from imported tables."""

import json

from sqlalchemy import String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.codec import parse, read, write
from autotune.model.checkup import PROBES_VERSION, Checkup
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.machine import Rates, fingerprint
from autotune.store.models import Base, DeviceRow, device_row, insert_once, parsed, plain_text
from autotune.store.transactions import Transactions, writes


class CheckupRow(Base):
    """The checkup of one device under one driver."""

    __tablename__ = "checkups"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """Of slug, driver and version, which may be too long for an index."""
    device: Mapped[str] = mapped_column(Text)
    """Slug."""
    driver: Mapped[str] = mapped_column(Text)
    version: Mapped[str] = mapped_column(Text)
    probes_version: Mapped[int]
    document: Mapped[str] = mapped_column(Text)
    """JSON of Checkup."""


class RatesRow(Base):
    """The rates of one device under one driver."""

    __tablename__ = "rates"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """As that of a checkup."""
    device: Mapped[str] = mapped_column(Text)
    """Slug."""
    document: Mapped[str] = mapped_column(Text)
    """JSON of Rates."""


class CheckupLedger(Transactions):
    """The part of a store that holds checkups and rates, which newer ones replace."""

    def checkup(self, device: Device) -> Checkup | None:
        """Return the checkup of a device under its driver by the current version of the probes; None without one."""
        query = select(CheckupRow.document).where(
            CheckupRow.fingerprint == fingerprint(device), CheckupRow.probes_version == PROBES_VERSION
        )
        document = self.read(lambda session: session.scalars(query).one_or_none())
        return read(Checkup, parse(document)) if document is not None else None

    @writes
    def keep_checkup(self, session: Session, device: Device, checkup: Checkup) -> None:
        """Store a checkup, replacing an earlier one of the same device and driver."""
        row = CheckupRow(
            fingerprint=fingerprint(device),
            device=device.slug,
            driver=plain_text(device.driver),
            version=plain_text(device.version),
            probes_version=checkup.version,
            document=plain_text(json.dumps(write(checkup))),
        )
        if not insert_once(session.connection(), row, "fingerprint"):
            found = {"probes_version": row.probes_version, "document": row.document}
            session.execute(update(CheckupRow).filter_by(fingerprint=row.fingerprint).values(found))

    def rates(self, device: Device) -> Rates | None:
        """Return the measured rates of a device under its driver; None without any."""
        query = select(RatesRow.document).where(RatesRow.fingerprint == fingerprint(device))
        document = self.read(lambda session: session.scalars(query).one_or_none())
        return read(Rates, parse(document)) if document is not None else None

    @writes
    def keep_rates(self, session: Session, device: Device, rates: Rates) -> None:
        """Store rates, replacing earlier ones of the same device and driver."""
        document = plain_text(json.dumps(write(rates)))
        row = RatesRow(fingerprint=fingerprint(device), device=device.slug, document=document)
        if not insert_once(session.connection(), row, "fingerprint"):
            session.execute(update(RatesRow).filter_by(fingerprint=row.fingerprint).values(document=document))

    def imported_faults(self, device: Device) -> list[Fault]:
        """Return the faults of a device's driver that imported tables list."""
        query = select(DeviceRow.limits).where(DeviceRow.fingerprint == device_row(device).fingerprint)
        found = self.read(lambda session: session.scalars(query).one_or_none())
        limits = parsed(found, DeviceLimits.from_dict) if found else DeviceLimits()
        return [fault for fault in limits.faults if fault.is_imported]
