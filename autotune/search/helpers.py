"""Several equal devices share one search: each measures something else at the same time.

The search has a device of its own, on which its default, sentinel and finals run; the others help. All is proposed by
the one model of the search, which takes what is being measured for what it foretells of it, and proposes it to nobody
else. Each device holds and stores its trials under an owner of its own, so that what is lost with one is quarantined
without what the others measure. Only the thread of the search proposes and learns.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from autotune.errors import WorkerError, WorkerLostError
from autotune.measure.worker import Measures
from autotune.model.trial import Job, Trial, TrialState
from autotune.search.ahead import Prepared
from autotune.search.bench import Bench
from autotune.turns import idle

MOST_HELPERS = 15
"""Of one search. With more, too much would be proposed before anything is learnt of it."""


class Helpers:
    """The devices that help one search now; others send and recall them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Measures] = []
        self._is_closed = self._is_one_recalled = False

    def __len__(self) -> int:
        return len(self._places)

    def present(self) -> list[Measures]:
        """In the order in which they came."""
        with self._lock:
            return list(self._places)

    @property
    def is_open(self) -> bool:
        """Whether another one is wanted."""
        return not self._is_closed and len(self._places) < MOST_HELPERS

    def join(self, place: Measures) -> bool:
        """Send one; False when it is not wanted. It is closed when it is not wanted any more."""
        with self._lock:
            is_wanted = self.is_open
            if is_wanted:
                self._places.append(place)
            return is_wanted

    def recall_one(self) -> None:
        """The next that has nothing to measure goes; said again before that, it is still one."""
        self._is_one_recalled = bool(self._places)

    def heed(self, free: list[Measures]) -> Measures | None:
        """Let go, of those that have nothing to measure, one that is recalled; which it is."""
        if not (self._is_one_recalled and free):
            return None
        self._is_one_recalled = False
        recalled = free.pop()
        self.dismiss(recalled)
        return recalled

    def dismiss(self, place: Measures) -> None:
        """One goes that measures nothing."""
        with self._lock:
            self._places.remove(place)
        place.close()

    def close(self) -> None:
        """All go, which measure nothing, and no other is wanted."""
        with self._lock:
            self._is_closed = True
        for place in self.present():
            self.dismiss(place)


class Hand:
    """A device that measures one thing at a time, in a thread. One that is stuck does not keep the program alive."""

    def __init__(self, bench: Bench, tell: Callable[[], None]) -> None:
        """`tell` is called, in the thread, when something has ended."""
        self._bench = bench
        self._tell = tell
        self._given: SimpleQueue[tuple[Job, float, Future[Trial]] | None] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="crew").start()

    def run(self, job: Job, built_before_ns: float) -> "Future[Trial]":
        """Measure and store, as a bench does, for a search."""
        result: Future[Trial] = Future()
        self._given.put((job, built_before_ns, result))
        return result

    def dismiss(self) -> None:
        """It is given nothing more."""
        self._given.put(None)

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            job, built_before_ns, result = given
            try:
                result.set_result(self._bench.run(job, "search", built_before_ns))
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                result.set_exception(error)
            self._tell()


@dataclass(frozen=True, kw_only=True)
class Running:
    """What one of a crew measures."""

    prepared: Prepared
    result: "Future[Trial]"


class Crew:
    """Who measures for a search, and what: its own device and its helpers. For the thread of the search alone."""

    def __init__(self, own: Measures, bench: Bench, helpers: Helpers, make_bench: Callable[[Measures], Bench]) -> None:
        self._own = own
        self._helpers = helpers
        self._make_bench = make_bench
        self._benches = {own: bench}
        """Each learns limits of time, and has an owner of what is in flight."""
        self._hands: dict[Measures, Hand] = {}
        self._running: dict[Measures, Running] = {}
        self._ended: SimpleQueue[Measures] = SimpleQueue()
        """Those of them that have."""
        self._returned: list[Prepared] = []

    @property
    def has_others(self) -> bool:
        """Whether there are helpers, or something is left of those that were."""
        return bool(len(self._helpers)) or self.is_at_work

    @property
    def running(self) -> int:
        """Trials that are being measured."""
        return len(self._running)

    @property
    def is_at_work(self) -> bool:
        """Whether something is being measured, or is to be."""
        return bool(self._running or self._returned)

    @property
    def is_own_free(self) -> bool:
        """Whether the search's own device measures nothing."""
        return self._own not in self._running

    def free(self) -> list[Measures]:
        """Who measures nothing, and stays."""
        helpers = [place for place in self._helpers.present() if place not in self._running]
        if (recalled := self._helpers.heed(helpers)) in self._hands:
            self._forget_place(recalled)
        return [self._own, *helpers] if self.is_own_free else helpers

    def begin(self, place: Measures, prepared: Prepared, job: Job) -> None:
        """Have one that is free measure something."""
        if place not in self._benches:
            self._benches[place] = self._make_bench(place)
        if place not in self._hands:
            self._hands[place] = Hand(self._benches[place], partial(self._ended.put, place))
        self._running[place] = Running(prepared=prepared, result=self._hands[place].run(job, prepared.build_ns))

    def returned(self) -> Prepared | None:
        """What a helper was to measure and could not, for no fault of what it was."""
        return self._returned.pop() if self._returned else None

    def take_in(self) -> Iterator[tuple[Trial, Prepared | None]]:
        """Wait until something has ended, and what did; of the search's own device, with what it was to measure.

        What was lost with a helper has crashed, for all that is known. Raises what ended a trial on the own device,
        and what is no helper's fault, such as StoreError.
        """
        while self._running:
            place = self._next_ended()
            ended = self._running.pop(place)
            if place is self._own:
                yield ended.result.result(), ended.prepared
            elif (trial := self._of_helper(place, ended)) is not None:
                yield trial, None
            if self._ended.empty():
                return

    def settle(self) -> None:
        """Returns when nothing is being measured any more; what is not taken in is in the ledger.

        What a helper could not measure is still to be.
        """
        while self._running:
            del self._running[self._next_ended()]
        for place in list(self._hands):
            self._let_go(place)

    def forget(self) -> None:
        """What a helper could not measure is not to be, as those who proposed it are forgotten too."""
        self._returned.clear()

    def _next_ended(self) -> Measures:
        with idle():
            return self._ended.get()

    def _let_go(self, place: Measures) -> None:
        self._hands.pop(place).dismiss()

    def _forget_place(self, place: Measures) -> None:
        del self._benches[place]
        self._let_go(place)

    def _of_helper(self, place: Measures, ended: Running) -> Trial | None:
        try:
            return ended.result.result()
        except WorkerError as error:
            self._forget_place(place)
            self._helpers.dismiss(place)
            if isinstance(error, WorkerLostError):
                configuration = ended.prepared.configuration
                return Trial(configuration=configuration, state=TrialState.CRASHED, message=error.message)
            self._returned.append(ended.prepared)
            return None
