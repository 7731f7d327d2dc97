"""One time budget for many problems, spent where it is expected to save most of the time of all calls.

First each problem gets a minimum share, so that each is started even on a busy machine. Then the search continues, in
slices, that promises most per second of tuning: the number of calls, times the time of a call, times the gain left,
divided by the duration of a trial; without numbers of calls, the gain left, divided by that. Where the device's limits
were measured, no more is left than the time above them. Last come all finals, the most important first, in time that
was kept for them.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from autotune.model.device import DeviceLimits
from autotune.model.events import BudgetJudged, Outcome, ProblemFinished, ShareStarted
from autotune.model.machine import Rates
from autotune.search import significance
from autotune.search.budget import HORIZON_TRIALS
from autotune.search.one_problem import ProblemSearch, Tuning

LEAST_TRIALS = 12
"""Trials of each problem at the start: the default, winners of near problems, and the best by the family's rule."""
FIRST_TRIALS = 2
"""Trials of these that only the end of the budget prevents: the default and the best start."""
LEAST_SHARE = 0.5
"""Largest part of the time for these minimum shares."""
FINALS_SHARE = 0.4
"""Largest part of the time kept for the finals."""
RESERVED_ROUNDS = significance.LOOKS[0]
"""Rounds for which time is kept for each problem; for one problem, time for all possible rounds is kept."""
ROUND_S = 0.25
"""Duration of a round of the finals besides its samples, on a busy machine."""
SLICE_SHARE = 0.02
"""Length of a slice as a part of the time; after a slice, the next search is chosen."""
LEAST_SLICE_S = 2.0
SLICE_TRIALS = 5
"""Trials after which a slice also ends if another problem promises more."""
UNKNOWN_GAIN = 3.0
"""Divided by the number of trials, this is the gain assumed to be left where there is no model."""
KEPT_MODELS = 32
"""Searches that keep their model between slices, a few MB each; rebuilding one takes as long as a few trials."""
NEWS = 2.0
"""A model is rebuilt when the other problems have this many times the trials they had when it was made."""


