"""Export formats, for the command line, the service and the page; and writing files of which none is lost."""

import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from autotune.errors import TableError, UsageError
from autotune.plugins import PARTS

if TYPE_CHECKING:
    from autotune.export.contents import DeviceTable

MARK = "<!-- Written by autotune. -->"
"""Follows the first tag of every picture and page that may be written again."""
EXAMPLE = "main.c"
"""The file of a package that users are meant to change: their changes are never overwritten."""

_FORCE = "--force overwrites them"

_MARK = "/* Written by autotune ({}). Once changed, it is not overwritten without --force. */\n"
_MARKED = re.compile(rb"/\* Written by autotune \(([0-9a-f]{12})\)[^\n]*\n")


@dataclass(frozen=True, kw_only=True)
class Format:
    """An export format, and everything elsewhere that depends on it."""

    name: str
    """As ``--format`` and the service take it."""
    title: str
    """On the button of the page."""
    meaning: str
    """For the help of the command."""
    ending: str
    media_type: str
    beginning: bytes
    """Regular expression for how its files begin: the command overwrites no others."""
    writer: str = ""
    """``module:function`` that returns the text for device tables and a family; a copy of the database has none."""
    families: Literal["joined", "appended", "single"] = "joined"
    """Whether several families become one table, one table after the other, or cannot be written."""
    has_shipped: bool = False
    """Whether it holds what a lookup answers from: beneath the results of a database, the tables that ship as well."""
    has_trials: bool = False
    """Whether it lists how the trials of a device ended."""
    has_files: bool = False
    """Whether its text holds files by name, which the command writes into a folder."""
    has_rule: bool = False
    """Whether it holds the rule for defaults, so that a device without measurements has a table too."""
    has_folder: bool = False
    """Whether the command can write a folder of sources instead, see `export_package`."""
    is_for_sources: bool = False
    """Whether it is for kernels whose sources the user has: those of the families with a planner in C are rendered."""

    def takes(self, family: str) -> bool:
        """Return whether it can hold a family. Raises ProblemError for an unknown one."""
        from autotune.kernels import find_family

        return not self.is_for_sources or find_family(family).c_export is None

    def text(self, tables: "Sequence[DeviceTable]", family: str) -> str:
        module, _, function = self.writer.partition(":")
        write = cast("Callable[[Sequence[DeviceTable], str], str]", getattr(import_module(module), function))
        return write(tables, family)


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="json", title="JSON", meaning="everything that is known, for programs and autotune import",
            ending="json", media_type="application/json", beginning=rb'\s*\{\s*"format": "autotune',
            writer="autotune.export.text_tables:write_json",
        ),
        Format(
            name="csv", title="CSV", meaning="one family for spreadsheets",
            ending="csv", media_type="text/csv; charset=utf-8", beginning=rb"device,family,",
            writer="autotune.export.text_tables:write_csv", families="single",
        ),
        Format(
            name="markdown", title="Markdown", meaning="for people",
            ending="md", media_type="text/markdown; charset=utf-8",
            beginning=rb"## [^\n]*\n\n[^\n]*[Ff]amily `|Nothing is stored yet\.",
            writer="autotune.export.text_tables:write_markdown", families="appended",
        ),
        Format(
            name="c", title="C header", meaning="a C99 header for applications",
            ending="h", media_type="text/x-c; charset=utf-8", beginning=rb"/\* [^\n]*[Ww]ritten by autotune",
            writer="autotune.export.c_package:write_c", families="appended",
            has_shipped=True, has_rule=True, has_folder=True,
        ),
        Format(
            name="defines", title="Compiler options", meaning="options such as -DTILE=16, for kernels of your own",
            ending="txt", media_type="text/plain; charset=utf-8", beginning=rb"# Written by autotune",
            writer="autotune.export.choices:write_defines", families="appended", has_shipped=True,
            is_for_sources=True,
        ),
        Format(
            name="files", title="JSON by size", meaning="JSON files by sizes: one for each family, device and types",
            ending="json", media_type="application/json", beginning=rb'\s*\{\s*"format": "autotune',
            writer="autotune.export.text_tables:write_files", has_shipped=True, has_files=True,
        ),
        Format(
            name="toml", title="TOML", meaning="the same in one file",
            ending="toml", media_type="application/toml", beginning=rb"# Written by autotune",
            writer="autotune.export.text_tables:write_toml", has_shipped=True,
        ),
        Format(
            name="sqlite", title="SQLite", meaning="the database with all trials",
            ending="sqlite", media_type="application/vnd.sqlite3",
            beginning=rb"SQLite format 3\0",  # the store checks its contents
        ),
        Format(
            name="html", title="HTML report", meaning="a page with pictures, as autotune report writes it",
            ending="html", media_type="text/html; charset=utf-8", beginning=rb"<!doctype html>\n" + MARK.encode(),
            writer=PARTS["write_report"], has_trials=True,
        ),
    )
}  # fmt: skip

