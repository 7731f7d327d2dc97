"""The port to the OpenCL drivers of this machine, through pyopencl."""

import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, cast

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from autotune.device.description import HERE, describe, toolchain
from autotune.device.port import NO_MEMORY, NO_SCALARS, NUMPY_TYPES, KernelFacts, Memory, Run, refuses_group, scalar
from autotune.device.quirks import (
    Quirks,
    ask,
    enter_driver,
    first_line,
    number,
    quirks_of,
    repair_processor_name,
    set_threads,
    shortened,
    text,
    without_noise,
)
from autotune.device.sensors import Reading, Sensors, find_sensors
from autotune.errors import AutotuneError, BuildError, DeviceSelectionError, KernelError, LaunchError, WorkGroupError
from autotune.model.device import Device
from autotune.model.draw import Draw
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Structure
from autotune.model.problem import ELEMENT_TYPES
from autotune.paths import user_cache_folder

CHANNELS = {name: getattr(cl.channel_type, number.channel) for name, number in ELEMENT_TYPES.items() if number.channel}
CHANNEL_ORDERS = {4: cl.channel_order.RGBA, 2: cl.channel_order.RG, 1: cl.channel_order.R}

_BUILD_SUCCESS = 0
_LARGEST_NS = 2**63 - 1


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
class _Step:
    """One launch of a call, and the arguments of it that each start sets."""

    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    operands: tuple[tuple[int, int], ...]
    """Index of the argument, number of the operand."""
    variables: tuple[tuple[int, int, type[np.generic]], ...]
    """Index of the argument, number of the variable, type."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    steps: tuple[_Step, ...]
    memory: Mapping[str, Memory]
    """Kept alive: a kernel holds no reference to its arguments."""


class Session:
    """One device with an in-order queue, as a `Port`; what the methods do is described there."""

    def __init__(self, place: "str | cl.Context | cl.CommandQueue", *, profiles: bool = True) -> None:
        """Open a device, given as ``platform:device`` in numbers, or use a context of one device, or an in-order queue.

        Launches on a queue made here report event times if it `profiles`. Raises DeviceSelectionError when the device
        cannot be found or opened.
        """
        enter_driver()
        if isinstance(place, str | cl.Context):
            context, queue = _new_queue(place, profiles)
        else:
            context, queue = place.context, place
        if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
            raise DeviceSelectionError("the queue executes out of order", hint="pass an in-order queue")
        repair_processor_name(queue.device)
        _spare_cache()
        self.queue, self.context, self._raw = queue, queue.context, queue.device
        self._kept_alive = context  # which Intel's queues do not
        self.quirks: Quirks = quirks_of(text(self._raw, "version"), text(self._raw, "vendor"))
        self._written: list[Any] = []
        """Events of copies from the host that were not waited for; pyopencl waits where one is dropped."""
        self._latest: Any = None
        """The event of the latest call, which the next one of this queue, which is in order, need not wait for."""

    @functools.cached_property
    def device(self) -> Device:
        return describe(self._raw)

    @property
    def toolchain(self) -> tuple[str, ...]:
        return toolchain(self._raw, ask(lambda: self._raw.platform, None), HERE)

    @property
    def timer_resolution_ns(self) -> float:
        return float(number(self._raw, "profiling_timer_resolution"))

    def read_sensors(self) -> Reading:
        return self._sensors.read()

    @functools.cached_property
    def _sensors(self) -> Sensors:
        bus, slot = number(self._raw, "pci_bus_id_nv", -1), number(self._raw, "pci_slot_id_nv", -1)
        domain = number(self._raw, "pci_domain_id_nv")
        address = f"{domain:08x}:{bus:02x}:{slot:02x}.0" if bus >= 0 and slot >= 0 else ""
        return find_sensors(self.device, address)

    # Programs

    def build(self, source: str, options: Sequence[str]) -> cl.Program:
        return self._built(lambda: cl.Program(self.context, source), options)

    def load(self, binary: bytes, options: Sequence[str]) -> cl.Program:
        return self._built(lambda: cl.Program(self.context, [self._raw], [binary]), options)

    def _built(self, create: Callable[[], cl.Program], options: Sequence[str]) -> cl.Program:
        program = None
        try:
            program = create()
            program.build(options=list(options))
        except Exception as error:
            # pyopencl raises if it cannot read the name of the device or its platform, even if the build succeeded.
            if program is None or isinstance(error, cl.Error) or not self._is_built(program):
                raise BuildError(shortened(without_noise(str(error)))) from error
        return program

    def _is_built(self, program: Any) -> bool:
        asked = cl.program_build_info.STATUS
        return ask(lambda: int(program.get_build_info(self._raw, asked)), -1) == _BUILD_SUCCESS

    def binary(self, program: Any) -> bytes:
        try:
            devices, binaries = (program.get_info(what) for what in (cl.program_info.DEVICES, cl.program_info.BINARIES))
            return bytes(binaries[devices.index(self._raw)] or b"")
        except (cl.Error, ValueError, MemoryError):
            return b""

    def binary_bytes(self, program: Any) -> int:
        return ask(lambda: sum(map(int, program.get_info(cl.program_info.BINARY_SIZES))), 0)

    def kernels(self, program: cl.Program, plan: Plan) -> list[cl.Kernel]:
        with _refusals(BuildError):
            return [cl.Kernel(program, launch.kernel) for launch in plan.launches]

    def facts(self, kernels: Sequence[cl.Kernel], plan: Plan) -> KernelFacts:
        def reported(kernel: Any, what: int) -> int:
            return ask(lambda: int(kernel.get_work_group_info(what, self._raw)), 0)

        info, is_reported = cl.kernel_work_group_info, not self.quirks.understates_work_group_limit
        working = [k for k, launch in zip(kernels, plan.launches, strict=True) if not launch.prepares]
        return KernelFacts(
            work_group_limit=min(reported(kernel, info.WORK_GROUP_SIZE) if is_reported else 0 for kernel in working),
            private_memory_bytes=max(reported(kernel, info.PRIVATE_MEM_SIZE) for kernel in working),
        )

    # Memory

    def allocate(self, buffer: Buffer, allocated: Mapping[str, Memory] = NO_MEMORY) -> Memory:
        flags = cl.mem_flags.READ_WRITE
        try:
            if not buffer.image_width:
                return cl.Buffer(self.context, flags, size=buffer.size_bytes)
            pixels = cl.ImageFormat(CHANNEL_ORDERS[buffer.channels], CHANNELS[buffer.dtype])
            shape = (buffer.image_width, buffer.image_height)
            if not buffer.view_of:
                return cl.create_image(self.context, flags, pixels, shape=shape)
            view = cl.ImageDescriptor()
            view.image_type = cl.mem_object_type.IMAGE1D_BUFFER if buffer.is_line else cl.mem_object_type.IMAGE2D
            view.shape = (*shape, 1)
            view.pitches = (buffer.row_pitch * ELEMENT_TYPES[buffer.dtype].size_bytes, 0)
            view.buffer = shown = without_pool(allocated[buffer.view_of])
            # A view of memory that kernels may only read must not promise more.
            flags = shown.flags & cl.mem_flags.READ_ONLY or flags
            return cl.Image(self.context, flags, pixels, desc=view)
        except cl.Error as error:
            raise LaunchError(f"cannot allocate {buffer.name}: {shortened(str(error))}") from error

    def part(self, memory: Memory, start_bytes: int, size_bytes: int) -> Memory | None:
        alignment_bits = number(self._raw, "mem_base_addr_align")
        if not alignment_bits or 8 * start_bytes % alignment_bits:
            return None
        with _refusals():
            return memory.get_sub_region(start_bytes, size_bytes)

    def write(self, memory: Memory, values: NDArray[Any], *, wait: bool = True) -> None:
        with _refusals():
            event = cl.enqueue_copy(self.queue, memory, values, is_blocking=wait, **_all(memory))
        if not wait:
            self._written.append(event)

    def draw(self, memory: Memory, draw: Draw, behind: NDArray[Any]) -> bool:  # noqa: ARG002 - NumPy is on this machine
        return False

    def fill(self, memory: Memory, value: NDArray[Any]) -> None:
        if not isinstance(memory, cl.Buffer):
            self.write(memory, np.repeat(value, memory.size // value.itemsize))
            return
        with _refusals():
            cl.enqueue_fill_buffer(self.queue, memory, value, 0, memory.size)

    def copy(self, source: Memory, target: Memory, size_bytes: int) -> None:
        with _refusals():
            if isinstance(source, cl.Buffer):
                cl.enqueue_copy(self.queue, target, source, byte_count=size_bytes)
            else:
                cl.enqueue_copy(
                    self.queue, target, source, src_origin=(0, 0), dest_origin=(0, 0), region=_all(source)["region"]
                )

    def read(self, memory: Memory, into: NDArray[Any], start_bytes: int = 0) -> None:
        where = {"src_offset": start_bytes} if isinstance(memory, cl.Buffer) else _all(memory)
        with _refusals():
            cl.enqueue_copy(self.queue, into, memory, is_blocking=True, **where)
        self._written.clear()

    # Launches

    def bind(
        self,
        kernels: Sequence[cl.Kernel],
        launches: Sequence[Launch],
        memory: Mapping[str, Memory],
        scalars: Mapping[str, float] = NO_SCALARS,
        *,
        operands: Sequence[str] = (),
        variables: Sequence[str] = (),
    ) -> _Call:
        steps = []
        with _refusals():
            for kernel, launch in zip(kernels, launches, strict=True):
                changing, named = [], []
                for index, argument in enumerate(launch.arguments):
                    if isinstance(argument, LocalMemory):
                        kernel.set_arg(index, cast("Any", cl.LocalMemory(argument.size_bytes)))
                    elif argument is None or isinstance(argument, Structure):
                        kernel.set_arg(index, cast("Any", argument.content if argument else None))
                    elif not isinstance(argument, str):
                        kind = NUMPY_TYPES[argument.dtype]
                        kernel.set_arg(index, scalar(kind, scalars.get(argument.name, argument.value)))
                        if argument.name in variables:
                            named.append((index, variables.index(argument.name), kind))
                    elif argument in operands:
                        changing.append((index, operands.index(argument)))
                    else:
                        kernel.set_arg(index, memory[argument])
                step = _Step(
                    kernel=kernel,
                    global_size=launch.global_size,
                    local_size=_local_size(launch),
                    operands=tuple(changing),
                    variables=tuple(named),
                )
                steps.append(step)
        return _Call(steps=tuple(steps), memory=memory)

    def start(
        self,
        call: _Call,
        operands: Sequence[Memory] = (),
        variables: Sequence[float] | None = None,
        arrays: Sequence[Any] = (),
        shared: Sequence[Any] = (),
    ) -> None:
        queue = self.queue
        latest, after = self._latest, None
        for array in arrays:  # loops and assignments as quick as they can be: a call takes some microseconds
            events = array.events
            if events and (events[0] is not latest or len(events) > 1):
                after = [*(after or ()), *events]
        try:
            for step in call.steps:
                kernel = step.kernel
                for index, place in step.operands:
                    kernel.set_arg(index, operands[place])
                if variables is not None:
                    for index, place, kind in step.variables:
                        kernel.set_arg(index, kind(variables[place]))
                event = cl.enqueue_nd_range_kernel(queue, kernel, step.global_size, step.local_size, None, after)
        except cl.Error as error:
            raise LaunchError(shortened(str(error))) from error
        self._latest = event
        for array in shared:  # the event came after all others
            events = array.events
            if len(events) == 1:
                events[0] = event
            else:
                events[:] = [event]

    def run(self, call: _Call, times: int = 1, *, has_events: bool = True) -> Run:
        """Only the launch shows what work-group the driver accepts: limits that it reports are not always true."""
        queue = self.queue
        launches = [(step.kernel, step.global_size, step.local_size) for step in call.steps]
        start = perf_counter_ns()
        try:
            events = [cl.enqueue_nd_range_kernel(queue, *launch) for _ in range(times) for launch in launches]
        except cl.Error as error:
            kind = WorkGroupError if refuses_group(error.code, self._can_wait) else LaunchError
            raise kind(shortened(str(error))) from error
        self.finish()
        end = perf_counter_ns()
        spans = [event_span_ns(event) for event in events] if has_events else np.zeros((len(events), 2))
        found = np.array(spans, np.int64).reshape(times, len(launches), 2)
        return Run(host_start_ns=start, host_end_ns=end, events=found)

    def _can_wait(self) -> bool:
        try:
            self.queue.finish()
        except cl.Error:
            return False
        return True

    def finish(self) -> None:
        with _refusals():
            self.queue.finish()
        self._written.clear()


def without_pool(memory: Any) -> Any:
    """Return memory as a buffer or image: pyopencl makes neither parts nor images of what comes from its pools."""
    return memory if isinstance(memory, cl.MemoryObject) else cl.Buffer.from_int_ptr(memory.int_ptr)


def _local_size(launch: Launch) -> tuple[int, ...] | None:
    """Return the work-group size. One work-item has one even if the driver may choose: that takes NVIDIA's 4 us."""
    is_single = launch.local_size is None and math.prod(launch.global_size) == 1
    return launch.global_size if is_single else launch.local_size


