"""Fits what a kernel's work costs on one device to all its trials: each algorithm's time is a sum of effects.

An effect is an amount of some work that a configuration does, computed from its parameters by name, times one of
`autotune.lookup.predictor.COSTS`, computed from the sizes. The price of each effect is fitted once for all
configurations of an algorithm, so few measurements of each configuration suffice. No price is negative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.gemm.estimate import WorkGroup, tile_bytes
from autotune.lookup.predictor import COSTS, MOST_SHARED, Cost, Costs
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.machine import UNKNOWN, Machine
from autotune.model.problem import Problem

_MOST_AT_ONCE = 16
"""Maximum number of work-groups that a compute unit runs at the same time, however small they are."""
_LANES = 128
"""Multiply-adds that a compute unit does in one step."""
_BY_DRIVER = 32
"""Work-items along the last size if the driver chooses the work-group."""

_REFITS = 5
_MUCH = 0.2
"""Error, as a logarithm, above which the weight of a trial falls: effects that are not modelled here dominate it."""
_STIFFNESS = 1e-4
"""Ridge term that keeps the prices of indistinguishable effects bounded; columns have a sum of squares of 1."""


class Work:
    """How a configuration divides the sizes among work-groups, and what each work-group does."""

    def __init__(
        self, configuration: Configuration, axes: Sequence[str], limits: DeviceLimits, machine: Machine = UNKNOWN
    ) -> None:
        """`axes` are the `size_axes` of the problem."""
        self.configuration = configuration
        self._values: Mapping[str, object] = dict(configuration.values)
        number = self.number
        self.tile = self._tile(axes)
        """Part of each size that a work-group processes; 0 if the size is not divided among work-groups."""
        parts = [part for part, axis in zip(self.tile, axes, strict=True) if part and axis != "batch"] or [1]
        self.sides = parts[0], parts[-1]
        """The first and the last part of the tile, not counting the batch."""
        self.outputs = number("micro_tile_m") * number("micro_tile_n")
        """Outputs of a work-item."""
        self.operands = number("micro_tile_m") + number("micro_tile_n")
        """Operands of a work-item."""
        rows, size = number("rows_per_group"), number("work_group_size", 0)
        self.along_depth = max(1, size // max(1, rows) if size else number("work_group_k"))
        """Work-items that share the depth of an output."""
        of_group = rows if "work_group_size" in self._values else parts[0] * parts[-1]
        self.items = max(1, of_group // self.outputs) * self.along_depth
        """Work-items of a work-group."""
        self.split = max(1, number("split_k"), number("parts"))
        """Work-groups that share a tile."""
        along = number("vector_width") if configuration.algorithm in ("dot", "column") else 1
        has_tiles = "tile_k" in self._values
        self.step = number("tile_k") if has_tiles else number("unroll") * along * self.along_depth
        """Part of the depth that a work-group processes at a time."""
        group = WorkGroup(
            items=self.items,
            outputs=self.outputs,
            operands=self.operands,
            local_bytes=tile_bytes(number) if has_tiles else 0,
        )
        self.at_once = 1 if limits.is_cpu else min(_MOST_AT_ONCE, group.at_once(limits, machine))
        """Work-groups that a compute unit can run at the same time."""

    def number(self, name: str, default: int = 1) -> int:
        value = self._values.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str) -> str:
        return str(self._values.get(name, ""))

    def _tile(self, axes: Sequence[str]) -> tuple[int, ...]:
        shared = [axis for axis in axes if f"work_group_{axis}" in self._values and axis != "k"]
        return tuple(self._part(axis, is_last=axis in shared[-1:]) for axis in axes)

    def _part(self, axis: str, *, is_last: bool) -> int:
        if axis == "batch":
            return max(1, self.number("rows_per_group"))
        if axis == "k" or not any(f"{kind}_{axis}" in self._values for kind in ("work_group", "micro_tile")):
            return 0
        chosen = self.number(f"work_group_{axis}") or (_BY_DRIVER if is_last else 1)
        return chosen * max(1, self.number(f"micro_tile_{axis}")) * self.number(f"tiles_{axis}")


Prices = Mapping[str, NDArray[np.float64]]
"""Price of each effect, in nanoseconds, by algorithm; each array has shape (effects,)."""


def effects(work: Work) -> list[tuple[str, float]]:
    """Return the effects, always in this order: which of COSTS each is proportional to, and its amount."""
    first, last = work.sides
    width, stages = work.number("vector_width"), work.number("stages")
    loads_a, loads_b = first / work.number("a_load_width", width), last / work.number("b_load_width", width)
    passes = max(1, work.items // _LANES)  # through its lanes that a compute unit needs for one work-group
    is_joined_later = work.split > 1 and work.text("combine") in ("", "launch")
    is_joined_at_once = work.split > 1 and not is_joined_later
    is_padded, is_b_packed = work.text("edges") == "pad", work.text("b_storage") in ("transposed", "image")
    return [
        ("one", 1),
        ("bytes", 1),
        ("rounds", 1),
        ("rounds", first * last),
        ("rounds", log2(work.along_depth)),
        ("depth of rounds", work.items * work.outputs / work.along_depth),
        ("depth of rounds", work.items * work.operands / work.along_depth),
        ("depth of rounds", first + last),
        ("depth of rounds", loads_a),
        ("depth of rounds", loads_b),
        ("depth of rounds", (loads_a + loads_b) * (stages > 2)),  # loads by the copy instruction
        ("depth of waves", passes * work.outputs / work.along_depth),
        ("depth of waves", passes * work.operands / work.along_depth),
        ("depth of waves", 1 / work.step),
        ("depth of waves", 1 / work.step / max(1, stages - 1)),
        ("one", is_joined_later),
        ("one", is_joined_at_once),
        ("outputs", (work.split + 1) * is_joined_later),
        ("outputs", (work.split + 1) * is_joined_at_once),
        ("one", is_padded),
        ("bytes", is_padded),
        ("one", is_b_packed),
        ("bytes", is_b_packed),
    ]


def _by_cost(work: Work) -> tuple[list[int], NDArray[np.float64]]:
    """Return for each effect the index of its cost in COSTS, and its amount."""
    found = effects(work)
    return [COSTS.index(cost) for cost, _ in found], np.array([float(amount) for _, amount in found])


def bare_cost(work: Work) -> Cost:
    """Return the cost with all weights 0."""
    return Cost(tile=work.tile, split=work.split, step=work.step, at_once=work.at_once, weights=(0.0,) * len(COSTS))


def amounts(work: Work, problems: Sequence[Problem], compute_units: int) -> NDArray[np.float64]:
    """Return the amount of each effect: shape (problems, effects)."""
    cost = bare_cost(work)
    of_sizes = [cost.amounts(p.size_vector, p.bytes_moved, compute_units) for p in problems]
    numbers, of_work = _by_cost(work)
    return np.asarray(np.array(of_sizes, dtype=np.float64).reshape(-1, len(COSTS))[:, numbers] * of_work)


def weigh(work: Work, prices: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the weights of a configuration's cost, from the prices of the effects: shape (effects,)."""
    weights = np.zeros(len(COSTS))
    numbers, of_work = _by_cost(work)
    np.add.at(weights, numbers, prices * of_work)
    return tuple(float(f"{weight:.6g}") for weight in weights)


