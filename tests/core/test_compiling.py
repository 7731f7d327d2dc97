"""Building without running: on PoCL, and with an invented compiler that spills, refuses, crashes and hangs."""

import dataclasses
import functools
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.device import discovery
from autotune.display.builds import PlainBuilding, building
from autotune.errors import ConfigurationError, StoreError, WorkerError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import names_read, render
from autotune.measure.build_pool import BuilderPool
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Plan
from autotune.model.trial import Build, BuildState, Request
from autotune.search import Budget, compilation, tune
from autotune.search.compilation import Extent, Progress, Report, compile_space, first_complaint
from autotune.search.task import Task, is_limited, spills, work_items_of_group
from autotune.space.search_space import SearchSpace
from autotune.store import ExampleBuild, Store
from databases import rows
from factories import INVENTED_GPU as DEVICE
from factories import evil, provenance
from fakes import FakeWorker
from invented_clock import Clock
from searches import search

EVIL = evil("builder")
PROBLEM = GemmProblem(m=64, n=64, k=64)
SAMPLE = Extent(algorithms=("microtile",), sample=60, jobs=2)


def compile_with(store: Store, extent: Extent = SAMPLE, **options: Any) -> Report:
    return compile_space(DEVICE, PROBLEM, store, extent, command=EVIL, **options)


# Sources


def test_configurations_share_a_source_exactly_when_their_text_and_options_agree() -> None:
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits)
    task = Task(DEVICE, PROBLEM)
    texts: dict[str, tuple[str, tuple[str, ...]]] = {}
    hashes = []
    starts = range(0, len(space), len(space) // 20)
    for row in (start + near for start in starts for near in range(8) if start + near < len(space)):
        plan = FAMILY.plan(PROBLEM, space[row])
        source_hash = task.hash_of(space[row])
        text = render(FAMILY, space[row], plan), plan.build_options
        assert texts.setdefault(source_hash, text) == text
        hashes.append(source_hash)
    assert len(set(texts.values())) == len(texts) > 20
    assert len(texts) < len(hashes)


def test_the_work_group_is_no_part_of_a_micro_tile_source_but_options_are() -> None:
    assert {"work_group_m", "work_group_n"}.isdisjoint(names_read(FAMILY, "microtile"))
    assert {"work_group_m", "work_group_n"} <= names_read(FAMILY, "local_tile")
    task = Task(DEVICE, PROBLEM)
    task.build_options = (*task.build_options, "-cl-strict-aliasing")
    plain = Task(DEVICE, PROBLEM).hash_of(FAMILY.baseline)
    assert plain != task.hash_of(FAMILY.baseline)
    assert plain == Task(DEVICE, GemmProblem(m=256, n=128, k=32)).hash_of(FAMILY.baseline)


def test_a_template_that_fails_becomes_a_source_that_no_compiler_takes(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Configuration.of("microtile", micro_tile_m=1)
    plan = dataclasses.replace(FAMILY.plan(PROBLEM, FAMILY.baseline), template_values=())
    monkeypatch.setattr(type(FAMILY), "plan", lambda *_: plan)
    job = Task(pocl, PROBLEM).build_job(broken)
    assert job.source.startswith("#error template of gemm microtile failed")
    assert len(job.source.splitlines()) == 1


def test_signs_of_trouble() -> None:
    gpu, cpu = DEVICE.limits, DeviceLimits(is_cpu=True)
    built = Build(source_hash="0", state=BuildState.BUILT, private_memory_bytes=4, work_group_limit=64)
    assert spills(built, gpu) and not spills(built, cpu)
    assert is_limited(built, 65) and not is_limited(built, 64)
    assert not is_limited(dataclasses.replace(built, work_group_limit=0), 10**6)
    given = Configuration.of("naive", work_group_m=4, work_group_n=8)
    assert work_items_of_group(FAMILY.plan(PROBLEM, given)) == 32
    assert work_items_of_group(FAMILY.plan(PROBLEM, FAMILY.baseline)) == 0
    assert work_items_of_group(Plan(buffers=(), launches=())) == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("build failed\n\n  a.cl:3:15: error: no member 'z'\n  a.cl:9:1: error: other", "error: no member 'z'"),
        ("\n\nout of memory\nmore", "out of memory"),
        ("", "no message"),
        ("error: " + "x" * 1000, "error: " + "x" * 193),
    ],
)
def test_the_first_complaint_of_a_log(message: str, expected: str) -> None:
    assert first_complaint(message) == expected


# A space