def event_span_ns(event: cl.Event) -> tuple[int, int]:
    """Return start and end of a finished command by the device's clock; zeros if the driver does not report them."""
    try:
        start: Any = event.get_profiling_info(cl.profiling_info.START)
        end: Any = event.get_profiling_info(cl.profiling_info.END)
        return min(start, _LARGEST_NS), min(end, _LARGEST_NS)
    except cl.Error:
        return 0, 0


def _raw_device(selector: str) -> cl.Device:
    """Return pyopencl's device for ``platform:device`` numbers, ready to compile. Raises DeviceSelectionError."""
    set_threads()
    try:
        platform, place = (int(part) for part in selector.split(":"))
        device = cl.get_platforms()[platform].get_devices()[place]
    except (ValueError, IndexError, cl.Error) as error:
        raise DeviceSelectionError(f"no device {selector!r}: {error}", hint="see `autotune devices`") from error
    repair_processor_name(device)
    return device


def _new_queue(place: "str | cl.Context", profiles: bool) -> tuple[cl.Context, cl.CommandQueue]:
    if isinstance(place, cl.Context) and len(place.devices) != 1:
        message = f"the context has {len(place.devices)} devices"
        raise DeviceSelectionError(message, hint="pass a queue of one device")
    device = _raw_device(place) if isinstance(place, str) else place.devices[0]
    properties: Any = cl.command_queue_properties.PROFILING_ENABLE if profiles else 0
    try:
        context = cl.Context([device]) if isinstance(place, str) else place
        return context, cl.CommandQueue(context, device, properties=properties)
    except Exception as error:  # pyopencl makes queries that the driver may refuse
        raise DeviceSelectionError(f"device {place} cannot be opened: {first_line(error)}") from error


def _all(memory: Memory) -> dict[str, Any]:
    """Return the arguments of a copy that stand for a whole image, in pixels; none for a buffer."""
    return {} if isinstance(memory, cl.Buffer) else {"origin": (0, 0), "region": (memory.width, memory.height)}


@contextmanager
def _refusals(kind: type[KernelError] = LaunchError) -> Iterator[None]:
    """Raise what the driver refuses as `kind`, such as everything after a kernel has broken the context."""
    try:
        yield
    except cl.Error as error:
        raise kind(shortened(str(error))) from error
