"""Threads for what requests ask of the database, apart from those that give workers their trials.

Each pool has few threads and a bounded queue: whoever asks for too much waits for its own kind alone, and is told to
come back once the queue is full.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from autotune.errors import ServiceError

RETRY_AFTER_S = 2

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class BusyError(ServiceError):
    """Too many requests of one kind wait already."""


class Pool:
    """A few threads, and a queue of limited length for them."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = threading.Semaphore(threads + waiting)

    async def run(self, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs) -> _Result:
        """What the work returns, or raises. Raises BusyError at once where too much waits."""
        if not self._places.acquire(blocking=False):
            raise BusyError(f"too many requests for {self._name} wait already", hint=f"try again in {RETRY_AFTER_S} s")
        try:
            future = self._executor.submit(work, *given, **named)
        except BaseException:
            self._places.release()
            raise
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits; what runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pools:
    """Those of a service.

    They are few because Python runs one thread at a time: each that computes takes a part from the searches, and makes
    the event loop wait its turn after every call of the system.
    """

    def __init__(self) -> None:
        self.quick = Pool("jobs and devices", threads=2, waiting=200)
        self.heavy = Pool("tables and histories", threads=1, waiting=16)
        self.copies = Pool("copies of the database", threads=1, waiting=4)

    def close(self) -> None:
        for pool in (self.quick, self.heavy, self.copies):
            pool.close()
