"""Several services on one PostgreSQL: who searches what, what they tell each other, and what a stopped one may not."""

import asyncio
import dataclasses
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("procrastinate")

from autotune.errors import RefusedError, StoreError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.trial import Job, Request
from autotune.service import membership as membership_module
from autotune.service import neighbours
from autotune.service.events import Feed
from autotune.service.fleet import Fleet
from autotune.service.forms import MAX_WORKER_NAME
from autotune.service.membership import Membership
from autotune.service.neighbours import Neighbours
from autotune.service.remote import Client
from autotune.service.remote.worker import Offer
from autotune.service.server import Server
from autotune.service.store import ServiceStore, shared_queue
from autotune.service.store.jobs import JobKind, JobLedger, JobProblem, JobState, NewJob
from autotune.service.store.notices import MAX_BYTES, Notices
from autotune.service.store.shared_queue import Held, SharedQueue
from autotune.service.store.workers import model_of
from autotune.store import Attempt, Holder, new_owner
from autotune.testing import INVENTED_PROCESSOR, FakeWorker
from databases import Server as Database
from databases import connect, rows
from invented_service import (
    HandMade,
    Paused,
    ended,
    invented_time,
    invented_worker,
    offering,
    secret_of,
    serving,
)
from ports import free_port
from waiting import HANG_S, join, wait_for

DEVICE = INVENTED_PROCESSOR
REQUESTS = tuple(Request(problem=GemmProblem(m=size, n=96, k=96)) for size in (96, 112, 128))
NEW = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=REQUESTS, trials=3)
HASTY = """
import sys
from autotune.cli import main
from autotune.service import membership
membership.BEAT_S, shared_queue.STALLED_S = 0.5, 3.0
sys.exit(main(sys.argv[1:]))
"""
"""A service whose heart beats faster, and that is given up sooner."""


@pytest.fixture
def stores(postgresql: str) -> Iterator[tuple[ServiceStore, ServiceStore]]:
    """Of two services."""
    with ServiceStore.open(postgresql) as one, ServiceStore.open(postgresql) as two:
        one.add_device(DEVICE)
        yield one, two


def taken(store: ServiceStore, model: str = "") -> JobProblem:
    found = store.jobs.take(DEVICE.slug, "w1", model)
    assert found is not None
    return found[1]


def states(store: ServiceStore, job_id: int) -> list[str]:
    found = store.jobs.get(job_id)
    assert found is not None
    return [problem.state.value for problem in found.problems]


def begin(store: ServiceStore, problem: JobProblem) -> None:
    holder = Holder(worker="w1", session="s", attempt=Attempt(problem=problem.id, number=problem.attempts))
    store.begin_trial(DEVICE, problem.request.problem, FAMILY.baseline, new_owner(holder))


def entries(place: str) -> list[Any]:
    return rows(place, "SELECT queue_name, status FROM procrastinate_jobs ORDER BY id")


@pytest.mark.long
def test_each_problem_is_taken_by_one_service_in_order(stores: tuple[ServiceStore, ServiceStore]) -> None:
    one, two = stores
    job_id = one.jobs.add(NEW)
    numbers = [taken(store).number for store in (one, two, one)]
    assert numbers == [0, 1, 2]
    assert two.jobs.take(DEVICE.slug, "w1") is None
    assert one.jobs.recover() == 2  # what it has, and no search works on
    assert states(one, job_id) == ["queued", "running", "queued"]


@pytest.mark.long
def test_the_queue_forgets_what_has_ended(stores: tuple[ServiceStore, ServiceStore], postgresql: str) -> None:
    one, two = stores
    job_id = one.jobs.add(NEW)
    first, second = taken(one), taken(two)
    one.jobs.end(first, JobState.DONE)
    two.jobs.requeue(second, 1.0, "")
    assert entries(postgresql) == [(DEVICE.slug, "todo")] * 2
    one.jobs.cancel(job_id)
    assert entries(postgresql) == []
    assert states(one, job_id) == ["done", "cancelled", "cancelled"]


