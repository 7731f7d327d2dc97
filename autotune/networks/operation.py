"""What a network does in one step: its operations, with the kernel family, the size and the number of each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.kernels.qgemm.formats import FORMATS
from autotune.model.problem import ELEMENT_TYPES, Problem

MAX_SIZE = 2**31 - 1
"""Largest size that is believed of a file."""
FLOATS = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Something that a step computes once, or several times at the same size."""

    label: str
    """Its name in the file, without the number of the layer."""
    family: str
    """The kernel family it belongs to; empty where no family is for it."""
    shape: str
    """Its size in a form that the family parses; empty for calls of several sizes."""
    flops: int
    """Arithmetic operations of all calls."""
    bytes_moved: int
    """Least memory traffic of all calls."""
    calls: int = 1
    problem: Problem | None = None
    """What can be tuned; None where there is no kernel here."""

    def times(self, calls: int) -> "Operation":
        """Return so many times as many calls."""
        return replace(
            self, calls=self.calls * calls, flops=self.flops * calls, bytes_moved=self.bytes_moved * calls
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """A piece of work that an application waits for, such as reading a prompt."""

    title: str
    operations: tuple[Operation, ...]
    amount: int
    """How many `units` the step takes in or puts out."""
    units: str

    @property
    def flops(self) -> int:
        return sum(one.flops for one in self.operations)

    @property
    def bytes_moved(self) -> int:
        return sum(one.bytes_moved for one in self.operations)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model of a file."""

    title: str
    steps: tuple[Step, ...]
    weight_bytes: int
    """Bytes of the weights as stored; 0 where the file does not say."""
    cache_bytes: int = 0
    """Bytes of keys and values that a decoder keeps for all sequences at the depth asked for."""
    notes: tuple[str, ...] = ()
    """What stands for something else, and what was left to assume."""


def step(title: str, operations: Iterable[Operation], amount: int, units: str) -> Step:
    """Return a step of operations, of which equal ones are merged, and those without calls or work left out."""
    merged: dict[tuple[str, str], Operation] = {}
    for one in (one for one in operations if one.calls and (one.flops or one.bytes_moved)):
        key = (one.family or one.label, one.shape)
        known = merged.get(key)
        if known is None:
            merged[key] = one
            continue
        labels = dict.fromkeys([*known.label.split(", "), *one.label.split(", ")])
        merged[key] = replace(
            known,
            label=", ".join(labels),
            calls=known.calls + one.calls,
            flops=known.flops + one.flops,
            bytes_moved=known.bytes_moved + one.bytes_moved,
        )
    return Step(title=title, operations=tuple(merged.values()), amount=amount, units=units)


def _operation(family: str, label: str, shape: str, flops: int, bytes_moved: int) -> Operation:
    """Return an operation of a family, of which flops and bytes are those of its problem where there is one.

    A family that is not here, or a size that it does not take, leaves the operation without a problem.
    """
    try:
        problem = find_family(family).problem_type.parse(shape)
    except ProblemError:
        return Operation(label=label, family=family, shape=shape, flops=flops, bytes_moved=bytes_moved)
    return Operation(
        label=label, family=family, shape=shape, flops=problem.flops, bytes_moved=problem.bytes_moved,
        problem=problem,
    )  # fmt: skip


def _words(**words: Any) -> str:
    """Return the words of a shape: names of what is True, ``name=value`` of other values, nothing for False, 0, 1."""
    said = {name: value for name, value in words.items() if value is True or value not in (0, 1, "")}
    return "".join(f" {name}" if value is True else f" {name}={value}" for name, value in said.items())


def _typed(dtype: str) -> str:
    return "" if dtype == "float32" else f" {dtype}"


def product(
    label: str, tokens: int, outputs: int, inputs: int, *, weights: str = "float32", experts: int = 1, used: int = 1
) -> Operation:
    """Return the product of activations with a matrix of weights (outputs, inputs) that does not change.

    `weights` is a type of numbers, or a format of quantised weights. With experts, each token is multiplied with
    `used` of them.
    """
    rows = tokens * used if experts > 1 else tokens
    if weights in FORMATS:
        stored = min(experts, rows) * inputs * outputs // FORMATS[weights].block * FORMATS[weights].block_bytes
        shape = f"{outputs},{rows},{inputs} {weights}{_words(experts=experts)}"
        bytes_moved = stored + 4 * rows * (inputs + outputs)
        return _operation("qgemm", label, shape, 2 * rows * outputs * inputs, bytes_moved)
    batch = min(experts, rows)
    return gemm(label, -(-rows // batch), outputs, inputs, batch=batch, dtype=weights, layout="nt", constant="b")


def gemm(
    label: str, m: int, n: int, k: int, *, batch: int = 1, dtype: str = "float32", layout: str = "nn",
    constant: str = "",
) -> Operation:  # fmt: skip
    """Return a plain product. `constant` names the operands that keep their values."""
    size = ELEMENT_TYPES[dtype].size_bytes
    words = ("" if layout == "nn" else f" {layout}") + _words(batch=batch) + _typed(dtype) + _words(constant=constant)
    bytes_moved = size * batch * (m * k + k * n + m * n)
    return _operation("gemm", label, f"{m},{n},{k}{words}", 2 * batch * m * n * k, bytes_moved)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of an attention, and what hides or changes its scores."""

    queries: int
    keys: int
    """Heads of keys and values."""
    size: int
    """Elements of a head of queries and keys."""
    value_size: int = 0
    """Elements of a head of values; 0 if those are as many."""
    is_causal: bool = True
    window: int = 0
    words: str = ""
    """More words of the shape: alibi, capped, sinks."""


def attention(
    label: str, heads: Heads, queries: int, keys: int, *, batch: int = 1, dtype: str = "float32", cache: str = ""
) -> Operation:
    """Return attention of so many queries to so many keys, the last query at the last key."""
    value_size = heads.value_size or heads.size
    head = f"{heads.size}" if value_size == heads.size else f"{heads.size}/{value_size}"
    text = f"{heads.queries}/{heads.keys},{queries},{keys},{head}{_typed(dtype)}"
    text += _words(causal=heads.is_causal, batch=batch, kv=cache if cache != dtype else "")
    text += _words(window=heads.window if heads.window < keys else 0) + (f" {heads.words}" if heads.words else "")
    seen = min(keys, heads.window or keys)
    sizes, float_bytes = heads.size + value_size, ELEMENT_TYPES[dtype].size_bytes
    bytes_moved = batch * sizes * float_bytes * (heads.keys * seen + heads.queries * queries)
    return _operation("attention", label, text, 2 * sizes * batch * heads.queries * queries * seen, bytes_moved)


def row_operation(
    label: str, batch: int, channels: int, operation: str, *, dtype: str = "float32", heads: int = 1
) -> Operation:
    """Return a norm, softmax, SwiGLU or RoPE of so many rows."""
    text = f"{batch},{channels},{operation}{_typed(dtype)}{_words(heads=heads)}"
    elements = batch * channels
    return _operation("rows", label, text, 5 * elements, 2 * elements * ELEMENT_TYPES[dtype].size_bytes)


def reduction(label: str, batch: int, channels: int, operation: str, *, dtype: str = "float32") -> Operation:
    elements, size = batch * (channels + 1), ELEMENT_TYPES[dtype].size_bytes
    return _operation("reduce", label, f"{batch},{channels},{operation}{_typed(dtype)}", elements, elements * size)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of two dimensions, each of which may be 1."""

    batch: int
    size: tuple[int, int]
    """Height and width of the input."""
    channels: int
    filters: int
    window: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    is_transposed: bool = False
    output: tuple[int, int] | None = None
    """Height and width of the output, if known; needed of what is transposed."""
    words: str = ""
    """More words of the shape: bias, relu, relu6."""

    @property
    def output_size(self) -> tuple[int, int]:
        if self.output:
            return self.output
        axes = zip(self.size, self.window, self.stride, self.dilation, self.padding[:2], self.padding[2:], strict=True)
        height, width = ((n + a + b - d * (w - 1) - 1) // s + 1 for n, w, s, d, a, b in axes)
        return height, width

    @property
    def shape(self) -> str:
        """The size in the form of the family conv: ``batch,height,width,channels,filters,HxW`` and words."""
        text = f"{self.batch},{self.size[0]},{self.size[1]},{self.channels},{self.filters},{_pair(self.window, True)}"
        text += _words(stride=_pair(self.stride), pad=_sides(self.padding), dilation=_pair(self.dilation))
        text += _words(groups=self.groups, transposed=self.is_transposed, layout="nchw")
        return f"{text} {self.words}".rstrip()


def _pair(sizes: tuple[int, int], is_long: bool = False) -> Any:
    return sizes[0] if sizes[0] == sizes[1] and not is_long else f"{sizes[0]}x{sizes[1]}"


def _sides(padding: tuple[int, int, int, int]) -> Any:
    """Return one number for all sides; as text, since a padding of 1 is not the default."""
    return ":".join(map(str, padding[:1] if len(set(padding)) == 1 else padding)) if any(padding) else 0


def convolution(label: str, one: Convolution, dtype: str = "float32") -> Operation:
    outputs, size = one.output_size, ELEMENT_TYPES[dtype].size_bytes
    weights = one.channels * one.filters // one.groups * prod(one.window)
    places = one.batch * prod(one.size if one.is_transposed else outputs)
    elements = one.batch * (prod(one.size) * one.channels + prod(outputs) * one.filters) + weights
    return _operation("conv", label, one.shape + _typed(dtype), 2 * places * weights, elements * size)


def other(label: str, elements: int, *, reads: int = 1, flops: int = 1, dtype: str = "float32") -> Operation:
    """Return something for which no family is, such as element-wise work with so many results.

    `reads` are the elements that are read for each result, `flops` the operations.
    """
    moved = elements * (reads + 1) * ELEMENT_TYPES[dtype].size_bytes
    return Operation(label=label, family="", shape="", flops=elements * flops, bytes_moved=moved)
