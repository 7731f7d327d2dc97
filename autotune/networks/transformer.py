"""The operations of a stack of transformer layers that take in tokens: language models, encoders of text and images.

Products come from the tensors of a GGUF file, or by `products` from the sizes that a configuration states. All else,
which has no tensors of its own, is made here for both. Norms, additions and activations are counted one by one, as the
models define them; engines may join some. A layer's work on the last tokens only is counted for all tokens, as the
layers before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.model.problem import ELEMENT_TYPES
from autotune.model.trial import Request
from autotune.networks.operation import Heads, Operation, attention, other, product, row_operation


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of the feed-forward layers of some layers."""

    layers: int
    count: int
    used: int
    between: int
    """Size between the two products of an expert."""
    shared: int = 0
    """The same of the expert that all tokens use; 0 if there is none."""
    weights: str = ""
    """Type of their weights; empty if it is that of the layers."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Layers that are alike but for windows and experts."""

    layers: int
    hidden: int
    heads: Heads
    between: int
    """Size between the two products of a feed-forward layer."""
    gate: str = ""
    """The activation of what is multiplied with the other half, such as silu; empty if there is no other half."""
    activation: str = "gelu"
    """Without a gate."""
    norm: str = "rms_norm_weight"
    norms: int = 2
    """Norms of a layer."""
    has_last_norm: bool = True
    head_norms: str = ""
    """Norms of queries and keys: of each of the `heads`, or of `rows`; empty if there are none."""
    rope: str = ""
    """The row operation; empty without RoPE, ``part`` if only a part of each head is turned."""
    windowed: int = 0
    """Layers whose attention has the window of `heads`; 0 stands for all of them."""
    is_crossed: bool = False
    """Whether each layer also attends to the outputs of an encoder."""
    experts: Experts | None = None
    is_fused: bool = False
    """Whether queries, keys and values are one product."""
    gate_is_fused: bool = False
    vocabulary: int = 0
    """Outputs of the last product; 0 if there is none."""
    weights: str = "float32"
    """Type of the weights of layers; that of the last product is `dtype`."""
    attention_layers: int | None = None
    """Layers with attention; None if all have it."""
    dtype: str = "float32"
    cache: str = ""
    """Type of keys and values; empty if it is `dtype`."""
    extra: tuple[tuple[str, int, int], ...] = ()
    """Label, outputs and inputs of further products of a step with one token of a sequence, such as a classifier."""

    @property
    def dense(self) -> int:
        """Layers without experts."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def attended(self) -> int:
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def windows(self) -> int:
        """Layers with a window."""
        return min(self.windowed or self.layers, self.attended) if self.heads.window else 0


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What a step takes in."""

    count: int
    """Tokens of a sequence."""
    keys: int
    """Keys of a sequence once the step has ended."""
    sequences: int = 1
    encoded: int = 0
    """Outputs of an encoder to which the tokens attend."""

    @property
    def rows(self) -> int:
        return self.count * self.sequences


