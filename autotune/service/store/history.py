"""What a device has done so far, in sums over the ledger: how trials ended, hour by hour, by driver, and its speed."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import desc, func, select
from sqlalchemy.orm import Session

from autotune.model.problem import Problem
from autotune.model.trial import Provenance, TrialState
from autotune.store.models import DeviceRow, ProblemRow, known_rows, to_problem, value_of
from autotune.store.quarantine import QuarantineRow
from autotune.store.transactions import Transactions, reads
from autotune.store.trials import StoredTrial, TrialRow, to_trial
from autotune.store.winners import WinnerRow

RECENT_TRIALS = 20_000
REASON_LENGTH = 300
_LAST_TRIAL = select(func.max(TrialRow.id))
_HOUR = (
    func.substr(TrialRow.measured_at, 1, 13).label("hour"),
    func.count(),
    func.count().filter(TrialRow.state != TrialState.COMPLETE.value),
    # The columns of Measurement are not declared by name.
    *(func.avg(TrialRow.__table__.c[name]) for name in ("temperature_c", "clock_mhz")),
)
"""What is summed up of the trials of an hour, in the order of the fields of Hour."""


@dataclass(frozen=True, kw_only=True)
class FailureReason:
    """A way in which trials of a device failed, and how often."""

    state: str
    message: str
    """Its first REASON_LENGTH characters."""
    trials: int
    last_measured: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, kw_only=True)
class Hour:
    """What a device did within an hour, under every driver."""

    hour: str
    """Its beginning in UTC, such as ``2026-01-31T12:00:00Z``."""
    trials: int
    failed: int
    """Trials that did not end complete."""
    temperature_c: float | None
    """Mean over the trials that have one, as `clock_mhz`."""
    clock_mhz: float | None


class HistoryLedger(Transactions):
    """The part of a service's store that sums up trials and winners."""

    def failure_reasons(self, device_slug: str, most: int) -> list[FailureReason]:
        """Return what the trials of a device failed with, under every driver, the commonest `most` first."""
        message = func.substr(TrialRow.message, 1, REASON_LENGTH).label("reason")
        query = (
            select(TrialRow.state, message, func.count().label("times"), func.max(TrialRow.measured_at))
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug, TrialRow.state != TrialState.COMPLETE.value)
            .group_by(TrialRow.state, "reason")
            .order_by(desc("times"), TrialRow.state, "reason")
            .limit(most)
        )
        rows = self.read(lambda session: session.execute(query).all())
        return [FailureReason(state=row[0], message=row[1], trials=row[2], last_measured=row[3]) for row in rows]

    def hours(self, device_slug: str, most: int) -> list[Hour]:
        """Return the last `most` hours in which a device measured trials, oldest first."""
        query = (
            select(*_HOUR)
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug)
            .group_by("hour")
            .order_by(desc("hour"))
            .limit(most)
        )
        rows = self.read(lambda session: session.execute(query).all())
        return [_to_hour(*row) for row in reversed(rows)]

    def fleet_hours(self, most_trials: int) -> dict[str, list[Hour]]:
        """Return the hours of the last `most_trials` trials by the slug of their device, oldest first."""
        query = (
            select(DeviceRow.slug, *_HOUR)
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(TrialRow.id > _LAST_TRIAL.scalar_subquery() - most_trials)
            .group_by(DeviceRow.slug, "hour")
            .order_by(DeviceRow.slug, "hour")
        )
        found: dict[str, list[Hour]] = {}
        for slug, *hour in self.read(lambda session: session.execute(query).all()):
            found.setdefault(slug, []).append(_to_hour(*hour))
        return found

    def best_by_driver(self, device_slug: str, family: str) -> list[tuple[Problem, str, float]]:
        """Return the least time in nanoseconds of each problem under each driver, in the order of first trials."""
        devices = select(DeviceRow.id).where(DeviceRow.slug == device_slug)
        least = func.min(TrialRow.__table__.c.time_ns).label("least_ns")
        best = (  # before the problems are joined, which would be once for each trial
            select(TrialRow.problem_id, TrialRow.driver, least, func.min(TrialRow.id).label("first"))
            .where(TrialRow.device_id.in_(devices), TrialRow.state == TrialState.COMPLETE.value)
            .group_by(TrialRow.problem_id, TrialRow.driver)
            .subquery()
        )
        query = (
            select(ProblemRow, best.c.driver, best.c.least_ns)
            .join(best, best.c.problem_id == ProblemRow.id)
            .where(ProblemRow.family == family)
            .order_by(best.c.first)
        )
        return self.read(
            lambda session: known_rows(
                session.execute(query), lambda row: (to_problem(row[0].family, row[0].spec), row[1], row[2])
            )
        )

    def decisions(self) -> int:
        """Count the winners recorded and imported.

        This is a count and not the highest id: on a server, rows written at the same time may become visible in another
        order than that of their ids.
        """
        query = select(func.count()).select_from(WinnerRow)
        return self.read(lambda session: session.scalar(query) or 0)

    def last_trial(self) -> int:
        """Return the id of the trial stored last; 0 without trials."""
        return self.read(lambda session: session.scalar(_LAST_TRIAL)) or 0

    @reads
    def count_trials(self, session: Session, after: int, until: int) -> Counter[tuple[str, str]]:
        """Count the trials with higher ids than `after`, up to `until`, by slug and state. Reads only these rows."""
        query = (
            select(TrialRow.device_id, TrialRow.state, func.count())
            .where(TrialRow.id > after, TrialRow.id <= until)
            .group_by(TrialRow.device_id, TrialRow.state)
        )
        slugs = {row.id: row.slug for row in session.execute(select(DeviceRow.id, DeviceRow.slug))}
        found = Counter[tuple[str, str]]()
        for device, state, count in session.execute(query):
            found[slugs[device], state] += count
        return found

    def quarantine_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of configurations in quarantine by slug and reason."""
        query = (
            select(DeviceRow.slug, QuarantineRow.reason, func.count())
            .join(DeviceRow, DeviceRow.id == QuarantineRow.device_id)
            .group_by(DeviceRow.slug, QuarantineRow.reason)
        )
        rows = self.read(lambda session: session.execute(query).all())
        return {(slug, reason): count for slug, reason, count in rows}

    @reads
    def speed_checks(self, session: Session, device_slug: str, most: int) -> list[StoredTrial]:
        """Return complete runs of the sentinel among the last RECENT_TRIALS trials of all devices, oldest first.

        They are under every driver, and the newest `most` of them. Before them comes the first complete trial of each
        search that they belong to, which its first sentinel is compared with.
        """
        is_complete = TrialRow.state == TrialState.COMPLETE.value
        query = (
            select(TrialRow, ProblemRow)
            .join(ProblemRow, ProblemRow.id == TrialRow.problem_id)
            .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
            .where(DeviceRow.slug == device_slug, is_complete)
        )
        newest = query.where(TrialRow.purpose == "sentinel").order_by(TrialRow.id.desc()).limit(most)
        subject = (TrialRow.device_id, TrialRow.problem_id)
        # Grouped, since PostgreSQL looks for the least id alone through all trials in their order.
        first = select(*subject, func.min(TrialRow.id)).where(TrialRow.purpose == "search", is_complete)
        last = session.scalar(_LAST_TRIAL) or 0
        runs = session.execute(newest.where(TrialRow.id > last - RECENT_TRIALS)).all()[::-1]
        searched = {(run.device_id, of.id) for run, of in runs}
        chosen = [column.in_(set(ids)) for column, ids in zip(subject, zip(*searched, strict=True), strict=False)]
        found = session.execute(first.where(*chosen).group_by(*subject)).all() if searched else []
        firsts = [trial for device, problem, trial in found if (device, problem) in searched]
        rows = session.execute(query.where(TrialRow.id.in_(firsts)).order_by(TrialRow.id)).all()
        return known_rows([*rows, *runs], lambda found: _stored(*found))


def _to_hour(hour: str, trials: int, failed: int, temperature_c: float | None, clock_mhz: float | None) -> Hour:
    return Hour(hour=f"{hour}:00:00Z", trials=trials, failed=failed, temperature_c=temperature_c, clock_mhz=clock_mhz)


def _stored(row: TrialRow, of: ProblemRow) -> StoredTrial:
    provenance = value_of(Provenance, row)
    problem = to_problem(of.family, of.spec)
    return StoredTrial(trial=to_trial(row), problem=problem, provenance=provenance, purpose=row.purpose)
