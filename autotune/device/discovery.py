"""Find the OpenCL devices of this machine, and the one that a selector names.

A driver may hang or abort as soon as it is loaded, so drivers are queried in a child process. If that child hangs or
dies, each driver is tried in a child process of its own, so that the working drivers can still be used.
"""

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import child
from autotune.device.description import Survey, survey
from autotune.device.families import FAMILIES, POCL_HINT
from autotune.device.identity import is_imitation, processor_of
from autotune.device.link import find_link, split
from autotune.errors import DeviceSelectionError, NoSuchDeviceError, WorkerError, did_you_mean
from autotune.model.device import Device

_LOG = logging.getLogger(__name__)

DISCOVERER = (sys.executable, "-m", "autotune.device.discovery")
"""Command that starts a child process, which queries the drivers."""
LOAD_LIMIT_S = 300.0
"""Time limit for loading Python's libraries, which takes a minute on an emulated processor."""
LIMIT_S = 20.0
"""Time limit for all drivers together. If it is exceeded, each driver is tried alone, for up to PATIENT_LIMIT_S."""
PATIENT_LIMIT_S = 60.0
"""The drivers of eight otherwise idle GPUs may need half of it."""
_LOADING, _ASKING = "loading Python's libraries", "asking the drivers"


def find_devices(selectors: Sequence[str]) -> list[Device]:
    """Return the device that each selector names, on this machine or behind a link; without any, all of this machine.

    ``LINK#WANTED`` is what `select` finds for WANTED behind the link. If WANTED is missing, it is the only device there
    that is not a CPU, or else the CPU. Raises DeviceSelectionError.
    """
    wanted = [split(selector) or ("", selector) for selector in selectors]
    found = {link: discover_behind(link) if link else discover() for link in dict.fromkeys(link for link, _ in wanted)}
    return [
        _select_behind(part, found[link]) if link else select(part, found[""]) for link, part in wanted
    ] or discover()


def find_device(selector: str) -> Device:
    """Return the one device that a selector names, as `find_devices` does. Raises DeviceSelectionError."""
    return find_devices([selector])[0]


def _select_behind(wanted: str, devices: Sequence[Device]) -> Device:
    local = [replace(device, selector=device.selector.rpartition("#")[2]) for device in devices]
    chosen = select(wanted or ("cpu" if all(d.family == "cpu" for d in local) else "gpu"), local)
    return devices[local.index(chosen)]


def discover_behind(link: str) -> list[Device]:
    """Return the devices behind a link, asked in a child process. Raises DeviceSelectionError."""
    answer = _ask_child(os.environ, PATIENT_LIMIT_S, link)
    if isinstance(answer, str):
        raise DeviceSelectionError(f"no device can be used through {link}: {answer}")
    if not answer.devices:
        reasons = f": {'; '.join(answer.troubles)}" if answer.troubles else ""
        raise DeviceSelectionError(f"there is no OpenCL device behind {link}{reasons}")
    return list(answer.devices)


def discover() -> list[Device]:
    """Return every OpenCL device that answers, in the order of platforms and devices, queried in a child process.

    If a driver hangs or crashes, this process and its children continue without it, and a warning names it. Raises
    DeviceSelectionError when OpenCL cannot be loaded or has no device.
    """
    answer = _ask_child(os.environ, LIMIT_S)
    if isinstance(answer, str) and answer.startswith(_LOADING):
        hint = SHORT_OF_MEMORY if child.KILLED in answer else _INCOMPLETE
        raise DeviceSelectionError(f"OpenCL cannot be used: {answer}", hint=hint)
    return _devices_of(answer if isinstance(answer, Survey) else _without_the_culprit(answer))


def discover_here(platforms: Iterable[Any] | None = None) -> list[Device]:
    """Return the same devices as `discover`, queried in this process, for a process that will use a device itself.

    `platforms` are pyopencl's, all by default. Raises DeviceSelectionError when there is no device.
    """
    return _devices_of(survey(platforms))


def serve() -> None:
    """Run the child process: query the drivers once per message until the input ends."""

    def ask(link: str, entering: Callable[[str], None]) -> Survey:
        entering(_LOADING)
        import numpy  # noqa: F401 - pyopencl loads it; imported here, since its time is not the drivers'

        entering(_ASKING)
        return find_link(link).survey() if link else survey()

    child.serve(ask)


