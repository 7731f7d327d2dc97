"""Trials in flight and the quarantine: what is held, what it becomes, who may take it, and what is then not run."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.cli import main
from autotune.errors import StoreError, WorkerError, WorkerLostError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import provenance_now
from autotune.model.checkup import Checkup
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import BUILD_LIMIT_S, Job, Trial, TrialState
from autotune.search import budget
from autotune.search import knowledge as knowledge_module
from autotune.search.budget import TimeLimits
from autotune.search.knowledge import Knowledge
from autotune.search.one_problem import ProblemSearch
from autotune.store import Fate, Owner, Quarantined, Store, failures, models, new_owner
from autotune.store.owner import fate
from databases import change
from factories import provenance
from fakes import FakeWorker
from searches import DEFAULT, DEVICE, PROBLEM, invented_time, search, won
from waiting import HANG_S, in_threads

OTHER = FAMILY.baseline
PROVENANCE = provenance()
LONG_AGO, NOT_LONG_AGO = "2025-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def dead_owner() -> Owner:
    """The number of a process that runs, which has another start: it was used again."""
    return dataclasses.replace(new_owner(), process_start="another boot 1")


def lose(store: Store, configuration: Configuration, problem: GemmProblem = PROBLEM, device: Device = DEVICE) -> None:
    store.begin_trial(device, problem, configuration, dead_owner())
    assert [q.configuration for q in store.quarantine_lost()] == [configuration]


def held(store: Store) -> list[Configuration]:
    return [q.configuration for q in store.quarantined()]


@pytest.fixture
def any_store(place: str) -> Iterator[Store]:
    """For what hangs on the kind of database."""
    with Store.open(place) as opened:
        yield opened


# In flight


def test_a_trial_is_in_flight_on_the_disk_while_it_is_measured_and_not_after(any_store: Store, place: str) -> None:
    seen: list[tuple[Configuration, list[Configuration]]] = []

    def look(job: Job) -> float:
        with Store.open(place, read_only=True) as reader:
            flights = reader.in_flight(DEVICE.slug, DEVICE.driver)
        assert [flight.fate for flight in flights] == [Fate.ALIVE]
        seen.append((job.configuration, [flight.configuration for flight in flights]))
        return invented_time(job)

    search(any_store, FakeWorker(look), trials=4)
    assert len(seen) > 4, "the finals count too"
    assert all(flights == [configuration] for configuration, flights in seen)
    assert any_store.in_flight() == [] and held(any_store) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), WorkerError("gone"), RuntimeError("a mistake")])
def test_a_run_that_ends_in_order_leaves_nothing_in_flight_and_blames_nothing(
    store: Store, error: BaseException
) -> None:
    def interrupted(job: Job) -> float:
        raise error

    with pytest.raises(type(error)):
        search(store, FakeWorker(interrupted))
    assert store.in_flight() == [] and store.quarantine_lost() == [] and held(store) == []


def test_a_trial_that_cannot_be_stored_is_named_and_ends_the_run(
    any_store: Store, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PATIENCE_S", 0.2)
    measured: list[Configuration] = []

    def spoil(job: Job) -> float:
        measured.append(job.configuration)
        if len(measured) == 4:
            change(place, "ALTER TABLE trials RENAME TO spoilt")
        return invented_time(job)

    with pytest.raises(StoreError, match=r"trials.*; this trial was not stored: .*complete, \d+ ns") as caught:
        search(any_store, FakeWorker(spoil))
    assert str(measured[3]) in str(caught.value)
    change(place, "ALTER TABLE spoilt RENAME TO trials")
    assert [s.trial.configuration for s in any_store.trials(DEVICE.slug, "gemm")] == measured[:3]
    assert any_store.in_flight() == []


KILLED = """
import signal, sys
sys.path.insert(0, sys.argv[2])
from core.test_quarantine import FakeWorker, Store, invented_time, search
seen = []
def outcome(job):
    seen.append(job.configuration)
    print(job.configuration.key, flush=True)
    if len(seen) == int(sys.argv[3]):
        signal.pause()
    return invented_time(job)
with Store.open(sys.argv[1]) as store:
    search(store, FakeWorker(outcome))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("at", [1, 5])
