"""Several services on one PostgreSQL: who searches what, whom a follower is sent to, what a stopped one may not do."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("procrastinate")

from autotune.errors import RefusedError, StoreError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.trial import Job, Request
from autotune.service import engine
from autotune.service.core import Service
from autotune.service.engine import EngineExecutor
from autotune.service.remote import Client
from autotune.service.remote.connection import Connection, MovedError
from autotune.service.remote.worker import Offer
from autotune.service.searches import Search
from autotune.service.server import Server
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.job_rows import check_attempt
from autotune.service.store.jobs import JobKind, JobProblem, JobState, NewJob
from autotune.store import Attempt, Holder, new_owner
from databases import Server as Database
from databases import connect, rows
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_service import (
    BareHost,
    HandMade,
    Paused,
    ended,
    engaged,
    invented_time,
    invented_worker,
    offering,
    secret_of,
    serving,
    station_of,
)
from ports import free_port
from waiting import HANG_S, join, wait_for

DEVICE = INVENTED_PROCESSOR
REQUESTS = tuple(Request(problem=GemmProblem(m=size, n=96, k=96)) for size in (96, 112, 128))
NEW = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=REQUESTS, trials=3)
HASTY = """
import sys
from autotune.cli import main
from autotune.service import engine
engine.BEAT_S, engine.STALLED_S = 0.5, 3.0
sys.exit(main(sys.argv[1:]))
"""
"""A service whose heart beats faster, and that is given up sooner."""


class Member:
    """One of the services, without processes and HTTP."""

    def __init__(self, store: ServiceStore, name: str) -> None:
        self.store = store
        self.host = BareHost(store, f"http://{name}")
        self.engine = EngineExecutor(store, self.host)
        self.station = station_of(f"worker of {name}", DEVICE)

    async def begun(self, station: Station | None = None) -> Search:
        """The search of the next problem."""
        station = station or self.station
        await engaged(self.engine, station)
        return next(search for search in self.host.searches.values() if search.station is station)


@asynccontextmanager
async def member(place: str, name: str) -> AsyncIterator[Member]:
    with ServiceStore.open(place) as store:
        store.add_device(DEVICE)
        found = Member(store, name)
        await found.engine.start()
        try:
            yield found
        finally:
            await found.engine.stop()


def played(place: str, play: Callable[[Member, Member], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with AsyncExitStack() as stack:
            await play(*[await stack.enter_async_context(member(place, name)) for name in ("one", "two")])

    asyncio.run(whole())


async def collect(service: Member) -> None:
    """Have a service queue again what the others have lost."""
    await service.engine.collect(await service.engine._stalled(engine.STALLED_S))


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(HANG_S):
        while not (found := condition()):
            await asyncio.sleep(0.01)
        return found


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
def test_services_share_the_problems_of_a_job(postgresql: str) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        other = station_of("w3", DEVICE)
        numbers = [
            (await its.begun(station)).problem.number for its, station in ((one, None), (two, None), (one, other))
        ]
        assert numbers == [0, 1, 2]
        assert not await two.engine.engage(station_of("w4", DEVICE), begins=True)
        assert two.store.jobs.services(job_id) == ["http://one", "http://two", "http://one"]

    played(postgresql, play)


@pytest.mark.long
def test_the_queue_forgets_what_has_ended(postgresql: str) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        first, second = await one.begun(), await two.begun()
        one.store.jobs.end(first.problem, JobState.DONE)
        one.host.end(first)
        two.host.end(second)  # without an outcome
        await two.host.settled()
        await until(lambda: "doing" not in dict(map(reversed, entries(postgresql))))
        await two.engine.look()
        assert [status for _, status in entries(postgresql)] == ["todo"] * 2
        one.store.jobs.cancel(job_id)
        await two.engine.look()
        assert entries(postgresql) == []
        assert states(one.store, job_id) == ["done", "cancelled", "cancelled"]

    played(postgresql, play)


@pytest.mark.long
def test_problem_that_failed_to_begin_is_due_at_once_though_the_clock_of_the_service_is_fast(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr("procrastinate.utils.utcnow", lambda: fast)

    async def play(one: Member, two: Member) -> None:
        one.store.jobs.add(NEW)
        one.host.fails = 1
        assert not await one.engine.engage(one.station, begins=True)
        assert (await two.begun()).problem.number == 0

    played(postgresql, play)


@pytest.mark.long
def test_stalled_search_is_taken_over_and_its_first_service_can_do_nothing_more(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        search = await one.begun()
        before = search.problem
        begin(one.store, before)
        await collect(two)
        assert states(two.store, job_id)[0] == "running"
        monkeypatch.setattr(engine, "STALLED_S", -1.0)
        await collect(two)
        monkeypatch.undo()
        assert states(two.store, job_id) == ["queued"] * 3
        again = (await two.begun()).problem
        assert (again.id, again.attempts) == (before.id, 2)
        with pytest.raises(StoreError, match="another service"):
            begin(one.store, before)
        one.store.jobs.end(before, JobState.FAILED)
        one.store.jobs.requeue(before, 5.0, "late")
        assert states(two.store, job_id) == ["running", "queued", "queued"]
        await one.engine.look()
        await two.engine.look()
        assert search.is_superseded and not two.host.searches[again.id].is_superseded
        one.host.end(search)
        await until(lambda: not one.engine._workers)  # nor can the worker that had it
        assert [status for _, status in entries(postgresql)] == ["doing", "todo", "todo"]
        begin(two.store, again)
        two.store.jobs.end(again, JobState.DONE)
        assert states(two.store, job_id)[0] == "done"

    played(postgresql, play)


@pytest.mark.long
def test_trial_begins_before_its_search_is_taken_away_or_not_at_all(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        problem = (await one.begun()).problem
        monkeypatch.setattr(engine, "STALLED_S", -1.0)
        is_checked, may_end = threading.Event(), threading.Event()

        def begin_slowly(session: Any) -> None:
            check_attempt(session.connection(), Attempt(problem=problem.id, number=problem.attempts))
            is_checked.set()
            assert may_end.wait(HANG_S)

        beginning = asyncio.create_task(asyncio.to_thread(one.store.write, begin_slowly))
        await until(is_checked.is_set)
        await collect(two)
        assert states(two.store, job_id)[0] == "running", "until the trial is in flight"
        may_end.set()
        await beginning
        await collect(two)
        assert states(two.store, job_id)[0] == "queued"
        with pytest.raises(StoreError, match="another service"):
            begin(one.store, problem)

    played(postgresql, play)


@pytest.mark.long
@pytest.mark.parametrize("locked", ["jobs", "job_problems"])
def test_locks_of_a_stopped_service_keep_no_other_from_looking(
    postgresql: str, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        problem = (await one.begun()).problem
        with closing(connect(postgresql)) as stopped:
            stopped.execute(f"SELECT id FROM {locked} FOR UPDATE")
            monkeypatch.setattr(engine, "STALLED_S", -1.0)
            await collect(two)
            monkeypatch.undo()
            await two.engine.look()
            assert two.engine.may_launch
            assert states(two.store, job_id)[0] == "running"
            stopped.rollback()
        monkeypatch.setattr(engine, "STALLED_S", -1.0)
        await collect(two)
        monkeypatch.undo()
        assert (await two.begun()).problem.id == problem.id

    played(postgresql, play)


@pytest.mark.long
def test_service_may_launch_for_a_while_after_it_saw_its_heartbeats_in_time(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BEAT_S", HANG_S)

    async def play(one: Member, _: Member) -> None:
        now, allowed = 1000.0, list[bool]()
        one.engine._clock = lambda: now
        one.store.jobs.add(NEW)
        await one.begun()
        await one.engine.look()
        allowed.append(one.engine.may_launch)
        now += engine.FRESH_SHARE * (1 - engine.LATE_SHARE) * engine.STALLED_S
        allowed.append(one.engine.may_launch)
        with monkeypatch.context() as late:
            late.setattr(engine, "LATE_SHARE", -1.0)
            await one.engine.look()
            allowed.append(one.engine.may_launch)
        await one.engine.look()
        assert [*allowed, one.engine.may_launch] == [True, False, False, True]

    played(postgresql, play)


@pytest.mark.long
def test_service_that_was_cut_off_itself_takes_nothing_from_others_at_first(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All heartbeats are old when a database is back; those whose service is there are renewed in a moment."""
    monkeypatch.setattr(engine, "BEAT_S", HANG_S)

    async def play(one: Member, two: Member) -> None:
        now = 1000.0
        two.engine._clock = lambda: now
        job_id = one.store.jobs.add(NEW)
        await one.begun()
        await two.engine.look()
        stalled = two.engine._stalled
        monkeypatch.setattr(two.engine, "_stalled", lambda _: stalled(-1.0))
        now += engine.STALLED_S
        await two.engine.look()
        assert states(two.store, job_id)[0] == "running"
        now += engine.STALLED_S - 1.0
        await two.engine.look()
        assert states(two.store, job_id)[0] == "queued"

    played(postgresql, play)


