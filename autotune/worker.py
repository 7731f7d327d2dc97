"""Where measuring happens: a child process that lives for many trials and is replaced when it dies or hangs."""

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from autotune import child
from autotune.trial import Job, Trial, TrialState


class Measures(Protocol):
    """What a search needs of a place that measures: the child process here, or a fake."""

    def run(self, job: Job) -> Trial: ...

    def close(self) -> None: ...


class Worker:
    """Runs jobs in a child process, one at a time. A context manager; closing ends the child."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "autotune.worker")) -> None:
        self._child = child.Child(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the child, while one is running."""
        return self._child.pid

    def run(self, job: Job) -> Trial:
        """Measure; a child that dies or exceeds a limit ends the trial as crashed or timed out.

        Raises WorkerError when no child can be started, or the child cannot use the device at all.
        """
        answer = self._child.ask(job, {"build": job.build_limit_s, "run": job.run_limit_s})
        if isinstance(answer, child.Loss):
            state = TrialState.TIMED_OUT if answer.was_late else TrialState.CRASHED
            return Trial(configuration=job.configuration, state=state, message=answer.message, seed=job.seed)
        assert isinstance(answer, Trial)
        if answer.state is TrialState.LAUNCH_FAILED:
            self.close()  # its context may be poisoned
        return answer

    def close(self) -> None:
        """End the child at once."""
        self._child.close()


def serve() -> None:
    """The child: answer jobs until the input ends."""
    from autotune.device.session import Session
    from autotune.measure import Measurer

    measurers: dict[str, Measurer] = {}

    def measure(job: Job, entering: Callable[[str], None]) -> Trial:
        if job.selector not in measurers:
            measurers[job.selector] = Measurer(Session(job.selector))
        return measurers[job.selector].measure(job, entering)

    child.serve(measure)


if __name__ == "__main__":
    serve()
