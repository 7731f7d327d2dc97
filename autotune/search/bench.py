"""Measuring a configuration: from the job, through the worker ("in flight"), to a stored trial."""

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Self

import numpy as np

from autotune import tracing
from autotune.errors import AutotuneError, StoreError, WorkerLostError
from autotune.measure.worker import Measures, waited_s
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Trial
from autotune.process.child import Permission
from autotune.search.contract import Clock
from autotune.search.knowledge import Knowledge
from autotune.search.time_limits import LONGER_SHARE, TimeLimits
from autotune.store import new_owner

SAME_INPUTS = 32
"""Consecutive trials of a search that share their inputs. Drawing inputs, computing the reference and copying both to
the device takes longer than measuring most kernels; the finals have inputs of their own."""
SEARCH_TICKS = 250
"""Shortest length of a sample in a search: 0.4% is precise enough, since the finals decide."""
SEARCH_AGREEMENT = 0.02


class Flight:
    """One job in the worker. It begins when the one before it has ended, and awaits permission for its first launch.

    Until then it may be built there.
    """

    def __init__(self, job: Job, worker: Measures, before: Self | None, clock: Clock) -> None:
        self.job = job
        self._worker = worker
        self._before = before
        self._clock = clock
        self._permission = Permission()
        self._allowed_at = 0.0
        self._is_withdrawn = self._is_begun = False
        self._result: Future[tuple[Trial, float]] = Future()

    def start(self) -> None:
        """Begin, in a thread, unless it has begun."""
        if not self._is_begun:
            threading.Thread(target=self._fly, daemon=True).start()
            self._is_begun = True  # only if the thread has started; otherwise `result` runs the job

    @property
    def is_allowed(self) -> bool:
        """Whether the job may have been launched."""
        return self._permission.done() and not self._permission.cancelled()

    def allow(self) -> None:
        """Permit the launch."""
        if not self._permission.done():
            self._allowed_at = self._clock()
            self._permission.set_result(None)

    def withdraw(self) -> None:
        """Forbid the launch, unless it has happened; the result is not needed."""
        self._is_withdrawn = True
        self._permission.cancel()

    def result(self) -> tuple[Trial, float]:
        """Return the trial and the seconds it took, waiting excluded; run the job here if it has not begun."""
        if not self._is_begun:
            self._is_begun = True
            self._fly()
        return self._result.result()

    def _fly(self) -> None:
        try:
            self._result.set_result(self._measured())
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            self._result.set_exception(error)

    def _measured(self) -> tuple[Trial, float]:
        if self._before:
            wait([self._before._result])
            self._before = None  # otherwise no flight would ever be freed
        if self._is_withdrawn:
            raise CancelledError
        started, waited_before_s = self._clock(), waited_s(self._worker)
        trial = self._worker.run(self.job, None if self.is_allowed else self._permission)
        took_s = self._clock() - started - (waited_s(self._worker) - waited_before_s)
        build_s = trial.measurement.build_ns / 1e9 if trial.measurement else 0.0
        return trial, took_s - max(0.0, self._allowed_at - started - build_s)


