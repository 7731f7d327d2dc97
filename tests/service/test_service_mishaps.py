"""The service where something fails at the worst moment: an answer that is lost, a process that is killed."""

import asyncio
import dataclasses
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

pytest.importorskip("fastapi")

from autotune import store as store_module
from autotune.codec import Node
from autotune.errors import DatabaseAwayError, RefusedError, StoreError, UnreachableError, WorkerError
from autotune.kernels.gemm import GemmProblem
from autotune.model.device import Device
from autotune.model.trial import Job, Request, Trial
from autotune.service import core, fleet
from autotune.service.cli import serve
from autotune.service.core import Service
from autotune.service.job_search import Errand, Search, Stopping
from autotune.service.remote import Client
from autotune.service.remote.wire import plain_job, plain_trial
from autotune.service.remote.worker import Offer
from autotune.service.searches import Search as RunningSearch
from autotune.service.server import Server
from autotune.service.station import Assignment
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, JobLedger, JobState, NewJob
from autotune.service.store.together import Together
from autotune.store import Holder
from autotune.store.models import ProblemRow
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_service import HandMade, Paused, in_thread, invented_time, invented_worker, offering, serving, submitted
from ports import free_port
from waiting import HANG_S, join, wait_for

DEVICE = INVENTED_PROCESSOR
SHAPE = "96,96,96"
NEW = NewJob(
    kind=JobKind.TUNE, device=DEVICE.slug, requests=(Request(problem=GemmProblem(m=96, n=96, k=96)),), trials=3
)


def losing_an_answer(of: Callable[..., Any]) -> Callable[..., Any]:
    """Done, and the first answer that tells of something is lost."""
    losses = iter([StoreError("the database is away")])

    def done(*given: Any, **named: Any) -> Any:
        found = of(*given, **named)
        for error in losses if found else ():
            raise error
        return found

    return done


def a_search(store: ServiceStore, troubles: int = 0, device: Device = DEVICE) -> Search:
    """Of the next problem, in this process."""
    taken = store.jobs.take(DEVICE.slug, "one")
    assert taken is not None
    errand = Errand(job=taken[0], problem=taken[1], device=device, troubles=troubles)
    return Search(errand, store, lambda *_: None, lambda: False)


def stored_once(server: Server, jobs: Sequence[Job]) -> bool:
    """Whether each trial was launched once and is in the ledger once."""
    stored = [its.trial.configuration for its in server.service.store.trials(DEVICE.slug, "gemm")]
    return sorted(map(str, stored)) == sorted(str(job.configuration) for job in jobs)


def ends_well(place: Path, processes: int = 0) -> None:
    with (
        serving(place, processes=processes) as server,
        Client(server.url) as client,
        offering(server.url) as worker,
    ):
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=3, algorithms=["microtile"])
        wait_for(lambda: client.job(job["id"])["state"] == "done")
        assert stored_once(server, worker.jobs)


@pytest.mark.long
def test_problem_taken_when_the_answer_was_lost_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobLedger, "take", losing_an_answer(JobLedger.take))
    ends_well(tmp_path / "db.sqlite")


@pytest.mark.long
def test_search_without_a_process_begins_when_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, start = iter([BlockingIOError("no more processes")]), subprocess.Popen

    def reluctant(*given: Any, **named: Any) -> Any:
        for refusal in refusals:
            raise refusal
        return start(*given, **named)

    monkeypatch.setattr(subprocess, "Popen", reluctant)
    ends_well(tmp_path / "db.sqlite", processes=1)
    assert next(refusals, None) is None


@pytest.mark.long
def test_problem_does_not_fail_because_its_processes_cannot_open_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, start = iter(range(2)), subprocess.Popen

    def useless(command: Any, **named: Any) -> Any:
        for _ in refused:
            return start([sys.executable, "-c", "import sys; sys.exit(1)"], **named)
        return start(command, **named)

    monkeypatch.setattr(core, "MOST_DEATHS", 1)
    monkeypatch.setattr(subprocess, "Popen", useless)
    ends_well(tmp_path / "db.sqlite", processes=1)
    assert next(refused, None) is None


