"""A trial on its way through the worker ("in flight"); the next may be built there before it may be launched."""

import threading
from concurrent.futures import CancelledError, Future, wait
from typing import Self

from autotune.measure.worker import Measures, waited_s
from autotune.model.trial import Job, Trial
from autotune.process.child import Permission
from autotune.search.contract import Clock


class Flight:
    """One job in the worker. It begins when the one before it has ended, and awaits permission for its first launch."""

    def __init__(self, job: Job, worker: Measures, before: Self | None, clock: Clock) -> None:
        self.job = job
        self._worker = worker
        self._before = before
        self._clock = clock
        self._permission = Permission()
        self._allowed_at = 0.0
        self._is_withdrawn = self._is_begun = False
        self._result: Future[tuple[Trial, float]] = Future()

    def start(self) -> None:
        """Begin, in a thread, unless it has begun."""
        if not self._is_begun:
            threading.Thread(target=self._fly, daemon=True).start()
            self._is_begun = True  # only if the thread has started; otherwise `result` runs the job

    @property
    def is_allowed(self) -> bool:
        """Whether the job may have been launched."""
        return self._permission.done() and not self._permission.cancelled()

    def allow(self) -> None:
        """Permit the launch."""
        if not self._permission.done():
            self._allowed_at = self._clock()
            self._permission.set_result(None)

    def withdraw(self) -> None:
        """Forbid the launch, unless it has happened; the result is not needed."""
        self._is_withdrawn = True
        self._permission.cancel()

    def result(self) -> tuple[Trial, float]:
        """Return the trial and the seconds it took, waiting excluded; run the job here if it has not begun."""
        if not self._is_begun:
            self._is_begun = True
            self._fly()
        return self._result.result()

    def _fly(self) -> None:
        try:
            self._result.set_result(self._measured())
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            self._result.set_exception(error)

    def _measured(self) -> tuple[Trial, float]:
        if self._before:
            wait([self._before._result])
            self._before = None  # otherwise no flight would ever be freed
        if self._is_withdrawn:
            raise CancelledError
        started, waited_before_s = self._clock(), waited_s(self._worker)
        trial = self._worker.run(self.job, None if self.is_allowed else self._permission)
        took_s = self._clock() - started - (waited_s(self._worker) - waited_before_s)
        build_s = trial.measurement.build_ns / 1e9 if trial.measurement else 0.0
        return trial, took_s - max(0.0, self._allowed_at - started - build_s)
