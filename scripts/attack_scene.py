"""What is attacked: a service as a process, an honest worker, and a process that asks for its health all the time."""

import contextlib
import http.client
import json
import multiprocessing
import os
import platform
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from invented import invented_ns

from autotune.codec import Node
from autotune.errors import ServiceError
from autotune.kernels.render import code_version
from autotune.model.device import Device
from autotune.model.trial import Job
from autotune.service.remote import Client
from autotune.service.remote.connection import Connection
from autotune.service.remote.wire import plain_device, plain_trial, read_job
from autotune.service.remote.worker import Offer, Service
from fakes import INVENTED_PROCESSOR, FakeWorker
from ports import free_port

FILES = 1024
"""Open files that the service is allowed, a common limit."""
HEALTH_EVERY_S = 0.1
HEALTH_TIMEOUT_S = 5.0
TRIAL_S = 0.01
SILENT = replace(INVENTED_PROCESSOR, slug="pocl-silent")
TOKENS = ("admin", "read", "submit", "worker")
_FORK = multiprocessing.get_context("fork")
PROGRAM = """
import platform, sys
import autotune
autotune.__version__ = sys.argv.pop(1) or autotune.__version__
host = sys.argv.pop(1)
if host:
    platform.node = lambda: host
from autotune.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A service that says it is of another version, or on another host."""


