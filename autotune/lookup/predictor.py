"""Predictors choose a configuration at sizes that were never measured, by a small model over a few configurations.

A predictor may also decline: where the nearest measured size or the default is known to do better, it says so.

A predictor belongs to one device, one kernel family and one kind of problem (`Problem.kind`). It holds a few
configurations that cover the measured sizes, and a model that ranks them for given sizes. It is plain data, made by
`autotune.predict` and evaluated here with the standard library alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar

from autotune.codec import COUNT, Bounds, Items, Pattern
from autotune.lookup.legality import Legality
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

FAVOURS = ("predicted", "nearest", "default")
"""Values of a predictor's `favours`: which way of choosing came nearest to the tuned speed at sizes left out."""
MAX_CONFIGURATIONS = 32

_FAVOUR = Pattern("|".join(FAVOURS), f"must be one of {', '.join(FAVOURS)}")
_REACH = Bounds(0, 100, excludes_least=True)
_PART, _STEP = Bounds(0, 2**20), Bounds(1, 2**20)
_WEIGHT_NS = Bounds(-1e15, 1e15)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Fraction of the tuned speed that is reached over several sizes: 1.0 is all of it."""

    mean: Annotated[float, _REACH]
    """Geometric mean."""
    median: Annotated[float, _REACH]
    low: Annotated[float, _REACH]
    """The 10th percentile."""
    worst: Annotated[float, _REACH]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What each way of choosing reaches at sizes that the model has not seen."""

    sizes: Annotated[int, COUNT]
    predicted: Reach
    nearest: Reach
    default: Reach


