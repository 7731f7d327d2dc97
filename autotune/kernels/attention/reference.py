"""Verification of attention: fresh random operands, and the check of the results against a float64 reference."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.attention.plan import BASELINE, PLAN
from autotune.kernels.attention.problem import BLOCKS, AttentionProblem
from autotune.kernels.qgemm.blocks import dequantise, random_weights
from autotune.kernels.qgemm.formats import FORMATS
from autotune.space.case import Case

Matrix = NDArray[np.float64]
EPSILON = 2.0**-23
MANY_SCORES = 2**16
"""From so many scores on, sequences have nearly their full length, so that times can be compared."""


class AttentionCase(Case):
    """Random operands; places of K and V behind the last key of a sequence, and the output, are poisoned with NaN.

    Of the heads of a sequence, some have scores so large that they overflow unless the maximum is subtracted, some so
    small that all weights are equal. Sequences of small problems have any length, also none at all.
    """

    MULTIPLICATIONS = 2**29
    """Those that the comparison may take: of larger problems, rows drawn at random are compared, and all others only
    with the largest element of V."""
    DISTINCT_ELEMENTS = 2**22
    """With more, K and V repeat for KV heads and sequences."""

    def __init__(self, problem: AttentionProblem, seed: int) -> None:
        self._problem = p = problem
        self._rng = rng = np.random.default_rng(seed)
        self.scalars: Mapping[str, float] = dict(PLAN.scalars)
        self._lengths = self._random_lengths()
        q = rng.standard_normal((p.batch, p.kv_heads, p.group, p.q_length, p.k_size), dtype=np.float32)
        # Where kernels may round blocks to halves, large scores would be wrong by a multiple of the weights.
        largest = 8 if self._rounds_blocks else 400
        sizes = np.array([1, 1, 1, 0.01, min(largest, 40), largest], np.float32)
        q *= rng.choice(sizes, (p.batch, p.kv_heads, p.group, 1, 1))
        self._q = q.astype(p.dtype)
        self._units = min(p.batch * p.kv_heads, max(1, self.DISTINCT_ELEMENTS // (p.capacity * p.k_size)))
        self._k, k = self._random_cache(p.k_size)
        self._v, v = self._random_cache(p.v_size)
        mask = rng.uniform(-3, 3, (p.batch, p.q_length, p.capacity)) if p.bias == "mask" else np.zeros(1)
        self._mask = np.where(rng.random(mask.shape) < 0.25, -np.inf, mask).astype(p.dtype)
        self._slopes = np.exp2(rng.uniform(-8, 0, p.q_heads)).astype(np.float32)
        self._sinks = rng.uniform(-2, 4, p.q_heads).astype(np.float32)
        self._table = self._random_table()
        given = {
            "q": self._q.reshape(p.batch, p.q_heads, p.q_length, p.k_size).swapaxes(1, 1 if p.layout == "heads" else 2),
            "k": self._in_layout(k),
            "v": self._in_layout(v),
            "lengths": self._lengths.astype(np.int32),
            "mask": self._mask,
            "slopes": self._slopes,
            "sink": self._sinks,
            "table": self._table,
            "output": np.full(p.batch * p.q_heads * p.q_length * p.v_size, np.nan, p.dtype),
        }
        wanted = {buffer.name for buffer in PLAN.plan(p, BASELINE).buffers}
        self.inputs: Mapping[str, NDArray[Any]] = {n: np.ascontiguousarray(a) for n, a in given.items() if n in wanted}

    @property
    def _rounds_blocks(self) -> bool:
        """Whether kernels may round the numbers that blocks stand for to float16."""
        return self._problem.dtype == "float16" and self._problem.kv_type in BLOCKS

    def _random_lengths(self) -> NDArray[np.int64]:
        p, rng = self._problem, self._rng
        most = min(p.kv_length, p.pool // p.batch * p.page) if p.pool else p.kv_length  # so that the pool is enough
        if p.batch * p.q_heads * p.q_length * p.kv_length >= MANY_SCORES:
            return most - rng.integers(0, most // 256 + 1, p.batch)
        lengths = rng.integers(0, most + 1, p.batch)
        lengths[int(rng.integers(p.batch))] = max(most - int(rng.integers(0, 4)), 0)
        return lengths

    def _random_table(self) -> NDArray[np.int32]:
        """Return pages of each sequence, shape (batch, pages), of which those behind its last key may be any."""
        p, rng = self._problem, self._rng
        pool = p.pool or p.batch * p.pages
        table = rng.integers(0, pool, (p.batch, p.pages), dtype=np.int32)
        in_use = np.arange(p.pages) * p.page < self._lengths[:, None]
        table[in_use] = rng.permutation(pool)[: in_use.sum()]
        return table

    def _random_cache(self, size: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return rows of K or V as numbers, shape (units, capacity, size), and as they are stored."""
        p = self._problem
        shape = (self._units, p.capacity, size)
        if p.kv_type in BLOCKS:
            one, rows = FORMATS[p.kv_type], self._units * p.capacity
            stored = random_weights(one, rows, size, self._rng)
            values, offsets = dequantise(stored, one, rows, size)
            return (values - offsets).reshape(shape), stored.reshape(*shape[:2], -1)
        drawn = self._rng.standard_normal(shape, dtype=np.float32).astype(p.kv_type)
        return drawn.astype(np.float32), drawn

    def _in_layout(self, distinct: NDArray[Any]) -> NDArray[Any]:
        """Return K or V as it lies in memory, with poison where there are no keys."""
        p = self._problem
        units = np.resize(np.arange(len(distinct)), (p.batch, p.kv_heads))
        rows = distinct[units]
        poison = 255 if p.kv_type in BLOCKS else np.nan
        for sequence, length in enumerate(self._lengths):
            rows[sequence, :, length:] = poison
        if p.layout == "heads":
            return rows
        rows = rows.swapaxes(1, 2)
        if p.layout == "tokens":
            return rows
        pages = np.full((p.batch, p.pages * p.page, *rows.shape[2:]), poison, rows.dtype)
        pages[:, : p.capacity] = rows
        stored = np.full((p.pool or p.batch * p.pages, p.page, *rows.shape[2:]), poison, rows.dtype)
        in_use = np.arange(p.pages) * p.page < self._lengths[:, None]
        stored[self._table[in_use]] = pages.reshape(*in_use.shape, *stored.shape[1:])[in_use]
        return stored

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        p = self._problem
        shape = (p.kv_heads, p.group, p.v_size)
        if p.layout == "heads":
            found = outputs["output"].reshape(p.batch, *shape[:2], p.q_length, p.v_size)
        else:
            found = np.moveaxis(outputs["output"].reshape(p.batch, p.q_length, *shape), 1, 3)
        if not (np.abs(found) <= 1.01 * np.abs(self._v).max()).all():
            return math.inf
        worst = 0.0
        for sequence, head, heads, queries, expected, tolerance in self._expected:
            error = np.abs(found[sequence, head, heads, queries].astype(np.float64) - expected)
            worst = max(worst, float((error / tolerance).max()))
        return worst

    @cached_property
    def _expected(self) -> list[tuple[int, int, NDArray[np.intp], NDArray[np.intp], Matrix, Matrix]]:
        """For compared rows their sequence, KV head, heads in its group, and queries; what is expected, and tolerances.

        The last two have shape (rows, v_size).
        """
        return [(*rows, *self._results(*rows)) for rows in self._compared_rows()]

    def _compared_rows(self) -> Iterator[tuple[int, int, NDArray[np.intp], NDArray[np.intp]]]:
        p = self._problem
        shape = (p.batch * p.kv_heads, p.q_length * p.group)
        count, of_row = math.prod(shape), p.kv_length * (p.k_size + p.v_size)
        chosen = np.arange(count)
        if count * of_row > self.MULTIPLICATIONS:
            drawn = self._rng.integers(0, count, max(8, self.MULTIPLICATIONS // of_row))
            chosen = np.unique([0, count - 1, *drawn])
        pairs, rows = np.unravel_index(chosen, shape)
        for pair in np.unique(pairs):
            own = rows[pairs == pair]
            yield int(pair) // p.kv_heads, int(pair) % p.kv_heads, own % p.group, own // p.group

    def _results(
        self, sequence: int, head: int, heads: NDArray[np.intp], queries: NDArray[np.intp]
    ) -> tuple[Matrix, Matrix]:
        """Return what rows must be, and by how much they may be wrong: rounding a score is most of the error."""
        p, length = self._problem, int(self._lengths[sequence])
        unit = (sequence * p.kv_heads + head) % self._units
        operands = (self._q[sequence, head, heads, queries], self._k[unit, :length], self._v[unit, :length])
        q, k, v = (operand.astype(np.float64) for operand in operands)
        size = np.abs(q) @ np.abs(k).T * self.scalars["scale"]
        if self._rounds_blocks:
            size += 2.0**-13 / EPSILON * np.sqrt(q**2 @ (k**2).T) * self.scalars["scale"]
        scores = q @ k.T * self.scalars["scale"]
        if p.capping == "capped":
            scores = self.scalars["cap"] * np.tanh(scores / self.scalars["cap"])
        keys, places = np.arange(length), (length - p.q_length + queries)[:, None]
        if p.bias == "mask":
            scores += self._mask[sequence, queries, :length]
        elif p.bias == "alibi":
            slope = self._slopes[head * p.group + heads][:, None]
            scores += slope * (keys - places)
            size += np.abs(slope * (keys - places))
        hidden = keys > places if p.causality == "causal" else np.zeros(scores.shape, bool)
        if p.window:
            hidden |= np.abs(keys - places) >= p.window
        scores = np.where(hidden, -np.inf, scores)
        largest = scores.max(axis=1, keepdims=True, initial=-1e30)
        sinks = self._sinks[head * p.group + heads][:, None] if p.sinks == "sinks" else np.full_like(largest, -np.inf)
        largest = np.maximum(largest, sinks)
        weights = np.exp(scores - largest)
        total = weights.sum(axis=1, keepdims=True) + np.exp(sinks - largest)
        weights /= np.where(total > 0, total, 1)
        shift = np.where(np.isfinite(scores), size, 0).max(axis=1, keepdims=True, initial=0.0)
        error = EPSILON * (16 + 8 * shift + math.sqrt(length)) * (weights @ np.abs(v))
        if p.dtype == "float16":  # kernels may round weights, too
            error += 2.0**-10 * (weights @ np.abs(v)) + 2.0**-24
        return weights @ v, error + 1e-30
