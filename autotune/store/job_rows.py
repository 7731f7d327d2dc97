"""The tables of jobs, what is told of them, and rows made from values and back."""

import enum
import json
from dataclasses import dataclass

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from autotune.model.trial import Request
from autotune.store.models import Base, ProblemRow, plain_text, to_problem


class JobState(enum.Enum):
    """Of a job, and of each of its problems."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Of a job: every problem has ended, and one failed at least."""
    CANCELLED = "cancelled"


OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})
OPEN_WORDS = sorted(state.value for state in OPEN)


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
    model: Mapped[str] = mapped_column(String(16), default="")
    """Digest of driver and limits of the device that began it: only workers with an equal one go on with it."""
    state: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text)
    submitter: Mapped[str] = mapped_column(String(100), index=True)
    """Scope of the token and address that it came with."""
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
    submitter: str = ""
    """Who asks, as far as the service can tell; each has a limit."""


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


def job_problem_row(job_id: int, number: int, problem_id: int, request: Request, candidate: str) -> JobProblemRow:
    """A row without an id."""
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


def to_job(row: JobRow, counts: dict[str, int], problems: tuple[JobProblem, ...]) -> TuningJob:
    """The inverse, with what is counted elsewhere."""
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


def to_job_problem(row: JobProblemRow, problem: ProblemRow) -> JobProblem:
    """The inverse of `job_problem_row`."""
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
