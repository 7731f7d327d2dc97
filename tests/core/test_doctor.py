"""`autotune doctor`: injected faults, what follows from them for a search, and real probes on a real driver."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import autotune.child
import autotune.measure.doctor
from autotune.child import Cause, Loss
from autotune.cli import main
from autotune.cli.devices import checked, examined
from autotune.codec import Node
from autotune.device.probes import PROBES
from autotune.device.profile import find_profile
from autotune.errors import AutotuneError, ProblemError
from autotune.kernels import find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup.json_table import read_device
from autotune.measure import doctor
from autotune.measure.doctor import examine
from autotune.measure.worker import Worker
from autotune.model.checkup import (
    ATOMICS,
    EMPTY_KERNEL,
    HALF_ARITHMETIC,
    IMAGE_VIEWS,
    IMAGES,
    INTEGER_DOT_KHR,
    LOCAL_MEMORY,
    SUB_GROUPS,
    VSTORE_HALF,
    WIDE_LOCAL_BYTES,
    WIDE_LOCAL_MEMORY,
    WIDEST_LOCAL_BYTES,
    WIDEST_LOCAL_MEMORY,
    Checkup,
    Finding,
    Health,
    consequence,
    feature_of,
    summary,
    vector_probe,
)
from autotune.model.device import VECTOR_WIDTHS, Device, DeviceLimits, Fault
from autotune.model.problem import NUMBER_TYPES, Problem
from autotune.model.trial import Job, Trial, TrialState
from autotune.service.remote.wire import plain_device
from autotune.space.search_space import SearchSpace
from autotune.store import Store, checkups
from autotune.store.models import device_row, value_of
from covering import occurring
from factories import evil
from fakes import INVENTED_PROCESSOR
from waiting import HANG_S

PROBER = evil("prober")
CAPABLE = dataclasses.replace(
    INVENTED_PROCESSOR,
    limits=dataclasses.replace(
        INVENTED_PROCESSOR.limits,
        has_images=True, max_image_width=8192, max_image_height=8192, image_pitch_alignment=1, has_sub_groups=True,
        has_float16=True, ordering_standard=300, local_memory_bytes=2**19,
        extensions=("cl_khr_fp16", "cl_khr_image2d_from_buffer", "cl_khr_integer_dot_product"),
    ),
)  # fmt: skip
"""Offers nearly everything."""
SOME_WORKER = Worker()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the evil prober was asked, a line each time: how many probes, and the first."""
    path = tmp_path / "log"
    monkeypatch.setenv("EVIL_LOG", str(path))
    return path


class Prober(Worker):
    """The evil prober, which has time for all but probes that hang."""

    def __init__(self, behaviour: Mapping[str, str]) -> None:
        super().__init__(PROBER)
        self._hanging = {probe for probe, how in behaviour.items() if how == "hang"}

    def examine(self, selector: str, probes: Sequence[str], limits_s: Mapping[str, float]) -> dict[str, str] | Loss:
        assert min(doctor.OPENING_LIMIT_S, doctor.LEAST_LIMIT_S) <= limits_s["probe"] <= doctor.MOST_LIMIT_S
        limit_s = 0.5 if self._hanging & {*probes} else HANG_S
        return super().examine(selector, probes, {**limits_s, "probe": limit_s})


