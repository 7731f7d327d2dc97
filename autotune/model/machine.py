"""What an architecture is, as far as estimates of kernels depend on it."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An architecture; `device/machines/*.toml` state the numbers of each, with their sources."""

    is_sparse: ClassVar[bool] = True
    outputs_least: int = 0
    """Outputs of a work-item of GEMM where the product is small; 0 if no measurements say how many it should have."""
    outputs_most: int = 0
    """The same where the product is large."""
    work_items_wanted: int = 1
    """A product between these has outputs for so many work-items."""
    registers_most: int = 255
    """32-bit registers that a work-item can have; a kernel that needs more spills."""
    reads_images: bool = False
    """Whether images have a path of their own, on which B is read faster than from buffers."""


UNKNOWN = Machine()
"""The machine of a device of which nothing is known."""
