"""The service's jobs: tables, values, and the few transactions that move them on.

A job names a device and what to tune or to verify there; each of its problems is a row that a device takes, works on
and ends. What was running when the service went is queued again: the ledger of trials has what was measured by then,
and the row how much of the budget is spent. One service works on a database at a time.
"""

import enum
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, Text, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.family import Problem
from autotune.store.models import Base, DeviceRow, ProblemRow, TrialRow, plain_text, to_problem
from autotune.trial import Request

_Result = TypeVar("_Result")


class JobState(enum.Enum):
    """Of a job, and of each of its problems."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Of a job: every problem has ended, and one failed at least."""
    CANCELLED = "cancelled"


OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})
_OPEN_WORDS = sorted(state.value for state in OPEN)


class JobKind(enum.Enum):
    """What is done with each problem."""

    TUNE = "tune"
    VERIFY = "verify"
    """A winner measured elsewhere is measured here, against the default and what is known."""


_STATES = "state IN ('queued', 'running', 'done', 'failed', 'cancelled')"


class JobRow(Base):
    """One job."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("kind IN ('tune', 'verify')", name="kind"),
        CheckConstraint(_STATES, name="state"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    device: Mapped[str] = mapped_column(Text)
    """Slug; the device may be one that was never seen here."""
    trials: Mapped[int | None] = mapped_column(BigInteger)
    seconds: Mapped[float | None]
    algorithms: Mapped[str] = mapped_column(Text)
    """JSON list of names."""
    seed: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(Text)
    ended_at: Mapped[str] = mapped_column(Text)


class JobProblemRow(Base):
    """One problem of a job."""

    __tablename__ = "job_problems"
    __table_args__ = (CheckConstraint(_STATES, name="state"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    number: Mapped[int]
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    calls: Mapped[int] = mapped_column(BigInteger)
    label: Mapped[str] = mapped_column(Text)
    candidate: Mapped[str] = mapped_column(Text)
    """To verify: an entry of a table, as JSON."""
    state: Mapped[str] = mapped_column(String(16), index=True)
    worker: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int]
    trials_before: Mapped[int | None] = mapped_column(BigInteger)
    share_s: Mapped[float]
    spent_s: Mapped[float]
    outcome: Mapped[str] = mapped_column(Text)
    message: Mapped[str] = mapped_column(Text)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """What is asked for."""

    kind: JobKind
    device: str
    requests: tuple[Request, ...]
    candidates: tuple[str, ...] = ()
    """One for each request of a job that verifies."""
    trials: int | None = None
    """New ones for each problem."""
    seconds: float | None = None
    """Of device time, for all problems together."""
    algorithms: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class JobProblem:
    """One problem of a job, and how far it is."""

    id: int
    number: int
    request: Request
    candidate: str
    state: JobState
    worker: str
    """Name of the one that works on it, or did."""
    attempts: int
    """How often a device took it."""
    trials_before: int
    """In the ledger when it was first begun."""
    share_s: float
    """Of the job's seconds, once begun; infinite without a limit."""
    spent_s: float
    outcome: str
    """JSON, once it has ended."""
    message: str


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """One job, and how far it is."""

    id: int
    kind: JobKind
    device: str
    trials: int | None
    seconds: float | None
    algorithms: tuple[str, ...]
    seed: int
    state: JobState
    message: str
    created_at: str
    ended_at: str
    counts: dict[str, int]
    """Problems by state."""
    problems: tuple[JobProblem, ...] = ()
    """Only where one job is asked for."""


class _Transact(Protocol):
    def __call__(self, work: Callable[[Session], _Result]) -> _Result: ...


