"""Memory that both host and device can access, as NumPy views; nothing is copied where the two share memory.

The driver chooses the place (CL_MEM_ALLOC_HOST_PTR). The host may access it while it is mapped, the device while it is
not: `give` unmaps it before kernels run, `take` maps it again after them. Views stay valid throughout, but their
contents are defined only while the memory is mapped.
"""

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import DTypeLike, NDArray

from autotune.device.session import CHANNELS
from autotune.errors import LaunchError, ProblemError

_PIXEL = 4
"""Elements per pixel of an image: red, green, blue, alpha."""

_FOR_BOTH: Any = cl.map_flags.READ | cl.map_flags.WRITE


class SharedMemory:
    """A buffer or an image mapped for the host. NumPy arrays made from it keep it alive."""

    def __init__(self, queue: cl.CommandQueue, memory: cl.Buffer | cl.Image, shape: tuple[int, ...], dtype: Any):
        """`shape` is that of the matrix or matrices in it, which an image holds one below the other."""
        self.memory = memory
        self.is_image = isinstance(memory, cl.Image)
        self.context = queue.context
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._mapping: Any = None
        self._row_bytes = 0
        self.address = self._map(queue)
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": self._strides(),
            "typestr": self.dtype.str,
            "data": (self.address, False),
        }

    def is_whole(self, array: NDArray[Any]) -> bool:
        """Whether an array is all of this memory, with the same strides; an image cannot be used in part."""
        address: int = array.__array_interface__["data"][0]
        return (array.shape, array.strides, address) == (self.shape, np.asarray(self).strides, self.address)

    @property
    def size_bytes(self) -> int:
        return int(self.memory.size)

    def give(self, queue: cl.CommandQueue) -> None:
        """Unmap it for the device: kernels enqueued from now on see what the host has written."""
        if self._mapping is not None:
            self._mapping.release(queue)
            self._mapping = None

    def take(self, queue: cl.CommandQueue, *, wait: bool = True) -> None:
        """Map it for the host again, after everything enqueued; waits for that if `wait` is set. Raises LaunchError."""
        if self._mapping is None and self._map(queue, wait=wait) != self.address:
            raise LaunchError("the driver mapped memory to a different address; its NumPy views are now invalid")

    def _map(self, queue: cl.CommandQueue, *, wait: bool = True) -> int:
        try:
            view = self._map_image(queue, wait) if self.is_image else self._map_buffer(queue, wait)
        except cl.Error as error:
            raise LaunchError(f"memory cannot be mapped: {error}") from error
        self._mapping = view.base
        return int(view.__array_interface__["data"][0])

    def _map_buffer(self, queue: cl.CommandQueue, wait: bool) -> NDArray[Any]:
        assert isinstance(self.memory, cl.Buffer)
        shape = (self.size_bytes,)
        view, _ = cl.enqueue_map_buffer(queue, self.memory, _FOR_BOTH, 0, shape, np.dtype("uint8"), is_blocking=wait)
        mapped: NDArray[Any] = view
        return mapped

    def _map_image(self, queue: cl.CommandQueue, wait: bool) -> NDArray[Any]:
        assert isinstance(self.memory, cl.Image)
        region = (self.memory.width, self.memory.height)
        view, _, row_bytes, _ = cl.enqueue_map_image(
            queue, self.memory, _FOR_BOTH, (0, 0), region, (1,), self.dtype, is_blocking=wait
        )
        self._row_bytes = int(row_bytes)
        return view

    def _strides(self) -> tuple[int, ...] | None:
        """Return an image's strides, from its row pitch; None for a buffer, whose rows are contiguous."""
        if not self.is_image:
            return None
        within = (self._row_bytes, self.dtype.itemsize)
        return within if len(self.shape) == 2 else (self.shape[-2] * self._row_bytes, *within)


def allocate_shared(
    queue: cl.CommandQueue, shape: int | Sequence[int], dtype: DTypeLike, *, image: bool = False
) -> NDArray[Any]:
    """Return zeros in memory that host and device share; an image pads rows to whole pixels and to its pitch.

    An image has shape (rows, columns) or (batch, rows, columns). Raises ProblemError for an invalid shape or type,
    LaunchError when the memory cannot be allocated.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(index(size) for size in shape)
    wanted = np.dtype(dtype)
    if any(size < 1 for size in sizes) or not sizes:
        raise ProblemError(f"memory of shape {sizes} cannot be allocated")
    if wanted.name not in CHANNELS and (image or wanted.hasobject):
        raise ProblemError(f"memory cannot hold {wanted.name} here", hint=f"images hold {', '.join(CHANNELS)}")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    try:
        memory: cl.Buffer | cl.Image
        if image:
            memory = cl.create_image(
                queue.context, flags, cl.ImageFormat(cl.channel_order.RGBA, CHANNELS[wanted.name]), _pixels(sizes)
            )
        else:
            memory = cl.Buffer(queue.context, flags, size=int(np.prod(sizes, dtype=np.int64)) * wanted.itemsize)
    except cl.Error as error:
        raise LaunchError(f"cannot allocate {wanted.name} of shape {sizes}: {error}") from error
    array = np.asarray(SharedMemory(queue, memory, sizes, wanted))
    if image:  # kernels read the last pixel of a row whole
        padded = -(-sizes[-1] // _PIXEL) * _PIXEL
        np.lib.stride_tricks.as_strided(array, (*sizes[:-1], padded))[...] = 0
    else:
        array[...] = 0
    return array


def shared_memory(array: NDArray[Any]) -> SharedMemory | None:
    """Return the memory of an array from `allocate_shared` or of a view into one; None for other arrays."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, SharedMemory) else None


def share_elements(one: Any, other: Any) -> bool:
    """Whether two operands overlap in an element: NumPy arrays, or pyopencl arrays in one buffer."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.shares_memory(one, other)
    memory = getattr(one, "base_data", one)
    if memory is one or memory is not getattr(other, "base_data", other):
        return one is other
    (first_low, first_high), (second_low, second_high) = _bounds(one), _bounds(other)
    if first_high <= second_low or second_high <= first_low:
        return False
    stage = np.empty(memory.size, np.int8)  # never accessed: NumPy only compares addresses
    first, second = (np.ndarray(x.shape, x.dtype, stage, x.offset, x.strides) for x in (one, other))
    return np.shares_memory(first, second)


def _bounds(array: Any) -> tuple[int, int]:
    """Return the offset of an array's first byte in its buffer, and of the byte after its last."""
    reaches = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first = array.offset + sum(min(0, reach) for reach in reaches)
    return first, array.offset + sum(max(0, reach) for reach in reaches) + array.dtype.itemsize


def part_of(memory: cl.Buffer, offset_bytes: int, what: str) -> cl.Buffer:
    """Return the buffer from an offset on. Raises ProblemError when a buffer cannot begin there on the device."""
    if not offset_bytes:
        return memory
    try:
        return memory.get_sub_region(offset_bytes, memory.size - offset_bytes)
    except cl.Error as error:
        raise ProblemError(
            f"{what} begins {offset_bytes} bytes into its memory, where this device cannot begin a buffer",
            hint="copy it, or begin at a multiple of the device's CL_DEVICE_MEM_BASE_ADDR_ALIGN",
        ) from error


def _pixels(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return width and height in pixels of an image. Raises ProblemError for a shape that an image cannot have."""
    if len(shape) not in (2, 3):
        raise ProblemError(f"expected an image of shape (rows, columns) or (batch, rows, columns), got {shape}")
    return -(-shape[-1] // _PIXEL), shape[-2] * (shape[0] if len(shape) == 3 else 1)
