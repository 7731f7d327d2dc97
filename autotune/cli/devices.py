"""Which device a command that reads a table is about."""

import contextlib
from collections.abc import Sequence

from autotune.errors import DeviceSelectionError
from autotune.family import Device


def named_device(selector: str, known: Sequence[Device]) -> Device:
    """A device of a table by its slug, else one of this machine, else one of the table by any other name.

    Raises DeviceSelectionError.
    """
    from autotune.device.discovery import discover, select

    wanted = selector.strip().lower()
    for device in known:
        if device.slug == wanted:
            return device
    try:
        return select(selector, discover())
    except DeviceSelectionError:
        with contextlib.suppress(DeviceSelectionError):
            return select(selector, known)
        raise
