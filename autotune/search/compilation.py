"""Building without running: what the driver's compiler makes of a search space, and the ledger of builds.

Configurations that render to the same text with the same options share one build, whatever their work-group and their
problem; a source that the ledger knows under the same driver is not built again.
"""

import hashlib
import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Self

from autotune.device.processors import usable_cores
from autotune.device.profile import find_profile
from autotune.errors import BuildError
from autotune.kernels import find_family
from autotune.kernels.render import names_read, provenance_now, render
from autotune.measure.build_pool import BUILDER, BuilderPool
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildJob, BuildState
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace
from autotune.store import ExampleBuild, Store

STORE_EVERY_S = 2.0
STORE_AT_ONCE = 256
TELL_EVERY = 1000
"""Configurations between two progress reports while nothing has to be built."""


# Stored builds of a configuration


class Sources:
    """The source to which each configuration of a family renders, under the build options of one device."""

    def __init__(self, family: KernelFamily, options: Sequence[str]) -> None:
        self._family = family
        self._options = tuple(options)
        self._hashes: dict[object, str] = {}

    def inputs_of(self, configuration: Configuration, plan: Plan) -> tuple[object, ...]:
        """Return everything that source and options depend on: where it is equal, the program is the same."""
        read = names_read(self._family, configuration.algorithm)
        values = {**dict(configuration.values), **dict(plan.template_values)}
        seen = tuple(sorted((name, value) for name, value in values.items() if name in read))
        return configuration.algorithm, plan.build_options, seen

    def hash_of(self, configuration: Configuration, plan: Plan) -> str:
        """Return 16 hexadecimal digits, a hash over source and options; equal inputs are rendered only once."""
        key = self.inputs_of(configuration, plan)
        if key not in self._hashes:
            self._hashes[key] = self.job("", configuration, plan).source_hash
        return self._hashes[key]

    def job(self, selector: str, configuration: Configuration, plan: Plan, *, launches: bool = False) -> BuildJob:
        """Return the build job of a configuration on the device with this selector; `launches` as in BuildJob."""
        options = (*self._options, *plan.build_options)
        source = self._render(configuration, plan)
        digest = hashlib.sha256("\0".join([*options, source]).encode()).hexdigest()[:16]
        return BuildJob(
            selector=selector, source_hash=digest, source=source, options=options, plan=plan, launches=launches
        )

    def _render(self, configuration: Configuration, plan: Plan) -> str:
        try:
            return render(self._family, configuration, plan)
        except BuildError as error:
            # Every compiler rejects this line, so an error in a template is counted like any other build error.
            return f"#error {' '.join(error.message.split())}\n"


class Unfit:
    """Configurations that are not worth running according to known builds: ``configuration in unfit``.

    They did not build, cannot be launched with their work-group, or spill registers.
    """

    def __init__(self, device: Device, problem: Problem, builds: Mapping[str, Build]) -> None:
        """`builds` are the builds for the device and its driver, by source hash."""
        self._family = find_family(problem.family)
        self._problem = problem
        self._limits = device.limits
        self._builds = builds
        self._sources = Sources(self._family, find_profile(device).build_options)

    def __contains__(self, configuration: Configuration) -> bool:
        if not self._builds:
            return False
        plan = self._family.plan(self._problem, configuration)
        build = self._builds.get(self._sources.hash_of(configuration, plan))
        if build is None:
            return False
        return (
            build.state is not BuildState.BUILT
            or spills(build, self._limits)
            or is_limited(build, work_items_of_group(plan))
        )


def spills(build: Build, limits: DeviceLimits) -> bool:
    """Return whether private memory shows that registers did not suffice; on a CPU it is memory like any other."""
    return build.private_memory_bytes > 0 and not limits.is_cpu


def is_limited(build: Build, work_items: int) -> bool:
    """Return whether the kernel cannot be launched with work-groups of `work_items`."""
    return 0 < build.work_group_limit < work_items


def work_items_of_group(plan: Plan) -> int:
    """Return the work-items of the largest work-group of a plan; 0 where the driver chooses every local_size."""
    return max((math.prod(launch.local_size) for launch in plan.launches if launch.local_size), default=0)


# Building a search space


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
    family = find_family(problem.family)
    names = [family.algorithm(name).name for name in extent.algorithms] or [a.name for a in family.algorithms]
    reports = []
    with BuilderPool(extent.jobs or usable_cores(), command) as pool, _Ledger(store, device) as ledger:
        for name in dict.fromkeys(names):
            if should_stop():
                break
            compilation = _Compilation(device, problem, name, pool, ledger)
            reports.append(compilation.run(extent, listener, should_stop))
    return Report(
        device=device,
        problem=problem,
        algorithms=tuple(reports),
        seconds=time.monotonic() - started,
        is_finished=not should_stop(),
    )