class JobLedger:
    """The jobs of an open database. Every method is one transaction, and raises StoreError when that fails."""

    def __init__(self, read: _Transact, write: _Transact, problem_id: Callable[[Session, Problem], int]) -> None:
        """For `Store.jobs` only."""
        self._read = read
        self._write = write
        self._problem_id = problem_id

    def add(self, new: NewJob) -> int:
        """Queue a job; its number."""

        def work(session: Session) -> int:
            row = JobRow(
                kind=new.kind.value,
                device=new.device,
                trials=new.trials,
                seconds=new.seconds,
                algorithms=json.dumps(new.algorithms),
                seed=new.seed,
                state=JobState.QUEUED.value,
                message="",
                created_at=_now(),
                ended_at="",
            )
            session.add(row)
            session.flush()
            candidates = new.candidates or ("",) * len(new.requests)
            for number, (request, candidate) in enumerate(zip(new.requests, candidates, strict=True)):
                problem_id = self._problem_id(session, request.problem)
                session.add(_problem_row(row.id, number, problem_id, request, candidate))
            return row.id

        return self._write(work)

    def get(self, job_id: int) -> TuningJob | None:
        """A job with its problems."""

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
            problems = tuple(_to_problem(*found) for found in session.execute(query))
            return _to_job(row, _counts(session, [job_id])[job_id], problems)

        return self._read(work)

    def newest(self, most: int, before: int | None = None, states: Collection[JobState] = ()) -> list[TuningJob]:
        """Jobs without their problems, the newest first; only those with a lower number than `before`."""

        def work(session: Session) -> list[TuningJob]:
            query = select(JobRow).order_by(JobRow.id.desc()).limit(most)
            if before is not None:
                query = query.where(JobRow.id < before)
            if states:
                query = query.where(JobRow.state.in_(sorted(state.value for state in states)))
            rows = list(session.scalars(query))
            counts = _counts(session, [row.id for row in rows])
            return [_to_job(row, counts[row.id], ()) for row in rows]

        return self._read(work)

    def open_counts(self) -> tuple[int, int]:
        """Jobs that have not ended, and their problems that have not."""

        def work(session: Session) -> tuple[int, int]:
            jobs, problems = (
                session.scalar(select(func.count()).select_from(table).where(table.state.in_(_OPEN_WORDS))) or 0
                for table in (JobRow, JobProblemRow)
            )
            return jobs, problems

        return self._read(work)

    def waiting(self) -> set[str]:
        """Slugs of the devices that have something queued."""
        query = (
            select(JobRow.device)
            .join(JobProblemRow, JobProblemRow.job_id == JobRow.id)
            .where(JobProblemRow.state == JobState.QUEUED.value)
            .distinct()
        )
        return self._read(lambda session: set(session.scalars(query)))

    def take(self, device: str, worker: str) -> tuple[TuningJob, JobProblem] | None:
        """The next problem queued for a device, which is running from now on; its job comes without problems."""

        def work(session: Session) -> tuple[TuningJob, JobProblem] | None:
            query = (
                select(JobProblemRow, JobRow, ProblemRow)
                .join(JobRow, JobRow.id == JobProblemRow.job_id)
                .join(ProblemRow, ProblemRow.id == JobProblemRow.problem_id)
                .where(JobRow.device == device, JobProblemRow.state == JobState.QUEUED.value)
                .order_by(JobRow.id, JobProblemRow.number)
                .limit(1)
            )
            found = session.execute(query).first()
            if found is None:
                return None
            row, job, problem = found
            if row.trials_before is None:
                row.trials_before = _search_trials(session, device, problem.id)
                row.share_s = _share(session, job)
            row.state = job.state = JobState.RUNNING.value
            row.worker = plain_text(worker)
            row.attempts += 1
            session.flush()
            return _to_job(job, _counts(session, [job.id])[job.id], ()), _to_problem(row, problem)

        return self._write(work)

    def new_trials(self, device: str, problem: JobProblem) -> int:
        """Trials of the search that the ledger has of a problem since it was first begun."""
        spec = problem.request.problem

        def work(session: Session) -> int:
            query = select(ProblemRow.id).where(ProblemRow.family == spec.family, ProblemRow.spec == spec.key)
            return _search_trials(session, device, session.scalars(query).one()) - problem.trials_before

        return self._read(work)

    def spend(self, problem_id: int, spent_s: float) -> None:
        """Note what is spent so far."""
        self._change(problem_id, {"spent_s": spent_s})

    def requeue(self, problem_id: int, spent_s: float, message: str) -> None:
        """Begun, and to be gone on with; what was cancelled meanwhile stays cancelled."""

        def work(session: Session) -> None:
            row = session.get_one(JobProblemRow, problem_id)
            row.spent_s, row.message = spent_s, plain_text(message)
            is_cancelled = session.get_one(JobRow, row.job_id).state == JobState.CANCELLED.value
            row.state = (JobState.CANCELLED if is_cancelled else JobState.QUEUED).value

        self._write(work)

    def end(self, problem_id: int, state: JobState, *, outcome: str = "", message: str = "") -> None:
        """A problem has ended, and its job with the last one."""

        def work(session: Session) -> None:
            row = session.get_one(JobProblemRow, problem_id)
            row.state, row.outcome, row.message = state.value, outcome, plain_text(message)
            session.flush()
            _settle(session, row.job_id)

        self._write(work)

    def cancel(self, job_id: int) -> bool:
        """Whether there was anything left to cancel; what is running is to be stopped by the caller."""

        def work(session: Session) -> bool:
            row = session.get_one(JobRow, job_id)
            if row.state not in _OPEN_WORDS:
                return False
            row.state, row.ended_at = JobState.CANCELLED.value, _now()
            queued = (JobProblemRow.job_id == job_id, JobProblemRow.state == JobState.QUEUED.value)
            session.execute(update(JobProblemRow).where(*queued).values(state=JobState.CANCELLED.value))
            return True

        return self._write(work)

    def recover(self) -> int:
        """Queue what was running when the service before went; how many problems."""

        def work(session: Session) -> int:
            query = (
                select(JobProblemRow, JobRow)
                .join(JobRow, JobRow.id == JobProblemRow.job_id)
                .where(JobProblemRow.state == JobState.RUNNING.value)
            )
            found = session.execute(query).all()
            for row, job in found:
                is_cancelled = job.state == JobState.CANCELLED.value
                row.state = (JobState.CANCELLED if is_cancelled else JobState.QUEUED).value
            return len(found)

        return self._write(work)

    def _change(self, problem_id: int, values: dict[str, Any]) -> None:
        self._write(
            lambda session: session.execute(
                update(JobProblemRow).where(JobProblemRow.id == problem_id).values(**values)
            )
        )


