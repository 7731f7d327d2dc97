"""What all links have in common: the devices behind them are used through an agent."""

import subprocess
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.device.description import Survey
    from autotune.phone.agent.port import AgentPort


class AgentLink(ABC):
    """A `autotune.device.link.Link` to a machine on which an agent can be started, as often as needed."""

    name: str

    @abstractmethod
    def check(self) -> None:
        """Raise DeviceAwayError while no agent can be started, DeviceSelectionError if waiting does not change that."""

    @abstractmethod
    def start(self) -> subprocess.Popen[bytes]:
        """Start an agent, with pipes as standard input and output, and this process's standard error.

        Closing its input ends the agent. Raises DeviceSelectionError when it cannot be started.
        """

    def survey(self) -> "Survey":
        """Return the machine's devices. Raises DeviceSelectionError, or DeviceLostError when its agent fails."""
        from autotune.phone.agent.machine import survey_behind

        return survey_behind(self)

    def open_port(self, numbers: str, *, profiles: bool) -> "AgentPort":
        """Open the device ``platform:device``. Raises DeviceSelectionError, and DeviceLostError when the agent ends."""
        from autotune.phone.agent.port import AgentPort

        return AgentPort(self, numbers, profiles=profiles)
