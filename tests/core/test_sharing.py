"""A time budget shared among sizes on an invented device whose clock stands still between trials; ends by gain left."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.kernels.gemm import GemmProblem
from autotune.model.events import Listener, Outcome
from autotune.model.machine import Rates
from autotune.model.trial import Job, Request, TrialState
from autotune.search import Budget, SamplerChoice, one_problem, sharing, tune
from autotune.search.budget import EVERY_TRIALS, GainLeft
from autotune.search.task import Task
from autotune.store import Store
from factories import Recorder
from fakes import INVENTED_PROCESSOR, FakeBuilds, FakeWorker
from invented_clock import Clock

DEVICE = INVENTED_PROCESSOR


@pytest.fixture
def without_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model says that one has more to gain than another: how often searches take turns is then certain."""
    monkeypatch.setattr(one_problem, "FEWEST_TRIALS", 1000)


def landscape(job: Job) -> float:
    """Nanoseconds: several parameters matter, so that there is something to find for a while."""
    values = dict(job.configuration.values)
    score = 0.0
    for name, best in (("vector_width", 8), ("unroll", 2), ("work_group_m", 4), ("work_group_n", 16)):
        score += 0.4 * abs(math.log2(max(1, int(values.get(name, 1)))) - math.log2(best))
    return 1e5 * float(2 ** (score + 0.2 * (values.get("loads") == "vload")))


def worker_of(clock: Clock, seconds: Callable[[Job], float], time_ns: Callable[[Job], float] = landscape) -> FakeWorker:
    """A search's trial takes so long; timing in the finals, which does not verify, 1 ms."""

    def measure(job: Job) -> float:
        clock.now += seconds(job) if job.verify else 1e-3
        return time_ns(job)

    return FakeWorker(measure)


def share(
    store: Store, clock: Clock, worker: FakeWorker, seconds: float, listener: Listener = lambda _: None, **options: Any
) -> Any:
    """For two sizes or more, of the few configurations of one algorithm."""
    requests = requests_of(*options.pop("calls"))
    options = {"algorithms": ["dot"], "clock": clock, **options}
    return tune(DEVICE, requests, store, Budget(seconds=seconds), listener, worker=worker, **options)


def requests_of(*calls: int) -> list[Request]:
    return [Request(problem=GemmProblem(m=64, n=64, k=64 + 8 * i), calls=n) for i, n in enumerate(calls)]


def searched(worker: FakeWorker) -> Counter[tuple[object, object]]:
    """How often each configuration of each problem was measured by a search or a first round of the finals."""
    return Counter((job.problem, job.configuration) for job in worker.jobs if job.verify and not job.verifications)


def test_none_is_left_without_a_start_where_trials_take_far_longer_than_thought(store: Store, clock: Clock) -> None:
    worker = worker_of(clock, lambda _: 20.0)
    outcomes = share(store, clock, worker, 61, calls=(1, 1, 1, 1, 1, 1))
    assert len(outcomes) == 6
    trials = [outcome.new_trials for outcome in outcomes]
    assert trials == [sharing.FIRST_TRIALS] * 2 + [1] * 4, "once the budget has ended, the default alone"
    assert all(outcome.winner and not outcome.winner.is_final for outcome in outcomes), "no time for finals"


@pytest.mark.long
def test_time_goes_where_most_calls_are(store: Store, clock: Clock) -> None:
    worker, recorder = worker_of(clock, lambda _: 0.5), Recorder()
    few, many, none = share(store, clock, worker, 45, recorder, calls=(1, 1000, 1))
    assert few.new_trials >= sharing.LEAST_TRIALS and none.new_trials >= sharing.LEAST_TRIALS
    assert many.new_trials >= 8 + max(few.new_trials, none.new_trials)
    assert recorder.outcomes[0] == many, "the most important is decided first"
    assert many.seconds > few.seconds > 0


@pytest.mark.long
@pytest.mark.usefixtures("without_estimates")
@pytest.mark.parametrize(("calls", "is_even"), [((1, 1), True), ((2, 2), False)])
def test_without_call_counts_a_long_kernel_weighs_no_more_than_a_short_one(
    store: Store, clock: Clock, calls: tuple[int, ...], is_even: bool
) -> None:
    long, _ = requests_of(*calls)
    worker = worker_of(clock, lambda _: 0.5, lambda job: landscape(job) * (50 if job.problem == long.problem else 1))
    first, second = share(store, clock, worker, 60, calls=calls)
    assert (first.new_trials < 1.5 * second.new_trials) is is_even


