"""A farm for builds on PostgreSQL: builders that share a search space, die, are stopped, or have another compiler."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("procrastinate")

from autotune.cli.interrupts import STOPPED
from autotune.device import discovery
from autotune.errors import WorkerError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.build_pool import BUILDER
from autotune.model.device import Device
from autotune.model.trial import Build, BuildState, Request
from autotune.search import builder, farm
from autotune.search.builder import GUILTY, Builder
from autotune.search.compilation import Extent, Progress, Report, Tally, compile_space, draw
from autotune.search.farm import compile_on_farm
from autotune.search.task import Task
from autotune.store import Store, build_farm, shared_queue
from autotune.store.build_farm import BuildTarget
from autotune.store.job_rows import JobKind, NewJob
from databases import Server, change, rows
from factories import INVENTED_GPU as DEVICE
from factories import Run, evil
from waiting import HANG_S, wait_for

TESTS = Path(__file__).parent
EVIL = evil("builder")
PROBLEM = GemmProblem(m=64, n=64, k=64)
SAMPLE = Extent(algorithms=("microtile",), sample=60)
HASTY = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from autotune.search import builder
from autotune.store import Store, shared_queue
from factories import INVENTED_GPU
builder.BEAT_S = builder.LOOK_S = builder.STORE_EVERY_S = 0.1
shared_queue.STALLED_S = 1.0
with Store.open(sys.argv[1]) as store:
    builder.Builder(store, [INVENTED_GPU], 2, command={EVIL!r}).run()
"""
"""A builder whose heart beats faster, and that gives others up sooner."""


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (builder, "BEAT_S", 0.1),
        (builder, "LOOK_S", 0.05),
        (farm, "LOOK_S", 0.05),
        (farm, "BATCH", 10),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def shared(postgresql: str) -> Iterator[Store]:
    with Store.open(postgresql) as opened:
        yield opened


def compiled(store: Store, extent: Extent = SAMPLE, problem: GemmProblem = PROBLEM, **options: Any) -> Report:
    (report,) = compile_on_farm(DEVICE, [problem], store, extent, **options)
    return report


