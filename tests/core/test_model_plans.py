"""The command `autotune model`: tables, shapes, plans and tuning."""

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.kernels import find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.shapes import read_shapes
from autotune.model.device import Device, DeviceLimits
from autotune.model.machine import Rates
from autotune.model.trial import Request
from autotune.networks.estimate import Prospects
from autotune.networks.operation import Operation, other, product, step
from autotune.store import Store
from factories import Run
from model_files import llama, won


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(llama(256, 2, 4, 2, 512, 1000)))
    return tmp_path


def test_the_command_lists_shares_and_what_has_no_kernel(small: Path, run: Run) -> None:
    shown = run(["model", str(small), "--depth", "64"]).out
    assert "llama, 2 layers of 256" in shown and "one token with 64 in the cache" in shown
    assert "query, attention output" in shown and "4/2,1,64,64 causal" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("add "))
    assert line.endswith("no kernel here") and "several" in line
    assert "without a kernel here: " in shown and "weights: " in shown
    listed = json.loads(run(["model", str(small), "--depth", "64", "--json"]).out)
    (one,) = (one for one in listed["steps"][0]["operations"] if one["label"] == "output")
    assert (one["family"], one["calls"], one["problem"]["n"], one["flops"]) == ("gemm", 1, 1000, 512_000)


def test_shapes_are_files_that_a_run_reads(small: Path, run: Run) -> None:
    said = run(["model", str(small), "--prompt", "8", "--shapes", str(small / "shapes.txt")]).err
    for family, least in (("gemm", 4), ("attention", 1), ("rows", 4)):
        path = small / f"shapes.{family}.txt"
        assert f"autotune run --family {family} --shapes {path}" in said
        found = read_shapes(path, find_family(family).problem_type)
        assert len(found) >= least
        assert all(one.problem.family == family and one.calls >= 1 and one.label for one in found)
    assert sum(one.calls for one in read_shapes(small / "shapes.gemm.txt")) == 2 * 7 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "224"], "expected height and width, got '224'"),
        (["--tune"], "--tune and --plan need a device"),
        (["--prompt", "0"], "expected an integer from 1"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str, small: Path, run: Run) -> None:
    assert message in run(["model", str(small), *arguments], 2).err


