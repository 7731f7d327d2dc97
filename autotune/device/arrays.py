"""Operands that callers of the runtime pass: NumPy arrays, memory that host and device share, pyopencl's arrays and
buffers. NumPy arrays work with every port; the others lie in memory of the port's own context.

The driver chooses the place of shared memory (CL_MEM_ALLOC_HOST_PTR), and nothing is copied where the two share theirs.
The host may access it while it is mapped, the device while it is not: `give` unmaps it before kernels run, `take` maps
it again after them. Views stay valid throughout, but their contents are defined only while the memory is mapped.
"""

import enum
import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import DTypeLike, NDArray

from autotune.device.opencl import CHANNELS, without_pool
from autotune.device.port import NUMPY_TYPES, Memory
from autotune.errors import LaunchError, ProblemError
from autotune.model.problem import Problem

Queue = cl.CommandQueue
Context = cl.Context

_PIXEL = 4
"""Elements per pixel of an image: red, green, blue, alpha."""

_FOR_BOTH: Any = cl.map_flags.READ | cl.map_flags.WRITE


class Kind(enum.StrEnum):
    """Where an operand lies. The values are strings, which hash fast: every call looks kinds up."""

    ARRAY = "array"
    """pyopencl.array.Array."""
    BUFFER = "buffer"
    """pyopencl.Buffer: memory without a shape."""
    HOST = "host"
    """NumPy array in host memory: copied to the device and back."""
    SHARED = "shared"
    """NumPy array in memory that the device can access, too."""
    IMAGE = "image"
    """NumPy array in an image that the device can access, too."""


_kinds: dict[type, Kind] = {}
"""Kinds of the types seen so far whose operands are all of one kind."""


def kind_of(operand: Any) -> Kind | None:
    """Return the kind of an operand; None for anything else."""
    known = _kinds.get(type(operand))
    if known is not None:
        return known
    if isinstance(operand, np.ndarray):
        memory = shared_memory(operand)
        if memory is None:
            return Kind.HOST
        return Kind.IMAGE if memory.is_image else Kind.SHARED
    # A caller with such an array has imported its module; others need not wait for the import.
    arrays = sys.modules.get("pyopencl.array")
    if isinstance(operand, cl.Buffer):
        _kinds[type(operand)] = Kind.BUFFER
    elif arrays is not None and isinstance(operand, arrays.Array):
        _kinds[type(operand)] = Kind.ARRAY
    return _kinds.get(type(operand))


class SharedMemory:
    """A buffer or an image mapped for the host. NumPy arrays made from it keep it alive."""

    def __init__(self, queue: cl.CommandQueue, memory: Any, shape: tuple[int, ...], dtype: Any) -> None:
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

    def give(self, queue: cl.CommandQueue) -> None:
        """Unmap it for the device: kernels enqueued from now on see what the host has written."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.release(queue)

    def take(self, queue: cl.CommandQueue, *, wait: bool = True) -> None:
        """Map it for the host again, after everything enqueued; waits for that if `wait` is set. Raises LaunchError."""
        if self._mapping is None and self._map(queue, wait=wait) != self.address:
            raise LaunchError("the driver mapped memory to a different address; its NumPy views are now invalid")

    def _map(self, queue: cl.CommandQueue, *, wait: bool = True) -> int:
        try:
            view: Any
            if self.is_image:
                region = (self.memory.width, self.memory.height)
                view, _, row_bytes, _ = cl.enqueue_map_image(
                    queue, self.memory, _FOR_BOTH, (0, 0), region, (1,), self.dtype, is_blocking=wait
                )
                self._row_bytes = int(row_bytes)
            else:
                shape, kind = (self.memory.size,), np.dtype("uint8")
                view, _ = cl.enqueue_map_buffer(queue, self.memory, _FOR_BOTH, 0, shape, kind, is_blocking=wait)
        except cl.Error as error:
            raise LaunchError(f"memory cannot be mapped: {error}") from error
        self._mapping = view.base
        return int(view.__array_interface__["data"][0])

    def _strides(self) -> tuple[int, ...] | None:
        """Return an image's strides, from its row pitch; None for a buffer, whose rows are contiguous."""
        if not self.is_image:
            return None
        within = (self._row_bytes, self.dtype.itemsize)
        return within if len(self.shape) == 2 else (self.shape[-2] * self._row_bytes, *within)


