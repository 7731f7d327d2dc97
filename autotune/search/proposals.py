"""What to measure next: the rows of a proposer that knows the ledger's trials, without those not worth a trial."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from autotune import tracing
from autotune.measure.worker import GRAVE_STATES
from autotune.model.configuration import Configuration
from autotune.model.trial import Trial, TrialState
from autotune.propose.prior import Source
from autotune.propose.samplers import SamplerChoice
from autotune.search.knowledge import Knowledge
from autotune.search.neighbours import LEAST_OF_SOURCE, Neighbours
from autotune.space.search_space import SearchSpace

SUSPECT_FAILURES = 2
"""Grave failures after which what they have in common is avoided."""


class Proposals:
    """Configurations not measured yet, the most promising first, or in the order of another sampler."""

    CANDIDATES = 12
    """Configurations ranked best by the family's rule, which are measured first."""
    LOOKED_AT = 4 * CANDIDATES
    """Configurations ranked best among which doubtful ones give way to others."""
    SLOW_FACTOR = 3.0
    """A configuration cut off as too slow is at least this many times slower than the best."""
    FOREIGN = 3
    """Configurations of another tuner's results that are measured first, the fastest."""
    STALE = 5
    """Configurations that are measured again first after a change of driver, template or space."""
    MOST_SUSPECTED = 50
    """Consecutive proposals skipped because they resemble failures; if all of them do, one has to be tried."""

    def __init__(
        self,
        knowledge: Knowledge,
        space: SearchSpace,
        seed: int,
        choice: SamplerChoice | None = None,
        foreign: Sequence[Source] = (),
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`choice` defaults to the project's own sampler; `foreign` is what other tuners measured, fastest first.

        `is_over` is called after each configuration that is not worth a trial, of which there may be thousands.
        """
        self._is_over = is_over
        self.is_exhausted = False
        """Whether all are known."""
        self._knowledge = knowledge
        self._space = space
        device, store = knowledge.device, knowledge.store
        self._builds = store.builds(device.slug, device.driver)
        self._builds_elsewhere = store.builds(device.slug, device.driver, by_others=True)
        """By other drivers of this device, such as Mesa's where a phone has its maker's."""
        self._neighbours = Neighbours(device, knowledge.family, knowledge.problem, store)
        self._suspicion = Suspicion(knowledge.known.values())
        self._running: set[Configuration] = set()
        """Proposed or left out, and without a trial yet."""
        choice = choice or SamplerChoice()
        self._avoids_suspects = choice.is_ours
        self._foreign = foreign
        many = [source for source in foreign if len(source.configurations) >= LEAST_OF_SOURCE]
        sources = [*self._neighbours.sources, *many] if choice.is_ours else ()
        self._proposer = choice.make(space, seed + len(knowledge.known), sources)
        for trial in knowledge.known.values():
            self._pass_on(trial)
        self._proposer.enqueue(self._promising())

    @tracing.span("propose")
    def next(self) -> Configuration | None:
        """Return a configuration to measure and then to pass to `tell`; None when all are known, or when it is over.

        Raises UsageError when a sampler fails.
        """
        for number in itertools.count():
            if number and self._is_over():
                return None
            row = self._proposer.ask()
            if row is None:
                self.is_exhausted = True
                return None
            configuration = self._space[row]
            is_avoided = self._avoids_suspects and number < self.MOST_SUSPECTED
            is_suspected = is_avoided and self._suspicion.falls_on(configuration)
            if not is_suspected and self._is_new(configuration):
                self._running.add(configuration)
                return configuration
            if (known := self._knowledge.known.get(configuration)) is None:
                self._proposer.tell(row)
            else:
                self._pass_on(known)
        raise AssertionError

    def leave_out(self, configuration: Configuration) -> None:
        """Exclude a configuration that is measured without being proposed; its trial is passed to `tell` as well."""
        self._running.add(configuration)

    @tracing.span("tell")
    def tell(self, trial: Trial) -> None:
        """Take in the trial of a configuration that was proposed or left out."""
        self._suspicion.learn(trial)
        self._running.discard(trial.configuration)
        self._pass_on(trial)

    @property
    def expected_gain(self) -> float | None:
        """The share of the best time that the next trial is expected to save; None without a model."""
        return self._proposer.expected_gain

    def _is_new(self, configuration: Configuration) -> bool:
        knowledge = self._knowledge
        is_seen = configuration in self._running or configuration in knowledge.known
        if is_seen or configuration in knowledge.quarantine:
            return False
        return not knowledge.is_unfit(configuration, self._builds)

    def _is_doubtful(self, configuration: Configuration) -> bool:
        return self._knowledge.is_doubtful(configuration, self._builds_elsewhere)

    def _pass_on(self, trial: Trial) -> None:
        """Report a trial to the proposer, unless its configuration is outside the space."""
        row = self._space.row_of(trial.configuration)
        if row is None:
            return
        time_ns = trial.time_ns if trial.state is TrialState.COMPLETE else None
        is_slow = trial.state in (TrialState.TOO_SLOW, TrialState.TIMED_OUT, TrialState.CUT_SHORT)
        best_ns = self._knowledge.best_ns
        at_least_ns = self.SLOW_FACTOR * best_ns if is_slow and math.isfinite(best_ns) else None
        self._proposer.tell(row, time_ns, at_least_ns=at_least_ns)

    def _promising(self) -> list[int]:
        """Return the rows to try first: the winners here and nearby, the fastest stale ones, the rule's best."""
        knowledge = self._knowledge
        left_out = knowledge.known.keys() | knowledge.quarantine
        ranked = knowledge.family.candidates(knowledge.problem, knowledge.device.limits, knowledge.starts)
        candidates = sorted(itertools.islice(ranked, self.LOOKED_AT), key=self._is_doubtful)
        wanted = [
            *filter(None, [self._neighbours.own]),
            *(configuration for source in self._foreign for configuration in source.configurations[: self.FOREIGN]),
            *self._neighbours.starts,
            *[c for c in knowledge.stale_ranking if c not in left_out][: self.STALE],
            *candidates[: self.CANDIDATES],
        ]
        distinct = dict.fromkeys(map(knowledge.family.complete, wanted))
        return [row for c in distinct if c not in left_out and (row := self._space.row_of(c)) is not None]


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


def _vector_width(configuration: Configuration) -> int:
    """Return the width of the longest vector that it loads, 1 if it names none."""
    widths = [value for name, value in configuration.values if name.endswith("width") and isinstance(value, int)]
    return max(widths, default=1)