class Use(Enum):
    """With what a matrix of weights is multiplied."""

    TOKENS = "all tokens"
    LAST = "one token of a sequence"
    ENCODED = "the outputs of an encoder, once for all tokens"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Matrices of weights of one size."""

    label: str
    outputs: int
    inputs: int
    count: int
    kind: str
    """A type of numbers, or a format of quantised weights."""
    use: Use = Use.TOKENS
    experts: int = 1
    """Each of the `count` is one of so many matrices, of which a token uses `used`."""
    used: int = 1

    @property
    def parameters(self) -> int:
        return self.outputs * self.inputs * self.count * self.experts


def products(stack: Stack, tokens: Tokens, uses: Sequence[Use] = (Use.TOKENS, Use.LAST)) -> Iterator[Operation]:
    """Yield the products of a step by the sizes of the layers."""
    rows = {Use.TOKENS: tokens.rows, Use.LAST: tokens.sequences, Use.ENCODED: tokens.encoded * tokens.sequences}
    for one in weights(stack):
        if one.use in uses:
            found = product(
                one.label, rows[one.use], one.outputs, one.inputs, weights=one.kind, experts=one.experts, used=one.used
            )  # fmt: skip
            yield found.times(one.count)


def weights(stack: Stack) -> Iterator[Weights]:
    """Yield the matrices that a stack multiplies with."""

    def of_layers(label: str, outputs: int, inputs: int, count: int, **others: Any) -> Weights:
        return Weights(label=label, outputs=outputs, inputs=inputs, count=count, **{"kind": stack.weights, **others})

    heads, hidden, layers = stack.heads, stack.hidden, stack.layers
    queries, keys, values = (
        heads.queries * heads.size, heads.keys * heads.size, heads.keys * (heads.value_size or heads.size)
    )  # fmt: skip
    if stack.is_fused:
        yield of_layers("query, key, value", queries + keys + values, hidden, layers)
    else:
        yield of_layers("query", queries, hidden, layers)
        yield of_layers("key", keys, hidden, layers)
        yield of_layers("value", values, hidden, layers)
    yield of_layers("attention output", hidden, queries, layers)
    if stack.is_crossed:
        yield of_layers("cross query", queries, hidden, layers)
        yield of_layers("cross key, cross value", queries, hidden, 2 * layers, use=Use.ENCODED)
        yield of_layers("cross output", hidden, queries, layers)
    for label, outputs, inputs in _feed_forward(stack, stack.between) if stack.dense else ():
        yield of_layers(label, outputs, inputs, stack.dense)
    if experts := stack.experts:
        routed = {"experts": experts.count, "used": experts.used, "kind": experts.weights or stack.weights}
        yield of_layers("router", experts.count, hidden, experts.layers, kind=stack.dtype)
        for label, outputs, inputs in _feed_forward(stack, experts.between, "experts' "):
            yield of_layers(label, outputs, inputs, experts.layers, **routed)
        for label, outputs, inputs in _feed_forward(stack, experts.shared, "shared ") if experts.shared else ():
            yield of_layers(label, outputs, inputs, experts.layers)
    last = [("output", stack.vocabulary, hidden)] if stack.vocabulary else []
    for label, outputs, inputs in (*last, *stack.extra):
        yield of_layers(label, outputs, inputs, 1, kind=stack.dtype, use=Use.LAST)


def _feed_forward(stack: Stack, between: int, name: str = "") -> Iterator[tuple[str, int, int]]:
    if stack.gate and stack.gate_is_fused:
        yield f"{name}gate and up", 2 * between, stack.hidden
    else:
        yield from [(f"{name}gate", between, stack.hidden)] if stack.gate else []
        yield f"{name}up", between, stack.hidden
    yield f"{name}down", stack.hidden, between


def without_tensors(stack: Stack, tokens: Tokens) -> Iterator[Operation]:
    """Yield what has no weights of its own but vectors: attention, norms, RoPE, activations, additions."""
    rows, hidden, heads, dtype = tokens.rows, stack.hidden, stack.heads, stack.dtype
    yield other("embedding", rows * hidden, flops=0, dtype=dtype)
    yield from _attentions(stack, tokens)
    yield row_operation("norm", rows, hidden, stack.norm, dtype=dtype).times(stack.layers * stack.norms)
    if stack.has_last_norm:
        last = tokens.sequences if stack.vocabulary else rows
        yield row_operation("last norm", last, hidden, stack.norm, dtype=dtype)
    for label, count in (("query", heads.queries), ("key", heads.keys)):
        if stack.head_norms:
            batch, size = (rows * count, heads.size) if stack.head_norms == "heads" else (rows, count * heads.size)
            yield row_operation(f"{label} norm", batch, size, stack.norm, dtype=dtype).times(stack.layers)
        if stack.rope == "part":
            yield other("rope of a part", rows * count * heads.size, flops=3, dtype=dtype).times(stack.attended)
        elif stack.rope:
            one = row_operation(f"{label} rope", rows, count * heads.size, stack.rope, dtype=dtype, heads=count)
            yield one.times(stack.attended)
    if stack.dense:
        yield _activation(stack, rows, stack.between).times(stack.dense)
    if stack.experts:
        yield from _routing(stack, stack.experts, rows)
    yield other("add", rows * hidden, reads=2, dtype=dtype).times((2 + stack.is_crossed) * stack.layers)


def _attentions(stack: Stack, tokens: Tokens) -> Iterator[Operation]:
    heads = stack.heads
    whole = replace(heads, window=0)
    for kind, layers in ((whole, stack.attended - stack.windows), (heads, stack.windows)):
        if layers:
            one = attention(
                "attention", kind, tokens.count, tokens.keys, batch=tokens.sequences, dtype=stack.dtype,
                cache=stack.cache or stack.dtype,
            )  # fmt: skip
            yield one.times(layers)
    if stack.is_crossed:
        crossed = Heads(queries=heads.queries, keys=heads.keys, size=heads.size, is_causal=False)
        one = attention(
            "cross attention", crossed, tokens.count, tokens.encoded, batch=tokens.sequences, dtype=stack.dtype
        )  # fmt: skip
        yield one.times(stack.layers)


def _activation(stack: Stack, rows: int, between: int) -> Operation:
    if stack.gate == "silu":
        operation = "swiglu_halves" if stack.gate_is_fused else "swiglu"
        return row_operation("activation", rows, between, operation, dtype=stack.dtype)
    if stack.gate:
        return other(f"{stack.gate} with a gate", rows * between, reads=2, flops=5, dtype=stack.dtype)
    return other(stack.activation, rows * between, flops=5, dtype=stack.dtype)


def _routing(stack: Stack, experts: Experts, rows: int) -> Iterator[Operation]:
    yield row_operation("router", rows, experts.count, "softmax", dtype=stack.dtype).times(experts.layers)
    yield _activation(stack, rows * experts.used, experts.between).times(experts.layers)
    if experts.shared:
        yield _activation(stack, rows, experts.shared).times(experts.layers)
    gathered = other("sorting by experts", 2 * rows * experts.used * stack.hidden, dtype=stack.dtype)
    yield gathered.times(experts.layers)


def weight_bytes(stack: Stack) -> int:
    """Return the bytes of all matrices but those of embeddings."""
    return sum(elements_bytes(one.kind, one.parameters) for one in weights(stack))


def cache_bytes(stack: Stack, depth: int) -> int:
    """Return the bytes of the keys and values of so many tokens of one sequence."""
    tokens = (stack.attended - stack.windows) * depth + stack.windows * min(depth, stack.heads.window)
    elements = tokens * stack.heads.keys * (stack.heads.size + (stack.heads.value_size or stack.heads.size))
    return elements_bytes(stack.cache or stack.dtype, elements)


def elements_bytes(kind: str, elements: int) -> int:
    """Return the bytes of so many elements of a type, or of a format of quantised weights."""
    if kind in FORMATS:
        return elements // FORMATS[kind].block * FORMATS[kind].block_bytes
    return elements * ELEMENT_TYPES[kind].size_bytes


def quantised(label: str, m: int, n: int, k: int, weights: str, experts: int = 1) -> Request:
    """Return one product with quantised weights."""
    return Request(problem=QGemmProblem(m=m, n=n, k=k, weights=weights, experts=experts), label=label)
