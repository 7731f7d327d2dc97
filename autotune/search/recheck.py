"""Earlier winners: which are out of date, and verifying and timing them again, after a change or to be sure."""

import dataclasses
import enum
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Protocol

from autotune.kernels import find_family
from autotune.kernels.render import changes
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import TrialState, Winner
from autotune.search.finals import Finals
from autotune.search.knowledge import Knowledge
from autotune.search.pipeline import Pipeline
from autotune.search.place import Measures
from autotune.store import Store

FEW = 3
"""Number of the fastest known configurations that are compared with the winner and the default."""
SLOWER_FROM = 1.1
"""Factor from which a winner is reported as slower; smaller differences occur between different days."""


class Standing(enum.Enum):
    """What became of a winner in a recheck."""

    HOLDS = "still holds"
    SLOWER = "slower"
    """Still the best, but slower than before."""
    REPLACED = "replaced"
    """Correct, but another configuration is better now, or the default is as good."""
    FAILED = "failed"
    """It no longer runs, or its result is wrong."""
    OPEN = "not measured"
    """It, or the default, took longer than its limit in a slow moment: the earlier winner stays."""


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """One problem's winner, before and after."""

    before: Winner
    after: Winner | None
    """None when nothing runs correctly, not even the default, or when that was not measured."""
    standing: Standing
    message: str = ""
    """How the winner failed, or why it was not measured."""

    @property
    def slower_by(self) -> float:
        """Time of the configuration to use now divided by that of the earlier winner; infinite if there is none."""
        return self.after.time_ns / self.before.time_ns if self.after else math.inf


class RecheckListener(Protocol):
    """Receives the events of a recheck in the order in which they happen."""

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
    """Compare the winner, the fastest few known and the default of each problem in new finals.

    The result is stored. `should_stop` is called after each trial; a problem that is broken off is not among the
    results. Raises WorkerError when the device cannot be used.
    """
    found: list[Recheck] = []
    with closing(worker or Worker()) as place:
        for number, winner in enumerate(winners, start=1):
            listener.recheck_started(winner, number, len(winners))
            family = find_family(winner.problem.family)
            with closing(family.worker()) if family.is_command else nullcontext(place) as measuring:
                result = _Rechecking(device, winner, store, measuring, should_stop).run()
            if should_stop():
                break
            found.append(result)
            listener.recheck_finished(result)
    return found


class _Rechecking:
    """Recheck of one winner."""

    def __init__(
        self, device: Device, winner: Winner, store: Store, worker: Measures, should_stop: Callable[[], bool]
    ) -> None:
        self._should_stop = should_stop
        self._knowledge = Knowledge(device, winner.problem, store)
        today = self._knowledge.family.complete(winner.configuration)
        self._winner = dataclasses.replace(winner, configuration=today)
        self._pipeline = Pipeline(self._knowledge, worker)
        self._finals = Finals(self._pipeline, should_stop)

    def run(self) -> Recheck:
        before = self._winner
        message = self._misfit(before.configuration)
        for configuration in self._candidates():
            if configuration not in self._knowledge.known and not self._should_stop():
                job = dataclasses.replace(
                    self._pipeline.jobs.fresh(configuration), give_up_above_ns=3 * self._knowledge.best_ns
                )
                self._knowledge.learn(self._pipeline.measure(job))
        cut_short = [self._knowledge.known.get(c) for c in (before.configuration, self._knowledge.default)]
        late = next((trial for trial in cut_short if trial and trial.state is TrialState.CUT_SHORT), None)
        if late:
            return Recheck(before=before, after=None, standing=Standing.OPEN, message=late.message)
        after = None if self._should_stop() else self._finals.decide(self._finals.finalists(), math.inf)
        if after is None and self._knowledge.is_sound(self._knowledge.default) and not self._should_stop():
            return Recheck(before=before, after=None, standing=Standing.OPEN, message="the default was cut short twice")
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
        """Return the winner, the default, and the fastest few, stale and current."""
        knowledge = self._knowledge
        current = [trial.configuration for trial in knowledge.ranking[:FEW]]
        wanted = [self._winner.configuration, knowledge.default, *knowledge.stale_ranking[:FEW], *current]
        return [c for c in dict.fromkeys(wanted) if not self._misfit(c)]

    def _misfit(self, configuration: Configuration) -> str:
        """Return why a configuration is outside today's search space or must not be run; empty if it may be run."""
        knowledge = self._knowledge
        if configuration in knowledge.quarantine:
            return "in quarantine, since it crashed, hung or was lost"
        return "; ".join(knowledge.family.violations(knowledge.problem, configuration, knowledge.device.limits))


@dataclass(frozen=True, kw_only=True)
class Overview:
    """State of one device in a database: what is tuned, out of date, and set aside."""

    device: str
    """Slug."""
    driver: str
    """Driver of the device on this machine, otherwise the driver that measured last."""
    problems: int
    """Number of problems that have a winner."""
    verdicts: Mapping[str, int]
    """Number of winners by the value of their verdict."""
    stale: Mapping[str, int]
    """Number of winners measured under another `driver`, `template` or `space`; one may count for several."""
    stale_problems: int
    last_measured: str
    """UTC, ISO 8601; empty when nothing was measured."""
    trials: Mapping[str, int]
    """Number of trials of searches by state."""
    repeats: int
    """Number of runs that measured a configuration again, as in finals."""
    set_aside: Mapping[str, int]
    """Number of configurations in flight and in quarantine, by these words."""


def survey(store: Store, drivers: Mapping[str, str]) -> list[Overview]:
    """Return an overview of each device by slug; `drivers` are those of this machine's devices, by slug."""
    last_drivers = {device.slug: device.driver for device in store.devices()}
    winners = store.best()
    return [
        _overview(store, slug, drivers.get(slug, driver), [w for w in winners if w.device == slug])
        for slug, driver in sorted(last_drivers.items())
    ]


def _overview(store: Store, slug: str, driver: str, winners: list[Winner]) -> Overview:
    reasons = [changes(w.provenance, find_family(w.problem.family), w.configuration, driver) for w in winners]
    counts = store.trial_counts(slug)
    set_aside = {"in flight": len(store.in_flight(slug, driver)), "in quarantine": len(store.quarantined(slug, driver))}
    return Overview(
        device=slug,
        driver=driver,
        problems=len(winners),
        verdicts=Counter(winner.verdict.value for winner in winners),
        stale=Counter(reason for found in reasons for reason in found),
        stale_problems=sum(1 for found in reasons if found),
        last_measured=max([counts.last_measured, *(winner.provenance.measured_at for winner in winners)]),
        trials=counts.by_state,
        repeats=counts.repeats,
        set_aside={word: count for word, count in set_aside.items() if count},
    )
