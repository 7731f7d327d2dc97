"""A device that changes its speed: the change is seen, told, and taken out of the times; and timers that change."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import searches
from autotune.kernels.gemm import FAMILY
from autotune.model.configuration import Configuration
from autotune.model.events import Outcome
from autotune.model.trial import Job, Provenance, Timer, Trial
from autotune.search import sentinel
from autotune.search.drift import Drift
from autotune.search.knowledge import Knowledge
from autotune.store import Store
from factories import INVENTED_GPU as DEVICE
from factories import Recorder, trial
from fakes import FakeWorker
from invented_clock import Clock

PROBLEM = searches.PROBLEM


def name(text: str) -> Configuration:
    return Configuration.of(text)


def took(configuration: str, time_ns: float, samples: tuple[float, ...] = ()) -> Trial:
    return trial(name(configuration), time_ns, samples_ns=samples or (time_ns,) * 5, prepare_ns=10.0)


class TestDrift:
    def test_a_device_that_keeps_its_speed_is_corrected_by_nothing(self) -> None:
        drift = Drift()
        trial = took("default", 1000.0)
        assert drift.corrected(trial) is trial
        assert drift.observe(took("default", 1040.0)) == []
        assert drift.slowdown == 1.0 and not drift.is_suspected

    def test_a_change_needs_a_second_run_and_is_interpolated(self) -> None:
        drift = Drift()
        drift.corrected(took("default", 1000.0))
        drift.observe(took("default", 1000.0))
        for number in range(3):
            drift.corrected(took(f"x{number}", 1200.0))
        assert drift.observe(took("default", 1400.0)) == []
        assert drift.is_suspected and drift.slowdown == 1.0
        revisions = drift.observe(took("default", 1400.0))
        assert drift.slowdown == pytest.approx(1.4)
        assert [r.trial.time_ns for r in revisions] == pytest.approx([1200 / 1.1, 1200 / 1.2, 1200 / 1.3])
        assert [r.fastest_ns for r in revisions] == pytest.approx([1200 / 1.4] * 3)
        later = drift.corrected(took("y", 1400.0))
        assert later.time_ns == pytest.approx(1000.0)
        assert later.measurement is not None
        assert later.measurement.samples_ns == pytest.approx([1000.0] * 5)
        assert later.measurement.prepare_ns == pytest.approx(10 / 1.4)

    def test_a_first_trial_that_was_disturbed_is_no_reference(self) -> None:
        drift = Drift()
        drift.corrected(took("default", 4000.0))
        for _ in range(2):
            assert drift.observe(took("default", 1000.0)) == []
        assert drift.slowdown == 1.0
        for _ in range(2):
            drift.observe(took("default", 1300.0))
        assert drift.slowdown == pytest.approx(1.3), "of what was seen undisturbed"

    @pytest.mark.parametrize(
        "samples_ns",
        [(1010.0, 1900.0, 2000.0, 2100.0, 2200.0), (1000.0, 1050.0, 1150.0, 1250.0, 1300.0)],
        ids=["other work has slowed some", "they scatter"],
    )
    def test_samples_of_which_some_are_slower_are_no_change(self, samples_ns: tuple[float, ...]) -> None:
        drift = Drift()
        drift.corrected(took("default", 1000.0))
        for _ in range(2):
            drift.observe(took("default", samples_ns[2], samples_ns))
        assert drift.slowdown == 1.0

    def test_one_slow_run_is_not_believed(self) -> None:
        drift = Drift()
        drift.corrected(took("default", 1000.0))
        drift.observe(took("default", 3000.0))
        assert drift.observe(took("default", 1010.0)) == []
        assert drift.slowdown == 1.0 and not drift.is_suspected

    def test_another_sentinel_takes_over_the_slowdown(self) -> None:
        drift = Drift()
        drift.corrected(took("default", 1000.0))
        for _ in range(2):
            drift.observe(took("default", 1500.0))
        drift.observe(took("best", 300.0))
        assert drift.sentinel == name("best") and drift.slowdown == pytest.approx(1.5)
        for _ in range(2):
            drift.observe(took("best", 200.0))
        assert drift.slowdown == pytest.approx(1.0), "as fast as at the start: its 300 ns were taken at 1.5"


def own_time(configuration: Configuration) -> float:
    """A time that hardly two configurations share."""
    return 1000.0 + hash_of(configuration) % 9000


def hash_of(configuration: Configuration) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(configuration.key[:400]))


def search(
    store: Store, clock: Clock, worker: FakeWorker, trials: int, *, is_sustained: bool = False
) -> tuple[Outcome, Recorder]:
    recorder = Recorder()
    outcome = searches.search(
        store, worker, trials, device=DEVICE, recorder=recorder, algorithms=["dot"], clock=clock,
        is_sustained=is_sustained,
    )  # fmt: skip
    return outcome, recorder


def slowing(factor: float, after_jobs: int) -> tuple[FakeWorker, Callable[[], set[Configuration]]]:
    """A device that is slower from some job on, and what it has measured."""
    worker = FakeWorker(lambda job: own_time(job.configuration) * (factor if len(worker.jobs) > after_jobs else 1.0))
    return worker, lambda: set(worker.measured)


@pytest.mark.long
@pytest.mark.parametrize("after_jobs", [33, 40, 47])
def test_a_device_that_slows_by_40_percent_half_way_still_gets_its_best(
    store: Store, clock: Clock, after_jobs: int
) -> None:
    worker, measured = slowing(1.4, after_jobs)
    outcome, recorder = search(store, clock, worker, trials=80)
    assert [slowdown for slowdown, _ in recorder.drifts] == pytest.approx([1.4])
    assert clock.slept == 0.0, "the search was too short for a rest"
    assert outcome.winner is not None
    best = min(map(own_time, measured()))
    assert own_time(outcome.winner.configuration) == best, "of which there may be two"
    assert recorder.bests[-1] == pytest.approx(best)
    sentinels = [s for s in store.trials(DEVICE.slug, "gemm", PROBLEM) if s.purpose == "sentinel"]
    assert 4 <= len(sentinels) <= 16, "every 20 trials, twice at a change, and once more for a new best"


def test_what_is_stored_is_corrected_alike_when_it_is_read_again(store: Store, clock: Clock) -> None:
    worker, _ = slowing(1.4, 33)
    search(store, clock, worker, trials=70)
    again = Knowledge(DEVICE, PROBLEM, store)
    assert again.drift.slowdown == pytest.approx(1.4)
    after = [t for t in again.ranking if t.configuration not in worker.measured[21:45]]
    assert len(after) > 40
    assert [t.time_ns for t in after] == pytest.approx([own_time(t.configuration) for t in after])


def test_a_search_that_goes_on_another_day_looks_first(store: Store, clock: Clock) -> None:
    search(store, clock, FakeWorker(lambda job: own_time(job.configuration)), trials=25)
    slower = FakeWorker(lambda job: 2 * own_time(job.configuration))
    _, recorder = search(store, clock, slower, trials=3)
    assert [slowdown for slowdown, _ in recorder.drifts] == pytest.approx([2.0])
    assert recorder.bests == sorted(recorder.bests, reverse=True)


def test_a_device_that_is_throttled_is_rested_while_that_helps(store: Store, clock: Clock) -> None:
    heat = 1.0

    def time_of(job: Job) -> float:
        nonlocal heat
        clock.now += 1.0
        heat = 1.0 if clock.slept > 3 else heat * 1.01
        return heat * own_time(job.configuration)

    _, recorder = search(store, clock, FakeWorker(time_of), trials=60)
    rests = [drift for drift in recorder.drifts if drift[1] > 0]
    assert rests and rests[0][0] > 1.1
    assert clock.slept == pytest.approx(sum(rest_s for _, rest_s in rests), rel=0.05)
    assert recorder.drifts[-1][0] == pytest.approx(1.0), "told that it is as fast as before again"


def test_rests_end_where_they_do_not_help(store: Store, clock: Clock) -> None:
    def time_of(job: Job) -> float:
        clock.now += 1.0
        return own_time(job.configuration) * (1.4 if len(worker.jobs) > 30 else 1.0)

    worker = FakeWorker(time_of)
    search(store, clock, worker, trials=62)
    assert 0 < clock.slept <= sentinel.REST_S


def test_sustained_times_are_those_of_a_device_that_is_hot_and_gets_no_rests(store: Store, clock: Clock) -> None:
    heat = 1.0

    def time_of(job: Job) -> float:
        nonlocal heat
        clock.now += 2.0
        heat = min(1.5, heat + 0.05)  # the clock that it can hold
        return heat * own_time(job.configuration)

    worker = FakeWorker(time_of)
    outcome, recorder = search(store, clock, worker, trials=40, is_sustained=True)
    searched = [s.trial for s in store.trials(DEVICE.slug, "gemm", PROBLEM) if s.purpose == "search"]
    assert clock.slept == 0.0
    assert recorder.drifts[0][0] == pytest.approx(1.5 / 1.05, rel=0.05), "heated before the second trial"
    assert [t.time_ns for t in searched[1:]] == pytest.approx([1.5 * own_time(t.configuration) for t in searched[1:]])
    assert outcome.winner
    assert outcome.winner.time_ns == pytest.approx(1.5 * own_time(outcome.winner.configuration))


def test_heating_ends_when_a_device_never_holds_its_speed(store: Store, clock: Clock) -> None:
    times = iter(range(10**6))

    def time_of(job: Job) -> float:
        clock.now += 10.0
        return own_time(job.configuration) * (1.0 + 0.2 * (next(times) % 2))

    search(store, clock, FakeWorker(time_of), trials=1, is_sustained=True)
    heated = [s for s in store.trials(DEVICE.slug, "gemm", PROBLEM) if s.purpose == "sentinel"]
    assert len(heated) * 10.0 <= 2 * (sentinel.HEAT_S + 10.0)


def test_the_sentinel_takes_a_small_share_of_the_time(store: Store, clock: Clock) -> None:
    """Its runs take 10 s each here, those of others 1 s."""

    def time_of(job: Job) -> float:
        clock.now += 1.0 if job.verify else 10.0
        return own_time(job.configuration)

    search(store, clock, FakeWorker(time_of), trials=85)
    stored = store.trials(DEVICE.slug, "gemm", PROBLEM)
    runs = sum(s.purpose == "sentinel" for s in stored)
    assert 1 <= runs <= 2


class Flipping(FakeWorker):
    """A device whose events are found wrong after some jobs; by the host's clock all takes 500 ns longer."""

    def __init__(self, after_jobs: int) -> None:
        super().__init__(lambda job: own_time(job.configuration))
        self._after_jobs = after_jobs
        self.asked: list[Timer] = []

    def run(self, job: Job) -> Trial:
        self.asked.append(job.timer)
        if len(self.jobs) < self._after_jobs and job.timer is Timer.EVENT:
            return super().run(job)
        trial = super().run(replace(job, timer=Timer.HOST))
        assert trial.measurement is not None
        by_host = replace(trial.measurement, time_ns=trial.time_ns + 500.0)
        return replace(trial, measurement=by_host)