def test_what_was_in_flight_when_the_run_was_killed_is_quarantined_and_nothing_else(place: str, at: int) -> None:
    command = [sys.executable, "-c", KILLED, place, str(Path(__file__).parents[1]), str(at)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    keys = [process.stdout.readline().strip() for _ in range(at)]
    with Store.open(place) as store:
        assert [flight.fate for flight in store.in_flight()] == [Fate.ALIVE]
        assert store.quarantine_lost() == [], "it is another's, and runs"
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not buried yet: its number is still taken
        lost = store.quarantine_lost()
        process.wait()
        assert [(q.configuration.key, q.reason) for q in lost] == [(keys[-1], "lost")]
        assert f"process {process.pid}" in lost[0].message
        assert len(store.trials(DEVICE.slug, "gemm")) == at - 1
        worker = FakeWorker(invented_time)
        winner = search(store, worker).winner
        assert winner is not None and winner.is_final
        assert keys[-1] not in {c.key for c in worker.measured}
        assert [c.key for c in held(store)] == [keys[-1]]
        process.stdout.close()


# Owners


def test_the_fate_of_owners() -> None:
    mine = new_owner()
    assert fate(mine, LONG_AGO) is Fate.ALIVE
    assert fate(dead_owner(), NOT_LONG_AGO) is Fate.GONE
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        theirs = dataclasses.replace(mine, process_id=process.pid)
        assert fate(dataclasses.replace(theirs, process_start=""), LONG_AGO) is Fate.ALIVE, "its start was not told"
        assert fate(theirs, LONG_AGO) is Fate.GONE, "another process of that number"
        assert process.stdin
        process.stdin.close()
    assert fate(dataclasses.replace(theirs, process_start=""), LONG_AGO) is Fate.GONE
    elsewhere = dataclasses.replace(mine, host="elsewhere")
    assert fate(elsewhere, LONG_AGO) is Fate.GONE
    assert fate(elsewhere, NOT_LONG_AGO) is Fate.UNKNOWN


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_owners_that_an_earlier_version_stored_are_still_known() -> None:
    """It stored the boot, and the start of the process in ticks since then."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    earlier = dataclasses.replace(new_owner(), process_start=f"{boot} {started}")
    assert fate(earlier, LONG_AGO) is Fate.ALIVE and earlier == dataclasses.replace(new_owner(), run=earlier.run)
    other = dataclasses.replace(earlier, process_start=f"{boot} {int(started) + 1}")
    assert fate(other, LONG_AGO) is Fate.GONE


@pytest.mark.parametrize(
    ("error", "kill", "expected"),
    [
        (psutil.ZombieProcess(1), None, Fate.GONE),
        (psutil.NoSuchProcess(1), ProcessLookupError(), Fate.GONE),
        (psutil.NoSuchProcess(1), PermissionError(), Fate.ALIVE),
        (psutil.AccessDenied(1), None, Fate.ALIVE),
    ],
)
def test_processes_of_other_users_are_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, error: psutil.Error, kill: OSError | None, expected: Fate
) -> None:
    mine = new_owner()

    def fails(*_: object) -> None:
        if kill:
            raise kill

    def process(process_id: int) -> psutil.Process:
        raise error

    monkeypatch.setattr(psutil, "Process", process)
    monkeypatch.setattr(os, "kill", fails)
    assert fate(mine, LONG_AGO) is expected


def test_what_is_in_flight_on_another_machine_is_left_alone_and_quarantined_in_the_end(
    any_store: Store, place: str
) -> None:
    any_store.begin_trial(DEVICE, PROBLEM, DEFAULT, dataclasses.replace(new_owner(), host="elsewhere"))
    worker = FakeWorker(invented_time)
    assert search(any_store, worker).winner is not None
    assert DEFAULT not in worker.measured
    assert held(any_store) == []
    change(place, f"UPDATE in_flight SET since = '{LONG_AGO}'")
    assert [q.configuration for q in any_store.quarantine_lost()] == [DEFAULT]
    assert any_store.in_flight() == []


def test_two_tuners_on_one_database_leave_each_others_trials_alone(place: str) -> None:
    Store.open(place).close()
    measured: list[Configuration] = []
    together = threading.Barrier(2)

    def one() -> None:
        def meet(job: Job) -> float:
            if len(worker.jobs) == 1:
                together.wait(HANG_S)
            return invented_time(job)

        worker = FakeWorker(meet)
        with Store.open(place) as store:
            search(store, worker, trials=12)
        measured.extend(worker.measured)

    in_threads(one, one)
    with Store.open(place) as store:
        assert held(store) == [] and store.in_flight() == []
        assert len(store.trials(DEVICE.slug, "gemm")) == len(measured) > 24


def test_a_trial_that_ends_after_all_takes_its_configuration_out_of_quarantine(any_store: Store) -> None:
    owner = dead_owner()
    any_store.begin_trial(DEVICE, PROBLEM, DEFAULT, owner)
    any_store.quarantine_lost()
    assert held(any_store) == [DEFAULT]
    ended = Trial(configuration=DEFAULT, state=TrialState.INVALID)
    any_store.add_trial(DEVICE, PROBLEM, ended, PROVENANCE, owner=owner)
    assert held(any_store) == []


def test_one_transaction_ends_a_trial_and_begins_the_next(store: Store) -> None:
    owner = new_owner()
    others = [dataclasses.replace(DEFAULT, algorithm=name) for name in ("a", "b")]

    def flying() -> list[Configuration]:
        return [flight.configuration for flight in store.in_flight()]

    store.begin_trial(DEVICE, PROBLEM, DEFAULT, owner)
    trial = Trial(configuration=DEFAULT, state=TrialState.INVALID)
    store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE, owner=owner, next_in_flight=others[0])
    assert flying() == [others[0]]
    store.begin_trial(DEVICE, PROBLEM, others[1], owner, ended=[others[0]])
    assert flying() == [others[1]]


# What is not run


@pytest.mark.parametrize("state", [TrialState.CRASHED, TrialState.TIMED_OUT])
def test_what_crashed_or_hung_is_not_run_again_even_after_its_template_changed(store: Store, state: TrialState) -> None:
    store.add_trial(DEVICE, PROBLEM, Trial(configuration=DEFAULT, state=state, message="as told"), PROVENANCE)
    entry = store.quarantined(DEVICE.slug, DEVICE.driver)[0]
    assert (entry.configuration, entry.reason, entry.message) == (DEFAULT, state.value, "as told")
    worker = FakeWorker(invented_time)
    outcome = search(store, worker)
    assert outcome.winner is not None and outcome.new_trials == 12
    assert DEFAULT not in worker.measured


def test_a_late_result_that_arrives_while_a_search_begins_is_not_measured_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_trial(DEVICE, PROBLEM, Trial(configuration=DEFAULT, state=TrialState.TIMED_OUT), PROVENANCE)
    quarantined, worker = store.quarantined, FakeWorker(invented_time)
    late = worker.run(Job(selector=DEVICE.selector, problem=PROBLEM, configuration=DEFAULT))
    monkeypatch.setattr(store, "trials", lambda *_, **__: [])  # those before it arrived

    def arrive(*arguments: str) -> list[Quarantined]:
        store.add_trial(DEVICE, PROBLEM, late, provenance_now(DEVICE, FAMILY, DEFAULT))  # ends the quarantine
        monkeypatch.undo()
        return quarantined(*arguments)

    monkeypatch.setattr(store, "quarantined", arrive)
    knowledge = Knowledge(DEVICE, PROBLEM, store)
    assert DEFAULT in knowledge.known or DEFAULT in knowledge.quarantine


@pytest.mark.parametrize("state", [TrialState.WRONG_RESULT, TrialState.COMPILE_FAILED, TrialState.LAUNCH_FAILED])
def test_what_failed_without_harm_is_not_quarantined(any_store: Store, state: TrialState) -> None:
    any_store.add_trial(DEVICE, PROBLEM, Trial(configuration=DEFAULT, state=state), PROVENANCE)
    assert held(any_store) == []


def test_neither_default_nor_baseline_nor_best_nor_proposals_are_run_when_quarantined(store: Store) -> None:
    first = won(search(store, FakeWorker(invented_time), trials=15))
    for configuration in (DEFAULT, FAMILY.baseline, first.configuration):
        lose(store, configuration)
    worker = FakeWorker(invented_time)
    again = search(store, worker, trials=5)
    assert again.winner is not None and again.winner.is_final
    assert again.winner.configuration != first.configuration
    assert not {DEFAULT, FAMILY.baseline, first.configuration} & set(worker.measured)


def test_a_small_space_is_searched_but_for_what_is_quarantined(store: Store) -> None:
    everything = FakeWorker(invented_time)
    search(store, everything, trials=1000, algorithms=["naive"])
    victim = next(c for c in everything.measured if c not in (DEFAULT, FAMILY.baseline))
    problem = GemmProblem(m=80, n=96, k=96)
    lose(store, victim, problem)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=1000, problem=problem, algorithms=["naive"])
    assert len(set(worker.measured)) > 20
    assert victim not in worker.measured


def test_what_was_lost_at_one_problem_is_run_at_others_and_what_was_lost_at_two_nowhere(store: Store) -> None:
    first, second, third, known = (GemmProblem(m=64, n=64, k=size) for size in (64, 65, 66, 67))
    search(store, FakeWorker(invented_time), trials=2, problem=known)
    lose(store, DEFAULT, first)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=2, problem=second)
    assert DEFAULT in worker.measured
    lose(store, DEFAULT, second)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=2, problem=third)
    assert DEFAULT not in worker.measured
    worker = FakeWorker(invented_time)
    search(store, worker, trials=2, problem=known)
    assert DEFAULT in worker.measured, "it was right there"


def test_what_was_slow_at_other_sizes_is_run(store: Store) -> None:
    for size in (64, 65):
        slow = Trial(configuration=DEFAULT, state=TrialState.TIMED_OUT)
        store.add_trial(DEVICE, GemmProblem(m=64, n=64, k=size), slow, PROVENANCE)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=2)
    assert worker.measured[0] == DEFAULT


def test_the_quarantine_holds_for_one_device_and_driver(store: Store) -> None:
    lose(store, DEFAULT, device=dataclasses.replace(DEVICE, driver="0.9"))
    lose(store, DEFAULT, device=dataclasses.replace(DEVICE, slug="another"))
    worker = FakeWorker(invented_time)
    search(store, worker)
    assert DEFAULT in worker.measured
    assert len(held(store)) == 2


def test_a_run_that_retries_begins_with_the_quarantined_and_keeps_what_fails_again(store: Store) -> None:
    fine, evil = DEFAULT, OTHER
    worker = FakeWorker(lambda job: TrialState.CRASHED if job.configuration == evil else invented_time(job))
    lose(store, fine)
    store.add_trial(DEVICE, PROBLEM, Trial(configuration=evil, state=TrialState.CRASHED), PROVENANCE)
    search(store, worker, retries_quarantined=True)
    assert set(worker.measured[:2]) == {fine, evil}
    assert worker.measured.count(evil) == 1
    assert held(store) == [evil]
    again = FakeWorker(invented_time)
    winner = search(store, again, retries_quarantined=True).winner
    assert again.measured[0] == evil
    assert held(store) == []
    assert winner is not None and winner.baseline_ns is not None, "the baseline is sound again"
    assert search(store, FakeWorker(invented_time), trials=1).failures == {}


def test_a_snapshot_takes_the_quarantine_along_and_nothing_in_flight(any_store: Store, tmp_path: Path) -> None:
    lose(any_store, DEFAULT)
    lose(any_store, DEFAULT, device=dataclasses.replace(DEVICE, slug="another"))
    any_store.begin_trial(DEVICE, PROBLEM, OTHER, new_owner())
    for slug, expected in ((None, 2), (DEVICE.slug, 1)):
        copy = tmp_path / f"{slug}.sqlite"
        any_store.snapshot(copy, slug)
        with Store.open(copy) as other:
            assert len(other.quarantined()) == expected
            assert other.in_flight() == []
    assert len(any_store.in_flight()) == 1


def test_rows_of_a_family_that_is_not_installed_are_left_out_with_one_note(
    any_store: Store, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = GemmProblem(m=32, n=32, k=32)
    for problem in (PROBLEM, theirs):
        search(any_store, FakeWorker(invented_time), problem=problem)
        lose(any_store, OTHER, problem=problem)
        any_store.begin_trial(DEVICE, problem, DEFAULT, new_owner())
    any_store.begin_trial(DEVICE, theirs, OTHER, dead_owner())
    change(place, f"UPDATE problems SET family = 'pooling' WHERE spec = '{theirs.key}'")
    models._note.cache_clear()
    for found in (any_store.best(), any_store.quarantined(), any_store.in_flight()):
        assert [item.problem for item in found] == [PROBLEM]
    assert any_store.quarantine_lost() == []
    assert {stored.problem for stored in any_store.trials(DEVICE.slug, "gemm")} == {PROBLEM}
    any_store.close()
    assert main(["status", "--db", place]) == 0
    assert main(["export", "--device", DEVICE.slug, "--format", "json", "--db", place]) == 0
    notes = [record.getMessage() for record in caplog.records if "rows are left out" in record.getMessage()]
    assert len(notes) == 1 and "no kernel family 'pooling'" in notes[0]


def test_a_search_tells_nothing_of_other_families(
    any_store: Store, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = GemmProblem(m=32, n=32, k=32)
    search(any_store, FakeWorker(invented_time), problem=theirs)
    lose(any_store, OTHER, problem=theirs)
    change(place, f"UPDATE problems SET family = 'pooling' WHERE spec = '{theirs.key}'")
    models._note.cache_clear()
    search(any_store, FakeWorker(invented_time))
    assert "rows are left out" not in caplog.text


# Time limits


JOB = Job(selector="0:0", problem=PROBLEM, configuration=DEFAULT)


def took(seed: int = 0, **measured: Any) -> Trial:
    """A trial in which some things took so many nanoseconds."""
    trial = FakeWorker(invented_time).run(dataclasses.replace(JOB, seed=seed))
    assert trial.measurement
    return dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, **measured))


def test_limits_follow_the_search_within_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LEAST_RUN_S", 0.0)
    monkeypatch.setattr(budget, "LEAST_S", 0.0)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=8)
    first, *_, last = [job for job in worker.jobs if not job.verifications]
    assert (first.build_limit_s, first.run_limit_s) == (60.0, 30.0)
    assert last.build_limit_s == 20.0, "the least, as this worker builds nothing"
    assert 0.0 < last.run_limit_s < 1.0
    assert worker.jobs[-1].verifications and worker.jobs[-1].run_limit_s > 60.0, "verifying often has its own limit"


@pytest.mark.parametrize(
    ("build_s", "run_s", "expected"), [(0.5, 0.1, (20.0, 20.0)), (6.0, 5.0, (30.0, 25.0)), (30.0, 20.0, (60.0, 30.0))]
)
def test_limits_are_a_few_times_the_usual(build_s: float, run_s: float, expected: tuple[float, float]) -> None:
    limits = TimeLimits()
    for number in range(3):
        assert (limits.build_s(), limits.run_s(JOB)) == (60.0, 30.0), f"too early after {number}"
        limits.learn(took(build_ns=build_s * 1e9), run_s)
    assert (limits.build_s(), limits.run_s(JOB)) == expected


@pytest.mark.parametrize(
    ("program_s", "expected_s"),
    [(0.0, 10.0), (1.0, 10.0), (4.0, 20.0), (30.0, 24.0)],
    ids=["?", "usual", "slow", "most"],
)
def test_the_first_trials_may_take_longer_where_the_checkup_took_long(program_s: float, expected_s: float) -> None:
    limits = TimeLimits(program_s)
    assert limits.build_s(left_s=60.0) == expected_s


@pytest.mark.parametrize(("is_full", "expected_s"), [(False, 20.0), (True, 10.0)])
def test_the_checkup_of_a_device_tells_a_search_how_slow_it_is(store: Store, is_full: bool, expected_s: float) -> None:
    store.keep_checkup(DEVICE, Checkup(findings=(), is_full=is_full, seconds=4.0))
    worker = FakeWorker(invented_time)
    search(store, worker, trials=1, seconds=60)
    assert worker.jobs[0].build_limit_s == pytest.approx(expected_s, rel=0.05)


def test_what_a_trial_usually_takes_leaves_out_the_first_which_opened_the_device() -> None:
    limits = TimeLimits()
    typical = []
    for run_s in (5.0, 0.1, 0.2, 0.3):
        limits.learn(took(), run_s)
        typical.append(limits.typical_run_s)
    assert typical == pytest.approx([0.0, 0.1, 0.15, 0.2])


def test_what_a_trial_usually_takes_leaves_out_what_began_with_a_new_process() -> None:
    limits = TimeLimits()
    limits.learn(took(is_first=True), 5.0)
    limits.learn(took(is_first=True), 6.0)
    assert limits.typical_run_s == 6.0, "better than nothing"
    for run_s in (0.1, 0.2):
        limits.learn(took(), run_s)
    limits.learn(took(is_first=True), 7.0)
    assert limits.typical_run_s == pytest.approx(0.15)


def test_what_inputs_take_is_what_they_took_the_latest_trial_that_had_its_own() -> None:
    limits, told = TimeLimits(), []
    for seed, inputs_s in ((1, 3.0), (1, 0.1), (2, 2.0), (2, 9.0)):
        limits.learn(took(seed, inputs_ns=inputs_s * 1e9), run_s=10.0)
        told.append(limits.fresh_inputs_s)
    assert told == [3.0, 3.0, 2.0, 2.0]


def test_a_trial_that_draws_its_inputs_has_a_few_times_what_the_latest_that_drew_took() -> None:
    limits = TimeLimits()
    for seed, run_s in ((1, 4.0), *[(1, 0.3)] * 31, (2, 5.0), *[(2, 0.3)] * 31):
        limits.learn(took(seed), run_s)
    assert limits.run_s(JOB, left_s=30.0) == 25.0


def test_a_search_whose_every_configuration_was_lost_gets_a_few_trials_more(store: Store) -> None:
    search(store, FakeWorker(invented_time), trials=4)
    ran = {s.trial.configuration for s in store.trials(DEVICE.slug, "gemm")}
    for configuration in ran:
        lose(store, configuration)
    worker = FakeWorker(invented_time)
    outcome = search(store, worker, trials=0)
    assert outcome.winner is not None
    assert outcome.winner.configuration not in ran
    assert outcome.new_trials == 1, "no more than it takes"
    again = FakeWorker(lambda _: TrialState.WRONG_RESULT)
    lose(store, outcome.winner.configuration)
    assert search(store, again, trials=0).winner is None
    assert len(again.jobs) == ProblemSearch.SPARE_TRIALS


def test_a_search_in_which_nothing_ran_right_keeps_to_its_budget(store: Store) -> None:
    worker = FakeWorker(lambda _: TrialState.WRONG_RESULT)
    assert search(store, worker, trials=4).winner is None
    assert len(worker.jobs) == 5  # and the baseline


NO_TIME_S = 1e-6


def test_a_search_whose_every_configuration_was_lost_gets_a_winner_when_its_time_is_up(store: Store) -> None:
    """As when a worker was killed in the finals again and again, and services while they searched."""
    search(store, FakeWorker(invented_time), trials=4)
    for configuration in {s.trial.configuration for s in store.trials(DEVICE.slug, "gemm")}:
        lose(store, configuration)
    assert won(search(store, FakeWorker(invented_time), trials=0, seconds=NO_TIME_S)).configuration not in held(store)


def test_a_search_whose_first_trials_were_lost_gets_a_winner_when_its_time_is_up(store: Store) -> None:
    for configuration in (DEFAULT, OTHER):
        lose(store, configuration)
    worker = FakeWorker(invented_time)
    assert won(search(store, worker, trials=4, seconds=NO_TIME_S)).configuration not in held(store)
    assert max(job.build_limit_s for job in worker.jobs) == BUILD_LIMIT_S, "what has to end it all may take its time"


def test_a_problem_that_loses_every_worker_is_given_up_when_its_time_is_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_module, "MOST_LOST", 3)
    lost: list[Job] = []

    def gone(job: Job) -> float:
        lost.append(job)
        raise WorkerLostError("gone")

    for _ in range(3):
        with pytest.raises(WorkerLostError):
            search(store, FakeWorker(gone), trials=4, seconds=NO_TIME_S)
    knowledge = Knowledge(DEVICE, PROBLEM, store)
    assert len(lost) == len(knowledge.quarantine) == 3
    assert knowledge.is_all_lost
    with pytest.raises(WorkerLostError):
        search(store, FakeWorker(gone), trials=4, seconds=NO_TIME_S)
    assert search(store, FakeWorker(gone), trials=4, seconds=NO_TIME_S).winner is None
    assert len(lost) == 4
