"""What is right: fresh rows for one verification of a reduction, and the judge of its result."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.reduce.problem import ReduceProblem
from autotune.space.family import Case


class ReduceCase(Case):
    """Random rows, gaps between them filled with NaN, the output poisoned; a float64 reference.

    An even seed draws odd eighths: their sums are exact in float32 in any order, so that a sum of float32 has to be
    exact, and one element missing or counted twice shows in a row of any length. An odd seed draws from [-1, 1),
    judged by a tolerance, and puts NaN or an infinity into some rows.
    """

    DISTINCT_ELEMENTS = 2**23
    """Beyond these the rows come again: drawing and judging more would take longer than everything else."""
    SPECIAL_ROWS = 3
    """Rows of each special kind, where there are rows enough."""

    def __init__(self, problem: ReduceProblem, seed: int) -> None:
        self._problem = p = problem
        self._is_exact = seed % 2 == 0
        rng = np.random.default_rng(seed)
        shape = (min(p.batch, max(1, self.DISTINCT_ELEMENTS // p.pitch)), p.pitch)
        if self._is_exact:
            values = (rng.integers(-4, 4, shape, dtype=np.int8) * 2 + 1).astype(np.float32) / np.float32(8)
        else:
            values = rng.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)
            self._make_special(values, rng)
        values[:, p.channels :] = np.nan
        self._rows = values.astype(p.dtype)
        self.inputs: Mapping[str, NDArray[Any]] = {
            "input": self._rows if len(values) == p.batch else np.resize(self._rows, (p.batch, p.pitch)),
            "output": np.full(p.batch, np.nan, dtype=p.dtype),
        }
        self.scalars: Mapping[str, float] = {}

    def _make_special(self, values: NDArray[np.float32], rng: np.random.Generator) -> None:
        """NaN and infinities in a quarter of the rows at most, each kind: with one row there is none, since that
        one must show rounding too. For max and min also rows that hold nothing but the worst there is."""
        p = self._problem
        count = min(len(values) // 4, self.SPECIAL_ROWS)
        for special in (np.nan, np.inf, -np.inf):
            rows = rng.choice(len(values), count, replace=False)
            values[rows, rng.integers(p.channels, size=count)] = special
        if p.operation in ("max", "min"):
            values[rng.choice(len(values), count, replace=False)] = -np.inf if p.operation == "max" else np.inf

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        output = outputs["output"].astype(np.float64)
        expected, tolerance = self._expected
        finite = np.isfinite(expected)
        if not np.array_equal(output[~finite], expected[~finite], equal_nan=True):
            return math.inf
        if not np.isfinite(output[finite]).all():
            return math.inf
        error = np.abs(output[finite] - expected[finite])
        return float((error / tolerance[finite]).max(initial=0.0))

    @cached_property
    def _expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Results of all rows, and the error allowed to each."""
        p = self._problem
        rows = self._rows[:, : p.channels].astype(np.float64)
        with np.errstate(invalid="ignore"):
            expected = getattr(rows, p.operation)(axis=1)
        return np.resize(expected, p.batch), np.resize(self._tolerance(rows, expected), p.batch)

    def _tolerance(self, rows: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """A largest and a smallest element are exact. A sum may be rounded to the type of the output, and where it
        is not exact each addition rounds: one after the other, the error of random terms came to 1.9 epsilon times
        their norm times the root of their number, at most, among millions of rows."""
        p = self._problem
        exact = np.full(len(expected), 1e-30)
        if p.operation in ("max", "min"):
            return exact
        if not self._is_exact:
            norm = np.sqrt((rows * rows).sum(axis=1)) / (p.channels if p.operation == "mean" else 1)
            exact += 2.0**-23 * (4.0 + 2.5 * math.sqrt(p.channels)) * norm
        if p.dtype == "float16":
            return exact + 2.0**-10 * np.abs(expected) + 2.0**-24
        return exact + (4 * 2.0**-24 * np.abs(expected) if p.operation == "mean" else 0.0)
