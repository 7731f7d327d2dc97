"""Builds kernels whose work-groups and work-items take each other's places, to find results that rely on an order.

OpenCL promises none, but a processor runs work-groups and work-items one after the other, so that a kernel without a
barrier or an atomic operation comes right there. Functions in front of the source renumber what `get_group_id` and its
like return. Reversed, each work-item still exists once. Of the halves, each work-group whose numbers have an even or
odd sum is run in place of its neighbour, too: where both halves write different values to one element, work-groups
race for it.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.series import Refused
from autotune.model.plan import Launch, Plan
from autotune.model.trial import TrialState


class Order(enum.Enum):
    """Which work-items and work-groups a launch runs."""

    USUAL = "usual"
    REVERSED = "reversed"
    EVEN = "even"
    ODD = "odd"


Contents = Mapping[str, NDArray[Any]]
HALVES = (Order.EVEN, Order.ODD)
_RACES = "do work-groups or work-items rely on an order, without a barrier or atomic operations?"

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
    return "atom" in source


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
