"""Half-sent requests, and answers that nobody reads: they are closed in time, and others are served meanwhile."""

import contextlib
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from autotune.service import connections
from autotune.service.connections import Phase, Progress
from autotune.service.remote import Client
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
            opened[-1].settimeout(HANG_S)
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


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[Phase, float]:
    """Of the time that a request may take to arrive: none is over before a test says so."""
    found = {Phase.HEAD: HANG_S, Phase.BODY: HANG_S}
    monkeypatch.setattr(connections, "_LIMITS_S", found)
    monkeypatch.setattr(connections, "SWEEP_S", 0.02)
    return found


@pytest.mark.parametrize(
    ("data", "phase"),
    [
        (b"", Phase.HEAD), (b"G", Phase.HEAD), (HALF, Phase.HEAD), (HALF_BODY, Phase.BODY), (WHOLE + HALF, Phase.HEAD),
        (WHOLE + HALF_BODY, Phase.BODY),
    ],
)  # fmt: skip
def test_request_that_does_not_arrive_is_given_up(
    server: Server, limits: dict[Phase, float], data: bytes, phase: Phase
) -> None:
    with sending(server.url, data) as [connection]:
        if data.startswith(WHOLE):
            assert b'"ok"' in received(connection, b"}")
        else:
            wait_for(lambda: server.server_state.connections)
            assert not is_closed(connection)
        limits[phase] = 0.0
        wait_for(lambda: is_closed(connection))


@pytest.mark.parametrize("data", [HALF + b"X-Slow: ", HALF_BODY])
def test_bytes_that_drip_in_do_not_make_the_time_longer(
    server: Server, limits: dict[Phase, float], data: bytes
) -> None:
    limits |= {Phase.HEAD: 0.5, Phase.BODY: 0.5}
    with sending(server.url, data) as [connection]:

        def drips_into_a_closed_one() -> bool:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
                return is_closed(connection)
            return True

        wait_for(drips_into_a_closed_one)


def test_head_without_end_is_cut_off(server: Server) -> None:
    with sending(server.url, HALF) as [connection]:
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                connection.sendall(b"X-Long: " + b"x" * 8000 + b"\r\n")
        wait_for(lambda: is_closed(connection))


def test_connections_of_one_address_that_have_waited_longest_go_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_AWAITED", 10)
    with sending(server.url, HALF, 30) as opened, Client(server.url) as client:
        assert client.jobs() == []
        wait_for(lambda: all(map(is_closed, opened[:21])))  # the client is one of the ten
        assert not any(map(is_closed, opened[21:]))


def test_idle_connection_is_not_cut_off(
    server: Server, limits: dict[Phase, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.config, "timeout_keep_alive", HANG_S)
    with sending(server.url, WHOLE) as [idle], sending(server.url, HALF) as [late]:
        assert b'"ok"' in received(idle, b"}")
        limits |= dict.fromkeys(limits, 0.0)
        wait_for(lambda: is_closed(late))
        assert not is_closed(idle)
        limits |= dict.fromkeys(limits, HANG_S)
        idle.sendall(WHOLE)
        assert b'"ok"' in received(idle, b"}")


PAGES = b"GET /page/parts.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 80


@pytest.fixture
def tight(server: Server) -> Server:
    """For whose answers the system has small buffers."""
    server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    return server


def test_client_that_reads_none_of_its_answers_is_not_waited_for(
    tight: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_LIMIT_S", HANG_S)
    with sending(tight.url, PAGES, receives=1024):
        wait_for(lambda: unsent(tight))
        monkeypatch.setattr(connections, "READ_LIMIT_S", 0.0)
        wait_for(lambda: not unsent(tight))
    assert client.jobs() == []


@pytest.mark.long
def test_client_with_a_small_buffer_gets_all_of_its_answers(tight: Server) -> None:
    with sending(tight.url, PAGES, receives=1024) as [connection]:
        wait_for(lambda: unsent(tight))
        data = b""
        while data.count(b"HTTP/1.1 200 OK") < 80 and (more := connection.recv(65536)):
            data += more
    assert data.count(b"HTTP/1.1 200 OK") == 80


def test_client_is_stuck_when_it_takes_nothing_for_a_while() -> None:
    limit_s, slow, stuck = connections.READ_LIMIT_S, Progress(), Progress()
    for step in range(10):
        now = step * 0.9 * limit_s
        assert not slow.is_stuck(1000 - step, now), "however little it takes"
        assert stuck.is_stuck(1000 + step, now) == (step > 1), "although there is ever more for it"
    assert not stuck.is_stuck(0, now)
    assert not stuck.is_stuck(500, 100 * limit_s), "its next answer has a time of its own"


def unsent(server: Server) -> int:
    """Bytes of answers that wait to be read."""
    return sum(its.transport.get_write_buffer_size() for its in list(server.server_state.connections))


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
from autotune.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_more_half_requests_than_files_do_not_stop_the_service(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "request_bytes", [b"junk\r\n\r\n", HALF + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"]
)
def test_what_anybody_may_send_writes_no_log(
    server: Server, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    with sending(server.url, request_bytes) as (connection,):
        assert received(connection, b"\r\n\r\n")
    assert caplog.messages == []
