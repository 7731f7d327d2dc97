"""A service on a free port, and a worker with an invented device: real HTTP, in threads of this process."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.remote import Client
from autotune.remote.working import Offer, Service
from autotune.service import events
from autotune.service.serving import Place, Server
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR, FakeWorker
from autotune.trial import Job, TrialState

ENDS_IN_S = 20
events.READ_EVERY_S = 0.05  # invented devices are through with a job in a moment


def invented_time(job: Job) -> float:
    """Nanoseconds: the wider the micro-tile the faster."""
    values = dict(job.configuration.values)
    area = int(values.get("micro_tile_m", 1)) * int(values.get("micro_tile_n", 1))
    return 1e6 / area + 100.0 * (job.configuration.algorithm == "naive")


@contextmanager
def serving(database: Path, **files: Path) -> Iterator[Server]:
    """A service, ended in order; `files` are those of its tokens."""
    with Store.open(database) as store:
        server = Server(Place(port=0, **files), store, lambda _: None)  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        wait_for(lambda: bool(server.url))
        try:
            yield server
        finally:
            server.handle_exit(15, None)
            thread.join(ENDS_IN_S)
            assert not thread.is_alive()


@contextmanager
def offering(url: str, name: str = "w1", work: Callable[[Job], float | TrialState] = invented_time) -> Iterator[Any]:
    """A worker that the service knows; the fake that measures."""
    worker = FakeWorker(work)
    offer = Offer(invented_worker(url, name), INVENTED_PROCESSOR, worker, lambda _: None)
    thread = threading.Thread(target=offer.serve, daemon=True)
    thread.start()
    with Client(url) as client:
        wait_for(lambda: any(s["worker"] == name for d in client.devices() for s in d["stations"]))
    try:
        yield worker
    finally:
        offer.close()
        thread.join(ENDS_IN_S)
        assert not thread.is_alive()


def invented_worker(url: str, name: str = "w1", token: str = "") -> Service:
    """As whom a worker of that name speaks, whenever it is started: it keeps its secret."""
    return Service(url=url, token=token, name=name, secret=secret_of(name))


def secret_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
