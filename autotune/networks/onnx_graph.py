"""Graphs of ONNX files with the shape and type of every value; weights are left out before anything is parsed.

`without_weights` walks the fields of the file itself, within bounds, and copies all but long data of tensors and the
bodies of branches and loops. The package `onnx` parses the rest and infers shapes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.model.problem import ELEMENT_TYPES
from autotune.networks.operation import MAX_SIZE
from autotune.networks.settings import Workload

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto, ValueInfoProto

Node = Any
"""An operator as the package has it; named so that only this module needs the package's types."""
MAX_FIELDS = 2**22
MAX_FIELD = 2**20
"""Longest field that is no message, such as a name, in bytes."""
MAX_KEPT = 2**12
"""Longest data of a tensor that is kept, in bytes: shapes are data, too."""
MAX_BYTES = 2**26
"""Of all that is kept."""
MAX_AXES = 16

DEFAULT_TOKENS = 128
DEFAULT_IMAGE = (224, 224)

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _PLAIN = "model", "graph", "node", "attribute", "tensor", "plain"
_MESSAGES = {
    _MODEL: {7: _GRAPH, 20: "", 25: ""},
    _GRAPH: {1: _NODE, 5: _TENSOR, 14: "", 15: ""},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: "", 10: "", 11: "", 22: "", 23: ""},
    _TENSOR: {},
}
"""The messages in fields of messages, by the numbers in onnx.proto; those with an empty name are left out."""
_DATA = (4, 5, 6, 7, 9, 10, 11)
"""The fields of a tensor that hold its elements."""
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "uint8", 10: "float16", 11: "float64",
           16: "float16"}  # fmt: skip
"""Types by their numbers in files; bfloat16 is counted as float16."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor that a graph computes or is given."""

    shape: tuple[int, ...] | None
    """None if it could not be inferred."""
    dtype: str
    is_constant: bool


@dataclass(frozen=True, kw_only=True)
class Graph:
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    weight_bytes: int
    batch: int
    """Items that the graph takes in at once: the first axis of its first input."""
    title: str

    def consumers(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in node.input]


def read_graph(path: Path, workload: Workload) -> Graph:
    """Return the graph of a file, its free sizes set to what is workload. Raises UsageError."""
    try:
        import onnx
    except ImportError as error:
        hint = "pip install 'opencl-autotune[onnx]'"
        raise UsageError(f"{path}: reading ONNX needs the package onnx", hint=hint) from error
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            model = onnx.ModelProto.FromString(without_weights(data))
        _set_sizes(model.graph, workload)
        return _graph(onnx.shape_inference.infer_shapes(model, data_prop=True).graph)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    except Exception as error:  # the package raises its own errors, and those of protobuf
        raise UsageError(f"{path}: not a valid ONNX file: {str(error)[:200]}") from error


def without_weights(data: bytes | mmap) -> bytes:
    """Return a file without long data of tensors and the bodies of branches and loops. Raises UsageError."""
    return _Copy(data).message(0, len(data), _MODEL)


