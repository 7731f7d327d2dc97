"""The reduce family: problems, constraints and defaults; every kernel right on a real device; the judge itself."""

import dataclasses
import itertools
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.device.profile import _read, profile_names
from autotune.errors import ProblemError
from autotune.kernels import family_names, find_family
from autotune.kernels.reduce import FAMILY, Reduce, ReduceProblem
from autotune.kernels.reduce.plan import PLAN
from autotune.kernels.reduce.problem import DTYPES, OPERATIONS
from autotune.kernels.reduce.reference import ReduceCase
from autotune.kernels.render import template_hash
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Job, Request, Trial, TrialState
from autotune.search import Budget, tune
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from factories import LARGE_GPU, PROCESSOR, find_wrong, first_short, quick_job, read_shape, spoil_sources
from fakes import FakeWorker

ROOT = Path(__file__).resolve().parents[2]

SMALLEST = DeviceLimits(max_work_group_size=1, max_work_item_sizes=(1, 1, 1), local_memory_bytes=0)
PHONE = DeviceLimits(compute_units=4, has_sub_groups=True, local_memory_bytes=32 * 1024)
DEVICES = {"smallest": SMALLEST, "phone": PHONE, "processor": PROCESSOR, "large": LARGE_GPU}

SIZES = [(1, 1), (1, 2), (3, 7), (512, 768), (1, 10_000_000), (100_000, 64), (4096, 4096), (7, 65_537), (2**20, 1)]


def measure(measurer: Measurer, problem: ReduceProblem, configuration: Configuration, seed: int = 1) -> Trial:
    return measurer.measure(quick_job("", problem, configuration, seed=seed))


class TestProblem:
    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("512,768", "512x768 sum"),
            ("512x768", "512x768 sum"),
            (" 512 , 768 , mean ", "512x768 mean"),
            ("1,10000000,max", "1x10000000 max"),
            ("2X3,MIN,Float16", "2x3 min float16"),
            ("512x768 max float16", "512x768 max float16"),
        ],
    )
    def test_is_read_from_text(self, text: str, label: str) -> None:
        assert read_shape(ReduceProblem, text).label == label

    @pytest.mark.parametrize(
        "text",
        [
            "", ",", "512", "512,", "512,768,", "512,768,product", "512,768,sum,float64", "512,768,float16", "0,5",
            "5,0", "-1,5", "1.5,2", "1,2,3", "sum", "1e3,5", "9" * 30 + ",1", "2147483648,1", "1,2147483648",
            "\u0661,\u0662", "5,5,sum,float16,extra", "5;5", "x" * 10**6, "1," * 10**6, "1, " + " " * 10**6 + "2",
        ],
    )  # fmt: skip
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            ReduceProblem.parse(text)
        assert len(str(caught.value)) < 250

    def test_refuses_wrong_fields(self) -> None:
        for wrong in ({"pitch": 4}, {"pitch": -1}, {"pitch": 2**31}, {"operation": "x" * 999}, {"dtype": "int8"}):
            with pytest.raises(ProblemError):
                ReduceProblem.from_dict({"batch": 2, "channels": 5, **wrong})
        for lacking in ({"batch": 2}, {"batch": "2", "channels": 5}, {"batch": 2, "channels": 5, "n": 1}):
            with pytest.raises(ProblemError):
                ReduceProblem.from_dict(lacking)

    def test_tells_its_sizes(self) -> None:
        problem = ReduceProblem(batch=3, channels=5, dtype="float16", pitch=8)
        assert problem.label == "3x5 sum float16 pitch=8"
        assert problem.size_vector == (3, 5)
        assert problem.flops == 15
        assert problem.bytes_moved == 2 * (15 + 3)
        assert ReduceProblem(batch=3, channels=5).pitch == 5
        assert ReduceProblem(batch=3, channels=5) == ReduceProblem(batch=3, channels=5, pitch=5)

    def test_is_comparable_with_the_same_operation_and_type_only(self) -> None:
        problem = ReduceProblem(batch=3, channels=5)
        assert problem.is_comparable(ReduceProblem(batch=9, channels=9))
        assert not problem.is_comparable(ReduceProblem(batch=3, channels=5, operation="max"))
        assert not problem.is_comparable(ReduceProblem(batch=3, channels=5, dtype="float16"))

    def test_must_fit_the_device(self) -> None:
        limits = DeviceLimits(max_allocation_bytes=1000, global_memory_bytes=1500)
        ReduceProblem(batch=10, channels=25).check_device(limits)
        for batch, channels in ((10, 26), (2**31 - 1, 2**31 - 1)):
            with pytest.raises(ProblemError, match="allocates at most"):
                ReduceProblem(batch=batch, channels=channels).check_device(limits)
        with pytest.raises(ProblemError, match="device has"):
            ReduceProblem(batch=200, channels=1).check_device(dataclasses.replace(limits, global_memory_bytes=1500))
        ReduceProblem(batch=200, channels=1).check_device(dataclasses.replace(limits, global_memory_bytes=1600))


