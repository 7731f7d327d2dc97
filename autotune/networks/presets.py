"""Problems to tune for, by the names of presets: the matrix products of published networks, language models among them.

Networks are in `presets.toml`, one image or sequence at a time. A convolution counts as im2col and one product: m is
the output channels, n the output pixels, k the input channels times the window. Depthwise convolutions are left out,
since they are not matrix products. In transformers m is the tokens. Attention is one product batched over the heads;
the keys of each head are stored as they are computed, a row for each position. Networks as convolutions are in
`convolutions.py`.

Language models with quantised weights are in `language_models.toml`. n is the tokens of a step: 1 when a model writes,
more when it reads its prompt. The output layer is multiplied with one token of a step only. With experts, each token is
multiplied with those that it uses. What is kept in floating point is left out, such as the routers of experts.
Attention has presets of its own, with a cache in float16. Which tensor gets which format is llama.cpp's choice without
an importance matrix (`use_more_bits` and fall-backs in its quantiser), except that what it would store as Q5_0 or Q5_K,
which have no kernels here, takes the next larger format, Q8_0 or Q6_K.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, did_you_mean
from autotune.kernels.attention import AttentionProblem
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.rows import RowsProblem
from autotune.kernels.shapes import merge
from autotune.model.trial import Request
from autotune.networks.convolutions import NETWORKS as CONVOLUTIONS
from autotune.networks.operation import Heads
from autotune.networks.transformer import Experts, Stack, Use, quantised, weights

DEFAULT_PRESET = "general"
MIXES = ("q4_0", "q4_k_m", "q8_0")
"""Which formats the tensors of a model get; what llama.cpp calls the type of a file."""

STEPS = {"decode": 1, "prefill-128": 128, "prefill-512": 512}
"""Tokens of each step."""


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


_NETWORKS = _table("presets")


@dataclass(frozen=True)
class Preset:
    """A named list of products. `products` computes them, without merging equal sizes."""

    name: str
    meaning: str
    products: Callable[..., Iterator[Request]]
    group: str = ""
    """Name of the model of which this is one of several presets."""
    tokens: int = 0
    """Tokens that a step takes in, of which these are the products; 0 for what is no language model."""
    has_depth: bool = False
    """Whether `products` takes the keys in a model's cache."""


def preset(name: str, depth: int = 0, family: str = "") -> list[Request]:
    """Return the distinct products of a network with their call counts, in order of first use.

    Of a network whose convolutions are listed, the family conv gets these. `depth` is how many keys a model's cache
    has, 0 for the usual number. Raises UsageError when there is no preset of that name, or it has no cache.
    """
    if name not in PRESETS:
        general = ", ".join(entry.name for entry in PRESETS.values() if not entry.group)
        hint = did_you_mean(name, PRESETS) or f"there are {general}, and those of language models: autotune presets"
        raise UsageError(f"there is no preset {name[:80]!r}", hint=hint)
    if depth and not PRESETS[name].has_depth:
        caches = next(entry.name for entry in PRESETS.values() if entry.has_depth)
        raise UsageError(f"the preset {name} has no cache of a depth", hint=f"attention has, such as {caches}")
    if family == "conv" and name in CONVOLUTIONS:
        return merge(CONVOLUTIONS[name][1]())
    return merge(PRESETS[name].products(depth) if depth else PRESETS[name].products())


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A layer of a network. Sizes are square; `groups` equal to the channels makes it depthwise."""

    label: str
    inputs: int
    outputs: int
    window: int
    side: int
    """Of the output, in pixels."""
    groups: int = 1
    calls: int = 1

    @property
    def product(self) -> Request:
        """The convolution as im2col and one product; only for `groups` of 1."""
        assert self.groups == 1
        problem = GemmProblem(m=self.outputs, n=self.side**2, k=self.inputs * self.window**2)
        return Request(problem=problem, calls=self.calls, label=self.label)


def convolutions(network: str) -> list[Convolution]:
    """Return the convolutions of a network, including the depthwise ones."""
    return [Convolution(**entry) for entry in _NETWORKS[network].get("convolutions", ())]


def _products(network: str) -> Iterator[Request]:
    """Yield the products of a network: of its convolutions, then those that its table lists."""
    yield from (layer.product for layer in convolutions(network) if layer.groups == 1)
    for entry in _NETWORKS[network]["products"]:
        sizes = {name: value for name, value in entry.items() if name not in ("label", "calls")}
        yield Request(problem=GemmProblem(**sizes), calls=entry.get("calls", 1), label=entry["label"])


# Language models


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A published transformer."""

    name: str
    title: str
    stack: Stack
    """Its layers, but for the formats of their weights."""
    mixes: tuple[str, ...]


