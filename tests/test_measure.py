"""Rendering, building, verifying and timing on a real device; and that the judge finds what is wrong."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import autotune.measure
from autotune.device.session import Session
from autotune.errors import BuildError, DeviceSelectionError, KernelError
from autotune.family import Buffer, Configuration, Device, KernelFamily, Plan, Problem, Role
from autotune.kernels.gemm import FAMILY, Gemm, GemmProblem
from autotune.kernels.gemm.planning import plan_gemm
from autotune.kernels.gemm.reference import GemmCase
from autotune.measure import Measurer, _Sample
from autotune.render import render, template_hash
from autotune.space import SearchSpace
from autotune.trial import Job, Timer, Trial, TrialState

SHAPES = (
    "1,1,1",
    "7,5,3",
    "65,33,17",
    "1,512,512",
    "512,1,512",
    "33,130,70 tn batch=3",
    "6,7,20 lda=24 ldb=9 ldc=11",
    "20,36,40 nt float16",
    "37,21,50 tt int8 batch=2 stride_c=800",
)


@pytest.fixture(scope="module")
def measurer(pocl: Device) -> Measurer:
    return Measurer(Session(pocl.selector))


def quick(device: Device, problem: GemmProblem, configuration: Configuration, seed: int = 1) -> Job:
    return Job(
        selector=device.selector,
        problem=problem,
        configuration=configuration,
        seed=seed,
        samples=1,
        min_sample_ns=1000,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_of_every_algorithm_is_right(pocl: Device, measurer: Measurer, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    draw = random.Random(shape)
    for algorithm in FAMILY.algorithms:
        space = SearchSpace(FAMILY, problem, pocl.limits, algorithms=[algorithm.name])
        for row in draw.sample(range(len(space)), min(2, len(space))):
            trial = measurer.measure(quick(pocl, problem, space[row], draw.randrange(1000)))
            assert trial.state is TrialState.COMPLETE, (space[row], trial.message)


@pytest.mark.parametrize("shape", ["33,50,19 ldb=53", "18,10,9 nt batch=2 float16", "12,30,7 int8"])
def test_b_as_image_is_right(pocl: Device, measurer: Measurer, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    images = {"b_storage": ("image",)}
    space = SearchSpace(FAMILY, problem, pocl.limits, algorithms=["microtile"], overrides=images)
    for row in random.Random(5).sample(range(len(space)), 2):
        trial = measurer.measure(quick(pocl, problem, space[row]))
        assert trial.state is TrialState.COMPLETE, (space[row], trial.message)


def test_a_complete_trial_tells_its_times(pocl: Device, measurer: Measurer) -> None:
    problem = GemmProblem(m=64, n=64, k=64)
    padded = Configuration.of(
        "dot", work_group_m=1, work_group_n=64, vector_width=4, unroll=1, b_storage="transposed", edges="guard",
        loads="vload", relaxed_math="off", integer_dot="off",
    )  # fmt: skip
    job = Job(selector=pocl.selector, problem=problem, configuration=padded, samples=3, min_sample_ns=200_000)
    measurement = measurer.measure(job).measurement
    assert measurement is not None
    assert len(measurement.samples_ns) == 3
    assert min(measurement.samples_ns) <= measurement.time_ns <= max(measurement.samples_ns)
    assert measurement.calls_per_sample > 1
    assert measurement.build_ns > 0
    assert 0 < measurement.error_ratio <= 1
    if measurement.timer is Timer.EVENT:
        assert 0 < measurement.prepare_ns < measurement.time_ns
    slow = Job(selector=pocl.selector, problem=problem, configuration=padded, give_up_above_ns=1.0)
    given_up = measurer.measure(slow).measurement
    assert given_up is not None and len(given_up.samples_ns) == 1


TILE = FAMILY.complete(Configuration.of(
    "microtile", micro_tile_m=4, micro_tile_n=8, vector_width=8, unroll=1, a_vector_width=1, b_storage="buffer",
    work_group_m=1, work_group_n=1, edges="guard", loads="vload", multiply_add="operator", relaxed_math="off",
))  # fmt: skip

WRONG: dict[str, Callable[[str], str]] = {
    "one term of the sum is missing": lambda s: s.replace("int p = 0;", "int p = 1;"),
    "alpha is forgotten": lambda s: s.replace("alpha *", "1 *"),
    "beta is forgotten": lambda s: s.replace("(float)beta *", "0 *"),
    "C is read when beta is zero": lambda s: s.replace("if (beta != 0)", ""),
    "the last rows are not written": lambda s: s.replace("if (row + 0 < m)", "if (row + 4 < m)"),
    "a column more is written": lambda s: s.replace("* ldc + column;", "* ldc + column; c[n - column] = 1.0f;"),
    "a row more is written": lambda s: s.replace("if (row + 2 < m)", "if (row + 2 < m + 1)"),
    "rows are swapped": lambda s: s.replace("A + min(row + 0, m - 1)", "A + min(row + 1, m - 1)"),
    "NaN comes out": lambda s: s.replace("float8 result = (float)alpha *", "float8 result = NAN *"),
    "it writes behind the end": lambda s: s.replace(
        "const int row = get_global_id(1) * 4;", "const int row = get_global_id(1) * 4; C[m * ldc] = 1.0f;"
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_are_found(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def spoiled(family: KernelFamily, configuration: Configuration, plan: Plan) -> str:
        source = render(family, configuration, plan)
        assert WRONG[fault](source) != source, "the fault does not apply to the template any more"
        return WRONG[fault](source)

    monkeypatch.setattr(autotune.measure, "render", spoiled)
    measurer._built.clear()
    trial = measurer.measure(quick(pocl, GemmProblem(m=18, n=21, k=40, ldc=24), TILE))
    measurer._built.clear()
    assert trial.state is TrialState.WRONG_RESULT, trial.message
    assert trial.measurement is None
    assert trial.time_ns == math.inf


def test_what_does_not_compile_is_told_with_the_log(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune.measure, "render", lambda *_: "__kernel void gemm() { this is no C; }")
    measurer._built.clear()
    trial = measurer.measure(quick(pocl, GemmProblem(m=2, n=2, k=2), FAMILY.baseline))
    measurer._built.clear()
    assert trial.state is TrialState.COMPILE_FAILED
    assert "this" in trial.message


def test_a_work_group_that_the_driver_refuses_is_invalid(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_huge_groups(self: Gemm, problem: Problem, configuration: Configuration) -> Plan:
        plan = plan_gemm(GemmProblem(m=1, n=2**20, k=1), configuration)
        return replace(plan, launches=(replace(plan.launches[0], local_size=(2**20, 1, 1)),))

    monkeypatch.setattr(Gemm, "plan", with_huge_groups)
    trial = measurer.measure(quick(pocl, GemmProblem(m=1, n=2**20, k=1), FAMILY.baseline))
    assert trial.state is TrialState.INVALID
    assert "WORK_GROUP_SIZE" in trial.message or "WORK_ITEM_SIZE" in trial.message
    assert trial.measurement is None


def test_too_much_memory_is_a_failed_launch(pocl: Device) -> None:
    session = Session(pocl.selector)
    huge = Buffer(name="a", role=Role.INPUT, dtype="float32", elements=2**45)
    with pytest.raises(KernelError):
        session.allocate(huge)


def test_session_refuses_what_is_no_device() -> None:
    for selector in ("99:0", "0:99", "x", ""):
        with pytest.raises(DeviceSelectionError):
            Session(selector)


@pytest.mark.parametrize(
    ("host_ns", "event_ns", "agree"),
    [
        (100.0, 90.0, True),
        (100.0, 0.0, False),
        (100.0, -5.0, False),
        (1e6, 2e6, False),
        (1e7, 1e6, False),  # far too short for a long call
        (1e7, 9e6, True),
        (50_000.0, 5_000.0, True),  # a short call is mostly launch overhead
    ],
)
def test_events_are_checked_against_the_host_clock(host_ns: float, event_ns: float, agree: bool) -> None:
    assert _Sample(host_ns=host_ns, event_ns=event_ns, prepare_ns=0.0).events_agree is agree


@pytest.mark.parametrize("seed", [2, 3])
def test_the_reference_accepts_float32_and_finds_one_wrong_output_of_many(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    problem = GemmProblem(m=90, n=80, k=300, ldc=83)
    for limit in (2**27, 1000):  # the full reference, and the sampled one for large products
        monkeypatch.setattr(GemmCase, "FULL_REFERENCE_MACS", limit)
        case = GemmCase(problem, seed)
        a, b, c = (case.inputs[name] for name in "abc")
        alpha, beta = np.float32(case.scalars["alpha"]), np.float32(case.scalars["beta"])
        a, b, c = a.reshape(90, 300), b.reshape(300, 80), c.reshape(90, 83)
        right = c.copy()
        right[:, :80] = alpha * (a @ b) + (beta * c[:, :80] if beta else 0)
        assert case.error_ratio({"c": right}) <= 0.5
        for row, column in ((0, 0), (89, 79), (41, 17)):
            wrong = right.copy()
            wrong[row, column] += 0.05
            assert case.error_ratio({"c": wrong}) > 1
        outside = right.copy()
        outside[3, 81] = 0.5
        assert case.error_ratio({"c": outside}) == math.inf, "the gap between rows was written"
        unwritten = right.copy()
        unwritten[50, 50] = np.nan
        assert case.error_ratio({"c": unwritten}) == math.inf


def test_inputs_are_fresh_for_each_seed_and_equal_for_one() -> None:
    problem = GemmProblem(m=3, n=4, k=5, lda=7)
    first, again, other = GemmCase(problem, 4), GemmCase(problem, 4), GemmCase(problem, 6)
    assert np.array_equal(first.inputs["a"], again.inputs["a"], equal_nan=True)
    assert not np.array_equal(first.inputs["a"], other.inputs["a"], equal_nan=True)
    assert np.isnan(first.inputs["a"].reshape(3, 7)[:, 5:]).all(), "a kernel that reads the gap between rows shall fail"
    assert np.isnan(first.inputs["c"]).all(), "with beta zero C may hold anything"


def test_template_hashes_tell_algorithms_apart() -> None:
    hashes = {algorithm.name: template_hash(FAMILY, algorithm.name) for algorithm in FAMILY.algorithms}
    assert len(set(hashes.values())) == len(hashes)
    assert all(len(h) == 12 for h in hashes.values())


def test_a_template_without_its_values_is_a_build_error() -> None:
    with pytest.raises(BuildError, match="template of gemm microtile"):
        render(FAMILY, Configuration.of("microtile"), Plan(buffers=(), launches=()))


def test_programs_are_kept_for_the_finals(pocl: Device, measurer: Measurer) -> None:
    job = quick(pocl, GemmProblem(m=4, n=4, k=4), FAMILY.baseline)
    trials: list[Trial] = [measurer.measure(job) for _ in range(2)]
    builds = {t.measurement.build_ns for t in trials if t.measurement}
    assert len(builds) == 1, "the second trial used the program of the first"