def _ask_child(environment: Mapping[str, str], limit_s: float, link: str = "") -> Survey | str:
    """Return what the drivers answer, or how the child failed."""
    with child.Child(DISCOVERER, environment) as discoverer:
        try:
            answer = discoverer.ask(link, {_LOADING: LOAD_LIMIT_S, _ASKING: limit_s})
        except WorkerError as error:
            return error.message
    return answer if isinstance(answer, Survey) else answer.message


def _devices_of(found: Survey) -> list[Device]:
    if not found.devices:
        reasons = f": {'; '.join(found.troubles)}" if found.troubles else ""
        hint = (
            f"drivers are looked for in {vendors_folder()}; {POCL_HINT}; "
            "on Android set LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib in Termux"
        )
        raise DeviceSelectionError(f"there is no OpenCL device{reasons}", hint=hint)
    for trouble in found.troubles:
        _LOG.warning("left out %s", trouble)
    return list(found.devices)


def _without_the_culprit(loss: str) -> Survey:
    """Try each driver alone, then return what the working ones answer. Raises DeviceSelectionError if that fails."""
    _LOG.warning("OpenCL failed (%s); each driver is tried alone", loss)
    drivers = installed_drivers()
    attempts = [as_if_only(few) for few in ([], *([library] for library in drivers.values()))]
    with ThreadPoolExecutor(4) as pool:
        without_any, *alone = pool.map(lambda environment: _ask_child(environment, PATIENT_LIMIT_S), attempts)
    if isinstance(without_any, str):
        raise DeviceSelectionError(f"OpenCL fails without any .icd file: {without_any}", hint=_BROKEN)
    for source, answer in zip(list(drivers), alone, strict=True):
        if isinstance(answer, str):
            _LOG.warning("left out the driver that %s names: %s (repair or remove it)", source, answer)
            del drivers[source]
    os.environ.update(as_if_only(drivers.values()))  # for this process, if it has not loaded OpenCL yet, and children
    os.environ.pop(_LIBRARIES, None)
    answer = _ask_child(os.environ, PATIENT_LIMIT_S)
    if isinstance(answer, str):
        raise DeviceSelectionError(f"OpenCL fails with the drivers that work alone: {answer}", hint=_TOGETHER)
    return answer


SHORT_OF_MEMORY = "something else ended the process, as the system does when memory runs out: free some and try again"
"""Hint for a process that SIGKILL ended."""
_INCOMPLETE = "the installation of autotune is incomplete or damaged: install it again, with numpy and pyopencl"
_BROKEN = "the fault is in the PoCL that comes with pyopencl, or in the OpenCL library: reinstall pyopencl"
_TOGETHER = "name a folder with the .icd file of one driver in OCL_ICD_VENDORS"


def select(selector: str, devices: Sequence[Device]) -> Device:
    """Return the one device that a selector names.

    The selector is compared with these in order, and the first that matches any device decides: `platform:device`
    numbers, slug, family (`gpu`: all but processors), whole name, the beginning of a slug, part of it or of a raw
    string. Case does not matter. ``@3.1`` after any of them requires a driver whose version begins with 3.1. If all
    matches are OpenCL runtimes of one processor, `preference` decides. Raises NoSuchDeviceError when no device matches,
    DeviceSelectionError when several do.
    """
    wanted, _, version = selector.strip().lower().partition("@")
    matches = _matches(wanted, devices) if wanted else []
    matches = [device for device in matches if device.driver.lower().startswith(version)]
    processors = {processor_of(device.slug) if device.family == "cpu" else "" for device in matches}
    if len(matches) > 1 and len(processors) == 1 and processors != {""}:  # several runtimes of one processor
        chosen = max(matches, key=preference)
        others = ", ".join(f"{_exact(device)} ({device.selector})" for device in matches if device is not chosen)
        _LOG.warning("%s (%s) is used for the processor; also available: %s", _exact(chosen), chosen.selector, others)
        return chosen
    if len(matches) == 1:
        return matches[0]
    shown = repr(_shortened(selector))
    if matches:
        raise DeviceSelectionError(
            f"{len(matches)} devices fit {shown}:{_listing(matches)}\n  one must be named", hint=_CHOOSE
        )
    there_is = f"OpenCL shows:{_listing(devices)}\n  none of them fits" if devices else "OpenCL shows no device"
    mend = _mend(wanted)
    guess = did_you_mean(wanted, [*(device.slug for device in devices), *FAMILIES]) if mend == _CHOOSE else ""
    raise NoSuchDeviceError(f"no device fits {shown}; {there_is}", hint=guess or mend)


