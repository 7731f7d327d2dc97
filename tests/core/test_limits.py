"""What a device can do at most: measured on a device with invented rates and on PoCL, kept, and used."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from autotune import child
from autotune.device import profile
from autotune.device.machine import machine_of, measured_machine
from autotune.device.opencl import Session
from autotune.device.port import Port
from autotune.device.profile import find_profile
from autotune.errors import BuildError
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.render import render_file
from autotune.lookup import TuningTable
from autotune.measure import limits
from autotune.measure.limits import PARTS, Bench, measure_rates, rates_of
from autotune.model.device import Device
from autotune.model.machine import Rates
from autotune.model.plan import Launch, Plan, Scalar
from autotune.model.problem import Problem
from autotune.model.trial import Calibration, Timer
from autotune.store import Store
from factories import INVENTED_GPU, PHONE, PROCESSOR, Run, device, product
from invented_port import InventedPort
from model_files import won

GIVEN = Rates(
    buffer=100.0, image=200.0, constant=500.0, local=1000.0, float32=2000.0, float16=4000.0, int8=8000.0,
    launch_ns=1500.0, registers=48, lanes=32,
)  # fmt: skip


class RatedPort(InventedPort):
    """A port to a device with these rates. Its programs are what the template was given."""

    device = replace(
        INVENTED_GPU,
        limits=replace(
            PHONE, has_float16=True, max_allocation_bytes=2**28, global_memory_bytes=2**32,
            extensions=("cl_khr_fp16", "cl_khr_integer_dot_product"),
        ),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(self._time_ns)
        self._bound: dict[str, Any] = {}

    def build(self, source: str, _: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(source)
        return found

    def kernels(self, program: dict[str, Any], _: Plan) -> dict[str, Any]:
        return program

    def allocate(self, _: Any) -> str:
        return "memory"

    def write(self, _: Any, values: np.ndarray[Any, Any]) -> None:
        assert sorted(values) == list(range(4096))

    def bind(self, kernels: Any, launches: Sequence[Launch], memory: Mapping[str, Any] = {}) -> Sequence[Launch]:
        self._bound = kernels
        return launches

    def _time_ns(self, launch: Launch) -> float:
        what, kind, width = str(self._bound["what"]), str(self._bound["kind"]), int(self._bound["width"])
        rounds = cast("Scalar", launch.arguments[-1]).value
        work = float(math.prod(launch.global_size) * rounds)
        slow = 3 if self._bound["in_turn"] or width == 16 else 1  # not how this device is fast
        match what:
            case "buffer" | "image":
                return slow * 16 * work / (GIVEN.buffer if what == "buffer" else GIVEN.image)
            case "local" | "constant":
                return slow * 4 * 4 * width * work / (GIVEN.local if what == "local" else GIVEN.constant)
            case "arithmetic":
                return slow * 2 * 8 * width * work / (GIVEN.float32 if kind == "float32" else GIVEN.float16)
            case "dots":
                return 8 * 8 * work / GIVEN.int8
            case "registers":
                return width * work * max(1.0, width / 40)
            case "waves":
                return work * min(1.0, GIVEN.lanes / width)
        raise AssertionError(what)


def test_rates_of_an_invented_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "render_file", lambda name, **values: json.dumps(values))
    port = RatedPort()
    bench = Bench(cast("Port", port), Calibration(timer=Timer.HOST, launch_overhead_ns=GIVEN.launch_ns))
    found: dict[str, float] = {}
    for part in PARTS.values():
        found |= part(bench)
    # Work takes a half longer from 60 registers on, between two of those tried: 48 and 64.
    assert vars(rates_of(found)) == pytest.approx(vars(GIVEN), rel=0.01)


def test_what_a_device_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "render_file", lambda name, **values: json.dumps(values))
    port = RatedPort()
    plain = replace(PHONE, has_images=False, max_work_group_size=64, max_allocation_bytes=2**26)
    port.device = replace(INVENTED_GPU, limits=plain)
    bench = Bench(cast("Port", port), Calibration(timer=Timer.HOST))
    assert set(PARTS["arithmetic"](bench)) == {"float32"}
    assert PARTS["images"](bench) == PARTS["waves"](bench) == {}
    port.device = replace(INVENTED_GPU, limits=replace(plain, is_cpu=True))
    assert PARTS["registers"](Bench(cast("Port", port), Calibration(timer=Timer.HOST))) == {}


@pytest.mark.parametrize("what", ["buffer", "image", "local", "constant", "arithmetic", "registers", "waves"])
def test_kernels_build(what: str, pocl: Device) -> None:
    source = render_file("limits.cl.j2", what=what, kind="", width=4, in_turn=True, is_mad=True)
    Session(pocl.selector).build(source, ["-cl-opt-disable"])


def test_dots_are_those_of_the_kernels() -> None:
    for kind in ("khr", "arm", "ptx"):
        source = render_file("limits.cl.j2", what="dots", kind=kind, width=1, in_turn=False, is_mad=False)
        assert {"khr": "dot_4x8packed_ss_int", "arm": "arm_dot", "ptx": "dp4a"}[kind] in source


def test_buffers_and_launches_of_pocl(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child, as the command does it; the rate is one that memory of this decade may have."""
    monkeypatch.setattr(limits, "PARTS", {name: PARTS[name] for name in ("launches", "buffers")})
    said: list[str] = []
    rates = measure_rates(pocl, said.append)
    assert said == ["measuring launches ...", "measuring buffers ..."]
    assert 0.2 < rates.buffer < 2000 and 10 < rates.launch_ns < 1e8


