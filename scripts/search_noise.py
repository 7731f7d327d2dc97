"""What searches choose in the end when the times that they are told err."""

import collections
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.model.configuration import Configuration
from autotune.search import significance
from autotune.search.finals import FINALISTS

_NO_DEFAULT = Configuration.of("none")
"""Recorded spaces do not say what their authors began with."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Shares of the optimum: of the best that searches found without and with errors, and of what finals chose."""

    space: str
    without: float
    found: float
    chosen: float
    timings: int
    """Rounds of the finals, each finalist counted by itself."""


def noisy(times_ms: "np.ndarray[Any, Any]", noise: float, seed: int) -> "np.ndarray[Any, Any]":
    """Times with log-normal errors of this deviation, one for each row."""
    told: np.ndarray[Any, Any] = times_ms * np.exp(noise * np.random.default_rng(seed).standard_normal(len(times_ms)))
    return told


def play(
    rows: Sequence[int], told: "np.ndarray[Any, Any]", times_ms: "np.ndarray[Any, Any]", noise: float, seed: int
) -> tuple[int, int]:
    """Finals of the rows that seemed best, by the rules of the tuner; return the winner, and how many timings it took.

    Every round errs by as much as what a search is told.
    """
    draw = np.random.default_rng([seed, 1])
    best = sorted((row for row in rows if not np.isnan(told[row])), key=lambda row: told[row])[:FINALISTS]
    finalists = {Configuration.of("row", number=row): row for row in best}
    times: dict[Configuration, dict[int, float]] = {c: {} for c in finalists}
    played, taking_part = 0, list(finalists)
    for look in significance.LOOKS:
        for number in range(played, look):
            for c in taking_part:
                times[c][number] = float(times_ms[finalists[c]] * np.exp(noise * draw.standard_normal()))
        played = look
        taking_part = significance.still_in_question(times, _NO_DEFAULT)
        if not taking_part:
            break
    winner = significance.decide(times, _NO_DEFAULT).configuration
    return finalists[winner], sum(map(len, times.values()))


def noise_report(found: Iterable[Chosen]) -> dict[str, Any]:
    """Means by space, and under ``mean`` those over the spaces, with the standard error of what was chosen."""
    grouped: dict[str, list[Chosen]] = collections.defaultdict(list)
    for one in found:
        grouped[one.space].append(one)
    kinds = ("without", "found", "chosen", "timings")
    rows: dict[str, dict[str, float]] = {
        space: {
            **{kind: statistics.fmean(getattr(one, kind) for one in many) for kind in kinds},
            "error": statistics.pstdev(one.chosen - one.without for one in many) / len(many) ** 0.5,
        }
        for space, many in sorted(grouped.items())
    }
    mean = {kind: statistics.fmean(row[kind] for row in rows.values()) for kind in kinds}
    mean["error"] = sum(row["error"] ** 2 for row in rows.values()) ** 0.5 / len(rows)
    return {**rows, "mean": mean}


def print_noise(report: dict[str, Any]) -> None:
    heads = ("without", "found", "chosen", "ratio", "error", "timings")
    print(f"\n{'chosen in the end (means)':36}{''.join(f'{head:>9}' for head in heads)}")
    for space, row in report.items():
        shares = "".join(f"{row[kind]:9.4f}" for kind in ("without", "found", "chosen"))
        print(f"{space:36}{shares}{row['chosen'] / row['without']:9.4f}{row['error']:9.4f}{row['timings']:9.0f}")
