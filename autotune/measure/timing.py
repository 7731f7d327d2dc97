"""Samples of a call, each far longer than the tick of its timer, by the device's events or by the host's clock.

All times that are compared come from one timer: once a device's events have been found wrong, in the calibration or in
a trial, the host's clock is used for the problem from then on.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns, sleep

from autotune import tracing
from autotune.device.port import Call, Port
from autotune.errors import LaunchError
from autotune.model.plan import Launch
from autotune.model.trial import Calibration, Job, Timer

MAX_CALLS_PER_SAMPLE = 2000
LATENCIES = 50
"""Least length of a sample by the host's clock, in launch latencies (`Calibration.launch_latency_ns`)."""
CONVINCING_NS = 50e6
"""Length of a sample that decides whether events report too little: the host never notices an end this late."""
HEADROOM = 1.25
"""A sample is planned longer than the least length by this factor, since the first call was the slowest."""

IDLE_NS = 1e9
"""After this time without a timing, a device that manages its own clocks may have lowered them."""
WARM_UP_NS = 0.2e9
"""Longest time spent on raising them again."""
WARM_UP_BATCH_NS = 10e6
WARM_UP_BATCHES = 3
STEADY = 0.03
"""A warm-up ends when WARM_UP_BATCHES batches in a row differ by at most this share."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Mean time of `calls` calls, nanoseconds, by the host's clock and by the device's events."""

    calls: int
    host_ns: float
    event_ns: float
    """0 where events were not used."""
    prepare_ns: float

    LONG_NS = 1_000_000.0
    """Above this, launch overhead cannot explain event times far shorter than the host's."""

    @property
    def is_possible(self) -> bool:
        """Whether the event time is above zero and not longer than the host's."""
        return 0 < self.event_ns <= 1.05 * self.host_ns + 2_000

    @property
    def is_too_short(self) -> bool:
        """Whether the event time of a long call is far below the host's; the host may just have been disturbed."""
        return self.host_ns >= self.LONG_NS and self.event_ns <= 0.5 * self.host_ns

    def by(self, timer: Timer) -> float:
        """Return the time of a call by a timer; by the host's clock where the event time is impossible."""
        return self.event_ns if timer is Timer.EVENT and self.is_possible else self.host_ns


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The samples of one trial, all by one timer."""

    samples: tuple[Sample, ...]
    timer: Timer

    @property
    def is_impossible(self) -> bool:
        """Whether at least half of the event times are impossible."""
        possible = sum(sample.is_possible for sample in self.samples)
        return self.timer is Timer.EVENT and 2 * possible <= len(self.samples)

    @property
    def is_too_short(self) -> bool:
        return self.timer is Timer.EVENT and all(sample.is_too_short for sample in self.samples)

    @property
    def times_ns(self) -> tuple[float, ...]:
        return tuple(s.by(self.timer) for s in self.sound)

    @property
    def prepare_ns(self) -> float:
        """Time of preparing operands; 0 by the host's clock, which cannot separate launches."""
        return statistics.median(s.prepare_ns for s in self.sound) if self.timer is Timer.EVENT else 0.0

    @property
    def sound(self) -> list[Sample]:
        """The samples that count."""
        return [s for s in self.samples if self.timer is Timer.HOST or s.is_possible]


