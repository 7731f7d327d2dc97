"""One configuration on its way through a search; the devices that measure, and what is in flight on each."""

import contextlib
import dataclasses
import enum
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from autotune import tracing
from autotune.errors import StoreError, WorkerLostError
from autotune.model.configuration import Configuration
from autotune.model.plan import Plan
from autotune.model.trial import BUILD_LIMIT_S, Build, BuildState, Job, Trial, TrialState
from autotune.search.budget import Clock, TimeLimits
from autotune.search.knowledge import Knowledge
from autotune.store import Holder, new_owner

MOST_HELPERS = 15
"""Helpers of one search. With more, too much would be proposed before anything is learnt from it."""
T = TypeVar("T")
Timed = tuple[T, float]
"""What a worker returned, and the seconds that it took without waiting for other programs."""


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
    """The equal devices that help one search now; other code adds and recalls them, from any thread.

    The default, the sentinel and the finals run on the search's own device. The one model of the search makes all
    proposals: it treats a configuration that is being measured as if it had turned out as predicted, and does not
    propose it again. Each device has an owner of its own in the ledger, so that what is lost with one device is
    quarantined without the trials of the others.
    """

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


class Stage(enum.Enum):
    """How far a configuration has come."""

    PROPOSED = "proposed"
    """Waits for a device. Of what is built ahead, only what a helper could not measure comes back to this."""
    BUILDING = "building"
    BUILT = "built"
    IN_FLIGHT = "in flight"
    """A worker has its job."""
    MEASURED = "measured"
    STORED = "stored"
    DROPPED = "dropped"


@dataclass(kw_only=True, eq=False)
class Work:
    """One configuration on its way from a proposal to a stored trial."""

    configuration: Configuration
    stage: Stage = Stage.PROPOSED
    source: str = ""
    """The source that was built ahead."""
    program: bytes = b""
    """Digest of source, launches and buffers: where it is equal, nothing that runs differs."""
    build: Build | None = None
    """None if nothing was built ahead."""
    job: Job | None = None
    purpose: str = "search"
    place: "Place | None" = None
    is_apart: bool = False
    """Whether the thread of its place stores it."""
    pending: "Future[Any] | None" = None
    """What it waits for: its build, its preparation in the worker, or its measurement."""
    trial: Trial | None = None

    @property
    def failed_build(self) -> Trial | None:
        """The trial of what did not build; None where it built, or was not built ahead."""
        build = self.build
        if build is None or build.state is BuildState.BUILT:
            return None
        is_rejected = build.state is BuildState.FAILED
        state = TrialState.COMPILE_FAILED if is_rejected else TrialState[build.state.name]
        return Trial(configuration=self.configuration, state=state, message=build.message)


def program_of(source: object, plan: Plan) -> bytes:
    """Return the digest for `Work.program`."""
    return hashlib.sha256(repr((source, plan.launches, plan.buffers)).encode()).digest()


