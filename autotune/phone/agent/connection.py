"""A running agent: starting it over a link, greeting it, and exchanging frames with it."""

import contextlib
import subprocess
import threading
import weakref
from typing import IO, Protocol

from autotune.errors import DeviceLostError, LinkLostError
from autotune.phone.agent import frames
from autotune.phone.agent.frames import CONSTANTS, GREETING, Command, encode

COMMAND_LIMIT_S = 900.0
"""Time after which an agent ends itself if a command has not ended: far above the limits of trials, which their parent
process observes, it only frees a device whose link is lost without the device noticing."""
_PATIENCE_S = 5.0


class StartsAgents(Protocol):
    """What a connection needs of a link: an `AgentLink`, or a recording."""

    @property
    def name(self) -> str:
        """The selector without ``#DEVICE``, such as ``adb:SERIAL``."""
        ...

    def start(self) -> subprocess.Popen[bytes]:
        """Start an agent, with pipes as standard input and output. Raises DeviceSelectionError."""
        ...


class Connection:
    """One agent, which lives as long as this object. Safe for threads."""

    def __init__(self, link: StartsAgents, *, limit_s: float = COMMAND_LIMIT_S) -> None:
        """Start an agent and greet it; `limit_s` bounds each of its commands.

        Raises DeviceSelectionError when it cannot be started, LinkLostError when it does not answer as an agent of this
        version, DeviceLostError when it ends.
        """
        self._link = link
        self._process = link.start()
        assert self._process.stdin and self._process.stdout
        self._output: IO[bytes] = self._process.stdin
        self._input: IO[bytes] = self._process.stdout
        self.close = weakref.finalize(self, _end, self._process)
        self._turn = threading.RLock()
        self._lost: DeviceLostError | None = None
        self.size_t_bytes = self._greet(limit_s)

    def _greet(self, limit_s: float) -> int:
        """Exchange versions; return the size of the agent's size_t."""
        command = encode("HELLO", f"{len(GREETING)}sI", GREETING, round(limit_s * 1000))
        told = self.ask(command, len(GREETING) + 1)
        if told[:-1] != GREETING or told[-1] not in (4, 8):
            self._lose(LinkLostError("the agent speaks another version of the protocol", hint="build it again"))
        return told[-1]

    def post(self, *commands: Command, flush: bool = False) -> None:
        """Send commands that are not answered. Raises DeviceLostError when the agent is gone.

        Without `flush` they may be sent with the next ones only.
        """
        with self._turn, _losing(self):
            frames.send(self._output, commands)
            if flush:
                self._output.flush()

    def ask(self, command: Command, most_bytes: int = 0) -> bytes:
        """Send a command and return its answer, of at most `most_bytes`.

        Raises RefusedCommand when the agent or its driver refuses, DeviceLostError when the agent is gone.
        """
        with self._turn, _losing(self):
            self.post(command, flush=True)
            return frames.receive(self._input, most_bytes)

    def ask_into(self, command: Command, into: memoryview) -> None:
        """Send a command whose answer fills `into`. Raises as `ask` does."""
        with self._turn, _losing(self):
            self.post(command, flush=True)
            frames.receive_into(self._input, into)

    def check(self) -> None:
        """Raise the error by which the agent was lost, if it was."""
        if self._lost is not None:
            raise self._lost

    def lose(self, error: BaseException) -> None:
        """Note that nothing can be exchanged any more. Raises DeviceLostError unless the error is not of the link."""
        if error is self._lost:
            return
        if isinstance(error, OSError):  # nobody reads; the agent may have said why
            try:
                frames.receive(self._input, 0)
            except (frames.RefusedCommand, OSError, ValueError):
                error = LinkLostError("the link to the device ended")
            except DeviceLostError as told:
                error = told
        lost = error if isinstance(error, DeviceLostError) else LinkLostError("an exchange was interrupted")
        self._lose(lost, is_raised=error is lost)

    def _lose(self, error: DeviceLostError, *, is_raised: bool = True) -> None:
        self.close()
        status = self._process.poll()
        how = f", exit status {status}" if status else ""
        self._lost = type(error)(f"{self._link.name}: {error.message}{how}", hint=error.hint)
        if is_raised:
            raise self._lost from None


class _losing(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Notes in a connection whatever breaks off an exchange, after which frames would be mistaken for others."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.check()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, *__: object) -> None:
        if error is not None and not isinstance(error, frames.RefusedCommand):
            self._connection.lose(error)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an agent: it ends by itself when its input is closed."""
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError, ValueError):
            if stream:
                stream.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


MAX_CHUNK = 4 * 2**20
"""Most bytes of memory's contents in a frame."""
assert CONSTANTS["MAX_FRAME_BYTES"] // 2 > MAX_CHUNK