def _model(
    name: str, title: str, heads: dict[str, Any], experts: dict[str, Any] | None = None,
    mixes: Sequence[str] = MIXES, **sizes: Any,
) -> LanguageModel:  # fmt: skip
    stack = Stack(gate="silu", heads=Heads(**heads), experts=Experts(**experts) if experts else None, **sizes)
    return LanguageModel(name=name, title=title, stack=stack, mixes=tuple(mixes))


MODELS = tuple(_model(**entry) for entry in _table("language_models")["model"])


def attention(model: LanguageModel, tokens: int, depth: int = 0) -> Iterator[Request]:
    """Yield the attention of a step, which ends with `depth` keys in the cache; 0 is 4096, or the prompt alone."""
    depth = depth or (4096 if tokens == 1 else tokens)
    stack, heads = model.stack, model.stack.heads
    for window, layers in ((0, stack.layers - stack.windows), (heads.window, stack.windows)):
        problem = AttentionProblem(
            kv_heads=heads.keys, group=heads.queries // heads.keys, q_length=tokens, kv_length=max(tokens, depth),
            head=str(heads.size), causality="causal", window=window, kv_type="float16", sinks=heads.words or "sinkless",
        )  # fmt: skip
        if layers:
            yield Request(problem=problem, calls=layers, label="attention")


def rows(model: LanguageModel, tokens: int) -> Iterator[Request]:
    """Yield the operations on rows that every model has, in a step: the norms of its layers, each with the sum before
    it, RoPE, and the product of gate and up. The last norm is that of one token."""
    stack, heads = model.stack, model.stack.heads
    gated = "swiglu_halves" if stack.gate_is_fused else "swiglu"
    used = stack.experts.used if stack.experts else 1
    for label, batch, channels, operation, count, calls in (
        ("first norm", tokens, stack.hidden, "rms_norm_weight", 1, 1),
        ("sum and norm", tokens, stack.hidden, "rms_norm_add_weight", 1, 2 * stack.layers - 1),
        ("query", tokens, heads.queries * heads.size, "rope_halves", heads.queries, stack.layers),
        ("key", tokens, heads.keys * heads.size, "rope_halves", heads.keys, stack.layers),
        ("gate and up", tokens * used, stack.between, gated, 1, stack.layers),
        ("last norm", 1, stack.hidden, "rms_norm_add_weight", 1, 1),
    ):
        problem = RowsProblem(batch=batch, channels=channels, operation=operation, heads=count)
        yield Request(problem=problem, calls=calls, label=label)


def products(model: LanguageModel, mix: str, tokens: int) -> Iterator[Request]:
    """Yield the products of a step, layer by layer, without merging equal ones."""
    layers, matrices = model.stack.layers, [one for one in weights(model.stack) if one.label != "router"]
    for layer in range(layers):
        for one in matrices:
            if one.experts > 1:
                label = one.label.removeprefix("experts' ")
                yield quantised(label, one.outputs, tokens * one.used, one.inputs, one.kind, one.experts)
            elif one.use is Use.TOKENS:
                kind = _format(mix, one.label, layer, layers, one.inputs)
                yield quantised(one.label, one.outputs, tokens, one.inputs, kind)
    *_, last = matrices
    yield quantised(last.label, last.outputs, 1, last.inputs, _format(mix, last.label, 0, layers, last.inputs))


def _format(mix: str, label: str, layer: int, layers: int, k: int) -> str:
    """Return the format that llama.cpp stores a tensor in; as the docstring of the module says."""
    wanted = "q8_0"
    if mix in ("q4_0", "q4_k_m"):
        more_bits = label == "query, key, value" or (label in ("value", "down") and _gets_more_bits(layer, layers))
        wanted = "q6_k" if label == "output" or (mix == "q4_k_m" and more_bits) else mix.removesuffix("_m")
    return wanted if k % FORMATS[wanted].block == 0 else "q8_0"


def _gets_more_bits(layer: int, layers: int) -> bool:
    """Return whether the values and the down layer of a layer are Q6_K in Q4_K_M, as about half of them are."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


PRESETS = {
    entry.name: entry
    for entry in (
        *(Preset(name, network["meaning"], partial(_products, name)) for name, network in _NETWORKS.items()),
        *(Preset(name, meaning, layers) for name, (meaning, layers) in CONVOLUTIONS.items() if name not in _NETWORKS),
        *(
            Preset(
                f"{model.name}-{step}",
                f"attention of {model.title}, " + (f"reading {tokens} tokens" if tokens > 1 else "writing one token"),
                partial(attention, model, tokens),
                group=model.name,
                has_depth=True,
            )
            for model in MODELS
            for step, tokens in STEPS.items()
        ),
        *(
            Preset(
                f"{model.name}-{mix}-{step}",
                f"{model.title} in {mix.upper()}, "
                + (f"reading {tokens} tokens" if tokens > 1 else "writing one token"),
                partial(products, model, mix, tokens),
                group=model.name,
                tokens=tokens,
            )
            for model in MODELS
            for mix in model.mixes
            for step, tokens in STEPS.items()
        ),
    )
}
