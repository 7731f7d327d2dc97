"""Occupancy: how many work-groups a compute unit runs at once, estimated from the resources that each one holds.

The rule for untuned configurations and the features of the predictors use it. A compute unit is assumed to have the
resources of one of a large GPU; few large GPUs differ much.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.model.device import DeviceLimits

_ITEMS = 2048
_REGISTERS = 65536
_MOST_REGISTERS = 255
"""Registers of a work-item beyond which a compiler spills."""
_REGISTERS_BESIDES = 40
"""Registers that a work-item needs for addresses and counters."""
_LOCAL_MEMORIES = 4
"""How many work-groups, each with all the local memory that one may have, fit on an NVIDIA compute unit."""


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """Resources that one work-group holds."""

    items: int
    outputs: int
    """Outputs of a work-item."""
    operands: int
    """Operands of a work-item; it holds twice as many, to load the next ones while it uses these."""
    local_bytes: int = 0

    def at_once(self, limits: DeviceLimits) -> int:
        """Return how many such work-groups a compute unit runs at once, at least 1."""
        registers = min(_MOST_REGISTERS, self.outputs + 2 * self.operands + _REGISTERS_BESIDES)
        local_bytes = limits.local_memory_bytes * (_LOCAL_MEMORIES if limits.ordering == "ptx" else 1)
        by_local_memory = local_bytes // self.local_bytes if self.local_bytes else _ITEMS
        return max(1, min(_ITEMS // self.items, _REGISTERS // (self.items * registers), by_local_memory))


def tile_bytes(number: Callable[[str], int]) -> int:
    """Return the bytes of local memory that a `local_tile` with these parameters needs for float32 tiles of A and B."""
    rows = number("work_group_m") * number("micro_tile_m")
    columns = number("work_group_n") * number("micro_tile_n")
    return 4 * number("stages") * number("tile_k") * (rows + columns + 2 * number("local_padding"))
