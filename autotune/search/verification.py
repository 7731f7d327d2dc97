"""Winners of before, verified and timed again: after a new driver or a changed template, or to be sure."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.device.profile import find_profile
from autotune.measure.worker import Measures, Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Trial, TrialState, Winner
from autotune.search.bench import Bench
from autotune.search.finals import Finals
from autotune.search.knowledge import Knowledge
from autotune.store import Store

FEW = 3
"""Of the fastest known that meet the winner and the default."""
SLOWER_FROM = 1.1
"""Times of different days differ; from this factor on it is told."""


class Standing(enum.Enum):
    """What became of a winner."""

    HOLDS = "still holds"
    SLOWER = "slower"
    """It is still the best, but takes longer than it did."""
    REPLACED = "replaced"
    """It is right, but another does better now, or the default as well."""
    FAILED = "failed"
    """It does not run any more, or not right."""


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """One problem's winner, before and after."""

    before: Winner
    after: Winner | None
    """None when nothing runs right, not even the default."""
    standing: Standing
    message: str = ""
    """How it failed."""

    @property
    def slower_by(self) -> float:
        """Factor of the time of what is to be used now over that of before."""
        return self.after.time_ns / self.before.time_ns if self.after else math.inf


class RecheckListener(Protocol):
    """Told what happens, in the order in which it happens."""

    def recheck_started(self, winner: Winner, number: int, total: int) -> None: ...

    def recheck_finished(self, recheck: Recheck) -> None: ...


def recheck(
    device: Device,
    winners: Sequence[Winner],
    store: Store,
    listener: RecheckListener,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    worker: Measures | None = None,
) -> list[Recheck]:
    """For each problem the winner, the fastest few known and the default meet again in finals.

    What holds then is stored. `should_stop` is asked after each trial; a problem broken off is not among the results.
    Raises WorkerError when the device cannot be used.
    """
    place = worker or Worker()
    found: list[Recheck] = []
    try:
        for number, winner in enumerate(winners, start=1):
            listener.recheck_started(winner, number, len(winners))
            result = _Rechecking(device, winner, store, place, should_stop).run()
            if should_stop():
                break
            found.append(result)
            listener.recheck_finished(result)
    finally:
        place.close()
    return found


class _Rechecking:
    """One winner met again."""

    def __init__(
        self, device: Device, winner: Winner, store: Store, worker: Measures, should_stop: Callable[[], bool]
    ) -> None:
        profile = find_profile(device)
        self._should_stop = should_stop
        self._knowledge = Knowledge(device, profile, winner.problem, store)
        today = self._knowledge.family.complete(winner.configuration)
        self._winner = dataclasses.replace(winner, configuration=today)
        self._bench = Bench(self._knowledge, profile, store, worker)
        self._finals = Finals(self._knowledge, self._bench, store, should_stop)

    def run(self) -> Recheck:
        before = self._winner
        message = self._misfit(before.configuration)
        for configuration in self._candidates():
            if self._should_stop():
                break
            if configuration not in self._knowledge.known:
                self._measure(configuration)
        after = None if self._should_stop() else self._finals.decide(self._finals.finalists(), math.inf)
        failure = self._knowledge.known.get(before.configuration)
        if failure is not None and failure.state is not TrialState.COMPLETE:
            message = f"{failure.state.value}: {failure.message}"
        return Recheck(before=before, after=after, standing=self._standing(after, message), message=message)

    def _standing(self, after: Winner | None, message: str) -> Standing:
        if message or after is None:
            return Standing.FAILED
        if after.configuration != self._winner.configuration:
            return Standing.REPLACED
        return Standing.SLOWER if after.time_ns > SLOWER_FROM * self._winner.time_ns else Standing.HOLDS

    def _candidates(self) -> list[Configuration]:
        """The winner, the default, the fastest few of before and of now."""
        knowledge = self._knowledge
        current = [trial.configuration for trial in knowledge.ranking[:FEW]]
        wanted = [self._winner.configuration, knowledge.default, *knowledge.stale_ranking[:FEW], *current]
        return [c for c in dict.fromkeys(wanted) if not self._misfit(c)]

    def _misfit(self, configuration: Configuration) -> str:
        """Why a configuration is none of today's search space, or not to be run; empty when it is."""
        knowledge = self._knowledge
        if configuration in knowledge.quarantine:
            return "in quarantine, since it crashed, hung or was lost"
        return "; ".join(knowledge.family.violations(knowledge.problem, configuration, knowledge.device.limits))

    def _measure(self, configuration: Configuration) -> Trial:
        job = dataclasses.replace(self._bench.job(configuration), give_up_above_ns=3 * self._knowledge.best_ns)
        trial = self._bench.run(job, "search")
        self._knowledge.learn(trial)
        return trial
