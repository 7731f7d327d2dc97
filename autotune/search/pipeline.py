"""Where every configuration of a search is, from its proposal to its stored trial, on one or more equal devices.

A separate device measures one configuration while others are built, on the cores that measuring leaves free. On a CPU
that is itself the device, building would disturb measuring, so the two alternate: some are built side by side, then
measured one by one.
"""

import contextlib
import dataclasses
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from queue import SimpleQueue

from autotune import tracing
from autotune.errors import WorkerError, WorkerLostError
from autotune.measure.build_pool import Builds
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, Trial, TrialState
from autotune.search.budget import Clock
from autotune.search.knowledge import Jobs, Knowledge
from autotune.search.place import Helpers, Measures, Place, Stage, Work, program_of

BATCH = 8
"""Builds in a batch where building and measuring alternate. Some builds take ten times as long as most."""
LONGEST_TURN_S = 3.0
"""Longest duration of a batch, unless that leaves fewer than LEAST_ROUNDS rounds."""
LEAST_ROUNDS = 2


class Pipeline:
    """Moves the configurations of one problem from stage to stage; it owns every `Work`.

    Every trial is stored before its worker launches the next. While a trial is stored, the worker may build the next
    job, which is launched as soon as the row is stored: not on a CPU, which the search's own computing would disturb.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        worker: Measures,
        *,
        builds: Builds | None = None,
        helpers: Helpers | None = None,
        clock: Clock | None = None,
        left_s: Callable[[], float] = lambda: math.inf,
        trials_left: Callable[[], float] = lambda: math.inf,
        is_over: Callable[[], bool] = lambda: False,
        may_follow: Callable[[], bool] = lambda: True,
    ) -> None:
        """The callables return what the budget allows now.

        They are the seconds left, which limit how long a trial may take; how many trials are left; whether nothing more
        is to be begun; and whether the next trial may begin directly after the one being measured.
        """
        self.knowledge = knowledge
        self.clock = clock or Clock()
        self.jobs = Jobs(knowledge)
        self._builds = builds
        self._helpers = helpers or Helpers()
        self._left_s, self._trials_left, self._is_over, self._may_follow = left_s, trials_left, is_over, may_follow
        self._is_cpu = knowledge.device.limits.is_cpu
        self.own = Place(worker, knowledge, self.clock, left_s)
        """The search's own device, which also measures the default, the sentinel and the finals."""
        self._others: dict[Measures, Place] = {}
        self._works: list[Work] = []
        """All that is on its way; what is built is in the order in which the builds ended."""
        self._following: Work | None = None
        """What the own worker prepares, or has launched already, after the trial before."""
        self._ended: SimpleQueue[Work] = SimpleQueue()
        """Of what is in flight, what was measured."""
        self._programs: dict[bytes, Trial] = {}
        """Trials of the own device by the program that ran."""
        self._build_seconds: deque[float] = deque(maxlen=20)
        self._goal = 0.0
        """How many to have built or in building."""
        self.propose: Callable[[], Configuration | None] = lambda: None
        """Returns what to measure next; None when nothing is left."""

    def start(self) -> None:
        """Start building before a device is free, unless that would disturb the device."""
        if self._builds is not None and not self._is_cpu:
            self._fill(min(self._trials_left() - 1, self._builds.size))

    def step(self) -> Iterator[Work]:
        """Launch something on every free device, then wait for what ends next. Yields each trial once it is stored.

        What failed to build, or runs the same program as an earlier trial, gets its trial without being launched.
        Raises what ended a trial on the own device, and what is not a helper's fault, such as StoreError.
        """
        is_alone = self.has_following or not (len(self._helpers) or self.is_at_work)
        for place in [self.own] if is_alone else self._free_places():
            left = self._trials_left() - len(self._running)
            if not self.has_following and (left <= 0 or self._is_over()):
                break
            if (work := self._next(left)) is None:
                break
            if trial := self._trial_without_launch(work):
                self.own.store(work, trial)
                work.stage = Stage.STORED
                yield self._leave(work)
                continue
            if work.stage is not Stage.IN_FLIGHT:
                place.launch(work, work.job or self._job(work), is_apart=not is_alone)
            assert work.pending
            work.pending.add_done_callback(partial(self._note_end, work))
            if self._builds is not None and is_alone:
                self._go_on(work)
        yield from self._take_in()

    def drain(self) -> Iterator[Work]:
        """Yield all trials that are still being measured, as they end."""
        return self._take_in(all_of_it=True)

    def measure(self, job: Job, purpose: str = "search") -> Trial:
        """Measure one configuration on the own device, which must be free, and store the trial.

        Raises StoreError, naming the trial, when it cannot be stored.
        """
        work = Work(configuration=job.configuration, purpose=purpose)
        self.own.launch(work, job)
        return self.own.finish(work)

    def settle(self, *, is_interrupted: bool = False) -> None:
        """Await and store what was launched, after an error, which the caller raises: further ones are dropped.

        After an interruption, which must end soon, only what the threads store themselves is awaited.
        """
        self._drop_following()
        for work in self._running:
            if work.place and (work.is_apart or not is_interrupted):
                with contextlib.suppress(Exception):
                    work.place.finish(work)

    def abandon(self) -> None:
        """Drop all that is on its way. Raises StoreError; it can then be called again."""
        for work in self._works:
            if work.pending:
                work.pending.cancel()
            work.stage = Stage.DROPPED
        self._works.clear()
        self._build_seconds.clear()
        self._following = None
        for place in (self.own, *self._others.values()):
            place.release()

    def close(self) -> None:
        """Measure nothing more."""
        for place in (self.own, *self._others.values()):
            place.close()

    def release(self) -> None:
        """Prepare nothing more, and remove everything from what is in flight on the own device, blaming nothing.

        Raises StoreError; it can then be called again.
        """
        self._drop_following()
        self.own.release()

    def forget_times(self) -> None:
        """Measure again what runs the same program as an earlier trial."""
        self._programs.clear()

    @property
    def build_limit_s(self) -> float:
        """Time limit of a build in another process."""
        return self.own.limits.build_s(self._left_s())

    @property
    def is_at_work(self) -> bool:
        """Whether something is being measured, or has to be, since a helper could not measure it."""
        return bool(self._running or self._at(Stage.PROPOSED))

    @property
    def is_own_free(self) -> bool:
        return all(work.place is not self.own for work in self._running)

    @property
    def has_following(self) -> bool:
        """Whether the next trial of the own device is decided."""
        return self._following is not None

    @property
    def has_launched(self) -> bool:
        """Whether the next trial of the own device may be running already."""
        return self._following is not None and self._following.stage is Stage.IN_FLIGHT

    @property
    def _running(self) -> list[Work]:
        return [work for work in self._at(Stage.IN_FLIGHT) if work is not self._following]

    def _at(self, stage: Stage) -> list[Work]:
        return [work for work in self._works if work.stage is stage]

    # Building

    def _next(self, most: float) -> Work | None:
        """Return what to measure, built if builds run ahead, of which `most` are still wanted; None if nothing is left.

        Raises WorkerError when the device cannot be used.
        """
        if waiting := self._at(Stage.PROPOSED):
            return waiting[0]
        if self._builds is None:
            return self._proposed()
        self._goal = min(most, self._wanted(self._builds.size))
        following, self._following = self._following, None
        if following:
            return following
        if self._is_cpu:
            if not self._at(Stage.BUILT):
                self._build_some(min(most, self._batch(self._builds.size)))
        else:
            self._fill(self._goal)
            while not self._at(Stage.BUILT) and self._at(Stage.BUILDING):
                self._collect()
        return next(iter(self._at(Stage.BUILT)), None)

    def _proposed(self) -> Work | None:
        """Return a configuration unrendered, since rendering takes longest; it is done where it is built."""
        if (configuration := self.propose()) is None:
            return None
        program = program_of(self.knowledge.inputs_of(configuration), self.knowledge.plan(configuration))
        self._works.append(Work(configuration=configuration, program=program))
        return self._works[-1]

    def _wanted(self, builders: int) -> int:
        """Return how many to have built or in building.

        Enough that measuring does not wait, few enough that proposals use the latest results.
        """
        measuring_s = self.own.limits.typical_run_s
        if not self._build_seconds or not measuring_s:
            return builders
        busy = math.ceil(statistics.median(self._build_seconds) / measuring_s)
        return min(busy, builders) + 1

    def _batch(self, builders: int) -> int:
        """Return the builds of a batch: several for each builder, or all would wait for a single slow one."""
        rounds = BATCH // builders
        if self._build_seconds:
            rounds = min(rounds, int(LONGEST_TURN_S / statistics.fmean(self._build_seconds)))
        return builders * max(LEAST_ROUNDS, rounds)

    def _fill(self, wanted: float) -> None:
        while len(self._at(Stage.BUILDING)) + len(self._at(Stage.BUILT)) < wanted:
            if (configuration := self.propose()) is None:
                return
            self._build(configuration)

    def _build_some(self, wanted: float) -> None:
        """Build a batch while nothing is measured. Only configurations being built are in flight."""
        assert self._builds is not None
        proposed: Configuration | None = None
        begun = 0
        while True:
            if begun and self._is_over():
                wanted = begun
            while begun < wanted and len(self._at(Stage.BUILDING)) < self._builds.size:
                proposed = proposed or self.propose()
                if proposed is None:
                    wanted = begun
                    break
                self._build(proposed)
                proposed, begun = None, begun + 1
            if self._landed:
                self.own.end(self._landed)
            if not self._at(Stage.BUILDING):
                return
            if begun < wanted and proposed is None:  # propose now, so that no builder has to wait
                proposed = self.propose()
            self._collect()

    @property
    def _landed(self) -> list[Work]:
        """What a builder has launched, which has ended and is still recorded as in flight."""
        return [work for work in self._at(Stage.BUILT) if self.own.holds(work)]

    def _build(self, configuration: Configuration) -> None:
        assert self._builds is not None
        with tracing.span("render"):
            job = self.knowledge.build_job(configuration)
        program = program_of(job.source_hash, job.plan)
        work = Work(configuration=configuration, stage=Stage.BUILDING, source=job.source, program=program)
        if self._is_cpu:  # builders launch as well then
            self.own.hold(work, self._landed)
        limit_s = self.build_limit_s
        job = dataclasses.replace(job, launches=self._is_cpu, wants_binary=True, limit_s=limit_s)
        work.pending = self._builds.submit(job)
        self._works.append(work)

    def _collect(self, timeout_s: float | None = None) -> None:
        """Take in finished builds, waiting for one at most `timeout_s`."""
        building = {work.pending: work for work in self._at(Stage.BUILDING) if work.pending}
        with tracing.span("await build"):
            done = wait(building, timeout_s, return_when=FIRST_COMPLETED).done
        for future in [future for future in building if future in done]:
            work = building[future]
            work.build, work.pending, work.stage = future.result(), None, Stage.BUILT
            if work.build.build_ns:
                self._build_seconds.append(work.build.build_ns / 1e9)
            self._works.remove(work)
            self._works.append(work)

    def _go_on(self, running: Work) -> None:
        """While one configuration is measured, prepare the next, propose others and start building them."""
        self._prepare_following(running)
        if not self._is_cpu:
            self._fill(min(self._goal, self._trials_left() - 1))
        if not self._following:
            self._prepare_following(running)

    def _prepare_following(self, running: Work) -> None:
        """Have the own worker prepare what is built next, if that is to be launched and nothing must come before it."""
        if len(self._helpers) or self._trials_left() <= 1 or not self._may_follow():
            return
        self._collect(timeout_s=0)
        upcoming = next(iter(self._at(Stage.BUILT)), None)
        if upcoming and upcoming.program != running.program and not self._trial_without_launch(upcoming):
            self._following = upcoming
            self.own.prepare(upcoming, self._job(upcoming))

    def _drop_following(self) -> None:
        following, self._following = self._following, None
        if following and following.stage is Stage.BUILT and following.pending:
            following.pending.cancel()
            following.pending = following.job = None

    # Measuring

    def _free_places(self) -> list[Place]:
        """Return the devices that are not measuring, after dismissing a recalled helper."""
        busy = {work.place for work in self._running}
        free = [worker for worker in self._helpers.present() if self._others.get(worker) not in busy]
        self._helpers.dismiss_recalled(free)
        present = self._helpers.present()
        for gone in self._others.keys() - set(present):
            self._others.pop(gone).close()
        self._others = {worker: self._others.get(worker) or self._place(worker) for worker in present}
        return [*([self.own] if self.is_own_free else []), *(self._others[worker] for worker in free)]

    def _place(self, worker: Measures) -> Place:
        return Place(worker, self.knowledge, self.clock, self._left_s)

    def _job(self, work: Work) -> Job:
        binary = work.build.binary if work.build else b""
        return dataclasses.replace(self.jobs.trial(work.configuration), source=work.source, binary=binary)

    def _trial_without_launch(self, work: Work) -> Trial | None:
        """Return the trial of a configuration that need not run; None if it has to."""
        if work.failed_build:
            return work.failed_build
        if twin := self._programs.get(work.program):
            message = f"same as {twin.configuration}"
            return dataclasses.replace(twin, configuration=work.configuration, message=message)
        return None

    def _note_end(self, work: Work, _: object) -> None:
        self._ended.put(work)

    def _take_in(self, *, all_of_it: bool = False) -> Iterator[Work]:
        """Wait until a trial has ended, or all that are being measured, and yield those that have.

        A trial lost with a helper counts as crashed; what a helper could not measure is left to another device.
        """
        while self._running:
            work = self._ended.get()
            assert work.place
            try:
                trial = work.place.finish(work, self._following)
            except WorkerError as error:
                if work.place is self.own:
                    raise
                self._helpers.dismiss(work.place.worker)
                if isinstance(error, WorkerLostError):
                    state = TrialState.CRASHED
                    work.trial = Trial(configuration=work.configuration, state=state, message=error.message)
                    yield self._leave(work)
                else:
                    work.stage, work.job, work.pending = Stage.PROPOSED, None, None
            else:
                if work.place is self.own and trial.state is TrialState.COMPLETE:
                    self._programs[work.program] = trial
                following = self._following
                if following and following.job and not self._is_cpu:
                    self.own.launch(following, following.job)
                yield self._leave(work)
            if self._ended.empty() and not all_of_it:
                return

    def _leave(self, work: Work) -> Work:
        self._works.remove(work)
        return work
