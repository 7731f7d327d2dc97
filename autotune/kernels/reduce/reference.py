"""Verification of a reduction: fresh random rows, and the check of the result against a float64 reference."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.reduce.problem import ReduceProblem
from autotune.space.case import Case

FAR_ABOVE_0, FAR_BELOW_0, EQUAL = REGIMES = ("numbers far above 0", "numbers far below 0", "zeros and equal numbers")


class ReduceCase(Case):
    """Random rows, with the gaps between them and the output poisoned with NaN.

    An even seed draws odd eighths, whose float32 sums are exact in any order. So a float32 sum must be exact, and a
    missing or doubled element is detected in a row of any length. An odd seed draws from [-1, 1), compares with a
    tolerance, and puts NaN or an infinity into some rows.
    """

    DISTINCT_ELEMENTS = 2**23
    """With more elements the rows repeat: drawing and checking more would take longer than everything else."""
    SPECIAL_ROWS = 3
    """Most rows of each special kind."""

    def __init__(self, problem: ReduceProblem, seed: int, regime: str = "") -> None:
        self._problem = p = problem
        self._regime = regime
        self._is_exact = seed % 2 == 0 and not regime
        rng = np.random.default_rng(seed)
        shape = (min(p.batch, max(1, self.DISTINCT_ELEMENTS // p.pitch)), p.pitch)
        if self._is_exact:
            values = (rng.integers(-4, 4, shape, dtype=np.int8) * 2 + 1).astype(np.float32) / np.float32(8)
        else:
            values = rng.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)
            if regime:
                values = self._of_regime(values)
            else:
                self._make_special(values, rng)
        values[:, p.channels :] = np.nan
        self._rows = values.astype(p.dtype)
        self.inputs: Mapping[str, NDArray[Any]] = {
            "input": self._rows if len(values) == p.batch else np.resize(self._rows, (p.batch, p.pitch)),
            "output": np.full(p.batch, np.nan, dtype=p.dtype),
        }

    def _of_regime(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return numbers of the regime for those in [-1, 1). A sum of them can be held in half precision."""
        mean = np.float32(min(300.0, 2**14 / self._problem.channels) if self._problem.dtype == "float16" else 300.0)
        spread = mean + np.minimum(mean / 4, np.float32(1)) * values
        found: NDArray[np.float32]
        found = {FAR_ABOVE_0: spread, FAR_BELOW_0: -spread, EQUAL: np.rint(values)}[self._regime]
        return found

    def _make_special(self, values: NDArray[np.float32], rng: np.random.Generator) -> None:
        """Put NaN, infinity and minus infinity into at most a quarter of the rows each.

        A single row gets none, since it must show rounding too. For max some rows become all minus infinity, for min
        all infinity.
        """
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
        """Expected results, and the error allowed for each; both of shape (batch,)."""
        p = self._problem
        rows = self._rows[:, : p.channels].astype(np.float64)
        with np.errstate(invalid="ignore"):
            expected = getattr(rows, p.operation)(axis=1)
        return np.resize(expected, p.batch), np.resize(self._tolerance(rows, expected), p.batch)

    def _tolerance(self, rows: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the error allowed for each row, shape (rows,).

        Max and min are exact. A sum may be rounded to the type of the output, and unless it is exact each addition
        rounds: when random terms were added one after the other, the largest error among millions of rows was
        1.9 epsilon times their norm times the square root of their number.
        """
        p = self._problem
        exact = np.full(len(expected), 1e-30)
        if p.operation in ("max", "min"):
            return exact
        if not self._is_exact:
            norm = np.sqrt((rows * rows).sum(axis=1)) / (p.channels if p.operation == "mean" else 1)
            exact += 2.0**-23 * (4.0 + 2.5 * math.sqrt(p.channels)) * norm
            if self._regime:  # terms of one sign, added one after the other
                exact += 2.0**-23 * p.channels * norm
        if p.dtype == "float16":
            return exact + 2.0**-10 * np.abs(expected) + 2.0**-24
        return exact + (4 * 2.0**-24 * np.abs(expected) if p.operation == "mean" else 0.0)
