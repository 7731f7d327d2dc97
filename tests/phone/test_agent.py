"""The agent and its frames, with a driver that does nothing: how its end is told, and nonsense on both sides."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import agents
from agents import agent_link
from autotune.device import open_port
from autotune.device.discovery import discover_behind, find_device
from autotune.errors import (
    AutotuneError,
    BuildError,
    DeviceLostError,
    DeviceSelectionError,
    LaunchError,
    LinkLostError,
    WorkGroupError,
)
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.build_pool import BuilderPool
from autotune.measure.worker import Worker
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Role, Scalar
from autotune.model.trial import BuildState, Job, TrialState
from autotune.phone.agent import frames
from autotune.phone.agent.connection import Connection
from autotune.phone.agent.frames import encode
from autotune.phone.agent.port import AgentPort
from autotune.runtime import executor
from autotune.runtime.executor import open_executor
from autotune.search.task import Task
from waiting import HANG_S, in_threads, wait_for

pytestmark = pytest.mark.long

MUTATIONS = 300
"""Of a session that the agent reads, and as many of one that the host reads."""

BUFFERS = (
    Buffer(name="x", role=Role.INPUT, dtype="float32", elements=64),
    Buffer(name="view", role=Role.VIEW, dtype="float32", elements=64, image_width=4, image_height=4, view_of="x",
           row_pitch=16),
    Buffer(name="image", role=Role.SCRATCH, dtype="float32", elements=64, image_width=4, image_height=4),
    Buffer(name="other", role=Role.SCRATCH, dtype="float32", elements=64, image_width=4, image_height=4),
    Buffer(name="y", role=Role.OUTPUT, dtype="float32", elements=64),
)  # fmt: skip
LAUNCH = Launch(
    kernel="work", global_size=(64, 1), local_size=(16, 1),
    arguments=("x", "view", Scalar(dtype="int32", value=3, name="n"), LocalMemory(size_bytes=64), "y"),
)  # fmt: skip
PLAN = Plan(buffers=BUFFERS, launches=(LAUNCH,))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A link to an agent with the fake driver."""
    folder = tmp_path_factory.mktemp("agent")
    driver = agents.fake_driver(folder / "libfake.so")
    return f"env AUTOTUNE_OPENCL={driver} {agents.compiled(folder / 'agent')}"


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    """The environment of an agent that ends at a wrong access to memory, and its path."""
    folder = tmp_path_factory.mktemp("sanitized")
    driver = agents.fake_driver(folder / "libfake.so", *agents.SANITIZED)
    options = "detect_leaks=0:allocator_may_return_null=1"
    environment = os.environ | {"AUTOTUNE_OPENCL": str(driver), "ASAN_OPTIONS": options}
    return environment, agents.compiled(folder / "agent", *agents.SANITIZED)


def use(port: AgentPort) -> None:
    """Send every command of the protocol at least once."""
    assert port.device.limits.compute_units == 64
    port.read_sensors()
    program = port.build("source", ["-DX=1"])
    port.load(port.binary(program), [])
    assert port.binary_bytes(program) == 6
    with contextlib.suppress(BuildError):
        port.build("#error", [])
    kernels = port.kernels(program, PLAN)
    assert port.facts(kernels, PLAN).work_group_limit == 64
    memory: dict[str, object] = {}
    for buffer in BUFFERS:
        memory[buffer.name] = port.allocate(buffer, memory)  # type: ignore[arg-type]
    values = np.arange(64, dtype=np.float32)
    port.write(memory["x"], values)  # type: ignore[arg-type]
    port.write(memory["image"], values)  # type: ignore[arg-type]
    port.fill(memory["image"], values[1:2])  # type: ignore[arg-type]
    port.copy(memory["image"], memory["other"], 256)  # type: ignore[arg-type]
    port.fill(memory["y"], values[3:4])  # type: ignore[arg-type]
    port.copy(memory["x"], memory["y"], 16)  # type: ignore[arg-type]
    call = port.bind(kernels, PLAN.launches, memory)  # type: ignore[arg-type]
    assert port.run(call, 3).events.tolist() == [[[5, 5]]] * 3
    port.start(call)
    found = np.empty(64, np.float32)
    port.read(memory["y"], found)  # type: ignore[arg-type]
    assert found.tolist() == [0, 1, 2, 3, *[3] * 60]
    port.read(memory["other"], found)  # type: ignore[arg-type]
    assert (found == 1).all()
    port.write(memory["image"], values)  # type: ignore[arg-type]
    for name in ("view", "image"):
        port.read(memory[name], found)  # type: ignore[arg-type]
        assert (found == values).all()
    del memory, call
    port.finish()
    port.allocate(BUFFERS[0])


