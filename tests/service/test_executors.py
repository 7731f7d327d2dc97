"""What every executor does: it brings each queued problem to one device, in order, until its outcome is known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("procrastinate")

from autotune.errors import StoreError
from autotune.kernels.gemm import GemmProblem
from autotune.model.trial import Request
from autotune.service.engine import EngineExecutor
from autotune.service.executor import Executor, LocalExecutor
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, JobLedger, JobState, NewJob
from fakes import INVENTED_PROCESSOR
from invented_service import BareHost, engaged, station_of

DEVICE = INVENTED_PROCESSOR
NEWER = replace(DEVICE, driver="next")
REQUESTS = tuple(Request(problem=GemmProblem(m=size, n=96, k=96)) for size in (96, 112, 128))
NEW = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=REQUESTS, trials=3)

Kind = type[LocalExecutor] | type[EngineExecutor]
Case = tuple[Kind, str]


class Scene:
    """An executor on a database, and the service around it."""

    def __init__(self, executor: Executor, host: BareHost, store: ServiceStore) -> None:
        self.executor, self.host, self.store = executor, host, store

    async def begun(self, station: Station, *, begins: bool = True) -> int:
        """The number of the problem that the station was brought."""
        await engaged(self.executor, station, begins=begins)
        return next(s.problem.number for s in self.host.searches.values() if s.station is station)

    async def nothing(self, station: Station, *, begins: bool = True) -> bool:
        await self.executor.prepare()
        return not await self.executor.engage(station, begins=begins)

    def end(self, station: Station, state: JobState | None = None) -> None:
        """End the search of a station, with an outcome or without."""
        [search] = [search for search in self.host.searches.values() if search.station is station]
        if state is not None:
            self.store.jobs.end(search.problem, state)
        self.host.end(search)

    def states(self, job_id: int) -> list[tuple[str, int]]:
        """State and attempts of each problem."""
        job = self.store.jobs.get(job_id)
        assert job is not None
        return [(problem.state.value, problem.attempts) for problem in job.problems]


@asynccontextmanager
async def scene_of(case: Case) -> AsyncIterator[Scene]:
    kind, place = case
    async with AsyncExitStack() as stack:
        store = stack.enter_context(ServiceStore.open(place))
        store.add_device(DEVICE)
        host = BareHost(store)
        executor: Executor = kind(store, host)
        await executor.start()
        stack.push_async_callback(executor.stop)
        yield Scene(executor, host, store)


@pytest.fixture(
    params=[
        "this process, SQLite",
        pytest.param("this process, PostgreSQL", marks=pytest.mark.long),
        pytest.param("the engine", marks=pytest.mark.long),
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "this process, SQLite":
        return LocalExecutor, str(request.getfixturevalue("db_file"))
    kind: Kind = EngineExecutor if request.param == "the engine" else LocalExecutor
    return kind, str(request.getfixturevalue("postgresql"))


def played(case: Case, play: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with scene_of(case) as scene:
            await play(scene)

    asyncio.run(whole())


def test_problems_begin_in_order_each_on_one_device(case: Case) -> None:
    async def play(scene: Scene) -> None:
        stations = [station_of(f"w{number}", DEVICE) for number in range(4)]
        assert await scene.nothing(stations[0])
        job_id = scene.store.jobs.add(NEW)
        assert [await scene.begun(station) for station in stations[:3]] == [0, 1, 2]
        assert await scene.nothing(stations[3])
        assert scene.states(job_id) == [("running", 1)] * 3
        assert scene.store.jobs.services(job_id) == [scene.host.address] * 3

    played(case, play)


def test_what_has_ended_is_not_begun_again(case: Case) -> None:
    async def play(scene: Scene) -> None:
        one, two = station_of("w1", DEVICE), station_of("w2", DEVICE)
        job_id = scene.store.jobs.add(replace(NEW, requests=REQUESTS[:2]))
        for number, state in enumerate((JobState.DONE, JobState.FAILED)):
            assert await scene.begun(one) == number
            scene.end(one, state)
        assert await scene.nothing(two)
        assert scene.states(job_id) == [("done", 1), ("failed", 1)]

    played(case, play)


def test_search_that_ends_without_an_outcome_goes_on_before_what_is_next(case: Case) -> None:
    """As when its process has died."""

    async def play(scene: Scene) -> None:
        one = station_of("w1", DEVICE)
        job_id = scene.store.jobs.add(NEW)
        assert await scene.begun(one) == 0
        scene.end(one)
        await scene.host.settled()
        assert await scene.begun(one) == 0
        assert scene.states(job_id) == [("running", 2), ("queued", 0), ("queued", 0)]

    played(case, play)


def test_cancelled_job_is_not_begun(case: Case) -> None:
    async def play(scene: Scene) -> None:
        one, two = station_of("w1", DEVICE), station_of("w2", DEVICE)
        first, second = scene.store.jobs.add(NEW), scene.store.jobs.add(NEW)
        assert await scene.begun(one) == 0
        scene.store.jobs.cancel(first)
        assert await scene.begun(two) == 0
        assert [state for state, _ in scene.states(first)] == ["running", "cancelled", "cancelled"]
        assert [state for state, _ in scene.states(second)] == ["running", "queued", "queued"]
        scene.end(one)  # is cancelled with its job
        await scene.host.settled()
        assert [state for state, _ in scene.states(first)] == ["cancelled"] * 3

    played(case, play)


def test_begun_job_goes_on_with_its_driver_or_the_next_one_of_its_worker(case: Case) -> None:
    async def play(scene: Scene) -> None:
        workers = scene.store.workers
        workers.enrol("w1", "its secret", DEVICE)
        own, other = station_of("w1", DEVICE), station_of("w2", NEWER)
        job_id = scene.store.jobs.add(NEW)
        assert await scene.nothing(other, begins=False)
        assert await scene.begun(own) == 0
        assert await scene.nothing(other)
        scene.end(own)
        await scene.host.settled()
        assert await scene.nothing(other)
        workers.enrol("w1", "its secret", NEWER)
        assert [await scene.begun(other, begins=False)] == [0]
        assert scene.states(job_id)[0] == ("running", 2)

    played(case, play)


def test_problem_is_begun_again_where_the_answer_to_its_taking_was_lost(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, losses = JobLedger.take, iter([StoreError("the database is away")])

    def losing(*given: object, **named: object) -> object:
        found = take(*given, **named)  # type: ignore[arg-type]
        for error in losses if found else ():
            raise error
        return found

    async def play(scene: Scene) -> None:
        one = station_of("w1", DEVICE)
        job_id = scene.store.jobs.add(NEW)
        monkeypatch.setattr(JobLedger, "take", losing)
        assert await scene.begun(one) == 0
        assert scene.states(job_id)[0] == ("running", 2)

    played(case, play)


def test_search_that_could_not_be_started_is_tried_again(case: Case) -> None:
    async def play(scene: Scene) -> None:
        one = station_of("w1", DEVICE)
        scene.store.jobs.add(NEW)
        scene.host.fails = 1
        assert await scene.begun(one) == 0

    played(case, play)


def test_searches_are_given_back_when_the_service_stops(case: Case) -> None:
    job_ids: list[int] = []

    async def play(scene: Scene) -> None:
        one = station_of("w1", DEVICE)
        job_ids.append(scene.store.jobs.add(NEW))
        assert await scene.begun(one) == 0
        scene.end(one)

    async def again(scene: Scene) -> None:
        assert await scene.begun(station_of("w2", DEVICE)) == 0
        assert scene.states(job_ids[0])[0] == ("running", 2)

    played(case, play)
    played(case, again)


@pytest.mark.long
def test_jobs_go_on_with_another_executor(postgresql: str) -> None:
    async def play(scene: Scene) -> None:
        job_ids.append(scene.store.jobs.add(NEW))
        assert await scene.begun(station_of("w1", DEVICE)) == 0
        scene.end(next(iter(scene.host.searches.values())).station)
        await scene.host.settled()

    async def again(scene: Scene) -> None:
        assert await scene.begun(station_of("w1", DEVICE)) == 0

    job_ids: list[int] = []
    for kind in (LocalExecutor, EngineExecutor, LocalExecutor):
        played((kind, postgresql), again if job_ids else play)
