"""Defaults that fail: what is tried then, what it costs, and that the search still finds what is fast."""

import io
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

import searches
from autotune.display.results import print_failures
from autotune.kernels import find_family
from autotune.measure.worker import GRAVE_STATES
from autotune.model.configuration import Configuration
from autotune.model.events import BudgetJudged, Event, Failure, Outcome
from autotune.model.problem import Problem
from autotune.model.trial import Job, Request, Trial, TrialState, Verdict
from autotune.search import Budget, tune
from autotune.search.budget import FIRST_SHARE, LEAST_S
from autotune.search.opening import MODERATE, safe_configurations
from autotune.search.proposals import Suspicion
from autotune.search.task import Task
from autotune.store import Store
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_clock import Clock

DEVICE = INVENTED_PROCESSOR
GEMM = find_family("gemm")
PROBLEM = GEMM.problem_type.parse("256,256,256")
DEFAULT = Task(DEVICE, PROBLEM).default
TRIAL_S = 1.0
BUDGET_S = 60.0


def width(configuration: Configuration) -> int:
    return int(dict(configuration.values).get("vector_width", 1))


def landscape(job: Job) -> float:
    """Nanoseconds: the baseline takes 40 times as long as the fastest, and short vectors do as well as long ones."""
    values = dict(job.configuration.values)
    if job.configuration == GEMM.baseline:
        return 4e6
    score = 0.5 * abs(math.log2(max(1, int(values.get("unroll", 1)))) - 1)
    return float(1e5 * 2.0 ** (score + (job.configuration.algorithm not in ("microtile", "panel"))))


def is_default(configuration: Configuration) -> bool:
    return configuration == DEFAULT


def is_like_the_default(configuration: Configuration) -> bool:
    return configuration.algorithm == DEFAULT.algorithm and width(configuration) == width(DEFAULT)


def failing(clock: Clock, state: TrialState, fails: Callable[[Configuration], bool]) -> FakeWorker:
    """A device on which some configurations fail; where they hang, for as long as they are let to."""

    def measure(job: Job) -> float | TrialState:
        if fails(job.configuration):
            clock.now += job.run_limit_s if state is TrialState.TIMED_OUT else TRIAL_S
            return state
        clock.now += TRIAL_S if job.verify else 0.01
        return landscape(job)

    return FakeWorker(measure)


class SlowCompiler(FakeWorker):
    """A device whose compiler takes so long for each kernel."""

    def __init__(self, clock: Clock, build_s: float) -> None:
        super().__init__(landscape)
        self._clock = clock
        self._build_s = build_s

    def run(self, job: Job) -> Trial:
        trial = super().run(job)
        self._clock.now += min(self._build_s, job.build_limit_s)
        if self._build_s > job.build_limit_s:
            return Trial(configuration=job.configuration, state=TrialState.TIMED_OUT, message="build took too long")
        assert trial.measurement is not None
        return replace(trial, measurement=replace(trial.measurement, build_ns=self._build_s * 1e9))


def search(
    store: Store, clock: Clock, worker: FakeWorker, problem: Problem = PROBLEM, seconds: float = BUDGET_S
) -> Outcome:
    return searches.search(store, worker, None, problem, seconds=seconds, clock=clock)


@pytest.mark.parametrize("shape", ["256,256,256", "256,256,256 nn int8", "1,4096,512", "33,17,9"])
def test_safe_configurations_are_valid_plain_and_of_every_algorithm(shape: str) -> None:
    problem = GEMM.problem_type.parse(shape)
    task = Task(DEVICE, problem)
    space, default = task.space(), task.default
    safe = safe_configurations(space, default, GEMM.baseline)
    assert {c.algorithm for c in safe} == {span.algorithm for span in space.spans if span.count}
    assert safe[-1] == GEMM.baseline
    if default.algorithm != GEMM.baseline.algorithm:
        assert safe[-2].algorithm == default.algorithm, "others come before the one that has failed"
    for configuration in safe:
        assert not GEMM.violations(problem, configuration, DEVICE.limits)
        assert width(configuration) <= MODERATE


