"""How far an element of an output may be from what is right.

An error is allowed in proportion to the element, or to the usual size of the elements around it, as sums cancel. That
size must be robust: a mask of -1e9 among scores of 1 excuses nothing. Where it is too small, since more cancels than
the result shows, the reference is asked how much rounding the inputs changes it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDINGS = 16
"""Roundings of all inputs that the error of a right kernel may amount to."""
MOST_OF_SIZE = 0.1
"""Most of an element's usual size that they may: where a reference jumps, such as a sign, they would excuse all."""

LEAST_BLOCK = 64
"""Least elements whose usual size is one number: a row, or several short ones."""
USUAL_BLOCK = 256
"""Elements of a block where the reference gives no rows."""
MOST_BLOCKS = 2**14
SAMPLED = 128
"""Elements of a block from which its usual size is taken."""
OUTLIER = 64.0
"""An element this many times the lower quartile is an outlier."""
UNUSUAL_BLOCK = 100.0
"""Most that a block's lower quartile counts, in those of all: most of it may be masked."""


class Sizes:
    """The usual size of the elements of each block of an array."""

    def __init__(self, values: NDArray[np.float64], row: int, *, are_changes: bool = False) -> None:
        """`row` is the number of elements in a row, 0 if there are none. Many changes may be 0 by chance."""
        row = row if 1 < row < len(values) else 0
        least = max(LEAST_BLOCK if row else USUAL_BLOCK, -(-len(values) // MOST_BLOCKS))
        self.block = max(row, 1) * -(-least // max(row, 1))
        sampled = _sampled(values, self.block)
        found: NDArray[np.float64] = np.quantile(sampled, 0.75, axis=1) if are_changes else _usual_sizes(sampled)
        self._of_block = found

    def between(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the usual size around each of these elements."""
        return self._of_block[np.arange(start, stop) // self.block]


def _sampled(values: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Return the magnitudes of some elements of each block, a row each."""
    chosen = np.arange(block)
    if block > SAMPLED:
        chosen = np.sort(np.random.default_rng(0).choice(block, SAMPLED, replace=False))
    starts = np.minimum(np.arange(0, len(values), block), max(0, len(values) - block))
    return np.abs(values[(starts[:, None] + chosen) % len(values)])


def _usual_sizes(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row the root of the mean square of its elements but zeros and outliers."""
    blocks = len(sizes)
    sizes[~np.isfinite(sizes) | (sizes == 0)] = np.inf
    sizes.sort(axis=1)
    counts = np.isfinite(sizes).sum(axis=1)
    everything = np.sort(sizes[np.isfinite(sizes)])
    if not len(everything):
        return np.zeros(blocks)
    quartiles = sizes[np.arange(blocks), np.maximum(counts - 1, 0) // 4]
    quartiles = np.minimum(quartiles, UNUSUAL_BLOCK * everything[(len(everything) - 1) // 4])
    kept = np.where(sizes <= OUTLIER * quartiles[:, None], sizes, 0.0)
    means = np.square(kept / quartiles[:, None]).sum(axis=1) / np.maximum(np.count_nonzero(kept, axis=1), 1)
    found: NDArray[np.float64] = np.sqrt(means) * quartiles
    return np.where(counts > 0, found, 0.0)


def rounded(values: NDArray[Any], numbers: np.random.Generator) -> NDArray[Any]:
    """Return floats with a unit in the last place added or taken away at random, other values as they are."""
    if values.dtype.kind != "f":
        return values
    towards = np.where(numbers.random(values.shape, np.float32) < 0.5, -np.inf, np.inf).astype(values.dtype)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(values) & (values != 0), np.nextafter(values, towards), values)
