"""What a stranger, a liar, a copy and a worker that hangs can do to a service, and what they cannot."""

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

import autotune
from autotune.cli import main
from autotune.codec import Node
from autotune.errors import RefusedError, ServiceError, StoreError, TableError, UsageError
from autotune.kernels import render as versions
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import code_version
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Request, Timer, Trial, TrialState
from autotune.service import fleet, workers_api
from autotune.service.access import Access, Role, role_needed
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.remote import Client, wire
from autotune.service.remote import worker as remote_worker
from autotune.service.remote.wire import plain_trial, read_trial
from autotune.service.remote.worker import Offer, own_name, own_secret
from autotune.service.server import ServeOptions, Server, read_access
from autotune.service.store import ServiceStore
from autotune.service.store import workers as workers_module
from autotune.service.store.jobs import JobKind, NewJob
from autotune.service.store.workers import Standing, digest_of, model_of
from autotune.store import Attempt, Holder, Owner, new_owner, owner
from databases import rows
from factories import Run, provenance
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
OTHER_DRIVER = replace(DEVICE, driver="another")
SHAPE = "96,96,96"
PROBLEM = GemmProblem(m=96, n=96, k=96)
PROVENANCE = provenance()
JOB = Job(selector="0:0", problem=PROBLEM, configuration=FAMILY.baseline)
STRANGERS_SECRET = "f" * 64
NEW = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=(Request(problem=PROBLEM),), trials=3)


@pytest.fixture
def any_store(place: str) -> Iterator[ServiceStore]:
    """On either kind of database."""
    with ServiceStore.open(place) as opened:
        opened.add_device(DEVICE)
        yield opened


def elsewhere(holder: Holder | None) -> Owner:
    """A service in a container that is gone."""
    return replace(new_owner(holder), host="another host", process_start="another boot 1")


def configuration_of(given: dict[str, Any]) -> Configuration:
    return Configuration.from_dict(given["job"]["configuration"])


# Who is who


def test_stranger_with_the_name_of_a_worker_is_refused_and_the_worker_keeps_its_trial(
    server: Server, client: Client
) -> None:
    job = submitted(server, client)
    victim = HandMade(server.url)
    given = victim.turn()
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"enrolled as w1.*--name") as refused:
            HandMade(server.url, secret=STRANGERS_SECRET)
        assert refused.value.status == 403
    assert victim.turn(results=(victim.result(given),)) is not None
    assert server.service.store.quarantined() == []
    assert client.job(job["id"])["state"] == "running"
    client.cancel(job["id"])


def test_malformed_secrets_are_refused_in_words_and_not_repeated(server: Server) -> None:
    secrets: list[Any] = ["", "x" * 64, "f" * 63, "F" * 64, "f" * 100_000, 5, None, ["f" * 64], {}, "\ud800"]
    for secret in secrets:
        with pytest.raises(RefusedError, match="secret") as refused:
            HandMade(server.url, secret=secret)
        assert refused.value.status == 422, secret
        assert len(refused.value.message) < 300, secret


@pytest.mark.parametrize("path", ["turn", "leave"])
def test_id_of_a_station_without_its_session_is_refused(server: Server, client: Client, path: str) -> None:
    job = submitted(server, client)
    victim = HandMade(server.url)
    given = victim.turn()
    for session in ("0" * 32, None, 5, "x" * 10_000):
        with pytest.raises(RefusedError) as refused:
            victim._connection.call("POST", f"/api/workers/{victim.id}/{path}", {"session": session})
        assert refused.value.status in (404, 422)
    assert victim.turn() == given
    client.cancel(job["id"])


