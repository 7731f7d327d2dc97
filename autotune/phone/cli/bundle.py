"""The commands `autotune bundle` and `autotune collect`: tuning on a device to which there is no way meanwhile."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.cli.arguments import BUNDLED, DATABASE, JSON, MARKDOWN, QUIET, WIDE, argument, command, family
from autotune.cli.output import print_note, print_result, require_winners
from autotune.cli.run import check_algorithms, wanted_requests
from autotune.errors import ProblemError, UsageError
from autotune.kernels import require_kernels
from autotune.model.events import Outcome
from autotune.model.trial import Request


@command(
    *BUNDLED,
    argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the bundle, a ZIP archive"),
    QUIET,
    DATABASE,
    examples=("bundle --device adreno --preset llama-1b-decode --budget 50m -o job.zip",),
)
def bundle_command(options: argparse.Namespace) -> int:
    """Pack the tuning of shapes into a file that runs elsewhere; on a device without a way back, as in device farms."""
    if options.budget is None:
        raise UsageError("a bundle needs a time", hint="--budget 50m")
    if not (options.shape or options.shapes or options.preset):
        raise UsageError("no shape given", hint="give --shape SHAPE, --shapes FILE or --preset NAME")
    own, others = wanted_requests(argparse.Namespace(**vars(options), misses=False))
    for name in dict.fromkeys(request.problem.family for request in [*own, *others]):
        require_kernels(name)
        check_algorithms(name, options.algorithm)
    from autotune.cli.lookup import named_or_absent_device
    from autotune.kernels.shapes import fitting
    from autotune.phone.bundle.prepare import FOLDER, check_agents, make_bundle
    from autotune.store import Store

    def chosen(request: Request, count: int | str) -> None:
        if isinstance(count, str):
            print_note(f"left out: {request.problem.label}: {count}")
        elif not options.quiet:
            print_note(f"{request.problem.label}: {count} candidates")

    with Store.open(options.db) as store:
        device = named_or_absent_device(options.device, store.devices())
        check_agents(device)
        requests, left_out = fitting(own, others, device.limits)
        for message in left_out:
            print_note(f"left out: {message}")
        if not requests:
            raise ProblemError("no shape fits the device")
        agents = make_bundle(
            options.output,
            device,
            requests,
            store,
            options.budget,
            algorithms=options.algorithm,
            seed=options.seed,
            listener=chosen,
        )
    size = options.output.stat().st_size / 2**20
    print(f"{options.output}: {size:.1f} MiB, for {device.slug}, agents for {', '.join(agents)}")
    if not options.quiet:
        place = f"/data/local/tmp/{FOLDER}"
        print_note(
            f"on an Android phone: unzip it, adb push {FOLDER} /data/local/tmp/, adb shell sh {place}/run.sh, "
            f"adb pull {place}/result.bin; then autotune collect result.bin"
        )
    return 0


@command(
    argument("result", metavar="RESULT", type=Path, help="result.bin, or the folder or ZIP archive that it is in"),
    family("that of your own kernel which the bundle tunes", default=None),
    WIDE,
    MARKDOWN,
    DATABASE,
    JSON,
    examples=("collect result.bin", "collect artifacts.zip --db phone.sqlite"),
)
def collect_command(options: argparse.Namespace) -> int:
    """Check what a bundle found and store it; report it like the results of a run."""
    from autotune.cli.run import forget_tuned
    from autotune.display.results import print_failures
    from autotune.phone.bundle.collect import collect
    from autotune.phone.bundle.result import read_result
    from autotune.store import Store

    result = read_result(options.result)
    with Store.open(options.db) as store:
        found = collect(result, store)
        forget_tuned(found.device, found.outcomes)
    for message in found.refused:
        print_note(f"not stored: {message}")
    if found.unchecked:
        print_note(f"{found.unchecked} candidates were timed, but cannot be checked here: not stored")
    if not found.is_finished:
        print_note("the work was not finished: start run.sh again where it ran, and collect the result again")
    print_failures(found.outcomes, found.device.slug, sys.stderr if options.json else sys.stdout)
    print_result(options, found.device.slug, found.outcomes, is_complete=found.is_finished)
    if not options.json:
        _print_presumed(found.device.slug, found.outcomes)
    if found.is_finished:
        require_winners(found.device, found.outcomes)
    return 0


def _print_presumed(slug: str, outcomes: Sequence[Outcome]) -> None:
    """Print of each winner what the rule had said while the device was absent, and how long the default takes."""
    from autotune.lookup import TuningTable

    nothing_measured = TuningTable([], [])
    for winner in (outcome.winner for outcome in outcomes if outcome.winner):
        said = nothing_measured.find(slug, winner.problem).configuration
        won = {"algorithm": winner.configuration.algorithm, **dict(winner.configuration.values)}
        other = {"algorithm": said.algorithm, **dict(said.values)}
        differences = [
            f"{name} {other[name]}, not {won[name]}" for name in other if won.get(name, other[name]) != other[name]
        ]
        default = f"; the default takes {winner.default_ns / winner.time_ns:.2f} of its time" * (winner.default_ns > 0)
        print(f"{winner.problem.label}: the rule had said {'; '.join(differences) or 'the same'}{default}")
