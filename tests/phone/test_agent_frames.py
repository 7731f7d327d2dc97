"""What the host makes of the frames of an agent: a thread of this process that answers as one with one device does."""

import ctypes
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from agents import agent_link
from autotune.errors import (
    AgentKilledError,
    BuildError,
    DeviceLostError,
    DeviceSelectionError,
    LaunchError,
    LinkLostError,
    WorkGroupError,
)
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar
from autotune.phone.agent import FOLDER, frames
from autotune.phone.agent.connection import MAX_CHUNK, Connection
from autotune.phone.agent.frames import CONSTANTS
from autotune.phone.agent.port import AgentPort, _value
from waiting import join

NAMES = (
    "HELLO", "PLATFORMS", "DEVICES", "INFO", "OPEN", "BUILD", "BINARY", "BINARY_BYTES", "KERNELS", "FACTS", "READ",
    "RUN", "FINISH", "ALLOCATE", "WRITE", "FILL", "COPY", "ARGUMENTS", "START", "RELEASE",
)  # fmt: skip
COMMANDS = {CONSTANTS[name]: name for name in NAMES}
ALIKE = {
    "HELLO": frames.GREETING + b"\x08", "PLATFORMS": struct.pack("<I", 1), "DEVICES": struct.pack("<I", 1),
    "INFO": b"OpenCL 3.0 invented\0", "BINARY_BYTES": struct.pack("<Q", 6), "FACTS": struct.pack("<QQ", 64, 256),
}  # fmt: skip
"""What is answered whatever was asked before."""
X, Y = (Buffer(name=name, role=Role.OUTPUT, dtype="float32", elements=MAX_CHUNK // 3) for name in "xy")
LAUNCH = Launch(kernel="work", global_size=(64, 1), local_size=(16, 1), arguments=("x", Scalar(dtype="int32", value=3)))
PLAN = Plan(buffers=(X,), launches=(LAUNCH,))


def answer(payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload) + 2, CONSTANTS["ANSWER"]) + payload + b"\1"


def error(status: int, text: bytes) -> bytes:
    return struct.pack("<IBi", len(text) + 6, CONSTANTS["ERROR"], status) + text + b"\1"


def end(how: str, number: int, command: str) -> bytes:
    return struct.pack("<IBBIB", 7, CONSTANTS["END"], CONSTANTS[how], number, CONSTANTS[command])


class Invented:
    """A link to such an agent, and the process that it starts. It answers what a test says, or as it should."""

    name = "exec:invented"

    def __init__(self, answers: Mapping[str, bytes] = {}) -> None:
        self.seen: list[str] = []
        self.answers = dict(answers)
        self._memory: dict[int, bytearray] = {}
        reader, stdin = os.pipe()
        stdout, writer = os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        ends = os.fdopen(reader, "rb"), os.fdopen(writer, "wb")
        self._thread = threading.Thread(target=self._serve, args=ends, daemon=True)

    def check(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        join(self._thread)
        return 0

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def start(self) -> Any:
        self._thread.start()
        return self

    def _serve(self, commands: BinaryIO, answers: BinaryIO) -> None:
        with commands, answers:
            while header := commands.read(5):
                size, kind = struct.unpack("<IB", header)
                name, payload = COMMANDS[kind], commands.read(size - 1)
                self.seen.append(name)
                told = self.answers.get(name) if name in self.answers else self._answer(name, payload)
                if told is not None:
                    answers.write(told)
                    answers.flush()
                    if told[4:5] == bytes([CONSTANTS["END"]]) or not told:
                        return

    def _answer(self, name: str, payload: bytes) -> bytes | None:
        numbers = struct.unpack_from("<IQ", payload.ljust(12, b"\0"))
        match name:
            case "ALLOCATE":
                self._memory[numbers[0]] = bytearray(numbers[1])
            case "WRITE":
                contents = payload[12:]
                self._memory[numbers[0]][numbers[1] : numbers[1] + len(contents)] = contents
            case "FILL":
                memory, pattern = self._memory[numbers[0]], payload[4:]
                memory[:] = pattern * (len(memory) // len(pattern))
            case "COPY":
                source, target, size = struct.unpack("<IIQ", payload)
                self._memory[target][:size] = self._memory[source][:size]
            case "READ":
                place, at, size = struct.unpack("<IQI", payload)
                return answer(bytes(self._memory[place][at : at + size]))
            case "RUN":
                times, has_events, launches = struct.unpack_from("<IBI", payload)
                spans = struct.pack("<QQ", 3, 8) * times * launches if has_events else b""
                return answer(struct.pack("<QQ", 10, 20) + spans)
            case "RELEASE":
                for (number,) in struct.iter_unpack("<I", payload):
                    self._memory.pop(number, None)
            case "ARGUMENTS" | "START":
                pass
            case _:
                return answer(ALIKE.get(name, b""))
        return None


@pytest.fixture
def agent() -> Invented:
    return Invented()


@pytest.fixture
def port(agent: Invented) -> AgentPort:
    return AgentPort(agent, "0:0")


def test_digest_is_that_of_the_protocol() -> None:
    lines = (FOLDER / "protocol.h").read_text().splitlines(keepends=True)
    others = "".join(line for line in lines if "PROTOCOL_DIGEST" not in line)
    assert b"autotune" + hashlib.sha256(others.encode()).hexdigest()[:16].encode() == frames.GREETING


def test_memory_holds_what_is_written_in_several_frames(port: AgentPort, agent: Invented) -> None:
    values = np.random.default_rng(0).random(X.elements, dtype=np.float32)
    memory, other, found = port.allocate(X), port.allocate(Y), np.empty_like(values)
    port.write(memory, values)
    port.copy(memory, other, values.nbytes)
    port.fill(memory, np.array([3.0], np.float32))
    port.read(other, found)
    assert np.array_equal(found, values) and agent.seen.count("WRITE") == agent.seen.count("READ") == 2
    port.read(memory, found)
    assert (found == 3.0).all()


def test_handles_that_nothing_refers_to_are_released_and_used_again(port: AgentPort, agent: Invented) -> None:
    first = port.allocate(X)
    number = first.handle.number
    del first
    assert "RELEASE" not in agent.seen
    again = port.allocate(X)
    port.finish()
    assert again.handle.number == number and agent.seen[-3:] == ["RELEASE", "ALLOCATE", "FINISH"]


def test_program_is_built_and_run_with_events(port: AgentPort, agent: Invented) -> None:
    program = port.build("source", ["-DX=1"])
    kernels = port.kernels(program, PLAN)
    facts = port.facts(kernels, PLAN)
    assert (port.binary_bytes(program), facts.work_group_limit, facts.private_memory_bytes) == (6, 64, 256)
    call = port.bind(kernels, PLAN.launches, {"x": port.allocate(X)})
    ran = port.run(call, 2)
    assert (ran.host_start_ns, ran.host_end_ns, ran.events.tolist()) == (10, 20, [[[3, 8]]] * 2)
    assert not port.run(call, has_events=False).events.any()
    port.start(call)
    port.finish()
    assert agent.seen[-2:] == ["START", "FINISH"]


def test_refusals_are_errors_of_their_kind_and_the_agent_goes_on(port: AgentPort, agent: Invented) -> None:
    kernels = port.kernels(port.build("source", []), PLAN)
    call = port.bind(kernels, PLAN.launches, {"x": port.allocate(X)})
    agent.answers["BUILD"] = error(-11, b"clBuildProgram\nerror: \0 nonsense")
    with pytest.raises(BuildError, match="BUILD_PROGRAM_FAILURE"):
        port.build("source", [])
    for status, kind in ((-5, LaunchError), (-54, WorkGroupError)):
        agent.answers["RUN"] = error(status, b"clEnqueueNDRangeKernel")
        with pytest.raises(kind, match="clEnqueueNDRangeKernel failed"):
            port.run(call)
    agent.answers["BINARY_BYTES"] = agent.answers["BINARY"] = agent.answers["FACTS"] = error(0, b"it does not know")
    program = kernels[0]
    assert (port.binary_bytes(program), port.binary(program), port.facts(kernels, PLAN).work_group_limit) == (0, b"", 0)
    port.finish()


@pytest.mark.parametrize(
    ("told", "kind", "message"),
    [
        (end("ENDED_BY_SIGNAL", signal.SIGSEGV, "BUILD"), DeviceLostError, "crashed in building: killed by SIGSEGV"),
        (end("ENDED_BY_SIGNAL", 9, "RUN"), AgentKilledError, "outside killed the agent in running kernels, as"),
        (end("ENDED_BY_LIMIT", 1500, "BUILD"), DeviceLostError, "stopped in building, which took more than 1.5 s"),
        (end("ENDED_BY_EXIT", 7, "BUILD"), DeviceLostError, "ended in building with exit status 7"),
        (b"", LinkLostError, "the link to the device ended"),
        (b"Welcome to this machine", LinkLostError, "is no answer of an agent: it begins with b'Welco'"),
        (answer(bytes(99)), LinkLostError, "has 99 bytes, where at most 0 were expected"),
        (answer(b"")[:-1] + b"\0" + end("ENDED_BY_EXIT", 1, "BUILD"), DeviceLostError, "with exit status 1"),
    ],
)
def test_lost_agent_is_told_by_every_call_after(
    port: AgentPort, agent: Invented, told: bytes, kind: type[DeviceLostError], message: str
) -> None:
    agent.answers["BUILD"] = told
    for call in (lambda: port.build("source", []), port.finish, lambda: port.allocate(X)):
        with pytest.raises(DeviceLostError, match=message) as caught:
            call()
        assert type(caught.value) is kind


def test_agent_of_another_version_is_refused() -> None:
    with pytest.raises(LinkLostError, match="another version"):
        Connection(Invented({"HELLO": answer(b"autotune0123456789abcdef\x08")}))


@pytest.mark.parametrize("place", ["0:1", "1:0", "-1:0", "x", ""])
def test_what_is_no_device_of_the_agent_is_refused(place: str) -> None:
    with pytest.raises(DeviceSelectionError):
        AgentPort(Invented(), place)


@pytest.mark.parametrize(
    "command", ["true", "sh -c 'exit 3'", "echo Welcome to this machine", "cat", "head -c 99 /dev/zero"]
)
def test_what_is_no_agent_is_a_lost_link(command: str) -> None:
    with pytest.raises(LinkLostError):
        Connection(agent_link(f"exec:{command}"))


def test_number_that_its_type_does_not_hold_is_not_sent() -> None:
    assert _value(3, np.int32, 7).endswith(np.int32(7).tobytes())
    with pytest.raises(LaunchError, match="a scalar argument would be 3700000000, which int32 does not hold"):
        _value(3, np.int32, 3_700_000_000)
    numbers: list[Any] = [np.float64(5e9), np.int64(5_000_000_000), float("nan")]
    for number in numbers:
        with pytest.raises(LaunchError, match="which int32 does not hold"):
            _value(3, np.int32, number)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")
def test_an_agent_rounds_to_half_precision_as_numpy_does(tmp_path: Path) -> None:
    """What it draws must be what the host draws from the same seed, bit by bit; one of thousands is in the middle."""
    loop = "for (size_t i = 0; i < count; i++) to[i] = half_of(from[i]);"
    exported = '__attribute__((visibility("default"))) void halves(const float *from, uint16_t *to, size_t count)'
    (tmp_path / "halves.c").write_text(f'#include "random.c"\n{exported} {{ {loop} }}\n')
    library = tmp_path / "halves.so"
    alone = ("-shared", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections")
    options = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", *alone, "-I", str(FOLDER))
    subprocess.run(["gcc", *options, "-o", str(library), str(tmp_path / "halves.c")], check=True)
    numbers = np.arange(-(2**23), 2**23, 2**6 + 1, dtype=np.float32)
    middles = np.arange(-(2**12) + 1, 2**12, 2, dtype=np.float32)
    for values in (numbers / 2**23, middles / 2**12, middles / 2**14, middles / 2**23):
        found = np.empty(values.shape, np.float16)
        ctypes.CDLL(str(library)).halves(
            ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_size_t(values.size)
        )
        assert np.array_equal(found.view(np.uint16), values.astype(np.float16).view(np.uint16))
