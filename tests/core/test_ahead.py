"""The pipeline on one device: what is built when, what is measured of it, and what an end leaves behind."""

import dataclasses
import math
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError, WorkerError, WorkerLostError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure import build_pool
from autotune.measure.build_pool import BuilderPool, builders_for
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Outcome
from autotune.model.plan import Plan
from autotune.model.trial import Build, BuildJob, BuildState, Job, Request, Trial, TrialState
from autotune.propose.study import RowStudy
from autotune.search import finals, task
from autotune.search.knowledge import Jobs, Knowledge
from autotune.search.one_problem import ProblemSearch, Tuning
from autotune.search.pipeline import BATCH, Pipeline
from autotune.search.place import Background, Stage, Work
from autotune.search.proposals import Proposals
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from factories import INVENTED_GPU as GPU
from factories import Recorder, evil
from fakes import FakeBuilds, FakeWorker
from invented_clock import Clock
from searches import PROBLEM, search
from waiting import HANG_S, join, wait_for

CPU = dataclasses.replace(GPU, slug="pocl-invented", family="cpu", limits=dataclasses.replace(GPU.limits, is_cpu=True))


def run(
    store: Store,
    builds: FakeBuilds | None,
    device: Device = GPU,
    trials: int = 20,
    worker: FakeWorker | None = None,
    **options: Any,
) -> tuple[Outcome, Recorder, FakeWorker]:
    recorder, worker = Recorder(), worker or FakeWorker(lambda _: 1000.0)
    outcome = search(store, worker, trials, device=device, recorder=recorder, builds=builds, **options)
    return outcome, recorder, worker


class Still(Clock):
    """Goes on by what runs take only."""

    def __call__(self) -> float:
        return self.now


class Scene:
    """A pipeline that is fed with proposals, and of which each step learns."""

    def __init__(
        self,
        store: Store,
        device: Device,
        builds: FakeBuilds | None,
        outcome: Callable[[Job], float | TrialState] = lambda _: 1000.0,
        *,
        algorithm: str = "microtile",
        run_s: float = 0.0,
        **budget: Callable[[], Any],
    ) -> None:
        """Each run takes `run_s` on an invented clock; `budget` are callables of the pipeline."""
        self.clock = Still()
        self.knowledge = Knowledge(device, PROBLEM, store)
        space = SearchSpace(FAMILY, PROBLEM, device.limits, algorithms=[algorithm])
        self.proposals = Proposals(self.knowledge, space, seed=0)
        self.proposed: list[Configuration] = []

        def measured(job: Job) -> float | TrialState:
            self.clock.now += run_s
            return outcome(job)

        self.worker = FakeWorker(measured)
        self.pipeline = Pipeline(self.knowledge, self.worker, builds=builds, clock=self.clock, **budget)  # type: ignore[arg-type]
        self.pipeline.propose = self.propose

    def propose(self) -> Configuration | None:
        configuration = self.proposals.next()
        self.proposed += filter(None, [configuration])
        return configuration

    def step(self) -> list[Work]:
        works = []
        for work in self.pipeline.step():
            assert work.trial and work.stage is Stage.STORED
            self.proposals.tell(work.trial)
            works.append(work)
        return works


def test_what_is_built_first_is_measured_first_while_others_are_built(store: Store) -> None:
    builds = FakeBuilds(3, ends=lambda number: number in (1, 3))
    scene = Scene(store, GPU, builds, may_follow=lambda: False)
    [first] = scene.step()
    assert first.configuration == scene.proposed[1] and scene.worker.measured == [first.configuration]
    assert len(builds.jobs) == 4, "one for each process before anything is known, besides what is measured"
    assert not any(job.launches for job in builds.jobs), "a launch could disturb what is being measured"
    assert all(job.wants_binary for job in builds.jobs), "or it would be built once more where it is measured"
    [second] = scene.step()
    assert second.configuration == scene.proposed[3]
    assert [future.done() for future in builds.futures[:4]] == [False, True, False, True], "others go on meanwhile"


