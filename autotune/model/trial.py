"""What crosses process borders: a `Job` goes to where measuring happens, a `Trial` comes back.

Building without running has its own pair: a `BuildJob` goes, a `Build` comes back.
"""

import enum
import re
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
    re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(Z|\+00:00)", re.ASCII),
    "must be a moment in UTC such as 2026-01-31T12:00:00Z",
)

BUILD_LIMIT_S = 60.0
"""What building may take where nothing is known yet."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A problem to tune and how often the application calls it."""

    problem: Problem
    calls: int = 1
    label: str = ""
    """Where it comes from, such as ``conv2_x 3x3``."""


class TrialState(enum.Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    INVALID = "invalid"
    """Breaks a constraint that only showed after building (work-group limit of the kernel)."""
    COMPILE_FAILED = "compile failed"
    LAUNCH_FAILED = "launch failed"
    WRONG_RESULT = "wrong result"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    TOO_SLOW = "too slow"
    """Run on a small part of its range only, which tells that the whole would take far too long."""
    TOOL_FAILED = "tool failed"
    """An exception in this program ended the trial, which says nothing about the kernel."""


QUARANTINED_STATES = frozenset({TrialState.CRASHED, TrialState.TIMED_OUT})
"""What ended so is not run again unasked: it cost a process, and might have cost the machine."""


class Timer(enum.Enum):
    """Where a time comes from."""

    EVENT = "event"
    """Profiling events of the device, found to agree with the host clock."""
    HOST = "host"
    """Host clock around a batch, launch overhead included."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How the event times of a device behave, and what a launch costs the host."""

    timer: Timer
    """EVENT where event times may be believed."""
    reason: str = ""
    """Why they may not."""
    tick_ns: float = 0.0
    """Least difference of event times seen; 0 when no two differ."""
    told_tick_ns: float = 0.0
    """What the driver calls its resolution."""
    launch_overhead_ns: float = 0.0
    """Time of the host for each of many empty launches in a row."""
    launch_latency_ns: float = 0.0
    """From one empty launch to knowing that it has ended."""
    clock_speed: float = 0.0
    """Of the device's clock over the host's; 1 wherever nothing shows another one."""
    drift: float = 0.0
    """By how much that speed surely changed meanwhile: 0.01 is 1%."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration to build, verify and time on one device."""

    selector: str = field(metadata=LOCAL)
    """`platform:device` numbers."""
    problem: Problem
    configuration: Configuration
    build_options: tuple[str, ...] = field(default=(), metadata=LOCAL)
    """The device profile's, before those of the plan."""
    source: str = field(default="", metadata=LOCAL)
    """Of the kernels, where they have been rendered already."""
    binary: bytes = field(default=b"", repr=False, metadata=LOCAL)
    """Of the program, where it has been built already; what the driver does not take is built anew."""
    seed: Annotated[int, Bounds(0, 2**31)] = 0
    """Of the inputs. Jobs that share it share inputs and reference, which takes less time."""
    samples: Annotated[int, Bounds(0, MAX_SAMPLES)] = 7
    min_sample_ns: Annotated[int, _SPAN] = 2_000_000
    """A sample repeats the call until it lasts this long."""
    min_sample_ticks: Annotated[int, Bounds(0, 10**9)] = 1000
    """By events, a sample is at least so many ticks long."""
    agreement: Annotated[float, Bounds(0, 1)] = 0.0
    """Sampling ends early when FEW samples differ by no more than this share."""
    FEW: ClassVar[int] = 3
    give_up_above_ns: Annotated[float, Bounds(0, inf, excludes_least=True), Null(inf)] = inf
    """One sample is enough for a call slower than this."""
    FAR_TOO_SLOW: ClassVar[float] = 20.0
    """What the probe foretells to be this much slower than that is not run in full."""
    verify: bool = True
    verifications: Annotated[int, Bounds(0, MAX_SAMPLES)] = 0
    """Runs to check on several fresh inputs, in place of the two that `verify` stands for."""
    probe: bool = True
    """The first run of a configuration in a process, the probe, covers a small part of its range only."""
    timer: Timer = Timer.EVENT
    """HOST where other times to be compared with come from the host's clock; EVENT leaves it to the calibration."""
    build_limit_s: Annotated[float, _LIMIT] = BUILD_LIMIT_S
    run_limit_s: Annotated[float, _LIMIT] = 30.0
    is_cut_off: bool = False
    """A run that takes longer than that is too slow, and not suspect: the limit says how long it is worth waiting."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times of one call, nanoseconds: all launches of the plan but those that only prepare a constant operand."""

    time_ns: Annotated[float, _TIME]
    """Median of the samples."""
    samples_ns: Annotated[tuple[Annotated[float, _TIME], ...], Items(MAX_SAMPLES)]
    calls_per_sample: Annotated[int, Bounds(1, MAX_NUMBER)]
    timer: Timer
    prepare_ns: Annotated[float, _SPAN] = 0.0
    """The part of `time_ns` spent bringing operands into another layout."""
    launch_overhead_ns: Annotated[float, _SPAN] = 0.0
    """What a call takes the host beside `time_ns`; by the host's clock, what launching is of `time_ns` at most."""
    build_ns: Annotated[float, _SPAN] = 0.0
    inputs_ns: Annotated[float, _SPAN] = field(default=0.0, compare=False)
    """What the host took to draw inputs and to judge results; little where inputs were kept. Not in the ledger."""
    error_ratio: Annotated[float, Bounds(0, 1)] = 0.0
    """Largest error over its tolerance."""
    private_memory_bytes: int = 0
    kernel_work_group_limit: int = 0
    clock_mhz: Annotated[float | None, Bounds(0, 1e9)] = None
    """Of the device after the last sample, where the system tells."""
    temperature_c: Annotated[float | None, Bounds(-1e6, 1e6)] = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration measured once, or how it failed."""

    configuration: Configuration
    state: TrialState
    measurement: Measurement | None = None
    message: str = ""
    seed: int = 0

    @property
    def time_ns(self) -> float:
        """Time of one call; infinite unless complete."""
        return self.measurement.time_ns if self.measurement else float("inf")


class BuildState(enum.Enum):
    """How building without running ended."""

    BUILT = "built"
    FAILED = "failed"
    """The compiler refused the source."""
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    TOOL_FAILED = "tool failed"
    """An exception in this program ended the build, which says nothing about the source."""


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """One source to build for one device without running it."""

    selector: str
    source_hash: str
    """Over source and options; many configurations may share it."""
    source: str
    options: tuple[str, ...]
    plan: Plan
    """Of one of the configurations that share the source: names the kernels."""
    launches: bool = False
    """Launch one work-group as well: some drivers finish a kernel, and keep it, only when it is launched."""
    wants_binary: bool = False
    """For who launches it; not of a driver that finds again by itself what another process built."""
    limit_s: float = BUILD_LIMIT_S


@dataclass(frozen=True, kw_only=True)
class Build:
    """What the driver told of one source; 0 where it does not tell, or where the source was not built."""

    source_hash: str
    state: BuildState
    message: str = ""
    build_ns: float = 0.0
    private_memory_bytes: int = 0
    """Largest of the kernels, but for those that only prepare operands; above 0 a GPU spills registers."""
    work_group_limit: int = 0
    """Work-items; smallest of the same kernels."""
    binary_bytes: int = 0
    binary: bytes = field(default=b"", repr=False)
    """Where it was launched: what spares whoever measures it a build. Not stored."""


def now_utc() -> str:
    """Return the time as it is stored: UTC, ISO 8601, seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a measurement depends on besides its problem and configuration."""

    driver: str
    template_hash: str
    space_version: Annotated[int, COUNT]
    tool_version: str
    measured_at: Annotated[str, _MOMENT]
    """UTC, ISO 8601, seconds."""


class Verdict(enum.Enum):
    """Why a winner is the winner."""

    FASTER = "faster"
    """Than the default, surely."""
    TIE = "tie"
    """No difference between default and fastest could be shown: the default stays, unless it is slower than the
    plainest kernel."""
    DEFAULT = "default"
    """The default is itself the fastest, surely."""
    DEFAULT_FAILED = "default failed"
    """There is no default to compare with: it did not run, or not right."""
    PROVISIONAL = "provisional"
    """The best of a search so far; no final has confirmed it."""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The configuration to use for one problem on one device, and how well that is known.

    A gain of 2.0 means twice as fast. `gain_low` and `gain_high` bound the gain over the default at 95%;
    they are 1.0 where the default itself is the winner, as it is after a tie.
    """

    device: str
    """Slug."""
    problem: Problem
    configuration: Configuration
    time_ns: Annotated[float, _TIME]
    default_ns: Annotated[float, _TIME]
    """The default's time under the same conditions: the median gain within a round of the finals times `time_ns`."""
    baseline_ns: Annotated[float | None, _TIME]
    """The family's baseline (`naive`), where it was measured."""
    gain_low: Annotated[float, _TIME, Null(nan)]
    gain_high: Annotated[float, _TIME, Null(nan)]
    samples: Annotated[int, COUNT]
    """Samples in the final rounds; 0 for a provisional winner that no final has confirmed."""
    is_default: bool
    verdict: Verdict
    verifications: Annotated[int, COUNT]
    """Runs with the right result, on fresh inputs, after the finals; 0 for a provisional winner."""
    provenance: Provenance
    source: str = "measured"
    """`measured` here, or `imported` from a table."""

    @property
    def gain_over_default(self) -> float:
        return self.default_ns / self.time_ns

    @property
    def gain_over_baseline(self) -> float | None:
        return self.baseline_ns / self.time_ns if self.baseline_ns else None

    @property
    def gflops(self) -> float:
        return self.problem.flops / self.time_ns

    @property
    def is_final(self) -> bool:
        return self.samples > 0
