"""Stations and their trials on an invented clock: who has which trial, and what becomes of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from autotune.codec import Node
from autotune.errors import WorkerError, WorkerLostError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.device import Device
from autotune.model.trial import Job
from autotune.service import fleet as fleet_module
from autotune.service.fleet import Fleet, NameTakenError, NotStoredError, in_fair_order, open_to
from autotune.service.job_search import Stopping
from autotune.service.remote.wire import plain_job, plain_trial
from autotune.service.station import Assignment, Station
from autotune.store import Holder
from fakes import INVENTED_PROCESSOR, FakeWorker

DEVICE = INVENTED_PROCESSOR
JOB = Job(selector="0:0", problem=GemmProblem(m=96, n=96, k=96), configuration=FAMILY.baseline)
SESSION = "0" * 32


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the product's limits, which tests of whole services raise for their process (`invented_service`)."""
    seconds = {"SILENT_S": 60.0, "TROUBLED_S": 60.0, "DOUBT_S": 15.0, "CANCEL_PATIENCE_S": 5.0, "STORED_S": 10.0}
    for name, value in seconds.items():
        monkeypatch.setattr(fleet_module, name, value)


class Scene:
    """A fleet, what it asks of the rest of its service, and a clock that goes on only as tests say."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.late: list[str] = []
        """Ids of results that no search waited for."""
        self.settled: list[str] = []
        """Names of workers that had nothing in hand any more from an earlier service."""
        self.may_launch = True
        self.fleet = Fleet(lambda: None, self._take_late, self._settle, lambda: self.may_launch, lambda: self.now)

    async def _take_late(self, name: str, device: Device, result: Node) -> str:
        self.late.append(result.record(("id", "job"), ("trial", "trouble"))["id"].text())
        return ""

    async def _settle(self, slug: str, holder: Holder) -> None:
        self.settled.append(holder.worker)

    async def station(self, name: str = "w1", session: str = SESSION, device: Device = DEVICE) -> Station:
        """A station that may be given a trial."""
        station = await self.fleet.greet(name, session, device, "")
        assert await self.turn(station) == (None, "")
        return station

    async def turn(
        self, station: Station, *results: Node, running: str = "", wait_s: float = 0.0
    ) -> tuple[Assignment | None, str]:
        return await self.fleet.take_turn(station, running, list(results), wait_s)

    def give(self, station: Station) -> Assignment:
        assignment = Assignment(JOB)
        self.fleet.assign(station, assignment)
        return assignment


def in_loop(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop."""

    def run() -> None:
        asyncio.run(test(Scene()))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


