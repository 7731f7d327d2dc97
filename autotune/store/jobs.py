"""The transactions that advance the service's jobs; `job_rows.py` has the tables and values.

A job names a device and what to tune or to verify there; each of its problems is a row that a device takes, works on
and ends. Problems that were running when the service ended are queued again: the ledger has the trials measured by
then, and the row has the budget spent. One service works on a database at a time (`service_claim.py`).

A transaction that begins, ends or cancels a part of a job locks the row of the job first. Otherwise two of them at
once, on a server, would each miss the other's changes, and a job whose last two problems end together would stay open.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update
from sqlalchemy.orm import Session

from autotune.errors import ProblemError
from autotune.model.trial import now_utc
from autotune.store.job_rows import (
    OPEN,
    OPEN_WORDS,
    JobKind,
    JobProblem,
    JobProblemRow,
    JobRow,
    JobState,
    NewJob,
    TuningJob,
    job_problem_row,
    to_job,
    to_job_problem,
)
from autotune.store.models import DeviceRow, ProblemRow, columns, known_rows, plain_text, problem_id
from autotune.store.transactions import Transactions
from autotune.store.trials import TrialRow

__all__ = ["OPEN", "JobKind", "JobLedger", "JobProblem", "JobState", "NewJob", "TuningJob"]

_Found = tuple[JobProblemRow, JobRow, ProblemRow]
_Taken = tuple[TuningJob, JobProblem]

_FOUND = (
    select(JobProblemRow, JobRow, ProblemRow)
    .join(JobRow, JobRow.id == JobProblemRow.job_id)
    .join(ProblemRow, ProblemRow.id == JobProblemRow.problem_id)
)


_SPEND = (
    update(JobProblemRow.__table__)  # type: ignore[arg-type]
    .where(JobProblemRow.id == bindparam("its_id"))
    .values(spent_s=bindparam("now_spent_s"))
)


class JobLedger:
    """The jobs of an open database. Every method is one transaction, and raises StoreError when that fails."""

    def __init__(self, transactions: Transactions) -> None:
        """Called by `Store.jobs` only."""
        self._transactions = transactions

    def add(self, new: NewJob) -> int:
        """Queue a job and return its number; once, even if the commit runs again because its answer was lost."""
        added: list[int] = []

        def work(session: Session) -> int:
            if added and session.get(JobRow, added[-1]) is not None:
                return added[-1]
            known = {**columns(new, JobRow), "submitter": plain_text(new.submitter)[:100]}
            row = JobRow(state=JobState.QUEUED.value, message="", created_at=now_utc(), ended_at="", **known)
            session.add(row)
            session.flush()
            candidates = new.candidates or ("",) * len(new.requests)
            for number, (request, candidate) in enumerate(zip(new.requests, candidates, strict=True)):
                its_id = problem_id(session, request.problem)
                session.add(job_problem_row(row.id, number, its_id, request, candidate))
            added.append(row.id)
            return row.id

        return self._transactions.write(work)

    def get(self, job_id: int) -> TuningJob | None:
        """Return a job with its problems; None for an unknown number."""

        def work(session: Session) -> TuningJob | None:
            row = session.get(JobRow, job_id)
            if row is None:
                return None
            query = (
                select(JobProblemRow, ProblemRow)
                .join(ProblemRow, ProblemRow.id == JobProblemRow.problem_id)
                .where(JobProblemRow.job_id == job_id)
                .order_by(JobProblemRow.number)
            )
            problems = tuple(known_rows(session.execute(query), lambda found: to_job_problem(*found)))
            return to_job(row, _counts(session, [job_id])[job_id], problems)

        return self._transactions.read(work)

    def newest(self, most: int, before: int | None = None, states: Collection[JobState] = ()) -> list[TuningJob]:
        """Return jobs without their problems, newest first; only those with a lower number than `before`."""

        def work(session: Session) -> list[TuningJob]:
            query = select(JobRow).order_by(JobRow.id.desc()).limit(most)
            if before is not None:
                query = query.where(JobRow.id < before)
            if states:
                query = query.where(JobRow.state.in_(sorted(state.value for state in states)))
            rows = list(session.scalars(query))
            counts = _counts(session, [row.id for row in rows])
            return [to_job(row, counts[row.id], ()) for row in rows]

        return self._transactions.read(work)

    def open_counts(self, *, device: str | None = None, submitter: str | None = None) -> tuple[int, int]:
        """Count open jobs and their open problems: of all, of one device, or of one submitter."""
        chosen: list[ColumnElement[bool]] = [JobRow.state.in_(OPEN_WORDS)]
        chosen += [JobRow.device == device] if device is not None else []
        chosen += [JobRow.submitter == submitter[:100]] if submitter is not None else []
        left = JobProblemRow.state.in_(OPEN_WORDS)
        jobs_query = select(func.count()).select_from(JobRow).where(*chosen)
        problems_query = select(func.count()).select_from(JobProblemRow).join(JobRow).where(*chosen, left)

        def work(session: Session) -> tuple[int, int]:
            return session.scalar(jobs_query) or 0, session.scalar(problems_query) or 0

        return self._transactions.read(work)

    def waiting(self) -> set[tuple[str, str]]:
        """Return slug and model of the devices with queued problems; the model is empty for a job not yet begun."""
        query = (
            select(JobRow.device, JobRow.model)
            .join(JobProblemRow, JobProblemRow.job_id == JobRow.id)
            .where(JobProblemRow.state == JobState.QUEUED.value, JobRow.state.in_(OPEN_WORDS))
            .distinct()
        )
        return self._transactions.read(lambda session: {(device, model) for device, model in session.execute(query)})

    def take(self, device: str, worker: str, model: str = "", *, begins: bool = True) -> _Taken | None:
        """Mark the next problem queued for a device as running, and return it with its job, which has no problems set.

        Chosen from jobs begun on devices with the same `model` and, if `begins`, from jobs that have not begun.

        If the transaction runs again because the answer to its commit was lost, the problem taken first is returned.
        A problem that only another installation knows, of another family or with other sizes, is marked as failed.
        """
        taken: list[tuple[int, int]] = []

        models = (model, "") if begins else (model,)

        def work(session: Session) -> _Taken | None:
            found = _as_taken(session, *taken[-1]) if taken else None
            while (found := found or _begun(session, device, worker, models)) is not None:
                row, job, problem = found
                try:
                    known = to_job_problem(row, problem)
                except ProblemError as error:
                    row.state, row.message = JobState.FAILED.value, plain_text(error.message)
                    job.message = row.message  # the job is shown without problems that this version cannot read
                    session.flush()
                    _settle(session, job)
                    found = None
                else:
                    taken.append((row.id, row.attempts))
                    return to_job(job, _counts(session, [job.id])[job.id], ()), known
            return None

        return self._transactions.write(work)

    def new_trials(self, device: str, problem: JobProblem) -> int:
        """Count the search trials in the ledger for a problem since it was first begun."""
        spec = problem.request.problem

        def work(session: Session) -> int:
            query = select(ProblemRow.id).where(ProblemRow.family == spec.family, ProblemRow.spec == spec.key)
            return _search_trials(session, device, session.scalars(query).one()) - problem.trials_before

        return self._transactions.read(work)

    def spend(self, problem_id: int, spent_s: float) -> None:
        """Record the seconds spent so far on a problem of a job."""
        named = {"its_id": problem_id, "now_spent_s": spent_s}

        def work(connection: Connection) -> None:
            connection.execute(_SPEND, named)

        self._transactions.write_together(work)

    def requeue(self, problem: JobProblem, spent_s: float, message: str) -> None:
        """Queue a taken problem again, to be continued; if its job was cancelled meanwhile, it is cancelled as well.

        Does nothing if this attempt at the problem is over, as when the answer to the commit was lost and it runs
        again: another worker may have taken the problem since.
        """

        def work(session: Session) -> None:
            found = _as_taken(session, problem.id, problem.attempts)
            if found is None:
                return
            row, job, _ = found
            is_cancelled = _locked(session, job.id).state == JobState.CANCELLED.value
            row.spent_s, row.message = spent_s, plain_text(message)
            row.state = (JobState.CANCELLED if is_cancelled else JobState.QUEUED).value

        self._transactions.write(work)

    def end(self, problem: JobProblem, state: JobState, *, outcome: str = "", message: str = "") -> None:
        """End a taken problem, and its job with the last one. Like `requeue`, does nothing if this attempt is over."""

        def work(session: Session) -> None:
            found = _as_taken(session, problem.id, problem.attempts)
            if found is None:
                return
            row, job, _ = found
            _locked(session, job.id)
            row.state, row.outcome, row.message = state.value, outcome, plain_text(message)
            session.flush()
            _settle(session, job)

        self._transactions.write(work)

    def cancel(self, job_id: int) -> bool:
        """Cancel a job, and return whether it was open. The caller must stop what is running."""

        def work(session: Session) -> bool:
            row = _locked(session, job_id)
            if row.state not in OPEN_WORDS:
                return False
            row.state, row.ended_at = JobState.CANCELLED.value, now_utc()
            queued = (JobProblemRow.job_id == job_id, JobProblemRow.state == JobState.QUEUED.value)
            session.execute(update(JobProblemRow).where(*queued).values(state=JobState.CANCELLED.value))
            return True

        return self._transactions.write(work)

    def is_cancelled(self, job_id: int) -> bool:
        """Return whether a job was cancelled, so that nothing more is to be done for it."""
        query = select(JobRow.state).where(JobRow.id == job_id)
        return self._transactions.read(lambda session: session.scalars(query).one() == JobState.CANCELLED.value)

    def recover(self, searched: Collection[int] = ()) -> int:
        """Queue running problems that no search works on, as after the previous service ended; return how many.

        `searched` are the ids of problems that a search does work on. Other inconsistencies are repaired: an open job
        whose problems have all ended is ended, and an open problem whose job has ended is cancelled.
        """

        def work(session: Session) -> int:
            jobs = list(session.scalars(select(JobRow).where(JobRow.state.in_(OPEN_WORDS)).with_for_update()))
            is_open = JobProblemRow.job_id.in_([job.id for job in jobs])
            running = JobProblemRow.state == JobState.RUNNING.value
            is_lost = JobProblemRow.id.not_in(searched)
            left = (JobProblemRow.state.in_(OPEN_WORDS), ~is_open, is_lost)
            session.execute(update(JobProblemRow).where(*left).values(state=JobState.CANCELLED.value))
            rows = list(session.scalars(select(JobProblemRow).where(running, is_open, is_lost)))
            for row in rows:
                row.state = JobState.QUEUED.value
            session.flush()
            for job in jobs:
                _settle(session, job)
            return len(rows)

        return self._transactions.write(work)


def _share(session: Session, job: JobRow) -> float:
    """Return, for a problem that begins, an even part of the seconds that others have not used and will not use."""
    if job.seconds is None:
        return 0.0
    rows = session.scalars(select(JobProblemRow).where(JobProblemRow.job_id == job.id)).all()
    begun = [row for row in rows if row.trials_before is not None and row.share_s]
    ended = [row for row in begun if row.state not in OPEN_WORDS]
    used = sum(row.spent_s for row in ended) + sum(row.share_s for row in begun if row not in ended)
    return max(1.0, (job.seconds - used) / max(1, len(rows) - len(begun)))


def _begun(session: Session, device: str, worker: str, models: Sequence[str]) -> _Found | None:
    """Begin the next queued problem of a device and return it."""
    found = _next_queued(session, device, models)
    if found is None:
        return None
    row, job, problem = found
    if row.trials_before is None:
        row.trials_before = _search_trials(session, device, problem.id)
        row.share_s = _share(session, job)
    row.state = job.state = JobState.RUNNING.value
    job.model = models[0]
    row.worker = plain_text(worker)
    row.attempts += 1
    session.flush()
    return found


def _as_taken(session: Session, row_id: int, attempts: int) -> _Found | None:
    """Return the problem as this attempt began it, or None if that was not committed or is over."""
    query = _FOUND.where(
        JobProblemRow.id == row_id,
        JobProblemRow.attempts == attempts,
        JobProblemRow.state == JobState.RUNNING.value,
    )
    found = session.execute(query).first()
    return None if found is None else (found[0], found[1], found[2])


def _next_queued(session: Session, device: str, models: Sequence[str]) -> _Found | None:
    """Return the next queued problem with its job, which is locked; both are read after locking."""
    query = (
        _FOUND.where(
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
        _locked(session, job.id)
        session.refresh(row)
        if job.state in OPEN_WORDS and job.model in models and row.state == JobState.QUEUED.value:
            return row, job, problem
    return None


def _locked(session: Session, job_id: int) -> JobRow:
    """Lock a job until the transaction ends, and return its current row."""
    return session.get_one(JobRow, job_id, with_for_update=True, populate_existing=True)


def _settle(session: Session, job: JobRow) -> None:
    """End a locked job if its problems have all ended."""
    counts = _counts(session, [job.id])[job.id]
    if job.state not in OPEN_WORDS or any(counts.get(word) for word in OPEN_WORDS):
        return
    job.state = (JobState.FAILED if counts.get(JobState.FAILED.value) else JobState.DONE).value
    job.ended_at = now_utc()


def _search_trials(session: Session, device: str, problem_id: int) -> int:
    query = (
        select(func.count())
        .select_from(TrialRow)
        .join(DeviceRow, DeviceRow.id == TrialRow.device_id)
        .where(DeviceRow.slug == device, TrialRow.problem_id == problem_id, TrialRow.purpose == "search")
    )
    return session.scalar(query) or 0


def _counts(session: Session, job_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    query = (
        select(JobProblemRow.job_id, JobProblemRow.state, func.count())
        .where(JobProblemRow.job_id.in_(job_ids))
        .group_by(JobProblemRow.job_id, JobProblemRow.state)
    )
    found: dict[int, dict[str, int]] = {job_id: {} for job_id in job_ids}
    for job_id, state, count in session.execute(query):
        found[job_id][state] = count
    return found