# Choosing

_TEXTS = ("slug", "vendor", "model", "name", "platform", "version", "opencl_c_version", "driver")
"""Fields of a device in which part of a text is looked for."""


def _matches(wanted: str, devices: Sequence[Device]) -> list[Device]:
    if re.fullmatch(r"\d+:\d+", wanted):
        return [device for device in devices if device.selector == wanted]
    tests: tuple[Callable[[Device], bool], ...] = (
        lambda device: device.slug == wanted,
        lambda device: device.family != "cpu" if wanted == "gpu" else device.family == wanted,
        lambda device: device.name.lower() == wanted,
        lambda device: device.slug.startswith(f"{wanted}-"),  # intel: Intel's runtime, not PoCL on its processor
        lambda device: any(wanted in str(getattr(device, name)).lower() for name in _TEXTS),
    )
    for test in tests:
        fitting = [device for device in devices if test(device)]
        if fitting:
            return fitting
    return []


def preference(device: Device) -> tuple[bool, bool, tuple[int, ...]]:
    """Sort key: runtimes made for processors first; then PoCL, which most tables are for; then the newest version."""
    return (
        not is_imitation(device.slug),
        device.slug.startswith("pocl-"),
        tuple(map(int, re.findall(r"\d+", device.driver))),
    )


def _exact(device: Device) -> str:
    return f"{device.slug}@{device.driver.split(' ')[0]}" if device.driver else device.slug


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _listing(devices: Sequence[Device]) -> str:
    width = max((len(device.slug) for device in devices), default=0)
    return "".join(
        f"\n  {device.selector}  {device.slug:{width}}  {_shortened(device.name)} on {_shortened(device.platform)}"
        for device in devices
    )


_CHOOSE = (
    "choose by slug, family, platform:device numbers or part of a name, as `autotune devices` lists them; "
    "add @ and a driver's version to distinguish devices with the same slug"
)


def _mend(wanted: str) -> str:
    """Return a hint for a device that was not found: where its driver is looked for, else how to choose a device."""
    family = FAMILIES["cpu"] if "pocl" in wanted else next((f for f in FAMILIES.values() if f.name in wanted), None)
    if family is None or family.name == "cpu":
        return family.install if family else _CHOOSE
    places = [f"{path} ({'there' if Path(path).exists() else 'not there'})" for path in family.driver_files]
    return f"its driver is looked for in {', '.join([*places, vendors_folder()])}; {family.install}"


# The drivers that the OpenCL loader loads, and how to exclude some of them

_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
"""Environment variables that name the folder of .icd files, or one such file."""
_LIBRARIES = "OCL_ICD_FILENAMES"
"""Environment variable that names further libraries."""


def installed_drivers() -> dict[str, str]:
    """Return the libraries that the loader is configured to load, by the .icd file or variable that names each.

    The PoCL that pyopencl's wheel always loads is not among them.
    """
    path = _vendors()
    files = sorted(path.glob("*.icd")) if path.is_dir() else [path] if path.suffix == ".icd" else []
    named = filter(None, os.environ.get(_LIBRARIES, "").split(os.pathsep))
    return {str(file): _library(file) for file in files} | {f"{_LIBRARIES} ({name})": name for name in named}


def as_if_only(libraries: Iterable[str]) -> dict[str, str]:
    """Return an environment for a process that should load only these drivers."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-drivers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, library in enumerate(libraries):
        (folder / f"{number:03}.icd").write_text(library + "\n", encoding="utf-8")
    others = {name: value for name, value in os.environ.items() if name != _LIBRARIES}
    return others | dict.fromkeys(_FOLDERS, str(folder))


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


if __name__ == "__main__":
    serve()
