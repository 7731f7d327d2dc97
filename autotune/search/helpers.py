"""Equal devices that help one search: other code adds and recalls them, and the search launches on those that are free.

The default, the sentinel and the finals run on the search's own device. The one model of the search makes all
proposals: it treats a configuration that is being measured as if it had turned out as predicted, and does not propose
it again. Each device has an owner of its own in the ledger, so that what is lost with one device is quarantined without
the trials of the others.
"""

import threading
from typing import Protocol

from autotune.model.trial import Job, Trial
from autotune.store import Holder

MOST_HELPERS = 15
"""Helpers of one search. With more, too much would be proposed before anything is learnt from it."""


class Measures(Protocol):
    """What a search needs to measure: `autotune.measure.worker.Worker`, or a fake."""

    @property
    def holder(self) -> Holder | None:
        """The worker of a service that measures; None if it is this process."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds that trials have waited so far while another program measured on the device."""
        ...

    def prepare(self, job: Job) -> None:
        """Build a job that may be run next, without launching anything. May do nothing."""
        ...

    def run(self, job: Job) -> Trial:
        """Measure a job, whether it was prepared or not."""
        ...

    def close(self) -> None: ...


class Helpers:
    """The devices that help one search now; other code adds and recalls them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[Measures] = []
        self._is_closed = self._is_one_recalled = False

    def __len__(self) -> int:
        return len(self._workers)

    def present(self) -> list[Measures]:
        """Return the helpers in the order in which they joined."""
        with self._lock:
            return list(self._workers)

    @property
    def is_open(self) -> bool:
        """Whether another helper is wanted."""
        return not self._is_closed and len(self._workers) < MOST_HELPERS

    def join(self, worker: Measures) -> bool:
        """Add a helper and return True, or return False if it is not wanted. It is closed when no longer wanted."""
        with self._lock:
            is_wanted = self.is_open
            if is_wanted:
                self._workers.append(worker)
            return is_wanted

    def recall_one(self) -> None:
        """Recall the next helper that has nothing to measure; further calls before it has gone recall no more."""
        self._is_one_recalled = bool(self._workers)

    def dismiss_recalled(self, free: list[Measures]) -> None:
        """Dismiss one of the `free` helpers, and remove it from the list, if one is recalled."""
        if self._is_one_recalled and free:
            self._is_one_recalled = False
            self.dismiss(free.pop())

    def dismiss(self, worker: Measures) -> None:
        """Remove and close a helper, which must not be measuring."""
        with self._lock:
            self._workers.remove(worker)
        worker.close()

    def close(self) -> None:
        """Remove and close all helpers, which must not be measuring, and accept no more."""
        with self._lock:
            self._is_closed = True
        for worker in self.present():
            self.dismiss(worker)
