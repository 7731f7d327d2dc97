"""The command `autotune run`: collect what to tune, run the search until it ends or is stopped, report the results."""

import argparse
import contextlib
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import (
    ANY_SERVER,
    DATABASE,
    DEADLINE,
    JSON,
    LEARN_FROM,
    MARKDOWN,
    QUIET,
    RHYTHM,
    WANTED,
    WIDE,
    argument,
    command,
    flag,
)
from autotune.cli.budget import budget_of, parse_share, print_duration, print_size
from autotune.cli.interrupts import LATE, Interrupts, print_stopped
from autotune.cli.output import print_excluded_defaults, print_note, print_result, require_winners
from autotune.cli.presets import is_model, read_model, step_tokens, tokens_of
from autotune.device.link import split
from autotune.errors import AutotuneError, ConfigurationError, ProblemError, UsageError, WorkerError
from autotune.kernels import find_family, parse_shape
from autotune.model.device import Device
from autotune.model.events import Outcome
from autotune.model.problem import Problem
from autotune.model.trial import Request
from autotune.plugins import part

if TYPE_CHECKING:
    from autotune.measure.worker import Worker
    from autotune.propose.prior import Source
    from autotune.search import Budget, SamplerChoice
    from autotune.store import Quarantined, Store

SEARCH_SHARE = 0.8
"""Largest part of the time until a deadline that is the budget of the search; the checkup of a new device, reading
what is stored, and what exceeds a budget take the rest."""


@command(
    *WANTED,
    flag("--misses", "tune the sizes that lookups on this machine asked for and never found"),
    argument(
        "--until-gain",
        metavar="SHARE",
        type=parse_share,
        help="end a shape's search once 25 more trials are expected to save less than this: 1%%, 0.01",
    ),
    argument(
        "--sampler",
        metavar="NAME",
        default="ours",
        help="sampler that proposes configurations: ours, tpe, random, exhaustive, or the path of an Optuna sampler "
        "class, such as optuna.samplers:CmaEsSampler (ours)",
    ),
    argument(
        "--sampler-options", metavar="JSON", default="", help="arguments of that class: '{\"multivariate\": true}'"
    ),
    flag(
        "--retry-quarantined",
        "begin with the configurations that crashed, hung or were running when an earlier run was killed; "
        "without this option they are never run again",
    ),
    flag(
        "--sustained",
        "times at the speed that the device holds when hot, as in long use of a phone: heats it before the search and "
        "before the finals, and gives it no rests",
    ),
    RHYTHM,
    argument(
        "--no-crossover",
        dest="crossover",
        action="store_false",
        help="skip the comparison of a few products with the host's BLAS at the end, which takes some seconds",
    ),
    DEADLINE,
    LEARN_FROM,
    QUIET,
    WIDE,
    MARKDOWN,
    DATABASE,
    JSON,
    *ANY_SERVER,
    examples=(
        "run --device cpu --shape 512,512,512 --budget 2m",
        "run --device adreno --shape 64,3136,576 1000,1,2048 --trials 200 --algorithm microtile",
        "run --device mali --preset resnet50 --budget 1h --sustained --db phone.sqlite",
        "run --device mali --shape 512,512,512 --until-gain 1%",
        'run --device cpu --shape 512,512,512 "64,64,64 nt float16" --trials 50',
        "run --device cpu --shapes shapes.txt --deadline 10m",
        "run --device cpu --family reduce --shape 64,1000 512,768,max --budget 1m",
        "run --device gpu --shapes shapes.txt --trials 100 --json > winners.json",
    ),
)
def run_command(options: argparse.Namespace) -> int:
    """Search for the fastest kernel for each shape and store it. Repeating the command continues the search."""
    if options.server:
        status: int = part("run_on_service")(options)
        return status
    if not (options.shape or options.shapes or options.preset or options.misses):
        _use_default_preset(options)
    return tune_requests(options, *wanted_requests(options))


def tune_requests(options: argparse.Namespace, own: list[Request], others: list[Request]) -> int:
    """Tune `own` and those of `others` that fit the device, with the options of `autotune run`; report the results."""
    sampler = _sampler(options)
    foreign = [_foreign(Path(name), options.family) for name in options.learn_from]
    for family in dict.fromkeys(request.problem.family for request in [*own, *others]):
        check_algorithms(family, options.algorithm)
    from autotune.device.discovery import find_device
    from autotune.kernels.shapes import fitting
    from autotune.search import worker_of_commands

    special = worker_of_commands([*own, *others])
    device = find_device(options.device) if special is None else device_of_commands(options)
    if options.misses:
        others += _missed(device, is_alone=not (own or others))
        special = worker_of_commands([*own, *others])
    requests, left_out = fitting(own, others, device.limits)
    for message in left_out:
        print_note(f"left out: {message}")
    if not requests:
        raise ProblemError("no shape fits the device")
    budget = budget_of(options)
    if options.sampler == "exhaustive":
        print_size(device, requests, options.algorithm)
    from autotune.cli.device_lock import DeviceLock
    from autotune.measure.worker import worker_for

    with Interrupts("the running trial", began=options.began, deadline_s=options.deadline) as interrupts:
        worker = special or worker_for(
            device.selector, print_note, lambda: interrupts.are_requested, is_sustained=options.sustained
        )
        try:
            with DeviceLock(device, lambda: interrupts.are_requested), worker:
                worker.start()  # the other modules load meanwhile
                return _tune(options, device, requests, budget, sampler, worker, foreign, interrupts)
        except WorkerError:
            if interrupts.are_requested:  # while waiting for the device
                return print_stopped(options, "what was measured is kept; to continue")
            raise