def test_neither_ids_nor_sessions_nor_secrets_of_workers_are_shown_or_logged(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    worker = HandMade(server.url)
    worker.answer()
    with pytest.raises(RefusedError):
        HandMade(server.url, secret=STRANGERS_SECRET)
    [station] = server.service.fleet.stations()
    shown = repr(client.devices()) + repr(station) + repr(invented_worker(server.url)) + caplog.text
    hidden = (worker.session, STRANGERS_SECRET, invented_worker("").secret)
    assert not any(secret in shown for secret in hidden)
    assert worker.id not in repr(client.devices())


@pytest.mark.long
def test_device_behind_a_link_is_offered_without_the_link(server: Server, client: Client) -> None:
    phones = [replace(DEVICE, selector=f"exec:start --password secret {name}#0:0") for name in ("one", "other")]
    workers = [FakeWorker(invented_time) for _ in phones]
    service = invented_worker(server.url)
    with ExitStack() as stack:
        for phone, worker in zip(phones, workers, strict=True):
            stack.enter_context(in_thread(Offer(service, phone, worker, lambda _: None)))
        wait_for(lambda: [len(device["stations"]) for device in client.devices()] == [2])
        job = client.submit(DEVICE.slug, shapes=["96,96,96"], trials=8, algorithms=["microtile"])
        assert ended(client, job["id"])["state"] == "done"
        assert "secret" not in json.dumps(client.devices())
    measured = {job.selector for worker in workers for job in worker.jobs}
    assert measured and measured <= {phone.selector for phone in phones}


def test_copies_do_not_hold_the_digests_of_secrets(any_store: ServiceStore, tmp_path: Path) -> None:
    any_store.workers.enrol("w1", STRANGERS_SECRET, DEVICE)
    any_store.snapshot(tmp_path / "copy.sqlite")
    with ServiceStore.open(tmp_path / "copy.sqlite") as copy:
        assert copy.workers.enrol("w1", "0" * 64, DEVICE).standing is Standing.KNOWN


def test_name_belongs_to_a_secret_until_it_is_forgotten(any_store: ServiceStore) -> None:
    workers = any_store.workers
    assert workers.enrol("w1", "0" * 64, DEVICE).standing is Standing.KNOWN
    assert workers.enrol("w1", "1" * 64, DEVICE).standing is Standing.STRANGER
    assert workers.enrol("w1", "0" * 64, DEVICE).standing is Standing.KNOWN
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, elsewhere(Holder(worker="w1", session="")))
    assert workers.forget("w1")
    assert not workers.forget("w1")
    assert any_store.in_flight() == []
    assert [entry.reason for entry in any_store.quarantined()] == ["lost"]
    assert workers.enrol("w1", "1" * 64, DEVICE).standing is Standing.KNOWN


def test_administrator_forgets_a_worker(server: Server, run: Run) -> None:
    HandMade(server.url)
    assert main(["workers", "forget", "w1", "--server", server.url]) == 0
    HandMade(server.url, secret=STRANGERS_SECRET)
    assert "no worker of that name" in run(["workers", "forget", "nobody/here", "--server", server.url], 1).err


def test_one_address_leaves_names_of_workers_to_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "MAX_WORKERS", 4)
    for name in ("one", "two"):
        HandMade(server.url, name)
    with pytest.raises(RefusedError) as refused:
        HandMade(server.url, "three")
    assert refused.value.status == 429
    assert server.service.store.workers.enrol("three", "0" * 64, DEVICE).standing is Standing.KNOWN


def test_worker_keeps_its_name_and_secret_where_only_its_user_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "autotune.sqlite"
    monkeypatch.setattr(remote_worker, "default_database", lambda: place)
    secret = own_secret()
    assert own_secret() == secret
    assert own_name() == own_name()
    assert len(secret) == 64
    kept = tmp_path / "worker-secret"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.write_text("junk")
    with pytest.raises(UsageError, match="worker-secret"):
        own_secret()