class _Copy:
    """Copies the fields of messages, of which there are so many at most."""

    def __init__(self, data: bytes | mmap) -> None:
        self._data = data
        self._fields = 0

    def message(self, start: int, end: int, kind: str) -> bytes:
        """Return a message without what is left out. Raises UsageError for what no message is."""
        kept, place, messages = bytearray(), start, _MESSAGES[kind]
        while place < end:
            self._fields += 1
            if self._fields > MAX_FIELDS or len(kept) > MAX_BYTES:
                raise UsageError(f"has more than {MAX_FIELDS} fields, or {MAX_BYTES // 2**20} MiB besides its weights")
            tag, begin = self._number(place, end)
            number, wire = tag >> 3, tag & 7
            behind, after = self._extent(begin, end, wire)
            inner = messages.get(number, _PLAIN) if wire == 2 else _PLAIN
            if inner in _MESSAGES:
                content = self.message(behind, after, inner)
                kept += self._data[place:begin] + _varint(len(content)) + content
            elif inner and not (kind == _TENSOR and number in _DATA and after - begin > MAX_KEPT):
                if after - begin > MAX_FIELD:
                    raise UsageError(f"has a field of {after - begin} bytes in a {kind}")
                kept += self._data[place:after]
            place = after
        return bytes(kept)

    def _extent(self, begin: int, end: int, wire: int) -> tuple[int, int]:
        """Return where the content of a field begins and ends."""
        if wire == 0:
            return begin, self._number(begin, end)[1]
        size, behind = self._number(begin, end) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), begin)
        if size < 0 or behind + size > end:
            raise UsageError("is cut off, or no ONNX file", hint="is it an ONNX file?")
        return behind, behind + size

    def _number(self, place: int, end: int) -> tuple[int, int]:
        """Return a number of up to ten bytes, and where it ends."""
        value = 0
        for index in range(place, min(end, place + 10)):
            byte = self._data[index]
            value |= (byte & 127) << 7 * (index - place)
            if byte < 128:
                return value, index + 1
        raise UsageError("is cut off, or no ONNX file", hint="is it an ONNX file?")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _set_sizes(graph: "GraphProto", workload: Workload) -> None:
    """Give free sizes of the inputs a value: the batch, the image, the cache, or the tokens.

    Raises UsageError where a size that is asked for is fixed to another.
    """
    constants = {one.name for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in constants]
    shapes = [one.type.tensor_type.shape.dim for one in inputs]
    has_cache = any(_is_of_cache(axis) for axes in shapes for axis in axes)
    tokens = workload.prompt or (1 if has_cache else DEFAULT_TOKENS)
    free = [axis for axes in shapes for axis in axes if not axis.dim_value]
    for axes in shapes:
        image = _image_axes(axes)
        for number, axis in enumerate(axes):
            if number in image:
                value = (workload.image or DEFAULT_IMAGE)[image.index(number)]
            else:
                value = workload.batch if number == 0 else workload.depth or tokens if _is_of_cache(axis) else tokens
            is_asked = (number == 0 and workload.batch > 1) or (number in image and workload.image is not None)
            if axes is shapes[0] and is_asked and axis.dim_value not in (0, value):
                hint = "export it with free axes"
                raise UsageError(f"has a fixed size of {axis.dim_value} where {value} is asked for", hint=hint)
            if not axis.dim_value:
                axis.Clear()
                axis.dim_value = value
    for known in (graph.value_info, graph.output):
        for one in known if free else ():
            one.type.tensor_type.ClearField("shape")


def _is_of_cache(axis: Any) -> bool:
    """Return whether an axis is free, and by its name the keys and values of earlier tokens."""
    return any(word in axis.dim_param for word in ("past", "total"))


def _image_axes(axes: Any) -> tuple[int, ...]:
    """Return which axes are height and width: of an input with four axes, as far as these are free or a size alike."""
    if len(axes) != 4:
        return ()
    height, width = (1, 2) if axes[3].dim_value in (1, 3) and axes[1].dim_value not in (1, 3) else (2, 3)
    return (height, width) if bool(axes[height].dim_value) == bool(axes[width].dim_value) else ()


def _graph(graph: "GraphProto") -> Graph:
    values = {one.name: _tensor(one) for one in graph.initializer}
    given = [one for one in graph.input if one.name not in values]
    for one in (*graph.input, *graph.value_info, *graph.output):
        values.setdefault(one.name, _value(one))
    if not graph.node:
        raise UsageError("has no graph", hint="is it an ONNX file?")
    nodes = []
    for node in graph.node:
        is_constant = all(values[name].is_constant for name in node.input if name in values)
        for name in node.output:
            known = values.get(name, Value(shape=None, dtype="float32", is_constant=False))
            values[name] = Value(shape=known.shape, dtype=known.dtype, is_constant=is_constant)
        if not is_constant:
            nodes.append(node)
    shape = values[given[0].name].shape if given else None
    sizes = "x".join(map(str, shape or ())) or "of unknown size"
    return Graph(
        nodes=tuple(nodes),
        values=values,
        weight_bytes=sum(
            prod(one.shape or ()) * ELEMENT_TYPES[one.dtype].size_bytes
            for one in (values[name] for name in {name for node in nodes for name in node.input if name in values})
            if one.is_constant
        ),
        batch=max(1, (shape or (1,))[0]),
        title=f"{graph.name[:60] or 'a graph'} for {sizes}",
    )


def _tensor(one: "TensorProto") -> Value:
    return Value(shape=_bounded(one.dims), dtype=_DTYPES.get(one.data_type, "float32"), is_constant=True)


def _value(one: "ValueInfoProto") -> Value:
    kind = one.type.tensor_type
    sizes = [axis.dim_value for axis in kind.shape.dim]
    is_known = kind.HasField("shape") and all(axis.HasField("dim_value") for axis in kind.shape.dim)
    dtype = _DTYPES.get(kind.elem_type, "float32")
    return Value(shape=_bounded(sizes) if is_known else None, dtype=dtype, is_constant=False)


def _bounded(sizes: Iterator[int] | list[int]) -> tuple[int, ...]:
    shape = tuple(sizes)
    if len(shape) > MAX_AXES or any(not 0 <= size <= MAX_SIZE for size in shape):
        raise UsageError(f"has a tensor of shape {shape[:MAX_AXES]}")
    return shape
