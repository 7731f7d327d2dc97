"""Measures what a device can do at most: bandwidth by path, arithmetic by type, launches, registers, waves.

Each part runs in a child process under a time limit, so that a driver that crashes or hangs loses that part only. Times
are those of `timing.py`, and every rate is the highest of several ways to do the same.
"""

import itertools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from autotune import child
from autotune.device.clocks import calibrate
from autotune.device.port import Memory, Port
from autotune.errors import BuildError, KernelError, WorkGroupError
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.render import render_file
from autotune.measure.timing import Stopwatch
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.machine import Rates
from autotune.model.plan import Argument, Buffer, Launch, Plan, Role, Scalar
from autotune.model.trial import Calibration, Job

COMMAND = (sys.executable, "-m", "autotune.measure.limits")
LIMIT_S = 60.0
"""Time limit of a part."""
MOST_S = 120.0
"""Time limit of all parts: what does not fit is left out. PoCL takes about ten seconds."""
MOST_BYTES = 2**28
"""Memory that is read, larger than most caches; less where a device allocates less."""
IMAGE_SIDE = 2048
"""Pixels of 16 bytes: 64 MiB."""
LEAST_NS = 3e6
"""A launch repeats its work until it takes this long."""
MOST_ROUNDS = 2**22
PIXEL_BYTES = 16
CHAINS = 8
"""Independent sums of a work-item in kernels of arithmetic."""
REGISTERS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224)
LOADS = 1024
"""Addresses that a work-item follows, however many registers it has."""
SLOWER = 1.5
GROUP = 256
STILL_FULL = 0.7
"""Share of the time of all work-items at which those that work still keep every wave busy."""

_JOB = Job(
    selector="", problem=GemmProblem(m=1, n=1, k=1), configuration=Configuration.of("limits"), samples=5,
    min_sample_ns=int(LEAST_NS),
)  # fmt: skip
"""Only its numbers of timing are used."""


