"""The process that serves: uvicorn around the application, told to stop before it waits for its connections."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from autotune.errors import ServiceError, UsageError
from autotune.service.access import LOOPBACK, Access, read_token
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.store import Store

END_S = 5
MAX_CONNECTIONS = 5000


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to listen, and with which tokens."""

    host: str = "127.0.0.1"
    port: int = 8765
    token_file: Path | None = None
    read_token_file: Path | None = None


def serve(place: Place, store: Store, tell: Callable[[str], None]) -> None:
    """Until SIGTERM or Ctrl-C. Raises UsageError where tokens are needed and missing, ServiceError."""
    access = read_access(place)
    service = Service(store)
    server = _Server(
        uvicorn.Config(
            make_app(service, access),
            host=place.host,
            port=place.port,
            access_log=False,
            log_config=None,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=END_S,
            limit_concurrency=MAX_CONNECTIONS,
        ),
        service,
        tell,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        server.run()
    except SystemExit as error:
        raise ServiceError(
            f"cannot serve at {place.host}:{place.port}", hint="is the port in use? name another with --port"
        ) from error
    except KeyboardInterrupt:
        pass


def read_access(place: Place) -> Access:
    """The tokens of a place. Raises UsageError."""
    writing = read_token(place.token_file) if place.token_file else ""
    reading = read_token(place.read_token_file) if place.read_token_file else ""
    if reading and not writing:
        raise UsageError("a token for reading needs one for writing", hint="--token-file FILE")
    if place.host not in LOOPBACK and not writing:
        raise UsageError(f"without a token only this machine is served, not {place.host}", hint="--token-file FILE")
    return Access(writing=writing, reading=reading)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, tell: Callable[[str], None]) -> None:
        super().__init__(config)
        self._service = service
        self._tell = tell

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        for server in getattr(self, "servers", []):
            for socket in server.sockets[:1]:
                host, port = socket.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                self._tell(f"serving at http://{shown}:{port}, database {self._service.store.location}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Workers and readers wait on open connections, which uvicorn would wait for.
        self._service.stop_from_signal()
        super().handle_exit(sig, frame)
