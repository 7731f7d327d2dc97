"""The correctness gate: kernels of all families and algorithms, at all examples, on a real device and under Oclgrind.

A family and its algorithms are found by themselves. `scripts/gate` does the same for longer, and on any device.
"""

import itertools
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.kernels import family_names, find_family
from autotune.kernels.gemm import FAMILY as GEMM
from autotune.kernels.gemm import GemmProblem
from autotune.measure.measurer import Measurer
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Job, TrialState
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace
from covering import Sample, covering_sample, spaces_to_check
from factories import UNOPTIMIZED, quick_job

PARTS = 4
"""Tests of one algorithm, so that they can run at the same time."""
ELEMENTS_OF_HEAD = 64
"""Of attention, for estimates; the lanes that share a query divide them."""
FEWEST = 6
"""Samples of an algorithm, of which every value needs fewer; its other problems are left to the long tests."""

ALGORITHMS = [(name, algorithm.name) for name in family_names() for algorithm in find_family(name).algorithms]


def building_cost(sample: Sample) -> float:
    """Of a kernel, 1 for a small one: it has a sum for each output of a work-item.

    Those that share k among work-items build by far the longest when they are unrolled as well. PoCL converts every
    value of half precision by a page of code: a large kernel of such takes a minute to build.
    """
    values, label = dict(sample.configuration.values), sample.problem.label
    counted = ["micro_tile_m", "micro_tile_n", "tile_f", "tile_p", *(["unroll"] if "work_group_k" in values else [])]
    additions = math.prod(int(values.get(name, 1)) for name in counted)
    if "tile_q" in values and "lanes" in values:
        additions = int(values["tile_q"]) * ELEMENTS_OF_HEAD // int(values["lanes"])
    return 1.0 + additions / (12 if "float16" in label else 25 if "int8" in label else 50)


@cache
def sample_of(family: str, algorithm: str, limits: DeviceLimits, strength: int) -> list[Sample]:
    spaces = spaces_to_check(find_family(family), algorithm, limits)
    samples = covering_sample(spaces, algorithm, strength=strength, cost=building_cost, seed=1)
    if strength > 1:
        return samples
    left, few = samples, list[Sample]()
    missing = {value for sample in samples for value in sample.configuration.values}
    while left and (missing or len(few) < FEWEST):
        best = max(left, key=lambda sample: len(missing.intersection(sample.configuration.values)))
        missing -= set(best.configuration.values)
        few.append(best)
        left = [sample for sample in left if sample is not best]
    return few


def job_for(selector: str, sample: Sample, seed: int) -> Job:
    """Without a probe: part of a range leaves part of the scratch memory as it was."""
    return quick_job(selector, sample.problem, sample.configuration, seed=seed, min_sample_ns=1, probe=False)


def pairs_of(samples: Iterable[Sample]) -> set[frozenset[tuple[str, Value]]]:
    """Values that occur together, and each value alone."""
    return {
        frozenset(pair) for s in samples for pair in itertools.combinations_with_replacement(s.configuration.values, 2)
    }


def values_at_problems(samples: Iterable[Sample]) -> set[tuple[Problem, tuple[str, Value]]]:
    return {(s.problem, value) for s in samples for value in s.configuration.values}


def column_spaces() -> tuple[list[SearchSpace], list[Sample]]:
    """Of one algorithm at three problems, and all that is valid there."""
    family = find_family("gemm")
    shapes = ("3,2,130", "66,3,600 nt ldb=608", "70,4,270 float16")
    limits = replace(SIMULATED, has_float16=True)
    overrides: dict[str, tuple[Value, ...]] = {"work_group_k": (8, 64), "vector_width": (1, 4)}
    spaces = [
        SearchSpace(family, GemmProblem.parse(shape), limits, algorithms=["column"], overrides=overrides)
        for shape in shapes
    ]
    return spaces, [Sample(problem=space.problem, configuration=c) for space in spaces for c in space]


@pytest.mark.parametrize("cost", [None, building_cost])
def test_a_covering_sample_has_every_pair_that_is_valid_and_every_problem(
    cost: Callable[[Sample], float] | None,
) -> None:
    spaces, valid = column_spaces()
    samples = covering_sample(spaces, "column", cost=cost, seed=1)
    assert set(samples) <= set(valid) and len(samples) < len(valid) / 10
    assert pairs_of(samples) == pairs_of(valid)
    assert {sample.problem for sample in samples} == {space.problem for space in spaces}


