"""Limits how many threads compute at a time, so that an event loop in the same process keeps running often.

Python runs one thread at a time. A turn is the permission to compute: a semaphore slot that a thread holds while it
computes and releases wherever it waits for a device, a database, a lock or a pause. Threads without a turn are not
affected.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


class Turns:
    """Lets `at_a_time` threads compute; the others wait, and are served in order."""

    def __init__(self, at_a_time: int) -> None:
        self._places = threading.Semaphore(at_a_time)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a turn in the context, waiting for it first."""
        with self._places:
            _of_thread.places = self._places
            try:
                yield
            finally:
                del _of_thread.places


@contextmanager
def idle() -> Iterator[None]:
    """Release this thread's turn, if it has one, for the duration of the context, in which the thread waits."""
    places: threading.Semaphore | None = getattr(_of_thread, "places", None)
    if places is None:
        yield
        return
    del _of_thread.places  # a nested `idle` has nothing to release
    places.release()
    try:
        yield
    finally:
        places.acquire()
        _of_thread.places = places


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock in the context; its turn is released while waiting, as the lock's owner may need it to go on."""
    with idle():
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
