"""Run kernels repeatedly on one queue: programs are built once, arguments set once, and operands may be of any kind.

`Executor` owns what calls share; `BoundCall` is a plan whose constant arguments are set, so that a call only sets its
operands and enqueues. The queue runs in order, so that calls can share memory for packing and staging.
"""

import enum
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from autotune.device.binaries import BinaryCache, digest
from autotune.device.description import describe
from autotune.device.memory import part_of, shared_memory
from autotune.device.session import NUMPY_TYPES, Memory, Session, raw_device
from autotune.errors import DeviceSelectionError, LaunchError, ProblemError
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar

Queue = cl.CommandQueue
Context = cl.Context


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


class Origin(enum.Enum):
    """Where a program came from."""

    COMPILED = "compiled"
    LOADED = "loaded"
    """From the binary cache."""
    KNOWN = "known"
    """Built earlier in this process."""


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


def queue_of(context: cl.Context) -> cl.CommandQueue:
    """Return a queue for the context's device. Raises DeviceSelectionError when the context has several devices."""
    if len(context.devices) != 1:
        raise DeviceSelectionError(f"the context has {len(context.devices)} devices", hint="pass a queue of one device")
    return cl.CommandQueue(context, context.devices[0])


MOST_VIEWS = 64


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One launch, and the arguments of it that may change with every call."""

    kernel: cl.Kernel
    launch: Launch
    operands: tuple[tuple[int, int, Buffer | None], ...]
    """Index of the argument, number of the operand, and the image over it if the kernel takes that instead."""
    scalars: tuple[tuple[int, int, type[np.generic]], ...]
    """Index of the argument, number of the scalar, type."""


class BoundCall:
    """Launches of a plan with all arguments set except its operands and the scalars that calls supply."""

    def __init__(
        self,
        session: Session,
        program: cl.Program,
        plan: Plan,
        operands: Sequence[str],
        fixed: Mapping[str, Memory],
        scalars: Sequence[str] = (),
    ) -> None:
        """`operands` and `scalars` are names in the order of a call's values; `fixed` is the same for all calls.

        Raises BuildError when the program lacks a kernel.
        """
        self._session = session
        self._views: dict[tuple[str, int], tuple[Memory, Memory]] = {}
        """Images over operands of calls, by name and identity of the memory, which is kept alive with them."""
        views = {buffer.name: buffer for buffer in plan.buffers if buffer.role is Role.VIEW}
        of_fixed = {name: session.allocate(view, fixed) for name, view in views.items() if view.view_of in fixed}
        fixed = {**fixed, **of_fixed}
        self._fixed = fixed  # kept alive: a kernel holds no reference to its arguments
        self._zeroed = tuple(fixed[buffer.name] for buffer in plan.buffers if buffer.is_zeroed and buffer.name in fixed)
        self._are_zero = False
        self._steps = tuple(
            _bind(kernel, launch, tuple(operands), views, fixed, tuple(scalars))
            for kernel, launch in zip(session.kernels(program, plan), plan.launches, strict=True)
        )
        self._scalars_set: tuple[float, ...] | None = None

    def enqueue(
        self, memory: Sequence[Memory], scalars: tuple[float, ...] = (), wait_for: Sequence[cl.Event] | None = None
    ) -> cl.Event:
        """Start the launches and return the last one's event. Raises LaunchError. Calls of one object must not overlap.

        Buffers that have to be zero are zeroed before the first call and after a failed one; otherwise each call leaves
        them zero.
        """
        queue = self._session.queue
        if not self._are_zero:
            self._zero()
        are_new = scalars != self._scalars_set
        event: cl.Event | None = None
        try:
            for step in self._steps:
                kernel = step.kernel
                for index, number, view in step.operands:
                    kernel.set_arg(index, memory[number] if view is None else self._view(view, memory[number]))
                if are_new:
                    for index, number, kind in step.scalars:
                        kernel.set_arg(index, kind(scalars[number]))
                launch = step.launch
                event = cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size, None, wait_for)
        except cl.Error as error:
            self._scalars_set = None
            self._are_zero = False
            raise LaunchError(str(error)[:1500]) from error
        self._scalars_set = scalars
        assert event is not None
        return event

    def _zero(self) -> None:
        for memory in self._zeroed:
            self._session.zero(memory)
        self._are_zero = True

    def _view(self, view: Buffer, memory: Memory) -> Memory:
        """Return an image over the operand's memory. Raises LaunchError when the driver does not accept the layout."""
        key = (view.name, id(memory))
        if key not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            self._views[key] = (memory, self._session.allocate(view, {view.view_of: memory}))
        return self._views[key][1]


