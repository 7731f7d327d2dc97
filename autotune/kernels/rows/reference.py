"""Verification of row operations: fresh random rows, and the check of the results against a float64 reference."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.rows.plan import BASELINE, PLAN
from autotune.kernels.rows.problem import RowsProblem
from autotune.space.case import Case

Matrix = NDArray[np.float64]
EPSILON = 2.0**-23


class RowsCase(Case):
    """Random rows, with the gaps between them and the outputs poisoned with NaN.

    Some rows are shifted, so that a softmax that does not subtract the maximum overflows, and a variance from the sum
    of squares loses its digits. A mask leaves out a quarter of the elements. Of four rows or more, one has a NaN with
    odd seeds, which must reach all that depends on it.
    """

    DISTINCT_ELEMENTS = 2**21
    """With more elements the rows repeat, which is checked by comparing bits: the same row gives the same result."""

    def __init__(self, problem: RowsProblem, seed: int) -> None:
        self._problem = p = problem
        self._rng = np.random.default_rng(seed)
        self._rows = min(p.batch, max(1, self.DISTINCT_ELEMENTS // max(p.pitch, p.out_pitch)))
        self.scalars: Mapping[str, float] = dict(PLAN.scalars)
        self._drawn = self._draw(has_nan=seed % 2 == 1 and self._rows >= 4)
        self.inputs: Mapping[str, NDArray[Any]] = {
            **{name: self._stored(name, values) for name, values in self._drawn.items()},
            **{name: np.full(p.batch * p.out_pitch, np.nan, p.dtype) for name in ("output", "sum")},
        }

    def _draw(self, *, has_nan: bool) -> dict[str, NDArray[Any]]:
        """Return the operands of the distinct rows without gaps, in their types."""
        p, rng = self._problem, self._rng
        shape = (self._rows, p.row_elements)
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(3)
        shifts = rng.choice(np.array([0, 0, 0, 20, -20], np.float32), (self._rows, 1))
        if p.operation.startswith("softmax"):
            values += shifts * np.float32(50)  # times the scale: exp of it overflows
        elif p.operation == "layer_norm":
            values += shifts
        if has_nan:
            values[rng.integers(self._rows), rng.integers(p.row_elements)] = np.nan
        drawn = {"input": values.astype(p.dtype)}
        for name in ("residual", "up"):
            drawn[name] = rng.standard_normal((self._rows, p.channels), dtype=np.float32).astype(p.dtype)
        for name in ("weight", "bias"):
            drawn[name] = (rng.standard_normal(p.channels, dtype=np.float32) + np.float32(1)).astype(p.dtype)
        drawn["mask"] = self._draw_mask()
        drawn["positions"] = rng.integers(0, rng.choice([64, 4096, 2**17], self._rows), dtype=np.int32)
        wanted = {buffer.name for buffer in PLAN.plan(p, BASELINE).buffers}
        return {name: values for name, values in drawn.items() if name in wanted}

    def _draw_mask(self) -> NDArray[Any]:
        """Return what is added to the scaled elements: minus infinity for some, but not for all of a row."""
        p, rng = self._problem, self._rng
        shape = (p.channels,) if p.operation == "softmax_mask" else (self._rows, p.channels)
        mask = rng.random(shape, dtype=np.float32) * np.float32(-4)
        mask[mask < -3] = -np.inf
        mask[..., rng.integers(p.channels)] = 0
        return mask.astype(p.dtype)

    def _stored(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return an operand as it lies in memory: all rows, with poisoned gaps."""
        p = self._problem
        if name in ("weight", "bias") or values.shape == (p.channels,):
            return values
        if name == "positions":
            return np.resize(values, p.batch)
        stored = np.full((self._rows, p.pitch), np.nan, p.dtype)
        stored[:, : values.shape[1]] = values
        return np.resize(stored, (p.batch, p.pitch)) if self._rows < p.batch else stored

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        worst = 0.0
        for name, (expected, tolerance) in self._expected.items():
            found = outputs[name].reshape(self._problem.batch, self._problem.out_pitch)
            first = found[: self._rows]
            worst = max(worst, self._ratio(first, expected, tolerance))
            for start in range(self._rows, len(found), self._rows):
                some = found[start : start + self._rows]
                if not np.array_equal(_bits(some), _bits(first[: len(some)])):
                    worst = max(worst, self._ratio(some, expected[: len(some)], tolerance[: len(some)]))
        return worst

    def _ratio(self, found: NDArray[Any], expected: Matrix, tolerance: Matrix) -> float:
        channels = self._problem.channels
        results = found[:, :channels].astype(np.float64)
        if not np.isnan(found[:, channels:]).all():
            return math.inf  # a gap was written
        finite = np.isfinite(expected)
        if not np.array_equal(np.isfinite(results), finite):
            return math.inf
        error = np.abs(results[finite] - expected[finite])
        return float((error / tolerance[finite]).max(initial=0.0))

    @cached_property
    def _expected(self) -> dict[str, tuple[Matrix, Matrix]]:
        """Expected results by output, and the error allowed for each, of shape (distinct rows, channels)."""
        given = {name: values.astype(np.float64) for name, values in self._drawn.items()}
        with np.errstate(all="ignore"):
            found = self._norms(given) if "norm" in self._problem.operation else self._others(given)
            return {
                name: (expected, self._stored_tolerance(expected, error)) for name, (expected, error) in found.items()
            }

    def _stored_tolerance(self, expected: Matrix, error: Matrix) -> Matrix:
        """Return the error allowed once the result was rounded to the type of the output."""
        if self._problem.dtype == "float16":
            return error + 2.0**-10 * np.abs(expected) + 2.0**-24
        return error + 2 * EPSILON * np.abs(expected) + 1e-30

    @property
    def _summing(self) -> float:
        """Relative error of a sum of positive terms, added one after the other: random, so it grows with the root."""
        return EPSILON * (8.0 + math.sqrt(self._problem.channels))

    def _norms(self, given: dict[str, Matrix]) -> dict[str, tuple[Matrix, Matrix]]:
        epsilon, x = self.scalars["epsilon"], given["input"]
        found: dict[str, tuple[Matrix, Matrix]] = {}
        weight = given.get("weight", np.ones(self._problem.channels))
        if "residual" in given:
            x = x + given["residual"]
            found["sum"] = x, np.zeros_like(x)
        size = np.sqrt((x * x).mean(axis=1, keepdims=True))
        centred = x - x.mean(axis=1, keepdims=True) if self._problem.operation == "layer_norm" else x
        factor = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + epsilon)
        expected = centred * factor * weight + given.get("bias", 0.0)
        error = self._summing * np.abs(centred * factor * weight)
        if self._problem.operation == "layer_norm":  # the mean is as exact as the sum of all elements
            shift = EPSILON * 8 * (size + np.abs(x)) * factor
            error += shift * (1 + np.abs(centred) * factor) * np.abs(weight) + EPSILON * np.abs(given["bias"])
        found["output"] = expected, error
        return found

    def _others(self, given: dict[str, Matrix]) -> dict[str, tuple[Matrix, Matrix]]:
        operation = self._problem.operation
        if operation.startswith("softmax"):
            return {"output": self._softmax(given)}
        if operation.startswith("swiglu"):
            gate, up = (given["input"], given["up"]) if "up" in given else np.split(given["input"], 2, axis=1)
            expected = gate / (1 + np.exp(-gate)) * up
            return {"output": (expected, EPSILON * (8 + 2 * np.abs(gate)) * np.abs(expected))}
        return {"output": self._rope(given)}

    def _softmax(self, given: dict[str, Matrix]) -> tuple[Matrix, Matrix]:
        """Rounding the exponent, of the size of the largest element, is most of the error."""
        scaled = given["input"] * self.scalars["scale"] + given.get("mask", 0.0)
        largest = scaled.max(axis=1, keepdims=True)
        raised = np.exp(scaled - largest)
        expected = raised / raised.sum(axis=1, keepdims=True)
        finite = np.where(np.isfinite(scaled), np.abs(scaled), 0.0)
        size = finite.max(axis=1, keepdims=True) + np.abs(given["input"]).max(axis=1, keepdims=True) * 0.125
        return expected, (self._summing + 4 * EPSILON * (1 + size)) * expected + 1e-36

    def _rope(self, given: dict[str, Matrix]) -> tuple[Matrix, Matrix]:
        """The angle is a product of numbers rounded to float32, so its error grows with it."""
        p = self._problem
        pairs = p.channels // p.heads // 2
        exponents = np.arange(pairs) / pairs * math.log2(self.scalars["theta"])
        angles = given["positions"][:, np.newaxis, np.newaxis] * np.exp2(-exponents)
        heads = given["input"].reshape(len(angles), p.heads, 2 * pairs)
        x, y = (heads[..., ::2], heads[..., 1::2]) if p.operation == "rope" else np.split(heads, 2, axis=2)
        cosine, sine = np.cos(angles), np.sin(angles)
        turned = x * cosine - y * sine, x * sine + y * cosine
        error = EPSILON * (8 + angles * (4 + 3 * exponents)) * (np.abs(x) + np.abs(y))
        both = [np.stack(parts, axis=3 if p.operation == "rope" else 2) for parts in (turned, (error, error))]
        expected, allowed = (part.reshape(len(angles), p.channels) for part in both)
        return expected, allowed


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")