def test_a_covering_sample_has_every_value_at_each_problem_where_asked_to() -> None:
    spaces, valid = column_spaces()
    samples = covering_sample(spaces, "column", each_problem=True, seed=1)
    assert set(samples) <= set(valid) and len(samples) < len(valid) / 10
    assert pairs_of(samples) == pairs_of(valid)
    assert values_at_problems(samples) == values_at_problems(valid)


def test_a_covering_sample_of_single_values_is_smaller() -> None:
    spaces, valid = column_spaces()
    samples = covering_sample(spaces, "column", strength=1, seed=1)
    assert set(samples) <= set(valid)
    assert {value for s in samples for value in s.configuration.values} == {
        value for s in valid for value in s.configuration.values
    }
    assert {sample.problem for sample in samples} == {space.problem for space in spaces}
    assert len(samples) < len(covering_sample(spaces, "column", seed=1)) / 2


def check(
    measurer: Measurer, device: Device, samples: Sequence[Sample], name: str, options: tuple[str, ...] = ()
) -> None:
    """Measure every sample: each must give the reference's result."""
    if not samples:
        pytest.skip(f"not covered: PoCL has no valid configuration of {name}")
    wrong = []
    for number, sample in enumerate(samples):
        job = replace(job_for(device.selector, sample, seed=number), build_options=options)
        trial = measurer.measure(job)
        if trial.state is not TrialState.COMPLETE:
            wrong.append(f"{sample.problem.label}: {sample.configuration}: {trial.state.value}: {trial.message[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("family", "algorithm"), ALGORITHMS)
def test_every_parameter_value_is_right(pocl: Device, measurer: Measurer, family: str, algorithm: str) -> None:
    samples = sample_of(family, algorithm, pocl.limits, strength=1)
    check(measurer, pocl, samples, f"{family} {algorithm}", UNOPTIMIZED)


@pytest.mark.parametrize("shape", ["5,40,30 nt", "5,40,30 tt", "40,5,30 tn", "40,5,30 tt"])
def test_skinny_products_are_right_in_every_layout(pocl: Device, measurer: Measurer, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    spaces = (SearchSpace(GEMM, problem, pocl.limits, algorithms=[algorithm.name]) for algorithm in GEMM.algorithms)
    samples = (
        [Sample(problem=problem, configuration=space[row]) for row in range(0, len(space), len(space) // 50 + 1)]
        for space in spaces
    )
    check(measurer, pocl, [min(few, key=building_cost) for few in samples if few], shape, UNOPTIMIZED)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("family", "algorithm"), ALGORITHMS)
def test_every_pair_of_parameter_values_is_right(
    pocl: Device, measurer: Measurer, family: str, algorithm: str, part: int
) -> None:
    """The first part is built with PoCL's optimizer, which has been wrong before.

    It has every value, but not every pair: that takes five times as long; `scripts/gate` builds all with it.
    """
    if part:
        chosen = sample_of(family, algorithm, pocl.limits, strength=2)[part - 1 :: PARTS - 1]
    else:
        chosen = sample_of(family, algorithm, pocl.limits, strength=1)
    check(measurer, pocl, chosen, f"{family} {algorithm}", UNOPTIMIZED if part else ())


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ("66,3,600 nt ldb=608", {"micro_tile_m": 10, "micro_tile_n": 2, "split_k": 5, "stages": 1}),
        ("7,37,513", {"work_group_m": 16, "work_group_n": 4, "micro_tile_m": 1, "micro_tile_n": 8, "split_k": 8}),
        ("15,37,513", {"work_group_m": 16, "work_group_n": 4, "micro_tile_m": 1, "micro_tile_n": 8, "split_k": 8}),
    ],
)
def test_rows_that_are_not_there_are_not_written(
    pocl: Device, measurer: Measurer, shape: str, changes: dict[str, Value]
) -> None:
    """Where parts of k are joined in one launch: PoCL's compiler lost the condition twice."""
    if not pocl.limits.ordering:
        pytest.skip("not covered: this PoCL orders no memory among work-groups")
    values: dict[str, Value] = {
        "work_group_m": 8, "work_group_n": 4, "tile_k": 8, "vector_width": 2, "a_load_width": 1, "b_load_width": 1,
        "unroll": 8, "local_padding": 0, "stages": 2, "sub_group_columns": 0, "group_rows": 0,
        "combine": f"last_group_{pocl.limits.ordering}", "edges": "guard", "multiply_add": "operator",
    }  # fmt: skip
    configuration = GEMM.complete(Configuration.of("local_tile", **{**values, **changes}))
    sample = Sample(problem=GemmProblem.parse(shape), configuration=configuration)
    trial = measurer.measure(job_for(pocl.selector, sample, seed=1))
    assert trial.state is TrialState.COMPLETE, trial.message


# Under Oclgrind, which interprets kernels and tells what a device would let pass.

EVERY_FINDING = ("--max-errors", "1000000000")
"""By default Oclgrind reports no more than 1,000 findings of a process."""
CHECKS = {
    "races": ("--data-races", "--check-api", *EVERY_FINDING),
    # Its Uninitialized plug-in does not know an instruction that only the optimizer makes.
    "uninitialized": ("--uninitialized", "--build-options", "-cl-opt-disable", *EVERY_FINDING),
}
"""Options by what is looked for; accesses out of bounds are always told."""

SIMULATED = DeviceLimits(
    compute_units=4,
    max_work_group_size=64,
    max_work_item_sizes=(64, 64, 64),
    local_memory_bytes=32 * 1024,
    has_images=True,
    max_image_width=8192,
    max_image_height=8192,
)
SIMULATED_PROCESSOR = replace(SIMULATED, is_cpu=True)
"""For algorithms that only processors run."""
MOST_JOINING = 8
MOST_FLOPS_JOINING = 200_000
"""Every element of every part is told as a race there, which takes its time."""
MOST_FLOPS = {"races": 400_000, "uninitialized": 100_000}
"""Of a problem; Oclgrind interprets, the second check four times slower than the first."""

FILLING_BY_WRITING = """
import numpy
import pyopencl
from autotune.device.opencl import Session
fill = Session.fill
def written(session, memory, value):
    if isinstance(memory, pyopencl.Buffer):
        session.write(memory, numpy.repeat(value, memory.size // value.itemsize))
    else:
        fill(session, memory, value)
Session.fill = written
"""
"""The plug-in for uninitialized values loses track of what a command fills."""
JOINING_BY_ELEMENT = """
import re
import autotune.measure.measurer as measure
plain = measure.render
def by_element(*given):
    source, functions = plain(*given), {}
    for found in reversed(list(re.finditer(r"\\((u?int|float|u?short|u?char)(4|8|16)\\)\\(", source))):
        level, count, end = 1, 1, found.end()
        while level:
            level += {"(": 1, ")": -1}.get(source[end], 0)
            count += source[end] == "," and level == 1
            end += 1
        kind, width = found[1], int(found[2])
        if 1 < count < width and width % count == 0:
            name, each = f"join_{kind}{width}_{count}", width // count
            parameters = ", ".join(f"{kind}{each} p{n}" for n in range(count))
            elements = ", ".join(f"p{n}.s{e:x}" for n in range(count) for e in range(each))
            functions[name] = f"{kind}{width} {name}({parameters}) {{ return ({kind}{width})({elements}); }}"
            source = source[: found.start()] + name + source[found.end() - 1 :]
    return "\\n".join([*functions.values(), source])
measure.render = by_element
"""
"""The plug-in for uninitialized values crashes where a vector is made of shorter ones."""
TIMING_NOTHING = """
import autotune.measure.operands as operands
import autotune.measure.runner as runner
operands.CANARY_ELEMENTS = 0
runner.is_timed_with = lambda *_: False
from autotune.measure.timing import Sample, Stopwatch, Timing
from autotune.model.trial import Timer
timing = Timing(samples=(Sample(calls=1, host_ns=1.0, event_ns=1.0, prepare_ns=0.0),), timer=Timer.HOST)
Stopwatch.time = lambda stopwatch, call, launches, job: timing
"""
"""Timing would run again, more than once, what is interpreted slowly and was checked already: no series is judged.
No guards hide what is read behind a buffer."""
PLAIN_WORKER = """
from autotune.measure.worker import serve
serve()
"""
SPOILED_WORKER = """
import autotune.measure.measurer as measure
from autotune.measure.worker import serve
render = measure.render
def spoiled(*given):
    source = render(*given)
    assert {old!r} in source, "the fault does not apply to the template any more"
    return source.replace({old!r}, {new!r})
measure.render = spoiled
serve()
"""


class Oclgrind:
    """A worker under Oclgrind."""

    def __init__(self, check: str, folder: Path, program: str = PLAIN_WORKER) -> None:
        if not shutil.which("oclgrind"):
            pytest.skip("oclgrind is not installed (Debian, Ubuntu: apt install oclgrind)")
        self._log = folder / "oclgrind.log"
        self._log.touch()
        self._read = 0
        mends = FILLING_BY_WRITING + (JOINING_BY_ELEMENT if check == "uninitialized" else "")
        code = mends + TIMING_NOTHING + program
        self.worker = Worker(("oclgrind", *CHECKS[check], "--log", str(self._log), sys.executable, "-c", code))

    def findings(self, sample: Sample) -> str:
        """What Oclgrind has to say of one configuration; also when its result is wrong."""
        trial = self.worker.run(job_for("0:0", sample, seed=3))
        told = self._log.read_bytes()[self._read :]
        self._read += len(told)
        wrong = "" if trial.state is TrialState.COMPLETE else f"{trial.state.value}: {trial.message}"
        return told.decode(errors="replace") + wrong


def interpreting_cost(sample: Sample) -> float:
    """Oclgrind interprets the work of a problem serially, which takes longer than building."""
    return 1.0 + sample.problem.flops / 10_000


def samples_for_oclgrind(family: KernelFamily, algorithm: str, check: str) -> list[Sample]:
    """Every value of every parameter at small examples; all pairs would take too long."""
    limits = SIMULATED if any(map(len, spaces_to_check(family, algorithm, SIMULATED))) else SIMULATED_PROCESSOR
    spaces = [s for s in spaces_to_check(family, algorithm, limits) if s.problem.flops <= MOST_FLOPS[check]]
    if check == "uninitialized":
        # The plug-in loses track of images; Measurer fills them with NaN before they are written.
        overrides = {
            name: tuple(value for value in parameter.values if value != "image")
            for name, parameter in family.algorithm(algorithm).by_name.items()
            if "image" in parameter.values
        }
        spaces = [SearchSpace(family, s.problem, limits, algorithms=[algorithm], overrides=overrides) for s in spaces]
    return covering_sample(spaces, algorithm, strength=1, cost=interpreting_cost, seed=2)


SMALL_TILE: dict[str, Value] = {
    "work_group_m": 2, "work_group_n": 2, "micro_tile_m": 1, "micro_tile_n": 1, "tile_k": 4, "vector_width": 1,
    "a_load_width": 1, "b_load_width": 1, "unroll": 4, "local_padding": 0, "sub_group_columns": 0, "group_rows": 0,
    "edges": "guard", "multiply_add": "operator",
}  # fmt: skip
"""Values of `local_tile` with four work-items in a work-group."""


@pytest.mark.parametrize("stages", [1, 2])
def test_no_work_item_overwrites_a_tile_that_others_read(tmp_path: Path, stages: int) -> None:
    """PoCL runs work-items one after the other, and waits for them at the end of a loop, asked or not."""
    configuration = GEMM.complete(Configuration.of("local_tile", **SMALL_TILE, stages=stages, split_k=1))
    oclgrind = Oclgrind("races", tmp_path)
    with oclgrind.worker:
        assert oclgrind.findings(Sample(problem=GemmProblem.parse("3,3,12"), configuration=configuration)) == ""


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("family", "algorithm"), ALGORITHMS)
def test_oclgrind_finds_nothing(tmp_path: Path, family: str, algorithm: str, check: str) -> None:
    samples = samples_for_oclgrind(find_family(family), algorithm, check)
    if not samples:
        pytest.skip(f"not covered: Oclgrind has no valid configuration of {family} {algorithm}")
    oclgrind = Oclgrind(check, tmp_path)
    with oclgrind.worker:
        told = {sample: oclgrind.findings(sample) for sample in samples}
    assert not any(told.values()), "\n".join(
        f"{s.problem.label}: {s.configuration}: {t[:600]}" for s, t in told.items() if t
    )


