"""The result of a lookup and the measurements it is based on."""

import enum
from dataclasses import dataclass, fields
from typing import Any

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem


class Match(enum.Enum):
    """The step of the lookup that found an answer, in the order in which the steps are tried."""

    EXACT = "exact"
    """This problem was measured on this device."""
    NEAREST = "nearest"
    """From the nearest problem measured on this device whose configuration is valid for this one too.

    Only for families without a rule (`KernelFamily.has_rule`).
    """
    SIBLING = "sibling"
    """What another device of the same architecture would use."""
    VENDOR = "vendor"
    """What another device of the same vendor would use."""
    DEFAULT = "default"
    """No measurement applies: the family's rule chose from the sizes, the device's limits and its profile."""
    PRESUMED = "presumed"
    """The same for a device that is not here: its limits are the public ones of its model, generation or family."""

    @property
    def is_default(self) -> bool:
        """Whether no measurement stands behind the answer."""
        return self in (Match.DEFAULT, Match.PRESUMED)

    @classmethod
    def of_default(cls, device: Device) -> "Match":
        """Return what a default is called on a device."""
        return cls.PRESUMED if device.presumed_from else cls.DEFAULT


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One measured problem of a table."""

    problem: Problem
    configuration: Configuration
    time_ns: float
    driver: str = ""
    """Driver of the measurement; empty if unknown."""
    version: str = ""
    """OpenCL version string of the device with that driver; empty if unknown."""
    template_hash: str = ""
    """Hash of the measured templates; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The configuration to use, and where it comes from."""

    configuration: Configuration
    match: Match
    device: str
    """Slug of the requested device."""
    problem: Problem
    """The requested problem."""
    source_problem: Problem | None
    """The measured problem that the configuration comes from; None for a default."""
    time_ns: float | None
    """Measured time of one call of `source_problem`; None if that is None."""
    because: str
    """Explanation for users, one line."""
    source_device: str = ""
    """Slug of the device whose measurements were used; empty for a default."""
    driver: str = ""
    """Driver with which `source_problem` was measured; empty if that is None."""
    version: str = ""
    """OpenCL version string of the device with that driver; empty if the table does not contain it."""
    template_hash: str = ""
    """Hash of the measured templates; empty if the table does not contain it."""

    def was_measured_on(self, device: Device) -> bool:
        """Return whether this very problem was measured on the same device model with the same driver and version."""
        here = device.slug, device.driver, device.version
        return self.match is Match.EXACT and (self.source_device, self.driver, self.version) == here


def plain_tuned(tuned: Tuned) -> dict[str, Any]:
    """Return the answer as plain data for JSON."""
    source = tuned.source_problem
    return {
        "match": tuned.match.value,
        "configuration": tuned.configuration.to_dict(),
        "source_problem": source.to_dict() if source is not None else None,
        "source_device": tuned.source_device or None,
        "time_ns": tuned.time_ns,
        "driver": tuned.driver or None,
        "because": tuned.because,
    }


def table_order(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Return the sort key of tables: the sizes, then the other numbers, then the texts. Exported C uses it too."""
    values = [getattr(problem, field.name) for field in fields(problem)]
    numbers = tuple(value for value in values if isinstance(value, int))
    return problem.size_vector, numbers, tuple(value for value in values if isinstance(value, str))


MAX_FACTOR = 1.5
"""Distance up to which the winner of another size is preferred to the default, in families without a rule.

At 96 held-out products on an H100, an H200 and PoCL, farther winners reached 0.85 of the tuned speed in the geometric
mean; within this distance, on PoCL, 1.05.
"""


def distance(one: Problem, other: Problem) -> float:
    """Return the product, over all sizes, of the larger size divided by the smaller: 1.0 for equal sizes."""
    product = 1.0
    for a, b in zip(one.size_vector, other.size_vector, strict=True):
        product *= a / b if a > b else b / a
    return product
