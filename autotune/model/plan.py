"""The plan of one configuration on one problem: buffers and launches, in order."""

import enum
from dataclasses import dataclass

from autotune.model.configuration import Value
from autotune.model.problem import ELEMENT_TYPES


class Role(enum.Enum):
    """What a kernel does with a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    """Read before it is written only if the problem requires it (beta)."""
    SCRATCH = "scratch"
    VIEW = "view"
    """An image over the memory of another buffer, without a copy."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Device memory of a plan. A pixel of an image holds `channels` successive elements of a row."""

    name: str
    role: Role
    dtype: str
    elements: int
    """Number of elements; for an image, channels * width * height."""
    image_width: int = 0
    """In pixels; 0 for a plain buffer."""
    image_height: int = 0
    view_of: str = ""
    """For the role VIEW: name of the buffer whose memory the image shows; that buffer comes earlier in the plan."""
    row_pitch: int = 0
    """Elements between the starts of rows in the buffer of `view_of`."""
    channels: int = 4
    """Elements in a pixel of an image: 4 (RGBA), 2 (RG) or 1 (R)."""
    is_line: bool = False
    """A view of one dimension (``image1d_buffer_t``): `image_width` pixels, and an `image_height` of 1."""
    is_zeroed: bool = False
    """The buffer must hold zeros before the first call, and every call leaves zeros; a failed call may not."""

    @property
    def size_bytes(self) -> int:
        return self.elements * ELEMENT_TYPES[self.dtype].size_bytes


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number passed to a kernel. It has a `name` if the caller supplies the value (alpha, beta)."""

    dtype: str
    value: float = 0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class LocalMemory:
    """Local memory passed to a kernel as an argument, for each work-group."""

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Structure:
    """A vector or a structure passed to a kernel by value: its bytes, with those of padding."""

    content: bytes


Argument = str | Scalar | LocalMemory | Structure | None
"""What a kernel is passed: a buffer by its name, or what it says; None is a pointer to nothing (NULL)."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One enqueued kernel with its arguments.

    `global_size` is in work-items; a `local_size` of None leaves the work-group size to the driver.
    `prepares` names the operand if this launch only converts it to another layout.
    """

    kernel: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    arguments: tuple[Argument, ...]
    prepares: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything needed to run one configuration on one problem, in order."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    build_options: tuple[str, ...] = ()
    template_values: tuple[tuple[str, Value], ...] = ()
    """Variables of the template besides the parameters."""

    @property
    def named_scalars(self) -> dict[str, Scalar]:
        """The scalars whose values a caller may supply, by name, in the order in which they are passed first."""
        arguments = [argument for launch in self.launches for argument in launch.arguments]
        return {a.name: a for a in arguments if isinstance(a, Scalar) and a.name}
