"""Many readers at once: followers of one job, heavy answers, and workers that go on meanwhile."""

import asyncio
import http.client
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

pytest.importorskip("fastapi")

from autotune.errors import RefusedError
from autotune.kernels.gemm import GemmProblem
from autotune.service import events, pools, tables_api
from autotune.service.remote import Client
from autotune.service.remote.connection import Connection
from autotune.service.server import Server
from autotune.service.shares import CLIENT
from factories import naive, winner
from fakes import INVENTED_PROCESSOR
from invented_service import offering
from waiting import HANG_S, join, wait_for

SLUG = INVENTED_PROCESSOR.slug
SHAPES = [f"{size},64,64" for size in range(16, 80)]


@pytest.fixture
def server(server: Server) -> Server:
    server.service.store.add_device(INVENTED_PROCESSOR)
    return server


class Follower:
    """Reads the events of a job as they are sent."""

    def __init__(self, url: str, job_id: int) -> None:
        self.told: list[tuple[str, Any]] = []
        self._events = Client(url)._events(url, job_id, stays=False)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self.told.extend((event.name, event.data) for event in self._events)

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def join(self) -> None:
        join(self._thread)


def test_all_followers_share_one_reading_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[int] = []

    async def read() -> events.Picture:
        readings.append(len(readings))
        return events.Picture(job=f'{{"state":{len(readings)}}}', problems={}, goes_on=len(readings) < 3)

    async def follow() -> list[list[bytes]]:
        feed = events.Feed()
        feed.bind(asyncio.get_running_loop())
        readers = [feed.join(1, read) for _ in range(20)]
        for reader in readers:
            await reader.begun()
        assert len(readings) == 1, "for all who came at once"
        monkeypatch.setattr(events, "READ_EVERY_S", HANG_S)
        for _ in range(50):
            feed.publish(1)
        feed.publish(1, "trial_finished", lambda: {"trials": 5})
        told = [[message async for message in _until(reader, b"trial_finished")] for reader in readers]
        assert len(readings) == 1, "not yet again, whatever happens"
        monkeypatch.setattr(events, "READ_EVERY_S", 0.0)
        feed.publish(1)
        while len(readings) < 2:
            await asyncio.sleep(0)
        feed.publish(1)
        for reader, messages in zip(readers, told, strict=True):
            messages.extend([message async for message in reader.messages()])
        return told

    monkeypatch.setattr(events, "PAUSE_PER_READER_S", 0.0)
    first, *others = asyncio.run(follow())
    assert len(readings) == 3
    names = [line for message in first for line in message.decode().splitlines() if line.startswith("event:")]
    assert names == ["event: job", "event: trial_finished", "event: job_changed", "event: job_changed", "event: end"]
    assert all(messages == first for messages in others)


async def _until(reader: events.Reader, name: bytes) -> AsyncIterator[bytes]:
    """The messages up to that with an event of that name."""
    async for message in reader.messages():
        yield message
        if name in message:
            return


@pytest.mark.long
def test_followers_get_only_what_has_changed(server: Server, client: Client) -> None:
    job_id = client.submit(SLUG, shapes=SHAPES[:6], trials=2, algorithms=["microtile"])["id"]
    follower = Follower(server.url, job_id)
    wait_for(lambda: bool(follower.told))
    with offering(server.url):
        follower.join()
    assert follower.names().count("job") == 1
    job = follower.told[0][1]
    assert len(job["problems"]) == 6
    changes = [data for name, data in follower.told if name == "job_changed"]
    assert max(len(change["problems"]) for change in changes[:-1]) < 6
    for change in changes:
        changed = {problem["number"]: problem for problem in change["problems"]}
        job = {**change, "problems": [changed.get(problem["number"], problem) for problem in job["problems"]]}
    assert job == client.job(job_id)


@pytest.mark.long
def test_client_sees_the_whole_job_in_every_event(server: Server, client: Client) -> None:
    job_id = client.submit(SLUG, shapes=SHAPES[:4], trials=2, algorithms=["microtile"])["id"]
    with offering(server.url):
        jobs = [event.data for event in client.follow(job_id) if event.name == "job"]
    assert {len(job["problems"]) for job in jobs} == {4}
    assert jobs[-1] == client.job(job_id)


