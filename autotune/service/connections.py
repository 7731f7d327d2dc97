"""Limits on connections: a request must arrive in time, and a client cannot hold so many that others get none.

Uvicorn waits without limit for a request that has not arrived completely. Here a connection that keeps the service
waiting for a request is closed when its time is up, or when its address or all addresses together hold too many of
them, the oldest first: a client that really sends its request is done in a few milliseconds. Nor is a client waited for
that reads nothing of its answer.
"""

import asyncio
import enum
import logging
import sys
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_LIMIT_S = 10.0
BODY_LIMIT_S = 120.0
"""Enough for a table of 32 MiB over a slow line."""
READ_LIMIT_S = 120.0
"""How long a client may take nothing of an answer that waits to be sent."""
MAX_HEAD_BYTES = 65_536
MAX_AWAITED = 200
"""Maximum number of connections of one address on which a request is awaited."""
MAX_CONNECTIONS = 5000
LEAST_CONNECTIONS = 64
ADDRESS_SHARE = 0.75
"""Maximum share of all connections that one address may hold."""
BACKLOG = 128
"""Connections that may be accepted at once, before any of them can be closed."""
RESERVED_FILES = 256 + BACKLOG
"""File descriptors reserved for the database, the log and other open files."""
SWEEP_S = 0.5

_LOG = logging.getLogger(__name__)


class Phase(enum.Enum):
    """What a connection is doing."""

    HEAD = "head"
    """Waiting for the head of a request, or for the rest of it."""
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"
    """Kept open after an answer; uvicorn closes it after a few seconds."""


_LIMITS_S = {Phase.HEAD: HEAD_LIMIT_S, Phase.BODY: BODY_LIMIT_S}


class Connections:
    """All open connections. Only the event loop uses it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[LimitedProtocol] = set()
        self._addresses: Counter[str] = Counter()
        self._awaited: dict[str, dict[LimitedProtocol, None]] = {}
        """Connections on which a request is awaited, by address; for each address the oldest first."""
        self._is_sweeping = False

    def open(self, connection: "LimitedProtocol") -> bool:
        """Count a connection. If there are too many, close the oldest one on which a request is awaited.

        Returns whether the new connection may stay.
        """
        address = connection.address
        if self._addresses[address] >= ADDRESS_SHARE * self._most:
            _drop_oldest(self._awaited.get(address))
        elif len(self._open) >= self._most:
            _drop_oldest(max(self._awaited.values(), key=len, default=None))
        if len(self._open) >= self._most or self._addresses[address] >= ADDRESS_SHARE * self._most:
            return False
        self._open.add(connection)
        self._addresses[address] += 1
        if not self._is_sweeping:
            self._sweep_soon()
        return True

    def close(self, connection: "LimitedProtocol") -> None:
        """Forget a connection. Does nothing if it is not counted."""
        if connection in self._open:
            self.note(connection, Phase.IDLE)
            self._open.remove(connection)
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def note(self, connection: "LimitedProtocol", phase: Phase) -> None:
        """Record the phase of a connection. Its time limit runs from the beginning of the phase."""
        if phase is connection.phase:
            return
        connection.phase, connection.since = phase, time.monotonic()
        mine = self._awaited.setdefault(connection.address, {})
        mine.pop(connection, None)
        if phase in _LIMITS_S:
            mine[connection] = None
        if not mine:
            del self._awaited[connection.address]
        elif len(mine) > MAX_AWAITED:
            next(iter(mine)).drop()

    def _sweep_soon(self) -> None:
        self._is_sweeping = True
        asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._is_sweeping = False
        now = time.monotonic()
        awaited = [connection for mine in self._awaited.values() for connection in mine]
        late = [connection for connection in awaited if now - connection.since > _LIMITS_S[connection.phase]]
        unread = [connection for connection in self._open if connection.is_unread(now)]
        for connection in {*late, *unread}:
            connection.drop()
        if late:
            _LOG.info("%d connections were closed because no request arrived in time", len(late))
        if unread:
            _LOG.info("%d connections were closed because their answers were not read", len(unread))
        if self._open:
            self._sweep_soon()


def _drop_oldest(awaited: "dict[LimitedProtocol, None] | None") -> None:
    if awaited:
        next(iter(awaited)).drop()


class Progress:
    """How a client takes its answers."""

    def __init__(self) -> None:
        self._unsent_bytes = 0
        self._read_at = 0.0
        """When it had last taken all of its answer or some of it, as far as has been seen."""

    def is_stuck(self, unsent_bytes: int, now: float) -> bool:
        """Return whether it has taken nothing for READ_LIMIT_S, given what waits to be sent now."""
        if unsent_bytes < self._unsent_bytes or not self._unsent_bytes:
            self._read_at = now
        self._unsent_bytes = unsent_bytes
        return now - self._read_at > READ_LIMIT_S


class LimitedProtocol(HttpToolsProtocol):
    """One connection under these limits."""

    phase = Phase.IDLE
    since = 0.0

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.address = ""
        self._connections = connections
        self._head_bytes = 0
        self._progress = Progress()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self._connections.open(self):
            self._connections.note(self, Phase.HEAD)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._note(self._phase_of_request())
        self._head_bytes += len(data)
        if self.phase is not Phase.HEAD:
            self._head_bytes = 0
        elif self._head_bytes > MAX_HEAD_BYTES:
            self.drop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            phase = self._phase_of_request()
            self._note(Phase.IDLE if phase is Phase.HEAD else phase)

    def drop(self) -> None:
        """Close the connection at once."""
        self._connections.close(self)
        self.transport.abort()

    def is_unread(self, now: float) -> bool:
        """Return whether the client has long taken nothing of what waits to be sent. Called again and again."""
        return self._progress.is_stuck(self.transport.get_write_buffer_size(), now)

    def _phase_of_request(self) -> Phase:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            return Phase.HEAD
        return Phase.BODY if cycle.more_body else Phase.ANSWER

    def _note(self, phase: Phase) -> None:
        self._connections.note(self, phase)


def most_connections() -> int:
    """Return how many connections the limit on open files allows, once raised as far as this process may."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(LEAST_CONNECTIONS, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