class Sharing:
    """The searches of one run, their slices and finals."""

    def __init__(self, tuning: Tuning, rates: Rates | None, limits: DeviceLimits) -> None:
        """`rates` are those measured on the device, which say how much a problem may gain at most."""
        assert tuning.budget.seconds is not None
        self._rates, self._limits = rates, limits
        self._seconds = tuning.budget.seconds
        self._listener = tuning.listener
        self._should_stop = tuning.should_stop
        self._clock = tuning.clock
        self._deadline = tuning.ends
        self._searches: list[ProblemSearch] = []
        self._latest: list[ProblemSearch] = []
        """Searches with a model in memory, the most recent last."""
        self._reported: dict[ProblemSearch, int] = {}
        """Number of trials of the other problems when a search made its model."""
        self._decided: set[ProblemSearch] = set()
        """Searches whose winner was decided earlier: without new trials they need no finals."""

    def run(self, searches: Iterator[ProblemSearch], count: int) -> list[Outcome]:
        """Run `count` searches, each created when it first runs, and return their outcomes in order."""
        for number, search in enumerate(searches):
            self._searches.append(search)
            if search.knowledge.decided:
                self._decided.add(search)
            self._give_least(search, count - number)
            if self._should_stop():
                break
        while not self._should_stop() and self._go_on():
            pass
        return self._finish()

    @property
    def left_s(self) -> float:
        """Seconds until the budget ends, negative afterwards."""
        return self._deadline - self._clock()

    def _give_least(self, search: ProblemSearch, still_to_come: int) -> None:
        end = self._deadline - (1 - LEAST_SHARE) * self._seconds
        until = self._clock() + (end - self._clock()) / still_to_come

        def is_enough() -> bool:
            first = FIRST_TRIALS if self.left_s > 0 else 1
            tried = len(search.knowledge.known)
            return tried >= LEAST_TRIALS or (tried >= first and self._clock() >= until)

        self._search(search, is_enough)
        if len(self._searches) == 1 and still_to_come > 1 and search.trial_seconds:
            trial_s, finals_s = search.trial_seconds, self._finals_seconds(search, RESERVED_ROUNDS)
            problem_s = FIRST_TRIALS * trial_s + finals_s + ROUND_S * RESERVED_ROUNDS
            trials = (1 - FINALS_SHARE) * self._seconds / trial_s
            least_s = still_to_come * problem_s
            judged = BudgetJudged(request=search.request, trials=trials, seconds=self._seconds, least_s=least_s)
            self._listener(judged)

    def _go_on(self) -> bool:
        """Run a slice of the most promising search; return False when time is up or nothing is left to gain."""
        limit = self._deadline - self._reserve()
        open_searches = [search for search in self._searches if not search.is_over]
        if self._clock() >= limit or not open_searches:
            return False
        end = min(limit, self._clock() + max(LEAST_SLICE_S, SLICE_SHARE * self._seconds))
        ranked = sorted(open_searches, key=self._promise, reverse=True)
        search, others = ranked[0], ranked[1:]
        next_best = self._promise(others[0]) if others else 0.0
        before = search.new_trials

        def is_enough() -> bool:
            new, now = search.new_trials - before, self._clock()
            is_beaten = new >= SLICE_TRIALS and self._promise(search) < next_best
            # Rebuilding a model may take longer than a slice: at least one trial is made all the same.
            return is_beaten or now >= limit or (now >= end and new > 0)

        self._listener(self._share(search))
        self._search(search, is_enough)
        return search.new_trials > before or search.is_over

    def _search(self, search: ProblemSearch, is_enough: Callable[[], bool]) -> None:
        others = sum(other.new_trials for other in self._searches if other is not search)
        if search in self._latest:
            self._latest.remove(search)
            if others >= NEWS * max(self._reported[search], LEAST_TRIALS):
                search.shelve()
                self._reported[search] = others
        else:
            self._reported[search] = others
        search.search(is_enough)
        self._latest.append(search)
        while len(self._latest) > KEPT_MODELS:
            self._latest.pop(0).shelve()

    def _promise(self, search: ProblemSearch) -> float:
        """Return what one second of tuning is expected to save, in the unit of the weights."""
        gain = search.gain_left
        if gain is None:
            gain = min(1.0, UNKNOWN_GAIN / max(len(search.knowledge.known), 1))
        gain = min(gain, self._possible_gain(search))
        return self._weight(search) * gain / (HORIZON_TRIALS * max(search.trial_seconds, 1e-3))

    def _possible_gain(self, search: ProblemSearch) -> float:
        """Return the share of its time above the device's limit; 1 if that is not known, or a cache goes beyond it."""
        bounds = self._rates.bounds(search.request.problem, self._limits) if self._rates else []
        least_ns = bounds[0].time_ns if bounds else 0.0
        return 1 - least_ns / search.best_ns if least_ns < search.best_ns else 1.0

    def _weight(self, search: ProblemSearch) -> float:
        """Return the time of all calls of a problem; where nothing has run yet, that of the longest other problem.

        Where no problem has more than one call, nothing says how often each occurs, so all weigh the same.
        """
        if all(other.request.calls == 1 for other in self._searches):
            return 1.0
        if math.isfinite(search.best_ns):
            return search.request.calls * search.best_ns
        return max((s.request.calls * s.best_ns for s in self._searches if math.isfinite(s.best_ns)), default=1.0)

    def _reserve(self) -> float:
        """Return the seconds kept for the finals of all problems."""
        least = sum(
            self._finals_seconds(search, RESERVED_ROUNDS) + ROUND_S * RESERVED_ROUNDS for search in self._searches
        )
        longest = max((self._finals_seconds(search, significance.LOOKS[-1]) for search in self._searches), default=0.0)
        return min(least + longest, FINALS_SHARE * self._seconds)

    def _finals_seconds(self, search: ProblemSearch, rounds: int) -> float:
        return search.finals_seconds(rounds) if search.new_trials or search not in self._decided else 0.0

    def _share(self, search: ProblemSearch) -> ShareStarted:
        run = [other for other in self._searches if math.isfinite(other.best_ns)]
        return ShareStarted(
            request=search.request,
            calls=sum(other.request.calls for other in run),
            default_ns=sum(other.request.calls * other.knowledge.default_ns for other in run),
            best_ns=sum(other.request.calls * other.best_ns for other in run),
        )

    def _finish(self) -> list[Outcome]:
        """Run the finals in the order of their weight, each with its part of the time left; return the outcomes."""
        found: dict[ProblemSearch, Outcome] = {}
        ordered: Sequence[ProblemSearch] = sorted(self._searches, key=self._weight, reverse=True)
        for number, search in enumerate(ordered):
            foreseen = [self._finals_seconds(other, significance.LOOKS[-1]) for other in ordered[number:]]
            share = foreseen[0] / sum(foreseen) if sum(foreseen) else 1.0
            left_s = self.left_s
            found[search] = search.finish(self._clock() + share * left_s if left_s > 0 else None)
            self._listener(ProblemFinished(request=search.request, outcome=found[search]))
        return [found[search] for search in self._searches]