def queue_only(store: Store, extent: Extent = SAMPLE) -> None:
    """Queue everything, and do not watch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(farm._FarmCompilation, "watch", lambda *_: False)
        compiled(store, extent)


@contextmanager
def building(
    place: str, device: Device = DEVICE, lines: list[str] | None = None, command: Sequence[str] = EVIL
) -> Iterator[Callable[[], None]]:
    """A builder in a thread, which the function provided stops."""
    is_over = threading.Event()

    def work() -> None:
        with Store.open(place) as store:
            Builder(store, [device], 2, (lines if lines is not None else []).append, command).run(is_over.is_set)

    thread = threading.Thread(target=work)
    thread.start()

    def stop() -> None:
        is_over.set()
        thread.join()

    try:
        yield stop
    finally:
        stop()


@contextmanager
def builder_process(place: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", HASTY, place]) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(log: Path) -> Counter[str]:
    return Counter(log.read_text().split())


def entries(place: str) -> list[Any]:
    return rows(place, "SELECT status FROM procrastinate_jobs ORDER BY id")


def test_two_builders_share_a_space_and_report_what_one_machine_would(
    shared: Store, postgresql: str, log: Path, db_file: Path
) -> None:
    with Store.open(db_file) as alone:
        expected = compile_space(DEVICE, PROBLEM, alone, SAMPLE, command=EVIL)
    log.write_text("")
    lines: tuple[list[str], list[str]] = ([], [])
    told: list[Progress] = []
    queue_only(shared)
    with building(postgresql, lines=lines[0]), building(postgresql, lines=lines[1]):
        report = compiled(shared, listener=told.append)
    assert report.is_finished
    counted = report.algorithms[0].new_sources  # without what the builders were through before this was called
    assert counted <= 60
    assert report.algorithms == (dataclasses.replace(expected.algorithms[0], new_sources=counted),)
    assert set(begun(log).values()) == {1}
    assert all(any("10 built" in line for line in its) for its in lines), "both have worked"
    assert entries(postgresql) == []
    assert (told[-1].seen, told[-1].queued_sources) == (60, 0)
    assert (told[-1].built_sources, report.algorithms[0].sources) == (counted, len(begun(log)))


def test_sources_that_problems_share_are_queued_once_and_what_is_known_is_not(
    shared: Store, postgresql: str, log: Path
) -> None:
    problems = [PROBLEM, GemmProblem(m=128, n=64, k=64)]
    extent = Extent(algorithms=("naive",))
    with building(postgresql):
        first, second = compile_on_farm(DEVICE, problems, shared, extent)
        again = compiled(shared, extent)
    assert (first.algorithms[0].new_sources, second.algorithms[0].new_sources) == (1, 0)
    assert first.algorithms[0].sources == second.algorithms[0].sources == 1
    assert begun(log).total() == 1
    assert again.algorithms[0] == dataclasses.replace(first.algorithms[0], new_sources=0)


def test_the_same_command_again_joins_and_another_sample_adds_the_rest(
    shared: Store, postgresql: str, log: Path
) -> None:
    queue_only(shared)
    queued = entries(postgresql)
    assert queued
    with Store.open(postgresql) as elsewhere:
        queue_only(elsewhere)
        assert entries(postgresql) == queued
        with building(postgresql):
            wider = compiled(elsewhere, dataclasses.replace(SAMPLE, sample=90))
            joined = compiled(shared)
    assert (wider.algorithms[0].configurations, joined.algorithms[0].configurations) == (90, 60)
    assert set(begun(log).values()) == {1}


def test_a_stopped_builder_gives_back_what_it_has(shared: Store, postgresql: str, log: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("BUILD_HOW", "slow")
    monkeypatch.setattr(farm, "BATCH", 100)
    queue_only(shared)
    with building(postgresql) as stop:
        wait_for(lambda: len(begun(log)) > 4)
        stop()
        built = shared.builds(DEVICE.slug, DEVICE.driver)
        assert entries(postgresql) == [("todo",)]
        assert built.keys() == begun(log).keys()
        assert rows(postgresql, "SELECT count(*) FROM procrastinate_workers") == [(0,)]
    with building(postgresql):
        report = compiled(shared)
    assert report.algorithms[0].states[BuildState.BUILT] == 60
    assert set(begun(log).values()) == {1}


def test_the_batch_of_a_killed_builder_is_built_again_alone(
    shared: Store, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "slow")
    monkeypatch.setattr(farm, "BATCH", 100)
    extent = dataclasses.replace(SAMPLE, sample=40)
    queue_only(shared, extent)
    with builder_process(postgresql) as victim:
        wait_for(lambda: shared.builds(DEVICE.slug, DEVICE.driver))
        victim.kill()
        victim.wait()
    assert entries(postgresql) == [("doing",)]
    monkeypatch.setattr(shared_queue, "STALLED_S", 0.5)
    lines: list[str] = []
    with building(postgresql, lines=lines):
        report = compiled(shared, extent)
    (algorithm,) = report.algorithms
    assert algorithm.states[BuildState.BUILT] == 40
    assert 0 < sum(count > 1 for count in begun(log).values()) < 20, "what was not stored yet, and no more"
    left = algorithm.sources - sum("alone: 1 built" in line for line in lines)
    assert 0 < left < algorithm.sources
    assert any("its builder died" in line for line in lines)


def test_a_source_that_kills_builders_is_found_and_not_built_a_third_time(
    shared: Store, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(DEVICE, PROBLEM)
    space = task.space(["microtile"])
    extent = dataclasses.replace(SAMPLE, sample=25)
    guilty = task.hash_of(list(space.configurations(draw(len(space), extent)))[12])
    monkeypatch.setenv("BUILD_HOW", guilty)
    queue_only(shared, extent)
    for _ in range(2):
        with builder_process(postgresql) as victim:
            assert victim.wait(HANG_S) == -signal.SIGKILL
    monkeypatch.setattr(shared_queue, "STALLED_S", 0.5)
    lines: list[str] = []
    with building(postgresql, lines=lines):
        report = compiled(shared, extent)
        again = compiled(shared, extent)
    (algorithm,) = report.algorithms
    crashed = shared.builds(DEVICE.slug, DEVICE.driver, [guilty])[guilty]
    assert (crashed.state, crashed.message) == (BuildState.CRASHED, GUILTY)
    assert algorithm.states[BuildState.CRASHED] >= 1
    assert algorithm.states[BuildState.BUILT] + algorithm.states[BuildState.CRASHED] == 25
    assert begun(log)[guilty] == 2
    assert any(f"source {guilty} is marked as crashed" in line for line in lines)
    assert again.algorithms[0].new_sources == 0


def test_a_compiler_that_crashes_costs_one_source(
    shared: Store, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "crash")
    with building(postgresql):
        (algorithm,) = compiled(shared, dataclasses.replace(SAMPLE, sample=12)).algorithms
    crashed, built = algorithm.states[BuildState.CRASHED], algorithm.states[BuildState.BUILT]
    assert crashed + built == 12
    assert crashed > 0 and built > 0
    assert set(begun(log).values()) == {1}


def test_a_real_compiler_and_a_device_that_cannot_be_used(shared: Store, postgresql: str, pocl: Device) -> None:
    extent = Extent(algorithms=("naive", "dot"), sample=2)
    with building(postgresql, pocl, command=BUILDER):
        (report,) = compile_on_farm(pocl, [GemmProblem(m=8, n=8, k=8)], shared, extent)
    naive, dot = report.algorithms
    assert naive.states[BuildState.BUILT] == dot.states[BuildState.BUILT] == 2
    assert naive.build_ns is not None and naive.build_ns.least > 1e6
    queue_only(shared)
    with pytest.raises(WorkerError, match="no such device"):
        Builder(shared, [dataclasses.replace(DEVICE, selector="9:9")], 1, command=EVIL).run()
    assert set(entries(postgresql)) == {("todo",)}


def test_nobody_is_given_up_right_after_the_database_was_away(
    shared: Store, postgresql_server: Server, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both builders were silent then, and the first to return must not take away what the other one has."""
    monkeypatch.setenv("BUILD_HOW", "slow")
    monkeypatch.setattr(shared_queue, "STALLED_S", 4.0)
    queue_only(shared)
    lines: list[str] = []
    with building(postgresql, lines=lines), building(postgresql, lines=lines):
        wait_for(lambda: len(begun(log)) > 4)
        postgresql_server.stop(signal.SIGQUIT)
        time.sleep(4.5)
        postgresql_server.start()
        report = compiled(shared)
    assert report.algorithms[0].states[BuildState.BUILT] == 60
    assert not [line for line in lines if "died" in line or "taken away" in line]
    assert set(begun(log).values()) == {1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slug": "other"}, "this machine does not offer the device"),
        ({"driver": "2.0"}, "it needs driver 1.0, here: 2.0"),
        ({"version": "OpenCL 3"}, "it needs version , here: OpenCL 3"),
    ],
)
def test_another_device_or_compiler_is_left_to_others(
    shared: Store, postgresql: str, log: Path, changes: Any, reason: str
) -> None:
    queue_only(shared)
    lines: list[str] = []
    with building(postgresql, dataclasses.replace(DEVICE, **changes), lines):
        wait_for(lambda: lines)
    assert len(lines) == 1
    assert "invented-1 gemm microtile: not taken" in lines[0] and reason in lines[0]
    assert set(entries(postgresql)) == {("todo",)}
    assert begun(log) == {}


