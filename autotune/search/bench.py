"""From a configuration to a trial that is measured, stored and known."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autotune.errors import StoreError, WorkerLostError
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
        self._held: set[Configuration] = set()

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

    def run(
        self, job: Job, purpose: str, built_before_ns: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> Trial:
        """Measure and store. Raises StoreError, naming the trial, when it cannot be stored.

        `built_before_ns` is what building took before, elsewhere; `meanwhile` is called while the worker measures.
        """
        try:
            if job.configuration not in self._held:
                self.hold(job.configuration)
            trial = self._measure(job, built_before_ns, meanwhile)
            self.record(trial, purpose)
        except WorkerLostError as error:
            self._held.clear()
            self._store.lose_trials(self._owner, error.message)
            raise
        except BaseException:
            # Ended in order, by Ctrl-C or an error: the configuration is not to blame. With a database that fails,
            # it stays in flight.
            with contextlib.suppress(StoreError):
                self.release()
            raise
        return trial

    def hold(self, configuration: Configuration) -> None:
        """A trial is in flight before it is measured: it is launched where it is built."""
        self._store.begin_trial(self._knowledge.device, self._knowledge.problem, configuration, self._owner)
        self._held.add(configuration)

    def release(self) -> None:
        """Nothing is in flight any more, and nothing is to blame."""
        if self._held:
            self._held.clear()
            self._store.abandon_trials(self._owner)

    @property
    def typical_seconds(self) -> float:
        """What a trial takes without building; 0 before the first."""
        return self._limits.typical_run_s

    @property
    def build_limit_s(self) -> float:
        """What a build elsewhere may take."""
        return self._limits.build_s(self.job(self._knowledge.family.baseline))

    def _measure(self, job: Job, built_before_ns: float, meanwhile: Callable[[], None] | None) -> Trial:
        limited = dataclasses.replace(
            job, build_limit_s=self._limits.build_s(job), run_limit_s=self._limits.run_s(job)
        )
        started = time.monotonic()
        if meanwhile is None:
            trial = self._worker.run(limited)
        else:
            with ThreadPoolExecutor(1) as aside:
                measuring = aside.submit(self._worker.run, limited)
                meanwhile()
                trial = measuring.result()
        if trial.measurement:
            run_s = time.monotonic() - started - trial.measurement.build_ns / 1e9
            whole = trial.measurement.build_ns + built_before_ns
            trial = dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, build_ns=whole))
            self._limits.learn(trial, max(0.0, run_s))
        return trial

    def record(self, trial: Trial, purpose: str = "search") -> Trial:
        """Store a trial. Raises StoreError, naming it."""
        knowledge = self._knowledge
        provenance = knowledge.provenance(trial.configuration)
        try:
            self._store.add_trial(knowledge.device, knowledge.problem, trial, provenance, purpose, self._owner)
        except StoreError as error:
            what = f"{trial.configuration}, {trial.state.value}"
            if trial.measurement:
                what += f", {trial.time_ns:.0f} ns"
            raise type(error)(f"{error.message}; a trial is not stored: {what}", hint=error.hint) from error
        self._held.discard(trial.configuration)
        return trial
