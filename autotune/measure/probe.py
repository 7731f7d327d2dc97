"""Runs a small part of the range first, to find launches that would take far too long before they are run in full.

Some drivers reset the device, or the whole phone, when a launch takes seconds. Parts grow until their time grows in
proportion to their work-groups; the time of the full range is then extrapolated. Kernels that divide a fixed amount of
work among however many work-groups there are take no longer with more of them, so nothing is predicted for these.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from autotune.device.port import Kernel, Memory, Port
from autotune.model.plan import Launch

GROWTH = 8
"""Factor from one part to the next."""
CAREFUL_GROWTH = 2
"""Factor where the first part already takes a significant time."""
SIGNIFICANT_NS = 1e6
LATENCIES = 20
"""A part is long enough to extrapolate from at this many empty launches, and at least SIGNIFICANT_NS."""
RECHECKS = 4
"""Times that a part above the limit is timed again: other work on the host may have disturbed it."""
IN_PROPORTION = 0.5
"""Least share of a part's time that must be due to the number of its work-groups."""

DRIVER_GROUP = (64, 1, 1)
"""Assumed work-group where the driver chooses it."""


def group_count(launch: Launch) -> int:
    """Return the number of work-groups of a launch."""
    return math.prod(_groups(launch))


def clipped(launch: Launch, groups: int) -> Launch:
    """Return the launch restricted to the first of its work-groups, at most `groups` whole ones."""
    left = max(1, groups)
    sizes = []
    for size, local, there in zip(launch.global_size, _local_size(launch), _groups(launch), strict=True):
        taken = min(there, left)
        left //= taken
        sizes.append(min(size, taken * local))
    return dataclasses.replace(launch, global_size=tuple(sizes))


class Probe:
    """Runs parts of launches on one device. What the kernels write is meaningless."""

    def __init__(self, port: Port, latency_ns: float) -> None:
        self._port = port
        self._first_groups = port.device.limits.compute_units
        self._needs_given_groups = port.quirks.builds_by_work_group_size
        self._significant_ns = max(SIGNIFICANT_NS, LATENCIES * latency_ns)

    def has_parts(self, launches: Sequence[Launch]) -> bool:
        """Return whether any launch is large enough to have a small part."""
        return any(self._has_parts(launch) for launch in launches)

    def least_ns(
        self, kernels: Sequence[Kernel], launches: Sequence[Launch], memory: Mapping[str, Memory], limit_ns: float
    ) -> float:
        """Return the least nanoseconds of one call; 0 where they cannot be predicted. Ends early above `limit_ns`.

        Raises LaunchError.
        """
        total = 0.0
        for kernel, launch in zip(kernels, launches, strict=True):
            total += self._least_ns(kernel, launch, memory, limit_ns - total)
            if total > limit_ns:
                break
        return total

    def _least_ns(self, kernel: Kernel, launch: Launch, memory: Mapping[str, Memory], limit_ns: float) -> float:
        if not self._has_parts(launch):
            return 0.0
        there, wanted = group_count(launch), self._first_groups
        self._time(kernel, launch, memory, wanted)  # some drivers finish building at the first launch
        groups, took_ns = self._time(kernel, launch, memory, wanted)
        growth = GROWTH if took_ns < self._significant_ns else CAREFUL_GROWTH
        while (wanted := wanted * growth) < there:
            more, took_longer_ns = self._time(kernel, launch, memory, wanted)
            least_ns = self._extrapolated(groups, took_ns, more, took_longer_ns, there)
            for _ in range(RECHECKS if least_ns > limit_ns else 0):
                took_longer_ns = min(took_longer_ns, self._time(kernel, launch, memory, wanted)[1])
                least_ns = self._extrapolated(groups, took_ns, more, took_longer_ns, there)
            if least_ns:
                return least_ns
            groups, took_ns = more, took_longer_ns
        return 0.0

    def _has_parts(self, launch: Launch) -> bool:
        """A driver that chooses the work-group may choose another one for each part, which must not cost a build."""
        if launch.local_size is None and self._needs_given_groups:
            return False
        return group_count(launch) > self._first_groups

    def _extrapolated(self, few: int, few_ns: float, more: int, more_ns: float, there: int) -> float:
        """Extrapolate the time of `few` and `more` work-groups to `there`; 0 if it does not grow in proportion."""
        per_group_ns = (more_ns - few_ns) / max(1, more - few)
        if more_ns < self._significant_ns or per_group_ns * more < IN_PROPORTION * more_ns:
            return 0.0
        return more_ns + per_group_ns * (there - more)

    def _time(self, kernel: Kernel, launch: Launch, memory: Mapping[str, Memory], groups: int) -> tuple[int, float]:
        """Run a part of at most `groups` work-groups; return how many, and the host's time in nanoseconds."""
        part = clipped(launch, groups)
        call = self._port.bind([kernel], [part], memory)
        return group_count(part), self._port.run(call, has_events=False).host_ns


def _local_size(launch: Launch) -> tuple[int, ...]:
    return launch.local_size or DRIVER_GROUP[: len(launch.global_size)]


def _groups(launch: Launch) -> list[int]:
    return [-(-size // local) for size, local in zip(launch.global_size, _local_size(launch), strict=True)]
