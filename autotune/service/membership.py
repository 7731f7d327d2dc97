"""The place of a service among those that share a database: its heartbeat, and what it finds out by it."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from autotune.errors import StoreError
from autotune.service.store import shared_queue
from autotune.service.store.jobs import JobLedger
from autotune.service.store.shared_queue import Held

BEAT_S = 3.0
"""Time between two heartbeats."""
PAUSE_S = 0.2
"""Least time between two heartbeats, however often there is news."""
FRESH_SHARE = 0.8
"""Part of STALLED_S after which a service without a heartbeat gives no worker a trial: clocks may differ in speed."""

_LOG = logging.getLogger(__name__)


_Searches = TypeVar("_Searches")


class Membership(Generic[_Searches]):
    """Renews the heartbeat of a service in a thread, and takes up what other services have lost."""

    def __init__(
        self,
        jobs: JobLedger,
        searches: Callable[[], _Searches],
        on_beat: Callable[[_Searches, Held], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_beat` is called after each heartbeat with what `searches` returned before it, and what is held."""
        self._jobs = jobs
        self._searches = searches
        self._on_beat = on_beat
        self._clock = clock
        self._beaten = float("-inf")
        self._is_due = threading.Event()
        self._is_over = False

    @property
    def is_fresh(self) -> bool:
        """Whether no other service can have taken our searches unnoticed; else no trial may be launched."""
        return self._clock() - self._beaten < FRESH_SHARE * shared_queue.STALLED_S

    @contextlib.contextmanager
    def kept(self, patience_s: float) -> Iterator[None]:
        """Renew the heartbeat until the context ends, then leave within `patience_s`. Raises StoreError first."""
        self.beat()
        beating = threading.Thread(target=self._keep, daemon=True, name="heartbeat")
        beating.start()
        try:
            yield
        finally:
            self._is_over = True
            self.beat_soon()
            beating.join(patience_s)  # the thread may be stuck in the database

    def beat_soon(self) -> None:
        """Renew the heartbeat now, as there is news to be found by it."""
        self._is_due.set()

    def beat(self) -> None:
        """Renew the heartbeat. Raises StoreError."""
        searches, began = self._searches(), self._clock()
        self._on_beat(searches, self._jobs.beat())  # before this service counts as fresh
        self._beaten = began
        if count := self._jobs.recover(None):
            _LOG.info("%d problems are queued again: of services that do not answer, or for a new driver", count)

    def _keep(self) -> None:
        while not self._is_over:
            self._is_due.wait(BEAT_S)
            self._is_due.clear()
            with contextlib.suppress(StoreError):  # tried again; until then nothing is launched
                self.beat()
            time.sleep(PAUSE_S)
        with contextlib.suppress(StoreError):
            self._jobs.leave()
