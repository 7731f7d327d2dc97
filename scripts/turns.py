"""What benchmarks share that tune a problem, and then measure default, winner and rivals in turns."""

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.errors import AutotuneError
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Event, ProblemFinished, TrialFinished
from autotune.model.problem import Problem
from autotune.model.trial import Job, Request
from autotune.search import Budget, tune
from autotune.search.task import Task
from autotune.store import Store


def measured(
    device: Device, problem: Problem, budget_s: float, rivals: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, Any]:
    """Tune a problem and measure default, winner and rivals in turns; times in microseconds.

    A rival is a function that returns the time of one call. The fastest of them counts as `torch_us`.
    """
    finished: list[ProblemFinished] = []
    trials = 0

    def note(event: Event) -> None:
        nonlocal trials
        trials += isinstance(event, TrialFinished)
        if isinstance(event, ProblemFinished):
            finished.append(event)

    task = Task(device, problem)
    configurations = {"default": task.default}
    if budget_s > 1:
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "bench.sqlite") as store:
            tune(device, [Request(problem=problem)], store, Budget(seconds=budget_s), note, seed=1)
        if winner := finished[0].outcome.winner:
            configurations["winner"] = winner.configuration
    times: dict[str, list[float]] = {name: [] for name in [*configurations, *rivals]}
    with Worker(selector=device.selector) as worker:
        for number in range(rounds):
            for name, configuration in configurations.items():
                times[name].append(time_us(worker, task, configuration, verify=number == 0))
            for name, call in rivals.items():
                times[name].append(call())
    middle = {f"{name}_us": statistics.median(found) for name, found in times.items()}
    if rivals:
        middle["torch_us"] = min(middle[f"{name}_us"] for name in rivals)
    return {
        "shape": problem.label, "bytes": problem.bytes_moved, "flops": problem.flops, "trials": trials, **middle,
        "samples_us": times,
        "configurations": {name: configuration.to_dict() for name, configuration in configurations.items()},
    }  # fmt: skip


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
