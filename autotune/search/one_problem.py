"""The search of one problem: ask, measure, tell, until its budget ends; then the finals."""

import dataclasses
import math
import time
from collections import Counter

from autotune.family import Configuration, Device
from autotune.profile import Profile
from autotune.search import finals
from autotune.search.bench import Bench
from autotune.search.contract import Limits, Listener, Outcome
from autotune.search.finals import Finals
from autotune.search.knowledge import Knowledge
from autotune.search.proposals import Proposals
from autotune.space import SearchSpace
from autotune.store import Store
from autotune.trial import Request, Trial, TrialState, Winner
from autotune.worker import Measures


class ProblemSearch:
    """One problem, what is known of it, and its new trials."""

    FINALS_SHARE = 0.4
    """Largest part of a time budget kept for the finals."""
    GIVE_UP_FACTOR = 3.0
    """One sample is enough for what is this much slower than the best."""
    BASELINE_LIMIT_S = 20.0

    def __init__(
        self,
        device: Device,
        profile: Profile,
        request: Request,
        space: SearchSpace,
        store: Store,
        worker: Measures,
        listener: Listener,
        limits: Limits,
        seed: int,
    ) -> None:
        self._request = request
        self._space = space
        self._store = store
        self._listener = listener
        self._limits = limits
        self._seed = seed
        self._knowledge = Knowledge(device, profile, request.problem, store)
        self._bench = Bench(self._knowledge, profile, store, worker)
        self._failures: Counter[str] = Counter()
        self._new_trials = 0
        self._deadline = time.monotonic() + limits.seconds

    @property
    def resumed_trials(self) -> int:
        """Trials of the ledger that this search goes on from."""
        return len(self._knowledge.resumed)

    def run(self) -> Outcome:
        """Search until the budget ends, then decide the winner in the finals."""
        self._search()
        winner = None if self._limits.should_stop() else self._decide()
        return Outcome(
            request=self._request,
            winner=winner or self._knowledge.record_provisional(),
            new_trials=self._new_trials,
            resumed_trials=self.resumed_trials,
            failures=dict(self._failures),
            is_finished=not self._limits.should_stop(),
        )

    def _search(self) -> None:
        if self._knowledge.default not in self._knowledge.known:
            self._measure(self._knowledge.default)
        proposals = Proposals(self._knowledge, self._space, self._store, self._seed)
        while not self._is_over():
            configuration = proposals.next()
            if configuration is None:
                break
            proposals.tell(self._measure(configuration))

    def _is_over(self) -> bool:
        if self._limits.should_stop() or time.monotonic() + self._finals_seconds() >= self._deadline:
            return True
        return self._limits.trials is not None and self._new_trials >= self._limits.trials

    def _finals_seconds(self) -> float:
        """How long the finals may take, from how long trials took without building."""
        if math.isinf(self._limits.seconds):
            return 0.0
        foreseen = finals.foreseen_seconds(self._knowledge.best_ns, self._bench.typical_seconds)
        return min(self.FINALS_SHARE * self._limits.seconds, foreseen)

    def _measure(self, configuration: Configuration) -> Trial:
        """One new trial of the search, stored and told."""
        job = dataclasses.replace(
            self._bench.job(configuration), give_up_above_ns=self.GIVE_UP_FACTOR * self._knowledge.best_ns
        )
        trial = self._bench.run(job, "search")
        self._new_trials += 1
        self._count(trial)
        improved = trial.time_ns < self._knowledge.best_ns
        self._knowledge.learn(trial)
        if improved:
            self._knowledge.record_provisional()
        self._listener.trial_finished(self._request, trial, self._new_trials, self._knowledge.best_ns)
        return trial

    def _count(self, trial: Trial) -> None:
        if trial.state is not TrialState.COMPLETE:
            self._failures[trial.state.value] += 1

    def _decide(self) -> Winner | None:
        self._measure_baseline()
        deciding = Finals(self._knowledge, self._bench, self._store, self._limits.should_stop)
        finalists = deciding.finalists()
        if not finalists:
            return None
        self._listener.finals_started(self._request, len(finalists))
        winner = deciding.decide(finalists, self._deadline)
        for trial in deciding.failed:
            self._count(trial)
        return winner

    def _measure_baseline(self) -> None:
        """The plainest kernel, once, so that gains can be told against it."""
        baseline = self._knowledge.family.baseline
        if baseline in self._knowledge.known:
            return
        job = dataclasses.replace(
            self._bench.job(baseline),
            give_up_above_ns=self.GIVE_UP_FACTOR * self._knowledge.best_ns,
            run_limit_s=self.BASELINE_LIMIT_S,
        )
        self._knowledge.learn(self._bench.run(job, "search"))
