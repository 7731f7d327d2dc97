"""A database on a server: what leads there, who else is there, and what becomes of trials when it goes away."""

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import factories
from autotune.errors import DatabaseAwayError, NotADatabaseError, StoreError
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Request, Trial, TrialState, Verdict
from autotune.search import Budget, tune
from autotune.service.store import ServiceStore, job_steps
from autotune.service.store.jobs import JobKind, JobState, NewJob
from autotune.store import backup, database, failures, new_owner, trials
from autotune.store.database import parse_target
from autotune.store.models import problem_id
from autotune.store.winners import winner_row
from databases import Server, at_first_pause, cut, rows
from factories import provenance
from fakes import INVENTED_PROCESSOR, FakeWorker
from waiting import join, wait_for

DEVICE = INVENTED_PROCESSOR
PROBLEM = GemmProblem(m=96, n=96, k=96)
PROVENANCE = provenance()
TRIAL = Trial(configuration=Configuration.of("naive"), state=TrialState.INVALID)


@pytest.fixture
def store(postgresql: str) -> Iterator[ServiceStore]:
    with ServiceStore.open(postgresql) as opened:
        opened.add_device(DEVICE)
        yield opened


def add(store: ServiceStore, number: int = 0) -> None:
    trial = Trial(configuration=Configuration.of("naive", number=number), state=TrialState.INVALID)
    store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE)


def stored(store: ServiceStore) -> list[Configuration]:
    return [s.trial.configuration for s in store.trials(DEVICE.slug, "gemm")]


@pytest.mark.long
def test_job_ends_though_its_last_problems_end_at_once(
    store: ServiceStore, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = tuple(Request(problem=GemmProblem(m=size, n=8, k=8)) for size in (8, 16))
    job_id = store.jobs.add(NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=requests, trials=1))
    taken = [store.jobs.take(DEVICE.slug, "w1") for _ in requests]
    problems = [found[1] for found in taken if found is not None]
    threads = [threading.Thread(target=store.jobs.end, args=(problem, JobState.DONE)) for problem in problems]
    count, arrived = job_steps.counts_of, list[int]()

    def counted_by_both(*asked: Any) -> dict[int, dict[str, int]]:
        counts = count(*asked)
        arrived.append(len(arrived))  # has not committed; the other comes as far, or waits for a lock
        wait_for(lambda: len(arrived) == 2 or rows(postgresql, "SELECT 1 FROM pg_locks WHERE NOT granted"))
        return counts

    with monkeypatch.context() as patch:
        patch.setattr(job_steps, "counts_of", counted_by_both)
        for thread in threads:
            thread.start()
        for thread in threads:
            join(thread)
    found = store.jobs.get(job_id)
    assert found is not None
    assert found.state is JobState.DONE


# What leads there


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_schemes_that_mean_the_same(scheme: str) -> None:
    target = parse_target(f"{scheme}://me:secret@host/db?sslmode=require&password=secret")
    assert target.url == "postgresql+psycopg://me:secret@host/db?password=secret&sslmode=require"
    assert str(target) == "postgresql://me:***@host/db?sslmode=require"


def test_the_extra_is_named_where_the_driver_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r'is not installed \(.*pip install "\.\[postgres\]"\)'):
        ServiceStore.open("postgresql://me:secret@host/db")


@pytest.mark.long
def test_server_that_does_not_answer_is_an_error_at_once(postgresql_server: Server) -> None:
    elsewhere = postgresql_server.folder / "nobody listens here"
    with pytest.raises(DatabaseAwayError, match="cannot reach postgresql://") as caught:
        ServiceStore.open(postgresql_server.url(folder=elsewhere))
    assert "\n" not in str(caught.value)


# Who else is there


@pytest.mark.long
def test_tables_of_other_programs_are_left_alone(postgresql_server: Server, postgresql: str) -> None:
    postgresql_server.execute("CREATE TABLE invoices (id INTEGER); INSERT INTO invoices VALUES (7)", "here")
    with ServiceStore.open(postgresql) as store:
        add(store)
    assert rows(postgresql, "SELECT id FROM invoices") == [(7,)]


@pytest.mark.long
@pytest.mark.parametrize(
    "theirs",
    ["CREATE TABLE trials (x INTEGER)", "CREATE TABLE alembic_version AS SELECT 'ab12cd34ef56' AS version_num"],
)
def test_tables_of_other_programs_with_the_same_names_are_refused(
    postgresql_server: Server, postgresql: str, theirs: str
) -> None:
    postgresql_server.execute(theirs, "here")
    for read_only in (False, True):
        with pytest.raises(NotADatabaseError):
            ServiceStore.open(postgresql, read_only=read_only)
    assert rows(postgresql, "SELECT count(*) FROM pg_tables WHERE schemaname = 'here'") == [(1,)]