def check(monkeypatch: pytest.MonkeyPatch, device: Device = CAPABLE, **behaviour: str) -> Checkup:
    named = {name.replace("_", " "): how for name, how in behaviour.items()}
    monkeypatch.setenv("EVIL_PROBES", json.dumps(named))
    with Prober(named) as worker:
        return examine(device, is_full=False, worker=worker)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that compiles has the time that it takes on a busy machine."""
    for limit in ("OPENING_LIMIT_S", "FIRST_LIMIT_S", "LEAST_LIMIT_S", "MOST_LIMIT_S"):
        monkeypatch.setattr(doctor, limit, HANG_S)
    make = doctor._job

    def patient_job(*of: Any) -> Job:
        return dataclasses.replace(make(*of), build_limit_s=HANG_S, run_limit_s=HANG_S)

    monkeypatch.setattr(doctor, "_job", patient_job)


def broken(*probes: str, fault: Fault | None = None) -> Checkup:
    findings = [Finding(probe=EMPTY_KERNEL, health=Health.WORKS)]
    findings += [Finding(probe=probe, health=Health.BROKEN, message="wrong", fault=fault) for probe in probes]
    return Checkup(findings=tuple(findings), is_full=True)


def space(device: Device, problem: Problem) -> SearchSpace:
    return SearchSpace(find_family(problem.family), problem, device.limits)


def values(device: Device, problem: Problem, name: str) -> set[Any]:
    found = space(device, problem)
    return {
        v for a, named in found.parameters.items() if name in {p.name for p in named} for v in occurring(found, a, name)
    }


# Probes


def test_every_type_of_a_kernel_is_probed_in_every_width() -> None:
    probes = {probe for group in doctor._GROUPS for probe in group}
    assert {vector_probe(dtype, width) for dtype in NUMBER_TYPES for width in VECTOR_WIDTHS} <= probes
    limits = {field.name for field in dataclasses.fields(DeviceLimits)}
    assert {f"max_vector_{dtype}" for dtype in NUMBER_TYPES} <= limits


def test_a_unit_without_room_for_the_largest_tiles_keeps_the_next_smaller_ones() -> None:
    limits = dataclasses.replace(CAPABLE.limits, declared_local_memory_bytes=WIDEST_LOCAL_BYTES)
    device = dataclasses.replace(CAPABLE, limits=limits)
    for probes, left in (
        ((WIDEST_LOCAL_MEMORY,), WIDE_LOCAL_BYTES),
        ((WIDE_LOCAL_MEMORY, WIDEST_LOCAL_MEMORY), 0),
        ((WIDE_LOCAL_MEMORY,), 0),
    ):
        less = broken(*probes).applied_to(device)
        assert less.limits.declared_local_memory_bytes == left
        assert feature_of(WIDE_LOCAL_MEMORY).is_offered(less.limits) == (left > 0)
        assert not feature_of(WIDEST_LOCAL_MEMORY).is_offered(less.limits)
    assert feature_of(WIDEST_LOCAL_MEMORY).is_offered(limits)


def test_where_all_is_well_one_program_tells_most(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    checkup = check(monkeypatch, INVENTED_PROCESSOR)
    assert checkup.can_search and not checkup.broken
    assert [line.split(" ", 1)[0] for line in log.read_text().splitlines()] == ["12"]
    with_images = dataclasses.replace(INVENTED_PROCESSOR.limits, has_images=True)
    assert not check(monkeypatch, dataclasses.replace(INVENTED_PROCESSOR, limits=with_images)).broken
    assert log.read_text().splitlines()[1:] == ["13 empty kernel"], "images are built with all the rest"
    missing = {finding.probe for finding in checkup.findings if finding.health is Health.MISSING}
    assert {IMAGES, IMAGE_VIEWS, SUB_GROUPS, HALF_ARITHMETIC, INTEGER_DOT_KHR} < missing
    assert checkup.applied_to(INVENTED_PROCESSOR) == INVENTED_PROCESSOR


@pytest.mark.parametrize("how", ["abort", "hang", "kill", "refuse", "wrong"])
def test_only_what_fails_alone_is_broken(monkeypatch: pytest.MonkeyPatch, log: Path, how: str) -> None:
    monkeypatch.setattr("autotune.device.processors.load", lambda: 0.0)
    checkup = check(monkeypatch, float32_vectors_of_16=how)
    [finding] = checkup.broken
    assert finding.probe == vector_probe("float32", 16)
    said = {
        "abort": "SIGABRT", "hang": "took more than 0.5 s", "kill": "SIGKILL", "refuse": "unknown target CPU",
        "wrong": "5 of 9",
    }[how]  # fmt: skip
    assert said in finding.message
    assert checkup.can_search
    assert checkup.applied_to(CAPABLE).limits.max_vector_float32 == 8
    assert log.read_text().count("1 float32 vectors of 16") == 1 + (how in ("hang", "kill"))
    assert checkup.is_open == finding.is_open == (how == "kill")


class _Late(Worker):
    """A worker in which sub-groups are late, so often."""

    def __init__(self, times: int, phase: str = "probe", cause: Cause = Cause.LATE) -> None:
        super().__init__()
        self._left = times
        self._phase, self._cause = phase, cause
        self.limits_s: list[float] = []

    def examine(self, selector: str, probes: Sequence[str], limits_s: Mapping[str, float]) -> dict[str, str] | Loss:
        if SUB_GROUPS not in probes:
            return dict.fromkeys(probes, "")
        self.limits_s.append(limits_s["probe"])
        self._left -= 1
        if self._left < 0:
            return dict.fromkeys(probes, "")
        message = f"{self._phase} took more than {limits_s['probe']:g} s"
        return Loss(cause=self._cause, phase=self._phase, message=message, was_killed=self._cause is Cause.DIED)


@pytest.mark.parametrize(
    ("late", "load", "is_broken", "is_open"),
    [
        ((0,), 0.0, False, False),
        ((1,), 0.0, False, False),
        ((1,), 1e4, False, False),
        ((2,), 0.0, True, False),
        ((2,), 1e4, True, True),
        ((9, "opening"), 0.0, True, True),
        ((9, "probe", Cause.DIED), 0.0, True, True),
    ],
    ids=["quick", "late once", "late once and busy", "hung", "late and busy", "opened late", "killed"],
)
def test_a_slow_moment_breaks_nothing_for_good(
    monkeypatch: pytest.MonkeyPatch, store: Store, late: tuple[Any, ...], load: float, is_broken: bool, is_open: bool
) -> None:
    worker = _Late(*late)
    monkeypatch.setattr("autotune.device.processors.load", lambda: load)
    found = examined(CAPABLE, store, worker)
    assert found.limits.has_sub_groups is not is_broken, "left out of this run"
    assert worker.limits_s[-1] == doctor.MOST_LIMIT_S, "the last time with the largest limit"
    kept = store.checkup(CAPABLE)
    assert (kept is None) is is_open, "the next run asks again"
    assert kept is None or bool(kept.broken) is is_broken


@pytest.mark.parametrize("state", [TrialState.CUT_SHORT, TrialState.WRONG_RESULT])
def test_an_algorithm_is_not_to_blame_for_a_busy_machine(state: TrialState) -> None:
    class Busy(Worker):
        def run(self, job: Job) -> Trial:
            return Trial(configuration=job.configuration, state=state, message="as told")

    finding = doctor._try_algorithm(CAPABLE, find_family("gemm"), "naive", Busy())
    assert finding.health is Health.BROKEN and finding.message.endswith(f"{state.value}: as told")
    assert finding.is_open == (finding.fault is None) == (state is TrialState.CUT_SHORT)
    checkup = Checkup(findings=(finding,), is_full=True)
    assert checkup.is_open == checkup.can_search == finding.is_open


def test_the_command_keeps_no_checkup_that_is_open(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = Finding(probe=IMAGES, health=Health.BROKEN, message="probe took more than 120 s", is_open=True)
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: Checkup(findings=(late,), is_full=True))
    database = tmp_path / "tuning.sqlite"
    assert main(["doctor", "--device", pocl.selector, "--db", str(database)]) == 0
    assert "perhaps not broken" in capsys.readouterr().out
    with Store.open(database) as store:
        assert store.checkup(pocl) is None


class _LosesTheLink(Worker):
    """A worker whose link ends while it tries sub-groups, so often."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self._losses = losses

    def examine(self, selector: str, probes: Sequence[str], limits_s: Mapping[str, float]) -> dict[str, str] | Loss:
        if SUB_GROUPS in probes and self._losses:
            self._losses -= 1
            return Loss(cause=Cause.DIED, phase="probe", message="the link to the device ended")
        return dict.fromkeys(probes, "")


