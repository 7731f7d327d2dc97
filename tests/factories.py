"""Values that many tests need: what a test does not care about is filled in."""

import difflib
import json
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import autotune.measure.measurer
from autotune.kernels import find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.render import render
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.events import (
    DeviceDrifted,
    Event,
    FinalsStarted,
    GainEstimated,
    Outcome,
    ProblemFinished,
    ProblemStarted,
    ShareStarted,
    TrialFinished,
)
from autotune.model.problem import Problem
from autotune.model.trial import Job, Measurement, Provenance, Timer, Trial, TrialState, Verdict, Winner
from autotune.space.search_space import SearchSpace
from waiting import HANG_S

if TYPE_CHECKING:
    from autotune.measure.measurer import Measurer


def evil(part: str) -> tuple[str, str]:
    """The command of a builder, prober or worker that misbehaves as it is asked."""
    return sys.executable, str(Path(__file__).with_name(f"evil_{part}.py"))


def device(slug: str = "adreno-730", *, limits: DeviceLimits | None = None, **changes: Any) -> Device:
    """A device of the family that its slug begins with."""
    known: dict[str, Any] = {"vendor": "", "model": "", "family": slug.partition("-")[0]}
    return Device(slug=slug, limits=limits or DeviceLimits(), **{**known, **changes})


INVENTED_GPU = device(
    "invented-1", family="gpu", selector="0:0", driver="1.0",
    limits=DeviceLimits(max_work_group_size=64, max_work_item_sizes=(64, 64, 64), max_allocation_bytes=2**28),
)  # fmt: skip


LARGE_GPU = DeviceLimits(
    compute_units=132, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64), local_memory_bytes=48 * 1024,
    sub_group_sizes=(32,), extensions=("cl_khr_fp64", "cl_nv_device_attribute_query"),
)  # fmt: skip


PHONE = DeviceLimits(
    compute_units=6, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), local_memory_bytes=32 * 1024,
    has_images=True, max_image_width=16384, max_image_height=16384, sub_group_sizes=(64, 128),
)  # fmt: skip
PROCESSOR = DeviceLimits(
    compute_units=2, max_work_group_size=4096, max_work_item_sizes=(4096, 4096, 4096), local_memory_bytes=2**20,
    is_cpu=True,
)  # fmt: skip


def product(m: int, n: int, k: int, **values: Any) -> GemmProblem:
    return GemmProblem(m=m, n=n, k=k, **values)


def naive(work_group_m: int, work_group_n: int) -> Configuration:
    """Valid for problems of at least so many rows and columns, so that a test can tell where."""
    return Configuration.of("naive", work_group_m=work_group_m, work_group_n=work_group_n)


def random_configuration(device: Device, problem: Problem, numbers: random.Random) -> Configuration:
    """A valid one; all algorithms have equal chances."""
    family = find_family(problem.family)
    space = SearchSpace(family, problem, device.limits, algorithms=[numbers.choice(family.algorithms).name])
    return space[numbers.randrange(len(space))] if len(space) else family.baseline


def read_shape(problem_type: type[Problem], text: str) -> Problem:
    """Parse a shape, which its label and its key must give back."""
    problem = problem_type.parse(text)
    assert problem_type.parse(problem.label) == problem == problem_type.from_dict(json.loads(problem.key))
    return problem


def first_short(cases: Iterable[Any], short: int = 1) -> list[Any]:
    """Leave all cases of a parametrized test but the first `short` ones to the long tests.

    A tuple holds the values of all parameters.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.long] * (number >= short))
        for number, case in enumerate(cases)
    ]


UNOPTIMIZED = ("-cl-opt-disable",)
"""Build options for tests of what a kernel computes: PoCL's optimizer makes a build take 5 to 15 times as long."""


def quick_job(device: Device | str, problem: Problem, configuration: Configuration, **changes: Any) -> Job:
    """A job of one short sample on a device, or on that with a selector; built without the optimizer."""
    known: dict[str, Any] = {
        "seed": 1, "samples": 1, "min_sample_ns": 1000, "build_options": UNOPTIMIZED, "build_limit_s": HANG_S,
        "run_limit_s": HANG_S, **changes,
    }  # fmt: skip
    selector = device if isinstance(device, str) else device.selector
    return Job(selector=selector, problem=problem, configuration=configuration, **known)