@pytest.mark.long
def test_searches_continue_in_another_process_when_theirs_is_killed(tmp_path: Path) -> None:
    """What its worker was measuring is stored, and is not measured again."""
    paused = Paused()
    with serving(tmp_path / "db.sqlite", processes=1) as server, Client(server.url) as client:
        with offering(server.url, work=paused) as worker:
            job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=5, algorithms=["microtile"])
            assert paused.begun.wait(HANG_S)
            [pid] = server.service.search_pids
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: pid not in server.service.search_pids)
            paused.goes_on.set()
            found = wait_for(lambda: (seen := client.job(job["id"]))["state"] == "done" and seen)
            assert found["problems"][0]["attempts"] == 2
            assert server.service.search_pids not in ([], [pid])
        store = server.service.store
        trials = store.trials(DEVICE.slug, "gemm")
        assert worker.jobs[0].configuration in [stored.trial.configuration for stored in trials]
        searched = [stored.trial.configuration for stored in trials if stored.purpose == "search"]
        assert len(searched) == len(set(searched))
        assert len(worker.jobs) == len(trials)
        assert store.in_flight() == [] == store.quarantined()


@pytest.mark.long
def test_result_is_stored_though_its_search_is_killed_as_it_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, killed = Assignment.finish, list[int]()
    with serving(tmp_path / "db.sqlite", processes=1) as server, Client(server.url) as client:

        def finished(assignment: Assignment, trial: Trial) -> None:
            if killed:
                finish(assignment, trial)
            else:
                killed.extend(server.service.search_pids)
                os.kill(killed[0], signal.SIGKILL)

        monkeypatch.setattr(Assignment, "finish", finished)
        with offering(server.url) as worker:
            job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=5, algorithms=["microtile"])
            wait_for(lambda: client.job(job["id"])["state"] == "done")
        assert killed and client.job(job["id"])["problems"][0]["attempts"] == 2
        assert stored_once(server, worker.jobs)
        store = server.service.store
        assert store.in_flight() == [] == store.quarantined()


@pytest.mark.parametrize("is_cpu", [True, False])
def test_search_stores_each_trial_before_it_wants_the_next(store: ServiceStore, is_cpu: bool) -> None:
    """Which is how the service knows that a result is stored."""
    device = dataclasses.replace(DEVICE, limits=dataclasses.replace(DEVICE.limits, is_cpu=is_cpu))
    stored: list[int] = []

    def work(job: Job) -> float:
        stored.append(len(store.trials(DEVICE.slug, "gemm")))
        return invented_time(job)

    store.add_device(device)
    store.jobs.add(NEW)
    a_search(store, device=device).run(FakeWorker(work))
    assert stored == list(range(len(stored))) and len(stored) > 3


@pytest.mark.long
def test_result_is_delivered_again_until_its_search_has_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "db.sqlite", processes=1) as server, Client(server.url) as client:
        job = submitted(server, client)
        worker = HandMade(server.url)
        given = worker.turn()
        [pid] = server.service.search_pids
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as hasty:
            hasty.setattr(fleet, "STORED_S", 0.05)
            for _ in range(2):
                answer = worker.answer(results=(worker.result(given),))
                assert (answer["trial"], answer["is_stored"]) == (None, False)
        assert server.service.store.trials(DEVICE.slug, "gemm") == []
        os.kill(pid, signal.SIGCONT)
        answer = worker.answer(results=(worker.result(given),))
        assert answer["is_stored"] and answer["trial"]["id"] != given["id"]
        assert len(server.service.store.trials(DEVICE.slug, "gemm")) == 1
        client.cancel(job["id"])
        worker.answer(results=(worker.result(answer["trial"]),))