def allocate_shared(port: Any, shape: int | Sequence[int], dtype: DTypeLike, *, image: bool = False) -> NDArray[Any]:
    """Return zeros in memory shared with the port's device; an image pads rows to whole pixels and to its pitch.

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
        memory: Any
        if image:
            memory = cl.create_image(
                port.context, flags, cl.ImageFormat(cl.channel_order.RGBA, CHANNELS[wanted.name]), _pixels(sizes)
            )
        else:
            memory = cl.Buffer(port.context, flags, size=int(np.prod(sizes, dtype=np.int64)) * wanted.itemsize)
    except cl.Error as error:
        raise LaunchError(f"cannot allocate {wanted.name} of shape {sizes}: {error}") from error
    array = np.asarray(SharedMemory(port.queue, memory, sizes, wanted))
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


def _from(memory: Memory, offset_bytes: int, what: str) -> Memory:
    """Return the buffer from an offset on. Raises ProblemError when a buffer cannot begin there on the device."""
    if not offset_bytes:
        return memory
    whole = without_pool(memory)
    try:
        return whole.get_sub_region(offset_bytes, whole.size - offset_bytes)
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


# What a port makes of operands that are not plain NumPy arrays; it is one of pyopencl


def check_context(port: Any, operand: Any, kind: Kind, name: str) -> None:
    """Raise ProblemError if an operand lies in memory of another context than the port's."""
    holder: Any = shared_memory(operand) if kind in (Kind.SHARED, Kind.IMAGE) else operand
    if holder.context != port.context:
        raise ProblemError(
            f"{name} belongs to another OpenCL context, not that of {port.device.slug}",
            hint="pass queue= or context= of your arrays",
        )


def resident_memory(
    port: Any, operand: Any, kind: Kind, name: str, needed_bytes: int = 0, problem: Problem | None = None
) -> Memory:
    """Return the memory of a pyopencl array, from its first element on, or of a buffer.

    Raises ProblemError, also where a buffer has fewer bytes than `problem` needs.
    """
    if operand.context is not port.context:
        check_context(port, operand, kind, name)
    if kind is Kind.ARRAY:
        return _from(operand.base_data, int(operand.offset), name) if operand.offset else operand.base_data
    if problem and operand.size < needed_bytes:
        raise ProblemError(f"{name} holds {operand.size} bytes, {problem.label} needs {needed_bytes}")
    return operand


def give_shared(port: Any, array: NDArray[Any], name: str) -> Memory:
    """Unmap shared memory for the device; return its image, or its buffer from the array's first element on."""
    shared = shared_memory(array)
    assert shared
    shared.give(port.queue)
    if shared.is_image:
        return shared.memory
    return _from(shared.memory, array.__array_interface__["data"][0] - shared.address, name)


def take_shared(port: Any, arrays: Sequence[NDArray[Any]]) -> None:
    """Wait, and map shared memory for the host again."""
    memories = {id(memory): memory for memory in map(shared_memory, arrays) if memory}
    for number, memory in enumerate(memories.values(), 1):
        memory.take(port.queue, wait=number == len(memories))  # the queue runs in order: then all are done


def new_array(port: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a pyopencl array with undefined contents."""
    from pyopencl import array as cl_array

    return cl_array.empty(port.queue, shape, NUMPY_TYPES[dtype])


def foreign_arrays(port: Any, operands: Sequence[Any], arrays: Iterable[int]) -> list[Any]:
    """Return the operands that belong to other queues, whose events must order the work on them.

    `arrays` are the numbers of those operands that are pyopencl arrays.
    """
    return [operands[n] for n in arrays if operands[n].queue not in (None, port.queue)]
