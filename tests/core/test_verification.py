"""Kernels that this driver never ran are checked before their first use, and give way where they fail."""

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune.kernels.render
import evil_checker
from autotune import child
from autotune.errors import KernelError, WorkerError
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import Entry, TuningTable
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Job, Trial
from autotune.runtime import Gemm, Reduce, executor, verification
from autotune.runtime.verification import Verdict, Verdicts, small_problem
from waiting import HANG_S, wait_for

TILE = FAMILY.complete(
    Configuration.of(
        "microtile", b_storage="buffer", micro_tile_m=4, micro_tile_n=8, vector_width=4, unroll=4, a_vector_width=1,
        work_group_m=0, work_group_n=0, edges="guard", loads="vload", multiply_add="mad", relaxed_math="off",
    )
)  # fmt: skip
EVIL = Path(evil_checker.__file__)
A, B = (np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32) for shape in ((9, 20), (20, 13)))
PROBLEM = GemmProblem(m=9, n=13, k=20)


class Hurried(Worker):
    """Waits no longer than it takes for what hangs, and as long as it takes for all else."""

    def run(self, job: Job) -> Trial:
        limit_s = 0.5 if evil_checker.fate_of(job.configuration) == "hang" else HANG_S
        return super().run(replace(job, build_limit_s=limit_s, run_limit_s=HANG_S))


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> Iterator[Callable[[dict[str, str]], None]]:
    """What the compiler makes of kernels, in this process and in those that check."""
    workers: list[Worker] = []

    def start(*, selector: str) -> Worker:
        workers.append(Hurried((sys.executable, str(EVIL)), selector=selector))
        return workers[-1]

    def decide(fates: dict[str, str]) -> None:
        monkeypatch.setenv("EVIL_KERNELS", json.dumps(fates))

    decide({})
    monkeypatch.setattr(verification, "Worker", start)
    monkeypatch.setattr(verification, "_checkers", {})
    monkeypatch.setattr(autotune.kernels.render, "render", evil_checker.render)
    monkeypatch.setattr(executor, "_executors", {})
    yield decide
    for worker in workers:
        worker.close()


def table(device: Device, driver: str = "", template_hash: str = "") -> TuningTable:
    """With one product, measured by this driver or another, with the templates of today or others."""
    measured = Entry(
        problem=PROBLEM,
        configuration=TILE,
        time_ns=1e4,
        driver=driver or device.driver,
        version=device.version,
        template_hash=template_hash or autotune.kernels.render.template_hash(FAMILY, TILE.algorithm),
    )
    return TuningTable([device], [(device.slug, measured)])


def gemm_of(device: Device, folder: Path, driver: str = "another", **settings: Any) -> Gemm:
    return Gemm(device.selector, table=table(device, driver), binaries=folder, host_blas=False, **settings)


