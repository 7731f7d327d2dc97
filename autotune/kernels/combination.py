"""One launch where parts of a result come from several work-groups: the last of them to finish adds up.

For algorithms that share out a sum among work-groups: the parameter that says how parts are joined, its constraint,
and what a plan holds for it. `templates/last_group.cl.j2` is the other half.
"""

from collections.abc import Iterator

from autotune.model.configuration import Configuration
from autotune.model.device import ORDERINGS, DeviceLimits
from autotune.model.plan import Buffer, Role
from autotune.space.expression import Expression
from autotune.space.family import Constraint, Parameter

SECOND_LAUNCH = "launch"
LAST_GROUP = "last_group_"
"""Begins the other values of the parameter; one of ORDERINGS ends them."""

COMBINE = Parameter(
    name="combine",
    values=(SECOND_LAUNCH, *(LAST_GROUP + ordering for ordering in ORDERINGS)),
    meaning="parts of a result are joined by a second launch, or by the work-group that finishes last, which may "
    "read what the others wrote by the order that PTX, OpenCL C 2.0 or 3.0 promises",
    neutral=SECOND_LAUNCH,
)

HAS_ORDERING = Constraint(
    name="has_ordering",
    condition=Expression(
        " or ".join(
            [
                f"combine == '{SECOND_LAUNCH}'",
                *(f"(combine == '{LAST_GROUP}{ordering}' and orders_by_{ordering} == 1)" for ordering in ORDERINGS),
            ]
        )
    ),
    because="the device promises no order among the work-groups of a launch, or by another of these means",
)

_STANDARDS = {LAST_GROUP + "cl2": "CL2.0", LAST_GROUP + "cl3": "CL3.0"}


def is_one_launch(configuration: Configuration) -> bool:
    """Whether the last work-group joins the parts."""
    return dict(configuration.values).get("combine", SECOND_LAUNCH) != SECOND_LAUNCH


def standard_for(configuration: Configuration) -> str:
    """The OpenCL C that the order needs, as after ``-cl-std=``; empty where it needs none."""
    return _STANDARDS.get(str(dict(configuration.values).get("combine")), "")


def one_launch_variants(configuration: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """The same in one launch where there are parts to join and the device promises an order; else nothing."""
    values = dict(configuration.values)
    if limits.ordering and values.get("combine") == SECOND_LAUNCH:
        yield Configuration.of(configuration.algorithm, **{**values, "combine": LAST_GROUP + limits.ordering})


def counters(elements: int) -> Buffer:
    """For each result, how many of its work-groups have finished; the last of them sets it back."""
    return Buffer(name="counters", role=Role.SCRATCH, dtype="int32", elements=elements, is_zeroed=True)
