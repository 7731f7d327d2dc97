"""Several equal devices share one search: invented ones, times by a formula."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from autotune.errors import WorkerError, WorkerLostError
from autotune.kernels.gemm import FAMILY
from autotune.model.events import Event, FinalsStarted, Outcome, TrialFinished
from autotune.model.trial import Job, Request, Trial, TrialState
from autotune.search import Budget, pipeline, tune
from autotune.search.knowledge import Knowledge
from autotune.search.pipeline import Pipeline
from autotune.search.place import MOST_HELPERS, Helpers, Work
from autotune.store import Store
from fakes import INVENTED_PROCESSOR, FakeBuilds, FakeWorker
from searches import PROBLEM, invented_time, search
from waiting import HANG_S, join, wait_for

TRIALS = 12


class Failing(FakeWorker):
    """Measures one, then fails once."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(invented_time)
        self.error = error
        self.failed: list[Job] = []

    def run(self, job: Job) -> Trial:
        if self.jobs:
            self.failed.append(job)
            raise self.error
        return super().run(job)


def _tuned(store: Store, own: FakeWorker, *others: FakeWorker) -> Outcome:
    helpers = Helpers()
    for other in others:
        assert helpers.join(other)
    outcome = search(store, own, TRIALS, algorithms=["microtile"], helpers=helpers)
    assert not helpers.join(FakeWorker(invented_time))
    return outcome


def _searched(store: Store) -> Counter[str]:
    stored = store.trials(INVENTED_PROCESSOR.slug, "gemm", PROBLEM)
    return Counter(str(s.trial.configuration) for s in stored if s.purpose == "search")


def _in_step(times: int) -> Callable[[], Callable[[Job], float]]:
    """Formulas that go on only when both measure at the same time, so many times."""
    barrier = threading.Barrier(2)

    def make() -> Callable[[Job], float]:
        left = iter(range(times))

        def work(job: Job) -> float:
            if next(left, None) is not None:
                barrier.wait(HANG_S)
            return invented_time(job)

        return work

    return make


def test_two_devices_measure_at_the_same_time_and_nothing_twice(store: Store) -> None:
    make = _in_step(4)
    first, together = iter([True]), make()
    own = FakeWorker(lambda job: invented_time(job) if next(first, False) else together(job))  # the default comes first
    other = FakeWorker(make())
    outcome = _tuned(store, own, other)
    assert outcome.winner is not None
    assert outcome.winner.is_final
    assert outcome.new_trials == TRIALS
    searched = _searched(store)
    assert max(searched.values()) == 1
    assert len(searched) == TRIALS + 1  # and the baseline
    assert len(other.jobs) >= 4
    stored = store.trial_counts(INVENTED_PROCESSOR.slug).total
    assert len(own.jobs) + len(other.jobs) == stored  # finals are its own
    assert store.in_flight() == [] == store.quarantined()
    assert other.is_closed


def test_trial_lost_with_a_helper_is_quarantined_and_the_search_continues(store: Store) -> None:
    other = Failing(WorkerLostError("gone"))
    outcome = _tuned(store, FakeWorker(invented_time), other)
    assert outcome.is_finished
    assert outcome.new_trials == TRIALS
    [lost] = store.quarantined()
    assert [lost.configuration] == [job.configuration for job in other.failed]
    assert outcome.winner is not None
    assert outcome.winner.configuration != lost.configuration
    assert str(lost.configuration) not in _searched(store)
    assert store.in_flight() == []
    assert other.is_closed


def test_trial_that_a_helper_cannot_measure_is_measured_by_another(store: Store) -> None:
    other = Failing(WorkerError("no such device"))
    outcome = _tuned(store, FakeWorker(invented_time), other)
    assert outcome.new_trials == TRIALS
    assert _searched(store)[str(other.failed[0].configuration)] == 1
    assert store.in_flight() == [] == store.quarantined()
    assert other.is_closed


def test_the_loss_of_the_own_device_ends_the_search_and_lets_the_helpers_go(store: Store) -> None:
    other = FakeWorker(invented_time)
    with pytest.raises(WorkerLostError):
        _tuned(store, Failing(WorkerLostError("gone")), other)
    assert other.is_closed
    assert store.in_flight() == []
    assert len(store.quarantined()) == 1


def test_recalled_helper_leaves_and_is_not_recalled_twice(store: Store) -> None:
    helpers, recalled = Helpers(), threading.Event()

    def after_the_recall(job: Job) -> float:
        assert recalled.wait(HANG_S)
        return invented_time(job)

    others = [FakeWorker(after_the_recall) for _ in range(2)]
    for other in others:
        helpers.join(other)

    def recalling(job: Job) -> float:
        if len(own.jobs) == 2:  # the default, on which the helpers wait, came first
            helpers.recall_one()
            helpers.recall_one()
            recalled.set()
            wait_for(lambda: any(other.is_closed for other in others))
        return invented_time(job)

    own = FakeWorker(recalling)
    left: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, FinalsStarted) or (isinstance(event, TrialFinished) and event.new_trials == TRIALS):
            left.append(sum(not other.is_closed for other in others))

    budget = Budget(trials=TRIALS)
    requests = [Request(problem=PROBLEM)]
    tune(INVENTED_PROCESSOR, requests, store, budget, watch, algorithms=["microtile"], worker=own, helpers=helpers)
    assert left == [1, 0]