def test_onnx_asks_for_its_package(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "pip install 'opencl-autotune[onnx]'" in run(["model", str(tmp_path / "model.onnx")], 2).err


# Plans

RATES = Rates(buffer=10.0, float32=100.0, launch_ns=1000.0)


def gemv(k: int) -> Operation:
    return product("up", 1, 512, k).times(3)


def least_ns(operation: Operation) -> float:
    """Of one call: all these are limited by memory."""
    assert operation.problem is not None
    return operation.problem.bytes_moved / 10


def test_what_was_measured_and_what_is_like_it() -> None:
    known, unknown, add = gemv(256), gemv(1024), other("add", 1000, reads=2)
    assert known.problem is not None and unknown.problem is not None
    winner = won(known.problem, time_ns=2 * least_ns(known), default_ns=4 * least_ns(known))
    prospects = Prospects([winner], RATES, DeviceLimits())
    first, second, third = prospects.of_step(step("any", [known, unknown, add], 1, "tokens"))
    assert first.is_measured and not second.is_measured and not third.is_measured
    for one, operation in ((first, known), (second, unknown)):
        times = [n * 3 * least_ns(operation) for n in (4, 2, 1)]
        assert [one.now_ns, one.tuned_ns, one.possible_ns] == pytest.approx(times)
    assert third.now_ns == third.tuned_ns == third.possible_ns == pytest.approx(3 * 4 * 1000 / 10)


def test_nothing_is_estimated_without_rates_or_measurements() -> None:
    known, unknown = gemv(256), gemv(1024)
    assert known.problem is not None
    without_rates = Prospects([won(known.problem, 5.0, 7.0)], Rates(), DeviceLimits())
    first, second = without_rates.of_step(step("any", [known, unknown], 1, "tokens"))
    assert (first.now_ns, first.tuned_ns) == (21.0, 15.0) and math.isnan(first.possible_ns)
    assert math.isnan(second.now_ns) and math.isnan(second.possible_ns)
    (only,) = Prospects([], RATES, DeviceLimits()).of_step(step("any", [unknown], 1, "tokens"))
    assert math.isnan(only.now_ns) and only.possible_ns == pytest.approx(3 * least_ns(unknown))


def test_a_cache_goes_beyond_the_rate_of_memory() -> None:
    known = gemv(256)
    assert known.problem is not None
    winner = won(known.problem, time_ns=least_ns(known) / 2, default_ns=least_ns(known))
    (found,) = Prospects([winner], RATES, DeviceLimits()).of_step(step("any", [known], 1, "tokens"))
    assert found.possible_ns == found.tuned_ns == pytest.approx(1.5 * least_ns(known))


def test_formats_of_weights_are_compared_where_they_were_measured() -> None:
    one = product("up", 1, 512, 1024, weights="q4_0").times(2)
    asked = step("any", [one, product("up", 16, 512, 1024, weights="q4_0")], 1, "tokens")
    (single,) = (step("any", [one], 1, "tokens"),)
    problems = {name: QGemmProblem(m=512, n=1, k=1024, weights=name) for name in ("q4_0", "q8_0", "q4_k")}
    winners = [
        won(problems["q4_0"], 4 * problems["q4_0"].bytes_moved / 10, 1e9),
        won(problems["q8_0"], 1.5 * problems["q8_0"].bytes_moved / 10, 1e9),
    ]
    formats = Prospects(winners, RATES, DeviceLimits()).of_formats(single)
    assert formats == pytest.approx({"q4_0": 2 * winners[0].time_ns, "q8_0": 2 * winners[1].time_ns})
    assert Prospects(winners, RATES, DeviceLimits()).of_formats(asked) == {}, "nothing of many tokens was measured"


def test_the_command_prints_a_plan(small: Path, run: Run, pocl: Device, tmp_path: Path) -> None:
    place = str(tmp_path / "store.sqlite")
    with Store.open(place) as store:
        store.add_device(pocl)
    bare = run(["model", str(small), "--depth", "64", "--plan", "--device", pocl.slug, "--db", place])
    assert "limits of" in bare.err and "nothing is tuned" in bare.err and "nothing is known" in bare.out
    problem = GemmProblem.parse("1,1000,256 nt constant=b")
    with Store.open(place) as store:
        store.keep_rates(pocl, RATES)
        store.record_winner(replace(won(problem, 5e5, 1e6), device=pocl.slug))
    arguments = ["model", str(small), "--depth", "64", "--plan", "--device", pocl.slug, "--db", place]
    shown = run(arguments).out
    (line,) = (line for line in shown.splitlines() if line.startswith("output "))
    assert "1 ms" in line and "500 us" in line and "~" in line
    assert "tokens/s now" in shown and "possible" in shown
    assert "weights: 6.453 MiB; keys and values: 128 KiB; the device has" in shown
    (plan,) = json.loads(run([*arguments, "--json"]).out)
    (output,) = (one for one in plan["operations"] if one["operation"]["label"] == "output")
    assert (output["now_ns"], output["tuned_ns"], output["is_measured"]) == (1e6, 5e5, True)


def test_all_families_are_tuned_at_once(small: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[argparse.Namespace, list[Request]]] = []

    def tune(options: argparse.Namespace, own: list[Request], others: list[Request]) -> int:
        asked.append((options, others))
        return 0

    monkeypatch.setattr("autotune.cli.run.tune_requests", tune)
    run(["model", str(small), "--depth", "64", "--tune", "--device", "cpu", "--budget", "5s", "--db", "x.sqlite"])
    ((options, requests),) = asked
    assert (options.device, options.budget, options.db, options.sampler) == ("cpu", 5.0, "x.sqlite", "ours")
    assert {one.problem.family for one in requests} == {"gemm", "attention", "rows"}
    assert {one.problem.label: one.calls for one in requests}["1x512x256 nt constant=b"] == 4
