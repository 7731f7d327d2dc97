"""Frames between host and agent: commands out, answers in, by the constants of protocol.h.

An agent is not trusted: the size and kind of every answer are checked before its contents are used, and no answer makes
the host allocate more than it has asked for.
"""

import re
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from autotune.child import signal_name
from autotune.device.port import NAMES, refuses_group
from autotune.errors import AgentKilledError, DeviceLostError, LinkLostError
from autotune.phone.agent import FOLDER

_TEXT = (FOLDER / "protocol.h").read_text(encoding="ascii")
CONSTANTS = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", _TEXT, re.MULTILINE)}
_STRINGS: dict[str, str] = dict(re.findall(r'^#define (\w+) "(\w+)"$', _TEXT, re.MULTILINE))
GREETING = (_STRINGS["PROTOCOL_MAGIC"] + _STRINGS["PROTOCOL_DIGEST"]).encode("ascii")

_ANSWER, _ERROR, _END = (CONSTANTS[name] for name in ("ANSWER", "ERROR", "END"))
_END_HEADER = (7, _END)
_MAX_FRAME, MAX_TEXT = CONSTANTS["MAX_FRAME_BYTES"], CONSTANTS["MAX_TEXT_BYTES"]


class RefusedCommand(Exception):
    """The agent or its driver refused a command; `status` is OpenCL's, 0 if it comes from the agent."""

    def __init__(self, status: int, text: str) -> None:
        name = NAMES.get(status, str(status) if status else "")
        function, log = (text, "") if re.fullmatch(r"cl\w+", text) else ("clBuildProgram", f"\n\n{text}")
        super().__init__(f"{function} failed: {name}{log}" if name and status < 0 else text or name)
        self.status = status
        self.text = text
        self.is_for_work_group = refuses_group(status, lambda: text == "clEnqueueNDRangeKernel")
        """Whether a launch was refused for its work-group; the agent tells of the wait after it where that fails."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its payload."""

    name: str
    parts: tuple[bytes | memoryview, ...]

    @property
    def header(self) -> bytes:
        size = 1 + sum(map(len, self.parts))
        assert size <= _MAX_FRAME
        return struct.pack("<IB", size, CONSTANTS[self.name])


def encode(name: str, layout: str = "", *values: int | bytes, tail: bytes | memoryview = b"") -> Command:
    """Return a command whose payload is `values`, laid out in the notation of `struct`, and `tail`."""
    return Command(name=name, parts=(struct.pack(f"<{layout}", *values), tail))


def send(stream: IO[bytes], commands: Iterable[Command]) -> None:
    """Write commands. Raises OSError when the agent is gone."""
    for command in commands:
        head, *rest = command.parts
        stream.write(command.header + head)
        for part in rest:
            stream.write(part)


def receive(stream: IO[bytes], most_bytes: int) -> bytes:
    """Return the payload of the next answer, of at most `most_bytes`.

    Raises RefusedCommand when the answer is an error, DeviceLostError when the agent has ended and says how, and
    LinkLostError when the link ends or carries something else.
    """
    payload = _exactly(stream, _begin(stream, most_bytes))
    _finish(stream)
    return payload


def receive_into(stream: IO[bytes], into: memoryview) -> None:
    """Read the payload of the next answer, of exactly the size of `into`. Raises as `receive` does."""
    size = _begin(stream, len(into))
    if size != len(into):
        raise LinkLostError(f"the agent answered {size} bytes where {len(into)} were expected")
    done = 0
    while done < size:
        count = stream.readinto(into[done:])  # type: ignore[attr-defined]
        if not count:
            raise _ended()
        done += count
    _finish(stream)


def _begin(stream: IO[bytes], most_bytes: int) -> int:
    """Return the size of the next answer's payload. Raises as `receive` does."""
    header = _exactly(stream, 5)
    size, kind = struct.unpack("<IB", header)
    if (size, kind) == _END_HEADER:
        raise _end(*struct.unpack("<BIB", _exactly(stream, 6)))
    size -= 2  # the kind, and the mark at the end
    if kind == _ANSWER and 0 <= size <= most_bytes:
        return int(size)
    if kind == _ERROR and 4 <= size <= 4 + MAX_TEXT:
        payload = _exactly(stream, size)
        _finish(stream)
        raise RefusedCommand(struct.unpack("<i", payload[:4])[0], printable(payload[4:]))
    if kind == _ANSWER:
        raise LinkLostError(f"the agent's answer has {size} bytes, where at most {most_bytes} were expected")
    raise LinkLostError(f"what the link carries is no answer of an agent: it begins with {header!r}")


def _finish(stream: IO[bytes]) -> None:
    """Read the mark behind a complete answer. Raises DeviceLostError when the agent did not live to write it."""
    if _exactly(stream, 1) == b"\1":
        return
    if struct.unpack("<IB", _exactly(stream, 5)) == _END_HEADER:
        raise _end(*struct.unpack("<BIB", _exactly(stream, 6)))
    raise LinkLostError("an answer of the agent is incomplete")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _ended()
    return data


def _ended() -> LinkLostError:
    return LinkLostError("the link to the device ended")


def _end(how: int, number: int, command: int) -> DeviceLostError:
    message = how_ended(how, number, command)
    return AgentKilledError(message) if was_killed(how, number) else DeviceLostError(message)


def was_killed(how: int, number: int) -> bool:
    """Return whether something outside killed an agent: no driver raises SIGKILL."""
    return how == CONSTANTS["ENDED_BY_SIGNAL"] and number == signal.SIGKILL


def how_ended(how: int, number: int, command: int) -> str:
    """Describe how an agent ended."""
    names = {value: name for name, value in CONSTANTS.items() if name in _COMMANDS}
    doing = f"in {_COMMANDS[names[command]]}" if command in names else "between commands"
    if was_killed(how, number):
        return f"something outside killed the agent {doing}, as a system does when memory runs out"
    if how == CONSTANTS["ENDED_BY_SIGNAL"]:
        return f"the driver crashed {doing}: killed by {signal_name(number)}"
    if how == CONSTANTS["ENDED_BY_LIMIT"]:
        return f"the driver was stopped {doing}, which took more than {number / 1000:g} s"
    if how == CONSTANTS["ENDED_BY_HOST"]:
        return "the agent ended because its link was closed"
    return f"the agent ended {doing} with exit status {number}"


_COMMANDS = {
    "PLATFORMS": "loading OpenCL",
    "DEVICES": "listing devices",
    "INFO": "describing a device",
    "OPEN": "opening the device",
    "BUILD": "building",
    "LOAD": "loading a program",
    "KERNELS": "creating kernels",
    "RUN": "running kernels",
    "START": "starting kernels",
    "READ": "reading memory",
    "WRITE": "writing memory",
    "FINISH": "waiting for kernels",
}
"""What a command does, for messages."""


def printable(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text).strip()