def test_a_part_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    def ask(_: child.Child, message: tuple[str, str], __: Mapping[str, float]) -> object:
        if message[1] == "buffers":
            return child.Loss(cause=child.Cause.DIED, phase="measuring", message="crashed")
        return "no such extension" if message[1] == "arithmetic" else {"lanes": 64.0}

    monkeypatch.setattr(child.Child, "ask", ask)
    said: list[str] = []
    assert measure_rates(pocl, said.append) == Rates(lanes=64)
    assert "buffers could not be measured: crashed" in said
    assert "arithmetic could not be measured: no such extension" in said


def test_what_does_not_fit_the_time_is_left_out(monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    monkeypatch.setattr(limits, "MOST_S", 0.0)
    said: list[str] = []
    assert measure_rates(pocl, said.append) == Rates()
    assert "images could not be measured: two minutes are over" in said and len(said) == len(PARTS)


def test_a_build_that_fails_loses_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Bench) -> dict[str, float]:
        raise BuildError("no images here")

    monkeypatch.setitem(PARTS, "images", refuse)
    monkeypatch.setattr(limits, "_bench", lambda selector: None)
    assert limits._answer(("0:0", "images"), lambda phase: None) == "no images here"


ADRENO = device("adreno-640", limits=PHONE, driver="1", version="OpenCL 2.0")


@pytest.mark.parametrize(
    ("problem", "bounds"),
    [
        # 2 * 512^3 operations at 2000, and three matrices of 1 MiB at 200 from images.
        (product(512, 512, 512), [("arithmetic", 2 * 512**3 / 2000), ("memory", 3 * 2**20 / 200)]),
        (product(512, 512, 512, mode="float16"), [("arithmetic", 2 * 512**3 / 4000), ("memory", 1.5 * 2**20 / 200)]),
        (product(512, 512, 512, mode="int8"), [("arithmetic", 2 * 512**3 / 8000), ("memory", 1.5 * 2**20 / 200)]),
        (
            QGemmProblem(m=4096, n=1, k=4096, weights="q4_0"),
            [("memory", (4096 * 128 * 18 + 2 * 4 * 4096) / 200), ("arithmetic", 2 * 4096**2 / 2000)],
        ),
    ],
)
def test_which_limit_binds(problem: Problem, bounds: list[tuple[str, float]]) -> None:
    found = GIVEN.bounds(problem, PHONE)
    assert [one.name for one in found] == [name for name, _ in bounds]
    assert [one.time_ns for one in found] == pytest.approx([time_ns for _, time_ns in bounds])
    assert Rates(buffer=50.0).bounds(problem, PHONE)[0].time_ns == pytest.approx(problem.bytes_moved / 50)
    assert Rates().bounds(problem, PHONE) == []


def test_matrix_units_may_be_faster_than_what_was_measured() -> None:
    with_units = replace(PHONE, has_matrix_units=True)
    assert [one.name for one in GIVEN.bounds(product(512, 512, 512, mode="float16"), with_units)] == ["memory"]
    assert len(GIVEN.bounds(product(512, 512, 512), with_units)) == 2