@pytest.mark.parametrize("is_cpu", [True, False])
def test_trial_that_its_search_could_not_store_stays_with_its_worker(
    store: ServiceStore, monkeypatch: pytest.MonkeyPatch, is_cpu: bool
) -> None:
    """Which delivers it again, until it is stored as late."""
    device = dataclasses.replace(DEVICE, limits=dataclasses.replace(DEVICE.limits, is_cpu=is_cpu))
    add, failures = ServiceStore.add_trial, iter([StoreError("the disk is full")])

    def added(self: ServiceStore, *what: Any) -> bool:
        for failure in failures if len(worker.jobs) == 3 else ():
            raise failure
        return add(self, *what)

    worker = FakeWorker(invented_time)
    monkeypatch.setattr(worker, "holder", Holder(worker="one", session="s"), raising=False)
    monkeypatch.setattr(ServiceStore, "add_trial", added)
    store.add_device(device)
    store.jobs.add(NEW)
    a_search(store, device=device).run(worker)
    job = worker.jobs[2]
    assert len(worker.jobs) == 3 and len(store.trials(DEVICE.slug, "gemm")) == 2
    assert [flight.configuration for flight in store.in_flight()] == [job.configuration]
    told = {"id": "0", "job": plain_job(job), "trial": plain_trial(FakeWorker(invented_time).run(job))}
    assert asyncio.run(Service(store).take_late("one", device, Node(told, "result"))) == ""
    assert [its.trial.configuration for its in store.trials(DEVICE.slug, "gemm")] == worker.measured
    assert store.in_flight() == [] == store.quarantined()


@pytest.mark.long
def test_nothing_is_lost_when_the_database_refuses_a_trial_once(tmp_path: Path) -> None:
    database = tmp_path / "db.sqlite"
    with serving(database) as server, Client(server.url) as client:
        with closing(sqlite3.connect(database)) as other:
            other.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON trials WHEN (SELECT count(*) FROM trials) = 2"
                " BEGIN SELECT RAISE(ABORT, 'not now'); END"
            )
            with offering(server.url) as worker:
                job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=5, algorithms=["microtile"])
                wait_for(lambda: len(worker.jobs) == 3 and not server.service.searches)
                other.execute("DROP TRIGGER refuse")
                wait_for(lambda: client.job(job["id"])["state"] == "done")
        assert stored_once(server, worker.jobs)
        store = server.service.store
        assert store.in_flight() == [] == store.quarantined()


@pytest.mark.long
def test_stopped_worker_leaves_though_its_search_does_not_store_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "STORED_S", 0.05)
    paused = Paused()
    worker = FakeWorker(paused)
    with serving(tmp_path / "db.sqlite", processes=1) as server, Client(server.url) as client:
        offer = Offer(invented_worker(server.url), DEVICE, worker, lambda _: None)
        with in_thread(offer) as serves:
            submitted(server, client)
            assert paused.begun.wait(HANG_S)
            [pid] = server.service.search_pids
            os.kill(pid, signal.SIGSTOP)
            offer.is_stopping = True
            paused.goes_on.set()
            join(serves)
        wait_for(lambda: stored_once(server, worker.jobs))
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not server.service.searches)
        assert stored_once(server, worker.jobs)
        store = server.service.store
        assert store.in_flight() == [] == store.quarantined()


def test_helper_that_joins_as_the_search_ends_is_free_again(store: ServiceStore) -> None:
    store.add_device(DEVICE)
    store.jobs.add(NEW)
    taken = store.jobs.take(DEVICE.slug, "one")
    assert taken is not None
    service = Service(store)
    own, helper = (asyncio.run(service.fleet.greet(name, "0" * 32, DEVICE, "")) for name in ("one", "two"))
    search = RunningSearch(*taken, own, service.fleet)
    own.is_taken = True
    search.join(helper)
    assert helper.is_taken
    service._ended(search, is_troubled=False)
    assert not own.is_taken and not helper.is_taken


