"""The rule for untuned convolutions: a list in order of preference, of which the first that is valid is taken."""

from collections.abc import Mapping
from functools import cache

from autotune.kernels.conv.plan import BASELINE
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression
from autotune.space.family import ranked

ESTIMATE = Expression("order")


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    return ranked(starts, {BASELINE: {}}, {})
