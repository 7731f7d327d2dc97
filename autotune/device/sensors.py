"""Clock and temperature of a device, if the system reports them: files of Linux and Android, and NVIDIA's library.

The files are located once; a reading then takes a few microseconds per file, and never fails.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.device.families import FAMILIES
from autotune.model.device import Device

_MOST_FILES = 4
"""A processor may have hundreds of cores; a few of them are enough."""
_MOST_C = 150.0
"""No device works above it: such a sensor is not connected, or counts in another unit."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Values of a device's sensors; None where the system does not report them."""

    clock_mhz: float | None = None
    temperature_c: float | None = None


Source = Callable[[], float]
"""Reads one number; may raise any exception."""


class SystemFiles(Protocol):
    """The files by which Linux and Android show sensors: those of this machine, or of an agent's."""

    @property
    def is_here(self) -> bool:
        """Whether libraries of this machine know its devices."""
        ...

    def glob(self, pattern: str) -> Sequence[str]:
        """Return the paths that match a pattern that begins with ``/sys/``, in order. Some may not exist."""
        ...

    def read(self, path: str) -> str:
        """Return the text of a file. Raises OSError."""
        ...


class Folder:
    """The files of this machine."""

    is_here = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def glob(self, pattern: str) -> list[str]:
        return sorted(map(str, self._root.glob(pattern.removeprefix("/"))))

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8", errors="replace")


class Sensors:
    """The sensors of one device."""

    def __init__(self, clocks: Iterable[Source] = (), temperatures: Iterable[Source] = ()) -> None:
        self._clocks = list(clocks)
        self._temperatures = list(temperatures)

    def read(self) -> Reading:
        """Return the highest clock and the highest temperature."""
        return Reading(clock_mhz=_highest(self._clocks), temperature_c=_highest(self._temperatures, _MOST_C))


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Where Linux and Android show the sensors of a kind of device; the first file that can be read is used."""

    clocks: tuple[tuple[str, float], ...] = ()
    """Patterns below /sys, with the factor that makes megahertz of what the files hold."""
    temperatures: tuple[str, ...] = ()
    """Patterns of files that hold thousandths of a degree Celsius."""
    zones: tuple[str, ...] = ()
    """Beginnings of the types of thermal zones."""
    chips: tuple[str, ...] = ()
    """Names of hardware monitors."""


_PROCESSOR = _Files(
    zones=("x86_pkg_temp", "cpu", "soc", "bigcore", "littlecore", "tctl", "acpitz"),
    chips=("coretemp", "k10temp", "zenpower", "cpu_thermal"),
)
_DEVFREQ = tuple((f"class/devfreq/*{word}*/cur_freq", 1e-6) for word in ("gpu", "mali", "kgsl", "3d"))
_GPU = _Files(clocks=(*_DEVFREQ, ("class/drm/card[0-9]*/gt_act_freq_mhz", 1.0)), zones=("gpu", "mali", "kgsl"))
"""GPUs in boards and phones (Mali and others), and Intel's."""
_KGSL = "class/kgsl/kgsl-3d0"
_ADRENO = _Files(
    clocks=((f"{_KGSL}/gpuclk", 1e-6), (f"{_KGSL}/clock_mhz", 1.0), (f"{_KGSL}/devfreq/cur_freq", 1e-6), *_GPU.clocks),
    temperatures=(f"{_KGSL}/temp",),
    zones=_GPU.zones,
)
"""Qualcomm's driver (kgsl), else Mesa's, which Linux treats like any other device."""
_HWMON = "class/drm/card[0-9]*/device/hwmon/hwmon*"
_AMD = _Files(clocks=((f"{_HWMON}/freq1_input", 1e-6),), temperatures=(f"{_HWMON}/temp1_input",))
_OF_VENDORS = {FAMILIES["adreno"].vendor: _ADRENO, FAMILIES["amd"].vendor: _AMD}


def find_sensors(device: Device, pci_address: str = "", system: SystemFiles | None = None) -> Sensors:
    """Return the sensors of a device; `system` has the files of its machine, by default this one.

    `pci_address`, such as ``00000000:1b:00.0``, identifies one of several NVIDIA devices; empty if it is not known.
    """
    system = system or Folder()
    if device.limits.is_cpu:
        cores = system.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
        clocks = [_file(system, path, 1e-3) for path in cores[:_MOST_FILES]]
        return Sensors(clocks, _temperatures(system, _PROCESSOR))
    if device.vendor == FAMILIES["nvidia"].vendor and system.is_here:
        return Sensors(*_nvidia(pci_address))
    files = _OF_VENDORS.get(device.vendor, _GPU)
    clocks = [
        _file(system, path, factor) for pattern, factor in files.clocks for path in system.glob(f"/sys/{pattern}")
    ]
    return Sensors(_first_readable(clocks), _temperatures(system, files))


def _temperatures(system: SystemFiles, files: _Files) -> list[Source]:
    """Return a device's own temperature, else those of its thermal zones, else those of hardware monitors."""
    own = [path for pattern in files.temperatures for path in system.glob(f"/sys/{pattern}")]
    zones = [
        f"{folder}/temp"
        for folder in system.glob("/sys/class/thermal/thermal_zone*")
        if files.zones and _text(system, f"{folder}/type").lower().startswith(files.zones)
    ]
    folders = system.glob("/sys/class/hwmon/hwmon*")
    chips = [f"{folder}/temp1_input" for folder in folders if _text(system, f"{folder}/name").lower() in files.chips]
    readable = [
        [source for source in (_file(system, path, 1e-3) for path in paths) if _reads(source, _MOST_C)]
        for paths in (own, zones, chips)
    ]
    return next((found[:_MOST_FILES] for found in readable if found), [])


def _nvidia(pci_address: str) -> tuple[list[Source], list[Source]]:
    """Sensors of NVIDIA's management library; none if it or nvidia-ml-py is missing, or the device is unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = _nvml_handle(pynvml, pci_address)
    except Exception:  # noqa: BLE001 - a missing sensor is not an error
        return [], []
    if handle is None:
        return [], []
    clock: Source = lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))  # noqa: E731
    heat: Source = lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))  # noqa: E731
    return _first_readable([clock]), _first_readable([heat])


def _nvml_handle(pynvml: Any, pci_address: str) -> Any:
    """Return the device at an address; without an address, the only device, or None if there is not exactly one."""
    if pci_address:
        return pynvml.nvmlDeviceGetHandleByPciBusId(pci_address.encode())
    return pynvml.nvmlDeviceGetHandleByIndex(0) if pynvml.nvmlDeviceGetCount() == 1 else None


def _file(system: SystemFiles, path: str, factor: float) -> Source:
    return lambda: float(system.read(path).split()[0]) * factor


def _text(system: SystemFiles, path: str) -> str:
    try:
        return system.read(path).strip()
    except OSError:
        return ""


def _first_readable(sources: Iterable[Source]) -> list[Source]:
    return next(([source] for source in sources if _reads(source)), [])


def _reads(source: Source, most: float = math.inf) -> bool:
    return any(True for _ in _values([source], most))


def _highest(sources: Iterable[Source], most: float = math.inf) -> float | None:
    return max(_values(sources, most), default=None)


def _values(sources: Iterable[Source], most: float) -> Iterator[float]:
    """Yield the numbers below `most` that can be read, if positive: a sensor that is switched off reports 0 or less."""
    for source in sources:
        with contextlib.suppress(Exception):
            if 0 < (value := source()) < most:
                yield value
