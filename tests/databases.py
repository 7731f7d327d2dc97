"""Databases for tests: either kind as another program sees it, and a PostgreSQL server to stop and start.

The server is made of the programs that are installed, in a temporary folder, and listens on a Unix socket only.
"""

import contextlib
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, socket
from subprocess import PIPE
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from autotune.store import failures
from waiting import HANG_S

ROLE = "autotune"
_ENCODED_EQUALS = "%3D"
_FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB", "max_connections": "40"}
"""The data are thrown away. With fsync off a server that is killed may still be started again: the system lives."""
_KEEPER = """
read -r _
[ ! -f "$1/data/postmaster.pid" ] || kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"
rm -rf "$1"
"""
"""Waits for the tests to end, also when they are killed, and leaves neither server nor folder behind."""


def connect(place: str | Path) -> Any:
    """As another program would, to a file or by a URL."""
    if "://" not in str(place):
        return sqlite3.connect(place)
    import psycopg

    return psycopg.connect(str(place))


def rows(place: str | Path, query: str) -> list[Any]:
    with contextlib.closing(connect(place)) as connection:
        return list(connection.execute(query).fetchall())


def change(place: str | Path, statement: str) -> None:
    with contextlib.closing(connect(place)) as connection:
        connection.execute(statement)
        connection.commit()


def missing() -> str:
    """Why no server can be started here; empty when one can."""
    if sys.platform == "win32":
        return "PostgreSQL is tested on POSIX systems only"
    if _program("initdb") is None:
        return "no PostgreSQL server here (Debian, Ubuntu: apt install postgresql)"
    try:
        import psycopg  # noqa: F401 - whether it is there
    except ImportError:
        return 'no driver for PostgreSQL here: pip install ".[postgres]"'
    return "" if os.geteuid() or _another_user() else "PostgreSQL does not run as root, and there is no other user"


def at_first_pause(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do that when a transaction first waits before it tries again."""
    left = iter([do])

    def sleep(seconds: float) -> None:
        for first in left:
            first()
        time.sleep(seconds)

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


class Server:
    """A running server. It can be stopped, in all the ways that servers go away, and started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
        self._user = _another_user() if os.geteuid() == 0 else None
        if self._user:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        keeper = ["sh", "-c", _KEEPER, "keeper", str(self.folder)]
        self._keeper = subprocess.Popen(keeper, stdin=PIPE, start_new_session=True)
        self._process: subprocess.Popen[bytes] | None = None
        initdb = ["initdb", "--pgdata", "data", "--username", ROLE, "--auth", "trust", "--no-sync", "--no-instructions"]
        with self._log() as log:
            made = self._start(*initdb, "--encoding", "UTF8", "--locale", "C", output=log)
            if made.wait() != 0:
                raise RuntimeError(f"initdb failed: {self._told()}")
        self.start()

    def url(self, schema: str = "public", *, folder: Path | None = None) -> str:
        """As `--db` takes it, with a schema of its own for each test; `folder` that of a Cut."""
        path = f"options=-csearch_path{_ENCODED_EQUALS}{schema}"
        return f"postgresql:///postgres?host={folder or self.folder}&user={ROLE}&{path}"

    def start(self) -> None:
        """Returns when the server answers."""
        settings = {**_FAST, "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log() as log:
            self._process = self._start("postgres", "-D", "data", *options, output=log)
        deadline = time.monotonic() + HANG_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start: {self._told()}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends sessions in order, SIGQUIT as in a crash; returns when the server has gone."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(HANG_S)
            self._process = None

    def execute(self, statement: str, schema: str = "public") -> list[Any]:
        """The rows of one statement, or of the last of several."""
        import psycopg

        with psycopg.connect(self.url(schema)) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        self._keeper.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _start(self, name: str, *arguments: str, output: Any) -> "subprocess.Popen[bytes]":
        who: dict[str, Any] = {}
        if self._user:
            who = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        command = [str(_program(name)), *arguments]
        return subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **who)

    def _log(self) -> Any:
        return (self.folder / "log").open("ab")

    def _told(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


class Cut:
    """A way to the server that breaks when told: after a commit was sent, and before its answer has come back."""

    def __init__(self, server: Server) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="autotune-cut-"))
        self.swallows = 0
        """So many answers to COMMIT are kept back, each with the end of its connection."""
        self._server = server
        self._door = socket(AF_UNIX)
        self._door.bind(str(self.folder / ".s.PGSQL.5432"))
        self._door.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._door.close()
        shutil.rmtree(self.folder)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, outer = self._door.accept()[0], socket(AF_UNIX)
                outer.connect(str(self._server.folder / ".s.PGSQL.5432"))
                is_committing = threading.Event()
                for ways in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._pass_on, args=(*ways, is_committing), daemon=True).start()

    def _pass_on(self, source: socket, sink: socket, is_committing: threading.Event) -> None:
        comes_from_server = source.getpeername() == str(self._server.folder / ".s.PGSQL.5432")
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not comes_from_server and b"COMMIT\0" in data and self.swallows:
                    is_committing.set()
                if comes_from_server and is_committing.is_set():
                    self.swallows -= 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(SHUT_RDWR)


@contextlib.contextmanager
def cut(server: Server) -> Iterator[Cut]:
    """A way to the server that can break."""
    way = Cut(server)
    try:
        yield way
    finally:
        way.close()


def _program(name: str) -> Path | None:
    """Debian keeps the programs of each version in a folder of its own; the newest holds."""
    debian = Path("/usr/lib/postgresql").glob(f"[0-9]*/bin/{name}")
    found = max(debian, key=lambda path: float(path.parts[4]), default=None)
    on_path = shutil.which(name)
    return found or (Path(on_path) if on_path else None)


def _another_user() -> "pwd.struct_passwd | None":
    """Whom root may run the server as."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None
