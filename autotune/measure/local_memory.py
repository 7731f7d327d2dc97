"""Fills local memory, which a kernel finds as earlier ones left it, with numbers that spoil what relies on it."""

import numpy as np

from autotune.device.port import Port
from autotune.errors import KernelError
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Role, Scalar

POISONS = (0xFFFFFFFF, 0x3A800000, 0x3F800000, 0x7149F2CA)
"""NaN and -1; floats that are small, usual and large, and as integers large."""
_MOST_BYTES = 2**15
_GROUPS_OF_UNIT = 16
_SOURCE = """
__kernel void poison(__global uint *found, const uint value, __local uint *all, const uint count)
{
    for (uint i = get_local_id(0); i < count; i += get_local_size(0))
        all[i] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_id(0); i < count; i += get_local_size(0))
        if (all[count - 1 - i] != value)
            found[0] = i;
}
"""


class LocalMemoryPoison:
    """Spreads poison over the local memory of all compute units of a device."""

    def __init__(self, port: Port) -> None:
        self._port = port
        limits = port.device.limits
        self._count = min(limits.local_memory_bytes, _MOST_BYTES) // 4
        local = min(64, limits.max_work_group_size)
        self._size = (local * _GROUPS_OF_UNIT * limits.compute_units,), (local,)
        found = Buffer(name="found", role=Role.SCRATCH, dtype="int32", elements=1)
        plan = Plan(buffers=(found,), launches=(self._launch(0),))
        try:
            self._kernels = port.kernels(port.build(_SOURCE, []), plan)
            self._memory = {"found": port.allocate(found)}
        except KernelError:
            self._kernels = []

    def spread(self, number: int) -> None:
        """Fill local memory with one of the poisons. Raises LaunchError."""
        if self._kernels and self._count:
            call = self._port.bind(self._kernels, [self._launch(POISONS[number % len(POISONS)])], self._memory)
            self._port.run(call, has_events=False)

    def _launch(self, value: int) -> Launch:
        size, local = self._size
        arguments = ("found", _uint(value), LocalMemory(size_bytes=4 * self._count), _uint(self._count))
        return Launch(kernel="poison", global_size=size, local_size=local, arguments=arguments)


def _uint(value: int) -> Scalar:
    return Scalar(dtype="int32", value=int(np.uint32(value).view(np.int32)))