class Failed(Exception):
    """An attack that succeeded."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Failed(what)


@dataclass
class Scene:
    """The service and those who use it honestly."""

    folder: Path
    database: str
    port: int = field(default_factory=free_port)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the script itself had ended the service; by the wall clock."""
    tokens: dict[str, str] = field(default_factory=lambda: {name: secrets.token_urlsafe() for name in TOKENS})
    measured: Any = field(default_factory=lambda: _FORK.Value("q", 0))
    """Trials of the honest worker."""
    environment: dict[str, str] = field(default_factory=dict)
    """What the service has besides."""

    def __post_init__(self) -> None:
        for name, token in self.tokens.items():
            (self.folder / name).write_text(token)
        self.log, self.health = self.folder / "log", self.folder / "health"
        self.health.touch()
        self._helpers = [_FORK.Process(target=work, args=(self,), daemon=True) for work in (_ask_health, _measure)]
        self.service: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_service(self, version: str = "", host: str = "", *, tokens: bool = True) -> None:
        self.launch(version, host, tokens=tokens)
        until(self.answers, 60)

    def launch(self, version: str = "", host: str = "", *, tokens: bool = True) -> None:
        files = [f"--{name}-token-file" if name != "admin" else "--token-file" for name in TOKENS]
        access = [
            word for option, name in zip(files, TOKENS, strict=True) for word in (option, str(self.folder / name))
        ]
        words = [sys.executable, "-c", PROGRAM, version, host, "serve", "--port", str(self.port), "--db", self.database]
        with self.log.open("a") as log:
            self.service = subprocess.Popen(  # noqa: S603 - our own
                [*words, *(access if tokens else ())], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self.environment},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),  # noqa: PLW1509
            )  # fmt: skip

    def start_helpers(self) -> None:
        for helper in self._helpers:
            helper.start()

    def restart(self, how: signal.Signals, **other: Any) -> None:
        began = time.time()
        assert self.service is not None
        self.service.send_signal(how)
        self.service.wait(60)
        self.start_service(**other)
        self.outages.append((began - HEALTH_TIMEOUT_S, time.time()))

    def answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(self.port, "GET", "/api/health")[0] == 200
        return False

    def client(self, token: str = TOKENS[0]) -> Client:
        return Client(self.url, self.tokens[token])

    def waits_ms(self, began: float, ended: float) -> list[float]:
        """Of the health requests sent between two times while the service was to be up; failures are infinite."""
        told = [json.loads(line) for line in self.health.read_text().splitlines() if line.endswith("]")]
        return [
            float("inf") if wait_s is None else 1000 * wait_s
            for at, wait_s in told
            if began <= at < ended and not any(start <= at <= end for start, end in self.outages)
        ]

    def memory_bytes(self) -> int:
        assert self.service is not None
        status = Path(f"/proc/{self.service.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return 1024 * int(found[1]) if found else 0

    def close(self) -> None:
        for helper in self._helpers:
            if helper.pid:
                helper.terminate()
                helper.join(10)
        if self.service is not None and self.service.poll() is None:
            self.service.send_signal(signal.SIGTERM)
            self.service.wait(60)


def ask(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, bytes]:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_TIMEOUT_S * 4)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def until(condition: Any, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(ServiceError, OSError):
            if found := condition():
                return found
        time.sleep(0.1)
    raise TimeoutError(f"it did not happen within {seconds:g} s")


def _ask_health(scene: Scene) -> None:
    """Ten times a second, each on a new connection, whatever became of those before."""
    with scene.health.open("a", buffering=1) as told:
        while True:
            at, began = time.time(), time.perf_counter()
            wait_s: float | None = None
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", scene.port, timeout=HEALTH_TIMEOUT_S)
                with contextlib.closing(connection):
                    connection.request("GET", "/api/health")
                    if connection.getresponse().status == 200:
                        wait_s = time.perf_counter() - began
            told.write(json.dumps([at, wait_s]) + "\n")
            time.sleep(max(0.0, HEALTH_EVERY_S - (time.perf_counter() - began)))


def _measure(scene: Scene) -> None:
    """The honest worker."""

    def work(job: Job) -> float:
        time.sleep(TRIAL_S)
        with scene.measured.get_lock():
            scene.measured.value += 1
        return invented_ns(job)

    honest = Service(urls=[scene.url], token=scene.tokens["worker"], name="honest", secret=secrets.token_hex(32))
    worker = FakeWorker(work)
    worker.jobs = Unremembered()
    offer = Offer(honest, INVENTED_PROCESSOR, worker, lambda text: print(f"honest worker: {text}", file=sys.stderr))
    signal.signal(signal.SIGTERM, lambda *_: offer.close())
    offer.serve()


class Unremembered(list[Any]):
    def append(self, _item: Any) -> None: ...


class Stranger:
    """A worker spoken by hand."""

    def __init__(self, scene: Scene, name: str, device: Device, **others: Any) -> None:
        self._connection = Connection(scene.url, scene.tokens["worker"])
        self._kept: list[Any] = []
        self.session = others.get("session") or secrets.token_hex(16)
        form = {
            "name": name, "secret": secrets.token_hex(32), "session": self.session, "code": code_version(),
            "selector": "0:0", "device": plain_device(device),
        }  # fmt: skip
        self.id = self._connection.call("POST", "/api/workers", form | others)["id"]

    def turn(self, running: str = "", results: tuple[Any, ...] = (), wait_s: float = 3.0, **others: Any) -> Any:
        form = {"session": self.session, "running": running, "results": list(results), "wait_s": wait_s}
        return self._connection.call("POST", f"/api/workers/{self.id}/turn", form | others)

    def result(self, trial: Any, time_ns: float) -> dict[str, Any]:
        job = read_job(Node(trial["job"], "job"), "0:0", ())
        return {"id": trial["id"], "job": trial["job"], "trial": plain_trial(FakeWorker(lambda _: time_ns).run(job))}

    def keep(self, trial: Any) -> bool:
        """Keep the result of a trial for the next answer."""
        self._kept.append(self.result(trial, 5e5))
        return True

    def answer_one(self) -> bool:
        """Deliver what is kept, and measure the next trial; return whether there was one."""
        results, self._kept = tuple(self._kept), []
        given = self.turn(results=results, wait_s=0.2)["trial"]
        return bool(given) and self.keep(given)

    def work_until(self, has_ended: Any, *others: "Stranger", seconds: float = 60.0) -> None:
        """Measure, in turns with others, until something has happened."""

        def work() -> Any:
            for each in (self, *others):
                each.answer_one()
            with contextlib.suppress(TimeoutError):
                return has_ended()

        until(work, seconds)

    def leave(self) -> None:
        with contextlib.suppress(ServiceError):
            self._connection.call("POST", f"/api/workers/{self.id}/leave", {"session": self.session})
        self._connection.close()


def bearer(scene: Scene, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {scene.tokens[name]}"}


@contextlib.contextmanager
def connections(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """That have sent so much."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)))
                opened[-1].sendall(data)
        yield opened


def machine() -> dict[str, Any]:
    return {"processors": os.cpu_count(), "python": platform.python_version(), "files_of_the_service": FILES}