class Background:
    """A thread that makes calls one after the other; a call that never ends does not keep the program alive."""

    def __init__(self) -> None:
        calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._put = calls.put
        threading.Thread(target=_make_calls, args=(calls,), name="background", daemon=True).start()
        self.close = weakref.finalize(self, calls.put, None)
        """Ends the thread after its last call."""

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Make a call after those submitted before; one that has not begun can be cancelled."""
        future: Future[T] = Future()
        self._put((future, call))
        return future


def _make_calls(calls: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (submitted := calls.get()) is not None:
        future, call = submitted
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                future.set_exception(error)
        del submitted, future, call  # while the thread waits, it keeps nothing alive


class Place:
    """One device of a search, with its own time limits and its own owner of trials in flight.

    Every trial is recorded in the ledger as in flight before it is launched: if it takes the process or the machine
    down, the next run knows which trials may have. A thread of the place's own calls the worker.
    """

    def __init__(self, worker: Measures, knowledge: Knowledge, clock: Clock, left_s: Callable[[], float]) -> None:
        self.worker = worker
        self._knowledge, self._store = knowledge, knowledge.store
        self._clock, self._left_s = clock, left_s
        checkup = self._store.checkup(knowledge.device)
        most_build_s = knowledge.family.run_limit_s or BUILD_LIMIT_S
        self.limits = TimeLimits(checkup.program_s if checkup else 0.0, most_build_s)
        self._owner = new_owner(worker.holder)
        self._held: set[Work] = set()
        """What may be in flight in the ledger; removed only when the database has confirmed it."""
        self._is_delivered_again = False
        """Whether a trial that could not be stored stays in flight: its worker keeps it for the service."""
        self._thread = Background()

    def close(self) -> None:
        """Measure nothing more."""
        self._thread.close()

    def prepare(self, work: Work, job: Job) -> None:
        """Have the worker build a job as soon as it has measured the one before."""
        work.place, work.job = self, self._limited(job)
        work.pending = self._thread.submit(partial(self._timed, self.worker.prepare, work.job))

    def launch(self, work: Work, job: Job, *, is_apart: bool = False) -> None:
        """Record work as in flight, and have the worker measure it, which may have prepared it.

        With `is_apart`, the thread records and stores it as well, so that several devices do not wait for one another.
        """
        preparing, work.place, work.job, work.is_apart = work.pending, self, job, is_apart
        if is_apart:
            work.pending = self._thread.submit(partial(self._measure_apart, work, job))
        else:
            with self._blaming(work):
                if work not in self._held:
                    self.hold(work)
                work.job = job if preparing else self._limited(job)
                work.pending = self._thread.submit(partial(self._measured, work.job, preparing))
        work.stage = Stage.IN_FLIGHT

    def finish(self, work: Work, following: Work | None = None) -> Trial:
        """Await the trial of what was launched, store it, and record what follows as in flight."""
        assert work.pending
        with self._blaming(work):
            with tracing.span("await worker"):
                measured = work.pending.result()
            work.stage = Stage.MEASURED
            if not work.is_apart:
                self._add(work, measured, following)
        assert work.trial
        work.stage = Stage.STORED
        return work.trial

    def hold(self, work: Work, ended: Iterable[Work] = ()) -> None:
        """Record work as in flight before it is measured or a builder launches it, and `ended` as ended."""
        self._held.add(work)  # first, since a connection may break after the database has done its work
        device, problem = self._knowledge.device, self._knowledge.problem
        with tracing.span("ledger: in flight"):
            self._store.begin_trial(device, problem, work.configuration, self._owner, [w.configuration for w in ended])
        self._held.difference_update(ended)

    def holds(self, work: Work) -> bool:
        return work in self._held

    def end(self, ended: Iterable[Work]) -> None:
        """Remove works, whose configurations are not to blame, from those in flight."""
        device, problem = self._knowledge.device, self._knowledge.problem
        with tracing.span("ledger: ended"):
            self._store.end_trials(device, problem, [work.configuration for work in ended], self._owner)
        self._held.difference_update(ended)

    def release(self) -> None:
        """Remove everything from what is in flight, blaming nothing.

        A trial that could not be stored, and that a worker of a service delivers again, stays in flight.
        Raises StoreError; it can then be called again.
        """
        if self._held and self._is_delivered_again:
            self.end(tuple(self._held))
        elif self._held:
            self._store.abandon_trials(self._owner)
            self._held.clear()

    def store(self, work: Work, trial: Trial, following: Work | None = None) -> None:
        """Store a trial, and record what follows it as in flight. Raises StoreError, naming the trial."""
        knowledge, owner = self._knowledge, self._owner
        following_one = following.configuration if following else None
        provenance = knowledge.provenance(trial.configuration)
        try:
            with tracing.span("ledger: trial"):
                self._store.add_trial(
                    knowledge.device, knowledge.problem, trial, provenance, work.purpose, owner, following_one
                )
        except StoreError as error:
            if work in self._held and owner.holder is not None:
                self._is_delivered_again = True
                self._held.discard(work)
            what = f"{trial.configuration}, {trial.state.value}"
            if trial.measurement:
                what += f", {trial.time_ns:.0f} ns"
            raise type(error)(f"{error.message}; this trial was not stored: {what}", hint=error.hint) from error
        self._held.discard(work)
        if following:
            self._held.add(following)
        work.trial = trial

    @contextlib.contextmanager
    def _blaming(self, work: Work) -> Iterator[None]:
        """After an error, drop the work, and let go of what is in flight, or quarantine it if the device was lost."""
        try:
            yield
        except WorkerLostError as error:
            work.stage = Stage.DROPPED
            self._held.clear()  # never released: what cannot be recorded now is quarantined by the next run
            self._store.lose_trials(self._owner, error.message)
            raise
        except BaseException:
            # An orderly end, by Ctrl-C or an error: the configuration is not to blame. If the database fails, it stays
            # in flight; if storing its trial failed, it stays with the worker of a service, which delivers it again.
            work.stage = Stage.DROPPED
            with contextlib.suppress(StoreError):
                self.release()
            raise

    def _limited(self, job: Job) -> Job:
        """Return the job with the time limits that hold now."""
        left_s = self._left_s()
        build_s, run_s = self.limits.build_s(left_s), self.limits.run_s(job, left_s)
        return dataclasses.replace(job, build_limit_s=build_s, run_limit_s=run_s)

    def _measure_apart(self, work: Work, job: Job) -> None:
        self.hold(work)
        self._add(work, self._measured(self._limited(job)))

    def _add(self, work: Work, measured: Timed[Trial], following: Work | None = None) -> None:
        """Learn time limits from a trial, and store it."""
        trial, run_s = measured
        trial = dataclasses.replace(trial, configuration=work.configuration)  # shared by all that keep it
        if trial.measurement:
            run_s -= trial.measurement.build_ns / 1e9
            build_ns = trial.measurement.build_ns + (work.build.build_ns if work.build else 0.0)
            measurement = dataclasses.replace(trial.measurement, build_ns=build_ns)
            trial = dataclasses.replace(trial, measurement=measurement)
        self.limits.learn(trial, max(0.0, run_s))
        self.store(work, trial, following)

    def _measured(self, job: Job, preparing: "Future[Timed[None]] | None" = None) -> Timed[Trial]:
        _, prepared_s = preparing.result() if preparing else (None, 0.0)  # has ended: calls are made in order
        trial, took_s = self._timed(self.worker.run, job)
        return trial, prepared_s + took_s

    def _timed(self, call: Callable[[Job], T], job: Job) -> Timed[T]:
        started, waited_s = self._clock(), self.worker.waited_s
        result = call(job)
        return result, self._clock() - started - (self.worker.waited_s - waited_s)
