"""Steps of the transactions that advance jobs (`jobs.py`): what they look up, lock and settle."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autotune.model.trial import now_utc
from autotune.service.store.job_rows import OPEN_WORDS, JobProblemRow, JobRow, JobState
from autotune.store.models import DeviceRow, ProblemRow, plain_text
from autotune.store.trials import TrialRow


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Who takes a problem: a device of a worker of a service."""

    device: str
    """Slug."""
    worker: str
    model: str = ""
    """Digest of driver and limits of the device."""
    begins: bool = True
    """Whether it may begin jobs, besides going on with those begun on devices with the same model."""
    service: str = ""
    """Address of the service."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models of the jobs that it may take; a job that has not begun has none."""
        return (self.model, "") if self.begins else (self.model,)


Found = tuple[JobProblemRow, JobRow, ProblemRow]

FOUND = (
    select(JobProblemRow, JobRow, ProblemRow)
    .join(JobRow, JobRow.id == JobProblemRow.job_id)
    .join(ProblemRow, ProblemRow.id == JobProblemRow.problem_id)
)


def _share(session: Session, job: JobRow) -> float:
    """Return, for a problem that begins, an even part of the seconds that others have not used and will not use."""
    if job.seconds is None:
        return 0.0
    rows = session.scalars(select(JobProblemRow).where(JobProblemRow.job_id == job.id)).all()
    begun = [row for row in rows if row.trials_before is not None and row.share_s]
    ended = [row for row in begun if row.state not in OPEN_WORDS]
    used = sum(row.spent_s for row in ended) + sum(row.share_s for row in begun if row not in ended)
    return max(1.0, (job.seconds - used) / max(1, len(rows) - len(begun)))


def begun(session: Session, taker: Taker, entry: int | None) -> Found | None:
    """Begin the next queued problem that is for the taker, or the one with an entry of the engine's, and return it."""
    found = _next(session, taker, entry)
    if found is None:
        return None
    row, job, problem = found
    if row.trials_before is None:
        row.trials_before = search_trials(session, taker.device, problem.id)
        row.share_s = _share(session, job)
    row.state = job.state = JobState.RUNNING.value
    job.model = taker.model
    row.worker, row.service = plain_text(taker.worker), taker.service
    row.attempts += 1
    session.flush()
    return found


def as_taken(session: Session, row_id: int, attempts: int) -> Found | None:
    """Return the problem as this attempt began it, or None if that was not committed or is over. Locks its job."""
    query = FOUND.where(
        JobProblemRow.id == row_id,
        JobProblemRow.attempts == attempts,
        JobProblemRow.state == JobState.RUNNING.value,
    ).execution_options(populate_existing=True)
    if (found := session.execute(query).first()) is None:
        return None
    locked(session, found[0].job_id)
    found = session.execute(query).first()  # again, since another service may have ended this attempt before the lock
    return None if found is None else (found[0], found[1], found[2])


def _next(session: Session, taker: Taker, entry: int | None) -> Found | None:
    """Return the problem to begin with its job, which is locked; both are read after locking.

    Only one worker can hold the entry of a problem in the engine's queue. So a problem that is marked as running was
    taken by a worker that ended without saying so, and is begun again.
    """
    is_chosen = [JobProblemRow.state == JobState.QUEUED.value]
    if entry is not None:
        is_chosen = [JobProblemRow.entry == entry, JobProblemRow.state.in_(OPEN_WORDS)]
    query = (
        FOUND.where(
            JobRow.device == taker.device,
            JobRow.model.in_(taker.models),
            JobRow.state.in_(OPEN_WORDS),
            *is_chosen,
        )
        .order_by(JobRow.id, JobProblemRow.number)
        .limit(1)
    )
    while (found := session.execute(query).first()) is not None:
        locked(session, found[1].id)
        again = FOUND.where(JobProblemRow.id == found[0].id, JobRow.model.in_(taker.models), *is_chosen)
        again = again.where(JobRow.state.in_(OPEN_WORDS)).execution_options(populate_existing=True)
        if (found := session.execute(again).first()) is not None:
            return found[0], found[1], found[2]
    return None


def locked(session: Session, job_id: int) -> JobRow:
    """Lock a job until the transaction ends, and return its current row."""
    return session.get_one(JobRow, job_id, with_for_update=True, populate_existing=True)


def settle(session: Session, job: JobRow) -> None:
    """End a locked job if its problems have all ended."""
    counts = counts_of(session, [job.id])[job.id]
    if job.state not in OPEN_WORDS or any(counts.get(word) for word in OPEN_WORDS):
        return
    job.state = (JobState.FAILED if counts.get(JobState.FAILED.value) else JobState.DONE).value
    job.ended_at = now_utc()


def search_trials(session: Session, device: str, problem_id: int) -> int:
    query = (
        select(func.count())
        .select_from(TrialRow)
        .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
        .where(DeviceRow.slug == device, TrialRow.problem_id == problem_id, TrialRow.purpose == "search")
    )
    return session.scalar(query) or 0


def counts_of(session: Session, job_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    query = (
        select(JobProblemRow.job_id, JobProblemRow.state, func.count())
        .where(JobProblemRow.job_id.in_(job_ids))
        .group_by(JobProblemRow.job_id, JobProblemRow.state)
    )
    found: dict[int, dict[str, int]] = {job_id: {} for job_id in job_ids}
    for job_id, state, count in session.execute(query):
        found[job_id][state] = count
    return found
