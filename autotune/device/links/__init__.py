"""Links to devices of other machines: each starts an agent (`device/agent`) and exchanges frames with it by a pipe.

A selector ``LINK#DEVICE`` names a device behind a link: ``exec:COMMAND#0:0``. The last ``#`` separates the two.
"""

import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

from autotune.device.links.adb import AdbLink, only_phone, phones
from autotune.device.links.shell import LOOK_S, PATIENCE_S
from autotune.device.links.ssh import SshLink
from autotune.device.links.toolchains import build_here
from autotune.device.quirks import set_threads
from autotune.errors import DeviceAwayError, DeviceSelectionError


class CommandLink:
    """The link ``exec:COMMAND``: starts agents with a command, on this machine or wherever that leads.

    Without a command it is an agent for this machine, built from source when first needed.
    """

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
            words = self._words or [str(build_here())]
            return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        except OSError as error:
            raise DeviceSelectionError(f"{self.name} cannot be started: {error}") from error


SCHEMES: dict[str, Callable[[str], "Link"]] = {"adb": AdbLink, "ssh": SshLink, "exec": CommandLink}
"""What makes a link of the part of its name after the colon, by the part before."""


class Link(Protocol):
    """A way to a machine on which an agent can be started, as often as needed."""

    @property
    def name(self) -> str:
        """The selector without ``#DEVICE``, such as ``adb:SERIAL``."""
        ...

    def check(self) -> None:
        """Raise DeviceAwayError while no agent can be started, DeviceSelectionError if waiting does not change that."""
        ...

    def start(self) -> subprocess.Popen[bytes]:
        """Start an agent, with pipes as standard input and output, and this process's standard error.

        Closing its input ends the agent. Raises DeviceSelectionError when it cannot be started.
        """
        ...


def split(selector: str) -> tuple[str, str] | None:
    """Return the name of the link and what selects a device behind it, maybe empty; None for other selectors."""
    name, mark, device = selector.rpartition("#")
    name, device = (name, device) if mark else (selector, "")
    scheme, colon, _ = name.partition(":")
    if name == "adb":  # the only phone
        return name, device
    return (name, device) if colon and scheme in SCHEMES else None


def find_link(name: str) -> Link:
    """Return the link of that name, without using it yet. Raises DeviceSelectionError."""
    scheme, _, place = name.partition(":")
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}:" for known in SCHEMES)
        raise DeviceSelectionError(f"no link {name!r}", hint=f"links begin with {known}")
    return SCHEMES[scheme](place)


def every_link(selector: str) -> list[str]:
    """Return the links to all phones that can be used for ``adb``, any other selector as it is.

    Raises DeviceSelectionError when there is no phone, with what is wrong with those that adb shows.
    """
    if selector != "adb":
        return [selector]
    usable = [phone.link for phone in phones() if not phone.trouble]
    return usable or [f"adb:{only_phone().serial}"]


def wait_for(selector: str, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Return as soon as an agent can be started for a device, at once for a device of this machine. May block for long.

    Raises DeviceSelectionError for what waiting does not mend, DeviceAwayError when it lasts an hour or `should_stop`.
    """
    parts = split(selector)
    if parts is None:
        return
    link, deadline = find_link(parts[0]), time.monotonic() + PATIENCE_S
    while True:
        try:
            link.check()
        except DeviceAwayError:
            if time.monotonic() > deadline or should_stop():
                raise
            time.sleep(LOOK_S)
        else:
            return