def _tune(
    options: argparse.Namespace,
    device: Device,
    requests: list[Request],
    budget: "Budget",
    sampler: "SamplerChoice | None",
    worker: "Worker",
    foreign: "Sequence[Source]",
    interrupts: Interrupts,
) -> int:
    from autotune.cli.devices import examined
    from autotune.display.progress import progress
    from autotune.measure.worker import Worker
    from autotune.search import Rhythm, builders_for, tune
    from autotune.store import Store

    if math.isfinite(interrupts.left_s):
        seconds = min(budget.seconds or math.inf, max(SEARCH_SHARE * interrupts.left_s, 1.0))
        budget = dataclasses.replace(budget, seconds=seconds)
    with (
        Store.open(options.db) as store,
        progress(budget, sys.stderr, is_quiet=options.quiet, phase=lambda: worker.phase) as listener,
    ):
        is_process = isinstance(worker, Worker)
        device = examined(device, store, worker) if is_process else device
        if not options.quiet:
            print_duration(device, requests, budget)
            print_excluded_defaults(device, requests)
        _print_lost(store.quarantine_lost())
        outcomes = tune(
            device,
            requests,
            store,
            budget,
            listener,
            algorithms=options.algorithm,
            seed=options.seed,
            should_stop=lambda: interrupts.are_requested,
            worker=worker,
            builds=builders_for(device) if is_process else None,
            retries_quarantined=options.retry_quarantined,
            is_sustained=options.sustained,
            rhythm=Rhythm(burst_ns=options.rhythm[0], pause_ns=options.rhythm[1]) if options.rhythm else None,
            sampler=sampler,
            foreign=foreign,
        )
        forget_tuned(device, outcomes)
        if options.crossover:
            _compare_with_host(store, device, outcomes, interrupts)
    status = _report(options, device, requests, outcomes, was_stopped=interrupts.are_requested)
    return LATE if interrupts.is_late else status


def device_of_commands(options: argparse.Namespace) -> Device:
    """Return the device that commands use, which may be one of another machine, such as a phone on a cable."""
    from autotune.cli.lookup import named_or_absent_device
    from autotune.store import Store

    with Store.open(options.db) as store:
        return named_or_absent_device(options.device, store.devices())


def _foreign(path: Path, name: str) -> "Source":
    """Return what other tuners measured of a family, and print how much of it fits. Raises UsageError."""
    source: Source
    source, count = part("read_foreign_results")(path, find_family(name))
    print_note(f"{path}: {len(source.configurations)} of {count} results fit the parameters of {name}")
    return source


def _print_lost(lost: "Sequence[Quarantined]") -> None:
    if lost:
        sizes = ", ".join(dict.fromkeys(f"{entry.problem.label} on {entry.device}" for entry in lost))
        kernels = "1 kernel that was" if len(lost) == 1 else f"{len(lost)} kernels that were"
        print_note(
            f"quarantined: {kernels} running when an earlier run was killed, of {sizes} (--retry-quarantined runs "
            f"{'it' if len(lost) == 1 else 'them'} again)"
        )


def wanted_requests(options: argparse.Namespace) -> tuple[list[Request], list[Request]]:
    """Return the shapes of --shape, which the device must be able to hold, and others, left out where it cannot.

    Raises UsageError.
    """
    from autotune.networks.presets import preset

    problem_type = find_family(options.family).problem_type
    own = read_requests(problem_type, options.shape, [])
    listed = read_requests(problem_type, [], options.shapes, tokens_of(options.tokens, options.shapes))
    networks = [preset(name, options.depth or 0, options.family) for name in options.preset]
    return own, [*listed, *(request for network in networks for request in network)]


def read_requests(
    problem_type: type[Problem], shapes: Sequence[str], files: Sequence[Path], tokens: int = 1
) -> list[Request]:
    """Return the shapes of the command line and of files in order, equal ones merged. Raises UsageError.

    Files in GGUF are models, whose step has so many `tokens`.
    """
    from autotune.kernels.shapes import merge, read_shapes

    requests = [Request(problem=problem) for problem in _parse_shapes(problem_type, shapes)]
    for path in files:
        requests += read_model(path, tokens) if is_model(path) else read_shapes(path, problem_type)
    return merge(requests)