@pytest.mark.long
@pytest.mark.parametrize("fails", [is_default, is_like_the_default])
@pytest.mark.parametrize(
    "state", [TrialState.TIMED_OUT, TrialState.CRASHED, TrialState.WRONG_RESULT, TrialState.COMPILE_FAILED]
)
def test_a_failing_default_costs_little_of_what_is_found(
    store: Store, clock: Clock, state: TrialState, fails: Callable[[Configuration], bool]
) -> None:
    began = clock.now
    worker = failing(clock, state, fails)
    outcome = search(store, clock, worker)
    assert outcome.winner is not None
    assert outcome.winner.time_ns <= 1.5e5, "the fastest there is takes 100 us, the baseline 4 ms"
    assert outcome.winner.verdict is Verdict.DEFAULT_FAILED
    assert outcome.winner.verifications > 0
    assert worker.measured[0] == DEFAULT
    assert worker.jobs[0].run_limit_s == pytest.approx(FIRST_SHARE * BUDGET_S, rel=0.01)
    assert worker.measured[1].algorithm != DEFAULT.algorithm and width(worker.measured[1]) <= MODERATE
    assert clock.now - began <= 1.1 * BUDGET_S + 5.0
    hung = sum(1 for configuration in worker.measured if fails(configuration))
    assert hung <= 3 or state not in GRAVE_STATES, "what is like two that failed is left alone"


def test_a_device_that_hangs_at_everything_but_the_baseline_gets_other_tries_than_that(
    store: Store, clock: Clock
) -> None:
    began = clock.now
    worker = failing(clock, TrialState.TIMED_OUT, lambda c: c != GEMM.baseline)
    outcome = search(store, clock, worker)
    assert outcome.winner is not None and outcome.winner.configuration == GEMM.baseline
    assert outcome.failures["timed out"] >= 5
    assert len({c.algorithm for c in worker.measured}) >= 4
    assert clock.now - began <= 1.1 * BUDGET_S + 5.0


def test_a_compiler_that_is_slow_is_waited_for_when_nothing_else_works(store: Store, clock: Clock) -> None:
    """40 s a kernel, where the first limits are 30 s and less."""
    began = clock.now
    worker = SlowCompiler(clock, 40.0)
    outcome = search(store, clock, worker, seconds=180.0)
    assert worker.jobs[0].build_limit_s == pytest.approx(30.0, abs=0.1)
    assert outcome.winner is not None and outcome.winner.verifications > 0
    assert clock.now - began <= 180.0 + 2 * 40.0


def test_a_slow_device_gets_fewer_rounds_and_checks_and_keeps_the_budget(store: Store, clock: Clock) -> None:
    """4 s a trial: the budget of 60 s once became 160 s."""

    def measure(job: Job) -> float:
        clock.now += 4.0 + 0.5 * job.verifications
        return 1e9 if job.configuration == GEMM.baseline else 5e8

    began = clock.now
    outcome = search(store, clock, FakeWorker(measure))
    assert clock.now - began <= 1.1 * BUDGET_S + 5.0
    assert outcome.winner is not None
    assert outcome.winner.verifications >= 1
    assert outcome.new_trials >= 3


def test_a_run_in_which_nearly_everything_failed_says_so_with_the_commonest_cause(store: Store) -> None:
    def outcome_of(job: Job) -> float | TrialState:
        return landscape(job) if job.configuration == GEMM.baseline else TrialState.CRASHED

    outcome = searches.search(store, FakeWorker(outcome_of), 8, PROBLEM)
    assert outcome.is_mostly_failed
    assert outcome.commonest_failure == Failure(state=TrialState.CRASHED, count=7, message="as told")
    shown = io.StringIO()
    print_failures([outcome], "some-phone", shown)
    first, cause, hint = shown.getvalue().splitlines()
    assert first == "Nearly everything failed on some-phone: 7 of 8 trials of 256x256x256."
    assert cause == "Most often (7 times) it crashed: as told"
    assert "autotune doctor --device some-phone" in hint
    sound = searches.search(store, FakeWorker(landscape), 3, PROBLEM)
    silent = io.StringIO()
    print_failures([sound], "some-phone", silent)
    assert silent.getvalue() == ""


