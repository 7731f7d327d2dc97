"""What the service turns away before it asks for a token: other sites, proxies, guesses; and what its log says."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.errors import UsageError
from autotune.service import admission
from autotune.service.access import Access, Role
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.server import Place, read_access
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR
from test_service_api import JOB, READING, WRITING, bearer, refusal

PUBLIC = "https://tuner.example"


@pytest.fixture
def store(store: Store) -> Store:
    store.add_device(INVENTED_PROCESSOR)
    return store


@pytest.fixture
def locked(store: Store) -> Iterator[TestClient]:
    """With tokens, behind a proxy that writes its own name as the host."""
    app = make_app(Service(store), Access(tokens={Role.ADMIN: WRITING, Role.READER: READING}), PUBLIC)
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_pages_of_other_sites_cannot_read_either(api: TestClient, site: str) -> None:
    """As an image or a script of another page would ask."""
    lookup = f"/api/lookup?device={JOB['device']}&shape=64,64,64"
    for path in ("/api/export/sqlite", "/api/jobs", "/api/health", lookup):
        assert "site" in refusal(api.get(path, headers={"Sec-Fetch-Site": site}), 403)
    assert api.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200  # a link to the page itself


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_and_the_address_bar_may_ask(api: TestClient, site: str) -> None:
    assert api.get("/api/jobs", headers={"Sec-Fetch-Site": site, "Origin": "http://localhost"}).status_code == 200


def test_no_page_of_another_origin_may_embed_an_answer(api: TestClient) -> None:
    for path in ("/api/health", "/api/jobs", "/api/nothing", "/openapi.json", "/"):
        assert api.get(path).headers.get_list("cross-origin-resource-policy") == ["same-origin"]


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"]
)
def test_without_a_token_nothing_that_came_through_a_proxy_is_answered(
    api: TestClient, locked: TestClient, name: str
) -> None:
    headers = {name: "203.0.113.9"}
    assert "proxy" in refusal(api.get("/api/jobs", headers=headers), 403)
    assert "proxy" in refusal(api.post("/api/jobs", json=JOB, headers=headers), 403)
    assert locked.get("/api/jobs", headers=headers | bearer(READING)).status_code == 200


def test_behind_a_proxy_its_public_url_is_no_other_site(locked: TestClient) -> None:
    writing = bearer(WRITING)
    assert locked.post("/api/jobs", json=JOB, headers=writing | {"Origin": PUBLIC}).status_code == 201
    for origin in ("http://tuner.example", "https://tuner.example:8443", "https://evil.example"):
        refusal(locked.post("/api/jobs", json=JOB, headers=writing | {"Origin": origin}), 403)


def test_public_urls_are_checked(tmp_path: Path) -> None:
    assert admission.read_origin("https://Tuner.Example:443/autotune/") == PUBLIC
    assert admission.read_origin("http://10.0.0.5:8765") == "http://10.0.0.5:8765"
    for bad in ("tuner.example", "ftp://x", "https://", "https://me@x", "https://x:port"):
        with pytest.raises(UsageError, match="public URL"):
            admission.read_origin(bad)
    token = tmp_path / "token"
    token.write_text(WRITING)
    with pytest.raises(UsageError, match="behind a proxy needs a token"):
        read_access(Place(public_url=PUBLIC))
    assert not read_access(Place(public_url=PUBLIC, token_files={Role.ADMIN: token})).is_open


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "GUESS_PAUSE_S", 0.3)
    began = time.monotonic()
    for _ in range(admission.FREE_GUESSES + 5):
        refusal(locked.get("/api/jobs", headers=bearer("wrong" * 4)), 401)
    assert time.monotonic() - began > 1.5
    assert locked.get("/api/jobs", headers=bearer(READING)).elapsed.total_seconds() < 1.5
    refusal(locked.get("/api/jobs"), 401)


def test_wrong_tokens_are_logged_once_a_minute(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotune")
    monkeypatch.setattr(admission, "GUESS_PAUSE_S", 0.0)
    monkeypatch.setattr(admission, "LOG_EVERY_S", 0.3)
    for _ in range(20):
        locked.get("/api/jobs", headers=bearer("wrong" * 4))
    time.sleep(0.5)
    locked.get("/api/jobs")
    told = [record.getMessage() for record in caplog.records if "wrong token" in record.getMessage()]
    assert told[0] == "a wrong token from testclient"
    assert 2 <= len(told) <= 5
    assert "wrongwrong" not in caplog.text


def test_what_changes_something_is_logged_with_who_and_from_where(
    locked: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotune")
    locked.post("/api/jobs", json=JOB, headers=bearer(WRITING))
    locked.post("/api/jobs/1/cancel", headers=bearer(WRITING))
    locked.get("/api/jobs", headers=bearer(READING))
    locked.post("/api/jobs", json=JOB, headers=bearer(READING))
    told = [record.getMessage() for record in caplog.records if record.name == "autotune.service.admission"]
    assert told == [
        "POST /api/jobs by admin at testclient: job 1",
        "POST /api/jobs/1/cancel by admin at testclient",
    ]
    assert WRITING not in caplog.text
