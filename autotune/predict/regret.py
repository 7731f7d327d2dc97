"""Measures how much a prediction loses: sizes are held out, predicted, and run beside what was tuned for them."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.lookup import Entry, Match, TuningTable, table_order
from autotune.lookup.predictor import FAVOURS, Evaluation
from autotune.measure.worker import Measures
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Job, TrialState, Winner
from autotune.predict import make_predictors
from autotune.predict.selection import reach
from autotune.search.task import Task
from autotune.store import Store

ROUNDS = 7
SAMPLES = 3
FAILED_LOSS = math.log(8.0)
"""Loss counted for a configuration that did not run correctly at the size it was chosen for."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One size held out: the fraction of the tuned speed that each way of choosing reaches, and the lookup's step."""

    problem: Problem
    match: Match
    tuned_ns: float
    reached: dict[str, float]
    """Keyed by the names in FAVOURS; 1.0 is as fast as tuned."""
    failed: tuple[str, ...]
    """Names whose configuration did not run correctly."""
    times_ns: dict[str, tuple[float, ...]]
    """Times by round, keyed by ``tuned`` and the names that did not fail; equal configurations share their times."""


def choose_held_out(problems: Iterable[Problem], count: int) -> list[Problem]:
    """Return at most `count` of the sizes, evenly spaced in the table's order, without the first and the last."""
    ordered = sorted(problems, key=table_order)
    most = max(0, min(count, len(ordered) - 2))
    steps = [round((number + 0.5) * (len(ordered) - 2) / most - 0.5) + 1 for number in range(most)]
    return [ordered[step] for step in dict.fromkeys(steps)]


def measure_regret(
    device: Device,
    held_out: Sequence[Winner],
    store: Store,
    worker: Measures,
    *,
    rounds: int = ROUNDS,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Comparison], None] = lambda _: None,
) -> list[Comparison]:
    """Predict each size held out from the others of its family, and measure; `held_out` are the sizes' winners."""
    found: list[Comparison] = []
    for family in sorted({winner.problem.family for winner in held_out}):
        held = [winner for winner in held_out if winner.problem.family == family]
        without = {winner.problem for winner in held}
        entries = [
            (device.slug, Entry(problem=w.problem, configuration=w.configuration, time_ns=w.time_ns))
            for w in store.best(device.slug, family)
            if w.problem not in without
        ]
        made = make_predictors(store, device, family, without)
        near = [replace(predictor, favours="nearest") for predictor in made]  # used at any distance, for comparison
        ways = tuple(TuningTable([device], entries, predictors={device.slug: way}) for way in (made, near))
        for winner in held:
            if should_stop():
                return found
            comparison = _compare(Task(device, winner.problem), winner, ways, worker, rounds)
            if comparison is not None:
                found.append(comparison)
                on_progress(comparison)
    return found


def summarise(comparisons: Sequence[Comparison]) -> Evaluation:
    """Return the evaluation over all comparisons, of which there must be at least one."""
    losses = {name: np.array([-math.log(c.reached[name]) for c in comparisons]) for name in FAVOURS}
    return Evaluation(sizes=len(comparisons), **{name: reach(values) for name, values in losses.items()})


def _compare(
    task: Task, winner: Winner, ways: Sequence[TuningTable], worker: Measures, rounds: int
) -> Comparison | None:
    """Return the comparison, or None if the tuned configuration does not run any more."""
    predicted, nearest = (way.find(task.device, winner.problem) for way in ways)
    chosen = {
        "predicted": predicted.configuration,
        "nearest": nearest.configuration,
        "default": task.default,
    }
    times = _measure_in_turns(task, [winner.configuration, *chosen.values()], worker, rounds)
    tuned = times.get(winner.configuration)
    if not tuned:
        return None
    failed = tuple(name for name, configuration in chosen.items() if configuration not in times)
    ratios = {
        name: statistics.median(t / other for t, other in zip(tuned, times[configuration], strict=False))
        for name, configuration in chosen.items()
        if name not in failed
    }
    return Comparison(
        problem=winner.problem,
        match=predicted.match,
        tuned_ns=statistics.median(tuned),
        reached={name: ratios.get(name, math.exp(-FAILED_LOSS)) for name in FAVOURS},
        failed=failed,
        times_ns={
            "tuned": tuple(tuned),
            **{name: tuple(times[configuration]) for name, configuration in chosen.items() if name not in failed},
        },
    )


def _measure_in_turns(
    task: Task, configurations: Sequence[Configuration], worker: Measures, rounds: int
) -> dict[Configuration, list[float]]:
    """Measure in turns and return times by round, nanoseconds.

    A configuration that fails once is left out, as is one with a wrong result; only its first run is verified.
    """
    times: dict[Configuration, list[float]] = {c: [] for c in dict.fromkeys(configurations)}
    for number in range(rounds):
        order = list(times)
        turn = number % max(1, len(order))
        for configuration in order[turn:] + order[:turn]:
            trial = worker.run(
                Job(
                    selector=task.device.selector,
                    problem=task.problem,
                    configuration=configuration,
                    build_options=task.build_options,
                    samples=SAMPLES,
                    seed=number,
                    verify=number == 0,
                )
            )
            if trial.state is TrialState.COMPLETE:
                times[configuration].append(trial.time_ns)
            else:
                del times[configuration]
    return times
