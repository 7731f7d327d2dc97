"""A first run on a small part of the range, which tells what would take far too long before it does.

Some drivers reset the device, or the whole phone, when a launch takes seconds. Parts grow until their time grows with
them; from there on the rest is bound to take as long in proportion. Kernels whose work-groups share out all the work
among those there are take no longer for more of them: of these nothing is foretold.
"""

import dataclasses
import math
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from autotune.device.session import Session
from autotune.model.plan import Launch

GROWTH = 8
"""From one part to the next."""
CAREFUL_GROWTH = 2
"""Where the first part takes long already."""
SIGNIFICANT_NS = 1e6
LATENCIES = 20
"""A part tells something when it takes as long as this many empty launches, and at least SIGNIFICANT_NS."""
RECHECKS = 4
"""A part that tells too much is timed again: other work on the host may have disturbed it."""
IN_PROPORTION = 0.5
"""Of a part's time, the least that must be due to the number of its work-groups."""

DRIVER_GROUP = (64, 1, 1)
"""Stands for a work-group that is left to the driver."""


def group_count(launch: Launch) -> int:
    """Work-groups of a launch."""
    return math.prod(_groups(launch))


def clipped(launch: Launch, groups: int) -> Launch:
    """The launch on the first of its work-groups, whole ones, at most `groups` of them."""
    left = max(1, groups)
    sizes = []
    for size, local, there in zip(launch.global_size, _local_size(launch), _groups(launch), strict=True):
        taken = min(there, left)
        left //= taken
        sizes.append(min(size, taken * local))
    return dataclasses.replace(launch, global_size=tuple(sizes))


class Probe:
    """Runs parts of launches on one device. What the kernels write is of no use."""

    def __init__(self, session: Session, latency_ns: float) -> None:
        self._session = session
        self._first_groups = session.compute_units
        self._needs_given_groups = session.builds_by_work_group_size
        self._significant_ns = max(SIGNIFICANT_NS, LATENCIES * latency_ns)

    def has_parts(self, launches: Sequence[Launch]) -> bool:
        """Whether any launch is large enough to have a small part."""
        return any(self._has_parts(launch) for launch in launches)

    def least_ns(self, kernels: Sequence[Any], launches: Sequence[Launch], limit_ns: float) -> float:
        """Time that one call takes at least; 0 where nothing can be foretold. Ends early above the limit.

        The kernels are bound. Raises LaunchError.
        """
        total = 0.0
        for kernel, launch in zip(kernels, launches, strict=True):
            total += self._least_ns(kernel, launch, limit_ns - total)
            if total > limit_ns:
                break
        return total

    def _least_ns(self, kernel: Any, launch: Launch, limit_ns: float) -> float:
        if not self._has_parts(launch):
            return 0.0
        there, wanted = group_count(launch), self._first_groups
        self._time(kernel, launch, wanted)  # some drivers finish building at the first launch
        groups, took_ns = self._time(kernel, launch, wanted)
        growth = GROWTH if took_ns < self._significant_ns else CAREFUL_GROWTH
        while (wanted := wanted * growth) < there:
            more, took_longer_ns = self._time(kernel, launch, wanted)
            least_ns = self._extrapolated(groups, took_ns, more, took_longer_ns, there)
            for _ in range(RECHECKS if least_ns > limit_ns else 0):
                took_longer_ns = min(took_longer_ns, self._time(kernel, launch, wanted)[1])
                least_ns = self._extrapolated(groups, took_ns, more, took_longer_ns, there)
            if least_ns:
                return least_ns
            groups, took_ns = more, took_longer_ns
        return 0.0

    def _has_parts(self, launch: Launch) -> bool:
        """Where the driver chooses the work-group it may choose another for each part, which must not cost a build."""
        if launch.local_size is None and self._needs_given_groups:
            return False
        return group_count(launch) > self._first_groups

    def _extrapolated(self, few: int, few_ns: float, more: int, more_ns: float, there: int) -> float:
        """Time of `there` work-groups, from that of `few` and of `more`; 0 where it does not grow in proportion."""
        per_group_ns = (more_ns - few_ns) / max(1, more - few)
        if more_ns < self._significant_ns or per_group_ns * more < IN_PROPORTION * more_ns:
            return 0.0
        return more_ns + per_group_ns * (there - more)

    def _time(self, kernel: Any, launch: Launch, groups: int) -> tuple[int, float]:
        """The work-groups of a part with at most so many of them, and its time by the host's clock."""
        part = clipped(launch, groups)
        start = perf_counter_ns()
        self._session.enqueue(kernel, part)
        self._session.finish()
        return group_count(part), perf_counter_ns() - start


def _local_size(launch: Launch) -> tuple[int, ...]:
    return launch.local_size or DRIVER_GROUP[: len(launch.global_size)]


def _groups(launch: Launch) -> list[int]:
    return [-(-size // local) for size, local in zip(launch.global_size, _local_size(launch), strict=True)]