def test_measured_rates_replace_public_numbers() -> None:
    public = machine_of("adreno-640", "adreno")
    assert measured_machine(ADRENO, "adreno", None) == public
    # 6 compute units of 384 multiply-adds: 2764.8 GFLOP/s are a clock of 0.6 GHz, in which 36 GB/s are 60 bytes.
    found = measured_machine(ADRENO, "adreno", Rates(buffer=36.0, float32=2764.8, lanes=128))
    assert found == replace(public, memory_bytes=60)  # of 64 lanes at least
    assert measured_machine(ADRENO, "adreno", Rates(lanes=32)) == replace(public, lanes=32)
    assert find_profile(ADRENO, Rates(lanes=32)).machine.lanes == 32
    assert find_profile(ADRENO).machine == public
    other = device("pocl-any", family="cpu", limits=PROCESSOR)
    assert measured_machine(other, "cpu", GIVEN) == machine_of("pocl-any", "cpu")  # which states nothing
    unknown = device("xclipse-1", family="gpu")
    assert measured_machine(unknown, "gpu", GIVEN) == replace(machine_of("xclipse-1", "gpu"), lanes=32)


def test_rates_are_kept_for_a_driver(tmp_path: Any) -> None:
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        store.add_device(ADRENO)
        assert store.rates(ADRENO) is None
        store.keep_rates(ADRENO, Rates(buffer=1.0))
        store.keep_rates(ADRENO, GIVEN)
        assert store.rates(ADRENO) == GIVEN
        assert store.rates(replace(ADRENO, driver="2")) is None
    table = TuningTable.open(path)
    assert table.rates(ADRENO) == GIVEN and table.rates(replace(ADRENO, version="OpenCL 3.0")) is None
    assert TuningTable([ADRENO], []).rates(ADRENO) is None


def test_the_default_of_a_lookup_knows_them(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Rates | None] = []
    known = profile.find_profile

    def noted(device: Device, rates: Rates | None = None) -> profile.Profile:
        asked.append(rates)
        return known(device, rates)

    monkeypatch.setattr(profile, "find_profile", noted)
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        store.add_device(ADRENO)
        store.keep_rates(ADRENO, GIVEN)
    TuningTable.open(path).find(ADRENO, product(64, 64, 64))
    assert asked == [GIVEN]


def test_the_command_keeps_and_prints(tmp_path: Any, run: Run, monkeypatch: pytest.MonkeyPatch, pocl: Device) -> None:
    monkeypatch.setattr("autotune.measure.limits.measure_rates", lambda device, report: GIVEN)
    place = str(tmp_path / "store.sqlite")
    shown = run(["limits", "--device", pocl.slug, "--db", place]).out
    assert "100 GB/s read from buffers" in shown and "48 floats in a work-item" in shown
    printed = json.loads(run(["limits", "--device", pocl.slug, "--db", place, "--json"]).out)
    assert printed["float16"] == 4000.0 and printed["device"] == pocl.slug
    with Store.open(place) as store:
        assert store.rates(pocl) == GIVEN


def test_show_says_which_limit_binds(tmp_path: Any, run: Run, pocl: Device) -> None:
    place, problem = str(tmp_path / "store.sqlite"), product(64, 64, 64)
    with Store.open(place) as store:
        store.add_device(pocl)
        store.record_winner(replace(won(problem, 2000.0, 4000.0), device=pocl.slug))
    arguments = ["--device", pocl.slug, "64", "64", "64", "--db", place]
    assert "limited by" not in run(["show", *arguments]).out
    with Store.open(place) as store:  # 3 * 64^2 * 4 bytes take 491.5 ns, 2 * 64^3 operations 1049
        store.keep_rates(pocl, Rates(buffer=100.0, float32=500.0, launch_ns=5000.0))
    for command in (["show", *arguments], ["lookup", *arguments, "--explain"]):
        shown = " ".join(run(command).out.split())
        assert "limited by arithmetic: 52% of the arithmetic rate, 25% of the memory rate" in shown
        assert "launch takes 5 us, longer than the kernel" in shown
    printed = json.loads(run(["lookup", *arguments, "--json"]).out)
    assert printed["shares_of_limits"] == pytest.approx({"arithmetic": 0.5243, "memory": 0.2458}, abs=1e-3)
    with Store.open(place) as store:
        store.keep_rates(pocl, Rates(buffer=10.0))
    assert "limited by a cache, which holds its operands: 246%" in " ".join(run(["show", *arguments]).out.split())
