"""What a device was measured to do at most, and which of it limits a problem."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from autotune.codec import COUNT, Bounds
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem

_RATE = Annotated[float, Bounds(0, 1e9)]


class Bound(NamedTuple):
    """The least time of a call on a device, and what sets it."""

    name: str
    """memory or arithmetic."""
    time_ns: float


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Highest rates of a device, 0 where one was not measured: GB/s by path, and operations in a nanosecond by type."""

    buffer: _RATE = 0.0
    image: _RATE = 0.0
    constant: _RATE = 0.0
    local: _RATE = 0.0
    float32: _RATE = 0.0
    float16: _RATE = 0.0
    int8: _RATE = 0.0
    """Of dot products of four pairs by the device's instruction for them."""
    launch_ns: _RATE = 0.0
    """Of each of many launches in a row."""
    registers: Annotated[int, COUNT] = 0
    """Floats that a work-item can keep before its work takes a half longer; 0 if it never did."""
    lanes: Annotated[int, COUNT] = 0
    """Work-items that run in step; 0 if that did not show."""

    def bounds(self, problem: Problem, limits: DeviceLimits) -> list[Bound]:
        """Return what limits a problem, the most limiting first; nothing of what was not measured.

        Memory counts each operand once, from buffers or images, whichever is faster. A problem whose operands stay in
        a cache may be faster, and launches take additional time.
        """
        memory, arithmetic = max(self.buffer, self.image), self._arithmetic(problem, limits)
        found = [
            Bound("memory", problem.bytes_moved / memory if memory else 0.0),
            Bound("arithmetic", problem.flops / arithmetic if arithmetic else 0.0),
        ]
        return sorted((one for one in found if one.time_ns), key=lambda one: -one.time_ns)

    def _arithmetic(self, problem: Problem, limits: DeviceLimits) -> float:
        """Return the rate for the types of a problem; 0 where matrix units may exceed what was measured."""
        named = (getattr(problem, name, "") for name in ("mode", "dtype", "weights"))
        types = {one for one in named if isinstance(one, str)}
        if limits.has_matrix_units and types - {"float32", ""}:
            return 0.0
        if "int8" in types:
            return max(self.int8, self.float32)
        return max(self.float16, self.float32) if any(one.startswith("float16") for one in types) else self.float32


def fingerprint(device: Device) -> str:
    """Return SHA-256 of slug, driver and version: measurements hold for these."""
    import hashlib  # lookups may never need it
    import json

    return hashlib.sha256(json.dumps([device.slug, device.driver, device.version]).encode()).hexdigest()
