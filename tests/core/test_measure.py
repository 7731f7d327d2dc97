"""Rendering, building, verifying and timing on a real device; and that the judge finds what is wrong."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyopencl as cl
import pytest
from numpy.typing import NDArray

import autotune.measure.measurer
import autotune.measure.runner
from autotune.device import opencl
from autotune.device.opencl import Session
from autotune.device.quirks import Quirks
from autotune.errors import BuildError, LaunchError
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, Gemm, GemmProblem
from autotune.kernels.gemm.plan import PLAN
from autotune.kernels.gemm.reference import GemmCase
from autotune.kernels.render import render, template_hash
from autotune.measure import timing
from autotune.measure.build_pool import BuilderPool, build_once
from autotune.measure.measurer import Measurer
from autotune.measure.operands import Operands, canary
from autotune.measure.probe import Probe, clipped, group_count
from autotune.measure.runner import FRESH_INPUTS
from autotune.measure.timing import Sample, Stopwatch, Timing
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.plan import Buffer, Launch, Plan, Role
from autotune.model.problem import Problem
from autotune.model.trial import BuildJob, BuildState, Calibration, Job, Timer, Trial, TrialState
from autotune.search.task import Task
from autotune.space.search_space import SearchSpace
from factories import quick_job, spoil_sources
from invented_port import InventedPort

PACKING = Configuration.of(
    "dot", work_group_m=1, work_group_n=64, vector_width=4, unroll=1, b_storage="transposed", edges="guard",
    loads="vload", relaxed_math="off", integer_dot="off",
)  # fmt: skip


def test_a_complete_trial_tells_its_times(pocl: Device, measurer: Measurer) -> None:
    problem = GemmProblem(m=64, n=64, k=64)
    job = Job(selector=pocl.selector, problem=problem, configuration=PACKING, samples=3, min_sample_ns=200_000)
    measurement = measurer.measure(job).measurement
    assert measurement is not None
    assert len(measurement.samples_ns) == 3
    assert min(measurement.samples_ns) <= measurement.time_ns <= max(measurement.samples_ns)
    assert measurement.build_ns > 0
    assert 0 < measurement.error_ratio <= 1
    if measurement.timer is Timer.EVENT:
        assert 0 < measurement.prepare_ns < measurement.time_ns
    slow = Job(selector=pocl.selector, problem=problem, configuration=PACKING, give_up_above_ns=1.0)
    given_up = measurer.measure(slow).measurement
    assert given_up is not None and len(given_up.samples_ns) == 1


TILE = FAMILY.complete(Configuration.of(
    "microtile", micro_tile_m=4, micro_tile_n=8, vector_width=8, unroll=1, a_vector_width=1, b_storage="buffer",
    work_group_m=1, work_group_n=1, edges="guard", loads="vload", multiply_add="operator", relaxed_math="off",
))  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "is_valid"), [("16,24,16", True), ("16,24,16 ldb=26", False), ("16,21,16 ldb=24", False)]
)
def test_rows_are_read_as_aligned_only_where_they_and_their_ends_are(pocl: Device, shape: str, is_valid: bool) -> None:
    """The last micro-tile of a row ends with it. Where it then begins elsewhere, a processor ends the program."""
    values: dict[str, Value] = {**dict(TILE.values), "vector_width": 4, "loads": "aligned"}
    violations = FAMILY.violations(GemmProblem.parse(shape), Configuration.of("microtile", **values), pocl.limits)
    assert [text.partition(":")[0] for text in violations] == ([] if is_valid else ["aligned_rows"])


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
def test_wrong_kernels_are_found(pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    spoil_sources(monkeypatch, WRONG[fault])
    measurer._built.clear()
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=18, n=21, k=40, ldc=24), TILE))
    measurer._built.clear()
    assert trial.state is TrialState.WRONG_RESULT, trial.message
    assert trial.measurement is None
    assert trial.time_ns == math.inf


@pytest.mark.parametrize("name", ["gemm", "qgemm", "reduce"])
def test_right_kernels_are_right_on_inputs_of_every_kind(pocl: Device, measurer: Measurer, name: str) -> None:
    family = find_family(name)
    assert len(family.regimes) > 1
    for problem in family.examples()[:2]:
        for seed in range(len(family.regimes)):
            trial = measurer.measure(quick_job(pocl, problem, family.baseline, seed=seed, verifications=1))
            assert trial.state is TrialState.COMPLETE, trial.message


REGIMES: dict[int, Callable[[str], str]] = {
    0: lambda s: s.replace("(float)alpha * sum", "(float)alpha * fmin(sum, 40.0f)"),
    1: lambda s: s.replace("(float)alpha * sum", "(float)alpha * (fabs(sum) > 1e20f ? 0.0f : sum)"),
}
"""Sums that are cut off, by the number of the regime that shows it."""


@pytest.mark.parametrize("seed", REGIMES)
def test_a_winner_is_verified_on_inputs_of_another_kind(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The next winner on those of the next kind; trials of a search on none."""
    naive = Configuration.of("naive", work_group_m=0, work_group_n=0)
    job = quick_job(pocl, GemmProblem(m=16, n=24, k=20), naive, seed=seed)
    spoil_sources(monkeypatch, REGIMES[seed])
    for verifications, state in ((0, TrialState.COMPLETE), (4, TrialState.WRONG_RESULT)):
        measurer._built.clear()
        trial = measurer.measure(replace(job, verifications=verifications))
        measurer._built.clear()
        assert trial.state is state, trial.message
    assert find_family("gemm").regimes[seed] in trial.message


