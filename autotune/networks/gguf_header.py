"""Reads the header of a GGUF file: names, types and shapes of its tensors. Standard library only.

Files come from anywhere, so every count and length is bounded before anything is read for it, and what is not needed is
skipped. Source: the GGUF specification of the ggml project, versions 2 and 3.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from autotune.errors import UsageError

MAX_TENSORS = 2**16
MAX_VALUES = 2**16
"""Most key-value pairs."""
MAX_NAME_BYTES = 2**16
"""Longest name of a key; those of tensors have 64 bytes at most."""
MAX_TENSOR_NAME = 64
MAX_ITEMS = 2**24
"""Most items of an array, such as a vocabulary."""
MAX_AXES = 4
MAX_SIZE = 2**40
MAX_KEPT = 1024
"""Longest array of integers that is kept, such as the heads of each layer, and longest text, in bytes."""

TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip
"""Types of tensors by their numbers in files."""
_BLOCKS = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "f64": (1, 8), "i8": (1, 1), "i16": (1, 2), "i32": (1, 4),
    "i64": (1, 8), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34),
    "q8_1": (32, 40), "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176),
    "q6_k": (256, 210), "q8_k": (256, 292), "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq3_xxs": (256, 98),
    "iq1_s": (256, 50), "iq4_nl": (32, 18), "iq3_s": (256, 110), "iq2_s": (256, 82), "iq4_xs": (256, 136),
    "iq1_m": (256, 56), "tq1_0": (256, 54), "tq2_0": (256, 66), "mxfp4": (32, 17),
}  # fmt: skip
"""Elements of a block of each type, and its bytes."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values by their numbers in files, as `struct` names them; 8 is a string, 9 an array."""
_WHOLE = "BbHhIi?Qq"
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of a header."""

    name: str
    type: str
    """One of `TYPES`, or ``type N`` for a number that is not there."""
    shape: tuple[int, ...]
    """The axis that is contiguous first: (k, m) for weights, (k, m, experts) with experts."""


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """What is read of a file."""

    tensors: tuple[Tensor, ...]
    experts_used: int
    """Experts that a token uses; 1 where the file does not say."""
    values: Mapping[str, int | str | tuple[int, ...]]
    """Whole numbers and short texts by their names, and short lists of whole numbers."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors whose type is known."""
        return sum(bytes_of(one.type, prod(one.shape)) for one in self.tensors)


def bytes_of(kind: str, elements: int) -> int:
    """Return the bytes of elements of a type; 0 for a type that is not known."""
    block, size = _BLOCKS.get(kind, (1, 0))
    return elements // block * size


def read_header(path: Path) -> GgufHeader:
    """Read the header of a file. Raises UsageError, which names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            return _Reader(file).header()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error


class _Reader:
    """Reads little-endian values from a file, whose size bounds what counts can promise."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = file.seek(0, 2)
        file.seek(0)

    def header(self) -> GgufHeader:
        if self._bytes(min(4, self._left)) != b"GGUF":
            raise UsageError("is no GGUF file", hint="they begin with GGUF")
        version = self._number("I")
        if version not in (2, 3):
            what = "big-endian" if version in (2 << 24, 3 << 24) else f"of version {version}"
            raise UsageError(f"is a GGUF file {what}", hint="versions 2 and 3, little-endian, can be read")
        tensors = self._count(MAX_TENSORS, "tensors")
        values: dict[str, int | str | tuple[int, ...]] = {}
        for _ in range(self._count(MAX_VALUES, "values")):
            key = self._text(MAX_NAME_BYTES, "the name of a value")
            value = self._value(self._number("I"))
            if value is not None:
                values[key] = value
        counts = [n for key, n in values.items() if key.endswith(".expert_used_count") and isinstance(n, int)]
        used = counts[-1] if counts else 1
        if not 1 <= used <= MAX_VALUES:
            raise UsageError(f"tells that {used} experts are used")
        found = tuple(self._tensor() for _ in range(tensors))
        if len({tensor.name for tensor in found}) != len(found):
            raise UsageError("has two tensors of one name")
        return GgufHeader(tensors=found, experts_used=used, values=values)

    def _tensor(self) -> Tensor:
        name = self._text(MAX_TENSOR_NAME, "the name of a tensor")
        axes = self._number("I")
        if not 1 <= axes <= MAX_AXES:
            raise UsageError(f"tensor {name!r} has {axes} axes")
        shape = tuple(self._number("Q") for _ in range(axes))
        if any(not 1 <= size <= MAX_SIZE for size in shape):
            raise UsageError(f"tensor {name!r} has shape {shape}")
        kind = self._number("I")
        self._number("Q")  # where its weights are
        return Tensor(name=name, type=TYPES.get(kind, f"type {kind}"), shape=shape)

    def _value(self, kind: int) -> int | str | tuple[int, ...] | None:
        """Read a value, and return it if it is one that is kept; others are skipped."""
        if kind == _STRING:
            size = self._number("Q")
            if size <= MAX_KEPT:
                return self._bytes(size).decode("utf-8", "replace")
            self._skip(size)
            return None
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise UsageError(f"has a value of the unknown type {kind}")
        value = self._number(_SCALARS[kind])
        return value if _SCALARS[kind] in _WHOLE else None

    def _array(self) -> tuple[int, ...] | None:
        kind = self._number("I")
        count = self._count(MAX_ITEMS, "items in an array")
        if kind == _STRING:
            for _ in range(count):
                self._skip(self._number("Q"))
            return None
        if kind not in _SCALARS:
            raise UsageError(f"has an array of the unknown type {kind}")
        if _SCALARS[kind] not in _WHOLE or count > MAX_KEPT:
            self._skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
            return None
        return tuple(int(self._number(_SCALARS[kind])) for _ in range(count))

    def _text(self, most: int, what: str) -> str:
        size = self._number("Q")
        if size > most:
            raise UsageError(f"{what} has {size} bytes")
        try:
            text = self._bytes(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{what} is not text") from error
        if not text.isprintable():
            raise UsageError(f"{what} is {text!r}")
        return text

    def _count(self, most: int, what: str) -> int:
        count = self._number("Q")
        if count > most:
            raise UsageError(f"tells of {count} {what}", hint=f"at most {most} are read")
        return count

    def _number(self, kind: str) -> int:
        read: Callable[[str, bytes], tuple[int, ...]] = struct.unpack
        return read(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))[0]

    def _bytes(self, size: int) -> bytes:
        self._take(size)
        return self._file.read(size)

    def _skip(self, size: int) -> None:
        self._take(size)
        self._file.seek(size, 1)

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise UsageError("ends within its header")
