"""What an architecture is, as far as estimates of kernels depend on it, and how many work-groups fit on it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from autotune.codec import MAX_NUMBER, Bounds
from autotune.model.device import DeviceLimits

_POSITIVE = Bounds(1, MAX_NUMBER)
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
