"""Trials that workers have in hand: those that a worker no longer has, and those that it delivers late."""

import uuid
from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Provenance, Trial
from autotune.store import LOST, Holder, quarantine
from autotune.store.models import DeviceRow, ProblemRow, device_id, plain_text, problem_id
from autotune.store.quarantine import InFlightRow, QuarantineRow, joined, lost_row, owner_of
from autotune.store.transactions import Transactions, writes
from autotune.store.trials import is_searched, row_of


class HeldLedger(Transactions):
    """The part of a service's store that settles the trials of its workers."""

    @writes
    def settle_trials(
        self, session: Session, device_slug: str, holder: Holder, processes: Collection[int] = ()
    ) -> None:
        """Clear what earlier services gave to a device of a worker, which has nothing in hand.

        What this process, or one of its search `processes`, has given is left alone.
        Trials given to this process of the worker were never begun, and are not quarantined. Trials given to another
        process of the worker were lost when that process ended, and are quarantined.
        """
        query = joined(InFlightRow).where(InFlightRow.worker == plain_text(holder.worker))
        for row, device, _ in session.execute(query):
            is_of_equal_device = row.session == holder.session and row.selector != holder.selector
            if device.slug != device_slug or owner_of(row).is_of_any(processes) or is_of_equal_device:
                continue
            if row.session != holder.session:
                session.add(lost_row(row, f"in flight on {row.worker} when that worker ended"))
            session.delete(row)

    def add_late(
        self, device: Device, problem: Problem, trial: Trial, provenance: Provenance | None, worker: str
    ) -> bool:
        """Store a trial that arrives too late from the worker of that name, if the worker had that trial in hand.

        The trial is then neither in flight nor in quarantine as lost any more. It is stored as a trial of the search
        unless its configuration already has one, as when it was lost in the finals. With `provenance` None, as when it
        was measured with other templates than the local ones, it is not stored. Returns whether the worker had it;
        if not, nothing is stored, also of a device and a problem that only that worker names.
        """

        def add(session: Session) -> bool:
            if not take_back(session, device, problem, trial.configuration, worker):
                return False
            ids = device_id(session, device, is_seen_here=True), problem_id(session, problem)
            quarantine.end(session.connection(), ids, trial)
            if provenance is not None and not is_searched(session.connection(), ids, trial, provenance):
                session.add(row_of(trial, provenance, "search", ids, uuid.uuid4().hex))
            return True

        return self.write(add, waits_for_space=True)


def take_back(session: Session, device: Device, problem: Problem, configuration: Configuration, worker: str) -> bool:
    """Clear a trial that this worker delivers late from those in flight or lost; return whether the worker had it."""
    devices = select(DeviceRow.id).filter_by(slug=device.slug, driver=plain_text(device.driver))
    problems = select(ProblemRow.id).filter_by(family=problem.family, spec=problem.key)
    subject = {"configuration": configuration.key, "worker": plain_text(worker)}
    were_there = [
        session.execute(
            delete(table)
            .where(table.device_id.in_(devices), table.problem_id.in_(problems))
            .filter_by(**subject, **reason)
        )
        for table, reason in ((InFlightRow, {}), (QuarantineRow, {"reason": LOST}))
    ]
    return any(result.rowcount for result in were_there)  # type: ignore[attr-defined]