def test_other_templates_are_left_to_others(
    shared: Store, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as here:
        here.setattr(build_farm, "template_hash", lambda *_: "0123456789ab")
        queue_only(shared)
    lines: list[str] = []
    with building(postgresql, lines=lines):
        wait_for(lambda: lines)
    assert "it needs template hash 0123456789ab, here: " in lines[0]
    assert begun(log) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE procrastinate_jobs SET args = jsonb_set(args, '{hashes,1}', '\"0000000000000000\"')",
        "UPDATE procrastinate_jobs SET args = jsonb_set(args, '{rows,1}', '999999999')",
        "UPDATE procrastinate_jobs SET args = jsonb_set(args, '{limits,new}', '1')",
        "UPDATE procrastinate_jobs SET args = args - 'rows'",
        "UPDATE procrastinate_jobs SET args = jsonb_set(args, '{rows}', '[1]')",
    ],
)
def test_a_batch_that_this_version_would_build_otherwise_is_given_back(
    shared: Store, postgresql: str, log: Path, statement: str
) -> None:
    queue_only(shared, dataclasses.replace(SAMPLE, sample=10))
    change(postgresql, statement)
    lines: list[str] = []
    with building(postgresql, lines=lines):
        wait_for(lambda: any("renders other sources" in line for line in lines))
    assert set(entries(postgresql)) == {("todo",)}
    assert shared.builds(DEVICE.slug, DEVICE.driver).keys() <= begun(log).keys()