# What a token allows


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/api/jobs", Role.READER),
        ("POST", "/api/jobs", Role.SUBMITTER),
        ("POST", "/api/jobs/1/cancel", Role.SUBMITTER),
        ("POST", "/api/tables", Role.SUBMITTER),
        ("POST", "/api/workers", Role.WORKER),
        ("POST", "/api/workers/0123456789abcdef/turn", Role.WORKER),
        ("POST", "/api/workersx", Role.SUBMITTER),
        ("DELETE", "/api/workers/w1", Role.ADMIN),
    ],
)
def test_each_token_allows_what_its_scope_says(store: ServiceStore, method: str, path: str, role: Role) -> None:
    tokens = {role: f"token-of-a-{role.value}" for role in Role}
    allowed = {Role.READER: "READER SUBMITTER ADMIN", Role.SUBMITTER: "SUBMITTER ADMIN", Role.WORKER: "WORKER ADMIN"}
    with TestClient(make_app(Service(store), Access(tokens=tokens)), base_url="http://10.0.0.5:8765") as api:
        for bearer, token in tokens.items():
            answer = api.request(method, path, headers={"Authorization": f"Bearer {token}"})
            is_refused = answer.status_code == 403 and "this token is for" in answer.json()["error"]["message"]
            assert is_refused == (bearer.name not in allowed.get(role, "ADMIN").split()), bearer
        assert api.request(method, path).status_code == 401
    assert role_needed(path, method) is role


def test_tokens_of_scopes_need_one_of_administrators_and_differ(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a-token-of-sixteen-or-more")
    other.write_text("another-token-of-some-length")
    access = read_access(ServeOptions(token_files={Role.ADMIN: one, Role.WORKER: other}))
    assert access.role_of("another-token-of-some-length") is Role.WORKER
    assert access.role_of("") is None
    for place in (
        ServeOptions(token_files={Role.WORKER: other}),
        ServeOptions(token_files={Role.ADMIN: one, Role.SUBMITTER: one}),
    ):
        with pytest.raises(UsageError):
            read_access(place)


# Devices that differ


def test_free_memory_makes_no_other_device() -> None:
    less = replace(DEVICE, limits=replace(DEVICE.limits, global_memory_bytes=2**30))
    other = replace(DEVICE, limits=replace(DEVICE.limits, compute_units=3))
    assert model_of(less) == model_of(DEVICE) != model_of(other)


def test_job_continues_only_where_driver_and_limits_are_equal(any_store: ServiceStore) -> None:
    jobs, own, other = any_store.jobs, model_of(DEVICE), model_of(OTHER_DRIVER)
    jobs.add(replace(NEW, requests=(Request(problem=PROBLEM), Request(problem=GemmProblem(m=8, n=8, k=8)))))
    assert jobs.take(DEVICE.slug, "forged", other, begins=False) is None
    assert jobs.take(DEVICE.slug, "w1", own) is not None
    assert jobs.waiting() == {(DEVICE.slug, own)}
    assert jobs.take(DEVICE.slug, "forged", other) is None
    assert jobs.take(DEVICE.slug, "w1", own, begins=False) is not None


def test_job_continues_with_the_new_driver_of_its_worker(any_store: ServiceStore) -> None:
    jobs, workers = any_store.jobs, any_store.workers
    workers.enrol("w1", "0" * 64, DEVICE)
    workers.enrol("forged", "1" * 64, OTHER_DRIVER)
    jobs.add(NEW)
    taken = jobs.take(DEVICE.slug, "w1", model_of(DEVICE))
    assert taken is not None
    jobs.requeue(taken[1], 0.0, "")
    workers.enrol("w2", "2" * 64, DEVICE)
    newer = replace(DEVICE, driver="2.0")
    workers.enrol("w1", "0" * 64, newer)
    assert jobs.waiting() == {(DEVICE.slug, model_of(DEVICE))}  # which w2 still offers
    workers.enrol("w2", "2" * 64, newer)
    assert jobs.waiting() == {(DEVICE.slug, model_of(newer))}


@pytest.mark.long
def test_forged_device_takes_nothing_from_the_queue_of_a_true_one(server: Server, client: Client) -> None:
    with offering(server.url):
        forged = HandMade(server.url, "forged", device=OTHER_DRIVER)
        assert forged.answer()["trial"] is None
        shapes = [SHAPE, "64,64,64", "32,32,32"]
        job = client.submit(DEVICE.slug, shapes=shapes, trials=3, algorithms=["microtile"])
        while (found := client.job(job["id"]))["state"] != "done":
            assert forged.answer(wait_s=0.1)["trial"] is None
    assert {problem["worker"] for problem in found["problems"]} == {"w1"}


# What cannot have been measured


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"time_ns": 1e-6, "samples_ns": [1e-6] * 7}, "faster than any device"),
        ({"time_ns": 4000.0}, "median"),
        ({"samples_ns": [1e-6, 5000.0, 5000.0]}, "faster than any device"),
        ({"samples_ns": [5000.0] * 8}, "8 samples"),
        ({"calls_per_sample": 0}, "calls_per_sample"),
        ({"time_ns": 0.1, "samples_ns": [0.1] * 7, "calls_per_sample": 1}, "faster than any device|tick"),
        ({"prepare_ns": 6000.0}, "prepare_ns"),
        ({"prepare_ns": -1.0}, "prepare_ns"),
        ({"error_ratio": 2.0}, "error_ratio"),
        ({"error_ratio": -1.0}, "error_ratio"),
        ({"launch_overhead_ns": -1.0}, "launch_overhead_ns"),
    ],
)
def test_times_that_no_device_can_have_measured_are_refused(change: dict[str, Any], told: str) -> None:
    plain = plain_trial(FakeWorker(lambda _: 5000.0).run(JOB))
    assert read_trial(Node(plain, "trial"), JOB).time_ns == 5000.0
    plain["measurement"] |= change
    with pytest.raises(TableError, match=told):
        read_trial(Node(plain, "trial"), JOB)


