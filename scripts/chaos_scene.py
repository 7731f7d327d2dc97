"""The processes of chaos_service, the database and the lines between them, and what is done to them."""

import argparse
import collections
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chaos_lines import Lines, Networks, Relays

from autotune.errors import ServiceError, UnreachableError
from autotune.service.fleet import SILENT_S
from autotune.service.remote import Client
from databases import Server
from ports import free_port

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker to be: the device, and its environment."""

    name: str
    device: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        return ["--device", self.device] if self.device else []


@dataclass
class Scene:
    """The processes, and what was done to them."""

    database: str
    folder: Path
    ports: list[int]
    lines: Lines
    places: dict[str, Place]
    server: Server | None
    options: argparse.Namespace
    done: collections.Counter[str] = field(default_factory=collections.Counter)
    given_up: int = 0
    """Cuts that were long enough for it."""
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    token: str = field(default_factory=secrets.token_urlsafe)

    def __post_init__(self) -> None:
        (self.folder / "token").write_text(self.token)
        self._log = (self.folder / "log").open("a")
        self._lock = threading.Lock()
        self._struck: set[str] = set()
        self._versions: dict[str, Path] = {}

    @property
    def services(self) -> list[str]:
        """Those that run; one port more is there for an upgrade."""
        return [name for name in self.running if name.startswith("service")]

    def start_all(self) -> None:
        for name in (*(f"service{number}" for number in range(self.options.services)), *self.places):
            self.start(name)

    def start(self, name: str) -> None:
        token = ["--token-file", str(self.folder / "token")]
        if name.startswith("service"):
            port = self.ports[int(name.removeprefix("service"))]
            here = ["serve", "--host", self.lines.host, "--port", str(port), "--db", self.database]
            self._run(name, ["-m", "autotune", *here, *token], {})
        else:
            place = self.places[name]
            journal = [str(ROOT / "scripts/chaos_journal.py"), str(self.folder / f"{name}.journal")]
            there = ["worker", "--server", self.lines.urls(name), "--name", name, *place.options, *token]
            self._run(name, [*journal, *there], place.environment)

    def _run(self, name: str, words: list[str], environment: dict[str, str]) -> None:
        command, version = [sys.executable, *words], self._versions.get(name, self.options.upgrade_from or ROOT)
        self.running[name] = subprocess.Popen(  # noqa: S603 - our own
            self.lines.command(name, command) if name in self.places else command,
            stdout=self._log, stderr=self._log, start_new_session=True, cwd=version,
            env={**os.environ, **environment, "PYTHONPATH": str(version)},
        )  # fmt: skip

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(60)

    @contextlib.contextmanager
    def _one_of(self, names: Callable[[], list[str]]) -> Iterator[str]:
        """One that nothing else happens to meanwhile."""
        while True:
            with self._lock:
                if free := [name for name in names() if name not in self._struck]:
                    name = random.choice(free)  # noqa: S311 - no secret
                    self._struck.add(name)
                    break
            time.sleep(0.2)
        try:
            yield name
        finally:
            self._struck.discard(name)

    def strike(self, what: str) -> None:
        """One blow."""
        getattr(self, f"_{what}")()
        with self._lock:
            self.done[what] += 1
            print(f"{time.strftime('%X')} {dict(self.done)}", file=sys.stderr)

    def _worker(self) -> None:
        self._kill_one(lambda: list(self.places))

    def _service(self) -> None:
        self._kill_one(lambda: self.services)

    def _kill_one(self, names: Callable[[], list[str]]) -> None:
        with self._one_of(names) as name:
            self.kill(name)
            time.sleep(random.uniform(0, 3))  # noqa: S311
            self.start(name)

    def _cut(self) -> None:
        seconds = random.uniform(0.5, self.options.longest_cut)  # noqa: S311
        self.given_up += seconds > SILENT_S / 2  # it may have been silent for a while before
        with (
            self._one_of(lambda: [f"line of {name}" for name in self.places]) as line,
            self.lines.cut(line.removeprefix("line of ")),
        ):
            time.sleep(seconds)

    def _database(self) -> None:
        assert self.server is not None
        with self._just("database"):
            self.server.stop(signal.SIGQUIT)
            time.sleep(self.options.stopped)
            self.server.start()

    def _search(self) -> None:
        with self._one_of(lambda: self.services) as name:
            for pid in _children(self.running[name].pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _pause(self) -> None:
        with self._one_of(lambda: self.services) as name:
            pid = self.running[name].pid
            stopped = [pid, *random.choice(([], _children(pid)))]  # noqa: S311
            for number, pause_s in ((signal.SIGSTOP, self.options.paused), (signal.SIGCONT, 0.0)):
                for each in stopped:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, number)
                time.sleep(pause_s)

    def _upgrade(self) -> None:
        """Start a service of this version beside the others, then stop one of those, until all are of this version."""
        spare = f"service{self.options.services}"
        for old in [f"service{number}" for number in range(self.options.services)]:
            self._versions[spare] = ROOT
            with self._just(old), self._just(spare):
                self.start(spare)
                patiently(partial(self._answers, spare))
                self.kill(old, signal.SIGTERM)
            spare = old
        for worker in self.places:
            self._versions[worker] = ROOT
            with self._just(worker):
                self.kill(worker, signal.SIGTERM)
                self.start(worker)

    def _just(self, name: str) -> contextlib.AbstractContextManager[str]:
        return self._one_of(lambda: [name])

    def _answers(self, service: str) -> bool:
        with self.client(service) as client:
            return bool(client.jobs(limit=1))

    def client(self, service: str) -> Client:
        return Client(f"http://127.0.0.1:{self.ports[int(service.removeprefix('service'))]}", self.token)

    def ask(self, work: Callable[[Client], Any]) -> Any:
        """What the first service that answers says."""
        for service in self.services:
            with contextlib.suppress(UnreachableError), self.client(service) as client:
                return work(client)
        return None

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name, signal.SIGTERM)
        self._log.close()


@contextlib.contextmanager
def scene_of(options: argparse.Namespace) -> Any:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(Server()) if options.postgres else None
        ports = [free_port() for _ in range(options.services + bool(options.upgrade_from))]
        places = {place.name: place for place in map(_place, enumerate(options.worker or [""] * 3))}
        lines: Lines = (Networks if options.networks else Relays)(ports, list(places))
        stack.callback(lines.close)
        database = server.url() if server else options.db or str(folder / "db.sqlite")
        scene = Scene(database, folder, ports, lines, places, server, options)
        stack.callback(scene.close)
        scene.start_all()
        try:
            yield scene
        finally:
            if os.environ.get("CHAOS_LOG"):
                Path(os.environ["CHAOS_LOG"]).write_text((folder / "log").read_text())


def _children(pid: int) -> list[int]:
    """The search processes of a service."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _place(numbered: tuple[int, str]) -> Place:
    number, told = numbered
    words = told.split()
    environment = dict(word.split("=", 1) for word in words if "=" in word)
    return Place(name=f"w{number}", device=next((w for w in words if "=" not in w), ""), environment=environment)


def patiently(work: Any, seconds: float = 120) -> Any:
    """What it gives once the service answers and it is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(ServiceError):
            if found := work():
                return found
        time.sleep(0.3)
    raise SystemExit("the service does not answer, or what is waited for did not happen")
