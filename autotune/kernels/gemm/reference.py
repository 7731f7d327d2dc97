"""Verification of GEMM: fresh random operands, and the check of the result against a float64 reference."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.gemm.problem import GemmProblem
from autotune.model.draw import Draw
from autotune.model.problem import NUMBER_TYPES
from autotune.space.case import Case

Matrix = NDArray[np.float64]
FAR_ABOVE_0, LARGE, EQUAL = REGIMES = ("numbers far above 0", "large numbers", "zeros and equal numbers")
_DRAWN = ("float32", "float16", "int8")
"""Types whose values are what was drawn, or that rounded."""


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A test of one matrix of C: what `view` makes of it, compared with what that must be."""

    view: Callable[[NDArray[Any]], Matrix]
    expected: Matrix
    tolerance: Matrix

    def error(self, after: NDArray[Any]) -> float:
        """Return the largest ratio of error to tolerance. `after` is the computed C, shape (m, n)."""
        difference = self.view(after) - self.expected
        np.abs(difference, out=difference)
        difference /= self.tolerance
        return float(difference.max())


@dataclass(frozen=True, kw_only=True)
class _Lengths:
    """Squared Euclidean norms of the rows of op(A), shape (m,), and of the columns of op(B), shape (n,)."""

    rows: Matrix
    columns: Matrix


