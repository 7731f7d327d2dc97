"""Measure whether a device's event times can be trusted, and what a launch costs, with a kernel that only waits.

The event times of some drivers are zero, run too fast or too slowly, jump, or tick so rarely that no kernel of interest
can be timed. On such a device the host's clock around many launches is used instead.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyopencl as cl

from autotune.device.session import Memory, Session, event_span_ns
from autotune.errors import KernelError
from autotune.model.plan import Buffer, Launch, Role, Scalar
from autotune.model.trial import Calibration, Timer

COARSE_NS = 20_000.0
"""Longest usable tick of event times: a sample has at least 1000 ticks, which would be 20 ms."""
TOLERANCE = 0.1
"""Relative difference allowed between event times and the host's clock over some milliseconds, and in their speed."""
ROUNDING_NS = 1_000
"""How much earlier than the launch ahead of it a launch may be reported to end."""
LEAST_SHARE = 0.5
"""Smallest share of a long launch's host time that its event times must cover."""

ATTEMPTS = 3
"""Other work on the host can spoil an attempt; event times are rejected only if all attempts fail."""
BATCH = 100
BATCHES = 3
BATCH_NS = 20e6
"""A batch has fewer than BATCH launches if they would take longer than this."""
LATENCY_RUNS = 10
LONG_NS = 4e6
LONG_RUNS = 5
MOST_TURNS = 2**30

SPIN = """
__kernel void spin(__global int *out, const int turns)
{
    uint x = (uint)turns + 1;
    for (int i = 0; i < turns; ++i) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    out[get_global_id(0)] = (int)x;
}
"""
"""Each iteration of the loop depends on the one before, so that no compiler can shorten it."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """Times of one launch that was waited for, in nanoseconds of the host's and the device's clock."""

    host_start: int
    """Just before the launch was enqueued."""
    host_end: int
    """When the host noticed that the launch had ended."""
    event_start: int
    event_end: int

    @property
    def host_ns(self) -> int:
        return self.host_end - self.host_start

    @property
    def event_ns(self) -> int:
        return self.event_end - self.event_start


@dataclass(frozen=True, kw_only=True)
class Observations:
    """The measurements that a calibration is based on."""

    told_tick_ns: float
    latency_ns: float
    overhead_ns: float
    spans: Sequence[tuple[int, int]]
    """Start and end of many empty launches by event times, in order."""
    long: Sequence[Launched]
    """Launches of some milliseconds, in order."""


def calibrate(session: Session) -> Calibration:
    """Calibrate a device, which takes a fraction of a second.

    A device on which that fails is timed by the host's clock. Never raises KernelError.
    """
    try:
        spinning = _Spinning(session)
        for _ in range(ATTEMPTS):
            calibration = judge(spinning.observe())
            if calibration.timer is Timer.EVENT:
                break
        return calibration
    except (KernelError, cl.Error) as error:
        return Calibration(timer=Timer.HOST, reason=f"the calibration failed: {error}")


def judge(observed: Observations) -> Calibration:
    """Return what the observations show about the device's event times.

    The host may notice late that a launch has ended, so its clock only gives bounds; the device's clock is judged wrong
    if it lies outside them.
    """
    tick = _tick(observed)
    middle = len(observed.long) // 2
    speed = _speed(observed.long)
    halves = _speed(observed.long[: middle + 1]), _speed(observed.long[middle:])
    drift = max(0.0, max(low for low, _ in halves) - min(high for _, high in halves))
    reason = _distrust(observed, tick, _nearest_to_one(speed), drift)
    return Calibration(
        timer=Timer.HOST if reason else Timer.EVENT,
        reason=reason,
        tick_ns=tick,
        told_tick_ns=observed.told_tick_ns,
        launch_overhead_ns=observed.overhead_ns,
        launch_latency_ns=observed.latency_ns,
        clock_speed=_nearest_to_one(speed),
        drift=drift,
    )


def _distrust(observed: Observations, tick: float, speed: float, drift: float) -> str:
    """Return why event times cannot be trusted; empty if they can."""
    shares = [run.event_ns / max(1, run.host_ns) for run in observed.long]
    if all(run.event_ns == 0 for run in observed.long):
        return "event times are zero"
    if any(_runs_backwards(spans) for spans in (observed.spans, [(r.event_start, r.event_end) for r in observed.long])):
        return "event times run backwards"
    if tick > COARSE_NS:
        return f"event times tick only every {tick / 1000:.4g} us"
    if drift > TOLERANCE:
        return f"the clock of events drifts: its speed changes by {drift:.0%} within milliseconds"
    if abs(speed - 1) > TOLERANCE:
        return f"the clock of events runs {speed:.3g} times as fast as the host's"
    if max(shares) > 1 + TOLERANCE or max(shares) < LEAST_SHARE:
        return f"a launch takes {statistics.median(shares):.2g} times as long by events as by the host's clock"
    return ""


def _speed(runs: Sequence[Launched]) -> tuple[float, float]:
    """Return the lowest and highest speed of the device's clock, relative to the host's, that the launches allow."""
    first, last = runs[0], runs[-1]
    least = (last.event_end - first.event_start) / max(1, last.host_end - first.host_start)
    most = (last.event_start - first.event_end) / max(1, last.host_start - first.host_end)
    return least, max(least, most)


def _nearest_to_one(bounds: tuple[float, float]) -> float:
    return min(max(1.0, bounds[0]), bounds[1])


def _runs_backwards(spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a launch ends before it starts, or before the launch ahead of it in the in-order queue."""
    out_of_order = any(b[1] < a[1] - ROUNDING_NS for a, b in pairwise(spans))
    return out_of_order or any(end < start for start, end in spans)