@pytest.mark.parametrize(
    ("ratio", "state"),
    [(1.0, TrialState.COMPLETE), (1.01, TrialState.WRONG_RESULT), (math.nan, TrialState.WRONG_RESULT)],
)
def test_an_error_above_the_tolerance_is_wrong_however_small(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch, ratio: float, state: TrialState
) -> None:
    monkeypatch.setattr(GemmCase, "error_ratio", lambda *_: ratio)
    assert measurer.measure(quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE)).state is state


class FickleSession(Session):
    """A device whose every tenth result is wrong in one place, or differs in its last bit alone."""

    runs = 0
    _has_result = False
    spoil: Callable[[Any], Any] = staticmethod(lambda value: value)

    def run(self, *what: Any, **how: Any) -> Any:
        self._has_result = True
        return super().run(*what, **how)

    def read(self, memory: Any, into: NDArray[Any], start_bytes: int = 0) -> None:
        super().read(memory, into, start_bytes)
        self.runs += self._has_result
        if self._has_result and self.runs % 10 == 0:
            into[7] = self.spoil(into[7])
        self._has_result = False


@pytest.mark.parametrize(
    ("spoil", "state", "runs"),
    [
        (lambda value: value, TrialState.COMPLETE, 22),  # the last two: another regime, and what the timed series left
        (lambda value: np.nextafter(value, np.float32(9)), TrialState.COMPLETE, 22),
        (lambda value: value + np.float32(1), TrialState.WRONG_RESULT, 10),
        (lambda value: np.float32(np.nan), TrialState.WRONG_RESULT, 10),
    ],
)
def test_many_verifications_find_what_is_wrong_now_and_then(
    pocl: Device, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], Any], state: TrialState, runs: int
) -> None:
    references: list[Any] = []
    judge = GemmCase.error_ratio

    def counted(case: GemmCase, outputs: Any) -> float:
        references.append(case)
        return judge(case, outputs)

    monkeypatch.setattr(GemmCase, "error_ratio", counted)
    session = FickleSession(pocl.selector)
    session.spoil = spoil
    job = replace(quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE), verifications=20)
    trial = Measurer(session).measure(job)
    assert (trial.state, session.runs) == (state, runs)
    if state is TrialState.COMPLETE:
        sets = FRESH_INPUTS + 1
        assert len(set(references)) == sets
        differing = 2 if spoil(np.float32(0.5)) != 0.5 else 0
        assert sets + differing <= len(references) <= sets + 2 * differing
    else:
        assert re.search(r"\(run \d+ of 20, inputs of seed \d+\)|inf times", trial.message)


def test_one_set_of_inputs_is_enough_for_a_trial_where_two_cannot_be_kept(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    make = GemmCase.__init__

    def noted(case: GemmCase, problem: GemmProblem, seed: int, regime: str = "") -> None:
        drawn.append(seed)
        make(case, problem, seed, regime)

    monkeypatch.setattr(GemmCase, "__init__", noted)
    measurer, problem = Measurer(Session(pocl.selector)), GemmProblem(m=13, n=24, k=17)
    small = quick_job(pocl, problem, TILE, seed=7)
    first, second = (measurer.measure(small).measurement for _ in range(2))
    assert drawn == [14, 15], "with beta and without, kept for the second trial"
    assert first and second and first.inputs_ns > second.inputs_ns
    drawn.clear()
    bytes_of_case = sum(4 * elements for elements in (13 * 17, 17 * 24, 13 * 24))
    monkeypatch.setattr(Operands, "KEPT_BYTES", 2 * bytes_of_case - 1)
    large = Measurer(Session(pocl.selector))
    for _ in range(2):
        assert large.measure(small).state is TrialState.COMPLETE
    assert drawn == [7]
    assert large.measure(replace(small, verifications=20)).state is TrialState.COMPLETE
    assert drawn == [7, 15, 14], "with beta and without all the same"
    drawn.clear()
    assert large.measure(replace(small, verifications=1)).state is TrialState.COMPLETE
    assert drawn == [15], "timed on the inputs that were verified"


def without_arguments(session: Session, kernels: Any, launches: Sequence[Launch], *_: Any) -> Any:
    return BIND(session, kernels, [replace(launch, arguments=()) for launch in launches], {})


BIND = Session.bind


def test_what_is_written_is_poisoned_before_each_of_many_runs(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.measure.measurer, "render", lambda *_: "__kernel void gemm() { }")
    monkeypatch.setattr(Session, "bind", without_arguments)
    lazy = replace(quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE), verifications=20)
    assert Measurer(Session(pocl.selector)).measure(lazy).state is TrialState.WRONG_RESULT