@pytest.mark.long
def test_it_is_told_how_many_trials_fit_and_when_a_budget_is_too_short_for_all(store: Store, clock: Clock) -> None:
    def measure(job: Job) -> float:
        clock.now += 1.0 if job.verify else 0.01
        return landscape(job)

    one: list[Event] = []
    many: list[Event] = []
    own = FakeWorker(measure)
    tune(DEVICE, [Request(problem=PROBLEM)], store, Budget(seconds=20), one.append, worker=own, clock=clock)
    [judged] = [event for event in one if isinstance(event, BudgetJudged)]
    assert 8 <= judged.trials <= 20, "a second each, and the finals"
    assert judged.least_s <= judged.seconds
    requests = [Request(problem=GEMM.problem_type.parse(f"64,64,{k}")) for k in range(64, 64 + 12 * 8, 8)]
    began = clock.now
    outcomes = tune(DEVICE, requests, store, Budget(seconds=20), many.append, worker=FakeWorker(measure), clock=clock)
    [judged] = [event for event in many if isinstance(event, BudgetJudged)]
    assert judged.least_s > judged.seconds == 20, "12 shapes, two trials each"
    assert all(outcome.winner for outcome in outcomes)
    assert clock.now - began <= 1.1 * 20 + 5.0


def test_suspicion_falls_on_what_is_like_several_failures_and_is_cleared_by_success() -> None:
    def ended(width: int, state: TrialState) -> Trial:
        return Trial(configuration=of(width), state=state)

    def of(width: int) -> Configuration:
        return Configuration.of("microtile", vector_width=width)

    suspicion = Suspicion([ended(16, TrialState.TIMED_OUT)])
    assert not suspicion.falls_on(of(16)), "one failure may be its own"
    suspicion.learn(ended(4, TrialState.COMPLETE))
    suspicion.learn(ended(16, TrialState.CRASHED))
    assert suspicion.falls_on(of(16))
    assert not suspicion.falls_on(of(8)) and not suspicion.falls_on(Configuration.of("panel", vector_width=16))
    suspicion.learn(ended(16, TrialState.COMPLETE))
    assert not suspicion.falls_on(of(16))


def test_a_default_that_needs_longer_than_the_first_limit_gets_another_chance_on_a_slow_device(
    store: Store, clock: Clock
) -> None:
    """The default builds for 18 s where the limit is 15 s; plain kernels take 6 s, which shows that all is slow."""

    class Slow(SlowCompiler):
        def run(self, job: Job) -> Trial:
            self._build_s = 18.0 if is_default(job.configuration) else 6.0
            return super().run(job)

    worker = Slow(clock, 6.0)
    outcome = search(store, clock, worker, seconds=90.0)
    assert worker.measured[:1] == [DEFAULT] and DEFAULT in worker.measured[2:4]
    assert outcome.winner is not None and outcome.winner.verdict is not Verdict.DEFAULT_FAILED


def test_wide_kernels_that_build_long_are_waited_for_after_a_default_that_hangs(store: Store, clock: Clock) -> None:
    """Plain kernels build in 0.5 s, wide ones in 7 s, as float16 does on PoCL."""

    class Slow(SlowCompiler):
        def run(self, job: Job) -> Trial:
            hangs = is_default(job.configuration)
            self._build_s = math.inf if hangs else 7.0 if width(job.configuration) > MODERATE else 0.5
            return super().run(job)

    worker = Slow(clock, 7.0)
    outcome = search(store, clock, worker)
    assert sum(width(configuration) > MODERATE for configuration in worker.measured) > 2
    assert outcome.failures == {TrialState.TIMED_OUT.value: 1}


