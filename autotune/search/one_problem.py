"""The search of one problem: propose, measure and learn until its budget ends, whole or in slices; then the finals."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autotune import tracing
from autotune.errors import StoreError
from autotune.measure.build_pool import Builds
from autotune.model import events
from autotune.model.configuration import Configuration
from autotune.model.trial import Request, Trial, Winner
from autotune.propose.prior import Source
from autotune.propose.samplers import SamplerChoice
from autotune.search import finals, significance
from autotune.search.budget import FEWEST_TRIALS, Budget, Clock, GainLeft, Rhythm
from autotune.search.finals import Finals
from autotune.search.knowledge import FailureCounts, Knowledge
from autotune.search.opening import Opening
from autotune.search.pipeline import Pipeline
from autotune.search.place import Helpers, Measures, Work
from autotune.search.proposals import Proposals
from autotune.search.sentinel import Sentinel
from autotune.space.search_space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What all searches of one run share."""

    worker: Measures
    budget: Budget = field(default_factory=Budget)
    listener: events.Listener = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    seed: int = 0
    builds: Builds | None = None
    retries_quarantined: bool = False
    """Whether each search begins with the quarantined configurations."""
    is_sustained: bool = False
    """Whether times are to be those at the speed that the device can hold when hot."""
    rhythm: Rhythm | None = None
    """How the application uses the device; None if calls follow one another."""
    sampler: SamplerChoice | None = None
    foreign: Sequence[Source] = ()
    """What other tuners measured of the family of all problems."""
    helpers: Helpers = field(default_factory=Helpers)
    """Equal devices that measure for the first search until its finals."""
    clock: Clock = field(default_factory=Clock)
    ends: float = math.inf
    """When the time that several problems share ends, on the clock; infinite where they do not share any."""

    @property
    def seconds(self) -> float:
        """Time of a problem that shares none; infinite without a time budget."""
        seconds = self.budget.seconds
        return math.inf if seconds is None or math.isfinite(self.ends) else seconds


