"""Operands of calls: what may be passed, and how it gets to the device and back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.device.arrays import (
    Kind,
    check_context,
    give_shared,
    kind_of,
    resident_memory,
    share_elements,
    take_shared,
)
from autotune.device.port import Memory
from autotune.errors import ProblemError
from autotune.runtime.executor import Executor


@dataclass(kw_only=True)
class Statistics:
    """Counts since the start."""

    calls: int = 0
    bytes_copied: int = 0
    """Bytes copied between host and device, and on the host to close gaps; packing on the device is not counted."""
    packings: int = 0
    """Packings of weights, one for each layout."""
    host_products: int = 0
    """Products done by the host's BLAS."""
    programs_compiled: int = 0
    programs_loaded: int = 0
    """Programs loaded from the binary cache."""


class Operand(NamedTuple):
    """One operand of a call."""

    name: str
    """As messages show it."""
    value: Any
    kind: Kind
    is_read: bool = True
    is_written: bool = False
    by_columns: bool = False
    """Whether it is stored by columns; a copy on the device has the rows of its transpose."""


class Transfer:
    """Moves operands of one call to the device and back."""

    def __init__(self, executor: Executor, stats: Statistics) -> None:
        self._executor, self._stats = executor, stats
        self._port = executor.port
        self._shares = executor.device.limits.shares_host_memory
        self._given: list[NDArray[Any]] = []
        self._has_uploads = False

    def enter(self, operand: Operand) -> Memory:
        """Return device memory of an operand, copying it there, with rows without gaps, if necessary."""
        name, value, kind = operand[:3]
        if kind in (Kind.ARRAY, Kind.BUFFER):
            return resident_memory(self._port, value, kind, name)
        if kind is not Kind.HOST:
            check_context(self._port, value, kind, name)
            self._given.append(value)
            self._count(0 if self._shares else value.nbytes)
            return give_shared(self._port, value, name)
        memory = self._executor.staging(name, value.nbytes)
        if operand.is_read:
            self.upload(value, memory, by_columns=operand.by_columns)
        return memory

    def upload(self, values: NDArray[Any], memory: Memory, *, by_columns: bool) -> None:
        """Start copying to the device; `by_columns` is as in `Operand`."""
        rows = values.swapaxes(-1, -2) if by_columns else values
        dense = np.ascontiguousarray(rows)
        self._count(values.nbytes if dense is rows else 2 * values.nbytes)
        self._port.write(memory, dense, wait=False)
        self._has_uploads = True

    def download(self, memory: Memory, out: NDArray[Any]) -> None:
        """Wait for the kernels, and copy the result to the host."""
        dense = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        self._port.read(memory, dense)
        self._has_uploads = False
        self._count(out.nbytes)
        if dense is not out:
            out[...] = dense
            self._count(out.nbytes)

    def leave(self) -> None:
        """Wait, and give shared memory back to the host."""
        self._count(0 if self._shares else sum(array.nbytes for array in self._given))
        take_shared(self._port, self._given)
        if self._has_uploads:
            self._port.finish()

    def _count(self, size: int) -> None:
        self._stats.bytes_copied += size


def check_result(out: Any, kind: Kind, operands: Iterable[tuple[str, Any]]) -> None:
    """Raise ProblemError where `out` cannot be written, or overlaps an operand (name, operand) that is read in place.

    Copied operands may overlap.
    """
    for name, operand in operands:
        if out is operand or (kind is not Kind.HOST and share_elements(out, operand)):
            raise ProblemError(f"out shares memory with {name}", hint="pass memory that does not overlap")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ProblemError("out is read-only")


def form(operand: Any, name: str) -> tuple[Any, ...]:
    """Return a key that is equal for operands that are handled alike. Raises ProblemError."""
    kind = kind_of(operand)
    if kind is None:
        raise ProblemError(
            f"{name} is a {type(operand).__name__}", hint="pass a NumPy or pyopencl array, or a pyopencl Buffer"
        )
    return (kind,) if kind is Kind.BUFFER else (kind, operand.shape, operand.strides, operand.dtype)
