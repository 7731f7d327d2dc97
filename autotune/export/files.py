"""Writes exported files: all or none, and without overwriting files that no export has written."""

import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import TableError, UsageError
from autotune.export.formats import FORMATS, MARK, TRIAL_FORMATS

EXAMPLE = "main.c"
"""The file of a package that users are meant to change: their changes are never overwritten."""

_FORCE = "--force overwrites them"

_BEGINNINGS = (form.beginning for form in (*FORMATS.values(), *TRIAL_FORMATS.values()))
_OURS = re.compile(b"|".join([rb"<svg [^>]*>\n" + MARK.encode(), *_BEGINNINGS]))
_MARK = "/* Written by autotune ({}). Once changed, it is not overwritten without --force. */\n"
_MARKED = re.compile(rb"/\* Written by autotune \(([0-9a-f]{12})\)[^\n]*\n")


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
