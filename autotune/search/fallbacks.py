"""What to try when configurations fail: plain ones of other algorithms first, and nothing similar to repeated failures.

Compilers and drivers that fail at one kernel mostly do so at long vectors and large tiles, and rarely at all algorithms
alike.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from autotune.measure.worker import SPOILING
from autotune.model.configuration import Configuration
from autotune.model.events import Failure
from autotune.model.trial import QUARANTINED_STATES, Trial, TrialState
from autotune.space.family import Parameter
from autotune.space.search_space import SearchSpace

MODERATE = 4
"""Elements of a vector, and outputs along one side of a tile, that compilers handle and that are not slow."""
GRAVE_STATES = QUARANTINED_STATES | SPOILING
"""Failures that cost a process, and thus seconds."""
SUSPECT_FAILURES = 2
"""Grave failures after which what they have in common is avoided."""


def safe_configuration(space: SearchSpace, algorithm: str) -> Configuration | None:
    """Return a configuration with short vectors, small tiles and every other parameter at its plainest value.

    Returns None if the algorithm has no valid configuration for the problem.
    """
    indices = {parameter.name: _safe_index(parameter) for parameter in space.parameters[algorithm]}
    row = space.near_row(algorithm, indices)
    return None if row is None else space[row]


def safe_configurations(space: SearchSpace, failed: Configuration, baseline: Configuration) -> list[Configuration]:
    """Return a safe configuration of each algorithm, with the algorithm of `failed` last, and then the baseline."""
    algorithms = sorted(space.parameters, key=lambda name: (name == baseline.algorithm, name == failed.algorithm))
    found = [safe_configuration(space, algorithm) for algorithm in algorithms]
    return [*(c for c in found if c is not None and c != baseline), baseline]


class Suspicion:
    """Which configurations are too similar to those that failed gravely; a correct run clears similar ones."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._failed: defaultdict[str, list[int]] = defaultdict(list)
        """Vector widths of grave failures by algorithm."""
        self._widest: dict[str, int] = {}
        """Widest vector of each algorithm that ran correctly."""
        for trial in trials:
            self.learn(trial)

    def learn(self, trial: Trial) -> None:
        """Take in how a configuration ended."""
        algorithm, width = trial.configuration.algorithm, _vector_width(trial.configuration)
        if trial.state in GRAVE_STATES:
            self._failed[algorithm].append(width)
        elif trial.state is TrialState.COMPLETE:
            self._widest[algorithm] = max(width, self._widest.get(algorithm, 0))

    def falls_on(self, configuration: Configuration) -> bool:
        """Return whether its vectors are suspiciously wide.

        They are if its algorithm failed several times with vectors wider than any that ran correctly, and these are at
        least as wide as the narrowest of those failures.
        """
        algorithm = configuration.algorithm
        wider = [width for width in self._failed.get(algorithm, ()) if width > self._widest.get(algorithm, 0)]
        return len(wider) >= SUSPECT_FAILURES and _vector_width(configuration) >= min(wider)


class FailureCounts:
    """The failed trials of a search by state: their number, and the first message."""

    def __init__(self) -> None:
        self._failures: dict[TrialState, Failure] = {}

    def count(self, trial: Trial) -> None:
        """Count a trial unless it is complete."""
        if trial.state is not TrialState.COMPLETE:
            before = self._failures.get(trial.state, Failure(state=trial.state, count=0, message=trial.message))
            self._failures[trial.state] = replace(before, count=before.count + 1)

    @property
    def by_state(self) -> dict[str, int]:
        """Number of failed trials by the value of the state."""
        return {state.value: failure.count for state, failure in self._failures.items()}

    @property
    def commonest(self) -> Failure | None:
        """The most frequent failure; None when nothing failed."""
        return max(self._failures.values(), key=lambda failure: failure.count, default=None)


def _safe_index(parameter: Parameter) -> int:
    is_size = any(word in parameter.name for word in ("width", "tile", "unroll"))
    if not (is_size and parameter.is_numeric):
        return 0
    distances = [abs(math.log2(max(1, int(value)) / MODERATE)) for value in parameter.values]
    return distances.index(min(distances))


def _vector_width(configuration: Configuration) -> int:
    """Return the width of the longest vector that it loads, 1 if it names none."""
    widths = [value for name, value in configuration.values if name.endswith("width") and isinstance(value, int)]
    return max(widths, default=1)
