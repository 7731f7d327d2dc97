"""What a lookup gives and what it rests on."""

import enum
from dataclasses import dataclass, fields
from typing import Any

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem


class Match(enum.Enum):
    """The step of the lookup that found an answer, in the order in which they are tried."""

    EXACT = "exact"
    """This problem was measured on this device."""
    PREDICTED = "predicted"
    """Chosen by size, by a model of what was measured on this device."""
    NEAREST = "nearest"
    """The nearest measured problem of the same device, whose configuration is valid for this one too."""
    SIBLING = "sibling"
    """What another device of the same architecture would use."""
    VENDOR = "vendor"
    """What another device of the same maker would use."""
    DEFAULT = "default"
    """Nothing measured serves: what the family chooses by rule from the sizes, the device's limits and its profile."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One measured problem of a table."""

    problem: Problem
    configuration: Configuration
    time_ns: float
    driver: str = ""
    """Driver that measured; empty where it is not known."""
    version: str = ""
    """OpenCL version string of the device with that driver; empty where it is not known."""
    template_hash: str = ""
    """Of the templates that were measured; empty where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The configuration to use, and where it comes from."""

    configuration: Configuration
    match: Match
    device: str
    """Slug of the device asked for."""
    problem: Problem
    """What was asked for."""
    source_problem: Problem | None
    """What was measured; None for a prediction and for a default."""
    time_ns: float | None
    """Measured time of one call of `source_problem`; None without one."""
    because: str
    """One line for people."""
    expected_loss: float | None = None
    """Part of the tuned speed that is lost, as expected: 0.05 is 5%. None where nothing is known of it."""
    source_device: str = ""
    """Slug of the device whose measurements were used; empty for a default."""
    driver: str = ""
    """Driver that measured `source_problem`; empty without one."""
    version: str = ""
    """OpenCL version string of the device with that driver; empty where the table does not know it."""
    template_hash: str = ""
    """Of the templates that were measured; empty where the table does not know it."""

    def was_measured_on(self, device: Device) -> bool:
        """Whether this very problem was measured with the same driver, version and model of device."""
        here = device.slug, device.driver, device.version
        return self.match is Match.EXACT and (self.source_device, self.driver, self.version) == here


def plain_tuned(tuned: Tuned) -> dict[str, Any]:
    """For JSON."""
    source = tuned.source_problem
    return {
        "match": tuned.match.value,
        "configuration": tuned.configuration.to_dict(),
        "source_problem": source.to_dict() if source is not None else None,
        "source_device": tuned.source_device or None,
        "time_ns": tuned.time_ns,
        "driver": tuned.driver or None,
        "expected_loss": tuned.expected_loss,
        "because": tuned.because,
    }


def table_order(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """The order of a table: by sizes, then by the other numbers, then by the texts. Exported C code has it too."""
    values = [getattr(problem, field.name) for field in fields(problem)]
    numbers = tuple(value for value in values if isinstance(value, int))
    return problem.size_vector, numbers, tuple(value for value in values if isinstance(value, str))


MAX_FACTOR = 1.5
"""Distance up to which the winner of another size is used before the default by rule. At 96 sizes held out on an H100,
an H200 and PoCL (`scripts/results/regret_*.json`) the nearest winner reached, in the geometric mean, 1.05 of the tuned
speed against 1.02 by the rule on PoCL where it lay within this factor, and 0.85 against 0.97 at all sizes farther
off; on the GPUs the rule did better at any distance, which their evaluations say."""


def distance(one: Problem, other: Problem) -> float:
    """How far apart two problems are: 1.0 for equal sizes. Plain double arithmetic, so that C agrees to the bit."""
    product = 1.0
    for a, b in zip(one.size_vector, other.size_vector, strict=True):
        product *= a / b if a > b else b / a
    return product
