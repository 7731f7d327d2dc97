"""What the benchmarks of the search count, and the drawing of their results."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.kernels import FILES, families_of_files, find_family
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.trial import Job, Trial, TrialState
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.store import Store
from factories import trial
from fakes import INVENTED_PROCESSOR, FakeWorker

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def load(name: str) -> Any:
    loader = SourceFileLoader(name.replace(".py", ""), str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, loader.name, module)
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        loader.exec_module(module)
    return module


class TestShell:
    """The scripts that set up the checkout, with a set-up that only notes what is called."""

    def _run(
        self, folder: Path, script: str, answer: str, *arguments: str, coverage: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (folder / "scripts").mkdir()
        shutil.copy(SCRIPTS / script, folder / "scripts")
        (folder / "bin").mkdir()
        called = folder / "bin" / "autotune"
        called.write_text(f'#!/bin/sh\necho "called: $*"\ncase "$*" in *--json*) echo \'{answer}\';; esac\n')
        called.chmod(0o755)
        setup = f'venv="{folder}"; python="{called}"; prepare() {{ :; }}; use_only_pocl() {{ :; }}\n'
        (folder / "scripts" / "setup.sh").write_text(setup)
        command = ["sh", str(folder / "scripts" / script), *arguments]
        environment = {**os.environ, "AUTOTUNE_COVERAGE": coverage}
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)

    @pytest.mark.parametrize(("algorithm", "status"), [("microtile", 0), ("naive", 1)])
    def test_quickstart_warns_where_the_plainest_kernel_won(self, tmp_path: Path, algorithm: str, status: int) -> None:
        done = self._run(tmp_path, "quickstart", f'"algorithm": "{algorithm}"')
        assert done.returncode == status
        assert ("warning: the plainest kernel won" in done.stderr) == bool(status)
        assert "called: export" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "checks"),
        [
            ([], ["ruff check .", "ruff format --check .", "pytest", "mypy"]),
            (["tests/test_cli.py"], ["pytest tests/test_cli.py"]),
            (["--long"], ["pytest --cov", "pytest -m long"]),
            (["--long", "-k", "capture"], ["pytest -m long -k capture"]),
        ],
    )
    def test_each_tier_of_tests_runs_its_checks(self, tmp_path: Path, arguments: list[str], checks: list[str]) -> None:
        done = self._run(tmp_path, "test", "", *arguments)
        assert done.returncode == 0, done.stderr
        types = tmp_path / "types.log"
        printed = done.stdout + (types.read_text() if types.exists() else "")
        assert _calls(printed) == checks

    def test_continuous_integration_runs_no_test_twice(self, tmp_path: Path) -> None:
        commands = (SCRIPTS.parent / ".ci" / "run").read_text().splitlines()[-2:]
        assert commands == ['AUTOTUNE_COVERAGE=true "$test"', 'exec "$test" --long tests']
        (tmp_path / "short").mkdir()
        (tmp_path / "long").mkdir()
        short = self._run(tmp_path / "short", "test", "", coverage="true")
        assert "pytest --cov" in _calls(short.stdout)
        long = self._run(tmp_path / "long", "test", "", "--long", "tests", coverage="true")
        assert _calls(long.stdout) == ["pytest -m long tests"]


def _calls(printed: str) -> list[str]:
    """What the set-up noted, without what every call of pytest has."""
    return re.sub(r"called: -m | --numprocesses \d+ --dist worksteal", "", printed).splitlines()


class TestForetoldGain:
    def test_what_was_foretold_stands_beside_what_was_saved(self) -> None:
        gain = load("search_gain.py")
        curve = [0.5] * 30 + [0.8] * 70 + [1.0] * 100
        forecasts = [gain.Forecast(trials=t, share=4 / t, at_most=1 / t) for t in range(15, 200, 5)]
        report = gain.gain_report([gain.Foretold(space="one", curve=curve, forecasts=forecasts)])
        assert report["one"] == report["all"]
        assert report["one"]["foretold"]["25"] == {"foretold": 0.16, "next": 0.375, "later": 0.5}
        assert report["one"]["foretold"]["100"] == {"foretold": 0.04, "next": 0.2, "later": 0.2}
        early, late = report["one"]["until"]["0.05"], report["one"]["until"]["0.01"]
        assert early == {"trials": 25.0, "missed": 0.5, "missed_0.02": 1.0, "missed_0.05": 1.0}
        assert late == {"trials": 105.0, "missed": 0.0, "missed_0.02": 0.0, "missed_0.05": 0.0}

    def test_a_recorded_space_is_searched_and_foretold(self, tmp_path: Path) -> None:
        bench = load("bench_search")
        path = tmp_path / "made.csv"
        lines = [f"{x},{y},{abs(x - 4) + abs(y - 8) + 1 if x * y < 120 else ''}" for x in SIZES for y in SIZES]
        path.write_text("\n".join(["x,y,time_ms", *lines]), encoding="utf-8")
        run = bench.search(path, seed=1, budget=40, foretells=True)
        assert len(set(run.rows)) == 40 and run.rows == bench.search(path, seed=1, budget=40).rows
        assert [forecast.trials for forecast in run.forecasts] == [15, 20, 25, 30, 35, 40]
        assert bench.curve(run.rows, bench.load(path).times_ms, 40)[-1] == 1.0

    def test_searches_are_compared_with_a_rival_by_seed(self, tmp_path: Path) -> None:
        bench = load("bench_search")
        path = tmp_path / "made.csv"
        path.write_text("x,time_ms\n1,8\n2,4\n3,2\n4,1\n5,\n", encoding="utf-8")
        run = functools.partial(bench.Run, space="made", ms=0.0)
        rows = {x: x - 1 for x in range(1, 6)}
        found = bench.matched(
            [
                run(sampler="ours", seed=0, rows=[rows[5], rows[2], rows[3], rows[4]]),
                run(sampler="ours", seed=1, rows=[rows[1], rows[5], rows[2]]),
                run(sampler="kt pso", seed=0, rows=[rows[1], rows[3]]),
                run(sampler="kt pso", seed=1, rows=[rows[1], rows[4]]),
                run(sampler="kt pso", seed=2, rows=[rows[4]]),
            ],
            [path], "kt pso", 4,
        )  # fmt: skip
        assert found["made"] == {
            "configurations": 5, "runs": 2, "budget": 4, "trials_to_match": (3 + 5) / 2, "trials_of_rival": 2,
            "speed_at_half": (1 / 2 + 1 / 8) / 2, "speed": (2 + 1 / 4) / 2, "least_speed": 1 / 4,
        }  # fmt: skip

    def test_a_search_with_the_ledger_of_a_sibling_begins_with_its_winner(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = load("bench_search")
        paths = [tmp_path / f"made_{card}.csv" for card in ("W1", "W2", "A3")]
        for path, best in zip(paths, (4, 6, 24), strict=True):
            lines = [f"{x},{y},{abs(x - best) + abs(y - 8) + 1 if x * y < 300 else ''}" for x in SIZES for y in SIZES]
            path.write_text("\n".join(["x,y,time_ms", *lines]), encoding="utf-8")
        monkeypatch.setenv(FILES, "")  # put back after the test
        bench.write_kernel_files(paths, tmp_path)
        families_of_files.cache_clear()
        runs = [bench.search(path, seed, 40) for path in paths for seed in (0, 1)]
        tasks = list(bench.sibling_tasks(paths, runs))
        assert [(task[0], list(task[1]), task[2]) for task in tasks[:2]] == [(paths[0], paths[1:], s) for s in (0, 1)]
        found, teachers = bench.search_warm(tasks[0])
        assert teachers == ("w2", "a3"), "the devices of its maker teach first"
        times = bench.load(paths[1]).times_ms
        assert found.rows[0] == min(tasks[0][1][paths[1]], key=lambda row: (np.isnan(times[row]), times[row]))
        assert len(set(found.rows)) == len(found.rows) == bench.SIBLING_BUDGET
        monkeypatch.undo()
        families_of_files.cache_clear()
        find_family.cache_clear()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({1: 0.5, 2: 0.99, 10: 1.2}, 2),
        ({1: 0.5, 2: 0.99, 9: 0.9, 10: 1.2, 12: 0.985}, 10),
        ({1: 1.1, 2: 0.9}, None),
        ({}, None),
    ],
)
def test_level_is_what_stays_level_to_the_end(shares: dict[int, float], expected: int | None) -> None:
    turns = {str(number): {"of_kernel_tuner": share} for number, share in shares.items()}
    assert load("bench_kernel_files").matched_at({"winner": {"of_kernel_tuner": 1.3}, **turns}) == expected


class TestNoise:
    TIMES = np.array([2.0, 1.0, 1.02, np.nan, 1.5, 4.0, 1.3, 1.25, 1.2])

    def test_finals_choose_the_fastest_of_those_that_seemed_best_and_end_when_it_is_clear(self) -> None:
        script = load("search_noise.py")
        rows = range(len(self.TIMES))
        assert script.play(rows, self.TIMES, self.TIMES, 0.0, seed=0) == (1, 6 * 9), "without errors one look is enough"
        told = np.where(self.TIMES == 1.0, 9.0, self.TIMES)
        assert script.play(rows, told, self.TIMES, 0.0, seed=0)[0] == 2, "an error kept the best one from the finals"
        winner, timings = script.play(rows, self.TIMES, self.TIMES, 0.1, seed=0)
        assert winner in (1, 2) and timings > 6 * 9

    def test_a_report_has_the_means_of_each_space_and_of_all(self) -> None:
        script = load("search_noise.py")
        shares = {"one": [(1.0, 0.9), (0.8, 0.9)], "two": [(0.5, 0.4), (0.5, 0.4)]}
        report = script.noise_report(
            script.Chosen(space=space, without=w, found=c, chosen=c, timings=60)
            for space, pairs in shares.items() for w, c in pairs
        )  # fmt: skip
        assert report["one"] == pytest.approx(
            {"without": 0.9, "found": 0.9, "chosen": 0.9, "timings": 60, "error": 0.1 / 2**0.5}
        )
        assert report["two"]["error"] == pytest.approx(0.0)
        assert report["mean"] == pytest.approx(
            {"without": 0.7, "found": 0.65, "chosen": 0.65, "timings": 60, "error": 0.05 / 2**0.5}
        )


def _trial(number: int, time_ns: float | None) -> Trial:
    return trial(Configuration.of("dot", vector_width=number), TrialState.CRASHED if time_ns is None else time_ns)


class TestRealSearch:
    def _place(self, script: Any, worker: FakeWorker, folder: Path) -> Any:
        return script.Place(
            device=INVENTED_PROCESSOR, profile=script.find_profile(INVENTED_PROCESSOR), worker=worker, builds=None,
            sampler=script.SamplerChoice(), folder=folder,
        )  # fmt: skip

    def test_what_a_run_had_found_after_how_many_trials(self) -> None:
        script = load("bench_real_search")
        times = (None, 5.0, 9.0, 2.0, 3.0)
        run = script.Run(trials=[(_trial(i, t), 10.0 * i) for i, t in enumerate(times, start=1)])
        assert [n for n, *_ in run.incumbents()] == [2, 4]
        assert run.best_at(1) is None and run.best_at(6) is None
        second, fourth = (_trial(number, None).configuration for number in (2, 4))
        assert run.best_at(3) == second and run.best_at(5) == fourth
        assert script.first_at(run, {second: 0.5, fourth: 0.96}) == {"trials": 4, "seconds": 40.0}
        assert script.first_at(run, {second: 0.5, fourth: 0.94}) is None

    def test_a_size_that_never_got_there_counts_with_all_it_spent(self) -> None:
        reached = {"trials": 40, "seconds": 9.0, "to_target": {"trials": 4, "seconds": 1.0}, "last": 1.0}
        missed = {"trials": 40, "seconds": 9.0, "to_target": None, "last": 0.9}
        total = load("bench_real_search").size_total([{"one_run": reached, "alone": missed}])
        assert (total["one_run"]["reached"], total["one_run"]["trials"], total["one_run"]["seconds"]) == (1, 4, 1.0)
        assert (total["alone"]["reached"], total["alone"]["trials"], total["alone"]["seconds"]) == (0, 40, 9.0)

    def test_the_comparison_is_by_times_of_its_own_and_knows_who_fails(self, tmp_path: Path) -> None:
        script = load("bench_real_search")
        fast, slow, wrong = (_trial(number, None).configuration for number in (2, 4, 8))
        answers: dict[Configuration, float | TrialState] = {fast: 10.0, slow: 40.0, wrong: TrialState.WRONG_RESULT}

        def measure(job: Job) -> float | TrialState:
            return answers[job.configuration]

        worker = FakeWorker(measure)
        place = self._place(script, worker, tmp_path)
        problem = GemmProblem(m=64, n=64, k=64)
        found = script.compare(place, problem, [slow, fast, wrong, slow], rounds=3)
        assert found == {slow: 0.25, fast: 1.0, wrong: 0.0}
        assert len(worker.jobs) == 18, "three rounds to find the fastest, and three to compare"
        assert [job.configuration for job in worker.jobs[3:6]] == [fast, wrong, slow], "another first in every round"

    def test_one_run_passes_on_what_it_learns_and_searches_alone_do_not(self, tmp_path: Path) -> None:
        script = load("bench_real_search")
        seen: list[Configuration] = []

        def measure(job: Job) -> float:
            seen.append(job.configuration)
            return 1.0 if seen.index(job.configuration) == 2 else 5.0

        worker = FakeWorker(measure)
        place = self._place(script, worker, tmp_path)
        first, second = GemmProblem(m=64, n=64, k=64), GemmProblem(m=64, n=64, k=72)
        with Store.open(tmp_path / "one.sqlite") as store:
            script.search(place, first, store, 3, 0)
            knowing = script.search(place, second, store, 3, 0)
        alone = script.search_alone(place, second, 3, 0)
        winner = seen[2]
        assert [run.trials[1][0].configuration == winner for run in (knowing, alone)] == [True, False]
        assert len(knowing.trials) == len(alone.trials) == 3


class TestJournal:
    """Of the launches of workers, beside what was in flight: worker, from, to."""

    SUBJECT = ("slug", "driver", "problem", "configuration")

    def _disagreements(self, lines: list[tuple[str, float, str]], flights: list[Any], **others: Any) -> list[str]:
        script = load("chaos_journal.py")
        told = [script.Line(worker="w0", what=w, at=at, id=i, subject=self.SUBJECT) for w, at, i in lines]
        server = type("Flights", (), {"execute": lambda _, __: [(*self.SUBJECT, *flight) for flight in flights]})()
        found: list[str] = script.disagreements(
            told, server, others.get("stored", {self.SUBJECT}), others.get("lost", {}), all_stored=True
        )
        return found

    def test_a_launch_belongs_to_one_flight_and_a_flight_to_one_launch(self) -> None:
        flights = [("w0", 1.0, 2.0), ("w1", 3.0, None)]
        assert self._disagreements([("launched", 1.5, "a")], flights) == []
        [late] = self._disagreements([("launched", 2.5, "a")], flights)
        assert "not in flight" in late
        [elsewhere] = self._disagreements([("launched", 3.5, "a")], flights)
        assert "not in flight" in elsewhere
        [twice] = self._disagreements([("launched", 1.5, "a"), ("launched", 1.6, "b")], flights)
        assert "launched 2 times in one flight" in twice
        again = self._disagreements([("launched", 1.5, "a"), ("launched", 1.6, "a")], flights)
        assert "a was launched 2 times" in again

    def test_what_was_reported_is_stored_and_not_in_quarantine(self) -> None:
        told = [("launched", 1.5, "a"), ("reported", 1.9, "a")]
        assert self._disagreements(told, [("w0", 1.0, 2.0)]) == []
        [blamed] = self._disagreements(told, [("w0", 1.0, 2.0)], lost={self.SUBJECT: "lost with w0"})
        assert "is in quarantine (lost with w0)" in blamed
        assert (
            self._disagreements(told, [("w0", 1.0, 2.0), ("w0", 3.0, 4.0)], lost={self.SUBJECT: "lost with w0"}) == []
        )
        [gone] = self._disagreements(told, [("w0", 1.0, 2.0)], stored=())
        assert "not stored" in gone


@pytest.mark.parametrize("by_ptx", [False, True])
def test_kernel_files_of_ggml_for_devices_without_names_for_sub_groups(tmp_path: Path, by_ptx: bool) -> None:
    script = load("bench_ggml")
    extensions = ("cl_nv_device_attribute_query",) if by_ptx else ()
    device = replace(INVENTED_PROCESSOR, limits=DeviceLimits(extensions=extensions, has_float16=by_ptx))
    (tmp_path / "sources").mkdir()
    source = "REQD_SG\nglobal float4 *o = (global float4 *)(rec + 2);\n(ACC_TYPE) mask_ptr[j + 1] + (half4)(0.0h)"
    (tmp_path / "sources" / "flash_attn_f16.cl").write_text(source)
    edited = "\nglobal float4 *o = (global float4 *)(rec + 4);\nvload_half(j + 1, mask_ptr) + (ushort4)(0)"
    for name in (*script.RIVALS, *script.ATTENTION):
        folder = tmp_path / name
        folder.mkdir()
        file = read_kernel_file(script.adapted(device, tmp_path / "sources", folder, name))
        assert file.sources[0] == "ggml_shims.cl" and (folder / file.sources[0]).is_file()
        assert ("-DBY_PTX=1" in file.build_options) == by_ptx
        assert not {"sub_groups", "dot"} & file.constraints.keys()
        widths = {v for n, values in file.parameters.items() if n.endswith("WIDTH") for v in values}
        assert not by_ptx or not widths or max(widths) == 32
        groups = [values for n, values in file.parameters.items() if n in ("N_SIMDGROUP", "N_SG_Q8_0")]
        assert by_ptx or all(values == (1,) for values in groups)
        assert file.parameters.get("FA_SG", (32,)) == (32,) or not by_ptx
        assert (folder / "ggml" / "flash_attn_f16.cl").read_text() == edited