def test_what_was_taken_away_is_not_stored(shared: Store, postgresql: str, log: Path) -> None:
    queue_only(shared, dataclasses.replace(SAMPLE, sample=10))
    with Store.open(postgresql) as elsewhere:
        taken = elsewhere.farm.take([BuildTarget.of(DEVICE, "gemm", "microtile")], alone=False)
        assert taken is not None and taken.batch is not None
        elsewhere.farm.leave()
        again = taken.batch.without(set())
        assert shared.farm.stalled([taken.batch.target])[0].batch == taken.batch
        (lost,) = shared.farm.stalled([taken.batch.target])
        assert shared.farm.keep(lost, DEVICE, [], is_over=True, again=again)
        assert not shared.farm.keep(lost, DEVICE, [], is_over=True, again=again)
        assert not elsewhere.farm.keep(taken, DEVICE, [], is_over=True)
        elsewhere.farm.give_back(taken)
    assert entries(postgresql) == [("todo",)] * len(again)


def test_a_farm_whose_queue_was_emptied_says_that_it_has_not_finished(shared: Store, postgresql: str) -> None:
    told: list[Progress] = []

    def listen(progress: Progress) -> None:
        told.append(progress)
        if progress.seen == 0 and progress.queued_sources:
            change(postgresql, "DELETE FROM procrastinate_jobs")

    report = compiled(shared, listener=listen)
    assert not report.is_finished
    assert report.algorithms[0].configurations == 0


def test_who_watches_is_told_once_that_there_is_no_builder(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "IDLE_S", 0.2)
    told: list[Progress] = []
    idle: list[int] = []
    compiled(
        shared,
        listener=told.append,
        on_idle=lambda: idle.append(len(told)),
        should_stop=lambda: bool(idle) and len(told) > idle[0] + 10,
    )
    assert len(idle) == 1


def test_searches_and_builds_share_the_tables_and_not_the_entries(shared: Store, postgresql: str, log: Path) -> None:
    shared.add_device(DEVICE)
    new = NewJob(kind=JobKind.TUNE, device=DEVICE.slug, requests=(Request(problem=PROBLEM),), trials=3)
    shared.jobs.add(new)
    with building(postgresql):
        report = compiled(shared)
    assert report.is_finished
    assert shared.jobs.take(DEVICE.slug, "w1") is not None
    assert shared.farm.stalled([BuildTarget.of(DEVICE, "gemm", "microtile")]) == []


