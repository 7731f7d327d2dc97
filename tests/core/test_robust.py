"""Faults in the middle of a search: how each trial ends, that the search goes on, and that nothing is lost."""

import contextlib
import dataclasses
import math
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

import searches
from autotune import child
from autotune.errors import StoreError, WorkerError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Job, Timer, Trial, TrialState
from autotune.store import Owner, Store, database
from autotune.store import failures as failures_module
from factories import evil
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_clock import Clock
from waiting import HANG_S

EVIL = evil("worker")
FINE, NEVER_ENDING, STRAY_WRITE, SLOW_BUILD, ABORT, NO_BUILD, POISON, NO_DEVICE_MEMORY, NO_HOST_MEMORY, ZERO_TIMERS = (
    range(10)
)
INVENTED = INVENTED_PROCESSOR
PROBLEM = GemmProblem(m=8, n=8, k=8)
search = partial(searches.search, problem=PROBLEM, algorithms=["dot"])


def invented_time(job: Job) -> float:
    return 1000.0 + len(job.configuration.key) + 100.0 * (job.configuration.algorithm == "naive")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite"


# Kernels and drivers, on PoCL


class Faulty:
    """Measures in a child process in which the trials misbehave in a given order."""

    holder, waited_s = None, 0.0

    def __init__(self, behaviours: list[int]) -> None:
        self._worker = Worker(EVIL)
        self._left = behaviours
        self.trials: list[Trial] = []

    @property
    def is_done(self) -> bool:
        return not self._left

    def prepare(self, job: Job) -> None: ...

    def run(self, job: Job) -> Trial:
        behaviour = self._left.pop(0)
        job = dataclasses.replace(
            job, seed=behaviour, samples=1, min_sample_ns=1000, give_up_above_ns=math.inf,
            build_limit_s=0.5 if behaviour == SLOW_BUILD else HANG_S,
            run_limit_s=0.5 if behaviour == NEVER_ENDING else HANG_S,
        )  # fmt: skip
        self.trials.append(self._worker.run(job))
        return self.trials[-1]

    def close(self) -> None:
        self._worker.close()


FAULTS = [
    (FINE, TrialState.COMPLETE, ""),
    (NEVER_ENDING, TrialState.CUT_SHORT, "run took more than 0.5 s"),
    (STRAY_WRITE, TrialState.CRASHED, "run: killed by SIG"),
    (NO_BUILD, TrialState.COMPILE_FAILED, "BUILD_PROGRAM_FAILURE"),
    (FINE, TrialState.COMPLETE, ""),
    (SLOW_BUILD, TrialState.CUT_SHORT, "build took more than 0.5 s"),
    (POISON, TrialState.COMPLETE, ""),
    (FINE, TrialState.COMPLETE, ""),
    (NO_DEVICE_MEMORY, TrialState.LAUNCH_FAILED, "cannot allocate"),
    (NO_HOST_MEMORY, TrialState.LAUNCH_FAILED, "the host ran out of memory"),
    (ABORT, TrialState.CRASHED, "build: killed by SIGABRT"),
    (ZERO_TIMERS, TrialState.COMPLETE, ""),
]


@pytest.mark.long
def test_a_search_survives_every_fault_of_kernels_and_drivers(pocl: Device, store: Store) -> None:
    worker = Faulty([behaviour for behaviour, _, _ in FAULTS])
    outcome = search(store, worker, len(FAULTS), device=pocl, should_stop=lambda: worker.is_done)
    stored = [s.trial for s in store.trials(pocl.slug, "gemm")]
    assert stored == worker.trials
    assert [trial.state for trial in stored] == [state for _, state, _ in FAULTS]
    for trial, (_, _, message) in zip(stored, FAULTS, strict=True):
        assert message in trial.message
    assert stored[0].measurement and stored[-1].measurement
    assert stored[-1].measurement.timer is Timer.HOST and stored[-1].time_ns > 0
    assert outcome.winner is None, "the last trial changed the timer, and the default has no time by the other yet"
    assert outcome.is_default_open
    harmful = [t.configuration for t in stored if t.state in (TrialState.CRASHED, TrialState.TIMED_OUT)]
    assert [q.configuration for q in store.quarantined()] == harmful
    assert store.in_flight() == []


def test_a_failure_in_a_used_context_is_judged_again_in_a_fresh_one(pocl: Device) -> None:
    job = Job(selector=pocl.selector, problem=PROBLEM, configuration=FAMILY.baseline, samples=1, min_sample_ns=1000)
    with Worker(EVIL) as worker:
        assert worker.run(dataclasses.replace(job, seed=POISON)).state is TrialState.COMPLETE
        spoilt = worker.pid
        assert worker.run(dataclasses.replace(job, seed=FINE)).state is TrialState.COMPLETE
        assert worker.pid != spoilt


