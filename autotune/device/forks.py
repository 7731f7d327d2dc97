"""OpenCL after a fork: no driver survives one, so a process forked from a user of OpenCL gets an error, not a hang."""

import os

from autotune.errors import DeviceSelectionError


class _Driver:
    """Whether this process uses a driver, and whether it was forked from one that did."""

    is_used = False
    was_forked = False

    def note_fork(self) -> None:
        self.was_forked = self.is_used


_driver = _Driver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_driver.note_fork)


def after_fork() -> DeviceSelectionError:
    """Return the error for a process that was forked from one that uses OpenCL."""
    return DeviceSelectionError(
        "this process was forked from one that uses OpenCL, which no driver survives",
        hint="start it with multiprocessing's method spawn or forkserver, or fork before the first use of a device",
    )


def enter_driver() -> None:
    """Note that this process uses a driver from now on. Raises DeviceSelectionError after a fork from one that did."""
    if _driver.was_forked:
        raise after_fork()
    _driver.is_used = True
