"""Values exchanged between processes: a measuring process takes a `Job` and returns a `Trial`.

For building without running, a process takes a `BuildJob` and returns a `Build`.
"""

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, nan
from typing import Annotated, ClassVar

from autotune.codec import COUNT, LOCAL, MAX_NUMBER, Bounds, Items, Null, Pattern
from autotune.model.configuration import Configuration
from autotune.model.plan import Plan
from autotune.model.problem import Problem

MAX_TIME_NS = 1e15
"""Eleven days."""
MAX_SAMPLES = 10_000
_TIME, _SPAN = Bounds(0, MAX_TIME_NS, excludes_least=True), Bounds(0, MAX_TIME_NS)
_LIMIT = Bounds(0, 86_400, excludes_least=True)
_MOMENT = Pattern(
    r"(?a:\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(Z|\+00:00))",
    "must be a moment in UTC such as 2026-01-31T12:00:00Z",
)

BUILD_LIMIT_S = 60.0
RUN_LIMIT_S = 30.0
"""Time limit for a build when nothing is known about the device yet."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A problem to tune and how often the application calls it."""

    problem: Problem
    calls: int = 1
    label: str = ""
    """Origin of the problem, such as ``conv2_x 3x3``."""


class TrialState(enum.Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    INVALID = "invalid"
    """Breaks a constraint that is known only after building (work-group limit of the kernel)."""
    COMPILE_FAILED = "compile failed"
    LAUNCH_FAILED = "launch failed"
    WRONG_RESULT = "wrong result"
    TIMED_OUT = "timed out"
    """Hung: it exceeded the full limit, BUILD_LIMIT_S or RUN_LIMIT_S, though the machine was not busy."""
    CUT_SHORT = "cut short"
    """Exceeded a limit that the budget had shortened, or the full limit on a busy machine, or was killed from outside,
    as when memory runs out: a sound kernel may."""
    CRASHED = "crashed"
    TOO_SLOW = "too slow"
    """Only a probe ran: extrapolated, the full launch would take far too long. Or cut off; see `Job.is_cut_off`."""
    TOOL_FAILED = "tool failed"
    """An exception in autotune itself ended the trial; the kernel may be fine."""


QUARANTINED_STATES = frozenset({TrialState.CRASHED, TrialState.TIMED_OUT})
"""Configurations whose trial ended so are not run again by default: they cost a process, and may hang the machine."""


class Timer(enum.Enum):
    """Source of a time."""

    EVENT = "event"
    """Profiling events of the device, verified to agree with the host clock."""
    HOST = "host"
    """Host clock around a batch, including launch overhead."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How the event times of a device behave, and what a launch costs the host."""

    timer: Timer
    """EVENT if event times are reliable."""
    reason: str = ""
    """Why event times are not reliable."""
    tick_ns: float = 0.0
    """Smallest difference between event times seen; 0 when no two differ."""
    told_tick_ns: float = 0.0
    """Timer resolution reported by the driver."""
    launch_overhead_ns: float = 0.0
    """Host time of each of many empty launches in a row."""
    launch_latency_ns: float = 0.0
    """Time from one empty launch until the host knows that it has ended."""
    clock_speed: float = 0.0
    """Speed of the device's clock relative to the host's; 1 unless the observations rule that out."""
    drift: float = 0.0
    """Least change of that speed during the calibration that the observations prove; 0.01 is 1%."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration to build, verify and time on one device."""

    selector: str = field(metadata=LOCAL)
    """`platform:device` numbers."""
    problem: Problem
    configuration: Configuration
    build_options: tuple[str, ...] = field(default=(), metadata=LOCAL)
    """Options of the device profile; those of the plan follow them."""
    source: str = field(default="", metadata=LOCAL)
    """OpenCL C of the kernels, if already rendered."""
    binary: bytes = field(default=b"", repr=False, metadata=LOCAL)
    """Binary of the program, if already built; if the driver rejects it, the program is built from source."""
    seed: Annotated[int, Bounds(0, 2**31)] = 0
    """Seed of the inputs. Jobs with the same seed share inputs and reference, which saves time."""
    placement: Annotated[int, Bounds(0, MAX_SAMPLES)] = 0
    """Number of the set of buffers to use. Where buffers lie in memory changes the times of short kernels by some
    percent; those of large problems have one place only."""
    samples: Annotated[int, Bounds(0, MAX_SAMPLES)] = 7
    min_sample_ns: Annotated[int, _SPAN] = 2_000_000
    """A sample repeats the call until it lasts this long."""
    min_sample_ticks: Annotated[int, Bounds(0, 10**9)] = 1000
    """Minimum length of a sample in ticks, if events are the timer."""
    agreement: Annotated[float, Bounds(0, 1)] = 0.0
    """Sampling ends early when at least FEW samples differ by no more than this fraction; 0 turns that off."""
    FEW: ClassVar[int] = 3
    burst_ns: Annotated[float, _SPAN] = 0.0
    """If above 0, calls are timed in bursts of about this length, as an application makes them."""
    pause_ns: Annotated[float, _SPAN] = 0.0
    """Time between bursts, in which a device may lower its clocks."""
    give_up_above_ns: Annotated[float, Bounds(0, inf, excludes_least=True), Null(inf)] = inf
    """One sample is enough for a call slower than this."""
    FAR_TOO_SLOW: ClassVar[float] = 20.0
    """A call is not run in full if its probe predicts more than this many times `give_up_above_ns`."""
    verify: bool = True
    verifications: Annotated[int, Bounds(0, MAX_SAMPLES)] = 0
    """Number of runs to check, on several fresh inputs; they replace the two runs that `verify` implies."""
    probe: bool = True
    """The first run of a configuration in a process is a probe, which covers only a small part of its range."""
    timer: Timer = Timer.EVENT
    """HOST if the times to compare with come from the host clock; EVENT leaves the choice to the calibration."""
    build_limit_s: Annotated[float, _LIMIT] = BUILD_LIMIT_S
    run_limit_s: Annotated[float, _LIMIT] = RUN_LIMIT_S
    is_cut_off: bool = False
    """A run beyond `run_limit_s` counts as too slow, not as timed out: the limit is how long waiting is worthwhile."""

    SETTLING_NS: ClassVar[float] = 0.5e9
    """Bursts before those that count, in all: the governors of clocks look at the load of tens of milliseconds."""
    PATIENCE_NS: ClassVar[float] = 4e9
    """Sampling ends early after this time."""

    @property
    def rhythm_s(self) -> float:
        """Longest time that bursts and pauses take, if there are any."""
        if not self.burst_ns:
            return 0.0
        return (self.SETTLING_NS + self.PATIENCE_NS + 3 * (self.burst_ns + self.pause_ns)) / 1e9


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times of one call, nanoseconds: all launches of the plan except those that only prepare a constant operand."""

    time_ns: Annotated[float, _TIME]
    """Median of the samples."""
    samples_ns: Annotated[tuple[Annotated[float, _TIME], ...], Items(MAX_SAMPLES)]
    calls_per_sample: Annotated[int, Bounds(1, MAX_NUMBER)]
    timer: Timer
    prepare_ns: Annotated[float, _SPAN] = 0.0
    """The part of `time_ns` spent converting operands to another layout."""
    launch_overhead_ns: Annotated[float, _SPAN] = 0.0
    """Host time of a call beyond `time_ns`; with Timer.HOST, an upper bound on the part of `time_ns` spent launching.
    """
    build_ns: Annotated[float, _SPAN] = 0.0
    inputs_ns: Annotated[float, _SPAN] = field(default=0.0, compare=False)
    """Host time to draw inputs and check results; small if inputs were reused. Not stored in the ledger."""
    is_first: bool = field(default=False, compare=False)
    """Whether nothing ran before it in its process, so that the trial took longer. Not stored in the ledger."""
    error_ratio: Annotated[float, Bounds(0, 1)] = 0.0
    """Largest error divided by its tolerance."""
    private_memory_bytes: int = 0
    kernel_work_group_limit: int = 0
    clock_mhz: Annotated[float | None, Bounds(0, 1e9)] = None
    """Clock of the device after the last sample, if the system reports it."""
    temperature_c: Annotated[float | None, Bounds(-1e6, 1e6)] = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration measured once, or the way it failed."""

    configuration: Configuration
    state: TrialState
    measurement: Measurement | None = None
    message: str = ""
    seed: Annotated[int, Bounds(0, 2**31)] = 0

    @property
    def time_ns(self) -> float:
        """Time of one call; infinite unless complete."""
        return self.measurement.time_ns if self.measurement else float("inf")


class BuildState(enum.Enum):
    """How a build without a run ended."""

    BUILT = "built"
    FAILED = "failed"
    """The compiler rejected the source."""
    TIMED_OUT = "timed out"
    CUT_SHORT = "cut short"
    """It exceeded a limit below BUILD_LIMIT_S, or that limit on a busy machine, or was killed from outside."""
    CRASHED = "crashed"
    TOOL_FAILED = "tool failed"
    """An exception in autotune itself ended the build; the source may be fine."""


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """One source to build for one device without running it."""

    selector: str
    source_hash: str
    """Hash of source and options; many configurations may share it."""
    source: str
    options: tuple[str, ...]
    plan: Plan
    """Plan of one of the configurations that share the source; it names the kernels."""
    launches: bool = False
    """Whether to launch one work-group too: some drivers compile a kernel fully, and cache it, only at its launch."""
    wants_binary: bool = False
    """Whether the measuring process needs the binary; not returned if the driver itself caches builds of others."""
    limit_s: float = BUILD_LIMIT_S


@dataclass(frozen=True, kw_only=True)
class Build:
    """What the driver reported for one source; numbers are 0 if it does not report them or did not build the source."""

    source_hash: str
    state: BuildState
    message: str = ""
    build_ns: float = 0.0
    private_memory_bytes: int = 0
    """Largest of the kernels except those that only prepare operands; above 0, a GPU spills registers."""
    work_group_limit: int = 0
    """Smallest of the same kernels, work-items."""
    binary_bytes: int = 0
    binary: bytes = field(default=b"", repr=False)
    """The program if `wants_binary` requested it, which saves the measuring process a build. Not stored."""


def now_utc() -> str:
    """Return the current time in its stored form: UTC, ISO 8601, seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a measurement depends on besides problem and configuration."""

    driver: str
    template_hash: str
    space_version: Annotated[int, COUNT]
    tool_version: str
    measured_at: Annotated[str, _MOMENT]
    """UTC, ISO 8601, seconds."""


class Verdict(enum.Enum):
    """Why a configuration is the winner."""

    FASTER = "faster"
    """Significantly faster than the default."""
    TIE = "tie"
    """No significant difference between default and fastest: the default stays, unless it is slower than the
    baseline."""
    DEFAULT = "default"
    """The default itself is significantly the fastest."""
    DEFAULT_FAILED = "default failed"
    """There is no default to compare with: it did not run, or its result was wrong."""
    PROVISIONAL = "provisional"
    """Not confirmed by finals: the default, unless it does not run, or was slower in all rounds that there were."""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The configuration to use for one problem on one device, and the evidence for it.

    A gain of 2.0 means twice as fast. `gain_low` and `gain_high` are the 95% interval of the gain over the default;
    they are 1.0 if the default itself is the winner, as after a tie, and NaN for a provisional winner.
    """

    device: str
    """Slug of the device."""
    problem: Problem
    configuration: Configuration
    time_ns: Annotated[float, _TIME]
    default_ns: Annotated[float, _TIME]
    """The default's time under the same conditions: the median gain within a round of the finals times `time_ns`. For
    a provisional winner it is the time in the search, measured at another moment."""
    baseline_ns: Annotated[float | None, _TIME]
    """Time of the family's baseline (such as `naive`), if measured."""
    gain_low: Annotated[float, _TIME, Null(nan)]
    gain_high: Annotated[float, _TIME, Null(nan)]
    samples: Annotated[int, COUNT]
    """Samples in the final rounds; 0 for a provisional winner."""
    is_default: bool
    verdict: Verdict
    verifications: Annotated[int, COUNT]
    """Runs with a right result on fresh inputs after the finals; 0 for a provisional winner."""
    provenance: Provenance
    source: str = "measured"
    """`measured`, or `imported` from a table."""

    @property
    def gain_over_default(self) -> float | None:
        """The gain that turns with the default showed; None for a provisional winner."""
        return self.default_ns / self.time_ns if self.is_final else None

    @property
    def gain_over_baseline(self) -> float | None:
        return self.baseline_ns / self.time_ns if self.baseline_ns else None

    @property
    def gflops(self) -> float:
        return self.problem.flops / self.time_ns

    @property
    def is_final(self) -> bool:
        return self.samples > 0


def time_text(time_ns: float) -> str:
    """Format a time with four digits and a unit: ``12.34 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.4g} {unit}"
    return f"{time_ns:.4g} ns"
