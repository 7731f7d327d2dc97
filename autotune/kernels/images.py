"""Images as NumPy arrays: their layouts in memory, and plain convolutions of them."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from autotune.kernels.conv import ConvProblem

Images = NDArray[np.float64]
"""Shape (batch, channels, height, width)."""


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


def convolved(p: "ConvProblem", images: Images, weights: Images, filters: NDArray[np.intp]) -> Images:
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
    if is_transposed:
        read = np.arange(size)
        places = read * stride + offset - pad
        inside = (places >= 0) & (places < out)
    else:
        places = np.arange(out)
        read = places * stride + offset - pad
        inside = (read >= 0) & (read < size)
    return places[inside], read[inside]
