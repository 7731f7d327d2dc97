"""From a configuration to a trial that is measured, stored and known."""

import contextlib
import dataclasses
import time

import numpy as np

from autotune.errors import StoreError
from autotune.family import Configuration
from autotune.profile import Profile
from autotune.search.knowledge import Knowledge
from autotune.search.time_limits import TimeLimits
from autotune.store import Store, new_owner
from autotune.trial import Job, Trial
from autotune.worker import Measures


class Bench:
    """Measures configurations of one problem; every trial is stored before the next begins.

    While it is measured, a trial is in flight in the ledger: whatever it takes along, the next run knows which
    it was.
    """

    def __init__(self, knowledge: Knowledge, profile: Profile, store: Store, worker: Measures) -> None:
        self._knowledge = knowledge
        self._profile = profile
        self._store = store
        self._worker = worker
        self._owner = new_owner()
        self._limits = TimeLimits()

    def job(self, configuration: Configuration) -> Job:
        """What to measure, with fresh inputs."""
        return Job(
            selector=self._knowledge.device.selector,
            problem=self._knowledge.problem,
            configuration=configuration,
            build_options=self._profile.build_options,
            seed=int(np.random.default_rng().integers(2**31)),
        )

    def run(self, job: Job, purpose: str) -> Trial:
        """Measure and store. Raises StoreError, naming the trial, when it cannot be stored."""
        knowledge = self._knowledge
        try:
            self._store.begin_trial(knowledge.device, knowledge.problem, job.configuration, self._owner)
            trial = self._measure(job)
            self._add(trial, purpose)
        except BaseException:
            # Ended in order, by Ctrl-C or an error: the configuration is not to blame. With a database that fails,
            # it stays in flight.
            with contextlib.suppress(StoreError):
                self._store.abandon_trials(self._owner)
            raise
        return trial

    @property
    def typical_seconds(self) -> float:
        """What a trial takes without building; 0 before the first."""
        return self._limits.typical_run_s

    def _measure(self, job: Job) -> Trial:
        limited = dataclasses.replace(
            job, build_limit_s=self._limits.build_s(job), run_limit_s=self._limits.run_s(job)
        )
        started = time.monotonic()
        trial = self._worker.run(limited)
        if trial.measurement:
            run_s = time.monotonic() - started - trial.measurement.build_ns / 1e9
            self._limits.learn(trial, max(0.0, run_s))
        return trial

    def _add(self, trial: Trial, purpose: str) -> None:
        knowledge = self._knowledge
        provenance = knowledge.provenance(trial.configuration)
        try:
            self._store.add_trial(knowledge.device, knowledge.problem, trial, provenance, purpose, self._owner)
        except StoreError as error:
            what = f"{trial.configuration}, {trial.state.value}"
            if trial.measurement:
                what += f", {trial.time_ns:.0f} ns"
            raise type(error)(f"{error.message}; a trial is not stored: {what}", hint=error.hint) from error
