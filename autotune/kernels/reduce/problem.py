"""Reduction problems: sizes, operation, type and pitch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from autotune.errors import ProblemError
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, Problem
from autotune.space.expression import Expression, by_value

OPERATIONS = ("sum", "mean", "max", "min")
DTYPES = ("float32", "float16")
BYTES_MOVED = Expression(
    f"({by_value('dtype', {dtype: NUMBER_TYPES[dtype].size_bytes for dtype in DTYPES})}) * batch * (channels + 1)"
)
_bytes_moved = BYTES_MOVED.taking("batch", "channels", "dtype")
MAX_LENGTH = 2**31 - 1
"""Most rows, and most elements of a row: kernels take both as 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class ReduceProblem(Problem):
    """Sizes, operation, type and row pitch in elements; a pitch of 0 means rows without a gap."""

    family: ClassVar[str] = "reduce"
    size_axes: ClassVar[tuple[str, ...]] = ("batch", "channels")
    shape_format: ClassVar[str] = "rows,columns,operation"
    shape_examples: ClassVar[tuple[str, ...]] = ("512,768,mean",)

    batch: int
    channels: int
    operation: str = "sum"
    dtype: str = "float32"
    pitch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pitch", self.pitch or self.channels)
        for name in ("batch", "channels", "pitch"):
            if not 1 <= getattr(self, name) <= MAX_LENGTH:
                raise ProblemError(f"{name} must be from 1 to {MAX_LENGTH}, not {getattr(self, name)}")
        if self.pitch < self.channels:
            raise ProblemError(f"pitch must be at least {self.channels}, the length of a row, not {self.pitch}")
        for given, known in ((self.operation, OPERATIONS), (self.dtype, DTYPES)):
            if given not in known:
                raise ProblemError(f"reduce has no {given[:80]!r}", hint=f"there are {', '.join(known)}")

    @property
    def label(self) -> str:
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        pitch = "" if self.pitch == self.channels else f" pitch={self.pitch}"
        return f"{self.batch}x{self.channels} {self.operation}{dtype}{pitch}"

    @property
    def flops(self) -> int:
        return self.batch * self.channels

    @property
    def bytes_moved(self) -> int:
        return _bytes_moved(self.batch, self.channels, self.dtype)

    def resized(self, sizes: Sequence[int]) -> Self:
        batch, channels = sizes
        return type(self)(batch=batch, channels=channels, operation=self.operation, dtype=self.dtype)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``BATCH,CHANNELS[,operation[,dtype]]`` or ``BATCHxCHANNELS...``. Raises ProblemError."""
        # [0-9], because \d and isdecimal() also accept digits that are not ASCII.
        found = re.fullmatch(
            r"\s*([+-]?[0-9]{1,19})\s*[,x]\s*([+-]?[0-9]{1,19})(?:[\s,]+([a-z]+)(?:[\s,]+([a-z0-9]+))?)?\s*",
            text[:200].lower(),
        )
        if not found or len(text) > 200:
            raise ProblemError(
                f"{text[:80]!r} is not a shape", hint="write BATCH,CHANNELS[,operation[,dtype]] such as 512,768,mean"
            )
        batch, channels, operation, dtype = found.groups()
        return cls(batch=int(batch), channels=int(channels), operation=operation or "sum", dtype=dtype or "float32")

    def check_device(self, limits: DeviceLimits) -> None:
        self.check_stored(self.dtype, limits)
        size = NUMBER_TYPES[self.dtype].size_bytes
        operands = {"the input": size * self.batch * self.pitch, "the output": size * self.batch}
        self.check_memory(operands, limits)


EXAMPLES = (
    ReduceProblem(batch=1, channels=1),
    ReduceProblem(batch=2, channels=3, operation="min"),
    ReduceProblem(batch=65, channels=33, operation="max", pitch=48),
    ReduceProblem(batch=64, channels=64, operation="mean"),
    ReduceProblem(batch=33, channels=130, operation="mean", pitch=133),
    ReduceProblem(batch=513, channels=20, operation="min", pitch=32),
    ReduceProblem(batch=7, channels=768),
    ReduceProblem(batch=1, channels=70001),
    ReduceProblem(batch=3, channels=5003, operation="max", pitch=5008),
    ReduceProblem(batch=300, channels=1, operation="min", pitch=5),
    ReduceProblem(batch=3, channels=1, operation="mean", dtype="float16"),
    ReduceProblem(batch=100, channels=67, dtype="float16", pitch=80),
    ReduceProblem(batch=70, channels=131, operation="mean", dtype="float16", pitch=135),
    ReduceProblem(batch=5, channels=4096, operation="max", dtype="float16"),
    ReduceProblem(batch=2, channels=9001, operation="min", dtype="float16", pitch=9008),
)
"""Small problems on which every kernel is checked."""
