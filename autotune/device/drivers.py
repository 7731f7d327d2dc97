"""Which drivers the OpenCL loader reads, and how it is kept from some of them."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
"""Environment variables that name the folder of .icd files, or one such file."""
_LIBRARIES = "OCL_ICD_FILENAMES"
"""The environment variable that names further libraries."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A library that the loader is told to load."""

    source: str
    """The .icd file or the environment variable that names it."""
    library: str


def installed_drivers() -> list[Driver]:
    """The drivers that .icd files and the environment name; not the PoCL that pyopencl's wheel loads by itself."""
    path = _vendors()
    files = sorted(path.glob("*.icd")) if path.is_dir() else [path] if path.suffix == ".icd" else []
    drivers = [Driver(source=str(file), library=_library(file)) for file in files]
    named = [name for name in os.environ.get(_LIBRARIES, "").split(os.pathsep) if name]
    return drivers + [Driver(source=f"{_LIBRARIES} ({name})", library=name) for name in named]


def as_if_only(drivers: Sequence[Driver]) -> dict[str, str]:
    """An environment for a process that is to load these drivers only."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-drivers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, driver in enumerate(drivers):
        (folder / f"{number:03}.icd").write_text(driver.library + "\n", encoding="utf-8")
    others = {name: value for name, value in os.environ.items() if name != _LIBRARIES}
    return others | dict.fromkeys(_FOLDERS, str(folder))


def keep_only(drivers: Sequence[Driver]) -> None:
    """Have this process, where it has not loaded OpenCL yet, and its children load these drivers only."""
    os.environ.update(as_if_only(drivers))
    os.environ.pop(_LIBRARIES, None)


def vendors_folder() -> str:
    """Where the loader reads which drivers there are, and what it finds there, in words."""
    named = next((name for name in _FOLDERS if os.environ.get(name)), "")
    path = _vendors()
    files = sorted(entry.name for entry in path.glob("*.icd")) if path.is_dir() else []
    source = f"which {named} names" if named else "or the folder that OCL_ICD_VENDORS names"
    return f"the .icd files of {path} (now {', '.join(files) or 'none'}), {source}"


def _vendors() -> Path:
    return Path(next(filter(None, map(os.environ.get, _FOLDERS)), "/etc/OpenCL/vendors"))


def _library(file: Path) -> str:
    try:
        return next(iter(file.read_text(encoding="utf-8", errors="replace").split("\n")), "").strip()
    except OSError:
        return ""
