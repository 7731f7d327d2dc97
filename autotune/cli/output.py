"""Output of the commands: lines for people, files, and plain data for --json."""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import __version__, codec
from autotune.errors import AutotuneError, UsageError
from autotune.lookup.json_table import plain_entry
from autotune.model.device import Device
from autotune.model.events import Outcome
from autotune.model.trial import Request, Winner
from autotune.paths import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.search.compilation import Report


def print_note(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def write(path: Path | None, content: str | bytes) -> None:
    """Write to standard output, or to a file, which is replaced atomically if it is a plain one.

    Raises UsageError when the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    if path is None:
        sys.stdout.write(data.decode())
        return
    try:
        replace_file(path, data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def print_json(content: object) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=True, allow_nan=False))


def print_result(
    options: argparse.Namespace, device: str, outcomes: "Sequence[Outcome]", *, is_complete: bool, tokens: int = 0
) -> None:
    """Print the outcomes of a run as a table, or as JSON if --json was given; `tokens` are those of a model's step."""
    from autotune.display.results import print_outcomes, total_ns

    if not options.json:
        print_outcomes(outcomes, sys.stdout, is_wide=options.wide, is_markdown=options.markdown, tokens=tokens)
        return
    before, after = total_ns(outcomes)
    print_json(
        {
            "device": device,
            "tool_version": __version__,
            "is_complete": is_complete,
            "outcomes": [plain_outcome(outcome) for outcome in outcomes],
            "total": {"default_ns": before, "tuned_ns": after},
        }
    )


def print_excluded_defaults(device: Device, requests: "Sequence[Request]") -> None:
    """Say where what a kernel file names as the default is not possible, so that gains are over something else."""
    from autotune.kernels import find_family

    for problem in (request.problem for request in requests):
        family = find_family(problem.family)
        broken = [] if family.is_trusted else family.violations(problem, family.baseline, device.limits)
        if broken:
            print_note(f"{problem.label}: the default {family.baseline} is not possible ({broken[0]}): another is used")


def require_winners(device: Device, outcomes: "Sequence[Outcome]") -> None:
    """Raises AutotuneError, with the commonest reason, when some problem has no winner."""
    failed = [outcome.request.problem.label for outcome in outcomes if outcome.winner is None]
    if failed:
        from autotune.display.words import remedy_text

        shapes = ", ".join(failed[:5]) + (" and others" if len(failed) > 5 else "")
        without = [outcome for outcome in outcomes if outcome.winner is None]
        first = next((outcome for outcome in without if outcome.is_default_open), without[0])
        hint = remedy_text(first.request.problem, device.slug)
        if first.is_default_open:
            hint = "give a longer --budget, or a less busy machine; until then lookups answer by rule"
        cause = next((o.commonest_failure for o in (first, *without) if o.commonest_failure), None)
        because = f": {cause.count} times {cause.state.value}: {cause.message}" if cause and cause.message else ""
        raise AutotuneError(f"{first.no_winner_reason} for {shapes}{because}", hint=hint)


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    winner = plain_winner(outcome.winner) if outcome.winner else None
    plain = codec.write(outcome, without=("request", "winner", "commonest_failure"))
    return {**codec.write(outcome.request), "winner": winner, **plain}


def plain_winner(winner: Winner) -> dict[str, Any]:
    """Return an entry of a table, and whether finals have confirmed it."""
    return {**plain_entry(winner), "is_final": winner.is_final}


def plain_compilation(report: "Report") -> dict[str, Any]:
    return {
        "device": report.device.slug,
        "driver": report.device.driver,
        "problem": report.problem.to_dict(),
        "is_finished": report.is_finished,
        "seconds": report.seconds,
        "algorithms": {
            algorithm.algorithm: {
                **codec.write(algorithm, without=("algorithm", "states", "private_memory", "messages")),
                **{state.value.replace(" ", "_"): count for state, count in algorithm.states.items()},
                "private_memory_bytes_up_to": algorithm.private_memory,
                "messages": [{"message": text, "configurations": n} for text, n in algorithm.messages],
            }
            for algorithm in report.algorithms
        },
    }