class GemmCase(Case):
    """Random operands: floats in [-1, 1) or integers in [-128, 127].

    Gaps between rows are poisoned with NaN, or with the type's largest integer. An even seed gives alpha 1, beta 0
    and a poisoned C. An odd seed gives a random C with random alpha and beta, which are 3 and -2 for integers.

    In a regime, all operands have other numbers, which keep sums within the types.
    """

    FULL_REFERENCE_MACS = 2**27
    """Up to this many multiply-adds in a batch, every output is compared with a float64 reference. Above it, sampled
    rows and columns are, and a random combination of the rows checks every column (Freivalds 1979)."""
    KEPT_OUTPUTS = 2**22
    """With more outputs than this, a full reference is not kept but computed again for every result."""

    def __init__(self, problem: GemmProblem, seed: int, regime: str = "") -> None:
        self._problem = problem
        self._regime = regime
        self._rng = np.random.default_rng(seed)
        self._draws: dict[str, Draw] = {}
        self.draws = self._draws
        self._stored = {operand: self._random(operand) for operand in "abc"}
        self._has_beta = bool(seed % 2)
        alpha, beta = 1.0, 0.0
        if self._has_beta and problem.is_whole:
            alpha, beta = 3.0, -2.0
        elif self._has_beta:
            alpha, beta = (float(np.float32(x)) for x in self._rng.uniform(0.5, 2.0, 2))
        else:
            self._poison(self._stored["c"])
            self._draws.pop("c", None)
        self.inputs: Mapping[str, NDArray[Any]] = self._stored
        self.scalars: Mapping[str, float] = {"alpha": alpha, "beta": beta}
        self.reads = frozenset("c") if self._has_beta else frozenset()
        self._kept_checks: list[list[_Check]] | None = None

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        p = self._problem
        c = outputs["c"].reshape(p.batch, p.stride_c)
        if self._has_gaps and not np.array_equal(self._gaps(self._stored["c"]), self._gaps(c)):
            return math.inf
        matrices = self._matrices("c", c)
        if not np.isfinite(matrices).all():
            return math.inf
        return max(check.error(after) for checks, after in zip(self._checks, matrices, strict=True) for check in checks)

    @property
    def _checks(self) -> list[list[_Check]]:
        """The checks of each matrix of the batch; kept unless they take too much memory."""
        if self._kept_checks is not None:
            return self._kept_checks
        p = self._problem
        checks = [self._checks_of(number) for number in range(p.batch)]
        if p.batch * p.m * p.n <= self.KEPT_OUTPUTS or not self._is_full:
            self._kept_checks = checks
        return checks

    @property
    def _is_full(self) -> bool:
        """Whether every output is compared, not only a sample."""
        p = self._problem
        return p.batch * p.m * p.n * p.k <= self.FULL_REFERENCE_MACS

    def _checks_of(self, number: int) -> list[_Check]:
        p = self._problem
        a, b = (self._operand(operand, number) for operand in "ab")
        before = self._matrices("c", self._stored["c"])[number]
        everything = slice(None)
        lengths = _Lengths(rows=np.einsum("ij,ij->i", a, a), columns=np.einsum("ij,ij->j", b, b))
        if self._is_full:
            return [self._block(a, b, before, lengths, everything, everything)]
        share = max(1, self.FULL_REFERENCE_MACS // p.batch)
        rows = self._sample(p.m, max(2, share // (2 * p.n * p.k)))
        columns = self._sample(p.n, max(2, share // (2 * p.m * p.k)))
        return [
            self._block(a, b, before, lengths, rows, everything),
            self._block(a, b, before, lengths, everything, columns),
            self._combination(a, b, before, lengths),
        ]

    def _random(self, operand: str) -> NDArray[Any]:
        """Return a random batch as stored, shape (batch, stride), poisoned outside the matrices."""
        p = self._problem
        dtype = np.dtype(p.dtype(operand))
        size = (p.batch, p.stride(operand))
        drawn = _draw(self._rng, str(dtype), math.prod(size))
        if dtype.kind == "i":
            values: NDArray[Any] = self._rng.integers(-128, 128, size, dtype=np.int16).astype(dtype)
        else:
            values = self._rng.random(size, dtype=np.float32)
            values *= np.float32(2)
            values -= np.float32(1)
            values = values.astype(dtype, copy=False)
        if self._regime:
            values = self._of_regime(values)
        matrices = self._matrices(operand, values)
        if matrices.size == values.size:
            if dtype.name in _DRAWN and not self._regime:
                self._draws[operand] = drawn
            return values
        inner = matrices.copy()
        self._poison(values)
        matrices[:] = inner
        return values

    def _of_regime(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return numbers of the regime for the usual ones. Sums of k products stay below 2**13 where halves occur."""
        p, kind = self._problem, values.dtype
        if kind.kind == "i":
            others = {FAR_ABOVE_0: 100 + values // 5, LARGE: np.where(values < 0, -128, 127), EQUAL: np.sign(values)}
        else:
            halves = "float16" in (p.accumulator, *(p.dtype(operand) for operand in "abc"))
            mean = min(8.0, math.sqrt(2**12 / p.k)) if halves else 8.0
            factor = min(4.0, math.sqrt(2**11 / math.sqrt(p.k))) if halves else 2.0**40
            wide = values.astype(np.float32)
            others = {FAR_ABOVE_0: mean * (1 + wide / 4), LARGE: factor * wide, EQUAL: np.rint(2 * wide) / 2}
        return np.asarray(others[self._regime]).astype(kind)

    def _poison(self, values: NDArray[Any]) -> None:
        values[:] = np.nan if values.dtype.kind == "f" else np.iinfo(values.dtype).max

    def _matrices(self, operand: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view of the matrix elements of stored values: (batch, stride) to (batch, rows, columns)."""
        p = self._problem
        rows, columns = p.stored[operand]
        pitch = p.pitch(operand)
        return values[:, : rows * pitch].reshape(p.batch, rows, pitch)[:, :, :columns]

    @property
    def _has_gaps(self) -> bool:
        p = self._problem
        return p.batch * p.m * p.n != self._stored["c"].size

    def _gaps(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the bits of C, shape (batch, stride), with the elements of the matrices set to 0."""
        bits = values.view(f"u{values.dtype.itemsize}").copy()
        self._matrices("c", bits)[:] = 0
        return bits

    def _operand(self, operand: str, number: int) -> Matrix:
        """Return op(A), shape (m, k), or op(B), shape (k, n), of one matrix of the batch in float64."""
        stored = self._matrices(operand, self._stored[operand])[number].astype(np.float64)
        transposed: Matrix = stored.T
        return transposed if getattr(self._problem, f"trans_{operand}") else stored

    def _sample(self, size: int, count: int) -> NDArray[np.intp]:
        inner = self._rng.choice(size, min(size, count), replace=False)
        return np.unique(np.concatenate([inner, [0, size - 1]]))

    def _block(self, a: Matrix, b: Matrix, before: NDArray[Any], lengths: _Lengths, rows: Any, columns: Any) -> _Check:
        """Return a check of the given rows and columns of C, output by output.

        The tolerance of an output is a few rounding errors of the norm of its row of op(A) times the norm of its
        column of op(B), which grows with k as the outputs do.
        """
        alpha, beta = self.scalars["alpha"], self.scalars["beta"]
        expected = alpha * (a[rows] @ b[:, columns])
        scale = abs(alpha) * np.outer(np.sqrt(lengths.rows[rows]), np.sqrt(lengths.columns[columns]))
        if beta:
            old = beta * before[rows][:, columns].astype(np.float64)
            expected += old
            scale += np.abs(old)
        tolerance = self._tolerance(scale, expected)
        return _Check(view=lambda after: after[rows][:, columns], expected=expected, tolerance=tolerance)

    def _combination(self, a: Matrix, b: Matrix, before: NDArray[Any], lengths: _Lengths) -> _Check:
        """Return a check of w^T C against (w^T A) B for random signs w, which finds a wrong output anywhere."""
        alpha, beta = self.scalars["alpha"], self.scalars["beta"]
        signs = self._rng.choice([-1.0, 1.0], len(a))
        expected = alpha * ((signs @ a) @ b)
        of_a = float(lengths.rows.sum())
        scale = abs(alpha) * math.sqrt(of_a) * np.sqrt(lengths.columns)
        # Usual columns of op(B) are not along the rows of op(A).
        squares = alpha * alpha * of_a * (lengths.columns if self._regime else np.full(b.shape[1], 1 / 3))
        if beta:
            old = beta * before.astype(np.float64)
            expected += signs @ old
            scale += np.sqrt((old * old).sum(axis=0))
            squares += (old * old).sum(axis=0)
        tolerance = self._tolerance(scale, np.sqrt(squares))
        return _Check(view=lambda after: signs @ after.astype(np.float64), expected=expected, tolerance=tolerance)

    def _tolerance(self, scale: Matrix, size: Matrix) -> Matrix:
        """Return the allowed error, of the shape of `scale`, for results of magnitude `size`.

        The rounding error of a sum over k random terms is about 0.2 epsilon of `scale`, and its maximum over
        millions of outputs is below 2; rounding the result to its own type adds half an epsilon of `size`. Where all
        terms have one sign, it is about 0.2 sqrt(k) epsilon of `scale` if they are added one after the other.
        """
        p = self._problem
        summing = _epsilon(p.accumulator) * (4.0 + 0.25 * math.log2(p.k + 1))
        if self._regime == FAR_ABOVE_0:
            summing += _epsilon(p.accumulator) * math.sqrt(p.k)
        rounding = 2.0 * _epsilon(p.dtype("c")) if p.dtype("c") != p.accumulator else 0.0
        smallest = 0.25 if p.is_whole else 1e-7 if p.dtype("c") == "float16" else 1e-30
        return np.asarray(summing * scale + rounding * np.abs(size) + smallest)


def _draw(rng: np.random.Generator, dtype: str, count: int) -> Draw:
    """Return how the next numbers will be drawn."""
    state: Mapping[str, Any] = rng.bit_generator.state
    half = state["uinteger"] if state["has_uint32"] else None
    numbers = state["state"]
    return Draw(dtype=dtype, count=count, state=numbers["state"], increment=numbers["inc"], half=half)


def _epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a type; 0 for integers, which are exact."""
    return 0.0 if NUMBER_TYPES[dtype].is_whole else float(np.finfo(dtype).eps)
