"""Parts joined in one launch: which devices may, that counters go back to zero, and what finds that they do not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

from autotune.device.opencl import Session
from autotune.errors import LaunchError
from autotune.kernels import find_family
from autotune.kernels.combination import one_launch_variants
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.render import render
from autotune.lookup import Entry, TuningTable
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Trial, TrialState
from autotune.runtime import Reduce
from autotune.runtime.executor import BoundCall
from autotune.space.search_space import SearchSpace
from covering import occurring
from factories import quick_job, spoil_sources

GPU = DeviceLimits(compute_units=8, max_work_group_size=256, max_work_item_sizes=(256, 256, 64))
LIMITS = {
    "ptx": replace(GPU, extensions=("cl_nv_device_attribute_query",)),
    "cl2": replace(GPU, ordering_standard=200),
    "cl3": replace(GPU, ordering_standard=300),
    "": GPU,
}

SPLIT_ROW = Configuration.of(
    "split_row", work_group_size=64, parts=4, vector_width=4, unroll=2, loads="vload", combine="launch"
)
LOCAL_TILE = Configuration.of(
    "local_tile", work_group_m=8, work_group_n=4, micro_tile_m=2, micro_tile_n=4, tile_k=8, vector_width=2,
    a_load_width=1, b_load_width=1, unroll=8, local_padding=0, stages=2, sub_group_columns=0, group_rows=0,
    split_k=4, edges="guard", multiply_add="operator", integer_dot="off", combine="launch",
)  # fmt: skip
ROW = Configuration.of(
    "row", micro_tile_m=1, micro_tile_n=4, vector_width=4, work_group_n=8, work_group_k=2, unroll=2, split_k=4,
    loads="vload", wave_size="any", combine="launch",
)  # fmt: skip
CASES: list[tuple[Problem, Configuration]] = [
    (ReduceProblem(batch=3, channels=9001), SPLIT_ROW),
    (GemmProblem.parse("37,35,290 ldc=36"), LOCAL_TILE),
    (GemmProblem.parse("3,270,600"), ROW),
]


@pytest.fixture(scope="module")
def measurer(pocl: Device) -> Measurer:
    if not pocl.limits.ordering:
        pytest.skip("not covered: this PoCL promises no order among work-groups")
    return Measurer(Session(pocl.selector))


def in_one_launch(configuration: Configuration, limits: DeviceLimits) -> Configuration:
    (variant,) = one_launch_variants(configuration, limits)
    return variant


def measure(measurer: Measurer, problem: Problem, configuration: Configuration, *, probe: bool = False) -> Trial:
    return measurer.measure(quick_job("", problem, configuration, probe=probe))


# Which devices may


@pytest.mark.parametrize("ordering", LIMITS)
@pytest.mark.parametrize(("problem", "configuration"), CASES)
def test_a_device_has_one_way_at_most(ordering: str, problem: Problem, configuration: Configuration) -> None:
    limits, family = LIMITS[ordering], find_family(problem.family)
    assert limits.ordering == ordering
    space = SearchSpace(family, problem, limits, algorithms=[configuration.algorithm])
    assert set(occurring(space, configuration.algorithm, "combine")) == {"launch"} | (
        {f"last_group_{ordering}"} if ordering else set()
    )
    for variant in one_launch_variants(configuration, limits):
        assert not family.violations(problem, variant, limits)
        assert len(family.plan(problem, variant).launches) == 1
        assert len(family.plan(problem, configuration).launches) == 2
    assert bool(list(one_launch_variants(configuration, limits))) == bool(ordering)


def test_nothing_is_joined_where_k_is_in_one_part() -> None:
    whole = Configuration.of("local_tile", **{**dict(LOCAL_TILE.values), "split_k": 1, "combine": "last_group_cl2"})
    told = find_family("gemm").violations(CASES[1][0], whole, LIMITS["cl2"])
    assert [text.split(":")[0] for text in told] == ["parts_to_combine"]


def test_an_older_configuration_is_completed_to_two_launches() -> None:
    older = Configuration.of("split_row", **{k: v for k, v in SPLIT_ROW.values if k != "combine"})
    assert find_family("reduce").complete(older) == SPLIT_ROW


def test_the_rule_takes_one_launch_where_it_may() -> None:
    family, problem = find_family("reduce"), ReduceProblem(batch=1, channels=100_000)
    assert family.default(problem, LIMITS["cl3"], ())["combine"] == "last_group_cl3"
    assert family.default(problem, LIMITS[""], ())["combine"] == "launch"


# Right, also on the second call


@pytest.mark.long
@pytest.mark.parametrize(("problem", "configuration"), CASES)
def test_many_calls_in_a_row_are_right_and_alike(
    pocl: Device, measurer: Measurer, problem: Problem, configuration: Configuration
) -> None:
    one_launch = in_one_launch(configuration, pocl.limits)
    trial = measure(measurer, problem, one_launch, probe=True)
    assert trial.state is TrialState.COMPLETE, trial
    told = "the result depends on which work-group finishes last"
    assert len(set(Calls(pocl, problem, one_launch).results(50))) == 1, told


MANY_PARTS = [
    ("37,36,4100", 64, {}),  # vectors of C
    ("33,35,9000 ldc=40", 64, {}),  # single elements, and more items than work-groups hold
    ("20,20,40000 tn float16", 256, {}),
    ("33,20,9000 batch=3", 64, {"work_group_n": 8}),
]


@pytest.mark.long
@pytest.mark.parametrize(("shape", "parts", "changes"), MANY_PARTS)
def test_many_parts_of_a_result_are_shared_by_several_work_items(
    pocl: Device, shape: str, parts: int, changes: dict[str, Value]
) -> None:
    problem = GemmProblem.parse(shape)
    configuration = Configuration.of("local_tile", **{**dict(LOCAL_TILE.values), "split_k": parts, **changes})
    few = Configuration.of("local_tile", **{**dict(configuration.values), "split_k": 16})
    combine, of_few = (find_family("gemm").plan(problem, c).launches[1] for c in (configuration, few))
    assert combine.local_size is not None
    vectors = problem.m * problem.n // (4 if problem.ldc % 4 == 0 and problem.n % 4 == 0 else 1)
    assert of_few.global_size[0] >= vectors > of_few.global_size[0] - combine.local_size[0]
    assert combine.global_size[0] >= 8 * vectors > combine.global_size[0] - combine.local_size[0]
    trial = Measurer(Session(pocl.selector)).measure(quick_job("", problem, configuration))
    assert trial.state is TrialState.COMPLETE, trial.message


SPOILED = [
    ("atomic_store_explicit(count, 0", "atomic_store_explicit(count, 1", "left values other than zero in counters"),
    ("is_last_of(4, counters", "is_last_of(4, counters + 100", "wrote past the end of counters"),
]
"""What to replace, by what, and what is told of it."""


@pytest.mark.parametrize("fault", SPOILED)
@pytest.mark.parametrize(("problem", "configuration"), CASES)
def test_a_wrong_counter_is_found(
    monkeypatch: pytest.MonkeyPatch,
    pocl: Device,
    measurer: Measurer,
    problem: Problem,
    configuration: Configuration,
    fault: tuple[str, str, str],
) -> None:
    old, new, message = fault

    spoil_sources(monkeypatch, lambda source: source.replace(old, new))
    trial = measure(Measurer(Session(pocl.selector)), problem, in_one_launch(configuration, pocl.limits))
    assert trial.state is TrialState.WRONG_RESULT and message in trial.message, (fault, trial)


# At run time


class Calls:
    """A plan bound once, called again and again on the same operands."""

    def __init__(self, pocl: Device, problem: Problem, configuration: Configuration) -> None:
        family = find_family(problem.family)
        self.session = Session(pocl.selector)
        self.plan = family.plan(problem, configuration)
        program = self.session.build(render(family, configuration, self.plan), self.plan.build_options)
        case = family.make_case(problem, seed=2)
        self.memory = {buffer.name: self.session.allocate(buffer) for buffer in self.plan.buffers}
        for name, values in case.inputs.items():
            self.session.write(self.memory[name], values.reshape(-1))
        for buffer in self.plan.buffers:
            if buffer.is_zeroed:
                self.spoil(buffer.name)  # as memory may be when it is new
        self.names = [buffer.name for buffer in self.plan.buffers if buffer.role.value in ("input", "output")]
        fixed = {name: memory for name, memory in self.memory.items() if name not in self.names}
        self.call = BoundCall(self.session, program, self.plan, self.names, fixed)

    def spoil(self, name: str) -> None:
        memory = self.memory[name]
        self.session.write(memory, np.full(memory.size, 7, np.uint8))

    def results(self, calls: int) -> Sequence[bytes]:
        """The output of each call, as bytes."""
        (output,) = (buffer for buffer in self.plan.buffers if buffer.role.value == "output")
        values, found = np.empty(output.size_bytes, np.uint8), []
        for _ in range(calls):
            self.session.write(self.memory[output.name], np.full(output.size_bytes, 255, np.uint8))
            self.call.enqueue([self.memory[name] for name in self.names])
            self.session.read(self.memory[output.name], values)
            found.append(values.tobytes())
        return found


def test_counters_are_zero_before_the_first_call_and_after_one_that_failed(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, configuration = CASES[0]
    calls = Calls(pocl, problem, in_one_launch(configuration, pocl.limits))
    right = calls.results(1)
    expected = np.frombuffer(right[0], np.float32)
    assert np.isfinite(expected).all()

    def refuse(*_: object) -> None:
        raise cl.LogicError("clEnqueueNDRangeKernel", cl.status_code.OUT_OF_RESOURCES, "as told")

    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_nd_range_kernel", refuse)
        with pytest.raises(LaunchError):
            calls.results(1)
    calls.spoil("counters")
    assert calls.results(2) == [*right, *right]


def test_reductions_of_a_table_run_in_one_launch(pocl: Device, measurer: Measurer, tmp_path: Path) -> None:
    problem, configuration = CASES[0]
    entry = Entry(problem=problem, configuration=in_one_launch(configuration, pocl.limits), time_ns=1e4)
    reduce = Reduce(pocl.selector, table=TuningTable([pocl], [(pocl.slug, entry)]), binaries=tmp_path)
    for seed in range(5):
        values = np.random.default_rng(seed).integers(-8, 8, (3, 9001)).astype(np.float32)
        assert np.array_equal(reduce(values), values.sum(axis=1))
