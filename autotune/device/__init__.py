"""Access to devices: `discovery` finds them, `open_port` opens one; `port` is what can be done with it then."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from autotune.device.link import find_link, split
from autotune.errors import LaunchError

if TYPE_CHECKING:
    from autotune.device.port import Port


def open_port(place: Any, *, profiles: bool = True) -> "Port":
    """Open a device, given as ``platform:device`` in numbers, or on a caller's queue, or context of one device.

    ``LINK#platform:device`` is a device behind a link. Launches report event times if the port `profiles`, or the
    caller's queue does. Raises DeviceSelectionError when the device cannot be found or opened, DeviceLostError when a
    link or its agent does not hold.
    """
    if isinstance(place, str) and (parts := split(place)):
        name, numbers = parts
        return find_link(name).open_port(numbers, profiles=profiles)
    from autotune.device.opencl import Session  # loads pyopencl, which takes a while

    return Session(place, profiles=profiles)


def check_link(port: "Port", selector: str) -> None:
    """Raise DeviceLostError if the link to an open device was lost: found out later, the next work would be blamed."""
    if split(selector):
        with suppress(LaunchError):
            port.finish()
