"""Building without running: what the driver's compiler makes of a search space, and the ledger of builds.

Configurations that render to the same text with the same options share one build, whatever their work-group and their
problem; a source that the ledger knows under the same driver is not built again.
"""

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass

from autotune.device.processors import usable_cores
from autotune.measure.build_pool import BUILDER, BuilderPool
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildState
from autotune.search.task import Task, is_limited, spills, work_items_of_group
from autotune.store import ExampleBuild, Store

STORE_EVERY_S = 2.0
STORE_AT_ONCE = 256
TELL_EVERY = 1000
"""Configurations between two progress reports while nothing has to be built."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Smallest, median and largest of some numbers."""

    least: float
    median: float
    most: float


@dataclass(frozen=True, kw_only=True)
class AlgorithmReport:
    """Build results of one algorithm; numbers count configurations unless stated otherwise."""

    algorithm: str
    space: int
    """Valid configurations."""
    configurations: int
    """Those of them whose source is built or known not to build: all, a sample, or fewer when stopped."""
    sources: int
    """Distinct sources of these configurations."""
    new_sources: int
    """Sources built now; the others were known."""
    states: Mapping[BuildState, int]
    spilling: int
    limited: int
    """Configurations whose own work-group exceeds what the built kernel allows."""
    messages: tuple[tuple[str, int], ...]
    """First lines of the compiler's distinct errors, each with its configurations, most frequent first."""
    private_memory: Mapping[int, int]
    """Spilling configurations by private memory in bytes, rounded up to a power of two."""
    build_ns: Spread | None
    binary_bytes: Spread | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Build results of a search space."""

    device: Device
    problem: Problem
    algorithms: tuple[AlgorithmReport, ...]
    seconds: float
    is_finished: bool
    """False when it was stopped before the end."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one algorithm."""

    problem: Problem
    algorithm: str
    configurations: int
    """Number of configurations to look at."""
    seen: int
    known_sources: int
    """Sources whose build was in the ledger already."""
    built_sources: int
    failed_sources: int
    """Failures among the sources built now."""
    spilling_sources: int


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much of a search space to build, and with how many processes."""

    algorithms: tuple[str, ...] = ()
    """Empty for all algorithms."""
    sample: int | None = None
    """At most this many configurations of each algorithm, drawn with `seed`."""
    seed: int = 0
    jobs: int | None = None
    """Number of processes; by default one for each core."""


def compile_space(
    device: Device,
    problem: Problem,
    store: Store,
    extent: Extent,
    *,
    listener: Callable[[Progress], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    command: Sequence[str] = BUILDER,
) -> Report:
    """Build every valid configuration, or a sample, without running it; builds are stored as they complete.

    `command` starts a child process that builds. Raises ConfigurationError for an unknown algorithm, WorkerError when
    the device cannot be used.
    """
    started = time.monotonic()
    task = Task(device, problem)
    reports = []
    with BuilderPool(extent.jobs or usable_cores(), command) as pool, closing(_Ledger(store, task)) as ledger:
        for name in chosen_algorithms(task, extent):
            if should_stop():
                break
            compilation = _Compilation(Tally(task, name, ledger.builds), pool, ledger)
            reports.append(compilation.run(extent, listener, should_stop))
    return Report(
        device=device,
        problem=problem,
        algorithms=tuple(reports),
        seconds=time.monotonic() - started,
        is_finished=not should_stop(),
    )


def chosen_algorithms(task: Task, extent: Extent) -> list[str]:
    """Return the names of the algorithms to build, each once. Raises ConfigurationError for an unknown one."""
    family = task.family
    names = [family.algorithm(name).name for name in extent.algorithms] or [a.name for a in family.algorithms]
    return list(dict.fromkeys(names))


class Tally:
    """What becomes of the configurations of one algorithm that were seen so far."""

    def __init__(self, task: Task, algorithm: str, builds: Mapping[str, Build]) -> None:
        """`builds` are those known, by source hash; the caller adds to them."""
        self.task = task
        self.algorithm = algorithm
        self.space = task.space([algorithm], may_be_empty=True)
        self.waiting: Counter[str] = Counter()
        """Configurations by the hash of a source whose build is not known yet."""
        self._builds = builds
        self._seen: Counter[tuple[str, int]] = Counter()
        """Number of configurations by source hash and work-items of their work-group."""
        self._hashes: set[str] = set()
        self._new = self._failed = self._spilling = 0

    @property
    def seen(self) -> int:
        """Number of configurations seen."""
        return self._seen.total()

    def see(self, configuration: Configuration) -> str | None:
        """Count a configuration; return the hash of its source if neither source nor build has been seen before."""
        source_hash = self.task.hash_of(configuration)
        self._seen[source_hash, work_items_of_group(self.task.plan(configuration))] += 1
        is_new = source_hash not in self._hashes
        self._hashes.add(source_hash)
        if source_hash in self._builds:
            return None
        self.waiting[source_hash] += 1
        return source_hash if is_new else None

    def add(self, build: Build) -> None:
        """Count a build that has ended now."""
        del self.waiting[build.source_hash]
        self._new += 1
        self._failed += build.state is not BuildState.BUILT
        self._spilling += spills(build, self.task.device.limits)

    def progress(self, total: int, seen: int) -> Progress:
        return Progress(
            problem=self.task.problem,
            algorithm=self.algorithm,
            configurations=total,
            seen=seen,
            known_sources=len(self._hashes) - len(self.waiting) - self._new,
            built_sources=self._new,
            failed_sources=self._failed,
            spilling_sources=self._spilling,
        )

    def report(self) -> AlgorithmReport:
        limits, builds = self.task.device.limits, self._builds
        counted = [(builds[source], items, n) for (source, items), n in self._seen.items() if source in builds]
        sources = [builds[source] for source in self._hashes if source in builds]
        spilling = [(build, n) for build, _, n in counted if spills(build, limits)]
        built = [build for build in sources if build.state is BuildState.BUILT]
        private_memory: Counter[int] = Counter()
        for build, n in spilling:
            private_memory[1 << (build.private_memory_bytes - 1).bit_length()] += n
        return AlgorithmReport(
            algorithm=self.algorithm,
            space=len(self.space),
            configurations=sum(n for _, _, n in counted),
            sources=len(sources),
            new_sources=self._new,
            states={s: sum(n for build, _, n in counted if build.state is s) for s in BuildState},
            spilling=sum(n for _, n in spilling),
            limited=sum(n for build, items, n in counted if is_limited(build, items)),
            messages=_messages((build, n) for build, _, n in counted),
            private_memory=dict(sorted(private_memory.items())),
            build_ns=_spread([build.build_ns for build in built]),
            binary_bytes=_spread([build.binary_bytes for build in built if build.binary_bytes]),
        )


class _Compilation:
    """Compilation of one algorithm on this machine: its tally, and the sources being built for it."""

    def __init__(self, tally: Tally, pool: BuilderPool, ledger: "_Ledger") -> None:
        self.tally = tally
        self._pool = pool
        self._ledger = ledger
        self._pending: dict[Future[Build], Configuration] = {}

    def run(
        self, extent: Extent, listener: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> AlgorithmReport:
        tally, space = self.tally, self.tally.space
        drawn = draw(len(space), extent)
        listener(tally.progress(len(drawn), 0))
        for number, configuration in enumerate(space.configurations(drawn), 1):
            if should_stop():
                break
            self._consider(configuration)
            is_full = len(self._pending) >= 2 * self._pool.size
            if is_full:
                self._collect(wait(self._pending, return_when=FIRST_COMPLETED).done)
            if is_full or number % TELL_EVERY == 0:
                listener(tally.progress(len(drawn), number))
        self._collect(wait(self._pending).done)
        listener(tally.progress(len(drawn), tally.seen))
        return tally.report()

    def _consider(self, configuration: Configuration) -> None:
        if self.tally.see(configuration) is not None:
            self._pending[self._pool.submit(self.tally.task.build_job(configuration))] = configuration

    def _collect(self, done: Iterable[Future[Build]]) -> None:
        for future in done:
            configuration, build = self._pending.pop(future), future.result()
            self.tally.add(build)
            self._ledger.add(build, configuration)


def draw(size: int, extent: Extent) -> Sequence[int]:
    """Return the rows of a space of this size that are looked at."""
    if extent.sample is None or extent.sample >= size:
        return range(size)
    return sorted(random.Random(extent.seed).sample(range(size), extent.sample))  # noqa: S311 - no secret


def _messages(counted: Iterable[tuple[Build, int]]) -> tuple[tuple[str, int], ...]:
    """Return errors that differ in more than numbers, each with its number of configurations, most frequent first."""
    lines: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for build, count in counted:
        if build.state is not BuildState.BUILT:
            line = first_complaint(build.message)
            counts[lines.setdefault(re.sub(r"\d+", "#", line), line)] += count
    return tuple(counts.most_common())


def first_complaint(message: str) -> str:
    """Return the first line of a driver's log that reports an error, without its position in the source."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if "error:" in line), lines[0] if lines else "no message")
    return re.sub(r"^\S*?:\d+:\d+:\s*", "", line)[:200]


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(least=min(values), median=statistics.median(values), most=max(values))


class _Ledger:
    """Builds of one device and driver: those stored, and new ones, which are stored in batches and at the end."""

    def __init__(self, store: Store, task: Task) -> None:
        self._store = store
        self._task = task
        self.builds = store.builds(task.device.slug, task.device.driver)
        self._waiting: list[ExampleBuild] = []
        self._stored_at = time.monotonic()

    def add(self, build: Build, configuration: Configuration) -> None:
        problem, provenance = self._task.problem, self._task.provenance(configuration)
        self.builds[build.source_hash] = build
        self._waiting.append(
            ExampleBuild(build=build, problem=problem, configuration=configuration, provenance=provenance)
        )
        if len(self._waiting) >= STORE_AT_ONCE or time.monotonic() - self._stored_at > STORE_EVERY_S:
            self.close()

    def close(self) -> None:
        """Store the builds that wait; more can be added afterwards."""
        self._store.add_builds(self._task.device, self._waiting)
        self._waiting = []
        self._stored_at = time.monotonic()
