"""Attacks that only several services on one database allow. Each begins with services of its own beside the first."""

import contextlib
import random
import resource
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from attack_scene import Scene, Stranger, ask, bearer, require, until

from autotune.errors import RefusedError, ServiceError
from autotune.service.admission import MAX_BODY_BYTES
from autotune.service.engine import BEAT_S, STALLED_S
from autotune.store import Store
from fakes import INVENTED_PROCESSOR

SHAPES = ("96,96,96", "112,96,96", "128,96,96")
LOCKED_S = 20.0
ALIVE_S = 2 * BEAT_S
"""Age of the last heartbeat of a service that is alive; those that were killed stay listed for a day."""
NOTICES = 20_000
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += 86400;
    return status;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library for LD_PRELOAD: the clock is a day ahead."""


@contextlib.contextmanager
def beside(scene: Scene, database: str = "", **environment: str) -> Iterator[Scene]:
    """Another service on the database."""
    with tempfile.TemporaryDirectory() as folder:
        other = Scene(Path(folder), database or scene.database, tokens=scene.tokens, environment=environment)
        other.start_service()
        try:
            yield other
        finally:
            other.close()
            require("Traceback" not in other.log.read_text(), f"a traceback: {other.log.read_text()[-2000:]}")


def device(name: str) -> Any:
    return replace(INVENTED_PROCESSOR, slug=f"pocl-{name}")


def connect(scene: Scene, *, autocommit: bool = False) -> "psycopg.Connection[Any]":
    return psycopg.connect(scene.database, autocommit=autocommit)


def rows(scene: Scene, query: str) -> list[Any]:
    with connect(scene) as connection:
        return connection.execute(query.encode()).fetchall()


def sound(scene: Scene, slug: str) -> None:
    """That nothing was searched twice, blamed, left in flight or in the queue."""
    with Store.open(scene.database) as store:
        searched = [(s.problem, s.trial.configuration) for s in store.trials(slug, "gemm") if s.purpose == "search"]
        require(len(searched) == len(set(searched)), "a configuration was searched twice")
        require(not store.in_flight(slug), f"in flight: {store.in_flight(slug)}")
        require(not store.quarantined(slug), f"in quarantine: {store.quarantined(slug)}")
    left = rows(scene, f"SELECT * FROM procrastinate_jobs WHERE queue_name LIKE '{slug}%'")  # noqa: S608 - our own
    require(not left, f"in the queue: {left}")


def ends(scene: Scene, number: int, seconds: float = 60) -> dict[str, Any]:
    with scene.client() as client:
        until(lambda: client.job(number)["state"] not in ("queued", "running"), seconds)
        return client.job(number)


def submitted(scene: Scene, slug: str, **others: Any) -> int:
    wanted: dict[str, Any] = {"shapes": list(SHAPES), "trials": 4, "algorithms": ["microtile"], **others}
    with scene.client() as client:
        return int(client.submit(slug, **wanted)["id"])


def told_to_two_services(scene: Scene, _job: int) -> str:
    """By a worker that takes trials of both with one name, and tells each result to both."""
    its, secret = device("double"), secrets.token_hex(32)
    with beside(scene) as other:
        strangers = [Stranger(at, "double", its, secret=secret) for at in (scene, other)]
        number, told, refused = submitted(other, its.slug), 0, 0
        with scene.client() as client:
            while client.job(number)["state"] in ("queued", "running"):
                for stranger in strangers:
                    given = stranger.turn(wait_s=0.2)["trial"]
                    if given:
                        result = stranger.result(given, 5e5 + told)
                        told += 1
                        for each in random.sample(strangers, 2):
                            refused += bool(each.turn(results=(result,), wait_s=0)["refused"])
        job = ends(scene, number)
        require(job["state"] == "done", f"the job is {job['state']}")
        for stranger in strangers:
            stranger.leave()
        sound(scene, its.slug)
    return f"{told} results told twice, {refused} refused, none stored twice"


def old_lease(scene: Scene, _job: int) -> str:
    """A service is suspended with a trial in hand of its worker; the result comes to it, and to the one after it."""
    its, secret = device("lease"), secrets.token_hex(32)
    with beside(scene) as first, beside(scene) as second:
        stranger = Stranger(first, "tenant", its, secret=secret)
        number = submitted(scene, its.slug, shapes=[SHAPES[0]])
        trial = until(lambda: stranger.turn()["trial"], 20)
        assert first.service is not None
        first.service.send_signal(signal.SIGSTOP)
        successor = Stranger(second, "successor", its)
        until(lambda: (given := successor.turn()["trial"]) and successor.keep(given), STALLED_S + 30)
        first.service.send_signal(signal.SIGCONT)
        late = Stranger(second, "tenant", its, secret=secret, session=stranger.session)
        result = stranger.result(trial, 7e5)
        require(stranger.turn(results=(result,), wait_s=1)["trial"] is None, "the old lease was given a trial")
        late.turn(results=(result,), wait_s=0)
        late.leave()
        successor.work_until(lambda: ends(scene, number, 0.1))
        require(ends(scene, number)["state"] == "done", "the job did not end")
        sound(scene, its.slug)
    return "one trial stored once, the search went on elsewhere"


def cancelled_elsewhere(scene: Scene, _job: int) -> str:
    """Jobs are cancelled at one service while another begins them."""
    its = device("cancelled")
    with beside(scene) as other:
        stranger = Stranger(other, "eager", its)
        numbers = []
        for _ in range(30):
            numbers.append(submitted(scene, its.slug, trials=1000))
            until(lambda: stranger.answer_one() or True, 5)
            time.sleep(random.uniform(0, 0.05))  # noqa: S311 - no secret
            with random.choice([scene, other]).client() as client:  # noqa: S311
                client.cancel(numbers[-1])
        stranger.work_until(
            lambda: all(ends(scene, number, 0.1)["counts"].keys() == {"cancelled"} for number in numbers)
        )
        stranger.leave()
        sound(scene, its.slug)
    return f"{len(numbers)} cancelled, nothing left"


def enrolled_elsewhere(scene: Scene, _job: int) -> str:
    its, secret = device("enrolled"), secrets.token_hex(32)
    with beside(scene) as other:
        mine = Stranger(scene, "member", its, secret=secret)
        for token in ("read", "submit"):
            status = ask(other.port, "POST", "/api/workers", bearer(other, token), b"{}")[0]
            require(status == 403, f"the {token} token got {status} from the workers' route")
        with contextlib.suppress(RefusedError):
            Stranger(other, "member", its)
            require(False, "a stranger took a name at the other service")
        with other.client() as client:
            client.forget_worker("member")
        until(lambda: not _is_there(scene, its.slug), 20)
        with contextlib.suppress(RefusedError):
            mine.turn(wait_s=0)
            require(False, "a forgotten worker goes on at the first service")
        Stranger(scene, "member", its).leave()
    return "one name, one secret, at both; forgotten at both"


def _is_there(scene: Scene, slug: str) -> bool:
    with scene.client() as client:
        return any(found["slug"] == slug and found["stations"] for found in client.devices())


def notices(scene: Scene, _job: int) -> str:
    """Floods of long, hostile and misleading notices on the channel of the queue."""
    before = scene.memory_bytes()
    with connect(scene, autocommit=True) as connection:
        payloads = ["[" * 7900, "x" * 7900, '{"type":"abort_job_requested","job_id":1}', '{"type":"job_inserted"}']
        for start in range(0, NOTICES, 100):
            told = [payloads[n % len(payloads)] for n in range(start, start + 100)]
            send = "SELECT pg_notify(%s, its) FROM unnest(%s::text[]) AS its"
            connection.execute(send, ["procrastinate_any_queue_v1", told])
    more = scene.memory_bytes() - before
    require(more < 96 * 2**20, f"{NOTICES} notices took {more / 2**20:.0f} MiB")
    return f"{NOTICES} sent, {more / 2**20:.0f} MiB"


def winners_elsewhere(scene: Scene, _job: int) -> str:
    """What one service has stored is what the other answers."""
    its = device("found")
    with beside(scene) as other:
        stranger = Stranger(other, "finder", its)
        number = submitted(scene, its.slug, shapes=[SHAPES[0]])
        stranger.work_until(lambda: ends(scene, number, 0.1))
        stranger.leave()
        path, began = f"/api/lookup?device={its.slug}&shape={SHAPES[0]}", time.monotonic()
        until(lambda: _answers(scene, path) == _answers(other, path) and b"exact" in _answers(scene, path), 15)
    return f"both answer the same {time.monotonic() - began:.1f} s later"


def _answers(scene: Scene, path: str) -> bytes:
    return ask(scene.port, "GET", path, bearer(scene, "read"))[1]


def wrong_clock(scene: Scene, _job: int) -> str:
    """A service a day ahead searches, beside one that is not."""
    its = device("tomorrow")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-", "-ldl"]
        subprocess.run(command, input=WRONG_CLOCK.encode(), check=True)  # noqa: S603
        with beside(scene, LD_PRELOAD=str(library)) as other:
            strangers = [Stranger(at, name, its) for at, name in ((scene, "today"), (other, "tomorrow"))]
            number = submitted(other, its.slug)
            strangers[1].work_until(lambda: ends(scene, number, 0.1), strangers[0], seconds=120)
            job = ends(scene, number)
            require(
                {p["attempts"] for p in job["problems"]} == {1},
                f"taken {[p['attempts'] for p in job['problems']]} times",
            )
            require(job["state"] == "done", f"the job is {job['state']}")
            for stranger in strangers:
                stranger.leave()
            sound(scene, its.slug)
    return "nothing was taken from it, or by it"


def locked_rows(scene: Scene, _job: int) -> str:
    """As a service that was suspended in the midst of a transaction: it has locked every job.

    A search goes on until its problem has ended, whose transaction waits for the job. So the lock is taken as a
    problem begins: between two of them nothing would be measured, whatever the service does.
    """
    problems = "SELECT sum(attempts) FROM job_problems"
    attempts = rows(scene, problems)
    with connect(scene) as connection:
        until(lambda: rows(scene, problems) != attempts, 30)
        attempts = rows(scene, problems)
        before, began = scene.measured.value, time.monotonic()
        heard = "SELECT array_agg(id) FROM procrastinate_workers WHERE last_heartbeat > clock_timestamp() - %s"
        [[alive]] = connection.execute(heard, [timedelta(seconds=ALIVE_S)]).fetchall()
        connection.execute("SELECT id FROM jobs FOR UPDATE")
        while time.monotonic() < began + LOCKED_S:
            connection.execute("SELECT 1")
            time.sleep(1)
        late = "SELECT count(*), max(extract(epoch FROM clock_timestamp() - last_heartbeat)) FROM procrastinate_workers"
        [[heard_of, oldest]] = connection.execute(f"{late} WHERE id = ANY(%s)".encode(), [alive]).fetchall()
        connection.rollback()
    measured = scene.measured.value - before
    require(alive and heard_of == len(alive), f"of the services {alive} the queue knows {heard_of}")
    require(oldest < STALLED_S / 2, f"the heartbeat was {oldest:.0f} s late")
    require(measured > 0, "the honest worker did nothing")
    time.sleep(3)
    more = rows(scene, problems)[0][0] - attempts[0][0]
    return f"{measured} trials, {more} problems begun meanwhile"


def little_memory(scene: Scene, _job: int) -> str:
    """A service that gets no more memory fails alone; its searches go on elsewhere."""
    its = device("poor")
    with beside(scene) as other:
        stranger = Stranger(scene, "spare", its)
        poor = Stranger(other, "poor", its)
        number = submitted(scene, its.slug)
        until(lambda: poor.turn()["trial"], 20)
        assert other.service is not None
        pid = other.service.pid
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * 4096
        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
        for _ in range(20):
            with contextlib.suppress(OSError, ServiceError):
                ask(other.port, "POST", "/api/jobs", bearer(other, "submit"), b" " * MAX_BODY_BYTES)
        other.service.kill()
        stranger.work_until(lambda: ends(scene, number, 0.1), seconds=STALLED_S + 60)
        stranger.leave()
        job = ends(scene, number)
        require(job["state"] == "done", f"the job is {job['state']}")
        other.log.write_text("")  # it may say what it likes
    return "its search went on elsewhere"


def parallel_starts(scene: Scene, _job: int) -> str:
    """Six services start at once on an empty database, and migrate it."""
    name = f"empty_{secrets.token_hex(4)}"
    with connect(scene, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    database = scene.database.replace("///postgres?", f"///{name}?")
    require(database != scene.database, "the name of the database is not in its URL")
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(6)]
        scenes = [Scene(folder, database, tokens=scene.tokens) for folder in folders]
        for other in scenes:
            stack.callback(other.close)
            other.launch()
        for other in scenes:
            until(lambda at=other: ask(at.port, "GET", "/ready")[0] == 200, 60)
        its = device("first")
        stranger = Stranger(scenes[-1], "first", its)
        number = submitted(scenes[0], its.slug, shapes=[SHAPES[0]])
        stranger.work_until(lambda: ends(scenes[1], number, 0.1))
        stranger.leave()
        told = [other.log.read_text() for other in scenes]
        require(not any("rror" in text for text in told), f"one told of an error: {told}")
    return "all six are ready, and a job went through three of them"


SEVERAL = {
    function.__name__: function
    for function in (
        told_to_two_services, old_lease, cancelled_elsewhere, enrolled_elsewhere, notices, winners_elsewhere,
        wrong_clock, locked_rows, little_memory, parallel_starts,
    )
}  # fmt: skip