@pytest.mark.long
@pytest.mark.parametrize("fate", ["wrong", "abort", "hang"])
def test_what_this_driver_fails_at_gives_way_with_a_warning(
    pocl: Device,
    tmp_path: Path,
    fates: Callable[[dict[str, str]], None],
    fate: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fates({TILE.key: fate})
    gemm = gemm_of(pocl, tmp_path)
    assert np.array_equal(gemm(A, B), A @ B)
    chosen = gemm.choice(A, B)
    assert chosen and chosen.configuration != TILE
    [warning] = [record.getMessage() for record in caplog.records if "failed a check" in record.getMessage()]
    states = {"wrong": "wrong result", "abort": "crashed", "hang": "cut short"}
    assert str(TILE) in warning and states[fate] in warning and "autotune doctor" in warning


def test_without_a_check_wrong_results_would_come_out(
    pocl: Device, tmp_path: Path, fates: Callable[[dict[str, str]], None]
) -> None:
    fates({TILE.key: "wrong"})
    for gemm in (gemm_of(pocl, tmp_path, verify=False), gemm_of(pocl, tmp_path, driver=pocl.driver)):
        assert not np.array_equal(gemm(A, B), A @ B)


def test_what_this_driver_measured_needs_no_child(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "Worker", lambda **_: pytest.fail("a child was started"))
    monkeypatch.setattr(verification, "_checkers", {})
    gemm = gemm_of(pocl, tmp_path, driver=pocl.driver)
    assert np.array_equal(gemm(A, B), A @ B)
    for other in ({"version": "OpenCL 3.0 pocl another-processor"}, {"driver": "another"}, {"slug": "pocl-other"}):
        tuned = table(pocl, pocl.driver).find(replace(pocl, **other), PROBLEM)  # type: ignore[arg-type]
        assert not tuned.was_measured_on(replace(pocl, **other))  # type: ignore[arg-type]


def test_what_other_templates_measured_is_checked_and_gives_way_with_a_warning(
    pocl: Device, tmp_path: Path, fates: Callable[[dict[str, str]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Measured by this driver, but the template was changed since, and is wrong now."""
    fates({TILE.key: "wrong"})
    changed = table(pocl, pocl.driver, template_hash="0123456789ab")
    gemm = Gemm(pocl.selector, table=changed, binaries=tmp_path, host_blas=False)
    assert np.array_equal(gemm(A, B), A @ B)
    chosen = gemm.choice(A, B)
    assert chosen and chosen.configuration != TILE
    assert any("failed a check" in record.getMessage() for record in caplog.records)


def test_templates_are_compared_once_for_all_processes(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compare them loads Jinja2, which a process whose programs are cached does without."""
    monkeypatch.setattr(verification, "_checkers", {})
    monkeypatch.setattr("autotune.runtime.executor._executors", {})
    gemm_of(pocl, tmp_path, driver=pocl.driver)(A, B)
    ready = table(pocl, pocl.driver)
    monkeypatch.setattr(autotune.kernels.render, "template_hash", lambda *_: pytest.fail("it was compared again"))
    monkeypatch.setattr("autotune.runtime.executor._executors", {})
    gemm = Gemm(pocl.selector, table=ready, binaries=tmp_path, host_blas=False)
    assert np.array_equal(gemm(A, B), A @ B)


def test_a_verdict_is_kept_for_the_next_process(
    pocl: Device, tmp_path: Path, fates: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fates({TILE.key: "wrong"})
    gemm_of(pocl, tmp_path)(A, B)
    monkeypatch.setattr(verification, "Worker", lambda **_: pytest.fail("a child was started"))
    monkeypatch.setattr(verification, "_checkers", {})
    gemm = gemm_of(pocl, tmp_path)
    assert np.array_equal(gemm(A, B), A @ B)
    chosen = gemm.choice(A, B)
    assert chosen and chosen.configuration != TILE


@pytest.mark.long
def test_where_everything_fails_an_error_says_so(
    pocl: Device, tmp_path: Path, fates: Callable[[dict[str, str]], None]
) -> None:
    fates({algorithm.name: "wrong" if algorithm.name == "naive" else "abort" for algorithm in FAMILY.algorithms})
    with pytest.raises(KernelError, match=r"no kernel of gemm works for 9x13x20 .* not even the plainest") as raised:
        gemm_of(pocl, tmp_path)(A, B)
    assert "autotune doctor" in str(raised.value)


def test_a_default_is_checked_too(
    pocl: Device, tmp_path: Path, fates: Callable[[dict[str, str]], None], caplog: pytest.LogCaptureFixture
) -> None:
    reduce = find_family("reduce")
    fates(dict.fromkeys((a.name for a in reduce.algorithms if a.name != reduce.baseline.algorithm), "abort"))
    values = np.arange(300, dtype=np.float32).reshape(3, 100)
    result = Reduce(pocl.selector, table=TuningTable([], []), binaries=tmp_path)(values)
    assert np.allclose(result, values.sum(axis=1)) and "failed a check" in caplog.text


def test_without_a_child_nothing_unverified_runs(pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "Worker", lambda **_: Worker(("/no/such/program",)))
    monkeypatch.setattr(verification, "_checkers", {})
    monkeypatch.setattr(child, "FIRST_PAUSE_S", 0.0)
    with pytest.raises(WorkerError, match="cannot be checked before its first use") as raised:
        gemm_of(pocl, tmp_path)(A, B)
    assert "verify=False" in str(raised.value)
    assert not Verdicts(tmp_path / verification.FILE_NAME).get("")


def test_the_child_starts_early_where_the_driver_is_new(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(verification.Checker, "start", lambda self: started.append(self._selector))
    gemm_of(pocl, tmp_path, driver=pocl.driver)
    assert started == []
    Gemm(pocl.selector, table=TuningTable([], []), binaries=tmp_path)
    assert started == [pocl.selector]
    Verdicts(tmp_path / verification.FILE_NAME).add("x", Verdict(failure=""))
    Gemm(pocl.selector, table=TuningTable([], []), binaries=tmp_path)
    assert started == [pocl.selector]


def test_an_idle_child_is_ended_and_another_started_when_needed(
    pocl: Device, fates: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "IDLE_S", 0.05)
    checker = verification.Checker(pocl.selector)
    assert not checker.check(PROBLEM, TILE, ()).failure
    wait_for(lambda: checker._worker.pid is None)
    assert not checker.check(PROBLEM, TILE, ()).failure


def test_a_long_first_call_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verification, "ANNOUNCED_AFTER_S", 0.05)
    with verification.announced("dot for 1x2x3"):
        wait_for(lambda: caplog.records)
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "dot for 1x2x3 is being compiled and checked" in record.getMessage()
    monkeypatch.setattr(verification, "ANNOUNCED_AFTER_S", HANG_S)
    with verification.announced("quick"):
        pass
    assert len(caplog.records) == 1


# The small problem


@pytest.mark.parametrize(
    "text",
    ["1000,1000,1000", "2047,3000,129 nt", "4096,1,4096", "1,4096,1000", "640,640,640 batch=50", "64,64,64 int8"],
)
def test_a_small_problem_exercises_the_same_source_with_whole_tiles_and_edges(pocl: Device, text: str) -> None:
    problem = GemmProblem.parse(text)
    for configuration in (FAMILY.default(problem, pocl.limits, ()), TILE, FAMILY.baseline):
        if FAMILY.violations(problem, configuration, pocl.limits):
            continue
        small = small_problem(FAMILY, problem, configuration, pocl.limits)
        assert small.is_comparable(problem) and small.flops <= 2**28
        assert not FAMILY.violations(small, configuration, pocl.limits)
        here, there = FAMILY.plan(small, configuration), FAMILY.plan(problem, configuration)
        assert here.template_values == there.template_values
        for launch, of_problem in zip(here.launches, there.launches, strict=True):
            groups = [a // b for a, b in zip(launch.global_size, launch.local_size or (1, 1, 1), strict=False)]
            whole = [a // b for a, b in zip(of_problem.global_size, of_problem.local_size or (1, 1, 1), strict=False)]
            assert all(few >= min(2, many) for few, many in zip(groups, whole, strict=True))


# The file of verdicts


def test_verdicts_survive_junk(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "verdicts.jsonl"
    verdicts = Verdicts(path)
    assert verdicts.is_empty
    verdicts.add("one", Verdict(failure=""))
    with path.open("ab") as file:
        file.write(
            b'\xff\x00{"key": 3}\n[]\n{"key": "two", "failure": "", "was_late": 1, "at_s": 0}\n{"key": "torn", "fai'
        )
    verdicts.add("three", Verdict(failure="crashed: x"))
    again = Verdicts(path)
    assert again.get("one") == Verdict(failure="") and again.get("three") == Verdict(failure="crashed: x")
    assert again.get("two") is again.get("torn") is None
    path.write_bytes(os.urandom(5000))
    assert Verdicts(path).is_empty


def test_a_verdict_of_lateness_is_not_for_ever() -> None:
    assert Verdict(failure="timed out", was_late=True, at_s=time.time()).is_trusted
    assert not Verdict(failure="timed out", was_late=True, at_s=time.time() - 2 * 24 * 3600).is_trusted
    assert Verdict(failure="wrong result", at_s=0.0).is_trusted


def test_verdicts_last_as_long_as_the_process_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (None, tmp_path / "file" / "verdicts.jsonl", tmp_path):
        verdicts = Verdicts(path)
        verdicts.add("one", Verdict(failure=""))
        assert verdicts.get("one") == Verdict(failure="")


def _add_many(path: Path, name: str) -> None:
    verdicts = Verdicts(path)
    for number in range(200):
        verdicts.add(f"{name}{number}", Verdict(failure="crashed: " + 50 * name))


@pytest.mark.long
def test_processes_may_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_add_many, args=(path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(HANG_S)
        assert writer.exitcode == 0
    verdicts = Verdicts(path)
    assert all(verdicts.get(f"{name}{number}") for name in "abc" for number in range(200))


def test_a_file_that_grew_too_large_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verdicts.jsonl"
    monkeypatch.setattr(verification, "MAX_FILE_BYTES", 1000)
    for number in range(100):
        Verdicts(path).add(str(number), Verdict(failure=""))
    assert path.stat().st_size < 1200 and Verdicts(path).get("99")


def test_a_home_that_cannot_be_written_is_enough(pocl: Device, tmp_path: Path) -> None:
    code = (
        "import numpy as np; from autotune.runtime import Gemm; a = np.ones((8, 8), np.float32);"
        f"print(Gemm({pocl.selector!r}, host_blas=False)(a, a)[0, 0])"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        "HOME": "/proc/no-home",
        "POCL_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=HANG_S
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "8.0"), ended.stderr


def test_the_runtime_itself_raises_what_a_child_cannot(pocl: Device, tmp_path: Path) -> None:
    """A device that the driver does not list, such as a part of one, has no child that could open it."""
    engine = gemm_of(pocl, tmp_path)._engine
    verifier = verification.Verifier(replace(pocl, selector=""), tmp_path)
    with pytest.raises(WorkerError, match="does not list the device"):
        verifier.failure(engine.family, PROBLEM, TILE, (), "recipe")