class Stopwatch:
    """Times calls on one device."""

    def __init__(self, port: Port, calibration: Calibration, *, needs_warming: bool = False) -> None:
        """`needs_warming` is for devices that lower their clocks when idle; a CPU is kept busy by building."""
        self._port = port
        self._calibration = calibration
        self._needs_warming = needs_warming
        self._idle_since_ns = -math.inf
        self.timer = calibration.timer

    def time(self, call: Call, launches: Sequence[Launch], job: Job) -> Timing:
        """Return samples of a call. Event times that cannot be true change the device's timer to the host's clock.

        Raises LaunchError where that does not go on either.
        """
        timer = Timer.HOST if job.timer is Timer.HOST else self.timer
        if not job.burst_ns:
            self._warm_up(call, launches, job, timer)
        timing = self._time(call, launches, job, timer)
        if timing.is_impossible:
            timing = self._time(call, launches, job, timer)
        if timing.is_impossible or (timing.is_too_short and self._stays_too_short(call, launches, timing)):
            self.timer = Timer.HOST
            timing = self._time(call, launches, job, Timer.HOST)
        self._idle_since_ns = perf_counter_ns()
        if not min(timing.times_ns) > 0:
            raise LaunchError("the clock of the host did not go on while the kernel ran")
        return timing

    def _warm_up(self, call: Call, launches: Sequence[Launch], job: Job, timer: Timer) -> None:
        """If the device was idle, run until times are steady, for at most WARM_UP_NS and one call."""
        began_ns = perf_counter_ns()
        if not self._needs_warming or began_ns - self._idle_since_ns < IDLE_NS:
            return
        first = self._sample(call, launches, 1, timer)
        if first.by(timer) > job.FAR_TOO_SLOW * job.give_up_above_ns:
            return
        calls = min(MAX_CALLS_PER_SAMPLE, max(1, math.ceil(WARM_UP_BATCH_NS / max(1.0, first.host_ns))))
        times_ns: list[float] = []
        while perf_counter_ns() - began_ns < WARM_UP_NS:
            times_ns.append(self._sample(call, launches, calls, timer).by(timer))
            if len(times_ns) >= WARM_UP_BATCHES and _agree(times_ns[-WARM_UP_BATCHES:], STEADY):
                break

    def _stays_too_short(self, call: Call, launches: Sequence[Launch], timing: Timing) -> bool:
        """Return whether event times are too short in long samples too, which a disturbed host does not explain."""
        last = timing.samples[-1]
        calls = math.ceil(CONVINCING_NS / max(last.event_ns, last.host_ns / 10))
        calls = min(MAX_CALLS_PER_SAMPLE, max(1, calls))
        return all(self._sample(call, launches, calls, Timer.EVENT).is_too_short for _ in range(3))

    def overhead_ns(self, timing: Timing, launches: int) -> float:
        """Return `Measurement.launch_overhead_ns`; `launches` is the number of launches of a call."""
        if timing.timer is Timer.EVENT:
            return max(0.0, statistics.median(s.host_ns - s.event_ns for s in timing.sound))
        return min(launches * self._calibration.launch_overhead_ns, statistics.median(timing.times_ns))

    def _time_bursts(self, call: Call, launches: Sequence[Launch], job: Job, timer: Timer) -> Timing:
        """Return a sample for each burst of a rhythm, which has the same calls each time, as a frame or a token has."""
        first = self._long_sample(call, launches, job, timer)
        calls = max(1, round(job.burst_ns / max(1.0, first.host_ns)))
        samples: list[Sample] = []
        began_ns, settled_ns = perf_counter_ns(), 0.0
        while len(samples) < max(1, job.samples) and (settled_ns < Job.PATIENCE_NS or not samples):
            sleep(job.pause_ns / 1e9)
            sample = self._sample(call, launches, min(calls, MAX_CALLS_PER_SAMPLE), timer)
            settled_ns = perf_counter_ns() - began_ns - Job.SETTLING_NS
            if settled_ns > 0:
                samples.append(sample)
        return Timing(samples=tuple(samples), timer=timer)

    def _time(self, call: Call, launches: Sequence[Launch], job: Job, timer: Timer) -> Timing:
        if job.burst_ns:
            return self._time_bursts(call, launches, job, timer)
        first = self._long_sample(call, launches, job, timer)
        if first.by(timer) > job.give_up_above_ns:
            return Timing(samples=(first,), timer=timer)
        samples = [first] if first.calls > 1 else []  # a single call was the first ever, and therefore slow
        spent_ns = 0.0
        while len(samples) < job.samples and (spent_ns < Job.PATIENCE_NS or not samples):
            if len(samples) >= job.FEW and _agree([s.by(timer) for s in samples], job.agreement):
                break
            samples.append(self._sample(call, launches, first.calls, timer))
            spent_ns += samples[-1].host_ns * first.calls
        return Timing(samples=tuple(samples), timer=timer)

    def _long_sample(self, call: Call, launches: Sequence[Launch], job: Job, timer: Timer) -> Sample:
        """Return the first sample that is long enough for the timer; the others repeat its number of calls."""
        noise_ns = job.min_sample_ticks * self._calibration.tick_ns
        if timer is Timer.HOST:
            noise_ns = LATENCIES * self._calibration.launch_latency_ns
        least_ns = max(job.min_sample_ns, noise_ns)
        sample = self._sample(call, launches, 1, timer)
        while sample.calls * sample.by(timer) < least_ns and sample.calls < MAX_CALLS_PER_SAMPLE:
            fitting = math.ceil(HEADROOM * least_ns / max(1.0, sample.by(timer)))
            calls = min(MAX_CALLS_PER_SAMPLE, max(2 * sample.calls, fitting))
            sample = self._sample(call, launches, calls, timer)
        return sample

    def _sample(self, call: Call, launches: Sequence[Launch], calls: int, timer: Timer) -> Sample:
        with tracing.span("sample"):
            run = self._port.run(call, calls, has_events=timer is Timer.EVENT)
        per_launch = (run.event_ns.sum(axis=0) / calls).tolist()
        prepare_ns = sum(ns for ns, launch in zip(per_launch, launches, strict=True) if launch.prepares)
        return Sample(calls=calls, host_ns=run.host_ns / calls, event_ns=sum(per_launch), prepare_ns=prepare_ns)


def _agree(times_ns: Sequence[float], share: float) -> bool:
    return max(times_ns) <= (1 + share) * min(times_ns) if share else False
