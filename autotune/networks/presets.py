"""Problems to tune for, by the names of presets: the matrix products of published networks, language models among them.

Products are in `presets.toml`, convolutions below, one image or sequence at a time. As a product, a convolution counts
as im2col: m is the output channels, n the output pixels, k the input channels times the window. Depthwise convolutions
are left out there, since they are not matrix products. In transformers m is the tokens. Attention is one product
batched over the heads; the keys of each head are stored as they are computed, a row for each position. Networks as
convolutions are listed one image at a time, with what networks that are deployed fuse behind them.

Language models with quantised weights are in `language_models.toml`. n is the tokens of a step: 1 when a model writes,
more when it reads its prompt. The output layer is multiplied with one token of a step only. With experts, each token is
multiplied with those that it uses. What is kept in floating point is left out, such as the routers of experts.
Attention has presets of its own, with a cache in float16. Which tensor gets which format is llama.cpp's choice without
an importance matrix (`use_more_bits` and fall-backs in its quantiser), except that what it would store as Q5_0 or Q5_K,
which have no kernels here, takes the next larger format, Q8_0 or Q6_K.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, did_you_mean
from autotune.kernels.attention import AttentionProblem
from autotune.kernels.conv.problem import ConvProblem
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.shapes import merge
from autotune.model.trial import Request
from autotune.networks.operation import Heads
from autotune.networks.transformer import Experts, Stack, Use, quantised, weights

_Layers = Iterator[Request]
_Block = tuple[int, int, int, str, int]
"""Of an inverted residual: window, channels between, channels out, activation, stride."""
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
    if family == "conv" and name in NETWORKS:
        return merge(NETWORKS[name][1]())
    return merge(PRESETS[name].products(depth) if depth else PRESETS[name].products())


def _products(network: str) -> Iterator[Request]:
    """Yield the products of a network: of its convolutions, then those that its table lists."""
    layers = NETWORKS[network][1]() if network in NETWORKS else ()
    for layer in layers:
        one = layer.problem
        assert isinstance(one, ConvProblem)
        if one.groups == 1:
            depth = one.channels * one.kernel_height * one.kernel_width
            yield replace(layer, problem=GemmProblem(m=one.filters, n=one.out_height * one.out_width, k=depth))
    for entry in _NETWORKS[network]["products"]:
        sizes = {name: value for name, value in entry.items() if name not in ("label", "calls")}
        yield Request(problem=GemmProblem(**sizes), calls=entry.get("calls", 1), label=entry["label"])


# Networks as convolutions: batch normalisation is part of weights and bias; layers on one pixel, as in
# squeeze-and-excitation, and fully connected ones are left out


def _layer(label: str, side: int, channels: int, filters: int, window: int, words: str = "", calls: int = 1) -> Request:
    """Return a layer on a square image with as much padding as leaves its size at a stride of 1."""
    pad = f" pad={window // 2}" if window > 1 else ""
    text = f"1,{side},{side},{channels},{filters},{window}x{window}{pad} bias {words}"
    return Request(problem=ConvProblem.parse(text), calls=calls, label=label)


def _inverted_residuals(blocks: Iterable[_Block], channels: int) -> _Layers:
    side = 112
    for number, (window, between, out, activation, stride) in enumerate(blocks, start=1):
        if between != channels:
            yield _layer(f"expand {number}", side, channels, between, 1, activation)
        words = f"{activation} groups={between} stride={stride}"
        yield _layer(f"depthwise {number}", side, between, between, window, words)
        side //= stride
        yield _layer(f"project {number}", side, between, out, 1, "residual" if stride == 1 and channels == out else "")
        channels = out


def _multiplied(rows: Iterable[tuple[int, int, int, int, int]], channels: int) -> Iterator[_Block]:
    """Yield blocks with ReLU6 from rows of window, factor of the channels between, channels out, repeats, stride."""
    for window, factor, out, repeats, stride in rows:
        for number in range(repeats):
            yield window, factor * channels, out, "relu6", stride if number == 0 else 1
            channels = out


def _with_relu6(rows: Iterable[tuple[int, int, int, int, int]]) -> _Layers:
    """Yield a network of such blocks, behind its first layer and before its last."""
    yield _layer("first", 224, 3, 32, 3, "relu6 stride=2")
    yield from _inverted_residuals(_multiplied(rows, 32), 32)
    yield _layer("last", 7, 320, 1280, 1, "relu6")


def _mobilenetv2() -> _Layers:
    """Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018, table 2; width 1.0."""
    rows = (
        (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (3, 6, 32, 3, 2), (3, 6, 64, 4, 2), (3, 6, 96, 3, 1), (3, 6, 160, 3, 2),
        (3, 6, 320, 1, 1),
    )  # fmt: skip
    yield from _with_relu6(rows)


def _mobilenetv3() -> _Layers:
    """Howard et al., Searching for MobileNetV3, 2019, table 1: large."""
    yield _layer("first", 224, 3, 16, 3, "hard_swish stride=2")
    blocks = (
        (3, 16, 16, "relu", 1), (3, 64, 24, "relu", 2), (3, 72, 24, "relu", 1), (5, 72, 40, "relu", 2),
        (5, 120, 40, "relu", 1), (5, 120, 40, "relu", 1), (3, 240, 80, "hard_swish", 2), (3, 200, 80, "hard_swish", 1),
        (3, 184, 80, "hard_swish", 1), (3, 184, 80, "hard_swish", 1), (3, 480, 112, "hard_swish", 1),
        (3, 672, 112, "hard_swish", 1), (5, 672, 160, "hard_swish", 2), (5, 960, 160, "hard_swish", 1),
        (5, 960, 160, "hard_swish", 1),
    )  # fmt: skip
    yield from _inverted_residuals(blocks, 16)
    yield _layer("last", 7, 160, 960, 1, "hard_swish")


def _efficientnet() -> _Layers:
    """EfficientNet-Lite0 of TensorFlow's repository tpu: EfficientNet-B0 with ReLU6, without squeeze-and-excitation."""
    rows = (
        (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
        (3, 6, 320, 1, 1),
    )  # fmt: skip
    yield from _with_relu6(rows)


def _resnet50() -> _Layers:
    """He et al., Deep Residual Learning, 2015, table 1; strides in the 3x3 as in torchvision (version 1.5)."""
    yield _layer("conv1", 224, 3, 64, 7, "relu stride=2")
    channels, side = 64, 56
    for number, (width, repeats) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(repeats):
            stride = 2 if block == 0 and number > 2 else 1
            yield _layer(f"conv{number}_x reduce", side, channels, width, 1, "relu")
            yield _layer(f"conv{number}_x 3x3", side, width, width, 3, f"relu stride={stride}")
            if block == 0:
                yield _layer(f"conv{number}_x shortcut", side, channels, 4 * width, 1, f"stride={stride}")
            channels, side = 4 * width, side // stride
            yield _layer(f"conv{number}_x expand", side, width, channels, 1, "relu residual")


def _yolo_like() -> _Layers:
    """A backbone of small residual blocks on 640 x 640 pixels, with the sizes of the nano models of recent YOLOs."""
    yield _layer("first", 640, 3, 16, 3, "silu stride=2")
    side, channels = 320, 16
    for width, repeats in ((32, 1), (64, 2), (128, 2), (256, 1)):
        yield _layer("down", side, channels, width, 3, "silu stride=2")
        side, channels, half = side // 2, width, width // 2
        yield _layer("split", side, width, width, 1, "silu")
        yield _layer("block", side, half, half, 3, "silu", calls=repeats)
        yield _layer("block", side, half, half, 3, "silu residual", calls=repeats)
        yield _layer("join", side, half * (2 + repeats), width, 1, "silu")
    yield _layer("pyramid in", side, 256, 128, 1, "silu")
    yield _layer("pyramid out", side, 512, 256, 1, "silu")


def _sd_unet() -> _Layers:
    """Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, 2022: the 3x3 convolutions of the
    U-Net of version 1, on 64 x 64 latents."""
    yield _layer("in", 64, 4, 320, 3)
    for side, into, out, within in (
        (64, (), 320, 7), (32, (320, 1920, 1280, 960), 640, 6), (16, (640, 2560, 2560, 1920), 1280, 6),
        (8, (2560, 2560, 2560), 1280, 11), (64, (960, 640, 640), 320, 0),
    ):  # fmt: skip
        for channels in into:
            yield _layer("block", side, channels, out, 3)
        if within:
            yield _layer("block", side, out, out, 3, calls=within)
    for side, channels in ((64, 320), (32, 640), (16, 1280)):
        yield _layer("down", side, channels, channels, 3, "stride=2")
    for side, channels in ((16, 1280), (32, 1280), (64, 640)):
        yield _layer("up", side, channels, channels, 3)
    yield _layer("out", 64, 320, 4, 3)


NETWORKS: Mapping[str, tuple[str, Callable[[], _Layers]]] = {
    "mobilenetv2": ("MobileNetV2, one image of 224 x 224", _mobilenetv2),
    "mobilenetv3": ("MobileNetV3 large, one image of 224 x 224: its convolutions", _mobilenetv3),
    "resnet50": ("ResNet-50, one image of 224 x 224", _resnet50),
    "efficientnet-lite0": ("EfficientNet-Lite0, one image of 224 x 224: its convolutions", _efficientnet),
    "yolo-like": ("a small YOLO backbone, one image of 640 x 640: its convolutions", _yolo_like),
    "sd-unet": ("the U-Net of Stable Diffusion 1, 64 x 64 latents: its 3x3 convolutions", _sd_unet),
}
"""What a network is, and its layers, without merging equal ones, by the name of the preset."""


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
        *(Preset(name, meaning, layers) for name, (meaning, layers) in NETWORKS.items() if name not in _NETWORKS),
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