def _problem_row(job_id: int, number: int, problem_id: int, request: Request, candidate: str) -> JobProblemRow:
    return JobProblemRow(
        job_id=job_id,
        number=number,
        problem_id=problem_id,
        calls=request.calls,
        label=plain_text(request.label),
        candidate=candidate,
        state=JobState.QUEUED.value,
        worker="",
        attempts=0,
        trials_before=None,
        share_s=0.0,
        spent_s=0.0,
        outcome="",
        message="",
    )


def _share(session: Session, job: JobRow) -> float:
    """An even part, for a problem that begins, of the seconds that others have not used and will not use."""
    if job.seconds is None:
        return 0.0
    rows = session.scalars(select(JobProblemRow).where(JobProblemRow.job_id == job.id)).all()
    begun = [row for row in rows if row.trials_before is not None and row.share_s]
    ended = [row for row in begun if row.state not in _OPEN_WORDS]
    used = sum(row.spent_s for row in ended) + sum(row.share_s for row in begun if row not in ended)
    return max(1.0, (job.seconds - used) / max(1, len(rows) - len(begun)))


def _settle(session: Session, job_id: int) -> None:
    """End a job whose problems have all ended."""
    counts = _counts(session, [job_id])[job_id]
    job = session.get_one(JobRow, job_id)
    if job.state not in _OPEN_WORDS or any(counts.get(word) for word in _OPEN_WORDS):
        return
    job.state = (JobState.FAILED if counts.get(JobState.FAILED.value) else JobState.DONE).value
    job.ended_at = _now()


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


def _to_job(row: JobRow, counts: dict[str, int], problems: tuple[JobProblem, ...]) -> TuningJob:
    return TuningJob(
        id=row.id,
        kind=JobKind(row.kind),
        device=row.device,
        trials=row.trials,
        seconds=row.seconds,
        algorithms=tuple(json.loads(row.algorithms)),
        seed=row.seed,
        state=JobState(row.state),
        message=row.message,
        created_at=row.created_at,
        ended_at=row.ended_at,
        counts=counts,
        problems=problems,
    )


def _to_problem(row: JobProblemRow, problem: ProblemRow) -> JobProblem:
    request = Request(problem=to_problem(problem.family, problem.spec), calls=row.calls, label=row.label)
    return JobProblem(
        id=row.id,
        number=row.number,
        request=request,
        candidate=row.candidate,
        state=JobState(row.state),
        worker=row.worker,
        attempts=row.attempts,
        trials_before=row.trials_before or 0,
        share_s=row.share_s or float("inf"),
        spent_s=row.spent_s,
        outcome=row.outcome,
        message=row.message,
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
