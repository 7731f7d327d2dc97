"""Verification of a product with quantised weights: fresh random operands, and the check against float64."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.qgemm.blocks import dequantise, random_weights, rows_of
from autotune.kernels.qgemm.problem import QGemmProblem
from autotune.space.case import Case

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Columns of one expert's product that are checked: all, or some and a random combination of all."""

    expert: int
    activations: Matrix
    """Shape (columns, k); unless all columns are checked, the last is the combination."""
    signs: Matrix
    """Of the expert's columns in the combination."""
    first: int
    """Of the expert's columns in the output."""
    chosen: NDArray[np.intp]
    """Which of them are checked by themselves."""

    @property
    def has_combination(self) -> bool:
        return len(self.chosen) < len(self.signs)


EQUAL, LARGE = REGIMES = ("zeros and equal numbers", "large numbers")


class QGemmCase(Case):
    """Random weights in every block, activations in [-1, 1), and, for experts, ragged numbers of columns.

    All outputs are checked: up to `FULL_REFERENCE_MACS` one by one, above it by some columns and by a random
    combination of all columns of an expert, in which a wrong output anywhere shows. In a regime, the activations are
    others.
    """

    FULL_REFERENCE_MACS = 2**27
    WEIGHTS_AT_ONCE = 2**16
    """Weights that are dequantised at once: as few as stay in a core's caches, which takes a fifth of the time."""

    def __init__(self, problem: QGemmProblem, seed: int, regime: str = "") -> None:
        self._problem = p = problem
        self._rng = rng = np.random.default_rng(seed)
        self._weights = random_weights(p.format, p.experts * p.m, p.k, rng)
        x = rng.random((p.n, p.k), dtype=np.float32) * np.float32(2) - np.float32(1)
        if regime == EQUAL:  # half of the blocks of activations are 0
            x = np.rint(2 * x) / 2 * np.repeat(rng.integers(0, 2, (p.n, -(-p.k // 32))), 32, axis=1)[:, : p.k]
        elif regime == LARGE:
            x *= 4 if p.stored == "float16" else 2**20
        self._x = x.astype(p.stored)
        self._starts = self._random_starts()
        self.inputs: Mapping[str, NDArray[Any]] = {
            "weights": self._weights,
            "x": self._x,
            "y": np.full((p.n, p.m), np.nan, dtype=p.stored),
            **({"starts": self._starts.astype(np.int32)} if p.experts > 1 else {}),
        }

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        p = self._problem
        y = outputs["y"].reshape(p.n, p.m)
        if not np.isfinite(y).all():
            return math.inf
        worst = 0.0
        for columns, expected, tolerance in self._expected:
            own = y[columns.first : columns.first + len(columns.signs)].astype(np.float64)
            found = own
            if columns.has_combination:
                found = np.concatenate([own[columns.chosen], columns.signs[None] @ own])
                if p.stored == "float16":  # outputs are rounded, each by itself: seven standard deviations
                    rounding = 2.0**-9 * np.sqrt((own**2).sum(axis=0, keepdims=True))
                    tolerance = np.concatenate([tolerance[:-1], tolerance[-1:] + rounding])
            worst = max(worst, float((np.abs(found - expected) / tolerance).max()))
        return worst

    def _random_starts(self) -> NDArray[np.int64]:
        """Return where the columns of each expert begin, and the end: some experts have none, some many."""
        p = self._problem
        owners = np.sort(self._rng.integers(0, p.experts, p.n) * self._rng.integers(0, 2, p.n))
        return np.searchsorted(owners, np.arange(p.experts + 1))

    @cached_property
    def _expected(self) -> list[tuple[_Columns, Matrix, Matrix]]:
        """The checked columns with expected results and tolerances, each of shape (columns, m)."""
        return [(columns, *self._results(columns)) for columns in self._checked_columns()]

    def _checked_columns(self) -> list[_Columns]:
        p = self._problem
        x = self._activations
        found = []
        for expert, (first, end) in enumerate(zip(self._starts[:-1], self._starts[1:], strict=True)):
            if first == end:
                continue
            own = x[first:end]
            chosen = np.arange(end - first)
            if p.m * p.n * p.k > self.FULL_REFERENCE_MACS:
                chosen = np.unique([0, end - first - 1, self._rng.integers(end - first)])
            signs = self._rng.choice((-1.0, 1.0), end - first)
            activations = own
            if len(chosen) < end - first:
                activations = np.concatenate([own[chosen], signs[None] @ own])
            found.append(_Columns(expert=expert, activations=activations, signs=signs, first=int(first), chosen=chosen))
        return found

    @cached_property
    def _activations(self) -> Matrix:
        """What is multiplied with the weights, shape (n, k): in mode int8 the quantised activations."""
        x = self._x.astype(np.float64)
        if self._problem.mode != "int8":
            return x
        units = self._x.reshape(self._problem.n, -1, 32)
        most = np.abs(units).max(axis=-1, keepdims=True)
        inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
        quants = np.rint(units * inverse)
        scaled: Matrix = quants.astype(np.float64) * (most / np.float32(127))
        return scaled.reshape(x.shape)

    def _results(self, columns: _Columns) -> tuple[Matrix, Matrix]:
        """Return what the output must be, and by how much it may be wrong, both of shape (columns, m).

        Rounding errors grow with the norms of the products that are added up. A rounded activation may come out one
        step higher or lower on the device, where it lies between two steps; of a million, about one does. How much
        rounding outputs changes a combination is not in it.
        """
        p = self._problem
        norms = np.sqrt((columns.activations**2).sum(axis=1))
        if columns.has_combination:
            norms[-1] = np.sqrt((self._activations[columns.first : columns.first + len(columns.signs)] ** 2).sum())
        many = max(1, self.WEIGHTS_AT_ONCE // p.k)
        expected, scales, largest = [], [], []
        for first in range(columns.expert * p.m, (columns.expert + 1) * p.m, many):
            count = min(many, (columns.expert + 1) * p.m - first)
            raw = rows_of(self._weights, p.format, p.experts * p.m, p.k, first, count)
            values, offsets = dequantise(raw, p.format, count, p.k)
            scales.append(np.sqrt(np.einsum("ij,ij->i", values, values) + np.einsum("ij,ij->i", offsets, offsets)))
            weights = values.astype(np.float64)
            weights -= offsets
            expected.append(columns.activations @ weights.T)
            if p.mode == "int8":
                largest.append(np.abs(weights).max(axis=1))
        result = np.concatenate(expected, axis=1)
        tolerance = np.outer(norms, np.concatenate(scales)) * 2.0**-23 * (4.0 + 0.25 * math.log2(p.k))
        if p.mode == "int8":
            step = np.abs(self._x).max() / 127
            steps = np.full((len(result), 1), 1 + 0.02 * math.sqrt(len(columns.signs)))
            if columns.has_combination:
                steps[-1] += 0.002 * math.sqrt(p.k * len(columns.signs))
            tolerance += step * np.concatenate(largest) * steps
        if p.stored == "float16":
            rounded = len(columns.chosen) if columns.has_combination else len(result)
            tolerance[:rounded] += 2.0**-10 * np.abs(result[:rounded])
            # Kernels may add up 32 products in half precision; simulated, errors were up to 10 * 2**-11 times this.
            tolerance += 2.0**-7 * np.outer(norms, np.concatenate(scales)) / math.sqrt(p.k)
        return result, tolerance + 1e-30
