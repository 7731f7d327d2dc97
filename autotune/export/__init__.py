"""Exports tables for other programs and for people as JSON, CSV, Markdown, HTML, C and SQLite.

This file holds the public functions, which load the writers only when they are needed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import DeviceSelectionError, UsageError
from autotune.export.formats import FORMATS

if TYPE_CHECKING:
    from autotune.export.contents import Beneath
    from autotune.store import Store


def export_table(
    store: "Store", device_slug: str | None, family: str | None, form: str, beneath: "Beneath | None" = None
) -> str | bytes:
    """Return the best configurations of a kernel family or, without one, of all that are stored.

    They are those of one device or of all. Equal contents give equal texts. A configuration that this version's family
    no longer declares is left out, since nothing could use it, and so is a family that the format cannot hold. SQLite,
    the only format in bytes, holds every family and the ledger of trials. `beneath`, such as `shipped_tables`, adds to
    formats with `has_shipped` what the store lacks. Raises DeviceSelectionError, UsageError where no family is left,
    ProblemError for an unknown one, TableError, StoreError.
    """
    from autotune.export.contents import joined, read_tables, stored_families
    from autotune.kernels import find_family

    if form not in FORMATS:
        raise UsageError(f"there is no export format {form[:80]!r}", hint=f"there are {', '.join(FORMATS)}")
    if family is not None:
        find_family(family)
    known = FORMATS[form]
    also = _also(store, device_slug) if known.has_rule else []
    if not also:
        _check_stored(store, device_slug)
    if not known.writer:
        return _snapshot(store, device_slug)
    lower = (beneath or {}) if known.has_shipped else {}
    stored = [family] if family else stored_families(store, device_slug, lower)
    families = [name for name in stored if known.takes(name)]
    if not families:
        raise UsageError(
            f"the sources of {', '.join(stored)} are rendered from templates, so that no compiler can use such options",
            hint="export c, with --kernels DIR the kernels as well, or json, files or toml",
        )
    if known.families == "single" and len(families) > 1:
        raise UsageError(
            f"a {known.title} table has the columns of one kernel family, and {', '.join(families)} are stored",
            hint=f"choose one, such as --family {families[0]}",
        )
    tables = {
        name: read_tables(store, device_slug, name, lower, also=also, trials=known.has_trials) for name in families
    }
    if known.families == "joined":
        return known.text(joined(list(tables.values())), families[0])
    return "\n".join(known.text(of_family, name) for name, of_family in tables.items())


def export_package(
    store: "Store",
    device_slug: str | None,
    families: Sequence[str],
    folder: Path,
    *,
    beneath: "Beneath | None" = None,
    also: Sequence[str] = (),
    force: bool = False,
    listener: Callable[[str, int, int], object] = lambda _family, _done, _total: None,
) -> list[str]:
    """Write a folder of C99 code that looks up and runs the kernels of some families, of one device or of all.

    `beneath`, such as `shipped_tables`, adds what the store lacks.
    `also` lists slugs of devices without measurements; their answers come from their relatives and the default rule.
    `listener` hears of each family how many of its configurations are rendered, and how many there are.
    Returns the names of files that were left alone because the user has changed them.
    Raises DeviceSelectionError; UsageError for a family without a library in C and, unless `force`, for files that no
    export has written; TableError; StoreError.
    """
    from autotune.export.c_package import package_files
    from autotune.export.contents import read_tables
    from autotune.export.formats import write_package

    absent = _also(store, device_slug)
    if not absent:
        _check_stored(store, device_slug)
    wanted = [*absent, *also]
    tables = {family: read_tables(store, device_slug, family, beneath or {}, also=wanted) for family in families}
    return write_package(folder, package_files(tables, listener), force=force)


def _also(store: "Store", device_slug: str | None) -> list[str]:
    """Return the slug in a list if nothing is stored for the device, but its limits are publicly known."""
    from autotune.device.machine import is_known

    is_stored = any(device.slug == device_slug for device in store.devices())
    return [device_slug] if device_slug and not is_stored and is_known(device_slug) else []


def _check_stored(store: "Store", device_slug: str | None) -> None:
    known = sorted({device.slug for device in store.devices()})
    if device_slug is not None and device_slug not in known:
        there = f"there are {', '.join(known)}" if known else "no device is stored yet: tune one with autotune run"
        raise DeviceSelectionError(f"nothing is stored for a device {device_slug[:80]!r}", hint=there)


def _snapshot(store: "Store", device_slug: str | None) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.sqlite"
        store.snapshot(path, device_slug)
        return path.read_bytes()
