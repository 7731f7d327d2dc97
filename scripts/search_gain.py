"""How true it is what a search foretells of its own gain: for `bench_search`, from replayed searches.

Beside what the next trials were expected to save is what they did save, and what all later ones of the budget did;
and where a search that ends by `--until-gain` would have ended, and what it would have missed.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.search.budget import HORIZON_TRIALS

LOOKS = (25, 50, 100)
"""Trials after which the forecasts are compared."""
THRESHOLDS = (0.01, 0.02, 0.05)
MISSED = (0.02, 0.05)
"""Shares of the time; how many searches that ended early would still have saved more is counted."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a search thought after so many trials: shares of its best time."""

    trials: int
    share: float
    at_most: float


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """One search: the best time of the space over the best found after each evaluation, and its forecasts."""

    space: str
    curve: Sequence[float]
    forecasts: Sequence[Forecast]

    def saved(self, since: int, until: int) -> float:
        """Share of the best time after `since` evaluations that those to `until` saved."""
        return 1.0 - self.curve[since - 1] / self.curve[min(until, len(self.curve)) - 1]

    def end(self, threshold: float) -> int:
        """Evaluations after which less than the threshold was surely left."""
        ends = (forecast.trials for forecast in self.forecasts if forecast.at_most < threshold)
        return next(ends, len(self.curve))


def gain_report(searches: Iterable[Foretold]) -> dict[str, Any]:
    """By space, and of all: forecasts by the number of trials, ends by the threshold."""
    by_space: dict[str, list[Foretold]] = collections.defaultdict(list)
    for search in searches:
        by_space[search.space].append(search)
        by_space["all"].append(search)
    return {
        name: {
            "foretold": {str(look): _forecasts(mine, look) for look in LOOKS if look < len(mine[0].curve)},
            "until": {str(threshold): _ends(mine, threshold) for threshold in THRESHOLDS},
        }
        for name, mine in sorted(by_space.items())
    }


def _forecasts(searches: Sequence[Foretold], trials: int) -> dict[str, float]:
    """Means over the searches, all shares of the best time then."""
    shares = [forecast.share for search in searches for forecast in search.forecasts if forecast.trials == trials]
    return {
        "foretold": _mean(shares),
        "next": _mean([search.saved(trials, trials + HORIZON_TRIALS) for search in searches]),
        "later": _mean([search.saved(trials, len(search.curve)) for search in searches]),
    }


def _ends(searches: Sequence[Foretold], threshold: float) -> dict[str, float]:
    ends = [search.end(threshold) for search in searches]
    missed = np.array([search.saved(end, len(search.curve)) for search, end in zip(searches, ends, strict=True)])
    shares = {f"missed_{limit}": round(float(np.mean(missed > limit)), 3) for limit in MISSED}
    return {"trials": round(float(np.mean(ends)), 1), "missed": _mean(missed), **shares}


def _mean(values: Any) -> float:
    return round(float(np.mean(values)), 4) if len(values) else float("nan")


def print_gain(report: Mapping[str, Any]) -> None:
    """Two tables: forecasts, and ends."""
    head = (
        f"{'left to gain: foretold, then what was saved':47}{f'by the next {HORIZON_TRIALS}':>16}{'by all later':>14}"
    )
    print(f"\n{head}")
    for name, parts in report.items():
        for trials, row in parts["foretold"].items():
            print(f"{name:24} after {trials:>4}{row['foretold']:12.2%}{row['next']:16.2%}{row['later']:14.2%}")
    print(f"\n{'--until-gain':36}{'trials':>10}{'missed':>10}" + "".join(f"{f'over {m:.0%}':>10}" for m in MISSED))
    for name, parts in report.items():
        for threshold, row in parts["until"].items():
            missed = "".join(f"{row[f'missed_{limit}']:10.0%}" for limit in MISSED)
            print(f"{name:24}{float(threshold):12.0%}{row['trials']:10.1f}{row['missed']:10.2%}{missed}")
