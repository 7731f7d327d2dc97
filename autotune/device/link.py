"""Devices of other machines: each is reached by a link, which a selector ``LINK#DEVICE`` names, as ``adb:SERIAL#0:0``.

The last ``#`` separates the two. `plugins` knows the kinds of links.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from autotune import plugins
from autotune.errors import DeviceAwayError, DeviceSelectionError

if TYPE_CHECKING:
    from autotune.device.description import Survey
    from autotune.device.port import Port

LOOK_S = 1.0
"""Pause before a device that is away is looked for again."""
PATIENCE_S = 3600.0
"""How long a device that is away is waited for."""


class Link(Protocol):
    """A way to a machine whose devices can be used from here."""

    @property
    def name(self) -> str:
        """The selector without ``#DEVICE``, such as ``adb:SERIAL``."""
        ...

    def check(self) -> None:
        """Raise DeviceAwayError while the machine cannot be used, DeviceSelectionError if waiting does not help."""
        ...

    def survey(self) -> "Survey":
        """Return the machine's devices. Raises DeviceSelectionError."""
        ...

    def open_port(self, numbers: str, *, profiles: bool) -> "Port":
        """Open the device ``platform:device``. Raises DeviceSelectionError, and DeviceLostError when the link breaks.

        Launches report event times if the port `profiles`.
        """
        ...


class ReachableMachine(Protocol):
    """A machine that a kind of link can list, such as a phone on a cable."""

    @property
    def link(self) -> str:
        """The name of the link to it."""
        ...

    @property
    def model(self) -> str:
        """What people call it."""
        ...

    @property
    def trouble(self) -> DeviceAwayError | None:
        """Why it cannot be used now; None if it can be."""
        ...


def split(selector: str) -> tuple[str, str] | None:
    """Return the name of the link and what selects a device behind it, maybe empty; None for other selectors."""
    name, mark, device = selector.rpartition("#")
    name, device = (name, device) if mark else (selector, "")
    scheme, colon, _ = name.partition(":")
    if name == "adb":  # the only phone
        return name, device
    return (name, device) if colon and _is_scheme(scheme) else None


def _is_scheme(scheme: str) -> bool:
    """Return whether links begin so; looks for packages only where the word is not a number, as platforms have."""
    return scheme in plugins.LINKS or (scheme.isalpha() and scheme in plugins.schemes())


def find_link(name: str) -> Link:
    """Return the link of that name, without using it yet. Raises DeviceSelectionError."""
    scheme, _, rest = name.partition(":")
    if not _is_scheme(scheme):
        known = ", ".join(f"{known}:" for known in plugins.schemes())
        raise DeviceSelectionError(f"no link {name!r}", hint=f"links begin with {known}")
    link: Link = plugins.find_link(scheme)(rest)
    return link


def reachable_machines() -> Sequence[ReachableMachine]:
    """Return the phones that adb lists, usable or not. Raises DeviceSelectionError without adb or its server."""
    machines: Sequence[ReachableMachine] = plugins.find_link("adb").machines()
    return machines


def wait_for(selector: str, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Return as soon as a device's link can be used, at once for a device of this machine. May block for long.

    Raises DeviceSelectionError for a failure that waiting cannot end, DeviceAwayError after an hour or `should_stop`.
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
