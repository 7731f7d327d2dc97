"""Quantised weights as arrays: what blocks of each format in `formats.py` stand for, and random ones."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.qgemm.formats import SUPER_UNITS, UNIT, WeightFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""Twice the numbers that 4-bit floats stand for."""


def dequantise(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    """Return scale * quant and the offset of each weight, both of shape (rows, k): a weight is their difference.

    `weights` are the bytes of whole rows, blocks as in the file. For formats that hold arrays they are those of
    the matrix: its quants, scales and zero points one after the other.
    """
    return _READERS["int4" if one.in_arrays else one.name](weights, one, rows, k)


def rows_of(weights: Bytes, one: WeightFormat, rows: int, k: int, first: int, count: int) -> Bytes:
    """Return the bytes of some of the rows of a matrix, in the form that `dequantise` takes."""
    if not one.in_arrays:
        row_bytes = k // one.block * one.block_bytes
        return weights[first * row_bytes : (first + count) * row_bytes]
    found, start = [], 0
    for row_bytes in _array_bytes(one, k):
        found.append(weights[start + first * row_bytes : start + (first + count) * row_bytes])
        start += rows * row_bytes
    return np.concatenate(found)


def random_weights(one: WeightFormat, rows: int, k: int, rng: np.random.Generator) -> Bytes:
    """Return random weights of about unit size: every quant occurs, scales differ from block to block."""
    blocks = rows * (k // one.block)
    raw = rng.integers(0, 256, (blocks, one.block_bytes), dtype=np.uint8)
    if one.in_arrays:
        groups = rng.uniform(0.05, 0.2, blocks).astype(np.float16).view(np.uint8)
        parts = [raw[:, : one.block // 2].ravel(), groups]
        if one.has_zero_points:
            parts.append(rng.integers(0, 16, blocks, dtype=np.uint8))
        return np.concatenate(parts)
    if one.name == "mxfp4":
        raw[:, 0] = rng.integers(122, 130, blocks)
        return raw.ravel()
    spread = {"q4_0": 0.2, "q8_0": 0.01, "q4_k": 0.005, "q6_k": 0.0005}[one.name]
    first = 208 if one.name == "q6_k" else 0
    count = 2 if one.name == "q4_k" else 1
    scales = (rng.uniform(0.5, 1.0, (blocks, count)) * spread * rng.choice((-1, 1), (blocks, count))).astype(np.float16)
    raw[:, first : first + 2 * count] = scales.view(np.uint8)
    return raw.ravel()


def _array_bytes(one: WeightFormat, k: int) -> tuple[int, ...]:
    """Return the bytes of a row in each array of a format that holds arrays."""
    groups = k // one.group
    return (k // 2, 2 * groups, *((groups,) if one.has_zero_points else ()))


def _nibbles(quants: Bytes) -> Bytes:
    """Return 4-bit numbers in order, shape (..., 32), from the bytes of units, shape (..., 16)."""
    return np.concatenate([quants & 15, quants >> 4], axis=-1)


def _halves(raw: Bytes) -> Floats:
    """Return float16 numbers, shape (blocks, 1), from their bytes, shape (blocks, 2)."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _without_offset(values: Floats, rows: int, k: int) -> tuple[Floats, Floats]:
    return values.reshape(rows, k), np.zeros((rows, k), dtype=np.float32)


def _q4_0(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    blocks = weights.reshape(-1, one.block_bytes)
    scale = _halves(blocks[:, :2])
    values = scale * _nibbles(blocks[:, 2:])
    return values.reshape(rows, k), np.repeat(8 * scale, UNIT).reshape(rows, k)


def _q8_0(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    blocks = weights.reshape(-1, one.block_bytes)
    return _without_offset(_halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8), rows, k)


def _mxfp4(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    blocks = weights.reshape(-1, one.block_bytes)
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _without_offset(scale * _FP4[_nibbles(blocks[:, 1:])], rows, k)


def _q4_k(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    blocks = weights.reshape(-1, one.block_bytes)
    packed = blocks[:, 4:16]
    scales = np.concatenate([packed[:, :4] & 63, (packed[:, 8:] & 15) | (packed[:, :4] >> 6 << 4)], axis=1)
    offsets = np.concatenate([packed[:, 4:8] & 63, (packed[:, 8:] >> 4) | (packed[:, 4:8] >> 6 << 4)], axis=1)
    pairs = blocks[:, 16:].reshape(-1, SUPER_UNITS // 2, UNIT)
    quants = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, SUPER_UNITS, UNIT)
    values = (_halves(blocks[:, :2]) * scales)[:, :, None] * quants
    offset = np.repeat(_halves(blocks[:, 2:4]) * offsets, UNIT)
    return values.reshape(rows, k), offset.reshape(rows, k)


def _q6_k(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    blocks = weights.reshape(-1, one.block_bytes)
    low = blocks[:, :128].reshape(-1, 2, 2, UNIT)
    low = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, UNIT)
    high = blocks[:, 128:192].reshape(-1, 2, 1, UNIT) >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1) & 3
    quants = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)
    return _without_offset(quants.reshape(-1, 16, UNIT // 2) * scales[:, :, None], rows, k)


def _int4(weights: Bytes, one: WeightFormat, rows: int, k: int) -> tuple[Floats, Floats]:
    quants, scale_bytes, *zero_bytes = _array_bytes(one, k)
    scales = _halves(weights[rows * quants : rows * (quants + scale_bytes)].reshape(-1, 2))
    numbers = _nibbles(weights[: rows * quants].reshape(-1, 16)).reshape(rows, k)
    values = np.repeat(scales, one.group).reshape(rows, k) * numbers
    zeros = weights[rows * (quants + scale_bytes) :].reshape(-1, 1) if zero_bytes else np.full_like(scales, 8)
    return values, np.repeat(scales * zeros, one.group).reshape(rows, k)


_READERS: dict[str, Callable[[Bytes, WeightFormat, int, int], tuple[Floats, Floats]]] = {
    "q4_0": _q4_0, "q8_0": _q8_0, "mxfp4": _mxfp4, "q4_k": _q4_k, "q6_k": _q6_k, "int4": _int4,
}  # fmt: skip
