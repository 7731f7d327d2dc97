"""A worker for a device behind a link, which waits while the device is away, and lets it cool when it is hot.

A phone that is unplugged or restarts ends the trial that is running as crashed, since that may be its fault; the next
trial waits until the phone is back. A job that could not begin because the phone was away is run when it is back.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from autotune.child import Loss
from autotune.device.links.shell import LOOK_S, PATIENCE_S
from autotune.errors import DeviceAwayError, WorkerError
from autotune.measure.worker import WORKER, Worker
from autotune.model.trial import Job, Trial, TrialState

TELL_S = 60.0
"""Time between two lines about a wait."""
TRIES = 5
"""How often a job is begun while the link works whenever it is asked."""
HOT_C = 85.0
"""Above this temperature the device rests."""
REST_S = 30.0
"""A rest of a hot device; the next trial shows whether it has helped."""

_SUSPICIOUS = frozenset(
    {TrialState.CRASHED, TrialState.TIMED_OUT, TrialState.TOO_SLOW, TrialState.TOOL_FAILED, TrialState.LAUNCH_FAILED}
)
"""States in which a trial ends if the device is lost."""


class Checks(Protocol):
    """What a worker needs of a link: an `autotune.device.links.Link`, or a fake."""

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
        tell: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
        *,
        command: Sequence[str] = WORKER,
        selector: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`tell` receives a line whenever a wait begins, lasts or ends; `should_stop` ends it."""
        super().__init__(command, selector=selector)
        self._link = link
        self._tell = tell
        self._should_stop = should_stop
        self._clock, self._sleep = clock, sleep
        self._may_be_away = False
        self._temperature_c = -math.inf
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
        """Build a job, unless the device may be away: `run` waits for it and builds."""
        if not self._may_be_away:
            try:
                super().prepare(job)
            except WorkerError:
                self._may_be_away = True

    def run(self, job: Job) -> Trial:
        """Measure a job once the device is there. Raises WorkerError when it stays away, or `should_stop` says so."""
        self._cool()
        for tries_left in reversed(range(TRIES)):
            if self._may_be_away:
                self._await_link()
            try:
                trial = super().run(job)
            except WorkerError:
                if not tries_left:
                    raise
                self._may_be_away = True
                self._pause(LOOK_S)
                continue
            self._may_be_away = trial.state in _SUSPICIOUS
            if trial.measurement and trial.measurement.temperature_c is not None:
                self._temperature_c = trial.measurement.temperature_c
            return trial
        raise AssertionError

    def examine(self, selector: str, probes: Sequence[str], limits_s: "dict[str, float]") -> "dict[str, str] | Loss":  # type: ignore[override]
        """Run probes as `Worker` does, again if the device was lost meanwhile."""
        found = super().examine(selector, probes, limits_s)
        if not isinstance(found, Loss) or not self._is_away():
            return found
        self._await_link()
        return super().examine(selector, probes, limits_s)

    def _is_away(self) -> bool:
        try:
            self._link.check()
        except DeviceAwayError:
            return True
        return False

    def _await_link(self) -> None:
        """Return as soon as the link works. Raises DeviceSelectionError for what waiting does not mend, WorkerError."""
        self._may_be_away = False
        began = told = self._clock()
        has_told = False
        while True:
            try:
                self._link.check()
            except DeviceAwayError as error:
                self.close()
                self._waits_since = began if self._waits_since is None else self._waits_since
                now = self._clock()
                if not has_told:
                    self._tell(f"waiting for {self._link.name}: {error} (Ctrl-C stops)")
                elif now - told >= TELL_S:
                    self._tell(f"waiting for {self._link.name} for {now - began:.0f} s: {error.message}")
                if not has_told or now - told >= TELL_S:
                    has_told, told = True, now
                if now - began > PATIENCE_S:
                    self._end_wait()
                    raise WorkerError(
                        f"{self._link.name} stayed away for {PATIENCE_S / 60:.0f} minutes: {error.message}",
                        hint="nothing measured is lost: run the same command again when it is back",
                    ) from error
                self._pause(LOOK_S)
            else:
                self._end_wait()
                if has_told:
                    self._tell(f"{self._link.name} is back after {self._clock() - began:.0f} s")
                return

    def _cool(self) -> None:
        """Rest when the last trial left the device hot."""
        if self._temperature_c <= HOT_C:
            return
        self._tell(f"{self._link.name} has {self._temperature_c:.0f} degrees Celsius: resting for {REST_S:.0f} s")
        self._temperature_c = -math.inf
        self._waits_since = self._clock()
        while self._clock() - self._waits_since < REST_S:
            self._pause(LOOK_S)
        self._end_wait()

    def _pause(self, seconds: float) -> None:
        """Raises WorkerError when the wait should stop."""
        if self._should_stop():
            self._end_wait()
            raise WorkerError(f"stopped while waiting for {self._link.name}")
        self._sleep(seconds)

    def _end_wait(self) -> None:
        since, self._waits_since = self._waits_since, None
        self._waited_s += 0.0 if since is None else self._clock() - since


def worker_for(selector: str, tell: Callable[[str], None], should_stop: Callable[[], bool] = lambda: False) -> Worker:
    """Return a worker for a device, patient if that is behind a link. Raises DeviceSelectionError for a bad link."""
    from autotune.device.links import find_link, split

    parts = split(selector)
    if parts is None:
        return Worker(selector=selector)
    return PatientWorker(find_link(parts[0]), tell, should_stop, selector=selector)
