"""What happens to jobs, told to whoever follows them: searches tell from their threads, readers wait in the loop."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from autotune.errors import UsageError

MAX_BEHIND = 2000
"""Events that a reader may be behind before it is cut off; it comes back and begins with how things stand."""
MAX_READERS = 500


class Feed:
    """Events by the number of their job."""

    def __init__(self) -> None:
        self._readers: defaultdict[int, set[asyncio.Queue[tuple[str, Any] | None]]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where readers wait."""
        self._loop = loop

    def tell(self, job_id: int, name: str, data: Any) -> None:
        """From any thread."""
        if self._loop is not None and self._readers.get(job_id):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._hand_out, job_id, (name, data))

    def close(self) -> None:
        """End all readers."""
        for readers in self._readers.values():
            for queue in readers:
                _put(queue, None)

    @contextlib.contextmanager
    def reading(self, job_id: int) -> "Iterator[asyncio.Queue[tuple[str, Any] | None]]":
        """A queue of a job's events; None ends it. Raises UsageError when there are too many readers."""
        if sum(map(len, self._readers.values())) >= MAX_READERS:
            raise UsageError(f"{MAX_READERS} readers follow jobs already", hint="try again later")
        queue: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue(MAX_BEHIND)
        self._readers[job_id].add(queue)
        try:
            yield queue
        finally:
            self._readers[job_id].discard(queue)
            if not self._readers[job_id]:
                del self._readers[job_id]

    def _hand_out(self, job_id: int, event: tuple[str, Any]) -> None:
        for queue in self._readers.get(job_id, ()):
            _put(queue, event)


def _put(queue: "asyncio.Queue[tuple[str, Any] | None]", event: tuple[str, Any] | None) -> None:
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)
