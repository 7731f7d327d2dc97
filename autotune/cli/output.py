"""Output of the commands: lines for people, files, and plain data for --json."""

import argparse
import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from autotune import __version__
from autotune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.events import Outcome
    from autotune.model.trial import Calibration, Request, Winner
    from autotune.search.compilation import Report, Spread
    from autotune.search.overview import Overview
    from autotune.search.verification import Recheck

STOPPED = 130
"""Exit status after Ctrl-C, as a shell reports it."""


def tell_stopped(options: argparse.Namespace, what: str) -> int:
    """Print what a stopped command keeps and how to continue. Return the exit status.

    `what` is the middle of the sentence "stopped; ..., run the same command again:".
    """
    tell(f"stopped; {what}, run the same command again:")
    tell(f"  {shlex.join(['autotune', *options.arguments])}")
    return STOPPED


def tell(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def standard_error() -> TextIO:
    return sys.stderr if sys.stderr is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def write(path: Path | None, content: str | bytes) -> None:
    """Write to standard output, or to a file, which is replaced atomically.

    Raises UsageError when the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    if path is None:
        sys.stdout.write(data.decode())
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def print_json(content: object) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=True, allow_nan=False))


def plain_calibration(calibration: "Calibration | str | None") -> dict[str, Any] | None:
    """Return None if the clocks were left out, or only the trouble if they could not be calibrated."""
    if calibration is None or isinstance(calibration, str):
        return {"trouble": calibration} if calibration else None
    return {**vars(calibration), "timer": calibration.timer.value}


def plain_request(request: "Request") -> dict[str, Any]:
    return {"problem": request.problem.to_dict(), "calls": request.calls, "label": request.label}


def print_result(options: argparse.Namespace, device: str, outcomes: "Sequence[Outcome]", *, is_complete: bool) -> None:
    """Print the outcomes of a run as a table, or as JSON if --json was given."""
    from autotune.display import print_outcomes, total_ns

    if not options.json:
        print_outcomes(outcomes, sys.stdout, is_wide=options.wide)
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


def plain_outcome(outcome: "Outcome") -> dict[str, Any]:
    return {
        **plain_request(outcome.request),
        "winner": plain_winner(outcome.winner) if outcome.winner else None,
        "new_trials": outcome.new_trials,
        "resumed_trials": outcome.resumed_trials,
        "failures": outcome.failures,
        "seconds": round(outcome.seconds, 3),
        "gain_left": outcome.gain_left,
        "is_finished": outcome.is_finished,
    }


def plain_winner(winner: "Winner") -> dict[str, Any]:
    return {
        "configuration": winner.configuration.to_dict(),
        "time_ns": winner.time_ns,
        "gflops": winner.gflops,
        "default_ns": winner.default_ns,
        "baseline_ns": winner.baseline_ns,
        "gain_over_default": winner.gain_over_default,
        "gain_low": winner.gain_low,
        "gain_high": winner.gain_high,
        "gain_over_baseline": winner.gain_over_baseline,
        "samples": winner.samples,
        "is_default": winner.is_default,
        "is_final": winner.is_final,
        "verdict": winner.verdict.value,
        "verifications": winner.verifications,
    }


def plain_recheck(recheck: "Recheck") -> dict[str, Any]:
    return {
        "problem": recheck.before.problem.to_dict(),
        "result": recheck.standing.value,
        "message": recheck.message,
        "before": plain_winner(recheck.before),
        "after": plain_winner(recheck.after) if recheck.after else None,
    }


def plain_overview(overview: "Overview") -> dict[str, Any]:
    return {
        "device": overview.device,
        "driver": overview.driver,
        "problems": overview.problems,
        "verdicts": dict(overview.verdicts),
        "stale_problems": overview.stale_problems,
        "stale": dict(overview.stale),
        "last_measured": overview.last_measured,
        "trials": dict(overview.trials),
        "set_aside": dict(overview.set_aside),
    }


def plain_compilation(report: "Report") -> dict[str, Any]:
    return {
        "device": report.device.slug,
        "driver": report.device.driver,
        "problem": report.problem.to_dict(),
        "is_finished": report.is_finished,
        "seconds": round(report.seconds, 1),
        "algorithms": {
            algorithm.algorithm: {
                "space": algorithm.space,
                "configurations": algorithm.configurations,
                "sources": algorithm.sources,
                "new_sources": algorithm.new_sources,
                **{state.value.replace(" ", "_"): count for state, count in algorithm.states.items()},
                "spilling": algorithm.spilling,
                "limited": algorithm.limited,
                "private_memory_bytes_up_to": {str(size): n for size, n in algorithm.private_memory.items()},
                "messages": [{"message": text, "configurations": n} for text, n in algorithm.messages],
                "build_ns": _plain_spread(algorithm.build_ns),
                "binary_bytes": _plain_spread(algorithm.binary_bytes),
            }
            for algorithm in report.algorithms
        },
    }


def _plain_spread(spread: "Spread | None") -> dict[str, float] | None:
    return {"least": spread.least, "median": spread.median, "most": spread.most} if spread else None
