"""The turns of workers, as strangers may send them: bounded, checked, and refused in order."""

import json

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.kernels.render import code_version
from autotune.service.access import Access, Role
from autotune.service.admission import MAX_BODY_BYTES
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.remote.wire import plain_device
from autotune.service.store import ServiceStore
from fakes import INVENTED_PROCESSOR

JSON = {"Content-Type": "application/json"}
SESSION = "0" * 32
TURN = {"session": SESSION, "running": "", "results": [], "wait_s": 0}
NOTHING = {"trial": None, "refused": "", "is_stored": True}
ID = "0123456789abcdef"
WRITING, READING = "writing-token-of-a-test", "reading-token-of-a-test"


@pytest.fixture
def here(unchanged_api: TestClient) -> str:
    """The path of the turns of a worker."""
    worker = {
        "name": "w1", "secret": "0" * 64, "session": SESSION, "code": code_version(), "selector": "0:0",
        "device": plain_device(INVENTED_PROCESSOR),
    }  # fmt: skip
    return f"/api/workers/{unchanged_api.post('/api/workers', json=worker).json()['id']}/turn"


def test_turn_without_news_has_nothing(unchanged_api: TestClient, here: str) -> None:
    answer = unchanged_api.post(here, json=TURN)
    assert (answer.status_code, answer.json()) == (200, NOTHING)


BAD = [
    b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"wait_s": NaN}', b'{"wait_s": -1}', b'{"wait_s": 31}',
    b'{"wait_s": "x"}', b'{"running": "../x"}', b'{"running": 5}', b'{"more": 1}', b'{"results": 5}',
    b'{"results": [5]}', b'{"results": [{}, {}, {}, {}, {}]}', b'{"results": [{}]}', b'{"results": [{"id": "1"}]}',
    b'{"results": [{"id": "1", "job": {}, "kernel": "x"}]}', b'{"session": 5}', b'{"session": "x"}', b"{}",
    b'{"session": "11111111111111111111111111111111"}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_malformed_turn_is_refused(unchanged_api: TestClient, here: str, body: bytes) -> None:
    if b"session" not in body and body != b"{}":
        body = body.replace(b'{"', f'{{"session": "{SESSION}", "'.encode(), 1)
    answer = unchanged_api.post(here, content=body, headers=JSON)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [f"/api/workers/{ID}/turn", "/api/workers/x/turn"])
def test_turn_of_an_unknown_worker_is_refused(unchanged_api: TestClient, path: str) -> None:
    assert unchanged_api.post(path, json=TURN, follow_redirects=False).status_code in (404, 422)


def test_turn_is_bounded_and_may_come_in_pieces(unchanged_api: TestClient, here: str) -> None:
    body = json.dumps(TURN).encode()
    assert unchanged_api.post(here, content=iter([body[:9], body[9:]]), headers=JSON).json() == NOTHING
    large = body[:-1] + b" " * MAX_BODY_BYTES + b"}"
    for content in (large, iter([large[:100], large[100:]])):
        answer = unchanged_api.post(here, content=content, headers=JSON)
        assert answer.status_code == 413
        assert "MiB" in answer.json()["error"]["message"]


def test_turn_needs_the_token_for_writing(store: ServiceStore) -> None:
    access = Access(tokens={Role.ADMIN: WRITING, Role.READER: READING})
    with TestClient(make_app(Service(store), access), base_url="http://10.0.0.5:8765") as api:
        path = f"/api/workers/{ID}/turn"
        told = [api.post(path, json=TURN, headers={"Authorization": f"Bearer {t}"}) for t in ("", READING, WRITING)]
        assert [answer.status_code for answer in told] == [401, 403, 404]
