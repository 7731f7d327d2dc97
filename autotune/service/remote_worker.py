"""The stations of a fleet as searches use them, from their threads."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from autotune.model.trial import Job, Trial
from autotune.service.fleet import Assignment, Fleet, Station, Stopping
from autotune.store import Attempt
from autotune.turns import idle


class RemoteWorker:
    """A station as a search uses it, from any thread: implements `autotune.measure.worker.Measures`."""

    def __init__(
        self,
        fleet: Fleet,
        station: Station,
        loop: asyncio.AbstractEventLoop,
        attempt: Attempt | None = None,
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_off` returns whether another service has taken the search; then no trial is launched."""
        self._fleet = fleet
        self._loop = loop
        self._is_off = is_off
        self.station = station
        self.holder = replace(station.holder, attempt=attempt)
        """The holder under which running trials of the search are stored."""
        self._waited_before_s = station.waited_s

    @property
    def waited_s(self) -> float:
        """Seconds that trials given through this object have waited for other programs on the worker's machine."""
        return self.station.waited_s - self._waited_before_s

    def prepare(self, job: Job) -> None:
        """Do nothing: a job is sent when it may be launched."""

    def run(self, job: Job) -> Trial:
        """Measure a trial.

        Raises WorkerError when the device cannot be used, WorkerLostError when it is gone, Stopping when the service
        ends.
        """
        assignment = Assignment(job, self._is_off)
        try:
            self._loop.call_soon_threadsafe(self._fleet.assign, self.station, assignment)
        except RuntimeError as error:  # the loop has ended
            raise Stopping from error
        with idle():
            return assignment.result.result()

    def call_in_loop(self, work: Callable[[], None]) -> None:
        """Call `work` soon in the event loop, unless the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Do nothing: the station belongs to the code that took it."""


class Helper(RemoteWorker):
    """A station that helps the search of another one. Closing the helper frees the station."""

    def close(self) -> None:
        self.call_in_loop(lambda: self._fleet.release(self.station))
