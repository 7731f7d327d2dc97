"""The operations of an ONNX graph. What depends on constants alone is left out, since it is computed once.

A ReLU, or a clip to 6, that alone takes the result of a convolution becomes part of it, as engines fold it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from autotune.networks.onnx_graph import Graph, Node, Value, read_graph
from autotune.networks.operation import (
    FLOATS,
    Convolution,
    Network,
    Operation,
    convolution,
    gemm,
    other,
    reduction,
    row_operation,
    step,
)
from autotune.networks.settings import Workload

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Dropout", "Constant", "Size")
"""Operators that move nothing."""
_WITH_BODIES = ("If", "Loop", "Scan", "SequenceMap")
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min"}
_COSTS = {"BatchNormalization": 2, "Erf": 8, "Gelu": 8, "Sigmoid": 4, "Tanh": 4, "Exp": 4, "LRN": 10}
"""Arithmetic operations for each element of a result, 1 for all others."""


class _UnknownError(Exception):
    """The size of an operation is not known."""


def read_onnx(path: Path, workload: Workload) -> Network:
    """Return the network of a file. Raises UsageError."""
    graph = read_graph(path, workload)
    unknown: Counter[str] = Counter()
    fused: set[str] = set()
    operations: list[Operation] = []
    for proto in graph.nodes:
        if proto.op_type in _VIEWS or fused.intersection(proto.output):
            continue
        node = _Node(proto, graph)
        try:
            operations.append(_FAMILIES.get(proto.op_type, _other)(node))
        except (_UnknownError, IndexError, ValueError, ZeroDivisionError):  # or attributes that do not fit
            unknown[proto.op_type[:40]] += 1
        fused |= set(node.activation[1])
    counted = ", ".join(f"{count} x {name}" for name, count in unknown.items())
    bodies = ", ".join(sorted({node.op_type for node in graph.nodes if node.op_type in _WITH_BODIES}))
    notes = (
        f"not counted, since their sizes are not known: {counted}" if unknown else "",
        f"not counted: the bodies of {bodies}" if bodies else "",
    )
    return Network(
        title=graph.title,
        steps=(step(f"a batch of {graph.batch}", operations, graph.batch, "items"),),
        weight_bytes=graph.weight_bytes,
        notes=tuple(filter(None, notes)),
    )


class _Node:
    """An operator with its attributes and values."""

    def __init__(self, proto: Node, graph: Graph) -> None:
        self.proto, self._graph = proto, graph
        self._attributes = {one.name: one for one in proto.attribute}
        self.label = proto.op_type[:40]

    def values(self, names: Any) -> list[Value]:
        """Return what is known of values; of names that are empty, nothing. Raises _UnknownError."""
        found = [self._graph.values.get(name) for name in names if name]
        if any(one is None or one.shape is None for one in found):
            raise _UnknownError
        return [one for one in found if one is not None]

    @property
    def inputs(self) -> list[Value]:
        return self.values(self.proto.input)

    @property
    def output(self) -> tuple[int, ...]:
        return self.values(self.proto.output[:1])[0].shape or ()

    @property
    def dtype(self) -> str:
        (first, *_) = self.inputs or [Value(shape=(), dtype="float32", is_constant=False)]
        return first.dtype

    def number(self, name: str, default: int) -> int:
        return self._attributes[name].i if name in self._attributes else default

    def numbers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._attributes[name].ints) or default if name in self._attributes else default

    def text(self, name: str) -> str:
        return self._attributes[name].s.decode("utf-8", "replace")[:40] if name in self._attributes else ""

    @property
    def activation(self) -> tuple[str, tuple[str, ...]]:
        """The word for an activation that alone takes the result, and the name of what that gives; or nothing."""
        if self.proto.op_type not in ("Conv", "ConvTranspose"):
            return "", ()
        after = self._graph.consumers(self.proto.output[0])
        kinds = {"Relu": "relu", "Clip": "relu6"}
        if len(after) != 1 or after[0].op_type not in kinds:
            return "", ()
        return kinds[after[0].op_type], tuple(after[0].output)


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape or ()


def _convolution(node: _Node) -> Operation:
    data, weights, *bias = node.inputs
    shape, kernel, is_transposed = _shape(data), _shape(weights), node.proto.op_type == "ConvTranspose"
    axes = len(shape) - 2
    if axes not in (1, 2) or len(kernel) != len(shape) or node.dtype not in FLOATS:
        return _other(node, 2 * prod(kernel[1:]))
    groups = node.number("group", 1)
    window = node.numbers("kernel_shape", kernel[2:])
    strides, dilations = (node.numbers(name, (1,) * axes) for name in ("strides", "dilations"))
    pads = node.numbers("pads", (0,) * 2 * axes)
    if min(groups, *window, *strides, *dilations) < 1 or any(len(one) != axes for one in (window, strides, dilations)):
        raise _UnknownError
    if node.text("auto_pad").startswith("SAME"):
        pads = _same(node.text("auto_pad"), shape[2:], window, strides, dilations)
    lead = (1,) * (2 - axes)
    before, behind = ((0,) * (2 - axes) + one for one in (pads[:axes], pads[axes:]))
    one = Convolution(
        batch=shape[0], size=_two(lead + shape[2:]), channels=shape[1],
        filters=kernel[1] * groups if is_transposed else kernel[0], window=_two(lead + window),
        stride=_two(lead + strides), padding=(*_two(before), *_two(behind)), dilation=_two(lead + dilations),
        groups=groups, is_transposed=is_transposed, output=_two(lead + node.output[2:]),
        words=" ".join(filter(None, ("bias" if bias else "", node.activation[0]))),
    )  # fmt: skip
    return convolution(node.label, one, node.dtype)


def _two(sizes: tuple[int, ...]) -> tuple[int, int]:
    height, width = sizes
    return height, width


def _same(kind: str, size: Any, window: Any, strides: Any, dilations: Any) -> tuple[int, ...]:
    """Return the padding before, then behind each axis that makes the output the input divided by the stride."""
    needed = [
        max(0, (-(-n // s) - 1) * s + d * (w - 1) + 1 - n)
        for n, w, s, d in zip(size, window, strides, dilations, strict=True)
    ]
    less, more = [n // 2 for n in needed], [n - n // 2 for n in needed]
    return (*less, *more) if kind == "SAME_UPPER" else (*more, *less)


def _matmul(node: _Node) -> Operation:
    a, b, *zero_points = node.inputs
    left, right = _shape(a), _shape(b)
    if len(left) < 2 or len(right) < 2 or node.dtype not in (*FLOATS, "int8") or zero_points or b.dtype != a.dtype:
        return _other(node, 2 * (left[-1] if left else 1))
    batch, m = prod(node.output[:-2]), left[-2]
    if len(right) == 2:  # all rows of a batch are multiplied with the same matrix
        batch, m = 1, prod(left[:-1])
    constant = "b" if b.is_constant else "a" if a.is_constant else ""
    return gemm(node.label, m, right[-1], left[-1], batch=batch, dtype=node.dtype, constant=constant)


def _gemm(node: _Node) -> Operation:
    a, b, *_ = node.inputs
    if node.dtype not in FLOATS:
        return _other(node, 2 * _shape(a)[-1])
    transposed = node.number("transA", 0), node.number("transB", 0)
    k, m = _shape(a) if transposed[0] else reversed(_shape(a))
    n = _shape(b)[0] if transposed[1] else _shape(b)[1]
    layout = "".join("t" if one else "n" for one in transposed)
    return gemm(node.label, m, n, k, dtype=node.dtype, layout=layout, constant="b" if b.is_constant else "")


def _quantised(node: _Node) -> Operation:
    """Return what multiplies integers with zero points, for which no kernel is."""
    weights = node.inputs[3 if node.proto.op_type.startswith("QLinear") else 1]
    shape = _shape(weights)
    return _other(node, 2 * (prod(shape[1:]) if "Conv" in node.proto.op_type else shape[-2]))


def _rows(operation: str) -> Callable[[_Node], Operation]:
    """Return what makes a row operation of a node whose axis is the last."""

    def make(node: _Node) -> Operation:
        shape = _shape(node.inputs[0])
        axis = node.number("axis", -1) % max(1, len(shape))
        if axis != len(shape) - 1 or node.dtype not in FLOATS:
            return _other(node, 7)
        return row_operation(node.label, prod(shape[:-1]), shape[-1], operation, dtype=node.dtype)

    return make


def _reduction(node: _Node) -> Operation:
    shape = _shape(node.inputs[0])
    count = max(1, prod(shape) // max(1, prod(node.output)))
    axes = sorted(axis % len(shape) for axis in node.numbers("axes", ())) if shape else []
    # Newer graphs have the axes in a constant: the sizes that are left show whether they are the last ones.
    is_last = axes == [*range(len(shape) - len(axes), len(shape))] if axes else shape[: -1 or None] == node.output[:-1]
    if node.dtype not in FLOATS or not is_last:
        return _other(node, count, reads=count)
    return reduction(node.label, prod(node.output), count, _REDUCTIONS[node.proto.op_type], dtype=node.dtype)


def _global_pool(node: _Node) -> Operation:
    shape = _shape(node.inputs[0])
    if node.dtype not in FLOATS or len(shape) < 3:
        return _other(node)
    operation = "mean" if node.proto.op_type == "GlobalAveragePool" else "max"
    return reduction(node.label, shape[0] * shape[1], prod(shape[2:]), operation, dtype=node.dtype)


def _pool(node: _Node) -> Operation:
    window = prod(node.numbers("kernel_shape", (1,)))
    return _other(node, window, reads=window)


def _other(node: _Node, flops: int = 0, *, reads: int = 0) -> Operation:
    """Return what no family is for; by default it reads its inputs once."""
    elements = max(1, prod(node.output))
    read = sum(prod(_shape(one)) for one in node.inputs)
    cost = flops or _COSTS.get(node.proto.op_type, 1)
    dtype = node.dtype
    return other(node.label, elements, reads=reads or -(-read // elements), flops=cost, dtype=dtype)


_FAMILIES: Mapping[str, Callable[[_Node], Operation]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("QLinearConv", "ConvInteger", "QLinearMatMul"), _quantised),
    "Gemm": _gemm,
    "Softmax": _rows("softmax"),
    "LayerNormalization": _rows("layer_norm"),
    "RMSNormalization": _rows("rms_norm_weight"),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
}
