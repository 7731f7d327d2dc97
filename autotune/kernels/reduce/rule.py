"""What to begin with where neither a profile nor a measurement says: a configuration by size and limits.

The rule is a list in order of preference, and for each entry the problems it is meant for, told by `ESTIMATE`: one
text for Python and for exported C.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from autotune.kernels.combination import LAST_GROUP, SECOND_LAUNCH, one_launch_variants
from autotune.kernels.reduce.problem import MAX_LENGTH, ReduceProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression

ESTIMATE = Expression(
    "(order + 1) * (least_channels <= channels and channels <= most_channels and"
    " (aligned == 2 or aligned == (pitch % width == 0))) - 1"
)
"""The place of a candidate in the order, or -1 where the rule does not mean it for a problem; over the problem and
the numbers of a candidate. `aligned` is 1 where rows must start at whole vectors, 0 where they must not."""

_WHOLE = {"least_channels": 1, "most_channels": MAX_LENGTH}


def by_rule(problem: ReduceProblem, limits: DeviceLimits) -> Iterator[Configuration]:
    """What to begin with, best first: rows too few for the device are split, short ones share a work-group."""
    values = problem.to_dict()
    known = _named_by_rule(limits.is_cpu, limits.ordering).items()
    return (configuration for configuration, numbers in known if ESTIMATE({**values, **numbers}) >= 0)


def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """The starts, also in one launch, then what the rule may name, with the numbers that `ESTIMATE` knows of each."""
    first = dict.fromkeys([*starts, *(v for start in starts for v in one_launch_variants(start, limits))])
    found = {start: {**_WHOLE, "aligned": 2, "width": 1, "order": order} for order, start in enumerate(first)}
    for configuration, numbers in _named_by_rule(limits.is_cpu, limits.ordering).items():
        found.setdefault(configuration, {**numbers, "order": len(first) + numbers["order"]})
    return found


@cache
def _named_by_rule(is_cpu: bool, ordering: str) -> Mapping[Configuration, Mapping[str, int]]:
    found: dict[Configuration, dict[str, int]] = {}
    group = 1 if is_cpu else 256
    joins = (LAST_GROUP + ordering, SECOND_LAUNCH) if ordering else (SECOND_LAUNCH,)
    for width in (16, 8, 4, 2, 1) if is_cpu else (4, 2, 1):
        for numbers, reading in _readings(width):
            for parts in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2):
                for combine in joins:
                    split = Configuration.of(
                        "split_row", work_group_size=group, parts=parts, unroll=4, combine=combine, **reading
                    )
                    found[split] = {**numbers, **_WHOLE}
            if not is_cpu:
                found.update(_shared_rows(width, numbers, reading))
            for unroll in (4, 1):
                serial = Configuration.of("serial", work_group_size=0, unroll=unroll, **reading)
                found[serial] = {**numbers, **_WHOLE}
    return {configuration: {**numbers, "order": order} for order, (configuration, numbers) in enumerate(found.items())}


def _readings(width: int) -> Iterator[tuple[dict[str, int], dict[str, Value]]]:
    """Aligned where rows allow it; what `ESTIMATE` must know, and the parameters."""
    if width == 1:
        yield {"aligned": 2, "width": 1}, {"vector_width": 1, "loads": "vload"}
        return
    for aligned, loads in ((1, "aligned"), (0, "vload")):
        yield {"aligned": aligned, "width": width}, {"vector_width": width, "loads": loads}


def _shared_rows(
    width: int, numbers: Mapping[str, int], reading: Mapping[str, Value]
) -> dict[Configuration, dict[str, int]]:
    """256 work-items over as many rows as leave each of them two vectors or more, by the length of a row."""
    found: dict[Configuration, dict[str, int]] = {}
    for lanes in (2, 4, 8, 16, 32, 64, 128, 256):
        shortest = 1 if lanes == 2 else 2 * lanes * width
        longest = MAX_LENGTH if lanes == 256 else 4 * lanes * width - 1
        for unroll in (8, 4, 2, 1):
            least = max(shortest, unroll * lanes * width if unroll > 1 else 1)
            most = min(longest, 2 * unroll * lanes * width - 1 if unroll < 8 else MAX_LENGTH)
            configuration = Configuration.of(
                "local_tree",
                work_group_size=256,
                rows_per_group=256 // max(lanes, 4),
                fan_in=4,
                unroll=unroll,
                **reading,
            )
            if least <= most:
                # Two and four lanes make one configuration, for lengths that follow each other.
                least = min(least, found.get(configuration, {}).get("least_channels", least))
                found[configuration] = {**numbers, "least_channels": least, "most_channels": most}
    return found
