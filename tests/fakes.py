"""A device, a worker and builds that are invented, to try searches without a device."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Build, BuildJob, BuildState, Job, Measurement, Trial, TrialState

if TYPE_CHECKING:
    from autotune.store import Holder


INVENTED_PROCESSOR = Device(
    slug="pocl-invented",
    vendor="none",
    model="invented",
    family="cpu",
    selector="0:0",
    driver="1.0",
    limits=DeviceLimits(
        max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), is_cpu=True, max_allocation_bytes=2**28
    ),
)
"""A device of which only name and limits are used."""


class FakeWorker:
    """Measures by a formula that returns a time in nanoseconds, or the state in which the trial ends."""

    holder: "Holder | None" = None
    waited_s = 0.0

    def __init__(self, outcome: Callable[[Job], float | TrialState]) -> None:
        self._outcome = outcome
        self.jobs: list[Job] = []
        self.is_closed = False

    def prepare(self, job: Job) -> None:
        """Do nothing."""

    def run(self, job: Job) -> Trial:
        self.jobs.append(job)
        outcome = self._outcome(job)
        if isinstance(outcome, TrialState):
            return Trial(configuration=job.configuration, state=outcome, message="as told", seed=job.seed)
        measurement = Measurement(
            time_ns=outcome, samples_ns=(outcome,) * job.samples, calls_per_sample=1, timer=job.timer
        )
        return Trial(configuration=job.configuration, state=TrialState.COMPLETE, measurement=measurement, seed=job.seed)

    def close(self) -> None:
        self.is_closed = True

    @property
    def measured(self) -> list[Configuration]:
        """Configurations in the order in which they were measured."""
        return [job.configuration for job in self.jobs]


class FakeBuilds:
    """Builds by a formula: `outcome` returns the state of a build, `ends` whether it ends, by its number from 0."""

    def __init__(
        self,
        size: int,
        outcome: Callable[[BuildJob], BuildState] = lambda _: BuildState.BUILT,
        *,
        ends: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.size = size
        self.jobs: list[BuildJob] = []
        self.futures: list[Future[Build]] = []
        self.is_closed = False
        self._outcome = outcome
        self._ends = ends

    def submit(self, job: BuildJob) -> Future[Build]:
        future: Future[Build] = Future()
        if self._ends(len(self.jobs)):
            state = self._outcome(job)
            message = "" if state is BuildState.BUILT else "as told"
            future.set_result(Build(source_hash=job.source_hash, state=state, message=message, build_ns=1e6))
        self.jobs.append(job)
        self.futures.append(future)
        return future

    def close(self) -> None:
        self.is_closed = True
