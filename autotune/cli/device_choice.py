"""Selection of a device by the commands that read a table."""

from collections.abc import Sequence

from autotune.device.families import FAMILIES
from autotune.device.identity import is_slug
from autotune.errors import DeviceSelectionError, NoSuchDeviceError, did_you_mean
from autotune.model.device import Device


def named_device(selector: str, known: Sequence[Device]) -> Device:
    """Return a device of the table by its slug, else one of this machine, else one of the table by any other name.

    Raises DeviceSelectionError: a NoSuchDeviceError when no device fits.
    """
    from autotune.device.discovery import discover, select

    wanted = selector.strip().lower()
    for device in known:
        if device.slug == wanted:
            return device
    devices: list[Device] = []
    try:
        devices = discover()
        return select(selector, devices)
    except DeviceSelectionError as here:
        try:
            return select(selector, known)
        except NoSuchDeviceError:
            is_ambiguous = devices and not isinstance(here, NoSuchDeviceError)
            if is_ambiguous or not known:
                raise here from None
            raise _no_such_device(selector, known) from here


def _no_such_device(selector: str, known: Sequence[Device]) -> NoSuchDeviceError:
    slugs = sorted({device.slug for device in known})
    hint = did_you_mean(selector, [*slugs, *FAMILIES]) or f"stored devices: {', '.join(slugs)}"
    return NoSuchDeviceError(
        f"no device fits {selector[:80]!r}, neither on this machine nor among those stored", hint=hint
    )


def named_or_guessed_device(selector: str, known: Sequence[Device]) -> Device:
    """Return what `named_device` returns, or else a device guessed from the slug of a known family.

    A table gives an answer for any device. Raises DeviceSelectionError.
    """
    from autotune.lookup.chain import guess

    try:
        return named_device(selector, known)
    except NoSuchDeviceError:
        slug = selector.strip().lower()
        if is_slug(slug) and slug.partition("-")[0] in (*FAMILIES, "pocl"):
            return guess(slug)
        raise
