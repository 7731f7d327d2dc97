"""The command `autotune compile`: build the kernels of a search space without running them."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.cli.arguments import (
    DATABASE,
    DEVICE,
    JSON,
    QUIET,
    command,
    family,
    flag,
    integer,
    one_of,
    seed,
    shape,
    words,
)
from autotune.cli.interrupts import Interrupts, tell_stopped
from autotune.cli.output import plain_compilation, print_json, tell
from autotune.cli.run import check_algorithms, days_text
from autotune.device.processors import usable_cores
from autotune.kernels import find_family, parse_shape
from autotune.model.device import Device
from autotune.model.problem import Problem

if TYPE_CHECKING:
    from autotune.search.compilation import Report

DEFAULT_SIZE = 512
"""Value of every size when no shape is given."""


@command(
    DEVICE,
    family("whose configurations to build"),
    shape(f"a shape to build the valid configurations of; {DEFAULT_SIZE} for every size if left out"),
    words("--algorithm", "NAME", "build only these: naive, dot, ..."),
    integer("--sample", 1, 10**9, "at most N configurations of each algorithm, drawn at random"),
    seed("seed of the sample"),
    one_of(
        integer("--jobs", 1, 1024, "number of build processes; one for each core by default"),
        flag("--farm", "have the builders build that share this database: see autotune builder"),
        flag("--withdraw", "remove from the farm what it has not begun of this device, family and algorithms"),
    ),
    QUIET,
    DATABASE,
    JSON,
    examples=(
        "compile --device adreno --algorithm microtile --sample 2000",
        "compile --device mali --shape 512,512,512 --jobs 8 --db phone.sqlite --json > builds.json",
        "compile --farm --device adreno --db postgresql://autotune@10.0.0.5/autotune",
    ),
)
def compile_command(options: argparse.Namespace) -> int:
    """Build kernels without running them, to find failures, spills and limits, which a later run then skips."""
    problems = _problems(options)
    check_algorithms(options.family, options.algorithm)
    if options.farm or options.withdraw:
        return _compile_on_farm(options, problems)
    from autotune.device.discovery import find_device
    from autotune.display.builds import building
    from autotune.search.compilation import Extent, compile_space
    from autotune.search.faults import with_checkup
    from autotune.store import Store

    device = find_device(options.device)
    _tell_size(options, device, problems)
    extent = Extent(algorithms=tuple(options.algorithm), sample=options.sample, seed=options.seed, jobs=options.jobs)
    reports: list[Report] = []
    with (
        Store.open(options.db) as store,
        Interrupts("the running builds") as interrupts,
        building(sys.stderr, is_quiet=options.quiet) as listener,
    ):
        device = with_checkup(device, store)
        for problem in problems:
            if interrupts.are_requested:
                break
            reports.append(
                compile_space(
                    device, problem, store, extent, listener=listener, should_stop=lambda: interrupts.are_requested
                )
            )
    return _report(options, reports, was_stopped=interrupts.are_requested)


def _compile_on_farm(options: argparse.Namespace, problems: Sequence[Problem]) -> int:
    """Queue the builds and watch the farm build them, or withdraw them."""
    from autotune.cli.builder import devices_of_farm
    from autotune.device.discovery import select
    from autotune.display.builds import building
    from autotune.search.compilation import Extent
    from autotune.search.farm import compile_on_farm
    from autotune.search.faults import with_checkup
    from autotune.store import Store
    from autotune.store.database import require_server

    require_server(options.db)
    extent = Extent(algorithms=tuple(options.algorithm), sample=options.sample, seed=options.seed)
    with (
        Store.open(options.db) as store,
        Interrupts("a look at the farm") as interrupts,
        building(sys.stderr, is_quiet=options.quiet) as listener,
    ):
        device = with_checkup(select(options.device, devices_of_farm(store.devices())), store)
        if options.withdraw:
            count = store.farm.withdraw(device.slug, options.family, options.algorithm)
            tell(f"withdrew {count} batches of {device.slug}")
            return 0
        reports = compile_on_farm(
            device,
            problems,
            store,
            extent,
            listener=listener,
            on_idle=lambda: tell(
                f"no builder builds for {device.slug} with driver {device.driver}; on a machine that has it, start "
                f"autotune builder --db {store.location}, which says what it does not take"
            ),
            should_stop=lambda: interrupts.are_requested,
        )
    status = _report(options, reports, was_stopped=interrupts.are_requested)
    if status == 0 and not all(report.is_finished for report in reports):
        tell("the rest was withdrawn from the farm; the same command queues it again")
        return 1
    return status


def _tell_size(options: argparse.Namespace, device: Device, problems: Sequence[Problem]) -> None:
    """Print how many configurations will be built, unless --sample bounds them or --quiet is given."""
    if options.sample is not None or options.quiet:
        return
    from autotune.search.task import Task

    count = sum(len(Task(device, problem).space(options.algorithm)) for problem in problems)
    jobs = options.jobs or usable_cores()
    tell(
        f"{count} configurations, of which those with equal sources are built once: up to {days_text(count / jobs)} "
        f"at one a second for each of {jobs} processes; --sample N builds N of each algorithm"
    )


def _problems(options: argparse.Namespace) -> list[Problem]:
    from autotune.kernels.presets import size_names

    problem_type = find_family(options.family).problem_type
    default = ",".join([str(DEFAULT_SIZE)] * len(size_names(problem_type)))
    return [parse_shape(problem_type, text) for text in options.shape or [default]]


def _report(options: argparse.Namespace, reports: "list[Report]", *, was_stopped: bool) -> int:
    from autotune.display.results import print_compilations

    if options.json:
        print_json([plain_compilation(report) for report in reports])
    else:
        print_compilations(reports, sys.stdout)
    if was_stopped:
        kept = "the farm goes on with what is queued. To watch it" if options.farm else "every build is kept. To go on"
        return tell_stopped(options, kept)
    return 0
