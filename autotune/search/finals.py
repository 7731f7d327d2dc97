"""The finals: the best few and the default, measured in turns, decide the winner."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from autotune.family import Configuration
from autotune.search.bench import Bench
from autotune.search.knowledge import Knowledge
from autotune.store import Store
from autotune.trial import Trial, TrialState, Winner

FINALISTS = 4
ROUNDS = 11
LEAST_ROUNDS = 4
VERIFIED_ROUNDS = 4
"""Rounds in which every finalist is verified on fresh inputs again; the others only time it."""
SAMPLES = 3
"""Of a finalist in one round."""
NEAR_FACTOR = 3.0
"""The baseline takes part when it is at most this much slower than the best."""


class Finals:
    """One decision for one problem."""

    def __init__(
        self, knowledge: Knowledge, bench: Bench, store: Store, should_stop: Callable[[], bool]
    ) -> None:
        self._knowledge = knowledge
        self._bench = bench
        self._store = store
        self._should_stop = should_stop
        self.failed: list[Trial] = []

    def finalists(self) -> list[Configuration]:
        """The best few, an earlier winner, the default, and the baseline where it is a rival."""
        knowledge = self._knowledge
        best = [t.configuration for t in knowledge.ranking[:FINALISTS]]
        incumbents = [
            w.configuration
            for w in self._store.best(knowledge.device.slug, knowledge.family.name)
            if w.problem == knowledge.problem and w.is_final
        ]
        wanted = dict.fromkeys([*best, *incumbents, knowledge.default, *self._near_baseline()])
        return [c for c in wanted if knowledge.is_sound(c)]

    def decide(self, finalists: Sequence[Configuration], deadline: float) -> Winner | None:
        """Measure in turns; the default wins unless it is surely beaten. None when stopped or nobody is left."""
        rounds = self._rounds(finalists, deadline)
        if not rounds:
            return None
        knowledge = self._knowledge
        best = min(rounds, key=lambda c: _median(rounds[c]))
        reference = knowledge.default if knowledge.default in rounds else best
        ratio, interval = gain(rounds[reference], rounds[best])
        if best != reference and interval[0] <= 1.0:
            best, ratio, interval = reference, 1.0, (1.0, 1.0)
        time_ns = _median(rounds[best])
        winner = knowledge.winner(best, time_ns, ratio * time_ns, interval, SAMPLES * len(rounds[best]))
        baseline = knowledge.family.baseline
        if baseline in rounds:
            over_baseline, _ = gain(rounds[baseline], rounds[best])
            winner = dataclasses.replace(winner, baseline_ns=over_baseline * time_ns)
        self._store.record_winner(winner)
        return winner

    def _near_baseline(self) -> list[Configuration]:
        """The baseline where it is a rival; where it is far slower, the time of its one trial tells enough."""
        baseline = self._knowledge.family.baseline
        trial = self._knowledge.known.get(baseline)
        is_near = trial is not None and trial.time_ns <= NEAR_FACTOR * self._knowledge.best_ns
        return [baseline] if is_near else []

    def _rounds(self, finalists: Sequence[Configuration], deadline: float) -> dict[Configuration, list[float]]:
        """Time of each finalist in each round; who fails once is out. Empty when stopped."""
        rounds: dict[Configuration, list[float]] = {c: [] for c in finalists}
        for number in range(ROUNDS):
            if not rounds or (number >= LEAST_ROUNDS and time.monotonic() > deadline):
                break
            order = list(rounds)
            for configuration in order[number % len(order) :] + order[: number % len(order)]:
                job = dataclasses.replace(self._bench.job(configuration), samples=SAMPLES)
                if number >= VERIFIED_ROUNDS:
                    job = dataclasses.replace(job, verify=False, seed=0)
                trial = self._bench.run(job, "final")
                if trial.state is TrialState.COMPLETE:
                    rounds[configuration].append(trial.time_ns)
                else:
                    self._knowledge.learn(trial)
                    self.failed.append(trial)
                    del rounds[configuration]
                if self._should_stop():
                    return {}
        return rounds


def gain(reference: Sequence[float], candidate: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The gain, as the median ratio of times within a round, and its 95% interval by bootstrap over rounds."""
    ratios = np.array([r / c for r, c in zip(reference, candidate, strict=False)])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), (float(low), float(high))


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))