JOINING = [
    (f, a)
    for f, a in ALGORITHMS
    if "combine" in find_family(f).algorithm(a).by_name and a != "matrix_tile"  # its instructions cannot be interpreted
]
ORDERING_WORKER = """
import autotune.measure.measurer as measure
from autotune.device.opencl import Session
from autotune.measure.worker import serve
render, build = measure.render, Session.build
measure.render = lambda *given: {prelude!r} + render(*given)
Session.build = lambda session, source, options: build(session, source, [o for o in options if "-cl-std" not in o])
serve()
"""
"""Oclgrind lacks the atomics of OpenCL C 2.0; it runs one work-group after the other, for which older ones serve."""
ORDERING_PRELUDE = """
#define atomic_int int
#define atomic_fetch_add_explicit(counter, one, order, scope) atomic_add(counter, one)
#define atomic_store_explicit(counter, value, order, scope) atomic_xchg(counter, value)
"""


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("family", "algorithm"), JOINING)
def test_oclgrind_finds_nothing_within_work_groups_that_join_parts(
    tmp_path: Path, family: str, algorithm: str, check: str
) -> None:
    """Races between work-groups are left out: Oclgrind does not see that a counter orders them."""
    kernels, limits = find_family(family), replace(SIMULATED, ordering_standard=200)
    spaces = [
        SearchSpace(kernels, s.problem, limits, algorithms=[algorithm], overrides={"combine": ("last_group_cl2",)})
        for s in spaces_to_check(kernels, algorithm, limits)
        if s.problem.flops <= min(MOST_FLOPS[check], MOST_FLOPS_JOINING)
    ]
    samples = covering_sample(spaces, algorithm, strength=1, cost=interpreting_cost, seed=2)[:MOST_JOINING]
    assert samples
    oclgrind = Oclgrind(check, tmp_path, ORDERING_WORKER.format(prelude=ORDERING_PRELUDE))
    with oclgrind.worker:
        told = "".join(oclgrind.findings(sample) for sample in samples)
    told = without_races_of_groups(told)
    assert not told, told[:3000]


