"""The device that stands for an absent one: every lookup by name alone is answered for it."""

from autotune.device.families import FAMILIES
from autotune.device.identity import family_of
from autotune.device.machine import public_limits
from autotune.model.device import Device

ANY_DEVICE = "any device"


def is_known(slug: str) -> bool:
    """Return whether more is known of a device by its slug than the least limits of OpenCL."""
    return absent_device(slug).presumed_from != ANY_DEVICE


def absent_device(slug: str) -> Device:
    """Return a device with the public limits of its model, else of its generation, else of its family.

    `Device.presumed_from` names the source of the limits. Where the real device has a lower limit, a kernel
    may fail to build there.
    """
    family = family_of(slug)
    limits, source = public_limits(slug, family)
    vendor = FAMILIES[family].vendor if family in FAMILIES else ""
    return Device(slug=slug, vendor=vendor, model="", family=family, limits=limits, presumed_from=source or ANY_DEVICE)