def test_one_follower_too_many_is_refused(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_READERS", 4)
    job_id = client.submit(SLUG, shapes=SHAPES[:1], trials=2)["id"]
    with ExitStack() as stack:
        for _ in range(2):
            lines = Connection(server.url).lines(f"/api/jobs/{job_id}/events", timeout_s=HANG_S)
            stack.enter_context(closing(lines))  # type: ignore[type-var]  # a generator
            assert next(lines) == "event: job"
        with pytest.raises(RefusedError, match="2 readers of this address and 2 of all") as refused:
            next(Connection(server.url).lines(f"/api/jobs/{job_id}/events", timeout_s=HANG_S))
        assert refused.value.status == 429
    path = f"/api/jobs/{job_id}/events"  # those that have gone make room
    assert wait_for(lambda: next(Connection(server.url).lines(path, timeout_s=HANG_S))) == "event: job"


def test_reader_that_falls_behind_is_cut_off() -> None:
    async def read() -> events.Picture:
        return events.Picture(job="{}", problems={}, goes_on=True)

    async def follow() -> list[list[bytes]]:
        feed = events.Feed()
        feed.bind(asyncio.get_running_loop())
        slow, quick = feed.join(1, read), feed.join(1, read)
        for _ in range(events.MAX_BEHIND):
            slow.put(b"x")
        slow.put(b"y")
        quick.put(b"x")
        feed.close()
        return [[message async for message in reader.messages()] for reader in (slow, quick)]

    assert asyncio.run(follow()) == [[], [b"x"]]


def test_pool_refuses_what_exceeds_a_clients_share_and_takes_more_once_there_is_room() -> None:
    goes_on = threading.Event()

    async def ask() -> None:
        pool = pools.Pool("tables", threads=1, waiting=6)
        asked = [asyncio.ensure_future(pool.run(goes_on.wait, HANG_S)) for _ in range(4)]
        with pytest.raises(pools.BusyError, match="too many requests for tables"):
            await asked.pop()
        CLIENT.set("another")
        asked.append(asyncio.ensure_future(pool.run(goes_on.wait, HANG_S)))
        await asyncio.sleep(0)
        goes_on.set()
        assert await asyncio.gather(*asked) == [True] * 4
        assert await pool.run(len, "again") == 5
        pool.close()

    asyncio.run(ask())


def test_devices_are_listed_while_as_many_exports_as_a_client_may_have_wait(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(tables_api, "export_table", lambda *_: b"" if goes_on.wait(HANG_S) else b"late")
    store = server.service.store
    for problem in (GemmProblem(m=8, n=8, k=8), GemmProblem(m=16, n=8, k=8)):
        store.record_winner(winner(INVENTED_PROCESSOR, problem, naive(1, 1)))
    with ThreadPoolExecutor(20) as threads:
        try:
            asked = [threads.submit(Client(server.url).export, "json") for _ in range(20)]
            wait_for(lambda: any(one.done() for one in asked))  # refused: the client's share is taken
            [device] = client.devices()
            assert (device["slug"], device["tuned"]) == (SLUG, 2)
            connection = Connection(server.url)
            assert connection.call("GET", f"/api/devices/{SLUG}") == device
            connection.close()
        finally:
            goes_on.set()


@pytest.mark.long
def test_heavy_answers_keep_no_worker_waiting(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def stuck(*_: Any) -> bytes:
        begun.release()
        assert goes_on.wait(HANG_S)
        return b""

    monkeypatch.setattr(tables_api, "export_table", stuck)
    with ThreadPoolExecutor(40) as threads, offering(server.url):
        try:
            asked = [threads.submit(Client(server.url).export, form) for form in ("json", "sqlite") * 20]
            for _ in range(2):
                assert begun.acquire(timeout=HANG_S)
            job = client.submit(SLUG, shapes=["96,96,96"], trials=3, algorithms=["microtile"])
            wait_for(lambda: client.job(job["id"])["state"] == "done")
            wait_for(lambda: sum(one.done() for one in asked) >= 40 - 16 - 4)
        finally:
            goes_on.set()
        errors = [error for one in asked if isinstance(error := one.exception(HANG_S), RefusedError)]
    assert {error.status for error in errors} == {503}
    assert len(errors) == 20


def test_request_that_is_one_too_many_is_refused_with_a_time_to_come_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "may_take", lambda *_: False)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=HANG_S)
    connection.request("GET", "/api/jobs")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (503, str(pools.RETRY_AFTER_S))
    monkeypatch.undo()
    connection.close()


@pytest.mark.long
def test_history_comes_in_parts(server: Server, client: Client) -> None:
    with offering(server.url):
        job = client.submit(SLUG, shapes=["96,96,96"], trials=12, algorithms=["microtile"])
        wait_for(lambda: client.job(job["id"])["state"] == "done")
    connection = Connection(server.url)
    path = f"/api/devices/{SLUG}/trials?shape=96,96,96"
    whole = connection.call("GET", path)
    assert whole["next"] is None
    parts: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        part = connection.call("GET", f"{path}&limit=5&offset={offset}")
        assert len(part["trials"]) <= 5
        parts += part["trials"]
        offset = part["next"]
    assert parts == whole["trials"]
    assert len(parts) > 12
    with pytest.raises(RefusedError) as refused:
        connection.call("GET", f"{path}&limit={tables_api.MAX_TRIALS + 1}")
    assert refused.value.status == 422
    connection.close()