class _Compilation:
    """Compilation of one algorithm: the configurations seen, and the sources being built for them."""

    def __init__(self, device: Device, problem: Problem, algorithm: str, pool: BuilderPool, ledger: "_Ledger") -> None:
        self._device = device
        self._problem = problem
        self._algorithm = algorithm
        self._pool = pool
        self._ledger = ledger
        self._family = find_family(problem.family)
        self._profile = find_profile(device)
        self._sources = Sources(self._family, self._profile.build_options)
        self._seen: Counter[tuple[str, int]] = Counter()
        """Number of configurations by source hash and work-items of their work-group."""
        self._pending: dict[Future[Build], Configuration] = {}
        self._hashes: set[str] = set()
        self._news: list[Build] = []

    def run(
        self, extent: Extent, listener: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> AlgorithmReport:
        overrides = self._profile.overrides_for(self._family.name)
        space = SearchSpace(
            self._family, self._problem, self._device.limits, algorithms=[self._algorithm], overrides=overrides
        )
        drawn = _draw(len(space), extent)

        def tell(seen: int) -> None:
            listener(self._progress(len(drawn), seen))

        tell(0)
        for number, configuration in enumerate(space.configurations(drawn), 1):
            if should_stop():
                break
            self._consider(configuration)
            is_full = len(self._pending) >= 2 * self._pool.size
            if is_full:
                self._collect(wait(self._pending, return_when=FIRST_COMPLETED).done)
            if is_full or number % TELL_EVERY == 0:
                tell(number)
        self._collect(wait(self._pending).done)
        tell(self._seen.total())
        return self._report(len(space))

    def _consider(self, configuration: Configuration) -> None:
        plan = self._family.plan(self._problem, configuration)
        source_hash = self._sources.hash_of(configuration, plan)
        self._seen[source_hash, work_items_of_group(plan)] += 1
        if source_hash in self._hashes:
            return
        self._hashes.add(source_hash)
        if source_hash not in self._ledger.builds:
            job = self._sources.job(self._device.selector, configuration, plan)
            self._pending[self._pool.submit(job)] = configuration

    def _collect(self, done: Iterable[Future[Build]]) -> None:
        for future in done:
            configuration, build = self._pending.pop(future), future.result()
            self._news.append(build)
            self._ledger.add(build, self._problem, configuration)

    def _progress(self, total: int, seen: int) -> Progress:
        return Progress(
            problem=self._problem,
            algorithm=self._algorithm,
            configurations=total,
            seen=seen,
            known_sources=len(self._hashes) - len(self._pending) - len(self._news),
            built_sources=len(self._news),
            failed_sources=sum(build.state is not BuildState.BUILT for build in self._news),
            spilling_sources=sum(spills(build, self._device.limits) for build in self._news),
        )

    def _report(self, space_size: int) -> AlgorithmReport:
        limits, builds = self._device.limits, self._ledger.builds
        counted = [(builds[source_hash], items, n) for (source_hash, items), n in self._seen.items()]
        spilling = [(build, n) for build, _, n in counted if spills(build, limits)]
        built = [builds[h] for h in self._hashes if builds[h].state is BuildState.BUILT]
        return AlgorithmReport(
            algorithm=self._algorithm,
            space=space_size,
            configurations=self._seen.total(),
            sources=len(self._hashes),
            new_sources=len(self._news),
            states={s: sum(n for build, _, n in counted if build.state is s) for s in BuildState},
            spilling=sum(n for _, n in spilling),
            limited=sum(n for build, items, n in counted if is_limited(build, items)),
            messages=_messages((build, n) for build, _, n in counted),
            private_memory=_sum((_power_of_two(build.private_memory_bytes), n) for build, n in spilling),
            build_ns=_spread([build.build_ns for build in built]),
            binary_bytes=_spread([build.binary_bytes for build in built if build.binary_bytes]),
        )


def _draw(size: int, extent: Extent) -> Sequence[int]:
    if extent.sample is None or extent.sample >= size:
        return range(size)
    return sorted(random.Random(extent.seed).sample(range(size), extent.sample))  # noqa: S311 - no secret


def _messages(counted: Iterable[tuple[Build, int]]) -> tuple[tuple[str, int], ...]:
    """Return errors that differ in more than numbers, each with its number of configurations, most frequent first."""
    found: dict[str, tuple[str, int]] = {}
    for build, count in counted:
        if build.state is BuildState.BUILT:
            continue
        line = first_complaint(build.message)
        kind = re.sub(r"\d+", "#", line)
        text, before = found.get(kind, (line, 0))
        found[kind] = (text, before + count)
    return tuple(sorted(found.values(), key=lambda item: -item[1]))


def first_complaint(message: str) -> str:
    """Return the first line of a driver's log that reports an error, without its position in the source."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if "error:" in line), lines[0] if lines else "no message")
    return re.sub(r"^\S*?:\d+:\d+:\s*", "", line)[:200]


def _sum(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for key, count in pairs:
        total[key] += count
    return dict(sorted(total.items()))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(least=min(values), median=statistics.median(values), most=max(values))


class _Ledger:
    """Builds of one device and driver: those stored, and new ones, which are stored in batches and at the end."""

    def __init__(self, store: Store, device: Device) -> None:
        self._store = store
        self._device = device
        self.builds = store.builds(device.slug, device.driver)
        self._waiting: list[ExampleBuild] = []
        self._stored_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def add(self, build: Build, problem: Problem, configuration: Configuration) -> None:
        provenance = provenance_now(self._device, find_family(problem.family), configuration)
        self.builds[build.source_hash] = build
        self._waiting.append(
            ExampleBuild(build=build, problem=problem, configuration=configuration, provenance=provenance)
        )
        if len(self._waiting) >= STORE_AT_ONCE or time.monotonic() - self._stored_at > STORE_EVERY_S:
            self._flush()

    def _flush(self) -> None:
        self._store.add_builds(self._device, self._waiting)
        self._waiting = []
        self._stored_at = time.monotonic()
