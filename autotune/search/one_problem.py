"""The search of one problem: ask, measure, tell, until its budget ends; then the finals."""

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable

from autotune import tracing
from autotune.family import Configuration, Device
from autotune.profile import Profile
from autotune.search import finals
from autotune.search.ahead import FAILURES, Ahead, Builds, Prepared
from autotune.search.bench import Bench
from autotune.search.contract import Limits, Listener, Outcome
from autotune.search.finals import Finals
from autotune.search.knowledge import Knowledge
from autotune.search.proposals import Proposals
from autotune.search.sentinel import Sentinel
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
        builds: Builds | None = None,
    ) -> None:
        self._request = request
        self._space = space
        self._store = store
        self._listener = listener
        self._limits = limits
        self._seed = seed
        self._builds = builds
        self._programs: dict[bytes, Trial] = {}
        """Trials of this run by what was run."""
        self._knowledge = Knowledge(device, profile, request.problem, store)
        self._bench = Bench(self._knowledge, profile, store, worker)
        self._sentinel = Sentinel(self._knowledge, self._bench, self._tell_drift, limits.should_stop)
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
        if self._limits.retries_quarantined:
            self._retry_quarantined()
        (proposals, ahead), timer = self._begin(), self._knowledge.timer
        try:
            while not self._is_over():
                prepared = ahead.next(self._bench.typical_seconds, self._trials_left)
                if prepared is None:
                    break
                proposals.tell(self._measure_prepared(prepared, ahead.go_on))
                self._sentinel.look_if_due()
                if self._knowledge.timer is not timer and not self._is_over():  # what was known tells nothing any more
                    ahead.abandon()
                    (proposals, ahead), timer = self._begin(), self._knowledge.timer
        finally:
            ahead.abandon()

    @tracing.span("begin")
    def _begin(self) -> tuple[Proposals, Ahead]:
        """The default is measured first, so that a search that is cut short never loses."""
        self._programs.clear()
        if self._may_run_first(self._knowledge.default):
            self._measure(self._knowledge.default)
        proposals = Proposals(self._knowledge, self._space, self._store, self._seed)
        return proposals, Ahead(proposals, self._knowledge, self._bench, self._builds, self._is_over)

    @property
    def _trials_left(self) -> float:
        return math.inf if self._limits.trials is None else self._limits.trials - self._new_trials

    def _retry_quarantined(self) -> None:
        """Run once more what is in quarantine; what fails again goes back."""
        for configuration in sorted(self._knowledge.quarantine, key=lambda c: c.key):
            is_valid = configuration in (self._knowledge.default, self._knowledge.family.baseline) or (
                self._space.row_of(configuration) is not None
            )
            if is_valid and not self._is_over():
                self._knowledge.release(configuration)
                self._measure(configuration)

    def _may_run_first(self, configuration: Configuration) -> bool:
        """Whether it was not measured before, and is not in quarantine."""
        return configuration not in self._knowledge.known.keys() | self._knowledge.quarantine

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

    def _measure_prepared(self, prepared: Prepared, meanwhile: Callable[[], Configuration | None] | None) -> Trial:
        """A new trial of what was built in advance; what did not build, or was run before, is not run."""
        configuration, build = prepared.configuration, prepared.build
        if build and build.state in FAILURES:
            failed = Trial(configuration=configuration, state=FAILURES[build.state], message=build.message)
            return self._note(self._bench.record(failed))
        twin = self._programs.get(prepared.program)
        if twin is not None:
            trial = dataclasses.replace(twin, configuration=configuration, message=f"same as {twin.configuration}")
            return self._note(self._bench.record(trial))
        measured = self._run(prepared, meanwhile)
        if measured.state is TrialState.COMPLETE:
            self._programs[prepared.program] = measured
        return self._note(measured)

    def _measure(self, configuration: Configuration) -> Trial:
        """One new trial of what was not built in advance."""
        return self._note(self._run(Prepared(configuration=configuration)))

    def _run(self, prepared: Prepared, meanwhile: Callable[[], Configuration | None] | None = None) -> Trial:
        """As measured and stored."""
        job = dataclasses.replace(
            self._bench.search_job(prepared.configuration),
            source=prepared.source,
            binary=prepared.build.binary if prepared.build else b"",
            give_up_above_ns=self.GIVE_UP_FACTOR * self._knowledge.best_ns * self._sentinel.slowdown,
        )
        return self._bench.run(job, "search", prepared.build.build_ns if prepared.build else 0.0, meanwhile)

    def _note(self, measured: Trial) -> Trial:
        """Count, learn and tell a new trial of the search, which is stored already; as the sentinel corrects it."""
        trial = self._sentinel.corrected(measured)
        self._new_trials += 1
        self._count(trial)
        improved = trial.time_ns < self._knowledge.best_ns
        self._knowledge.learn(trial)
        if improved:
            with tracing.span("ledger: winner"):
                self._knowledge.record_provisional()
        self._listener.trial_finished(self._request, trial, self._new_trials, self._knowledge.best_ns)
        return trial

    def _tell_drift(self, slowdown: float, rest_s: float) -> None:
        self._listener.device_drifted(self._request, slowdown, rest_s)

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
        if not self._may_run_first(baseline):
            return
        job = dataclasses.replace(
            self._bench.job(baseline),
            give_up_above_ns=self.GIVE_UP_FACTOR * self._knowledge.best_ns,
            run_limit_s=self.BASELINE_LIMIT_S,
            probe=False,  # far slower it may be
        )
        self._knowledge.learn(self._sentinel.corrected(self._bench.run(job, "search")))
