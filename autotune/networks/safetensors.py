"""Headers of safetensors files: types and shapes of their tensors. Source: the format's README, github.com/huggingface.

A file begins with the length of its header, which is JSON. Nothing behind that is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.codec import MAX_BYTES, Node, parse
from autotune.errors import TableError, UsageError

MAX_TENSORS = 2**18
MAX_FILES = 512
MAX_AXES = 8
MAX_AXIS = 2**40
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    name: str
    dtype: str
    """As the format names it, such as BF16."""
    shape: tuple[int, ...]
    size_bytes: int


def read_tensors(folder: Path) -> list[StoredTensor]:
    """Return the tensors of all safetensors files of a folder; an empty list without any. Raises UsageError."""
    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) > MAX_FILES:
        raise UsageError(f"{folder}: has {len(paths)} files of tensors", hint=f"at most {MAX_FILES} are read")
    return [tensor for path in paths for tensor in read_file(path)]


def read_file(path: Path) -> list[StoredTensor]:
    """Return the tensors of one file. Raises UsageError, which names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_BYTES:
                raise UsageError(f"{path}: has a header of {size} bytes", hint="is it a safetensors file?")
            text = file.read(size)
        if len(text) < size or not size:
            raise UsageError(f"{path}: ends within its header", hint="is it a safetensors file?")
        return list(_tensors(parse(text)))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except TableError as error:
        raise UsageError(f"{path}: {error.message}", hint="is it a safetensors file?") from error


def _tensors(header: Node) -> Iterator[StoredTensor]:
    members = header.members()
    if len(members) > MAX_TENSORS:
        raise header.wrong(f"has {len(members)} tensors")
    for name, entry in members.items():
        if name == "__metadata__":
            continue
        fields = entry.record({"dtype", "shape", "data_offsets"})
        shape = fields["shape"].value
        is_shape = isinstance(shape, list) and len(shape) <= MAX_AXES
        if not is_shape or any(type(size) is not int or not 0 <= size <= MAX_AXIS for size in shape):
            raise fields["shape"].wrong("is not a shape")
        dtype, count = str(fields["dtype"].value)[:16], 1
        for size in shape:
            count *= size
        yield StoredTensor(name=name, dtype=dtype, shape=tuple(shape), size_bytes=count * _BYTES.get(dtype, 0))
