"""A measuring process that misbehaves as the seed of the job says; started by test_worker.py and test_robust.py."""

import atexit
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autotune.measure.measurer
import autotune.measure.worker
from autotune.device import opencl
from autotune.device.opencl import Session, event_span_ns
from autotune.errors import LaunchError
from autotune.kernels.render import render

(
    FINE, NEVER_ENDING, STRAY_WRITE, SLOW_BUILD, ABORT, NO_BUILD, POISON, NO_DEVICE_MEMORY, NO_HOST_MEMORY, ZERO_TIMERS,
    OWN_FAULT, BROKEN,
) = range(12)  # fmt: skip

SOURCES = {
    NEVER_ENDING: "__kernel void gemm() { volatile int x = 1; while (x) { } }",
    STRAY_WRITE: "__kernel void gemm() { *(volatile __global int *)8 = 1; }",
    NO_BUILD: "__kernel void gemm() { no such thing }",
}

Measurer = autotune.measure.measurer.Measurer
_build, _measure, _bind, _allocate = Measurer.build, Measurer.measure, Session.bind, Session.allocate


def start_badly() -> None:
    """One byte is added to EVIL_LOG by each start; those whose numbers are in EVIL_STARTS fail."""
    log = os.environ.get("EVIL_LOG")
    if log is None:
        return
    with Path(log).open("a") as file:
        file.write("x")
    if Path(log).stat().st_size in {int(number) for number in os.environ["EVIL_STARTS"].split(",")}:
        print("no start today", file=sys.stderr, flush=True)
        sys.exit(3)


def bind_nothing(self: Session, kernels: Any, launches: Any, *_: Any) -> Any:
    """The kernels have no arguments."""
    return _bind(self, kernels, [dataclasses.replace(launch, arguments=()) for launch in launches], {})


def refuse(*_: Any, **__: Any) -> None:
    raise LaunchError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")


def allocate(self: Session, buffer: Any, *others: Any) -> Any:
    """Four mebibytes for every byte: more than the driver grants."""
    return _allocate(self, dataclasses.replace(buffer, elements=buffer.elements << 42), *others)


def no_memory(*_: Any) -> None:
    raise MemoryError


def prepare(behaviour: int) -> None:
    source = SOURCES.get(behaviour)
    vars(autotune.measure.measurer)["render"] = lambda *a: source or render(*a)
    vars(opencl)["event_span_ns"] = (lambda _: (0, 0)) if behaviour == ZERO_TIMERS else event_span_ns
    Session.bind = bind_nothing if source else _bind  # type: ignore[method-assign,assignment]
    failing: dict[int, Any] = {NO_DEVICE_MEMORY: allocate, NO_HOST_MEMORY: no_memory}
    Session.allocate = failing.get(behaviour, _allocate)  # type: ignore[method-assign]


def begin(self: Measurer, job: Any, entering: Callable[[str], None]) -> None:
    prepare(job.seed)
    self._built.clear()
    print("a driver that prints to standard output")
    entering("build")
    if job.seed == BROKEN and self._was_run:
        Session.build = refuse  # type: ignore[method-assign,assignment]
    if job.seed == SLOW_BUILD:
        signal.pause()
    if job.seed == ABORT:
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if job.seed == OWN_FAULT:
        atexit.register(os.abort)  # as some drivers do where a process ends in a hurry
        raise KeyError("a")


def build(self: Measurer, job: Any, entering: Callable[[str], None] = lambda _: None) -> Any:
    begin(self, job, entering)
    return _build(self, job, entering)


def measure(self: Measurer, job: Any, entering: Callable[[str], None] = lambda _: None) -> Any:
    begin(self, job, entering)
    trial = _measure(self, job, entering)
    if job.seed == POISON:
        Session.run = refuse  # type: ignore[method-assign,assignment]
    return trial


if __name__ == "__main__":
    start_badly()
    Measurer.build = build  # type: ignore[method-assign]
    Measurer.measure = measure  # type: ignore[method-assign]
    autotune.measure.worker.serve()
