"""Measuring a configuration: from the job, through the worker ("in flight"), to a stored trial."""

import contextlib
import dataclasses
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from autotune import tracing
from autotune.errors import AutotuneError, StoreError, WorkerLostError
from autotune.measure.worker import Measures, waited_s
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Trial
from autotune.search.budget import Clock
from autotune.search.knowledge import Knowledge
from autotune.search.time_limits import TimeLimits
from autotune.store import new_owner

T = TypeVar("T")

SAME_INPUTS = 32
"""Consecutive trials of a search that share their inputs. Drawing inputs, computing the reference and copying both to
the device takes longer than measuring most kernels: at 1024 cubed on an H200, checks and inputs were 121 of 195 ms a
trial. The finals have inputs of their own."""
SEARCH_TICKS = 250
"""Shortest length of a sample in a search: 0.4% is precise enough, since the finals decide."""
SEARCH_AGREEMENT = 0.02


class Background:
    """A thread that makes calls one after the other; a call that never ends does not keep the program alive."""

    def __init__(self) -> None:
        calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._put = calls.put
        threading.Thread(target=_make_calls, args=(calls,), name="background", daemon=True).start()
        weakref.finalize(self, calls.put, None)

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


Measured = tuple[Trial, float]
"""A trial and the seconds that it took, with building, and without waiting for other programs."""