def test_scratch_is_poisoned_before_each_of_many_runs(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = itertools.count(1)

    def forgetting(session: Session, kernels: Any, launches: Sequence[Launch], *others: Any) -> Any:
        """Leave packing out of every tenth call: what the call before it packed is still there."""
        first = sum(1 for launch in launches if launch.prepares) if next(bound) % 10 == 0 else 0
        return BIND(session, kernels[first:], launches[first:], *others)

    monkeypatch.setattr(Session, "bind", forgetting)
    job = replace(quick_job(pocl, GemmProblem(m=13, n=24, k=17), PACKING), verifications=20, probe=False)
    trial = Measurer(Session(pocl.selector)).measure(job)
    assert trial.state is TrialState.WRONG_RESULT, trial.message


def test_inputs_that_another_kernel_spoilt_are_brought_anew(pocl: Device) -> None:
    measurer = Measurer(Session(pocl.selector))
    job = quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE)
    assert measurer.measure(job).state is TrialState.COMPLETE
    [*loaded] = measurer._operands._loaded.values()
    assert len(loaded) == 2, "with beta and without, kept for the next trial"
    for case in loaded:
        measurer._port.write(case.memory["a"].whole, np.zeros(5, dtype=np.float32))
    assert not any(measurer._operands.are_intact(case) for case in loaded)
    assert measurer.measure(job).state is TrialState.COMPLETE
    assert all(measurer._operands.are_intact(case) for case in loaded)


def test_each_placement_of_a_short_kernel_has_buffers_of_its_own(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(pocl.selector)
    measurer = Measurer(session, TRUSTED)
    drawn: list[int] = []
    make_case = Gemm.make_case

    def drawing(family: Gemm, problem: Problem, seed: int) -> Any:
        drawn.append(seed)
        return make_case(family, problem, seed)

    used: list[set[object]] = []

    def binding(session: Session, kernels: Any, launches: Sequence[Launch], memory: Any, *others: Any) -> Any:
        used[-1].update(memory.values())
        return BIND(session, kernels, launches, memory, *others)

    monkeypatch.setattr(Gemm, "make_case", drawing)
    monkeypatch.setattr(Session, "bind", binding)

    def buffers(problem: GemmProblem, placement: int) -> set[object]:
        used.append(set())
        job = replace(quick_job(pocl, problem, TILE), verify=False, probe=False, placement=placement)
        assert measurer.measure(job).state is TrialState.COMPLETE
        return used[-1]

    problem = GemmProblem(m=16, n=16, k=16)
    places = [buffers(problem, placement) for placement in range(3)]
    assert all(not one & other for one, other in itertools.combinations(places, 2))
    assert [buffers(problem, placement) for placement in range(3)] == places
    assert len(drawn) == 1, "the same inputs everywhere"
    monkeypatch.setattr(Measurer, "PLACED_BYTES", 2 * sum(b.size_bytes for b in FAMILY.plan(problem, TILE).buffers))
    assert buffers(problem, 2) == places[0], "no memory for a third"
    buffers(GemmProblem(m=13, n=24, k=17), 1)
    assert not buffers(problem, 1) & places[1], "released, with the problem, before others were allocated"


def test_a_kernel_that_spoils_its_own_inputs_is_wrong(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "const int row = get_global_id(1) * 4;"
    spoil_sources(monkeypatch, lambda source: source.replace(row, row + " ((__global float *)A)[0] += 1.0f;"))
    measurer = Measurer(Session(pocl.selector))
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=4, n=8, k=16), TILE))
    assert trial.state is TrialState.WRONG_RESULT
    assert "writes into its inputs" in trial.message


class CountingSession(Session):
    """A device that counts what is read from it."""

    bytes_read = 0

    def read(self, memory: Any, into: NDArray[Any], start_bytes: int = 0) -> None:
        super().read(memory, into, start_bytes)
        self.bytes_read += into.nbytes


def test_a_trial_of_a_search_reads_back_outputs_and_guards_only(pocl: Device) -> None:
    """Over a phone's cable, reading takes longer than most kernels."""
    session = CountingSession(pocl.selector)
    job = quick_job(pocl, GemmProblem(m=96, n=96, k=96), PACKING)
    assert Measurer(session, TRUSTED).measure(job).state is TrialState.COMPLETE
    checks, output_bytes, guard_bytes = 3, 4 * 96 * 96, canary("float32", "c").nbytes
    assert session.bytes_read <= checks * (output_bytes + 2 * guard_bytes)


