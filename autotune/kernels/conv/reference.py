"""Verification of convolutions: fresh random operands, and the check of the results against a float64 reference."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernels.conv.plan import BASELINE, PLAN
from autotune.kernels.conv.problem import ConvProblem
from autotune.space.case import Case

Images = NDArray[np.float64]
"""Shape (batch, channels, height, width)."""
HALF_STEPS = 6.0
"""Rounding errors of float16 that Winograd's algorithm may add where its squares of 2 x 2 are stored in that type: in
simulations the largest was 2.6. Squares of 4 x 4 need 40, which would hide a missing product: none are stored so."""


class ConvCase(Case):
    """Random operands; some images and some filters are much larger or smaller than others.

    What fills the last four channels of nc4hw4 is zero, and must be zero in the output, which starts poisoned.
    """

    MULTIPLICATIONS = 2**32
    """Those that the comparison may take: of larger problems, filters drawn at random are compared."""

    def __init__(self, problem: ConvProblem, seed: int) -> None:
        self._problem = p = problem
        self._rng = rng = np.random.default_rng(seed)
        self.scalars: Mapping[str, float] = dict(PLAN.scalars)
        sizes = np.array([1, 1, 1, 4, 0.05], np.float32)
        images = rng.standard_normal((p.batch, p.channels, p.height, p.width), dtype=np.float32)
        images *= rng.choice(sizes, (p.batch, 1, 1, 1))
        weights = rng.standard_normal(p.weights_shape, dtype=np.float32)
        weights *= rng.choice(sizes, (p.weights_shape[0], 1, 1, 1))
        bias = rng.standard_normal(p.filters, dtype=np.float32)
        residual = rng.standard_normal((p.batch, p.filters, p.out_height, p.out_width), dtype=np.float32)
        self._drawn = {
            name: values.astype(p.dtype)
            for name, values in (("input", images), ("weights", weights), ("bias", bias), ("residual", residual))
        }
        given = {
            **self._drawn,
            "input": in_layout(self._drawn["input"], p.layout),
            "residual": in_layout(self._drawn["residual"], p.layout),
            "output": np.full(p.stored_shape(p.filters, p.out_height, p.out_width), np.nan, p.dtype),
        }
        wanted = {buffer.name for buffer in PLAN.plan(p, BASELINE).buffers}
        self.inputs: Mapping[str, NDArray[Any]] = {n: np.ascontiguousarray(a) for n, a in given.items() if n in wanted}

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        p = self._problem
        found = outputs["output"].reshape(p.stored_shape(p.filters, p.out_height, p.out_width))
        if p.layout == "nc4hw4" and found.swapaxes(2, 4)[:, -1, (p.filters - 1) % 4 + 1 :].any():
            return math.inf
        filters, expected, tolerance = self._expected
        results = from_layout(found, p.layout, p.filters)[:, filters].astype(np.float64)
        return float((np.abs(results - expected) / tolerance).max())

    @cached_property
    def _expected(self) -> tuple[NDArray[np.intp], Images, Images]:
        """The filters compared, their results, and how far these may be wrong."""
        p = self._problem
        given = {name: values.astype(np.float64) for name, values in self._drawn.items()}
        filters = self._compared_filters()
        sums = convolved(p, given["input"], given["weights"], filters)
        squares = convolved(p, given["input"] ** 2, given["weights"] ** 2, filters)
        added = [given["bias"][filters][None, :, None, None]] if p.bias == "bias" else []
        added += [given["residual"][:, filters]] if p.residual == "residual" else []
        with np.errstate(over="ignore"):
            expected = self._activated(sum(added, sums))
        return filters, expected, self._tolerance(squares, sum(map(np.abs, added), np.abs(sums)), expected)

    def _compared_filters(self) -> NDArray[np.intp]:
        p = self._problem
        most = max(2, self.MULTIPLICATIONS * p.filters // max(p.multiply_adds, 1))
        if most >= p.filters:
            return np.arange(p.filters)
        return np.unique([0, p.filters - 1, *self._rng.integers(0, p.filters, most)])

    def _activated(self, values: Images) -> Images:
        slope = self.scalars["slope"]
        functions: dict[str, Callable[[Images], Images]] = {
            "none": lambda v: v,
            "relu": lambda v: np.maximum(v, 0),
            "relu6": lambda v: np.clip(v, 0, 6),
            "leaky": lambda v: np.where(v < 0, slope * v, v),
            "silu": lambda v: v / (1 + np.exp(-v)),
            "hard_swish": lambda v: v * np.clip(v + 3, 0, 6) / 6,
        }
        return functions[self._problem.activation](values)

    def _tolerance(self, squares: Images, size: Images, expected: Images) -> Images:
        """Return the allowed error: a few rounding errors of the norm of the products, times what Winograd may add.

        Added one after the other, k random products round by about 0.2 sqrt(k) epsilon of that norm, and the largest of
        millions of results by five times that. Activations change an error by at most 1.5 times.
        """
        p = self._problem
        summed = float(np.finfo(p.accumulator).eps)
        terms = p.channels // p.groups * p.kernel_height * p.kernel_width
        errors = summed * (6 + 1.3 * math.sqrt(terms)) * np.sqrt(squares)
        steps = {p.stride_y, p.stride_x, p.dilation_y, p.dilation_x, p.groups}
        if not p.is_transposed and (p.kernel_height, p.kernel_width) == (3, 3) and steps == {1}:
            around = np.sqrt(largest_around(squares, 3))  # all pixels of a square share its rounding errors
            # Winograd's transforms multiply by up to 64, so that larger numbers than the result are added: the largest
            # error of squares of 4 x 4 in simulations was 77 of float32 for one channel, 226 for 64 and 696 for 512.
            errors = errors + (200 + 40 * math.sqrt(p.channels)) * 2.0**-23 * around
            if p.dtype == "float16":
                errors = errors + HALF_STEPS * 2.0**-10 * around
        errors = errors + 4 * summed * size
        if p.dtype == "float16":
            errors = errors + 2.0**-10 * (np.abs(expected) + 2.0**-14)
        return 1.5 * errors + 1e-30


def in_layout(images: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return images of shape (batch, channels, height, width) as they lie in memory, filled up with zeros."""
    if layout == "nchw":
        return images
    if layout == "nhwc":
        return np.moveaxis(images, 1, 3)
    batch, channels, *sides = images.shape
    filled = np.zeros((batch, -(-channels // 4) * 4, *sides), images.dtype)
    filled[:, :channels] = images
    return np.moveaxis(filled.reshape(batch, -1, 4, *sides), 2, 4)


def from_layout(stored: NDArray[Any], layout: str, channels: int) -> NDArray[Any]:
    """Inverse of `in_layout`."""
    if layout == "nchw":
        return stored
    if layout == "nhwc":
        return np.moveaxis(stored, 3, 1)
    batch, _, *sides, _ = stored.shape
    return np.moveaxis(stored, 4, 2).reshape(batch, -1, *sides)[:, :channels]


def largest_around(images: Images, distance: int) -> Images:
    """Return the largest value within a square around each pixel."""
    for axis in (2, 3):
        ends = [(distance, distance) if n == axis else (0, 0) for n in range(4)]
        padded = np.pad(images, ends)
        images = np.lib.stride_tricks.sliding_window_view(padded, 2 * distance + 1, axis).max(axis=-1)
    return images


def convolved(p: ConvProblem, images: Images, weights: Images, filters: NDArray[np.intp]) -> Images:
    """Return the sums of the given filters, one tap of the window after the other."""
    sums = np.zeros((p.batch, len(filters), p.out_height, p.out_width))
    own, of_group = p.filters // p.groups, p.channels // p.groups
    for group in np.unique(filters // own):
        places = np.flatnonzero(filters // own == group)
        inner = filters[places] % own
        channels = slice(group * of_group, (group + 1) * of_group)
        if p.is_transposed:
            of_group_weights = weights[channels][:, inner].swapaxes(0, 1)
        else:
            of_group_weights = weights[filters[places]]
        for ky in range(p.kernel_height):
            out_y, in_y = _met(p.out_height, p.height, ky * p.dilation_y, p.stride_y, p.pad_top, p.is_transposed)
            for kx in range(p.kernel_width):
                out_x, in_x = _met(p.out_width, p.width, kx * p.dilation_x, p.stride_x, p.pad_left, p.is_transposed)
                read = images[:, channels][:, :, in_y[:, None], in_x]
                product = np.einsum("nchw,fc->nfhw", read, of_group_weights[:, :, ky, kx], optimize=True)
                sums[:, places[:, None, None], out_y[:, None], out_x] += product
    return sums


def _met(out: int, size: int, offset: int, stride: int, pad: int, is_transposed: bool) -> tuple[Any, Any]:
    """Return the places of the output along an axis for which a tap is inside the input, and those it reads."""
    near = np.arange(size if is_transposed else out)
    far = near * stride + offset - pad
    inside = (far >= 0) & (far < (out if is_transposed else size))
    return (far[inside], near[inside]) if is_transposed else (near[inside], far[inside])
