"""What those see who run a service: liveness, readiness, metrics, and who asked for what."""

import logging
import re
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.errors import DatabaseAwayError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.trial import TrialState
from autotune.service import operations
from autotune.service.access import Access, Role
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.remote import Client
from autotune.service.server import Server
from autotune.service.store import ServiceStore
from factories import provenance, trial
from fakes import INVENTED_PROCESSOR
from invented_service import Paused, ended, offering, serving, submitted
from waiting import HANG_S, wait_for

SLUG = INVENTED_PROCESSOR.slug
ADMIN, READER = "administrators-token", "token-for-reading-only"
_LINE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+')


def test_liveness_and_readiness_need_no_token(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "READY_AGE_S", 0.0)
    with TestClient(make_app(Service(store), Access(tokens={Role.ADMIN: ADMIN})), base_url="http://localhost") as api:
        assert api.get("/health").json() == api.get("/api/health").json()
        assert (api.get("/ready").status_code, api.get("/ready").json()) == (200, {"status": "ready"})

        def away() -> bool:
            raise DatabaseAwayError("postgresql://secret-host cannot be reached")

        monkeypatch.setattr(store, "is_ready", away)
        answer = api.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {"status": "the database does not answer"}, "where it is, is private"
        monkeypatch.setattr(store, "is_ready", lambda: False)
        assert api.get("/ready").json() == {"status": "the database has an older schema"}
        assert api.get("/health").status_code == 200


