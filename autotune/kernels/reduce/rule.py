"""The rule for untuned reductions, after the profile's starts: choose a configuration by size and limits.

The rule is a list in order of preference. `ESTIMATE` says for which problems each entry is meant; Python and exported
C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from autotune.kernels.combination import LAST_GROUP, SECOND_LAUNCH, one_launch_variants
from autotune.kernels.reduce.problem import MAX_LENGTH
from autotune.kernels.shared_rows import of_standards
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

ESTIMATE = Expression(
    "(order + 1) * (least_channels <= channels and channels <= most_channels and"
    " (aligned == 2 or aligned == (pitch % width == 0))) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. `aligned` is 1 if rows must start at whole vectors, 0 if they must not, 2 if either."""

_WHOLE = {"least_channels": 1, "most_channels": MAX_LENGTH}


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts, their variants in one launch and all of the rule's configurations.

    Each comes with the numbers that `ESTIMATE` needs.
    """
    starts = Starts(of_standards(starts), Starts(starts).machine)
    in_one_launch = [variant for start in starts for variant in one_launch_variants(start, limits)]
    group = 1 if limits.is_cpu else 64 if Starts(starts).machine.is_small else 256
    rule = _named_by_rule(group, limits.ordering)
    return ranked([*starts, *in_one_launch], rule, {**_WHOLE, "aligned": 2, "width": 1})


@cache
def _named_by_rule(group: int, ordering: str) -> Mapping[Configuration, Mapping[str, int]]:
    """Return configurations, best first, in work-groups of a size; that of a processor is 1.

    Rows too few for the device are split, short rows share a work-group.
    """
    found: dict[Configuration, dict[str, int]] = {}
    is_cpu = group == 1
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
                found.update(_shared_rows(group, width, numbers, reading))
            for unroll in (4, 1):
                serial = Configuration.of("serial", work_group_size=0, unroll=unroll, **reading)
                found[serial] = {**numbers, **_WHOLE}
    return found


def _readings(width: int) -> Iterator[tuple[dict[str, int], dict[str, Value]]]:
    """Yield aligned loads, then vload for rows that are not aligned: numbers for `ESTIMATE`, and parameters."""
    if width == 1:
        yield {"aligned": 2, "width": 1}, {"vector_width": 1, "loads": "vload"}
        return
    for aligned, loads in ((1, "aligned"), (0, "vload")):
        yield {"aligned": aligned, "width": width}, {"vector_width": width, "loads": loads}


def _shared_rows(
    group: int, width: int, numbers: Mapping[str, int], reading: Mapping[str, Value]
) -> dict[Configuration, dict[str, int]]:
    """Return configurations by row length: work-groups of so many rows that a work-item gets two vectors or more."""
    found: dict[Configuration, dict[str, int]] = {}
    for lanes in (lanes for lanes in (2, 4, 8, 16, 32, 64, 128, 256) if lanes <= group):
        shortest = 1 if lanes == 2 else 2 * lanes * width
        longest = MAX_LENGTH if lanes == group else 4 * lanes * width - 1
        for unroll in (8, 4, 2, 1):
            least = max(shortest, unroll * lanes * width if unroll > 1 else 1)
            most = min(longest, 2 * unroll * lanes * width - 1 if unroll < 8 else MAX_LENGTH)
            configuration = Configuration.of(
                "local_tree",
                work_group_size=group,
                rows_per_group=group // max(lanes, 4),
                fan_in=4,
                unroll=unroll,
                **reading,
            )
            if least <= most:
                # Two and four lanes give the same configuration, for adjacent ranges of lengths.
                least = min(least, found.get(configuration, {}).get("least_channels", least))
                found[configuration] = {**numbers, "least_channels": least, "most_channels": most}
    return found