TRIAL_FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="t4", title="T4", meaning="the trials of one shape, as other tuners write their results",
            ending="json", media_type="application/json", beginning=rb'\{"tool": "autotune',
        ),
        Format(
            name="kernel-tuner", title="Kernel Tuner", meaning="the same as a cache that Kernel Tuner replays",
            ending="json", media_type="application/json", beginning=rb'\{"tool": "autotune',
        ),
    )
}  # fmt: skip
"""What the command writes of the trials of one problem, which `own` writes."""

_BEGINNINGS = (form.beginning for form in (*FORMATS.values(), *TRIAL_FORMATS.values()))
_OURS = re.compile(b"|".join([rb"<svg [^>]*>\n" + MARK.encode(), *_BEGINNINGS]))


def check_replaceable(path: Path) -> None:
    """Raise UsageError for an existing file that no export has written."""
    if not path.is_file():
        return
    with contextlib.suppress(OSError), path.open("rb") as file:
        beginning = file.read(1000)
        if beginning and not _OURS.match(beginning):
            raise UsageError(f"{path} already exists and is not a table of autotune", hint="--force overwrites it")


def write_package(folder: Path, files: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write all files of a package or none; return the names of those left alone because the user has changed them.

    Raises UsageError, unless `force`, when a file would be lost that no export has written or that was changed since;
    TableError when the folder cannot be written.
    """
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = _check_files(folder, files, force=force)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".autotune-") as name:
            draft = Path(name)
            for file, text in files.items():
                marked = _MARK.format(_hash(text.encode("ascii"))) + text
                (draft / file).write_text(marked, encoding="ascii", newline="\n")
            for file in files:
                if file not in kept:
                    (draft / file).replace(folder / file)
    except OSError as error:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise TableError(f"{folder} cannot be written: {error.strerror}") from error
    return kept


def _check_files(folder: Path, files: Mapping[str, str], *, force: bool) -> list[str]:
    """Return the names of the files to leave alone. Raises UsageError."""
    foreign, changed = [], []
    for name in files:
        path = folder / name
        if path.is_dir():
            raise UsageError(f"{path} is a folder", hint="name another folder")
        if path.exists():
            data = path.read_bytes()
            mark = _MARKED.match(data)
            if not mark:
                foreign.append(name)
            elif _hash(data[mark.end() :]) != mark[1].decode():
                changed.append(name)
    kept = [name for name in (*foreign, *changed) if name == EXAMPLE]
    if not force and foreign:
        raise UsageError(f"{folder} has files that autotune did not write: {', '.join(foreign)}", hint=_FORCE)
    if not force and set(changed) - {EXAMPLE}:
        raise UsageError(f"{folder} has files that were changed since their export: {', '.join(changed)}", hint=_FORCE)
    return kept


def _hash(data: bytes) -> str:
    # Version control may have changed the line endings.
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:12]
