"""What the service refuses, and how; what it answers without a device."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from autotune.errors import UsageError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import TuningTable, contents
from autotune.model.device import Device
from autotune.model.trial import Request, Verdict, Winner
from autotune.networks.presets import preset
from autotune.service import admission, submission
from autotune.service import lookups as lookups_module
from autotune.service.access import Access, Role, read_token
from autotune.service.admission import MAX_BODY_BYTES
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.forms import JobForm
from autotune.service.server import ServeOptions, read_access
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, JobState, NewJob
from factories import Run, winner
from fakes import INVENTED_PROCESSOR

WRITING, READING = "writing-token-of-a-test", "reading-token-of-a-test"
SLUG = INVENTED_PROCESSOR.slug
JOB = {"device": SLUG, "shapes": ["64,64,64"], "trials": 5}
HOSTILE = [
    "'; DROP TABLE jobs; --",
    '"><script>alert(1)</script>',
    "{{ 7 * 7 }}",
    "{% include '/etc/passwd' %}",
    "../../etc/passwd",
    "C:\\windows\\system32",
    "a\x00b",
    "a\r\nSet-Cookie: x=1",
    "\x1b[2J",
    "\u202egnp.exe",
    "\ud800",
    "${jndi:ldap://x}",
    "%s%n%n",
    "",
    "x" * 5000,
    "𝔤𝔢𝔪𝔪",
]


def a_winner(device: Device, problem: GemmProblem) -> Winner:
    return winner(
        device, problem, FAMILY.baseline, 5000.0, default_ns=5000.0, baseline_ns=5000.0, gain_low=1.0, gain_high=1.0,
        is_default=True, verdict=Verdict.TIE,
    )  # fmt: skip


@pytest.fixture
def store(store: ServiceStore) -> ServiceStore:
    store.add_device(INVENTED_PROCESSOR)
    store.record_winner(a_winner(INVENTED_PROCESSOR, GemmProblem(m=64, n=64, k=64)))
    return store


@pytest.fixture
def locked(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(admission, "GUESS_PAUSE_S", 0.0)
    access = Access(tokens={Role.ADMIN: WRITING, Role.READER: READING})
    with TestClient(make_app(Service(store), access), base_url="http://10.0.0.5:8765") as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def refusal(answer: Any, status: int) -> str:
    """The message of a refusal, which has the form of all refusals."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "hint"}
    return str(content["error"]["message"])


def test_without_a_token_nothing_is_told(locked: TestClient) -> None:
    open_paths = {"/health", "/api/health", "/ready"}
    paths = [path for path in locked.get("/openapi.json").json()["paths"] if path not in open_paths]
    assert len(paths) > 10
    without: tuple[dict[str, str], ...] = ({}, bearer(""), {"Authorization": WRITING})
    for path in paths:
        for headers in (*without, bearer("wrong"), bearer(WRITING + "x")):
            told = "a token is needed" if headers in without else "this token is not known here"
            assert refusal(locked.get(path, headers=headers), 401) == told
            assert refusal(locked.post(path, headers=headers, json={}), 401) == told
    assert locked.get("/api/health").json()["status"] == "ok"


def test_a_token_for_reading_reads_only(locked: TestClient) -> None:
    assert locked.get("/api/jobs", headers=bearer(READING)).json() == {"jobs": []}
    assert "reading" in refusal(locked.post("/api/jobs", headers=bearer(READING), json=JOB), 403)
    assert "reading" in refusal(locked.post("/api/tables", headers=bearer(READING), content=b"{}"), 403)
    assert locked.post("/api/jobs", headers=bearer(WRITING), json=JOB).status_code == 201
    assert locked.get("/api/jobs", headers=bearer(WRITING)).json()["jobs"][0]["id"] == 1


def test_a_lookup_that_is_remembered_still_needs_its_token(locked: TestClient) -> None:
    question = f"/api/lookup?device={SLUG}&shape=64,64,64"
    first = locked.get(question, headers=bearer(READING))
    assert first.json()["match"] == "exact"
    assert locked.get(question, headers=bearer(READING)).json() == first.json()
    refusal(locked.get(question), 401)