@pytest.mark.usefixtures("without_estimates")
def test_time_goes_where_a_trial_takes_least_of_it(store: Store, clock: Clock) -> None:
    slow, _ = requests_of(1, 1)
    worker = worker_of(clock, lambda job: 2.0 if job.problem == slow.problem else 0.4)
    first, second = share(store, clock, worker, 80, calls=(1, 1))
    assert second.new_trials > 2 * first.new_trials


@pytest.mark.usefixtures("without_estimates")
def test_time_goes_where_a_device_can_still_be_faster(store: Store, clock: Clock) -> None:
    requests = [Request(problem=GemmProblem(m=64, n=64, k=k), calls=10) for k in (64, 16)]
    store.keep_rates(DEVICE, Rates(float32=2 * 64**3 / 3.9e5))
    # All kernels of the first are as fast as the device allows, those of the second, which weighs less, are not.
    worker = worker_of(
        clock, lambda _: 0.5, lambda job: 4e5 if job.problem.to_dict()["k"] == 64 else 4 * landscape(job)
    )
    budget = Budget(seconds=40)
    at_limit, other = tune(DEVICE, requests, store, budget, algorithms=["dot"], clock=clock, worker=worker)
    assert other.new_trials > 1.5 * at_limit.new_trials


def test_the_budget_is_kept_with_the_finals(store: Store, clock: Clock) -> None:
    began = clock.now
    share(store, clock, worker_of(clock, lambda _: 0.8), 60, calls=(1, 1, 1))
    assert 30 < clock.now - began < 63


@pytest.mark.usefixtures("without_estimates")
def test_nothing_is_measured_twice_over_many_slices(store: Store, clock: Clock) -> None:
    worker, recorder = worker_of(clock, lambda _: 0.6), Recorder()
    outcomes = share(store, clock, worker, 60, recorder, calls=(3, 2, 2))
    assert len([key for key, _ in itertools.groupby(recorder.order)]) > 4, "there are slices"
    finalists = max(searched(worker).values())
    assert finalists <= 2, "once in the search, once in the finals"
    assert sum(outcome.new_trials for outcome in outcomes) == len(recorder.order)


@pytest.mark.long
@pytest.mark.usefixtures("without_estimates")
def test_what_is_built_and_waits_is_not_in_flight_while_others_are_measured(store: Store, clock: Clock) -> None:
    strangers: list[object] = []

    def measure(job: Job) -> float:
        clock.now += 0.7 if job.verify else 1e-3
        strangers.extend(f for f in store.in_flight(DEVICE.slug, DEVICE.driver) if f.problem != job.problem)
        return landscape(job)

    worker, recorder, builds = FakeWorker(measure), Recorder(), FakeBuilds(3)
    share(store, clock, worker, 60, recorder, calls=(3, 2, 2), builds=builds)
    assert len([key for key, _ in itertools.groupby(recorder.order)]) > 4, "there are slices"
    assert strangers == []
    assert max(searched(worker).values()) <= 2
    assert len(builds.jobs) <= len(recorder.order) + 3 * 3, "what was built for a slice is not built again for the next"
    assert builds.is_closed


@pytest.mark.long
@pytest.mark.usefixtures("without_estimates")
def test_models_that_do_not_fit_into_memory_are_made_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "KEPT_MODELS", 0)
    worker, recorder = worker_of(clock, lambda _: 0.6), Recorder()
    share(store, clock, worker, 60, recorder, calls=(3, 2, 2))
    assert len([key for key, _ in itertools.groupby(recorder.order)]) > 4
    assert max(searched(worker).values()) <= 2


def test_it_ends_early_where_nothing_is_left(store: Store, clock: Clock) -> None:
    began = clock.now
    outcomes = share(store, clock, worker_of(clock, lambda _: 0.1), 10_000, calls=(1, 5), algorithms=["naive"])
    assert clock.now - began < 100
    assert [outcome.gain_left for outcome in outcomes] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert all(outcome.is_finished for outcome in outcomes)


def test_the_total_falls_from_that_of_the_defaults(store: Store, clock: Clock) -> None:
    recorder = Recorder()
    share(store, clock, worker_of(clock, lambda _: 0.6), 40, recorder, calls=(3, 2))
    totals = recorder.shares
    assert {total.calls for total in totals} == {5}
    assert all(total.best_ns <= total.default_ns for total in totals)
    assert [t.best_ns for t in totals] == sorted((t.best_ns for t in totals), reverse=True)
    assert totals[-1].best_ns < totals[-1].default_ns


def test_a_stop_leaves_every_problem_with_its_best_and_nothing_in_flight(store: Store, clock: Clock) -> None:
    worker = worker_of(clock, lambda _: 0.5)
    outcomes = share(store, clock, worker, 60, calls=(1, 1, 1, 1), should_stop=lambda: len(worker.jobs) >= 30)
    assert 0 < len(outcomes) < 4 and len(worker.jobs) == 30
    assert all(not outcome.is_finished and outcome.winner for outcome in outcomes)
    assert store.in_flight(DEVICE.slug, DEVICE.driver) == []