def _parse_shapes(problem_type: type[Problem], shapes: Sequence[str]) -> list[Problem]:
    """Parse shapes. Raises ProblemError, or UsageError with the right spelling for sizes given as separate words."""
    try:
        return [parse_shape(problem_type, text) for text in shapes]
    except ProblemError as error:
        joined = ",".join(shapes)
        if len(shapes) > 1 and "," not in "".join(shapes):
            with contextlib.suppress(ProblemError):
                problem_type.parse(joined)
                raise UsageError(error.message, hint=f"did you mean --shape {joined}?") from error
        raise


def _missed(device: Device, *, is_alone: bool) -> list[Request]:
    """Return the sizes that lookups missed on the device, the most missed first.

    Raises UsageError when there are none although nothing else is to be tuned.
    """
    from autotune.lookup.misses import default_file, read_misses

    path = default_file()
    missed = [
        Request(problem=miss.problem, calls=count, label="missed")
        for miss, count in read_misses(path).most_common()
        if miss.device == device.slug
    ]
    if is_alone and not missed:
        raise UsageError(f"{path} lists no miss on {device.slug}", hint="give --shape SHAPE or --shapes FILE")
    return missed


def forget_tuned(device: Device, outcomes: Sequence[Outcome]) -> None:
    """Forget the misses that are now tuned. A failure is only reported."""
    from autotune.lookup.misses import Miss, default_file, forget_misses, read_misses

    done = {Miss(device.slug, outcome.request.problem) for outcome in outcomes if outcome.winner}
    try:
        if done & read_misses(default_file()).keys():
            forget_misses(default_file(), done)
    except (AutotuneError, OSError) as error:
        print_note(f"the misses that this run tuned stay listed: {error}")


def _compare_with_host(store: "Store", device: Device, outcomes: Sequence[Outcome], interrupts: Interrupts) -> None:
    """Store where the host's BLAS is faster, if that is cheap to find out. A failure is only reported.

    A device behind a link is not compared: its host is another machine.
    """
    winners = [outcome.winner for outcome in outcomes if outcome.winner and outcome.new_trials]
    if "://" in store.location or interrupts.are_requested or not winners or split(device.selector):
        return
    from autotune.runtime.comparison import compare_with_host
    from autotune.runtime.crossover import Crossover, file_of

    points = compare_with_host(device, winners, Path(store.location), should_stop=lambda: interrupts.are_requested)
    try:
        place = file_of(store.location)
        if points:
            Crossover(points=tuple(points)).over(Crossover.read(device.slug, place)).write(device.slug, place)
    except (AutotuneError, OSError) as error:
        print_note(f"could not save where the host's BLAS is faster: {error}")


def _use_default_preset(options: argparse.Namespace) -> None:
    """Select the default preset, since no shape is given. Raises UsageError for a family without such a preset."""
    from autotune.networks.presets import DEFAULT_PRESET, preset

    if {request.problem.family for request in preset(DEFAULT_PRESET)} != {options.family}:
        raise UsageError(f"no shapes of {options.family} given", hint="give --shape SHAPE or --shapes FILE")
    print_note(f"no shape given: tuning the preset {DEFAULT_PRESET}, see `autotune presets {DEFAULT_PRESET}`")
    options.preset = [DEFAULT_PRESET]


def check_algorithms(family: str, names: Sequence[str]) -> None:
    """Raises UsageError when the family lacks one of these algorithms."""
    for name in names:
        try:
            find_family(family).algorithm(name)
        except ConfigurationError as error:
            raise UsageError(error.message, hint=error.hint) from error


def _sampler(options: argparse.Namespace) -> "SamplerChoice | None":
    """Return the chosen sampler, None for ours. Raises UsageError when it does not exist or fit the other options."""
    if options.sampler == "ours" and not options.sampler_options:
        return None  # before any library is loaded
    from autotune.search import SamplerChoice

    if options.until_gain is not None and options.sampler != "ours":
        raise UsageError(
            "--until-gain needs --sampler ours: other samplers do not estimate what is left to gain",
            hint="give --trials N or --budget TIME",
        )
    return SamplerChoice.parse(options.sampler, options.sampler_options)


def _report(
    options: argparse.Namespace,
    device: Device,
    requests: Sequence[Request],
    outcomes: Sequence[Outcome],
    *,
    was_stopped: bool,
) -> int:
    from autotune.display.results import print_failures

    print_failures(outcomes, device.slug, sys.stderr if options.json else sys.stdout)
    is_complete = not was_stopped and len(outcomes) == len(requests)
    tokens = 0 if options.shape else step_tokens(options.preset, options.shapes, options.tokens)
    print_result(options, device.slug, outcomes, is_complete=is_complete, tokens=tokens)
    for winner in (outcome.winner for outcome in outcomes if outcome.winner and not options.json):
        if use := find_family(winner.problem.family).use(winner.problem, winner.configuration):
            print(f"{winner.problem.label}: {use}")
    if was_stopped:
        return print_stopped(options, "every trial is kept. To go on")
    require_winners(device, outcomes)
    return 0
