"""Which drivers the OpenCL loader loads, and how to exclude some of them."""

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
"""Environment variable that names further libraries."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A library that the loader is configured to load."""

    source: str
    """The .icd file or the environment variable that names it."""
    library: str


def installed_drivers() -> list[Driver]:
    """Return the drivers that .icd files and the environment name; not the PoCL that pyopencl's wheel always loads."""
    path = _vendors()
    files = sorted(path.glob("*.icd")) if path.is_dir() else [path] if path.suffix == ".icd" else []
    drivers = [Driver(source=str(file), library=_library(file)) for file in files]
    named = [name for name in os.environ.get(_LIBRARIES, "").split(os.pathsep) if name]
    return drivers + [Driver(source=f"{_LIBRARIES} ({name})", library=name) for name in named]


def as_if_only(drivers: Sequence[Driver]) -> dict[str, str]:
    """Return an environment for a process that should load only these drivers."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-drivers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, driver in enumerate(drivers):
        (folder / f"{number:03}.icd").write_text(driver.library + "\n", encoding="utf-8")
    others = {name: value for name, value in os.environ.items() if name != _LIBRARIES}
    return others | dict.fromkeys(_FOLDERS, str(folder))


def keep_only(drivers: Sequence[Driver]) -> None:
    """Make this process, if it has not loaded OpenCL yet, and its children load only these drivers."""
    os.environ.update(as_if_only(drivers))
    os.environ.pop(_LIBRARIES, None)


def vendors_folder() -> str:
    """Describe for a message where the loader looks for drivers, and what it finds there."""
    named = next((name for name in _FOLDERS if os.environ.get(name)), "")
    path = _vendors()
    files = [_named(entry) for entry in sorted(path.glob("*.icd"))] if path.is_dir() else []
    source = f"which {named} names" if named else "or the folder that OCL_ICD_VENDORS names"
    return f"the .icd files of {path} (now {', '.join(files) or 'none'}), {source}"


def _named(file: Path) -> str:
    """Return the file's name, with what is wrong with it as far as that can be seen without loading a driver."""
    library = _library(file)
    if not library:
        return f"{file.name} (empty or unreadable)"
    is_missing = Path(library).is_absolute() and not Path(library).exists()
    return f"{file.name} (its library {library[:80]} is missing)" if is_missing else file.name


def _vendors() -> Path:
    return Path(next(filter(None, map(os.environ.get, _FOLDERS)), "/etc/OpenCL/vendors"))


def _library(file: Path) -> str:
    try:
        return next(iter(file.read_text(encoding="utf-8", errors="replace").split("\n")), "").strip()
    except OSError:
        return ""