def test_where_nothing_has_run_right_the_plainest_kernel_may_go_beyond_the_budget(store: Store, clock: Clock) -> None:
    """Every build takes 12 s, and the budget is 10: a result that comes late is of use, and none is of no use."""
    worker, began = SlowCompiler(clock, 12.0), clock.now
    outcome = search(store, clock, worker, seconds=10.0)
    assert outcome.winner is not None and outcome.winner.configuration == GEMM.baseline
    assert outcome.winner.verdict is Verdict.PROVISIONAL and outcome.winner.verifications > 0
    assert clock.now - began < 10 + 3 * 12 + LEAST_S


def test_a_plainest_kernel_that_hangs_is_tried_once_beyond_the_budget(store: Store, clock: Clock) -> None:
    worker, began = SlowCompiler(clock, math.inf), clock.now
    outcome = search(store, clock, worker, seconds=10.0)
    assert outcome.winner is None and set(outcome.failures) == {TrialState.TIMED_OUT.value}
    assert worker.measured[-1] == GEMM.baseline and clock.now - began < 10 + 60 + LEAST_S


@pytest.mark.long
def test_without_a_budget_of_time_a_plainest_kernel_that_hangs_gets_no_third_chance(store: Store, clock: Clock) -> None:
    worker = SlowCompiler(clock, math.inf)
    outcome = searches.search(store, worker, 40, PROBLEM, clock=clock)
    assert outcome.winner is None and worker.measured.count(GEMM.baseline) == 2


def test_a_plainest_kernel_that_crashed_is_not_tried_again(store: Store, clock: Clock) -> None:
    worker = failing(clock, TrialState.CRASHED, lambda configuration: True)
    outcome = search(store, clock, worker, seconds=10.0)
    assert outcome.winner is None and worker.measured.count(GEMM.baseline) == 1


def test_what_was_cut_short_is_not_called_broken(store: Store, clock: Clock) -> None:
    """A slow moment at the default: it is tried again in the next run, and wins there."""
    worker = failing(clock, TrialState.CUT_SHORT, is_default)
    outcome = search(store, clock, worker)
    assert outcome.failures["cut short"] >= 1 and outcome.winner is None, "nothing wins over what was not measured"
    assert outcome.no_winner_reason == "the search ended before the default was measured"
    assert store.winner(DEVICE.slug, PROBLEM) is None
    assert store.quarantined(DEVICE.slug, DEVICE.driver) == []
    again = search(store, clock, failing(clock, TrialState.CUT_SHORT, lambda _: False))
    assert again.winner is not None and DEFAULT in {t.trial.configuration for t in store.trials(DEVICE.slug, "gemm")}
    assert again.winner.default_ns == pytest.approx(landscape(job_of(DEFAULT)))


def test_others_that_were_cut_short_are_tried_again_in_the_next_run(store: Store, clock: Clock) -> None:
    tiles = failing(clock, TrialState.CUT_SHORT, lambda c: c != DEFAULT and c.algorithm == "microtile")
    outcome = search(store, clock, tiles)
    stored = store.trials(DEVICE.slug, "gemm")
    cut_short = {t.trial.configuration for t in stored if t.trial.state is TrialState.CUT_SHORT}
    assert cut_short and not outcome.is_mostly_failed
    sound = failing(clock, TrialState.CUT_SHORT, lambda _: False)
    search(store, clock, sound)
    assert cut_short & set(sound.measured)


def test_a_default_that_fails_for_good_may_be_beaten(store: Store, clock: Clock) -> None:
    outcome = search(store, clock, failing(clock, TrialState.WRONG_RESULT, is_default))
    assert outcome.winner is not None and outcome.winner.configuration != DEFAULT


def job_of(configuration: Configuration) -> Job:
    return Job(selector="", problem=PROBLEM, configuration=configuration)