class TestConfigurations:
    def test_the_family_is_found_by_its_file(self) -> None:
        assert "reduce" in family_names()
        assert find_family("reduce") is FAMILY
        hashes = {template_hash(FAMILY, algorithm.name) for algorithm in FAMILY.algorithms}
        assert len(hashes) == len(FAMILY.algorithms) == 5

    @pytest.mark.parametrize("sizes", first_short([(sizes,) for sizes in SIZES], 3))
    @pytest.mark.parametrize("device", DEVICES)
    def test_baseline_and_default_are_legal_everywhere(self, device: str, sizes: tuple[int, int]) -> None:
        limits = DEVICES[device]
        for operation, dtype, gap in itertools.product(OPERATIONS, DTYPES, (0, 3)):
            problem = ReduceProblem(
                batch=sizes[0], channels=sizes[1], operation=operation, dtype=dtype, pitch=sizes[1] + gap
            )
            assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
            assert FAMILY.violations(problem, FAMILY.default(problem, limits, ()), limits) == []
            assert len(SearchSpace(FAMILY, problem, limits)) >= 2

    @pytest.mark.parametrize(
        ("device", "sizes", "algorithm"),
        [
            ("large", (512, 768), "local_tree"),
            ("large", (1, 10_000_000), "split_row"),
            ("large", (100_000, 64), "local_tree"),
            ("processor", (1, 10_000_000), "split_row"),
            ("processor", (100_000, 64), "serial"),
            ("phone", (2, 1), "serial"),
        ],
    )
    def test_the_rule_fits_the_size(self, device: str, sizes: tuple[int, int], algorithm: str) -> None:
        problem = ReduceProblem(batch=sizes[0], channels=sizes[1])
        assert FAMILY.default(problem, DEVICES[device], ()).algorithm == algorithm

    def test_a_legal_start_comes_before_the_rule(self) -> None:
        problem = ReduceProblem(batch=512, channels=768)
        starts = _read("nvidia").profile.starting("reduce")
        assert FAMILY.default(problem, LARGE_GPU, starts).algorithm == "shuffle"
        assert FAMILY.default(problem, dataclasses.replace(LARGE_GPU, extensions=()), starts).algorithm == "local_tree"
        long = ReduceProblem(batch=1, channels=10_000_000)
        assert FAMILY.default(long, LARGE_GPU, starts).number("parts") == 512

    @pytest.mark.parametrize("name", profile_names())
    def test_starts_of_the_profiles_are_legal_for_some_problem(self, name: str) -> None:
        problems = [ReduceProblem(batch=batch, channels=channels) for batch, channels in SIZES]
        typical = {"nvidia": LARGE_GPU, "cpu": PROCESSOR}.get(name, PHONE)
        for start in _read(name).profile.starting("reduce"):
            assert any(not FAMILY.violations(problem, start, typical) for problem in problems), start

    def test_what_a_device_lacks_is_not_proposed(self) -> None:
        problem = ReduceProblem(batch=64, channels=4096)
        offered = {c.algorithm for c in SearchSpace(FAMILY, problem, PHONE)}
        assert offered == {"serial", "local_tree", "sub_group", "split_row"}
        assert "shuffle" in {c.algorithm for c in SearchSpace(FAMILY, problem, LARGE_GPU)}
        assert {c.algorithm for c in SearchSpace(FAMILY, problem, SMALLEST)} == {"serial"}

    def test_aligned_loads_need_a_pitch_of_whole_vectors(self) -> None:
        aligned = Configuration.of("serial", work_group_size=0, vector_width=4, unroll=1, loads="aligned")
        assert FAMILY.violations(ReduceProblem(batch=5, channels=9, pitch=12), aligned, PHONE) == []
        assert FAMILY.violations(ReduceProblem(batch=5, channels=12, pitch=13), aligned, PHONE)