class Bench:
    """Times kernels on one device."""

    def __init__(self, port: Port, calibration: Calibration) -> None:
        self.port, self.calibration, self.limits = port, calibration, port.device.limits
        self._stopwatch = Stopwatch(port, calibration, needs_warming=not self.limits.is_cpu)
        self.group = min(64 if self.limits.is_cpu else GROUP, self.limits.max_work_group_size)
        self.items = self.limits.compute_units * (8 if self.limits.is_cpu else 32) * self.group
        """Work-items that fill the device several times."""
        self._sums = self.allocate("to", max(self.items, MOST_BYTES // PIXEL_BYTES))

    def allocate(self, name: str, elements: int, *, side: int = 0, dtype: str = "float32") -> Memory:
        buffer = Buffer(
            name=name, role=Role.SCRATCH, dtype=dtype, elements=elements, image_width=side, image_height=side
        )  # fmt: skip
        return self.port.allocate(buffer)

    def kernel(self, what: str, *options: str, **values: Any) -> Any:
        values = {"kind": "", "width": 1, "in_turn": False, "is_mad": False, **values}
        program = self.port.build(render_file("limits.cl.j2", what=what, **values), options)
        return self.port.kernels(program, Plan(buffers=(), launches=(self._launch((1,), (1,), 1, None),)))

    def _launch(self, items: tuple[int, ...], group: tuple[int, ...], rounds: int, memory: Memory | None) -> Launch:
        arguments: tuple[Argument, ...] = (
            *(["from"] if memory is not None else []),
            "to",
            Scalar(dtype="int32", value=rounds),
        )
        return Launch(kernel="work", global_size=items, local_size=group, arguments=arguments)

    def time_ns(
        self, kernels: Any, rounds: int, memory: Memory | None = None, items: tuple[int, ...] | None = None
    ) -> float:
        """Return the least time of a launch; without `items`, of those that fill the device."""
        items = items or (self.items,)
        group = (self.group,) if len(items) == 1 else (16, 4)
        launch = self._launch(items, group, rounds, memory)
        known = {"to": self._sums, **({"from": memory} if memory is not None else {})}
        call = self.port.bind(kernels, [launch], known)
        return min(self._stopwatch.time(call, [launch], _JOB).times_ns)

    def long_ns(self, kernels: Any, memory: Memory | None = None) -> tuple[float, int]:
        """Return the time of a launch of at least LEAST_NS, and its rounds."""
        rounds = 64
        time_ns = self.time_ns(kernels, rounds, memory)
        while time_ns < LEAST_NS and rounds < MOST_ROUNDS:
            rounds = min(MOST_ROUNDS, rounds * min(16, max(2, int(1.25 * LEAST_NS / time_ns))))
            time_ns = self.time_ns(kernels, rounds, memory)
        return time_ns, rounds


def _buffer(bench: Bench) -> dict[str, float]:
    size = min(MOST_BYTES, bench.limits.max_allocation_bytes // 2, bench.limits.global_memory_bytes // 8)
    size = 1 << (size.bit_length() - 1)
    memory, pixels = bench.allocate("from", size // 4), size // PIXEL_BYTES
    best = 0.0
    for in_turn, rounds in ((False, 4), (False, 16), (True, 64), (True, 1024)):
        kernels = bench.kernel("buffer", in_turn=in_turn)
        best = max(best, size / bench.time_ns(kernels, rounds, memory, (pixels // rounds,)))
    return {"buffer": best}


def _image(bench: Bench) -> dict[str, float]:
    limits = bench.limits
    if not limits.has_images:
        return {}
    side = min(IMAGE_SIDE, limits.max_image_width, limits.max_image_height) // 64 * 64
    memory, kernels = bench.allocate("from", 4 * side * side, side=side), bench.kernel("image")
    times = (bench.time_ns(kernels, rounds, memory, (side, side // rounds)) for rounds in (1, 4, 16))
    return {"image": PIXEL_BYTES * side * side / min(times)}


def _tables(bench: Bench) -> dict[str, float]:
    found: dict[str, float] = {}
    memory = bench.allocate("from", 1024)
    for what, width in itertools.product(("local", "constant"), (4, 16)):
        time_ns, rounds = bench.long_ns(bench.kernel(what, width=width, in_turn=bench.limits.is_cpu), memory)
        found[what] = max(found.get(what, 0.0), 4 * 4 * width * rounds * bench.items / time_ns)
    return found


def _arithmetic(bench: Bench) -> dict[str, float]:
    found: dict[str, float] = {}
    kinds = ("float32", *(["float16"] if bench.limits.has_float16 else []))
    for kind, width, is_mad in itertools.product(kinds, (1, 4, 8, 16), (False, True)):
        with suppress(BuildError, WorkGroupError):  # of vectors that are too wide for it
            time_ns, rounds = bench.long_ns(bench.kernel("arithmetic", kind=kind, width=width, is_mad=is_mad))
            found[kind] = max(found.get(kind, 0.0), 2 * CHAINS * width * rounds * bench.items / time_ns)
    values = bench.limits.constraint_values()
    for kind, standard in (("khr", ("-cl-std=CL3.0",)), ("arm", ()), ("ptx", ())):
        if values[f"has_{kind}_integer_dot"]:
            time_ns, rounds = bench.long_ns(bench.kernel("dots", *standard, kind=kind))
            found["int8"] = max(found.get("int8", 0.0), 8 * CHAINS * rounds * bench.items / time_ns)
    return found


def _registers(bench: Bench) -> dict[str, float]:
    """Find how many floats a work-item can keep before following as many addresses takes longer.

    Waiting for memory is hidden by other work-items, of which there are fewer where each has more registers.
    """
    if bench.limits.is_cpu:
        return {}
    memory = bench.allocate("from", 4096, dtype="int32")
    places = np.random.default_rng(0).permutation(4096).astype(np.int32)
    bench.port.write(memory, places)
    least, kept = float("inf"), 0
    for count in REGISTERS:
        rounds = max(1, LOADS // count)
        try:
            per_load = bench.time_ns(bench.kernel("registers", width=count), rounds, memory) / (rounds * count)
        except WorkGroupError:  # there are too few registers for a work-group
            per_load = float("inf")
        if per_load > SLOWER * least:
            return {"registers": kept}
        least, kept = min(least, per_load), count
    return {}


def _waves(bench: Bench) -> dict[str, float]:
    """Find how many work-items run in step: all of them take the time of one that works."""
    if bench.limits.is_cpu or bench.group < 128:
        return {}
    all_ns, rounds = bench.long_ns(bench.kernel("waves"))
    found = 1
    for width in (2, 4, 8, 16, 32, 64, 128):
        if bench.time_ns(bench.kernel("waves", width=width), rounds) < STILL_FULL * all_ns:
            return {"lanes": found}
        found = width
    return {}


PARTS: dict[str, Callable[[Bench], dict[str, float]]] = {
    "launches": lambda bench: {"launch_ns": bench.calibration.launch_overhead_ns},
    "buffers": _buffer,
    "images": _image,
    "local and constant memory": _tables,
    "arithmetic": _arithmetic,
    "registers": _registers,
    "waves": _waves,
}
"""What is measured, in order, each with a function that returns fields of Rates."""


def measure_rates(device: Device, report: Callable[[str], None]) -> Rates:
    """Measure a device; report what is measured next, and what could not be. Raises WorkerError."""
    found: dict[str, float] = {}
    ends = time.monotonic() + MOST_S
    with child.Child(COMMAND) as measuring:
        for part in PARTS:
            left_s = min(LIMIT_S, ends - time.monotonic())
            if left_s <= 0:
                report(f"{part} could not be measured: two minutes are over")
                continue
            report(f"measuring {part} ...")
            answer = measuring.ask((device.selector, part), {"opening": LIMIT_S, "measuring": left_s})
            if isinstance(answer, child.Loss):
                report(f"{part} could not be measured: {answer.message}")
            elif isinstance(answer, str):
                report(f"{part} could not be measured: {answer}")
            else:
                found |= answer
    return rates_of(found)


def rates_of(found: dict[str, float]) -> Rates:
    """Return rates rounded to four digits."""
    rounded: dict[str, Any] = {name: float(f"{value:.4g}") for name, value in found.items()}
    return Rates(**{name: int(v) if name in ("registers", "lanes") else v for name, v in rounded.items()})


@cache
def _bench(selector: str) -> Bench:
    from autotune.device import open_port

    port = open_port(selector)
    return Bench(port, calibrate(port))


def _answer(message: Any, entering: child.Entering) -> dict[str, float] | str:
    selector, part = message
    entering("opening")
    bench = _bench(selector)
    entering("measuring")
    try:
        return PARTS[part](bench)
    except KernelError as error:
        return str(error)


if __name__ == "__main__":
    child.serve(_answer)
