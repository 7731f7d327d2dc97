"""What is known of one problem on one device: the trials of the ledger and of this run, judged, and its jobs."""

import dataclasses
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from autotune.kernels.render import changes
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Failure
from autotune.model.machine import Rates
from autotune.model.problem import Problem
from autotune.model.trial import (
    QUARANTINED_STATES,
    RUN_LIMIT_S,
    Job,
    Provenance,
    Timer,
    Trial,
    TrialState,
    Verdict,
    Winner,
)
from autotune.search.drift import SENTINEL, Drift
from autotune.search.significance import UNKNOWN_GAIN, Decision
from autotune.search.task import Task
from autotune.store import LOST, Fate, Store, StoredTrial

FAILED_PROBLEMS = 2
"""A configuration that crashed or was lost at this many problems of a family is not run at any other problem of it."""

MOST_LOST = 20
"""A problem at which more configurations were lost may itself be what ends its workers."""
SAME_INPUTS = 32
"""Consecutive trials of a search that share their inputs. Drawing inputs, computing the reference and copying both to
the device takes longer than measuring most kernels: at 1024 cubed on an H200, checks and inputs were 121 of 195 ms a
trial. The finals have inputs of their own."""
SEARCH_TICKS = 250
"""Shortest length of a sample in a search: 0.4% is precise enough, since the finals decide."""
SEARCH_AGREEMENT = 0.02


