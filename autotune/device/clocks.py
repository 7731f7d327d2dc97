"""How far a device's event times can be believed, and what a launch costs: found by running a kernel that only waits.

Drivers are known whose event times are zero, run at another speed than time does, jump, or tick so rarely that no
kernel of interest can be timed. On such a device the host's clock around many launches serves instead.
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
"""Event times that tick more rarely are of no use: 1000 ticks, the least of a sample, would be 20 ms."""
TOLERANCE = 0.1
"""By which event times may differ from the host's clock over some milliseconds, and their speed may change."""
ROUNDING_NS = 1_000
"""By which the end of a launch may be told to lie before that of the one ahead of it."""
LEAST_SHARE = 0.5
"""Of what the host sees of a long launch, the least that events must tell."""

ATTEMPTS = 3
"""Other work on the host can spoil an attempt; a device's events are given up when all fail."""
BATCH = 100
BATCHES = 3
BATCH_NS = 20e6
"""A batch has fewer launches where they would take longer than this."""
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
"""Each turn needs the one before, so that no compiler makes them faster than they are."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """One launch that was waited for, in nanoseconds of two clocks."""

    host_start: int
    """Before it was enqueued."""
    host_end: int
    """When the host knew that it had ended."""
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
    """What a calibration judges."""

    told_tick_ns: float
    latency_ns: float
    overhead_ns: float
    spans: Sequence[tuple[int, int]]
    """Event times of many empty launches, in order: start and end."""
    long: Sequence[Launched]
    """Launches of some milliseconds, in order."""


def calibrate(session: Session) -> Calibration:
    """Take a fraction of a second; a device that fails at it is timed by the host's clock. Never raises KernelError."""
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
    """What the observations say of the device's event times.

    The host may be late to notice that a launch has ended, so its clock gives bounds only; the device's clock is found
    wrong where it is outside them.
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
    """Why event times may not be believed; empty when they may."""
    shares = [run.event_ns / max(1, run.host_ns) for run in observed.long]
    if all(run.event_ns == 0 for run in observed.long):
        return "event times are zero"
    if any(_runs_backwards(spans) for spans in (observed.spans, [(r.event_start, r.event_end) for r in observed.long])):
        return "event times run backwards"
    if tick > COARSE_NS:
        return f"event times tick every {tick / 1000:.4g} us only"
    if drift > TOLERANCE:
        return f"the clock of events drifts: its speed changes by {drift:.0%} within milliseconds"
    if abs(speed - 1) > TOLERANCE:
        return f"the clock of events runs {speed:.3g} times as fast as the host's"
    if max(shares) > 1 + TOLERANCE or max(shares) < LEAST_SHARE:
        return f"a launch takes {statistics.median(shares):.2g} times as long by events as by the host's clock"
    return ""


def _speed(runs: Sequence[Launched]) -> tuple[float, float]:
    """Least and greatest speed of the device's clock, in its time for one of the host's, that the runs allow."""
    first, last = runs[0], runs[-1]
    least = (last.event_end - first.event_start) / max(1, last.host_end - first.host_start)
    most = (last.event_start - first.event_end) / max(1, last.host_start - first.host_end)
    return least, max(least, most)


def _nearest_to_one(bounds: tuple[float, float]) -> float:
    return min(max(1.0, bounds[0]), bounds[1])


def _runs_backwards(spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a launch ends before it starts, or one of an in-order queue ends before the one ahead of it."""
    out_of_order = any(b[1] < a[1] - ROUNDING_NS for a, b in pairwise(spans))
    return out_of_order or any(end < start for start, end in spans)


def _tick(observed: Observations) -> float:
    """The least difference of two event times: no less than the true tick, and near it after many launches."""
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
        """Host time of that many turns, undisturbed."""
        self._bind(turns)
        return min(self._wait().host_ns for _ in range(2))

    def _bind(self, turns: int) -> Launch:
        arguments = ("out", Scalar(dtype="int32", value=turns))
        launch = Launch(kernel="spin", global_size=(1,), local_size=(1,), arguments=arguments)
        self._session.bind(self._kernel, launch, self._memory, {})
        return launch

    def _wait(self) -> Launched:
        """Launch, and wait for the end."""
        host_start = time.perf_counter_ns()
        event = self._session.enqueue(self._kernel, self._launch)
        self._session.finish()
        host_end = time.perf_counter_ns()
        event_start, event_end = event_span_ns(event)
        return Launched(host_start=host_start, host_end=host_end, event_start=event_start, event_end=event_end)

    def _batch(self, calls: int) -> tuple[int, list[tuple[int, int]]]:
        """Host time of launches in a row, and their event times."""
        start = time.perf_counter_ns()
        events = [self._session.enqueue(self._kernel, self._launch) for _ in range(calls)]
        self._session.finish()
        return time.perf_counter_ns() - start, [event_span_ns(event) for event in events]