def test_memory_is_borrowed_again_and_never_too_much_is_kept(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = Operands(Session(pocl.selector))
    buffer = Buffer(name="x", role=Role.SCRATCH, dtype="float32", elements=1000)
    first, second = operands.borrow(buffer), operands.borrow(buffer)
    assert first.whole is not second.whole
    operands.give_back(first)
    assert operands.borrow(replace(buffer, name="y")).whole is first.whole
    operands.give_back(first)
    monkeypatch.setattr(Operands, "KEPT_BYTES", 5000)
    operands.give_back(second)
    assert operands.borrow(buffer).whole is second.whole
    last = operands.borrow(buffer).whole
    assert last is not first.whole and last is not second.whole, "the first was let go when both were too much"
    plan = FAMILY.plan(GemmProblem(m=16, n=16, k=16), TILE)
    for seed in range(3):
        operands.case(GemmProblem(m=16, n=16, k=16), seed, plan)
    assert len(operands._loaded) == 1, "3 KiB each"


@pytest.mark.parametrize("keeps_programs", [False, True])
def test_a_builder_hands_binaries_over_unless_the_driver_keeps_programs(
    pocl: Device, monkeypatch: pytest.MonkeyPatch, keeps_programs: bool
) -> None:
    session = Session(pocl.selector)
    session.quirks = Quirks(keeps_programs=keeps_programs)
    job = quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE)
    wanted = Task(pocl, job.problem).build_job(TILE)
    assert build_once(session, wanted).binary == b""
    binary = build_once(session, replace(wanted, wants_binary=True)).binary
    assert (binary == b"") is keeps_programs
    if binary:
        monkeypatch.setattr(Session, "build", None)
        assert Measurer(session, TRUSTED).measure(replace(job, binary=binary)).state is TrialState.COMPLETE


class Mute:
    """A device that refuses every question, or whose texts are none."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


@pytest.mark.parametrize(
    "error", [cl.LogicError("clGetDeviceInfo", -30), UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "bad"), TypeError("x")]
)
def test_a_session_needs_no_answer_of_its_device(error: Exception) -> None:
    queue = SimpleNamespace(device=Mute(error), context=None, properties=0)
    session = Session(cast(cl.CommandQueue, queue))
    assert session.quirks == Quirks()
    assert session.timer_resolution_ns == 0
    assert set(session.toolchain) == {""}


def test_a_program_that_was_built_counts_although_pyopencl_cannot_read_the_name_of_its_device(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, build = Session(pocl.selector), cl.Program.build

    def fail(program: cl.Program, *, options: list[str]) -> None:
        if "-DBUILT" in options:
            build(program, options=options)
        raise UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "invalid continuation byte")

    monkeypatch.setattr(cl.Program, "build", fail)
    source = "__kernel void nothing(__global int *x) { }"
    assert cl.Kernel(session.build(source, ["-DBUILT"]), "nothing").num_args == 1
    with pytest.raises(BuildError, match="invalid continuation byte"):
        session.build(source, [])


def with_images(b_storage: str) -> Configuration:
    return FAMILY.complete(
        Configuration.of("microtile", **dict(TILE.values) | {"vector_width": 4, "b_storage": b_storage})
    )


def test_a_builder_launches_kernels_that_see_a_view_of_memory(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = with_images("image_view")
    problem = GemmProblem(m=64, n=64, k=64)
    plan = FAMILY.plan(problem, configuration)
    viewed: dict[str, Any] = {}
    allocate = Session.allocate

    def without_views(session: Session, buffer: Buffer, allocated: Any = {}) -> Any:  # noqa: B006
        if buffer.view_of:
            viewed[buffer.name] = allocated[buffer.view_of]
        return allocate(session, replace(buffer, view_of=""))

    monkeypatch.setattr(Session, "allocate", without_views)  # PoCL 3.0 makes no image of a buffer
    job = replace(Task(pocl, problem).build_job(configuration), launches=True)
    assert build_once(Session(pocl.selector), job).state is BuildState.BUILT
    assert list(viewed) == [buffer.name for buffer in plan.buffers if buffer.role is Role.VIEW] != []


@pytest.mark.parametrize(("first", "is_run"), [(0, True), (1 << 30, False)])
def test_a_builder_blames_no_kernel_for_contents_that_are_not_its_own(pocl: Device, first: int, is_run: bool) -> None:
    """It launches kernels that read where indices say, on zeros: not even those are valid for all."""
    source = f"kernel void k(global const int *index, global int *x) {{ x[0] = x[index[0] - {first}]; }}"
    buffers = [Buffer(name=name, role=Role.INPUT, dtype="int32", elements=1) for name in ("index", "x")]
    launch = Launch(kernel="k", global_size=(1,), local_size=(1,), arguments=("index", "x"))
    job = BuildJob(
        selector=pocl.selector, source_hash="", source=source, options=(), launches=True,
        plan=Plan(buffers=tuple(buffers), launches=(launch,)),
    )  # fmt: skip
    with BuilderPool(1) as pool:
        build = pool.submit(job).result()
    assert build.state is BuildState.BUILT
    assert (build.build_ns > 0) is is_run, "one that died has nothing to tell"


def test_builders_and_measurers_tell_the_same_of_a_kernel(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that only prepare operands do not count for either."""

    def ask(kernel: cl.Kernel, what: int, _: object) -> int:
        told = 100 if what == cl.kernel_work_group_info.WORK_GROUP_SIZE else 7
        return told * (3 if kernel.function_name == "gemm" else 1)

    monkeypatch.setattr(cl.Kernel, "get_work_group_info", ask)
    problem = GemmProblem(m=64, n=64, k=64)
    configuration = with_images("image")
    plan = FAMILY.plan(problem, configuration)
    assert [bool(launch.prepares) for launch in plan.launches] == [True, False]
    session = Session(pocl.selector)
    build = build_once(session, Task(pocl, problem).build_job(configuration))
    measured = Measurer(session, TRUSTED).measure(quick_job(pocl, problem, configuration)).measurement
    assert measured
    assert build.work_group_limit == measured.kernel_work_group_limit == 300
    assert build.private_memory_bytes == measured.private_memory_bytes == 21