def test_times_below_a_tick_and_by_another_clock_are_refused() -> None:
    tiny = replace(JOB, problem=GemmProblem(m=1, n=1, k=1))
    short = plain_trial(FakeWorker(lambda _: 0.5).run(tiny))
    with pytest.raises(TableError, match="tick"):
        read_trial(Node(short, "trial"), tiny)
    by_events = plain_trial(FakeWorker(lambda _: 5000.0).run(JOB))
    with pytest.raises(TableError, match="host's clock"):
        read_trial(Node(by_events, "trial"), replace(JOB, timer=Timer.HOST))


def test_impossible_time_is_refused_in_words_and_never_stored(server: Server, client: Client) -> None:
    job = submitted(server, client)
    liar = HandMade(server.url)
    given = liar.turn()
    answer = liar.answer(results=(liar.result(given, time_ns=1e-6),))
    assert "faster than any device" in answer["refused"]
    [station] = client.devices()[0]["stations"]
    assert station["state"] == "troubled"
    assert "faster than any device" in station["trouble"]
    store = server.service.store
    wait_for(lambda: store.in_flight() == [])
    assert store.trials(DEVICE.slug, "gemm") == []
    assert store.best() == []
    assert store.quarantined() == []
    client.cancel(job["id"])


def test_worker_reports_what_was_refused(server: Server, client: Client) -> None:
    told: list[str] = []
    with in_thread(Offer(invented_worker(server.url), DEVICE, FakeWorker(lambda _: 1e-6), told.append)):
        job = submitted(server, client)
        wait_for(lambda: any("a result was refused" in line and "faster than any device" in line for line in told))
        client.cancel(job["id"])


def offer_to(answers: Callable[[str], Any], told: list[str]) -> Offer:
    """An offer to a service whose answers are invented: `answers` gets the path of each call."""
    offer = Offer(invented_worker("http://127.0.0.1:1"), DEVICE, FakeWorker(invented_time), told.append)
    offer._connection.call = lambda _, path, *rest, **options: answers(path)  # type: ignore[method-assign]
    return offer


