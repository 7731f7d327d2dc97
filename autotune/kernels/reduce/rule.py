"""What to begin with where neither a profile nor a measurement says: a configuration by size and limits."""

from collections.abc import Iterator

from autotune.combining import SECOND_LAUNCH, one_launch_variants
from autotune.family import Configuration, DeviceLimits, Value
from autotune.kernels.reduce.problem import ReduceProblem


def by_rule(problem: ReduceProblem, limits: DeviceLimits) -> Iterator[Configuration]:
    """What to begin with, best first: rows too few for the device are split, short ones share a work-group."""
    group = 1 if limits.is_cpu else 256
    for width in (16, 8, 4, 2, 1) if limits.is_cpu else (4, 2, 1):
        reading = _reading(problem, width)
        for parts in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2):
            split = Configuration.of(
                "split_row", work_group_size=group, parts=parts, unroll=4, combine=SECOND_LAUNCH, **reading
            )
            yield from one_launch_variants(split, limits)
            yield split
        if not limits.is_cpu:
            yield _shared_rows(problem, width)
        for unroll in (4, 1):
            yield Configuration.of("serial", work_group_size=0, unroll=unroll, **reading)


def _reading(problem: ReduceProblem, width: int) -> dict[str, Value]:
    aligned = width > 1 and problem.pitch % width == 0
    return {"vector_width": width, "loads": "aligned" if aligned else "vload"}


def _shared_rows(problem: ReduceProblem, width: int) -> Configuration:
    """256 work-items over as many rows as leave each of them two vectors or more."""
    lanes = 2
    while lanes < 256 and 4 * lanes * width <= problem.channels:
        lanes *= 2
    unroll = next((u for u in (8, 4, 2) if u * lanes * width <= problem.channels), 1)
    return Configuration.of(
        "local_tree",
        work_group_size=256,
        rows_per_group=256 // max(lanes, 4),
        fan_in=4,
        unroll=unroll,
        **_reading(problem, width),
    )
