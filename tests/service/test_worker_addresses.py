"""A worker with several addresses stays with one service, goes to the next, and loses nothing on the way."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from autotune.cli import main
from autotune.errors import RefusedError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import code_version
from autotune.model.trial import Job
from autotune.service import core, fleet, workers_api
from autotune.service.remote import Client
from autotune.service.remote import worker as remote_worker
from autotune.service.remote.connection import Connection
from autotune.service.remote.wire import plain_job
from autotune.service.remote.worker import Offer
from autotune.service.server import Server
from fakes import INVENTED_PROCESSOR, FakeWorker
from invented_service import Paused, in_thread, invented_time, invented_worker, serving, submitted
from ports import free_port
from waiting import HANG_S, wait_for

DEVICE = INVENTED_PROCESSOR


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two that are free."""
    one = two = free_port()
    while two == one:
        two = free_port()
    return one, two


def addresses(ports: tuple[int, int]) -> str:
    return ",".join(f"http://127.0.0.1:{port}" for port in ports)


def is_offered(client: Client) -> bool:
    return any(device["stations"] for device in client.devices())


@contextmanager
def measuring(
    stack: ExitStack, database: Path, port: int, offer: Offer, paused: Paused, processes: int = 0
) -> Iterator[tuple[Server, dict[str, Any]]]:
    """A service, and a job of it of which a trial is under way. The worker goes on until the stack ends."""
    with serving(database, port=port, processes=processes) as first, Client(first.url) as client:
        stack.enter_context(in_thread(offer))
        wait_for(lambda: is_offered(client))
        job = submitted(first, client)
        assert paused.begun.wait(HANG_S)
        yield first, job


@pytest.mark.long
def test_result_for_a_service_that_is_gone_is_delivered_to_the_next(
    tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker, "HEARTBEAT_S", 0.1)
    paused, told, database = Paused(), list[str](), tmp_path / "db.sqlite"
    worker = FakeWorker(paused)
    offer = Offer(invented_worker(addresses(ports)), DEVICE, worker, told.append)
    with ExitStack() as stack:
        with measuring(stack, database, ports[0], offer, paused) as (_, job):
            pass  # the first service ends here
        second = stack.enter_context(serving(database, port=ports[1]))
        client = stack.enter_context(Client(second.url))
        wait_for(lambda: is_offered(client))
        paused.goes_on.set()
        wait_for(lambda: client.job(job["id"])["state"] == "done")
        store = second.service.store
        searched = [t.trial.configuration for t in store.trials(DEVICE.slug, "gemm") if t.purpose == "search"]
        assert len(searched) == len(set(searched))
        assert worker.jobs[0].configuration in searched
        assert store.quarantined() == [] == store.in_flight()
    assert [line for line in told if "is offered to" in line] == [
        f"{DEVICE.slug} is offered to http://127.0.0.1:{port}" for port in ports
    ]
    assert any(f"trying again at http://127.0.0.1:{ports[1]}" in line for line in told)


@pytest.mark.long
def test_result_that_an_ending_service_did_not_store_is_delivered_to_the_next(
    tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "STORED_S", 0.1)
    monkeypatch.setattr(core, "END_S", 0.5)
    paused, database = Paused(), tmp_path / "db.sqlite"
    worker = FakeWorker(paused)
    offer = Offer(invented_worker(addresses(ports)), DEVICE, worker, lambda _: None)
    with ExitStack() as stack:
        with measuring(stack, database, ports[0], offer, paused, processes=1) as (first, job):
            # It is killed with its service, which it does not hear.
            os.kill(first.service.search_pids[0], signal.SIGSTOP)
            paused.goes_on.set()
            [station] = first.service.fleet.stations()
            wait_for(lambda: station.reported is not None)
        second = stack.enter_context(serving(database, port=ports[1]))
        client = stack.enter_context(Client(second.url))
        wait_for(lambda: client.job(job["id"])["state"] == "done")
        store = second.service.store
        stored = [its.trial.configuration for its in store.trials(DEVICE.slug, "gemm")]
        assert sorted(map(str, stored)) == sorted(str(job.configuration) for job in worker.jobs)
        assert store.quarantined() == [] == store.in_flight()