@pytest.mark.long
def test_a_child_is_replaced_after_many_trials_and_when_it_has_grown(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(selector=pocl.selector, problem=PROBLEM, configuration=FAMILY.baseline, samples=1, min_sample_ns=1000)
    with Worker() as worker:

        def pid_after_a_trial() -> int | None:
            assert worker.run(job).state is TrialState.COMPLETE
            return worker.pid

        monkeypatch.setattr(child, "MAX_ANSWERS", 2)
        first, second, third = (pid_after_a_trial() for _ in range(3))
        assert first == second != third
        monkeypatch.setattr(child, "MAX_ANSWERS", 100)
        assert pid_after_a_trial() == third
        monkeypatch.setattr(child, "MAX_GROWTH_BYTES", -(2**40))
        assert pid_after_a_trial() != third


# Workers that do not start


def starting_badly(path: Path, monkeypatch: pytest.MonkeyPatch, starts: str) -> Path:
    log = path.with_name("starts")
    monkeypatch.setenv("EVIL_LOG", str(log))
    monkeypatch.setenv("EVIL_STARTS", starts)
    monkeypatch.setattr(child, "FIRST_PAUSE_S", 0.0)
    return log


@pytest.mark.long
def test_a_worker_that_fails_to_start_is_started_again(
    pocl: Device, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = starting_badly(path, monkeypatch, "1,2")
    job = Job(selector=pocl.selector, problem=PROBLEM, configuration=FAMILY.baseline, samples=1, min_sample_ns=1000)
    with Worker(EVIL) as worker:
        assert worker.run(job).state is TrialState.COMPLETE
    assert log.stat().st_size == 3
    assert [record.message.split(": ")[0] for record in caplog.records] == ["a child process is replaced"] * 2
    assert all("no start today" in record.message for record in caplog.records)


@pytest.mark.long
def test_a_worker_that_never_starts_again_ends_the_run_with_its_trials_safe(
    pocl: Device, store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = starting_badly(path, monkeypatch, "2,3,4")
    worker = Faulty([FINE, FINE, ABORT, FINE])
    with pytest.raises(WorkerError, match=r"ended at its start \(exit status 3\): no start today"):
        search(store, worker, device=pocl)
    assert log.stat().st_size == 4
    assert [s.trial for s in store.trials(pocl.slug, "gemm")] == worker.trials
    assert len(worker.trials) == 3
    assert len(store.quarantined()) == 1, "what aborted, not what found no worker"
    assert store.in_flight() == []


def test_a_worker_that_hangs_at_its_start_is_no_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LOAD_LIMIT_S", 0.1)
    monkeypatch.setattr(child, "FIRST_PAUSE_S", 0.0)
    job = Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline)
    with pytest.raises(WorkerError, match=r"within 0\.1 s"), Worker(("sleep", "infinity")) as worker:
        worker.run(job)


# Verdicts and clocks, invented


def test_what_is_wrong_in_one_of_twenty_runs_is_found_and_does_not_win_from_then_on(store: Store) -> None:
    draw = random.Random(1)
    wrong: set[Configuration] = set()
    fickle = search(store, FakeWorker(invented_time), trials=6).winner
    assert fickle is not None

    def outcome(job: Job) -> float | TrialState:
        runs = 2 if job.verify else 0
        if job.configuration == fickle.configuration and any(draw.random() < 1 / 20 for _ in range(runs)):
            wrong.add(job.configuration)
            return TrialState.WRONG_RESULT
        return invented_time(job) / (2.0 if job.configuration == fickle.configuration else 1.0)

    for _ in range(3):
        winner = search(store, FakeWorker(outcome), trials=1).winner
        assert winner is not None
        assert (winner.configuration == fickle.configuration) != bool(wrong)
    assert wrong


def test_a_clock_that_slows_half_way_changes_times_and_loses_nothing(store: Store) -> None:
    worker = FakeWorker(lambda job: invented_time(job) * (1.0 if len(worker.jobs) < 10 else 1.4))
    outcome = search(store, worker, trials=20)
    assert outcome.winner is not None and outcome.winner.is_final
    assert outcome.failures == {}
    stored = store.trials(INVENTED.slug, "gemm")
    assert [s.trial.configuration for s in stored] == worker.measured


# Databases


LOCK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
input()
"""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Callable[[], None]]:
    """Another program holds the database until told."""
    command = [sys.executable, "-c", LOCK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout
        assert other.stdout.readline() == b"locked\n"

        def release() -> None:
            assert other.stdin
            other.stdin.close()
            other.wait(HANG_S)

        yield release
        other.kill()


class Pauses(Clock):
    """A clock for who waits for a database, and what happens meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(failures_module, "time", made)
    return made


@pytest.mark.parametrize("is_for_ever", [False, True])
def test_search_waits_a_while_for_a_database_locked_by_another_program(
    path: Path, is_for_ever: bool, pauses: Pauses
) -> None:
    with contextlib.ExitStack() as stack, Store.open(path) as store:

        def outcome(job: Job) -> float:
            if len(worker.jobs) == 4:
                release = stack.enter_context(locked(path))
                if not is_for_ever:
                    pauses.meanwhile = release
            return invented_time(job)

        worker = FakeWorker(outcome)
        if is_for_ever:
            with pytest.raises(StoreError, match="is locked by another program; this trial was not stored: "):
                search(store, worker)
        else:
            search(store, worker)
        assert (pauses.slept >= failures_module.PATIENCE_S) == is_for_ever and pauses.slept > 0.0
        stored = [s.trial.configuration for s in store.trials(INVENTED.slug, "gemm")]
        assert stored == worker.measured[: 3 if is_for_ever else None]
        assert store.quarantined() == []


class Trouble(Exception):
    """What ends a search in a test."""


@pytest.mark.parametrize("refusals", [1, 99])
def test_nothing_in_flight_is_forgotten_before_the_database_confirms(
    store: Store, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    def outcome(job: Job) -> float:
        if len(worker.jobs) == 4:
            raise Trouble
        return invented_time(job)

    def abandon(self: Store, owner: Owner) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise StoreError("locked")
        abandon_trials(self, owner)

    abandon_trials = Store.abandon_trials
    monkeypatch.setattr(Store, "abandon_trials", abandon)
    worker = FakeWorker(outcome)
    is_told = refusals == 1
    with pytest.raises(Trouble):  # whatever the database says to it
        search(store, worker)
    assert [flight.configuration for flight in store.in_flight()] == ([] if is_told else worker.measured[3:])


def test_what_went_into_flight_as_the_connection_broke_is_let_go_of(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: Store, *what: Any) -> None:
        begin_trial(self, *what)
        raise StoreError("the connection broke")

    begin_trial = Store.begin_trial
    monkeypatch.setattr(Store, "begin_trial", begin)
    worker = FakeWorker(invented_time)
    with pytest.raises(StoreError, match="the connection broke"):
        search(store, worker)
    assert (worker.jobs, store.in_flight()) == ([], [])


@contextlib.contextmanager
def space_for(pages: int) -> Iterator[None]:
    """Connections made within cannot make the database larger."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


@pytest.mark.usefixtures("pauses")
def test_a_full_disk_ends_the_run_with_everything_before_safe(path: Path) -> None:
    with Store.open(path) as store:
        pages = _pages(path)
    with space_for(pages + 3), Store.open(path) as store:
        worker = FakeWorker(invented_time)
        with pytest.raises(StoreError, match=r"no space is left"):
            search(store, worker, trials=500)
    with Store.open(path) as store:
        stored = store.trials(INVENTED.slug, "gemm")
        assert len(stored) >= 5
        assert [s.trial.configuration for s in stored] in (worker.measured, worker.measured[:-1])
        assert store.quarantine_lost() == [] and store.in_flight() == []
        again = search(store, FakeWorker(invented_time), trials=3)
        assert again.resumed_trials == sum(s.purpose == "search" for s in stored)
        assert again.winner is not None


def _pages(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return int(database.execute("PRAGMA page_count").fetchone()[0])


def test_a_search_outlasts_a_disk_that_is_full_whenever_it_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transaction(self: Store, engine: Engine, work: Callable[..., object], **options: bool) -> object:
        def first_full(session: object) -> object:
            if engine is self._writing and next(firsts, False):
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return work(session)

        firsts = iter([True])
        return real(self, engine, first_full, **options)

    real = Store._transaction
    store.add_device(INVENTED)
    monkeypatch.setattr(Store, "_transaction", transaction)
    assert search(store, FakeWorker(invented_time), trials=3).winner


def test_disk_that_is_full_for_a_moment_loses_no_trial(
    store: Store, monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    failures: list[str] = []
    real = Store._transaction

    def transaction(self: Store, engine: Engine, work: Callable[..., object], **options: bool) -> object:
        def full(session: object) -> object:
            if options.get("waits_for_space") and len(failures) < 3:
                failures.append("database or disk is full")
                error = sqlite3.OperationalError(failures[-1])
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return work(session)

        return real(self, engine, full, **options)

    monkeypatch.setattr(Store, "_transaction", transaction)
    worker = FakeWorker(invented_time)
    search(store, worker, trials=3)
    assert len(failures) == 3 and pauses.slept > 0.0
    assert [s.trial.configuration for s in store.trials(INVENTED.slug, "gemm")] == worker.measured
