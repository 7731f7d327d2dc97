"""What an architecture is, as far as estimates of kernels depend on it, and the rates measured on a device."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from autotune.codec import COUNT, MAX_NUMBER, Bounds
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem

_POSITIVE = Bounds(1, MAX_NUMBER)
_RATE = Annotated[float, Bounds(0, 1e9)]
_REGISTERS_BESIDES = 40
"""Registers that a work-item needs for addresses and counters."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An architecture; `device/machines/*.toml` state the numbers of each, with their sources.

    The resources are those of a large GPU where nothing else is stated: few of those differ much.
    """

    is_sparse: ClassVar[bool] = True
    lanes: int = 0
    """Work-items that run in step, at least; 0: as many as the widest sub-group that the driver reports."""
    multiply_adds: Annotated[int, _POSITIVE] = 128
    """Multiply-adds of float32 that a compute unit begins in a clock."""
    memory_bytes: int = 0
    """Bytes that the device reads from memory in a clock of its compute units; 0 if not known."""
    work_items: Annotated[int, _POSITIVE] = 2048
    """Work-items that a compute unit holds at once."""
    registers: Annotated[int, _POSITIVE] = 65536
    """32-bit registers of a compute unit, which these share."""
    register_step: Annotated[int, _POSITIVE] = 1
    """A work-item gets a multiple of so many registers."""
    registers_most: int = 255
    """Registers that a work-item can have; a kernel that needs more spills."""
    local_memories: Annotated[int, _POSITIVE] = 1
    """Work-groups with all the local memory that one may have for which a compute unit has room."""
    outputs_least: int = 0
    """Outputs of a work-item of GEMM where the product is small; 0 if no measurements say how many it should have."""
    outputs_most: int = 0
    """The same where the product is large."""
    work_items_wanted: int = 1
    """A product between these has outputs for so many work-items on each compute unit."""
    image_element_bytes: int = 0
    """Bytes of the smallest element that is read faster from images than from buffers; 0 if none is."""
    image_outputs_least: Annotated[int, _POSITIVE] = 1
    """Outputs of a product from which an image of B pays."""
    work_group: int = 0
    """Work-items of a work-group of GEMM where the profile leaves it to the driver; 0 if that is as good."""

    @property
    def is_small(self) -> bool:
        """Whether its registers leave room for work-groups of few work-items only."""
        return self.registers < 16384

    @property
    def is_narrow(self) -> bool:
        """Whether a work-item has at most 64 registers, as on a Mali phone."""
        return self.outputs_most > 0 and self.registers_most <= 64

    def holds(self, registers: int) -> int:
        """Return how many work-items with so many registers each a compute unit holds, as a power of two."""
        return 1 << max(1, self.registers // registers).bit_length() - 1


UNKNOWN = Machine()
"""The machine of a device of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """Resources that one work-group holds, from which follows how many a compute unit runs at once (occupancy)."""

    items: int
    outputs: int
    """Outputs of a work-item."""
    operands: int
    """Operands of a work-item; it holds twice as many, to load the next ones while it uses these."""
    carried: int = 0
    """What else a work-item holds."""
    local_bytes: int = 0

    def at_once(self, limits: DeviceLimits, machine: Machine) -> int:
        """Return how many such work-groups a compute unit runs at once, at least 1."""
        own = self.outputs + 2 * self.operands + self.carried
        needed = min(machine.registers_most, own + _REGISTERS_BESIDES)
        registers = -(-needed // machine.register_step) * machine.register_step
        local_bytes = limits.local_memory_bytes * machine.local_memories
        by_local_memory = local_bytes // self.local_bytes if self.local_bytes else machine.work_items
        by_registers = machine.registers // (self.items * registers)
        return max(1, min(machine.work_items // self.items, by_registers, by_local_memory))


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
