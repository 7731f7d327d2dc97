"""Ways past the routes: a plain turn takes them, and whatever is refused is refused as by the routes."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.remote.wire import code_version, plain_device
from autotune.service.access import Access, Message, Role
from autotune.service.admission import MAX_BODY_BYTES, Admission
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.forms import TurnForm
from autotune.service.shortcuts import Shortcuts
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR

JSON = {"Content-Type": "application/json"}
SESSION = "0" * 32
TURN = {"session": SESSION, "running": "", "results": [], "wait_s": 0}
NOTHING = {"trial": None, "refused": ""}
ID = "0123456789abcdef"
WRITING, READING = "writing-token-of-a-test", "reading-token-of-a-test"


@pytest.fixture
def guard(store: Store) -> Admission:
    return make_app(Service(store), Access())


@pytest.fixture
def api(guard: Admission) -> Iterator[TestClient]:
    with TestClient(guard, base_url="http://localhost") as client:
        yield client


class Both:
    """A request as it is answered with the shortcuts, and by the routes alone."""

    def __init__(self, guard: Admission, api: TestClient) -> None:
        self._guard = guard
        self._api = api

    def post(self, path: str, **sent: Any) -> list[Any]:
        quick = self._api.post(path, **sent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._guard, "_app", self._guard._app._app)  # type: ignore[attr-defined]
            return [quick, self._api.post(path, **sent)]


@pytest.fixture
def both(guard: Admission, api: TestClient) -> Both:
    return Both(guard, api)


@pytest.fixture
def here(api: TestClient) -> str:
    """The path of the turns of a worker."""
    worker = {
        "name": "w1", "secret": "0" * 64, "session": SESSION, "code": code_version(), "selector": "0:0",
        "device": plain_device(INVENTED_PROCESSOR),
    }  # fmt: skip
    return f"/api/workers/{api.post('/api/workers', json=worker).json()['id']}/turn"


def test_a_plain_turn_goes_past_the_routes(guard: Admission, api: TestClient, both: Both, here: str) -> None:
    quick, slow = both.post(here, json=TURN)
    assert (quick.status_code, quick.json()) == (slow.status_code, slow.json()) == (200, NOTHING)
    assert quick.headers["content-type"] == slow.headers["content-type"]

    def not_asked(*_: object) -> None:
        raise AssertionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard._app, "_app", not_asked)
        assert api.post(here, json=TURN).json() == NOTHING


BAD = [
    b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"wait_s": NaN}', b'{"wait_s": -1}', b'{"wait_s": 31}',
    b'{"wait_s": "x"}', b'{"running": "../x"}', b'{"running": 5}', b'{"more": 1}', b'{"results": 5}',
    b'{"results": [5]}', b'{"results": [{}, {}, {}, {}, {}]}', b'{"results": [{}]}', b'{"results": [{"id": "1"}]}',
    b'{"results": [{"id": "1", "job": {}, "kernel": "x"}]}', b'{"session": 5}', b'{"session": "x"}', b"{}",
    b'{"session": "11111111111111111111111111111111"}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_a_turn_is_refused_as_by_the_routes(both: Both, here: str, body: bytes) -> None:
    if b"session" not in body and body != b"{}":
        body = body.replace(b'{"', f'{{"session": "{SESSION}", "'.encode(), 1)
    quick, slow = both.post(here, content=body, headers=JSON)
    assert quick.status_code == slow.status_code >= 400
    assert quick.json() == slow.json()


@pytest.mark.parametrize("path", [f"/api/workers/{ID}/turn", "/api/workers/x/turn", f"/api/workers/{ID}/turn/"])
def test_a_turn_of_nobody_is_refused_as_by_the_routes(both: Both, path: str) -> None:
    quick, slow = both.post(path, json=TURN, follow_redirects=False)
    assert (quick.status_code, quick.content) == (slow.status_code, slow.content)
    assert quick.status_code >= 300


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_is_not_said_to_be_json_is_refused_as_by_the_routes(both: Both, here: str, kind: str) -> None:
    quick, slow = both.post(here, content=json.dumps(TURN).encode(), headers={"Content-Type": kind})
    assert (quick.status_code, quick.json()) == (slow.status_code, slow.json())


def test_a_turn_is_bounded_and_may_come_in_pieces(api: TestClient, here: str) -> None:
    body = json.dumps(TURN).encode()
    assert api.post(here, content=iter([body[:9], body[9:]]), headers=JSON).json() == NOTHING
    large = body[:-1] + b" " * MAX_BODY_BYTES + b"}"
    for content in (large, iter([large[:100], large[100:]])):
        answer = api.post(here, content=content, headers=JSON)
        assert answer.status_code == 413
        assert "MiB" in answer.json()["error"]["message"]


def test_a_turn_needs_the_token_for_writing(store: Store) -> None:
    access = Access(tokens={Role.ADMIN: WRITING, Role.READER: READING})
    with TestClient(make_app(Service(store), access), base_url="http://10.0.0.5:8765") as api:
        path = f"/api/workers/{ID}/turn"
        told = [api.post(path, json=TURN, headers={"Authorization": f"Bearer {t}"}) for t in ("", READING, WRITING)]
        assert [answer.status_code for answer in told] == [401, 403, 404]


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), ValueError("x")])
def test_what_fails_on_the_way_is_left_to_the_route_with_all_that_was_sent(error: Exception) -> None:
    asked: list[bytes] = []

    async def route(_scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            asked.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def failing(_station: str, _form: TurnForm) -> dict[str, Any] | None:
        raise error

    sent: list[Message] = []
    parts = [b'{"running": ', b'"", "results": [], "wait_s": 0}']
    messages = iter({"type": "http.request", "body": part, "more_body": part is parts[0]} for part in parts)

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": f"/api/workers/{ID}/turn",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    asyncio.run(Shortcuts(route, lambda _: None, failing)(scope, receive, send))
    assert asked == parts
    assert sent[0]["status"] == 500
