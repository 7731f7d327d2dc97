"""A service on a free port, and a worker with an invented device: real HTTP, in threads of this process."""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import pickle
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import searches
from autotune.codec import Node
from autotune.errors import StoreError
from autotune.kernels.render import code_version
from autotune.model.device import Device
from autotune.model.trial import Job, TrialState
from autotune.service import core, events, fleet
from autotune.service import searches as service_searches
from autotune.service.access import Role
from autotune.service.executor import Executor
from autotune.service.fleet import Fleet
from autotune.service.remote import Client
from autotune.service.remote import worker as remote_worker
from autotune.service.remote.connection import Connection
from autotune.service.remote.wire import plain_device, plain_trial, read_job
from autotune.service.remote.worker import Offer, Service
from autotune.service.search_process import SearchProcess
from autotune.service.server import ServeOptions, Server
from autotune.service.station import Station
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobProblem, TuningJob
from autotune.service.store.workers import model_of
from fakes import INVENTED_PROCESSOR, FakeWorker
from waiting import HANG_S, join, wait_for

invented_time = searches.invented_time
events.READ_EVERY_S = core.LOOK_S = 0.1  # invented devices are through with a job in a moment
# Patience that a busy machine must not use up; tests of what happens then set it themselves.
fleet.SILENT_S = fleet.TROUBLED_S = fleet.STORED_S = fleet.DOUBT_S = HANG_S
fleet.CANCEL_PATIENCE_S = core.END_S = HANG_S
remote_worker.ANSWER_S = HANG_S


class Paused:
    """Work that shows when its first trial, or a later one, has begun, and does not end that before it may go on."""

    def __init__(self, at: int = 1) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self._at = at
        self._trials = 0

    def __call__(self, job: Job) -> float:
        self._trials += 1
        if self._trials >= self._at:
            self.begun.set()
            assert self.goes_on.wait(HANG_S)
        return invented_time(job)


class InThisProcess:
    """Stands in for a search process: its searches run in threads of this process; what is said crosses as pickles."""

    def __init__(
        self, target: Any, on_message: Callable[..., None], on_end: object, call_soon: Callable[[Any], None]
    ) -> None:
        def send(*message: Any) -> None:
            call_soon(partial(on_message, self, *pickle.loads(pickle.dumps(message))))

        self.pid = os.getpid()
        self.searches: dict[int, service_searches.Search] = {}
        self.is_open = True
        self._store = ServiceStore.open(target)
        self._process = SearchProcess(self._store, send)

    def send(self, *message: Any) -> None:
        self._process.take(*pickle.loads(pickle.dumps(message)))

    def end_input(self) -> None: ...

    def close(self) -> None:
        """Nothing is searched any more: a service first waits for its searches."""
        self._store.close()


class HandMade:
    """A worker spoken by hand, so that it can misbehave."""

    def __init__(
        self, url: str, name: str = "w1", session: str = "", device: Device = INVENTED_PROCESSOR, **others: Any
    ) -> None:
        self._connection = Connection(url)
        self.session = session or secrets.token_hex(16)
        form = {
            "name": name, "secret": secret_of(name), "session": self.session, "code": code_version(),
            "selector": "0:0", "device": plain_device(device),
        }  # fmt: skip
        self.id = self._connection.call("POST", "/api/workers", form | others)["id"]

    def turn(self, results: tuple[dict[str, Any], ...] = ()) -> Any:
        """The next trial, once there is one, and the results are stored."""
        return wait_for(lambda: self.answer(results=results, wait_s=1.0)["trial"])

    def answer(self, running: str = "", results: tuple[dict[str, Any], ...] = (), wait_s: float = 0.0) -> Any:
        form = {"session": self.session, "running": running, "results": list(results), "wait_s": wait_s}
        return self._connection.call("POST", f"/api/workers/{self.id}/turn", form)

    def result(self, trial: dict[str, Any], time_ns: float | None = None) -> dict[str, Any]:
        job = read_job(Node(trial["job"], "job"), "0:0", ())
        measured = FakeWorker(lambda job: time_ns or invented_time(job)).run(job)
        return {"id": trial["id"], "job": trial["job"], "trial": plain_trial(measured)}

    def serve_until_ended(self, client: Client, job: dict[str, Any]) -> None:
        results: tuple[dict[str, Any], ...] = ()
        while client.job(job["id"])["state"] in ("queued", "running"):
            given = self.answer(results=results, wait_s=0.1)["trial"]
            results = (self.result(given),) if given else ()