class Bench:
    """Measures configurations of one problem in the worker, with inputs and time limits of its choice.

    Every trial is stored before the worker launches the next, and is recorded in the ledger as in flight before it is
    launched: if it takes the process or the machine down, the next run knows which trials may have. While a trial is
    stored, the worker may build the next job; `record` launches it as soon as the row is stored, except on a CPU.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        worker: Measures,
        left_s: Callable[[], float] = lambda: math.inf,
        clock: Clock | None = None,
    ) -> None:
        """`left_s` returns the seconds left of the budget, which limit how long a trial may take."""
        self._left_s = left_s
        self.clock = clock or Clock()
        self.knowledge = knowledge
        self._store = store = knowledge.store
        self.worker = worker
        self._owner = new_owner(getattr(worker, "holder", None))  # only a worker of a service has a holder
        checkup = store.checkup(knowledge.device)
        self.limits = TimeLimits(checkup.program_s if checkup else 0.0)
        self._draw = np.random.default_rng()
        self._shared_seed = 0
        self._seed_uses = 0
        self._held: set[Configuration] = set()
        """Configurations that may be in flight in the ledger; removed only when the database has confirmed it."""
        self._is_delivered_again = False
        """Whether a trial that could not be stored stays in flight: its worker keeps it for the service."""
        self._background: Background | None = None
        """Makes the worker's calls where others are made meanwhile."""
        self.next_job: Job | None = None
        """The job after the one being measured, if the worker knows it already."""
        self._preparing: Future[tuple[None, float]] | None = None
        """Ends when the next job is prepared, with the seconds that it took."""
        self._launched: Future[Measured] | None = None
        """Result of the next job, if it has been launched already."""
        self._is_shared = knowledge.device.limits.is_cpu
        """Whether the device is a CPU, where this process's own computing would disturb measurements."""

    def beside(self, worker: Measures) -> "Bench":
        """Return a bench of the same search for another device."""
        return Bench(self.knowledge, worker, self._left_s, self.clock)

    def job(self, configuration: Configuration) -> Job:
        """Return the job that measures a configuration on fresh inputs."""
        return Job(
            selector=self.knowledge.device.selector,
            problem=self.knowledge.problem,
            configuration=configuration,
            build_options=self.knowledge.build_options,
            timer=self.knowledge.timer,
            seed=self.new_seed(),
        )

    def search_job(self, configuration: Configuration) -> Job:
        """Return the job that shows if a configuration is worth a final: shared inputs, as few samples as possible."""
        if self._seed_uses % SAME_INPUTS == 0:
            self._shared_seed = self.new_seed()
        self._seed_uses += 1
        return dataclasses.replace(
            self.job(configuration),
            seed=self._shared_seed,
            min_sample_ticks=SEARCH_TICKS,
            agreement=SEARCH_AGREEMENT,
        )

    def new_seed(self) -> int:
        """Return the seed of inputs that no trial has used."""
        return int(self._draw.integers(2**31))

    def run(
        self, job: Job, purpose: str, built_before_ns: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> Trial:
        """Measure and store a trial. Raises StoreError, naming the trial, when it cannot be stored.

        `built_before_ns` is the time spent on building it in advance elsewhere. `meanwhile` is called while the worker
        measures, and may pass the next job to `prepare`; an exception that it raises is raised once the trial is
        stored.
        """
        try:
            if job.configuration not in self._held:
                self.begin(job.configuration)
            launched, self._launched = self._launched, None
            if self.next_job is None:
                job = self._limited(job)
            else:
                assert self.next_job.configuration == job.configuration
                job, self.next_job = self.next_job, None
            if launched is None and (meanwhile or self._background):  # after what is still being prepared
                launched = self._launch(job)
            try:
                if meanwhile:
                    meanwhile()
            except Exception:
                self._drop_next()
                self._finish(job, launched, purpose, built_before_ns)
                raise
            return self._finish(job, launched, purpose, built_before_ns)
        except WorkerLostError as error:
            self._held.clear()  # never released: what cannot be recorded now is quarantined by the next run
            self._store.lose_trials(self._owner, error.message)
            raise
        except BaseException:
            # An orderly end, by Ctrl-C or an error: the configuration is not to blame. If the database fails, it stays
            # in flight; if storing its trial failed, it stays with the worker of a service, which delivers it again.
            with contextlib.suppress(StoreError):
                self.release()
            raise

    def prepare(self, job: Job) -> None:
        """Have the worker build the next job as soon as it has measured the one before."""
        self.next_job = self._limited(job)
        self._preparing = self._in_background(partial(self._timed, self.worker.prepare, self.next_job))

    @property
    def has_launched(self) -> bool:
        """Whether the next job may have been launched already."""
        return self._launched is not None

    def finish_launched(self) -> None:
        """Await and store the trial of the next job if it may have been launched, as when something else failed."""
        launched, job = self._launched, self.next_job
        if launched and job:
            self._launched = self.next_job = None
            with contextlib.suppress(AutotuneError):
                self._finish(job, launched, "search", 0.0)

    def begin(self, configuration: Configuration, ended: Sequence[Configuration] = ()) -> None:
        """Record a configuration as in flight before it is measured or a builder launches it, and `ended` as ended."""
        self._held.add(configuration)  # first, since a connection may break after the database has done its work
        with tracing.span("ledger: in flight"):
            self._store.begin_trial(self.knowledge.device, self.knowledge.problem, configuration, self._owner, ended)
        self._held.difference_update(ended)

    def end(self, ended: Sequence[Configuration]) -> None:
        """Remove configurations, which are not to blame, from those in flight."""
        with tracing.span("ledger: ended"):
            self._store.end_trials(self.knowledge.device, self.knowledge.problem, ended, self._owner)
        self._held.difference_update(ended)

    def release(self) -> None:
        """Drop the next job, and remove everything from what is in flight, blaming nothing.

        A trial that could not be stored, and that a worker of a service delivers again, stays in flight.
        Raises StoreError; it can then be called again.
        """
        self._drop_next()
        if self._held and self._is_delivered_again:
            self.end(tuple(self._held))
        elif self._held:
            self._store.abandon_trials(self._owner)
            self._held.clear()

    def _drop_next(self) -> None:
        if self._preparing:
            self._preparing.cancel()
        self.next_job = self._preparing = self._launched = None

    @property
    def build_limit_s(self) -> float:
        """Time limit of a build in another process."""
        return self.limits.build_s(self._left_s())

    def _limited(self, job: Job) -> Job:
        """Return the job with the time limits that hold now."""
        left_s = self._left_s()
        build_s, run_s = self.limits.build_s(left_s), self.limits.run_s(job, left_s)
        return dataclasses.replace(job, build_limit_s=build_s, run_limit_s=run_s)

    def _in_background(self, call: Callable[[], T]) -> "Future[T]":
        self._background = self._background or Background()
        return self._background.submit(call)

    def _launch(self, job: Job) -> "Future[Measured]":
        preparing, self._preparing = self._preparing, None
        return self._in_background(partial(self._measure, job, preparing))

    def _measure(self, job: Job, preparing: "Future[tuple[None, float]] | None" = None) -> Measured:
        _, prepared_s = preparing.result() if preparing else (None, 0.0)  # has ended: calls are made in order
        trial, took_s = self._timed(self.worker.run, job)
        return trial, prepared_s + took_s

    def _timed(self, call: Callable[[Job], T], job: Job) -> tuple[T, float]:
        """Return the result of the worker, and how many seconds it took without waiting for other programs."""
        started, waited_before_s = self.clock(), waited_s(self.worker)
        result = call(job)
        return result, self.clock() - started - (waited_s(self.worker) - waited_before_s)

    def _finish(self, job: Job, launched: "Future[Measured] | None", purpose: str, built_before_ns: float) -> Trial:
        """Await the trial and store it."""
        with tracing.span("await worker"):
            trial, took_s = launched.result() if launched else self._measure(job)
        trial = dataclasses.replace(trial, configuration=job.configuration)  # shared by all that keep it
        run_s = took_s
        if trial.measurement:
            run_s -= trial.measurement.build_ns / 1e9
            whole = trial.measurement.build_ns + built_before_ns
            trial = dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, build_ns=whole))
        self.limits.learn(trial, max(0.0, run_s))
        try:
            return self.record(trial, purpose)
        except StoreError:
            if self._owner.holder is not None:
                self._is_delivered_again = True
                self._held.discard(trial.configuration)
            raise

    def record(self, trial: Trial, purpose: str = "search") -> Trial:
        """Store a trial, and record the next job as in flight. Raises StoreError, naming the trial."""
        knowledge = self.knowledge
        following = self.next_job.configuration if self.next_job else None
        provenance = knowledge.provenance(trial.configuration)
        try:
            with tracing.span("ledger: trial"):
                self._store.add_trial(
                    knowledge.device, knowledge.problem, trial, provenance, purpose, self._owner, following
                )
        except StoreError as error:
            what = f"{trial.configuration}, {trial.state.value}"
            if trial.measurement:
                what += f", {trial.time_ns:.0f} ns"
            raise type(error)(f"{error.message}; this trial was not stored: {what}", hint=error.hint) from error
        self._held.discard(trial.configuration)
        if self.next_job:
            self._held.add(self.next_job.configuration)
            if not self._is_shared and not self._launched:
                self._launched = self._launch(self.next_job)
        return trial
