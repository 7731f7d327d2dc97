"""Which device a command that reads a table is about."""

from collections.abc import Sequence

from autotune.errors import DeviceSelectionError, NoSuchDeviceError, did_you_mean
from autotune.problem import Device


def named_device(selector: str, known: Sequence[Device]) -> Device:
    """A device of a table by its slug, else one of this machine, else one of the table by any other name.

    Raises DeviceSelectionError, which is a NoSuchDeviceError when none fits anywhere.
    """
    from autotune.device.discovery import discover, select

    wanted = selector.strip().lower()
    for device in known:
        if device.slug == wanted:
            return device
    try:
        return select(selector, discover())
    except DeviceSelectionError as here:
        try:
            return select(selector, known)
        except NoSuchDeviceError:
            raise here from None


def named_or_guessed_device(selector: str, known: Sequence[Device]) -> Device:
    """The same, or a device of a known family of which only the slug is known: a table answers for any.

    Raises DeviceSelectionError.
    """
    from autotune.identity import FAMILIES, is_slug
    from autotune.lookup.chain import guess

    try:
        return named_device(selector, known)
    except NoSuchDeviceError as error:
        slug = selector.strip().lower()
        if is_slug(slug) and slug.partition("-")[0] in (*FAMILIES, "pocl"):
            return guess(slug)
        hint = did_you_mean(slug, [*(device.slug for device in known), *FAMILIES])
        raise NoSuchDeviceError(error.message, hint=hint or error.hint) from None
