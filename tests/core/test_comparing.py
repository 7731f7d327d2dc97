"""Comparing with the host's BLAS after a search: what is chosen and kept, and that it costs no result."""

import os
import sys
from pathlib import Path

import pytest

import factories
from autotune.cli import main
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Winner
from autotune.runtime import Crossover, CrossoverPoint, Gemm
from autotune.runtime.comparison import HOST_THREADS, MOST_PRODUCTS, choose_products, compare_with_host
from autotune.runtime.crossover import default_file, file_of
from autotune.search import finals

NAIVE = Configuration.of("naive", work_group_m=0, work_group_n=0)


def winner(problem: GemmProblem | ReduceProblem, time_ns: float = 1e5) -> Winner:
    return factories.winner("pocl-test", problem, NAIVE, time_ns)


def test_a_few_that_are_quick_to_measure_are_chosen_from_small_to_large() -> None:
    sizes = [GemmProblem(m=n, n=n, k=n) for n in range(10, 200, 10)]
    dear = [
        winner(GemmProblem(m=5, n=5, k=5), 1e9),
        winner(GemmProblem(m=8192, n=8192, k=8192)),
        winner(GemmProblem(m=6, n=6, k=6, ldc=9)),
        winner(GemmProblem(m=6, n=6, k=6, mode="float16-acc16")),
        winner(ReduceProblem(batch=6, channels=6)),
    ]
    chosen = choose_products([*map(winner, sizes), *dear])
    assert len(chosen) == MOST_PRODUCTS and chosen == sorted(chosen, key=lambda p: p.flops)
    assert (chosen[0], chosen[-1]) == (sizes[0], sizes[-1])
    assert choose_products([winner(sizes[3])]) == [sizes[3]]
    assert choose_products(dear) == []


def test_a_child_that_dies_costs_nothing(tmp_path: Path) -> None:
    device = factories.device("pocl-test", family="cpu", selector="0:0")
    problem = winner(GemmProblem(m=4, n=4, k=4))
    command = (sys.executable, "-c", "import os; os._exit(3)")
    assert compare_with_host(device, [problem], tmp_path / "x.sqlite", command=command) == []
    assert compare_with_host(device, [problem], tmp_path / "x.sqlite", should_stop=lambda: True) == []


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_the_hosts_blas_has_the_threads_of_an_application(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], expected: str
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", HOST_THREADS):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["presets", "bert-base"]) == 0  # sets the threads of the command itself
    code = (
        f"import os, pathlib; pathlib.Path({str(tmp_path / 'told')!r}).write_text(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    device = factories.device("pocl-test", family="cpu", selector="0:0")
    command = (sys.executable, "-c", code)
    assert compare_with_host(device, [winner(GemmProblem(m=4, n=4, k=4))], tmp_path / "x", command=command) == []
    assert (os.environ["OPENBLAS_NUM_THREADS"], (tmp_path / "told").read_text()) == (
        expected.replace("0", "1"),
        expected,
    )


def test_new_points_take_the_place_of_former_ones() -> None:
    small, large = (CrossoverPoint(problem=GemmProblem(m=n, n=n, k=n), host_ns=1.0, device_ns=2.0) for n in (8, 64))
    again = CrossoverPoint(problem=small.problem, host_ns=3.0, device_ns=2.0)
    assert Crossover(points=(again,)).over(Crossover(points=(small, large))).points == (again, large)


@pytest.mark.long
def test_a_run_notes_where_the_host_is_faster_and_gemm_asks(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(finals, "MOST_SECONDS", 3.0)
    database = tmp_path / "tuned.sqlite"
    small = ["--shape", "16,16,16", "--trials", "1", "--algorithm", "naive"]
    run = ["run", "--device", pocl.slug, *small, "--db", str(database), "--quiet"]
    assert main([*run, "--no-crossover"]) == 0
    place = file_of(database)
    assert place == tmp_path / "tuned.crossover.json" and not place.exists()
    assert main(run) == 0
    (point,) = Crossover.read(pocl.slug, place).points
    assert point.problem == GemmProblem(m=16, n=16, k=16)
    assert point.host_ns > 0 and point.device_ns > 0
    assert not default_file().exists()
    gemm = Gemm(pocl.slug, table=database)
    gemm.finish()
    assert gemm._crossover.prefers_host(point.problem) == (point.host_ns < point.device_ns)
    assert Gemm(pocl.slug, table=database, host_blas=False)._crossover is Crossover.NEVER
