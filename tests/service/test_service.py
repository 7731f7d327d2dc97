"""The service with invented devices: real HTTP, real database, the real worker's side, times by a formula."""

import io
import json
import re
import socket
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from autotune.cli import main
from autotune.codec import Node
from autotune.display.progress import PlainProgress
from autotune.errors import RefusedError, ServiceError, StoreError, TableError
from autotune.export.contents import read_tables
from autotune.export.text_tables import write_json
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.events import Event, ProblemFinished, ProblemStarted, TrialFinished
from autotune.model.trial import Job, Request, Trial, TrialState
from autotune.search import Budget, tune
from autotune.search.place import Helpers
from autotune.service import fleet
from autotune.service.remote import Client
from autotune.service.remote.events import Follower
from autotune.service.remote.wire import plain_job, plain_trial, read_job, read_trial
from autotune.service.remote.worker import Offer
from autotune.service.server import ServeOptions, Server, serve
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, JobLedger, JobState, NewJob
from autotune.store import Holder, new_owner
from factories import Run
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_service import (
    HandMade,
    Paused,
    ended,
    in_thread,
    invented_time,
    invented_worker,
    offering,
    serving,
    submitted,
)
from waiting import HANG_S, wait_for

DEVICE = INVENTED_PROCESSOR
SHAPE = "96,96,96"
PROBLEM = GemmProblem(m=96, n=96, k=96)


def _winners(store: ServiceStore) -> list[tuple[str, str, float]]:
    return [(w.problem.label, str(w.configuration), w.time_ns) for w in store.best() if w.is_final]


