"""What the service turns away before it asks for a token: other sites, proxies, guesses; and what its log says."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.errors import UsageError
from autotune.service import admission
from autotune.service.access import Access, Message, Receive, Role, Scope, Send, answer
from autotune.service.admission import Guesses
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.server import ServeOptions, read_access
from autotune.service.store import ServiceStore
from fakes import INVENTED_PROCESSOR
from service.test_service_api import JOB, READING, WRITING, bearer, refusal

PUBLIC = "https://tuner.example"


@pytest.fixture
def store(store: ServiceStore) -> ServiceStore:
    store.add_device(INVENTED_PROCESSOR)
    return store


@pytest.fixture
def locked(store: ServiceStore) -> Iterator[TestClient]:
    """With tokens, behind a proxy that writes its own name as the host."""
    app = make_app(Service(store), Access(tokens={Role.ADMIN: WRITING, Role.READER: READING}), PUBLIC)
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_pages_of_other_sites_cannot_read(unchanged_api: TestClient, site: str) -> None:
    """As an image or a script of another page would ask."""
    lookup = f"/api/lookup?device={JOB['device']}&shape=64,64,64"
    for path in ("/api/export/sqlite", "/api/jobs", "/api/health", lookup):
        assert "site" in refusal(unchanged_api.get(path, headers={"Sec-Fetch-Site": site}), 403)
    assert unchanged_api.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200  # a link to the page itself


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_and_the_address_bar_may_ask(unchanged_api: TestClient, site: str) -> None:
    assert (
        unchanged_api.get("/api/jobs", headers={"Sec-Fetch-Site": site, "Origin": "http://localhost"}).status_code
        == 200
    )


def test_no_page_of_another_origin_may_embed_an_answer(api: TestClient) -> None:
    for path in ("/api/health", "/api/jobs", "/api/nothing", "/openapi.json", "/"):
        assert api.get(path).headers.get_list("cross-origin-resource-policy") == ["same-origin"]


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"]
)
def test_requests_through_a_proxy_are_refused_without_a_token(
    unchanged_api: TestClient, locked: TestClient, name: str
) -> None:
    headers = {name: "203.0.113.9"}
    assert "proxy" in refusal(unchanged_api.get("/api/jobs", headers=headers), 403)
    assert "proxy" in refusal(unchanged_api.post("/api/jobs", json=JOB, headers=headers), 403)
    assert locked.get("/api/jobs", headers=headers | bearer(READING)).status_code == 200


def test_public_url_of_a_proxy_is_not_another_site(locked: TestClient) -> None:
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
        read_access(ServeOptions(public_url=PUBLIC))
    assert not read_access(ServeOptions(public_url=PUBLIC, token_files={Role.ADMIN: token})).is_open


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(locked.app, "_guesses", Guesses(lambda: 1000.0, sleep))
    for _ in range(admission.FREE_GUESSES + 3):
        refusal(locked.get("/api/jobs", headers=bearer("wrong" * 4)), 401)
    assert pauses == pytest.approx([admission.GUESS_PAUSE_S * (1 + number) for number in range(3)])
    assert locked.get("/api/jobs", headers=bearer(READING)).status_code == 200
    refusal(locked.get("/api/jobs"), 401)
    assert len(pauses) == 3


def test_pauses_end_with_the_guesses_and_are_bounded() -> None:
    now, pauses = 1000.0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def guess(times: int, address: str = "here") -> list[float]:
        pauses.clear()
        for _ in range(times):
            await guesses.hold_up(address)
        return list(pauses)

    async def guessing() -> None:
        nonlocal now
        assert max(await guess(100)) == admission.LONGEST_PAUSE_S
        assert await guess(admission.FREE_GUESSES, "elsewhere") == []
        now += 60.0
        assert await guess(1) == pytest.approx([admission.GUESS_PAUSE_S])

    guesses = Guesses(lambda: now, sleep)
    asyncio.run(guessing())


def test_wrong_tokens_are_logged_once_a_minute(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotune")
    minutes: list[Callable[[], None]] = []

    async def guess(times: int) -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda seconds, end, *of: minutes.append(lambda: end(*of)))
        for _ in range(times):
            await guesses.hold_up("testclient")

    async def sleep(_: float) -> None: ...

    guesses = Guesses(sleep=sleep)
    for times in (20, 1):
        asyncio.run(guess(times))
        minutes.pop()()
    locked.get("/api/jobs", headers=bearer("wrong" * 4))
    assert [record.getMessage() for record in caplog.records] == [
        "a wrong token from testclient",
        f"19 more wrong tokens from testclient within {admission.LOG_EVERY_S:g} s",
        "a wrong token from testclient",
        "a wrong token from testclient",
    ]
    assert minutes == [] and "wrongwrong" not in caplog.text


def test_changes_are_logged_with_who_and_from_where(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
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


def test_bodies_on_their_way_take_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_HELD_BYTES", 1000)
    answers: dict[str, int] = {}

    async def take_body(_: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        await answer(send, 200, b"{}")

    async def request(address: str, *parts: int, ends: asyncio.Event | None = None) -> None:
        left = list(parts)

        async def receive() -> Message:
            if not left and ends:
                await ends.wait()
            return {
                "body": bytes(left.pop(0)) if left else b"",
                "more_body": bool(left or (ends and not ends.is_set())),
            }

        async def send(message: Message) -> None:
            answers[f"{address} {parts}"] = message.get("status", 0) or answers[f"{address} {parts}"]

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/api/tables", "headers": headers, "client": (address, 1)}
        await asyncio.create_task(service(scope, receive, send))

    service = admission.Admission(take_body, Access())

    async def all_requests() -> None:
        ends = asyncio.Event()
        slow = asyncio.create_task(request("a", 200, 200, ends=ends))
        await asyncio.sleep(0.01)
        await request("a", 150)
        await request("b", 150)
        ends.set()
        await slow
        await request("a", 450)

    asyncio.run(all_requests())
    assert answers == {"a (150,)": 503, "b (150,)": 200, "a (200, 200)": 200, "a (450,)": 200}