def test_what_was_decided_and_not_searched_since_keeps_its_winner_without_finals(store: Store, clock: Clock) -> None:
    def run(worker: FakeWorker) -> list[Outcome]:
        return list(
            share(
                store, clock, worker, 1000, calls=(1, 1), algorithms=["naive"], sampler=SamplerChoice(name="exhaustive")
            )
        )

    first = run(worker_of(clock, lambda _: 0.1))
    again = worker_of(clock, lambda _: 0.1)
    second = run(again)
    assert again.jobs == []
    assert [o.winner for o in second] == [o.winner for o in first]
    assert all(o.winner and o.winner.is_final for o in second)


def test_what_an_earlier_run_measured_and_did_not_decide_gets_finals_without_new_trials(
    store: Store, clock: Clock
) -> None:
    options: dict[str, Any] = {"algorithms": ["naive"], "sampler": SamplerChoice(name="exhaustive")}
    request, _ = requests_of(1, 1)
    everything = len(Task(DEVICE, request.problem).space(["naive"])) + 1  # the default is of another algorithm
    worker = worker_of(clock, lambda _: 0.1)
    stopped: dict[str, Any] = {"worker": worker, "should_stop": lambda: len(searched(worker)) >= everything}
    tune(DEVICE, [request], store, Budget(trials=1000), clock=clock, **options, **stopped)
    first, second = share(store, clock, worker_of(clock, lambda _: 0.1), 1000, calls=(1, 1), **options)
    assert first.new_trials == 0 and second.new_trials == everything
    assert all(outcome.winner and outcome.winner.is_final for outcome in (first, second))


def test_one_problem_that_never_runs_does_not_take_the_time_of_the_others(store: Store, clock: Clock) -> None:
    broken, _ = requests_of(1, 1)

    def measure(job: Job) -> float | TrialState:
        clock.now += 0.5 if job.verify else 1e-3
        return TrialState.COMPILE_FAILED if job.problem == broken.problem else landscape(job)

    worker = FakeWorker(measure)
    first, second = share(store, clock, worker, 40, calls=(1, 1))
    assert first.winner is None
    assert second.winner is not None and second.new_trials > sharing.LEAST_TRIALS


class TestGainLeft:
    def test_a_few_low_estimates_are_needed_and_one_high_one_holds_it_up(self) -> None:
        gain = GainLeft()
        assert gain.share is None and not gain.is_below(1.0)
        gain.observe(0.0001, 15)
        gain.observe(0.0001, 20)
        assert gain.share == pytest.approx(0.0004, rel=0.01)
        assert not gain.is_below(0.01)
        gain.observe(0.0001, 25)
        assert gain.is_below(0.01) and not gain.is_below(0.0005)
        gain.observe(0.003, 30)
        assert gain.share == pytest.approx(0.0043, rel=0.01), "what is shown is the mean"
        assert not gain.is_below(0.01), "what ends a search is the largest"

    def test_it_is_never_all_of_the_time(self) -> None:
        gain = GainLeft()
        gain.observe(0.9, 15)
        assert gain.share is not None and 0.9 < gain.share < 1.0

    def test_it_is_due_every_few_trials(self) -> None:
        gain = GainLeft()
        assert gain.is_due(0)
        gain.observe(0.1, 15)
        assert [gain.is_due(15 + i) for i in range(EVERY_TRIALS + 1)] == [False] * EVERY_TRIALS + [True]


@pytest.mark.long
def test_a_search_ends_where_less_is_left_to_gain_than_asked_for(store: Store, tmp_path: Path) -> None:
    def run(threshold: float, name: str) -> Outcome:
        with Store.open(tmp_path / f"{name}.sqlite") as own:
            budget = Budget(until_gain=threshold, trials=200)
            worker = FakeWorker(landscape)
            return tune(DEVICE, requests_of(1), own, budget, worker=worker, algorithms=["dot"])[0]

    soon, late = run(0.3, "soon"), run(0.03, "late")
    assert 15 <= soon.new_trials < late.new_trials < 200
    assert soon.gain_left is not None and soon.gain_left < 0.3
    assert late.gain_left is not None and late.gain_left < 0.03
    assert soon.winner and late.winner and late.winner.time_ns <= soon.winner.time_ns


def test_a_number_of_trials_is_kept_to_whatever_is_left_to_gain(store: Store) -> None:
    flat = FakeWorker(lambda _: 1000.0)
    outcome = tune(DEVICE, requests_of(1), store, Budget(trials=45), worker=flat, algorithms=["dot"])[0]
    assert outcome.new_trials == 45
