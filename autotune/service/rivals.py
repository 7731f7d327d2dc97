"""The winner of a problem compared with its rivals: the default, the plainest kernel, the host's BLAS."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.kernels import find_family
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.trial import Verdict, Winner
from autotune.store import StoredTrial

MAX_FINALISTS = 8


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One way to compute a problem. Times of one call in nanoseconds; bounds at 95%, None where unknown."""

    name: str
    time_ns: float
    low_ns: float | None = None
    high_ns: float | None = None
    note: str = ""
    """Origin of time and bounds."""
    configuration: dict[str, Value] | None = None
    """Of a finalist."""


def rivals(winner: Winner, trials: Sequence[StoredTrial], default: Configuration | None = None) -> list[Rival]:
    """Return the winner and its rivals: what else was in its finals, fastest first, then the default and the plainest.

    `trials` are those of its problem on its device, oldest first; `default` is the configuration without tuning, where
    it is known.
    """
    found = [_winner(winner, trials), *_finalists(winner, trials, default)]
    if not winner.is_default and winner.verdict is not Verdict.DEFAULT_FAILED:
        found.append(_default(winner))
    baseline = find_family(winner.problem.family).baseline
    if winner.baseline_ns is not None and winner.configuration != baseline:
        name = f"{baseline.algorithm} (plainest)"
        found.append(_with_bounds(name, winner.baseline_ns, _samples(trials, baseline), "its samples"))
    return found


def host_rivals(slug: str, problem: object) -> list[Rival]:
    """Return the host's BLAS and the device for the same product, where measured.

    Times are of whole calls from and to the host's memory, read from the record that `autotune.runtime` keeps on this
    machine. Raises TableError.
    """
    from autotune.runtime.crossover import Crossover

    if not isinstance(problem, GemmProblem):
        return []
    for point in Crossover.read(slug).points:
        if point.problem == problem:
            note = "whole call on NumPy arrays; no interval is stored"
            return [
                Rival(name="host's BLAS", time_ns=point.host_ns, note=note),
                Rival(name="device, copies included", time_ns=point.device_ns, note=note),
            ]
    return []


def median_bounds(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return bounds of the median at 95% for any distribution: two order statistics. None for fewer than 6 samples."""
    count = len(samples)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 0.05:
            break
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[count - rank]


def _winner(winner: Winner, trials: Sequence[StoredTrial]) -> Rival:
    name = f"{winner.configuration.algorithm}, the default" if winner.is_default else winner.configuration.algorithm
    if winner.source == "imported":
        return Rival(name=name, time_ns=winner.time_ns, note="measured elsewhere: it came with a table")
    return _with_bounds(name, winner.time_ns, _rounds(trials, winner.configuration), "the rounds of its finals")


def _default(winner: Winner) -> Rival:
    known = winner.is_final and math.isfinite(winner.gain_low) and math.isfinite(winner.gain_high)
    return Rival(
        name="default",
        time_ns=winner.default_ns,
        low_ns=winner.time_ns * winner.gain_low if known else None,
        high_ns=winner.time_ns * winner.gain_high if known else None,
        note="its ratio to the winner, measured in turns" if known else "not yet compared in finals",
    )


def _samples(trials: Sequence[StoredTrial], configuration: Configuration) -> Sequence[float]:
    """Return the samples of the newest trial of a configuration, nanoseconds."""
    for stored in reversed(trials):
        if stored.trial.measurement and stored.trial.configuration == configuration:
            return stored.trial.measurement.samples_ns
    return ()


def _rounds(trials: Sequence[StoredTrial], configuration: Configuration) -> Sequence[float]:
    """Return the times of a configuration in the newest finals, nanoseconds.

    Later runs that only check the result are left out: they take fewer samples than a round of the finals.
    """
    newest: list[tuple[int, float]] = []
    for stored in _newest_finals(trials):
        if stored.trial.configuration == configuration and stored.trial.measurement:
            newest.append((len(stored.trial.measurement.samples_ns), stored.trial.measurement.time_ns))
    most = max((count for count, _ in newest), default=0)
    return [time_ns for count, time_ns in newest if count == most]


def _newest_finals(trials: Sequence[StoredTrial]) -> Iterator[StoredTrial]:
    """Yield the trials of the newest finals, the last one first."""
    for stored in reversed(trials):
        if stored.purpose == "search":
            return
        if stored.purpose == "final":
            yield stored


def _finalists(winner: Winner, trials: Sequence[StoredTrial], default: Configuration | None) -> list[Rival]:
    """Return what else was in the newest finals, without default and baseline, rivals anyway; the fastest first.

    Times are scaled by the winner's rounds of the same finals, so that they compare with its time. An imported winner
    has no rounds: then times are as measured here, its configuration among them if it was in the finals.
    """
    is_imported = winner.source == "imported"
    own = _rounds(trials, winner.configuration)
    if not own and not is_imported:
        return []
    scale = 1.0 if is_imported else winner.time_ns / statistics.median(own)
    left_out = {find_family(winner.problem.family).baseline, default, None if is_imported else winner.configuration}
    others = dict.fromkeys(stored.trial.configuration for stored in _newest_finals(trials))
    found = []
    for configuration in others:
        rounds = _rounds(trials, configuration)
        if configuration in left_out or not rounds:
            continue
        name = configuration.algorithm + (", measured here" if configuration == winner.configuration else "")
        origin = "the rounds of the newest finals here" if is_imported else "its rounds in the same finals"
        rival = _with_bounds(name, scale * statistics.median(rounds), rounds, origin)
        found.append(replace(rival, configuration=configuration.to_dict()))
    return sorted(found, key=lambda rival: rival.time_ns)[:MAX_FINALISTS]


def _with_bounds(name: str, time_ns: float, samples: Sequence[float], origin: str) -> Rival:
    """Scale the bounds of the samples to `time_ns`, which may be corrected for the device's speed."""
    found = median_bounds(samples)
    if found is None:
        return Rival(name=name, time_ns=time_ns, note="too few samples are stored for an interval")
    low_ns, high_ns = (time_ns * bound / statistics.median(samples) for bound in found)
    return Rival(name=name, time_ns=time_ns, low_ns=low_ns, high_ns=high_ns, note=f"median of {origin}")
