"""Run kernels on one device: context and queue, building, memory, launching."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from autotune.device.answers import ask, first_line, number, positive, text
from autotune.device.pocl import is_pocl_version, repair_processor_name, set_threads
from autotune.device.sensors import Whereabouts
from autotune.errors import AutotuneError, BuildError, DeviceSelectionError, LaunchError, WorkGroupError
from autotune.model.plan import Buffer, Launch, Plan
from autotune.model.problem import DTYPE_BYTES
from autotune.paths import user_cache_folder

NUMPY_TYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "int32": np.int32,
}

CHANNELS = {
    "float32": cl.channel_type.FLOAT,
    "float16": cl.channel_type.HALF_FLOAT,
    "int8": cl.channel_type.SIGNED_INT8,
}

_BUILD_SUCCESS = 0

Memory = cl.Buffer | cl.Image
_NOTHING: Mapping[str, Memory] = MappingProxyType({})


@functools.cache
def _spare_cache() -> None:
    """Disable pyopencl's caches on disk if they cannot be written: otherwise it would fail to create kernels.

    The environment variable PYOPENCL_NO_CACHE does the same, but only if set before pyopencl is loaded.
    """
    try:
        folder = user_cache_folder().parent
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if (folder / "pytools").is_dir():
            tempfile.TemporaryFile(dir=folder / "pytools").close()
    except (OSError, AutotuneError):  # AutotuneError: there is no home folder
        vars(cl)["_PYOPENCL_NO_CACHE"] = True


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """What the driver reports about a built kernel: signs of register pressure and spills."""

    work_group_limit: int
    private_memory_bytes: int


class Session:
    """One device with a profiling queue. Raises DeviceSelectionError when the device cannot be found or opened."""

    def __init__(self, selector: str) -> None:
        """`selector` is ``platform:device`` in numbers."""
        device = raw_device(selector)
        try:
            context = cl.Context([device])  # Intel's queues do not keep their context alive
            queue = cl.CommandQueue(context, device, properties=cl.command_queue_properties.PROFILING_ENABLE)
        except Exception as error:  # pyopencl makes queries that the driver may refuse
            raise DeviceSelectionError(f"device {selector} cannot be opened: {first_line(error)}") from error
        self._use(queue)

    @classmethod
    def on(cls, queue: cl.CommandQueue) -> Self:
        """Return a session on an existing queue, which need not be a profiling queue."""
        repair_processor_name(queue.device)
        session = cls.__new__(cls)
        session._use(queue)
        return session

    def _use(self, queue: cl.CommandQueue) -> None:
        _spare_cache()
        self._queue, self._device, self._context = queue, queue.device, queue.context
        self._vendor, self._name = text(self._device, "vendor"), text(self._device, "name")
        self._is_pocl = is_pocl_version(text(self._device, "version"))
        self._is_nvidia = "NVIDIA" in self._vendor

    @property
    def queue(self) -> cl.CommandQueue:
        return self._queue

    @property
    def keeps_programs(self) -> bool:
        """Whether the driver caches builds across processes, while loading a binary costs it another build.

        PoCL needs a tenth to a third of a second for a binary, but 40 ms for a program in its cache. NVIDIA's binaries
        are PTX, assembled at each start unless found in a cache on disk, which works for sources as well.
        """
        return self._is_pocl or self._is_nvidia

    @property
    def compute_units(self) -> int:
        """Compute units of the device, at least 1."""
        return positive(self._device, "max_compute_units", 1)

    @property
    def timer_resolution_ns(self) -> float:
        """Resolution of event times according to the driver; 0 if it does not report one."""
        return float(number(self._device, "profiling_timer_resolution"))

    @property
    def builds_by_work_group_size(self) -> bool:
        """Whether the driver builds a kernel again for each new work-group size, as PoCL does at a launch."""
        return self._is_pocl

    @property
    def whereabouts(self) -> Whereabouts:
        """What distinguishes the device's sensors from those of others."""
        bus, slot = number(self._device, "pci_bus_id_nv", -1), number(self._device, "pci_slot_id_nv", -1)
        domain = number(self._device, "pci_domain_id_nv")
        return Whereabouts(
            vendor=self._vendor,
            name=self._name,
            is_cpu=bool(number(self._device, "type") & cl.device_type.CPU),
            pci_address=f"{domain:08x}:{bus:02x}:{slot:02x}.0" if bus >= 0 and slot >= 0 else "",
        )

    def build(self, source: str, options: Sequence[str]) -> cl.Program:
        """Compile OpenCL C for the device. Raises BuildError with the first lines of the driver's log."""
        return self._built(lambda: cl.Program(self._context, source), options)

    def load(self, binary: bytes, options: Sequence[str]) -> cl.Program:
        """Load a program that was built before for the same device and driver. Raises BuildError."""
        return self._built(lambda: cl.Program(self._context, [self._device], [binary]), options)

    def _built(self, create: Callable[[], cl.Program], options: Sequence[str]) -> cl.Program:
        program = None
        try:
            program = create()
            program.build(options=list(options))
        except Exception as error:
            # pyopencl raises if it cannot read the name of the device or its platform, even if the build succeeded.
            if program is None or isinstance(error, cl.Error) or not self._is_built(program):
                raise BuildError(_shorten(str(error))) from error
        return program

    def _is_built(self, program: Any) -> bool:
        asked = cl.program_build_info.STATUS
        return ask(lambda: int(program.get_build_info(self._device, asked)), -1) == _BUILD_SUCCESS

    def facts(self, kernels: Sequence[cl.Kernel], plan: Plan) -> KernelFacts:
        """Return the most private memory and the lowest work-group limit of a plan's kernels; 0 where not reported.

        Kernels that only prepare operands do not count. NVIDIA reports a work-group limit of 256 for every kernel that
        requires its work-group size, but runs 1024, so its limit is ignored.
        """
        info = cl.kernel_work_group_info
        working = [k for k, launch in zip(kernels, plan.launches, strict=True) if not launch.prepares]
        limits = [0 if self._is_nvidia else self._ask(kernel, info.WORK_GROUP_SIZE) for kernel in working]
        return KernelFacts(
            work_group_limit=min(limits),
            private_memory_bytes=max(self._ask(kernel, info.PRIVATE_MEM_SIZE) for kernel in working),
        )

    def binary_bytes(self, program: cl.Program) -> int:
        """Return the size of a built program's binary; 0 if the driver does not report it."""
        try:
            sizes: Any = program.get_info(cl.program_info.BINARY_SIZES)
            return sum(int(size) for size in sizes)
        except cl.Error:
            return 0

    def binary(self, program: cl.Program) -> bytes:
        """Return a built program's binary; empty if the driver does not return it."""
        try:
            found: Any = program.get_info(cl.program_info.BINARIES)
            return bytes(found[0])
        except cl.Error:
            return b""

    def allocate(self, buffer: Buffer, allocated: Mapping[str, Memory] = _NOTHING) -> Memory:
        """Allocate device memory for a buffer or image; a view is an image over one of `allocated`, by name.

        Raises LaunchError when there is not enough memory, or the driver does not accept the layout.
        """
        flags = cl.mem_flags.READ_WRITE
        try:
            if buffer.image_width:
                pixels = cl.ImageFormat(cl.channel_order.RGBA, CHANNELS[buffer.dtype])
                shape = (buffer.image_width, buffer.image_height)
                if not buffer.view_of:
                    return cl.create_image(self._context, flags, pixels, shape=shape)
                view = cl.ImageDescriptor()
                view.image_type = cl.mem_object_type.IMAGE2D
                view.shape = (*shape, 1)
                view.pitches = (buffer.row_pitch * DTYPE_BYTES[buffer.dtype], 0)
                view.buffer = allocated[buffer.view_of]
                return cl.Image(self._context, flags, pixels, desc=view)
            return cl.Buffer(self._context, flags, size=buffer.size_bytes)
        except cl.Error as error:
            raise LaunchError(f"cannot allocate {buffer.name}: {_shorten(str(error))}") from error

    def write(self, memory: Memory, values: NDArray[Any]) -> None:
        """Copy from the host into a plain buffer and wait. Raises LaunchError."""
        assert isinstance(memory, cl.Buffer)
        with _refusals():
            cl.enqueue_copy(self._queue, memory, values, is_blocking=True)

    def copy(self, source: Memory, target: Memory, size_bytes: int) -> None:
        """Copy from one plain buffer to another, in order with launches. Raises LaunchError."""
        assert isinstance(source, cl.Buffer)
        assert isinstance(target, cl.Buffer)
        with _refusals():
            cl.enqueue_copy(self._queue, target, source, byte_count=size_bytes)

    def fill(self, memory: Memory, layout: Buffer, value: NDArray[Any]) -> None:
        """Fill memory with one value, of shape (1,), in order with launches. Raises LaunchError."""
        with _refusals():
            if isinstance(memory, cl.Buffer):
                cl.enqueue_fill_buffer(self._queue, memory, value, 0, layout.size_bytes)
            else:
                self.write_image(memory, np.repeat(value, layout.elements), layout)

    def holds(self, memory: Memory, values: NDArray[Any]) -> bool:
        """Whether a plain buffer begins with exactly the bits of `values`. Raises LaunchError."""
        assert isinstance(memory, cl.Buffer)
        found = np.empty_like(values)
        with _refusals():
            cl.enqueue_copy(self._queue, found, memory, is_blocking=True)
        return np.array_equal(found.view(np.uint8), values.view(np.uint8))

    def zero(self, memory: Memory) -> None:
        """Fill a plain buffer with zeros and wait. Raises LaunchError."""
        self.write(memory, np.zeros(memory.size, np.uint8))

    def write_image(self, image: Memory, values: NDArray[Any], layout: Buffer) -> None:
        """Copy rows of pixels from the host into an image and wait. Raises LaunchError."""
        assert isinstance(image, cl.Image)
        region = (layout.image_width, layout.image_height)
        with _refusals():
            cl.enqueue_copy(self._queue, image, values, origin=(0, 0), region=region, is_blocking=True)

    def read(self, memory: Memory, into: NDArray[Any]) -> None:
        """Copy a plain buffer to the host and wait. Raises LaunchError."""
        assert isinstance(memory, cl.Buffer)
        with _refusals():
            cl.enqueue_copy(self._queue, into, memory, is_blocking=True)

    def kernels(self, program: cl.Program, plan: Plan) -> list[cl.Kernel]:
        """Return one kernel object per launch of the plan. Raises BuildError when a kernel is missing."""
        try:
            return [cl.Kernel(program, launch.kernel) for launch in plan.launches]
        except cl.Error as error:
            raise BuildError(_shorten(str(error))) from error

    def bind(
        self, kernel: cl.Kernel, launch: Launch, memory: Mapping[str, Memory], scalars: Mapping[str, float]
    ) -> None:
        """Set the arguments of a kernel; `scalars` has values of named scalars. Raises LaunchError."""
        arguments: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, str):
                arguments.append(memory[argument])
            else:
                value = scalars.get(argument.name, argument.value)
                arguments.append(NUMPY_TYPES[argument.dtype](value))
        with _refusals():
            kernel.set_args(*arguments)

    def enqueue(self, kernel: cl.Kernel, launch: Launch) -> cl.Event:
        """Start a bound kernel. Raises LaunchError when the driver refuses it, WorkGroupError for its work-group.

        Only the launch shows what the driver accepts, since limits that it reports are not always true (see `facts`).
        """
        try:
            return cl.enqueue_nd_range_kernel(self._queue, kernel, launch.global_size, launch.local_size)
        except cl.LogicError as error:
            refused = (cl.status_code.INVALID_WORK_GROUP_SIZE, cl.status_code.INVALID_WORK_ITEM_SIZE)
            kind = WorkGroupError if error.code in refused else LaunchError
            raise kind(_shorten(str(error))) from error
        except cl.Error as error:
            raise LaunchError(_shorten(str(error))) from error

    def finish(self) -> None:
        """Wait for everything enqueued. Raises LaunchError when a command failed while running."""
        with _refusals():
            self._queue.finish()

    def _ask(self, kernel: cl.Kernel, what: int) -> int:
        try:
            answer: Any = kernel.get_work_group_info(what, self._device)
            return int(answer)
        except cl.Error:
            return 0


def raw_device(selector: str) -> cl.Device:
    """Return pyopencl's device for ``platform:device`` numbers, ready to compile. Raises DeviceSelectionError."""
    set_threads()
    try:
        platform, number = (int(part) for part in selector.split(":"))
        device = cl.get_platforms()[platform].get_devices()[number]
    except (ValueError, IndexError, cl.Error) as error:
        raise DeviceSelectionError(f"no device {selector!r}: {error}", hint="see `autotune devices`") from error
    repair_processor_name(device)
    return device


def event_span_ns(event: cl.Event) -> tuple[int, int]:
    """Return start and end of a finished command by the device's clock; zeros if the driver does not report them."""
    try:
        return int(event.profile.start), int(event.profile.end)
    except cl.Error:
        return 0, 0


def event_ns(event: cl.Event) -> int:
    """Return the device time from start to end of a finished command; 0 if the driver does not report it."""
    start, end = event_span_ns(event)
    return end - start


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raise LaunchError for what the driver refuses, such as everything after a kernel has broken the context."""
    try:
        yield
    except cl.Error as error:
        raise LaunchError(_shorten(str(error))) from error


def _shorten(text: str, limit: int = 1500) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
