"""Several equal devices share one search: each measures a different configuration at the same time.

The default, the sentinel and the finals run on the search's own device; the others help. The one model of the search
makes all proposals: it treats a configuration that is being measured as if it had turned out as predicted, and does not
propose it again. Each device records and stores its trials under an owner of its own, so that what is lost with one
device is quarantined without the trials of the others. Only the thread of the search proposes and learns.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from autotune.errors import WorkerError, WorkerLostError
from autotune.measure.worker import Measures
from autotune.model.trial import Job, Trial, TrialState
from autotune.search.ahead import Prepared
from autotune.search.bench import Background, Bench

MOST_HELPERS = 15
"""Helpers of one search. With more, too much would be proposed before anything is learnt from it."""


class Helpers:
    """The devices that help one search now; other code adds and recalls them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Measures] = []
        self._is_closed = self._is_one_recalled = False

    def __len__(self) -> int:
        return len(self._places)

    def present(self) -> list[Measures]:
        """Return the helpers in the order in which they joined."""
        with self._lock:
            return list(self._places)

    @property
    def is_open(self) -> bool:
        """Whether another helper is wanted."""
        return not self._is_closed and len(self._places) < MOST_HELPERS

    def join(self, place: Measures) -> bool:
        """Add a helper and return True, or return False if it is not wanted. It is closed when no longer wanted."""
        with self._lock:
            is_wanted = self.is_open
            if is_wanted:
                self._places.append(place)
            return is_wanted

    def recall_one(self) -> None:
        """Recall the next helper that has nothing to measure; further calls before it has gone recall no more."""
        self._is_one_recalled = bool(self._places)

    def heed(self, free: list[Measures]) -> Measures | None:
        """Dismiss and return one of the `free` helpers if one is recalled; return None otherwise."""
        if not (self._is_one_recalled and free):
            return None
        self._is_one_recalled = False
        recalled = free.pop()
        self.dismiss(recalled)
        return recalled

    def dismiss(self, place: Measures) -> None:
        """Remove and close a helper, which must not be measuring."""
        with self._lock:
            self._places.remove(place)
        place.close()

    def close(self) -> None:
        """Remove and close all helpers, which must not be measuring, and accept no more."""
        with self._lock:
            self._is_closed = True
        for place in self.present():
            self.dismiss(place)


class Crew:
    """The devices that measure for a search, its own and its helpers, and what each is measuring.

    For the thread of the search only.
    """

    def __init__(self, bench: Bench, helpers: Helpers) -> None:
        """`bench` is that of the search's own device."""
        self._own = own = bench.worker
        self._helpers = helpers
        self._benches = {own: bench}
        """Each learns its own time limits, and has its own owner of trials in flight."""
        self._threads: dict[Measures, Background] = {}
        self._running: dict[Measures, tuple[Prepared, Future[Trial]]] = {}
        """What each device is measuring, and its trial when that has ended."""
        self._ended: SimpleQueue[Measures] = SimpleQueue()
        """Devices of `_running` whose trial has ended."""
        self._returned: list[Prepared] = []

    @property
    def has_others(self) -> bool:
        """Whether there are helpers, or work of earlier helpers is left."""
        return bool(len(self._helpers)) or self.is_at_work

    @property
    def running(self) -> int:
        """Number of trials being measured."""
        return len(self._running)

    @property
    def is_at_work(self) -> bool:
        """Whether something is being measured, or was returned unmeasured."""
        return bool(self._running or self._returned)

    @property
    def is_own_free(self) -> bool:
        """Whether the search's own device is not measuring."""
        return self._own not in self._running

    def free(self) -> list[Measures]:
        """Return the devices that are not measuring, after dismissing a recalled helper."""
        helpers = [place for place in self._helpers.present() if place not in self._running]
        if recalled := self._helpers.heed(helpers):
            self._forget_place(recalled)
        return [self._own, *helpers] if self.is_own_free else helpers

    def begin(self, place: Measures, prepared: Prepared, job: Job) -> None:
        """Start measuring on a free device."""
        if place not in self._benches:
            self._benches[place] = self._benches[self._own].beside(place)
        if place not in self._threads:
            self._threads[place] = Background()
        measure = partial(self._benches[place].run, job, "search", prepared.build_ns)
        result = self._threads[place].submit(measure)
        self._running[place] = prepared, result
        result.add_done_callback(lambda _: self._ended.put(place))

    def returned(self) -> Prepared | None:
        """Return a configuration that a helper could not measure, through no fault of the configuration, or None."""
        return self._returned.pop() if self._returned else None

    def take_in(self, *, all_of_it: bool = False) -> Iterator[tuple[Trial, Prepared | None]]:
        """Wait until a trial has ended, or all that are being measured, and yield those that have.

        A trial of the search's own device comes with its `Prepared`, one of a helper with None. A trial lost with a
        helper counts as crashed. Raises the error that ended a trial on the own device, and errors that are not a
        helper's fault, such as StoreError.
        """
        while self._running:
            place = self._next_ended()
            prepared, result = self._running.pop(place)
            if place is self._own:
                yield result.result(), prepared
            elif (trial := self._of_helper(place, prepared, result)) is not None:
                yield trial, None
            if self._ended.empty() and not all_of_it:
                return

    def settle(self) -> None:
        """Wait until nothing is being measured; trials that are not taken in are in the ledger.

        What a helper could not measure remains to be measured.
        """
        while self._running:
            del self._running[self._next_ended()]
        self._threads.clear()

    def forget(self) -> None:
        """Drop what helpers could not measure, because the proposals it belongs to are dropped too."""
        self._returned.clear()

    def _next_ended(self) -> Measures:
        return self._ended.get()

    def _forget_place(self, place: Measures) -> None:
        self._benches.pop(place, None)
        self._threads.pop(place, None)

    def _of_helper(self, place: Measures, prepared: Prepared, result: "Future[Trial]") -> Trial | None:
        try:
            return result.result()
        except WorkerError as error:
            self._forget_place(place)
            self._helpers.dismiss(place)
            if not isinstance(error, WorkerLostError):
                self._returned.append(prepared)
                return None
            return Trial(configuration=prepared.configuration, state=TrialState.CRASHED, message=error.message)
