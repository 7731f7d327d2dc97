"""Problems of row operations: sizes, operation, type, heads and pitches."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, Problem
from autotune.space.expression import Expression, by_value


@dataclass(frozen=True, kw_only=True)
class RowOperation:
    """One operation on rows; the operands besides input and output follow from it."""

    name: str
    flops: int
    """Arithmetic operations for each element of the result."""
    matrices: int
    """Matrices of (batch, channels) that are read or written."""
    vectors: int = 0
    """Vectors of `channels` elements that are read."""


OPERATIONS: Mapping[str, RowOperation] = {
    operation.name: operation
    for operation in (
        RowOperation(name="rms_norm", flops=3, matrices=2),
        RowOperation(name="rms_norm_weight", flops=4, matrices=2, vectors=1),
        RowOperation(name="rms_norm_add", flops=4, matrices=4),
        RowOperation(name="rms_norm_add_weight", flops=5, matrices=4, vectors=1),
        RowOperation(name="layer_norm", flops=7, matrices=2, vectors=2),
        RowOperation(name="softmax", flops=5, matrices=2),
        RowOperation(name="softmax_mask", flops=6, matrices=2, vectors=1),
        RowOperation(name="softmax_row_mask", flops=6, matrices=3),
        RowOperation(name="swiglu", flops=5, matrices=3),
        RowOperation(name="swiglu_halves", flops=5, matrices=3),
        RowOperation(name="rope", flops=3, matrices=2),
        RowOperation(name="rope_halves", flops=3, matrices=2),
    )
}
"""Operations by name; the suffix says what is added, or how the operands lie."""

DTYPES = ("float32", "float16")
MAX_LENGTH = 2**31 - 1
"""Most rows, and most elements of a row: kernels take both as 32-bit integers."""
LEAST_PITCH = "2 * channels if operation == 'swiglu_halves' else channels"
HEADS_FIT = "heads == 1 or operation in ('rope', 'rope_halves')"
PAIRS_FIT = "channels % (2 * heads) == 0 or not (operation in ('rope', 'rope_halves'))"


def _per(name: str) -> str:
    return f"({by_value('operation', {o.name: getattr(o, name) for o in OPERATIONS.values()})})"


BYTES_MOVED = Expression(
    f"({by_value('dtype', {dtype: NUMBER_TYPES[dtype].size_bytes for dtype in DTYPES})}) * channels"
    f" * ({_per('matrices')} * batch + {_per('vectors')}) + (4 * batch if operation in ('rope', 'rope_halves') else 0)"
)
_bytes_moved = BYTES_MOVED.taking("batch", "channels", "operation", "dtype")


@dataclass(frozen=True, kw_only=True)
class RowsProblem(Problem):
    """Sizes of the result, operation, type, heads in a row (RoPE), and pitches in elements.

    `pitch` is that of the input and of all other operands with rows, `out_pitch` that of what is written; 0 means rows
    without a gap, and one head. A row of the input of `swiglu_halves` has 2 * channels elements.
    """

    family: ClassVar[str] = "rows"
    size_axes: ClassVar[tuple[str, ...]] = ("batch", "channels")
    shape_format: ClassVar[str] = "rows,columns,operation"
    shape_examples: ClassVar[tuple[str, ...]] = ("512,4096,rms_norm_weight",)

    batch: int
    channels: int
    operation: str = "rms_norm"
    dtype: str = "float32"
    heads: int = 0
    pitch: int = 0
    out_pitch: int = 0

    def __post_init__(self) -> None:
        for given, known in ((self.operation, OPERATIONS), (self.dtype, DTYPES)):
            if given not in known:
                raise ProblemError(f"rows has no {given[:80]!r}", hint=f"there are {', '.join(known)}")
        object.__setattr__(self, "heads", self.heads or 1)
        object.__setattr__(self, "pitch", self.pitch or self.row_elements)
        object.__setattr__(self, "out_pitch", self.out_pitch or self.channels)
        for name in ("batch", "channels", "heads", "pitch", "out_pitch"):
            if not 1 <= getattr(self, name) <= MAX_LENGTH:
                raise ProblemError(f"{name} must be from 1 to {MAX_LENGTH}, not {getattr(self, name)}")
        for name, least in (("pitch", self.row_elements), ("out_pitch", self.channels)):
            if getattr(self, name) < least:
                raise ProblemError(f"{name} must be at least {least}, the length of a row, not {getattr(self, name)}")
        if not self.is_rope and self.heads != 1:
            raise ProblemError(f"{self.operation} has no heads")
        if self.is_rope and self.channels % (2 * self.heads):
            raise ProblemError(f"a row of {self.channels} cannot be {self.heads} heads of pairs")

    @property
    def is_rope(self) -> bool:
        return self.operation in ("rope", "rope_halves")

    @property
    def row_elements(self) -> int:
        """Elements in a row of the input."""
        return 2 * self.channels if self.operation == "swiglu_halves" else self.channels

    @property
    def label(self) -> str:
        words = [f"{self.batch}x{self.channels}", self.operation]
        words += [self.dtype] if self.dtype != "float32" else []
        words += [f"heads={self.heads}"] if self.heads != 1 else []
        words += [f"pitch={self.pitch}"] if self.pitch != self.row_elements else []
        words += [f"out_pitch={self.out_pitch}"] if self.out_pitch != self.channels else []
        return " ".join(words)

    @property
    def flops(self) -> int:
        return OPERATIONS[self.operation].flops * self.batch * self.channels

    @property
    def bytes_moved(self) -> int:
        return _bytes_moved(self.batch, self.channels, self.operation, self.dtype)

    def resized(self, sizes: Sequence[int]) -> Self:
        """As in the base class; of RoPE, the length is rounded to pairs and the heads to what divides it."""
        batch, channels = sizes
        heads = 1
        if self.is_rope:
            channels = max(2, channels // 2 * 2)
            heads = math.gcd(channels // 2, self.heads)
        return type(self)(batch=batch, channels=channels, operation=self.operation, dtype=self.dtype, heads=heads)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``BATCH,CHANNELS[,operation][,dtype]``, then `heads=`, `pitch=`, `out_pitch=`. Raises ProblemError."""
        # [0-9], because \d and isdecimal() also accept digits that are not ASCII.
        found = re.fullmatch(
            r"\s*([+-]?[0-9]{1,19})\s*[,x]\s*([+-]?[0-9]{1,19})((?:[\s,]+[a-z_0-9]+(?:=[0-9]{1,19})?){0,5})\s*",
            text[:200].lower(),
        )
        if not found or len(text) > 200:
            raise ProblemError(
                f"{text[:80]!r} is not a shape",
                hint="write BATCH,CHANNELS[,operation[,dtype]] such as 512,4096,rms_norm_weight",
            )
        values: dict[str, Any] = {"batch": int(found[1]), "channels": int(found[2])}
        for word in re.split(r"[\s,]+", found[3].strip(" \t\n,")) if found[3] else ():
            name, equals, number = word.partition("=")
            if not equals:
                name, number = ("dtype" if word in DTYPES else "operation"), word
            if name in values or (equals and name not in ("heads", "pitch", "out_pitch")):
                raise ProblemError(f"{word[:80]!r} in {text[:80]!r} is not understood")
            values[name] = int(number) if equals else number
        return cls(**values)

    def check_device(self, limits: DeviceLimits) -> None:
        self.check_stored(self.dtype, limits)
        size = NUMBER_TYPES[self.dtype].size_bytes
        operation = OPERATIONS[self.operation]
        operands = {"the input": size * self.batch * self.pitch, "the output": size * self.batch * self.out_pitch}
        if operation.matrices > 2 and self.operation != "swiglu_halves":
            operands["the second operand"] = operands["the input"]
        if operation.matrices > 3:
            operands["the sum"] = operands["the output"]
        self.check_memory(operands, limits)


EXAMPLES = (
    "1,1", "2,3,rms_norm_weight", "65,33,rms_norm_add pitch=48 out_pitch=40", "9,768,rms_norm_add_weight",
    "33,130,layer_norm pitch=133", "5,1000,layer_norm out_pitch=1008", "64,64,softmax", "7,515,softmax_mask",
    "3,2500,softmax_row_mask pitch=2504 out_pitch=2504", "300,1,softmax", "19,70,swiglu pitch=72", "1,3001,swiglu",
    "6,257,swiglu_halves", "12,96,swiglu_halves pitch=208", "10,384,rope heads=3", "5,64,rope_halves",
    "17,96,rope_halves heads=3 pitch=112 out_pitch=100", "4,70,rope heads=5",
    "5,1,rms_norm_weight float16", "40,67,rms_norm_add_weight float16 pitch=80 out_pitch=72",
    "3,4096,layer_norm float16", "70,131,softmax_mask float16 pitch=135", "5,2048,softmax_row_mask float16",
    "9,200,swiglu float16", "3,136,swiglu_halves float16",
    "8,128,rope float16 heads=2", "6,256,rope_halves float16 heads=4",
)  # fmt: skip
"""Small problems on which every kernel is checked."""
