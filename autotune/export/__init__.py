"""Exports tables for other programs and for people as JSON, CSV, Markdown, C and SQLite; reads JSON tables back.

This file holds the public functions and what all formats share; each format has a file of its own.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.errors import DeviceSelectionError, UsageError
from autotune.export.c_header import write_c
from autotune.export.c_package import package_files
from autotune.export.contents import DeviceTable, read_contents, with_predictors
from autotune.export.files import check_replaceable, write_package
from autotune.export.json_table import write_json
from autotune.export.text_tables import write_csv, write_markdown
from autotune.kernels import find_family
from autotune.lookup.chain import guess
from autotune.lookup.json_table import read_table
from autotune.store import Store

__all__ = ["FORMATS", "check_replaceable", "export_package", "export_table", "read_table"]

_WRITERS: dict[str, Callable[[list[DeviceTable], str], str]] = {
    "json": lambda tables, _family: write_json(tables),
    "csv": write_csv,
    "markdown": write_markdown,
    "c": write_c,
}
FORMATS = (*_WRITERS, "sqlite")


def export_table(store: Store, device_slug: str | None, family: str, form: str) -> str | bytes:
    """Return the best configurations of one kernel family, of one device or of all; bytes for SQLite, else text.

    Equal contents give equal texts. A configuration that this version's family no longer declares is left out, since
    nothing could use it. SQLite holds every family and the ledger of trials.
    Raises DeviceSelectionError, UsageError, ProblemError for an unknown family, TableError, StoreError.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no export format {form[:80]!r}", hint=f"there are {', '.join(FORMATS)}")
    find_family(family)
    _check_stored(store, device_slug)
    if form == "sqlite":
        return _snapshot(store, device_slug)
    tables = read_contents(store, device_slug, family)
    if form in ("json", "c"):
        tables = [with_predictors(store, table, family) for table in tables]
    return _WRITERS[form](tables, family)


def export_package(
    store: Store,
    device_slug: str | None,
    families: Sequence[str],
    folder: Path,
    *,
    also: Sequence[str] = (),
    force: bool = False,
) -> list[str]:
    """Write a folder of C99 code that looks up and runs the kernels of some families, of one device or of all.

    `also` lists slugs of devices without measurements; their answers come from their relatives and the default rule.
    Returns the names of files that were left alone because the user has changed them.
    Raises DeviceSelectionError; UsageError for a family without a library in C and, unless `force`, for files that no
    export has written; TableError; StoreError.
    """
    _check_stored(store, device_slug)
    tables = {}
    for family in families:
        there = [with_predictors(store, table, family) for table in read_contents(store, device_slug, family)]
        known = {table.device.slug for table in there}
        there += [DeviceTable(device=guess(slug), winners=()) for slug in dict.fromkeys(also) if slug not in known]
        tables[family] = sorted(there, key=lambda table: table.device.slug)
    return write_package(folder, package_files(tables), force=force)


def _check_stored(store: Store, device_slug: str | None) -> None:
    known = sorted({device.slug for device in store.devices()})
    if device_slug is not None and device_slug not in known:
        there = f"there are {', '.join(known)}" if known else "no device is stored yet: tune one with autotune run"
        raise DeviceSelectionError(f"nothing is stored for a device {device_slug[:80]!r}", hint=there)


def _snapshot(store: Store, device_slug: str | None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.sqlite"
        store.snapshot(path, device_slug)
        return path.read_bytes()
