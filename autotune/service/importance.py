"""Which parameters mattered in a search: how much of the variation of times each one explains alone.

The measure is the adjusted correlation ratio (epsilon squared, Kelley 1935) of ranks: one minus the ratio of the
variance of the rank of time within the values of a parameter to the variance over all trials, both unbiased. Chance
alone gives 0 on average, however many values a parameter has. Ranks are used because a few very slow trials would
dominate the variance of times or of their logarithms. A search does not sample uniformly, and parameters interact:
shares describe correlations in these trials, and do not add up to 1.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.model.configuration import Configuration, Value
from autotune.store import StoredTrial

LEAST_TRIALS = 12
"""No shares are computed from fewer trials."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One value of a parameter. Times in nanoseconds."""

    value: Value
    trials: int
    median_ns: float
    best_ns: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """One parameter, over the trials that have it."""

    parameter: str
    share: float
    """Share of the variance of the rank of time, from 0 to 1."""
    trials: int
    levels: tuple[Level, ...]
    """Sorted by median, fastest first."""


def shares(trials: Iterable[StoredTrial], algorithm: str | None = None) -> list[Share]:
    """Return `algorithm` over all trials, then every parameter of one algorithm, the largest share first.

    Without a name, the algorithm of the fastest trial is used. Empty when there are too few trials.
    """
    times = _first_times(trials)
    if not times:
        return []
    chosen = algorithm or min(times, key=lambda c: times[c]).algorithm
    whole = _share("algorithm", [c.algorithm for c in times], _ranked(times.values()))
    own = {c: time_ns for c, time_ns in times.items() if c.algorithm == chosen}
    ranked = _ranked(own.values())
    values = [c.to_dict() for c in own]
    names = sorted(set.intersection(*(set(known) for known in values)) - {"algorithm"}) if values else []
    found = [_share(name, [known[name] for known in values], ranked) for name in names]
    return [s for s in [whole] if s] + sorted((s for s in found if s), key=lambda s: (-s.share, s.parameter))


def _ranked(times_ns: Iterable[float]) -> list[tuple[float, float]]:
    """Return each time with its rank; equal times have equal ranks."""
    times = list(times_ns)
    ordered = sorted(times)
    return [(t, (bisect_left(ordered, t) + bisect_right(ordered, t)) / 2) for t in times]


def _first_times(trials: Iterable[StoredTrial]) -> dict[Configuration, float]:
    """Return the first time of each configuration. Repetitions would count the best few several times."""
    times: dict[Configuration, float] = {}
    for stored in trials:
        if stored.purpose == "search" and stored.trial.measurement:
            times.setdefault(stored.trial.configuration, stored.trial.measurement.time_ns)
    return times


def _share(parameter: str, values: Sequence[Value], ranked: Sequence[tuple[float, float]]) -> Share | None:
    """Return None where no share is defined: one value only, a value for each trial, or too few trials."""
    by_value: defaultdict[Value, list[tuple[float, float]]] = defaultdict(list)
    for value, point in zip(values, ranked, strict=True):
        by_value[value].append(point)
    count = len(ranked)
    if count < LEAST_TRIALS or not 1 < len(by_value) < count:
        return None
    whole = statistics.variance(rank for _, rank in ranked)
    groups = [[rank for _, rank in points] for points in by_value.values()]
    within = sum(statistics.pvariance(ranks) * len(ranks) for ranks in groups) / (count - len(groups))
    levels = [_level(value, [time_ns for time_ns, _ in points]) for value, points in by_value.items()]
    return Share(
        parameter=parameter,
        share=max(0.0, 1 - within / whole) if whole > 0 else 0.0,
        trials=count,
        levels=tuple(sorted(levels, key=lambda level: level.median_ns)),
    )


def _level(value: Value, times: Sequence[float]) -> Level:
    return Level(value=value, trials=len(times), median_ns=statistics.median(times), best_ns=min(times))
