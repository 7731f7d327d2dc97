"""The device port: what measuring and running kernels need of a device, whatever reaches it.

`opencl.Session` is the port to a driver of this machine, through pyopencl. Another may reach a program on a phone, so
only plain values cross: text, bytes, NumPy arrays, sizes and nanoseconds. Programs, kernels, memory and bound calls
are opaque handles, of use to the port that made them only. Commands take effect in order. One that returns nothing
need not be waited for: its error may be raised by the next command that waits, which are `read`, `run` and `finish`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.device.quirks import Quirks
from autotune.device.sensors import Reading
from autotune.errors import LaunchError
from autotune.model.device import Device
from autotune.model.draw import Draw
from autotune.model.plan import Buffer, Launch, Plan
from autotune.model.problem import ELEMENT_TYPES

NAMES: dict[int, str] = dict(
    zip(
        (*range(-1, -20, -1), *range(-30, -73, -1)),
        (
            "DEVICE_NOT_FOUND", "DEVICE_NOT_AVAILABLE", "COMPILER_NOT_AVAILABLE", "MEM_OBJECT_ALLOCATION_FAILURE",
            "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "PROFILING_INFO_NOT_AVAILABLE", "MEM_COPY_OVERLAP",
            "IMAGE_FORMAT_MISMATCH", "IMAGE_FORMAT_NOT_SUPPORTED", "BUILD_PROGRAM_FAILURE", "MAP_FAILURE",
            "MISALIGNED_SUB_BUFFER_OFFSET", "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "COMPILE_PROGRAM_FAILURE",
            "LINKER_NOT_AVAILABLE", "LINK_PROGRAM_FAILURE", "DEVICE_PARTITION_FAILED", "KERNEL_ARG_INFO_NOT_AVAILABLE",
            "INVALID_VALUE", "INVALID_DEVICE_TYPE", "INVALID_PLATFORM", "INVALID_DEVICE", "INVALID_CONTEXT",
            "INVALID_QUEUE_PROPERTIES", "INVALID_COMMAND_QUEUE", "INVALID_HOST_PTR", "INVALID_MEM_OBJECT",
            "INVALID_IMAGE_FORMAT_DESCRIPTOR", "INVALID_IMAGE_SIZE", "INVALID_SAMPLER", "INVALID_BINARY",
            "INVALID_BUILD_OPTIONS", "INVALID_PROGRAM", "INVALID_PROGRAM_EXECUTABLE", "INVALID_KERNEL_NAME",
            "INVALID_KERNEL_DEFINITION", "INVALID_KERNEL", "INVALID_ARG_INDEX", "INVALID_ARG_VALUE",
            "INVALID_ARG_SIZE", "INVALID_KERNEL_ARGS", "INVALID_WORK_DIMENSION", "INVALID_WORK_GROUP_SIZE",
            "INVALID_WORK_ITEM_SIZE", "INVALID_GLOBAL_OFFSET", "INVALID_EVENT_WAIT_LIST", "INVALID_EVENT",
            "INVALID_OPERATION", "INVALID_GL_OBJECT", "INVALID_BUFFER_SIZE", "INVALID_MIP_LEVEL",
            "INVALID_GLOBAL_WORK_SIZE", "INVALID_PROPERTY", "INVALID_IMAGE_DESCRIPTOR", "INVALID_COMPILER_OPTIONS",
            "INVALID_LINKER_OPTIONS", "INVALID_DEVICE_PARTITION_COUNT", "INVALID_PIPE_SIZE", "INVALID_DEVICE_QUEUE",
            "INVALID_SPEC_ID", "MAX_SIZE_RESTRICTION_EXCEEDED",
        ),
        strict=True,
    )
)  # fmt: skip
"""OpenCL's error codes by number."""
CODES = {name: code for code, name in NAMES.items()}
_WORK_GROUP_REFUSED = (CODES["INVALID_WORK_GROUP_SIZE"], CODES["INVALID_WORK_ITEM_SIZE"])
NUMPY_TYPES: dict[str, type[np.generic]] = {
    name: getattr(np, number.stored or name) for name, number in ELEMENT_TYPES.items()
}

Program = Any
Kernel = Any
Memory = Any
Call = Any
"""Launches whose constant arguments are set."""

NO_MEMORY: Mapping[str, Memory] = MappingProxyType({})
NO_SCALARS: Mapping[str, float] = MappingProxyType({})


def scalar(kind: type[np.generic], value: float) -> np.generic:
    """Return a scalar argument. Raises LaunchError for a number that its type does not hold."""
    try:
        return kind(value.item() if isinstance(value, np.generic) else value)
    except (OverflowError, ValueError) as error:
        raise LaunchError(f"a scalar argument would be {value}, which {kind.__name__} does not hold") from error


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """What the driver reports about a built kernel: signs of register pressure and spills."""

    work_group_limit: int
    private_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """When launches ran, in nanoseconds of two clocks: the host's and the device's."""

    host_start_ns: int
    """Just before the first launch was enqueued."""
    host_end_ns: int
    """When the host noticed that the last launch had ended."""
    events: NDArray[np.int64]
    """Start and end of each launch, shape (times, launches, 2); zeros if the driver does not report them."""

    @property
    def host_ns(self) -> int:
        return self.host_end_ns - self.host_start_ns

    @property
    def event_ns(self) -> NDArray[np.int64]:
        """Device time of each launch, shape (times, launches)."""
        spans: NDArray[np.int64] = self.events[..., 1] - self.events[..., 0]
        return spans


