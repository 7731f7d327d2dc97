"""Proposals built in advance, on the cores that measuring leaves free.

A separate device measures one configuration while others are built. On a CPU that is itself the device, building would
disturb measuring, so the two alternate: some are built side by side, then measured one by one.
"""

import dataclasses
import hashlib
import math
import statistics
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol

from autotune import tracing
from autotune.device.processors import usable_cores
from autotune.measure.build_pool import BuilderPool
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Plan
from autotune.model.trial import Build, BuildJob, BuildState, TrialState
from autotune.search.bench import Bench
from autotune.search.proposals import Proposals

BATCH = 8
"""Builds in a batch where building and measuring alternate. Some builds take ten times as long as most."""
LONGEST_TURN_S = 3.0
"""Longest duration of a batch, unless that leaves fewer than LEAST_ROUNDS rounds."""
LEAST_ROUNDS = 2


class Builds(Protocol):
    """What a search needs of a place that builds: a pool of child processes, or a fake."""

    @property
    def size(self) -> int: ...

    def submit(self, job: BuildJob) -> Future[Build]: ...

    def close(self) -> None: ...


def builders_for(device: Device, jobs: int | None = None) -> Builds | None:
    """Return a pool of `jobs` processes, by default one for each free core; None if building ahead cannot pay off."""
    free = usable_cores() - (0 if device.limits.is_cpu else 1)
    size = free if jobs is None else jobs
    return BuilderPool(size, selector=device.selector) if size > (1 if device.limits.is_cpu else 0) else None


FAILURES = {
    BuildState.FAILED: TrialState.COMPILE_FAILED,
    BuildState.TIMED_OUT: TrialState.TIMED_OUT,
    BuildState.CRASHED: TrialState.CRASHED,
    BuildState.TOOL_FAILED: TrialState.TOOL_FAILED,
}
"""State of a trial by the state of its failed build."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A configuration to measure."""

    configuration: Configuration
    build: Build | None = None
    """None if nothing was built in advance."""
    source: str = ""
    """The source that was built."""
    program: bytes = b""
    """Equal for configurations that cannot differ in anything: same source, launches and buffers."""

    @property
    def build_ns(self) -> float:
        """Duration of the build in advance."""
        return self.build.build_ns if self.build else 0.0

    @property
    def is_failed(self) -> bool:
        """Whether the build failed."""
        return self.build is not None and self.build.state in FAILURES