def test_counts_say_what_each_configuration_became(store: Store, log: Path) -> None:
    report = compile_with(store)
    (algorithm,) = report.algorithms
    assert report.is_finished
    assert algorithm.space > algorithm.configurations == 60
    assert algorithm.states == {
        BuildState.BUILT: 60, BuildState.FAILED: 0, BuildState.TIMED_OUT: 0, BuildState.CRASHED: 0,
        BuildState.CUT_SHORT: 0,
        BuildState.TOOL_FAILED: 0,
    }  # fmt: skip
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=["microtile"])
    drawn = drawn_configurations(space)
    wide = [c for c in drawn if c.number("micro_tile_n") // c.number("vector_width") > 2]
    tall = [
        c for c in drawn if c.number("micro_tile_m") > 4 and c.number("work_group_m") * c.number("work_group_n") > 8
    ]
    assert (algorithm.spilling, algorithm.limited) == (len(wide), len(tall))
    assert len(wide) > 2 and len(tall) > 2
    assert algorithm.private_memory == {1024: len(wide)}
    assert algorithm.messages == ()
    assert algorithm.build_ns is not None and algorithm.build_ns.most == 1e6
    built = log.read_text().split()
    assert len(built) == len(set(built)) == algorithm.sources == algorithm.new_sources


def drawn_configurations(space: SearchSpace) -> list[Configuration]:
    """Those of SAMPLE."""
    from autotune.search.compilation import draw

    return [space[row] for row in draw(len(space), SAMPLE)]


def test_what_is_stored_is_not_built_again_until_the_driver_changes(store: Store, log: Path) -> None:
    first = compile_with(store).algorithms[0]
    before = log.read_text()
    again = compile_with(store).algorithms[0]
    assert log.read_text() == before
    assert again == dataclasses.replace(first, new_sources=0)
    updated = dataclasses.replace(DEVICE, driver="2.0")
    report = compile_space(updated, PROBLEM, store, SAMPLE, command=EVIL)
    assert report.algorithms[0].new_sources == first.sources


def test_a_larger_sample_draws_all_of_a_small_space_and_other_seeds_differ(store: Store, log: Path) -> None:
    whole = compile_with(store, Extent(algorithms=("naive",), sample=10**9)).algorithms[0]
    assert whole.configurations == whole.space > 5
    assert whole.sources == 1
    seeds = [compile_with(store, dataclasses.replace(SAMPLE, sample=5, seed=seed)) for seed in (0, 1, 0)]
    assert seeds[1].algorithms[0].new_sources > 0
    assert seeds[2].algorithms[0].new_sources == 0


def test_a_compiler_that_crashes_is_replaced_and_the_others_go_on(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "crash")
    algorithm = compile_with(store, dataclasses.replace(SAMPLE, sample=12)).algorithms[0]
    crashed, built = algorithm.states[BuildState.CRASHED], algorithm.states[BuildState.BUILT]
    assert crashed + built == 12
    assert crashed > 0 and built > 0
    assert "SIGABRT" in algorithm.messages[0][0] and "last words" in algorithm.messages[0][0]
    assert sum(n for _, n in algorithm.messages) == crashed


def test_a_compiler_that_hangs_is_ended(store: Store, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_HOW", "hang")
    job = Task(DEVICE, PROBLEM).build_job(FAMILY.baseline)
    with BuilderPool(1, EVIL) as pool:
        build = pool.submit(dataclasses.replace(job, limit_s=0.3)).result()
    assert build.state is BuildState.CUT_SHORT and build.message.startswith("build took more than 0.3 s (the machine's")
    assert build.source_hash == job.source_hash


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_build_that_is_killed_from_outside_twice_is_not_to_blame(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "kill")
    job = Task(DEVICE, PROBLEM).build_job(FAMILY.baseline)
    with BuilderPool(1, EVIL) as pool:
        build = pool.submit(job).result()
    assert log.read_text().split() == [job.source_hash] * 2, "it was tried again"
    assert build.state is BuildState.CUT_SHORT and build.message.startswith("build: killed by SIGKILL")


@pytest.mark.parametrize(("load", "state"), [(0.0, BuildState.TIMED_OUT), (1e4, BuildState.CUT_SHORT)])
def test_a_full_limit_proves_a_hang_on_a_quiet_machine_only(
    load: float, state: BuildState, store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "hang")
    monkeypatch.setattr("autotune.measure.build_pool.BUILD_LIMIT_S", 0.3)
    monkeypatch.setattr("autotune.device.processors.load", lambda: load)
    job = Task(DEVICE, PROBLEM).build_job(FAMILY.baseline)
    with BuilderPool(1, EVIL) as pool:
        assert pool.submit(dataclasses.replace(job, limit_s=0.3)).result().state is state


def test_complaints_that_differ_in_numbers_only_are_one(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_HOW", "refuse")
    algorithm = compile_with(store, dataclasses.replace(SAMPLE, sample=9)).algorithms[0]
    ((message, count),) = algorithm.messages
    assert count == 9 == algorithm.states[BuildState.FAILED]
    assert message.startswith("error: use of undeclared identifier 'x")
    assert algorithm.build_ns is None and algorithm.binary_bytes is None


def test_stopping_keeps_what_is_built_and_the_next_run_goes_on(store: Store, log: Path) -> None:
    told: list[Progress] = []
    report = compile_with(store, listener=told.append, should_stop=lambda: len(told) > 3)
    assert not report.is_finished
    (algorithm,) = report.algorithms
    assert 0 < algorithm.configurations < 60
    assert len(store.builds(DEVICE.slug, DEVICE.driver)) == algorithm.sources == len(log.read_text().split())
    rest = compile_with(store).algorithms[0]
    assert rest.configurations == 60
    assert rest.new_sources == rest.sources - algorithm.sources


def test_progress_ends_with_everything_seen(store: Store, log: Path) -> None:
    told: list[Progress] = []
    algorithm = compile_with(store, listener=told.append).algorithms[0]
    assert told[0].seen == 0
    assert (told[-1].seen, told[-1].built_sources) == (60, algorithm.sources)
    assert all(a.built_sources <= b.built_sources for a, b in itertools.pairwise(told))


def test_a_device_that_cannot_be_used_and_an_unknown_algorithm_are_errors(store: Store, log: Path) -> None:
    missing = dataclasses.replace(DEVICE, selector="9:9")
    with pytest.raises(WorkerError, match="no such device"):
        compile_space(missing, PROBLEM, store, SAMPLE, command=EVIL)
    with pytest.raises(ConfigurationError, match="no algorithm 'x'"):
        compile_with(store, Extent(algorithms=("naive", "x")))
    assert log.read_text() == ""
    with pytest.raises(WorkerError, match="ended at its start"):
        compile_space(DEVICE, PROBLEM, store, SAMPLE, command=(sys.executable, "-c", "raise SystemExit(3)"))


@pytest.mark.long
def test_on_a_real_compiler(store: Store, pocl: Device) -> None:
    extent = Extent(algorithms=("naive", "dot"), sample=3, jobs=1)
    report = compile_space(pocl, GemmProblem(m=8, n=8, k=8), store, extent)
    naive, dot = report.algorithms
    assert naive.states[BuildState.BUILT] == dot.states[BuildState.BUILT] == 3
    assert naive.sources == 1
    assert naive.build_ns is not None and naive.build_ns.least > 0
    assert naive.binary_bytes is not None and naive.binary_bytes.least > 100
    assert dot.spilling == 0
    fine = Task(pocl, PROBLEM).build_job(FAMILY.baseline)
    wrong = ["__kernel void gemm() { nonsense; }", fine.source.replace("gemm(", "other(")]
    with BuilderPool(1) as pool:
        builds = [pool.submit(dataclasses.replace(fine, source=source)) for source in wrong]
        refused, renamed = (build.result() for build in builds)
    assert (refused.state, renamed.state) == (BuildState.FAILED, BuildState.FAILED)
    assert "nonsense" in refused.message


# The search


def test_the_search_measures_nothing_that_is_known_to_be_unfit_but_the_default(store: Store) -> None:
    task = Task(DEVICE, PROBLEM)
    default = task.default
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=["dot"])
    examples = {task.hash_of(c): c for c in (space[i] for i in range(0, len(space), 5))}
    spilling = {h: c for h, c in examples.items() if int(h, 16) % 4}
    spilling[task.hash_of(default)] = default
    store.add_builds(
        DEVICE,
        [example(Build(source_hash=h, state=BuildState.BUILT, private_memory_bytes=8), c) for h, c in spilling.items()],
    )
    builds = store.builds(DEVICE.slug, DEVICE.driver)
    assert len(spilling) > 60
    assert task.is_unfit(default, builds)
    worker = FakeWorker(lambda job: 1000.0)
    assert search(store, worker, 20, PROBLEM, device=DEVICE, algorithms=["dot"]).new_trials == 20
    assert worker.measured[0] == default
    assert not [c for c in worker.measured if c != default and task.is_unfit(c, builds)]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_search_keeps_to_its_time_where_all_is_known_to_be_unfit(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    def is_unfit(*_: object) -> bool:
        clock.now += 1.0
        return True

    monkeypatch.setattr(Task, "is_unfit", is_unfit)
    problems = [PROBLEM, GemmProblem(m=64, n=64, k=96)][: 1 + is_shared]
    requests, worker = [Request(problem=problem) for problem in problems], FakeWorker(lambda _: 1000.0)
    began = clock.now
    outcomes = tune(DEVICE, requests, store, Budget(seconds=60), worker=worker, clock=clock, algorithms=["dot"])
    assert clock.now - began < 65
    assert all(outcome.winner and outcome.gain_left is None for outcome in outcomes), "not all was looked at"


@pytest.mark.parametrize(
    "build",
    [
        Build(source_hash="", state=BuildState.FAILED),
        Build(source_hash="", state=BuildState.TIMED_OUT),
        Build(source_hash="", state=BuildState.CRASHED),
        Build(source_hash="", state=BuildState.BUILT, private_memory_bytes=4),
        Build(source_hash="", state=BuildState.BUILT, work_group_limit=31),
    ],
)
def test_every_reason_to_leave_a_configuration_out(build: Build) -> None:
    configuration = Configuration.of("naive", work_group_m=4, work_group_n=8)
    task = Task(DEVICE, PROBLEM)
    source_hash = task.hash_of(configuration)
    assert task.is_unfit(configuration, {source_hash: build})
    fine = Build(source_hash="", state=BuildState.BUILT, work_group_limit=32)
    for builds in ({"other": build}, {}, {source_hash: fine}):
        assert not task.is_unfit(configuration, builds)


# The ledger


PROVENANCE = provenance()


def example(build: Build, configuration: Configuration = FAMILY.baseline) -> ExampleBuild:
    return ExampleBuild(build=build, problem=PROBLEM, configuration=configuration, provenance=PROVENANCE)


BUILD = Build(
    source_hash="0123456789abcdef",
    state=BuildState.BUILT,
    message="a warning\0 with \ud800 odd characters",
    build_ns=1.5,
    private_memory_bytes=2**40,
    work_group_limit=384,
    binary_bytes=2**33,
)


def test_the_newest_build_of_a_source_holds_and_all_stay_in_the_ledger(store: Store) -> None:
    failed = Build(source_hash=BUILD.source_hash, state=BuildState.CRASHED, message="once")
    store.add_builds(DEVICE, [example(failed)])
    store.add_builds(DEVICE, [example(BUILD), example(dataclasses.replace(BUILD, source_hash="f" * 16))])
    builds = store.builds(DEVICE.slug, DEVICE.driver)
    assert builds.keys() == {BUILD.source_hash, "f" * 16}
    expected = dataclasses.replace(BUILD, message="a warning\\0 with \\ud800 odd characters")
    assert builds[BUILD.source_hash] == expected
    path = Path(store.location)
    assert rows(path, "SELECT state FROM builds ORDER BY id") == [("crashed",), ("built",), ("built",)]
    key = FAMILY.baseline.key
    assert set(rows(path, "SELECT algorithm, configuration FROM builds")) == {("naive", key)}
    assert store.builds(DEVICE.slug, "2.0") == store.builds("other", DEVICE.driver) == {}


def test_no_builds_change_nothing(store: Store) -> None:
    store.add_builds(DEVICE, [])
    assert store.devices() == []


def test_builds_are_added_all_or_none(store: Store) -> None:
    huge = dataclasses.replace(BUILD, source_hash="1", private_memory_bytes=2**70)
    with pytest.raises(StoreError):
        store.add_builds(DEVICE, [example(BUILD), example(huge)])
    assert store.builds(DEVICE.slug, DEVICE.driver) == {}


def test_a_snapshot_of_one_device_holds_its_builds_only(store: Store, tmp_path: Path) -> None:
    other = dataclasses.replace(DEVICE, slug="other")
    far = GemmProblem(m=9, n=9, k=9)
    store.add_builds(DEVICE, [example(BUILD)])
    store.add_builds(other, [dataclasses.replace(example(BUILD), problem=far)])
    copy = tmp_path / "copy.sqlite"
    store.snapshot(copy, DEVICE.slug)
    with Store.open(copy, read_only=True) as opened:
        assert len(opened.builds(DEVICE.slug, DEVICE.driver)) == 1
        assert opened.builds("other", DEVICE.driver) == {}
    assert rows(copy, "SELECT label FROM problems") == [(PROBLEM.label,)]
    store.snapshot(copy)
    assert rows(copy, "SELECT count(*) FROM builds") == [(2,)]


# The command


@pytest.fixture
def command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `autotune compile` for the invented device with the invented compiler: status, output, errors."""
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    monkeypatch.setattr(compilation, "compile_space", functools.partial(compile_space, command=EVIL))

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["compile", "--device", "invented", "--db", str(tmp_path / "cli.sqlite"), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_table_tells_counts_spills_and_where_to_go_on(command_line: Callable[..., tuple[int, str, str]]) -> None:
    chosen = ("--algorithm", "naive", "microtile", "--sample", "60", "--shape", "64,64,64", "--jobs", "2")
    status, out, err = command_line(*chosen)
    assert status == 0
    assert "invented-1, driver 1.0: 64x64x64" in out
    naive, microtile = ([cell.strip() for cell in line.split("|")] for line in out.splitlines()[3:5])
    assert naive[0] == "naive" and naive[1] == naive[2] == naive[9]
    assert naive[8] == "1"
    assert microtile[0] == "microtile" and microtile[1] == microtile[2] == "60"
    assert int(microtile[4]) > 0 and int(microtile[5]) > 0
    assert f"microtile: private memory: {microtile[4]} up to 1 KiB" in out
    assert f"64x64x64 naive: {naive[2]} configurations" in err and "64x64x64 microtile: 60 configurations" in err
    assert command_line(*chosen, "--quiet")[1:] == (out, "")


def test_the_counts_as_json(command_line: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_HOW", "refuse")
    status, out, _ = command_line("--algorithm", "naive", "--json", "--shape", "64,64,64", "8,8,8")
    reports = json.loads(out)
    assert status == 0
    assert [report["problem"]["m"] for report in reports] == [64, 8]
    naive = reports[0]["algorithms"]["naive"]
    assert naive["built"] == naive["timed_out"] == 0
    assert naive["failed"] == naive["space"] == naive["messages"][0]["configurations"] > 5
    assert (naive["sources"], naive["new_sources"], naive["build_ns"]) == (1, 1, None)
    assert reports[1]["algorithms"]["naive"]["new_sources"] == 0
    status, out, _ = command_line("--algorithm", "naive", "--shape", "8,8,8")
    assert "failed: error: use of undeclared identifier" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "1,2"), "is not a shape"),
        (("--algorithm", "x"), "no algorithm 'x'"),
        (("--sample", "0"), "--sample: expected an integer from 1 to 1000000000, got '0'"),
        (("--jobs", "many"), "--jobs: expected an integer from 1 to 1024, got 'many'"),
        (("--device", "nothing"), "no device fits"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], message: str, command_line: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = command_line(*arguments)
    assert (status, out) == (2, "")
    assert message in err and err.startswith("autotune: error: ")


def test_interrupted_once_it_stops_and_says_how_to_go_on(
    command_line: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compilation._Compilation._consider

    def consider(self: Any, configuration: Configuration) -> None:
        real(self, configuration)
        if self.tally.seen == 5:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(compilation._Compilation, "_consider", consider)
    status, out, err = command_line("--algorithm", "microtile", "naive", "--sample", "60", "--shape", "64,64,64")
    assert status == 130
    assert "microtile" in out and "naive" not in out
    assert "stopped; every build is kept" in err
    assert "autotune compile --device invented" in err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PROGRESS = Progress(
    problem=PROBLEM,
    algorithm="microtile",
    configurations=1000,
    seen=40,
    known_sources=3,
    built_sources=12,
    failed_sources=1,
    spilling_sources=2,
)
LINE = "64x64x64 microtile: 40 of 1000 configurations, 12 sources built, 3 known before, 1 failed, 2 spill"


def test_progress_on_a_terminal_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    stream = _Terminal()
    with building(stream, is_quiet=False) as listener:
        listener(PROGRESS)
        listener(dataclasses.replace(PROGRESS, seen=41))
    assert "41 of 1000 configurations" in stream.getvalue()
    *_, erased = stream.getvalue().split("64x64x64")
    assert erased.count("\x1b[2K") >= 2, "the bar and the line below it"


def test_progress_in_a_pipe_is_a_line_at_the_start_and_then_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    stream = io.StringIO()
    plain = PlainBuilding(stream, clock=lambda: clock[0])
    for seconds, seen in ((0.0, 0), (1.0, 10), (11.0, 40), (12.0, 50)):
        clock[0] = seconds
        plain(dataclasses.replace(PROGRESS, seen=seen))
    for _ in range(2):
        plain(dataclasses.replace(PROGRESS, algorithm="row", configurations=0, seen=0))
    assert stream.getvalue().splitlines() == [
        "64x64x64 microtile: 1000 configurations",
        LINE,
        "64x64x64 row: no configuration is valid",
    ]
