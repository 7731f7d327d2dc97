"""What a search takes over from near sizes, from other devices and from published tables."""

import math
from collections.abc import Iterator

from autotune.lookup.answer import distance
from autotune.lookup.contents import shipped
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import TrialState, Winner
from autotune.propose.prior import Source
from autotune.space.family import KernelFamily
from autotune.store import Store

NEAR_PROBLEMS = 2
"""Problems of this device that are used, the nearest ones."""
SIBLINGS = 2
"""Other devices that are used, each with its nearest problem."""
MOST_ASKED = 16
"""Most other devices whose winners are read: a service may know hundreds."""
LEAST_OF_SOURCE = 8
"""Fewest trials of a problem that make a model worthwhile."""


class Neighbours:
    """The measurements nearest to one problem on one device: of other sizes, and of other devices."""

    def __init__(self, device: Device, family: KernelFamily, problem: Problem, store: Store) -> None:
        self._device, self._family, self._problem, self._store = device, family, problem, store
        winners = {w.problem: w for w in store.best(device.slug, family.name)}
        self.own = winners[problem].configuration if problem in winners else None
        """The configuration that won here before, under whatever driver and templates; None without one."""
        near = self._nearest([other for other in winners if other != problem])[:NEAR_PROBLEMS]
        self._near = [(device.slug, other, self._fastest(winners[other])) for other in near]
        self._siblings = self._on_siblings()

    @property
    def starts(self) -> list[Configuration]:
        """The winners of near problems here and on other devices, including the published ones of this family."""
        found = [*(configuration for _, _, configuration in [*self._near, *self._siblings]), *self._published()]
        return list(dict.fromkeys(found))

    @property
    def sources(self) -> list[Source]:
        """The trials of those problems that the database has; the sampler learns how far they apply."""
        found = (self._source(slug, problem) for slug, problem, _ in [*self._near, *self._siblings])
        return [source for source in found if len(source.configurations) >= LEAST_OF_SOURCE]

    def _nearest(self, problems: list[Problem]) -> list[Problem]:
        """Return the comparable ones, whatever operands are constant, nearest first."""
        plain = self._problem.plain
        comparable = [problem for problem in problems if problem.plain.is_comparable(plain)]
        return sorted(comparable, key=lambda problem: distance(problem, self._problem))

    def _on_siblings(self) -> list[tuple[str, Problem, Configuration]]:
        """Return the nearest problem of other devices in the database and its winner: devices of this family first.

        Processors and GPUs teach each other nothing.
        """
        here = self._device
        alike = (d for d in self._store.devices() if d.slug != here.slug and d.limits.is_cpu == here.limits.is_cpu)
        others = {device.slug: device for device in alike}
        ranked = sorted(others.values(), key=lambda d: (d.family != here.family, d.vendor != here.vendor, d.slug))
        found: list[tuple[str, Problem, Configuration]] = []
        for device in ranked[:MOST_ASKED]:
            winners = {w.problem: w for w in self._store.best(device.slug, self._family.name)}
            nearest = self._nearest(list(winners))[:1]
            found += [(device.slug, problem, self._fastest(winners[problem])) for problem in nearest]
            if len(found) == SIBLINGS:
                break
        return found

    def _published(self) -> Iterator[Configuration]:
        """Yield the winner of the nearest problem in each published table of this family, this device's own first."""
        tables = shipped()
        for slug in sorted(tables.slugs(), key=lambda slug: slug != self._device.slug):
            device = tables.device(slug)
            if device and device.family == self._device.family:
                entries = {
                    e.problem: e.configuration for e in tables.shelf(slug, self._family.name).read_all().values()
                }
                yield from (entries[problem] for problem in self._nearest(list(entries))[:1])

    def _fastest(self, winner: Winner) -> Configuration:
        """Return the configuration of a winner; of a provisional one, which may be the default, the fastest known."""
        source = None if winner.is_final else self._source(winner.device, winner.problem)
        if source is None or not source.configurations:
            return winner.configuration
        return min(zip(source.log_times, source.configurations, strict=True), key=lambda pair: pair[0])[1]

    def _source(self, slug: str, problem: Problem) -> Source:
        stored = self._store.trials(slug, self._family.name, problem)
        complete = [s.trial for s in stored if s.purpose == "search" and s.trial.state is TrialState.COMPLETE]
        return Source(
            name=f"{problem.label} on {slug}",
            configurations=tuple(self._family.complete(trial.configuration) for trial in complete),
            log_times=tuple(math.log(trial.time_ns) for trial in complete),
        )
