"""What benchmarks share that tune a problem, and then measure default, winner and rivals in turns."""

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.device.clocks import SPIN
from autotune.device.opencl import Session
from autotune.errors import AutotuneError
from autotune.kernels import find_family
from autotune.kernels.render import render
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Event, Outcome, ProblemFinished
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar
from autotune.model.problem import Problem
from autotune.model.trial import Job, Request
from autotune.search import Budget, tune
from autotune.search.task import Task
from autotune.store import Store


def measured(
    device: Device, problem: Problem, budget_s: float, rivals: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, Any]:
    """Tune a problem and measure default, winner and rivals in turns; times in microseconds."""
    found = tuned(device, [Request(problem=problem)], budget_s).get(problem)
    with Worker(selector=device.selector) as worker:
        return in_turns(worker, Task(device, problem), found, rivals, rounds)


def tuned(device: Device, requests: Sequence[Request], budget_s: float) -> dict[Problem, Outcome]:
    """Tune problems in one search, in a database of its own; nothing below a second."""
    found: dict[Problem, Outcome] = {}

    def note(event: Event) -> None:
        if isinstance(event, ProblemFinished):
            found[event.outcome.request.problem] = event.outcome

    if budget_s > 1:
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "bench.sqlite") as store:
            tune(device, requests, store, Budget(seconds=budget_s), note, seed=1)
    return found


def in_turns(
    worker: Worker,
    task: Task,
    found: Outcome | None,
    rivals: Mapping[str, Callable[[], float]],
    rounds: int,
    queue: "FilledQueue | None" = None,
) -> dict[str, Any]:
    """Measure default, winner and rivals in turns; times in microseconds.

    A rival is a function that returns the time of one call. The fastest of them counts as `torch_us`. With a queue,
    default and winner are measured in that too.
    """
    problem, configurations = task.problem, {"default": task.default}
    if found and found.winner:
        configurations["winner"] = found.winner.configuration
    times: dict[str, list[float]] = {name: [] for name in [*configurations, *rivals]}
    for number in range(rounds):
        for name, configuration in configurations.items():
            times[name].append(time_us(worker, task, configuration, verify=number == 0))
            if queue:
                times.setdefault(f"{name}_queued", []).append(queue.time_us(task, configuration))
        for name, call in rivals.items():
            times[name].append(call())
    middle = {f"{name}_us": statistics.median(found) for name, found in times.items()}
    if rivals:
        middle["torch_us"] = min(middle[f"{name}_us"] for name in rivals)
    return {
        "shape": problem.label, "bytes": problem.bytes_moved, "flops": problem.flops,
        "trials": found.new_trials if found else 0, **middle, "samples_us": times,
        "configurations": {name: configuration.to_dict() for name, configuration in configurations.items()},
    }  # fmt: skip


class FilledQueue:
    """Times calls of which many wait in the queue, without events between them, as calls of a graph do.

    A launch from Python takes longer than a small kernel: another kernel keeps the device busy until all are queued.
    """

    CALLS, BUSY_US, LAUNCH_US = 200, 1000.0, 12.0

    def __init__(self, device: Device) -> None:
        self._port = Session(device.selector, profiles=False)
        self._built: dict[Configuration, Any] = {}
        buffer = Buffer(name="out", role=Role.OUTPUT, dtype="int32", elements=1)
        turns = Scalar(name="turns", dtype="int32", value=1)
        plan = Plan(
            buffers=(buffer,),
            launches=(Launch(kernel="spin", global_size=(1,), local_size=(1,), arguments=("out", turns)),),
        )
        kernels = self._port.kernels(self._port.build(SPIN, []), plan)
        memory = {"out": self._port.allocate(buffer, {})}
        self._spin = self._port.bind(kernels, plan.launches, memory, variables=["turns"])
        self._turns_per_us = 1e6 / min(self._run_us(1_000_000, None, 0) for _ in range(3))
        self._problem: Problem | None = None

    def time_us(self, task: Task, configuration: Configuration) -> float:
        """Return the time of one call."""
        if self._problem != task.problem:
            self._built, self._problem = {}, task.problem
        if configuration not in self._built:
            self._built[configuration] = self._bound(task, configuration)
        call, launches = self._built[configuration]
        turns = int((self.BUSY_US + self.CALLS * launches * self.LAUNCH_US) * self._turns_per_us)
        busy_us = min(self._run_us(turns, None, 0) for _ in range(2))
        return (self._run_us(turns, call, self.CALLS) - busy_us) / self.CALLS

    def _run_us(self, turns: int, call: Any, calls: int) -> float:
        self._port.finish()
        began = time.perf_counter_ns()
        self._port.start(self._spin, variables=[turns])
        for _ in range(calls):
            self._port.start(call)
        self._port.finish()
        return (time.perf_counter_ns() - began) / 1e3

    def _bound(self, task: Task, configuration: Configuration) -> tuple[Any, int]:
        family = find_family(task.problem.family)
        plan = family.plan(task.problem, configuration)
        options = [*task.build_options, *plan.build_options]
        kernels = self._port.kernels(self._port.build(render(family, configuration, plan), options), plan)
        inputs = family.make_case(task.problem, 1).inputs
        memory: dict[str, Any] = {}
        for buffer in plan.buffers:
            memory[buffer.name] = self._port.allocate(buffer, memory)
            if buffer.name in inputs:
                self._port.write(memory[buffer.name], inputs[buffer.name].reshape(-1))
            elif buffer.is_zeroed:
                self._port.fill(memory[buffer.name], np.zeros(1, np.int32))
        self._port.start(self._port.bind(kernels, plan.launches, memory))  # prepares constant operands too
        self._port.finish()
        counted = [n for n, launch in enumerate(plan.launches) if not task.problem.is_constant(launch.prepares)]
        bound = self._port.bind([kernels[n] for n in counted], [plan.launches[n] for n in counted], memory)
        return bound, len(counted)


def time_us(worker: Worker, task: Task, configuration: Configuration, *, verify: bool) -> float:
    """Return the time of a configuration. Raises AutotuneError when it cannot be measured."""
    job = Job(
        selector=task.device.selector, problem=task.problem, configuration=configuration, samples=5,
        build_options=task.build_options, verify=verify, seed=1, run_limit_s=60,
    )  # fmt: skip
    trial = worker.run(job)
    if not trial.measurement:
        raise AutotuneError(f"{task.problem.label}: {configuration}: {trial.state.value}: {trial.message[:300]}")
    return trial.measurement.time_ns / 1e3


def torch_of(device: Device) -> Any:
    """Return torch where it runs on the device, with TF32 off; None otherwise."""
    if not importlib.util.find_spec("torch"):
        return None
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch if device.limits.is_cpu or torch.cuda.is_available() else None