COSTS = ("one", "bytes", "outputs", "rounds", "depth of rounds", "depth of waves")
"""The terms whose weighted sum estimates a time.

Outputs are the product of the sizes that are divided among work-groups; depth is the product of the other sizes, which
each work-group processes. A round is one work-group for each compute unit; a wave is as many work-groups as the compute
units run at once.
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The data of one configuration in `Costs`.

    `tile` holds for each size how much of it one work-group processes, or 0 if the size is not divided among
    work-groups. `split` is the number of work-groups that share one tile. A work-group processes its part of the depth
    in whole multiples of `step`.
    """

    tile: tuple[Annotated[int, _PART], ...]
    split: Annotated[int, _STEP]
    step: Annotated[int, _STEP]
    at_once: Annotated[int, _STEP]
    """Work-groups that a compute unit runs at the same time."""
    weights: tuple[Annotated[float, _WEIGHT_NS], ...]
    """Weights of COSTS, in the same order, in nanoseconds."""

    def amounts(self, sizes: Sequence[int], bytes_moved: int, compute_units: int) -> tuple[int, ...]:
        """Return the amount of each of COSTS."""
        groups, outputs, depth, split, step = self.split, 1, 1, self.split, self.step
        for size, part in zip(sizes, self.tile, strict=True):
            if part:
                outputs *= size
                groups *= -(-size // part)
            else:
                depth *= size
        own_depth = -(-depth // (split * step)) * step
        rounds = -(-groups // compute_units)
        waves = -(-groups // (compute_units * self.at_once))
        return 1, bytes_moved, outputs, rounds, rounds * own_depth, waves * own_depth


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Estimates the time of each configuration as a weighted sum of COSTS.

    All terms divide the same sizes among work-groups, at most MOST_SHARED of them.
    """

    terms: tuple[Cost, ...]

    def ranking(self, problem: Problem, compute_units: int) -> Iterator[int]:
        """Yield the numbers of the configurations, best first."""
        times = self.times_ns(problem, max(1, compute_units))
        best = times.index(min(times))
        yield best  # usually the only one that is needed
        yield from (number for number in sorted(range(len(times)), key=times.__getitem__) if number != best)

    def times_ns(self, problem: Problem, compute_units: int) -> list[float]:
        """Return each configuration's `Cost.amounts` times its weights, computed several times faster."""
        sizes, bytes_moved, plan = problem.size_vector, problem.bytes_moved, self.plan
        outputs = prod([sizes[axis] for axis in plan.shared])
        depth = prod(sizes) // outputs
        counts = [-(-sizes[axis] // part) for axis, part in plan.parts]
        counts.append(1)
        depths = [-(-depth // share) * step for share, step in plan.depths]
        bases = [one + u * bytes_moved + v * outputs for one, u, v in plan.bases]
        rounds = [-(-counts[i] * counts[j] * counts[k] * split // compute_units) for i, j, k, split in plan.groups]
        # Added up in the same order as in exported C. Waves are rounds divided once more, by `at_once`.
        return [
            bases[base] + x * (r := rounds[groups]) + y * (r * (own := depths[place])) + z * (-(-r // at_once) * own)
            for groups, at_once, place, base, x, y, z in plan.rows
        ]

    @cached_property
    def plan(self) -> "CostPlan":
        """Values that several terms have in common, computed once."""
        shared = [axis for axis, part in enumerate(self.terms[0].tile) if part]
        parts = list(dict.fromkeys((axis, term.tile[axis]) for term in self.terms for axis in shared))
        depths = list(dict.fromkeys((term.split * term.step, term.step) for term in self.terms))
        bases = list(dict.fromkeys(term.weights[:3] for term in self.terms))
        groups: list[tuple[int, int, int, int]] = []
        rows = []
        for term in self.terms:
            places = [parts.index((axis, term.tile[axis])) for axis in shared]
            i, j, k = places + [len(parts)] * (MOST_SHARED - len(places))
            if (i, j, k, term.split) not in groups:
                groups.append((i, j, k, term.split))
            own, base = depths.index((term.split * term.step, term.step)), bases.index(term.weights[:3])
            rows.append((groups.index((i, j, k, term.split)), term.at_once, own, base, *term.weights[3:]))
        return CostPlan(shared, parts, depths, bases, groups, rows)


MOST_SHARED = 3
"""Number of sizes that `Costs` can divide among work-groups; a family with more gets no predictor."""


class CostPlan(NamedTuple):
    """The terms of `Costs`, with common values stored once; exported C has the same tables."""

    shared: list[int]
    """Axes of the sizes that are divided among work-groups."""
    parts: list[tuple[int, int]]
    """Axis of a size, and the part of it that a work-group processes."""
    depths: list[tuple[int, int]]
    """Divisor of the depth (`split * step`), and the step."""
    bases: list[tuple[float, ...]]
    """The first three weights."""
    groups: list[tuple[int, int, int, int]]
    """Factors of the number of work-groups: three indices into `parts`, or one past its end, and the split."""
    rows: list[tuple[Any, ...]]
    """For each term: index into `groups`, `at_once`, indices into `depths` and `bases`, the other weights."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """The model for one kind of problem on one device, and how good it is."""

    omits_defaults: ClassVar[bool] = True
    example: Problem
    """One measured problem of the kind."""
    sizes: Annotated[int, COUNT]
    """Number of measured sizes that it is based on."""
    configurations: Annotated[tuple[Configuration, ...], Items(MAX_CONFIGURATIONS, least=1)]
    model: Costs
    favours: Annotated[str, _FAVOUR]
    """One of FAVOURS: if the nearest entry or the default did better, the prediction is skipped."""
    expected: Evaluation
    """Estimated from the trials by leaving out each size in turn."""
    measured: Evaluation | None = None
    """Measured by `autotune evaluate` at sizes held out."""
    left_to_default: tuple[int, ...] = ()
    """Axes of the size vector: where one of these sizes is 1, the default was not beaten and is used."""

    def way(self, problem: Problem) -> str:
        """Return which of FAVOURS answers for a problem."""
        if self.favours == "predicted" and self.left_to_default:
            sizes = problem.size_vector
            for axis in self.left_to_default:  # several times faster than any()
                if sizes[axis] == 1:
                    return "default"
        return self.favours

    @cached_property
    def predicted_loss(self) -> float:
        """Fraction of the tuned speed that a prediction loses at a size never seen."""
        return self.loss("predicted")

    @cached_property
    def because(self) -> str:
        """What a prediction is based on, one line for users."""
        return (
            f"predicted by a sum of costs over {len(self.configurations)} configurations that cover "
            f"{self.sizes} measured sizes"
        )

    def loss(self, step: str) -> float:
        """Return the fraction of the tuned speed that a step (predicted, nearest, default) loses at a size never seen.

        It is the measured one if there is one, else the expected one.
        """
        told = getattr(self.measured or self.expected, step)
        assert isinstance(told, Reach)
        return max(0.0, 1.0 - told.mean)


# A predictor that contradicts the measurements of its table is not used.

LEAST_AGREEMENT = 0.5
"""Fraction of a table's sizes at which a predictor must choose the winner's algorithm. The published predictors of the
H100 and the H200 do so at 0.96 to 1.0 of them; one at 0.29 was two to six times slower than the default by rule."""

LEAST_JUDGED = 3
"""Minimum number of comparable sizes: with fewer, a predictor is never rejected."""
MOST_JUDGED = 64
"""Maximum number of sizes checked; from a larger table, evenly spaced ones in the order of their keys are taken."""


class Measured(Protocol):
    """An entry or a winner."""

    @property
    def problem(self) -> Problem: ...

    @property
    def configuration(self) -> Configuration: ...


_T = TypeVar("_T")


def evenly(items: Sequence[_T]) -> Sequence[_T]:
    """Return at most MOST_JUDGED of the items, evenly spaced."""
    return items[:: -(-len(items) // MOST_JUDGED) or 1]


def agrees(predictor: Predictor, family: KernelFamily, limits: DeviceLimits, table: Iterable[Measured]) -> bool:
    """Return whether a predictor may be used, given its device's limits and the measurements there (`table`)."""
    if predictor.favours != "predicted":
        return True
    legality = Legality(family, limits)
    judged = agreeing = 0
    for measured in evenly(sorted(table, key=lambda measured: measured.problem.key)):
        problem = measured.problem
        if problem.kind != predictor.example.kind or predictor.way(problem) != "predicted":
            continue
        values = problem.constraint_values()
        ranking = predictor.model.ranking(problem, limits.compute_units)
        choices = (predictor.configurations[number] for number in ranking)
        chosen = next((choice for choice in choices if legality.is_valid(choice, values)), None)
        judged += 1
        agreeing += chosen is not None and chosen.algorithm == measured.configuration.algorithm
    return judged < LEAST_JUDGED or agreeing >= LEAST_AGREEMENT * judged
