"""What all users of one device in this process share (port, programs, memory, a lock), and how operands get there."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.device import check_link, open_port
from autotune.device.arrays import (
    Context,
    Kind,
    Queue,
    allocate_shared,
    check_context,
    give_shared,
    kind_of,
    resident_memory,
    share_elements,
    take_shared,
)
from autotune.device.discovery import discover_here, find_device, select
from autotune.device.link import split
from autotune.device.port import Memory, Port, Program
from autotune.device.programs import BinaryCache, Programs
from autotune.device.quirks import after_fork
from autotune.errors import AutotuneError, DeviceLostError, DeviceSelectionError, ProblemError
from autotune.model.device import Device
from autotune.model.plan import Buffer, Plan, Role
from autotune.paths import user_cache_folder

ENDING_S = 10.0
"""Limit of the wait for calls of other threads when Python ends."""
MOST_VIEWS = 64
"""Images over the operands of latest calls that are kept for one image of a plan, such as the weights of all layers."""
RESIDENT = (Kind.ARRAY, Kind.BUFFER)
"""Kinds of operands that are on the device and stay there."""
_HELD_ALONE = 2
"""References to an object that only a tuple holds, as Python counts them; OpenCL's objects cannot be held weakly."""
_ZERO = np.zeros(1, np.uint8)


class BoundCall:
    """Launches of a plan with all arguments set except its operands and the scalars that calls supply."""

    def __init__(
        self,
        port: Port,
        program: Program,
        plan: Plan,
        operands: Sequence[str],
        fixed: Mapping[str, Memory],
        scalars: Sequence[str] = (),
    ) -> None:
        """`operands` and `scalars` are names in the order of a call's values; `fixed` is the same for all calls.

        Raises BuildError when the program lacks a kernel.
        """
        self._port = port
        views = [buffer for buffer in plan.buffers if buffer.role is Role.VIEW]
        of_fixed = {view.name: port.allocate(view, fixed) for view in views if view.view_of in fixed}
        views = [view for view in views if view.name not in operands and view.name not in fixed]
        self._over = [(view, operands.index(view.view_of)) for view in views if view.view_of in operands]
        self._views: dict[tuple[str, int], tuple[Memory, Memory]] = {}
        """Images over operands of the latest calls, by name and identity of the memory, which they keep alive until an
        image is made after the caller has let go of it."""
        self._zeroed = [fixed[buffer.name] for buffer in plan.buffers if buffer.is_zeroed and buffer.name in fixed]
        self._are_zero = False
        self._scalars_set: tuple[float, ...] | None = None
        names = [*operands, *(view.name for view, _ in self._over)]
        memory = {**fixed, **of_fixed}
        kernels = port.kernels(program, plan)
        self._call = port.bind(kernels, plan.launches, memory, operands=names, variables=scalars)

    def enqueue(
        self,
        memory: Sequence[Memory],
        scalars: tuple[float, ...] = (),
        arrays: Sequence[Any] = (),
        shared: Sequence[Any] = (),
    ) -> None:
        """Start the launches; `arrays` and `shared` are as in `Port.start`. Calls of one object must not overlap.

        Raises LaunchError.

        Buffers that have to be zero are zeroed before the first call and after one that failed or was interrupted;
        otherwise each call leaves them zero.
        """
        are_zero, scalars_set = self._are_zero, self._scalars_set
        # Unknown until all launches are under way: Ctrl-C may raise anywhere between here and there.
        self._are_zero, self._scalars_set = False, None
        if not are_zero:
            for zeroed in self._zeroed:
                self._port.fill(zeroed, _ZERO)
        if self._over:
            memory = [*memory, *(self._view(view, memory[place]) for view, place in self._over)]
        self._port.start(self._call, memory, None if scalars == scalars_set else scalars, arrays, shared)
        self._are_zero, self._scalars_set = True, scalars

    def _view(self, view: Buffer, memory: Memory) -> Memory:
        """Return an image over the operand's memory. Raises LaunchError when the driver does not accept the layout."""
        key = (view.name, id(memory))
        known = self._views.pop(key, None)
        if known is None:
            for other in [other for other, held in self._views.items() if sys.getrefcount(held[0]) <= _HELD_ALONE]:
                del self._views[other]
            if len(self._views) >= MOST_VIEWS * len(self._over):
                del self._views[next(iter(self._views))]
            known = memory, self._port.allocate(view, {view.view_of: memory})
        self._views[key] = known  # at the end: the first is the one that was not used for longest
        return known[1]


class Executor:
    """A device with the programs built for it."""

    def __init__(self, port: Any, cache: BinaryCache | None) -> None:
        """Without a cache, programs are kept in this process only. Raises DeviceSelectionError."""
        self.port = port
        self.device: Device = port.device
        self.programs = Programs(port, cache)
        self.lock = threading.RLock()
        """Held while arguments are set and kernels enqueued."""
        self._staging: dict[str, tuple[int, Memory]] = {}
        _open.add(self)

    def staging(self, name: str, size_bytes: int) -> Memory:
        """Return a buffer for a copy of an operand on the device, which successive calls reuse."""
        if self._staging.get(name, (0, None))[0] < size_bytes:
            self._staging[name] = size_bytes, self.buffer(size_bytes, name)
        return self._staging[name][1]

    def buffer(self, size_bytes: int, name: str) -> Memory:
        """Allocate a plain buffer. Raises LaunchError when there is not enough memory."""
        return self.port.allocate(Buffer(name=name, role=Role.SCRATCH, dtype="int8", elements=size_bytes))


