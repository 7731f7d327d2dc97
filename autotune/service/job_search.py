"""The search of one problem of a job on a device: the usual search, reported as events and kept in the ledger.

It runs in a search process (`search_process.py`).
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autotune.codec import parse
from autotune.errors import AutotuneError, StoreError, WorkerError
from autotune.lookup.json_table import plain_entry, read_entry
from autotune.model.device import Device
from autotune.model.events import Event, ProblemFinished, ProblemStarted, TrialFinished
from autotune.model.trial import Winner
from autotune.search import Budget, tune
from autotune.search.place import Helpers, Measures
from autotune.search.recheck import Recheck, recheck
from autotune.service.remote.events import plain_outcome
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, JobProblem, JobState, TuningJob

_LOG = logging.getLogger(__name__)

NOTE_SPENT_S = 5.0
"""How often the time spent is written to the database."""
UNUSABLE_TRIES = 3
"""A problem fails after its device could not be used this many times."""
INSIST_S = 2.0

Publish = Callable[[str, Event | dict[str, Any] | None], None]
"""Takes the name of an event of a job and what it says; without a name, that a state has changed."""


class Stopping(Exception):
    """The service ends, or another has taken the search: trials are not waited for, and are not to blame."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """The problem to search, and the device to search it on."""

    job: TuningJob
    problem: JobProblem
    device: Device
    troubles: int = 0
    """How often a device could not be used for it."""


class Search:
    """Runs in a thread of its own; `run` returns when the outcome of the problem is in the ledger."""

    def __init__(
        self,
        errand: Errand,
        store: ServiceStore,
        publish: Publish,
        is_stopping: Callable[[], bool],
        helpers: Helpers | None = None,
    ) -> None:
        self.errand = errand
        self.is_cancelled = False
        self.is_superseded = False
        """Whether another service has taken the search, and records the outcome."""
        self.is_device_lost = False
        self.is_troubled = False
        """Whether it ended because the device, which is still there, could not be used."""
        self.helpers = helpers or Helpers()
        self._store = store
        self._publish = publish
        self._is_stopping = is_stopping
        self._began = self._noted = time.monotonic()
        self._worker: Measures | None = None
        self._trials_before = 0
        """Trials of the same job before this search, by an earlier service or on a device that was lost."""

    def run(self, worker: Measures) -> None:
        problem, self._worker = self.errand.problem, worker
        self._publish("", None)
        try:
            self.is_cancelled |= self._store.jobs.is_cancelled(self.errand.job.id)  # after it was taken
            if self.errand.job.kind is JobKind.TUNE:
                self._tune(worker)
            else:
                self._verify(worker)
        except Stopping:
            self._requeue("")
        except WorkerError as error:
            self.is_troubled = not self.is_device_lost
            if self.errand.troubles + self.is_troubled >= UNUSABLE_TRIES:
                self._end(JobState.FAILED, message=str(error))
            else:
                self._requeue(str(error))
        except StoreError as error:
            _LOG.warning("job %s waits for the database: %s", self.errand.job.id, error)
            self._requeue(str(error))
        except AutotuneError as error:
            self._end(JobState.FAILED, message=str(error))
        except Exception as error:  # noqa: BLE001 - any error is recorded in the job
            _LOG.error("job %s failed at problem %s", self.errand.job.id, problem.number, exc_info=True)
            self._end(JobState.FAILED, message=f"unexpected error: {type(error).__name__}")
        finally:
            self.helpers.close()  # also if the search never began
        self._publish("", None)

    def stop(self) -> bool:
        """Return whether the search has to end after the running trial."""
        return self.is_cancelled or self.is_superseded or self._is_stopping() or self.is_device_lost

    def _tune(self, worker: Measures) -> None:
        job, problem = self.errand.job, self.errand.problem
        self._trials_before = self._store.jobs.new_trials(job.device, problem)
        budget = Budget(
            trials=None if job.trials is None else max(0, job.trials - self._trials_before),
            seconds=None if job.seconds is None else max(1.0, problem.share_s - problem.spent_s),
        )
        outcomes = tune(
            self.errand.device,
            [problem.request],
            self._store,
            budget,
            self._report,
            algorithms=job.algorithms,
            seed=job.seed,
            should_stop=self.stop,
            worker=worker,
            helpers=self.helpers,
        )
        outcome = outcomes[0]
        if not outcome.is_finished and not self.is_cancelled:
            self._requeue("")
            return
        new_trials = self._store.jobs.new_trials(job.device, problem)
        plain = json.dumps(plain_outcome(replace(outcome, new_trials=new_trials)))
        is_failed = outcome.winner is None
        state = JobState.CANCELLED if self.is_cancelled else JobState.FAILED if is_failed else JobState.DONE
        self._end(state, outcome=plain, message=outcome.no_winner_reason)

    def _verify(self, worker: Measures) -> None:
        """Measure a winner of an uploaded table here. If it is confirmed, it is stored as measured."""
        problem, device = self.errand.problem, self.errand.device
        claimed = read_entry(device.slug, parse(problem.candidate))
        problem.request.problem.check_device(device.limits)
        results = recheck(device, [claimed], self._store, self, should_stop=self.stop, worker=worker)
        if not results:
            if self.is_cancelled:
                self._end(JobState.CANCELLED)
            else:
                self._requeue("")
            return
        result = results[0]
        outcome = {"result": result.standing.value, "winner": plain_entry(result.after) if result.after else None}
        self._end(JobState.DONE, outcome=json.dumps(outcome), message=result.message)

    def _end(self, state: JobState, *, outcome: str = "", message: str = "") -> None:
        problem = self.errand.problem
        spent_s = self._spent_s

        def note() -> None:
            self._store.jobs.spend(problem.id, spent_s)
            self._store.jobs.end(problem, state, outcome=outcome, message=message)

        self._insist(note)

    def _requeue(self, message: str) -> None:
        """Queue the problem again, to be continued here or on another device of the same name."""
        problem, spent_s = self.errand.problem, self._spent_s
        self._insist(lambda: self._store.jobs.requeue(problem, spent_s, message))

    def _insist(self, note: Callable[[], None]) -> None:
        """Retry, since a database server may be unavailable for a while; a service that ends leaves it to the next."""
        while not self.is_superseded:
            try:
                note()
            except StoreError as error:
                _LOG.warning("the database cannot be written: %s", error)
                if self._is_stopping():
                    return
                time.sleep(INSIST_S)
            else:
                return

    @property
    def _spent_s(self) -> float:
        waited_s = self._worker.waited_s if self._worker else 0.0
        return self.errand.problem.spent_s + time.monotonic() - self._began - waited_s

    def _note_spent(self) -> None:
        if time.monotonic() - self._noted >= NOTE_SPENT_S:
            self._noted = time.monotonic()
            self._store.jobs.spend(self.errand.problem.id, self._spent_s)

    def _report(self, event: Event) -> None:
        """Send an event of the search as one of the job, which has other problems and may have searched before."""
        match event:
            case ProblemStarted():
                total = sum(self.errand.job.counts.values())
                event = replace(event, number=self.errand.problem.number + 1, total=total)
            case TrialFinished():
                event = replace(event, new_trials=self._trials_before + event.new_trials)
            case ProblemFinished() if not event.outcome.is_finished:
                return
        self._publish(event.name, event)
        self._note_spent()

    def recheck_started(self, winner: Winner, number: int, total: int) -> None:  # noqa: ARG002
        self._publish("recheck_started", {"time_ns": winner.time_ns})

    def recheck_finished(self, recheck: Recheck) -> None:
        self._publish("recheck_finished", {"result": recheck.standing.value, "message": recheck.message})
