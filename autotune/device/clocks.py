"""Measure whether a device's event times can be trusted, and what a launch costs, with a kernel that only waits.

The event times of some drivers are zero, run too fast or too slowly, jump, or tick so rarely that no kernel of interest
can be timed. On such a device the host's clock around many launches is used instead.
"""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune import child
from autotune.device import open_port
from autotune.device.port import Port, Run
from autotune.errors import KernelError, WorkerError
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar
from autotune.model.trial import Calibration, Timer

LIMIT_S = 20.0
CALIBRATOR = (sys.executable, "-m", "autotune.device.clocks")
"""Command of a child process that calibrates, so that a driver that hangs or crashes does no harm."""

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
class Observations:
    """The measurements that a calibration is based on."""

    told_tick_ns: float
    latency_ns: float
    overhead_ns: float
    spans: Sequence[tuple[int, int]]
    """Start and end of many empty launches by event times, in order."""
    long: Sequence[Run]
    """Single launches of some milliseconds, in order."""


def try_calibration(selector: str, limit_s: float = LIMIT_S, command: Sequence[str] = CALIBRATOR) -> Calibration | str:
    """Calibrate a device (``platform:device``) in a child process; return a short text why where that fails."""
    with child.Child(command) as calibrator:
        try:
            answer = calibrator.ask(selector, {"calibration": limit_s})
        except WorkerError as error:
            return error.message
    return answer.message if isinstance(answer, child.Loss) else answer


def calibrate(port: Port) -> Calibration:
    """Calibrate a device, which takes a fraction of a second.

    A device on which that fails is timed by the host's clock. Never raises KernelError.
    """
    try:
        spinning = _Spinning(port)
        for _ in range(ATTEMPTS):
            calibration = judge(spinning.observe())
            if calibration.timer is Timer.EVENT:
                break
        return calibration
    except KernelError as error:
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
    events = [_event(run) for run in observed.long]
    took_ns = [end - start for start, end in events]
    shares = [ns / max(1, run.host_ns) for ns, run in zip(took_ns, observed.long, strict=True)]
    if not any(took_ns):
        return "event times are zero"
    if any(map(_runs_backwards, (observed.spans, events))):
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


def _event(run: Run) -> tuple[int, int]:
    """Return start and end of a single launch by the device's clock."""
    start, end = run.events[0, 0].tolist()
    return start, end


def _speed(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the lowest and highest speed of the device's clock, relative to the host's, that the launches allow."""
    first, last = runs[0], runs[-1]
    (first_start, first_end), (last_start, last_end) = _event(first), _event(last)
    least = (last_end - first_start) / max(1, last.host_end_ns - first.host_start_ns)
    most = (last_start - first_end) / max(1, last.host_start_ns - first.host_end_ns)
    return least, max(least, most)


def _nearest_to_one(bounds: tuple[float, float]) -> float:
    return min(max(1.0, bounds[0]), bounds[1])


def _runs_backwards(spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a launch ends before it starts, or before the launch ahead of it in the in-order queue."""
    out_of_order = any(b[1] < a[1] - ROUNDING_NS for a, b in pairwise(spans))
    return out_of_order or any(end < start for start, end in spans)


def _tick(observed: Observations) -> float:
    """Return the smallest difference of two event times: at least the true tick, close to it after many launches."""
    times = {t for span in (*observed.spans, *map(_event, observed.long)) for t in span}
    return float(min((b - a for a, b in pairwise(sorted(times))), default=0))


class _Spinning:
    """The waiting kernel on one device."""

    def __init__(self, port: Port) -> None:
        self._port = port
        out = Buffer(name="out", role=Role.OUTPUT, dtype="int32", elements=1)
        self._memory = {out.name: port.allocate(out)}
        self._kernels = port.kernels(port.build(SPIN, []), Plan(buffers=(out,), launches=(self._launch(0),)))
        self._spin(0)  # some drivers finish building at the first launch

    def observe(self) -> Observations:
        latency_ns = statistics.median(run.host_ns for run in self._spin(0, LATENCY_RUNS))
        calls = max(10, min(BATCH, math.ceil(BATCH_NS / max(1.0, latency_ns))))
        batches = [self._port.run(self._bind(0), calls) for _ in range(BATCHES)]
        return Observations(
            told_tick_ns=self._port.timer_resolution_ns,
            latency_ns=latency_ns,
            overhead_ns=min(batch.host_ns / calls for batch in batches),
            spans=[(start, end) for batch in batches for start, end in batch.events[:, 0].tolist()],
            long=self._long(),
        )

    def _long(self) -> list[Run]:
        turns = 1000
        while (host_ns := min(run.host_ns for run in self._spin(turns))) < LONG_NS and turns < MOST_TURNS:
            turns = min(MOST_TURNS, turns * min(16, max(2, math.ceil(1.25 * LONG_NS / max(1, host_ns)))))
        return self._spin(turns, LONG_RUNS)

    def _spin(self, turns: int, runs: int = 2) -> list[Run]:
        """Launch the kernel with that many iterations, and wait for its end each time."""
        call = self._bind(turns)
        return [self._port.run(call) for _ in range(runs)]

    def _bind(self, turns: int) -> object:
        return self._port.bind(self._kernels, [self._launch(turns)], self._memory)

    def _launch(self, turns: int) -> Launch:
        arguments = ("out", Scalar(dtype="int32", value=turns))
        return Launch(kernel="spin", global_size=(1,), local_size=(1,), arguments=arguments)


def serve() -> None:
    """Run as the child process: calibrate until the input ends."""

    def calibrate_one(selector: str, entering: Callable[[str], None]) -> Calibration:
        entering("calibration")
        return calibrate(open_port(selector))

    child.serve(calibrate_one)


if __name__ == "__main__":
    serve()
