"""Trials in flight, and the quarantine: tables, values, and moves between them within a transaction.

A trial is in flight from before it is launched until the transaction that stores it. If it is still in flight when its
owner is gone, it may have crashed the process or the machine: it is quarantined, as is a trial that crashed or hung a
worker. A trial that ends otherwise takes its configuration out again.

A trial that a worker of a service had in hand when that service ended stays in flight until the worker reports: it
delivers the trial, or has none, or is another process by now. Only in the last case was the trial lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Select,
    String,
    Text,
    bindparam,
    delete,
    insert,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import QUARANTINED_STATES, Trial, now_utc
from autotune.store.database import Target
from autotune.store.models import Base, DeviceRow, ProblemRow, columns, known_rows, plain_text, to_problem, value_of
from autotune.store.owner import Fate, Holder, Owner, fate
from autotune.store.transactions import Transactions

LOST = "lost"
"""Reason of a configuration that was in flight when its owner ended; other reasons are values of TrialState."""


class _SubjectColumns:
    """A configuration for a problem on a device under one driver."""

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    configuration: Mapped[str] = mapped_column(Text)
    algorithm: Mapped[str] = mapped_column(Text)
    since: Mapped[str] = mapped_column(Text)
    """UTC, ISO 8601, seconds."""
    worker: Mapped[str] = mapped_column(Text, default="")
    """Name of the worker of a service that has, or had, the trial in hand; empty without one."""


_SUBJECT = ("device_id", "problem_id", "configuration", "algorithm", "since", "worker")
"""Columns of _SubjectColumns without the key."""


class InFlightRow(_SubjectColumns, Base):
    """One trial in flight and its owner. The row is deleted when the trial is stored."""

    __tablename__ = "in_flight"

    host: Mapped[str] = mapped_column(Text)
    process_id: Mapped[int] = mapped_column(BigInteger)
    process_start: Mapped[str] = mapped_column(Text)
    run: Mapped[str] = mapped_column(String(32))
    session: Mapped[str] = mapped_column(String(32))
    """Digest of the session of that worker."""
    selector: Mapped[str] = mapped_column(String(20))
    """Selector of its device."""


class QuarantineRow(_SubjectColumns, Base):
    """One configuration that is not run again unless requested."""

    __tablename__ = "quarantine"
    __table_args__ = (
        Index(None, "device_id", "problem_id"),
        CheckConstraint("reason IN ('lost', 'crashed', 'timed out')", name="reason"),
    )

    reason: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)


_IN_FLIGHT: Any = InFlightRow.__table__
_QUARANTINE: Any = QuarantineRow.__table__


def _is_subject(table: Any) -> Any:
    is_problem = table.c.problem_id == bindparam("its_problem_id")
    return is_problem & (table.c.configuration == bindparam("its_configuration"))


_THIS = DeviceRow.__table__.alias()
_ALIKE = select(DeviceRow.id).where(
    _THIS.c.id == bindparam("its_device_id"), DeviceRow.slug == _THIS.c.slug, DeviceRow.driver == _THIS.c.driver
)
"""Rows of the same device under the same driver; their other strings may differ."""
# Statements executed for every trial, built once, since building them takes longer than executing them.
_BEGIN = insert(_IN_FLIGHT).inline()
_CLEAR_IN_FLIGHT = delete(_IN_FLIGHT).where(_is_subject(_IN_FLIGHT), _IN_FLIGHT.c.run == bindparam("its_run"))
_ADD_TO_QUARANTINE = insert(_QUARANTINE).inline()
_REMOVE_FROM_QUARANTINE = delete(_QUARANTINE).where(_is_subject(_QUARANTINE), _QUARANTINE.c.device_id.in_(_ALIKE))


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A trial that began and has not ended."""

    device: str
    """Slug."""
    driver: str
    problem: Problem
    configuration: Configuration
    owner: Owner
    since: str

    @property
    def fate(self) -> Fate:
        """Whether its owner still runs."""
        return fate(self.owner, self.since)


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A configuration that is not run again for a problem unless requested, on a device under one driver."""

    device: str
    """Slug."""
    driver: str
    problem: Problem
    configuration: Configuration
    reason: str
    """`lost`, `crashed` or `timed out`."""
    message: str
    since: str


class QuarantineLedger(Transactions):
    """The part of a store that holds trials in flight and the quarantine."""

    def __init__(self, target: Target, engine: Engine, *, read_only: bool) -> None:
        super().__init__(target, engine, read_only=read_only)
        self._abandoning: set[Owner] = set()
        """Owners that abandoned their trials, while the database does not have this recorded yet."""

    def begin_trial(
        self,
        device: Device,
        problem: Problem,
        configuration: Configuration,
        owner: Owner,
        ended: Sequence[Configuration] = (),
    ) -> None:
        """Record a trial as in flight, safely on disk before its launch can crash the process or the machine.

        The configurations `ended` are recorded as no longer in flight. Raises StoreError, too, if the search now
        belongs to another service.
        """
        ids = self.ids_of(device, problem)

        def add(connection: Connection) -> None:
            self.check_owner(connection, owner)
            for one in ended:
                land(connection, ids, one, owner)
            begin(connection, ids, configuration, owner)

        self.write_together(add, waits_for_space=True)

    def check_owner(self, connection: Connection, owner: Owner) -> None:
        """Raise StoreError if the owner may begin no more trials, as a service's store knows of its workers."""

    def end_trials(self, device: Device, problem: Problem, ended: Sequence[Configuration], owner: Owner) -> None:
        """Record that configurations of a problem are no longer in flight, without quarantine: they were only built."""
        ids = self.ids_of(device, problem)

        def add(connection: Connection) -> None:
            for one in ended:
                land(connection, ids, one, owner)

        self.write_together(add, waits_for_space=True)

    def abandon_trials(self, owner: Owner) -> None:
        """Remove this owner's trials in flight without quarantining them: they will not end, as after Ctrl-C.

        If this fails, `quarantine_lost` does it later; otherwise they would stay in flight while the program runs.
        """
        self._abandoning.add(owner)
        wanted = delete(InFlightRow).filter_by(run=owner.run)
        self.write(lambda session: session.execute(wanted), waits_for_space=True)
        self._abandoning.discard(owner)

    def lose_trials(self, owner: Owner, message: str) -> None:
        """Quarantine this owner's trials in flight, which were lost together with the device that measured them."""
        self.write(lambda session: lose(session, message, run=owner.run), waits_for_space=True)

    def quarantine_lost(self) -> list[Quarantined]:
        """Quarantine trials in flight, on any device, whose owners are gone; return the new entries."""
        if not self.in_flight():  # the usual case, and reading takes no lock
            return []
        for owner in list(self._abandoning):
            self.abandon_trials(owner)

        def work(session: Session) -> list[Quarantined]:
            lost = []
            rows = session.execute(joined(InFlightRow)).all()
            for item, (row, device, problem) in known_rows(rows, lambda found: (_to_in_flight(*found), found)):
                # On a database server another program may already have moved it.
                is_taken = item.fate is Fate.GONE and _delete_one(session, row.id)
                if is_taken:
                    entry = lost_row(row, f"in flight when process {row.process_id} on {row.host} ended")
                    session.add(entry)
                    lost.append(_to_quarantined(entry, device, problem))
            return lost

        return self.write(work)

    def quarantined(
        self, device_slug: str | None = None, driver: str | None = None, family: str | None = None
    ) -> list[Quarantined]:
        """Return configurations not to be run unless requested: of a device under a driver, or all; oldest first."""
        query = _chosen(joined(QuarantineRow), device_slug, driver, family)
        return self.read(lambda session: known_rows(session.execute(query), lambda row: _to_quarantined(*row)))

    def allow(self, device_slug: str, problem: Problem, configuration: Configuration) -> bool:
        """Take a configuration out of quarantine under every driver, to be tried again; return whether it was there."""
        subject = {"configuration": configuration.key}
        devices = select(DeviceRow.id).where(DeviceRow.slug == device_slug)
        problems = select(ProblemRow.id).where(ProblemRow.family == problem.family, ProblemRow.spec == problem.key)
        query = delete(QuarantineRow).filter_by(**subject)
        query = query.where(QuarantineRow.device_id.in_(devices), QuarantineRow.problem_id.in_(problems))
        wanted = query.execution_options(synchronize_session=False)
        return self.write(lambda session: bool(session.execute(wanted).rowcount))  # type: ignore[attr-defined]

    def in_flight(
        self, device_slug: str | None = None, driver: str | None = None, family: str | None = None
    ) -> list[InFlight]:
        """Return trials that began and have not ended: on a device under a driver, or on all; oldest first."""
        query = _chosen(joined(InFlightRow), device_slug, driver, family)
        return self.read(lambda session: known_rows(session.execute(query), lambda row: _to_in_flight(*row)))