class Knowledge(Task):
    """A task, the latest judgement of every configuration measured for it, and the winner that follows from that."""

    def __init__(self, device: Device, problem: Problem, store: Store, rates: Rates | None = None) -> None:
        super().__init__(device, problem, rates)
        self.known: dict[Configuration, Trial] = {}
        self.best_ns = math.inf
        self.drift = Drift(is_shared=self.device.limits.is_cpu)
        self._unsound: set[Configuration] = set()
        self.store = store
        # Before the trials: a late result ends its configuration's quarantine, and one that arrived between would be in
        # neither, and measured again.
        self._lost: set[Configuration] = set()
        """Those that a worker, or the machine, did not live to report: perhaps through no fault of theirs."""
        excluded, excluded_elsewhere = self._quarantined()
        stored = store.trials(device.slug, self.family.name, problem)
        is_host = self.family.is_command or any(map(self._found_events_wrong, stored))
        self.timer = Timer.HOST if is_host else Timer.EVENT
        """Source of all known times. Times of events and of the host's clock are never compared."""
        current = [s for s in stored if self._is_usable(s)]
        self.resumed = [s for s in current if s.purpose == "search"]
        self.stale = [s for s in stored if not self._is_usable(s)]
        """Trials under another driver, template, space or timer: useful only as a guess."""
        right = {s.trial.configuration for s in current if s.trial.state is TrialState.COMPLETE}
        self.quarantine = excluded | (excluded_elsewhere - right)
        """Configurations that are not to be run."""
        for item in current:
            has_left_quarantine = item.trial.state in QUARANTINED_STATES and not self.is_quarantined(item.trial)
            if item.trial.state is not TrialState.CUT_SHORT and not has_left_quarantine:
                self._recall(item)  # what was cut short is tried again

    def learn(self, trial: Trial) -> None:
        """Take in a trial. A configuration that ever failed does not count, however often it was correct."""
        if not self._is_comparable(trial):
            if self.timer is Timer.HOST:  # a late trial timed by events, which were found wrong
                self._set_aside(trial)
                return
            self._change_timer()
        before = self.known.get(trial.configuration)
        if trial.state is TrialState.CUT_SHORT and before and before.state is TrialState.COMPLETE:
            return  # a slow moment
        if trial.state in QUARANTINED_STATES:
            self.quarantine.add(trial.configuration)
        if trial.state is not TrialState.COMPLETE:
            self._unsound.add(trial.configuration)
            self.known[trial.configuration] = trial
        elif trial.configuration not in self._unsound and (before is None or trial.time_ns < before.time_ns):
            self.known[trial.configuration] = trial
        self.best_ns = min((t.time_ns for t in self.known.values() if not self.is_quarantined(t)), default=math.inf)

    def is_quarantined(self, trial: Trial) -> bool:
        """Return whether the configuration of a trial must not be run."""
        return trial.configuration in self.quarantine

    def release(self, configuration: Configuration) -> None:
        """Release a configuration from quarantine, to be judged anew."""
        self.quarantine.discard(configuration)
        trial = self.known.get(configuration)
        if trial and trial.state in (*QUARANTINED_STATES, TrialState.CUT_SHORT):
            del self.known[configuration]
            self._unsound.discard(configuration)

    def revise(self, trial: Trial) -> None:
        """Replace the earlier judgement of a configuration by a better one."""
        if trial.state is TrialState.COMPLETE and trial.configuration not in self._unsound:
            self.known.pop(trial.configuration, None)
        self.learn(trial)

    def is_sound(self, configuration: Configuration) -> bool:
        """Return whether it was measured, never failed, and may be run."""
        return configuration in self.known and configuration not in self._unsound | self.quarantine

    @property
    def default_ns(self) -> float:
        """Time of the default, or of the best if the default did not run correctly."""
        default = self.known.get(self.default)
        return default.time_ns if default and default.state is TrialState.COMPLETE else self.best_ns

    @property
    def is_default_open(self) -> bool:
        """Whether the default was not measured, and nothing says that it cannot be: then nothing wins over it."""
        default = self.known.get(self.default)
        if default is None:
            return self.default not in self.quarantine
        return default.state is TrialState.CUT_SHORT

    @property
    def is_all_lost(self) -> bool:
        """Whether nothing may be run of what ran correctly or was lost before it could show whether it does."""
        has_run = self._lost or any(t.state is TrialState.COMPLETE for t in self.known.values())
        return math.isinf(self.best_ns) and bool(has_run) and len(self._lost) <= MOST_LOST

    @property
    def ranking(self) -> list[Trial]:
        """Trials of the sound configurations, fastest first."""
        sound = [t for t in self.known.values() if t.state is TrialState.COMPLETE and not self.is_quarantined(t)]
        return sorted(sound, key=lambda t: t.time_ns)

    @property
    def stale_ranking(self) -> list[Configuration]:
        """Configurations that ran correctly before something changed and never failed, fastest first."""
        failed = {s.trial.configuration for s in self.stale if s.trial.state is not TrialState.COMPLETE}
        by_time = sorted(self.stale, key=lambda s: s.trial.time_ns)
        known = {algorithm.name for algorithm in self.family.algorithms}
        fastest = dict.fromkeys(s.trial.configuration for s in by_time if s.trial.configuration.algorithm in known)
        return [self.family.complete(c) for c in fastest if c not in failed]

    @property
    def decided(self) -> Winner | None:
        """The winner of earlier finals, if nothing that it depends on has changed since."""
        winner = self.incumbent
        if winner is None or not self._is_current(winner.provenance, winner.configuration):
            return None
        return winner if self.is_sound(winner.configuration) else None

    @property
    def incumbent(self) -> Winner | None:
        """The winner of earlier finals."""
        winner = self.store.winner(self.device.slug, self.problem)
        return winner if winner and winner.is_final else None

    def record_provisional(self) -> Winner | None:
        """Store and return a winner without finals: the default, or the best so far if the default does not run."""
        ranking = self.ranking
        if not ranking or self.is_default_open:
            return None
        best = self.known[self.default] if self.is_sound(self.default) else ranking[0]
        decision = Decision(configuration=best.configuration, gain=UNKNOWN_GAIN, verdict=Verdict.PROVISIONAL)
        winner = self.winner(decision, best.time_ns, samples=0, verifications=0)
        self.store.record_winner(winner)
        return winner

    def winner(self, decision: Decision, time_ns: float, *, samples: int, verifications: int) -> Winner:
        """Return the winner to store for a decision."""
        baseline = self.known.get(self.family.baseline)
        return Winner(
            device=self.device.slug,
            problem=self.problem,
            configuration=decision.configuration,
            time_ns=time_ns,
            default_ns=self.default_ns if math.isnan(decision.gain.ratio) else decision.gain.ratio * time_ns,
            baseline_ns=baseline.time_ns if baseline and baseline.state is TrialState.COMPLETE else None,
            gain_low=decision.gain.low,
            gain_high=decision.gain.high,
            samples=samples,
            is_default=decision.configuration == self.default,
            verdict=decision.verdict,
            verifications=verifications,
            provenance=self.provenance(decision.configuration),
        )

    def _quarantined(self) -> tuple[set[Configuration], set[Configuration]]:
        """Return the configurations not to be run at the problem, on the device under its driver.

        The second set consists of those that failed at other problems, which does not count against configurations that
        ran correctly at this one. The first includes those in flight on another machine, since it is unknown here
        whether that machine still runs.
        """
        device, problem = self.device, self.problem
        elsewhere = {
            flight.configuration
            for flight in self.store.in_flight(device.slug, device.driver, problem.family)
            if flight.problem == problem and flight.fate is Fate.UNKNOWN
        }
        entries = self.store.quarantined(device.slug, device.driver, problem.family)
        here = {q.configuration for q in entries if q.problem == problem}
        self._lost = elsewhere | {q.configuration for q in entries if q.problem == problem and q.reason == LOST}
        problems: defaultdict[Configuration, set[Problem]] = defaultdict(set)
        for entry in entries:
            if entry.reason != TrialState.TIMED_OUT.value:  # slowness at large sizes says nothing about small ones
                problems[entry.configuration].add(entry.problem)
        everywhere = {configuration for configuration, seen in problems.items() if len(seen) >= FAILED_PROBLEMS}
        return here | elsewhere, everywhere

    def _recall(self, stored: StoredTrial) -> None:
        """Take in a trial of the ledger, judged as it was when it was measured."""
        trial = stored.trial
        if stored.purpose == "search":
            self.revise(self.drift.corrected(trial))
        elif stored.purpose != SENTINEL or trial.state is not TrialState.COMPLETE:
            self.learn(self.drift.scaled(trial))
        else:
            for revision in self.drift.observe(trial):
                self.revise(revision.trial)

    def _is_comparable(self, trial: Trial) -> bool:
        return trial.measurement is None or trial.measurement.timer is self.timer

    def _found_events_wrong(self, stored: StoredTrial) -> bool:
        """Return whether this trial found the events wrong under today's driver, whatever was run.

        One such trial is enough: trials timed by events may have ended, or been stored, after it.
        """
        is_current, measurement = stored.provenance.driver == self.device.driver, stored.trial.measurement
        return is_current and measurement is not None and measurement.timer is Timer.HOST

    def _change_timer(self) -> None:
        """Change to the host's clock: the device's events were found wrong; their times are only a guess."""
        self.timer = Timer.HOST
        self.drift = Drift(is_shared=self.device.limits.is_cpu)
        for trial in [t for t in self.known.values() if not self._is_comparable(t)]:
            del self.known[trial.configuration]
            self._set_aside(trial)

    def _set_aside(self, trial: Trial) -> None:
        """Keep a trial as stale."""
        provenance = self.provenance(trial.configuration)
        self.stale.append(StoredTrial(trial=trial, problem=self.problem, provenance=provenance, purpose="search"))

    def _is_usable(self, stored: StoredTrial) -> bool:
        return self._is_current(stored.provenance, stored.trial.configuration) and self._is_comparable(stored.trial)

    def _is_current(self, made: Provenance, configuration: Configuration) -> bool:
        """Return whether a measurement is valid for today's driver, template and space."""
        return not changes(made, self.family, configuration, self.device.driver)


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


