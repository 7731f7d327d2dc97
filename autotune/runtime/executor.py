"""What all users of one device in this process share: its port, its programs, memory for copies, and a lock."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.device import open_port
from autotune.device.arrays import Context, Queue, allocate_shared
from autotune.device.discovery import discover_here, select
from autotune.device.port import Memory, Port, Program
from autotune.device.programs import BinaryCache, Programs
from autotune.errors import AutotuneError, DeviceSelectionError, LaunchError
from autotune.model.device import Device
from autotune.model.plan import Buffer, Plan, Role
from autotune.paths import user_cache_folder

MOST_VIEWS = 64
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
        self._over = [(view, operands.index(view.view_of)) for view in views if view.view_of in operands]
        self._views: dict[tuple[str, int], tuple[Memory, Memory]] = {}
        """Images over operands of calls, by name and identity of the memory, which is kept alive with them."""
        self._zeroed = [fixed[buffer.name] for buffer in plan.buffers if buffer.is_zeroed and buffer.name in fixed]
        self._are_zero = False
        self._scalars_set: tuple[float, ...] | None = None
        names = [*operands, *(view.name for view, _ in self._over)]
        memory = {**fixed, **of_fixed}
        kernels = port.kernels(program, plan)
        self._call = port.bind(kernels, plan.launches, memory, operands=names, variables=scalars)

    def enqueue(self, memory: Sequence[Memory], scalars: tuple[float, ...] = (), beside: Sequence[Any] = ()) -> None:
        """Start the launches; `beside` is as in `Port.start`. Raises LaunchError. Calls of one object must not overlap.

        Buffers that have to be zero are zeroed before the first call and after a failed one; otherwise each call leaves
        them zero.
        """
        if not self._are_zero:
            for zeroed in self._zeroed:
                self._port.fill(zeroed, _ZERO)
            self._are_zero = True
        if self._over:
            memory = [*memory, *(self._view(view, memory[place]) for view, place in self._over)]
        try:
            self._port.start(self._call, memory, None if scalars == self._scalars_set else scalars, beside)
        except LaunchError:
            self._scalars_set, self._are_zero = None, False
            raise
        self._scalars_set = scalars

    def _view(self, view: Buffer, memory: Memory) -> Memory:
        """Return an image over the operand's memory. Raises LaunchError when the driver does not accept the layout."""
        key = (view.name, id(memory))
        if key not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            self._views[key] = (memory, self._port.allocate(view, {view.view_of: memory}))
        return self._views[key][1]


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

    def staging(self, name: str, size_bytes: int) -> Memory:
        """Return a buffer for a copy of an operand on the device, which successive calls reuse."""
        if self._staging.get(name, (0, None))[0] < size_bytes:
            self._staging[name] = size_bytes, self.buffer(size_bytes, name)
        return self._staging[name][1]

    def buffer(self, size_bytes: int, name: str) -> Memory:
        """Allocate a plain buffer. Raises LaunchError when there is not enough memory."""
        return self.port.allocate(Buffer(name=name, role=Role.SCRATCH, dtype="int8", elements=size_bytes))


_executors: dict[tuple[str, Path | None], Executor] = {}
"""By device and folder of programs."""
_executors_lock = threading.Lock()


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
        if key not in _executors:
            _executors[key] = Executor(open_port(selector, profiles=False), cache)
        return _executors[key]


def _cache(folder: Path | str | None) -> BinaryCache | None:
    """Return the cache of built programs; None for an account without a home folder, as services may have."""
    try:
        return BinaryCache(Path(folder) if folder else user_cache_folder() / "programs")
    except AutotuneError:
        return None


def default_device(selector: str) -> Device:
    """Return the device that `selector` names; if empty, the only one that is not a CPU, or else the CPU."""
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