def test_a_link_that_ends_once_is_no_fault_of_the_driver() -> None:
    phone = dataclasses.replace(CAPABLE, selector="adb:FAKE1#0:0")
    for device, losses, is_broken in ((phone, 1, False), (phone, 2, True), (CAPABLE, 1, True)):
        found = examine(device, is_full=False, worker=_LosesTheLink(losses))
        assert [finding.probe for finding in found.broken] == [SUB_GROUPS] * is_broken


def test_driver_that_hangs_at_the_first_build_is_told_in_time(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """The worker of a run builds something as soon as it starts, and waits there for minutes."""
    monkeypatch.setattr(autotune.measure.doctor, "OPENING_LIMIT_S", 0.2)
    monkeypatch.setattr(autotune.child, "SLOWNESS", 0.0)
    checkup = check(monkeypatch, prepare="hang")
    assert not checkup.can_search
    assert checkup.findings[0].message == "start took more than 0.2 s"
    assert not log.exists()


def test_a_driver_on_which_nothing_runs_is_told_from_one_with_faults(
    monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    checkup = check(monkeypatch, empty_kernel="refuse")
    assert not checkup.can_search
    assert [finding.probe for finding in checkup.findings] == [EMPTY_KERNEL]
    assert log.exists()


def test_a_fault_of_our_own_is_not_the_drivers(
    store: Store, monkeypatch: pytest.MonkeyPatch, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkup = check(monkeypatch, images="fault")
    [finding] = checkup.broken
    assert finding.is_ours and "unexpected KeyError: 'float128'" in finding.message
    assert consequence(finding).startswith("a fault in autotune, not in the driver")
    assert not checkup.applied_to(CAPABLE).limits.has_images and log.exists()
    monkeypatch.setattr(autotune.measure.doctor, "examine", lambda *_, **__: checkup)
    examined(CAPABLE, store, SOME_WORKER)
    assert store.checkup(CAPABLE) is None, "the next version may not have the fault"


def test_a_fault_of_our_own_in_everything_is_not_mended_by_another_driver(
    monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    checkup = check(monkeypatch, empty_kernel="fault")
    monkeypatch.setattr(autotune.measure.doctor, "examine", lambda *_, **__: checkup)
    with pytest.raises(AutotuneError, match=r"autotune itself fails at an empty kernel .*KeyError.*please report it"):
        checked(CAPABLE)
    assert log.exists()


# What follows


GEMM, INT8 = GemmProblem(m=256, n=256, k=256), GemmProblem(m=256, n=256, k=256, mode="int8")
HALF = GemmProblem(m=256, n=256, k=256, mode="float16")
ROWS = ReduceProblem(batch=64, channels=4096)


@pytest.mark.parametrize("problem", [GEMM, HALF, INT8, ROWS], ids=lambda problem: problem.label)
def test_broken_widths_are_neither_proposed_nor_the_default(problem: Problem) -> None:
    types = {"int8": ("int8",), "float16": ("float16",)}.get(str(problem.to_dict().get("mode")), ("float32",))
    sick = broken(*(vector_probe(dtype, 8) for dtype in types)).applied_to(CAPABLE)
    family, starts = find_family(problem.family), find_profile(CAPABLE).starting(problem.family)
    assert 16 in values(CAPABLE, problem, "vector_width"), "there is something to leave out"
    assert max(values(sick, problem, "vector_width")) == 4, "and what is wider than the least broken one"
    assert max(values(sick, problem, "a_vector_width") or {0}) <= 4
    default = dict(family.default(problem, sick.limits, starts).values)
    assert default.get("vector_width", 1) in (1, 2, 4)
    assert max(values(sick, problem, "micro_tile_n") or {1}) <= 16


def test_types_are_told_apart() -> None:
    sick = broken(vector_probe("float32", 16)).applied_to(CAPABLE)
    assert max(values(sick, INT8, "vector_width")) == 16
    sums = broken(vector_probe("int32", 8)).applied_to(CAPABLE)
    assert max(values(sums, INT8, "vector_width")) == 4, "products of int8 are added up in int32"
    assert max(values(sums, GEMM, "vector_width")) == 16


@pytest.mark.parametrize(
    ("probe", "problem", "name", "value"),
    [
        (IMAGES, GEMM, "b_storage", "image"), (IMAGES, GEMM, "a_storage", "image_view"),
        (IMAGE_VIEWS, GEMM, "b_storage", "image_view"), (INTEGER_DOT_KHR, INT8, "integer_dot", "khr"),
        (ATOMICS, ReduceProblem(batch=1, channels=10**6), "combine", "last_group_cl3"),
        (SUB_GROUPS, ROWS, "row_of", "sub_group"), (LOCAL_MEMORY, ROWS, "fan_in", 4),
    ],
)  # fmt: skip
def test_what_is_broken_leaves_the_space(probe: str, problem: Problem, name: str, value: Any) -> None:
    assert value in values(CAPABLE, problem, name)
    assert value not in values(broken(probe).applied_to(CAPABLE), problem, name)


@pytest.mark.parametrize("problem", [INT8, QGemmProblem(m=64, n=1, k=64, weights="q8_0", mode="int8")])
def test_dot_products_are_tried_as_kernels_are_built(problem: Problem) -> None:
    """Intel's compiler for processors knows them from OpenCL C 2.0 on, so that without options it looks broken."""
    family = find_family(problem.family)
    multiplying = [one.name for one in family.algorithms if "integer_dot" in {p.name for p in one.parameters}]
    space = SearchSpace(family, problem, CAPABLE.limits, algorithms=multiplying, overrides={"integer_dot": ("khr",)})
    options = {option for option in family.plan(problem, space[0]).build_options if option.startswith("-cl-std")}
    assert [options] == [set(tried) for tried in PROBES[INTEGER_DOT_KHR].options]


def test_image_views_may_break_alone() -> None:
    assert "image" in values(broken(IMAGE_VIEWS).applied_to(CAPABLE), GEMM, "b_storage")


@pytest.mark.parametrize(
    ("probe", "problem"),
    [
        (VSTORE_HALF, HALF), (VSTORE_HALF, ReduceProblem(batch=1, channels=8, dtype="float16")),
        (HALF_ARITHMETIC, GemmProblem(m=8, n=8, k=8, mode="float16-acc16")),
    ],
)  # fmt: skip
def test_problems_of_a_broken_type_are_refused(probe: str, problem: Problem) -> None:
    problem.check_device(CAPABLE.limits)
    with pytest.raises(ProblemError, match=r"half precision wrong|has no float16 arithmetic"):
        problem.check_device(broken(probe).applied_to(CAPABLE).limits)


def test_a_broken_algorithm_is_left_out_and_the_baseline_never() -> None:
    starts = find_profile(CAPABLE).starting("gemm")
    favourite = find_family("gemm").default(GEMM, CAPABLE.limits, starts).algorithm
    sick = broken("gemm", fault=Fault(family="gemm", algorithm=favourite)).applied_to(CAPABLE)
    assert len(space(CAPABLE, GEMM).diagrams[favourite]) > 0
    assert len(space(sick, GEMM).diagrams[favourite]) == 0
    assert find_family("gemm").default(GEMM, sick.limits, starts).algorithm != favourite
    plainest = broken("gemm naive", fault=Fault(family="gemm", algorithm="naive")).applied_to(CAPABLE)
    assert len(space(plainest, GEMM).diagrams["naive"]) > 0


def test_what_is_broken_is_stored_and_announced_with_the_limits() -> None:
    fault = Fault(family="gemm", algorithm="panel", parameter="unroll", value=8)
    sick = broken(vector_probe("float32", 8), "gemm panel", fault=fault).applied_to(CAPABLE)
    assert (sick.limits.max_vector_float32, sick.limits.faults) == (4, (fault,))
    assert value_of(Device, device_row(sick)).limits == sick.limits
    sent = json.loads(json.dumps(plain_device(sick)))
    assert read_device(Node(sent, "device")).limits == sick.limits


def test_a_summary_tells_the_least_width() -> None:
    findings = broken(vector_probe("float32", 8), vector_probe("float32", 16), IMAGES).broken
    assert summary(findings) == "float32 vectors of 8 or more elements, images"


# Kept with the device


def test_a_checkup_is_kept_for_device_driver_and_probes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    checkup = broken(IMAGES, "gemm panel", fault=Fault(family="gemm", algorithm="panel"))
    assert store.checkup(CAPABLE) is None
    store.keep_checkup(CAPABLE, checkup)
    assert store.checkup(CAPABLE) == checkup
    store.keep_checkup(CAPABLE, broken(IMAGE_VIEWS))
    assert store.checkup(CAPABLE) == broken(IMAGE_VIEWS)
    newer = dataclasses.replace(CAPABLE, driver="2.0")
    for other in (newer, dataclasses.replace(CAPABLE, version="znver4"), dataclasses.replace(CAPABLE, slug="pocl-b")):
        assert store.checkup(other) is None
    monkeypatch.setattr(checkups, "PROBES_VERSION", 99)
    assert store.checkup(CAPABLE) is None


def test_a_device_is_checked_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[bool] = []

    def fake(device: Device, *, is_full: bool = True, worker: Worker) -> Checkup:
        assert device.slug == CAPABLE.slug and worker is SOME_WORKER
        calls.append(is_full)
        return broken(vector_probe("float32", 16))

    monkeypatch.setattr(autotune.measure.doctor, "examine", fake)
    for _ in range(2):
        assert examined(CAPABLE, store, SOME_WORKER).limits.max_vector_float32 == 8
        assert capsys.readouterr().err == (
            "pocl-invented: broken and left out: float32 vectors of 16 or more elements; `autotune doctor` shows more\n"
        )
    assert calls == [False]
    examined(dataclasses.replace(CAPABLE, driver="2.0"), store, SOME_WORKER)
    assert len(calls) == 2, "another driver is another device"


def test_a_driver_that_cannot_compile_is_refused_with_what_to_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pocl = dataclasses.replace(CAPABLE, version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-generic")
    said = "clBuildProgram failed\n\nerror: unknown target CPU 'generic'"
    sick = Checkup(findings=(Finding(probe=EMPTY_KERNEL, health=Health.BROKEN, message=said),), is_full=False)
    monkeypatch.setattr(autotune.measure.doctor, "examine", lambda *_, **__: sick)
    with pytest.raises(AutotuneError, match=r"error: unknown target CPU 'generic'.*pocl-opencl-icd.*intel-opencl-rt"):
        examined(pocl, store, SOME_WORKER)
    assert store.checkup(pocl) is None, "the next run looks again"


# For real


def real(monkeypatch: pytest.MonkeyPatch, device: Device, **behaviour: str) -> Checkup:
    monkeypatch.setenv("EVIL_DRIVER", "1")
    monkeypatch.setenv("EVIL_PROBES", json.dumps(behaviour))
    with Worker(PROBER) as worker:
        return examine(device, is_full=False, worker=worker)


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_real_probes_tell_wrong_numbers(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    """A maximum that is none, and group sums that lose a half, each where it is and nowhere else."""
    wrong = {"max(total, vload16(item, a_float))": "total", "shared[lane + half_way]": "0"}
    checkup = real(monkeypatch, pocl, **wrong)
    assert {finding.probe for finding in checkup.broken} == {vector_probe("float32", 16), LOCAL_MEMORY}
    assert all("results are wrong" in finding.message for finding in checkup.broken)


@pytest.mark.usefixtures("patient")
def test_real_probes_go_on_in_a_worker_that_is_ready(pocl: Device) -> None:
    """The short check of `run`: no process of its own, and one program, built where the library is loaded already."""
    with Worker(selector=pocl.selector) as worker:
        worker.start()
        before = worker.pid
        checkup = examine(pocl, is_full=False, worker=worker)
        assert worker.pid == before
    assert not checkup.broken
    assert {finding.probe for finding in checkup.findings if finding.health is Health.WORKS} >= {IMAGES, LOCAL_MEMORY}


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_real_probes_tell_wrong_pixels(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    checkup = real(monkeypatch, pocl, **{"read_imagei(from, (int2)(x, y))": "read_imagei(from, (int2)(y, x))"})
    [finding] = checkup.broken
    assert finding.probe == IMAGES and finding.message.startswith("int8: ")


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_real_probes_go_on_after_a_crash(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    checkup = real(monkeypatch, pocl, float16="abort")
    assert {finding.probe for finding in checkup.broken} == {vector_probe("float32", 16), vector_probe("float16", 16)}
    assert all("SIGABRT" in finding.message for finding in checkup.broken)


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_the_command_tells_of_a_sound_device(pocl: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = str(tmp_path / "tuning.sqlite")
    assert main(["doctor", "--device", pocl.selector, "--json", "--db", database]) == 0
    told = json.loads(capsys.readouterr().out)
    [device] = told["devices"]
    health = {finding["probe"]: finding["health"] for finding in device["findings"]}
    assert device["can_search"] and {"autotune", "Python", "pyopencl"} < told.keys()
    assert health["float32 vectors of 16"] == health["gemm microtile"] == health["reduce serial"] == "works"
    assert health["reduce shuffle"] == "missing"
    with Store.open(database) as store:
        kept = store.checkup(pocl)
        assert kept is not None and kept.is_full


def test_the_command_fails_where_no_search_can_work(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sick = Checkup(
        findings=(Finding(probe=EMPTY_KERNEL, health=Health.BROKEN, message="killed by SIGSEGV"),), is_full=True
    )
    monkeypatch.setattr(autotune.measure.doctor, "examine", lambda *_, **__: sick)
    assert main(["doctor", "--device", pocl.selector, "--db", str(tmp_path / "tuning.sqlite")]) == 1
    out = capsys.readouterr().out
    assert "broken   empty kernel: killed by SIGSEGV" in out
    assert out.splitlines()[-1].startswith("verdict: no search is possible here")


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("dlopen failed: spin.so: failed to map segment from shared object", "POCL_CACHE_DIR"),
        ("run: killed by SIGILL.", "this PoCL cannot compile for this processor"),
        ("error: unknown target CPU 'generic'", "this PoCL cannot compile for this processor"),
        ("'zn9' is not a recognized processor for this target", "this PoCL cannot compile for this processor"),
        ("killed by SIGABRT. LLVM ERROR: IO failure on output stream: File too large", "`ulimit -f`"),
        ("killed by SIGABRT. LLVM ERROR: IO failure on output stream: No space left on device", "free some space"),
        ("cannot create /cache/kernels: Permission denied", "POCL_CACHE_DIR"),
        ("probe: killed by SIGKILL.", "memory runs out"),
        ("probe took more than 120 s", "quieter"),
        ("probe: killed by SIGSEGV.", "choose another device"),
    ],
)
def test_the_hint_of_a_device_on_which_nothing_runs_names_the_cause(
    message: str, hint: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Finding(probe=EMPTY_KERNEL, health=Health.BROKEN, message=message)
    monkeypatch.setattr(autotune.measure.doctor, "examine", lambda *_, **__: Checkup(findings=(broken,), is_full=True))
    device = dataclasses.replace(CAPABLE, version="OpenCL 3.0 PoCL 3.0")
    with pytest.raises(AutotuneError) as raised:
        examined(device, store, SOME_WORKER)
    assert hint in raised.value.hint
    assert ("this PoCL" in raised.value.hint) is ("this PoCL" in hint)
