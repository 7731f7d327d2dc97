"""Measures in a child process that serves many trials and is replaced when it dies or hangs."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Protocol, Self

from autotune.model.checkup import Examination
from autotune.model.trial import Job, Trial, TrialState
from autotune.process import child
from autotune.process.child import Permission

if TYPE_CHECKING:
    from autotune.device.port import Port
    from autotune.measure.measurer import Measurer

SPOILING = frozenset({TrialState.LAUNCH_FAILED, TrialState.WRONG_RESULT})
"""After a trial in one of these states the child is replaced: its context may be broken, its memory overwritten."""
REFUSED_BUILDS = 3
"""The child is also replaced after this many failed builds in a row: a broken context can cause them."""


WORKER = (sys.executable, "-m", "autotune.measure.worker")
"""Command of a child process that measures."""


class Measures(Protocol):
    """What a search needs to measure: `Worker`, or a fake."""

    def run(self, job: Job, permission: Permission | None = None) -> Trial:
        """Measure a job. Nothing is launched before the future `permission` has a result; None means no waiting.

        Raises CancelledError when `permission` is cancelled.
        """
        ...

    def close(self) -> None: ...


def waited_s(place: object) -> float:
    """Return the seconds that trials at `place` have waited while another program measured on its device.

    Only places that share a device with other programs count them; for others the result is 0.
    """
    waited: float = getattr(place, "waited_s", 0.0)
    return waited


class Worker:
    """Runs jobs in a child process, one at a time. A context manager; leaving it ends the child."""

    def __init__(self, command: Sequence[str] = WORKER, *, selector: str = "") -> None:
        """With a `selector` the child opens that device as soon as it starts, instead of at the first job."""
        self._child = child.Child((*command, selector) if selector else command)
        self._refused_builds = 0
        self._turn = threading.Lock()
        """Held while the child is in use: a job that one search withdrew may still run when the next search begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while none is running."""
        return self._child.pid

    @property
    def phase(self) -> str:
        """Current phase of the child: ``start``, ``build`` or ``run``; empty while it waits for a job."""
        return self._child.phase

    def start(self) -> None:
        """Start the child now, since a device may take seconds to open. Raises WorkerError when that fails."""
        self._child.start()

    def run(self, job: Job, permission: Permission | None = None) -> Trial:
        """Measure a job; when the child dies or exceeds a limit, the trial ends as crashed or timed out. Thread-safe.

        The child builds first and launches only when the future `permission` has a result. Raises WorkerError when no
        child can be started or the child cannot use the device at all, CancelledError when `permission` is cancelled.
        """
        with self._turn:
            if permission and permission.cancelled():
                raise CancelledError
            is_fresh = self._child.answers == 0
            trial = self._run_once(job, permission)
            if trial.state is TrialState.LAUNCH_FAILED and not is_fresh:
                # An earlier trial may have broken the context; in a fresh child a failure is due to this configuration.
                trial = self._run_once(job, permission)
            return trial

    def _run_once(self, job: Job, permission: Permission | None) -> Trial:
        limits_s = {"build": job.build_limit_s, "run": job.run_limit_s}
        answer = self._child.ask(job, limits_s, "run" if permission else "", permission)
        if isinstance(answer, child.Loss):
            state = _state_of(answer, job)
            return Trial(configuration=job.configuration, state=state, message=answer.message, seed=job.seed)
        assert isinstance(answer, Trial)
        self._refused_builds = self._refused_builds + 1 if answer.state is TrialState.COMPILE_FAILED else 0
        if answer.state in SPOILING or self._refused_builds >= REFUSED_BUILDS:
            self.close()
        return answer

    def examine(self, examination: Examination, limits_s: Mapping[str, float]) -> "dict[str, str] | child.Loss":
        """Run probes in the child and return an error message for each, empty for those that work.

        `limits_s` holds the seconds for the phases ``start``, ``opening`` and ``probe``. When a probe fails the child
        is ended, because its context may be broken. Raises WorkerError when no child can be started.
        """
        with self._turn:
            found: dict[str, str] | child.Loss = self._child.ask(examination, limits_s)
            if isinstance(found, dict) and any(found.values()):
                self.close()
            return found

    def close(self) -> None:
        """End the child at once."""
        self._child.close()
        self._refused_builds = 0


def _state_of(loss: child.Loss, job: Job) -> TrialState:
    match loss.cause:
        case child.Cause.DIED:
            return TrialState.CRASHED
        case child.Cause.FAULT:
            return TrialState.TOOL_FAILED
        case child.Cause.LATE:
            return TrialState.TOO_SLOW if job.is_cut_off and loss.phase == "run" else TrialState.TIMED_OUT


def serve() -> None:
    """Run as the child process: answer jobs and examinations until the input ends."""
    sessions: dict[str, Port] = {}
    measurers: dict[str, Measurer] = {}

    def session_on(selector: str) -> "Port":
        from autotune.device import open_port

        if selector not in sessions:
            sessions[selector] = open_port(selector)
        return sessions[selector]

    def measurer_on(selector: str) -> "Measurer":
        from autotune.measure.measurer import Measurer

        if selector not in measurers:
            measurers[selector] = Measurer(session_on(selector))
        return measurers[selector]

    def answer(message: Job | Examination, entering: Callable[[str], None]) -> Trial | dict[str, str]:
        if isinstance(message, Job):
            return measurer_on(message.selector).measure(message, entering)
        entering("opening")
        from autotune.device.probes import run_probes

        session = session_on(message.selector)
        entering("probe")
        return run_probes(session, message.probes)

    def prepare() -> None:
        for selector in sys.argv[1:]:
            measurer_on(selector)

    child.serve(answer, prepare)


if __name__ == "__main__":
    serve()
