"""The first trials of a search: the default and, if it fails, the configurations most likely to work at all."""

import math
from collections.abc import Callable, Iterable

from autotune.model.configuration import Configuration
from autotune.model.trial import Trial, TrialState
from autotune.search.budget import LONGER_SHARE
from autotune.search.pipeline import Pipeline
from autotune.search.proposals import Proposals
from autotune.space.family import Parameter
from autotune.space.search_space import SearchSpace

MOST_TIMED_OUT = 3
"""Configurations that exceed the first time limits before the plainest kernel gets most of the time left."""
SLOWER = 1.5
"""If the limit learnt from what ran correctly is this many times the first limit, the default needed more."""
MODERATE = 4
"""Elements of a vector, and outputs along one side of a tile, that compilers handle and that are not slow."""


class Opening:
    """Measures until something has run correctly; each configuration that fails costs a share of the time left.

    Compilers and drivers that fail at one kernel mostly do so at long vectors and large tiles, and rarely at all
    algorithms alike. Time limits grow only when nothing else works: a compiler that takes 40 s for every kernel looks
    like one that hangs, until the plainest kernel has been waited for.
    """

    def __init__(
        self,
        space: SearchSpace,
        pipeline: Pipeline,
        proposals: Proposals,
        measure: Callable[[Configuration], Trial],
        is_over: Callable[[], bool],
    ) -> None:
        """`measure` runs, stores and counts a trial; `is_over` returns whether the budget has ended."""
        self._knowledge = pipeline.knowledge
        self._space = space
        self._pipeline = pipeline
        self._proposals = proposals
        self._measure = measure
        self._is_over = is_over
        self._timed_out: list[Configuration] = []
        self._retried: set[Configuration] = set()

    def run(self, start_builds: Callable[[], None]) -> None:
        """Measure the default, unless it was measured before, then others until something has run correctly.

        `start_builds` is called before the default is measured, when the default is no longer among what it builds.
        """
        default = self._knowledge.default
        limit_s = self._pipeline.build_limit_s
        self._try(default, start_builds)
        if self._has_footing():
            return
        safe = safe_configurations(self._space, default, self._knowledge.family.baseline)
        self._try_until_footing(safe)
        if not self._has_footing():
            self._wait_longer()
        elif (own := next((c for c in safe if c.algorithm == default.algorithm), None)) is not None:
            self._try(own)  # shows whether the algorithm fails, or only its default
        is_slow = self._has_footing() and self._pipeline.build_limit_s > SLOWER * limit_s
        if is_slow and default in self._timed_out and default not in self._retried:
            self.try_again([default])

    def try_quarantined(self) -> None:
        """Measure again the quarantined configurations that are still in the space, the default and the baseline."""
        knowledge = self._knowledge
        legal = (knowledge.default, knowledge.family.baseline)
        known = sorted(knowledge.quarantine, key=lambda configuration: configuration.key)
        self.try_again(c for c in known if c in legal or self._space.row_of(c) is not None)

    def try_again(self, configurations: Iterable[Configuration]) -> None:
        """Measure quarantined configurations again; those that fail again return to quarantine."""
        for configuration in configurations:
            if self._is_over():
                return
            self._knowledge.release(configuration)
            self._retried.add(configuration)
            self._run(configuration)

    def _has_footing(self) -> bool:
        """Return whether some configuration has run correctly."""
        return math.isfinite(self._knowledge.best_ns)

    def _try_until_footing(self, safe: list[Configuration]) -> None:
        for configuration in safe:
            is_last = configuration == safe[-1]
            if len(self._timed_out) < MOST_TIMED_OUT or is_last:
                self._try(configuration)
            if self._has_footing():
                return

    def _try(self, configuration: Configuration, meanwhile: Callable[[], None] = lambda: None) -> None:
        knowledge = self._knowledge
        if configuration in knowledge.known or configuration in knowledge.quarantine or self._is_over():
            return
        if self._run(configuration, meanwhile).state in (TrialState.TIMED_OUT, TrialState.CUT_SHORT):
            self._timed_out.append(configuration)

    def _run(self, configuration: Configuration, meanwhile: Callable[[], None] = lambda: None) -> Trial:
        self._proposals.leave_out(configuration)
        meanwhile()
        trial = self._measure(configuration)
        self._proposals.tell(trial)
        return trial

    def _wait_longer(self) -> None:
        """Give the configurations that timed out most of the time left, the plainest first."""
        self._pipeline.own.limits.first_share = LONGER_SHARE
        for configuration in reversed(self._timed_out):
            self.try_again([configuration])
            if self._has_footing():
                return


def safe_configurations(space: SearchSpace, failed: Configuration, baseline: Configuration) -> list[Configuration]:
    """Return a safe configuration of each algorithm, with the algorithm of `failed` last, and then the baseline.

    It has short vectors, small tiles and every other parameter at its plainest value.
    """
    algorithms = sorted(space.parameters, key=lambda name: (name == baseline.algorithm, name == failed.algorithm))
    indices = {name: {p.name: _safe_index(p) for p in space.parameters[name]} for name in algorithms}
    rows = [space.near_row(name, indices[name]) for name in algorithms]
    found = [space[row] for row in rows if row is not None]
    return [*(c for c in found if c != baseline), baseline]


def _safe_index(parameter: Parameter) -> int:
    is_size = any(word in parameter.name for word in ("width", "tile", "unroll"))
    if not (is_size and parameter.is_numeric):
        return 0
    distances = [abs(math.log2(max(1, int(value)) / MODERATE)) for value in parameter.values]
    return distances.index(min(distances))