@pytest.mark.long
def test_search_is_aborted_wherever_it_is_once_its_job_is_cancelled(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BEAT_S", 0.05)

    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(dataclasses.replace(NEW, requests=REQUESTS[:1]))
        search = await two.begun()
        one.store.jobs.cancel(job_id)
        one.engine.hurry()
        await until(lambda: search.is_cancelled)
        await until(lambda: states(one.store, job_id) == ["cancelled"])
        await until(lambda: entries(postgresql) == [])

    played(postgresql, play)


@pytest.mark.long
def test_problem_of_a_cancelled_job_that_nobody_searches_is_cancelled(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(one: Member, two: Member) -> None:
        job_id = one.store.jobs.add(NEW)
        search = await one.begun()
        one.store.jobs.cancel(job_id)
        monkeypatch.setattr(one.host, "cancel_search", lambda _: None)  # it hangs
        monkeypatch.setattr(engine, "STALLED_S", -1.0)
        await collect(two)
        assert states(two.store, job_id) == ["cancelled"] * 3
        search.supersede()
        one.host.end(search)

    played(postgresql, play)


@pytest.mark.long
def test_jobs_begun_on_one_driver_wait_for_it(postgresql: str) -> None:
    other = station_of("w2", dataclasses.replace(DEVICE, driver="next"))

    async def play(one: Member, two: Member) -> None:
        one.store.jobs.add(NEW)
        assert (await one.begun()).problem.number == 0
        assert not await two.engine.engage(other, begins=True)
        assert entries(postgresql)[1:] == [(f"{DEVICE.slug}/{one.station.model_digest}", "todo")] * 2
        assert (await two.begun()).problem.number == 1

    played(postgresql, play)


@pytest.mark.long
def test_tables_of_the_engine_are_made_once(postgresql: str) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            members = [Member(stack.enter_context(ServiceStore.open(postgresql)), f"{n}") for n in range(6)]
            await asyncio.gather(*(its.engine.start() for its in members))
            for its in members:
                await its.engine.stop()

    asyncio.run(play())
    assert entries(postgresql) == []


@pytest.mark.long
def test_device_may_have_a_long_name(postgresql: str) -> None:
    device = dataclasses.replace(DEVICE, slug="long-" * 12 + "name")

    async def play(one: Member, two: Member) -> None:
        one.store.jobs.add(dataclasses.replace(NEW, device=device.slug, requests=REQUESTS[:1]))
        search = await one.begun(station_of("w1", device))
        one.host.end(search)
        await one.host.settled()
        await engaged(two.engine, station_of("w2", device), begins=False)

    played(postgresql, play)


@pytest.mark.long
def test_the_extra_is_named_where_procrastinate_is_missing(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "autotune.service.engine")
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    with ServiceStore.open(postgresql) as store, pytest.raises(StoreError, match="postgres"):
        Service(store)


@contextmanager
def served(place: str) -> Iterator[tuple[Server, Client]]:
    """A service in this process."""
    with serving(place) as server, Client(server.url) as client:
        yield server, client


@pytest.mark.long
def test_job_is_submitted_at_one_service_and_followed_at_the_one_that_searches_it(postgresql: str) -> None:
    paused, names = Paused(), Counter[str]()
    with served(postgresql) as (first, here), served(postgresql) as (there, _client), ExitStack() as stack:
        stack.enter_context(offering(there.url, work=paused))
        wait_for(lambda: [device["slug"] for device in here.devices()] == [DEVICE.slug])
        job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=8, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        with pytest.raises(MovedError) as moved:
            list(Connection(first.url).lines(f"/api/jobs/{job['id']}/events", timeout_s=HANG_S))
        assert moved.value.url == there.url == here.job(job["id"])["problems"][0]["service"]
        for event in here.follow(job["id"]):
            names[event.name] += 1
            paused.goes_on.set()
        found = here.job(job["id"])
        assert (found["state"], found["problems"][0]["service"]) == ("done", "")
    assert names["trial_finished"] >= 5
    assert rows(postgresql, "SELECT count(*) FROM procrastinate_jobs") == [(0,)]


@pytest.mark.long
def test_follower_of_a_queued_job_is_sent_to_the_service_that_begins_it(postgresql: str) -> None:
    with served(postgresql) as (_, here), served(postgresql) as (there, _client), ExitStack() as stack:
        there.service.store.add_device(DEVICE)
        job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=8, algorithms=["microtile"])
        followed = here.follow(job["id"])
        assert next(followed).data["state"] == "queued"
        stack.enter_context(offering(there.url))
        assert "problem_finished" in [event.name for event in followed]


@pytest.mark.long
def test_follower_gets_the_states_where_the_service_that_searches_cannot_be_reached(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.service.remote.client.RETRY_S", 0.02)
    paused = Paused()
    with served(postgresql) as (_, here), served(postgresql) as (there, _client), ExitStack() as stack:
        there.service.address = f"http://127.0.0.1:{free_port()}"  # as seen from another network
        stack.enter_context(offering(there.url, work=paused))
        wait_for(here.devices)
        job = here.submit(DEVICE.slug, shapes=["96,96,96"], trials=8, algorithms=["microtile"])
        assert paused.begun.wait(HANG_S)
        followed = here.follow(job["id"])
        assert next(followed).data["state"] == "running"
        paused.goes_on.set()
        *_, last = followed
        assert (last.name, last.data["state"]) == ("job", "done")


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
            late.setattr(EngineExecutor, "may_launch", False)
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
        store = server.service.store
        with monkeypatch.context() as late:
            late.setattr(EngineExecutor, "may_launch", False)
            assert worker.answer()["trial"] is None
            [station] = server.service.fleet.stations()
            wait_for(lambda: station.assignment)
            [[problem, entry]] = rows(postgresql, "SELECT id, entry FROM job_problems")
            with ServiceStore.open(postgresql) as other:
                assert other.jobs.release(problem, entry)
                taken = other.jobs.take(DEVICE.slug, "another", station.model_digest)
                assert taken is not None and taken[1].attempts == 2
        [search] = server.service.searches.values()
        server.service._call_soon(server.service.executor.hurry)
        wait_for(lambda: search.is_superseded)
        assert worker.answer()["trial"] is None
        wait_for(lambda: store.in_flight() == [] and not server.service.searches)
        assert worker.answer()["trial"] is None
        assert states(store, job["id"]) == ["running"]


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
