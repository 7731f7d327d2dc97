"""Request and response bodies of the API. The OpenAPI document is generated from them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from autotune.service.store.jobs import JobKind, JobState

MAX_SHAPES = 2000
MAX_TRIALS = 1_000_000
MAX_SECONDS = 366 * 24 * 3600
MAX_WORKER_NAME = 100
MAX_RESULTS = 4
SECRET_DIGITS = r"^[0-9a-f]{64}$"  # noqa: S105 - a pattern
SESSION = r"^[0-9a-f]{32}$"

NAME = r"^[A-Za-z0-9 ._:,()+@/-]+$"
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

Shape = Annotated[str, Field(max_length=500, pattern=_PRINTABLE)]
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_-]+$")]
PresetName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_.-]+$")]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobForm(_Form):
    """What to tune, where, and for how long."""

    device: str = Field(max_length=200, min_length=1, pattern=NAME, description="slug, family, or part of a name")
    family: Word = Field("gemm", description="kernel family of `shapes`; each preset has its own")
    shapes: list[Shape] = Field([], max_length=MAX_SHAPES, description="lines as in a shapes file, also CSV")
    presets: list[PresetName] = Field([], max_length=20, description="names of presets, each the products of a network")
    trials: int | None = Field(None, ge=1, le=MAX_TRIALS, description="maximum number of new trials for each shape")
    seconds: float | None = Field(
        None, gt=0, le=MAX_SECONDS, allow_inf_nan=False, strict=False, description="device time for all shapes together"
    )
    algorithms: list[Word] = Field([], max_length=50, description="search only these")
    seed: int = Field(0, ge=0, lt=2**31)

    model_config = ConfigDict(  # beside that of the base class
        json_schema_extra={
            "examples": [{"device": "adreno-730", "shapes": ["64,3136,576 x3 conv2_x 3x3"], "trials": 100}]
        },
    )


class LineFault(BaseModel):
    """A line of `shapes` that cannot be tuned."""

    line: int = Field(description="from 1, blank lines included")
    message: str


class CheckAnswer(BaseModel):
    """What a job would do, if it were submitted."""

    faults: list[LineFault]
    sizes: int = Field(description="number of problems, without those of faulty lines")
    left_out: list[str] = Field(description="shapes of presets that the device cannot hold")
    seconds: float | None = Field(description="estimated device time; null before the device has ended a job")


class AllowForm(_Form):
    """A configuration to take out of quarantine."""

    family: Word
    shape: Shape
    configuration: dict[str, Any] = Field(description="as the quarantine shows it")


class WorkerForm(_Form):
    """A device offered by a worker."""

    name: str = Field(min_length=1, max_length=MAX_WORKER_NAME, pattern=NAME)
    secret: str = Field(pattern=SECRET_DIGITS, description="random, kept by the worker: proves that it owns the name")
    session: str = Field(pattern=SESSION, description="random, chosen by the worker process; part of every turn")
    code: str = Field(
        min_length=1, max_length=100, pattern=NAME, description="identifies the wire format and templates"
    )
    selector: str = Field(max_length=20, pattern=r"^[0-9:]*$", description="platform:device on the worker's machine")
    device: dict[str, Any] = Field(description="as in an exported table, with `entries` empty")
    results: list[dict[str, Any]] = Field([], max_length=MAX_RESULTS, description="results left from earlier")


class TurnForm(_Form):
    """A worker reports what it is measuring, delivers results, and asks for the next trial."""

    session: str = Field(pattern=SESSION)
    running: str = Field("", max_length=32, pattern=r"^[0-9a-f]*$", description="the trial that is being measured")
    waited_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        strict=False,
        description="how long the trial being measured waited for another program that measures on the device",
    )
    results: list[dict[str, Any]] = Field([], max_length=MAX_RESULTS)
    wait_s: float = Field(0.0, ge=0, le=30, allow_inf_nan=False, strict=False)


class LeaveForm(_Form):
    """Notice that a worker ends."""

    session: str = Field(pattern=SESSION)


class Refusal(BaseModel):
    """Why a request was refused."""

    message: str
    hint: str = ""


class RefusalAnswer(BaseModel):
    """The body of every refusal."""

    error: Refusal


class ProblemView(BaseModel):
    """One problem of a job."""

    number: int
    family: str
    shape: str
    problem: dict[str, Any]
    flops: int
    bytes_moved: int
    calls: int
    label: str
    state: JobState
    worker: str
    service: str = Field(description="while running: the address of the other service that searches it")
    attempts: int
    spent_s: float
    message: str
    outcome: dict[str, Any] | None = Field(
        description="tune: winner (an entry of a table), new_trials, resumed_trials, failures; verify: winner, result"
    )
    progress: dict[str, Any] | None = Field(description="while running: the latest event of each name")


class JobView(BaseModel):
    """A job and its progress."""

    id: int
    kind: JobKind = Field(description="tune; or verify, for an uploaded table")
    device: str
    model: str = Field(description="that of the device that began the job, as of a worker; empty before")
    state: JobState
    trials: int | None
    seconds: float | None
    algorithms: list[str]
    seed: int
    message: str
    created_at: str
    ended_at: str
    counts: dict[str, int] = Field(description="number of problems in each state")
    problems: list[ProblemView] = Field(description="empty in lists of jobs")
    left_out: list[str] = Field([], description="shapes of presets that the device cannot hold; only after submitting")


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobView]


class StationView(BaseModel):
    """One device of one worker."""

    worker: str
    selector: str
    model: str = Field(description="digest of driver and limits: a job goes on only on devices with an equal one")
    state: str = Field(description="idle, busy, troubled or lost")
    since: str
    heard_s: float = Field(description="seconds since the worker was last heard from")
    trials: int = Field(description="number of trials measured since it was offered")
    trouble: str
    job: int | None
    problem: int | None


class DeviceView(BaseModel):
    """A device that is stored or that a worker offers."""

    slug: str
    family: str
    vendor: str
    model: str
    name: str
    driver: str
    state: str = Field(description="idle, busy, troubled, or offline when no worker offers it")
    tuned: int = Field(description="number of problems with a winner")
    stations: list[StationView]


class DeviceList(BaseModel):
    """Devices, sorted by slug."""

    devices: list[DeviceView]


class TunedAnswer(BaseModel):
    """The configuration to use, and where it comes from."""

    device: str
    family: str
    shape: str
    problem: dict[str, Any]
    match: str = Field(description="exact, nearest, sibling, vendor, default or presumed")
    configuration: dict[str, Any]
    source_problem: dict[str, Any] | None
    source_device: str | None
    time_ns: float | None
    driver: str | None
    because: str


class WinnerList(BaseModel):
    """The winners of a device, as entries of an exported table."""

    device: str
    entries: list[dict[str, Any]]


class TrialView(BaseModel):
    """One trial of the ledger."""

    configuration: dict[str, Any]
    state: str
    time_ns: float | None
    purpose: str
    message: str
    measured_at: str
    driver: str


class TrialList(BaseModel):
    """Trials, oldest first."""

    device: str
    family: str
    shape: str
    trials: list[TrialView]
    next: int | None = Field(None, description="the `offset` of the trials after these; null after the last")


class UploadAnswer(BaseModel):
    """How an uploaded table is processed."""

    jobs: list[int] = Field(description="queued, one for each device; only what they measure counts")
    accepted: int
    left_out: int = Field(description="number of winners already confirmed here")


class PresetView(BaseModel):
    """The matrix products of a network."""

    name: str
    meaning: str
    family: str
    group: str
    """The model of which this is one of several presets; empty for others."""
    shapes: int
    calls: int


class PresetList(BaseModel):
    """All presets."""

    presets: list[PresetView]


class FamilyView(BaseModel):
    """A kernel family."""

    name: str
    meaning: str
    shape_format: str = Field(description="how a shape is written")
    shape_examples: list[str]
    axes: list[str] = Field(description="names of the sizes of a problem")


class FamilyList(BaseModel):
    """All kernel families of the service."""

    families: list[FamilyView]


class FormatView(BaseModel):
    """A format in which tables can be downloaded."""

    name: str
    title: str
    families: list[str]
    """What it can hold."""


class FormatList(BaseModel):
    """All formats of downloads."""

    formats: list[FormatView]


class GreetingAnswer(BaseModel):
    """The offered device was accepted."""

    id: str
    wait_s: float = Field(description="the longest that a turn may wait, in seconds")


class TurnAnswer(BaseModel):
    """The trial to measure next, in the format of `autotune.service.remote.wire`; null means to ask again."""

    trial: dict[str, Any] | None
    refused: str = Field(default="", description="why a delivered result does not count")
    is_stored: bool = Field(default=True, description="false if the results must be delivered again: they may be lost")


class Health(BaseModel):
    """Status and version of the service."""

    status: str
    tool_version: str
    code: str
