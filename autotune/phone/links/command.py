"""The link ``exec:COMMAND``: agents that a command starts."""

import shlex
import subprocess

from autotune.device.quirks import set_threads
from autotune.errors import DeviceSelectionError
from autotune.phone.links.agent_link import AgentLink
from autotune.phone.links.toolchains import build_here


class CommandLink(AgentLink):
    """The link ``exec:COMMAND``: starts agents with a command, on this machine or wherever that leads.

    Without a command it is an agent for this machine, built from source when first needed.
    """

    def __init__(self, command: str) -> None:
        self.name = f"exec:{command}"
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise DeviceSelectionError(f"{self.name} is not a command: {error}") from error

    def check(self) -> None:
        """Do nothing: a command can always be started."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command. Raises DeviceSelectionError when that fails."""
        set_threads()  # which PoCL reads from the environment, here as in a process that uses it itself
        try:
            words = self._words or [str(build_here())]
            return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        except OSError as error:
            raise DeviceSelectionError(f"{self.name} cannot be started: {error}") from error
