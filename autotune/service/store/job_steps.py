"""Steps of the transactions that advance jobs (`jobs.py`): what they look up, lock and settle."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autotune.model.trial import now_utc
from autotune.service.store.job_rows import OPEN_WORDS, JobProblemRow, JobRow, JobState
from autotune.service.store.shared_queue import SharedQueue, queue_of
from autotune.store.models import DeviceRow, ProblemRow, plain_text
from autotune.store.trials import TrialRow

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


def begun(session: Session, device: str, worker: str, models: Sequence[str], queue: SharedQueue | None) -> Found | None:
    """Begin the next queued problem of a device and return it."""
    found = _next_queued(session, device, models) if queue is None else _fetched(session, device, models, queue)
    if found is None:
        return None
    row, job, problem = found
    if row.trials_before is None:
        row.trials_before = search_trials(session, device, problem.id)
        row.share_s = _share(session, job)
    row.state = job.state = JobState.RUNNING.value
    job.model = models[0]
    row.worker = plain_text(worker)
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


def _next_queued(session: Session, device: str, models: Sequence[str]) -> Found | None:
    """Return the next queued problem with its job, which is locked; both are read after locking."""
    query = (
        FOUND.where(
            JobRow.device == device,
            JobRow.model.in_(models),
            JobRow.state.in_(OPEN_WORDS),
            JobProblemRow.state == JobState.QUEUED.value,
        )
        .order_by(JobRow.id, JobProblemRow.number)
        .limit(1)
    )
    while (found := session.execute(query).first()) is not None:
        row, job, problem = found
        locked(session, job.id)
        session.refresh(row)
        if job.state in OPEN_WORDS and job.model in models and row.state == JobState.QUEUED.value:
            return row, job, problem
    return None


def _fetched(session: Session, device: str, models: Sequence[str], queue: SharedQueue) -> Found | None:
    """Like `_next_queued`, for a problem from the queue; those of jobs begun on other models move to their queues."""
    queues = [queue_of(device, model) for model in models]
    while (row_id := queue.fetch(session, queues)) is not None:
        found = session.execute(FOUND.where(JobProblemRow.id == row_id)).first()
        if found is not None:
            row, job, problem = found
            locked(session, job.id)
            session.refresh(row)
            if job.state in OPEN_WORDS and row.state == JobState.QUEUED.value:
                if job.model in models:
                    return row, job, problem
                queue.retry(session, row_id, queue_of(device, job.model))
                continue
        queue.finish(session, row_id)  # cancelled, or removed
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