async def settled(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    """The work, after it has done whatever needs neither time nor anything from elsewhere."""
    task = asyncio.ensure_future(work)
    for _ in range(50):
        await asyncio.sleep(0)
    return task


def told(assignment: Assignment, **change: Any) -> Node:
    """The result of a trial, as its worker sends it."""
    trial = plain_trial(FakeWorker(lambda _: 5000.0).run(assignment.job))
    return Node({"id": assignment.id, "job": plain_job(assignment.job), "trial": trial} | change, "result")


@in_loop
async def test_trial_is_given_until_a_turn_shows_that_it_has_arrived(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    assert station.state == "idle" and scene.settled == ["w1"]
    assert [(await scene.turn(station))[0] for _ in range(2)] == [given, given]
    assert await scene.turn(station, running=given.id) == (None, "")


@in_loop
async def test_result_is_answered_once_its_search_has_stored_it(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    once = await settled(scene.turn(station, told(given)))
    again = await settled(scene.turn(station, told(given)))  # the connection broke
    assert not once.done() and not again.done()
    assert given.result.result().time_ns == 5000.0 and station.trials == 1
    following = scene.give(station)  # which shows that it is stored
    assert await once == await again == (following, "")
    assert scene.late == []
    await scene.turn(station, told(given))  # repeated later, it is for the ledger to know it
    assert scene.late == [given.id] and station.trials == 1


@in_loop
async def test_result_that_its_search_did_not_store_is_stored_as_late(scene: Scene) -> None:
    for end in (scene.fleet.release, scene.fleet.withdraw, scene.fleet.dismiss):
        station = await scene.station(end.__name__)
        given = scene.give(station)
        answer = await settled(scene.turn(station, told(given)))
        end(station)
        assert await answer == (None, "")
        assert scene.late.pop() == given.id and not scene.late


@in_loop
async def test_result_is_delivered_again_while_its_search_takes_long_to_store_it(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "STORED_S", 0.0)
        for _ in range(2):
            with pytest.raises(NotStoredError):
                await scene.turn(station, told(given))
    answer = await settled(scene.turn(station, told(given)))
    following = scene.give(station)
    assert await answer == (following, "") and scene.late == [] and station.trials == 1


@in_loop
async def test_worker_that_leaves_has_stored_what_its_search_had_not(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    answer = await settled(scene.turn(station, told(given)))
    await scene.fleet.take_leave(station)
    await answer
    assert set(scene.late) == {given.id} and scene.fleet.stations() == []


@in_loop
async def test_trial_is_lost_with_a_silent_worker(scene: Scene) -> None:
    silent, other = await scene.station(), await scene.station("w2")
    given, safe = scene.give(silent), scene.give(other)
    scene.now += fleet_module.SILENT_S
    scene.fleet.sweep()
    assert scene.fleet.stations() == [silent, other]
    await scene.turn(other, running=safe.id)
    scene.now += 1
    scene.fleet.sweep()
    assert scene.fleet.stations() == [other] and silent.state == "lost"
    assert scene.fleet.get(silent.id, SESSION) is None
    assert isinstance(given.result.exception(), WorkerLostError) and "sent nothing" in str(given.result.exception())
    assert not safe.result.done()


@in_loop
async def test_trial_is_lost_with_a_worker_that_says_running_for_ever(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    while scene.now <= given.deadline:
        scene.fleet.sweep()
        assert scene.fleet.stations() == [station]
        await scene.turn(station, running=given.id)
        scene.now += 10
    scene.fleet.sweep()
    assert station.is_lost and isinstance(given.result.exception(), WorkerLostError)
    assert "in time" in str(given.result.exception())


@in_loop
async def test_trial_is_lost_with_the_process_of_a_worker_that_was_restarted(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    assert await scene.fleet.greet("w1", SESSION, DEVICE, "") is station, "the same process"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "DOUBT_S", 0.0)
        after = await scene.station(session="1" * 32)
    assert scene.fleet.stations() == [after] and station.is_lost
    assert isinstance(given.result.exception(), WorkerLostError) and "restarted" in str(given.result.exception())


@in_loop
async def test_second_process_is_refused_while_the_first_takes_turns(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    greeting = await settled(scene.fleet.greet("w1", "1" * 32, DEVICE, ""))
    await scene.turn(station, running=given.id)
    with pytest.raises(NameTakenError):
        await greeting
    assert not given.result.done() and scene.fleet.stations() == [station]


@in_loop
async def test_station_is_known_only_by_its_session(scene: Scene) -> None:
    station = await scene.station()
    assert scene.fleet.get(station.id, SESSION) is station
    assert scene.fleet.get(station.id, "1" * 32) is None and scene.fleet.get("0" * 16, SESSION) is None


@in_loop
async def test_cancelled_trial_is_waited_for_a_little(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    for _ in range(2):  # once is enough
        scene.fleet.hurry(station)
    scene.now += fleet_module.CANCEL_PATIENCE_S
    scene.fleet.sweep()
    assert scene.fleet.stations() == [station]
    scene.now += 1
    scene.fleet.sweep()
    assert station.is_lost and isinstance(given.result.exception(), WorkerLostError)


@in_loop
async def test_worker_that_ends_in_order_is_not_to_blame(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    scene.fleet.dismiss(station)
    assert type(given.result.exception()) is WorkerError
    late = scene.give(station)
    assert type(late.result.exception()) is WorkerError, "it is given nothing any more"


@in_loop
async def test_worker_that_leaves_while_its_turn_begins_is_answered_at_once(scene: Scene) -> None:
    station = await scene.fleet.greet("w1", SESSION, DEVICE, "")

    async def leaving(*_: object) -> None:
        scene.fleet.dismiss(station)

    scene.fleet._on_ready = leaving
    turn = await settled(scene.turn(station, wait_s=25.0))
    assert turn.done() and turn.result() == (None, "")


@in_loop
async def test_service_that_ends_keeps_neither_worker_nor_search_waiting(scene: Scene) -> None:
    idle, busy, given_one = await scene.station("idle"), await scene.station("busy"), await scene.station("given")
    reported, given = scene.give(busy), scene.give(given_one)
    waits, delivers = await settled(scene.turn(idle, wait_s=25.0)), await settled(scene.turn(busy, told(reported)))
    scene.fleet.stop()
    assert await waits == (None, "")
    with pytest.raises(Stopping):
        await delivers
    with pytest.raises(Stopping):
        await scene.turn(given_one, told(given))
    assert isinstance(given.result.exception(), Stopping)
    assert isinstance(scene.give(idle).result.exception(), Stopping)
    assert scene.late == [], "the next service gets it"


@in_loop
async def test_nothing_is_given_while_another_service_may_have_the_database(scene: Scene) -> None:
    station = await scene.station()
    given = scene.give(station)
    scene.may_launch = False
    scene.now += 30
    assert await scene.turn(station) == (None, "")
    assert given.deadline > scene.now + JOB.run_limit_s, "the time of its worker has not begun"
    scene.may_launch = True
    assert (await scene.turn(station))[0] is given


@in_loop
async def test_trial_of_a_search_that_another_service_has_taken_is_not_given(scene: Scene) -> None:
    station = await scene.station()
    taken = Assignment(JOB, lambda: True)
    scene.fleet.assign(station, taken)
    assert await scene.turn(station) == (None, "")
    assert isinstance(taken.result.exception(), Stopping)


@in_loop
async def test_trouble_of_a_device_ends_its_trial_and_keeps_it_from_others_for_a_while(scene: Scene) -> None:
    station = await scene.station()
    for bad in ({"trouble": "no such device"}, {"trial": {"state": "fine"}}):
        given = scene.give(station)
        result = told(given, **bad)
        if "trouble" in bad:
            result = Node({name: value for name, value in result.value.items() if name != "trial"}, "result")
        refused = (await scene.turn(station, result))[1]
        assert bool(refused) == ("trial" in bad), "what cannot be read is refused"
        assert type(given.result.exception()) is WorkerError
        assert station.state == "troubled" and station.trouble
        scene.now += fleet_module.TROUBLED_S
        assert station.state == "idle"
    assert scene.late == []


@in_loop
async def test_time_that_a_trial_waits_for_its_device_is_not_its_own(scene: Scene) -> None:
    """As while a local run measures there; but a worker is believed no further than the clock of the service."""
    station = await scene.station()
    given = scene.give(station)
    deadline = given.deadline
    scene.now += 100.0
    for waited_s in (40.0, 90.0, 90.0):
        scene.fleet.note_waiting(station, waited_s)
    assert (given.deadline, station.waited_s) == (deadline + 90.0, 90.0)
    scene.fleet.note_waiting(station, 1e9)
    assert (given.deadline, station.waited_s) == (deadline + 100.0, 100.0)


@in_loop
async def test_station_of_a_search_that_is_gone_is_free_once_its_worker_has_nothing_in_hand(scene: Scene) -> None:
    station = await scene.station()
    station.is_taken = True
    given = scene.give(station)
    scene.fleet.withdraw(station)
    assert station.state == "busy" and not given.result.done()
    await scene.turn(station, running=given.id)
    assert station.state == "busy"
    await scene.turn(station, told(given))
    assert station.state == "idle" and scene.late == [given.id]
    assert scene.settled == ["w1", "w1"], "before it is given another, what an earlier search gave it is settled"


@in_loop
async def test_one_address_leaves_stations_to_others(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "MAX_STATIONS", 4)
        for name in ("w1", "w2"):
            await scene.fleet.greet(name, SESSION, DEVICE, "here")
        with pytest.raises(WorkerError, match="2 devices of this address and 2 of all are already offered"):
            await scene.fleet.greet("w3", SESSION, DEVICE, "here")
        await scene.fleet.greet("w3", SESSION, DEVICE, "there")
    assert [station.name for station in scene.fleet.stations()] == ["w1", "w2", "w3"]


@in_loop
async def test_a_worker_that_says_it_waits_keeps_no_cancelled_trial(scene: Scene) -> None:
    station = await scene.station()
    scene.give(station)
    scene.fleet.hurry(station)
    for _ in range(10):
        scene.now += 1.0
        scene.fleet.note_waiting(station, 1e6)
        await scene.turn(station, running=station.assignment.id if station.assignment else "")
        scene.fleet.sweep()
    assert scene.fleet.stations() == []


@in_loop
async def test_only_stations_like_the_first_enrolled_begin_problems(scene: Scene) -> None:
    other = await scene.fleet.greet("w2", SESSION, replace(DEVICE, driver="2.0"), "", rank=2)
    first = await scene.fleet.greet("w1", SESSION, DEVICE, "", rank=1)
    leaders = scene.fleet.leaders()
    assert leaders == {DEVICE.slug: first.model_digest} != {DEVICE.slug: other.model_digest}
    assert open_to(first, leaders) == {(DEVICE.slug, first.model_digest), (DEVICE.slug, "")}
    assert open_to(other, leaders) == {(DEVICE.slug, other.model_digest)}


@in_loop
async def test_each_device_gets_a_search_before_one_gets_several(scene: Scene) -> None:
    names = ("a1", "a2", "b1", "b2", "c1")
    stations = [await scene.station(name, device=replace(DEVICE, slug=f"pocl-{name[0]}")) for name in names]
    order = [station.name for station in in_fair_order(stations, Counter({"pocl-a": 1}))]
    assert order == ["b1", "c1", "a1", "b2", "a2"]
