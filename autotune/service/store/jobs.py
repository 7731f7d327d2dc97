"""The transactions that advance the service's jobs; `job_rows.py` has the tables and values.

A job names a device and what to tune or to verify there; each of its problems is a row that a device takes, works on
and ends. Problems that were running when the service ended are queued again: the ledger has the trials measured by
then, and the row has the budget spent. On a server, an engine brings each queued problem to one of the services that
share the database (`entries.py`).

A transaction that begins, ends or cancels a part of a job locks the row of the job first. Otherwise two of them at
once, on a server, would each miss the other's changes, and a job whose last two problems end together would stay open.
"""

import json
from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update
from sqlalchemy.orm import Session

from autotune.errors import ProblemError
from autotune.model.trial import now_utc
from autotune.service.store.job_rows import (
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
from autotune.service.store.job_steps import Taker, as_taken, begun, counts_of, locked, search_trials, settle
from autotune.store.models import ProblemRow, columns, known_rows, plain_text, problem_id
from autotune.store.transactions import Transactions, reads, writes

__all__ = ["OPEN", "JobKind", "JobLedger", "JobProblem", "JobState", "NewJob", "TuningJob"]

PACE_PROBLEMS = 20

_Taken = tuple[TuningJob, JobProblem]

_IS_OPEN = JobProblemRow.state.in_(OPEN_WORDS)

_SPEND = (
    update(JobProblemRow.__table__)  # type: ignore[arg-type]
    .where(JobProblemRow.id == bindparam("its_id"))
    .values(spent_s=bindparam("now_spent_s"))
)


class JobLedger:
    """The jobs of an open database. Every method is one transaction, and raises StoreError when that fails."""

    def __init__(self, transactions: Transactions) -> None:
        """Called by `ServiceStore.jobs` only."""
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
            rows = [
                job_problem_row(row.id, number, problem_id(session, request.problem), request, candidate)
                for number, (request, candidate) in enumerate(zip(new.requests, candidates, strict=True))
            ]
            session.add_all(rows)
            added.append(row.id)
            return row.id

        return self._transactions.write(work)

    @reads
    def get(self, session: Session, job_id: int) -> TuningJob | None:
        """Return a job with its problems; None for an unknown number."""
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
        return to_job(row, counts_of(session, [job_id])[job_id], problems)

    @reads
    def newest(
        self, session: Session, most: int, before: int | None = None, states: Collection[JobState] = ()
    ) -> list[TuningJob]:
        """Return jobs without their problems, newest first; only those with a lower number than `before`."""
        query = select(JobRow).order_by(JobRow.id.desc()).limit(most)
        if before is not None:
            query = query.where(JobRow.id < before)
        if states:
            query = query.where(JobRow.state.in_(sorted(state.value for state in states)))
        rows = list(session.scalars(query))
        counts = counts_of(session, [row.id for row in rows])
        return [to_job(row, counts[row.id], ()) for row in rows]

    @reads
    def open_counts(
        self, session: Session, *, device: str | None = None, submitter: str | None = None
    ) -> tuple[int, int]:
        """Count open jobs and their open problems: of all, of one device, or of one submitter."""
        chosen: list[ColumnElement[bool]] = [JobRow.state.in_(OPEN_WORDS)]
        chosen += [JobRow.device == device] if device is not None else []
        chosen += [JobRow.submitter == submitter[:100]] if submitter is not None else []
        left = JobProblemRow.state.in_(OPEN_WORDS)
        jobs_query = select(func.count()).select_from(JobRow).where(*chosen)
        problems_query = select(func.count()).select_from(JobProblemRow).join(JobRow).where(*chosen, left)
        return session.scalar(jobs_query) or 0, session.scalar(problems_query) or 0

    def open_problems(self) -> dict[tuple[str, str], int]:
        """Return the number of problems of open jobs, by device and state."""
        query = (
            select(JobRow.device, JobProblemRow.state, func.count())
            .join(JobProblemRow, JobProblemRow.job_id == JobRow.id)
            .where(JobRow.state.in_(OPEN_WORDS))
            .group_by(JobRow.device, JobProblemRow.state)
        )
        rows = self._transactions.read(lambda session: session.execute(query).all())
        return {(device, state): count for device, state, count in rows}

    def pace_s(self, device: str) -> float | None:
        """Return the mean seconds of a trial, over the problems tuned last on a device; None before the first one.

        All the time of the searches counts, builds and finals included.
        """
        query = (
            select(JobProblemRow.spent_s, JobProblemRow.outcome)
            .join(JobRow, JobRow.id == JobProblemRow.job_id)
            .where(JobRow.device == device, JobRow.kind == JobKind.TUNE.value, JobProblemRow.outcome != "")
            .order_by(JobProblemRow.id.desc())
            .limit(PACE_PROBLEMS)
        )
        rows = self._transactions.read(lambda session: session.execute(query).all())
        trials = sum(json.loads(outcome).get("new_trials", 0) for _, outcome in rows)
        return sum(spent_s for spent_s, _ in rows) / trials if trials else None

    def waiting(self) -> set[tuple[str, str]]:
        """Return slug and model of the devices with queued problems; the model is empty for a job not yet begun."""
        query = (
            select(JobRow.device, JobRow.model)
            .join(JobProblemRow, JobProblemRow.job_id == JobRow.id)
            .where(JobProblemRow.state == JobState.QUEUED.value, JobRow.state.in_(OPEN_WORDS))
            .distinct()
        )
        return self._transactions.read(lambda session: {(device, model) for device, model in session.execute(query)})

    def take(
        self,
        device: str,
        worker: str,
        model: str = "",
        *,
        begins: bool = True,
        service: str = "",
        entry: int | None = None,
    ) -> _Taken | None:
        """Mark the next problem queued for a device as running, and return it with its job, which has no problems set.

        Chosen from jobs begun on devices with the same `model` and, if `begins`, from jobs that have not begun. With an
        `entry` of the engine's queue, only its problem may be chosen.

        If the transaction runs again because the answer to its commit was lost, the problem taken first is returned.
        A problem that only another installation knows, of another family or with other sizes, is marked as failed.
        """
        taken: list[tuple[int, int]] = []
        taker = Taker(device=device, worker=worker, model=model, begins=begins, service=service)

        def work(session: Session) -> _Taken | None:
            found = as_taken(session, *taken[-1]) if taken else None
            while (found := found or begun(session, taker, entry)) is not None:
                row, job, problem = found
                try:
                    known = to_job_problem(row, problem)
                except ProblemError as error:
                    row.state, row.message = JobState.FAILED.value, plain_text(error.message)
                    job.message = row.message  # the job is shown without problems that this version cannot read
                    session.flush()
                    settle(session, job)
                    found = None
                else:
                    taken.append((row.id, row.attempts))
                    return to_job(job, counts_of(session, [job.id])[job.id], ()), known
            return None

        return self._transactions.write(work)

    @reads
    def new_trials(self, session: Session, device: str, problem: JobProblem) -> int:
        """Count the search trials in the ledger for a problem since it was first begun."""
        spec = problem.request.problem
        query = select(ProblemRow.id).where(ProblemRow.family == spec.family, ProblemRow.spec == spec.key)
        return search_trials(session, device, session.scalars(query).one()) - problem.trials_before

    def spend(self, problem_id: int, spent_s: float) -> None:
        """Record the seconds spent so far on a problem of a job."""
        named = {"its_id": problem_id, "now_spent_s": spent_s}

        def work(connection: Connection) -> None:
            connection.execute(_SPEND, named)

        self._transactions.write_together(work)

    @writes
    def requeue(self, session: Session, problem: JobProblem, spent_s: float | None = None, message: str = "") -> None:
        """Queue a taken problem again, to be continued; if its job was cancelled meanwhile, it is cancelled as well.

        Does nothing if this attempt at the problem is over, as when the answer to the commit was lost and it runs
        again: another worker may have taken the problem since.
        """
        found = as_taken(session, problem.id, problem.attempts)
        if found is None:
            return
        row, job, _ = found
        row.spent_s, row.message = row.spent_s if spent_s is None else spent_s, plain_text(message)
        _put_back(row, job)

    @writes
    def end(
        self, session: Session, problem: JobProblem, state: JobState, *, outcome: str = "", message: str = ""
    ) -> None:
        """End a taken problem, and its job with the last one. Like `requeue`, does nothing if this attempt is over."""
        found = as_taken(session, problem.id, problem.attempts)
        if found is None:
            return
        row, job, _ = found
        row.state, row.outcome, row.message, row.entry = state.value, outcome, plain_text(message), None
        session.flush()
        settle(session, job)

    @writes
    def cancel(self, session: Session, job_id: int) -> bool:
        """Cancel a job, and return whether it was open. The caller must stop what is running in this service."""
        row = locked(session, job_id)
        if row.state not in OPEN_WORDS:
            return False
        row.state, row.ended_at = JobState.CANCELLED.value, now_utc()
        queued = (JobProblemRow.job_id == job_id, JobProblemRow.state == JobState.QUEUED.value)
        session.execute(update(JobProblemRow).where(*queued).values(state=JobState.CANCELLED.value))
        return True

    def is_cancelled(self, job_id: int) -> bool:
        """Return whether a job was cancelled, so that nothing more is to be done for it."""
        query = select(JobRow.state).where(JobRow.id == job_id)
        return self._transactions.read(lambda session: session.scalars(query).one() == JobState.CANCELLED.value)

    @writes
    def recover(self, session: Session, searched: Collection[int] = ()) -> int:
        """Queue running problems that no search works on, as after a service ended; return how many.

        `searched` are the ids of problems that a search does work on. Other inconsistencies are repaired: an open job
        whose problems have all ended is ended, and an open problem whose job has ended is cancelled.
        """
        jobs = select(JobRow).where(JobRow.state.in_(OPEN_WORDS)).order_by(JobRow.id).with_for_update()
        found = {job.id: job for job in session.scalars(jobs)}
        is_running = JobProblemRow.state == JobState.RUNNING.value
        is_off = JobProblemRow.job_id.not_in(found)
        # FOR UPDATE, so that a trial begins before this or not at all (`check_attempt`).
        query = select(JobProblemRow).where(_IS_OPEN, JobProblemRow.id.not_in(searched), is_running | is_off)
        rows = session.scalars(query.with_for_update()).all()
        for row in rows:
            _put_back(row, found.get(row.job_id) or session.get_one(JobRow, row.job_id))
        session.flush()
        for job in found.values():
            settle(session, job)
        return sum(row.state == JobState.QUEUED.value for row in rows)

    @writes
    def release(self, session: Session, problem_id: int, entry: int) -> bool:
        """Queue a problem again whose entry is stalled; return whether the entry may be removed.

        It does not wait for locks: a service that was suspended may hold those of the rows. Then the entry has to stay.
        """
        is_its = (JobProblemRow.id == problem_id, JobProblemRow.entry == entry, _IS_OPEN)
        job_id = session.scalar(select(JobProblemRow.job_id).where(*is_its))
        if job_id is None:
            return True
        job = session.scalar(select(JobRow).where(JobRow.id == job_id).with_for_update(skip_locked=True))
        # FOR UPDATE, as in `recover`.
        row = session.scalar(select(JobProblemRow).where(*is_its).with_for_update(skip_locked=True))
        if job is None or row is None:
            return False
        _put_back(row, job)
        return True

    @reads
    def held(self, session: Session, problems: Collection[JobProblem]) -> set[int]:
        """Return the ids of those of these problems whose attempt is not over."""
        query = select(JobProblemRow.id, JobProblemRow.attempts).where(
            JobProblemRow.id.in_([problem.id for problem in problems]),
            JobProblemRow.state == JobState.RUNNING.value,
        )
        current = {(problem_id, attempts) for problem_id, attempts in session.execute(query)}
        return {problem.id for problem in problems if (problem.id, problem.attempts) in current}

    @reads
    def services(self, session: Session, job_id: int) -> list[str]:
        """Return the addresses of the services that search the problems of a job now, in the order of these."""
        query = (
            select(JobProblemRow.service)
            .where(JobProblemRow.job_id == job_id, JobProblemRow.state == JobState.RUNNING.value)
            .order_by(JobProblemRow.number)
        )
        return list(session.scalars(query))


def _put_back(row: JobProblemRow, job: JobRow) -> None:
    """Queue a problem of a locked job again, with a new entry, or cancel it with its job."""
    row.state = (JobState.QUEUED if job.state in OPEN_WORDS else JobState.CANCELLED).value
    row.entry = None
