"""The tables of jobs, the values that callers see, and conversions between rows and values."""

import enum
from dataclasses import dataclass

from sqlalchemy import BigInteger, CheckConstraint, Connection, ForeignKey, String, Text, select
from sqlalchemy.orm import Mapped, mapped_column

from autotune.errors import StoreError
from autotune.model.trial import Request
from autotune.store.models import Base, ProblemRow, plain_text, to_problem, value_of
from autotune.store.owner import Attempt


class JobState(enum.Enum):
    """The state of a job, or of one of its problems."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """For a job: every problem has ended and at least one failed."""
    CANCELLED = "cancelled"


OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})
OPEN_WORDS = sorted(state.value for state in OPEN)


class JobKind(enum.Enum):
    """What a job does with each problem."""

    TUNE = "tune"
    VERIFY = "verify"
    """Measure a winner from elsewhere here, against the default and what is known."""


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
    """Slug, possibly of a device that was never seen here."""
    trials: Mapped[int | None] = mapped_column(BigInteger)
    seconds: Mapped[float | None]
    algorithms: Mapped[str] = mapped_column(Text)
    """JSON list of names."""
    seed: Mapped[int] = mapped_column(BigInteger)
    model: Mapped[str] = mapped_column(String(16), default="")
    """Digest of driver and limits of the device that began the job: only workers with an equal one continue it."""
    state: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text)
    submitter: Mapped[str] = mapped_column(String(100), index=True)
    """Scope of the token and address that the job came with."""
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
    """Table entry to verify, as JSON."""
    state: Mapped[str] = mapped_column(String(16), index=True, default=JobState.QUEUED.value)
    worker: Mapped[str] = mapped_column(Text, default="")
    service: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Address of the service that took it last."""
    attempts: Mapped[int] = mapped_column(default=0)
    trials_before: Mapped[int | None] = mapped_column(BigInteger)
    share_s: Mapped[float] = mapped_column(default=0.0)
    spent_s: Mapped[float] = mapped_column(default=0.0)
    outcome: Mapped[str] = mapped_column(Text, default="")
    message: Mapped[str] = mapped_column(Text, default="")
    entry: Mapped[int | None] = mapped_column(BigInteger, index=True)
    """Id of its entry in the engine's queue (`entries.py`); None before there is one, and without an engine."""
    entry_model: Mapped[str] = mapped_column(String(16), default="", server_default="")
    """Model of the job when the entry was made, which decides in which queue it is."""


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to queue."""

    kind: JobKind
    device: str
    requests: tuple[Request, ...]
    candidates: tuple[str, ...] = ()
    """Table entries as JSON, one for each request of a verifying job."""
    trials: int | None = None
    """Number of new trials for each problem."""
    seconds: float | None = None
    """Device time for all problems together."""
    algorithms: tuple[str, ...] = ()
    seed: int = 0
    submitter: str = ""
    """Identifies the submitter as far as the service can; limits apply per submitter."""


@dataclass(frozen=True, kw_only=True)
class JobProblem:
    """One problem of a job, and its progress."""

    id: int
    number: int
    request: Request
    candidate: str
    state: JobState
    worker: str
    """Name of the worker that works on it, or did."""
    service: str
    """Address of the service that searches it, or did."""
    attempts: int
    """How often a device took it."""
    trials_before: int
    """Search trials in the ledger when it was first begun."""
    share_s: float
    """Its share of the job's seconds, once begun; infinite without a limit."""
    spent_s: float
    outcome: str
    """JSON, once it has ended."""
    message: str


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """One job, and its progress."""

    id: int
    kind: JobKind
    device: str
    model: str
    """Digest of driver and limits of the device that began the job; empty before."""
    trials: int | None
    seconds: float | None
    algorithms: tuple[str, ...]
    seed: int
    state: JobState
    message: str
    created_at: str
    ended_at: str
    counts: dict[str, int]
    """Number of problems by state."""
    problems: tuple[JobProblem, ...] = ()
    """Empty where several jobs are listed."""


def job_problem_row(job_id: int, number: int, problem_id: int, request: Request, candidate: str) -> JobProblemRow:
    """Return a row without an id."""
    return JobProblemRow(
        job_id=job_id,
        number=number,
        problem_id=problem_id,
        calls=request.calls,
        label=plain_text(request.label),
        candidate=candidate,
    )


def to_job(row: JobRow, counts: dict[str, int], problems: tuple[JobProblem, ...]) -> TuningJob:
    """Return the job of a row, with counts and problems that the caller has read."""
    return value_of(TuningJob, row, counts=counts, problems=problems)


def to_job_problem(row: JobProblemRow, problem: ProblemRow) -> JobProblem:
    """The inverse of `job_problem_row`."""
    request = Request(problem=to_problem(problem.family, problem.spec), calls=row.calls, label=row.label)
    share_s, before = row.share_s or float("inf"), row.trials_before or 0
    return value_of(JobProblem, row, request=request, share_s=share_s, trials_before=before)


def check_attempt(connection: Connection, attempt: Attempt) -> None:
    """Raise StoreError if an attempt at a problem is over, as when another service has taken the problem meanwhile.

    Called in the transaction that begins a trial. The lock excludes the one that takes the problem away (`recover`),
    and no other.
    """
    query = select(JobProblemRow.id).where(
        JobProblemRow.id == attempt.problem,
        JobProblemRow.attempts == attempt.number,
        JobProblemRow.state == JobState.RUNNING.value,
    )
    if connection.execute(query.with_for_update(read=True, key_share=True)).first() is None:
        raise StoreError("this search now belongs to another service")