class Ahead:
    """The proposals for one problem, built before they are handed out."""

    def __init__(
        self,
        proposals: Proposals,
        bench: Bench,
        builds: Builds | None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_over` is called before each build of a batch but the first."""
        self._is_over = is_over
        self._bench = bench
        self.proposals = proposals
        knowledge = bench.knowledge
        self._takes_turns = knowledge.device.limits.is_cpu
        self._task = knowledge
        self._builds = builds
        self.builds_ahead = builds is not None
        """Whether configurations are built before they are handed out."""
        self._building: dict[Future[Build], Prepared] = {}
        self._ready: deque[Prepared] = deque()
        self._build_seconds: deque[float] = deque(maxlen=20)
        self._launched: list[Configuration] = []
        """Configurations whose launch by a builder has ended, still recorded as in flight."""
        self._goal = self._most = 0.0
        """How many to have built or in building, and how many would still be requested."""

    def next(self, measuring_seconds: float, most: float = math.inf) -> Prepared | None:
        """Return a configuration to measure, whose trial is then passed to the proposals; None when there is no other.

        `measuring_seconds` is the duration of one measurement, which decides how many are built meanwhile; `most` is
        how many will still be requested. Raises WorkerError when the device cannot be used.
        """
        if self._builds is None:
            configuration = self.proposals.next()
            return None if configuration is None else self._prepared(configuration)
        self._most = most
        if self._takes_turns:
            if not self._ready:
                self._build_some(min(most, self._batch(self._builds.size)))
        else:
            self._goal = min(most, self._wanted(self._builds.size, measuring_seconds))
            self._fill(self._goal)
            while not self._ready and self._building:
                self._collect()
        return self._ready.popleft() if self._ready else None

    def start(self, most: float = math.inf) -> None:
        """Start building the first proposals before any is requested, unless that would disturb."""
        if self._builds is not None and not self._takes_turns:
            self._fill(min(most, self._builds.size))

    def go_on(self) -> None:
        """While a configuration is measured, propose and start the next builds, unless that would disturb."""
        if not self._takes_turns:
            self._fill(min(self._goal, self._most - 1))

    @property
    def upcoming(self) -> Prepared | None:
        """The configuration handed out after the one being measured, if it is built."""
        self._collect(timeout_s=0)
        if not self._ready or self._most <= 1 or self._ready[0].is_failed:
            return None
        return self._ready[0]

    def abandon(self) -> None:
        """Drop what is not built yet."""
        for future in self._building:
            future.cancel()
        self._building.clear()
        self._bench.release()

    def _wanted(self, builders: int, measuring_seconds: float) -> int:
        """Return how many to have built or in building.

        Enough that measuring does not wait, few enough that proposals use the latest results.
        """
        if not self._build_seconds or not measuring_seconds:
            return builders
        busy = math.ceil(statistics.median(self._build_seconds) / measuring_seconds)
        return min(busy, builders) + 1

    def _batch(self, builders: int) -> int:
        """Return the builds of a batch: several for each builder, or all would wait for a single slow one."""
        rounds = BATCH // builders
        if self._build_seconds:
            rounds = min(rounds, int(LONGEST_TURN_S / statistics.fmean(self._build_seconds)))
        return builders * max(LEAST_ROUNDS, rounds)

    def _fill(self, wanted: float) -> None:
        while len(self._building) + len(self._ready) < wanted:
            configuration = self.proposals.next()
            if configuration is None:
                return
            self._start(configuration)

    def _build_some(self, wanted: float) -> None:
        """Build a batch while nothing is measured. Only configurations being built are in flight."""
        assert self._builds is not None
        waiting: deque[Configuration] = deque()
        begun = 0
        while True:
            if begun and self._is_over():
                wanted = begun
            while begun < wanted and len(self._building) < self._builds.size:
                configuration = waiting.popleft() if waiting else self.proposals.next()
                if configuration is None:
                    wanted = begun
                    break
                self._start(configuration)
                begun += 1
            if self._launched:
                self._bench.end(self._launched)
                self._launched = []
            if not self._building:
                return
            if begun + len(waiting) < wanted and not waiting:  # propose now, so that no builder has to wait
                waiting.extend(filter(None, [self.proposals.next()]))
            self._collect()

    def _start(self, configuration: Configuration) -> None:
        assert self._builds is not None
        if self._takes_turns:  # builders launch as well then
            self._bench.begin(configuration, self._launched)
            self._launched = []
        job = self._job(configuration)
        prepared = Prepared(configuration=configuration, source=job.source, program=_program(job.source_hash, job.plan))
        self._building[self._builds.submit(job)] = prepared

    def _collect(self, timeout_s: float | None = None) -> None:
        """Take in finished builds, waiting for one at most `timeout_s`."""
        with tracing.span("await build"):
            done = wait(self._building, timeout_s, return_when=FIRST_COMPLETED).done
        for future in [future for future in self._building if future in done]:
            prepared, build = self._building.pop(future), future.result()
            if build.state is BuildState.BUILT:
                self._build_seconds.append(build.build_ns / 1e9)
            self._ready.append(dataclasses.replace(prepared, build=build))
            if self._takes_turns:
                self._launched.append(prepared.configuration)

    def _prepared(self, configuration: Configuration) -> Prepared:
        """Return the configuration unrendered, since rendering takes longest; it is done where it is built."""
        inputs = self._task.inputs_of(configuration)
        return Prepared(configuration=configuration, program=_program(inputs, self._task.plan(configuration)))

    @tracing.span("render")
    def _job(self, configuration: Configuration) -> BuildJob:
        job, limit_s = self._task.build_job(configuration), self._bench.build_limit_s
        return dataclasses.replace(job, launches=self._takes_turns, wants_binary=True, limit_s=limit_s)


def _program(source: object, plan: Plan) -> bytes:
    """Return a digest of source, launches and buffers, equal if nothing that runs differs; every trial keeps one."""
    return hashlib.sha256(repr((source, plan.launches, plan.buffers)).encode()).digest()
