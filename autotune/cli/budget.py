"""How long a search may take: read from the arguments of a command, and printed before it begins."""

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.cli.output import print_note
from autotune.errors import UsageError
from autotune.model.device import Device
from autotune.model.trial import Request

if TYPE_CHECKING:
    from autotune.search import Budget

DEFAULT_TRIALS = 100
LEAST_SECONDS = 5.0
"""Time that a shape takes on a device that builds slowly, however short the budget is."""


def parse_share(text: str) -> float:
    """Return the share, between 0 and 1 exclusive, of ``1%`` or ``0.01``. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", text.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        given = text.strip()[:80]
        raise UsageError(
            f"--until-gain: expected a share above 0 and below 1, got {given!r}", hint="such as 1% or 0.01"
        )
    return share


def budget_of(options: argparse.Namespace) -> "Budget":
    from autotune.search import Budget

    has_end = options.until_gain is not None or options.sampler == "exhaustive" or options.deadline is not None
    if options.trials is None and options.budget is None and not has_end:
        print_note(f"neither --trials nor --budget is given: {DEFAULT_TRIALS} new trials for each shape")
        return Budget(trials=DEFAULT_TRIALS)
    return Budget(trials=options.trials, seconds=options.budget, until_gain=options.until_gain)


def print_size(device: Device, requests: Sequence[Request], algorithms: Sequence[str]) -> None:
    from autotune.search.task import Task

    count = sum(len(Task(device, request.problem).space(algorithms)) for request in requests)
    print_note(
        f"exhaustive: {count} configurations in all, {days_text(count)} at one a second; "
        "Ctrl-C stops and keeps what has been measured"
    )


def print_duration(device: Device, requests: Sequence[Request], budget: "Budget") -> None:
    """Print how long the search will take, as far as that is known beforehand."""
    from autotune.display.words import duration_text

    shapes = f"{len(requests)} shape{'' if len(requests) == 1 else 's'}"
    least_s = LEAST_SECONDS * len(requests)
    if budget.seconds is not None:
        about = f"about {duration_text(budget.seconds)}"
        if least_s > budget.seconds:
            each = f"each takes two trials and a comparison, about {LEAST_SECONDS:g} s"
            about = f"about {duration_text(least_s)} whatever the budget, since {each}"
    elif budget.trials is not None:
        about = f"{budget.trials} trials each, about {days_text(budget.trials * len(requests))} at one a second"
    else:
        about = "until nothing is left to gain"
    print_note(f"tuning {shapes} on {device.slug}: {about}")


def days_text(seconds: float) -> str:
    """Format a duration: ``5.7 days``, ``3.2 hours``, ``4 minutes``, ``30 s``."""
    if seconds > 2 * 86400:
        return f"{seconds / 86400:.1f} days"
    if seconds > 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"
