"""The rule for untuned row operations: a list in order of preference, of which the first that is valid is taken.

`ESTIMATE` says for which problems each entry is meant; Python and exported C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from autotune.kernels.rows.algorithms import IS_SPREAD
from autotune.kernels.rows.problem import MAX_LENGTH, RowsProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression

ESTIMATE = Expression(
    "(order + 1) * (least_channels <= channels and channels <= most_channels and least_batch <= batch"
    f" and (spreads == 2 or spreads == ({IS_SPREAD})) and (wide == 0 or dtype == 'float16')) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. `spreads` is 1 for operations that need nothing of the rest of a row, 0 for the others,
2 for both; `wide` is 1 for what reads 16 bytes of float16 at once."""

_ALL = {"least_channels": 1, "most_channels": MAX_LENGTH, "least_batch": 1, "spreads": 2, "wide": 0}
_Numbers = dict[str, int]


def by_rule(problem: RowsProblem, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield configurations, best first."""
    values = problem.to_dict()
    known = _named_by_rule(limits.is_cpu, limits.compute_units).items()
    return (configuration for configuration, numbers in known if ESTIMATE({**values, **numbers}) >= 0)


def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    found = {start: {**_ALL, "order": order} for order, start in enumerate(dict.fromkeys(starts))}
    first = len(found)
    for configuration, numbers in _named_by_rule(limits.is_cpu, limits.compute_units).items():
        found.setdefault(configuration, {**numbers, "order": first + numbers["order"]})
    return found


@cache
def _named_by_rule(is_cpu: bool, compute_units: int) -> Mapping[Configuration, _Numbers]:
    found: dict[Configuration, _Numbers] = {}
    for width in (16, 8, 4, 2, 1) if is_cpu else (8, 4, 2, 1):
        for loads in ("aligned", "vload") if width > 1 else ("vload",):
            reading: dict[str, Value] = {"vector_width": width, "loads": loads}
            entries = _of_processors(reading) if is_cpu else _of_others(reading, compute_units)
            for configuration, numbers in entries:
                found.setdefault(configuration, {**_ALL, **numbers})
    return {configuration: {**numbers, "order": order} for order, (configuration, numbers) in enumerate(found.items())}


def _of_processors(reading: Mapping[str, Value]) -> Iterator[tuple[Configuration, _Numbers]]:
    """Yield a row for each work-item; where operations need nothing of the rest of a row, parts of few rows."""
    width = int(reading["vector_width"])
    for unroll in (8, 4, 2, 1):
        if width * unroll <= 128:
            spread = Configuration.of("spread", work_group_size=16, rows_per_group=1, unroll=unroll, **reading)
            yield spread, {"spreads": 1, "least_channels": 16 * width * unroll}
    for unroll in (4, 1):
        yield Configuration.of("serial", work_group_size=0, unroll=unroll, **reading), {}


def _of_others(reading: Mapping[str, Value], compute_units: int) -> Iterator[tuple[Configuration, _Numbers]]:
    """Yield work-groups of 256 work-items that share as many rows as leave each four vectors or so in registers."""
    width = int(reading["vector_width"])
    wide = {"wide": int(width > 4)}
    for lanes, unroll in _SHARES:
        most = lanes * unroll * width
        numbers = {**wide, "most_channels": most + width - 1, "least_channels": max(most // 2 - width, 0) + 1}
        group = max(lanes, 256)
        chosen: dict[str, Value] = {
            "work_group_size": group,
            "rows_per_group": group // lanes,
            "unroll": unroll,
            **reading,
        }
        for algorithm, more in (("shuffle", {}), ("local_tree", {"fan_in": 4})):
            yield Configuration.of(algorithm, keep="registers", **chosen, **more), {**numbers, "spreads": 0}
    for lanes in (1024, 256):
        long: dict[str, Value] = {
            "work_group_size": lanes,
            "rows_per_group": 1,
            "unroll": 4,
            "keep": "memory",
            **reading,
        }
        for algorithm, more in (("shuffle", {}), ("local_tree", {"fan_in": 4})):
            yield (
                Configuration.of(algorithm, **long, **more),
                {**wide, "spreads": 0, "least_channels": 4 * lanes * width},
            )
    for lanes in (256, 128, 64, 32, 16, 8, 4):
        for unroll in (2, 1):
            yield (
                Configuration.of("spread", work_group_size=256, rows_per_group=256 // lanes, unroll=unroll, **reading),
                {**wide, "spreads": 1, "least_batch": compute_units if unroll > 1 else 1},
            )
    yield Configuration.of("serial", work_group_size=0, unroll=1, **reading), wide


_SHARES = ((4, 4), (8, 4), (16, 4), (32, 4), (64, 4), (128, 4), (256, 4), (256, 8), (512, 8), (1024, 8))
"""Work-items that share a row, and vectors of each."""
