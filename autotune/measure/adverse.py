"""Adverse conditions, under which a kernel has to be right, so that no result is right by luck.

- What a timed series starts from: scratch as a call on other inputs left it, outputs full of wrong numbers that look
  like results. A kernel that returns early because of either, or adds to what is there, ends with wrong results.
- Local memory, which a kernel finds as earlier ones left it, is filled with numbers that spoil what relies on it.
- Work-groups and work-items take each other's places. OpenCL promises no order, but a processor runs them one after
  the other, so that a kernel without a barrier or an atomic operation comes right there. Functions in front of the
  source renumber what `get_group_id` and its like return. Reversed, each work-item still exists once. Of the halves,
  each work-group whose numbers have an even or odd sum is run in place of its neighbour, too: where both halves write
  different values to one element, work-groups race for it.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.port import Port
from autotune.errors import KernelError
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Role, Scalar
from autotune.model.trial import TrialState

LONG_INPUTS_NS = 4e9
"""Inputs of further kinds are not drawn once inputs and their comparison have taken so long; an eighth of it in
trials of a search, whose finals make up for it."""
SAY_RANGE = "`range` or `special = false` of an argument says what does not occur"
RELIES = "does a call rely on what an earlier one left in an output or in scratch?"
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
Contents = Mapping[str, NDArray[Any]]
_RACES = "do work-groups or work-items rely on an order, without a barrier or atomic operations?"
_ATOMIC = re.compile(r"\batom(ic)?_\w")
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_EXCHANGES = re.compile(r"sub_group|work_group_(all|any|broadcast|reduce|scan)|\basm\b|shuffle")
_REVERSED = "get_num_groups(d) - 1 - get_group_id(d)"
_LOCAL = {True: "get_local_size(d) - 1 - get_local_id(d)", False: "get_local_id(d)"}
_HALF = """(get_group_id(0) + get_group_id(1) + get_group_id(2)) % 2 == {parity}
        || d != (get_num_groups(0) > 1 ? 0 : get_num_groups(1) > 1 ? 1 : 2) || get_num_groups(d) == 1
        ? get_group_id(d) : (get_group_id(d) ^ 1) < get_num_groups(d) ? get_group_id(d) ^ 1 : get_group_id(d) - 1"""
_RENUMBERED = """
size_t autotune_group(uint d) {{ return {group}; }}
size_t autotune_local(uint d) {{ return {local}; }}
size_t autotune_global(uint d)
{{
    return autotune_group(d) * get_local_size(d) + autotune_local(d) + get_global_offset(d);
}}
size_t autotune_local_line(void)
{{
    return (autotune_local(2) * get_local_size(1) + autotune_local(1)) * get_local_size(0) + autotune_local(0);
}}
size_t autotune_global_line(void)
{{
    return ((autotune_global(2) - get_global_offset(2)) * get_global_size(1) + autotune_global(1)
        - get_global_offset(1)) * get_global_size(0) + autotune_global(0) - get_global_offset(0);
}}
#define get_group_id autotune_group
#define get_local_id autotune_local
#define get_global_id autotune_global
#define get_local_linear_id autotune_local_line
#define get_global_linear_id autotune_global_line
"""


class Refused(Exception):
    """Ends a trial in a state other than complete."""

    def __init__(self, state: TrialState, message: str) -> None:
        super().__init__(message)
        self.state = state


def misleading(before: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return finite wrong contents for the outputs; elements that the call leaves as they were `before` are kept."""
    return {name: _misleading(before[name], values) for name, values in right.items()}


def _misleading(before: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    if right.dtype.kind == "f":
        wrong = (np.where(np.isfinite(right), right, 0) / 2 + 1).astype(right.dtype)
        wrong[wrong == right] = 3
    else:
        wrong = right ^ 1
    bits = np.dtype(f"u{right.itemsize}")
    return np.where(before.view(bits) == right.view(bits), before, wrong)


def is_timed_with(plan: Plan, scalars: Mapping[str, float]) -> bool:
    """Return whether these are the values of named scalars with which a plan's calls are timed."""
    named = plan.named_scalars
    return all(named[name].value == value for name, value in scalars.items() if name in named)


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


class Order(enum.Enum):
    """Which work-items and work-groups a launch runs."""

    USUAL = "usual"
    REVERSED = "reversed"
    EVEN = "even"
    ODD = "odd"


HALVES = (Order.EVEN, Order.ODD)


def in_order(source: str, order: Order) -> str:
    """Return a source whose kernels run in another order; work-items keep theirs where they exchange values by it."""
    if order is Order.USUAL:
        return source
    is_reversed = order is Order.REVERSED
    group = _REVERSED if is_reversed else _HALF.format(parity=HALVES.index(order))
    local = _LOCAL[is_reversed and not _EXCHANGES.search(source)]
    return f"{_RENUMBERED.format(group=group, local=local)}\n{source}"


def is_racy_by_design(source: str) -> bool:
    """Return whether work-groups may write to one element, since there are atomic operations."""
    return _ATOMIC.search(_COMMENTS.sub(" ", source)) is not None


def check_reversed(ratio: float) -> None:
    """Raises Refused when the error of a reversed run, over its tolerance, is too large."""
    if not ratio <= 1.0:
        message = f"in reversed order of work-items, the error is {ratio:.3g} times the tolerance: {_RACES}"
        raise Refused(TrialState.WRONG_RESULT, message)


def check_halves(before: Contents, even: Contents, odd: Contents) -> None:
    """Raises Refused when both halves changed an element of an output, to different values."""
    for name, found in even.items():
        was, one, other = (values.view(f"u{values.itemsize}") for values in (before[name], found, odd[name]))
        if np.any((one != was) & (other != was) & (one != other)):
            message = f"several work-groups write different values to one element of {name}: {_RACES}"
            raise Refused(TrialState.WRONG_RESULT, message)


def with_whole_groups(plan: Plan) -> Plan | None:
    """Return a plan that leaves no work-group to the driver; None where one has fewer work-items than others."""
    launches = tuple(map(_with_group, plan.launches))
    for launch in launches:
        assert launch.local_size
        if any(size % local for size, local in zip(launch.global_size, launch.local_size, strict=True)):
            return None
    return dataclasses.replace(plan, launches=launches)


def _with_group(launch: Launch) -> Launch:
    first, *others = launch.global_size
    local = (math.gcd(first, 64), *(1 for _ in others))
    return launch if launch.local_size else dataclasses.replace(launch, local_size=local)
