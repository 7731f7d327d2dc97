"""The device that stands for one that is not here: every answer for a device known by name alone is made for it."""

from autotune.device.families import FAMILIES
from autotune.device.identity import family_of
from autotune.device.machine import public_limits
from autotune.model.device import Device

_NOBODY = "any device"


def is_known(slug: str) -> bool:
    """Return whether more is known of a device by its slug than the least limits of OpenCL."""
    return absent_device(slug).presumed_from != _NOBODY


def absent_device(slug: str) -> Device:
    """Return a device with the public limits of its model, else of its generation, else of its family.

    What does not hold on the real device fails there, and costs a build. `Device.presumed_from` says whose limits
    they are.
    """
    family = family_of(slug)
    limits, source = public_limits(slug, family)
    vendor = FAMILIES[family].vendor if family in FAMILIES else ""
    return Device(slug=slug, vendor=vendor, model="", family=family, limits=limits, presumed_from=source or _NOBODY)
