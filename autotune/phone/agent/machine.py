"""What an agent tells of its machine: platforms and devices as pyopencl presents them, and files of the system."""

import fnmatch
from typing import Any

from autotune.device.description import FURTHER_QUERIES, Survey, survey
from autotune.errors import DeviceSelectionError
from autotune.phone.agent.connection import Connection, StartsAgents
from autotune.phone.agent.frames import CONSTANTS, MAX_TEXT, RefusedCommand, encode

_NO_HANDLE = CONSTANTS["NO_HANDLE"]
_MOST = 64
"""Platforms, and devices of each."""

_PLATFORM = {"name": 0x0902, "version": 0x0901}
_TEXTS = {
    "name": 0x102B, "vendor": 0x102C, "driver_version": 0x102D, "version": 0x102F, "extensions": 0x1030,
    "opencl_c_version": 0x103D,
}  # fmt: skip
_NUMBERS = {
    "type": 0x1000, "vendor_id": 0x1001, "max_compute_units": 0x1002, "max_mem_alloc_size": 0x1010,
    "image_support": 0x1016, "global_mem_size": 0x101F, "local_mem_type": 0x1022, "local_mem_size": 0x1023,
    "double_fp_config": 0x1032, "host_unified_memory": 0x1035, "native_vector_width_float": 0x103A,
    "max_num_sub_groups": 0x105C, "max_work_group_size": 0x1004, "image2d_max_width": 0x1011,
    "image2d_max_height": 0x1012, "profiling_timer_resolution": 0x1025,
}  # fmt: skip
_MAX_WORK_ITEM_SIZES = 0x1005
"""Queries by the names of pyopencl's attributes."""
QUERIES_OF_PLATFORMS = tuple(_PLATFORM.values())
QUERIES = (*_TEXTS.values(), *_NUMBERS.values(), _MAX_WORK_ITEM_SIZES, *FURTHER_QUERIES)
"""All queries by which a device is described."""


class AgentPlatform:
    """A platform with pyopencl's attributes as far as `description` needs them. Queries raise RefusedCommand."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection, self.number = connection, number

    def __getattr__(self, name: str) -> str:
        if name not in _PLATFORM:
            raise AttributeError(name)
        return _text(_query(self._connection, self.number, _NO_HANDLE, _PLATFORM[name]))

    def get_devices(self) -> list["AgentDevice"]:
        """Return the platform's devices. Raises RefusedCommand."""
        count = int.from_bytes(self._connection.ask(encode("DEVICES", "I", self.number), 4), "little")
        return [AgentDevice(self._connection, self, number) for number in range(min(count, _MOST))]


class AgentDevice:
    """A device with pyopencl's attributes as far as `description` needs them. Queries raise RefusedCommand."""

    def __init__(self, connection: Connection, platform: AgentPlatform, number: int) -> None:
        self._connection, self.platform, self.number = connection, platform, number

    def __getattr__(self, name: str) -> Any:
        if name in _TEXTS:
            return _text(self.query(_TEXTS[name]))
        if name in _NUMBERS:
            return int.from_bytes(self.query(_NUMBERS[name])[:8], "little")
        if name == "max_work_item_sizes":
            told, size = self.query(_MAX_WORK_ITEM_SIZES), self._connection.size_t_bytes
            return [int.from_bytes(told[at : at + size], "little") for at in range(0, min(len(told), 8 * size), size)]
        raise AttributeError(name)

    def query(self, code: int) -> bytes:
        """Return the bytes that the driver answers to a query. Raises RefusedCommand."""
        return _query(self._connection, self.platform.number, self.number, code)


def survey_behind(link: StartsAgents) -> Survey:
    """Describe every device behind a link. Raises DeviceSelectionError or DeviceLostError when its agent fails."""
    connection = Connection(link)
    machine = AgentMachine(connection)
    found = survey(machine.platforms(), machine, link.name)
    connection.check()  # single queries may fail, which would hide that the agent is gone
    return found


class AgentMachine:
    """The machine of an agent, as `description.Machine` and `sensors.SystemFiles`."""

    is_here = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.size_t_bytes = connection.size_t_bytes

    def platforms(self) -> list[AgentPlatform]:
        """Return the machine's platforms. Raises DeviceSelectionError when OpenCL cannot be loaded there."""
        try:
            count = int.from_bytes(self._connection.ask(encode("PLATFORMS"), 4), "little")
        except RefusedCommand as refusal:
            raise DeviceSelectionError(f"OpenCL cannot be used: {refusal}", hint=_NO_OPENCL) from refusal
        return [AgentPlatform(self._connection, number) for number in range(min(count, _MOST))]

    def cpuinfo(self) -> str:
        """Return the text of the machine's /proc/cpuinfo; empty if it has none."""
        try:
            return self.read("/proc/cpuinfo")
        except OSError:
            return ""

    def query(self, raw: Any, code: int) -> bytes:
        """Return the bytes that a device's driver answers to a query. Raises RefusedCommand."""
        answer: bytes = raw.query(code)
        return answer

    def read(self, path: str) -> str:
        """Return the text of a file below /sys. Raises OSError."""
        try:
            told = self._connection.ask(encode("READ_FILE", tail=path.encode()), CONSTANTS["MAX_FILE_BYTES"])
        except RefusedCommand as refusal:
            raise OSError(f"{path}: {refusal}") from refusal
        return told.decode("utf-8", "replace")

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern, in order; those without a wildcard at their end may not exist."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            has_wildcard = any(sign in part for sign in "*?[")
            found = [
                f"{folder}/{name}"
                for folder in found
                for name in (self._names(folder, part) if has_wildcard else [part])
            ]
        return found

    def _names(self, folder: str, pattern: str) -> list[str]:
        try:
            told = self._connection.ask(encode("LIST_FOLDER", tail=folder.encode()), MAX_TEXT)
        except RefusedCommand:
            return []
        names = told.decode("utf-8", "replace").split("\0")
        return sorted(name for name in names if name not in ("", ".", "..") and fnmatch.fnmatchcase(name, pattern))


def _query(connection: Connection, platform: int, device: int, code: int) -> bytes:
    return connection.ask(encode("INFO", "III", platform, device, code), MAX_TEXT)


def _text(told: bytes) -> str:
    return told.rstrip(b"\0").decode("utf-8")


_NO_OPENCL = "set AUTOTUNE_OPENCL to the path of its OpenCL library where the agent starts"
