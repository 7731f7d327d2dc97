"""Builds without running, in child processes that work in parallel."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from autotune import child, tracing
from autotune.device.link import LOOK_S, split, wait_for
from autotune.device.processors import is_busy, load, usable_cores
from autotune.errors import BuildError, KernelError, WorkerError
from autotune.model.device import Device
from autotune.model.plan import Plan, Role
from autotune.model.trial import BUILD_LIMIT_S, Build, BuildJob, BuildState

if TYPE_CHECKING:
    from autotune.device.port import Memory, Port

BUILDER = (sys.executable, "-m", "autotune.measure.build_pool")
"""Command of a child process that builds."""
TRIES = 10
"""How often a build is begun on a device behind a link that is lost each time before."""

FILLED_BYTES = 2**25
"""Most of a buffer that is filled with zeros: drivers usually have larger memory fresh from the system, as zeros."""

_STATES = {
    child.Cause.LATE: BuildState.TIMED_OUT,
    child.Cause.DIED: BuildState.CRASHED,
    child.Cause.FAULT: BuildState.TOOL_FAILED,
}


class Builds(Protocol):
    """What a search needs of a place that builds: `BuilderPool`, or a fake."""

    @property
    def size(self) -> int: ...

    def submit(self, job: BuildJob) -> Future[Build]: ...

    def close(self) -> None: ...


def builders_for(device: Device, jobs: int | None = None) -> "BuilderPool | None":
    """Return a pool of `jobs` processes, by default one for each free core; None if building ahead cannot pay off."""
    free = usable_cores() - (0 if device.limits.is_cpu else 1)
    size = free if jobs is None else jobs
    return BuilderPool(size, selector=device.selector) if size > (1 if device.limits.is_cpu else 0) else None


class BuilderPool:
    """Child processes that build in parallel; one that crashes or hangs is replaced.

    A context manager; leaving it ends them all.
    """

    def __init__(self, size: int, command: Sequence[str] = BUILDER, *, selector: str = "") -> None:
        """`selector` names the device that all builds are for, if it is behind a link that may be lost."""
        self.size = size
        self._is_closing = False
        self._tries = TRIES if split(selector) else 1
        self._executor = ThreadPoolExecutor(size)
        wait = partial(wait_for, selector, lambda: self._is_closing)
        self._children = [child.Child(command, wait=wait) for _ in range(size)]
        self._running: set[Future[Build]] = set()
        self._idle: SimpleQueue[child.Child] = SimpleQueue()
        for builder in self._children:
            self._idle.put(builder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all builds at once."""
        self._is_closing = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self._running):
            for builder in self._children:
                builder.kill()  # repeated, since some builds start only now
            time.sleep(0.05)
        for builder in self._children:
            builder.close()

    def submit(self, job: BuildJob) -> Future[Build]:
        """Build when a child is free.

        The future may raise WorkerError: no child can be started, or it cannot use the device at all.
        """
        self._running = {future for future in self._running if not future.done()}
        future = self._executor.submit(self._build, job)
        self._running.add(future)
        return future

    def _build(self, job: BuildJob) -> Build:
        builder = self._idle.get()
        try:
            answer = self._answer(builder, job)
        finally:
            self._idle.put(builder)
        if isinstance(answer, child.Loss):
            # What a kernel reads through indices that are not its own may end it: the trial tells.
            if answer.phase == "launch" and answer.cause is child.Cause.DIED:
                return Build(source_hash=job.source_hash, state=BuildState.BUILT)
            is_late = answer.cause is child.Cause.LATE
            is_hung = is_late and job.limit_s >= BUILD_LIMIT_S and not is_busy()
            proves_nothing = answer.was_killed or (is_late and not is_hung)
            state = BuildState.CUT_SHORT if proves_nothing else _STATES[answer.cause]
            message = f"{answer.message} (the machine's load was {load():.1f})" if is_late else answer.message
            return Build(source_hash=job.source_hash, state=state, message=message)
        assert isinstance(answer, Build)
        return answer

    def _answer(self, builder: child.Child, job: BuildJob) -> Any:
        """Return a child's answer; where the device was lost before the build began, that of a later one."""
        for tries_left in reversed(range(self._tries)):
            try:
                return builder.ask(job, {"build": job.limit_s, "launch": job.limit_s})
            except WorkerError:
                if not tries_left or self._is_closing:
                    raise
                time.sleep(LOOK_S)
        raise AssertionError


def build_once(port: "Port", job: BuildJob, entering: child.Entering = lambda _: None) -> Build:
    """Compile, and query the driver about the kernels that do the work."""
    started = time.perf_counter_ns()
    try:
        with tracing.span("compile"):
            program = port.build(job.source, job.options)
            kernels = port.kernels(program, job.plan)
    except BuildError as error:
        return Build(source_hash=job.source_hash, state=BuildState.FAILED, message=error.message)
    # Some drivers generate code only when a kernel is queried, so the query is part of building.
    facts = port.facts(kernels, job.plan)
    if job.launches:
        entering("launch")
        with tracing.span("launch"):
            _launch_once(port, kernels, job.plan)
    build_ns = time.perf_counter_ns() - started
    return Build(
        source_hash=job.source_hash,
        state=BuildState.BUILT,
        build_ns=build_ns,
        private_memory_bytes=facts.private_memory_bytes,
        work_group_limit=facts.work_group_limit,
        binary_bytes=0 if job.launches else port.binary_bytes(program),
        binary=port.binary(program) if job.wants_binary and not port.quirks.keeps_programs else b"",
    )


def _launch_once(port: "Port", kernels: Sequence[Any], plan: Plan) -> None:
    """Launch one work-group of each kernel, on zeros, which are the likeliest to be valid where they are indices.

    Only large buffers may hold anything.

    Where the driver chooses the work-group, only the full range would get the same one: it is launched if the kernel
    only prepares an operand, and otherwise the kernel is skipped. Errors are left to the trial, which reports them.
    """
    with contextlib.suppress(KernelError):
        memory: dict[str, Memory] = {}
        for buffer in sorted(plan.buffers, key=lambda buffer: buffer.role is Role.VIEW):  # views after what they show
            memory[buffer.name] = port.allocate(buffer, memory)
            if buffer.role is not Role.VIEW and buffer.size_bytes <= FILLED_BYTES:
                port.fill(memory[buffer.name], np.zeros(1, np.uint8))
        for kernel, launch in zip(kernels, plan.launches, strict=True):
            if launch.local_size or launch.prepares:
                size = launch.local_size or launch.global_size
                part = dataclasses.replace(launch, global_size=size)
                port.start(port.bind([kernel], [part], memory))
        port.finish()


def serve() -> None:
    """Run as the child process: build until the input ends."""
    from autotune.device import check_link, open_port

    port_to = cache(open_port)

    def build(job: BuildJob, entering: child.Entering) -> Build:
        port = port_to(job.selector)
        check_link(port, job.selector)
        entering("build")
        return build_once(port, job, entering)

    child.serve(build)


if __name__ == "__main__":
    serve()
