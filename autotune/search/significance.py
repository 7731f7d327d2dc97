"""What the rounds of the finals prove: gains with intervals, which finalists are still in question, and which wins.

A round times every finalist that takes part once, so drift that affects all alike cancels in a ratio of times within a
round. Repeated looks and picking the best of several would make plain 95% intervals too narrow; the intervals here are
widened so that 95% holds all the same (`scripts/check_finals` measures how often).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autotune.model.configuration import Configuration
from autotune.model.trial import Verdict

Times = Mapping[Configuration, Mapping[int, float]]
"""Time in nanoseconds of each finalist by round."""

LOOKS = (9, 12, 16, 21, 27, 35, 46, 60)
"""Numbers of rounds after which it is judged whether more are needed."""
LEVEL = 0.998
"""Confidence level of a single interval at a single look."""
NARROW = 0.01
"""A tie is believed when the interval reaches at most this far, as a share of the gain, to either side.
With 0.5% finals chose the same at times that err by 3%."""
TOLD = 0.05
"""How far the interval of a sure gain may reach, as a share of the gain, and still be informative."""
EARLY_ROUNDS = 5
"""Rounds that must all have found a configuration faster before it replaces the default without the rest of the
finals. The times of a search alone prove nothing: on a busy machine one that had it 2.5 times faster won at half of the
default's speed."""
_DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Speedup of a candidate over a reference: the median ratio of times within a round, with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether it is surely a gain at all."""
        return self.low > 1.0

    @property
    def is_settled(self) -> bool:
        """Whether more rounds would decide nothing: a sure gain, a sure loss, or a close tie."""
        return self.reaches_at_most(NARROW) or self.is_sure or self.high < 1.0

    def reaches_at_most(self, share: float) -> bool:
        """Return whether the interval is no wider than this share of the gain to either side."""
        return self.high - self.low <= 2 * share * self.ratio


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The winner, and its gain over the default."""

    configuration: Configuration
    gain: Gain
    verdict: Verdict


NO_GAIN = Gain(ratio=1.0, low=1.0, high=1.0)
UNKNOWN_GAIN = Gain(ratio=math.nan, low=math.nan, high=math.nan)


def gain(times: Times, reference: Configuration, candidate: Configuration) -> Gain:
    """Return the candidate's gain over the reference, from the rounds in which both took part.

    The interval is a percentile bootstrap of the median ratio (Efron and Tibshirani 1993).
    """
    common = times[reference].keys() & times[candidate].keys()
    ratios = np.sort([times[reference][number] / times[candidate][number] for number in common])
    below, above, shares = _middle_ranks(len(ratios))
    medians = (ratios[below] + ratios[above]) / 2
    order = np.argsort(medians)
    ends = np.searchsorted(np.cumsum(shares[order]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = medians[order][ends]
    return Gain(ratio=float(np.median(ratios)), low=float(low), high=float(high))


def still_in_question(times: Times, default: Configuration) -> list[Configuration]:
    """Return the finalists that need more rounds; empty when all is settled.

    A finalist that is surely slower drops out. The default stays until it is known how much slower it is than each of
    those that may still win.
    """
    leader = _leader(times)
    found = [leader, *(c for c in times if c != leader and not gain(times, c, leader).is_settled)]
    if default in times and default not in found:
        over_default = [gain(times, default, candidate) for candidate in found]
        found += [] if all(g.is_settled and g.reaches_at_most(TOLD) for g in over_default) else [default]
    return found if len(found) > 1 else []


def decide(
    times: Times,
    default: Configuration,
    incumbent: Configuration | None = None,
    *,
    baseline: Configuration | None = None,
) -> Decision:
    """Choose the default unless surely beaten, then an earlier winner unless surely beaten, then the fastest.

    A choice that is slower than the `baseline` by more than a close tie is replaced by the fastest, which is called a
    tie if it is not surely faster than the default.
    """
    decision = _decide(times, default, incumbent)
    chosen = decision.configuration
    if baseline is None or baseline not in times or gain(times, chosen, baseline).ratio <= 1.0 + NARROW:
        return decision
    leader = _leader(times)
    if default not in times:
        return Decision(configuration=leader, gain=NO_GAIN, verdict=Verdict.DEFAULT_FAILED)
    over_default = gain(times, default, leader)
    return Decision(
        configuration=leader, gain=over_default, verdict=Verdict.FASTER if over_default.is_sure else Verdict.TIE
    )


def decide_early(times: Times, default: Configuration) -> Decision:
    """Choose when there was no time for all rounds: the fastest if it was ahead of the default in each of some."""
    leader = _leader(times)
    if default in times:
        rounds = times[default].keys() & times[leader].keys()
        is_ahead = all(times[leader][number] < times[default][number] for number in rounds)
        leader = leader if is_ahead and len(rounds) >= EARLY_ROUNDS else default
    return Decision(configuration=leader, gain=UNKNOWN_GAIN, verdict=Verdict.PROVISIONAL)


def _decide(times: Times, default: Configuration, incumbent: Configuration | None) -> Decision:
    leader = _leader(times)
    first = incumbent if incumbent is not None and incumbent in times else leader
    if gain(times, first, leader).is_sure:
        first = leader
    if default not in times:
        return Decision(configuration=first, gain=NO_GAIN, verdict=Verdict.DEFAULT_FAILED)
    if leader == default:
        is_alone = all(gain(times, c, default).is_sure for c in times if c != default)
        verdict = Verdict.DEFAULT if is_alone else Verdict.TIE
        return Decision(configuration=default, gain=NO_GAIN, verdict=verdict)
    for candidate in dict.fromkeys([first, leader]):
        over_default = gain(times, default, candidate)
        if over_default.is_sure:
            return Decision(configuration=candidate, gain=over_default, verdict=Verdict.FASTER)
    return Decision(configuration=default, gain=NO_GAIN, verdict=Verdict.TIE)


def _leader(times: Times) -> Configuration:
    """Return the fastest, compared in pairs: those that dropped out ran under other conditions."""
    leader, *others = times
    for other in others:
        if gain(times, leader, other).ratio > 1.0:
            leader = other
    return leader


@cache
def _middle_ranks(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return the ranks of the two middle values of bootstrap samples of `size` sorted values, and how often they occur.

    The three arrays have one entry for each distinct pair of ranks; frequencies are shares of the samples.
    """
    drawn = np.sort(np.random.default_rng(0).integers(size, size=(_DRAWS, size)), axis=1)
    pairs, counts = np.unique(drawn[:, [(size - 1) // 2, size // 2]], axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], counts / _DRAWS