_open: "weakref.WeakSet[Executor]" = weakref.WeakSet()
"""All executors of this process."""
_executors: dict[tuple[str, Path | None], Executor] = {}
"""By device and folder of programs."""
_executors_lock = threading.Lock()


class _AfterFork:
    """Takes the place of an executor's port and lock in a forked process: whatever uses it raises an error."""

    def __init__(self, lost: Executor) -> None:
        self.__dict__["lost"] = lost.port, lost.lock  # kept: the driver must not be asked to release anything either

    def __getattr__(self, _: str) -> NoReturn:
        raise after_fork()

    def __enter__(self) -> NoReturn:
        raise after_fork()

    def __exit__(self, *_: object) -> None: ...


def _close_after_fork() -> None:
    global _executors_lock  # noqa: PLW0603 - another thread may have held it
    _executors_lock = threading.Lock()
    for executor in _open:
        executor.port = executor.lock = _AfterFork(executor)  # type: ignore[assignment]
    _open.clear()


def _close_at_exit() -> None:
    """Let the calls under way end, and no other begin: a thread inside a driver when Python ends aborts the process."""
    if threading.active_count() == 1:
        return
    for executor in list(_open):
        if executor.lock.acquire(timeout=ENDING_S):
            with suppress(AutotuneError):
                executor.port.finish()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
atexit.register(_close_at_exit)


def open_executor(device: str, place: "Queue | Context | None", binaries: Path | str | None = None) -> Executor:
    """Return an executor on an existing queue or context, or this process's one on the device named by `device`.

    Raises DeviceSelectionError.
    """
    cache = _cache(binaries)
    if place is not None:
        if device:
            raise DeviceSelectionError("both a device and a queue or context were passed", hint="pass only one of them")
        return Executor(open_port(place, profiles=False), cache)
    selector = default_device(device).selector
    key = (selector, cache.folder if cache else None)
    with _executors_lock:
        if key in _executors and not _is_there(_executors[key], selector):
            del _executors[key]  # a phone was unplugged since: it is back, or it would not have been found
        if key not in _executors:
            _executors[key] = Executor(open_port(selector, profiles=False), cache)
        return _executors[key]


def _is_there(executor: Executor, selector: str) -> bool:
    """Return whether the link to an open device, if it is behind one, still holds."""
    try:
        with executor.lock:  # what was refused is raised in the call that waits for it
            check_link(executor.port, selector)
    except DeviceLostError:
        return False
    return True


def _cache(folder: Path | str | None) -> BinaryCache | None:
    """Return the cache of built programs; None for an account without a home folder, as services may have."""
    try:
        return BinaryCache(Path(folder) if folder else user_cache_folder() / "programs")
    except AutotuneError:
        return None


def default_device(selector: str) -> Device:
    """Return the device that `selector` names; if empty, the only one that is not a CPU, or else the CPU."""
    if split(selector):
        return find_device(selector)
    devices = discover_here()
    return select(selector or ("cpu" if all(d.family == "cpu" for d in devices) else "gpu"), devices)


def allocate(
    shape: int | Sequence[int],
    dtype: DTypeLike,
    *,
    image: bool = False,
    device: str = "",
    queue: "Queue | None" = None,
) -> NDArray[Any]:
    """Return zeros visible to host and device, as a NumPy array; `image` is for a B read through the texture pipe.

    Host and device must not use it at the same time: it belongs to the device from a call until that returns. Views
    of it can be operands too.
    """
    port = open_executor(device, None).port if queue is None else open_port(queue, profiles=False)
    return allocate_shared(port, shape, dtype, image=image)


# Operands of calls: what may be passed, and how it gets to the device and back


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
    prepared: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet, repr=False)
    """Prepared weights that are in use."""

    @property
    def prepared_bytes(self) -> int:
        """Bytes that prepared weights take on the device now, in all their layouts."""
        return sum(weights.size_bytes for weights in list(self.prepared))


class Operand(NamedTuple):
    """What calls with operands of the same form have to know of one."""

    name: str
    """As plans have it."""
    kind: Kind
    shown: str
    """As messages have it."""
    needed_bytes: int = 0
    """Least size of a buffer."""
    is_written: bool = False
    by_columns: bool = False
    """Whether it is stored by columns; a copy on the device has the rows of its transpose."""


class Transfer:
    """Moves operands of one call to the device and back."""

    def __init__(self, executor: Executor, stats: Statistics) -> None:
        self.executor, self.stats = executor, stats
        self._port = executor.port
        self._shares = executor.device.limits.shares_host_memory
        self._given: list[NDArray[Any]] = []
        self._has_uploads = False

    def enter(self, value: Any, kind: Kind, name: str, *, by_columns: bool = False, is_read: bool = True) -> Memory:
        """Return device memory of an operand, copying it there, with rows without gaps, if necessary."""
        if kind in RESIDENT:
            return resident_memory(self._port, value, kind, name)
        if kind is not Kind.HOST:
            check_context(self._port, value, kind, name)
            self._given.append(value)
            self._count(0 if self._shares else value.nbytes)
            return give_shared(self._port, value, name)
        memory = self.executor.staging(name, value.nbytes)
        if is_read:
            self.upload(value, memory, by_columns=by_columns)
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
        """Wait, and give shared memory back to the host, also when Ctrl-C comes meanwhile."""
        self._count(0 if self._shares else sum(array.nbytes for array in self._given))
        try:
            take_shared(self._port, self._given)
        except BaseException:
            take_shared(self._port, self._given)
            raise
        if self._has_uploads:
            self._port.finish()

    def _count(self, size: int) -> None:
        self.stats.bytes_copied += size


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
