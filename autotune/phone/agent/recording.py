"""A port that records the commands of an agent instead of sending them, for an agent that works without its host."""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from autotune.device.description import description
from autotune.device.quirks import quirks_of
from autotune.errors import DeviceSelectionError
from autotune.model.device import Device
from autotune.phone.agent.connection import Connection
from autotune.phone.agent.frames import Command, RefusedCommand, encode
from autotune.phone.agent.machine import AgentDevice, AgentMachine, AgentPlatform
from autotune.phone.agent.port import AgentPort, _Handle, _Memory

HEADER_BYTES = 5
"""Size and kind at the start of a frame."""


class Recording(Connection):
    """The commands of one problem's trials. Whatever is asked is answered with zeros."""

    def __init__(self) -> None:
        self.size_t_bytes = 8
        self._commands: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        """By digest, the numbers of all contents that were written."""
        self._data: list[bytes] = []

    def post(self, *commands: Command, flush: bool = False) -> None:  # noqa: ARG002 - nothing waits
        self._commands += [self._frame(command) for command in commands]

    def ask(self, command: Command, most_bytes: int = 0) -> bytes:
        self.post(command)
        return bytes(most_bytes)

    def ask_into(self, command: Command, into: memoryview) -> None:  # noqa: ARG002 - stays as it is
        self.post(command)

    def check(self) -> None: ...

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """Return the contents and the frames recorded since the last call; frames refer to contents by number."""
        taken = self._data, self._commands
        self._data, self._commands = [], []
        return taken

    def wrap_last(self, name: str, layout: str, *values: int) -> None:
        """Replace the last command by another, whose payload is `values` and then that of the last."""
        self._commands.append(frame(encode(name, layout, *values, tail=self._commands.pop()[HEADER_BYTES:])))

    def _frame(self, command: Command) -> bytes:
        """Return a frame; contents that were written before are not repeated."""
        if command.name != "WRITE":
            return frame(command)
        head, contents = command.parts
        digest = hashlib.blake2b(contents, digest_size=16).digest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._numbers)
            self._data.append(bytes(contents))
        return frame(Command(name="WRITE_DATA", parts=(head, struct.pack("<I", self._numbers[digest]))))


class RecordingPort(AgentPort):
    """A port to a device that is not there. No two things that it creates have the same handle."""

    def __init__(self, device: Device) -> None:
        self.recording = self._connection = Recording()
        self.device = device
        self._begin(quirks_of(device.version, device.vendor))
        self._count = 0

    def _new_handle(self) -> _Handle:
        self._count += 1
        return _Handle(self._count - 1, self._released)

    def read(self, memory: _Memory, into: NDArray[Any], start_bytes: int = 0) -> None:
        """Record one READ of the whole, since the agent counts and compares outputs by these."""
        self.recording.post(encode("READ", "IQI", memory.handle.number, start_bytes, into.nbytes))

    def release(self) -> None:
        """Release what nothing refers to any more."""
        numbers = [self._released.popleft() for _ in range(len(self._released))]
        if numbers:
            self.recording.post(encode("RELEASE", f"{len(numbers)}I", *numbers))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """End what is recorded within by the release of everything that it created."""
        first = self._count
        yield
        self._released.clear()
        numbers = range(first, self._count)
        self.recording.post(encode("CLEAR", f"{len(numbers)}I", *numbers))


def frame(command: Command) -> bytes:
    """Return a command as it is written to a file."""
    return command.header + b"".join(command.parts)


class Retold(Connection):
    """What an agent's driver answered before, as far as it was asked; everything else is refused."""

    def __init__(self, told: Mapping[tuple[int, int, int], bytes], cpuinfo: str, size_t_bytes: int) -> None:
        """`told` has answers by platform, device or NO_HANDLE, and query."""
        self.size_t_bytes = size_t_bytes
        self._told = told
        self._cpuinfo = cpuinfo

    def ask(self, command: Command, most_bytes: int = 0) -> bytes:
        payload = command.parts[0]
        if command.name == "READ_FILE" and self._cpuinfo:
            return self._cpuinfo.encode()[:most_bytes]
        answer = self._told.get(struct.unpack("<III", payload)) if command.name == "INFO" else None
        if answer is None:
            raise RefusedCommand(0, "this was not asked")
        return answer[:most_bytes]

    def check(self) -> None: ...


def described(told: Mapping[tuple[int, int, int], bytes], chosen: tuple[int, int, int], cpuinfo: str) -> Device:
    """Return the device of which an agent told these answers; `chosen` are its numbers and the bytes of a size_t.

    Raises DeviceSelectionError when they do not describe one.
    """
    platform_number, number, size_t_bytes = chosen
    connection = Retold(told, cpuinfo, size_t_bytes)
    platform = AgentPlatform(connection, platform_number)
    try:
        return description(AgentDevice(connection, platform, number), platform, "", AgentMachine(connection))
    except Exception as error:  # answers may be anything
        raise DeviceSelectionError(f"its device is not described: {error}") from error
