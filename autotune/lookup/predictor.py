"""Which configuration to use at sizes that were never measured: a small model over a few configurations.

A predictor belongs to one device, one kernel family and one kind of problem (`Problem.kind`). It holds a few
configurations that cover the measured sizes, and a model that ranks them for a size. It is plain data, made by
`autotune.predict` and evaluated here with the standard library alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import dist, inf, log2, prod
from typing import Any, NamedTuple

from autotune.model.configuration import Configuration
from autotune.model.problem import Problem

FAVOURS = ("predicted", "nearest", "default")
"""What came nearest to the tuned speed at sizes left out, as a predictor's `favours` tells."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How much of the tuned speed is reached over several sizes: 1.0 is all of it."""

    mean: float
    """Geometric."""
    median: float
    low: float
    """The 10th percentile."""
    worst: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is reached at sizes that a model had not seen."""

    sizes: int
    predicted: Reach
    nearest: Reach
    default: Reach


@dataclass(frozen=True, kw_only=True)
class Node:
    """A step of a tree: which way to go, by a sum of logarithms of sizes.

    ``sum(exponent * log2(size)) <= threshold`` goes to node `below`, else to `above`; both come later than this one.
    A leaf has a `ranking` instead.
    """

    exponents: tuple[int, ...] = ()
    threshold: float = 0.0
    below: int = 0
    above: int = 0
    ranking: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Decides by sizes and by their ratios and products."""

    nodes: tuple[Node, ...]

    def ranking(self, problem: Problem, compute_units: int) -> Sequence[int]:  # noqa: ARG002 - alike in all models
        """Numbers of the configurations, best first."""
        logs = [log2(size) for size in problem.size_vector]
        node = self.nodes[0]
        while not node.ranking:
            value = 0.0
            for exponent, log in zip(node.exponents, logs, strict=True):
                if exponent:
                    value += exponent * log
            node = self.nodes[node.below if value <= node.threshold else node.above]
        return node.ranking


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured size, and what each configuration loses there: the logarithm of its time over the tuned one."""

    sizes: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Goes by the measured sizes nearest in their logarithms, the nearer the more."""

    count: int
    points: tuple[Point, ...]

    @cached_property
    def _places(self) -> list[tuple[float, ...]]:
        return [tuple(log2(size) for size in point.sizes) for point in self.points]

    def ranking(self, problem: Problem, compute_units: int) -> Sequence[int]:  # noqa: ARG002 - alike in all models
        """Numbers of the configurations, best first."""
        here = tuple([log2(size) for size in problem.size_vector])  # dist() would make a tuple of a list each time
        distances = list(map(dist, self._places, repeat(here)))
        weighted = []
        for _ in range(min(self.count, len(distances))):
            # Of equally near points the first counts. Few are sought: quicker than to sort all.
            distance = min(distances)
            number = distances.index(distance)
            distances[number] = inf
            weighted.append((1.0 / (0.05 + distance), self.points[number].losses))
        expected = _weighted_sums(weighted)
        return sorted(range(len(expected)), key=expected.__getitem__)