def test_a_binary_spares_the_build_and_a_wrong_one_is_built_anew(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(pocl.selector)
    job = quick_job(pocl, GemmProblem(m=13, n=24, k=17), TILE)
    source = render(FAMILY, TILE, FAMILY.plan(job.problem, TILE))
    binary = session.binary(session.build(source, ()))
    builds: list[str] = []
    build = Session.build

    def counted(session: Session, source: str, options: Any) -> Any:
        builds.append(source)
        return build(session, source, options)

    monkeypatch.setattr(Session, "build", counted)
    assert Measurer(session, TRUSTED).measure(replace(job, binary=binary)).state is TrialState.COMPLETE
    without = len(builds)
    assert Measurer(session, TRUSTED).measure(replace(job, binary=b"nonsense")).state is TrialState.COMPLETE
    assert source not in builds[:without] and source in builds[without:]


def test_what_does_not_compile_is_told_with_the_log(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune.measure.measurer, "render", lambda *_: "__kernel void gemm() { this is no C; }")
    measurer._built.clear()
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=2, n=2, k=2), FAMILY.baseline))
    measurer._built.clear()
    assert trial.state is TrialState.COMPILE_FAILED
    assert "this" in trial.message


def test_a_work_group_that_the_driver_refuses_is_invalid(
    pocl: Device, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_huge_groups(self: Gemm, problem: Problem, configuration: Configuration) -> Plan:
        plan = PLAN.plan(GemmProblem(m=1, n=2**20, k=1), configuration)
        return replace(plan, launches=(replace(plan.launches[0], local_size=(2**20, 1, 1)),))

    monkeypatch.setattr(Gemm, "plan", with_huge_groups)
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=1, n=2**20, k=1), FAMILY.baseline))
    assert trial.state is TrialState.INVALID
    assert "WORK_GROUP_SIZE" in trial.message or "WORK_ITEM_SIZE" in trial.message
    assert trial.measurement is None


@pytest.mark.parametrize(("works_on", "state"), [(True, TrialState.INVALID), (False, TrialState.LAUNCH_FAILED)])
def test_a_work_group_that_needs_too_much_is_told_from_a_fault(
    pocl: Device, monkeypatch: pytest.MonkeyPatch, works_on: bool, state: TrialState
) -> None:
    def refuse(*_: object) -> None:
        raise cl.LogicError(cl._cl._ErrorRecord("clEnqueueNDRangeKernel", cl.status_code.OUT_OF_RESOURCES, "as told"))

    measurer = Measurer(Session(pocl.selector), TRUSTED)
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", refuse)
    if not works_on:
        monkeypatch.setattr(cl.CommandQueue, "finish", refuse)
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=8, n=8, k=8), FAMILY.baseline))
    assert trial.state is state and "OUT_OF_RESOURCES" in trial.message


@pytest.mark.parametrize(
    ("host_ns", "event_ns", "is_possible", "is_too_short"),
    [
        (100.0, 90.0, True, False),
        (100.0, 0.0, False, False),
        (100.0, -5.0, False, False),
        (1e6, 2e6, False, False),
        (1e7, 1e6, True, True),  # far too short for a long call
        (1e7, 9e6, True, False),
        (50_000.0, 5_000.0, True, False),  # a short call is mostly launch overhead
    ],
)
def test_events_are_checked_against_the_host_clock(
    host_ns: float, event_ns: float, is_possible: bool, is_too_short: bool
) -> None:
    sample = Sample(calls=1, host_ns=host_ns, event_ns=event_ns, prepare_ns=0.0)
    assert (sample.is_possible, sample.is_too_short) == (is_possible, is_too_short)


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
    job = quick_job(pocl, GemmProblem(m=4, n=4, k=4), FAMILY.baseline)
    trials: list[Trial] = [measurer.measure(job) for _ in range(2)]
    builds = {t.measurement.build_ns for t in trials if t.measurement}
    assert len(builds) == 1, "the second trial used the program of the first"


# Timers


LAUNCH = Launch(kernel="k", global_size=(64,), local_size=None, arguments=())
PACED_JOB = Job(
    selector="0:0", problem=GemmProblem(m=1, n=1, k=1), configuration=FAMILY.baseline, samples=5, min_sample_ns=2000000
)
TRUSTED = Calibration(timer=Timer.EVENT, tick_ns=1.0, launch_overhead_ns=300.0, launch_latency_ns=30_000.0)


