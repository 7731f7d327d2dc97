"""What those see who run a service: liveness, readiness, metrics, and who asked for what."""

import logging
import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.errors import DatabaseAwayError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.trial import TrialState
from autotune.remote import Client
from autotune.service import operations
from autotune.service.access import Access, Role
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.server import Server
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR
from factories import provenance, trial
from invented_service import ended, offering, submitted

SLUG = INVENTED_PROCESSOR.slug
ADMIN, READER = "administrators-token", "token-for-reading-only"
_LINE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+')


def test_a_process_lives_and_is_ready_without_a_token(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_readiness_is_asked_of_the_database_once_for_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def ask() -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr(operations, "READY_AGE_S", 60.0)
    monkeypatch.setattr(store, "is_ready", ask)
    with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as api:
        assert [api.get("/ready").status_code for _ in range(20)] == [200] * 20
    assert len(asked) == 1


def test_metrics_need_a_token_for_reading_and_are_in_the_text_format(store: Store) -> None:
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


def test_metrics_count_what_workers_measure_and_the_log_tells_who_asked(
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
