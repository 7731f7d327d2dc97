"""Formats numbers and results as text for display."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.model.problem import Problem
from autotune.model.trial import Verdict, Winner

if TYPE_CHECKING:
    from autotune.search.recheck import Recheck


def remedy_text(problem: Problem, slug: str) -> str:
    """Return what to do where no configuration of a problem gives correct results on a device."""
    from autotune.kernels import find_family

    remedy = find_family(problem.family).remedy
    return remedy or f"run `autotune doctor --device {slug}`, or try another driver for the device"


def percent_text(share: float) -> str:
    """Format a fraction with two digits: ``2.1%``; below 0.1% as ``<0.1%``."""
    return "<0.1%" if share < 0.001 else f"{100 * share:.2g}%"


def duration_text(seconds: float) -> str:
    """Format whole seconds: ``1:23`` or ``1:02:03``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bytes_text(size: int) -> str:
    for unit, bound in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bound:
            return f"{size / bound:.4g} {unit}"
    return f"{size} bytes"


def failures_text(failures: Mapping[str, int]) -> str:
    """Format counts of failures: ``3 failed (2 compile failed, 1 timed out)``; empty if nothing failed."""
    kinds = ", ".join(f"{count} {state}" for state, count in failures.items() if count)
    return f"{sum(failures.values())} failed ({kinds})" if kinds else ""


def gain_text(winner: Winner) -> str:
    """Format the gain over the default, with its interval if finals confirmed it."""
    if winner.verdict is Verdict.DEFAULT_FAILED:
        return "default fails"
    if winner.gain_over_default is None:
        return "provisional"
    if winner.is_default:
        return "= default"
    if winner.verdict is Verdict.TIE:
        return f"{winner.gain_over_default:.3g}x (not sure)"
    return f"{winner.gain_over_default:.3g}x ({winner.gain_low:.3g} to {winner.gain_high:.3g})"


def verdict_text(winner: Winner) -> str:
    """Describe a winner: ``1.7x (1.6 to 1.8) vs default``, ``the default; nothing faster was found``."""
    if winner.verdict is Verdict.DEFAULT_FAILED:
        return "the default does not run on this driver"
    if not winner.is_final:
        return ("the default" if winner.is_default else "provisional") + "; there was no time for finals"
    words = "the default; nothing faster was found" if winner.is_default else f"{gain_text(winner)} vs default"
    return words + doubt_text(winner)


def gain_and_doubt_text(winner: Winner) -> str:
    return gain_text(winner) + doubt_text(winner)


def doubt_text(winner: Winner) -> str:
    """Return how often the winner of finals was verified, if that is seldom: ``, verified once``; else empty."""
    from autotune.search.finals import full_verifications

    if not winner.is_final or winner.verifications >= full_verifications(winner.time_ns):
        return ""
    return ", verified once" if winner.verifications == 1 else f", verified {winner.verifications} times"


def drift_text(slowdown: float) -> str:
    """Describe drift: ``1.4 times slower than at the start: times are corrected``."""
    if slowdown == 1:
        return "again as fast as at the start"
    how = f"{slowdown:.3g} times slower" if slowdown > 1 else f"{1 / slowdown:.3g} times faster"
    return f"{how} than at the start: times are corrected"


def recheck_text(recheck: "Recheck") -> str:
    """Describe a recheck: ``still holds``, ``slower: 1.2 times the earlier time``, ``failed: panel takes over``."""
    from autotune.search.recheck import Standing

    word, after = recheck.standing.value, recheck.after
    if recheck.standing is Standing.HOLDS:
        return word
    if recheck.standing is Standing.OPEN:
        return f"{word}: {recheck.message}"
    if recheck.standing is Standing.SLOWER:
        return f"{word}: {recheck.slower_by:.3g} times the earlier time"
    if after is None:
        return f"{word}: nothing replaces it"
    return f"{word}: {'the default' if after.is_default else after.configuration.algorithm} takes over"