def paced(
    host_ns: float, event_of: Callable[[int], float], calibration: Calibration = TRUSTED, latency_ns: float = 0.0
) -> tuple[InventedPort, Stopwatch]:
    device = InventedPort(lambda _: host_ns, event_of, latency_ns)
    return device, Stopwatch(device.port, calibration)


def timed(
    host_ns: float, event_of: Callable[[int], float], job: Job = PACED_JOB, calibration: Calibration = TRUSTED,
    latency_ns: float = 0.0,
) -> tuple[Timing, Stopwatch]:  # fmt: skip
    """The samples of a call that takes some time by the host's clock, and another by events."""
    _, stopwatch = paced(host_ns, event_of, calibration, latency_ns)
    return stopwatch.time([LAUNCH], [LAUNCH], job), stopwatch


def test_a_sample_is_far_longer_than_the_tick_of_its_timer() -> None:
    found, stopwatch = timed(20_000.0, lambda _: 10_000.0, calibration=replace(TRUSTED, tick_ns=10_000.0))
    assert found.timer is Timer.EVENT
    assert found.samples[0].calls * 10_000.0 >= 1000 * 10_000.0, "1000 ticks are more than the 2 ms asked for"
    assert set(found.times_ns) == {10_000.0}
    assert stopwatch.overhead_ns(found, 1) == 10_000.0, "what the host saw beside the kernel"
    found, _ = timed(10_000.0, lambda _: 9_000.0)
    assert 2_000_000 <= found.samples[0].calls * 9_000.0 <= 3_000_000


def test_no_call_takes_no_time() -> None:
    with pytest.raises(LaunchError, match="the clock of the host did not go on"):
        timed(0.0, lambda _: 0.0)


def test_a_sample_by_the_host_is_far_longer_than_it_takes_to_see_an_end() -> None:
    untrusted = replace(TRUSTED, timer=Timer.HOST, reason="zero", launch_latency_ns=200_000.0)
    found, stopwatch = timed(10_000.0, lambda _: 0.0, calibration=untrusted, latency_ns=200_000.0)
    assert found.timer is Timer.HOST
    assert found.samples[0].calls * 10_000.0 >= 45 * 200_000.0
    assert 10_000.0 < found.times_ns[0] < 10_300.0
    assert found.prepare_ns == 0.0
    assert stopwatch.overhead_ns(found, 2) == 600.0


@pytest.mark.parametrize("event_of", [lambda _: 0.0, lambda _: 40_000.0, lambda _: -3.0])
def test_impossible_events_make_the_timer_of_the_device_the_host(event_of: Callable[[int], float]) -> None:
    found, stopwatch = timed(20_000.0, event_of)
    assert found.timer is Timer.HOST
    assert set(found.times_ns) == {20_000.0}
    assert stopwatch.timer is Timer.HOST, "for all trials from then on"


def test_events_far_shorter_than_every_long_call_are_wrong() -> None:
    assert timed(3e6, lambda _: 1e6)[0].timer is Timer.HOST


def test_a_host_that_is_busy_with_other_things_changes_no_timer() -> None:
    found, stopwatch = timed(2e6, lambda _: 1.9e6, latency_ns=8e6)  # it sees the end of a sample 8 ms late
    assert all(sample.is_too_short for sample in found.samples)
    assert (found.timer, stopwatch.timer) == (Timer.EVENT, Timer.EVENT)
    assert set(found.times_ns) == {1.9e6}


def test_what_spoils_a_few_samples_is_left_out_and_changes_no_timer() -> None:
    found, stopwatch = timed(3e6, lambda call: 0.0 if call == 3 else 1e6 if call == 4 else 2.9e6)
    assert (found.timer, stopwatch.timer) == (Timer.EVENT, Timer.EVENT)
    assert sorted(found.times_ns) == [1e6, 2.9e6, 2.9e6, 2.9e6]


def test_a_job_may_ask_for_the_host_where_others_were_timed_by_it() -> None:
    found, stopwatch = timed(20_000.0, lambda _: 15_000.0, replace(PACED_JOB, timer=Timer.HOST))
    assert (found.timer, found.times_ns[0]) == (Timer.HOST, 20_000.0)
    assert stopwatch.timer is Timer.EVENT


def test_a_device_that_was_idle_is_warmed_up_until_its_times_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    ramping: list[float] = []

    def ramped(_: int) -> float:
        """Twice as slow for 60 ms after a pause, whatever it is called for."""
        return 98_000.0 if device.now < ramping[-1] + 60e6 else 49_000.0

    device, _ = paced(100_000.0, ramped)
    monkeypatch.setattr(timing, "perf_counter_ns", device.clock)
    stopwatch = Stopwatch(device.port, TRUSTED, needs_warming=True)
    for pause_ns, most_ns in ((0.0, timing.WARM_UP_NS), (2e6, 40e6), (5e9, timing.WARM_UP_NS)):
        device.now += pause_ns
        if pause_ns != 2e6:
            ramping.append(device.now - 40e6)  # the last third of the ramp is still to come
        began = device.now
        assert set(stopwatch.time([LAUNCH], [LAUNCH], PACED_JOB).times_ns) == {49_000.0}
        assert device.now - began <= most_ns


