"""The store: devices, problems, the ledger of trials and builds, and the winners. Owns SQLAlchemy and Alembic.

A `Store` is opened on an SQLite file or a database server and may be used by several programs at once. Rows of trials,
builds and winners are only ever added; rows for trials in flight and in quarantine come and go, and predictors are
replaced. `best_configurations` is a view that people can query too. This file holds the interface that the rest of the
project uses; the other modules of the package implement it.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session

from autotune.errors import StoreError
from autotune.model.checkup import Checkup
from autotune.model.configuration import Configuration
from autotune.model.device import Device, Fault
from autotune.model.problem import Problem
from autotune.model.trial import Build, Provenance, Trial, TrialState, Winner
from autotune.store import checkups, insertion, quarantine, service_claim
from autotune.store.connection import open_for_reading, open_for_writing, open_server
from autotune.store.database import BEGIN, Target, parse_target
from autotune.store.failures import AWAY_PATIENCE_S, Outage, Patience, attempt
from autotune.store.group_commit import Together, Work
from autotune.store.jobs import JobLedger
from autotune.store.models import (
    BEST,
    BuildRow,
    DeviceRow,
    ProblemRow,
    TrialRow,
    WinnerRow,
    build_row,
    known_rows,
    plain_text,
    to_problem,
    to_trial,
    to_winner,
    trial_row,
    value_of,
    winner_row,
)
from autotune.store.owner import Fate, Holder, Owner, new_owner
from autotune.store.quarantine import LOST, InFlight, Quarantined
from autotune.store.snapshot import check_snapshot_path, write_snapshot
from autotune.store.workers import WorkerLedger
from autotune.turns import idle

__all__ = [
    "AWAY_PATIENCE_S",
    "LOST",
    "ExampleBuild",
    "Fate",
    "Holder",
    "InFlight",
    "Owner",
    "Quarantined",
    "Store",
    "StoredTrial",
    "new_owner",
]

_Result = TypeVar("_Result")

AT_A_TIME = 8
"""Most writing transactions of one program at a time on a server; more would only wait for each other there."""


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial of the ledger with its problem, provenance and purpose."""

    trial: Trial
    problem: Problem
    provenance: Provenance
    purpose: str
    """`search`, `final` or `sentinel`."""


@dataclass(frozen=True, kw_only=True)
class TrialCounts:
    """Counts of the trials of a device, under every driver."""

    by_state: dict[str, int]
    """Number of trials by value of TrialState."""
    last_measured: str
    """Time of the last trial, UTC, ISO 8601; empty without trials."""


@dataclass(frozen=True, kw_only=True)
class ExampleBuild:
    """A build, with one example of a problem and configuration that render to its source."""

    build: Build
    problem: Problem
    configuration: Configuration
    provenance: Provenance


