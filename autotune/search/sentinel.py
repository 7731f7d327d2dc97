"""The sentinel: the best configuration so far, run again at intervals to check whether the device keeps its speed.

Trials measured while the speed changed are corrected, and repeated if they might be the best; a device that is
throttled because of heat is given rests, as long as they help.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from autotune import tracing
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Trial, TrialState
from autotune.search.drift import SENTINEL, Revision
from autotune.search.pipeline import Pipeline

EVERY_TRIALS = 20
EVERY_S = 30.0
SHARE = 0.05
"""Largest part of the time that the sentinel's runs may take."""
FREE_S = 0.05
"""A run that takes no longer than this is always affordable."""
SAMPLES = 5
REPEATED = 5
"""Most trials repeated after a change."""
NEAR = 1.1
"""A trial is repeated if it might take at most this many times as long as the best."""

THROTTLED = 1.1
"""Above this slowdown the device is given a rest, unless it is becoming faster."""
REST_S = 10.0
LEAST_REST_S = 1.0
REST_SHARE = 0.2
"""Largest part of the time spent resting."""
HELPS = 0.98
"""A rest helped if the slowdown fell at least to this share of what it was."""

HEAT_S = 180.0
"""Longest time without a pause, for the speed that a device can hold."""
HEAT_SHARE = 0.2
"""Largest part of a time budget that each heating takes."""
HEATING_NS = 400_000_000
"""Length of each of its samples."""
STEADY = 0.01
STEADY_RUNS = 5
"""A device holds its speed if the last STEADY_RUNS times differ by at most the share STEADY."""