def without_races_of_groups(findings: str) -> str:
    """What is left without races for global memory between two work-groups."""
    left = []
    for finding in re.split(r"\n(?=\S[^\n]*\n\tKernel:)", findings):
        groups = re.findall(r"Group\(([\d,]+)\)", finding)
        if not (re.match(r"\s*\S+ data race at global memory", finding) and len(set(groups)) == 2):
            left.append(finding)
    return "\n".join(left).strip()


LOCAL_TILE = GEMM.complete(
    Configuration.of(
        "local_tile", work_group_m=8, work_group_n=4, micro_tile_m=1, micro_tile_n=2, tile_k=16, vector_width=1,
        a_load_width=1, b_load_width=1, unroll=16, local_padding=0, stages=1, sub_group_columns=0, group_rows=0,
        split_k=1, combine="launch", edges="guard", multiply_add="operator",
    )
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "configuration", "old", "new", "finding"),
    [
        ("races", LOCAL_TILE, "barrier(CLK_LOCAL_MEM_FENCE);", "", "data race at local memory"),
        ("races", GEMM.baseline, "p < k", "p <= k", "Invalid read"),
        ("uninitialized", LOCAL_TILE, "float c0_1 = (float)(0);", "float c0_1;", "Uninitialized value"),
    ],
)
def test_oclgrind_finds_faults(
    tmp_path: Path, check: str, configuration: Configuration, old: str, new: str, finding: str
) -> None:
    problem = GemmProblem(m=12, n=9, k=20)
    oclgrind = Oclgrind(check, tmp_path, SPOILED_WORKER.format(old=old, new=new))
    with oclgrind.worker:
        told = oclgrind.findings(Sample(problem=problem, configuration=configuration))
    assert finding in told
