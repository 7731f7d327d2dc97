"""A worker for a device behind a link, which waits while the device is away, and lets it cool when it is hot.

A phone that is unplugged or restarts ends the trial that is running as crashed, since that may be its fault; the next
trial waits until the phone is back. A job that could not begin because the phone was away is run when it is back.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from autotune.device.link import LOOK_S, PATIENCE_S
from autotune.errors import DeviceAwayError, WorkerError
from autotune.measure.worker import WORKER, Worker
from autotune.model.trial import Job, Trial

TELL_S = 60.0
"""Time between two lines about a wait."""
TRIES = 10
"""How often a job is begun on a device that is lost each time before the first launch."""
HOT_C = 85.0
"""Above this temperature the device rests."""
REST_S = 30.0
"""A rest of a hot device; the next trial shows whether it has helped."""
COOLER_C = 2.0
"""A rest has helped if the next trial leaves the device cooler by this than it was before."""
MOST_USELESS = 3
"""Number of rests in a row without help after which the device rests no more: its sensor is stuck, or it stays hot."""

T = TypeVar("T")


class _GivenUp(WorkerError):
    """Waiting ended without the device."""


class _Retriable(WorkerError):
    """The device could not be used, and nothing was launched on it."""


class Checks(Protocol):
    """What a worker needs of a link: an `autotune.phone.links.Link`, or a fake."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raises DeviceAwayError while the device is away."""
        ...


class PatientWorker(Worker):
    """A worker that outlasts its device's absences."""

    def __init__(
        self,
        link: Checks,
        report: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
        *,
        command: Sequence[str] = WORKER,
        selector: str = "",
        is_sustained: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`report` receives a line whenever a wait begins, lasts or ends; `should_stop` ends it.

        If times are to be those of a hot device (`is_sustained`), it is never rested.
        """
        super().__init__(command, selector=selector, wait=self._await_link)
        self._link = link
        self._report = report
        self._should_stop = should_stop
        self._clock, self._sleep = clock, sleep
        self._is_sustained = is_sustained
        self._temperature_c: float | None = None
        """Temperature after the last trial, if the trial reported it."""
        self._coolest_c = math.inf
        """Temperature of the hot device before its first rest, or after the latest that helped."""
        self._useless_rests = 0
        self._waits_since: float | None = None
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting so far; callable from any thread."""
        since = self._waits_since
        return self._waited_s + (0.0 if since is None else self._clock() - since)

    @property
    def phase(self) -> str:
        """Current phase of the child, or ``wait`` while the device is away or rests."""
        return "wait" if self._waits_since is not None else super().phase

    def prepare(self, job: Job) -> None:
        """Build a job; if the device cannot be used just then, `run` builds it. Raises WorkerError as `run` does."""
        with contextlib.suppress(_Retriable):
            self._attempt(super().prepare, job)

    def run(self, job: Job) -> Trial:
        """Measure a job once the device is there. Raises WorkerError when it stays away, or `should_stop` says so."""
        self._cool()
        for tries_left in reversed(range(TRIES)):
            try:
                trial = self._attempt(super().run, job)
            except _Retriable as error:
                if not tries_left:
                    raise WorkerError(error.message, hint=error.hint) from error
                self._pause(LOOK_S)
                continue
            if trial.measurement:
                self._temperature_c = trial.measurement.temperature_c
            return trial
        raise AssertionError

    def _attempt(self, call: Callable[[Job], T], job: Job) -> T:
        """Call the worker. Raises _Retriable if the device was lost before the job began."""
        try:
            return call(job)
        except _GivenUp:
            raise
        except WorkerError as error:
            raise _Retriable(error.message, hint=error.hint) from error

    def _await_link(self) -> None:
        """Return as soon as the link works.

        Raises DeviceSelectionError for a failure that waiting cannot end, and WorkerError.
        """
        began = told = self._clock()
        has_told = False
        while True:
            try:
                self._link.check()
            except DeviceAwayError as error:
                self._waits_since = began if self._waits_since is None else self._waits_since
                now = self._clock()
                if not has_told:
                    self._report(f"waiting for {self._link.name}: {error} (Ctrl-C stops)")
                elif now - told >= TELL_S:
                    self._report(f"waiting for {self._link.name} for {now - began:.0f} s: {error.message}")
                if not has_told or now - told >= TELL_S:
                    has_told, told = True, now
                if now - began > PATIENCE_S:
                    self._end_wait()
                    raise _GivenUp(
                        f"{self._link.name} stayed away for {PATIENCE_S / 60:.0f} minutes: {error.message}",
                        hint="nothing measured is lost: run the same command again when it is back",
                    ) from error
                self._pause(LOOK_S)
            else:
                self._end_wait()
                if has_told:
                    self._report(f"{self._link.name} is back after {self._clock() - began:.0f} s")
                return

    def _cool(self) -> None:
        """Rest when the last trial left the device hot, unless the last few rests did not help."""
        temperature_c, self._temperature_c = self._temperature_c, None
        if temperature_c is None or self._is_sustained:
            return
        if temperature_c <= HOT_C:
            self._coolest_c = math.inf
            return
        if temperature_c <= self._coolest_c - COOLER_C:
            self._coolest_c, self._useless_rests = temperature_c, 0
        else:
            self._useless_rests += 1
        has = f"{self._link.name} has {temperature_c:.0f} degrees Celsius"
        if self._useless_rests >= MOST_USELESS:
            if self._useless_rests == MOST_USELESS:
                self._report(f"{has} after each rest: no more rests until it is cooler")
            return
        self._report(f"{has}: resting for {REST_S:.0f} s")
        self._waits_since = self._clock()
        while self._clock() - self._waits_since < REST_S:
            self._pause(LOOK_S)
        self._end_wait()

    def _pause(self, seconds: float) -> None:
        """Raises WorkerError when the wait should stop."""
        if self._should_stop():
            self._end_wait()
            raise _GivenUp(f"stopped while waiting for {self._link.name}")
        self._sleep(seconds)

    def _end_wait(self) -> None:
        since, self._waits_since = self._waits_since, None
        self._waited_s += 0.0 if since is None else self._clock() - since
