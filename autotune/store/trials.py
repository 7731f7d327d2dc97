"""The ledger of trials, and of builds without a run: tables, values, and the transactions that add and read them."""

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from sqlalchemy import BigInteger, CheckConstraint, Connection, Double, ForeignKey, Index, String, Text, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Build, Measurement, Provenance, Timer, Trial, TrialState
from autotune.store import quarantine
from autotune.store.models import (
    Base,
    DeviceRow,
    ProblemRow,
    ProvenanceColumns,
    columns,
    device_id,
    insert_once,
    known_rows,
    parsed,
    plain_text,
    problem_id,
    to_problem,
    value_of,
)
from autotune.store.owner import Owner
from autotune.store.transactions import Transactions, reads

ROWS_AT_ONCE = 1000
"""Number of trials fetched at once. Converting all of them could take longer than a server lets a transaction idle."""


class TrialRow(ProvenanceColumns, Base):
    """One trial. Rows are only ever added.

    It also has a column for each field of Measurement that is stored, of its name; without a measurement they are null.
    """

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
    samples: Mapped[str | None] = mapped_column(Text)
    """JSON list of `samples_ns`."""
    message: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(BigInteger)
    identity: Mapped[str] = mapped_column(String(32))
    """Random, or given by the caller that measured: a trial stored again after a broken connection is there once."""


_COLUMN_TYPES: dict[Any, Any] = {float: Double, float | None: Double, int: BigInteger, Timer: String(16)}
for _name, _type in get_type_hints(Measurement).items():
    if _name not in ("samples_ns", "inputs_ns", "is_first"):  # stored as `samples`, and not stored
        setattr(TrialRow, _name, mapped_column(_COLUMN_TYPES[_type], nullable=True))


class BuildRow(ProvenanceColumns, Base):
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


@dataclass(frozen=True, kw_only=True)
class TrialCounts:
    """Counts of the trials of a device, under every driver."""

    by_state: dict[str, int]
    """Number of trials of searches by value of TrialState, that of the baseline, which no run counts, among them."""
    repeats: int
    """Number of runs that measured a configuration of them again, as in finals."""
    last_measured: str
    """Time of the last trial, UTC, ISO 8601; empty without trials."""

    @property
    def total(self) -> int:
        """Number of stored runs for whatever purpose."""
        return sum(self.by_state.values()) + self.repeats


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial of the ledger with its problem, provenance and purpose."""

    trial: Trial
    problem: Problem
    provenance: Provenance
    purpose: str
    """`search`, `final` or `sentinel`."""


@dataclass(frozen=True, kw_only=True)
class ExampleBuild:
    """A build, with one example of a problem and configuration that render to its source."""

    build: Build
    problem: Problem
    configuration: Configuration
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A state in which some trial of a configuration ended, with the version and template that ran it."""

    family: str
    configuration: Configuration
    state: TrialState
    template_hash: str
    tool_version: str