def test_a_tally_that_is_stopped_counts_what_is_known() -> None:
    tally = Tally(Task(DEVICE, PROBLEM), "naive", builds := {})
    source = tally.see(FAMILY.baseline)
    assert source is not None
    assert tally.see(FAMILY.baseline) is None
    assert tally.report().configurations == tally.report().sources == 0
    builds[source] = Build(source_hash=source, state=BuildState.BUILT)
    tally.add(builds[source])
    assert (tally.report().configurations, tally.report().new_sources) == (2, 1)


# The commands


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """This machine has the invented device and its compiler only."""
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    monkeypatch.setattr(builder, "Builder", functools.partial(Builder, command=EVIL))


QUEUE = ("compile", "--farm", "--device", "invented", "--algorithm", "microtile", "--shape", "64,64,64")


@pytest.mark.parametrize("arguments", [("builder",), ("builder", "--db", "x.sqlite"), (*QUEUE, "--db", "x.sqlite")])
def test_a_file_is_refused_and_not_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    told = run(arguments, 2).err
    assert "a farm cannot share the SQLite file" in told and "--db postgresql://user@host/database" in told
    assert list(tmp_path.iterdir()) == []


def test_processes_belong_to_builders(run: Run) -> None:
    assert "not allowed with" in run([*QUEUE, "--jobs", "2"], 2).err


@pytest.mark.usefixtures("invented")
def test_the_commands_work_together(run: Run, shared: Store, postgresql: str, log: Path, monkeypatch: Any) -> None:
    arguments = [*QUEUE, "--sample", "30", "--db", postgresql]
    monkeypatch.setattr(farm, "IDLE_S", 0.2)
    _ = shared.farm  # makes the tables
    interrupting = interrupting_once(lambda: entries(postgresql))
    stopped = run(arguments, STOPPED)
    interrupting.join()
    assert "the farm goes on with what is queued. To watch it, run the same command again:" in stopped.err
    assert "autotune compile --farm --device invented" in stopped.err
    with building(postgresql):
        watched = run(arguments)
    assert "microtile" in watched.out and "30 | " in watched.out
    queue_only(shared, dataclasses.replace(SAMPLE, seed=7))
    stopping = interrupting_once(lambda: len(begun(log)) > 35)
    built = run(["builder", "--db", postgresql, "--jobs", "2"])
    stopping.join()
    assert "building for invented-1 in 2 processes" in built.err
    assert "invented-1 64x64x64 microtile: " in built.err
    assert [slug for (slug,) in rows(postgresql, "SELECT slug FROM devices")] == ["invented-1"]


def test_what_waits_is_withdrawn_and_who_watches_is_told(
    run: Run, shared: Store, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    queue_only(shared)
    queue_only(shared, Extent(algorithms=("naive",)))
    withdraw = ["compile", "--withdraw", "--device", "invented", "--db", postgresql]
    count = len(entries(postgresql)) - 1
    assert f"withdrew {count} batches of invented-1" in run([*withdraw, "--algorithm", "microtile"]).err
    assert "withdrew 0 batches" in run([*withdraw, "--family", "reduce"]).err
    withdrawing = threading.Thread(
        target=lambda: wait_for(
            lambda: len(entries(postgresql)) > count and shared.farm.withdraw(DEVICE.slug, "gemm", ())
        )
    )
    withdrawing.start()
    told = run([*QUEUE, "--sample", "60", "--db", postgresql], 1)
    withdrawing.join()
    assert "withdrawn from the farm; the same command queues it again" in told.err


def interrupting_once(condition: Callable[[], object]) -> threading.Thread:
    """A thread that sends Ctrl-C to this process when the condition holds."""

    def work() -> None:
        wait_for(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_machine_without_the_device_queues_for_one_that_a_builder_has_shown(
    run: Run, shared: Store, postgresql: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.add_device(DEVICE)
    monkeypatch.setattr(discovery, "discover", lambda: [dataclasses.replace(DEVICE, slug="mine", name="mine")])
    with building(postgresql):
        told = run([*QUEUE, "--sample", "10", "--db", postgresql])
    assert "invented-1, driver 1.0: 64x64x64" in told.out
