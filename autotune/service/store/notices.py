"""What services on one PostgreSQL tell each other at once, by NOTIFY and LISTEN.

A notice may get lost, as while the server restarts. So nothing depends on it but how soon something is seen.
"""

import contextlib
import hashlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator

from sqlalchemy import Engine, func, select

_QUEUE_CHANNEL = "procrastinate_any_queue_v1"
"""On which procrastinate tells of new jobs, and of those to abort."""
ABORT = "abort_job_requested"
"""In the notices of procrastinate about jobs to abort."""
MAX_BYTES = 7900
"""Longest notice that PostgreSQL takes, almost."""
MAX_WAITING = 1000
AT_A_TIME = 200
LISTEN_S = 1.0
PAUSE_S = 2.0

_LOG = logging.getLogger(__name__)

Hear = Callable[[str], None]
"""Takes a notice of another service or of this one; an empty one after notices may have been missed."""


class Notices:
    """Sends and hears notices until it is closed, in threads of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()

    def open(self, hear: Hear, hear_queue: Hear) -> None:
        """Begin to call `hear` with notices, and `hear_queue` with those of procrastinate, in another thread."""
        for work in (lambda: self._listen(hear, hear_queue), self._send_all):
            threading.Thread(target=work, daemon=True, name="notices").start()

    def send(self, notice: str) -> bool:
        """Send a notice soon; return False if it is too long, or too many are waiting."""
        is_sent = len(notice.encode()) <= MAX_BYTES and self._waiting.qsize() < MAX_WAITING
        if is_sent:
            self._waiting.put(notice)
        return is_sent

    def close(self) -> None:
        """End both threads soon."""
        self._is_closed.set()
        self._waiting.put(None)

    def _listen(self, hear: Hear, hear_queue: Hear) -> None:
        while not self._is_closed.is_set():
            with self._failing(), self._engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                channel = _channel(connection.scalar(select(func.current_schema())))
                connection.exec_driver_sql(f"LISTEN {channel}")
                connection.exec_driver_sql(f"LISTEN {_QUEUE_CHANNEL}")
                listening = connection.connection.driver_connection
                assert listening is not None
                connection.detach()  # it is put to no other use
                hear("")
                while not self._is_closed.is_set():
                    for notice in listening.notifies(timeout=LISTEN_S):
                        (hear if notice.channel == channel else hear_queue)(notice.payload)

    def _send_all(self) -> None:
        while not self._is_closed.is_set() and (first := self._waiting.get()) is not None:
            notices = [first]
            with contextlib.suppress(queue.Empty):
                while len(notices) < AT_A_TIME and (more := self._waiting.get_nowait()) is not None:
                    notices.append(more)
            with self._failing(), self._engine.begin() as connection:
                channel = _channel(connection.scalar(select(func.current_schema())))
                for notice in notices:
                    connection.execute(select(func.pg_notify(channel, notice)))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - also those of the driver
            _LOG.debug("notices: %s", error)
            self._is_closed.wait(PAUSE_S)


def _channel(schema: str | None) -> str:
    """Return the channel of the services that share a schema: channels belong to the whole database."""
    return f"autotune_{hashlib.sha256((schema or '').encode()).hexdigest()[:16]}"
