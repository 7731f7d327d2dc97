"""From a configuration to a trial that is measured, stored and known."""

import time

import numpy as np

from autotune.family import Configuration
from autotune.profile import Profile
from autotune.search.knowledge import Knowledge
from autotune.store import Store
from autotune.trial import Job, Trial
from autotune.worker import Measures


class Bench:
    """Measures configurations of one problem; every trial is stored before the next begins."""

    def __init__(self, knowledge: Knowledge, profile: Profile, store: Store, worker: Measures) -> None:
        self._knowledge = knowledge
        self._profile = profile
        self._store = store
        self._worker = worker
        self._running_seconds: list[float] = []

    def job(self, configuration: Configuration) -> Job:
        """What to measure, with fresh inputs."""
        return Job(
            selector=self._knowledge.device.selector,
            problem=self._knowledge.problem,
            configuration=configuration,
            build_options=self._profile.build_options,
            timer=self._knowledge.timer,
            seed=int(np.random.default_rng().integers(2**31)),
        )

    def run(self, job: Job, purpose: str) -> Trial:
        """Measure and store."""
        started = time.monotonic()
        trial = self._worker.run(job)
        if trial.measurement:
            self._running_seconds.append(time.monotonic() - started - trial.measurement.build_ns / 1e9)
        knowledge = self._knowledge
        provenance = knowledge.provenance(job.configuration)
        self._store.add_trial(knowledge.device, knowledge.problem, trial, provenance, purpose)
        return trial

    @property
    def typical_seconds(self) -> float:
        """What a trial takes without building; 0 before the first."""
        return float(np.median(self._running_seconds[-20:])) if self._running_seconds else 0.0