class Port(Protocol):
    """One device. Methods raise LaunchError where the driver refuses a command, unless they say otherwise."""

    @property
    def device(self) -> Device:
        """The device with its limits. Raises DeviceSelectionError when it does not answer."""
        ...

    @property
    def quirks(self) -> Quirks:
        """What its driver does otherwise than others."""
        ...

    @property
    def toolchain(self) -> tuple[str, ...]:
        """Texts that are equal only where built programs can be exchanged: device, driver, instruction set."""
        ...

    @property
    def timer_resolution_ns(self) -> float:
        """Resolution of event times according to the driver; 0 if it does not report one."""
        ...

    def read_sensors(self) -> Reading:
        """Return the device's clock and temperature as far as the system reports them; never fails."""
        ...

    def build(self, source: str, options: Sequence[str]) -> Program:
        """Compile OpenCL C for the device. Raises BuildError with the first lines of the driver's log."""
        ...

    def load(self, binary: bytes, options: Sequence[str]) -> Program:
        """Load a program that was built before by an equal toolchain, with these options. Raises BuildError."""
        ...

    def binary(self, program: Program) -> bytes:
        """Return a built program's binary; empty if the driver does not return it."""
        ...

    def binary_bytes(self, program: Program) -> int:
        """Return the size of a built program's binary; 0 if the driver does not report it."""
        ...

    def kernels(self, program: Program, plan: Plan) -> list[Kernel]:
        """Return one kernel per launch of the plan. Raises BuildError when one is missing."""
        ...

    def facts(self, kernels: Sequence[Kernel], plan: Plan) -> KernelFacts:
        """Return the most private memory and the lowest work-group limit of a plan's kernels; 0 where not reported.

        Kernels that only prepare operands do not count.
        """
        ...

    def allocate(self, buffer: Buffer, allocated: Mapping[str, Memory] = NO_MEMORY) -> Memory:
        """Allocate a buffer or image, contents undefined; a view is an image over one of `allocated`, by name."""
        ...

    def part(self, memory: Memory, start_bytes: int, size_bytes: int) -> Memory | None:
        """Return a part of a buffer as a buffer of its own, or None where that cannot be had."""
        ...

    def write(self, memory: Memory, values: NDArray[Any], *, wait: bool = True) -> None:
        """Copy contiguous values to the start of a buffer, or to all pixels of an image.

        Without `wait` the values must not change until the next command that waits.
        """
        ...

    def draw(self, memory: Memory, draw: Draw, behind: NDArray[Any]) -> bool:
        """Have the device's machine draw random numbers from the start of a buffer; `behind` follows them.

        Returns False, and does nothing, where writing them is as good.
        """
        ...

    def fill(self, memory: Memory, value: NDArray[Any]) -> None:
        """Fill a buffer or image with one value, of shape (1,)."""
        ...

    def copy(self, source: Memory, target: Memory, size_bytes: int) -> None:
        """Copy the start of one buffer to another, or a whole image to one of its shape."""
        ...

    def read(self, memory: Memory, into: NDArray[Any], start_bytes: int = 0) -> None:
        """Copy what begins at a byte of a buffer, or all pixels of an image, into a contiguous array."""
        ...

    def bind(
        self,
        kernels: Sequence[Kernel],
        launches: Sequence[Launch],
        memory: Mapping[str, Memory],
        scalars: Mapping[str, float] = NO_SCALARS,
        *,
        operands: Sequence[str] = (),
        variables: Sequence[str] = (),
    ) -> Call:
        """Set the arguments of kernels, and return a call that launches them in order.

        `memory` has the buffers by name, `scalars` values of named scalars. The buffers named in `operands` are
        set by each `start`, so that such a call cannot be passed to `run`. The scalars named in `variables` keep their
        values until a `start` changes them. A call is valid until its kernels are bound anew.
        """
        ...

    def start(
        self,
        call: Call,
        operands: Sequence[Memory] = (),
        variables: Sequence[float] | None = None,
        arrays: Sequence[Any] = (),
        shared: Sequence[Any] = (),
    ) -> None:
        """Start a call without waiting for its end. `variables` are as in the last start if None.

        `arrays` are operands that other queues may use: the call waits for what these have begun. They wait for the
        call where an array is one of those `shared`.
        """
        ...

    def run(self, call: Call, times: int = 1, *, has_events: bool = True) -> Run:
        """Start a call a number of times, wait for its end, and return the times.

        Without `has_events` the device's times are not read, which saves time. Raises WorkGroupError when the driver
        refuses the work-group of a launch.
        """
        ...

    def finish(self) -> None:
        """Wait for everything started."""
        ...


def refuses_group(status: int, can_wait: Callable[[], bool]) -> bool:
    """Return whether a launch was refused for its work-group, and nothing is broken.

    NVIDIA reports in the same words that a work-group needs too many registers and that a kernel has faulted; after a
    fault every wait fails, too. `can_wait` returns whether one did not.
    """
    return can_wait() if status == CODES["OUT_OF_RESOURCES"] else status in _WORK_GROUP_REFUSED
