"""The link ``exec:COMMAND``: a command that starts an agent, on this machine or wherever it leads."""

import shlex
import subprocess

from autotune.device.agent.binary import built_here
from autotune.device.quirks import set_threads
from autotune.errors import DeviceSelectionError


class CommandLink:
    """Starts agents with a command; without one, an agent for this machine, built from source when first needed."""

    def __init__(self, command: str) -> None:
        self.name = f"exec:{command}"
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise DeviceSelectionError(f"{self.name} is no command: {error}") from error

    def check(self) -> None:
        """Do nothing: a command can always be started."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command. Raises DeviceSelectionError when that fails."""
        set_threads()  # which PoCL reads from the environment, here as in a process that uses it itself
        try:
            words = self._words or [str(built_here())]
            return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        except OSError as error:
            raise DeviceSelectionError(f"{self.name} cannot be started: {error}") from error