def test_trial_given_again_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a service to which a worker returns that has delivered the result elsewhere."""
    job = Job(selector="0:0", problem=GemmProblem(m=96, n=96, k=96), configuration=FAMILY.baseline)
    given, delivered = {"id": "0" * 16, "job": plain_job(job)}, list[str]()
    worker = FakeWorker(invented_time)
    offer = Offer(invented_worker("http://127.0.0.1:1"), DEVICE, worker, lambda _: None)

    def call(self: Connection, method: str, path: str, body: Any = None, **_: Any) -> Any:
        results = (body or {}).get("results", [])
        delivered.extend(result["id"] for result in results)
        offer.is_stopping = len(delivered) >= 2
        return {"id": "w1", "trial": None if len(delivered) >= 2 else given}

    monkeypatch.setattr(Connection, "call", call)
    offer.serve()
    assert delivered == [given["id"]] * 2
    assert worker.jobs == [job]


def test_result_is_delivered_until_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(selector="0:0", problem=GemmProblem(m=96, n=96, k=96), configuration=FAMILY.baseline)
    given, delivered = {"id": "0" * 16, "job": plain_job(job)}, list[str]()
    offer = Offer(invented_worker("http://127.0.0.1:1"), DEVICE, FakeWorker(invented_time), lambda _: None)
    turns = 0

    def call(self: Connection, method: str, path: str, body: Any = None, **_: Any) -> Any:
        nonlocal turns
        turns += path.endswith("/turn")
        results = (body or {}).get("results", [])
        delivered.extend(result["id"] for result in results)
        offer.is_stopping = len(delivered) >= 3 or turns > 9
        return {"id": "w1", "trial": given if turns == 1 else None, "is_stored": len(delivered) != 1}

    monkeypatch.setattr(Connection, "call", call)
    offer.serve()
    assert delivered == [given["id"]] * 2


@pytest.mark.long
def test_worker_stays_with_one_service_and_skips_dead_addresses_without_a_pause(
    tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker, "FIRST_PAUSE_S", 10 * HANG_S)
    dead = "http://127.0.0.1:1"
    with ExitStack() as stack:
        one, two = (stack.enter_context(serving(tmp_path / f"{n}.sqlite", port=p)) for n, p in enumerate(ports))
        clients = [stack.enter_context(Client(server.url)) for server in (one, two)]
        offer = Offer(invented_worker(f"{dead},{addresses(ports)}"), DEVICE, FakeWorker(invented_time), lambda _: None)
        stack.enter_context(in_thread(offer))
        wait_for(lambda: is_offered(clients[0]))
        job = submitted(one, clients[0])
        wait_for(lambda: clients[0].job(job["id"])["state"] == "done")
        assert not is_offered(clients[1])


def test_service_with_other_templates_is_left_for_the_next(
    tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling upgrade, where some services are new already."""
    refused = threading.Event()

    def own_code() -> str:
        return "1-another" if not refused.is_set() else code_version()

    real = workers_api._greeted

    async def greeted(*arguments: object) -> object:
        try:
            return await real(*arguments)  # type: ignore[arg-type]
        except Exception:
            refused.set()
            raise

    monkeypatch.setattr(workers_api, "code_version", own_code)
    monkeypatch.setattr(workers_api, "_greeted", greeted)
    with ExitStack() as stack:
        _, two = (stack.enter_context(serving(tmp_path / f"{n}.sqlite", port=p)) for n, p in enumerate(ports))
        client = stack.enter_context(Client(two.url))
        offer = Offer(invented_worker(addresses(ports)), DEVICE, FakeWorker(invented_time), lambda _: None)
        stack.enter_context(in_thread(offer))
        wait_for(lambda: is_offered(client))


def test_wrong_address_among_several_is_refused_before_anything_is_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["worker", "--server", "http://127.0.0.1:1,ftp://x"]) == 2
    assert "'ftp://x' is not the URL of a service" in capsys.readouterr().err


def test_token_that_one_service_refuses_ends_the_worker(tmp_path: Path, ports: tuple[int, int]) -> None:
    from autotune.service.access import Role

    token = tmp_path / "token"
    token.write_text("a-token-of-sixteen")
    with serving(tmp_path / "db.sqlite", {Role.ADMIN: token}, port=ports[1]):
        offer = Offer(invented_worker(addresses(ports)), DEVICE, FakeWorker(invented_time), lambda _: None)
        try:
            with pytest.raises(RefusedError, match="token"):
                offer.serve()
        finally:
            offer.close()
