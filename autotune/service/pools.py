"""Threads for the database work of requests, separate from those that serve workers with trials.

Each pool has few threads and a bounded queue, of which each client gets a share: a flood of one kind of request delays
only that kind, and further ones are refused with a time to try again.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from autotune.errors import ServiceError
from autotune.service.shares import CLIENT, may_take

RETRY_AFTER_S = 2

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class BusyError(ServiceError):
    """Too many requests of one kind are already waiting."""


class Pool:
    """A few threads with a bounded queue."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads + waiting
        self._held: Counter[str] = Counter()
        """Places by client."""
        self._lock = threading.Lock()

    async def run(self, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs) -> _Result:
        """Return what the work returns, or raise what it raises.

        Raises BusyError at once when the queue is full, or holds the client's share.
        """
        client = CLIENT.get()
        with self._lock:
            if not may_take(self._held, self._most):
                hint = f"try again in {RETRY_AFTER_S} s"
                raise BusyError(f"too many requests for {self._name} are waiting", hint=hint)
            future = self._executor.submit(work, *given, **named)
            self._held[client] += 1
        future.add_done_callback(lambda _: self._give_back(client))
        return await asyncio.wrap_future(future)

    def _give_back(self, client: str) -> None:
        with self._lock:
            self._held[client] -= 1
            self._held = +self._held

    def close(self) -> None:
        """Drop queued work, and do not wait for running work."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pools:
    """The pools of a service.

    Their threads are few because Python runs one thread at a time: each thread that computes makes the event loop wait
    for the interpreter after every system call. Searches run in processes of their own.
    """

    def __init__(self) -> None:
        self.quick = Pool("jobs and devices", threads=2, waiting=200)
        self.heavy = Pool("tables and histories", threads=1, waiting=32)
        self.copies = Pool("copies of the database", threads=1, waiting=8)

    def close(self) -> None:
        for pool in (self.quick, self.heavy, self.copies):
            pool.close()