def fit_costs(works: Sequence[Work], prices: Prices) -> Costs | None:
    """Return the costs of several configurations, or None if `Costs` cannot express them.

    It cannot if they divide different sizes among work-groups, or too many.
    """
    shared = {tuple(part > 0 for part in work.tile) for work in works}
    if len(shared) > 1 or sum(next(iter(shared))) > MOST_SHARED:
        return None
    weighted = ((work, weigh(work, prices[work.configuration.algorithm])) for work in works)
    return Costs(terms=tuple(replace(bare_cost(work), weights=weights) for work, weights in weighted))


def fit_prices(amounts: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return non-negative prices of the effects, by iteratively reweighted least squares of errors in logarithms.

    `amounts` has shape (trials, effects), `times` (trials,), the result (effects,). Most trials have similarly small
    errors, so the few with large errors get little weight.
    """
    importance = np.ones(len(times))
    prices = np.zeros(amounts.shape[1])
    for _ in range(_REFITS):
        prices = _least_squares(amounts * (importance / times)[:, None], importance)
        ratios = amounts @ prices / times
        errors = np.log(np.maximum(ratios, 1e-6))
        # The fit minimises relative errors; this factor turns them into logarithmic ones, as of the last fit.
        alike = np.where(np.abs(ratios - 1) > 1e-3, errors / np.where(ratios == 1, 1, ratios - 1), 1.0)
        importance = np.sqrt(np.abs(alike) / (1 + (errors / _MUCH) ** 2))
    return prices


def _least_squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-negative x that minimises ``|a x - b|``.

    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    scale = np.sqrt((a * a).sum(axis=0))
    scale[scale == 0] = 1.0
    a = a / scale
    gram = a.T @ a + _STIFFNESS * np.eye(a.shape[1])
    target = a.T @ b
    x = np.zeros(len(target))
    is_free = np.zeros(len(target), dtype=bool)
    for _ in range(3 * len(target)):
        slope = np.where(is_free, -np.inf, target - gram @ x)
        best = int(np.argmax(slope))
        if slope[best] <= 1e-9:
            break
        is_free[best] = True
        x = _feasible(gram, target, x, is_free)
    return np.asarray(x / scale)


def _feasible(
    gram: NDArray[np.float64], target: NDArray[np.float64], x: NDArray[np.float64], is_free: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Solve for the free variables, fixing at zero, one after the other, those that would become negative."""
    while True:
        solved = np.zeros(len(x))
        solved[is_free] = np.linalg.solve(gram[np.ix_(is_free, is_free)], target[is_free])
        falling = is_free & (solved <= 0)
        if not falling.any():
            return solved
        step = np.min(x[falling] / np.maximum(x[falling] - solved[falling], 1e-300))
        x = x + step * (solved - x)
        is_free &= x > 1e-12
        x = x * is_free