def test_threads_allocate_at_the_same_time(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = AgentPort(agent_link(f"exec:{agent}"), "0:0")
    monkeypatch.setattr(port._connection, "post", lambda *_, **__: None)
    done: list[int] = []

    def work() -> None:
        for _ in range(10_000):
            port.allocate(BUFFERS[0])
        done.append(1)

    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(work, work, work, work)
    finally:
        sys.setswitchinterval(switching_s)
    assert len(done) == 4


def test_a_device_whose_link_was_lost_is_opened_again(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_executors", {})  # whose agents end with the test
    first, same = (open_executor(f"exec:{agent}", None) for _ in range(2))
    assert first is same
    process = first.port._connection._process
    process.kill()
    process.wait()
    again = open_executor(f"exec:{agent}", None)
    again.port.finish()
    assert open_executor(f"exec:{agent}", None) is again


def test_every_command_is_carried_out_and_what_the_driver_prints_does_no_harm(agent: str) -> None:
    opened = open_port(f"exec:{agent}#0:0")
    assert isinstance(opened, AgentPort)
    use(opened)


def test_a_device_behind_a_link_is_found_by_any_of_its_names(agent: str) -> None:
    (device,) = discover_behind(f"exec:{agent}")
    assert device.selector == f"exec:{agent}#0:0"
    for wanted in ("", "#0:0", "#gpu", f"#{device.slug}"):
        assert find_device(f"exec:{agent}{wanted}") == device
    with pytest.raises(DeviceSelectionError, match="no device fits"):
        find_device(f"exec:{agent}#mali")


def test_without_opencl_what_was_tried_is_told(agent: str) -> None:
    with pytest.raises(DeviceSelectionError, match=r"OpenCL cannot be used.*nowhere"):
        discover_behind(f"exec:{agent.replace('AUTOTUNE_OPENCL=', 'AUTOTUNE_OPENCL=/nowhere')}")


@pytest.mark.parametrize(
    ("source", "told"),
    [("#crash", "crashed in building: killed by SIGSEGV"), ("#exit", "exit status 7"), ("#hang", "more than 5 s")],
)
def test_how_a_driver_ended_is_told(agent: str, source: str, told: str) -> None:
    connection = Connection(agent_link(f"exec:{agent}"), limit_s=5 if source == "#hang" else HANG_S)
    connection.ask(encode("PLATFORMS"), 4)
    connection.ask(encode("OPEN", "IIB", 0, 0, 1))
    with pytest.raises(DeviceLostError, match=told) as caught:
        connection.ask(encode("BUILD", "II", 0, 0, tail=source.encode()))
    assert not isinstance(caught.value, LinkLostError)
    with pytest.raises(DeviceLostError, match=told):
        connection.ask(encode("FINISH"))


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("how", ["close", "kill"])
def test_no_runner_outlives_its_link(agent: str, how: str) -> None:
    """Even while the driver hangs: with the pipe closed, and with the supervisor killed."""
    link = agent_link(f"exec:{agent}")
    process = link.start()
    assert process.stdin and process.stdout
    for command in (
        encode("HELLO", f"{len(frames.GREETING)}sI", frames.GREETING, 10**6),
        encode("OPEN", "IIB", 0, 0, 1),
        encode("BUILD", "II", 0, 0, tail=b"#hang"),
    ):
        frames.send(process.stdin, [command])
        process.stdin.flush()
        if command.name != "BUILD":
            frames.receive(process.stdout, 100)
    (runner,) = _children(process.pid)
    if how == "close":
        process.stdin.close()
    else:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(HANG_S)
    wait_for(lambda: _is_gone(runner))
    process.stdout.close()


def test_no_trial_is_blamed_for_a_link_that_was_lost_before_it() -> None:
    selector = f"{agents.link_name()}#0:0"
    job = Job(selector=selector, problem=GemmProblem(m=8, n=8, k=8), configuration=FAMILY.baseline)
    with Worker(selector=selector) as worker:
        assert worker.run(job).state is TrialState.COMPLETE
        assert worker.pid
        _kill_agents(worker.pid)
        assert worker.run(job).state is TrialState.COMPLETE


def test_no_build_is_blamed_for_a_link_that_was_lost_before_it() -> None:
    (found,) = discover_behind(agents.link_name())
    task = Task(found, GemmProblem(m=8, n=8, k=8))
    others = {*_children(os.getpid())}
    with BuilderPool(1, selector=found.selector) as pool:
        for _ in range(2):
            assert pool.submit(task.build_job(task.default)).result().state is BuildState.BUILT
            (builder,) = [pid for pid in {*_children(os.getpid())} - others if _children(pid)]
            _kill_agents(builder)


def _kill_agents(parent: int) -> None:
    """Kill them, and wait until their links have ended."""
    for supervisor in _children(parent):
        for process in (*_children(supervisor), supervisor):
            os.kill(process, signal.SIGKILL)
            wait_for(lambda process=process: _is_gone(process))  # type: ignore[misc]


@pytest.mark.parametrize(("scarce", "is_refused"), [("work-group", True), ("broken", False)])
def test_a_work_group_that_needs_too_much_is_told_from_a_fault(agent: str, scarce: str, is_refused: bool) -> None:
    port = open_port(f"exec:env AUTOTUNE_FAKE_SCARCE={scarce} {agent}#0:0")
    plain = Launch(kernel="work", global_size=(64,), local_size=None, arguments=())
    plan = Plan(buffers=(), launches=(plain,))
    call = port.bind(port.kernels(port.build("source", []), plan), plan.launches, {})
    with pytest.raises(LaunchError, match="OUT_OF_RESOURCES") as told:
        port.run(call)
    assert isinstance(told.value, WorkGroupError) is is_refused


def test_a_deferred_error_is_raised_by_the_next_command_that_waits(agent: str) -> None:
    port = AgentPort(agent_link(f"exec:{agent}"), "0:0")
    memory = port.allocate(BUFFERS[0])
    port.write(memory, np.zeros(65, np.float32))
    port.build("source", [])
    with pytest.raises(LaunchError, match="clEnqueueWriteBuffer failed: INVALID_VALUE"):
        port.read(memory, np.empty(64, np.float32))
    port.read(memory, np.empty(64, np.float32))


# Nonsense


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the data with some bytes or a stretch of it changed, removed or repeated."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed) or 1)
        if not changed:
            break
        stretch = slice(at, at + chance.choice((1, 4, 16)))
        match chance.randrange(5):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                changed[stretch] = b"\xff" * len(changed[stretch])
            case 3:
                del changed[stretch]
            case 4:
                changed[at:at] = changed[stretch]
    return bytes(changed)


@pytest.fixture(scope="module")
def session(agent: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """What a host sent to an agent, and what it answered."""
    folder = tmp_path_factory.mktemp("session")
    port = AgentPort(agent_link(f"exec:sh -c 'tee {folder}/sent | {agent} | tee {folder}/answered'"), "0:0")
    use(port)
    port._connection.close()
    return (folder / "sent").read_bytes(), (folder / "answered").read_bytes()


def _whole(data: bytes, chance: random.Random) -> bytes:
    """Return mutated frames whose sizes are right, so that what is in them is looked at."""
    found = agents.frames_in(data)
    place = chance.randrange(1, len(found))
    found[place] = found[place][:1] + _mutated(found[place][1:] or b"\0", chance)
    return agents.with_sizes(found)


@pytest.mark.parametrize("mutate", [_mutated, _whole])
def test_the_agent_survives_nonsense(
    sanitized: tuple[dict[str, str], Path],
    session: tuple[bytes, bytes],
    tmp_path: Path,
    mutate: Callable[[bytes, random.Random], bytes],
) -> None:
    environment, agent = sanitized
    for seed in range(MUTATIONS // 2):
        file = tmp_path / "sent"
        file.write_bytes(mutate(session[0], random.Random(seed)))
        with file.open("rb") as sent:
            done = subprocess.run(
                [agent], stdin=sent, capture_output=True, env=environment, timeout=HANG_S, check=False
            )
        told = done.stderr.decode("utf-8", "replace")
        assert done.returncode == 0 and "Sanitizer" not in told and "runtime error" not in told, (seed, told)
        assert done.stdout[-11:-6] == b"\x07\0\0\0" + bytes([frames.CONSTANTS["END"]]), seed
        assert done.stdout[-6] == frames.CONSTANTS["ENDED_BY_EXIT"], (seed, done.stdout[-6:], told)


class _Replay:
    """A link to what answers the same whatever is asked."""

    name = "exec:replay"

    def __init__(self, answers: Path) -> None:
        self._answers = answers

    def check(self) -> None: ...

    def wait(self) -> None: ...

    def start(self) -> "subprocess.Popen[bytes]":
        code = f"cat {self._answers}; exec >&-; cat > /dev/null"
        return subprocess.Popen(["sh", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("mutate", [_mutated, _whole])
def test_the_host_survives_nonsense(
    session: tuple[bytes, bytes], tmp_path: Path, mutate: Callable[[bytes, random.Random], bytes]
) -> None:
    """It ends in an error of ours, or in wrong values where these were changed."""
    file = tmp_path / "answers"
    for seed in range(MUTATIONS // 2):
        file.write_bytes(mutate(session[1], random.Random(seed)))
        with contextlib.suppress(AutotuneError, AssertionError):
            use(AgentPort(_Replay(file), "0:0"))
    file.write_bytes(session[1])
    use(AgentPort(_Replay(file), "0:0"))
