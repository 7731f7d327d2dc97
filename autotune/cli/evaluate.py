"""The command `autotune evaluate`: measure how much of the tuned speed predictions reach at held-out sizes."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import DATABASE, DEVICE, JSON, SHAPES, budget, command, family, flag, integer, shape
from autotune.cli.interrupts import Interrupts, tell_stopped
from autotune.cli.output import print_json, tell
from autotune.cli.run import read_requests
from autotune.codec import write
from autotune.errors import UsageError
from autotune.kernels import find_family
from autotune.lookup.predictor import FAVOURS, Evaluation
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Request, Winner

if TYPE_CHECKING:
    from autotune.predict.regret import Comparison
    from autotune.store import Store

HELD_OUT = 10
"""How many sizes are held out when neither a number nor shapes are given."""


@command(
    DEVICE,
    family("whose sizes to hold out"),
    shape("a tuned shape to hold out"),
    SHAPES,
    integer("--holdout", 1, 10**6, f"hold out N of the tuned shapes ({HELD_OUT})"),
    budget("tune these shapes afresh within this time and compare with that; they need not be tuned before"),
    flag("--quiet", "no line for each size, only the table"),
    DATABASE,
    JSON,
    examples=(
        "evaluate --device cpu --holdout 10",
        "evaluate --device adreno --shapes others.txt --budget 10m --json > regret.json",
    ),
)
def evaluate_command(options: argparse.Namespace) -> int:
    """Measure how much of the tuned speed is reached at held-out sizes, predicted from the others."""
    from autotune.cli.device_lock import DeviceLock
    from autotune.device.discovery import find_device
    from autotune.measure.worker import Worker
    from autotune.predict import note_measured, refresh_predictors
    from autotune.predict.regret import measure_regret, summarise
    from autotune.search.faults import with_checkup
    from autotune.store import Store

    device = find_device(options.device)
    with (
        Store.open(options.db, makes=False) as store,
        DeviceLock(device),
        Worker() as worker,
        Interrupts("the running size") as interrupts,
    ):
        device = with_checkup(device, store)
        if options.budget is None:
            held_out = _held_out(options, store, device)
        else:
            held_out = _tuned_afresh(options, store, device, lambda: interrupts.are_requested)
        comparisons = measure_regret(
            device,
            held_out,
            store,
            worker,
            should_stop=lambda: interrupts.are_requested,
            on_progress=lambda comparison: None if options.quiet else tell(_line(comparison)),
        )
        if interrupts.are_requested:
            return tell_stopped(options, "the figures of this run are not kept. To measure all")
        if not comparisons:
            raise UsageError("none of the configurations tuned for these sizes runs any more", hint="tune them again")
        refresh_predictors(store, device, [options.family])
        kinds: dict[object, list[Comparison]] = {}
        for comparison in comparisons:
            kinds.setdefault(comparison.problem.kind, []).append(comparison)
        for of_kind in kinds.values():
            if not note_measured(store, device.slug, of_kind[0].problem, summarise(of_kind)):
                tell(f"too few sizes like {of_kind[0].problem.label} are tuned to make predictions from")
    _report(options, device, comparisons, summarise(comparisons))
    return 0


def _held_out(options: argparse.Namespace, store: "Store", device: Device) -> list[Winner]:
    """Return the winners of the sizes to hold out. Raises UsageError if one is not tuned, or too few are."""
    winners = {winner.problem: winner for winner in store.best(device.slug, options.family)}
    chosen = _sizes(options, winners, device)
    missing = [problem.label for problem in chosen if problem not in winners]
    if missing:
        others = " and others" if len(missing) > 5 else ""
        raise UsageError(
            f"{', '.join(missing[:5])}{others}: not tuned on {device.slug}, so there is nothing to compare with",
            hint="tune them with autotune run first, or afresh with --budget",
        )
    return [winners[problem] for problem in chosen]


def _tuned_afresh(
    options: argparse.Namespace, store: "Store", device: Device, should_stop: Callable[[], bool]
) -> list[Winner]:
    """Return winners of the sizes to hold out from a new search, which neither uses nor changes the store's trials."""
    from autotune.display.progress import progress
    from autotune.search import Budget, tune
    from autotune.store import Store

    winners = {winner.problem: winner for winner in store.best(device.slug, options.family)}
    requests = [Request(problem=problem) for problem in _sizes(options, winners, device)]
    budget = Budget(seconds=options.budget)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / "afresh.sqlite") as afresh,
        progress(budget, sys.stderr, is_quiet=options.quiet) as listener,
    ):
        outcomes = tune(device, requests, afresh, budget, listener, should_stop=should_stop)
    return [outcome.winner for outcome in outcomes if outcome.winner]


def _sizes(options: argparse.Namespace, tuned: Collection[Problem], device: Device) -> list[Problem]:
    """Return the given sizes, or else some of the tuned ones. Raises UsageError if none is left to predict from."""
    from autotune.predict.regret import choose_held_out

    requests = read_requests(find_family(options.family).problem_type, options.shape, options.shapes)
    chosen = [request.problem for request in requests] or choose_held_out(tuned, options.holdout or HELD_OUT)
    if not chosen or not set(tuned) - set(chosen):
        raise UsageError(
            f"{len(tuned)} sizes of {options.family} are tuned on {device.slug}: too few to hold some out",
            hint="tune more with autotune run first, or hold out fewer",
        )
    return chosen


def _line(comparison: "Comparison") -> str:
    parts = ", ".join(f"{name} {comparison.reached[name]:.0%}" for name in FAVOURS)
    failed = f"; failed: {', '.join(comparison.failed)}" if comparison.failed else ""
    return f"{comparison.problem.label}: {parts} of the tuned speed{failed}"


def _report(
    options: argparse.Namespace, device: Device, comparisons: "list[Comparison]", evaluation: Evaluation
) -> None:
    if options.json:
        print_json(_plain(device, comparisons, evaluation))
        return
    print(f"{evaluation.sizes} sizes held out on {device.slug}; fractions of the tuned speed reached:")
    print(f"{'':12}{'geo. mean':>10}{'median':>10}{'10th pct.':>10}{'worst':>10}")
    for name in FAVOURS:
        reach = getattr(evaluation, name)
        cells = "".join(f"{value:>10.3f}" for value in (reach.mean, reach.median, reach.low, reach.worst))
        print(f"{name:12}{cells}")


def _plain(device: Device, comparisons: "list[Comparison]", evaluation: Evaluation) -> dict[str, Any]:
    return {
        "device": device.slug,
        **write(evaluation),
        "comparisons": [write(comparison, without=("times_ns",)) for comparison in comparisons],
    }