def test_a_warm_up_is_bounded_and_left_out_where_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = paced(1e6, lambda call: 1e5 * (1 + call % 7))
    monkeypatch.setattr(timing, "perf_counter_ns", device.clock)
    restless = Stopwatch(device.port, TRUSTED, needs_warming=True)
    restless._warm_up([LAUNCH], [LAUNCH], PACED_JOB, Timer.EVENT)
    assert timing.WARM_UP_NS <= device.now <= 1.2 * timing.WARM_UP_NS
    device, processor = paced(5e6, lambda _: 4.9e6)
    monkeypatch.setattr(timing, "perf_counter_ns", device.clock)
    processor._warm_up([LAUNCH], [LAUNCH], PACED_JOB, Timer.EVENT)
    assert device.launched == []
    slow = Stopwatch(device.port, TRUSTED, needs_warming=True)
    slow._warm_up([LAUNCH], [LAUNCH], replace(PACED_JOB, give_up_above_ns=1e3), Timer.EVENT)
    assert len(device.launched) == 1, "what is hopeless need not be measured well"


def test_in_a_rhythm_calls_are_timed_at_the_clock_that_pauses_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_ns = 0.0
    """Time at work, of which pauses take ten times their length off: the clock is full after 20 ms."""

    def clocked(_: Launch) -> float:
        nonlocal busy_ns
        took_ns = 1e6 if busy_ns >= 20e6 else 2e6
        busy_ns = min(busy_ns + took_ns, 200e6)
        return took_ns

    def rest(seconds: float) -> None:
        nonlocal busy_ns
        device.now += seconds * 1e9
        busy_ns = max(0.0, busy_ns - 10 * 1e9 * seconds)

    device = InventedPort(clocked, lambda _: 0.99e6 if busy_ns >= 20e6 else 1.99e6)
    monkeypatch.setattr(timing, "perf_counter_ns", device.clock)
    monkeypatch.setattr(timing, "sleep", rest)
    stopwatch = Stopwatch(device.port, TRUSTED, needs_warming=True)
    assert set(stopwatch.time([LAUNCH], [LAUNCH], PACED_JOB).times_ns) == {0.99e6}
    began, count = device.now, len(device.launched)
    found = stopwatch.time([LAUNCH], [LAUNCH], replace(PACED_JOB, burst_ns=8e6, pause_ns=33e6))
    assert set(found.times_ns) == {1.99e6}, "at full speed only the first burst was"
    assert len(found.times_ns) == PACED_JOB.samples and {sample.calls for sample in found.samples} == {8}
    assert device.now - began >= Job.SETTLING_NS and len(device.launched) > count + 5 * 8
    assert set(stopwatch.time([LAUNCH], [LAUNCH], replace(PACED_JOB, burst_ns=1, pause_ns=1e6)).times_ns) == {1.99e6}


def test_one_sample_is_enough_for_what_is_given_up() -> None:
    device, stopwatch = paced(5e6, lambda _: 4.9e6)
    found = stopwatch.time([LAUNCH], [LAUNCH], replace(PACED_JOB, give_up_above_ns=4e6))
    assert (found.times_ns, len(device.launched)) == ((4.9e6,), 1)


def test_samples_that_agree_need_not_be_many() -> None:
    job = replace(PACED_JOB, samples=7, agreement=0.02)
    assert len(timed(5e6, lambda _: 4.9e6, job)[0].times_ns) == job.FEW
    assert len(timed(5e6, lambda call: 4.9e6 if call % 2 else 4.5e6, job)[0].times_ns) == 7
    assert len(timed(5e6, lambda _: 4.9e6, replace(job, agreement=0.0))[0].times_ns) == 7


def test_zero_events_of_a_real_device_end_as_times_by_the_host(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "event_span_ns", lambda _: (0, 0))
    measurer = Measurer(Session(pocl.selector), TRUSTED)
    trial = measurer.measure(quick_job(pocl, GemmProblem(m=4, n=4, k=4), FAMILY.baseline))
    assert trial.measurement is not None
    assert (trial.state, trial.measurement.timer) == (TrialState.COMPLETE, Timer.HOST)
    assert trial.time_ns > 0


# The first run


@pytest.mark.parametrize(
    ("global_size", "local_size", "groups", "expected"),
    [
        ((1024, 64, 1), (16, 8, 1), 4, (64, 8, 1)),
        ((32, 64, 1), (16, 8, 1), 8, (32, 32, 1)),
        ((32, 16, 50), (16, 8, 1), 12, (32, 16, 3)),
        ((48, 64), (16, 8), 7, (48, 16)),  # six groups: three across, two down
        ((32, 16), (16, 8), 100, (32, 16)),
        ((4096,), (256,), 1, (256,)),
        ((1000, 500, 3), None, 4, (256, 1, 1)),
        ((30, 500, 3), None, 4, (30, 4, 1)),
    ],
)
def test_a_part_of_a_launch_is_whole_work_groups(
    global_size: tuple[int, ...], local_size: tuple[int, ...] | None, groups: int, expected: tuple[int, ...]
) -> None:
    launch = Launch(kernel="k", global_size=global_size, local_size=local_size, arguments=())
    part = clipped(launch, groups)
    assert part == replace(launch, global_size=expected)
    assert group_count(part) <= groups or part == launch