@pytest.mark.long
def test_job_stores_what_a_local_run_stores(server: Server, client: Client, db_file: Path, tmp_path: Path) -> None:
    with offering(server.url) as worker:
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=15, algorithms=["microtile", "naive"])
        assert job["state"] == "queued"
        assert ended(client, job["id"])["state"] == "done"
    with ServiceStore.open(tmp_path / "local.sqlite") as local, ServiceStore.open(db_file) as stored:
        here = FakeWorker(invented_time)
        names = ["microtile", "naive"]
        tune(DEVICE, [Request(problem=PROBLEM)], local, Budget(trials=15), algorithms=names, worker=here)
        searched = [s.trial.configuration for s in stored.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
        assert searched == [s.trial.configuration for s in local.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
        assert _winners(stored) == _winners(local) != []
        assert stored.in_flight() == [] == stored.quarantined()
        assert len(worker.jobs) == stored.trial_counts(DEVICE.slug).total


def test_events_describe_the_search_in_order_and_end(server: Server, client: Client) -> None:
    with offering(server.url):
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=4, algorithms=["microtile"])
        events = list(client.follow(job["id"]))
    names = [event.name for event in events]
    assert names[0] == "job"
    assert events[-1].data["state"] == "done"
    assert names.index("finals_started") < names.index("problem_finished")
    told = [event.data for event in events if event.name == "trial_finished"]
    assert [data["new_trials"] for data in told] == sorted(data["new_trials"] for data in told)
    outcome = next(event.data["outcome"] for event in events if event.name == "problem_finished")
    assert outcome["winner"]["problem"] == PROBLEM.to_dict()


def _progress(client: Client, job_id: int) -> Any:
    """The latest event of each name."""
    return client.job(job_id)["problems"][0]["progress"]


@pytest.mark.long
def test_late_follower_gets_the_search_so_far(server: Server, client: Client) -> None:
    paused, told = Paused(at=5), list[Event]()
    with offering(server.url, work=paused):
        job = client.submit(DEVICE.slug, shapes=["96,96,96 x3 late"], trials=9, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        wait_for(lambda: _progress(client, job["id"])["trial_finished"]["new_trials"] == 4)
        follower = Follower(job, told.append, lambda _: None)
        for event in client.follow(job["id"]):
            follower.take(event)
            paused.goes_on.set()
    started, trial, *later = told
    request = Request(problem=PROBLEM, calls=3, label="late")
    assert isinstance(started, ProblemStarted) and isinstance(trial, TrialFinished)
    assert (started.request, started.number, started.total, trial.new_trials) == (request, 1, 1, 4)
    trials = [event.new_trials for event in later if isinstance(event, TrialFinished)]
    assert trials == sorted(trials) and trials[-1] == 9
    assert isinstance(later[-1], ProblemFinished)
    assert later[-1].outcome.winner is not None


@pytest.mark.long
def test_equal_devices_share_a_job(server: Server, client: Client) -> None:
    """While the first is at its first problem, the second searches the three others."""
    works = first, second = Paused(), Paused()
    with offering(server.url, "one", first), offering(server.url, "two", second):
        shapes = [f"{size},{size},64" for size in (32, 48, 64, 80)]
        job = client.submit("pocl-invented", shapes=shapes, trials=3, algorithms=["microtile"])
        for work in works:
            assert work.begun.wait(HANG_S)
        second.goes_on.set()
        wait_for(lambda: client.job(job["id"])["counts"] == {"running": 1, "done": 3})
        first.goes_on.set()
        found = ended(client, job["id"])
    assert Counter(problem["worker"] for problem in found["problems"]) == {"one": 1, "two": 3}
    assert found["counts"] == {"done": 4}


def both_work_on(client: Client, job: Any) -> None:
    """Wait until both devices are at the search of that job."""
    wait_for(lambda: [s["job"] for s in client.devices()[-1]["stations"]] == [job["id"]] * 2)


@pytest.mark.long
def test_equal_devices_share_one_search(server: Server, client: Client) -> None:
    default, own, helps = Paused(), Paused(at=2), Paused(at=2)
    with (
        offering(server.url, "one", lambda job: default(job) and own(job)) as one,
        offering(server.url, "two", helps) as two,
    ):
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=30, algorithms=["microtile"])
        both_work_on(client, job)
        default.goes_on.set()
        assert own.begun.wait(HANG_S) and helps.begun.wait(HANG_S), "both measure at the same time"
        own.goes_on.set()
        helps.goes_on.set()
        found = ended(client, job["id"])
        wait_for(lambda: {s["state"] for s in client.devices()[-1]["stations"]} == {"idle"})
    assert found["state"] == "done"
    assert min(len(one.jobs), len(two.jobs)) > 1
    store = server.service.store
    searched = [s.trial.configuration for s in store.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
    assert len(searched) == len(set(searched)) == 31  # and the baseline
    assert store.in_flight() == [] == store.quarantined()
    assert len(one.jobs) + len(two.jobs) == store.trial_counts(DEVICE.slug).total


@pytest.mark.long
def test_device_with_another_driver_helps_no_search(server: Server, client: Client) -> None:
    paused = Paused()
    with offering(server.url, "one", paused):
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=3, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        other = HandMade(server.url, "two", device=replace(DEVICE, driver="another"))
        assert other.answer()["trial"] is None
        with offering(server.url, "three"):  # free later, and sent to help: the other had its chance
            expected = {"one": job["id"], "two": None, "three": job["id"]}
            wait_for(lambda: {s["worker"]: s["job"] for s in client.devices()[-1]["stations"]} == expected)
            assert other.answer()["trial"] is None
            paused.goes_on.set()
            assert ended(client, job["id"])["state"] == "done"


@pytest.mark.long
def test_helper_goes_back_to_work_of_its_own(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    default, own, helps, recall = Paused(), Paused(at=2), Paused(), Helpers.recall_one

    def recalled(helpers: Helpers) -> None:
        recall(helpers)
        helps.goes_on.set()

    monkeypatch.setattr(Helpers, "recall_one", recalled)
    with offering(server.url, "one", lambda job: default(job) and own(job)), offering(server.url, "two", helps):
        first = client.submit(DEVICE.slug, shapes=[SHAPE], trials=2000, algorithms=["microtile"])
        both_work_on(client, first)
        default.goes_on.set()
        assert own.begun.wait(HANG_S) and helps.begun.wait(HANG_S)
        second = client.submit(DEVICE.slug, shapes=["64,64,64"], trials=3, algorithms=["microtile"])
        assert ended(client, second["id"])["state"] == "done"
        assert client.job(first["id"])["state"] == "running"
        client.cancel(first["id"])
        own.goes_on.set()
        wait_for(lambda: {s["state"] for s in client.devices()[-1]["stations"]} == {"idle"})


def test_cancelling_stops_after_the_running_trial(server: Server, client: Client) -> None:
    paused = Paused(at=3)
    with offering(server.url, work=paused) as worker:
        job = client.submit(DEVICE.slug, shapes=[SHAPE, "64,64,64"], trials=1000)
        assert paused.begun.wait(HANG_S)
        client.cancel(job["id"])
        paused.goes_on.set()
        found = ended(client, job["id"])
        assert found["state"] == "cancelled"
        assert found["counts"] == {"cancelled": 2}
        wait_for(lambda: not server.service.searches)
    assert len(worker.jobs) == 3
    store = server.service.store
    assert store.in_flight() == [] == store.quarantined()
    assert store.trial_counts(DEVICE.slug).total == 3


@pytest.mark.long
def test_restarted_service_continues_where_it_was(db_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(at=4)
    with serving(db_file) as first, Client(first.url) as client, offering(first.url, work=paused) as worker:
        monkeypatch.setattr(worker, "close", paused.goes_on.set)  # its fourth trial is broken off
        job = client.submit(DEVICE.slug, shapes=[SHAPE, "64,64,64"], trials=12, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
    with ServiceStore.open(db_file) as store:
        assert store.in_flight() == [] == store.quarantined()
        again = store.jobs.get(job["id"])
        assert again is not None
        assert [problem.state.value for problem in again.problems] == ["queued", "queued"]
    with serving(db_file) as second, Client(second.url) as client, offering(second.url) as worker:
        assert ended(client, job["id"])["state"] == "done"
    with ServiceStore.open(db_file) as store:
        trials = store.trials(DEVICE.slug, "gemm", PROBLEM)
        search = [s.trial.configuration for s in trials if s.purpose == "search"]
        assert len(search) == len(set(search)) == 13  # and the baseline
        stored = store.trial_counts(DEVICE.slug).total
        assert stored - len(worker.jobs) == 3


def test_answers_are_sent_without_delay(server: Server) -> None:
    for listening in server.servers[0].sockets:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_second_service_at_a_port_in_use_touches_nothing(server: Server, client: Client) -> None:
    worker = HandMade(server.url)
    job = submitted(server, client)
    worker.turn()
    port = int(server.url.rpartition(":")[2])
    store = server.service.store
    with pytest.raises(ServiceError, match="cannot serve"):
        serve(ServeOptions(port=port), store, lambda _: None)
    assert store.jobs.get(job["id"]).problems[0].state is JobState.RUNNING  # type: ignore[union-attr]


def test_second_service_on_the_same_database_is_refused_until_the_first_has_ended(db_file: Path) -> None:
    link = db_file.with_name("another.sqlite")
    link.symlink_to(db_file)
    with ServiceStore.open(link) as store:
        with serving(db_file), pytest.raises(StoreError, match=r"another service is using .*--db"):
            serve(ServeOptions(port=0), store, lambda _: None)
        with store.claimed():
            pass


def test_cancelled_job_is_not_taken_and_open_ones_are_settled(db_file: Path) -> None:
    with ServiceStore.open(db_file) as store:
        new = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=(Request(problem=PROBLEM),), trials=1)
        first, second = store.jobs.add(new), store.jobs.add(new)
        with closing(sqlite3.connect(db_file)) as connection:
            connection.execute("UPDATE jobs SET state = 'cancelled' WHERE id = ?", (first,))
            connection.execute("UPDATE job_problems SET state = 'done' WHERE job_id = ?", (second,))
            connection.commit()
        assert store.jobs.waiting() == set()
        assert store.jobs.take(DEVICE.slug, "w1") is None
        assert store.jobs.recover() == 0
        assert store.jobs.get(first).counts == {"cancelled": 1}  # type: ignore[union-attr]
        assert store.jobs.get(second).state is JobState.DONE  # type: ignore[union-attr]
        assert store.jobs.open_counts() == (0, 0)


@pytest.mark.long
def test_trial_lost_with_its_worker_is_quarantined_and_the_job_continues(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "DOUBT_S", 0.0)
    job = submitted(server, client)
    gone = HandMade(server.url)
    lost = gone.turn()
    assert gone.answer(running=lost["id"])["trial"] is None
    again = HandMade(server.url)  # the same worker after a reboot: another process
    store = server.service.store
    wait_for(lambda: len(store.quarantined()) == 1)
    assert store.quarantined()[0].reason == "lost"
    assert store.quarantined()[0].configuration == Configuration.from_dict(lost["job"]["configuration"])
    assert store.in_flight() == []
    again.serve_until_ended(client, job)
    measured = {str(s.trial.configuration) for s in store.trials(DEVICE.slug, "gemm")}
    assert str(Configuration.from_dict(lost["job"]["configuration"])) not in measured


@pytest.mark.long
def test_late_result_clears_a_lost_trial(db_file: Path) -> None:
    with serving(db_file) as first, Client(first.url) as client:
        job = submitted(first, client)
        worker = HandMade(first.url)
        given = worker.turn()
    with ServiceStore.open(db_file) as store:  # as if the service had been killed: what it had in flight is lost
        device = store.devices()[-1]
        owner = new_owner(Holder(worker="w1", session=""))
        configuration = Configuration.from_dict(given["job"]["configuration"])
        store.begin_trial(device, PROBLEM, configuration, owner)
        store.lose_trials(owner, "killed")
        assert len(store.quarantined()) == 1
        with serving(db_file) as second, Client(second.url) as client:
            back = HandMade(second.url, session=worker.session)
            assert back.answer(running=given["id"])["trial"] is None
            assert client.devices()[-1]["stations"][0]["state"] == "busy"  # nothing is given before it is through
            result = back.result(given, time_ns=123.0)
            for _ in range(2):  # told again, it is not another trial
                back.answer(results=(result,))
            assert store.quarantined() == []
            [late] = store.trials(DEVICE.slug, "gemm")
            assert (late.trial.configuration, late.trial.time_ns, late.purpose) == (configuration, 123.0, "search")
            assert late.provenance.driver == DEVICE.driver
            back.serve_until_ended(client, job)
            assert client.job(job["id"])["state"] == "done"
            searched = [s.trial.configuration for s in store.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
            assert searched.count(configuration) == 1


@pytest.mark.long
def test_result_that_was_taken_and_not_stored_is_delivered_again(server: Server, client: Client, db_file: Path) -> None:
    with offering(server.url) as worker, ServiceStore.open(db_file) as store:
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=3, algorithms=["microtile"])
        ended(client, job["id"])
        wait_for(lambda: [s["state"] for s in client.devices()[-1]["stations"]] == ["idle"])
        owner = new_owner(Holder(worker="w1", session=""))  # as if the service had been killed between taking and
        store.begin_trial(DEVICE, PROBLEM, worker.jobs[-1].configuration, owner)  # storing the last result
        store.lose_trials(owner, "killed")
        assert len(store.quarantined()) == 1
        stored = len(store.trials(DEVICE.slug, "gemm"))
        client.forget_worker("w1")  # which it shows by its next turn, and offers its device again
        wait_for(lambda: store.quarantined() == [])
        assert len(store.trials(DEVICE.slug, "gemm")) == stored, "what was searched already is not searched twice"


def test_trial_is_given_until_it_has_arrived_and_its_result_counts_once(server: Server, client: Client) -> None:
    job = submitted(server, client)
    worker = HandMade(server.url)
    given = worker.turn()
    assert worker.turn() == given  # the answer before was lost on its way
    result = worker.result(given)
    following = worker.turn(results=(result,))
    assert following["id"] != given["id"]
    assert worker.turn(results=(result,)) == following  # the answer before was lost on its way
    store = server.service.store
    assert store.trial_counts(DEVICE.slug).total == 1
    client.cancel(job["id"])
    worker.answer(results=(worker.result(following),))


def test_result_of_a_trial_that_was_never_given_is_not_stored(server: Server, client: Client) -> None:
    server.service.store.add_device(DEVICE)
    worker = HandMade(server.url)
    job = Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline)
    worker.answer(results=(worker.result({"id": "0" * 16, "job": plain_job(job)}),))
    store = server.service.store
    assert store.trials(DEVICE.slug, "gemm") == []


def test_queue_is_asked_once_for_equal_devices_when_it_is_empty(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, asked = JobLedger.take, []

    def counted(*given: Any, **named: Any) -> Any:
        found = take(*given, **named)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(JobLedger, "take", counted)
    workers = [HandMade(server.url, f"w{number}") for number in range(8)]
    for worker in workers:
        assert worker.answer()["trial"] is None
    job = submitted(server, client)
    wait_for(lambda: bool(client.job(job["id"])["counts"].get("running")))
    wait_for(lambda: sum(station["state"] == "busy" for station in client.devices()[-1]["stations"]) == len(workers))
    assert asked == [True, False]
    client.cancel(job["id"])


def test_silent_worker_is_lost(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submitted(server, client)
    worker = HandMade(server.url)
    worker.turn()
    monkeypatch.setattr(fleet, "SILENT_S", 0.0)
    store = server.service.store
    wait_for(lambda: bool(store.quarantined()))
    with pytest.raises(RefusedError) as refused:
        worker.answer()
    assert refused.value.status == 404
    assert client.devices()[0]["state"] == "offline"
    assert client.job(job["id"])["state"] == "running"  # and waits for a device


def test_unreadable_result_troubles_the_worker_and_blames_no_trial(server: Server, client: Client) -> None:
    submitted(server, client)
    worker = HandMade(server.url)
    given = worker.turn()
    bad = worker.result(given)
    bad["trial"]["measurement"]["time_ns"] = -1
    worker.answer(results=(bad,))
    station = client.devices()[0]["stations"][0]
    assert station["state"] == "troubled"
    assert "time_ns" in station["trouble"]
    store = server.service.store
    wait_for(lambda: store.in_flight() == [])
    assert store.quarantined() == []


def test_trial_that_a_worker_breaks_off_as_it_ends_is_not_to_blame(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, killed = threading.Event(), threading.Event()

    def broken_off(_: Job) -> TrialState:
        begun.set()
        assert killed.wait(HANG_S)
        return TrialState.CRASHED

    worker = FakeWorker(broken_off)
    monkeypatch.setattr(worker, "close", killed.set)
    offer = Offer(invented_worker(server.url), DEVICE, worker, lambda _: None)
    with in_thread(offer):
        job = submitted(server, client)
        assert begun.wait(HANG_S)
    wait_for(lambda: not client.job(job["id"])["counts"].get("running"))
    assert client.job(job["id"])["counts"] == {"queued": 1}
    stored = server.service.store
    assert stored.quarantined() == [] == stored.trials(DEVICE.slug, "gemm")


@pytest.mark.long
def test_second_worker_with_the_same_identity_is_refused_and_the_first_continues(
    server: Server, client: Client
) -> None:
    """As where an image of a machine was copied, with the files that its worker keeps."""
    with offering(server.url, "same") as first:
        with pytest.raises(RefusedError, match="--name") as refused:
            HandMade(server.url, "same")
        assert refused.value.status == 403
        job = client.submit(DEVICE.slug, shapes=[SHAPE], trials=3, algorithms=["microtile"])
        assert ended(client, job["id"])["state"] == "done"
        assert first.jobs


@pytest.mark.long
def test_uploaded_table_counts_only_after_it_was_measured(server: Server, client: Client, tmp_path: Path) -> None:
    other = ServiceStore.open(tmp_path / "other.sqlite")
    problems = [PROBLEM, GemmProblem(m=64, n=64, k=64)]
    requests = [Request(problem=problem) for problem in problems]
    fake = FakeWorker(invented_time)
    tune(DEVICE, requests, other, Budget(trials=12), algorithms=["microtile"], worker=fake)
    tables = read_tables(other, None, "gemm")
    boasting = [replace(w, time_ns=w.time_ns / 100, baseline_ns=None) for w in tables[0].winners]
    claimed = write_json([replace(tables[0], winners=tuple(boasting))]).encode()
    answer = client.upload(claimed)
    assert answer == {"jobs": [1], "accepted": 2, "left_out": 0}
    assert client.lookup(DEVICE.slug, SHAPE)["match"] == "presumed"
    with offering(server.url):
        found = ended(client, 1)
    assert found["counts"] == {"done": 2}
    told = {p["shape"]: p["outcome"]["winner"]["time_ns"] for p in found["problems"]}
    wait_for(lambda: client.lookup(DEVICE.slug, SHAPE)["match"] == "exact")
    assert client.lookup(DEVICE.slug, SHAPE)["time_ns"] == told["96x96x96"] > boasting[0].time_ns
    assert client.upload(client.export("json"))["accepted"] == 0  # all of it holds here
    other.close()


@pytest.mark.long
def test_commands_talk_to_the_service(server: Server, run: Run, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("# of a net\n64,64,64 x3 first layer\n")
    to = ["--server", server.url]
    assert "there are no jobs yet" in run(["jobs", *to]).err
    assert "the service has nothing at this address" in run(["jobs", "--server", f"{server.url}/elsewhere"], 1).err
    with offering(server.url):
        tuned = ["--device", "cpu", "--shapes", str(shapes), "--shape", SHAPE, "--trials", "3"]
        outcomes = json.loads(run(["run", *to, *tuned, "--json"]).out)
        assert outcomes["device"] == DEVICE.slug
        assert {o["label"]: o["calls"] for o in outcomes["outcomes"]} == {"": 1, "first layer": 3}
        assert all(outcome["winner"]["is_final"] for outcome in outcomes["outcomes"])
        assert main(["submit", *to, "--device", "cpu", "--preset", "bert-base", "--trials", "50"]) == 0
        assert main(["cancel", "2", *to]) == 0
        assert main(["jobs", "2", "--follow", *to]) == 1
    told = run(["jobs", *to])
    assert "job 2: tune on pocl-invented: cancelled" in told.out
    assert "job 1: tune on pocl-invented: done (2 done)" in told.out
    assert "there is no job 99" in run(["jobs", "99", *to], 1).err
    assert main(["run", *to, "--device", "cpu", "--misses"]) == 2


@pytest.mark.long
def test_followed_job_shows_the_lines_of_a_local_run(
    server: Server, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ending(job: Job) -> float | TrialState:
        return invented_time(job) if job.configuration.algorithm == "microtile" else TrialState.CRASHED

    def lines(text: str) -> list[str]:
        """All but how long the rest will take, and the gain that a model, fitted in each process, expects."""
        return [re.sub(r", about \S+ of trials to go|(?<=may still gain )\d+%", "", line) for line in text.splitlines()]

    names, local, request = ["microtile", "naive"], io.StringIO(), Request(problem=PROBLEM, calls=2, label="fc")
    with ServiceStore.open(tmp_path / "local.sqlite") as store:
        listener = PlainProgress(Budget(trials=30), local)
        tune(DEVICE, [request], store, Budget(trials=30), listener, algorithms=names, worker=FakeWorker(ending))
    server.service.store.add_device(DEVICE)
    job = client.submit(DEVICE.slug, shapes=[f"{SHAPE} x2 fc"], trials=30, algorithms=names)
    with ThreadPoolExecutor(1) as threads:
        followed = threads.submit(main, ["jobs", str(job["id"]), "--follow", "--server", server.url])
        wait_for(lambda: any(channel._shown for channel in server.service.feed._channels.values()))
        with offering(server.url, work=ending):
            assert followed.result(HANG_S) == 0
    waiting, *told = lines(capsys.readouterr().err)
    assert waiting == f"job {job['id']} waits for {DEVICE.slug}"
    assert told == lines(local.getvalue())
    assert len(told) > 5 and any("may still gain" in line for line in told)


@pytest.mark.parametrize(
    "given",
    [["--until-gain", "1%"], ["--sampler", "tpe"], ["--sampler-options", "{}"], ["--sampler", "tpe", "--misses"]],
)
def test_options_that_a_service_does_not_take_are_refused(given: list[str], run: Run) -> None:
    told = run(["run", "--server", "http://127.0.0.1:1", "--device", "cpu", "--shape", SHAPE, *given], 2).err
    assert all(word in told for word in given if word.startswith("--"))


def test_job_is_sent_without_kernel_device_or_options() -> None:
    job = Job(
        selector="3:1", problem=PROBLEM, configuration=FAMILY.baseline, build_options=("-DX",), seed=5,
        min_sample_ticks=250, agreement=0.02,
    )  # fmt: skip
    plain = plain_job(job)
    assert "-DX" not in json.dumps(plain)
    assert "3:1" not in json.dumps(plain)
    assert read_job(Node(plain, "job"), "3:1", ("-DX",)) == job


def test_every_field_of_a_job_is_sent_or_the_workers_own() -> None:
    plain = plain_job(Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline))
    own = {"selector", "build_options", "source", "binary"}
    assert set(plain) - {"family"} == {field.name for field in fields(Job)} - own


@pytest.mark.parametrize(
    "change",
    [
        {"build_options": ["-include /etc/passwd"]},
        {"source": "__kernel void gemm() {}"},
        {"family": "../gemm"},
        {"configuration": {"algorithm": "naive; rm"}},
        {"configuration": {"algorithm": "microtile", "micro_tile_m": "4\n#include"}},
        {"problem": {"m": "{{ 7 * 7 }}", "n": 1, "k": 1}},
        {"problem": {"m": 1, "n": 1, "k": 1, "mode": "float32 */ int"}},
        {"samples": 10**9},
        {"seed": -1},
        {"min_sample_ticks": -1},
        {"agreement": -0.1},
        {"agreement": 2},
        {"build_limit_s": 10**400},
        {"agreement": False},
    ],
)
def test_worker_refuses_undeclared_values(change: dict[str, Any]) -> None:
    plain = plain_job(Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline))
    with pytest.raises(TableError):
        read_job(Node(plain | change, "job"), "0:0", ())


@pytest.mark.parametrize(
    "change",
    [
        {"state": "fine"},
        {"state": "crashed"},
        {"message": "\x1b[2J"},
        {"measurement": None},
        {"more": 1},
    ],
)
def test_service_refuses_malformed_results(change: dict[str, Any]) -> None:
    job = Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline)
    measured = FakeWorker(lambda _: 5.0).run(job)
    assert read_trial(Node(plain_trial(measured), "trial"), job) == measured
    failed = Trial(configuration=job.configuration, state=TrialState.CRASHED, message="a\nb")
    assert read_trial(Node(plain_trial(failed), "trial"), job).message == "a b"
    with pytest.raises(TableError):
        read_trial(Node(plain_trial(measured) | change, "trial"), job)


@pytest.mark.parametrize("samples", [[], [0.0], [5.0, -5.0], [10**400]])
def test_results_without_true_samples_are_refused(samples: list[float]) -> None:
    job = Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline)
    plain = plain_trial(FakeWorker(lambda _: 5.0).run(job))
    plain["measurement"]["samples_ns"] = samples
    with pytest.raises(TableError, match="samples_ns"):
        read_trial(Node(plain, "trial"), job)
