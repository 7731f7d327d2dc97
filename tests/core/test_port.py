"""What every device port does. Another implementation is added to the parameters of `port`."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import agents
from autotune.device import open_port
from autotune.device.port import NUMPY_TYPES, Kernel, Memory, Port
from autotune.device.sensors import Reading
from autotune.errors import BuildError, DeviceSelectionError, LaunchError, WorkGroupError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import TuningTable
from autotune.measure.measurer import Measurer
from autotune.measure.operands import Operands
from autotune.model.device import Device
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar, Structure
from autotune.model.trial import Job, TrialState
from autotune.runtime import Gemm
from autotune.runtime.engine import Engine
from autotune.runtime.executor import Executor

SOURCE = """
__kernel void scale(__global int *out, __global const int *x, const int factor) {
    out[get_global_id(0)] = factor * x[get_global_id(0)];
}
__kernel void add_one(__global int *out) { out[get_global_id(0)] += ADDED; }
"""
SIZE = 64
SCALE = Launch(
    kernel="scale", global_size=(SIZE,), local_size=(16,),
    arguments=("out", "x", Scalar(dtype="int32", value=2, name="factor")),
)  # fmt: skip
ADD_ONE = Launch(kernel="add_one", global_size=(SIZE,), local_size=None, arguments=("out",))
PLAN = Plan(
    buffers=tuple(Buffer(name=name, role=Role.SCRATCH, dtype="int32", elements=SIZE) for name in ("out", "x")),
    launches=(SCALE, ADD_ONE),
)
X = np.arange(SIZE, dtype=np.int32)


class Bare:
    """A port that has what the protocol asks for and nothing else, as one without OpenCL in this process."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        if name not in vars(Port):
            raise AttributeError(name)
        return getattr(self._port, name)


def open_bare(selector: str) -> Any:
    return Bare(open_port(selector))


