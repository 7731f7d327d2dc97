"""Stand-ins for devices, for tests and for trying search strategies without one."""

from collections.abc import Callable

from autotune.family import Configuration
from autotune.trial import Job, Measurement, Timer, Trial, TrialState


class FakeWorker:
    """Measures by a formula: a time in nanoseconds, or the state in which a configuration ends."""

    def __init__(self, outcome: Callable[[Job], float | TrialState]) -> None:
        self._outcome = outcome
        self.jobs: list[Job] = []
        self.is_closed = False

    def run(self, job: Job) -> Trial:
        self.jobs.append(job)
        outcome = self._outcome(job)
        if isinstance(outcome, TrialState):
            return Trial(configuration=job.configuration, state=outcome, message="as told", seed=job.seed)
        measurement = Measurement(
            time_ns=outcome, samples_ns=(outcome,) * job.samples, calls_per_sample=1, timer=Timer.EVENT
        )
        return Trial(
            configuration=job.configuration, state=TrialState.COMPLETE, measurement=measurement, seed=job.seed
        )

    def close(self) -> None:
        self.is_closed = True

    @property
    def measured(self) -> list[Configuration]:
        """Configurations in the order in which they were measured."""
        return [job.configuration for job in self.jobs]