@pytest.mark.parametrize("answer", [["not", "a", "service"], {"trial": 5}, {"trial": {"id": 1}}, None, "<html>"])
def test_odd_answer_from_a_proxy_does_not_end_a_worker(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_worker, "FIRST_PAUSE_S", 0.01)
    told: list[str] = []
    turns: list[str] = []

    def answers(path: str) -> Any:
        if path == "/api/workers":
            return {"id": "w1"}
        if path.endswith("/leave"):
            return {}
        turns.append(path)
        if len(turns) == 2:
            offer.is_stopping = True
        if len(turns) > 1:
            return {}
        if answer == "<html>":
            raise ServiceError("it does not answer like an autotune service")
        return answer

    offer = offer_to(answers, told)
    offer.serve()
    assert len(turns) == 2 and any("does not answer like an autotune service; trying again" in line for line in told)


def test_address_that_never_was_a_service_ends_the_worker_with_a_reason() -> None:
    with pytest.raises(ServiceError, match="does not answer like an autotune service"):
        offer_to(lambda path: ["a", "web", "page"], []).serve()


# What was in hand when a service went


def test_trial_in_hand_counts_wherever_the_service_runs_by_then(any_store: ServiceStore) -> None:
    held = elsewhere(Holder(worker="w1", session="s"))
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, held)
    assert any_store.quarantine_lost() == []
    late = FakeWorker(lambda _: 5000.0).run(JOB)
    assert not any_store.add_late(DEVICE, PROBLEM, late, PROVENANCE, "w2")  # another one cannot tell
    assert len(any_store.in_flight()) == 1
    assert any_store.add_late(DEVICE, PROBLEM, late, PROVENANCE, "w1")
    assert not any_store.add_late(DEVICE, PROBLEM, late, PROVENANCE, "w1")
    assert any_store.in_flight() == [] == any_store.quarantined()
    [stored] = any_store.trials(DEVICE.slug, "gemm")
    assert stored.trial.time_ns == 5000.0


def test_result_delivered_to_two_services_is_stored_once(any_store: ServiceStore) -> None:
    """As when an answer is lost, and the first service has not stored yet what it accepted."""
    mine = new_owner(Holder(worker="w1", session="s"))
    following = Configuration.of("dot", vector_width=4)
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, mine)
    trial = FakeWorker(lambda _: 5000.0).run(JOB)
    assert any_store.add_late(DEVICE, PROBLEM, trial, PROVENANCE, "w1")
    any_store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE, "search", mine, following)
    assert len(any_store.trials(DEVICE.slug, "gemm")) == 1
    assert [flight.configuration for flight in any_store.in_flight()] == [following]
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, mine)
    any_store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE, "search", mine)
    assert len(any_store.trials(DEVICE.slug, "gemm")) == 2, "what was measured again counts again"


def test_only_the_worker_that_lost_a_trial_takes_it_out_of_quarantine(any_store: ServiceStore) -> None:
    mine = new_owner(Holder(worker="w1", session="s"))
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, mine)
    any_store.lose_trials(mine, "silent")
    late = FakeWorker(lambda _: 5000.0).run(JOB)
    assert not any_store.add_late(DEVICE, PROBLEM, late, PROVENANCE, "w2")
    assert not any_store.add_late(OTHER_DRIVER, PROBLEM, late, PROVENANCE, "w1")
    assert len(any_store.quarantined()) == 1
    assert any_store.trials(DEVICE.slug, "gemm") == []
    assert any_store.add_late(DEVICE, PROBLEM, late, PROVENANCE, "w1")
    assert any_store.quarantined() == []


def test_result_of_a_trial_that_was_never_in_hand_is_not_stored(any_store: ServiceStore, place: str) -> None:
    """Else it could fill the disk, and the memory of the service, with devices and problems that it invents."""
    counts = "SELECT (SELECT count(*) FROM devices), (SELECT count(*) FROM problems)"
    before = rows(place, counts)
    for size in range(1, 4):
        problem, device = GemmProblem(m=size, n=8, k=8), replace(DEVICE, driver=f"invented {size}")
        trial = FakeWorker(lambda _: 5000.0).run(replace(JOB, problem=problem))
        assert not any_store.add_late(device, problem, trial, PROVENANCE, "w1")
    assert rows(place, counts) == before
    assert not any_store._ids