def _tick(observed: Observations) -> float:
    """Return the smallest difference of two event times: at least the true tick, close to it after many launches."""
    times = {t for span in observed.spans for t in span}
    times.update(t for run in observed.long for t in (run.event_start, run.event_end))
    return float(min((b - a for a, b in pairwise(sorted(times))), default=0))


class _Spinning:
    """The waiting kernel on one device."""

    def __init__(self, session: Session) -> None:
        self._session = session
        out = Buffer(name="out", role=Role.OUTPUT, dtype="int32", elements=1)
        self._memory: dict[str, Memory] = {out.name: session.allocate(out)}
        self._kernel: Any = cl.Kernel(session.build(SPIN, []), "spin")
        self._launch = self._bind(0)
        self._wait()  # some drivers finish building at the first launch

    def observe(self) -> Observations:
        self._bind(0)
        latency_ns = statistics.median(self._wait().host_ns for _ in range(LATENCY_RUNS))
        calls = max(10, min(BATCH, math.ceil(BATCH_NS / latency_ns)))
        batches = [self._batch(calls) for _ in range(BATCHES)]
        return Observations(
            told_tick_ns=self._session.timer_resolution_ns,
            latency_ns=latency_ns,
            overhead_ns=min(host_ns / calls for host_ns, _ in batches),
            spans=[span for _, spans in batches for span in spans],
            long=self._long(),
        )

    def _long(self) -> list[Launched]:
        turns = 1000
        while (host_ns := self._spin(turns)) < LONG_NS and turns < MOST_TURNS:
            turns = min(MOST_TURNS, turns * min(16, max(2, math.ceil(1.25 * LONG_NS / host_ns))))
        return [self._wait() for _ in range(LONG_RUNS)]

    def _spin(self, turns: int) -> int:
        """Return the host time of that many iterations: the lower of two, to exclude disturbances."""
        self._bind(turns)
        return min(self._wait().host_ns for _ in range(2))

    def _bind(self, turns: int) -> Launch:
        arguments = ("out", Scalar(dtype="int32", value=turns))
        launch = Launch(kernel="spin", global_size=(1,), local_size=(1,), arguments=arguments)
        self._session.bind(self._kernel, launch, self._memory, {})
        return launch

    def _wait(self) -> Launched:
        """Launch the kernel once and wait until it has ended."""
        host_start = time.perf_counter_ns()
        event = self._session.enqueue(self._kernel, self._launch)
        self._session.finish()
        host_end = time.perf_counter_ns()
        event_start, event_end = event_span_ns(event)
        return Launched(host_start=host_start, host_end=host_end, event_start=event_start, event_end=event_end)

    def _batch(self, calls: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the host time of `calls` launches in a row, and their event times."""
        start = time.perf_counter_ns()
        events = [self._session.enqueue(self._kernel, self._launch) for _ in range(calls)]
        self._session.finish()
        return time.perf_counter_ns() - start, [event_span_ns(event) for event in events]
