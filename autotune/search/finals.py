"""The finals: the best few and the default, measured in turns until the winner is clear, and the winner verified."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Trial, TrialState, Verdict, Winner
from autotune.search import significance
from autotune.search.budget import LEAST_S, Rhythm
from autotune.search.knowledge import Knowledge
from autotune.search.pipeline import Pipeline

FINALISTS = 6
"""Number of the fastest; fewer for long kernels. With times that err by 3%, 8 and 12 chose
as well (0.998 of the fastest found, for 0.997) in 319 and 401 timings for 265."""
FINALISTS_OF_LONG = 4
VERIFIED_ROUNDS = 1
"""Rounds in which every finalist is verified again, on fresh inputs common to all; later rounds only time them."""
SAMPLES = 3
"""Samples of a finalist in one round; one is enough for kernels that take long."""
LONG_NS = 50e6
FAR_SLOWER = 3.0
"""Configurations this many times slower than the best take no part, except the default and the earlier winner, for
which one sample a round is then enough."""
MOST_SECONDS = 120.0
"""Time for the finals without a time budget."""

LEAST_VERIFICATIONS = 20
MOST_VERIFICATIONS = 60
"""Checked runs of the winner: 60 find 95 of 100 kernels that are wrong in one of 20 runs, 20 find 64."""
VERIFYING_NS = 5e9
"""There are more than the least number of checked runs only if the kernel runs no longer than this in all."""
VERIFYING_LIMIT_S = 600.0
VERIFYING_SHARE = 0.25
"""Largest part of the time for the finals that is kept for verifying the winner, unless a single run takes more."""
SLOWER_VERIFYING = 5.0
"""Verifying may take this many times its estimated duration, even if that exceeds the time left."""

BASELINE_LIMIT_S, LEAST_BASELINE_S = 20.0, 1.0
BASELINE_SHARE = 0.25
"""Largest part of the time for the finals that the plainest kernel may take; it may be a thousand times slower."""
BASELINE_CALLS = 4
"""Fewest calls of the plainest kernel in a trial: two to verify, one to warm up, one sample."""


def foreseen_seconds(
    best_ns: float,
    trial_s: float,
    inputs_s: float,
    rounds: int = significance.LOOKS[-1],
    *,
    finalists: int | None = None,
    rhythm: Rhythm | None = None,
) -> float:
    """Return how long finals of `rounds` rounds may take, in seconds, by default with the most finalists there may be.

    `trial_s` is the duration of a verified trial without building, on inputs that exist; `inputs_s` that of drawing
    inputs.
    """
    if not math.isfinite(best_ns):
        return 0.0
    samples = 1 + _samples(best_ns)
    count = (_finalists(best_ns) if finalists is None else finalists) + 1
    sample_ns = max(best_ns, rhythm.burst_ns) + rhythm.pause_ns if rhythm else max(best_ns, Job.min_sample_ns)
    round_s = count * (samples * sample_ns + (Job.SETTLING_NS if rhythm else 0.0)) / 1e9
    verifications = full_verifications(best_ns)
    # A trial runs twice to verify. The finalists share their inputs; the winner has twice as many of its own.
    verifying_s = verifications * (trial_s / 2 + best_ns / 1e9) + 3 * inputs_s
    return rounds * round_s + VERIFIED_ROUNDS * count * trial_s + verifying_s


def duration_ns(knowledge: Knowledge, time_ns: float, typical_run_s: float) -> float:
    """Return how long a call takes that has a time: the number that a command reports is not its duration."""
    return max(time_ns, typical_run_s * 1e9) if knowledge.family.is_command else time_ns


class Finals:
    """The finals of one problem: call `measure_baseline` (optional), `finalists` and `decide`, in this order."""

    def __init__(self, pipeline: Pipeline, should_stop: Callable[[], bool], rhythm: Rhythm | None = None) -> None:
        """With a `rhythm`, the finalists are timed in it."""
        self._rhythm = rhythm
        self._knowledge = pipeline.knowledge
        self._pipeline = pipeline
        self._should_stop = should_stop
        self.times: dict[Configuration, dict[int, float]] = {}
        self._samples: dict[Configuration, int] = {}
        self._took_s: dict[Configuration, float] = {}
        """Duration of the latest timing of each, in all."""
        self._deadline = self._seconds = math.inf
        self._is_bounded = False
        """Whether the budget is a time; without one, the least number of rounds is run however long it takes."""
        self._played = 0
        self._seed = pipeline.jobs.new_seed()
        self.failed: list[Trial] = []

    def measure_baseline(self, deadline: float) -> None:
        """Measure the plainest kernel once, unless its time is known, so that gains over it can be reported.

        It is cut off if it would take too much of the time until `deadline`. If nothing has run correctly in the whole
        budget, it may exceed the deadline: a search that ends with nothing would be useless.
        """
        knowledge, baseline = self._knowledge, self._knowledge.family.baseline
        is_last_resort = math.isinf(knowledge.best_ns) and math.isfinite(deadline)
        before = knowledge.known.get(baseline)
        if is_last_resort and before and before.state in (TrialState.TIMED_OUT, TrialState.CUT_SHORT):
            knowledge.release(baseline)  # the budget had cut its limits short
        if baseline in knowledge.known or baseline in knowledge.quarantine:
            return
        job = self._pipeline.jobs.quick(baseline)  # its inputs usually exist already
        if is_last_resort:
            self._pipeline.own.limits.are_lifted = True
        else:
            share_s = BASELINE_SHARE * (deadline - self._pipeline.clock())
            limit_s = min(BASELINE_LIMIT_S, max(LEAST_BASELINE_S, share_s))
            job = dataclasses.replace(
                job,
                give_up_above_ns=limit_s * 1e9 / (BASELINE_CALLS * Job.FAR_TOO_SLOW),
                run_limit_s=limit_s + self._pipeline.own.limits.fresh_inputs_s,
                is_cut_off=True,
            )
        knowledge.learn(knowledge.drift.corrected(self._pipeline.measure(job)))

    def finalists(self, deadline: float = math.inf) -> list[Configuration]:
        """Return the fastest, the default, the baseline if it is a rival, an earlier winner, and more of the best.

        They are in order of importance; fewer of the best if the least number of rounds would not end by `deadline`.
        """
        knowledge = self._knowledge
        near = [t.configuration for t in knowledge.ranking if t.time_ns <= FAR_SLOWER * knowledge.best_ns]
        best = near[: self._affordable(deadline)]
        baseline = knowledge.known.get(knowledge.family.baseline)
        is_rival = baseline is not None and baseline.time_ns <= FAR_SLOWER * knowledge.best_ns
        rival = knowledge.family.baseline if is_rival else None  # otherwise the time of its one trial is enough
        wanted = dict.fromkeys([*best[:1], knowledge.default, rival, self._incumbent, *best[1:]])
        return [c for c in wanted if c and knowledge.is_sound(c)]

    def _affordable(self, deadline: float) -> int:
        """Return how many of the best can take part in the least number of rounds, at least one."""
        best_ns, run_s = self._duration_ns(self._knowledge.best_ns), self._pipeline.own.limits.typical_run_s
        left_s = deadline - self._pipeline.clock()
        for count in range(_finalists(best_ns), 1, -1):
            if (
                foreseen_seconds(best_ns, run_s, 0.0, significance.LOOKS[0], finalists=count, rhythm=self._rhythm)
                <= left_s
            ):
                return count
        return 1

    def decide(self, finalists: Sequence[Configuration], deadline: float) -> Winner | None:
        """Measure in turns, choose and verify the winner; a finalist that fails is dropped, and the others continue.

        `finalists` are in order of importance: those for which there is no time before `deadline` do not take part. The
        first is timed and verified in any case. With fewer than the least number of rounds the winner is provisional.
        Returns None when stopped, when no finalist is left, or when the default was not timed though it runs.
        """
        self._is_bounded = math.isfinite(deadline)
        self._deadline = deadline if self._is_bounded else self._pipeline.clock() + MOST_SECONDS
        self._seconds = self._deadline - self._pipeline.clock()
        self.times = {c: {} for c in finalists}
        self._samples = dict.fromkeys(finalists, 0)
        while self.times:
            self._play()
            if self._should_stop():
                return None
            self.times = {c: times for c, times in self.times.items() if times}
            if not self.times:
                break
            decision = self._decision()
            if decision is None:
                return None
            if verifications := self._verify(decision.configuration):
                return self._record(decision, verifications)
        return None

    def _decision(self) -> significance.Decision | None:
        """Return what the rounds decide; None if they cannot, since the default runs but has no time in them."""
        default, baseline = self._knowledge.default, self._knowledge.family.baseline
        if default not in self.times and self._knowledge.is_sound(default):
            return None
        if self._played < significance.LOOKS[0]:
            return significance.decide_early(self.times, default)
        return significance.decide(self.times, default, self._incumbent, baseline=baseline)

    @property
    def _incumbent(self) -> Configuration | None:
        """The configuration of the winner of earlier finals."""
        winner = self._knowledge.incumbent
        return winner.configuration if winner else None

    def _play(self) -> None:
        """Run rounds until everything is settled, no finalist is left, time is up, or the search is to stop."""
        for look in significance.LOOKS:
            if look <= self._played:
                continue
            taking_part = list(self.times)
            if self._played:
                taking_part = significance.still_in_question(self.times, self._knowledge.default)
            while taking_part and self._played < look:
                timer = self._knowledge.timer
                if not self._play_round(taking_part):
                    return
                if self._knowledge.timer is not timer:  # all take part again, those that had dropped out as well
                    self._play()
                    return
                taking_part = [c for c in taking_part if c in self.times]
            if not taking_part:
                return

    def _play_round(self, taking_part: Sequence[Configuration]) -> bool:
        """Time each finalist once, in every round another one first; return False when time is up or on a stop."""
        turn = self._played % len(taking_part)
        for configuration in [*taking_part[turn:], *taking_part[:turn]]:
            if self._is_late(configuration):
                return False
            began = self._pipeline.clock()
            trial = self._measure(self._timing(configuration))
            self._took_s[configuration] = self._pipeline.clock() - began
            if trial.measurement and trial.measurement.timer is not self._knowledge.timer:
                self._start_again(trial)
                return not self._should_stop()
            if trial.state is TrialState.COMPLETE and trial.measurement:
                self.times[configuration][self._played] = trial.time_ns
                self._samples[configuration] += len(trial.measurement.samples_ns)
            else:
                self._drop(trial)
            if self._should_stop():
                return False
        self._played += 1
        return True

    def _is_late(self, configuration: Configuration) -> bool:
        """Return whether timing it once more, and then verifying the winner, would exceed the deadline."""
        if not any(self.times.values()) or (not self._is_bounded and self._played < significance.LOOKS[0]):
            return False
        best_ns = self._knowledge.best_ns
        share_s = max(VERIFYING_SHARE * self._seconds, self._verifying_seconds(best_ns, 1))
        verifying_s = min(self._verifying_seconds(best_ns, LEAST_VERIFICATIONS), share_s)
        took_s = self._took_s.get(configuration, max(self._took_s.values(), default=0.0))
        return self._pipeline.clock() + took_s + verifying_s > self._deadline

    def _verifying_seconds(self, time_ns: float, verifications: int) -> float:
        """Return how many seconds this many checked runs may take."""
        limits = self._pipeline.own.limits
        each_s = limits.typical_run_s / 2 + self._duration_ns(time_ns) / 1e9
        return verifications * each_s + 2 * limits.fresh_inputs_s

    def _duration_ns(self, time_ns: float) -> float:
        """Return how long a call takes that has a time."""
        return duration_ns(self._knowledge, time_ns, self._pipeline.own.limits.typical_run_s)

    def _timing(self, configuration: Configuration) -> Job:
        best_ns, rhythm = self._duration_ns(self._knowledge.best_ns), self._rhythm
        return dataclasses.replace(
            self._pipeline.jobs.fresh(configuration),
            seed=self._seed,
            placement=self._played,
            verify=self._played < VERIFIED_ROUNDS,
            samples=_samples(best_ns),
            give_up_above_ns=math.inf if rhythm else FAR_SLOWER * self._knowledge.best_ns,
            burst_ns=rhythm.burst_ns if rhythm else 0.0,
            pause_ns=rhythm.pause_ns if rhythm else 0.0,
        )

    def _verify(self, configuration: Configuration) -> int:
        """Check many runs, fewer if time is short; return their number, or 0 if one failed."""
        time_ns, left_s = self._median_ns(configuration), self._deadline - self._pipeline.clock()
        verifications = full_verifications(self._duration_ns(time_ns))
        while verifications > 1 and self._verifying_seconds(time_ns, verifications) > left_s:
            verifications //= 2
        longest_s = SLOWER_VERIFYING * self._verifying_seconds(time_ns, verifications)
        job = dataclasses.replace(
            self._pipeline.jobs.fresh(configuration),
            samples=1,
            verifications=verifications,
            run_limit_s=min(max(VERIFYING_LIMIT_S, longest_s), max(left_s, longest_s, LEAST_S)),
        )
        trial = self._measure(job)
        if trial.state is TrialState.COMPLETE:
            return job.verifications
        self._drop(trial)
        return 0

    def _measure(self, job: Job) -> Trial:
        """Measure, once more where a configuration that ran before was cut short: that was a slow moment."""
        trial = self._pipeline.measure(job, "final")
        is_slow_moment = trial.state is TrialState.CUT_SHORT and self._knowledge.is_sound(job.configuration)
        return self._pipeline.measure(job, "final") if is_slow_moment and not self._should_stop() else trial

    def _start_again(self, trial: Trial) -> None:
        """Discard all times: the device's events were found wrong, and do not compare with the host's clock."""
        self._knowledge.learn(trial)
        self.times = {c: {} for c in self.times}
        self._samples = dict.fromkeys(self.times, 0)
        self._played = 0

    def _drop(self, trial: Trial) -> None:
        self._knowledge.learn(trial)
        self.failed.append(trial)
        del self.times[trial.configuration]

    def _record(self, decision: significance.Decision, verifications: int) -> Winner:
        is_early = decision.verdict is Verdict.PROVISIONAL
        winner = self._knowledge.winner(
            decision,
            self._median_ns(decision.configuration),
            samples=0 if is_early else self._samples[decision.configuration],
            verifications=verifications,
        )
        baseline = self._knowledge.family.baseline
        if baseline in self.times:
            over_baseline = significance.gain(self.times, baseline, decision.configuration)
            winner = dataclasses.replace(winner, baseline_ns=over_baseline.ratio * winner.time_ns)
        self._knowledge.store.record_winner(winner)
        return winner

    def _median_ns(self, configuration: Configuration) -> float:
        return float(np.median(list(self.times[configuration].values())))


def _finalists(best_ns: float) -> int:
    """Return the number of finalists without default and earlier winner."""
    return FINALISTS if best_ns < LONG_NS else FINALISTS_OF_LONG


def _samples(best_ns: float) -> int:
    """Return the samples of a finalist in one round."""
    return SAMPLES if best_ns < LONG_NS else 1


def full_verifications(time_ns: float) -> int:
    """Return the number of checked runs of a winner with this time, if time is not short."""
    return int(min(max(VERIFYING_NS / time_ns, LEAST_VERIFICATIONS), MOST_VERIFICATIONS))