class Bench:
    """Measures configurations of one problem; every trial is stored before the next is launched.

    The ledger records a trial as in flight before it is launched: if it takes the process or the machine down, the next
    run knows which trial it was. The next job may be in the worker while a trial is stored, but is only built there.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        worker: Measures,
        left_s: Callable[[], float] = lambda: math.inf,
        clock: Clock | None = None,
    ) -> None:
        """`left_s` returns the seconds left of the budget, which limit how long a trial may take."""
        self._left_s = left_s
        self.clock = clock or Clock()
        self.knowledge = knowledge
        self._store = store = knowledge.store
        self._worker = worker
        self._owner = new_owner(getattr(worker, "holder", None))  # only a worker of a service has a holder
        checkup = store.checkup(knowledge.device)
        self._limits = TimeLimits(checkup.program_s if checkup else 0.0)
        self._draw = np.random.default_rng()
        self._shared_seed = 0
        self._seed_uses = 0
        self._held: set[Configuration] = set()
        """Configurations that may be in flight in the ledger; removed only when the database has confirmed it."""
        self._latest: Flight | None = None
        """The flight that has the worker, or had it last."""
        self._following: Flight | None = None
        self._is_shared = knowledge.device.limits.is_cpu
        """Whether the device is a CPU, where this process's own computing would disturb measurements."""

    def job(self, configuration: Configuration) -> Job:
        """Return the job that measures a configuration on fresh inputs."""
        return Job(
            selector=self.knowledge.device.selector,
            problem=self.knowledge.problem,
            configuration=configuration,
            build_options=self.knowledge.profile.build_options,
            timer=self.knowledge.timer,
            seed=self.new_seed(),
        )

    def search_job(
        self,
        configuration: Configuration,
        *,
        source: str = "",
        binary: bytes = b"",
        give_up_above_ns: float = math.inf,
    ) -> Job:
        """Return the job that shows if a configuration is worth a final: shared inputs, as few samples as possible.

        `source` and `binary` are those of its build in advance.
        """
        if self._seed_uses % SAME_INPUTS == 0:
            self._shared_seed = self.new_seed()
        self._seed_uses += 1
        return dataclasses.replace(
            self.job(configuration),
            seed=self._shared_seed,
            min_sample_ticks=SEARCH_TICKS,
            agreement=SEARCH_AGREEMENT,
            source=source,
            binary=binary,
            give_up_above_ns=give_up_above_ns,
        )

    def new_seed(self) -> int:
        """Return the seed of inputs that no trial has used."""
        return int(self._draw.integers(2**31))

    def run(
        self, job: Job, purpose: str, built_before_ns: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> Trial:
        """Measure and store a trial. Raises StoreError, naming the trial, when it cannot be stored.

        `built_before_ns` is the time spent on building it in advance elsewhere. `meanwhile` is called while the worker
        measures, and may pass the next job to `follow`; an exception that it raises is raised once the trial is stored.
        """
        try:
            flight = self._take_off(job)
            try:
                if meanwhile:
                    flight.start()
                    meanwhile()
            except Exception:
                self._withdraw()
                self._land(flight, purpose, built_before_ns)
                raise
            return self._land(flight, purpose, built_before_ns)
        except WorkerLostError as error:
            self._held.clear()  # never released: what cannot be recorded now is quarantined by the next run
            self._store.lose_trials(self._owner, error.message)
            raise
        except BaseException:
            # An orderly end, by Ctrl-C or an error: the configuration is not to blame. If the database fails, it stays
            # in flight.
            with contextlib.suppress(StoreError):
                self.release()
            raise

    def follow(self, job: Job) -> None:
        """Send the next job to the worker, so that it is built there while the trial before it is stored."""
        self._following = self._latest = self._flight(job)
        self._following.start()

    @property
    def following(self) -> Job | None:
        """The next job, if it is in the worker already."""
        return self._following.job if self._following else None

    @property
    def has_launched(self) -> bool:
        """Whether the next job may have been launched already."""
        return self._following is not None and self._following.is_allowed

    def land_launched(self) -> None:
        """Await and store the trial of the next job if it may have been launched, as when something else failed."""
        flight = self._following
        if flight is not None and flight.is_allowed:
            self._following = None
            with contextlib.suppress(AutotuneError):
                self._land(flight, "search", 0.0)

    def hold(self, configuration: Configuration, landed: Sequence[Configuration] = ()) -> None:
        """Record a configuration as in flight before it is measured or a builder launches it; remove those `landed`."""
        self._held.add(configuration)  # first, since a connection may break after the database has done its work
        with tracing.span("ledger: in flight"):
            self._store.begin_trial(self.knowledge.device, self.knowledge.problem, configuration, self._owner, landed)
        self._held.difference_update(landed)

    def land(self, landed: Sequence[Configuration]) -> None:
        """Remove configurations, which are not to blame, from those in flight."""
        with tracing.span("ledger: landed"):
            self._store.land_trials(self.knowledge.device, self.knowledge.problem, landed, self._owner)
        self._held.difference_update(landed)

    def release(self) -> None:
        """Remove everything from what is in flight, blaming nothing. Raises StoreError; it can then be called again."""
        self._withdraw()
        if self._held:
            self._store.abandon_trials(self._owner)
            self._held.clear()

    def _withdraw(self) -> None:
        if self._following:
            self._following.withdraw()
            self._following = None

    @property
    def typical_seconds(self) -> float:
        """Typical duration of a trial without building; 0 before the second."""
        return self._limits.typical_run_s

    @property
    def trial_seconds(self) -> float:
        """Typical duration of a trial with building; 0 before the second."""
        return self._limits.typical_s

    def wait_longer(self) -> None:
        """Let the next trial take most of the time left, as long as none has completed."""
        self._limits.first_share = LONGER_SHARE

    def lift_limits(self) -> None:
        """Let trials take as long as their jobs allow, whatever is left of the budget."""
        self._limits.are_lifted = True

    @property
    def fresh_inputs_seconds(self) -> float:
        """Additional duration of a trial whose inputs are drawn and not kept from an earlier one."""
        return self._limits.fresh_inputs_s

    @property
    def build_limit_s(self) -> float:
        """Time limit of a build in another process."""
        return self._limits.build_s(self._left_s())

    def _flight(self, job: Job) -> Flight:
        left_s = self._left_s()
        build_s, run_s = self._limits.build_s(left_s), self._limits.run_s(job, left_s)
        limited = dataclasses.replace(job, build_limit_s=build_s, run_limit_s=run_s)
        return Flight(limited, self._worker, self._latest, self.clock)

    def _take_off(self, job: Job) -> Flight:
        """Record the job as in flight in the ledger, and allow its launch."""
        if job.configuration not in self._held:
            self.hold(job.configuration)
        flight, self._following = self._following, None
        if flight is None:
            flight = self._latest = self._flight(job)
        assert flight.job.configuration == job.configuration
        flight.allow()
        return flight

    def _land(self, flight: Flight, purpose: str, built_before_ns: float) -> Trial:
        """Await the trial and store it."""
        with tracing.span("await worker"):
            trial, took_s = flight.result()
        trial = dataclasses.replace(trial, configuration=flight.job.configuration)  # shared by all that keep it
        if trial.measurement:
            run_s = took_s - trial.measurement.build_ns / 1e9
            whole = trial.measurement.build_ns + built_before_ns
            trial = dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, build_ns=whole))
            self._limits.learn(trial, max(0.0, run_s))
        return self.record(trial, purpose)

    def record(self, trial: Trial, purpose: str = "search") -> Trial:
        """Store a trial, and record the next job as in flight. Raises StoreError, naming the trial."""
        knowledge = self.knowledge
        following = self.following.configuration if self.following else None
        provenance = knowledge.provenance(trial.configuration)
        try:
            with tracing.span("ledger: trial"):
                self._store.add_trial(
                    knowledge.device, knowledge.problem, trial, provenance, purpose, self._owner, following
                )
        except StoreError as error:
            what = f"{trial.configuration}, {trial.state.value}"
            if trial.measurement:
                what += f", {trial.time_ns:.0f} ns"
            raise type(error)(f"{error.message}; this trial was not stored: {what}", hint=error.hint) from error
        self._held.discard(trial.configuration)
        if self._following:
            self._held.add(self._following.job.configuration)
            if not self._is_shared:
                self._following.allow()
        return trial
