"""Clock and temperature of a device, if the system reports them: files of Linux and Android, and NVIDIA's library.

The files are located once; a reading then takes a few microseconds per file, and never fails.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.device.families import FAMILIES
from autotune.model.device import Device

_MOST_CPU_FILES = 4
"""A processor may have hundreds of cores; a few of them are enough."""

_CPU_ZONES = ("x86_pkg_temp", "cpu", "soc", "bigcore", "littlecore", "tctl", "acpitz")
_GPU_ZONES = ("gpu", "mali", "kgsl")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Values of a device's sensors; None where the system does not report them."""

    clock_mhz: float | None = None
    temperature_c: float | None = None


Source = Callable[[], float]
"""Reads one number; may raise any exception."""


class Sensors:
    """The sensors of one device."""

    def __init__(self, clocks: Iterable[Source] = (), temperatures: Iterable[Source] = ()) -> None:
        self._clocks = list(clocks)
        self._temperatures = list(temperatures)

    def read(self) -> Reading:
        """Return the highest clock and the highest temperature."""
        return Reading(clock_mhz=_highest(self._clocks), temperature_c=_highest(self._temperatures))


def find_sensors(device: Device, pci_address: str = "", root: Path = Path("/")) -> Sensors:
    """Return the sensors of a device; `root` is the root of the file system.

    `pci_address`, such as ``00000000:1b:00.0``, tells several NVIDIA devices apart; empty if it is not known.
    """
    if device.limits.is_cpu:
        return Sensors(*_processor(root))
    if device.vendor == FAMILIES["nvidia"].vendor:
        return Sensors(*_nvidia(pci_address))
    find = {FAMILIES["adreno"].vendor: _adreno, FAMILIES["amd"].vendor: _amd}.get(device.vendor, _device_tree_gpu)
    return Sensors(*find(root))


_Found = tuple[list[Source], list[Source]]


def _processor(root: Path) -> _Found:
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = [_file(path, 1e-3) for path in sorted(files)[:_MOST_CPU_FILES]]
    return clocks, _zones(root, _CPU_ZONES) or _chips(root, _CPU_CHIPS)


def _adreno(root: Path) -> _Found:
    """Sensors of Qualcomm's driver (kgsl), else of Mesa's, which Linux treats like any other device."""
    folder = root / "sys/class/kgsl/kgsl-3d0"
    clocks = _first_readable(
        [
            _file(folder / "gpuclk", 1e-6),
            _file(folder / "clock_mhz", 1.0),
            _file(folder / "devfreq/cur_freq", 1e-6),
        ]
    )
    temperatures = _first_readable([_file(folder / "temp", 1e-3)])
    others = _device_tree_gpu(root)
    return clocks or others[0], temperatures or others[1]


def _amd(root: Path) -> _Found:
    folders = sorted(root.glob("sys/class/drm/card[0-9]*/device/hwmon/hwmon*"))
    clocks = [_file(folder / "freq1_input", 1e-6) for folder in folders]
    temperatures = [_file(folder / "temp1_input", 1e-3) for folder in folders]
    return _first_readable(clocks), _first_readable(temperatures)


def _device_tree_gpu(root: Path) -> _Found:
    """Sensors of GPUs in boards and phones (Mali and others) by devfreq, of Intel's by its own file."""
    clocks = [
        _file(path / "cur_freq", 1e-6)
        for path in sorted(root.glob("sys/class/devfreq/*"))
        if any(word in path.name.lower() for word in ("gpu", "mali", "kgsl", "3d"))
    ]
    clocks += [_file(path, 1.0) for path in sorted(root.glob("sys/class/drm/card[0-9]*/gt_act_freq_mhz"))]
    return _first_readable(clocks), _zones(root, _GPU_ZONES)


def _zones(root: Path, words: tuple[str, ...]) -> list[Source]:
    """Return the readable thermal zones whose type begins with one of the words."""
    found = []
    for folder in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        if _text(folder / "type").lower().startswith(words):
            found.append(_file(folder / "temp", 1e-3))
    return [source for source in found if _reads(source)][:_MOST_CPU_FILES]


def _chips(root: Path, names: tuple[str, ...]) -> list[Source]:
    """Return the temperatures of hardware monitors with these names."""
    folders = [f for f in sorted(root.glob("sys/class/hwmon/hwmon*")) if _text(f / "name").lower() in names]
    return [source for folder in folders if _reads(source := _file(folder / "temp1_input", 1e-3))]


def _nvidia(pci_address: str) -> _Found:
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


def _file(path: Path, factor: float) -> Source:
    return lambda: float(path.read_text(encoding="ascii", errors="replace").split()[0]) * factor


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _first_readable(sources: Iterable[Source]) -> list[Source]:
    return next(([source] for source in sources if _reads(source)), [])


def _reads(source: Source) -> bool:
    return any(True for _ in _values([source]))


def _highest(sources: Iterable[Source]) -> float | None:
    return max(_values(sources), default=None)


def _values(sources: Iterable[Source]) -> Iterator[float]:
    """Yield the numbers that can be read, if positive: a sensor that is switched off reports 0 or less."""
    for source in sources:
        with contextlib.suppress(Exception):
            if (value := source()) > 0:
                yield value
