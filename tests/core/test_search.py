"""The search with an invented device: budgets, resume, finals, failures, stopping."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import factories
from autotune.errors import ConfigurationError, ProblemError, WorkerError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Request, Trial, TrialState, Verdict
from autotune.search import Budget, task, tune
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from factories import Recorder
from fakes import FakeWorker
from invented_clock import Clock
from searches import DEFAULT, DEVICE, PROBLEM, invented_time, search, won


def test_the_default_is_measured_first_and_nothing_twice(store: Store) -> None:
    worker = FakeWorker(invented_time)
    outcome = search(store, worker, trials=25)
    searched = [job.configuration for job in worker.jobs if job.verify][:25]
    assert searched[0] == DEFAULT
    assert len(set(searched)) == 25
    assert outcome.new_trials == 25
    assert outcome.is_finished
    assert worker.is_closed
    assert all(not FAMILY.violations(PROBLEM, c, DEVICE.limits) for c in searched)


def test_the_winner_beats_the_default_and_carries_its_gain(store: Store) -> None:
    winner = won(search(store, FakeWorker(invented_time), trials=30))
    assert winner.gain_low > 1.0
    assert winner.gain_over_default is not None and winner.gain_low <= winner.gain_over_default <= winner.gain_high
    assert winner.is_final and not winner.is_default and winner.verdict is Verdict.FASTER
    assert winner.gain_over_baseline is not None and winner.gain_over_baseline > winner.gain_over_default
    assert store.best(DEVICE.slug) == [winner]
    assert winner.provenance.driver == "1.0"


def test_time_that_trials_wait_for_another_program_does_not_count(store: Store, clock: Clock) -> None:
    class Waiting(FakeWorker):
        """Its third trial waits for the device far longer than the budget."""

        waited_s = 0.0

        def run(self, job: Job) -> Trial:
            if len(self.jobs) == 2:
                self.waited_s = 1000.0
                clock.sleep(1000.0)
            return super().run(job)

    worker = Waiting(invented_time)
    outcome = search(store, worker, trials=6, seconds=100.0, clock=clock)
    assert outcome.new_trials == 6
    limits_s = [job.run_limit_s for job in worker.jobs[3:] if job.verify and not job.is_cut_off]
    assert max(limits_s) < 100.0, "and what is usual follows from the trials' own time"


@pytest.mark.parametrize("failure", [TrialState.LAUNCH_FAILED, TrialState.WRONG_RESULT])
def test_the_new_process_after_a_failure_does_not_end_a_search_early(
    store: Store, clock: Clock, failure: TrialState
) -> None:
    jobs, fresh = itertools.count(1), [True]

    def measured(job: Job) -> float | TrialState:
        clock.now += 3.1 if fresh[0] else 0.1
        fresh[0] = next(jobs) == 3
        return failure if fresh[0] else invented_time(job)

    class Telling(FakeWorker):
        def run(self, job: Job) -> Trial:
            is_first, trial = fresh[0], super().run(job)
            told = replace(trial.measurement, is_first=is_first) if trial.measurement else None
            return replace(trial, measurement=told)

    began, recorder = clock.now, Recorder()
    search(store, Telling(measured), None, seconds=12.0, clock=clock, recorder=recorder)
    assert [t.state for t in recorder.trials].count(failure) == 1
    assert len(recorder.trials) >= 9, "finals take as long as trials in a process that runs already"
    assert clock.now < began + 12.0


def test_the_baseline_is_waited_for_no_longer_than_time_allows(store: Store) -> None:
    def cut_off(job: Job) -> float | TrialState:
        return TrialState.TOO_SLOW if job.is_cut_off else invented_time(job)

    for seconds, limit_s in ((3.0, 1.0), (None, 20.0)):
        worker, problem = FakeWorker(cut_off), GemmProblem(m=96, n=96, k=96 + int(limit_s))
        winner = won(search(store, worker, 5, problem, seconds=seconds))
        [job] = [job for job in worker.jobs if job.is_cut_off]
        assert (job.configuration, job.run_limit_s) == (FAMILY.baseline, limit_s)
        assert 4 * job.FAR_TOO_SLOW * job.give_up_above_ns == pytest.approx(limit_s * 1e9), "four calls within it"
        assert winner.baseline_ns is None
    assert store.quarantined() == [], "it is not suspect"


def test_a_tie_goes_to_the_default(store: Store) -> None:
    noise = itertools.cycle([1.0, 1.002, 0.998, 1.001, 0.999])
    worker = FakeWorker(lambda job: 1000.0 * next(noise) if job.configuration != DEFAULT else 1000.5 * next(noise))
    winner = won(search(store, worker, trials=15))
    assert winner.configuration == DEFAULT
    assert winner.is_default and winner.verdict is Verdict.TIE
    assert (winner.gain_low, winner.gain_high) == (1.0, 1.0)
    assert winner.gain_over_default == 1.0


def test_resuming_continues_from_the_stored_trials(store: Store) -> None:
    first = FakeWorker(invented_time)
    search(store, first, trials=10)
    second = FakeWorker(invented_time)
    outcome = search(store, second, trials=10)
    assert outcome.resumed_trials >= 10
    assert outcome.new_trials == 10
    assert not set(first.measured[:10]) & set(second.measured[:10])


def test_another_driver_starts_again_with_the_best_known(store: Store) -> None:
    before = won(search(store, FakeWorker(invented_time), trials=20))
    worker = FakeWorker(invented_time)
    recorder = Recorder()
    search(store, worker, trials=5, device=replace(DEVICE, driver="2.0"), recorder=recorder)
    assert recorder.started == [(PROBLEM.label, 1, 1, 0)]
    assert before.configuration in worker.measured[:3]


def test_failures_are_kept_and_never_win(store: Store) -> None:
    states = itertools.cycle(state for state in TrialState if state is not TrialState.COMPLETE)

    def outcome_of(job: Job) -> float | TrialState:
        return next(states) if job.configuration.algorithm == "microtile" and job.configuration != DEFAULT else 500.0

    outcome = search(store, FakeWorker(outcome_of), trials=30)
    assert sum(outcome.failures.values()) > 2  # few: the sampler learns to stay away
    assert set(outcome.failures) <= {state.value for state in TrialState} - {"complete"}
    assert outcome.winner is not None and outcome.winner.configuration == DEFAULT
    stored = store.trials(DEVICE.slug, "gemm", PROBLEM)
    assert {t.trial.state.value for t in stored} >= set(outcome.failures)


def test_a_database_with_an_algorithm_that_is_gone_can_be_searched_with(store: Store) -> None:
    """As after an algorithm was removed or renamed: its trials and winners are out of date, no more."""
    near = GemmProblem(m=96, n=96, k=104)
    first = FakeWorker(invented_time)
    for problem in (PROBLEM, near):
        search(store, first, 4, problem)
        [winner] = [w for w in store.best(DEVICE.slug) if w.problem == problem]
        for number in range(10):
            gone = Configuration.of("gone", micro_tile_m=number)
            store.add_trial(DEVICE, problem, replace(stored_trial(store), configuration=gone), winner.provenance)
        store.record_winner(replace(winner, configuration=gone, time_ns=1.0))
    worker = FakeWorker(invented_time)
    outcome = search(store, worker, trials=6)
    assert outcome.winner is not None and outcome.winner.configuration.algorithm != "gone"
    assert outcome.resumed_trials >= 4, "the others still count"
    assert "gone" not in {c.algorithm for c in worker.measured}


@pytest.mark.parametrize("time_here", [1.0, 1e9])
def test_finals_here_decide_over_an_imported_time(store: Store, time_here: float) -> None:
    made = won(search(store, FakeWorker(invented_time), trials=20))
    imported = replace(made, time_ns=made.time_ns / 100, provenance=factories.provenance("elsewhere"))
    with Store.open(Path(store.location).with_name("imported.sqlite")) as other:
        assert other.import_winners([imported], [DEVICE]) == (1, 0)
        worker = FakeWorker(lambda job: time_here if job.configuration == made.configuration else invented_time(job))
        winner = won(search(other, worker, trials=20))
        assert made.configuration in worker.measured
        assert (winner.configuration == made.configuration) == (time_here == 1.0)
        assert other.best() == [winner] and winner.source == "measured"
        assert other.import_winners([imported], [DEVICE]) == (0, 1)


def stored_trial(store: Store) -> Trial:
    return store.trials(DEVICE.slug, "gemm", PROBLEM)[0].trial


def test_a_finalist_that_fails_once_is_out(store: Store) -> None:
    seen: dict[Configuration, int] = {}

    def outcome_of(job: Job) -> float | TrialState:
        seen[job.configuration] = seen.get(job.configuration, 0) + 1
        is_fickle = job.configuration != DEFAULT
        return TrialState.WRONG_RESULT if is_fickle and seen[job.configuration] == 3 else invented_time(job)

    winner = won(search(store, FakeWorker(outcome_of), trials=20))
    assert winner.configuration == DEFAULT, "all others were wrong in one of the rounds"
    again = won(search(store, FakeWorker(invented_time), trials=3))
    wrong = {c for c, times in seen.items() if times >= 3 and c != DEFAULT}
    assert wrong and again.configuration not in wrong, "what was ever wrong does not count later either"


def test_without_any_sound_configuration_there_is_no_winner(store: Store) -> None:
    outcome = search(store, FakeWorker(lambda _: TrialState.COMPILE_FAILED), trials=6)
    assert outcome.winner is None
    assert outcome.failures == {"compile failed": 6}
    assert store.best(DEVICE.slug) == []


def test_a_failing_default_does_not_hide_the_others(store: Store) -> None:
    worker = FakeWorker(lambda job: TrialState.CRASHED if job.configuration == DEFAULT else invented_time(job))
    winner = won(search(store, worker, trials=12))
    assert winner.configuration != DEFAULT and winner.verdict is Verdict.DEFAULT_FAILED
    assert winner.gain_over_default == 1.0


def test_stopping_keeps_everything_and_names_the_best_so_far(store: Store) -> None:
    worker = FakeWorker(invented_time)
    outcome = search(store, worker, trials=100, should_stop=lambda: len(worker.jobs) >= 9)
    assert not outcome.is_finished
    assert outcome.new_trials == 9
    assert outcome.winner is not None and not outcome.winner.is_final
    assert len(store.trials(DEVICE.slug, "gemm", PROBLEM)) == 9
    assert store.best(DEVICE.slug) == [outcome.winner]


def test_stopping_ends_the_run_before_the_next_problem(store: Store) -> None:
    worker = FakeWorker(invented_time)
    requests = [Request(problem=GemmProblem(m=size, n=64, k=64)) for size in (64, 128, 256)]
    outcomes = tune(
        DEVICE, requests, store, Budget(trials=8), worker=worker, should_stop=lambda: len(worker.jobs) >= 14
    )
    assert len(outcomes) < 3


def test_time_budget_ends_the_search(store: Store, clock: Clock) -> None:
    def measured(job: Job) -> float:
        clock.now += 0.5
        return invented_time(job)

    began = clock.now
    outcome = search(store, FakeWorker(measured), None, seconds=60.0, clock=clock)
    assert 20 < outcome.new_trials < 120
    assert outcome.is_finished and clock.now < began + 66.0


def test_a_small_space_ends_the_search_before_the_budget(store: Store) -> None:
    outcome = search(store, FakeWorker(invented_time), trials=10_000, algorithms=["naive"])
    assert 20 < outcome.new_trials < 100
    assert outcome.winner is not None


def test_only_chosen_algorithms_are_searched_beside_the_default(store: Store) -> None:
    worker = FakeWorker(invented_time)
    search(store, worker, trials=10, algorithms=["dot"])
    assert {c.algorithm for c in worker.measured[1:10]} == {"dot"}
    assert worker.measured[0] == DEFAULT


def test_winners_of_near_problems_are_tried_early(store: Store) -> None:
    first = won(search(store, FakeWorker(invented_time), trials=25))
    worker = FakeWorker(invented_time)
    search(store, worker, 4, GemmProblem(m=96, n=96, k=128))
    assert first.configuration in worker.measured[:2]


def test_wrong_requests_are_refused_before_anything_is_measured(store: Store) -> None:
    worker = FakeWorker(invented_time)
    fine, huge, narrow, wide = (
        Request(problem=GemmProblem.parse(shape)) for shape in ("96,96,96", "20000,20000,20", "1,33,17", "65,33,17")
    )
    with pytest.raises(ProblemError, match="allocates at most"):
        tune(DEVICE, [fine, huge], store, Budget(trials=1), worker=worker)
    with pytest.raises(ConfigurationError, match="no algorithm 'magic'"):
        search(store, worker, algorithms=["magic"])
    for requests in ([wide], [narrow, wide]):
        with pytest.raises(ProblemError, match="row: no valid configuration for 65x33x17"):
            tune(DEVICE, requests, store, Budget(trials=1), worker=worker, algorithms=["row"])
    assert worker.jobs == []


def test_the_space_of_one_problem_is_made_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*args: Any, **options: Any) -> SearchSpace:
        made.append(args)
        return SearchSpace(*args, **options)

    monkeypatch.setattr(task, "SearchSpace", make)
    search(store, FakeWorker(invented_time), algorithms=["microtile"])
    assert len(made) == 1


def test_a_device_that_cannot_be_used_ends_the_run_and_the_worker(store: Store) -> None:
    class Broken(FakeWorker):
        def run(self, job: Job) -> Trial:
            raise WorkerError("gone")

    worker = Broken(invented_time)
    with pytest.raises(WorkerError):
        search(store, worker)
    assert worker.is_closed