@pytest.mark.long
def test_search_processes_end_with_the_service(tmp_path: Path) -> None:
    works = [Paused() for _ in range(3)]
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "db.sqlite", processes=2))
        client = stack.enter_context(Client(server.url))
        for number, work in enumerate(works):
            stack.enter_context(offering(server.url, f"w{number}", work))
        client.submit(DEVICE.slug, shapes=["64,64,64", "96,96,96", "128,128,128"], trials=5)
        for work in works:
            assert work.begun.wait(HANG_S)
        pids = server.service.search_pids
        assert len(set(pids)) == 2
        for work in works:
            work.goes_on.set()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_cancelling_again_after_a_lost_answer_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobLedger, "cancel", losing_an_answer(JobLedger.cancel))
    paused = Paused()
    with (
        serving(tmp_path / "db.sqlite") as server,
        Client(server.url) as client,
        offering(server.url, work=paused) as worker,
    ):
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=100_000)
        assert paused.begun.wait(HANG_S)
        with pytest.raises(RefusedError):
            client.cancel(job["id"])
        assert client.cancel(job["id"])["state"] == "cancelled"
        paused.goes_on.set()
        wait_for(lambda: client.job(job["id"])["counts"] == {"cancelled": 1})
        assert len(worker.jobs) == 1


def test_problem_taken_by_another_is_neither_queued_nor_ended_by_the_one_before(store: ServiceStore) -> None:
    """Nor once more by itself, where it was done and the answer to the commit was lost."""
    job_id = store.jobs.add(NEW)
    first = store.jobs.take(DEVICE.slug, "one")
    assert first is not None
    store.jobs.requeue(first[1], 1.0, "")
    second = store.jobs.take(DEVICE.slug, "two")
    assert second is not None
    store.jobs.requeue(first[1], 1.0, "")
    store.jobs.end(first[1], JobState.FAILED)
    assert store.jobs.take(DEVICE.slug, "three") is None
    store.jobs.end(second[1], JobState.DONE)
    found = store.jobs.get(job_id)
    assert found is not None
    assert found.state is JobState.DONE


def test_problem_of_an_unknown_family_fails_and_the_others_continue(store: ServiceStore) -> None:
    requests = tuple(Request(problem=GemmProblem(m=size, n=96, k=96)) for size in (32, 64))
    mixed, good = store.jobs.add(dataclasses.replace(NEW, requests=requests)), store.jobs.add(NEW)
    store.write(lambda session: session.execute(update(ProblemRow).where(ProblemRow.m == 32).values(family="fft")))
    taken = [store.jobs.take(DEVICE.slug, "one") for _ in range(2)]
    assert [(found[0].id, found[1].number) for found in taken if found] == [(mixed, 1), (good, 0)]
    assert taken[0] is not None
    store.jobs.end(taken[0][1], JobState.DONE)
    [job] = [job for job in store.jobs.newest(9) if job.id == mixed]
    assert (job.state, job.counts) == (JobState.FAILED, {"failed": 1, "done": 1})
    assert "fft" in job.message


def test_trial_in_flight_while_the_database_was_away_is_not_to_blame(
    store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, losses = threading.Event(), iter([True])
    write, write_together, requeue = ServiceStore.write, Together.write, JobLedger.requeue

    def written(*work: Any, **how: Any) -> Any:
        if away.is_set():
            raise StoreError("the database is away")
        return write(*work, **how)

    def requeued(*how: Any) -> None:
        away.clear()
        requeue(*how)

    def work(job: Job) -> float:
        if next(losses, False):
            away.set()
        return invented_time(job)

    monkeypatch.setattr(ServiceStore, "write", written)
    monkeypatch.setattr(Together, "write", lambda *work: not away.is_set() and write_together(*work))
    monkeypatch.setattr(JobLedger, "requeue", requeued)
    store.add_device(DEVICE)
    job_id = store.jobs.add(NEW)
    worker = FakeWorker(work)
    for _ in range(2):
        a_search(store).run(worker)
    assert next(losses, None) is None
    assert store.jobs.get(job_id).state is JobState.DONE  # type: ignore[union-attr]
    assert store.in_flight() == [] == store.quarantined()


def test_only_problems_without_a_search_are_queued_again(store: ServiceStore) -> None:
    jobs = [store.jobs.add(NEW) for _ in range(3)]
    taken = [store.jobs.take(DEVICE.slug, "one") for _ in jobs]
    searched = [found[1].id for found in taken[:2] if found]
    store.jobs.cancel(jobs[0])
    assert store.jobs.recover(searched) == 1
    states = [store.jobs.get(job_id).problems[0].state for job_id in jobs]  # type: ignore[union-attr]
    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED]


