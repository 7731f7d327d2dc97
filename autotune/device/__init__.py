"""Access to devices: `discovery` finds them, `open_port` opens one; `port` tells what can be done with it then."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.device.port import Port


def open_port(selector: str) -> "Port":
    """Open a device, given as ``platform:device`` in numbers, for measuring.

    Raises DeviceSelectionError when it cannot be found or opened.
    """
    from autotune.device.opencl import Session  # loads pyopencl, which takes a while

    return Session(selector)


def port_on(place: Any) -> "Port":
    """Open a device for running: by ``platform:device`` numbers, or on a caller's queue, or context of one device.

    Event times are those of the caller's queue, else missing. Raises DeviceSelectionError.
    """
    from autotune.device.opencl import Session

    return Session.on(place)
