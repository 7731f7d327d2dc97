"""Group commit: writes of threads that would wait for each other share one transaction and one wait for the disk."""

import contextlib
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Engine

from autotune.store.transactions import Work

MOST_TOGETHER = 100
"""Most writes in one transaction."""


@dataclass(eq=False)
class _Write:
    work: Work
    is_taken: bool = False
    """Whether a thread has taken it to commit it."""
    is_written: "Future[bool]" = field(default_factory=Future)


class Together:
    """Group commit: the thread that has a place also commits the pending writes of the threads waiting for one.

    A place is a permit of the semaphore `places`, which limits the writing transactions of the program.
    """

    def __init__(self, engine: Engine, places: threading.Semaphore) -> None:
        self._engine = engine
        self._places = places
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()

    def write(self, work: Work) -> bool:
        """Return whether `work` was committed. If not, perhaps because of another write, retry it alone."""
        mine = _Write(work)
        self._waiting.append(mine)
        try:
            with self._places:
                while not mine.is_taken:
                    self._write_all(self._take())
        finally:
            self._withdraw(mine)
        return mine.is_written.result()

    def _withdraw(self, write: _Write) -> None:
        """Remove a write whose thread was interrupted, so that no other thread commits it later."""
        with self._lock:
            if not write.is_taken:
                self._waiting.remove(write)

    def _take(self) -> list[_Write]:
        """Take the writes that have waited longest, at most MOST_TOGETHER."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(MOST_TOGETHER, len(self._waiting)))]
            for write in taken:
                write.is_taken = True
        return taken

    def _write_all(self, writes: list[_Write]) -> None:
        """Commit the writes together. Errors are suppressed: each write is then retried alone and raises its own."""
        is_written = False
        try:
            with contextlib.suppress(Exception), self._engine.connect() as connection:
                for write in writes:
                    write.work(connection)
                connection.commit()
                is_written = True
        finally:
            for write in writes:
                write.is_written.set_result(is_written)