class TrialLedger(Transactions):
    """The part of a store that holds trials and builds."""

    def add_trial(
        self,
        device: Device,
        problem: Problem,
        trial: Trial,
        provenance: Provenance,
        purpose: str = "search",
        owner: Owner | None = None,
        next_in_flight: Configuration | None = None,
        *,
        identity: str = "",
    ) -> bool:
        """Add a trial to the ledger, and return whether it was not stored before.

        `purpose` is `search`, `final` or `sentinel`. Waits a while if the disk is full.

        With its `owner`, the trial is no longer in flight and `next_in_flight` is, as by `begin_trial`, so that both
        wait for the disk once. A trial that crashed or timed out is quarantined; one that ended otherwise takes its
        configuration out of quarantine. A trial added again with the same `identity` (at most 32 characters) is stored
        once; without an identity, each call adds one trial, however often its transaction is retried. A trial that its
        worker also delivered elsewhere, where a service stored it first, is not stored again.
        """
        ids = self.ids_of(device, problem)
        identity = identity or uuid.uuid4().hex
        is_new = False

        def add(connection: Connection) -> None:
            nonlocal is_new
            was_in_flight = owner is not None and quarantine.land(connection, ids, trial.configuration, owner)
            is_late = owner is not None and owner.holder is not None and not was_in_flight and purpose == "search"
            if not (is_late and is_searched(connection, ids, trial, provenance, identity)):
                is_new = insert_once(connection, row_of(trial, provenance, purpose, ids, identity), "identity")
                if not is_new:
                    return
                quarantine.end(connection, ids, trial)
            if next_in_flight and owner:
                quarantine.begin(connection, ids, next_in_flight, owner)

        self.write_together(add, waits_for_space=True)
        return is_new

    def trial_counts(self, device_slug: str) -> TrialCounts:
        """Count the trials by the state in which they ended, and return when the last was measured."""
        is_search = TrialRow.purpose == "search"
        query = (
            select(TrialRow.state, is_search, func.count(), func.max(TrialRow.measured_at))
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug)
            .group_by(TrialRow.state, is_search)
            .order_by(TrialRow.state)
        )
        rows = self.read(lambda session: session.execute(query).all())
        return TrialCounts(
            by_state={state: count for state, is_searched, count, _ in rows if is_searched},
            repeats=sum(count for _, is_searched, count, _ in rows if not is_searched),
            last_measured=max((moment for *_, moment in rows), default=""),
        )

    @reads
    def trials(
        self,
        session: Session,
        device_slug: str,
        family: str,
        problem: Problem | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[StoredTrial]:
        """Return trials of a device, under every driver, of all problems or of one; oldest first.

        `offset` skips that many of the oldest; `limit` is the most to return.
        """
        query = (
            select(TrialRow, ProblemRow)
            .join(ProblemRow, ProblemRow.id == TrialRow.problem_id)
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug, ProblemRow.family == family)
            .order_by(TrialRow.id)
            .limit(limit)
            .offset(offset or None)
            .execution_options(yield_per=ROWS_AT_ONCE)
        )
        if problem is not None:
            query = query.where(ProblemRow.spec == problem.key)
        problems: dict[int, Problem] = {}

        def to_stored(found: Any) -> StoredTrial:
            row, of = found
            known = problems.get(of.id) or problems.setdefault(of.id, to_problem(of.family, of.spec))
            provenance = value_of(Provenance, row)
            return StoredTrial(trial=to_trial(row), problem=known, provenance=provenance, purpose=row.purpose)

        return known_rows(session.execute(query), to_stored)

    def endings(self, device: Device, states: Collection[TrialState]) -> list[Ending]:
        """Return how trials of a device under its driver ended, in these states only, without duplicates."""
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
        return self.read(lambda session: [value_of(Ending, row) for row in session.execute(query)])

    def devices(self) -> list[Device]:
        """Return all devices by slug; of several drivers, the one that measured last is last, imported ones first."""
        last_trial = select(func.max(TrialRow.id)).where(TrialRow.device_id == DeviceRow.id).scalar_subquery()
        query = select(DeviceRow).order_by(DeviceRow.slug, func.coalesce(last_trial, 0), DeviceRow.id)
        return self.read(lambda session: [value_of(Device, row) for row in session.scalars(query)])

    def add_builds(self, device: Device, builds: Sequence[ExampleBuild]) -> None:
        """Add builds to the ledger, all or none."""
        if builds:
            self.write(lambda session: insert_builds(session, device, builds))

    def builds(
        self,
        device_slug: str,
        driver: str,
        source_hashes: Collection[str] | None = None,
        *,
        by_others: bool = False,
    ) -> dict[str, Build]:
        """Return the newest build of each source built for a device under one driver, by source hash.

        Only of these sources, if `source_hashes` is given; `by_others` asks for builds of all drivers but this one.
        """
        is_this = BuildRow.driver == plain_text(driver)
        query = (
            select(BuildRow.__table__)
            .join(DeviceRow, DeviceRow.id == BuildRow.device_id)
            .where(DeviceRow.slug == device_slug, ~is_this if by_others else is_this)
            .order_by(BuildRow.id)
        )
        if source_hashes is not None:
            query = query.where(BuildRow.source_hash.in_(source_hashes))
        return self.read(lambda session: {row.source_hash: value_of(Build, row) for row in session.execute(query)})


def insert_builds(session: Session, device: Device, builds: Sequence[ExampleBuild]) -> None:
    """Insert the rows of builds on a device; in a transaction of the caller."""
    if not builds:
        return
    built_on = device_id(session, device, is_seen_here=True)
    problem_ids = {problem: problem_id(session, problem) for problem in {b.problem for b in builds}}
    session.add_all(
        BuildRow(
            device_id=built_on,
            problem_id=problem_ids[example.problem],
            configuration=example.configuration.key,
            algorithm=example.configuration.algorithm,
            **columns(example.build, BuildRow),
            **columns(example.provenance, BuildRow),
        )
        for example in builds
    )


def is_searched(
    connection: Connection, ids: tuple[int, int], trial: Trial, provenance: Provenance, besides: str = ""
) -> bool:
    """Return whether the same kernel has a trial of the search, other than that of one identity."""
    subject = {"device_id": ids[0], "problem_id": ids[1], "configuration": trial.configuration.key}
    query = select(TrialRow.id).filter_by(**subject, purpose="search", template_hash=provenance.template_hash)
    return connection.execute(query.where(TrialRow.identity != besides).limit(1)).first() is not None


def row_of(trial: Trial, provenance: Provenance, purpose: str, ids: tuple[int, int], identity: str) -> TrialRow:
    """Return a row without an id; `ids` are those of device and problem."""
    measured = trial.measurement
    return TrialRow(
        identity=identity,
        device_id=ids[0],
        problem_id=ids[1],
        purpose=purpose,
        algorithm=trial.configuration.algorithm,
        samples=json.dumps(measured.samples_ns) if measured else None,
        **columns(trial, TrialRow),
        **columns(measured, TrialRow),
        **columns(provenance, TrialRow),
    )


def to_trial(row: Any) -> Trial:
    """The inverse of `row_of`."""
    measured = None
    if row.timer is not None:
        measured = value_of(Measurement, row, samples_ns=parsed(row.samples or "[]", tuple))
    return value_of(Trial, row, measurement=measured)
