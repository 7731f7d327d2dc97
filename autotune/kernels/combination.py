"""Sums that several work-groups share, joined by a second launch or by the work-group that finishes last.

This module holds the parameter that chooses between the two, its constraint, and what a plan needs for it;
`templates/last_group.cl.j2` holds the kernel code.
"""

from collections.abc import Iterator
from typing import Any

from autotune.model.configuration import Configuration
from autotune.model.device import ORDERINGS, DeviceLimits
from autotune.model.plan import Role
from autotune.space.family import constraint, parameter

SECOND_LAUNCH = "launch"
LAST_GROUP = "last_group_"
"""Prefix of the other values of the parameter, followed by one of ORDERINGS."""

COMBINE = parameter(
    "combine",
    (SECOND_LAUNCH, *(LAST_GROUP + ordering for ordering in ORDERINGS)),
    "what joins the parts of a result: a second launch, or the last work-group to finish, which sees what the others "
    "wrote thanks to the memory ordering of PTX, OpenCL C 2.0 or OpenCL C 3.0",
    neutral=SECOND_LAUNCH,
)

HAS_ORDERING = constraint(
    "has_ordering",
    f"combine == '{SECOND_LAUNCH}'"
    + "".join(f" or (combine == '{LAST_GROUP}{name}' and orders_by_{name} == 1)" for name in ORDERINGS),
    "the device does not support this memory ordering between the work-groups of a launch",
)

COUNTERS: dict[str, Any] = {"name": "counters", "role": Role.SCRATCH, "dtype": "'int32'", "is_zeroed": True}
"""A buffer with the number of finished work-groups of each result; the last work-group resets it."""


def is_one_launch(configuration: Configuration) -> bool:
    """Return whether the last work-group joins the parts."""
    return dict(configuration.values).get("combine", SECOND_LAUNCH) != SECOND_LAUNCH


def standards(*, cl3_too: str = "False", cl2_too: str = "False") -> dict[str, str]:
    """Return the options for the OpenCL C that the memory ordering needs, each with its condition.

    The arguments are further conditions under which one of them is needed.
    """
    return {
        "-cl-std=CL2.0": f"combine == '{LAST_GROUP}cl2' or {cl2_too}",
        "-cl-std=CL3.0": f"combine == '{LAST_GROUP}cl3' or {cl3_too}",
    }


def one_launch_variants(configuration: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield the configuration in one launch, if it has parts to join and the device promises an ordering."""
    values = dict(configuration.values)
    if limits.ordering and values.get("combine") == SECOND_LAUNCH:
        yield Configuration.of(configuration.algorithm, **{**values, "combine": LAST_GROUP + limits.ordering})