# Kernels that need what PoCL lacks run there too, with the missing instruction spelled another way.


def sub_groups_of_one(source: str) -> str:
    """A sub-group of one work-item is one that the standard allows."""
    return (
        """
#define get_sub_group_size() 1u
#define get_sub_group_local_id() 0u
#define get_sub_group_id() ((uint)get_local_id(0))
#define get_num_sub_groups() ((uint)get_local_size(0))
#define sub_group_any(x) (x)
#define sub_group_reduce_add(x) (x)
#define sub_group_reduce_max(x) (x)
#define sub_group_reduce_min(x) (x)
"""
        + source
    )


def shuffle_through_local_memory(source: str) -> str:
    """Exchange values as PTX describes its instruction: a lane beyond the last one that `c` allows is not read."""
    source = re.sub(
        r"float from_lane[^}]*?shfl\.sync\.bfly\.b32 %0, %1, %2, (\w+), 0xffffffff;.*?\n}\n",
        r"#define LAST_LANE(lane) (((lane) & (\1 >> 8)) | (\1 & 31 & ~(\1 >> 8)))\n",
        source,
        flags=re.DOTALL,
    )
    source = source.replace("    const uint item =", "    __local float seen[1024];\n    const uint item =")
    exchanged, count = re.subn(
        r"total = join\(total, from_lane\(total, (\d+)\)\);",
        r"seen[item] = total; barrier(CLK_LOCAL_MEM_FENCE); "
        r"const float other_\1 = (item ^ \1) % 32 <= LAST_LANE(item % 32) ? seen[item ^ \1] : total; "
        r"barrier(CLK_LOCAL_MEM_FENCE); total = join(total, other_\1);",
        source,
    )
    assert count
    return "\n".join(
        line if line.count("other_") == 0 else f"    {{ {line.strip()} }}" for line in exchanged.splitlines()
    )


@pytest.mark.parametrize("shape", ["65,33,max", "33,130,mean", "7,768,min", "100,64,sum,float16", "2,5000,max,float16"])
@pytest.mark.parametrize(
    ("algorithm", "emulated"), [("sub_group", sub_groups_of_one), ("shuffle", shuffle_through_local_memory)]
)
def test_what_needs_other_hardware_is_right_in_emulation(
    measurer: Measurer,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    algorithm: str,
    emulated: Callable[[str], str],
) -> None:
    spoil_sources(monkeypatch, emulated)
    monkeypatch.setattr(Reduce, "plan", lambda _, *given: dataclasses.replace(PLAN.plan(*given), build_options=()))
    draw = random.Random(shape)
    problem = ReduceProblem.parse(shape)
    limits = dataclasses.replace(LARGE_GPU, has_sub_groups=True)
    space = SearchSpace(FAMILY, problem, limits, algorithms=[algorithm])
    for row in draw.sample(range(len(space)), 2):
        trial = measure(measurer, problem, space[row], draw.randrange(1000))
        assert trial.state is TrialState.COMPLETE, (space[row], trial.message)


