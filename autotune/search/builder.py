"""A builder of a farm: takes batches of sources for the devices of this machine, builds them and stores the builds.

Sources are built in child processes, so that a compiler that crashes costs one source. If the builder itself dies, as
when a compiler takes all memory, the others find its batches by its late heartbeat and queue their sources again, to be
built alone: by a builder that has nothing else in hand. If that dies too, the source is stored as crashed.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache

from autotune.errors import StoreError
from autotune.kernels import family_names, find_family
from autotune.measure.build_pool import BUILDER, BuilderPool
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildJob, BuildState
from autotune.search.task import Task
from autotune.space.search_space import SearchSpace
from autotune.store import ExampleBuild, Store, shared_queue
from autotune.store.build_farm import Batch, BuildTarget, Taken

BEAT_S = 3.0
"""Time between two heartbeats."""
LOOK_S = 1.0
"""Time between two looks at an empty queue."""
STORE_EVERY_S = 2.0
EXPLAIN_EVERY_S = 10.0
GUILTY = "its builder died, first with others and then with this source alone"
"""Message of a source that is stored as crashed because builders died."""


class _OtherSource(Exception):
    """This installation renders another source than the one that queued the batch."""


@dataclass(eq=False, kw_only=True)
class _Hand:
    """A batch in hand."""

    taken: Taken
    batch: Batch
    device: Device
    pending: dict[Future[Build], Configuration] = field(default_factory=dict)
    news: list[ExampleBuild] = field(default_factory=list)
    """Built, and not stored yet."""
    counts: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    stored_at: float = field(default_factory=time.monotonic)
    is_cut: bool = False
    """Whether some of its builds were called off, so that it is given back."""

    def __str__(self) -> str:
        return _label(self.batch)


class Builder:
    """Builds batches for some devices until it is stopped."""

    def __init__(
        self,
        store: Store,
        devices: Iterable[Device],
        jobs: int,
        tell: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = BUILDER,
    ) -> None:
        """Raises UsageError for a database that a farm cannot share."""
        self._store = store
        self._farm = store.farm
        self._jobs = jobs
        self._tell = tell
        self._command = command
        self._devices = {target: device for device in devices for target in _targets(device)}
        self._targets = list(self._devices)
        """Those whose batches are taken: not if this installation renders other sources for them."""
        self._hands: list[_Hand] = []
        self._is_explained: set[BuildTarget] = set()
        self._beats_at = self._looks_at = self._explains_at = 0.0
        self._beaten = self._steady_since = float("-inf")

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Build until stopped; then the running builds are awaited, and what is left is given back.

        Raises WorkerError when no child process can be started or a device cannot be used, StoreError.
        """
        with BuilderPool(self._jobs, self._command) as pool, self._leaving():
            while not should_stop():
                self._beat()
                self._fetch(pool)
                self._collect()
            for hand in self._hands:
                running = {future: its for future, its in hand.pending.items() if not future.cancel()}
                hand.is_cut, hand.pending = len(running) < len(hand.pending), running
            while any(hand.pending for hand in self._hands):
                self._beat()
                self._collect()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        finally:
            with contextlib.suppress(StoreError):  # otherwise the others find it by the late heartbeat
                for hand in list(self._hands):
                    if self._keep(hand):
                        self._farm.give_back(hand.taken)
                        self._tell(f"{hand}: given back")
                self._farm.leave()

    def _beat(self) -> None:
        """Show that this builder runs, when it is time, and see to the batches of those that do not any more."""
        now = time.monotonic()
        if now < self._beats_at:
            return
        self._beats_at = now + BEAT_S
        held = {taken.job.id: taken for taken in self._farm.beat()}
        for hand in self._hands:
            if held.pop(hand.taken.job.id, None) is None:
                self._drop(hand)
        for taken in held.values():  # taken in a transaction whose answer was lost
            self._farm.give_back(taken)
        if self._is_steady():
            for taken in self._farm.stalled(self._targets):
                self._settle(taken)
        if not self._hands and now >= self._explains_at:
            self._explains_at = now + EXPLAIN_EVERY_S
            self._explain()

    def _is_steady(self) -> bool:
        """Return whether this builder was never silent for STALLED_S in that time.

        If it was, so may the others have been, as while the database was away: they are to show themselves first.
        """
        now = time.monotonic()
        if now - self._beaten > shared_queue.STALLED_S:
            self._steady_since = now
        self._beaten = now
        return now - self._steady_since > shared_queue.STALLED_S

    def _drop(self, hand: _Hand) -> None:
        """Forget a batch that was taken away, as after this machine was suspended."""
        self._tell(f"{hand}: taken away, as this builder was silent for too long")
        self._hands = [other for other in self._hands if other is not hand]
        for future in hand.pending:
            future.cancel()

    def _settle(self, taken: Taken) -> None:
        """Queue what is left of a dead builder's batch, to be built alone; what has been alone already is guilty."""
        batch = taken.batch
        if batch is None:
            return
        left = batch.without(self._known(batch))
        device = self._device(batch)
        if left and batch.is_alone:
            with contextlib.suppress(_OtherSource):
                [(job, configuration)] = self._jobs_of(batch, set())
                guilty = Build(source_hash=job.source_hash, state=BuildState.CRASHED, message=GUILTY)
                if self._farm.keep(taken, device, [self._example(batch, configuration, guilty)], is_over=True):
                    self._tell(f"{_label(batch)}: source {job.source_hash} is marked as crashed: {GUILTY}")
        elif self._farm.keep(taken, device, [], is_over=True, again=left):
            self._tell(f"{_label(batch)}: its builder died; the {len(left)} sources left are to be built alone")

    def _explain(self) -> None:
        """Say once of each target why its batches are not taken."""
        for target, count in self._farm.waiting().items():
            if target not in self._devices and target not in self._is_explained:
                self._is_explained.add(target)
                what = f"{target.slug} {target.family} {target.algorithm}"
                self._tell(f"{what}: not taken ({count} batches): {self._reason(target)}")

    def _reason(self, target: BuildTarget) -> str:
        same = [own for own in self._devices if own.slug == target.slug]
        if not same:
            return "this machine does not offer the device"
        names = ("driver", "version", "family", "algorithm", "template_hash", "space_version")
        for name in names:
            wanted = getattr(target, name)
            offered = {str(getattr(own, name)) for own in same}
            same = [own for own in same if getattr(own, name) == wanted]
            if not same:
                return f"it needs {name.replace('_', ' ')} {wanted}, here: {', '.join(sorted(offered))}"
        raise AssertionError("an equal target is not explained")

    def _fetch(self, pool: BuilderPool) -> None:
        """Take a batch if children would soon be idle. What is to be built alone is taken when nothing is in hand."""
        is_busy = sum(len(hand.pending) for hand in self._hands) >= 2 * self._jobs
        if is_busy or time.monotonic() < self._looks_at or any(hand.batch.is_alone for hand in self._hands):
            return
        taken = self._farm.take(self._targets, alone=False)
        if taken is None and not self._hands:
            taken = self._farm.take(self._targets, alone=True)
        if taken is None:
            self._looks_at = time.monotonic() + LOOK_S
        else:
            self._begin(taken, pool)

    def _begin(self, taken: Taken, pool: BuilderPool) -> None:
        batch = taken.batch
        if batch is None:
            self._refuse(taken)
            return
        hand = _Hand(taken=taken, batch=batch, device=self._device(batch))
        known = self._known(batch)
        hand.counts["known before"] = len(known)
        self._hands.append(hand)
        try:
            for job, configuration in self._jobs_of(batch, known):
                hand.pending[pool.submit(job)] = configuration
        except _OtherSource:
            self._hands.remove(hand)
            for future in hand.pending:
                future.cancel()
            self._refuse(taken)

    def _refuse(self, taken: Taken) -> None:
        """Give back a batch that this installation would build otherwise, and take no more of its kind."""
        self._farm.give_back(taken)
        self._targets = [target for target in self._targets if not taken.job.queue.startswith(target.queue)]
        what = _label(taken.batch) if taken.batch else "a batch of another version"
        self._tell(f"{what}: not taken: this installation renders other sources for it")

    def _jobs_of(self, batch: Batch, known: "dict[str, Build] | set[str]") -> Iterator[tuple[BuildJob, Configuration]]:
        """Yield the builds of a batch that are not known. Raises _OtherSource."""
        task, space = _space(self._device(batch), batch.problem, batch.target.algorithm)
        for row, source in zip(batch.rows, batch.hashes, strict=True):
            if source not in known:
                if row >= len(space):
                    raise _OtherSource
                configuration = space[row]
                job = task.build_job(configuration)
                if job.source_hash != source:
                    raise _OtherSource
                yield job, configuration

    def _collect(self) -> None:
        """Wait a moment for builds, and store them now and then, and when a batch is over."""
        pending = {future: hand for hand in self._hands for future in hand.pending}
        if pending:
            for future in wait(pending, timeout=LOOK_S, return_when=FIRST_COMPLETED).done:
                hand = pending[future]
                configuration, build = hand.pending.pop(future), future.result()
                hand.counts[build.state.value] += 1
                hand.news.append(self._example(hand.batch, configuration, build))
        elif not self._hands:
            time.sleep(LOOK_S)
        for hand in list(self._hands):
            is_over = not hand.pending and not hand.is_cut
            if is_over or (hand.news and time.monotonic() - hand.stored_at > STORE_EVERY_S):
                self._keep(hand, is_over=is_over)

    def _keep(self, hand: _Hand, *, is_over: bool = False) -> bool:
        """Store what is new of a batch; return whether it still is in hand."""
        if not self._farm.keep(hand.taken, hand.device, hand.news, is_over=is_over):
            self._drop(hand)
            return False
        hand.news, hand.stored_at = [], time.monotonic()
        if is_over:
            self._hands.remove(hand)
            counts = ", ".join(f"{count} {name}" for name, count in hand.counts.items() if count)
            self._tell(f"{hand}: {counts}; {time.monotonic() - hand.began:.1f} s")
        return True

    def _device(self, batch: Batch) -> Device:
        """Return the device here, with the limits within which the batch was queued."""
        return replace(self._devices[batch.target], limits=batch.limits)

    def _known(self, batch: Batch) -> dict[str, Build]:
        device = self._devices[batch.target]
        return self._store.builds(device.slug, device.driver, batch.hashes)

    def _example(self, batch: Batch, configuration: Configuration, build: Build) -> ExampleBuild:
        task, _ = _space(self._device(batch), batch.problem, batch.target.algorithm)
        provenance = task.provenance(configuration)
        return ExampleBuild(build=build, problem=batch.problem, configuration=configuration, provenance=provenance)


def _targets(device: Device) -> list[BuildTarget]:
    return [
        BuildTarget.of(device, name, algorithm.name)
        for name in family_names()
        for algorithm in find_family(name).algorithms
    ]


def _label(batch: Batch) -> str:
    target = batch.target
    return f"{target.slug} {batch.problem.label} {target.algorithm}{' alone' if batch.is_alone else ''}"


@lru_cache(8)
def _space(device: Device, problem: Problem, algorithm: str) -> tuple[Task, SearchSpace]:
    task = Task(device, problem)
    return task, task.space([algorithm], may_be_empty=True)
