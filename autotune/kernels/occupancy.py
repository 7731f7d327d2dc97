"""How many work-groups a compute unit runs at the same time, from what they hold: for the default by rule and for what
predictions are fitted to.

What a compute unit has is that of a large GPU: few of these differ much.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.model.device import DeviceLimits

_ITEMS = 2048
_REGISTERS = 65536
_MOST_REGISTERS = 255
"""Of a work-item: beyond them a compiler spills."""
_REGISTERS_BESIDES = 40
"""Of a work-item, for addresses and counters."""
_LOCAL_MEMORIES = 4
"""Work-groups with all the local memory that one may have, on a compute unit of NVIDIA's."""


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """What one holds."""

    items: int
    outputs: int
    """Of a work-item; as `operands`, of which it holds as many again, to load the next beside these."""
    operands: int
    local_bytes: int = 0

    def at_once(self, limits: DeviceLimits) -> int:
        """At least 1."""
        registers = min(_MOST_REGISTERS, self.outputs + 2 * self.operands + _REGISTERS_BESIDES)
        local_bytes = limits.local_memory_bytes * (_LOCAL_MEMORIES if limits.ordering == "ptx" else 1)
        by_local_memory = local_bytes // self.local_bytes if self.local_bytes else _ITEMS
        return max(1, min(_ITEMS // self.items, _REGISTERS // (self.items * registers), by_local_memory))


def tile_bytes(number: Callable[[str], int]) -> int:
    """Local memory for tiles of A and B in float32, from the parameters of a `local_tile`."""
    rows = number("work_group_m") * number("micro_tile_m")
    columns = number("work_group_n") * number("micro_tile_n")
    return 4 * number("stages") * number("tile_k") * (rows + columns + 2 * number("local_padding"))
