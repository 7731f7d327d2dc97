"""Transformers of Hugging Face: their `config.json`, and the headers of the safetensors files beside it.

The configuration gives the sizes; what it leaves to the code of an architecture is in `_DECODERS` and `_ENCODERS`.
Headers tell the type of the weights, and their shapes must be those of the configuration.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.codec import MAX_BYTES, parse
from autotune.errors import TableError, UsageError
from autotune.networks import vision
from autotune.networks.operation import Convolution, Heads, Network, Step, convolution, step
from autotune.networks.safetensors import StoredTensor, read_file, read_tensors
from autotune.networks.settings import Settings, Wanted
from autotune.networks.transformer import (
    Experts,
    Stack,
    Tokens,
    Use,
    cache_bytes,
    elements_bytes,
    products,
    weight_bytes,
    weights,
    without_tensors,
)

_LAYER_NORM: Mapping[str, Any] = {"norm": "layer_norm", "gate": ""}
_DECODERS: Mapping[str, Mapping[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "mixtral": {}, "qwen2_moe": {},
    "qwen3": {"head_norms": "heads"}, "qwen3_moe": {"head_norms": "heads"}, "olmo2": {"head_norms": "rows"},
    "gemma": {"gate": "gelu"}, "gemma2": {"gate": "gelu", "norms": 4},
    "gemma3_text": {"gate": "gelu", "norms": 4, "head_norms": "heads"},
    "phi3": {"is_fused": True, "gate_is_fused": True},
    "gpt2": {**_LAYER_NORM, "is_fused": True, "rope": ""}, "opt": {**_LAYER_NORM, "rope": "", "activation": "relu"},
    "gpt_neox": {**_LAYER_NORM, "is_fused": True}, "phi": {**_LAYER_NORM, "norms": 1},
    "starcoder2": _LAYER_NORM, "stablelm": {"norm": "layer_norm"},
}  # fmt: skip
"""What differs from a Llama, by the model_type of a configuration."""
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "vit", "deit")
_NESTED = {"gemma3": "text_config", "mistral3": "text_config", "llava": "text_config"}
"""Models of text and images: the part that is read."""
_WITH_ENCODER = ("t5", "whisper")
KNOWN = (*_DECODERS, *_NESTED, *_ENCODERS, *_WITH_ENCODER, *vision.KNOWN)


def read_config(path: Path, wanted: Wanted) -> Network:
    """Return the network of a folder, of its config.json, or of a safetensors file beside one. Raises UsageError."""
    folder = path if path.is_dir() else path.parent
    file = path if path.suffix == ".json" else folder / "config.json"
    try:
        with file.open("rb") as opened:
            members = parse(opened.read(MAX_BYTES + 1)).members()
        tensors = read_file(path) if path.suffix == ".safetensors" else read_tensors(folder)
        return _network(Settings({name: node.value for name, node in members.items()}), tensors, wanted)
    except OSError as error:
        hint = "a model of safetensors has its sizes in a config.json"
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}", hint=hint) from error
    except (TableError, UsageError) as error:
        named = error.message if error.message.startswith(str(folder)) else f"{file}: {error.message}"
        raise UsageError(named, hint=error.hint) from error


def _network(settings: Settings, tensors: list[StoredTensor], wanted: Wanted) -> Network:
    kind, notes = settings.text("model_type"), []
    if kind in _NESTED:
        settings, name = settings.part(_NESTED[kind]), kind
        kind = settings.text("model_type") or "llama"
        notes.append(f"the {kind} in a {name}: what reads images is not counted")
    if kind not in KNOWN:
        raise UsageError(f"has the unknown model_type {kind[:40]!r}", hint=f"known are {', '.join(KNOWN)}; or use ONNX")
    dtype, note = _dtype(settings, tensors)
    notes += [note] if note else []
    if kind in vision.KNOWN:
        return vision.network(kind, settings, wanted, dtype, sum(one.size_bytes for one in tensors))
    found = _WithEncoder(settings, kind, dtype, wanted) if kind in _WITH_ENCODER else _Plain(
        settings, kind, dtype, wanted
    )  # fmt: skip
    notes += found.notes + _differences(found.stacks, tensors)
    stack = found.stacks[-1]
    embeddings = elements_bytes(dtype, stack.hidden * settings.size("vocab_size", default=0))
    is_tied = stack.vocabulary and settings.truth("tie_word_embeddings", default=kind in _TIED)
    computed = sum(map(weight_bytes, found.stacks)) + (0 if is_tied else embeddings)
    return Network(
        title=f"{kind}, {stack.layers} layers of {stack.hidden}",
        steps=tuple(found.steps),
        weight_bytes=sum(one.size_bytes for one in tensors) or computed,
        cache_bytes=cache_bytes(stack, max(wanted.prompt, wanted.depth)) if stack.heads.is_causal else 0,
        notes=tuple(notes),
    )


_TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "opt", "t5", "whisper", "phi3_small", "starcoder2")
"""Models whose embeddings are the weights of the last product where a configuration does not tell."""


def _dtype(settings: Settings, tensors: list[StoredTensor]) -> tuple[str, str]:
    """Return the type in which a model is computed, and a note where it stands for another."""
    sizes: Counter[str] = Counter()
    for one in tensors:
        sizes[one.dtype] += one.size_bytes
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    stored = next((names[kind] for kind, _ in sizes.most_common() if kind in names), "")
    told = stored or settings.text("torch_dtype") or settings.text("dtype") or "float32"
    if told in ("float32", "float16"):
        return told, ""
    return "float16", f"float16 stands for {told[:20]}"


def _differences(stacks: list[Stack], tensors: list[StoredTensor]) -> list[str]:
    """Return a note for each size of weights of which the files have fewer than the configuration tells."""
    stored = Counter(tuple(sorted(one.shape[-2:])) for one in tensors for _ in range(_matrices(one)))
    expected: Counter[tuple[int, ...]] = Counter()
    for one in (one for stack in stacks for one in weights(stack) if one.use is not Use.LAST):
        expected[tuple(sorted((one.outputs, one.inputs)))] += one.count * one.experts
    is_comparable = stored and not any(stack.weights not in ("float32", "float16") for stack in stacks)
    return [
        f"the files have {stored[size]} tensors of {' x '.join(map(str, size))}, the configuration tells of {count}"
        for size, count in expected.items()
        if is_comparable and stored[size] < count
    ]


def _matrices(tensor: StoredTensor) -> int:
    """Return how many matrices a tensor is; experts may be stored as one."""
    return min(tensor.shape[0], 4096) if len(tensor.shape) == 3 else int(len(tensor.shape) == 2)


@dataclass
class _Plain:
    """A decoder, or an encoder of text or images."""

    settings: Settings
    kind: str
    dtype: str
    wanted: Wanted

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.stacks = [self._encoder() if self.kind in _ENCODERS else self._decoder()]

    @property
    def steps(self) -> list[Step]:
        (stack,), wanted = self.stacks, self.wanted
        if self.kind in ("vit", "deit"):
            return [self._of_images(stack)]
        if not stack.heads.is_causal:
            count = wanted.prompt or 128
            tokens = Tokens(count=count, keys=count, sequences=wanted.batch)
            return [_whole(f"{wanted.batch} x {count} tokens", stack, tokens)]
        return [_whole(title, stack, tokens) for title, tokens in wanted.of_decoder()]

    def _of_images(self, stack: Stack) -> Step:
        settings, wanted = self.settings, self.wanted
        side, patch = settings.size("image_size", default=224), settings.size("patch_size", default=16)
        size = wanted.image or (side, side)
        count = (size[0] // patch) * (size[1] // patch)
        if not count:
            raise UsageError(f"an image of {size[0]}x{size[1]} has no patch of {patch}x{patch}")
        patches = Convolution(
            batch=wanted.batch, size=size, channels=settings.size("num_channels", default=3), filters=stack.hidden,
            window=(patch, patch), stride=(patch, patch), words="bias",
        )  # fmt: skip
        count += 2 if self.kind == "deit" else 1  # what gathers the class, or that and the distilled one
        tokens = Tokens(count=count, keys=count, sequences=wanted.batch)
        operations = [convolution("patches", patches, stack.dtype), *products(stack, tokens)]
        operations += without_tensors(stack, tokens)
        return step(f"{wanted.batch} x {size[0]}x{size[1]}", operations, wanted.batch, "images")

    def _decoder(self) -> Stack:
        settings = self.settings
        hidden, queries = settings.size("hidden_size", "n_embd"), settings.size("num_attention_heads", "n_head")
        between = settings.size("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
        layers = settings.size("num_hidden_layers", "n_layer")
        share = settings.fraction("partial_rotary_factor", "rotary_pct")
        window, windowed = settings.windows(self.kind, layers)
        self._weights, note = settings.quantised(self.dtype)
        self.notes += [note] if note else []
        stack = Stack(
            layers=layers,
            hidden=hidden,
            heads=Heads(
                queries=queries,
                keys=settings.size("num_key_value_heads", default=queries),
                size=settings.size("head_dim", default=max(1, hidden // queries)),
                window=window,
                words="capped" if settings.get("attn_logit_softcapping") else "",
            ),
            between=between,
            gate="silu",
            rope="part" if share < 1 else "rope_halves",
            windowed=windowed,
            experts=self._experts(layers, between),
            vocabulary=settings.size("vocab_size"),
            weights=self._weights,
            dtype=self.dtype,
        )
        traits = dict(_DECODERS[self.kind])
        return replace(stack, **traits)

    def _experts(self, layers: int, between: int) -> Experts | None:
        settings = self.settings
        if self.kind not in ("mixtral", "qwen2_moe", "qwen3_moe"):
            return None
        count = settings.size("num_local_experts", "num_experts")
        every = settings.size("decoder_sparse_step", default=1)
        return Experts(
            layers=layers // every,
            count=count,
            used=min(count, settings.size("num_experts_per_tok")),
            between=settings.size("moe_intermediate_size", default=between),
            shared=settings.size("shared_expert_intermediate_size", default=0),
        )

    def _encoder(self) -> Stack:
        settings = self.settings
        hidden, queries = settings.size("hidden_size", "dim"), settings.size("num_attention_heads", "n_heads")
        is_vision = self.kind in ("vit", "deit")
        labels = settings.labels(1 if is_vision else 0)
        pooled = [("pooler", hidden, hidden)] if self.kind in ("bert", "roberta", "xlm-roberta", "camembert") else []
        return Stack(
            layers=settings.size("num_hidden_layers", "n_layers"),
            hidden=hidden,
            heads=Heads(queries=queries, keys=queries, size=max(1, hidden // queries), is_causal=False),
            between=settings.size("intermediate_size", "hidden_dim"),
            norm="layer_norm",
            has_last_norm=True,  # of text the one after the embeddings
            dtype=self.dtype,
            weights=self.dtype,
            extra=(*pooled, *([("classifier", labels, hidden)] if labels else [])),
        )


@dataclass
class _WithEncoder:
    """T5 and Whisper: an encoder, and a decoder that attends to its outputs."""

    settings: Settings
    kind: str
    dtype: str
    wanted: Wanted

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.stacks = self._t5() if self.kind == "t5" else self._whisper()

    @property
    def steps(self) -> list[Step]:
        encoder, decoder = self.stacks
        is_sound = self.kind == "whisper"
        frames = self.settings.size("max_source_positions", default=1500) if is_sound else self.wanted.prompt or 128
        tokens = Tokens(count=frames, keys=frames, encoded=frames)
        operations = [*products(encoder, tokens), *without_tensors(encoder, tokens)]
        operations += products(decoder, tokens, (Use.ENCODED,))
        operations += self._of_sound(frames) if is_sound else []
        title = f"the encoder, {frames} positions"
        steps = [step(title, operations, 1 if is_sound else frames, "windows" if is_sound else "tokens")]
        last = Tokens(count=1, keys=self.wanted.depth, encoded=frames)
        title = f"one token with {last.keys} in the cache"
        return [*steps, *([_whole(title, decoder, last)] if self.wanted.depth else [])]

    def _of_sound(self, frames: int) -> list[Any]:
        bins, hidden = self.settings.size("num_mel_bins"), self.settings.size("d_model")
        first = Convolution(
            batch=1, size=(1, 2 * frames), channels=bins, filters=hidden, window=(1, 3), padding=(0, 1, 0, 1),
            words="bias",
        )  # fmt: skip
        second = replace(first, channels=hidden, stride=(1, 2))
        return [convolution("sound", one, self.dtype) for one in (first, second)]

    def _t5(self) -> list[Stack]:
        settings = self.settings
        queries = settings.size("num_heads")
        gate, _, activation = settings.text("feed_forward_proj").rpartition("-")
        layers = settings.size("num_layers")
        encoder = Stack(
            layers=layers,
            hidden=settings.size("d_model"),
            heads=Heads(queries=queries, keys=queries, size=settings.size("d_kv"), is_causal=False, words="mask"),
            between=settings.size("d_ff"),
            gate=activation if gate == "gated" else "",
            activation=activation or "relu",
            weights=self.dtype,
            dtype=self.dtype,
        )
        decoder = replace(
            encoder, layers=settings.size("num_decoder_layers", default=layers), norms=3, is_crossed=True,
            heads=replace(encoder.heads, is_causal=True), vocabulary=settings.size("vocab_size"),
        )  # fmt: skip
        return [encoder, decoder]

    def _whisper(self) -> list[Stack]:
        settings = self.settings
        hidden = settings.size("d_model")

        def stack(side: str, **others: Any) -> Stack:
            queries = settings.size(f"{side}_attention_heads")
            heads = Heads(queries=queries, keys=queries, size=max(1, hidden // queries), is_causal=side == "decoder")
            return Stack(
                layers=settings.size(f"{side}_layers"), hidden=hidden, heads=heads,
                between=settings.size(f"{side}_ffn_dim"), norm="layer_norm", weights=self.dtype, dtype=self.dtype,
                **others,
            )  # fmt: skip

        decoder = stack("decoder", norms=3, is_crossed=True, vocabulary=settings.size("vocab_size"))
        return [stack("encoder"), decoder]


def _whole(title: str, stack: Stack, tokens: Tokens) -> Step:
    return step(title, (*products(stack, tokens), *without_tensors(stack, tokens)), tokens.rows, "tokens")