@pytest.fixture(scope="module", params=["pyopencl", "bare", pytest.param("agent", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def port(kind: str, pocl: Device) -> Port:
    if kind == "agent":
        return open_port(f"{agents.link_name()}#0:0")
    opened: Port = (open_bare if kind == "bare" else open_port)(pocl.selector)
    return opened


@pytest.fixture(scope="module")
def known(kind: str, pocl: Device) -> tuple[Device, tuple[str, ...]]:
    """The port's device as discovery finds it, and its toolchain according to pyopencl."""
    return agents.known_to_pyopencl() if kind == "agent" else (pocl, open_port(pocl.selector).toolchain)


@pytest.fixture(scope="module")
def program(port: Port) -> Any:
    return port.build(SOURCE, ["-DADDED=1"])


@pytest.fixture
def kernels(port: Port, program: Any) -> list[Kernel]:
    return port.kernels(program, PLAN)


@pytest.fixture
def memory(port: Port) -> dict[str, Memory]:
    memory = {buffer.name: port.allocate(buffer) for buffer in PLAN.buffers}
    port.write(memory["x"], X)
    port.fill(memory["out"], np.array([7], np.int32))
    return memory


def content(port: Port, memory: Memory) -> list[int]:
    into = np.empty(SIZE, np.int32)
    port.read(memory, into)
    return [*into.tolist()]


def test_it_tells_which_device_it_is(port: Port, known: tuple[Device, tuple[str, ...]]) -> None:
    expected, toolchain = known
    memory = port.device.limits.global_memory_bytes  # PoCL derives it from what is free
    limits = replace(expected.limits, global_memory_bytes=memory)
    assert port.device == replace(expected, selector=port.device.selector, limits=limits)
    assert port.timer_resolution_ns >= 0
    assert isinstance(port.read_sensors(), Reading)
    assert port.toolchain == toolchain


@pytest.mark.parametrize("wait", [True, False])
def test_memory_holds_what_was_written_filled_or_copied(port: Port, memory: dict[str, Memory], wait: bool) -> None:
    assert content(port, memory["out"]) == [7] * SIZE
    port.write(memory["x"], X[:3] + 40, wait=wait)
    assert content(port, memory["x"]) == [40, 41, 42, *range(3, SIZE)]
    port.copy(memory["x"], memory["out"], 8)
    assert content(port, memory["out"]) == [40, 41, *[7] * (SIZE - 2)]


def test_launches_run_in_order_as_often_as_asked(port: Port, kernels: list[Kernel], memory: dict[str, Memory]) -> None:
    run = port.run(port.bind(kernels, PLAN.launches, memory))
    assert content(port, memory["out"]) == (2 * X + 1).tolist()
    assert run.host_ns > 0 and run.events.shape == (1, 2, 2) and run.event_ns.shape == (1, 2)
    run = port.run(port.bind(kernels[1:], PLAN.launches[1:], memory), 5, has_events=False)
    assert content(port, memory["out"]) == (2 * X + 6).tolist()
    assert run.events.shape == (5, 1, 2)


def test_scalars_are_those_of_the_launch_or_given(port: Port, kernels: list[Kernel], memory: dict[str, Memory]) -> None:
    port.run(port.bind(kernels[:1], [SCALE], memory, {"factor": -3.0}))
    assert content(port, memory["out"]) == (-3 * X).tolist()


PASSED = """
typedef struct { float gain; int count; } params;
kernel void passed(global int *out, params p, int3 by, global const float *missing) {
    const int i = get_global_id(0);
    out[i] = (int)p.gain * p.count + by.z + (missing == 0 ? 1000 : 0);
}
"""


def test_structures_vectors_and_null_are_passed(port: Port) -> None:
    out = Buffer(name="out", role=Role.OUTPUT, dtype="int32", elements=4)
    arguments = (
        "out",
        Structure(content=struct.pack("<fi", 2.0, 21)),
        Structure(content=struct.pack("<4i", 0, 0, 7, 0)),
        None,
    )
    launch = Launch(kernel="passed", global_size=(4,), local_size=None, arguments=arguments)
    kernels = port.kernels(port.build(PASSED, []), Plan(buffers=(out,), launches=(launch,)))
    memory = {"out": port.allocate(out)}
    port.run(port.bind(kernels, [launch], memory))
    found = np.empty(4, np.int32)
    port.read(memory["out"], found)
    assert found.tolist() == [1049] * 4


def test_a_call_may_get_operands_and_scalars_at_each_start(
    port: Port, kernels: list[Kernel], memory: dict[str, Memory]
) -> None:
    others = [port.allocate(PLAN.buffers[0]) for _ in range(2)]
    call = port.bind(kernels, PLAN.launches, {"x": memory["x"]}, operands=["out"], variables=["factor"])
    port.start(call, [others[0]], [5.0])
    port.start(call, [others[1]])
    port.start(call, [memory["out"]], [6.0])
    port.finish()
    found = [content(port, one) for one in (*others, memory["out"])]
    assert found == [(factor * X + 1).tolist() for factor in (5, 5, 6)]


def test_a_binary_is_a_program_again(port: Port, program: Any, memory: dict[str, Memory]) -> None:
    binary = port.binary(program)
    assert port.binary_bytes(program) == len(binary) > 0
    kernels = port.kernels(port.load(binary, ["-DADDED=1"]), PLAN)
    port.run(port.bind(kernels, PLAN.launches, memory))
    assert content(port, memory["out"]) == (2 * X + 1).tolist()
    with pytest.raises(BuildError):
        port.load(b"no program", [])


def test_what_does_not_build_is_told(port: Port, program: Any) -> None:
    with pytest.raises(BuildError, match="ADDED"):
        port.build(SOURCE, [])
    missing = Plan(buffers=(), launches=(Launch(kernel="missing", global_size=(1,), local_size=None, arguments=()),))
    with pytest.raises(BuildError):
        port.kernels(program, missing)


def test_facts_leave_out_what_only_prepares(port: Port, kernels: list[Kernel]) -> None:
    facts = port.facts(kernels, PLAN)
    assert facts.work_group_limit >= 0 and facts.private_memory_bytes >= 0


def test_a_refused_work_group_is_told_from_other_failures(
    port: Port, kernels: list[Kernel], memory: dict[str, Memory]
) -> None:
    huge = Launch(kernel="add_one", global_size=(2**20,), local_size=(2**20,), arguments=("out",))
    with pytest.raises(WorkGroupError):
        port.run(port.bind(kernels[1:], [huge], memory))
    port.run(port.bind(kernels, PLAN.launches, memory))
    assert content(port, memory["out"]) == (2 * X + 1).tolist(), "it goes on"


@pytest.mark.parametrize("types", ["float32", "float16", "int8"])
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("shape", ["33,7,5", "640,640,640"])
def test_inputs_are_those_of_the_seed_whether_drawn_there_or_written(
    port: Port, types: str, seed: int, shape: str
) -> None:
    problem = GemmProblem.parse(f"{shape} {types}")
    case = FAMILY.make_case(problem, seed)
    assert {"a", "b"} <= case.draws.keys()
    operands = Operands(port)
    loaded = operands.load(case, FAMILY.plan(problem, FAMILY.baseline))
    assert operands.are_intact(loaded)
    port.fill(loaded.memory["b"].whole, np.zeros(1, loaded.host["b"].dtype))
    assert not operands.are_intact(loaded)


def test_too_much_memory_is_refused(port: Port) -> None:
    with pytest.raises(LaunchError):  # noqa: PT012 - at once, or when it is waited for
        port.allocate(Buffer(name="a", role=Role.INPUT, dtype="float32", elements=2**45))
        port.finish()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_images_are_written_filled_and_read_by_kernels(port: Port, dtype: str) -> None:
    if not port.device.limits.has_images:
        pytest.skip("not covered: the device has no images")
    letter, kind = ("i", "int") if dtype == "int8" else ("f", "float")
    source = f"""__kernel void show(__read_only image2d_t from, __global {kind} *out) {{
        const int x = get_global_id(0), y = get_global_id(1);
        vstore4(read_image{letter}(from, (int2)(x, y)), y * 4 + x, out);
    }}"""
    launch = Launch(kernel="show", global_size=(4, 4), local_size=None, arguments=("from", "out"))
    image = Buffer(name="from", role=Role.INPUT, dtype=dtype, elements=SIZE, image_width=4, image_height=4)
    shown = Buffer(name="out", role=Role.OUTPUT, dtype="int32" if dtype == "int8" else "float32", elements=SIZE)
    plan = Plan(buffers=(image, shown), launches=(launch,))
    memory = {buffer.name: port.allocate(buffer) for buffer in plan.buffers}
    call = port.bind(port.kernels(port.build(source, []), plan), plan.launches, memory)
    into = np.empty(SIZE, NUMPY_TYPES[shown.dtype])
    port.write(memory["from"], X.astype(NUMPY_TYPES[dtype]))
    port.run(call)
    port.read(memory["out"], into)
    assert into.tolist() == X.tolist()
    port.fill(memory["from"], np.array([3], NUMPY_TYPES[dtype]))
    port.run(call)
    port.read(memory["out"], into)
    assert into.tolist() == [3] * SIZE


def test_a_job_is_measured(port: Port) -> None:
    job = Job(selector="", problem=GemmProblem(m=33, n=17, k=9), configuration=FAMILY.baseline)
    trial = Measurer(port).measure(job)
    assert trial.state is TrialState.COMPLETE, trial.message


def test_tuned_kernels_run_on_numpy_arrays(port: Port) -> None:
    gemm = Gemm(port.device.selector, table=TuningTable([], []), host_blas=False, verify=False)
    gemm._engine = Engine(FAMILY, Executor(port, None), TuningTable([], []), None)
    a, b = (np.arange(64, dtype=np.float32).reshape(8, 8) % size for size in (7, 5))
    for _ in range(2):
        assert np.array_equal(gemm(a, gemm.prepare(b)), a @ b)
        assert np.array_equal(gemm(a.T, b), a.T @ b)


@pytest.mark.parametrize("selector", ["99:0", "0:99", "x", ""])
def test_what_is_no_device_is_refused(selector: str) -> None:
    with pytest.raises(DeviceSelectionError):
        open_port(selector)