class Jobs:
    """Makes the jobs of one problem."""

    GIVE_UP_FACTOR = 3.0
    """One sample is enough for a configuration this many times slower than the best."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._draw = np.random.default_rng()
        self._shared_seed = self._seed_uses = 0

    def fresh(self, configuration: Configuration) -> Job:
        """Return the job that measures a configuration on fresh inputs."""
        knowledge = self._knowledge
        return Job(
            selector=knowledge.device.selector,
            problem=knowledge.problem,
            configuration=configuration,
            build_options=knowledge.build_options,
            timer=knowledge.timer,
            seed=self.new_seed(),
            run_limit_s=knowledge.family.run_limit_s or RUN_LIMIT_S,
        )

    def quick(self, configuration: Configuration) -> Job:
        """Return the job that shows if a configuration is worth a final: shared inputs, as few samples as possible."""
        if self._seed_uses % SAME_INPUTS == 0:
            self._shared_seed = self.new_seed()
        self._seed_uses += 1
        return dataclasses.replace(
            self.fresh(configuration),
            seed=self._shared_seed,
            min_sample_ticks=SEARCH_TICKS,
            agreement=SEARCH_AGREEMENT,
        )

    def trial(self, configuration: Configuration) -> Job:
        """Return the job of a new trial: a quick one, which gives up early if it is far slower than the best."""
        give_up_above_ns = self.GIVE_UP_FACTOR * self._knowledge.best_ns * self._knowledge.drift.slowdown
        return dataclasses.replace(self.quick(configuration), give_up_above_ns=give_up_above_ns)

    def new_seed(self) -> int:
        """Return the seed of inputs that no trial has used."""
        return int(self._draw.integers(2**31))