# Steps of larger transactions; `ids` are those of the device and the problem.


def begin(connection: Connection, ids: tuple[int, int], configuration: Configuration, owner: Owner) -> None:
    """Mark a configuration as in flight; repeated calls leave one row."""
    land(connection, ids, configuration, owner)
    row = {
        "device_id": ids[0],
        "problem_id": ids[1],
        "configuration": configuration.key,
        "algorithm": configuration.algorithm,
        "since": now_utc(),
        **(columns(owner.holder, InFlightRow) or dict.fromkeys(("worker", "session", "selector"), "")),
        **columns(owner, InFlightRow),
    }
    connection.execute(_BEGIN, row)


def land(connection: Connection, ids: tuple[int, int], configuration: Configuration, owner: Owner) -> bool:
    """Mark a configuration as no longer in flight, without quarantining it; return whether it was."""
    named = {"its_problem_id": ids[1], "its_configuration": configuration.key, "its_run": owner.run}
    return bool(connection.execute(_CLEAR_IN_FLIGHT, named).rowcount)


def end(connection: Connection, ids: tuple[int, int], trial: Trial) -> None:
    """Put the configuration of a trial into quarantine or take it out, depending on how the trial ended."""
    subject = {"device_id": ids[0], "problem_id": ids[1], "configuration": trial.configuration.key}
    connection.execute(_REMOVE_FROM_QUARANTINE, {f"its_{name}": value for name, value in subject.items()})
    if trial.state in QUARANTINED_STATES:
        found = {"reason": trial.state.value, "message": plain_text(trial.message), "since": now_utc()}
        connection.execute(_ADD_TO_QUARANTINE, {**subject, "algorithm": trial.configuration.algorithm, **found})


