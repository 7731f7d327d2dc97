"""The commands `verify`, which verifies and times winners again, and `status`, which says what is out of date."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import ANY_DEVICE, DATABASE, DEVICE, JSON, QUIET, SHAPES, command, family, shape
from autotune.cli.interrupts import Interrupts, print_stopped
from autotune.cli.lookup import named_device
from autotune.cli.output import plain_winner, print_json, print_note
from autotune.cli.run import device_of_commands, read_requests
from autotune.codec import write
from autotune.errors import AutotuneError, UsageError
from autotune.kernels import find_family
from autotune.model.device import Device
from autotune.model.trial import Winner

if TYPE_CHECKING:
    from autotune.search.recheck import Recheck
    from autotune.store import Store

FAILED = 1
"""Exit status when a winner no longer runs right, whatever has replaced it."""


@command(
    DEVICE,
    family("all that are tuned if left out; gemm for shapes given here", default=None),
    shape("a tuned shape to verify, instead of all"),
    SHAPES,
    QUIET,
    DATABASE,
    JSON,
    examples=("verify --device adreno", "verify --device cpu --shape 512,512,512 --json"),
)
def verify_command(options: argparse.Namespace) -> int:
    """Verify and time winners again; the next best or the default replaces one that fails or lost its lead."""
    from autotune.cli.device_lock import DeviceLock
    from autotune.device.discovery import find_device
    from autotune.display.progress import rechecking
    from autotune.search.driver_faults import with_checkup
    from autotune.search.recheck import recheck
    from autotune.store import Store

    is_command = bool(options.family) and find_family(options.family).is_command
    device = device_of_commands(options) if is_command else find_device(options.device)
    with (
        Store.open(options.db, makes=False) as store,
        DeviceLock(device),
        Interrupts("the running trial") as interrupts,
        rechecking(sys.stderr, is_quiet=options.quiet) as listener,
    ):
        device = with_checkup(device, store)
        winners = _wanted(options, store, device.slug)
        found = recheck(device, winners, store, listener, should_stop=lambda: interrupts.are_requested)
    return _report(options, found, was_stopped=interrupts.are_requested)


def _wanted(options: argparse.Namespace, store: "Store", slug: str) -> list[Winner]:
    """Return the winners to verify. Raises UsageError when none is tuned, or one of the given shapes is not."""
    if not (options.shape or options.shapes):
        winners = store.best(slug, options.family)
        if not winners:
            raise UsageError(f"nothing is tuned for {slug}", hint=f"autotune run --device {slug}")
        return winners
    tuned = {winner.problem: winner for winner in store.best(slug)}
    problem_type = find_family(options.family or "gemm").problem_type
    wanted = [request.problem for request in read_requests(problem_type, options.shape, options.shapes)]
    missing = [problem.label for problem in wanted if problem not in tuned]
    if missing:
        raise UsageError(f"not tuned for {slug}: {', '.join(missing[:5])}", hint="autotune status shows what is tuned")
    return [tuned[problem] for problem in wanted]


def _plain(recheck: "Recheck") -> dict[str, Any]:
    return {
        "problem": recheck.before.problem.to_dict(),
        "result": recheck.standing.value,
        "message": recheck.message,
        "before": plain_winner(recheck.before),
        "after": plain_winner(recheck.after) if recheck.after else None,
    }


def _report(options: argparse.Namespace, found: "list[Recheck]", *, was_stopped: bool) -> int:
    from autotune.display.results import print_rechecks
    from autotune.search.recheck import Standing

    if options.json:
        print_json([_plain(one) for one in found])
    else:
        print_rechecks(found, sys.stdout)
    if was_stopped:
        return print_stopped(options, "what was verified is kept. To verify all")
    lost = [one.before.problem.label for one in found if one.after is None and one.standing is Standing.FAILED]
    if lost:
        raise AutotuneError(f"no configuration runs right for {', '.join(lost[:5])}", hint="autotune run may find one")
    return FAILED if any(one.standing in (Standing.FAILED, Standing.OPEN) for one in found) else 0


@command(ANY_DEVICE, DATABASE, JSON, examples=("status", "status --device adreno --json"))
def status_command(options: argparse.Namespace) -> int:
    """Show what is tuned on each device; what is out of date, and how the trials ended."""
    from autotune.display.results import print_overviews
    from autotune.search.recheck import survey
    from autotune.store import Store

    with Store.open(options.db, read_only=True) as store:
        named = named_device(options.device, store.devices()) if options.device else None
        slug = named.slug if named else None
        is_one_of_several = named is not None and options.device.strip().lower() != named.slug
        drivers = _drivers(named if is_one_of_several else None)
        found = [overview for overview in survey(store, drivers) if slug in (None, overview.device)]
    if slug and not found:
        print_note(f"nothing is stored for {slug}")
    if options.json:
        print_json(write(found))
    else:
        print_overviews(found, sys.stdout)
    return 0


def _drivers(named: Device | None) -> dict[str, str]:
    """Return the drivers of this machine's devices by slug; empty without devices, which a status does not need.

    Of several runtimes of one processor it is the driver that other commands use, unless one of them is `named`.
    """
    from autotune.device.discovery import discover, preference

    try:
        devices = sorted(discover(), key=preference)
    except AutotuneError:
        return {}
    return {device.slug: device.driver for device in [*devices, *(d for d in devices if d == named)]}