class Store:
    """An open database. Every method is one transaction and raises StoreError when the database fails."""

    def __init__(self, target: Target, engine: Engine, *, read_only: bool) -> None:
        """Called by `open` only."""
        self._target = target
        self._ids: dict[tuple[Device, Problem], tuple[int, int]] = {}
        self._outage = None if target.path else Outage()
        self._places = threading.Semaphore(1 if target.path else AT_A_TIME)
        """SQLite has one writer. Threads waiting on this semaphore are served in order; inside SQLite, by chance."""
        self._hurries = threading.Event()
        self._abandoning: set[Owner] = set()
        """Owners that abandoned their trials, while the database does not have this recorded yet."""
        self._reading = self._writing = engine
        if target.path:
            # Takes the write lock at once: a transaction that reads first may be unable to write later.
            self._writing = engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"})
            self._together = Together(self._writing, self._places)
            return
        # All reads of one method see the same state of the database, as they do with SQLite.
        self._reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        if read_only:
            self._writing = self._reading
        self._together = Together(self._writing, self._places)

    @classmethod
    def open(cls, target: str | Path | None = None, *, read_only: bool = False, makes: bool = True) -> Self:
        """Open a file or a URL, or the user's own database for None, creating or migrating it unless `read_only`.

        Without `makes`, a missing file is an error; this is for callers that have nothing to do in a new database.
        A server that does not answer now is an error; if it goes away later, it is waited for up to AWAY_PATIENCE_S.
        Raises NotADatabaseError, NewerSchemaError, ReadOnlyDatabaseError, DatabaseAwayError, or StoreError.
        """
        place = parse_target(target)
        if place.path is None:
            engine = open_server(place, read_only=read_only)
        elif read_only:
            engine = open_for_reading(place.path)
        else:
            engine = open_for_writing(place.path, makes=makes)
        return cls(place, engine, read_only=read_only)

    @property
    def location(self) -> str:
        """Path or URL of the database, without a password."""
        return str(self._target)

    @property
    def jobs(self) -> JobLedger:
        """The service's jobs."""
        return JobLedger(self._read, self._write, self._write_together, insertion.problem_id)

    @property
    def workers(self) -> WorkerLedger:
        """The service's workers."""
        return WorkerLedger(self._write)

    def claim_service(self) -> service_claim.Claim:
        """Claim the right to be the only service on this database. Raises StoreError when another service has it."""
        return service_claim.claimed(self._read, self._write, self.location)

    def add_device(self, device: Device) -> None:
        """Add a device, or update its limits if it is already stored."""
        self._write(lambda session: insertion.device_id(session, device, is_seen_here=True))

    def begin_trial(
        self,
        device: Device,
        problem: Problem,
        configuration: Configuration,
        owner: Owner,
        landed: Sequence[Configuration] = (),
    ) -> None:
        """Record a trial as in flight, safely on disk before its launch can crash the process or the machine.

        The configurations `landed` are recorded as no longer in flight.
        """
        device_id, problem_id = self._ids_of(device, problem)

        def add(connection: Connection) -> None:
            service_claim.check_claim(connection, owner)
            for one in landed:
                quarantine.land(connection, problem_id, one, owner)
            quarantine.begin(connection, device_id, problem_id, configuration, owner)

        self._write_together(add)

    def land_trials(self, device: Device, problem: Problem, landed: Sequence[Configuration], owner: Owner) -> None:
        """Record that configurations of a problem are no longer in flight, without quarantine: they were only built."""
        _, problem_id = self._ids_of(device, problem)

        def add(connection: Connection) -> None:
            for one in landed:
                quarantine.land(connection, problem_id, one, owner)

        self._write_together(add)

    def abandon_trials(self, owner: Owner) -> None:
        """Remove this owner's trials in flight without quarantining them: they will not end, as after Ctrl-C.

        If this fails, `quarantine_lost` does it later; otherwise they would stay in flight while the program runs.
        """
        self._abandoning.add(owner)
        self._write(lambda session: quarantine.abandon(session, owner))
        self._abandoning.discard(owner)

    def lose_trials(self, owner: Owner, message: str) -> None:
        """Quarantine this owner's trials in flight, which were lost together with the device that measured them."""
        self._write(lambda session: quarantine.lose(session, owner, message))

    def add_late(
        self, device: Device, problem: Problem, trial: Trial, provenance: Provenance | None, worker: str
    ) -> bool:
        """Store a trial that arrives too late from the worker of that name, if the worker had that trial in hand.

        The trial is then neither in flight nor in quarantine as lost any more. It is stored as a trial of the search
        unless its configuration already has one, as when it was lost in the finals. With `provenance` None, as when it
        was measured with other templates than the local ones, it is not stored. Returns whether the worker had it.
        """
        device_id, problem_id = self._ids_of(device, problem)

        def add(session: Session) -> bool:
            if not quarantine.take_back(session, device_id, problem_id, trial.configuration, worker):
                return False
            quarantine.end(session.connection(), device_id, problem_id, trial, None)
            if provenance is None:
                return True
            subject = {"problem_id": problem_id, "configuration": trial.configuration.key}
            query = select(TrialRow.id).filter_by(**subject, device_id=device_id, purpose="search")
            if session.scalars(query.limit(1)).first() is None:
                session.add(trial_row(trial, provenance, "search", device_id, problem_id, uuid.uuid4().hex))
            return True

        return self._write(add, waits_for_space=True)

    def settle_trials(self, device_slug: str, holder: Holder) -> None:
        """Clear what services that have ended gave to a worker: it has none of those trials in hand any more."""
        self._write(lambda session: quarantine.settle(session, device_slug, holder))

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
    ) -> None:
        """Add a trial to the ledger. `purpose` is `search`, `final` or `sentinel`. Waits a while if the disk is full.

        With its `owner`, the trial is no longer in flight and `next_in_flight` is, as by `begin_trial`, so that both
        wait for the disk once. A trial that crashed or timed out is quarantined; one that ended otherwise takes its
        configuration out of quarantine. A trial added again with the same `identity` (at most 32 characters) is stored
        once; without an identity, each call adds one trial, however often its transaction is retried.
        """
        device_id, problem_id = self._ids_of(device, problem)
        identity = identity or uuid.uuid4().hex

        def add(connection: Connection) -> None:
            row = trial_row(trial, provenance, purpose, device_id, problem_id, identity)
            if not insertion.insert_once(connection, row, "identity"):
                return
            quarantine.end(connection, device_id, problem_id, trial, owner)
            if next_in_flight and owner:
                quarantine.begin(connection, device_id, problem_id, next_in_flight, owner)

        self._write_together(add, waits_for_space=True)

    def quarantine_lost(self) -> list[Quarantined]:
        """Quarantine trials in flight, on any device, whose owners are gone; return the new entries."""
        if not self.in_flight():  # the usual case, and reading takes no lock
            return []
        for owner in list(self._abandoning):
            self.abandon_trials(owner)
        return self._write(quarantine.quarantine_lost)

    def quarantined(self, device_slug: str | None = None, driver: str | None = None) -> list[Quarantined]:
        """Return configurations not to be run unless requested: of a device under a driver, or all; oldest first."""
        return self._read(lambda session: quarantine.read_quarantine(session, device_slug, driver))

    def in_flight(self, device_slug: str | None = None, driver: str | None = None) -> list[InFlight]:
        """Return trials that began and have not ended: on a device under a driver, or on all; oldest first."""
        return self._read(lambda session: quarantine.read_in_flight(session, device_slug, driver))

    def trials(
        self,
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
        )
        if problem is not None:
            query = query.where(ProblemRow.spec == problem.key)

        def read(session: Session) -> list[StoredTrial]:
            problems: dict[int, Problem] = {}

            def to_stored(found: Any) -> StoredTrial:
                row, of = found
                known = problems.get(of.id) or problems.setdefault(of.id, to_problem(of.family, of.spec))
                provenance = value_of(Provenance, row)
                return StoredTrial(trial=to_trial(row), problem=known, provenance=provenance, purpose=row.purpose)

            return known_rows(session.execute(query), to_stored)

        return self._read(read)

    def trial_counts(self, device_slug: str) -> TrialCounts:
        """Count the trials by the state in which they ended, and return when the last was measured."""
        query = (
            select(TrialRow.state, func.count(), func.max(TrialRow.measured_at))
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug)
            .group_by(TrialRow.state)
            .order_by(TrialRow.state)
        )
        rows = self._read(lambda session: session.execute(query).all())
        last = max((moment for _, _, moment in rows), default="")
        return TrialCounts(by_state={state: count for state, count, _ in rows}, last_measured=last)

    def add_builds(self, device: Device, builds: Sequence[ExampleBuild]) -> None:
        """Add builds to the ledger, all or none."""

        def add(session: Session) -> None:
            device_id = insertion.device_id(session, device, is_seen_here=True)
            problem_ids = {problem: insertion.problem_id(session, problem) for problem in {b.problem for b in builds}}
            session.add_all(
                build_row(b.build, b.configuration, b.provenance, device_id, problem_ids[b.problem]) for b in builds
            )

        if builds:
            self._write(add)

    def builds(self, device_slug: str, driver: str) -> dict[str, Build]:
        """Return the newest build of each source built for a device under one driver, by source hash."""
        query = (
            select(BuildRow.__table__)
            .join(DeviceRow, DeviceRow.id == BuildRow.device_id)
            .where(DeviceRow.slug == device_slug, BuildRow.driver == plain_text(driver))
            .order_by(BuildRow.id)
        )
        return self._read(lambda session: {row.source_hash: value_of(Build, row) for row in session.execute(query)})

    def record_winner(self, winner: Winner) -> None:
        """Add a decision; the view decides which one is current. Raises StoreError for an unknown device."""

        def add(session: Session) -> None:
            _require_device(session, winner.device)
            session.add(winner_row(winner, insertion.problem_id(session, winner.problem)))

        self._write(add)

    def best(self, device_slug: str | None = None, family: str | None = None) -> list[Winner]:
        """Return the current winner of each problem, ordered by device, family and sizes."""
        query = select(BEST)
        if device_slug is not None:
            query = query.where(BEST.c.device == device_slug)
        if family is not None:
            query = query.where(BEST.c.family == family)
        winners = self._read(lambda session: known_rows(session.execute(query), to_winner))
        return sorted(winners, key=_place)

    def winner(self, device_slug: str, problem: Problem) -> Winner | None:
        """Return the current winner of one problem on a device; None without one."""
        query = select(BEST).where(
            BEST.c.device == device_slug, BEST.c.family == problem.family, BEST.c.spec == problem.key
        )
        return next(iter(self._read(lambda session: known_rows(session.execute(query), to_winner))), None)

    def decisions(self) -> int:
        """Count the winners recorded and imported.

        This is a count and not the highest id: on a server, rows written at the same time may become visible in another
        order than that of their ids.
        """
        query = select(func.count()).select_from(WinnerRow)
        return self._read(lambda session: session.scalar(query) or 0)

    def devices(self) -> list[Device]:
        """Return all devices by slug; of several drivers, the one that measured last is last, imported ones first."""
        last_trial = select(func.max(TrialRow.id)).where(TrialRow.device_id == DeviceRow.id).scalar_subquery()
        query = select(DeviceRow).order_by(DeviceRow.slug, func.coalesce(last_trial, 0), DeviceRow.id)
        return self._read(lambda session: [value_of(Device, row) for row in session.scalars(query)])

    def import_winners(self, winners: Sequence[Winner], devices: Sequence[Device]) -> tuple[int, int]:
        """Add winners measured elsewhere where they are better than the current ones; return (added, kept).

        A winner confirmed by finals is better than a provisional one; otherwise the faster one is better. All or
        nothing. Devices that are already stored stay as they are, apart from imported faults.
        Raises StoreError for a winner of an unknown device.
        """

        def add(session: Session) -> tuple[int, int]:
            for device in devices:
                insertion.device_id(session, device, is_seen_here=False)
                if device.limits.faults:
                    checkups.import_faults(session, device)
            known = set(session.scalars(select(DeviceRow.slug)))
            best = session.execute(select(BEST))
            standing = {(row.device, row.family, row.spec): _merit(row.samples, row.time_ns) for row in best}
            added = 0
            for winner in winners:
                if winner.device not in known:
                    raise _unknown_device(winner.device)
                subject = (winner.device, winner.problem.family, winner.problem.key)
                merit = _merit(winner.samples, winner.time_ns)
                if subject in standing and merit >= standing[subject]:
                    continue
                standing[subject] = merit
                problem_id = insertion.problem_id(session, winner.problem)
                session.add(winner_row(replace(winner, source="imported"), problem_id))
                added += 1
            return added, len(winners) - added

        return self._write(add)

    def checkup(self, device: Device) -> Checkup | None:
        """Return the checkup of a device under its driver by the current version of the probes; None without one."""
        return self._read(lambda session: checkups.read_checkup(session, device))

    def keep_checkup(self, device: Device, checkup: Checkup) -> None:
        """Store a checkup, replacing an earlier one of the same device and driver."""
        self._write(lambda session: checkups.keep_checkup(session, device, checkup))

    def endings(self, device: Device, states: Collection[TrialState]) -> list[checkups.Ending]:
        """Return how trials of a device under its driver ended, in these states only, without duplicates."""
        return self._read(lambda session: checkups.read_endings(session, device, states))

    def imported_faults(self, device: Device) -> list[Fault]:
        """Return the faults of a device's driver that imported tables list."""
        return self._read(lambda session: checkups.read_imported_faults(session, device))

    def predictors(self) -> dict[str, str]:
        """Return the predictors of each device, by slug, as documents for `autotune.lookup.values`."""
        return self._read(checkups.read_documents)

    def keep_predictors(self, device_slug: str, document: str) -> None:
        """Store the predictors of a device, replacing earlier ones."""
        self._write(lambda session: checkups.keep_document(session, device_slug, document))

    def snapshot(self, path: str | Path, device_slug: str | None = None) -> None:
        """Write an SQLite file that opens in a read-only folder, with all rows or one device's; replaces a file there.

        Raises ReadOnlyDatabaseError, StoreError.
        """
        target = Path(path)
        if self._target.path and target.exists() and self._target.path.samefile(target):
            raise StoreError(f"{target} is the database itself", hint="name another file")
        check_snapshot_path(target)
        self._read(lambda session: write_snapshot(session.connection(), target, device_slug))

    def hurry(self) -> None:
        """Stop waiting for a database that is in use, full or away. For any thread, before the program ends."""
        self._hurries.set()

    def close(self) -> None:
        """Close all connections."""
        self._reading.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ids_of(self, device: Device, problem: Problem) -> tuple[int, int]:
        """Return the ids of both rows, inserting missing ones. Cached, since these rows are never removed."""
        if (device, problem) not in self._ids:
            self._ids[device, problem] = self._write(
                lambda session: (
                    insertion.device_id(session, device, is_seen_here=True),
                    insertion.problem_id(session, problem),
                ),
                waits_for_space=True,
            )
        return self._ids[device, problem]

    def _read(self, work: Callable[[Session], _Result]) -> _Result:
        return self._transaction(self._reading, work)

    def _write(self, work: Callable[[Session], _Result], *, waits_for_space: bool = False) -> _Result:
        with idle(), self._places:
            return self._transaction(self._writing, work, waits_for_space=waits_for_space)

    def _write_together(self, work: Work, *, waits_for_space: bool = False) -> None:
        """Write in one transaction with the writes of other threads or, if that fails, alone."""
        if not self._together.write(work):
            self._write(lambda session: work(session.connection()), waits_for_space=waits_for_space)
        elif self._outage:
            self._outage.ends(self.location)

    def _transaction(
        self, engine: Engine, work: Callable[[Session], _Result], *, waits_for_space: bool = False
    ) -> _Result:
        def once() -> _Result:
            with Session(engine) as session, session.begin():
                return work(session)

        patience = Patience(waits_for_space=waits_for_space, outage=self._outage, hurries=self._hurries.is_set)
        return attempt(once, self.location, patience)


def _require_device(session: Session, slug: str) -> None:
    if session.scalars(select(DeviceRow.id).where(DeviceRow.slug == slug).limit(1)).first() is None:
        raise _unknown_device(slug)


def _unknown_device(slug: str) -> StoreError:
    return StoreError(f"the database has no device {slug[:80]!r}", hint="add the device before its winners")


def _merit(samples: int, time_ns: float) -> tuple[bool, float]:
    """Return a sort key, smaller being better: confirmed before provisional, then by time. The view ranks the same."""
    return samples == 0, time_ns


def _place(winner: Winner) -> tuple[str, str, tuple[int, ...], str]:
    return winner.device, winner.problem.family, winner.problem.size_vector, winner.problem.key
