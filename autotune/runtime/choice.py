"""Chooses the configuration that runs a problem: the table's, checked against the device at hand, with fallbacks.

When the B of a GEMM is packed once, the problem has `constant=b`, and the winner tuned for that problem is used. When
only the plain problem was tuned, which packs B at each call, the time for packing is subtracted from the times of its
trials. Quantised weights are constant in every problem. When B is already in an image, only configurations that read an
image are valid.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from autotune.device.profile import find_profile
from autotune.errors import ProblemError
from autotune.lookup import Match, Tuned, TuningTable
from autotune.lookup.database import Timed, read_trials
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

_MARGIN = 0.97
"""Single trials scatter: to replace the table's winner, one must take less than this share of its time."""

_IMAGE_TILES = ((8, 8), (8, 4), (4, 8), (4, 4), (2, 4), (1, 4))


class Weights(enum.Enum):
    """How B, or quantised weights, reach the kernels."""

    PER_CALL = "per call"
    """As passed; each call packs it where the configuration needs another layout."""
    PACKED_ONCE = "packed once"
    IN_IMAGE = "in an image"
    """The caller's own image: nothing is packed."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A configuration, and the reason for it."""

    configuration: Configuration
    because: str
    is_verified: bool = False
    """Whether a search verified it with this very driver and the templates of `template_hash`."""
    template_hash: str = ""


def choices(
    family: KernelFamily, table: TuningTable, device: Device, problem: Problem, weights: Weights
) -> Iterator[Choice]:
    """Yield valid configurations, the one to use first; the others are for devices that refuse it.

    Raises ProblemError when no configuration is valid.
    """
    found = False
    seen: set[Configuration] = set()
    for choice in _ranked(family, table, device, problem, weights):
        if choice.configuration in seen or family.violations(problem, choice.configuration, device.limits):
            continue
        if weights is Weights.IN_IMAGE and dict(choice.configuration.values).get("b_storage") != "image":
            continue
        seen.add(choice.configuration)
        found = True
        yield choice
    if not found and weights is not Weights.IN_IMAGE:
        raise ProblemError(f"no configuration of {family.name} is legal for {problem.label} on {device.slug}")
    if not found:
        raise ProblemError(f"no kernel reads B from an image for {problem.label} on {device.slug}")


def packed_operand(plan: Plan, operand: str) -> str:
    """Return the name of the buffer into which a plan packs the operand; `operand` where it is not packed."""
    names = [launch.arguments for launch in plan.launches if launch.prepares == operand]
    buffers = {buffer.name for buffer in plan.buffers} - {operand}
    return next((a for arguments in names for a in arguments if isinstance(a, str) and a in buffers), operand)


def _ranked(
    family: KernelFamily, table: TuningTable, device: Device, problem: Problem, weights: Weights
) -> Iterator[Choice]:
    tuned = table.find(device, problem.as_tuned)
    if weights is Weights.PACKED_ONCE and tuned.match is not Match.EXACT:
        plain = tuned if problem == problem.plain else table.find(device, problem.plain)
        yield from _best_packed(family, table, device, plain)
        tuned = min(tuned, plain, key=lambda found: list(Match).index(found.match))  # the earlier step of the lookup
    yield Choice(
        configuration=tuned.configuration,
        because=tuned.because,
        is_verified=tuned.was_measured_on(device),
        template_hash=tuned.template_hash,
    )
    starts = find_profile(device, table.rates(device)).starting(family.name)
    if weights is Weights.IN_IMAGE:
        for start in (*starts, *map(family.complete, _image_kernels())):
            yield Choice(configuration=start, because="B is in an image, which no measured configuration reads here")
    default = family.default(problem, device.limits, starts)
    yield Choice(configuration=default, because="the tuned configuration does not work here: this is the default")
    for configuration in _others(family.candidates(problem, device.limits, starts), default):
        yield Choice(configuration=configuration, because="the default does not work here: this is the next by rule")
    yield Choice(configuration=family.baseline, because="nothing else works here: this is the plainest kernel")


def _others(candidates: Iterable[Configuration], default: Configuration) -> Iterator[Configuration]:
    """Yield the first candidate with narrower vectors than the default, and the first of each other algorithm: they
    are the likeliest to work where the default does not."""
    seen = {default.algorithm}
    widths = [width for name, width in default.values if name == "vector_width"]
    for configuration in candidates:
        width = dict(configuration.values).get("vector_width", 1)
        if configuration.algorithm == default.algorithm and widths and width < widths[0]:  # type: ignore[operator]
            widths = []
            yield configuration
        elif configuration.algorithm not in seen:
            seen.add(configuration.algorithm)
            yield configuration


def _best_packed(family: KernelFamily, table: TuningTable, device: Device, tuned: Tuned) -> Iterator[Choice]:
    """Yield the configuration that is fastest without packing B, if it clearly beats the winner."""
    trials = read_trials(table.source, device, tuned.problem)
    times: dict[Configuration, float] = {}
    hashes: dict[Configuration, str] = {}
    for trial in trials:
        configuration = family.complete(trial.configuration)
        if not family.violations(tuned.problem, configuration, device.limits):
            times[configuration] = _time_without_packing(family, tuned.problem, trial)
            hashes[configuration] = trial.template_hash
    best = min(times, key=lambda configuration: times[configuration], default=None)
    if best is None or not times[best] < _MARGIN * times.get(tuned.configuration, float("inf")):
        return
    because = f"fastest trial of {tuned.problem.label} when packing B is not counted"
    yield Choice(configuration=best, because=because, is_verified=True, template_hash=hashes[best])


def _time_without_packing(family: KernelFamily, problem: Problem, trial: Timed) -> float:
    """Return the nanoseconds of a trial without packing B; if A is packed too, B's part is its share of the bytes."""
    plan = family.plan(problem, family.complete(trial.configuration))
    size = {buffer.name: buffer.size_bytes for buffer in plan.buffers}
    packed = [launch.prepares for launch in plan.launches if launch.prepares]
    total = sum(size[packed_operand(plan, operand)] for operand in packed)
    of_b = size[packed_operand(plan, "b")] if "b" in packed else 0
    return trial.time_ns - trial.prepare_ns * (of_b / total if total else 0.0)


def _image_kernels() -> Iterator[Configuration]:
    """Yield plain kernels that read B from an image, for any problem."""
    for (tile_m, tile_n), form in product(_IMAGE_TILES, ("mad", "operator")):
        values: dict[str, Value] = {
            "micro_tile_m": tile_m,
            "micro_tile_n": tile_n,
            "vector_width": 4,
            "unroll": 4 if tile_m > 1 else 1,
            "a_vector_width": 1,
            "b_storage": "image",
            "work_group_m": 0,
            "work_group_n": 0,
            "edges": "guard",
            "loads": "vload",
            "multiply_add": form,
            "relaxed_math": "off",
        }
        yield Configuration.of("microtile", **values)