def test_stopped_search_leaves_its_problem_to_the_next_service(store: ServiceStore) -> None:
    def stopping(job: Job) -> float:
        raise Stopping

    store.add_device(DEVICE)
    store.jobs.add(NEW)
    a_search(store).run(FakeWorker(stopping))
    assert store.jobs.waiting() == {(DEVICE.slug, "")}
    assert store.in_flight() == [] == store.quarantined()


def test_only_devices_that_cannot_be_used_count_against_a_problem(store: ServiceStore) -> None:
    def unusable(job: Job) -> float:
        raise WorkerError(f"no device {job.selector}")

    store.add_device(DEVICE)
    job_id = store.jobs.add(NEW)
    for _ in range(4):  # as often as services were started anew
        assert store.jobs.take(DEVICE.slug, "one") is not None
        store.jobs.recover()
    troubles, states = 0, []
    for is_lost in (False, True, False, False):
        search = a_search(store, troubles)
        search.is_device_lost = is_lost
        search.run(FakeWorker(unusable))
        troubles += search.is_troubled
        states.append(store.jobs.get(job_id).problems[0].state)  # type: ignore[union-attr]
    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.QUEUED, JobState.FAILED]


def test_database_server_may_start_after_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([DatabaseAwayError("cannot reach it"), DatabaseAwayError("cannot reach it"), None])

    def opened(place: str) -> ServiceStore:
        error = next(answers)
        if error:
            raise error
        return open_store(place)

    open_store = ServiceStore.open
    monkeypatch.setattr(ServiceStore, "open", opened)
    monkeypatch.setattr(serve, "OPENING_PAUSE_S", 0.0)
    with serve.open_patiently(str(tmp_path / "db.sqlite")) as store:
        assert store.in_flight() == []
    assert capsys.readouterr().err.count("cannot reach it; trying again for up to 300 s") == 2
    monkeypatch.setattr(store_module, "AWAY_PATIENCE_S", -1.0)
    answers = iter([DatabaseAwayError("cannot reach it")])
    with pytest.raises(DatabaseAwayError):
        serve.open_patiently(str(tmp_path / "db.sqlite"))


@pytest.mark.parametrize("submit", [lambda client: client.upload(b"{}"), lambda client: client.submit(DEVICE.slug)])
def test_submission_is_sent_once_where_the_connection_breaks(submit: Callable[[Client], object]) -> None:
    """A call over a connection that was kept open is repeated else."""
    asked: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):  # once it is closed
            while True:
                answer(listening.accept()[0])

    def answer(connection: socket.socket) -> None:
        """Whatever is asked, until it is told something."""
        with connection, connection.makefile("rwb") as stream:
            while (line := stream.readline()).startswith(b"GET"):
                while stream.readline().strip():
                    pass
                stream.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"jobs":[]}')
                stream.flush()
            asked.extend([line] if line else [])

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        with Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            assert client.jobs() == []
            with pytest.raises(UnreachableError):
                submit(client)
    assert len(asked) == 1


@pytest.mark.long
@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable"])
def test_follower_continues_when_the_service_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Meanwhile a proxy says that nothing is there, or the service that its database is away."""
    monkeypatch.setattr("autotune.service.remote.client.RETRY_S", 0.02)
    port = free_port()
    names: list[str] = []

    def follow(client: Client, job_id: int) -> None:
        for event in client.follow(job_id):
            names.append(event.name)

    with ThreadPoolExecutor(1) as threads:
        with serving(tmp_path / "db.sqlite", port=port) as server, Client(server.url) as client:
            job = submitted(server, client)
            following = threads.submit(follow, Client(server.url), job["id"])
            wait_for(lambda: names)
        with closing(socket.create_server(("127.0.0.1", port))) as proxy:
            connection, _ = proxy.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        with serving(tmp_path / "db.sqlite", port=port) as server, offering(server.url):
            following.result(HANG_S)
    assert "problem_finished" in names
