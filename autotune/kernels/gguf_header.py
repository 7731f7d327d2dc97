"""Reads the header of a GGUF file: whole numbers, and names, types and shapes of tensors. Standard library only.

Files come from anywhere, so every count and length is bounded before anything is read for it, and what is not needed is
skipped. Source: the GGUF specification of the ggml project, versions 2 and 3.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip
"""Types of tensors by their numbers in files."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values by their numbers in files, as `struct` names them; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What a header tells of a tensor."""

    name: str
    type: str
    """One of `TYPES`, or ``type N`` for a number that is not there."""
    shape: tuple[int, ...]
    """The axis that is contiguous first: (k, m) for weights, (k, m, experts) with experts."""


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """What is read of a file."""

    tensors: tuple[Tensor, ...]
    architecture: str
    """Such as llama; empty where the file does not tell."""
    numbers: Mapping[str, int]
    """The whole numbers that describe the architecture, by their names without it, such as attention.head_count."""

    @property
    def experts_used(self) -> int:
        """Experts that a token uses; 1 where the file does not tell."""
        return self.numbers.get("expert_used_count", 1)


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
        numbers: dict[str, int] = {}
        architecture = ""
        for _ in range(self._count(MAX_VALUES, "values")):
            prefix, _, name = self._text(MAX_NAME_BYTES, "the name of a value").partition(".")
            value = self._value(self._number("I"))
            if value is not None and prefix not in ("general", "tokenizer"):
                numbers[name] = value
                architecture = prefix if name == "block_count" else architecture
        if not 1 <= numbers.get("expert_used_count", 1) <= MAX_VALUES:
            raise UsageError(f"tells that {numbers['expert_used_count']} experts are used")
        found = tuple(self._tensor() for _ in range(tensors))
        if len({tensor.name for tensor in found}) != len(found):
            raise UsageError("has two tensors of one name")
        return GgufHeader(tensors=found, architecture=architecture, numbers=numbers)

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

    def _value(self, kind: int) -> int | None:
        """Read a value, and return it if it is an integer; others are skipped."""
        if kind == _STRING:
            self._skip(self._number("Q"))
        elif kind == _ARRAY:
            self._skip_array()
        elif kind in _SCALARS:
            value = self._number(_SCALARS[kind])
            return value if _SCALARS[kind] not in "fd?" else None
        else:
            raise UsageError(f"has a value of the unknown type {kind}")
        return None

    def _skip_array(self) -> None:
        kind = self._number("I")
        count = self._count(MAX_ITEMS, "items in an array")
        if kind in _SCALARS:
            self._skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
        elif kind == _STRING:
            for _ in range(count):
                self._skip(self._number("Q"))
        else:
            raise UsageError(f"has an array of the unknown type {kind}")

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
