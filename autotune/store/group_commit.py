"""Writes of several threads in one transaction, where they wait for each other anyway: the disk is waited for once."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from autotune.turns import idle

MOST = 100
"""In one transaction."""

Work = Callable[[Connection], None]
"""Bears being done again, after it was rolled back or not."""


@dataclass(eq=False)
class _Write:
    work: Work
    is_taken: bool = False
    """By the thread that writes it."""
    is_written: "Future[bool]" = field(default_factory=Future)


class Together:
    """Whoever has a place writes what all the others have to write that wait for one."""

    def __init__(self, engine: Engine, places: threading.Semaphore) -> None:
        self._engine = engine
        self._places = places
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()

    def write(self, work: Work) -> bool:
        """Whether it is written and safe; when not, which may be another one's fault, it is to be tried alone."""
        mine = _Write(work)
        self._waiting.append(mine)
        try:
            with idle(), self._places:
                while not mine.is_taken:
                    self._write_all(self._take())
        finally:
            self._withdraw(mine)
        with idle():
            return mine.is_written.result()

    def _withdraw(self, write: _Write) -> None:
        """As when its thread was interrupted: nobody is to write it later."""
        with self._lock:
            if not write.is_taken:
                self._waiting.remove(write)

    def _take(self) -> list[_Write]:
        """Those that have waited longest."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            for write in taken:
                write.is_taken = True
        return taken

    def _write_all(self, writes: list[_Write]) -> None:
        """What goes wrong is not told here: each is tried alone then, and raises what is its own."""
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