class Executor:
    """A queue with the programs built for it; operands reach the device through it."""

    def __init__(self, queue: cl.CommandQueue, binaries: BinaryCache | None) -> None:
        """With `binaries` None, programs are kept in this process only.

        Raises DeviceSelectionError when the queue runs out of order or the device does not answer.
        """
        if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
            raise DeviceSelectionError("the queue executes out of order", hint="pass an in-order queue")
        self.queue = queue
        self.context = queue.context
        self.session = Session.on(queue)
        self.device = describe(queue.device)
        self.lock = threading.RLock()
        """Held while arguments are set and kernels enqueued."""
        self._binaries = binaries
        self._build_lock = threading.Lock()
        self._programs: dict[str, cl.Program] = {}
        self._unsaved: list[tuple[str, cl.Program]] = []
        self._staging: dict[str, cl.Buffer] = {}

    # Programs

    @property
    def programs_folder(self) -> Path | None:
        """Folder of built programs; None if they are kept in this process only."""
        return self._binaries.folder if self._binaries else None

    def program(self, recipe: str, options: Sequence[str], make_source: Callable[[], str]) -> tuple[cl.Program, Origin]:
        """Return the program of a recipe, from memory, from the binary cache or compiled. Raises BuildError."""
        key = digest(recipe, *options)
        with self._build_lock:
            known = self._programs.get(key)
            if known is not None:
                return known, Origin.KNOWN
            program, origin = self._load(key, options), Origin.LOADED
            if program is None:
                program, origin = self.session.build(make_source(), options), Origin.COMPILED
                self._unsaved.append((key, program))
            self._programs[key] = program
            return program, origin

    def has_program(self, recipe: str, options: Sequence[str]) -> bool:
        """Whether the program of a recipe is in memory."""
        return digest(recipe, *options) in self._programs

    def save_programs(self) -> None:
        """Store what was compiled since the last call; to be called after its kernels ran, see `BinaryCache.store`."""
        with self._build_lock:
            unsaved, self._unsaved = self._unsaved, []
        for key, program in unsaved:
            if self._binaries:
                self._binaries.store(self.queue.device, key, program)

    def _load(self, key: str, options: Sequence[str]) -> cl.Program | None:
        return self._binaries.load(self.context, self.queue.device, key, options) if self._binaries else None

    # Operands

    def check(self, operand: Any, kind: Kind, name: str) -> None:
        """Raise ProblemError if an operand lies in memory of another context."""
        context = shared_memory(operand).context if kind in (Kind.SHARED, Kind.IMAGE) else operand.context  # type: ignore[union-attr]
        if context != self.context:
            raise ProblemError(
                f"{name} belongs to another OpenCL context, not that of {self.device.slug}",
                hint="pass queue= or context= of your arrays",
            )

    def array_memory(self, array: Any, name: str) -> cl.Buffer:
        """Return the buffer of a pyopencl array, from its first element on."""
        memory: cl.Buffer = array.base_data
        return part_of(memory, int(array.offset), name) if array.offset else memory

    def give_shared(self, array: NDArray[Any], name: str) -> Memory:
        """Unmap shared memory for the device; return its image, or its buffer from the array's first element on."""
        shared = shared_memory(array)
        assert shared
        shared.give(self.queue)
        if isinstance(shared.memory, cl.Image):
            return shared.memory
        return part_of(shared.memory, array.__array_interface__["data"][0] - shared.address, name)

    def take_shared(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Wait, and map shared memory for the host again."""
        memories = {id(memory): memory for memory in map(shared_memory, arrays) if memory}
        for number, memory in enumerate(memories.values(), 1):
            memory.take(self.queue, wait=number == len(memories))  # the queue runs in order: then all are done

    def upload(self, values: NDArray[Any], memory: cl.Buffer) -> Any:
        """Start copying contiguous rows to the device; return the event, which keeps the rows alive."""
        return cl.enqueue_copy(self.queue, memory, values, is_blocking=False)

    def download(self, memory: cl.Buffer, into: NDArray[Any]) -> None:
        """Wait for the kernels and copy a buffer to the host."""
        cl.enqueue_copy(self.queue, into, memory, is_blocking=True)

    def staging(self, name: str, size_bytes: int) -> cl.Buffer:
        """Return a buffer for a copy of an operand on the device, which successive calls reuse."""
        known = self._staging.get(name)
        if known is None or known.size < size_bytes:
            known = self._staging[name] = self.buffer(size_bytes, name)
        return known

    def buffer(self, size_bytes: int, name: str) -> cl.Buffer:
        """Allocate a plain buffer. Raises LaunchError when there is not enough memory."""
        memory = self.allocate(Buffer(name=name, role=Role.SCRATCH, dtype="int8", elements=size_bytes))
        assert isinstance(memory, cl.Buffer)
        return memory

    def allocate(self, buffer: Buffer) -> Memory:
        """Allocate a buffer or image of a plan. Raises LaunchError when there is not enough memory."""
        return self.session.allocate(buffer)

    def new_array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a pyopencl array with undefined contents."""
        from pyopencl import array as cl_array

        return cl_array.empty(self.queue, shape, NUMPY_TYPES[dtype])

    def is_foreign(self, array: Any) -> bool:
        """Whether a pyopencl array belongs to another queue, so that its events must order the work on it."""
        queue = array.queue
        return queue is not self.queue and queue is not None and queue != self.queue

    def finish(self) -> None:
        """Wait for everything enqueued. Raises LaunchError when a command failed while running."""
        self.session.finish()


_executors: dict[tuple[str, Path | None], Executor] = {}
_executors_lock = threading.Lock()


def shared_executor(selector: str, binaries: BinaryCache | None) -> Executor:
    """Return this process's one executor for ``platform:device``, so that all its users share memory and programs."""
    key = (selector, binaries.folder if binaries else None)
    with _executors_lock:
        if key not in _executors:
            context = cl.Context([raw_device(selector)])  # Intel's queues do not keep their context alive
            _executors[key] = Executor(queue_of(context), binaries)
        return _executors[key]


def _bind(
    kernel: cl.Kernel,
    launch: Launch,
    operands: tuple[str, ...],
    views: Mapping[str, Buffer],
    fixed: Mapping[str, Memory],
    scalars: tuple[str, ...],
) -> _Step:
    """Set the arguments that never change, and record those that do."""
    changing: list[tuple[int, int, Buffer | None]] = []
    named: list[tuple[int, int, type[np.generic]]] = []
    for index, argument in enumerate(launch.arguments):
        if isinstance(argument, Scalar):
            kind = NUMPY_TYPES[argument.dtype]
            kernel.set_arg(index, kind(argument.value))
            if argument.name in scalars:
                named.append((index, scalars.index(argument.name), kind))
        elif argument in operands:
            changing.append((index, operands.index(argument), None))
        elif argument in views and views[argument].view_of in operands:
            changing.append((index, operands.index(views[argument].view_of), views[argument]))
        else:
            kernel.set_arg(index, fixed[argument])
    return _Step(kernel=kernel, launch=launch, operands=tuple(changing), scalars=tuple(named))
