"""The command `autotune compile`: build the kernels of a search space without running them."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.cli.arguments import DATABASE, DEVICE, JSON, QUIET, command, family, integer, seed, shape, words
from autotune.cli.budget import days_text
from autotune.cli.interrupts import Interrupts, print_stopped
from autotune.cli.output import plain_compilation, print_json, print_note
from autotune.cli.run import check_algorithms
from autotune.device.processors import usable_cores
from autotune.kernels import find_family, parse_shape, require_kernels
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
    integer("--jobs", 1, 1024, "number of build processes; one for each core by default"),
    QUIET,
    DATABASE,
    JSON,
    examples=(
        "compile --device adreno --algorithm microtile --sample 2000",
        "compile --device mali --shape 512,512,512 --jobs 8 --db phone.sqlite --json > builds.json",
    ),
)
def compile_command(options: argparse.Namespace) -> int:
    """Build kernels without running them; a later run skips those that fail, spill or exceed limits."""
    require_kernels(options.family)
    problems = _problems(options)
    check_algorithms(options.family, options.algorithm)
    from autotune.device.discovery import find_device
    from autotune.display.builds import building
    from autotune.search.compilation import Extent, compile_space
    from autotune.search.driver_faults import with_checkup
    from autotune.store import Store

    device = find_device(options.device)
    _print_size(options, device, problems)
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


def _print_size(options: argparse.Namespace, device: Device, problems: Sequence[Problem]) -> None:
    """Print how many configurations will be built, unless --sample bounds them or --quiet is given."""
    if options.sample is not None or options.quiet:
        return
    from autotune.search.task import Task

    count = sum(len(Task(device, problem).space(options.algorithm)) for problem in problems)
    jobs = options.jobs or usable_cores()
    print_note(
        f"{count} configurations, of which those with equal sources are built once: up to {days_text(count / jobs)} "
        f"at one a second for each of {jobs} processes; --sample N builds N of each algorithm"
    )


def _problems(options: argparse.Namespace) -> list[Problem]:
    from autotune.kernels.shapes import size_names

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
        return print_stopped(options, "every build is kept. To go on")
    return 0