def provenance(driver: str = "1.0", **changes: Any) -> Provenance:
    known: dict[str, Any] = {"template_hash": "0" * 12, "space_version": 1, "tool_version": "0.1.0"}
    return Provenance(driver=driver, **{**known, "measured_at": "2026-01-31T12:00:00Z", **changes})


def measurement(time_ns: float, **changes: Any) -> Measurement:
    known: dict[str, Any] = {"samples_ns": (time_ns,), "calls_per_sample": 1, "timer": Timer.EVENT}
    return Measurement(time_ns=time_ns, **{**known, **changes})


def trial(configuration: Configuration, ending: float | TrialState, **changes: Any) -> Trial:
    """A trial that took so many nanoseconds, or that ended in another state than complete."""
    if isinstance(ending, TrialState):
        return Trial(configuration=configuration, state=ending, **changes)
    measured = measurement(ending, **changes)
    return Trial(configuration=configuration, state=TrialState.COMPLETE, measurement=measured)


def winner(
    device: Device | str, problem: Problem, configuration: Configuration, time_ns: float = 1e6, **changes: Any
) -> Winner:
    """A winner of finals, surely twice as fast as the default."""
    known: dict[str, Any] = {
        "default_ns": 2 * time_ns, "baseline_ns": None, "gain_low": 1.9, "gain_high": 2.1, "samples": 9,
        "is_default": False, "verdict": Verdict.FASTER, "verifications": 60, "provenance": provenance(),
    }  # fmt: skip
    slug = device if isinstance(device, str) else device.slug
    return Winner(device=slug, problem=problem, configuration=configuration, time_ns=time_ns, **{**known, **changes})


def spoil_sources(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Make measurers build what `change` makes of the sources of kernels."""

    def spoiled(*given: Any) -> str:
        source = render(*given)
        assert change(source) != source, "the fault does not apply to the template any more"
        return change(source)

    monkeypatch.setattr(autotune.measure.measurer, "render", spoiled)


def find_wrong(
    measurer: "Measurer",
    monkeypatch: pytest.MonkeyPatch,
    problem: Problem,
    configuration: Configuration,
    change: Callable[[str], str],
    seeds: int = 3,
    **changes: Any,
) -> None:
    """A kernel that is right as it is must be found wrong with every input once `change` has spoilt its source."""
    job = partial(quick_job, "", problem, configuration, **changes)
    changed: set[str] = set()

    def spoilt(source: str) -> str:
        wrong = change(source)
        lines = difflib.unified_diff(source.splitlines(), wrong.splitlines(), n=0, lineterm="")
        changed.update(line for line in lines if not line.startswith(("---", "+++", "@@")))
        return wrong

    def measured(seed: int) -> Trial:
        measurer._built.clear()
        return measurer.measure(job(seed=seed))

    right = measured(1)
    assert right.state is TrialState.COMPLETE, f"it is wrong as it is: {right}"
    spoil_sources(monkeypatch, spoilt)
    trials = [measured(seed) for seed in range(seeds)]
    measurer._built.clear()
    told = [f"{trial.state.value}: {trial.message}" for trial in trials]
    wanted = [TrialState.WRONG_RESULT] * seeds
    assert [trial.state for trial in trials] == wanted, "\n".join([str(configuration), *sorted(changed), *told])


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str


Run = Callable[..., Printed]
"""The fixture `run`."""


class Recorder:
    """A listener of searches that keeps what it is told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int, int]] = []
        self.trials: list[Trial] = []
        self.order: list[str] = []
        self.bests: list[float] = []
        self.drifts: list[tuple[float, float]] = []
        self.gains: list[float] = []
        self.shares: list[ShareStarted] = []
        self.finals: list[int] = []
        self.outcomes: list[Outcome] = []

    def __call__(self, event: Event) -> None:
        match event:
            case ProblemStarted():
                self.started.append((event.request.problem.label, event.number, event.total, event.resumed_trials))
                assert event.configurations > 0
            case TrialFinished(trial=trial, best_ns=best_ns):
                self.trials.append(trial)
                self.order.append(event.request.problem.label)
                self.bests.append(best_ns)
                assert best_ns <= trial.time_ns
            case DeviceDrifted():
                self.drifts.append((event.slowdown, event.rest_s))
            case GainEstimated():
                self.gains.append(event.gain_left)
            case ShareStarted():
                self.shares.append(event)
            case FinalsStarted():
                self.finals.append(event.finalists)
            case ProblemFinished():
                assert event.outcome.request == event.request
                self.outcomes.append(event.outcome)
