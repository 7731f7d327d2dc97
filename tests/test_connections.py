"""Half-sent requests, and answers that nobody reads: they are closed in time, and others are served meanwhile."""

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from autotune.remote import Client
from autotune.service import connections
from autotune.service.connections import Phase
from autotune.service.server import Server
from ports import free_port
from waiting import HANG_S, wait_for

HALF = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HALF + b"\r\n"
HALF_BODY = (
    b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
)


@contextlib.contextmanager
def sending(url: str, data: bytes, count: int = 1, receives: int = 0) -> Iterator[list[socket.socket]]:
    """Connections that have sent so much, and send no more by themselves; `receives` is the size of their buffer."""
    port = int(url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.socket()))
            opened[-1].settimeout(10)
            if receives:
                opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
            opened[-1].connect(("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):
                opened[-1].sendall(data)
        yield opened


def received(connection: socket.socket, end: bytes) -> bytes:
    """What arrives until the end is seen; head and body of an answer may come apart."""
    data = b""
    while end not in data and (more := connection.recv(65536)):
        data += more
    return data


def is_closed(connection: socket.socket) -> bool:
    if not select.select([connection], [], [], 0)[0]:
        return False
    with contextlib.suppress(ConnectionError):
        return connection.recv(65536) == b""
    return True


@pytest.mark.parametrize("data", [b"", b"G", HALF, HALF_BODY, WHOLE + HALF, WHOLE + HALF_BODY])
def test_a_request_that_does_not_arrive_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connections, "_LIMITS_S", {Phase.HEAD: 0.5, Phase.BODY: 1.0})
    with sending(server.url, data) as [connection]:
        time.sleep(0.2)
        if data.startswith(WHOLE):
            assert b'"ok"' in received(connection, b"}")
        assert not is_closed(connection)
        wait_for(lambda: is_closed(connection))


def test_bytes_that_drip_in_do_not_make_the_time_longer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LIMITS_S", {Phase.HEAD: 0.5, Phase.BODY: 0.5})
    for data in (HALF + b"X-Slow: ", HALF_BODY):
        with sending(server.url, data) as [connection]:
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while not is_closed(connection):
                    connection.sendall(b"x")
                    time.sleep(0.05)
            assert time.monotonic() - began < 2


def test_a_head_without_end_is_cut_off(server: Server) -> None:
    with sending(server.url, HALF) as [connection]:
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                connection.sendall(b"X-Long: " + b"x" * 8000 + b"\r\n")
                time.sleep(0.01)
        wait_for(lambda: is_closed(connection))


def test_of_one_address_those_that_have_waited_longest_go_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_AWAITED", 10)
    with sending(server.url, HALF, 30) as opened, Client(server.url) as client:
        assert client.jobs() == []
        wait_for(lambda: sum(map(is_closed, opened)) >= 20)
        assert [is_closed(connection) for connection in opened[-10:]].count(False) >= 9


def test_answers_that_are_waited_for_are_not_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LIMITS_S", {Phase.HEAD: 0.2, Phase.BODY: 0.2})
    with Client(server.url) as client:
        for _ in range(4):
            assert client.jobs() == []  # over one connection
            time.sleep(0.4)


PAGES = b"GET /page/parts.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 80


@pytest.fixture
def tight(server: Server) -> Server:
    """For whose answers the system has small buffers."""
    server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    return server


def test_a_client_that_reads_nothing_of_its_answers_is_not_waited_for(
    tight: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_LIMIT_S", 1.0)
    with sending(tight.url, PAGES, receives=1024):
        wait_for(lambda: unsent(tight))
        wait_for(lambda: not unsent(tight))
    assert client.jobs() == []


def test_a_client_that_reads_slowly_gets_all_of_its_answers(tight: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.02)
    monkeypatch.setattr(connections, "READ_LIMIT_S", 0.5)
    monkeypatch.setattr(tight.config, "timeout_keep_alive", 0.2)
    data, began = b"", time.monotonic()
    with sending(tight.url, PAGES, receives=1024) as [connection]:
        while more := connection.recv(65536):
            data += more
            time.sleep(len(more) / 2**20)
    assert data.count(b"HTTP/1.1 200 OK") == 80
    assert time.monotonic() - began > 1


def unsent(server: Server) -> int:
    """Bytes of answers that wait to be read."""
    return sum(its.transport.get_write_buffer_size() for its in list(server.server_state.connections))


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
from autotune.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_more_half_requests_than_files_stop_nobody(tmp_path: Path) -> None:
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    log = tmp_path / "log"
    where = ["serve", "--port", str(port), "--db", str(tmp_path / "db.sqlite")]
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", FEW_FILES, *where], stdout=out, stderr=out)
    try:
        wait_for(lambda: "serving at" in log.read_text())
        url = f"http://127.0.0.1:{port}"
        with sending(url, HALF, 700), Client(url) as client:
            assert client.jobs() == []
    finally:
        process.terminate()
        process.wait(HANG_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Traceback" not in log.read_text()