@pytest.mark.long
def test_short_lock_by_another_program_is_waited_for(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)  # so that trying again is what helps
    with ServiceStore.open(postgresql) as store, psycopg.connect(postgresql) as other:
        other.execute("LOCK TABLE trials")
        at_first_pause(monkeypatch, other.commit)
        add(store)
        assert len(stored(store)) == 1
        monkeypatch.setattr(failures, "PATIENCE_S", 0.0)
        other.execute("LOCK TABLE trials")
        with pytest.raises(StoreError, match="locked by another program"):
            add(store)


@pytest.mark.long
def test_lock_of_a_client_that_fell_silent_is_released(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ServiceStore.open(postgresql).close()
    monkeypatch.setattr(database, "IDLE_LIMIT_S", 0.2)
    with ServiceStore.open(postgresql) as store:
        add(store)
        with store._writing.connect() as silent:
            silent.exec_driver_sql("LOCK TABLE trials")
            add(store, 1)
            silent.invalidate()
        assert len(stored(store)) == 2


@pytest.mark.long
def test_few_trials_are_converted_between_two_calls_of_the_server(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would end the transaction where that takes long."""
    calls: list[Any] = []

    def watched(row: Any) -> Trial:
        calls.extend(rows(postgresql, "SELECT state_change FROM pg_stat_activity WHERE state LIKE 'idle in trans%'"))
        return to_trial(row)

    to_trial = trials.to_trial
    monkeypatch.setattr(trials, "to_trial", watched)
    monkeypatch.setattr(trials, "ROWS_AT_ONCE", 2)
    with ServiceStore.open(postgresql) as store:
        for number in range(6):
            add(store, number)
        assert stored(store) == [Configuration.of("naive", number=number) for number in range(6)]
    assert max(Counter(calls).values()) <= 2


@pytest.mark.long
def test_snapshot_is_written_outside_of_transactions(
    postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the server would end where the disk is slow."""
    open_ones: list[Any] = []

    def watched(whole: Path, compact: Path) -> None:
        open_ones.append(rows(postgresql, "SELECT query FROM pg_stat_activity WHERE state LIKE 'idle in trans%'"))
        write(whole, compact)

    write = backup._compact
    monkeypatch.setattr(backup, "_compact", watched)
    with ServiceStore.open(postgresql) as store:
        add(store)
        store.snapshot(tmp_path / "copy.sqlite")
    assert open_ones == [[]]
    with ServiceStore.open(tmp_path / "copy.sqlite", read_only=True) as copy:
        assert len(stored(copy)) == 1


# When it goes away


@pytest.mark.long
def test_sessions_that_were_ended_are_opened_again(postgresql_server: Server, store: ServiceStore) -> None:
    add(store)
    others = "pid != pg_backend_pid() AND backend_type = 'client backend'"
    assert postgresql_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    add(store, 1)
    assert len(stored(store)) == 2


@pytest.mark.long
def test_hurrying_transaction_does_not_wait_for_the_server(
    postgresql_server: Server, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store)
    at_first_pause(monkeypatch, store.hurry)
    postgresql_server.stop(signal.SIGINT)
    try:
        with pytest.raises(DatabaseAwayError):
            add(store, 1)
    finally:
        postgresql_server.start()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_server_that_is_away_for_a_while_is_waited_for(
    postgresql_server: Server,
    store: ServiceStore,
    how: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add(store)
    outages = iter([True])

    def now() -> float:
        """An outage has lasted an hour once it is in the log."""
        return time.monotonic() + 3600.0 * len(caplog.records)

    def starting(seconds: float) -> None:
        if next(outages, False):
            postgresql_server.start()

    monkeypatch.setattr(failures, "AWAY_PATIENCE_S", 7200.0)
    postgresql_server.stop(how)
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=now, sleep=starting))
    add(store, 1)
    assert [c.number("number") for c in stored(store)] == [0, 1]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "cannot be reached" in told[0] and "trying again for up to 7200 s" in told[0]
    assert "can be reached again after 36" in told[1]


@pytest.mark.long
def test_server_that_stays_away_is_an_error_until_it_is_back(
    postgresql_server: Server, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def sleep(_: float) -> None:
        nonlocal now
        now += 100.0

    with monkeypatch.context() as patch:
        patch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        postgresql_server.stop()
        try:
            with pytest.raises(DatabaseAwayError, match="has been unreachable for 400 s"):
                add(store)
            patch.setattr("autotune.store.failures.time.sleep", lambda _: pytest.fail("its patience is used up"))
            with pytest.raises(DatabaseAwayError):
                add(store)
        finally:
            postgresql_server.start()
        add(store)
    assert len(stored(store)) == 1


@pytest.mark.long
def test_commit_whose_answer_was_lost_is_there_once(postgresql_server: Server, store: ServiceStore) -> None:
    owner = new_owner()
    with cut(postgresql_server) as way, ServiceStore.open(postgresql_server.url("here", folder=way.folder)) as far:
        way.swallows = 1
        far.begin_trial(DEVICE, PROBLEM, TRIAL.configuration, owner)
        assert way.swallows == 0
        assert len(store.in_flight()) == 1
        way.swallows = 3
        far.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE, owner=owner)
        assert way.swallows == 0
        assert stored(store) == [TRIAL.configuration]
        assert store.in_flight() == []


@pytest.mark.long
def test_jobs_are_added_and_taken_once_where_an_answer_was_lost(postgresql_server: Server, store: ServiceStore) -> None:
    requests = tuple(Request(problem=replace(PROBLEM, m=m)) for m in (8, 16))
    new = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=requests, trials=1)
    with cut(postgresql_server) as way, ServiceStore.open(postgresql_server.url("here", folder=way.folder)) as far:
        way.swallows = 1
        job_id = far.jobs.add(new)
        way.swallows += 2
        first = far.jobs.take(DEVICE.slug, "w1")
        assert way.swallows == 0
    assert [job.id for job in store.jobs.newest(10)] == [job_id]
    assert first is not None
    found = store.jobs.get(job_id)
    assert found is not None
    assert [problem.state for problem in found.problems] == [JobState.RUNNING, JobState.QUEUED]
    assert found.problems[0].attempts == first[1].attempts == 1
    second = store.jobs.take(DEVICE.slug, "w1")
    assert second is not None
    assert second[1].number == 1