def test_tokens_are_neither_shown_nor_logged(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    locked.get("/api/jobs", headers=bearer(WRITING))
    locked.get("/api/jobs", headers=bearer("another-secret-of-somebody"))
    text = caplog.text + repr(Access(tokens={Role.ADMIN: WRITING, Role.READER: READING}))
    assert not any(token in text for token in (WRITING, READING, "another-secret-of-somebody"))


def test_without_tokens_only_this_machine_is_answered(api: TestClient) -> None:
    assert api.get("/api/jobs").status_code == 200
    assert api.get("/api/jobs", headers={"Host": "127.0.0.1:8765"}).status_code == 200
    assert api.get("/api/jobs", headers={"Host": "[::1]:8765"}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "10.0.0.5:8765", "[", ""):
        refusal(api.get("/api/jobs", headers={"Host": host}), 403)


def test_pages_of_other_sites_can_neither_read_nor_write(api: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://["):
        assert "site" in refusal(api.get("/api/jobs", headers={"Origin": origin}), 403)
        assert "site" in refusal(api.post("/api/jobs", json=JOB, headers={"Origin": origin}), 403)
    assert api.post("/api/jobs", json=JOB, headers={"Origin": "http://localhost"}).status_code == 201


def test_bodies_are_bounded_whether_they_tell_their_length_or_not(api: TestClient) -> None:
    large = b'{"device": "' + b"x" * MAX_BODY_BYTES + b'"}'
    json_type = {"Content-Type": "application/json"}
    refusal(api.post("/api/jobs", content=large, headers=json_type), 413)
    refusal(api.post("/api/jobs", content=iter([large[:100], large[100:]]), headers=json_type), 413)
    refusal(api.post("/api/jobs", content=b"{}", headers={**json_type, "Content-Length": "9" * 30}), 413)
    assert api.get("/api/jobs").json() == {"jobs": []}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_refused_everywhere(unchanged_api: TestClient, name: str) -> None:
    sent = [JOB | {"device": name}, JOB | {"family": name}, JOB | {"presets": [name]}, JOB | {"algorithms": [name]}]
    for form in [*sent, JOB | {"shapes": [f"64,64,64 {name}" if name in ("\ud800", "\x1b[2J") else name or ","]}]:
        answer = unchanged_api.post("/api/jobs", content=json.dumps(form), headers={"Content-Type": "application/json"})
        message = refusal(answer, answer.status_code)
        assert answer.status_code in (400, 404, 422)
        assert len(message) < 1000
    for question in ({"device": name, "shape": "64,64,64"}, {"device": SLUG, "shape": name}):
        if "\ud800" not in name:
            assert unchanged_api.get("/api/lookup", params=question).status_code in (400, 404, 422)
    worker = {"name": name, "secret": "0" * 64, "session": "0" * 32, "code": "1", "selector": "0:0", "device": {}}
    answer = unchanged_api.post(
        "/api/workers", content=json.dumps(worker), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (409, 422)
    assert unchanged_api.get("/api/jobs").json() == {"jobs": []}


@pytest.mark.parametrize(
    "change",
    [
        {"trials": 0}, {"trials": 10**9}, {"trials": "5"}, {"trials": True}, {"seconds": -1}, {"seconds": 1e300},
        {"shapes": []}, {"shapes": ["64,64"]}, {"shapes": ["64,64,64"] * 3000}, {"shapes": ["0,1,1"]},
        {"shapes": ["2000000000,2000000000,1"]}, {"shapes": ["40000,40000,40000"]}, {"seed": 2**40}, {"kernel": "x"},
        {"build_options": ["-DX"]}, {"algorithms": ["none"]}, {"presets": ["none"]}, {"family": "none"},
        {"device": "elsewhere-1"}, {"shapes": "64,64,64"}, {"shapes": [None]},
    ],
    ids=str,
)  # fmt: skip
def test_jobs_that_cannot_be_are_refused(unchanged_api: TestClient, change: dict[str, Any]) -> None:
    answer = unchanged_api.post("/api/jobs", json=JOB | change)
    refusal(answer, answer.status_code)
    assert answer.status_code in (400, 404, 422)
    assert unchanged_api.get("/api/jobs").json() == {"jobs": []}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"device": NaN}', b"[" * 100_000, b"\xff\xfe"])
def test_bodies_that_are_no_json_are_refused(unchanged_api: TestClient, body: bytes) -> None:
    for path in ("/api/jobs", "/api/workers", "/api/tables"):
        answer = unchanged_api.post(path, content=body, headers={"Content-Type": "application/json"})
        refusal(answer, answer.status_code)
        assert answer.status_code in (400, 422)


def test_too_many_jobs_are_refused(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_OPEN_JOBS", 2)
    monkeypatch.setattr(submission, "SUBMITTER_SHARE", 1.0)
    monkeypatch.setattr(submission, "DEVICE_SHARE", 1.0)
    for _ in range(2):
        assert api.post("/api/jobs", json=JOB).status_code == 201
    assert "open" in refusal(api.post("/api/jobs", json=JOB), 429)
    assert api.post("/api/jobs/1/cancel").json()["state"] == "cancelled"
    assert api.post("/api/jobs", json=JOB).status_code == 201


def test_jobs_for_one_silent_device_leave_room_for_others(
    locked: TestClient, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_OPEN_JOBS", 20)
    for name in ("silent", "other"):
        store.add_device(replace(INVENTED_PROCESSOR, slug=f"pocl-{name}"))
    headers = bearer(WRITING)
    silent, other = JOB | {"device": "pocl-silent"}, JOB | {"device": "pocl-other"}
    for _ in range(2):
        assert locked.post("/api/jobs", json=silent, headers=headers).status_code == 201
    assert "for pocl-silent are open" in refusal(locked.post("/api/jobs", json=silent, headers=headers), 429)
    assert locked.post("/api/jobs", json=other, headers=headers).status_code == 201
    table = locked.get("/api/export/json", headers=headers).json()
    [tuned] = [device for device in table["devices"] if device["slug"] == SLUG]
    table["devices"] = [tuned | {"slug": "pocl-silent"}]
    assert "for pocl-silent are open" in refusal(locked.post("/api/tables", json=table, headers=headers), 429)


def test_one_submitter_leaves_room_for_others(
    locked: TestClient, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_OPEN_JOBS", 8)
    for number in range(5):
        slug = f"pocl-{number}"
        store.add_device(replace(INVENTED_PROCESSOR, slug=slug))
        answer = locked.post("/api/jobs", json=JOB | {"device": slug}, headers=bearer(WRITING))
        if number < 4:
            assert answer.status_code == 201
        else:
            assert "of admin at testclient are open" in refusal(answer, 429)
    submission.submit(store, JobForm.model_validate(JOB | {"device": "pocl-4"}), [], "submitter at 10.0.0.7")


def test_lookups_remember_no_junk(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = api.app._app.state.service.lookups  # type: ignore[attr-defined]
    monkeypatch.setattr(lookups, "read_again", lambda: None)  # which would forget all
    question = f"/api/lookup?device={SLUG}&shape=64,64,64"
    for junk in ("&x=1", "&shape2=", "&" + "y" * 5000 + "=1"):
        assert "there is no parameter" in refusal(api.get(question + junk), 422)
    assert lookups._remembered == {}
    assert api.get(question + "%20" * 400).status_code in (200, 400)
    assert lookups._remembered == {}
    assert api.get(question).json() == api.get(question).json()
    assert len(lookups._remembered) == 1
    monkeypatch.setattr(lookups_module, "MAX_REMEMBERED_BYTES", 3000)
    for number in range(1, 40):
        assert api.get(f"/api/lookup?device={SLUG}&shape={number},64,64").status_code == 200
        assert sum(len(key) + len(value) for key, value in lookups._remembered.items()) <= 4000


def test_presets_lose_what_the_device_cannot_hold(api: TestClient, store: ServiceStore) -> None:
    answer = api.post("/api/jobs", json={"device": SLUG, "presets": ["llama-1b-decode"]}).json()
    assert answer["trials"] == submission.DEFAULT_TRIALS
    assert len(answer["left_out"]) == 1  # the vocabulary
    assert len(answer["problems"]) > 3
    assert answer["problems"][0]["label"] == "query, attention output"


def test_a_job_is_checked_without_being_queued(locked: TestClient, store: ServiceStore) -> None:
    lines = ["64,64,64", "", "no shape", "999999,999999,999999 x2", "32,32,32 label"]
    form = JOB | {"shapes": lines, "presets": ["llama-1b-decode"], "trials": 10}

    def check(**change: Any) -> Any:
        return locked.post("/api/jobs/check", json=form | change, headers=bearer(READING)).json()

    told = check()
    assert [fault["line"] for fault in told["faults"]] == [3, 4]
    assert "is not a shape" in told["faults"][0]["message"]
    assert told["sizes"] + len(told["left_out"]) == 2 + len(preset("llama-1b-decode"))
    assert (told["seconds"], check(seconds=90.0)["seconds"]) == (None, 90.0)
    store.jobs.add(NewJob(kind=JobKind.TUNE, device=SLUG, requests=(Request(problem=GemmProblem(m=8, n=8, k=8)),)))
    taken = store.jobs.take(SLUG, "w1")
    assert taken is not None
    store.jobs.spend(taken[1].id, 30.0)
    store.jobs.end(taken[1], JobState.DONE, outcome=json.dumps({"new_trials": 20}))
    assert check()["seconds"] == pytest.approx(1.5 * 10 * told["sizes"])
    assert len(store.jobs.newest(9)) == 1
    refusal(locked.post("/api/jobs/check", json=form | {"device": "absent-1"}, headers=bearer(READING)), 404)


def test_what_is_not_there(api: TestClient) -> None:
    for path in ("/api/jobs/7", "/api/jobs/7/events", "/api/devices/none-1", "/nothing", "/api/nothing"):
        refusal(api.get(path), 404)
    refusal(api.post("/api/jobs/7/cancel"), 404)
    refusal(api.get("/api/jobs/0"), 422)
    refusal(api.get("/api/jobs/99999999999999999999"), 422)
    refusal(api.get("/api/export/exe"), 422)
    refusal(api.get("/api/export/json?device=none-1"), 404)
    refusal(api.get("/api/jobs?limit=-1"), 422)
    refusal(api.delete("/api/jobs"), 405)


def test_every_format_can_be_downloaded(api: TestClient) -> None:
    starts = {
        "json": b"{", "csv": b"device,", "markdown": b"", "c": b"/*", "defines": b"# Written",
        "files": b"{", "toml": b"# Written", "sqlite": b"SQLite format 3\0", "html": b"<!doctype html>",
    }  # fmt: skip
    formats = api.get("/api/export").json()["formats"]
    assert [form["name"] for form in formats] == list(starts)
    assert [form["name"] for form in formats if "gemm" not in form["families"]] == ["defines"]
    refusal(api.get("/api/export/defines"), 400)  # for kernels of users only
    del starts["defines"]
    for form, start in starts.items():
        answer = api.get(f"/api/export/{form}", params={"device": SLUG})
        assert answer.status_code == 200
        assert answer.content.startswith(start)
        assert f'filename="autotune-{SLUG}.' in answer.headers["Content-Disposition"]
    assert api.get("/api/export/json").json()["devices"][0]["entries"][0]["time_ns"] == 5000.0


def test_lookups_follow_the_winners(store: ServiceStore) -> None:
    store.add_device(INVENTED_PROCESSOR)
    lookups = lookups_module.Lookups(store)  # not those of a service, which reads winners again by itself

    def use(table: TuningTable | None) -> None:
        assert table is not None
        lookups.use(table)

    use(lookups.read_again())
    assert lookups.answer(SLUG, "64,64,90", "gemm")["match"] == "default"
    store.record_winner(a_winner(INVENTED_PROCESSOR, GemmProblem(m=64, n=64, k=90)))
    use(lookups.read_again())
    assert lookups.answer(SLUG, "64,64,90", "gemm")["match"] == "exact"
    assert lookups.read_again() is None
    store.record_winner(a_winner(INVENTED_PROCESSOR, GemmProblem(m=64, n=64, k=91)))
    again = lookups.read_again()
    assert lookups.read_again() is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "read_json", None)  # what ships is not read again
        use(again)
    assert lookups.answer("nvidia-h200", "512,512,512", "gemm")["device"] == "nvidia-h200"
    assert lookups.answer("adreno-999", "512,512,512", "gemm")["device"] == "adreno-999"


def test_a_hostile_table_is_refused_whole(api: TestClient) -> None:
    table = api.get("/api/export/json").json()
    table["devices"][0]["entries"][0]["configuration"]["algorithm"] = "naive\n#include"
    assert "algorithm" in refusal(api.post("/api/tables", json=table), 422)
    assert api.get("/api/jobs").json() == {"jobs": []}


def test_a_table_of_more_devices_than_there_is_room_for_jobs_is_refused_whole(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = api.get("/api/export/json").json()
    other = copy.deepcopy(table["devices"][0])
    for number, device in enumerate(table["devices"] + [other]):
        device["slug"] = f"{SLUG}-{number}"
    table["devices"].append(other)
    monkeypatch.setattr(submission, "SUBMITTER_SHARE", 1.0)
    monkeypatch.setattr(submission, "MAX_OPEN_JOBS", 1)
    assert "open" in refusal(api.post("/api/tables", json=table), 429)
    assert api.get("/api/jobs").json() == {"jobs": []}
    monkeypatch.setattr(submission, "MAX_OPEN_JOBS", 2)
    assert len(api.post("/api/tables", json=table).json()["jobs"]) == 2


def test_devices_and_history(api: TestClient) -> None:
    device = api.get("/api/devices").json()["devices"][0]
    assert (device["slug"], device["state"], device["tuned"]) == (SLUG, "offline", 1)
    assert api.get(f"/api/devices/{SLUG}").json() == device
    assert api.get(f"/api/devices/{SLUG}/winners").json()["entries"][0]["shape"] == "64x64x64"
    assert api.get(f"/api/devices/{SLUG}/trials?shape=64,64,64").json()["trials"] == []
    assert {p["name"] for p in api.get("/api/presets").json()["presets"]} >= {"resnet50", "bert-base"}


def test_the_document_tells_all_of_it(api: TestClient) -> None:
    document = api.get("/openapi.json").json()
    operations = [o for path in document["paths"].values() for o in path.values()]
    assert len({o["operationId"] for o in operations}) == len(operations) >= 17
    assert all(o.get("description") for o in operations)
    assert document["components"]["schemas"]["JobForm"]["examples"]
    assert {"401", "403", "413", "422"} <= set(document["paths"]["/api/jobs"]["post"]["responses"])


def test_tokens_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{WRITING}\nmore\n")
    assert read_token(file) == WRITING
    for bad in (b"", b"short\n", b"with a space in it, and long\n", b"\xff" * 30, b"x" * 600):
        file.write_bytes(bad)
        with pytest.raises(UsageError, match="token"):
            read_token(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")


def test_other_machines_are_served_with_a_token_only(tmp_path: Path, run: Run) -> None:
    with pytest.raises(UsageError, match="only this machine"):
        read_access(ServeOptions(host="0.0.0.0"))
    file = tmp_path / "token"
    file.write_text(READING)
    with pytest.raises(UsageError, match="need a token for writing"):
        read_access(ServeOptions(token_files={Role.READER: file}))
    assert not read_access(ServeOptions(host="0.0.0.0", token_files={Role.ADMIN: file})).is_open
    assert "--token-file" in run(["serve", "--host", "0.0.0.0", "--db", str(tmp_path / "db.sqlite")], 2).err
    assert not (tmp_path / "db.sqlite").exists()
