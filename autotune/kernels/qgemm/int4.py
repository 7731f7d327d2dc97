"""4-bit weights as GPTQ and AWQ store them, brought into the order of the int4 formats (see `formats.py`).

Both store the transpose of W, in int32 words of eight nibbles, the lowest bits first, and a weight is
scale * (quant - zero point). For m outputs and k inputs:

- GPTQ: `qweight` (k / 8, m), word (r, c) holding inputs 8r to 8r + 7 of output c; `qzeros` (groups, m / 8), word (g, c)
  holding the zero points of outputs 8c to 8c + 7, each less one; `scales` (groups, m).
- AWQ: `qweight` (k, m / 8) and `qzeros` (groups, m / 8), word (r, c) holding outputs 8c to 8c + 7 in the order 0, 2, 4,
  6, 1, 3, 5, 7; `scales` (groups, m).

Sources: Frantar et al., GPTQ, 2022, and the AutoGPTQ format of files; Lin et al., AWQ, 2023, and its GEMM format.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.kernels.qgemm.formats import FORMATS, UNIT

_NIBBLES = 8
"""In a word."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_MIDDLE = 8
"""Zero point of every group in the symmetric formats."""
_GROUPS = sorted({one.group for one in FORMATS.values() if one.in_arrays}, reverse=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Int4Weights:
    """A matrix in one of the int4 formats."""

    format: str
    shape: tuple[int, int]
    """(m, k)."""
    data: NDArray[np.uint8]
    """Quants, scales and zero points of all rows, one after the other."""


def from_gptq(qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, *, zeros_less_one: bool = True) -> Int4Weights:
    """Convert the arrays of a layer quantised by GPTQ; `zeros_less_one` is False for checkpoints of its format v2.

    `g_idx`, which tells the group of each input, may be passed to make sure that groups are in order. Raises
    ProblemError.
    """
    words, zero_words, scales = _arrays(qweight, qzeros, scales)
    k, m = words.shape[0] * _NIBBLES, words.shape[1]
    quants = _spread(words).transpose(0, 2, 1).reshape(k, m)
    zeros = _spread(zero_words).reshape(len(zero_words), -1)
    group = k // len(scales)
    if g_idx is not None and not np.array_equal(np.asarray(g_idx).reshape(-1), np.arange(k) // max(group, 1)):
        raise ProblemError(
            "the groups are not in order (act-order)", hint="sort the inputs by group, in the activations as well"
        )
    return _weights(quants, zeros + np.uint8(zeros_less_one), scales)


def from_awq(qweight: Any, qzeros: Any, scales: Any) -> Int4Weights:
    """Convert the arrays of a layer quantised by AWQ, in its GEMM format. Raises ProblemError."""
    words, zero_words, scales = _arrays(qweight, qzeros, scales)
    place = np.argsort(_AWQ_ORDER)
    quants, zeros = (_spread(one)[:, :, place].reshape(len(one), -1) for one in (words, zero_words))
    return _weights(quants, zeros, scales)


def _arrays(qweight: Any, qzeros: Any, scales: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    found = tuple(np.asarray(one) for one in (qweight, qzeros, scales))
    for name, one, kinds in zip(("qweight", "qzeros", "scales"), found, ("iu", "iu", "f"), strict=True):
        if one.ndim != 2 or not one.size or one.dtype.kind not in kinds or (kinds == "iu" and one.dtype.itemsize != 4):
            wanted = "int32 words" if kinds == "iu" else "floats"
            raise ProblemError(f"{name} is {one.dtype} of shape {one.shape}, not {wanted} on two axes")
    return found[0], found[1], found[2]


def _spread(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the nibbles of words on one axis more, the lowest first."""
    shifts = np.arange(0, 4 * _NIBBLES, 4, dtype=np.uint32)
    native = np.ascontiguousarray(words, dtype=words.dtype.newbyteorder("="))
    return (native.view(np.uint32)[:, :, None] >> shifts & 15).astype(np.uint8)


def _weights(quants: NDArray[np.uint8], zeros: NDArray[np.uint8], scales: NDArray[Any]) -> Int4Weights:
    """Return weights from quants of shape (k, m) and from zero points and scales of shape (groups, m)."""
    (k, m), groups = quants.shape, len(scales)
    if scales.shape != (groups, m) or zeros.shape != (groups, m) or k % groups:
        raise ProblemError(f"{k} x {m} quants do not go with {zeros.shape} zero points and {scales.shape} scales")
    group = next((size for size in _GROUPS if (k // groups) % size == 0), 0)
    if not group:
        raise ProblemError(
            f"groups have {k // groups} weights", hint=f"there are kernels for multiples of {_GROUPS[-1]}"
        )
    repeats = k // groups // group
    with np.errstate(over="ignore"):
        scales = scales.astype(np.float16)
    if not np.isfinite(scales).all():
        raise ProblemError("scales are infinite or NaN in float16, in which these formats have them")
    in_rows = quants.T.reshape(m, k // UNIT, 2, UNIT // 2)
    parts = [in_rows[:, :, 0] | in_rows[:, :, 1] << 4, _by_rows(scales, repeats).view(np.uint8)]
    is_symmetric = bool((zeros == _MIDDLE).all())
    if not is_symmetric:
        parts.append(_by_rows(zeros, repeats))
    return Int4Weights(
        format=f"int4{'' if is_symmetric else 'z'}-g{group}",
        shape=(m, k),
        data=np.concatenate([part.reshape(-1) for part in parts]),
    )


def _by_rows(of_groups: NDArray[Any], repeats: int) -> NDArray[Any]:
    return np.ascontiguousarray(np.repeat(of_groups.T, repeats, axis=1))