class BareHost:
    """A service without processes, as an executor sees it: searches end when a test says so."""

    def __init__(self, store: ServiceStore, address: str = "http://here") -> None:
        self.address = address
        self.searches: dict[int, service_searches.Search] = {}
        self.fails = 0
        """How many searches cannot be started."""
        self._store = store
        self._unsettled = 0

    def begin(self, job: TuningJob, problem: JobProblem, station: Station) -> service_searches.Search:
        if self.fails:
            self.fails -= 1
            raise OSError("no more processes")
        search = service_searches.Search(job, problem, station, Fleet(lambda: None, no_answer, no_answer))
        self.searches[problem.id] = search
        self._unsettled += 1
        return search

    def end(self, search: service_searches.Search) -> None:
        del self.searches[search.problem.id]
        search.is_over.set()

    async def over(self, search: service_searches.Search) -> None:
        await search.is_over.wait()
        if not search.is_superseded:
            await asyncio.to_thread(self._store.jobs.requeue, search.problem)
        self._unsettled -= 1

    async def settled(self) -> None:
        """Return when all searches that have ended are queued again, or have an outcome."""
        while self._unsettled > len(self.searches):
            await asyncio.sleep(0.01)

    def cancel_search(self, search: service_searches.Search) -> None:
        search.cancel()
        self.end(search)

    def wake(self) -> None: ...


async def no_answer(*_: Any) -> Any:
    return ""


def station_of(name: str, device: Device) -> Station:
    """Of a device that is ready."""
    model = dataclasses.replace(device, selector="")
    return Station(
        id=name, name=name, session="0" * 32, device=device, model=model, model_digest=model_of(device), address="",
        since="", heard=0.0, is_ready=True,
    )  # fmt: skip


async def engaged(executor: Executor, station: Station, *, begins: bool = True) -> None:
    """Return when a station was brought a problem; until then the former attempt at it may be about to end."""
    async with asyncio.timeout(HANG_S):
        while True:
            with contextlib.suppress(StoreError, OSError):  # as the service does
                await executor.prepare()
                if await executor.engage(station, begins=begins):
                    return
            await asyncio.sleep(0.01)


def submitted(server: Server, client: Client) -> dict[str, Any]:
    """A small job for the invented device, which has to be known first."""
    server.service.store.add_device(INVENTED_PROCESSOR)
    return client.submit(INVENTED_PROCESSOR.slug, shapes=["96,96,96"], trials=3, algorithms=["microtile"])


def ended(client: Client, job_id: int) -> dict[str, Any]:
    """The job, once it has ended."""
    for _ in client.follow(job_id):
        pass
    return client.job(job_id)


@contextmanager
def serving(
    database: Path | str, files: Mapping[Role, Path] = MappingProxyType({}), port: int = 0, processes: int = 0
) -> Iterator[Server]:
    """A service, ended in order; `files` are those of its tokens. Without `processes` searches run in this one."""
    with pytest.MonkeyPatch.context() as patch, ServiceStore.open(database) as store:
        if not processes:
            patch.setattr(service_searches, "Process", InThisProcess)
        server = Server(ServeOptions(port=port, token_files=files, processes=processes or 1), store, lambda _: None)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        wait_for(lambda: bool(server.url))
        try:
            yield server
        finally:
            server.handle_exit(15, None)
            join(thread)


@contextmanager
def offering(url: str, name: str = "w1", work: Callable[[Job], float | TrialState] = invented_time) -> Iterator[Any]:
    """A worker that the service knows; the fake that measures."""
    worker = FakeWorker(work)
    with in_thread(Offer(invented_worker(url, name), INVENTED_PROCESSOR, worker, lambda _: None)):
        with Client(url) as client:
            wait_for(lambda: any(s["worker"] == name for d in client.devices() for s in d["stations"]))
        yield worker


@contextmanager
def in_thread(offer: Offer) -> Iterator[threading.Thread]:
    """The thread in which an offer is served; the offer is closed in the end."""
    thread = threading.Thread(target=offer.serve, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        offer.close()
        join(thread)


def invented_worker(url: str, name: str = "w1", token: str = "") -> Service:
    """As whom a worker of that name speaks, whenever it is started: it keeps its secret. `url` may be several."""
    return Service(urls=url.split(","), token=token, name=name, secret=secret_of(name))


def secret_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
