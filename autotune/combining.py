"""One launch where parts of a result come from several work-groups: the last of them to finish adds up.

For algorithms that share out a sum among work-groups: the parameter that says how parts are joined, its constraint,
and what a plan holds for it. `templates/last_group.cl.j2` is the other half.
"""

from collections.abc import Iterator

from autotune.expression import Expression
from autotune.family import FENCES, Buffer, Configuration, Constraint, DeviceLimits, Parameter, Role

SECOND_LAUNCH = "launch"
LAST_GROUP = "last_group_"
"""Begins the other values of the parameter; one of FENCES ends them."""

COMBINE = Parameter(
    name="combine",
    values=(SECOND_LAUNCH, *(LAST_GROUP + fence for fence in FENCES)),
    meaning="parts of a result are joined by a second launch, or by the work-group that finishes last, which sees what "
    "the others wrote by a fence of PTX, OpenCL C 2.0 or 3.0",
    neutral=SECOND_LAUNCH,
)

HAS_FENCE = Constraint(
    name="has_fence",
    condition=Expression(
        " or ".join(
            [
                f"combine == '{SECOND_LAUNCH}'",
                *(f"(combine == '{LAST_GROUP}{fence}' and fences_by_{fence} == 1)" for fence in FENCES),
            ]
        )
    ),
    because="the device promises no such order among work-groups of one launch, or another fence is the one to take",
)

_STANDARDS = {LAST_GROUP + "cl2": "CL2.0", LAST_GROUP + "cl3": "CL3.0"}


def is_one_launch(configuration: Configuration) -> bool:
    """Whether the last work-group joins the parts."""
    return dict(configuration.values).get("combine", SECOND_LAUNCH) != SECOND_LAUNCH


def standard_for(configuration: Configuration) -> str:
    """The OpenCL C that the fence needs, as after ``-cl-std=``; empty where it needs none."""
    return _STANDARDS.get(str(dict(configuration.values).get("combine")), "")


def one_launch_variants(configuration: Configuration, limits: DeviceLimits) -> Iterator[Configuration]:
    """The same in one launch where there are parts to join and the device has a fence; else nothing."""
    values = dict(configuration.values)
    if limits.fence and values.get("combine") == SECOND_LAUNCH:
        yield Configuration.of(configuration.algorithm, **{**values, "combine": LAST_GROUP + limits.fence})


def counters(elements: int) -> Buffer:
    """For each result, how many of its work-groups have finished; the last of them sets it back."""
    return Buffer(name="counters", role=Role.SCRATCH, dtype="int32", elements=elements, is_zeroed=True)