TREE = Configuration.of(
    "local_tree", work_group_size=32, rows_per_group=4, vector_width=4, unroll=2, loads="vload", fan_in=2
)
SPLIT = Configuration.of(
    "split_row", work_group_size=1, parts=4, vector_width=4, unroll=2, loads="vload", combine="launch"
)

WRONG: dict[str, tuple[Configuration, str, Callable[[str], str]]] = {
    "elements behind the last vector are left out": (
        TREE, "sum", lambda s: s.replace("for (uint e =", "for (; 0;) for (uint e =")
    ),
    "the last pass is left out": (TREE, "sum", lambda s: s.replace("i + 0 * lanes < vectors\n", "0\n")),
    "an element is counted twice": (
        TREE, "sum", lambda s: s.replace("vectors * 4 + lane;", "vectors * 4 + lane - !lane;")
    ),
    "one level of the tree is left out": (TREE, "sum", lambda s: s.replace("part[item + 2]", "0.0f")),
    "rows are swapped": (TREE, "sum", lambda s: s.replace("min(row,", "min(row ^ 1,")),
    "the gap between rows is read": (TREE, "sum", lambda s: s.replace("(uint)(channels)", "(uint)(pitch)")),
    "the mean is not divided": (TREE, "mean", lambda s: s.replace("total / (float)channels", "total")),
    "NaN is passed over by max": (
        TREE, "max", lambda s: re.sub(r"return select.*;", "return fmax(a, b);", s)
    ),
    "min begins with a number": (TREE, "min", lambda s: s.replace("(INFINITY)", "(FLT_MAX)")),
    "min is max": (TREE, "min", lambda s: s.replace("isless", "isgreater")),
    "a row more is written": (TREE, "sum", lambda s: s.replace("row < (uint)batch", "row < (uint)batch + 1")),
    "nothing is written": (TREE, "sum", lambda s: s.replace("*(output + row)", "*part")),
    "the last part is left out": (SPLIT, "sum", lambda s: s.replace("p < 4;", "p < 3;")),
    "the parts overlap": (SPLIT, "sum", lambda s: s.replace("lanes = 4;", "lanes = 3;")),
}  # fmt: skip


