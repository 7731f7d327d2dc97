"""The server process: uvicorn around the application, which is stopped before uvicorn waits for its connections."""

import gc
import logging
import platform
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from autotune.errors import ServiceError, UsageError
from autotune.service.access import Access, Role, read_token
from autotune.service.admission import LOOPBACK, read_origin
from autotune.service.app import make_app
from autotune.service.connections import BACKLOG, Connections, LimitedProtocol, most_connections
from autotune.service.core import Service
from autotune.service.search_process import YOUNG_OBJECTS
from autotune.service.store import ServiceStore

END_S = 5
SWITCH_S = 0.0005
"""How long another thread may keep the interpreter from the event loop, which needs it several times per request.
Python's default of 5 ms would add up to tens of milliseconds."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen, and with which tokens."""

    host: str = "127.0.0.1"
    port: int = 8765
    token_files: Mapping[Role, Path] = field(default_factory=dict)
    """Files with the tokens, by what these allow."""
    public_url: str = ""
    """Address of a proxy in front of the service; empty without one."""
    processes: int = 1
    """How many processes run the searches."""


def serve(options: ServeOptions, store: ServiceStore, report: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises UsageError when required tokens are missing, ServiceError."""
    server = Server(options, store, report)
    _favour_requests()
    try:
        server.run()
    except SystemExit as error:
        raise ServiceError(
            f"cannot serve at {options.host}:{options.port}", hint="is the port in use? name another with --port"
        ) from error


def _favour_requests() -> None:
    """Change settings of the process, in which the garbage collector or other threads would keep requests waiting.

    What is loaded now stays loaded, and hardly any later object needs the cyclic garbage collector: examining all of
    them repeatedly took a tenth of the time, half a second at a time. Threads that read messages of search processes
    or the database give the interpreter to the event loop after SWITCH_S.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def read_access(options: ServeOptions) -> Access:
    """Read and check the tokens of a service. Raises UsageError."""
    access = Access(tokens={role: read_token(file) for role, file in options.token_files.items()})
    if access.tokens and access.is_open:
        raise UsageError(
            "tokens for reading, submitting or workers also need a token for writing", hint="add --token-file FILE"
        )
    if len(set(access.tokens.values())) < len(access.tokens):
        raise UsageError("two of the token files hold the same token", hint="give each scope a token of its own")
    if options.host not in LOOPBACK and access.is_open:
        raise UsageError(
            f"without a token only this machine is served, not {options.host}", hint="add --token-file FILE"
        )
    if options.public_url:
        read_origin(options.public_url)
        if access.is_open:
            raise UsageError("a service behind a proxy needs a token", hint="add --token-file FILE")
    return access


class Server(uvicorn.Server):
    """The service as it listens; `url` is set once it has started."""

    def __init__(self, options: ServeOptions, store: ServiceStore, report: Callable[[str], None]) -> None:
        """Raises UsageError when required tokens are missing."""
        self.service = Service(store, options.processes)
        self.url = ""
        self._public_url = options.public_url
        self._report = report
        connections = Connections(most_connections())
        super().__init__(
            uvicorn.Config(
                make_app(self.service, read_access(options), options.public_url),
                host=options.host,
                port=options.port,
                access_log=False,
                log_config=None,
                server_header=False,
                lifespan="on",
                ws="none",
                timeout_graceful_shutdown=END_S,
                backlog=BACKLOG,
                http=partial(LimitedProtocol, connections),  # type: ignore[arg-type]  # it is only called
            )
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are of requests, without a limit

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind the port and claim the database, then run; starting queues again what the previous service was running.

        Raises StoreError when another service works on the database.
        """
        listening = sockets if sockets is not None else [self._listening()]
        self.service.address = self._public_url.rstrip("/") or self._own_address(listening[0].getsockname()[1])
        with self.service.store.claimed():
            super().run(listening)

    def _own_address(self, port: int) -> str:
        """Return the address at which other machines reach the service, or this one where it serves only this one."""
        host = platform.node() if self.config.host in ("", "0.0.0.0", "::") else self.config.host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def _listening(self) -> socket.socket:
        """Return the listening socket. Ends the process when the port is in use."""
        held = self.config.bind_socket()
        held.set_inheritable(False)
        # Connections inherit this option. Head and body of a response are sent separately; without the option the body
        # would wait until the head is acknowledged, which the client does after 40 ms.
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            held.listen(self.config.backlog)  # otherwise a second server bound to it would fail only later
        except OSError as error:
            held.close()
            raise SystemExit(1) from error
        return held

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report the address, since the system may have chosen the port."""
        await super().startup(sockets)
        if not self.started:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._report(f"serving at {self.url}, database {self.service.store.location}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop in order. Workers and readers are released first, since uvicorn would wait for their open connections.

        A second Ctrl-C ends without waiting. Unlike with uvicorn's own handler, the process then exits normally and is
        not killed by the signal.
        """
        self.service.stop_from_signal()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
