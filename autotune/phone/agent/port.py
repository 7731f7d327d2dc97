"""The device port to an agent. See `autotune.device.port` for what the methods do.

Only what returns something waits for the agent; an error of the rest is raised by the next `read`, `run` or `finish`.
"""

import functools
import itertools
import re
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.description import description, toolchain
from autotune.device.port import NO_MEMORY, NO_SCALARS, NUMPY_TYPES, KernelFacts, Run, scalar
from autotune.device.quirks import Quirks, first_line, number, quirks_of, shortened, text
from autotune.device.sensors import Reading, Sensors, find_sensors
from autotune.errors import BuildError, DeviceSelectionError, KernelError, LaunchError, WorkGroupError
from autotune.model.device import Device
from autotune.model.draw import Draw
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Structure
from autotune.model.problem import ELEMENT_TYPES
from autotune.phone.agent.connection import MAX_CHUNK, Connection, StartsAgents
from autotune.phone.agent.frames import CONSTANTS, RefusedCommand, encode
from autotune.phone.agent.machine import AgentDevice, AgentMachine

_CHANNELS = {
    "FLOAT": 0x10DE, "HALF_FLOAT": 0x10DD, "SIGNED_INT8": 0x10D7, "UNSIGNED_INT8": 0x10DA, "SIGNED_INT16": 0x10D8,
    "UNSIGNED_INT16": 0x10DB, "SIGNED_INT32": 0x10D9, "UNSIGNED_INT32": 0x10DC, "SNORM_INT8": 0x10D0,
    "SNORM_INT16": 0x10D1, "UNORM_INT8": 0x10D2, "UNORM_INT16": 0x10D3,
}  # fmt: skip
_CHANNEL_ORDERS = {4: 0x10B5, 2: 0x10B2, 1: 0x10B0}
_IMAGE2D, _IMAGE1D_BUFFER = 0x10F1, 0x10F6
_POINTER_BYTES = 8
_NO_HANDLE = CONSTANTS["NO_HANDLE"]
_LOW = 2**64 - 1
_MOST_BINARY = CONSTANTS["MAX_FRAME_BYTES"] // 2


class _Handle:
    """Something that exists in the agent; it is released there after the last reference is gone here."""

    def __init__(self, number: int, released: deque[int]) -> None:
        self.number = number
        self._released = released

    def __del__(self) -> None:
        self._released.append(self.number)