def test_late_crash_is_quarantined_as_crashed(any_store: ServiceStore) -> None:
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, elsewhere(Holder(worker="w1", session="s")))
    crashed = Trial(configuration=FAMILY.baseline, state=TrialState.CRASHED, message="gone")
    assert any_store.add_late(DEVICE, PROBLEM, crashed, PROVENANCE, "w1")
    assert any_store.in_flight() == []
    assert [entry.reason for entry in any_store.quarantined()] == ["crashed"]


def test_trial_that_was_never_begun_is_not_to_blame_and_one_lost_with_another_process_is(
    any_store: ServiceStore,
) -> None:
    second = Configuration.of("microtile", micro_tile_m=1)
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, elsewhere(Holder(worker="w1", session="now")))
    any_store.begin_trial(DEVICE, PROBLEM, second, elsewhere(Holder(worker="w1", session="before")))
    any_store.begin_trial(DEVICE, PROBLEM, second, elsewhere(Holder(worker="w2", session="now")))
    any_store.begin_trial(DEVICE, PROBLEM, second, new_owner(Holder(worker="w1", session="before")))  # of this service
    equal_device = Holder(worker="w1", session="now", selector="0:1")
    any_store.begin_trial(DEVICE, PROBLEM, second, elsewhere(equal_device))
    any_store.settle_trials(DEVICE.slug, Holder(worker="w1", session="now"))
    assert [entry.configuration for entry in any_store.quarantined()] == [second]
    left = [flight.owner.holder for flight in any_store.in_flight()]
    assert left == [Holder(worker="w2", session="now"), Holder(worker="w1", session="before"), equal_device]


def test_restarted_service_queues_what_was_searched_and_takes_late_results(store: ServiceStore) -> None:
    """As after a service that was killed with its container."""
    store.add_device(DEVICE)
    job_id, session = store.jobs.add(NEW), "0" * 32
    assert store.jobs.take(DEVICE.slug, "w1", model_of(DEVICE)) is not None
    held = Holder(worker="w1", session=digest_of(session)[:32], selector="0:0")
    store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, elsewhere(held))
    trial = plain_trial(FakeWorker(lambda _: 5000.0).run(JOB))
    form = {
        "name": "w1", "secret": "1" * 64, "session": session, "code": code_version(), "selector": "0:0",
        "device": wire.plain_device(DEVICE), "results": [{"id": "0" * 16, "job": wire.plain_job(JOB), "trial": trial}],
    }  # fmt: skip
    with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as api:
        assert api.get(f"/api/jobs/{job_id}").json()["counts"] == {"queued": 1}
        assert store.in_flight() and store.quarantined() == [], "its worker may have it"
        for _ in range(2):  # the first answer is lost
            assert api.post("/api/workers", json=form).status_code == 200
        assert [its.trial.time_ns for its in store.trials(DEVICE.slug, "gemm")] == [5000.0]
        assert store.in_flight() == [] == store.quarantined()


@pytest.mark.long
def test_result_delivered_again_to_a_service_on_another_host_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "db.sqlite"
    with serving(database) as first, Client(first.url) as client:
        job = submitted(first, client)
        worker = HandMade(first.url)
        given = worker.turn()
    with ServiceStore.open(database) as store:  # as a service leaves it that was killed together with its container
        holder = Holder(worker="w1", session=digest_of(worker.session)[:32], selector="0:0")
        store.begin_trial(store.devices()[-1], PROBLEM, configuration_of(given), elsewhere(holder))
    monkeypatch.setattr(owner, "_host", lambda: "a new container")
    with serving(database) as second, Client(second.url) as client:
        store = second.service.store
        back = HandMade(second.url, session=worker.session, results=[worker.result(given, time_ns=5000.0)])
        assert store.in_flight() == [] == store.quarantined()
        [late] = store.trials(DEVICE.slug, "gemm")
        assert (late.trial.configuration, late.trial.time_ns) == (configuration_of(given), 5000.0)
        back.serve_until_ended(client, job)
        searched = [s.trial.configuration for s in store.trials(DEVICE.slug, "gemm") if s.purpose == "search"]
        assert searched.count(configuration_of(given)) == 1


