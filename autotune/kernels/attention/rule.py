"""The rule for untuned attention: a list in order of preference, of which the first that is valid is taken."""

from collections.abc import Mapping
from functools import cache

from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression
from autotune.space.family import ranked

ESTIMATE = Expression("(order + 1) * (least_rows <= group * q_length) - 1")
_ALL = {"least_rows": 1}


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    return ranked(starts, {Configuration.of("naive", work_group_size=0): _ALL}, _ALL)
