"""What the kernels of the files beside must compute, in NumPy, and inputs that belong together.

Arrays are flat, as a kernel sees them; the names of sizes and arguments are those of the files.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def square_product(width: int, A: Array, B: Array) -> Array:  # noqa: N803
    return A.reshape(width, width).astype(np.float64) @ B.reshape(width, width)


def total(array: Array) -> Array:
    return np.array([array.sum(dtype=np.float64)])


def total_of_16(**inputs: Array) -> Array:
    return np.array([inputs["in"].sum(dtype=np.float64), *[0.0] * 15])


def stencil(width: int, height: int, x_new: Array, x_old: Array) -> Array:
    new, old = x_new.reshape(height, width), x_old.reshape(height, width).astype(np.float64)
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:] + old[1:-1, 1:-1]
    return np.block([[new[:1]], [new[1:-1, :1], around / 5, new[1:-1, -1:]], [new[-1:]]])


def atoms_x(atomInfo: Array) -> Array:  # noqa: N803
    return atomInfo[0::4]


def atoms_y(atomInfo: Array) -> Array:  # noqa: N803
    return atomInfo[1::4]


def atoms_z(atomInfo: Array) -> Array:  # noqa: N803
    return atomInfo[2::4]


def atoms_w(atomInfo: Array) -> Array:  # noqa: N803
    return atomInfo[3::4]


# Products of llama.cpp: weights of m rows and k columns, activations of n rows and k columns; the result has n rows.


# Weights are decoded in parts that stay in the caches.


def _product(weights: Array, activations: Array) -> Array:
    return activations.reshape(-1, weights.shape[1]).astype(np.float64, copy=False) @ weights.T.astype(np.float64)


def _by_rows(weights_of: Callable[..., Array], activations: Array, m: int, *arrays: Array) -> Array:
    """The product with weights whose arrays go row by row."""
    x, found = activations.astype(np.float64), []
    for rows in np.array_split(np.arange(m), -(-m // 64)):
        parts = (array.reshape(m, -1)[rows[0] : rows[-1] + 1] for array in arrays)
        found.append(_product(weights_of(*parts, len(rows)), x))
    return np.concatenate(found, axis=1)


def _weights_q4_0(codes: Array, scales: Array, m: int) -> Array:
    """Blocks of 32 weights of a row: byte j holds weights j and j + 16."""
    blocks = codes.reshape(m, -1, 16)
    both = np.concatenate([blocks & 15, blocks >> 4], axis=2).astype(np.float64) - 8
    return (both * scales.reshape(m, -1, 1)).reshape(m, -1)


def _weights_q8_0(codes: Array, scales: Array, m: int) -> Array:
    return (codes.reshape(m, -1, 32) * scales.reshape(m, -1, 1).astype(np.float64)).reshape(m, -1)


def _weights_noshuffle(codes: Array, scales: Array, m: int) -> Array:
    """Rows of m elements: each has four weights of a column, successive in k; a scale is of 32."""
    nibbles = (codes.view(np.uint16).reshape(-1, 1, m) >> np.array([0, 4, 8, 12]).reshape(1, 4, 1)) & 15
    weights = nibbles.reshape(-1, m).astype(np.float64) - 8
    return (weights * np.repeat(scales.reshape(-1, m).astype(np.float64), 32, axis=0)).T


def product_f32(m: int, src0: Array, src1: Array) -> Array:
    return _product(src0.reshape(m, -1), src1)


product_f16 = vector_f16 = product_f32


def product_q4_0(m: int, src0_q: Array, src0_d: Array, src1: Array) -> Array:
    return _by_rows(_weights_q4_0, src1, m, src0_q, src0_d)


def product_q8_0(m: int, src0_q: Array, src0_d: Array, src1: Array) -> Array:
    return _by_rows(_weights_q8_0, src1, m, src0_q, src0_d)


vector_q4_0, vector_q8_0 = product_q4_0, product_q8_0


def _by_columns(activations: Array, m: int, codes: Array, scales: Array) -> Array:
    """The product with weights of `_weights_noshuffle`, and activations of shape (n, k)."""
    x, total = activations.astype(np.float64), np.zeros((len(activations), m))
    numbers, units = codes.view(np.uint16).reshape(-1, m), scales.reshape(-1, m)
    step = 8 if len(x) > 8 else 1
    for first in range(0, len(units), step):
        own = _weights_noshuffle(numbers[8 * first : 8 * (first + step)], units[first : first + step], m)
        total += x[:, 32 * first : 32 * (first + step)] @ own.T
    return total


def product_noshuffle(m: int, n: int, k: int, src0_q: Array, src0_d: Array, activations: Array) -> Array:
    return _by_columns(activations.reshape(k, -1)[:, :n].T, m, src0_q, src0_d)


def vector_noshuffle(m: int, weights: Array, src0_d: Array, vector: Array) -> Array:
    return _by_columns(vector.reshape(1, -1), m, weights, src0_d)


def sums_of_activations(src1_qa: Array, src1_da: Array) -> Array:
    return src1_qa.reshape(-1, 32).sum(axis=1) * src1_da.astype(np.float64)


def product_dp4a(m: int, k: int, src0_q: Array, src0_d: Array, src1_qa: Array, src1_da: Array, src1_sa: Array) -> Array:
    """The kernel subtracts the 8 of each weight by the sums of the activations, which are rounded."""
    activations = _weights_q8_0(src1_qa, src1_da, src1_qa.size // k)
    rounded = (sums_of_activations(src1_qa, src1_da) - src1_sa).reshape(-1, k // 32) @ src0_d.reshape(-1, m)
    return _by_columns(activations, m, src0_q, src0_d) + 8 * rounded


def _weights_q6_k(low: Array, high: Array, scales: Array, scale: Array, m: int) -> Array:
    """Super-blocks of 256 weights of a row: the lower four bits, the upper two, 16 scales and one for all."""
    low = low.reshape(m, -1, 2, 2, 32).astype(np.int32)
    high = high.reshape(m, -1, 2, 1, 32).astype(np.int32)
    four = np.concatenate([low & 15, low >> 4], axis=3) | ((high >> np.array([0, 2, 4, 6]).reshape(4, 1) & 3) << 4)
    scales = np.repeat(scales.reshape(m, -1, 2, 4, 2), 16, axis=4) * scale.reshape(m, -1, 1, 1, 1).astype(np.float64)
    return ((four - 32) * scales).reshape(m, -1)


def vector_q6_k(m: int, src0_ql: Array, src0_qh: Array, src0_s: Array, src0_d: Array, src1: Array) -> Array:
    return _by_rows(_weights_q6_k, src1, m, src0_ql, src0_qh, src0_s, src0_d)


# Norms and the like of llama.cpp


def gelu(src0: Array) -> Array:
    x = src0.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(0.79788456080286535588 * x * (1 + 0.044715 * x * x)))


def softmax(rows: int, columns: int, heads: int, src0: Array, src1: Array) -> Array:
    x = src0.reshape(heads, rows, columns) * 0.125 + src1.reshape(1, rows, columns)
    powers = np.exp(x.astype(np.float64) - x.max(axis=2, keepdims=True))
    return powers / powers.sum(axis=2, keepdims=True)


def transpose(rows: int, columns: int, input: Array) -> Array:  # noqa: A002
    return input.reshape(rows, columns).T


def rms_norm(columns: int, src0: Array, src1: Array) -> Array:
    x = src0.reshape(-1, columns).astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * src1


def row_sums(columns: int, src0: Array) -> Array:
    return src0.reshape(-1, columns).sum(axis=1, dtype=np.float64)


def rope(width: int, heads: int, positions: Array, src0: Array) -> Array:
    angles = positions.reshape(-1, 1, 1) * 10000.0 ** (-np.arange(0, width, 2) / width)
    first, second = np.split(src0.reshape(-1, heads, width).astype(np.float64), 2, axis=2)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=2)


def convolution_3x3(cout: int, cin: int, w: int, h: int, knl: Array, src: Array) -> Array:
    padded = np.pad(src.reshape(cin, h, w).astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("ochw,cyxhw->oyx", knl.reshape(cout, cin, 3, 3), windows, optimize=True)


# The kernel beside: eight weights in a word, the first in its lowest bits; a scale is of 32.


def scales_of_image_product(m: int, k: int, numbers: np.random.Generator) -> Array:
    return numbers.uniform(0.01, 0.1, m * k // 32)


def image_product(m: int, packed: Array, scales: Array, activations: Array) -> Array:
    codes = (packed.reshape(m, -1, 1) >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    weights = (codes.reshape(m, -1, 32).astype(np.float64) - 8) * scales.reshape(m, -1, 1)
    return _product(weights.reshape(m, -1), activations)


# Attention of llama.cpp: Q and the output are (queries, heads, size), K and V (keys, heads, size).


def causal_mask(n_q: int, n_kv: int, causality: int) -> Array:
    hidden = np.arange(n_kv) > np.arange(n_kv - n_q, n_kv).reshape(-1, 1)
    return np.where(hidden, -np.inf, 0) if causality == 2 else np.zeros(0)


def cache_q8_0(kv_heads: int, n_kv: int, head: int, numbers: np.random.Generator) -> Array:
    """Blocks of a scale and 32 weights."""
    count = kv_heads * n_kv * head // 32
    scales = numbers.uniform(0.004, 0.008, (count, 1)).astype(np.float16)
    codes = numbers.integers(-127, 128, (count, 32), np.int8)
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=1)


def cache_q4_0(kv_heads: int, n_kv: int, head: int, numbers: np.random.Generator) -> Array:
    count = kv_heads * n_kv * head // 32
    scales = numbers.uniform(0.06, 0.12, (count, 1)).astype(np.float16)
    return np.concatenate([scales.view(np.uint8), numbers.integers(0, 256, (count, 16), np.uint8)], axis=1)


USUAL_SCALE = 0.125
"""With a larger one, scores of rounded queries would be far off."""


def _attention(q: Array, k: Array, v: Array, mask: Array | None, shape: tuple[int, int, int], scale: float) -> Array:
    """In float32, which is exact enough for these tolerances: sums of many keys would take long otherwise."""
    q, (kv_heads, group, head) = q.reshape(-1, *shape).astype(np.float32), shape
    k, v = (array.reshape(-1, kv_heads, head).astype(np.float32) for array in (k, v))
    found = np.empty_like(q)
    bias = 0 if mask is None else mask.reshape(len(q), len(k)).astype(np.float32)
    for one, of_group in np.ndindex(kv_heads, group):
        scores = q[:, one, of_group] @ k[:, one].T * np.float32(scale) + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        found[:, one, of_group] = scores @ v[:, one] / scores.sum(axis=1, keepdims=True)
    return found


def attention_f16(
    kv_heads: int, group: int, head: int, q: Array, k: Array, v: Array, mask: Array | None, scale: float
) -> Array:
    return _attention(q, k, v, mask, (kv_heads, group, head), scale)


def attention_q8_0(kv_heads: int, group: int, head: int, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    return _attention(q, _cached_q8_0(k), _cached_q8_0(v), mask, (kv_heads, group, head), USUAL_SCALE)


def attention_q4_0(kv_heads: int, group: int, head: int, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    return _attention(q, _cached_q4_0(k), _cached_q4_0(v), mask, (kv_heads, group, head), USUAL_SCALE)


def _cached_q4_0(cache: Array) -> Array:
    blocks = cache.reshape(-1, 18)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return _weights_q4_0(blocks[:, 2:], scales, len(blocks))


def _cached_q8_0(cache: Array) -> Array:
    blocks = cache.reshape(-1, 34)
    return blocks[:, 2:].view(np.int8) * blocks[:, :2].copy().view(np.float16).astype(np.float32)