# Other versions


def test_another_version_with_the_same_templates_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    code_version.cache_clear()
    before = code_version()
    code_version.cache_clear()
    monkeypatch.setattr(autotune, "__version__", "99.0")
    assert code_version() == before
    code_version.cache_clear()
    monkeypatch.setattr(versions, "FORMAT", versions.FORMAT + 1)
    assert code_version() != before
    code_version.cache_clear()


@pytest.mark.long
def test_worker_delivers_to_a_service_with_other_templates_then_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker, "LONGEST_MISMATCH_S", 0.1)
    paused, told = Paused(), list[str]()
    with serving(tmp_path / "db.sqlite") as server, Client(server.url) as client:
        offer = Offer(invented_worker(server.url), DEVICE, FakeWorker(paused), told.append)
        with in_thread(offer) as thread:
            job = submitted(server, client)
            assert paused.begun.wait(HANG_S)
            with monkeypatch.context() as other:
                other.setattr(workers_api, "code_version", lambda: "4-other")
                client.forget_worker("w1")  # which offers its device again
                store = server.service.store
                wait_for(lambda: len(store.quarantined()) == 1)
                paused.goes_on.set()
                wait_for(lambda: store.quarantined() == [])
                wait_for(lambda: any("other templates" in line for line in told))
                assert store.trials(DEVICE.slug, "gemm") == []  # of other templates
                assert thread.is_alive()
            assert ended(client, job["id"])["state"] == "done"


def test_trial_begins_only_while_its_search_belongs_to_this_service(any_store: ServiceStore) -> None:
    """As in a service that was stopped, replaced, and goes on in the middle of a search."""
    any_store.add_device(DEVICE)
    any_store.jobs.add(NEW)
    taken = any_store.jobs.take(DEVICE.slug, "w1")
    assert taken is not None
    attempt = Attempt(problem=taken[1].id, number=taken[1].attempts)
    mine = new_owner(Holder(worker="w1", session="s", attempt=attempt))
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, mine)
    assert any_store.jobs.recover() == 1
    for _ in range(2):
        with pytest.raises(StoreError, match="another service"):
            any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, mine)
        any_store.jobs.take(DEVICE.slug, "w1")
    any_store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, new_owner())  # a local run is no service's


# Workers that hang


@pytest.mark.long
def test_search_continues_without_a_worker_that_says_running_for_ever(server: Server, client: Client) -> None:
    job = submitted(server, client)
    hangs = HandMade(server.url, "hangs")
    given = hangs.turn()
    [station] = server.service.fleet.stations()
    assert station.assignment is not None
    station.assignment.deadline = 0.0
    store = server.service.store
    wait_for(lambda: _is_lost(hangs, given))
    wait_for(lambda: [entry.configuration for entry in store.quarantined()] == [configuration_of(given)])
    assert store.in_flight() == []
    back = HandMade(server.url, "hangs", session=hangs.session)
    for _ in range(3):
        assert back.answer(running=given["id"])["trial"] is None
    with offering(server.url, "sound"):
        assert ended(client, job["id"])["state"] == "done"
    assert [entry.configuration for entry in store.quarantined()] == [configuration_of(given)]


def _is_lost(worker: HandMade, given: dict[str, Any]) -> bool:
    """After one more turn that says that the trial is running."""
    try:
        worker.answer(running=given["id"])
    except RefusedError as error:
        return error.status == 404
    return False


def test_cancelling_detaches_from_a_worker_that_does_not_answer(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CANCEL_PATIENCE_S", 0.0)
    job = submitted(server, client)
    hangs = HandMade(server.url)
    given = hangs.turn()
    client.cancel(job["id"])
    wait_for(lambda: client.job(job["id"])["counts"] == {"cancelled": 1})
    wait_for(lambda: server.service.searches == {})
    back = HandMade(server.url, session=hangs.session, results=[hangs.result(given)])  # it was only slow
    assert back.answer()["trial"] is None
    assert server.service.store.quarantined() == []