def test_failure_found_by_a_helper_counts(store: Store) -> None:
    other = FakeWorker(lambda _: TrialState.WRONG_RESULT)
    outcome = _tuned(store, FakeWorker(invented_time), other)
    assert outcome.failures == {"wrong result": len(other.jobs)}
    assert outcome.winner is not None
    assert outcome.winner.configuration not in other.measured


class Assembled:
    """A pipeline of several devices without a search: it proposes all of a small space, in order."""

    def __init__(self, store: Store, own: FakeWorker, *others: FakeWorker, builds: FakeBuilds | None = None) -> None:
        knowledge = Knowledge(INVENTED_PROCESSOR, PROBLEM, store)
        self.helpers = Helpers()
        assert all(self.helpers.join(other) for other in others)
        self.pipeline = Pipeline(knowledge, own, helpers=self.helpers, builds=builds)
        space = knowledge.space(["naive"])
        self.configurations = space.configurations(list(range(len(space))))
        proposals = iter(self.configurations)
        self.pipeline.propose = lambda: next(proposals, None)

    def works(self, steps: int) -> list[Work]:
        return [work for _ in range(steps) for work in self.pipeline.step()]


def test_trial_that_a_helper_returned_outlasts_a_slice_and_not_the_model(store: Store) -> None:
    for is_abandoned in (False, True):
        other = Failing(WorkerError("no such device"))
        other.jobs.append(Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline))  # it fails at once
        own = FakeWorker(invented_time)
        assembled = Assembled(store, own, other)
        while not other.is_closed:
            assembled.works(1)
        assert all(work.place is assembled.pipeline.own for work in assembled.pipeline.drain())
        assert assembled.pipeline.is_at_work
        if is_abandoned:
            assembled.pipeline.abandon()
            assert not assembled.pipeline.is_at_work
        else:
            [again] = assembled.works(1)
            assert [again.configuration] == [job.configuration for job in other.failed] == own.measured[-1:]


def test_build_time_counts_for_all_devices(store: Store) -> None:
    other = FakeWorker(invented_time)
    assembled = Assembled(store, FakeWorker(invented_time), other, builds=FakeBuilds(2))
    works = [*assembled.works(4), *assembled.pipeline.drain()]
    assert {work.place is assembled.pipeline.own for work in works} == {True, False}
    assert {work.trial.measurement.build_ns for work in works if work.trial and work.trial.measurement} == {1e6}
    assert len(works) == len(store.trials(INVENTED_PROCESSOR.slug, "gemm"))


def test_stuck_helper_does_not_keep_the_program(store: Store) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def stuck(job: Job) -> float:
        begun.set()
        assert goes_on.wait(HANG_S)
        return invented_time(job)

    before = set(threading.enumerate())
    assembled = Assembled(store, FakeWorker(invented_time), FakeWorker(stuck))
    assert assembled.works(1)
    assert begun.wait(HANG_S)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2 and all(thread.daemon for thread in threads)
    goes_on.set()
    assert len(list(assembled.pipeline.drain())) == 1
    assembled.pipeline.close()
    for thread in threads:
        join(thread)


def test_twin_of_a_measured_configuration_is_not_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "program_of", lambda *_: b"all are the same")

    def twins() -> list[Trial]:
        trials = [stored.trial for stored in store.trials(INVENTED_PROCESSOR.slug, "gemm")]
        return [trial for trial in trials if trial.message.startswith("same as")]

    def wrong(_: Job) -> TrialState:  # knows of no time, and of nothing before the own device has measured
        wait_for(twins)
        return TrialState.WRONG_RESULT

    outcome = _tuned(store, FakeWorker(invented_time), FakeWorker(wrong))
    assert outcome.new_trials == TRIALS
    assert len(twins()) >= TRIALS - 4


def test_number_of_helpers_is_limited() -> None:
    helpers = Helpers()
    assert all(helpers.join(FakeWorker(invented_time)) for _ in range(MOST_HELPERS))
    assert not helpers.is_open
    assert not helpers.join(FakeWorker(invented_time))


def test_recalled_helper_leaves_nothing_behind(store: Store) -> None:
    before = set(threading.enumerate())
    assembled = Assembled(store, FakeWorker(invented_time), other := FakeWorker(invented_time))
    [own_thread] = set(threading.enumerate()) - before
    while not other.jobs:
        assembled.works(1)
    [thread] = set(threading.enumerate()) - before - {own_thread}
    assembled.helpers.recall_one()
    while not other.is_closed:
        assembled.works(1)
    join(thread)