@pytest.mark.long
def test_requeued_problem_is_taken_at_once_though_the_clock_of_a_service_is_fast(
    stores: tuple[ServiceStore, ServiceStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr("procrastinate.utils.utcnow", lambda: fast)
    one, two = stores
    one.jobs.add(NEW)
    one.jobs.requeue(taken(one), 1.0, "")
    assert taken(two).number == 0


@pytest.mark.long
def test_stalled_search_is_taken_over_and_its_first_service_can_do_nothing_more(
    stores: tuple[ServiceStore, ServiceStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    job_id = one.jobs.add(NEW)
    before = taken(one)
    begin(one, before)
    assert two.jobs.recover(None) == 0
    monkeypatch.setattr(shared_queue, "STALLED_S", 0.0)
    assert two.jobs.recover(None) == 1
    monkeypatch.undo()
    again = taken(two)
    assert (again.id, again.attempts) == (before.id, 2)
    with pytest.raises(StoreError, match="another service"):
        begin(one, before)
    one.jobs.end(before, JobState.FAILED)
    one.jobs.requeue(before, 5.0, "late")
    assert states(two, job_id) == ["running", "queued", "queued"]
    assert before.id not in one.jobs.beat().problems
    assert two.jobs.beat().problems == {before.id}
    begin(two, again)
    two.jobs.end(again, JobState.DONE)
    assert states(two, job_id)[0] == "done"


@pytest.mark.long
def test_trial_begins_before_its_search_is_taken_away_or_not_at_all(
    stores: tuple[ServiceStore, ServiceStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    one.jobs.add(NEW)
    problem = taken(one)
    monkeypatch.setattr(shared_queue, "STALLED_S", 0.0)

    def begin_slowly(session: Any) -> None:
        from autotune.service.store.job_rows import check_attempt

        check_attempt(session.connection(), Attempt(problem=problem.id, number=problem.attempts))
        assert two.jobs.recover(None) == 0  # until the trial is in flight

    one.write(begin_slowly)
    assert two.jobs.recover(None) == 1
    with pytest.raises(StoreError, match="another service"):
        begin(one, problem)


@pytest.mark.long
@pytest.mark.parametrize("locked", ["jobs", "job_problems", "advisory"])
def test_locks_of_a_stopped_service_keep_no_other_from_its_heartbeat(
    stores: tuple[ServiceStore, ServiceStore], postgresql: str, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    one, two = stores
    one.jobs.add(NEW)
    problem = taken(one)
    assert two.jobs.recover(None) == 0
    monkeypatch.setattr(shared_queue, "STALLED_S", -1.0)
    held = {"advisory": f"SELECT pg_advisory_xact_lock({shared_queue._LOCK})"}
    with closing(connect(postgresql)) as stopped:
        stopped.execute(held.get(locked, f"SELECT id FROM {locked} FOR UPDATE"))
        assert two.jobs.recover(None) == 0
        stopped.rollback()
    assert two.jobs.recover(None) == 1
    assert taken(two).id == problem.id


@pytest.mark.long
def test_problem_that_a_service_left_in_order_is_taken_at_once(stores: tuple[ServiceStore, ServiceStore]) -> None:
    one, two = stores
    one.jobs.add(NEW)
    problem = taken(one)
    one.jobs.leave()
    assert two.jobs.recover(None) == 1
    assert taken(two).id == problem.id
    assert taken(one).number == 1  # and it may come back


@pytest.mark.long
def test_jobs_begun_on_one_driver_wait_for_it(stores: tuple[ServiceStore, ServiceStore], postgresql: str) -> None:
    one, two = stores
    one.jobs.add(NEW)
    assert taken(one, "driver-a").number == 0
    assert two.jobs.take(DEVICE.slug, "w2", "driver-b") is None
    assert entries(postgresql)[1:] == [(f"{DEVICE.slug}/driver-a", "todo")] * 2
    assert taken(two, "driver-a").number == 1


@pytest.mark.long
def test_jobs_go_on_with_the_new_driver_of_their_worker(
    stores: tuple[ServiceStore, ServiceStore], postgresql: str
) -> None:
    one, two = stores
    models = [model_of(device) for device in (DEVICE, replace(DEVICE, driver="next"))]
    one.workers.enrol("w1", "its secret", DEVICE)
    one.jobs.add(NEW)
    begun = taken(one, models[0])
    one.jobs.requeue(begun, 1.0, "")
    assert two.jobs.take(DEVICE.slug, "w2", models[1]) is None  # moves the others, too
    assert {queue for queue, _ in entries(postgresql)} == {f"{DEVICE.slug}/{models[0]}"}
    one.workers.enrol("w1", "its secret", replace(DEVICE, driver="next"))
    assert two.jobs.take(DEVICE.slug, "w1", models[1]) is None
    assert two.jobs.recover(None) == len(REQUESTS)
    assert two.jobs.recover(None) == 0
    assert [taken(two, models[1]).number for _ in REQUESTS] == [0, 1, 2]


@pytest.mark.long
def test_job_is_cancelled_in_the_queue_of_the_former_driver_too(
    stores: tuple[ServiceStore, ServiceStore], postgresql: str
) -> None:
    one, two = stores
    models = [model_of(device) for device in (DEVICE, replace(DEVICE, driver="next"))]
    one.workers.enrol("w1", "its secret", DEVICE)
    job_id = one.jobs.add(NEW)
    begun = taken(one, models[0])
    assert two.jobs.take(DEVICE.slug, "w2", models[1]) is None  # moves the others
    one.workers.enrol("w1", "its secret", replace(DEVICE, driver="next"))
    two.jobs.cancel(job_id)
    assert [status for _, status in entries(postgresql)] == ["doing"]
    assert one.jobs.beat().cancelled == {begun.id}
    one.jobs.requeue(begun, 1.0, "")
    assert entries(postgresql) == []


@pytest.mark.long
def test_jobs_of_a_service_without_a_queue_are_queued(postgresql: str) -> None:
    with ServiceStore.open(postgresql) as old:
        old.add_device(DEVICE)
        ledger = JobLedger(old)
        ledger.add(NEW)
        assert ledger.take(DEVICE.slug, "w1") is not None
    with ServiceStore.open(postgresql) as new:
        assert [taken(new).number for _ in REQUESTS] == [0, 1, 2]


@pytest.mark.long
def test_the_extra_is_named_where_procrastinate_is_missing(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "procrastinate.jobs", None)
    with ServiceStore.open(postgresql) as store, pytest.raises(StoreError, match="postgres"):
        _ = store.jobs


@contextmanager
def served(place: str) -> Iterator[tuple[Server, Client]]:
    """A service in this process."""
    with serving(place) as server, Client(server.url) as client:
        yield server, client


@pytest.mark.long
def test_job_is_submitted_and_followed_at_one_service_and_searched_by_another(postgresql: str) -> None:
    paused, names = Paused(), Counter[str]()
    with served(postgresql) as (_, here), served(postgresql) as (there, _client), ExitStack() as stack:
        stack.enter_context(offering(there.url, work=paused))
        wait_for(lambda: [device["slug"] for device in here.devices()] == [DEVICE.slug])
        job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=8, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        for event in here.follow(job["id"]):
            names[event.name] += 1
            if not paused.goes_on.is_set():
                wait_for(lambda: there.service.feed.elsewhere.wants(job["id"]))  # type: ignore[union-attr]
                paused.goes_on.set()
        assert here.job(job["id"])["state"] == "done"
    assert names["trial_finished"] >= 5
    assert rows(postgresql, "SELECT count(*) FROM procrastinate_jobs") == [(0,)]


@pytest.mark.long
def test_each_service_shows_the_workers_of_all(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ASK_S", 0.05)
    monkeypatch.setattr(neighbours, "KNOWN_S", HANG_S)
    paused = Paused()

    def stations(client: Client) -> list[dict[str, Any]]:
        return [station for device in client.devices() for station in device["stations"]]

    with served(postgresql) as (server, here), served(postgresql) as (there, other):
        with offering(there.url, "w1", paused):
            wait_for(lambda: [device["state"] for device in here.devices()] == ["idle"])
            [told], [known] = stations(here), stations(other)
            assert (told["worker"], told["service"], known["service"]) == ("w1", there.service.address, "")
            assert there.service.address.endswith(there.url.rpartition(":")[2])
            job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=1000)
            busy = wait_for(lambda: next((found for found in stations(here) if found["job"]), None))
            assert (busy["state"], busy["job"]) == ("busy", job["id"])
            assert here.job(job["id"])["model"] == busy["model"]
            here.cancel(job["id"])
            paused.goes_on.set()
            with offering(server.url, "w1"):  # it comes over
                wait_for(lambda: [station["service"] for station in stations(here)] == [""])
        monkeypatch.setattr(neighbours, "KNOWN_S", 0.5)
        wait_for(lambda: not stations(here) and not stations(other))


@pytest.mark.long
def test_worker_that_ends_while_it_is_registered_leaves_at_once(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service shows a worker before the worker has its answer."""
    with served(postgresql) as (server, here):
        add_device = server.service.store.add_device
        is_shown, may_answer = threading.Event(), threading.Event()

        def slowly(device: Any) -> None:
            is_shown.set()
            assert may_answer.wait(HANG_S)
            add_device(device)

        monkeypatch.setattr(server.service.store, "add_device", slowly)
        offer = Offer(invented_worker(server.url), DEVICE, FakeWorker(invented_time), lambda _: None)
        thread = threading.Thread(target=offer.serve, daemon=True)
        thread.start()
        assert is_shown.wait(HANG_S)
        offer.close()
        may_answer.set()
        join(thread)
        assert [station for device in here.devices() for station in device["stations"]] == []


class Bus(Notices):
    """What services send each other, who hear it when a test says so."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, notice: str) -> bool:
        self.sent.append(notice)
        return True


def test_service_is_fresh_for_a_while_after_a_heartbeat_that_was_stored() -> None:
    now, held = 1000.0, Held(problems=frozenset({1}), cancelled=frozenset())
    seen: list[tuple[str, Held, bool]] = []
    beats = iter([StoreError("the database is away")])

    def beat() -> Held:
        for error in beats:
            raise error
        return held

    jobs: Any = SimpleNamespace(beat=beat, recover=lambda _: 0)
    membership = Membership(
        jobs, lambda: "searches", lambda *given: seen.append((*given, membership.is_fresh)), lambda: now
    )
    with pytest.raises(StoreError):
        membership.beat()
    assert (membership.is_fresh, seen) == (False, [])
    membership.beat()
    assert (membership.is_fresh, seen) == (True, [("searches", held, False)]), "first it gives up what it has lost"
    now += membership_module.FRESH_SHARE * shared_queue.STALLED_S
    assert [membership.is_fresh] == [False]


def test_services_hear_of_the_stations_and_events_of_others_for_a_while() -> None:
    now, buses = 1000.0, (Bus(), Bus())
    feeds = Feed(), Feed()
    fleets = [Fleet(lambda: None, lambda *_: no_answer(), lambda *_: no_answer(), clock=lambda: now) for _ in feeds]
    here, there = (
        Neighbours(bus, feed, fleet, {}, address, lambda: now)
        for bus, feed, fleet, address in zip(buses, feeds, fleets, ("here", "there"), strict=True)
    )

    def hear() -> None:
        for bus in buses:
            while bus.sent:
                notice = bus.sent.pop(0)
                here.hear(notice)
                there.hear(notice)

    asyncio.run(fleets[1].greet("w1", secrets.token_hex(16), DEVICE, ""))
    there._send_stations()
    hear()
    now += neighbours.KNOWN_S - 1.0
    [(slug, view)] = here.with_others([])
    assert (slug, view.worker, view.service, view.heard_s) == (DEVICE.slug, "w1", "there", neighbours.KNOWN_S - 1.0)
    assert there.with_others([]) == [], "its own it knows itself"
    asyncio.run(fleets[0].greet("w1", secrets.token_hex(16), DEVICE, ""))
    own = neighbours.station_views(fleets[0], {})
    assert here.with_others(own) == own, "it has come over"
    now += 1.0
    assert here.with_others([]) == []

    here.ask([7])
    hear()
    assert there.wants(7) and not there.wants(8) and not here.wants(7)
    now += neighbours.WANTED_S
    assert not there.wants(7)


def test_notice_of_stations_is_never_too_long() -> None:
    device = replace(DEVICE, slug="x" * 64)
    fleet = Fleet(lambda: None, lambda *_: no_answer(), lambda *_: no_answer())
    sent: list[str] = []
    notices: Any = SimpleNamespace(send=sent.append)
    for number in range(20):
        name = f"{number:03d}".ljust(MAX_WORKER_NAME, "w")
        asyncio.run(fleet.greet(name, secrets.token_hex(16), replace(device, selector="9" * 20), ""))
    for station in fleet.stations():
        station.trouble = "\u00df" * 500
    Neighbours(notices, Feed(), fleet, {}, "https://" + "x" * 500)._send_stations()
    assert sum(notice.count('"worker"') for notice in sent) == 20
    assert max(len(notice) for notice in sent) <= MAX_BYTES


async def no_answer() -> Any:
    return ""


@pytest.mark.long
def test_job_is_cancelled_wherever_it_is_searched(postgresql: str) -> None:
    paused = Paused(at=2)
    with served(postgresql) as (_, here), served(postgresql) as (there, _client):
        with offering(there.url, work=paused) as worker:
            wait_for(here.devices)
            job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=1000)
            assert paused.begun.wait(HANG_S)
            here.cancel(job["id"])
            wait_for(lambda: [search.is_cancelled for search in there.service.searches.values()] == [True])
            paused.goes_on.set()
            assert ended(here, job["id"])["counts"] == {"cancelled": 1}
        assert there.service.store.in_flight() == []
        assert len(worker.jobs) == 2


@pytest.mark.long
def test_service_whose_heartbeat_is_late_gives_no_trial(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(postgresql) as (server, client):
        worker = HandMade(server.url)
        client.submit(DEVICE.slug, shapes=["96,96,96"], trials=3, algorithms=["microtile"])
        with monkeypatch.context() as late:
            late.setattr(Membership, "is_fresh", False)
            assert worker.answer()["trial"] is None
            [station] = server.service.fleet.stations()
            wait_for(lambda: station.assignment)
            assert worker.answer()["trial"] is None
        assert worker.turn()


@pytest.mark.long
def test_trial_of_a_search_that_another_service_has_taken_is_not_given(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(postgresql) as (server, client):
        worker = HandMade(server.url)
        job = client.submit(DEVICE.slug, shapes=["96,96,96"], trials=3, algorithms=["microtile"])
        store, membership = server.service.store, server.service._standing
        assert isinstance(membership, Membership)
        with monkeypatch.context() as late:
            late.setattr(Membership, "is_fresh", False)
            assert worker.answer()["trial"] is None
            [station] = server.service.fleet.stations()
            wait_for(lambda: station.assignment)
        with ServiceStore.open(postgresql) as other:
            late.setattr(shared_queue, "STALLED_S", -1.0)
            assert other.jobs.recover(None) == 1
            late.undo()
            assert taken(other, server.service.fleet.stations()[0].model_digest).attempts == 2
            membership.beat()
            assert worker.answer()["trial"] is None
            wait_for(lambda: store.in_flight() == [] and not server.service.searches)
            assert worker.answer()["trial"] is None
            assert states(other, job["id"]) == ["running"]


@pytest.mark.long
def test_worker_forgotten_at_one_service_is_lost_at_the_others(postgresql: str) -> None:
    with served(postgresql) as (here, _), served(postgresql) as (there, client):
        worker = HandMade(there.url)
        with pytest.raises(RefusedError, match="already enrolled"):
            HandMade(here.url, secret=secret_of("another"))
        with Client(here.url) as at_here:
            at_here.forget_worker("w1")
        wait_for(lambda: [device["stations"] for device in client.devices()] == [[]])
        HandMade(there.url, secret=secret_of("another"))
        with pytest.raises(RefusedError):
            worker.answer()


@pytest.mark.parametrize(
    "notice",
    [
        "", "x", "[]", "5", "null", "{}", '{"from":"x","job":Infinity}', '{"from":"x","job":NaN}',
        '{"from":"x","job":-1}', '{"from":{},"job":[]}', '{"from":"x","job":1,"event":{}}', "[" * 7900,
        '{"from":"x","job":%s}' % ("9" * 7000), "\ud800",
    ],
)  # fmt: skip
def test_malformed_notices_are_harmless(notice: str) -> None:
    fleet = Fleet(lambda: None, lambda *_: no_answer(), lambda *_: no_answer())
    Neighbours(Bus(), Feed(), fleet, {}, "here").hear(notice)


class Processes:
    """Services in processes of their own."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> str:
        port = free_port()
        where = ["serve", "--port", str(port), "--db", self._place]
        self.running.append(subprocess.Popen([sys.executable, "-c", HASTY, *where], start_new_session=True))
        return f"http://127.0.0.1:{port}"

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait(HANG_S)


@pytest.mark.long
def test_suspended_service_that_continues_launches_nothing(postgresql: str) -> None:
    """Its search goes on elsewhere meanwhile; what its worker had in hand is stored, and nothing runs twice."""
    processes, paused = Processes(postgresql), Paused()
    with ExitStack() as stack:
        stack.callback(processes.close)
        first = processes.start()
        one = stack.enter_context(Client(first))
        wait_for(lambda: one.devices() == [])
        measured: list[Job] = []

        def pausing(job: Job) -> float:
            measured.append(job)
            return paused(job) if len(measured) == 3 else invented_time(job)

        stack.enter_context(offering(first, "w1", pausing))
        job = one.submit(DEVICE.slug, shapes=["96,96,96"], trials=12, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        processes.running[0].send_signal(signal.SIGSTOP)
        second = processes.start()
        two = stack.enter_context(Client(second))
        wait_for(two.devices)
        stack.enter_context(offering(second, "w2"))
        found = wait_for(lambda: (seen := two.job(job["id"]))["state"] == "done" and seen)
        assert (found["problems"][0]["attempts"], found["problems"][0]["worker"]) == (2, "w2")
        before = len(measured)
        processes.running[0].send_signal(signal.SIGCONT)
        paused.goes_on.set()
        wait_for(lambda: one.devices()[0]["stations"][0]["state"] == "idle")
        assert len(measured) == before
        assert two.job(job["id"])["state"] == "done"
    with ServiceStore.open(postgresql) as store:
        searched = [s.trial.configuration for s in store.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
        assert len(searched) == len(set(searched))
        assert measured[2].configuration in searched
        assert store.in_flight() == [] == store.quarantined()


@pytest.mark.long
def test_all_services_wait_for_a_database_that_restarts(postgresql_server: Database, postgresql: str) -> None:
    with served(postgresql) as (_, here), served(postgresql) as (there, _client):
        paused = Paused(at=3)
        with offering(there.url, work=paused):
            wait_for(here.devices)
            job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=20, algorithms=["microtile"])
            assert paused.begun.wait(HANG_S)
            postgresql_server.stop(signal.SIGQUIT)
            postgresql_server.start()
            paused.goes_on.set()
            found = wait_for(lambda: (seen := here.job(job["id"]))["state"] == "done" and seen)
        assert found["problems"][0]["attempts"] == 1
        assert there.service.store.quarantined() == []


@pytest.mark.long
def test_device_may_have_a_long_name(stores: tuple[ServiceStore, ServiceStore]) -> None:
    slug, model = "long-" * 12 + "name", "0123456789abcdef"
    one = stores[0]
    job_id = one.jobs.add(dataclasses.replace(NEW, device=slug))
    found = one.jobs.take(slug, "w1", model)
    assert found is not None
    one.jobs.requeue(found[1], 0.0, "")
    again = one.jobs.take(slug, "w1", model, begins=False)
    assert again is not None and again[1].id == found[1].id
    assert one.jobs.cancel(job_id)


@pytest.mark.long
def test_the_queue_is_made_once(stores: tuple[ServiceStore, ServiceStore]) -> None:
    assert stores[0].jobs.take(DEVICE.slug, "w1") is None
    assert not stores[1].write(SharedQueue().prepare)
