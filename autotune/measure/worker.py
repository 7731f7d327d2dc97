"""Measures in a child process that serves many trials and is replaced when it dies or hangs."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self

from autotune import child
from autotune.device.link import find_link, split, wait_for
from autotune.device.processors import is_busy, load
from autotune.model.trial import BUILD_LIMIT_S, QUARANTINED_STATES, RUN_LIMIT_S, Job, Trial, TrialState
from autotune.plugins import part

if TYPE_CHECKING:
    from autotune.device.port import Port
    from autotune.measure.measurer import Measurer

SPOILING = frozenset({TrialState.LAUNCH_FAILED, TrialState.WRONG_RESULT})
"""After a trial in one of these states the child is replaced: its context may be broken, its memory overwritten."""
GRAVE_STATES = QUARANTINED_STATES | SPOILING | {TrialState.CUT_SHORT}
"""Failures that cost a process, and thus seconds."""
REFUSED_BUILDS = 3
"""The child is also replaced after this many failed builds in a row: a broken context can cause them."""

WORKER = (sys.executable, "-m", "autotune.measure.worker")
"""Command of a child process that measures."""

_STATES = {
    child.Cause.LATE: TrialState.TIMED_OUT,
    child.Cause.DIED: TrialState.CRASHED,
    child.Cause.FAULT: TrialState.TOOL_FAILED,
}

_FULL_LIMITS_S = {"build": BUILD_LIMIT_S, "run": RUN_LIMIT_S}
INPUTS_LIMIT_S = 1800.0
"""Limit of drawing a set of inputs, and of computing what is right, for which the user's function may take long."""