@pytest.mark.long
def test_decisions_are_seen_in_whatever_order_they_are_committed(store: ServiceStore) -> None:
    winner = factories.winner(DEVICE, PROBLEM, TRIAL.configuration, samples=0, verdict=Verdict.PROVISIONAL)
    store.record_winner(winner)
    with Session(store._writing) as session, session.begin():
        session.add(winner_row(winner, problem_id(session, PROBLEM)))
        session.flush()
        store.record_winner(winner)  # has a later number, and is committed first
        before = store.decisions()
    assert store.decisions() > before > 1


@pytest.mark.long
def test_services_in_different_schemas_do_not_meet(postgresql_server: Server, store: ServiceStore) -> None:
    postgresql_server.execute("DROP SCHEMA IF EXISTS there CASCADE; CREATE SCHEMA there")
    with ServiceStore.open(postgresql_server.url("there")) as other:
        store.jobs.add(NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=(Request(problem=PROBLEM),), trials=1))
        assert other.jobs.take(DEVICE.slug, "w1") is None
        assert store.jobs.take(DEVICE.slug, "w1") is not None


@pytest.mark.long
def test_search_continues_where_the_server_went_away(
    postgresql_server: Server, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Configuration] = []
    starts: list[int] = []

    def start() -> None:
        postgresql_server.start()
        starts.append(len(measured))

    def outcome(job: Job) -> float:
        measured.append(job.configuration)
        if len(measured) in (3, 6):
            at_first_pause(monkeypatch, start)
            postgresql_server.stop(signal.SIGQUIT)
        return 1e6 / (1 + len(job.configuration.key))

    worker = FakeWorker(outcome)
    [found] = tune(DEVICE, [Request(problem=PROBLEM)], store, Budget(trials=8), worker=worker)
    assert starts == [3, 6]
    assert found.winner is not None and found.winner.is_final
    assert sorted(c.key for c in stored(store)) == sorted(c.key for c in measured)
    assert store.in_flight() == [] and store.quarantined() == []


def test_length_of_an_outage_may_be_asked_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    since = iter([1.0, None])  # another thread is told that the server is back
    monkeypatch.setattr(failures.Outage, "_since", property(lambda _: next(since)), raising=False)
    outage = failures.Outage.__new__(failures.Outage)
    assert outage.seconds > 0


@pytest.mark.parametrize(("failing", "hurries"), [(3, False), (9, False), (9, True)])
def test_transaction_is_tried_again_while_the_server_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: int, hurries: bool
) -> None:
    now, tries = 1000.0, list[float]()

    def sleep(_: float) -> None:
        nonlocal now
        now += 100.0

    def work() -> int:
        tries.append(now)
        if len(tries) <= failing:
            raise OperationalError("COMMIT", None, Exception("gone"), connection_invalidated=True)
        return 5

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    patience = failures.Patience(outage=failures.Outage(), hurries=lambda: hurries)
    if failing == 3:
        assert failures.attempt(work, "there", patience) == 5
        assert [record.getMessage() for record in caplog.records] == [
            "there cannot be reached (gone): trying again for up to 300 s", "there can be reached again after 300 s",
        ]  # fmt: skip
    else:
        with pytest.raises(DatabaseAwayError, match=f"unreachable for {0 if hurries else 400} s"):
            failures.attempt(work, "there", patience)
        assert len(tries) == (1 if hurries else 5)