def test_readiness_is_asked_of_the_database_once_for_many(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def ask() -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr(operations, "READY_AGE_S", 60.0)
    monkeypatch.setattr(store, "is_ready", ask)
    with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as api:
        assert [api.get("/ready").status_code for _ in range(20)] == [200] * 20
    assert len(asked) == 1


def test_metrics_need_a_token_for_reading_and_are_in_the_text_format(store: ServiceStore) -> None:
    store.add_device(INVENTED_PROCESSOR)
    problem = GemmProblem(m=64, n=64, k=64)
    store.add_trial(INVENTED_PROCESSOR, problem, trial(FAMILY.baseline, 100.0), provenance())
    store.add_trial(INVENTED_PROCESSOR, problem, trial(FAMILY.baseline, TrialState.CRASHED), provenance())
    tokens = {Role.ADMIN: ADMIN, Role.READER: READER}
    with TestClient(make_app(Service(store), Access(tokens=tokens)), base_url="http://localhost") as api:
        assert api.get("/metrics").status_code == 401
        strangers = {"Authorization": f"Bearer {READER}", "Sec-Fetch-Site": "cross-site"}
        assert api.get("/metrics", headers=strangers).status_code == 403
        answer = api.get("/metrics", headers={"Authorization": f"Bearer {READER}"})
    assert answer.headers["content-type"] == operations.TEXT
    lines = answer.text.splitlines()
    assert all(line.startswith("# ") or _LINE.fullmatch(line) for line in lines), lines
    assert f'autotune_trials_total{{device="{SLUG}",state="complete"}} 1' in lines
    assert f'autotune_quarantined{{device="{SLUG}",reason="crashed"}} 1' in lines
    assert 'autotune_http_answers_total{method="GET",status="401"} 1' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_labels_are_escaped() -> None:
    told = str(operations.Metric(name="a", kind="gauge", meaning="b", values=[({"c": 'x"\\\n'}, 1)]))
    assert told.splitlines()[-1] == r'a{c="x\"\\\n"} 1'


@pytest.mark.long
def test_metrics_count_what_workers_measure_and_the_log_says_who_asked(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    from urllib.request import urlopen

    caplog.set_level(logging.INFO)
    with offering(server.url, "bench"):
        job = submitted(server, client)
        assert ended(client, job["id"])["state"] == "done"
        text = urlopen(f"{server.url}/metrics").read().decode()
    found = re.search(rf'autotune_worker_trials_total{{device="{SLUG}",worker="bench",selector="[0-9:]+"}} (\d+)', text)
    assert found and int(found[1]) > 3
    client.cancel(job["id"])
    told = [record.getMessage() for record in caplog.records if record.name == "autotune.service.admission"]
    assert f"POST /api/jobs by anyone at 127.0.0.1: job {job['id']}" in told
    assert any(line.startswith(f"POST /api/jobs/{job['id']}/cancel by anyone at 127.0.0.1") for line in told)
    assert any(line.startswith("POST /api/workers by anyone") for line in told)
    assert not any("/turn" in line for line in told)


class Ledger:
    """Ids of trials, all of one state."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.read: set[int] = set()

    def last_trial(self) -> int:
        return max(self.ids)

    def count_trials(self, after: int, until: int) -> Counter[tuple[str, str]]:
        self.read = {each for each in self.ids if after < each <= until}
        return Counter({(SLUG, "complete"): len(self.read)})


def test_trials_are_counted_once_and_late_ones_are_not_missed() -> None:
    ledger = Ledger()
    totals = operations.TrialTotals(cast("ServiceStore", ledger))
    young = operations.YOUNG_TRIALS
    ledger.ids |= set(range(1, 3 * young)) - {2 * young}
    assert totals.read().total() == 3 * young - 2
    ledger.ids.add(2 * young)  # it was begun before the last
    assert totals.read().total() == 3 * young - 1
    ledger.ids |= set(range(3 * young, 4 * young))
    assert totals.read().total() == 4 * young - 1
    assert min(ledger.read) == 3 * young, "what is settled is not read again"


def test_trials_of_either_kind_of_database_are_counted_from_any_one_on(place: str) -> None:
    other = replace(INVENTED_PROCESSOR, driver="2.0")  # the same device
    with ServiceStore.open(place) as store:
        assert (store.last_trial(), store.count_trials(0, 9)) == (0, Counter())
        for device, state in ((INVENTED_PROCESSOR, 10.0), (other, 20.0), (other, TrialState.CRASHED)):
            done = trial(FAMILY.baseline, state)
            store.add_trial(device, GemmProblem(m=8, n=8, k=8), done, provenance(device.driver))
        last = store.last_trial()
        assert store.count_trials(0, last) == {(SLUG, "complete"): 2, (SLUG, "crashed"): 1}
        assert store.count_trials(last - 2, last - 1) == {(SLUG, "complete"): 1}
        assert store.quarantine_counts() == {(SLUG, "crashed"): 1}


@pytest.mark.long
def test_counts_hold_with_several_search_processes(tmp_path: Path) -> None:
    from urllib.request import urlopen

    def sum_of(name: str, text: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    works = [Paused(), Paused()]
    with serving(tmp_path / "db.sqlite", processes=2) as server, ExitStack() as stack:

        def metrics() -> str:
            text: str = urlopen(f"{server.url}/metrics").read().decode()
            return text if sum_of("autotune_searches", text) == len(server.service.searches) else ""

        client = stack.enter_context(Client(server.url))
        workers = [stack.enter_context(offering(server.url, f"w{n}", work)) for n, work in enumerate(works)]
        jobs = [client.submit(SLUG, shapes=[shape], trials=12) for shape in ("96,96,96", "64,64,64")]
        for work in works:
            assert work.begun.wait(HANG_S)
        during = wait_for(metrics)
        for work in works:
            work.goes_on.set()
        assert all(ended(client, job["id"])["state"] == "done" for job in jobs)
        wait_for(lambda: not server.service.searches)
        text = wait_for(metrics)
        stored = len(server.service.store.trials(SLUG, "gemm"))

    # Equal devices may share the first search, or have one each.
    assert sum_of("autotune_searches", during) in (1, 2) and sum_of("autotune_searches", text) == 0
    assert sum_of("autotune_jobs_open", during) == sum_of("autotune_open_job_problems", during) == 2
    assert sum_of("autotune_trials_total", text) == stored
    assert sum_of("autotune_worker_trials_total", text) == sum(len(worker.jobs) for worker in workers) >= stored
    if sys.platform == "linux":
        assert len(re.findall("^autotune_search_process_cpu_seconds_total", text, re.MULTILINE)) == 2
        assert sum_of("autotune_search_process_cpu_seconds_total", text) > 0