class ProblemSearch:
    """The search of one problem: what is known of it, and its new trials."""

    FINALS_SHARE = 0.4
    """Largest part of a time budget kept for the finals."""
    JUDGED_TRIALS = 5
    """Trials after which it is reported how many will fit into a time budget."""
    SPARE_TRIALS = 5
    """New trials beyond the budget, in time as well, when every configuration that ran correctly was lost later, or
    lost at once, as with a worker that was killed again and again: a search that could have a winner must get one."""

    def __init__(self, tuning: Tuning, request: Request, knowledge: Knowledge, space: SearchSpace) -> None:
        """`knowledge` is that of the request's problem, on the device of `tuning.worker`."""
        self.request = request
        self.knowledge = knowledge
        self._tuning = tuning
        self._space = space
        self._clock = tuning.clock
        self._proposals: Proposals | None = None
        """Kept from one slice to the next, as what is built of them is."""
        self._is_enough: Callable[[], bool] = lambda: False
        """Whether the search has to end for now."""
        self._is_begun = self._is_exhausted = False
        self._gain = GainLeft()
        self._timer = knowledge.timer
        self._pipeline = pipeline = Pipeline(
            knowledge,
            tuning.worker,
            builds=tuning.builds,
            helpers=tuning.helpers,
            clock=self._clock,
            left_s=self._left_s,
            trials_left=lambda: self._trials_left,
            is_over=lambda: self.is_over,
            may_follow=self._may_follow,
        )
        self._sentinel = Sentinel(pipeline, self._report_drift, tuning.should_stop, is_sustained=tuning.is_sustained)
        self._failures = FailureCounts()
        self.new_trials = 0
        self.seconds = 0.0
        """Duration of search and finals so far."""
        self._begun_seconds, self._begun_trials = 0.0, 0
        """Parts of `seconds` and `new_trials` spent on starting processes, making models and measuring the default."""
        self._ends = self._clock() + tuning.seconds

    @property
    def _deadline(self) -> float:
        """End of the budget on the search's clock, later by the time spent waiting for other programs on the device."""
        return self._ends + self._tuning.worker.waited_s

    @property
    def gain_left(self) -> float | None:
        """Share of the best time that more trials are expected to save; None before a model can estimate it."""
        return 0.0 if self._is_exhausted else self._gain.share

    @property
    def best_ns(self) -> float:
        return self.knowledge.best_ns

    @property
    def trial_seconds(self) -> float:
        """Average duration of a new trial, with building and proposing; 0 before the first.

        The trials that began the search, and their time, count only until there are others.
        """
        trials = self.new_trials - self._begun_trials
        if not trials:
            return self.seconds / max(self.new_trials, 1)
        return max(0.0, self.seconds - self._begun_seconds) / trials

    def run(self) -> events.Outcome:
        """Search until the budget ends, then decide the winner in the finals."""
        self.search()
        return self.finish(self._deadline)

    def search(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Search until the budget ends or `is_enough`, called before each trial, returns True.

        Proposals and builds that are not measured yet are kept for the next call.
        """
        started = self._clock()
        self._is_enough = is_enough
        try:
            self._search()
            self._pipeline.release()  # while other problems are measured, what is built here is not in flight
        except BaseException as error:
            self._pipeline.settle(is_interrupted=not isinstance(error, Exception))
            with contextlib.suppress(StoreError):  # the error that ended the search is raised, and may be this one
                self.shelve()
            self._pipeline.close()
            raise
        finally:
            self.seconds += self._clock() - started

    def shelve(self) -> None:
        """Drop the model and the builds; both are made anew, from the ledger as it is then."""
        self._proposals = None
        self._pipeline.abandon()

    def finish(self, deadline: float | None) -> events.Outcome:
        """Run the finals until `deadline` on the monotonic clock, and return the outcome of the request.

        Without a deadline there is no time for finals, and the winner is provisional.
        """
        started = self._clock()
        self.shelve()
        self._tuning.helpers.close()  # finals compare times measured on one device
        winner = None
        if not self._tuning.should_stop():
            winner = None if self.new_trials or self._tuning.rhythm else self.knowledge.decided
            if winner is None and deadline is not None:
                winner = self._decide(deadline)
        self._pipeline.close()
        self.seconds += self._clock() - started
        return events.Outcome(
            request=self.request,
            winner=winner or self.knowledge.record_provisional(),
            new_trials=self.new_trials,
            resumed_trials=len(self.knowledge.resumed),
            failures=self._failures.by_state,
            commonest_failure=self._failures.commonest,
            is_finished=not self._tuning.should_stop(),
            seconds=self.seconds,
            gain_left=self.gain_left,
            is_default_open=self.knowledge.is_default_open,
        )

    def finals_seconds(self, rounds: int = significance.LOOKS[-1]) -> float:
        """Return how long finals of `rounds` rounds may take, judging by how long trials took without building."""
        limits = self._pipeline.own.limits
        best_ns = finals.duration_ns(self.knowledge, self.knowledge.best_ns, limits.typical_run_s)
        return finals.foreseen_seconds(
            best_ns, limits.typical_run_s, limits.fresh_inputs_s, rounds, rhythm=self._tuning.rhythm
        )

    @property
    def is_over(self) -> bool:
        """Whether the budget has ended, or nothing worth a trial is left."""
        if self._tuning.should_stop() or self._is_exhausted or self._gain.is_below(self._tuning.budget.least_gain):
            return True
        is_late = self._clock() + self._pipeline.own.limits.typical_s + self._finals_share() >= self._deadline
        return self._trials_left <= 0 or (is_late and not self._is_owed)

    def _search(self) -> None:
        pipeline = self._pipeline
        proposals = self._proposals or self._begin()
        self._estimate(proposals)
        while pipeline.has_launched or not (self.is_over or self._is_enough()):
            trials = self.new_trials
            self._take_in(pipeline.step(), proposals)
            if self.new_trials == trials and not pipeline.is_at_work:
                self._is_exhausted = proposals.is_exhausted
                break
            self._estimate(proposals)
            if pipeline.has_following:
                continue
            if pipeline.is_own_free and self._sentinel.look_if_due():
                pipeline.forget_times()  # their times belong to another speed of the device
            if self._has_other_timer:  # earlier times do not compare with new ones
                self._gain = GainLeft()
                if not self.is_over:
                    self._take_in(pipeline.drain(), proposals)
                    self.shelve()
                    proposals = self._begin()
        self._take_in(pipeline.drain(), proposals)

    def _take_in(self, works: Iterable[Work], proposals: Proposals) -> None:
        """Learn from trials as they are stored.

        The sentinel knows the speed of the search's own device only: trials of other devices count as measured.
        """
        for work in works:
            assert work.trial
            is_of_helper = work.place and work.place is not self._pipeline.own
            proposals.tell(self._learn(work.trial) if is_of_helper else self._note(work.trial))

    @tracing.span("begin")
    def _begin(self) -> Proposals:
        """Measure the default first, while others are built, so that a search that is cut short never loses.

        If the default fails, safe configurations follow until something has run correctly.
        """
        started, trials = self._clock(), self.new_trials
        self._timer = self.knowledge.timer
        self._proposals = proposals = Proposals(
            self.knowledge,
            self._space,
            self._tuning.seed,
            self._tuning.sampler,
            self._tuning.foreign,
            is_over=lambda: self.is_over or self._is_enough(),
        )
        self._pipeline.propose = proposals.next
        self._pipeline.forget_times()
        opening = Opening(self._space, self._pipeline, proposals, self._measure, is_over=lambda: self.is_over)
        if self._tuning.retries_quarantined and not self._is_begun:
            opening.try_quarantined()
        self._is_begun = True
        opening.run(self._pipeline.start)
        self._sentinel.heat(self._left_s())
        self._begun_seconds += self._clock() - started
        self._begun_trials += self.new_trials - trials
        return proposals

    def _report_drift(self, slowdown: float, rest_s: float) -> None:
        self._tuning.listener(events.DeviceDrifted(request=self.request, slowdown=slowdown, rest_s=rest_s))

    @property
    def _has_other_timer(self) -> bool:
        """Whether times come from another clock than when the search began."""
        return self.knowledge.timer is not self._timer

    def _may_follow(self) -> bool:
        """Return whether the next trial may be launched directly after the one being measured."""
        return not (self.is_over or self._is_enough() or self._sentinel.is_due_next or self._has_other_timer)

    def _estimate(self, proposals: Proposals) -> None:
        """Every few trials, ask the model what is left to gain."""
        if len(self.knowledge.known) < FEWEST_TRIALS or not self._gain.is_due(self.new_trials):
            return
        if (next_gain := proposals.expected_gain) is not None:
            share = self._gain.observe(next_gain, self.new_trials)
            self._tuning.listener(events.GainEstimated(request=self.request, gain_left=share))

    @property
    def _trials_left(self) -> float:
        spare = self.SPARE_TRIALS if self.knowledge.is_all_lost else 0
        trials = self._tuning.budget.trials
        return math.inf if trials is None else trials + spare - self.new_trials

    @property
    def _is_owed(self) -> bool:
        """Whether a trial may be measured when time is up."""
        return self.new_trials < self.SPARE_TRIALS and self.knowledge.is_all_lost

    def _left_s(self) -> float:
        """Return the seconds left of the budget, which limit what a single trial may take."""
        left_s = min(self._tuning.ends, self._deadline) - self._clock()
        return math.inf if left_s <= 0 and self._is_owed else left_s

    def _finals_share(self) -> float:
        """Return the seconds of this problem's own budget that are kept for the finals."""
        if math.isinf(self._tuning.seconds):
            return 0.0
        return min(self.FINALS_SHARE * self._tuning.seconds, self.finals_seconds())

    def _measure(self, configuration: Configuration) -> Trial:
        """Measure a configuration that was not built in advance."""
        return self._note(self._pipeline.measure(self._pipeline.jobs.trial(configuration)))

    def _note(self, measured: Trial) -> Trial:
        """Take in a new trial of the search, which is stored already, and return it as the sentinel corrects it."""
        return self._learn(self._sentinel.corrected(measured))

    def _learn(self, trial: Trial) -> Trial:
        """Count a trial, learn from it and report it."""
        self.new_trials += 1
        self._failures.count(trial)
        before_ns = self.knowledge.best_ns
        self.knowledge.learn(trial)
        default = self.knowledge.default  # once it has run, it stays until finals, so it is recorded once
        is_provisional = trial.configuration == default or not self.knowledge.is_sound(default)
        if is_provisional and self.knowledge.best_ns < before_ns:
            with tracing.span("ledger: winner"):
                self.knowledge.record_provisional()
        finished = events.TrialFinished(
            request=self.request,
            trial=trial,
            new_trials=self.new_trials,
            best_ns=self.knowledge.best_ns,
            failures=self._failures.by_state,
        )
        self._tuning.listener(finished)
        trial_s, seconds = self._pipeline.own.limits.typical_s, self._tuning.seconds
        if self.new_trials == self.JUDGED_TRIALS and math.isfinite(seconds) and trial_s:
            trials = self.new_trials + max(0.0, self._left_s() - self._finals_share()) / trial_s
            self._tuning.listener(events.BudgetJudged(request=self.request, trials=trials, seconds=seconds))
        return trial

    def _decide(self, deadline: float) -> Winner | None:
        self._sentinel.heat(deadline - self._clock())
        deciding = Finals(self._pipeline, self._tuning.should_stop, self._tuning.rhythm)
        deciding.measure_baseline(deadline)
        if self.knowledge.is_default_open:
            return None
        finalists = deciding.finalists(deadline)
        if not finalists:
            return None
        self._tuning.listener(events.FinalsStarted(request=self.request, finalists=len(finalists)))
        winner = deciding.decide(finalists, deadline)
        for trial in deciding.failed:
            self._failures.count(trial)
        return winner
