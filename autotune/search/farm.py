"""A search space that a farm builds: the sources are queued in batches, and the farm is watched until all are built.

The sources that the ledger knows, and those that are queued already, by whomever, are not queued again. So the same
command, given again or on another machine, joins the one before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.search.compilation import Extent, Progress, Report, Tally, chosen_algorithms, draw
from autotune.search.task import Task
from autotune.store import Store
from autotune.store.build_farm import BATCH, Batch, BuildTarget

LOOK_S = 1.0
"""Time between two looks at what the farm has built."""
IDLE_S = 10.0
"""Time without a builder after which `on_idle` is called."""
AT_ONCE = 1000
"""Builds that are read with one statement."""


def compile_on_farm(
    device: Device,
    problems: Sequence[Problem],
    store: Store,
    extent: Extent,
    *,
    listener: Callable[[Progress], None] = lambda _: None,
    on_idle: Callable[[], None] = lambda: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Report]:
    """Have the builders of a farm build every valid configuration, or a sample, and return what they made of it.

    `on_idle` is called once if no builder works on it. When stopped, the farm goes on with what is queued; the reports
    then hold what is built so far. Raises ConfigurationError for an unknown algorithm, StoreError, and UsageError for a
    database that a farm cannot share.
    """
    started = time.monotonic()
    work = _FarmCompilation([Task(device, problem) for problem in problems], store, extent, listener, on_idle)
    is_finished = work.queue_all(should_stop) and work.watch(should_stop)
    seconds = time.monotonic() - started
    return [
        Report(
            device=device,
            problem=task.problem,
            algorithms=tuple(tally.report() for tally in tallies),
            seconds=seconds,
            is_finished=is_finished,
        )
        for task, tallies in work.tallies.items()
    ]


class _FarmCompilation:
    """What is wanted of the farm, of all problems and algorithms."""

    def __init__(
        self,
        tasks: Sequence[Task],
        store: Store,
        extent: Extent,
        listener: Callable[[Progress], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._device = device = tasks[0].device
        self._store = store
        self._extent = extent
        self._listener = listener
        self._on_idle = on_idle
        self._targets = {
            (task, name): BuildTarget.of(device, task.family.name, name)
            for task in tasks
            for name in chosen_algorithms(task, extent)
        }
        self._backlog = store.farm.backlog(dict.fromkeys(self._targets.values()))
        self._builds = store.builds(device.slug, device.driver)
        self._wanted: dict[str, list[Tally]] = {}
        """Who waits for each source; the first has queued it."""
        self._totals: dict[Tally, int] = {}
        self._looked = self._worked = time.monotonic()
        self.tallies: dict[Task, list[Tally]] = {task: [] for task in tasks}

    def queue_all(self, should_stop: Callable[[], bool]) -> bool:
        """Queue what is not known and not queued yet; return whether that is done, rather than stopped."""
        for (task, name), target in self._targets.items():
            tally = Tally(task, name, self._builds)
            self.tallies[task].append(tally)
            if not self._queue(tally, target, should_stop):
                return False
        return True

    def _queue(self, tally: Tally, target: BuildTarget, should_stop: Callable[[], bool]) -> bool:
        drawn = draw(len(tally.space), self._extent)
        self._totals[tally] = len(drawn)
        self._tell(tally)
        batch: dict[str, int] = {}
        for row, configuration in zip(drawn, tally.space.configurations(drawn), strict=True):
            if should_stop():
                return False
            source = tally.see(configuration)
            if source is not None:
                waiting = self._wanted.setdefault(source, [])
                waiting.append(tally)
                if waiting == [tally]:
                    batch[source] = row
            if len(batch) == BATCH:
                self._add(tally, target, batch)
            if time.monotonic() - self._looked > LOOK_S:
                self._look()
                self._tell(tally)
        self._add(tally, target, batch)
        self._tell(tally)
        return True

    def _add(self, tally: Tally, target: BuildTarget, batch: dict[str, int]) -> None:
        """Queue the rows of these sources, and empty the batch."""
        if batch:
            task = tally.task
            rows, hashes = tuple(batch.values()), tuple(batch)
            limits = task.device.limits
            self._backlog.add(Batch(target=target, limits=limits, problem=task.problem, rows=rows, hashes=hashes))
            batch.clear()

    def watch(self, should_stop: Callable[[], bool]) -> bool:
        """Wait until everything queued is built; return whether it is."""
        is_queued = True
        while self._wanted and is_queued:
            if should_stop():
                return False
            is_queued = self._look()
            tallies = [tally for its in self.tallies.values() for tally in its]
            self._tell(next((tally for tally in tallies if tally.waiting), tallies[-1]))
            if self._wanted:
                time.sleep(LOOK_S)
        return not self._wanted

    def _look(self) -> bool:
        """Count what was built since the last look; return whether anything wanted is still queued."""
        look = self._backlog.look()
        now = self._looked = time.monotonic()
        for start in range(0, len(look.over), AT_ONCE):
            over = look.over[start : start + AT_ONCE]
            for source, build in self._store.builds(self._device.slug, self._device.driver, over).items():
                self._builds[source] = build
                for number, tally in enumerate(self._wanted.pop(source, ())):
                    if number:
                        del tally.waiting[source]
                    else:
                        tally.add(build)
        if look.being_built or look.over:
            self._worked = now
        elif self._wanted and now - self._worked > IDLE_S:
            self._worked = float("inf")
            self._on_idle()
        return not look.queued.isdisjoint(self._wanted)

    def _tell(self, tally: Tally) -> None:
        waiting = tally.waiting.total()
        progress = tally.progress(self._totals[tally], tally.seen - waiting)
        self._listener(replace(progress, queued_sources=len(tally.waiting)))
