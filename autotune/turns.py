"""Turns of threads that compute: few at a time, and none of those that wait.

Python runs one thread at a time, and a program with an event loop wants that loop to be asked often. A thread that
has a turn lets go of it wherever it waits, for a device, a database, a lock or a rest; a thread without one is not
touched.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


class Turns:
    """So many threads compute at a time; the others wait, and are served in order."""

    def __init__(self, at_a_time: int) -> None:
        self._places = threading.Semaphore(at_a_time)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """This thread computes."""
        with self._places:
            _of_thread.places = self._places
            try:
                yield
            finally:
                del _of_thread.places


@contextmanager
def idle() -> Iterator[None]:
    """This thread waits: its turn, if it has one, is another's meanwhile."""
    places: threading.Semaphore | None = getattr(_of_thread, "places", None)
    if places is None:
        yield
        return
    del _of_thread.places  # what waits within a wait has nothing to let go
    places.release()
    try:
        yield
    finally:
        places.acquire()
        _of_thread.places = places


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """This thread has a lock. One that waited with a turn would keep that turn from the one that has the lock."""
    with idle():
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