def test_times_by_events_and_by_the_host_are_never_compared(store: Store, clock: Clock) -> None:
    worker = Flipping(after_jobs=15)
    outcome, _ = search(store, clock, worker, trials=40)
    before, after = worker.jobs[:15], worker.jobs[15:]
    fastest_before = min((job.configuration for job in before), key=own_time)
    assert worker.asked[:16] == [Timer.EVENT] * 16
    assert set(worker.asked[16:]) == {Timer.HOST}, "once is enough, whoever measures from then on"
    by_host = {job.configuration for job in after}
    assert {Knowledge(DEVICE, PROBLEM, store).default, fastest_before} <= by_host
    assert outcome.winner is not None
    assert outcome.winner.configuration == min(by_host, key=own_time)
    again = Knowledge(DEVICE, PROBLEM, store)
    assert again.timer is Timer.HOST
    assert {t.measurement.timer for t in again.ranking if t.measurement} == {Timer.HOST}


def test_events_found_wrong_once_are_not_believed_again_whatever_was_stored_last(store: Store) -> None:
    store.add_device(DEVICE)
    knowledge = Knowledge(DEVICE, PROBLEM, store)
    now = knowledge.provenance(FAMILY.baseline)

    def stored_by(timer: Timer, provenance: Provenance) -> Timer:
        store.add_trial(DEVICE, PROBLEM, trial(FAMILY.baseline, 1.0, timer=timer), provenance)
        return Knowledge(DEVICE, PROBLEM, store).timer

    assert stored_by(Timer.EVENT, now) is Timer.EVENT
    assert stored_by(Timer.HOST, replace(now, driver="another driver")) is Timer.EVENT
    assert stored_by(Timer.HOST, replace(now, template_hash="of before")) is Timer.HOST, "events are the driver's"
    assert stored_by(Timer.EVENT, now) is Timer.HOST, "a late one, of a helper"


def test_on_a_shared_device_a_correction_makes_no_best_of_what_was_not_measured_fastest() -> None:
    shared, own = Drift(is_shared=True), Drift()
    for drift in (shared, own):
        drift.corrected(took("default", 100.0))
        drift.observe(took("default", 100.0))
        drift.observe(took("default", 200.0))
        drift.observe(took("default", 200.0))
        assert drift.slowdown == pytest.approx(2.0)
    assert own.corrected(took("second", 120.0)).time_ns == pytest.approx(60.0)
    assert shared.corrected(took("second", 120.0)).time_ns == pytest.approx(100.0)
    assert shared.corrected(took("third", 300.0)).time_ns == pytest.approx(150.0)
    assert shared.corrected(took("fourth", 90.0)).time_ns == pytest.approx(90.0), "measured fastest"