class Sentinel:
    """Watches the device's speed during one search."""

    def __init__(
        self,
        pipeline: Pipeline,
        report: Callable[[float, float], None],
        should_stop: Callable[[], bool],
        *,
        is_sustained: bool = False,
    ) -> None:
        """`report` receives the slowdown when it has changed, and the seconds of the rest that follows.

        If times are to be those of a hot device (`is_sustained`), it is never rested.
        """
        self._knowledge = knowledge = pipeline.knowledge
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._report = report
        self._should_stop = should_stop
        self._is_sustained = is_sustained
        self._trials = 0
        self._is_overdue = len(knowledge.resumed) >= EVERY_TRIALS  # the device may have another speed today
        self._started = self._looked = self._clock()
        self._cost_s = 0.0
        self._rested_s = 0.0
        self._reported = knowledge.drift.slowdown
        self._no_help_at = 0.0

    @property
    def slowdown(self) -> float:
        """Time of a call now as a multiple of that at the device's first trial."""
        return self._knowledge.drift.slowdown

    def corrected(self, trial: Trial) -> Trial:
        """Return a new trial of the search as it would have been at the start."""
        self._trials += 1
        return self._knowledge.drift.corrected(trial)

    def look_if_due(self) -> bool:
        """Run the sentinel if it is due, and act on the result; return whether the device has changed its speed."""
        before = self.slowdown
        if self._is_due(self._trials):
            self._look_now()
        return self.slowdown != before

    @tracing.span("sentinel")
    def _look_now(self) -> None:
        self._pipeline.release()  # the next configuration must not run meanwhile
        began, before = self._clock(), self.slowdown
        revisions = self._look()
        self._is_overdue = False
        self._trials, self._looked = 0, self._clock()
        self._cost_s = self._looked - began
        for revision in revisions:
            self._knowledge.revise(revision.trial)
        self._rest_while_it_helps(before)
        self._report_change()
        if revisions:
            self._repeat(revisions)
            self._knowledge.record_provisional()

    def heat(self, seconds: float = math.inf) -> None:
        """If times are to be sustained, run the best without a pause until the device holds its speed.

        Takes at most HEAT_S, and HEAT_SHARE of a time budget of that many seconds.
        """
        best = next((trial.configuration for trial in self._knowledge.ranking), None)
        if best is None or not self._is_sustained:
            return
        self._pipeline.release()
        ends = self._clock() + min(HEAT_S, HEAT_SHARE * seconds)
        times_ns: list[float] = []
        while self._clock() < ends and not self._should_stop():
            trial, revisions = self._run_sentinel(best, HEATING_NS)
            for revision in revisions:
                self._knowledge.revise(revision.trial)
            times_ns = [*times_ns, trial.time_ns][-STEADY_RUNS:]
            is_steady = max(times_ns) <= (1 + STEADY) * min(times_ns)
            if trial.state is not TrialState.COMPLETE or (is_steady and len(times_ns) == STEADY_RUNS):
                break
        self._looked = self._clock()
        self._report_change()

    def _report_change(self) -> None:
        if self.slowdown != self._reported:
            self._reported = self.slowdown
            self._report(self.slowdown, 0.0)

    @property
    def is_due_next(self) -> bool:
        """Whether the sentinel will be due when the trial being measured has ended."""
        return self._is_due(self._trials + 1)

    def _is_due(self, trials: int) -> bool:
        if self._knowledge.drift.sentinel is None:
            return False
        if self._is_overdue:
            return True
        passed_s = self._clock() - self._looked
        if trials < EVERY_TRIALS and (passed_s < EVERY_S or not trials):
            return False
        cost_s = self._cost_s or self._pipeline.own.limits.typical_run_s
        return cost_s <= FREE_S or cost_s <= SHARE * passed_s

    def _look(self) -> list[Revision]:
        """Run the old sentinel, twice if it shows a change; then the best configuration, if that is another one."""
        drift, knowledge = self._knowledge.drift, self._knowledge
        revisions: list[Revision] = []
        old = drift.sentinel
        if old is not None and knowledge.is_sound(old):
            _, revisions = self._run_sentinel(old)
            if drift.is_suspected:
                _, revisions = self._run_sentinel(old)
        best = next((trial.configuration for trial in knowledge.ranking), None)
        if best not in (None, old):
            self._run_sentinel(best)
        return revisions

    def _run_sentinel(
        self, configuration: Configuration, sample_ns: int = Job.min_sample_ns
    ) -> tuple[Trial, list[Revision]]:
        """Return a run, and the trials before it that it revises."""
        job = dataclasses.replace(self._job_of(configuration), samples=SAMPLES, min_sample_ns=sample_ns)
        run = self._pipeline.measure(job, SENTINEL)
        if run.state is TrialState.COMPLETE:
            return run, self._knowledge.drift.observe(run)
        self._knowledge.learn(run)
        return run, []

    def _job_of(self, configuration: Configuration) -> Job:
        """Return a job that only times, since the configuration was verified before."""
        job = self._pipeline.jobs.quick(configuration)
        return dataclasses.replace(job, verify=False, probe=False, agreement=0.0)

    def _rest_while_it_helps(self, before: float) -> None:
        """Rest as long as it helps; not on a CPU, which other programs slow down far more often than its heat."""
        if self._knowledge.device.limits.is_cpu or self._is_sustained:
            return
        while self.slowdown > THROTTLED * max(1.0, self._no_help_at) and self.slowdown >= before:
            rest_s = min(REST_S, REST_SHARE * (self._clock() - self._started) - self._rested_s)
            if rest_s < LEAST_REST_S or self._should_stop():
                return
            self._reported = before = self.slowdown
            self._report(self.slowdown, rest_s)
            self._rest(rest_s)
            self._look()
            if self.slowdown > HELPS * before:
                self._no_help_at = self.slowdown  # heat is not the cause: rests are useless until it gets slower still
                return

    def _rest(self, seconds: float) -> None:
        self._rested_s += seconds
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0 and not self._should_stop():
            self._clock.sleep(min(left, 0.5))

    def _repeat(self, revisions: Sequence[Revision]) -> None:
        """Measure again what might be among the best, since it is not known when exactly the speed changed."""
        limit_ns = NEAR * self._knowledge.best_ns
        near = sorted((r for r in revisions if r.fastest_ns <= limit_ns), key=lambda r: r.fastest_ns)
        for revision in near[:REPEATED]:
            if self._should_stop():
                return
            trial = self._pipeline.measure(self._job_of(revision.trial.configuration))
            self._knowledge.revise(self._knowledge.drift.corrected(trial))