@pytest.mark.parametrize("fault", first_short(WRONG))
def test_wrong_kernels_are_found(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    right, operation, spoil = WRONG[fault]
    problem = ReduceProblem(batch=14, channels=99, operation=operation, pitch=104)
    find_wrong(measurer, monkeypatch, problem, right, spoil)


class TestJudge:
    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("seed", [2, 3])
    def test_accepts_numpy_and_finds_one_wrong_row(self, operation: str, dtype: str, seed: int) -> None:
        problem = ReduceProblem(batch=70, channels=300, operation=operation, dtype=dtype, pitch=301)
        case = ReduceCase(problem, seed)
        rows = case.inputs["input"][:, :300]
        with np.errstate(invalid="ignore"):
            right = getattr(rows.astype(np.float32), operation)(axis=1).astype(dtype)
        assert case.error_ratio({"output": right}) <= 0.5
        finite = np.flatnonzero(np.isfinite(right))
        for change in (0.125, np.nan, np.inf):
            wrong = right.copy()
            wrong[finite[-1]] += np.float32(change) / (300 if operation == "mean" else 1)
            if wrong[finite[-1]] != right[finite[-1]]:
                assert case.error_ratio({"output": wrong}) > 1 or dtype == "float16"
        assert case.error_ratio({"output": np.zeros_like(right)}) > 1
        assert case.error_ratio({"output": case.inputs["output"]}) == math.inf, "an output never written"

    def test_one_element_missing_of_millions_shows(self) -> None:
        case = ReduceCase(ReduceProblem(batch=1, channels=3_000_000), 4)
        row = case.inputs["input"][0]
        for missing in (0, 1_234_567, 2_999_999):
            total = np.float32(row.astype(np.float64).sum() - row[missing])
            assert case.error_ratio({"output": np.array([total])}) > 1
        assert case.error_ratio({"output": np.array([row.astype(np.float64).sum()], np.float32)}) == 0

    def test_sequential_float32_sums_pass_in_every_row(self) -> None:
        for channels in (1, 2, 5, 64, 1000):
            case = ReduceCase(ReduceProblem(batch=300_000 // channels, channels=channels), 7)
            sequential = np.cumsum(case.inputs["input"], axis=1, dtype=np.float32)[:, -1]
            assert case.error_ratio({"output": sequential}) <= 1

    def test_special_values_must_come_out_as_they_are(self) -> None:
        case = ReduceCase(ReduceProblem(batch=40, channels=10, operation="max"), 5)
        right = case.inputs["input"].max(axis=1)
        assert np.isnan(right).any() and np.isposinf(right).any()
        assert case.error_ratio({"output": right}) == 0
        assert case.error_ratio({"output": np.nanmax(case.inputs["input"], axis=1)}) == math.inf
        assert case.error_ratio({"output": np.nan_to_num(right, nan=np.nan, posinf=1e30)}) == math.inf

    def test_rows_that_come_again_are_judged_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ReduceCase, "DISTINCT_ELEMENTS", 1000)
        case = ReduceCase(ReduceProblem(batch=50, channels=99, pitch=100), 2)
        rows = case.inputs["input"]
        assert rows.shape == (50, 100)
        assert np.array_equal(rows[:10], rows[40:], equal_nan=True)
        right = rows[:, :99].sum(axis=1)
        assert case.error_ratio({"output": right}) == 0
        right[49] += 0.125
        assert case.error_ratio({"output": right}) > 1

    def test_inputs_are_fresh_for_each_seed_and_equal_for_one(self) -> None:
        problem = ReduceProblem(batch=8, channels=5, pitch=7)
        first, again, other = (ReduceCase(problem, seed).inputs["input"] for seed in (4, 4, 6))
        assert np.array_equal(first, again, equal_nan=True)
        assert not np.array_equal(first, other, equal_nan=True)
        assert np.isnan(first[:, 5:]).all(), "a kernel that reads the gap between rows shall fail"


def test_search_and_store_take_the_family_as_any_other(tmp_path: Path) -> None:
    def time_of(job: Job) -> float | TrialState:
        return 5000.0 / job.configuration.number("vector_width")

    device = Device(slug="a-b", vendor="a", model="b", family="gpu", selector="0:0", limits=PHONE)
    store = Store.open(tmp_path / "reduce.sqlite")
    problem = ReduceProblem(batch=512, channels=768, operation="max", dtype="float16")
    outcomes = tune(device, [Request(problem=problem)], store, Budget(trials=20), worker=FakeWorker(time_of))
    [winner] = store.best("a-b", "reduce")
    assert outcomes[0].winner is not None
    assert winner.problem == problem
    assert winner.configuration == outcomes[0].winner.configuration
    assert winner.configuration.number("vector_width") >= 8


def benchmarked(script: str, device: Device, folder: Path, *shapes: str) -> list[Any]:
    """The rows of a benchmark of these shapes, which are printed and written as JSON."""
    target = folder / "bench.json"
    command = [sys.executable, f"{ROOT}/scripts/{script}", "--device", device.selector, "--json", str(target)]
    named = [word for shape in shapes for word in ("--shape", shape)]
    done = subprocess.run([*command, "--budget", "0", "--rounds", "2", *named], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows: list[Any] = json.loads(target.read_text())["results"]
    for row in rows:
        assert row["shape"] in done.stdout and row["call_us"] > 0 and row["rival_call_us"] > 0 and row["of_copy"] > 0
        assert math.isclose(row["times_rival"], row["rival_call_us"] / row["call_us"])
    return rows


@pytest.mark.long
def test_the_benchmark_compares_and_writes_json(pocl: Device, tmp_path: Path) -> None:
    [row] = benchmarked("bench_reduce", pocl, tmp_path, "2000,300,mean")
    assert row["shape"] == "2000x300 mean"