@dataclass(frozen=True, eq=False)
class _Memory:
    handle: _Handle
    buffer: Buffer
    shown: "_Memory | None" = None
    """The buffer that a view shows."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes that one frame carries: of an image whole rows."""
        if not self.buffer.image_width:
            return MAX_CHUNK
        row = self.buffer.image_width * self.buffer.channels * ELEMENT_TYPES[self.buffer.dtype].size_bytes
        return max(1, MAX_CHUNK // row) * row


@dataclass(frozen=True)
class _Step:
    kernel: _Handle
    launch: bytes
    """As frames carry it."""
    operands: tuple[tuple[int, int], ...]
    """Index of the argument, number of the operand."""
    variables: tuple[tuple[int, int, type[np.generic]], ...]
    """Index of the argument, number of the variable, type."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    steps: tuple[_Step, ...]
    memory: Mapping[str, _Memory]
    """Kept, as its handles must not be released."""

    @property
    def launches(self) -> bytes:
        return struct.pack("<I", len(self.steps)) + b"".join(step.launch for step in self.steps)


class AgentPort:
    """One device behind a link, as a `Port`. It does not share memory or queues with other users of the device."""

    def __init__(self, link: StartsAgents, place: str, *, profiles: bool = True) -> None:
        """Open the device ``platform:device`` of a link; launches tell event times if the port `profiles`.

        Raises DeviceSelectionError when the device cannot be found or opened, DeviceLostError when the link or its
        agent does not hold.
        """
        self._connection = Connection(link)
        self._machine = AgentMachine(self._connection)
        self._selector = f"{link.name}#{place}"
        self._raw = self._find(place)
        try:
            numbers = self._raw.platform.number, self._raw.number
            self._connection.ask(encode("OPEN", "IIB", *numbers, profiles))
        except RefusedCommand as refusal:
            raise DeviceSelectionError(f"device {self._selector} cannot be opened: {refusal}") from refusal
        self._begin(quirks_of(text(self._raw, "version"), text(self._raw, "vendor")))

    def _begin(self, quirks: Quirks) -> None:
        self.quirks = quirks
        self._released: deque[int] = deque()
        self._unused: list[int] = []
        self._counting = threading.Lock()
        self._numbers: Iterator[int] = itertools.count()

    def _find(self, place: str) -> AgentDevice:
        try:
            platform, device = (int(part) for part in re.findall(r"^(\d{1,4}):(\d{1,4})$", place)[0])
            return self._machine.platforms()[platform].get_devices()[device]
        except (ValueError, IndexError, RefusedCommand) as error:
            raise DeviceSelectionError(f"no device {self._selector!r}: {error}") from error

    @functools.cached_property
    def device(self) -> Device:
        try:
            found = description(self._raw, self._raw.platform, self._selector, self._machine)
            self._connection.check()  # single queries may fail, which would hide that the agent is gone
            return found
        except RefusedCommand as error:
            raise DeviceSelectionError(f"the device does not answer: {first_line(error)}") from error

    @functools.cached_property
    def toolchain(self) -> tuple[str, ...]:
        return toolchain(self._raw, self._raw.platform, self._machine)

    @functools.cached_property
    def timer_resolution_ns(self) -> float:
        return float(number(self._raw, "profiling_timer_resolution"))

    def read_sensors(self) -> Reading:
        return self._sensors.read()

    @functools.cached_property
    def _sensors(self) -> Sensors:
        return find_sensors(self.device, system=self._machine)

    # Handles

    def _new_handle(self) -> _Handle:
        """Return a handle for the agent to use. Releases those that nothing refers to any more."""
        with self._counting:
            numbers = [self._released.popleft() for _ in range(len(self._released))]
            if numbers:
                self._connection.post(encode("RELEASE", f"{len(numbers)}I", *numbers))
                self._unused += numbers
            found = self._unused.pop() if self._unused else next(self._numbers)
        if found >= CONSTANTS["MAX_HANDLES"]:
            raise LaunchError("too many programs, kernels and buffers are in use")
        return _Handle(found, self._released)

    # Programs

    def build(self, source: str, options: Sequence[str]) -> _Handle:
        return self._built("BUILD", source.encode(), options)

    def load(self, binary: bytes, options: Sequence[str]) -> _Handle:
        return self._built("LOAD", binary, options)

    def _built(self, command: str, contents: bytes, options: Sequence[str]) -> _Handle:
        program, joined = self._new_handle(), " ".join(options).encode()
        if len(contents) + len(joined) > _MOST_BINARY:
            raise BuildError(f"the program is larger than {_MOST_BINARY} bytes")
        layout = f"II{len(joined)}s"
        with _refusals(BuildError):
            self._connection.ask(encode(command, layout, program.number, len(joined), joined, tail=contents))
        return program

    def binary(self, program: _Handle) -> bytes:
        try:
            return self._connection.ask(encode("BINARY", "I", program.number), _MOST_BINARY)
        except RefusedCommand:
            return b""

    def binary_bytes(self, program: _Handle) -> int:
        try:
            return int.from_bytes(self._connection.ask(encode("BINARY_BYTES", "I", program.number), 8), "little")
        except RefusedCommand:
            return 0

    def kernels(self, program: _Handle, plan: Plan) -> list[_Handle]:
        found = [self._new_handle() for _ in plan.launches]
        names = [launch.kernel.encode() for launch in plan.launches]
        listed = b"".join(
            struct.pack(f"<II{len(name)}s", kernel.number, len(name), name)
            for kernel, name in zip(found, names, strict=True)
        )
        with _refusals(BuildError):
            self._connection.ask(encode("KERNELS", "II", program.number, len(found), tail=listed))
        return found

    def facts(self, kernels: Sequence[_Handle], plan: Plan) -> KernelFacts:
        working = [k for k, launch in zip(kernels, plan.launches, strict=True) if not launch.prepares]
        told = [self._facts(kernel) for kernel in working]
        is_told = not self.quirks.understates_work_group_limit
        return KernelFacts(
            work_group_limit=min(limit if is_told else 0 for limit, _ in told),
            private_memory_bytes=max(private for _, private in told),
        )

    def _facts(self, kernel: _Handle) -> tuple[int, int]:
        """Return work-group limit and private memory of a kernel; zeros where not reported."""
        try:
            told = self._connection.ask(encode("FACTS", "I", kernel.number), 16)
        except RefusedCommand:
            return 0, 0
        return int.from_bytes(told[:8], "little"), int.from_bytes(told[8:], "little")

    # Memory

    def allocate(self, buffer: Buffer, allocated: Mapping[str, _Memory] = NO_MEMORY) -> _Memory:
        handle = self._new_handle()
        if not buffer.image_width:
            self._connection.post(encode("ALLOCATE", "IQ", handle.number, buffer.size_bytes))
            return _Memory(handle, buffer)
        shown = allocated[buffer.view_of] if buffer.view_of else None
        element_bytes = ELEMENT_TYPES[buffer.dtype].size_bytes
        command = encode(
            "ALLOCATE_IMAGE",
            "7IQ",
            handle.number,
            _IMAGE1D_BUFFER if buffer.is_line else _IMAGE2D,
            _CHANNEL_ORDERS[buffer.channels],
            _CHANNELS[ELEMENT_TYPES[buffer.dtype].channel],
            buffer.image_width,
            buffer.image_height,
            shown.handle.number if shown else _NO_HANDLE,
            buffer.row_pitch * element_bytes,
        )
        self._connection.post(command)
        return _Memory(handle, buffer, shown)

    def part(self, memory: _Memory, start_bytes: int, size_bytes: int) -> None:
        """Return None: the agent makes no parts."""

    def write(self, memory: _Memory, values: NDArray[Any], *, wait: bool = True) -> None:  # noqa: ARG002 - never waits
        contents, chunk = _bytes_of(values), memory.chunk_bytes
        for at in range(0, len(contents), chunk):
            self._connection.post(encode("WRITE", "IQ", memory.handle.number, at, tail=contents[at : at + chunk]))

    def draw(self, memory: _Memory, draw: Draw, behind: NDArray[Any]) -> bool:
        if memory.buffer.image_width:
            return False
        halves = (draw.state & _LOW, draw.state >> 64, draw.increment & _LOW, draw.increment >> 64)
        kind = CONSTANTS[f"DRAW_{draw.dtype.upper()}"]
        half = _NO_HANDLE if draw.half is None else draw.half
        self._connection.post(encode("DRAW", "IBQ4QI", memory.handle.number, kind, draw.count, *halves, half))
        if len(behind):
            at = draw.count * behind.itemsize
            self._connection.post(encode("WRITE", "IQ", memory.handle.number, at, tail=behind.tobytes()))
        return True

    def fill(self, memory: _Memory, value: NDArray[Any]) -> None:
        self._connection.post(encode("FILL", "I", memory.handle.number, tail=value.tobytes()))

    def copy(self, source: _Memory, target: _Memory, size_bytes: int) -> None:
        self._connection.post(encode("COPY", "IIQ", source.handle.number, target.handle.number, size_bytes))

    def read(self, memory: _Memory, into: NDArray[Any], start_bytes: int = 0) -> None:
        contents, chunk = _bytes_of(into), memory.chunk_bytes
        with _refusals():
            for at in range(0, len(contents), chunk):
                part = contents[at : at + chunk]
                asked = encode("READ", "IQI", memory.handle.number, start_bytes + at, len(part))
                self._connection.ask_into(asked, part)

    # Launches

    def bind(
        self,
        kernels: Sequence[_Handle],
        launches: Sequence[Launch],
        memory: Mapping[str, _Memory],
        scalars: Mapping[str, float] = NO_SCALARS,
        *,
        operands: Sequence[str] = (),
        variables: Sequence[str] = (),
    ) -> _Call:
        steps = []
        for kernel, launch in zip(kernels, launches, strict=True):
            changing, named, arguments = [], [], []
            for index, argument in enumerate(launch.arguments):
                if isinstance(argument, LocalMemory):
                    arguments.append(struct.pack("<IBQ", index, CONSTANTS["LOCAL_ARGUMENT"], argument.size_bytes))
                elif argument is None or isinstance(argument, Structure):
                    arguments.append(_content(index, argument.content if argument else bytes(_POINTER_BYTES)))
                elif not isinstance(argument, str):
                    kind = NUMPY_TYPES[argument.dtype]
                    arguments.append(_value(index, kind, scalars.get(argument.name, argument.value)))
                    if argument.name in variables:
                        named.append((index, variables.index(argument.name), kind))
                elif argument in operands:
                    changing.append((index, operands.index(argument)))
                else:
                    arguments.append(_operand(index, memory[argument]))
            self._set_arguments(kernel, arguments)
            steps.append(_Step(kernel, _launch(kernel, launch), tuple(changing), tuple(named)))
        return _Call(steps=tuple(steps), memory=memory)

    def _set_arguments(self, kernel: _Handle, arguments: Sequence[bytes]) -> None:
        if arguments:
            listed = b"".join(arguments)
            self._connection.post(encode("ARGUMENTS", "II", kernel.number, len(arguments), tail=listed))

    def start(
        self,
        call: _Call,
        operands: Sequence[_Memory] = (),
        variables: Sequence[float] | None = None,
        arrays: Sequence[Any] = (),
        shared: Sequence[Any] = (),  # noqa: ARG002 - some of the arrays
    ) -> None:
        """Arrays of queues do not exist on the agent's machine: raises LaunchError if there are any."""
        if arrays:
            raise LaunchError("arrays of queues cannot be used through an agent")
        for step in call.steps:
            arguments = [_operand(index, operands[place]) for index, place in step.operands]
            if variables is not None:
                arguments += [_value(index, kind, variables[place]) for index, place, kind in step.variables]
            self._set_arguments(step.kernel, arguments)
            self._connection.post(encode("START", "I", 1, tail=step.launch))
        self._connection.post(flush=True)

    def run(self, call: _Call, times: int = 1, *, has_events: bool = True) -> Run:
        shape = (times, len(call.steps), 2)
        size = 8 * times * len(call.steps) * 2 if has_events else 0
        with _refusals():
            told = self._connection.ask(encode("RUN", "IB", times, has_events, tail=call.launches), 16 + size)
        start, end = struct.unpack("<QQ", told[:16].ljust(16, b"\0"))
        events = np.zeros(shape, np.int64)
        if has_events and len(told) == 16 + size:
            events = np.frombuffer(told, "<i8", offset=16).astype(np.int64).reshape(shape)
        return Run(host_start_ns=start, host_end_ns=end, events=events)

    def finish(self) -> None:
        with _refusals():
            self._connection.ask(encode("FINISH"))


def _launch(kernel: _Handle, launch: Launch) -> bytes:
    sizes = (*launch.global_size, *(launch.local_size or ()))
    head = struct.pack("<IBB", kernel.number, len(launch.global_size), launch.local_size is not None)
    return head + struct.pack(f"<{len(sizes)}Q", *sizes)


def _operand(index: int, memory: _Memory) -> bytes:
    return struct.pack("<IBI", index, CONSTANTS["MEMORY_ARGUMENT"], memory.handle.number)


def _value(index: int, kind: type[np.generic], value: float) -> bytes:
    return _content(index, scalar(kind, value).tobytes())


def _content(index: int, data: bytes) -> bytes:
    return struct.pack("<IBI", index, CONSTANTS["VALUE_ARGUMENT"], len(data)) + data


def _bytes_of(values: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    return values.ravel(order="K").view(np.uint8).data


@contextmanager
def _refusals(kind: type[KernelError] = LaunchError) -> Iterator[None]:
    """Raise what the agent or its driver refuses as `kind`; a refused work-group as WorkGroupError."""
    try:
        yield
    except RefusedCommand as refusal:
        if kind is LaunchError and refusal.is_for_work_group:
            kind = WorkGroupError
        raise kind(shortened(str(refusal))) from refusal