class Worker:
    """Runs jobs in a child process, one at a time. A context manager; leaving it ends the child."""

    holder = None
    """This process measures, not the worker of a service."""

    def __init__(
        self, command: Sequence[str] = WORKER, *, selector: str = "", wait: Callable[[], None] | None = None
    ) -> None:
        """With a `selector` the child opens that device as soon as it starts, instead of at the first job.

        `wait` is called before the child is started; by default it waits for a device behind a link.
        """
        words = (*command, selector) if selector else command
        self._child = child.Child(words, wait=wait or partial(wait_for, selector))
        self._refused_builds = 0
        self._ended_early: tuple[Job, Trial] | None = None
        """The job prepared last and its trial, if it did not build."""
        self._ran_in: int | None = None
        """Process id of the child that ran the latest job."""
        self._turn = threading.Lock()
        """Held while the child is in use: a job may still be prepared for one search when the next begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waited_s(self) -> float:
        """Seconds that trials have waited for the device so far."""
        return 0.0

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

    def prepare(self, job: Job) -> None:
        """Build a job in the child, which keeps the program for `run`. Thread-safe. Raises WorkerError like `run`."""
        with self._turn:
            trial = self._ask("prepare", job)
            # What could not be launched may be due to an earlier trial: `run` finds out, in a fresh child.
            self._ended_early = (job, trial) if trial and trial.state is not TrialState.LAUNCH_FAILED else None

    def run(self, job: Job) -> Trial:
        """Measure a job; when the child dies or exceeds a limit, the trial ends in the state that says so. Thread-safe.

        A job that did not build when it was prepared has ended. Raises WorkerError when no child can be started or the
        child cannot use the device at all.
        """
        with self._turn:
            ended, self._ended_early = self._ended_early, None
            if ended and ended[0] == job:
                return ended[1]
            is_fresh = self.pid is None or self.pid != self._ran_in
            trial = self._ask("run", job)
            if trial and trial.state is TrialState.LAUNCH_FAILED and not is_fresh:
                # An earlier trial may have broken the context; in a fresh child a failure is due to this configuration.
                trial = self._ask("run", job)
            self._ran_in = self.pid
            assert trial
            return trial

    def _ask(self, task: Literal["prepare", "run"], job: Job) -> Trial | None:
        """Return the trial of a job; None if it was prepared and can be run."""
        limits_s = {"build": job.build_limit_s, "run": job.run_limit_s, "inputs": INPUTS_LIMIT_S}
        answer = self._child.ask((task, job), limits_s)
        if isinstance(answer, child.Loss):
            state, message = _STATES[answer.cause], answer.message
            if answer.was_killed:
                state = TrialState.CUT_SHORT
            elif answer.phase == "inputs":  # which no kernel can be blamed for
                text = f"inputs and reference: {message}"
                return Trial(configuration=job.configuration, state=TrialState.TOOL_FAILED, message=text, seed=job.seed)
            elif state is TrialState.TIMED_OUT and job.is_cut_off and answer.phase == "run":
                state = TrialState.TOO_SLOW
            elif state is TrialState.TIMED_OUT:
                is_hung = limits_s[answer.phase] >= _FULL_LIMITS_S[answer.phase] and not is_busy()
                state = TrialState.TIMED_OUT if is_hung else TrialState.CUT_SHORT
                message = f"{message} (the machine's load was {load():.1f})"
            return Trial(configuration=job.configuration, state=state, message=message, seed=job.seed)
        if answer is None:
            return None
        assert isinstance(answer, Trial)
        self._refused_builds = self._refused_builds + 1 if answer.state is TrialState.COMPILE_FAILED else 0
        if answer.state in SPOILING or self._refused_builds >= REFUSED_BUILDS:
            self.close()
        return answer

    def examine(
        self, selector: str, probes: Sequence[str], limits_s: Mapping[str, float]
    ) -> "dict[str, str] | child.Loss":
        """Run probes, built as one program, in the child; return an error message for each, empty for those that work.

        `limits_s` holds the seconds for the phases ``start``, ``opening`` and ``probe``. When a probe fails the child
        is ended, because its context may be broken. Raises WorkerError when no child can be started.
        """
        with self._turn:
            found: dict[str, str] | child.Loss = self._child.ask(("examine", selector, probes), limits_s)
            if isinstance(found, dict) and any(found.values()):
                self.close()
            return found

    def close(self) -> None:
        """End the child at once."""
        self._child.close()
        self._refused_builds = 0


@cache
def _port_to(selector: str) -> "Port":
    from autotune.device import open_port

    return open_port(selector)


@cache
def _measurer_on(selector: str) -> "Measurer":
    from autotune.measure.measurer import Measurer

    return Measurer(_port_to(selector))


def _measurer_for(job: Job) -> "Measurer":
    """Return the measurer of a job's device. Raises DeviceLostError if its link was lost since the last job."""
    from autotune.device import check_link

    check_link(_port_to(job.selector), job.selector)
    return _measurer_on(job.selector)


def _answer(message: Any, entering: child.Entering) -> Trial | dict[str, str] | None:
    match message:
        case "prepare", job:
            return _measurer_for(job).build(job, entering)
        case "run", job:
            return _measurer_for(job).measure(job, entering)
        case "examine", selector, probes:
            return _examine(selector, probes, entering)
    raise ValueError(f"unknown message {message!r}")


def _examine(selector: str, probes: Sequence[str], entering: child.Entering) -> dict[str, str]:
    entering("opening")
    from autotune.device.probes import run_probes

    port = _port_to(selector)
    entering("probe")
    return run_probes(port, probes)


def worker_for(
    selector: str,
    report: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    *,
    opens_early: bool = True,
    is_sustained: bool = False,
) -> Worker:
    """Return a worker for a device, patient if that is behind a link. Raises DeviceSelectionError for a bad link.

    Its child opens the device when it starts, or, unless it `opens_early`, at the first job. If `is_sustained`, the
    device gets no rests.
    """
    opened = selector if opens_early else ""
    parts = split(selector)
    if parts is None:
        return Worker(selector=opened)
    patient: Worker = part("patient_worker")(
        find_link(parts[0]), report, should_stop, selector=opened, is_sustained=is_sustained
    )
    return patient


def serve() -> None:
    """Run as the child process: answer jobs and examinations until the input ends; devices stay open meanwhile.

    The devices named on the command line are opened first.
    """
    child.serve(_answer, lambda: [_measurer_on(selector) for selector in sys.argv[1:]])


if __name__ == "__main__":
    serve()