def test_the_next_is_proposed_while_one_is_measured(store: Store) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def stuck(_: Job) -> float:
        begun.set()
        assert goes_on.wait(HANG_S)
        return 1000.0

    def submit(job: BuildJob) -> Any:
        if len(builds.jobs) == 2:  # the third, of two builders
            assert begun.wait(HANG_S)
            goes_on.set()
        return FakeBuilds.submit(builds, job)

    builds = FakeBuilds(2)
    builds.submit = submit  # type: ignore[method-assign]
    scene = Scene(store, GPU, builds, stuck, run_s=1e-4, trials_left=lambda: 4)
    assert len(scene.step()) == 1, "it ends only as another is built"


def test_no_more_is_built_than_is_going_to_be_measured(store: Store) -> None:
    builds = FakeBuilds(8)
    scene = Scene(store, GPU, builds, trials_left=lambda: 5 - len(scene.worker.jobs))
    while scene.step():
        pass
    assert len(builds.jobs) == len(scene.worker.jobs) == 5


@pytest.mark.parametrize(("run_s", "in_hand"), [(1.0, 2), (0.0004, 4), (1e-9, 9)])
def test_no_more_is_built_ahead_than_measuring_can_use(store: Store, run_s: float, in_hand: int) -> None:
    builds = FakeBuilds(8)
    scene = Scene(store, GPU, builds, run_s=run_s, may_follow=lambda: False)
    for _ in range(30):
        assert scene.step()
    assert len(builds.jobs) - len(scene.worker.jobs) == in_hand, "builds of 1 ms"


def test_a_processor_takes_turns_between_building_and_measuring(store: Store) -> None:
    builds, left = FakeBuilds(2), [math.inf]
    scene = Scene(store, CPU, builds, run_s=1.0, trials_left=lambda: left[0])
    for turn in range(1, 3):
        for _ in range(BATCH):
            assert scene.step()
            assert len(builds.jobs) == turn * BATCH, "nothing is built until all that was built is measured"
    assert all(job.launches for job in builds.jobs)
    left[0] = 3
    assert scene.step()
    assert len(builds.jobs) == 2 * BATCH + 3, "no more than are going to be asked for"


def test_what_is_launched_while_it_is_built_is_in_flight(store: Store) -> None:
    flights: list[int] = []

    def seen(_: BuildJob) -> BuildState:
        flights.append(len(store.in_flight()))
        return BuildState.BUILT

    def measured(job: Job) -> float:
        assert [flight.configuration for flight in store.in_flight()] == [job.configuration], "builds have landed"
        return 1000.0

    over = [False]
    scene = Scene(store, CPU, FakeBuilds(2, seen), measured, is_over=lambda: over[0], may_follow=lambda: False)
    assert scene.step()
    assert len(flights) == BATCH and set(flights) == {1, 2}, "only what is being built"
    assert store.in_flight() == []
    scene.pipeline.abandon()
    assert store.in_flight() == []


def test_no_more_builds_of_a_batch_are_begun_when_the_search_is_to_end(store: Store) -> None:
    builds, ends = FakeBuilds(2), iter([False])
    scene = Scene(store, CPU, builds, is_over=lambda: next(ends, True))
    assert scene.step()
    assert len(builds.jobs) == 2


@pytest.mark.parametrize("device", [GPU, CPU])
def test_nothing_is_begun_of_which_none_is_left(store: Store, device: Device) -> None:
    builds = FakeBuilds(2)
    assert Scene(store, device, builds, trials_left=lambda: 0).step() == []
    assert Scene(store, device, builds, is_over=lambda: True).step() == []
    assert builds.jobs == [] and store.in_flight() == []


