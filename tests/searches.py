"""Searches on an invented device: what is tuned there, how long it takes, and how a search of one problem is run."""

from typing import Any

from autotune.kernels.gemm import GemmProblem
from autotune.model.device import Device
from autotune.model.events import Outcome
from autotune.model.problem import Problem
from autotune.model.trial import Job, Request, Winner
from autotune.search import Budget, tune
from autotune.search.task import Task
from autotune.store import Store
from factories import Recorder
from fakes import INVENTED_PROCESSOR
from invented_clock import Clock

DEVICE = INVENTED_PROCESSOR
PROBLEM = GemmProblem(m=96, n=96, k=96)
DEFAULT = Task(DEVICE, PROBLEM).default


def invented_time(job: Job) -> float:
    """Nanoseconds: the wider the micro-tile the faster."""
    values = dict(job.configuration.values)
    area = int(values.get("micro_tile_m", 1)) * int(values.get("micro_tile_n", 1))
    return 1e6 / area + 100.0 * (job.configuration.algorithm == "naive")


def search(
    store: Store,
    worker: Any,
    trials: int | None = 12,
    problem: Problem = PROBLEM,
    *,
    device: Device = DEVICE,
    seconds: float | None = None,
    recorder: Recorder | None = None,
    **options: Any,
) -> Outcome:
    """Tune one problem; `options` are those of `tune`. Where trials take invented times, so does everything else."""
    if worker is not None:
        options.setdefault("clock", Clock())
    recorder, budget = recorder or Recorder(), Budget(trials=trials, seconds=seconds)
    [outcome] = tune(device, [Request(problem=problem)], store, budget, recorder, worker=worker, **options)
    assert recorder.outcomes == [outcome]
    return outcome


def won(outcome: Outcome) -> Winner:
    """The winner of a search that must have one."""
    assert outcome.winner is not None
    return outcome.winner