LARGE = Launch(kernel="k", global_size=(64 * 1000, 10), local_size=(64, 1), arguments=())


def probed(time_of: Callable[[int], float], limit_ns: float, launch: Launch = LARGE) -> tuple[float, list[int]]:
    """The least time of a launch that takes some time by its work-groups; and the work-groups of the parts run."""
    device = InventedPort(lambda part: time_of(group_count(part)))
    least_ns = Probe(device.port, 10_000.0).least_ns([None], [launch], {}, limit_ns)
    return least_ns, [group_count(part) for part in device.launched]


def test_what_is_far_too_slow_is_known_after_a_few_work_groups() -> None:
    least_ns, ran = probed(lambda groups: 20_000.0 + 1e6 * groups, limit_ns=1e9)
    assert least_ns == pytest.approx(10_000 * 1e6, rel=0.01)
    assert max(ran) <= 16


def test_parts_grow_until_they_tell_something() -> None:
    least_ns, ran = probed(lambda groups: 20_000.0 + 1e3 * groups, limit_ns=1e9)
    assert ran == [2, 2, 16, 128, 1000]
    assert least_ns == pytest.approx(10e6, rel=0.01)


def test_of_work_groups_that_share_out_all_the_work_nothing_is_foretold() -> None:
    least_ns, ran = probed(lambda groups: 5e9 / min(groups, 64), limit_ns=1e6)
    assert least_ns == 0.0
    assert max(ran) < 10_000


def test_small_launches_and_those_that_would_be_built_anew_for_a_part_are_run_whole() -> None:
    for launch in (replace(LARGE, global_size=(128, 1)), replace(LARGE, local_size=None)):
        assert probed(lambda _: 1e9, 1e6, launch) == (0.0, [])


def test_a_disturbed_part_is_timed_again() -> None:
    disturbed = iter([30e6])
    least_ns, _ = probed(lambda g: 100.0 * g + (next(disturbed, 0.0) if g > 8 else 0.0), 1e8)
    assert least_ns < 1e8


@pytest.mark.long
def test_a_far_too_slow_kernel_is_not_run_in_full(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Probe._time

    def slow_motion(probe: Probe, *what: Any) -> tuple[int, float]:
        """Run, and a millisecond a work-group: what a busy machine makes of real times tells nothing now and then."""
        count, _ = time(probe, *what)
        return count, 1e6 * count

    monkeypatch.setattr(Probe, "_time", slow_motion)
    monkeypatch.setattr(autotune.measure.runner, "WORTH_REFUSING_NS", 1000.0)
    problem = GemmProblem(m=256, n=256, k=256)
    plain = Configuration.of("naive", work_group_m=8, work_group_n=8)
    job = replace(quick_job(pocl, problem, plain), give_up_above_ns=1.0)
    measurer = Measurer(Session(pocl.selector), TRUSTED)
    slow = measurer.measure(job)
    assert (slow.state, slow.measurement) == (TrialState.TOO_SLOW, None)
    assert "extrapolated from some work-groups" in slow.message
    assert measurer.measure(job).state is TrialState.COMPLETE, "only the first run is a probe"
    unprobed = Measurer(Session(pocl.selector), TRUSTED).measure(replace(job, probe=False))
    assert unprobed.state is TrialState.COMPLETE


_UNDIVIDED = {"reduce": "1025x3", "rows": "1025x7", "gemm": "1025,1031,3"}


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("reduce", "serial"), ("rows", "serial"), ("gemm", "naive"),
        pytest.param("gemm", "dot", marks=pytest.mark.long), pytest.param("gemm", "microtile", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_work_items_beyond_a_size_that_the_driver_divides_do_nothing(
    pocl: Device, measurer: Measurer, name: str, algorithm: str
) -> None:
    family = find_family(name)
    problem = family.problem_type.parse(_UNDIVIDED[name])
    space = SearchSpace(family, problem, pocl.limits, algorithms=[algorithm])
    drawn = space.configurations(np.random.default_rng(0).integers(0, len(space), 5000))
    launches = ((c, family.plan(problem, c).launches[-1]) for c in drawn)
    by_driver = [(c, its.global_size) for c, its in launches if its.local_size is None and max(its.global_size) > 1024]
    assert by_driver
    for configuration, sizes in by_driver[:4]:
        assert all(size < 1024 or size % 64 == 0 for size in sizes)
        trial = measurer.measure(quick_job(pocl, problem, configuration, probe=False, min_sample_ticks=1))
        assert trial.state is TrialState.COMPLETE, (configuration, trial.message)