def test_what_has_landed_is_not_in_flight_while_the_last_of_a_turn_is_built(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = FakeBuilds(2, ends=lambda number: number < BATCH - 1)
    flights: list[list[Configuration]] = []
    land = Store.end_trials

    def landed(*arguments: Any) -> None:
        land(*arguments)
        flights.append([flight.configuration for flight in store.in_flight()])
        last = builds.futures[-1]
        if not last.done():
            last.set_result(Build(source_hash="", state=BuildState.BUILT))

    monkeypatch.setattr(Store, "end_trials", landed)
    assert Scene(store, CPU, builds, may_follow=lambda: False).step()
    assert len(builds.jobs) == BATCH
    assert [len(held) for held in flights] == [1, 0], "the one that is still being built; then none"


@pytest.mark.parametrize("device", [GPU, CPU])
def test_nothing_is_launched_that_is_not_alone_in_flight(store: Store, device: Device) -> None:
    early: list[int] = []

    class Watching(FakeWorker):
        def run(self, job: Job) -> Trial:
            held = store.in_flight()
            early.append(sum(flight.configuration != job.configuration for flight in held))
            trial = super().run(job)
            assert [flight.configuration for flight in store.in_flight()] == [job.configuration]
            return trial

    outcome, _, worker = run(store, FakeBuilds(4), device, worker=Watching(lambda _: 1000.0))
    assert outcome.new_trials == 20 and outcome.winner is not None and not outcome.failures
    assert len(set(worker.measured)) >= 20, "a trial that was not alone in flight would have ended the search"
    assert set(early) <= {0, 1}, "one more at most is in the worker before the one before is stored"


@pytest.mark.parametrize(("device", "most"), [(CPU, 5), (GPU, 6)])
def test_a_stop_waits_for_what_may_be_running_and_for_nothing_else(store: Store, device: Device, most: int) -> None:
    worker = FakeWorker(lambda _: 1000.0)
    outcome, _, _ = run(
        store, FakeBuilds(4), device, worker=worker, should_stop=lambda: len(worker.measured) >= 5, trials=50
    )
    assert not outcome.is_finished
    assert 5 <= len(worker.measured) <= most
    assert [s.trial.configuration for s in store.trials(device.slug, "gemm")] == worker.measured, "all is stored"
    assert store.in_flight() == []


def test_a_slice_ends_when_it_is_asked_to(store: Store) -> None:
    """But for one trial, which may follow at once on a device of its own."""
    space = SearchSpace(FAMILY, PROBLEM, GPU.limits, algorithms=["microtile"])
    tuning = Tuning(worker=FakeWorker(lambda _: 1000.0), builds=FakeBuilds(2))
    search = ProblemSearch(tuning, Request(problem=PROBLEM), Knowledge(GPU, PROBLEM, store), space)
    for _ in range(4):
        before = search.new_trials
        search.search(lambda before=before: search.new_trials - before >= 5)  # type: ignore[misc]
        assert 5 <= search.new_trials - before <= 6
    assert not list(store.in_flight(GPU.slug, GPU.driver))


def test_a_sampler_that_fails_while_a_trial_runs_does_not_take_it_along(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, calls = Proposals.next, iter(range(100))

    def fail(self: Proposals) -> Configuration | None:
        if next(calls) == 6:
            raise UsageError("as told")
        return propose(self)

    monkeypatch.setattr(Proposals, "next", fail)
    worker = FakeWorker(lambda _: 1000.0)
    with pytest.raises(UsageError, match="as told"):
        run(store, FakeBuilds(2), worker=worker)
    assert len(worker.measured) > 2
    assert [s.trial.configuration for s in store.trials(GPU.slug, "gemm")] == worker.measured
    assert store.in_flight() == []


def stored_and_in_flight(store: Store) -> tuple[list[Configuration], list[Configuration]]:
    stored = [s.trial.configuration for device in (GPU, CPU) for s in store.trials(device.slug, "gemm")]
    return stored, [flight.configuration for flight in store.in_flight()]


def test_what_may_be_running_is_awaited_and_stored(store: Store) -> None:
    scene = Scene(store, GPU, FakeBuilds(2))
    [first] = scene.step()
    assert scene.pipeline.has_launched, "the next may be running as soon as the one before is stored"
    stored, [second] = stored_and_in_flight(store)
    assert stored == [first.configuration]
    for _ in range(2):
        scene.pipeline.settle()
        assert scene.worker.measured == [first.configuration, second]
        assert stored_and_in_flight(store) == ([first.configuration, second], [])
        assert not scene.pipeline.has_following


@pytest.mark.parametrize(("error", "is_lost"), [(WorkerError("gone"), False), (WorkerLostError("gone"), True)])
def test_what_fails_while_it_is_awaited_hides_no_other_failure(store: Store, error: WorkerError, is_lost: bool) -> None:
    def outcome(_: Job) -> float:
        if scene.worker.jobs[1:]:
            raise error
        return 1000.0

    scene = Scene(store, GPU, FakeBuilds(2), outcome)
    [first] = scene.step()
    scene.pipeline.settle()
    assert stored_and_in_flight(store) == ([first.configuration], [])
    assert [q.configuration for q in store.quarantined()] == scene.worker.measured[1:] * is_lost


def test_what_is_only_prepared_is_not_awaited(store: Store) -> None:
    scene = Scene(store, CPU, FakeBuilds(2))
    [first] = scene.step()
    assert scene.pipeline.has_following and not scene.pipeline.has_launched, "this process would disturb it"
    stored, [_] = stored_and_in_flight(store)
    assert stored == scene.worker.measured == [first.configuration]
    scene.pipeline.settle()
    scene.pipeline.release()
    assert stored_and_in_flight(store) == ([first.configuration], [])
    assert scene.worker.measured == [first.configuration]


def test_what_was_prepared_and_not_launched_is_measured_later(store: Store) -> None:
    scene = Scene(store, CPU, FakeBuilds(2))
    scene.step()
    _, [second] = stored_and_in_flight(store)
    scene.pipeline.release()
    assert [work.configuration for work in scene.step()] == [second]


def test_builders_that_cannot_work_end_the_search_with_nothing_in_flight(store: Store) -> None:
    builds = FakeBuilds(2, no_device)
    with pytest.raises(WorkerError):
        run(store, builds, CPU)
    assert store.in_flight() == []


def no_device(_: BuildJob) -> BuildState:
    raise WorkerError("the device is gone")


def test_nothing_is_built_that_the_budget_does_not_cover(store: Store) -> None:
    builds = FakeBuilds(8)
    outcome, recorder, _ = run(store, builds, trials=5)
    assert outcome.new_trials == 5
    assert len(builds.jobs) == len(recorder.trials) - 1, "the default is measured without"


@pytest.mark.parametrize(
    ("built", "state"),
    [
        (BuildState.FAILED, TrialState.COMPILE_FAILED),
        (BuildState.TIMED_OUT, TrialState.TIMED_OUT),
        (BuildState.CUT_SHORT, TrialState.CUT_SHORT),
        (BuildState.CRASHED, TrialState.CRASHED),
    ],
)
def test_what_does_not_build_is_a_trial_that_is_never_run(store: Store, built: BuildState, state: TrialState) -> None:
    def outcome_of(job: BuildJob) -> BuildState:
        return built if "c1_0" in job.source else BuildState.BUILT

    outcome, recorder, worker = run(store, FakeBuilds(4, outcome_of), algorithms=["microtile"], trials=30)
    failed = [trial for trial in recorder.trials if trial.state is state]
    assert failed and all(trial.message == "as told" for trial in failed)
    assert outcome.failures == {state.value: len(failed)}
    assert not {trial.configuration for trial in failed} & set(worker.measured)
    stored = [s.trial.state for s in store.trials(GPU.slug, "gemm", PROBLEM)]
    assert stored.count(state) == len(failed)


@pytest.mark.parametrize("builders", [4, 0])
def test_a_twin_gets_the_times_of_what_was_measured(
    store: Store, monkeypatch: pytest.MonkeyPatch, builders: int
) -> None:
    plan = type(FAMILY).plan

    def without_options(family: Any, problem: GemmProblem, configuration: Configuration) -> Any:
        return dataclasses.replace(plan(family, problem, configuration), build_options=())

    monkeypatch.setattr(type(FAMILY), "plan", without_options)
    overrides = {
        "relaxed_math": ("off", "on"),
        "unroll": (4,),
        "vector_width": (4,),
        "loads": ("vload",),
        "work_group_m": (2, 4, 8),
        "work_group_n": (8, 16, 32),
    }
    space = SearchSpace(FAMILY, PROBLEM, GPU.limits, algorithms=["dot"], overrides=overrides)
    monkeypatch.setattr(task, "SearchSpace", lambda *_, **__: space)
    if not builders:
        monkeypatch.setattr(task, "render", None)  # nothing is rendered where nothing is built
    _, recorder, worker = run(store, FakeBuilds(builders) if builders else None, trials=len(space) + 5)
    twins = [trial for trial in recorder.trials if trial.message.startswith("same as dot(")]
    assert len(twins) == len(space) // 2
    assert all(trial.measurement for trial in twins)
    searched = worker.measured[: len(recorder.trials) - len(twins)]
    assert not {trial.configuration for trial in twins} & set(searched)


def test_an_end_abandons_what_is_not_built(store: Store) -> None:
    builds = FakeBuilds(4, ends=lambda number: number == 0)
    scene = Scene(store, GPU, builds)
    assert scene.step()
    scene.pipeline.abandon()
    assert all(future.cancelled() for future in builds.futures[1:])


def test_builders_are_closed_with_the_search(store: Store) -> None:
    builds = FakeBuilds(4)
    run(store, builds, trials=3)
    assert builds.is_closed


def test_closing_a_pool_ends_builds_that_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUILD_HOW", "hang")
    monkeypatch.setenv("BUILD_LOG", str(tmp_path / "log"))
    pool = BuilderPool(2, evil("builder"))
    plan = FAMILY.plan(PROBLEM, FAMILY.baseline)
    futures = [
        pool.submit(BuildJob(selector="0:0", source_hash=str(i), source="", options=(), plan=plan)) for i in range(5)
    ]
    wait_for((tmp_path / "log").exists)
    pool.close()
    assert all(future.done() for future in futures)


LOST_TWICE = """
import sys
from pathlib import Path
from autotune import child
from autotune.errors import DeviceAwayError
from autotune.model.trial import Build, BuildState

def build(job, entering):
    with Path(sys.argv[1]).open("a+") as starts:
        print("start", file=starts)
    if len(Path(sys.argv[1]).read_text().splitlines()) < 3:
        raise DeviceAwayError("the phone is gone")
    entering("build")
    return Build(source_hash=job.source_hash, state=BuildState.BUILT)

child.serve(build)
"""


@pytest.mark.parametrize("selector", ["exec:true#0:0", "0:0"])
def test_a_build_is_begun_again_where_a_link_was_lost_before(
    selector: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_pool, "LOOK_S", 0.01)
    job = BuildJob(selector=selector, source_hash="1", source="", options=(), plan=Plan(buffers=(), launches=()))
    with BuilderPool(1, (sys.executable, "-c", LOST_TWICE, str(tmp_path / "starts")), selector=selector) as pool:
        building = pool.submit(job)
        if selector == "0:0":
            with pytest.raises(WorkerError, match="the phone is gone"):
                building.result()
        else:
            assert building.result().state is BuildState.BUILT


def test_builders_fit_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    sizes = {}
    for device in (CPU, GPU):
        builds = builders_for(device, None)
        assert builds is not None
        sizes[device.family] = builds.size
        builds.close()
    assert sizes == {"cpu": 4, "gpu": 3}
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert builders_for(CPU, None) is None and builders_for(GPU, None) is None


@pytest.mark.long
def test_on_a_device_all_is_as_without(store: Store, pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finals, "MOST_SECONDS", 1.0)
    monkeypatch.setattr(Jobs, "GIVE_UP_FACTOR", math.inf)  # on a busy machine one may take long
    recorder = Recorder()
    problem = GemmProblem(m=40, n=33, k=17)
    built_soon = ["naive", "dot"]
    outcome = search(store, None, 9, problem, device=pocl, recorder=recorder, algorithms=built_soon, jobs=2)
    assert outcome.new_trials == len(recorder.trials) == 9
    assert {trial.state for trial in recorder.trials} == {TrialState.COMPLETE}
    assert all(trial.measurement and trial.measurement.build_ns > 0 for trial in recorder.trials)
    assert outcome.winner is not None and outcome.winner.is_final


def test_of_trials_that_have_ended_little_is_remembered_and_none_is_proposed_again(store: Store) -> None:
    knowledge = Knowledge(GPU, PROBLEM, store)
    space = SearchSpace(FAMILY, PROBLEM, GPU.limits, algorithms=["dot"])
    proposals = Proposals(knowledge, space, seed=0)
    proposed = set()
    for number in range(30):
        configuration = proposals.next()
        assert configuration is not None and configuration not in proposed
        proposed.add(configuration)
        trial = FakeWorker(lambda _: 1000.0).run(Job(selector="0:0", problem=PROBLEM, configuration=configuration))
        knowledge.learn(trial)
        proposals.tell(trial)
        assert isinstance(proposals._proposer, RowStudy) and not proposals._running
        [*_, last] = proposals._proposer._study.get_trials(deepcopy=False)
        assert (last.number, last.value) == (number, 1000.0)
        assert space[last.params["row"]] == configuration


def test_calls_in_the_background_keep_their_order_and_one_that_has_not_begun_can_be_cancelled() -> None:
    background, begins, made = Background(), threading.Event(), list[int]()
    first = background.submit(begins.wait)
    others = [background.submit(partial(made.append, number)) for number in range(3)]
    fails = background.submit(partial(int, "no number"))
    assert others[1].cancel()
    begins.set()
    assert first.result(HANG_S)
    with pytest.raises(ValueError, match="no number"):
        fails.result(HANG_S)
    assert made == [0, 2]


def test_the_thread_ends_with_the_pipeline(store: Store) -> None:
    before = set(threading.enumerate())
    scene = Scene(store, GPU, FakeBuilds(2))
    scene.step()
    [thread] = set(threading.enumerate()) - before
    scene.pipeline.settle()
    scene.pipeline.close()
    join(thread)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_the_next_is_prepared_after_one_has_run_and_launched_after_that_is_stored(store: Store, device: Device) -> None:
    calls: list[tuple[str, Configuration, list[Configuration], list[Configuration]]] = []

    class Logging(FakeWorker):
        def prepare(self, job: Job) -> None:
            calls.append(("prepare", job.configuration, [], []))

        def run(self, job: Job) -> Trial:
            calls.append(("run", job.configuration, *stored_and_in_flight(store)))
            return super().run(job)

    scene = Scene(store, device, FakeBuilds(2))
    worker = Logging(lambda _: 1000.0)
    scene.pipeline = Pipeline(scene.knowledge, worker, builds=FakeBuilds(2), trials_left=lambda: 2 - len(worker.jobs))
    scene.pipeline.propose = scene.propose
    first, second = (work.configuration for _ in range(2) for work in scene.step())
    assert calls == [("run", first, [], [first]), ("prepare", second, [], []), ("run", second, [first], [second])]


def test_without_a_thread_nothing_is_launched(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    worker = FakeWorker(lambda _: 1000.0)
    with pytest.raises(RuntimeError):
        run(store, FakeBuilds(2), worker=worker)
    assert worker.jobs == [] and store.in_flight() == []