def lose(session: Session, message: str, **whose: str) -> None:
    """Move what is in flight with these values in its columns to the quarantine."""
    for row in session.scalars(select(InFlightRow).filter_by(**whose)).all():
        session.add(lost_row(row, plain_text(message)))
        session.delete(row)


def lost_row(row: InFlightRow, message: str) -> QuarantineRow:
    """Return the entry in quarantine of a lost trial."""
    subject = {name: getattr(row, name) for name in _SUBJECT}
    return QuarantineRow(reason=LOST, message=message, **subject)


def owner_of(row: InFlightRow) -> Owner:
    return value_of(Owner, row, holder=value_of(Holder, row) if row.worker else None)


def joined(table: type[InFlightRow] | type[QuarantineRow]) -> Select[Any]:
    rows: Any = select(table, DeviceRow, ProblemRow)
    rows = rows.join(DeviceRow, DeviceRow.id == table.device_id).join(ProblemRow, ProblemRow.id == table.problem_id)
    ordered: Select[Any] = rows.order_by(table.id)
    return ordered


def _chosen(query: Select[Any], device_slug: str | None, driver: str | None, family: str | None) -> Select[Any]:
    if device_slug is not None:
        query = query.where(DeviceRow.slug == device_slug)
    if driver is not None:
        query = query.where(DeviceRow.driver == plain_text(driver))
    if family is not None:
        query = query.where(ProblemRow.family == family)
    return query


def _delete_one(session: Session, row_id: int) -> bool:
    result: Any = session.execute(
        delete(InFlightRow).where(InFlightRow.id == row_id), execution_options={"synchronize_session": False}
    )
    return bool(result.rowcount)


def _to_quarantined(row: QuarantineRow, device: DeviceRow, problem: ProblemRow) -> Quarantined:
    asked = to_problem(problem.family, problem.spec)
    return value_of(Quarantined, row, device=device.slug, driver=device.driver, problem=asked)


def _to_in_flight(row: InFlightRow, device: DeviceRow, problem: ProblemRow) -> InFlight:
    asked, owner = to_problem(problem.family, problem.spec), owner_of(row)
    return value_of(InFlight, row, device=device.slug, driver=device.driver, problem=asked, owner=owner)