def _weighted_sums(rows: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Place by place, added up in the order of the rows."""
    if len(rows) == 3:  # as models are fitted: several times quicker than the rest
        (u, first), (v, second), (w, third) = rows
        return [u * a + v * b + w * c for a, b, c in zip(first, second, third, strict=True)]
    total = [0.0] * len(rows[0][1])
    for weight, losses in rows:
        total = [so_far + weight * loss for so_far, loss in zip(total, losses, strict=True)]
    return total


COSTS = ("one", "bytes", "outputs", "rounds", "depth of rounds", "depth of waves")
"""What a time is a sum of: outputs are the product of the sizes that are shared out among work-groups, depth that of
the others, done by each. A round is a work-group for each compute unit, a wave as many as these run at once."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a time by costs knows of one configuration.

    `tile` has for each size how much of it a work-group does, 0 where the size is not shared out; `split` is the
    number of work-groups that share one tile; what a work-group does of the depth comes in whole steps.
    """

    tile: tuple[int, ...]
    split: int
    step: int
    at_once: int
    """Work-groups that a compute unit runs at the same time."""
    weights: tuple[float, ...]
    """Of COSTS, in their order, in nanoseconds."""

    def amounts(self, sizes: Sequence[int], bytes_moved: int, compute_units: int) -> tuple[int, ...]:
        """How much of each of COSTS there is."""
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
    """Estimates the time of each configuration as the sum of what its work costs.

    All share out the same sizes, at most MOST_SHARED of them.
    """

    terms: tuple[Cost, ...]

    def ranking(self, problem: Problem, compute_units: int) -> Iterator[int]:
        """Numbers of the configurations, best first."""
        times = self.times_ns(problem, max(1, compute_units))
        best = times.index(min(times))
        yield best  # mostly the only one that is asked for
        yield from (number for number in sorted(range(len(times)), key=times.__getitem__) if number != best)

    def times_ns(self, problem: Problem, compute_units: int) -> list[float]:
        """As `Cost.amounts` times its weights would give it, and several times quicker."""
        sizes, bytes_moved, plan = problem.size_vector, problem.bytes_moved, self.plan
        outputs = prod([sizes[axis] for axis in plan.shared])
        depth = prod(sizes) // outputs
        counts = [-(-sizes[axis] // part) for axis, part in plan.parts]
        counts.append(1)
        depths = [-(-depth // share) * step for share, step in plan.depths]
        bases = [one + u * bytes_moved + v * outputs for one, u, v in plan.bases]
        rounds = [-(-counts[i] * counts[j] * counts[k] * split // compute_units) for i, j, k, split in plan.groups]
        # In the order in which exported C adds up. Waves are rounds shared out once more.
        return [
            bases[base] + x * (r := rounds[groups]) + y * (r * (own := depths[place])) + z * (-(-r // at_once) * own)
            for groups, at_once, place, base, x, y, z in plan.rows
        ]

    @cached_property
    def plan(self) -> "CostPlan":
        """What several terms have in common is worked out once."""
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
"""Sizes that the work-groups of a sum of costs may share out; of a family with more, neighbours predict."""


class CostPlan(NamedTuple):
    """Of the terms of a sum of costs; exported C has the same."""

    shared: list[int]
    """Sizes that are shared out."""
    parts: list[tuple[int, int]]
    """Into what parts: size and part."""
    depths: list[tuple[int, int]]
    """By what the depth is divided, and how long a step is."""
    bases: list[tuple[float, ...]]
    """The first three weights."""
    groups: list[tuple[int, int, int, int]]
    """What work-groups there are the product of: three places among the parts, or past them, and the split."""
    rows: list[tuple[Any, ...]]
    """For each term its place among the groups, what runs at once, places among depths and bases, other weights."""


Model = Tree | Neighbours | Costs


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """The model for one kind of problem on one device, and how good it is."""

    example: Problem
    """One measured problem of the kind."""
    sizes: int
    """Measured sizes that it rests on."""
    configurations: tuple[Configuration, ...]
    model: Model
    favours: str
    """Of FAVOURS: where plain nearness or the default did better, the prediction is left out."""
    expected: Evaluation
    """By leaving out each size in turn, from the trials."""
    measured: Evaluation | None = None
    """By `autotune evaluate`, on sizes held out."""
    left_to_default: tuple[int, ...] = ()
    """Places in the size vector: where one of these sizes is 1 the default was not beaten."""

    def way(self, problem: Problem) -> str:
        """Of FAVOURS, what answers for a problem."""
        if self.favours == "predicted" and self.left_to_default:
            sizes = problem.size_vector
            for axis in self.left_to_default:  # several times quicker than any()
                if sizes[axis] == 1:
                    return "default"
        return self.favours

    @property
    def model_name(self) -> str:
        """For people."""
        names = {Tree: "a tree", Neighbours: "neighbours", Costs: "a sum of costs"}
        return names[type(self.model)]

    @cached_property
    def predicted_loss(self) -> float:
        """What a prediction loses at a size never seen."""
        return self.loss("predicted")

    @cached_property
    def because(self) -> str:
        """One line for people on what a prediction rests on."""
        return (
            f"predicted by {self.model_name} over {len(self.configurations)} configurations that cover "
            f"{self.sizes} measured sizes"
        )

    def loss(self, step: str) -> float:
        """What a step (predicted, nearest, default) loses at a size never seen: measured, else expected."""
        told = getattr(self.measured or self.expected, step)
        assert isinstance(told, Reach)
        return max(0.0, 1.0 - told.mean)
