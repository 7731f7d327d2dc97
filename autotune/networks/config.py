"""Transformers of Hugging Face: their `config.json`, and the headers of the safetensors files next to it.

The configuration gives the sizes; what it leaves to the code of an architecture is in `_DECODERS` and `_ENCODERS`.
Headers give the type of the weights, and their shapes must be those of the configuration.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.codec import MAX_BYTES, Node, parse
from autotune.errors import TableError, UsageError
from autotune.networks import vision
from autotune.networks.operation import FLOATS, Convolution, Heads, Network, Operation, Step, convolution, step
from autotune.networks.settings import Settings, Workload
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

MAX_TENSORS = 2**18
MAX_FILES = 512
MAX_AXES = 8
MAX_AXIS = 2**40
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_LAYER_NORM: Mapping[str, Any] = {"norm": "layer_norm", "gate": ""}
_DECODERS: Mapping[str, Mapping[str, Any]] = {
    "llama": {}, "granite": {}, "mistral": {}, "qwen2": {}, "mixtral": {}, "qwen2_moe": {},
    "gpt_oss": {"gate": "clamped silu"},
    "qwen3": {"head_norms": "heads"}, "qwen3_moe": {"head_norms": "heads"}, "olmo2": {"head_norms": "rows"},
    "gemma": {"gate": "gelu"}, "gemma2": {"gate": "gelu", "norms": 4},
    "gemma3_text": {"gate": "gelu", "norms": 4, "head_norms": "heads"},
    "phi3": {"is_fused": True, "gate_is_fused": True},
    "gpt2": {**_LAYER_NORM, "is_fused": True, "rope": ""}, "opt": {**_LAYER_NORM, "rope": "", "activation": "relu"},
    "gpt_neox": {**_LAYER_NORM, "is_fused": True}, "phi": {**_LAYER_NORM, "norms": 1},
    "cohere": {"norm": "layer_norm", "norms": 1, "rope": "rope"}, "starcoder2": _LAYER_NORM,
    "stablelm": {"norm": "layer_norm"},
}  # fmt: skip
"""What differs from a Llama, by the model_type of a configuration."""
_OF_IMAGES = ("vit", "deit")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", *_OF_IMAGES)
_TIED = ("cohere", "gemma", "gemma2", "gemma3_text", "gpt2", "opt", "t5", "whisper", "starcoder2")
"""Models whose embeddings are the weights of the last product where a configuration does not say."""
_NESTED = {"gemma3": "text_config", "mistral3": "text_config", "llava": "text_config"}
"""Models of text and images: the part that is read."""
_WITH_ENCODER = ("t5", "whisper")
DEFAULT_TOKENS = 128
"""Of an encoder's sequence where no prompt is asked for."""
KNOWN = (*_DECODERS, *_NESTED, *_ENCODERS, *_WITH_ENCODER, *vision.KNOWN)


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    name: str
    dtype: str
    """As the format names it, such as BF16."""
    shape: tuple[int, ...]
    size_bytes: int


def read_config(path: Path, workload: Workload) -> Network:
    """Return the network of a folder, of its config.json, or of a safetensors file next to one. Raises UsageError."""
    folder = path if path.is_dir() else path.parent
    file = path if path.suffix == ".json" else folder / "config.json"
    try:
        with file.open("rb") as opened:
            members = parse(opened.read(MAX_BYTES + 1)).members()
        tensors = read_file(path) if path.suffix == ".safetensors" else read_tensors(folder)
        return _network(Settings({name: node.value for name, node in members.items()}), tensors, workload)
    except OSError as error:
        hint = "a model of safetensors has its sizes in a config.json"
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}", hint=hint) from error
    except (TableError, UsageError) as error:
        named = error.message if error.message.startswith(str(folder)) else f"{file}: {error.message}"
        raise UsageError(named, hint=error.hint) from error


def _network(settings: Settings, tensors: list[StoredTensor], workload: Workload) -> Network:
    kind, notes = settings.text("model_type"), []
    if kind in _NESTED:
        settings, name = settings.part(_NESTED[kind]), kind
        kind = settings.text("model_type") or "llama"
        notes.append(f"the {kind} in a {name}: what reads images is not counted")
    if kind not in KNOWN:
        raise UsageError(f"has the unknown model_type {kind[:40]!r}", hint=f"known are {', '.join(KNOWN)}; or use ONNX")
    dtype, note = _dtype(settings, tensors)
    stored_bytes = sum(one.size_bytes for one in tensors)
    if kind in vision.KNOWN:
        return vision.network(kind, settings, workload, dtype, stored_bytes)
    kept, quantised = settings.quantised(dtype) if kind in _DECODERS else (dtype, "")
    stacks = _stacks(settings, kind, dtype, kept)
    stack = stacks[-1]
    embeddings = elements_bytes(dtype, stack.hidden * settings.size("vocab_size", default=0))
    is_tied = stack.vocabulary and settings.truth("tie_word_embeddings", default=kind in _TIED)
    computed = sum(map(weight_bytes, stacks)) + (0 if is_tied else embeddings)
    depth = max(workload.prompt, workload.depth) if stack.heads.is_causal else 0
    return Network(
        title=f"{kind}, {stack.layers} layers of {stack.hidden}",
        steps=tuple(_steps(settings, kind, stacks, workload)),
        weight_bytes=stored_bytes or computed,
        cache_bytes=workload.batch * cache_bytes(stack, depth),
        notes=tuple(filter(None, (*notes, note, quantised, *_differences(stacks, tensors)))),
    )


def _dtype(settings: Settings, tensors: list[StoredTensor]) -> tuple[str, str]:
    """Return the type in which a model is computed, and a note where it stands for another."""
    sizes: Counter[str] = Counter()
    for one in tensors:
        sizes[one.dtype] += one.size_bytes
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    stored = next((names[kind] for kind, _ in sizes.most_common() if kind in names), "")
    stated = stored or settings.text("torch_dtype") or settings.text("dtype") or "float32"
    return (stated, "") if stated in FLOATS else ("float16", f"float16 stands for {stated[:20]}")


def _differences(stacks: list[Stack], tensors: list[StoredTensor]) -> list[str]:
    """Return a note for each size of weights of which the files have fewer than the configuration has."""
    if not tensors or any(stack.weights not in FLOATS for stack in stacks):
        return []
    stored: Counter[tuple[int, ...]] = Counter()
    for one in tensors:  # experts may be stored as one tensor
        stored[tuple(sorted(one.shape[-2:]))] += one.shape[0] if len(one.shape) == 3 else len(one.shape) == 2
    expected: Counter[tuple[int, ...]] = Counter()
    for weight in (weight for stack in stacks for weight in weights(stack) if weight.use is not Use.LAST):
        expected[tuple(sorted((weight.outputs, weight.inputs)))] += weight.count * weight.experts
    return [
        f"the files have {stored[size]} tensors of {' x '.join(map(str, size))}, the configuration has {count}"
        for size, count in expected.items()
        if stored[size] < count
    ]


def _stacks(settings: Settings, kind: str, dtype: str, kept: str) -> list[Stack]:
    """Return the layers of a model, an encoder's first; `kept` is how a decoder's weights are stored."""
    if kind == "t5":
        return _t5(settings, dtype)
    if kind == "whisper":
        return [_whisper(settings, dtype, side) for side in ("encoder", "decoder")]
    return [_encoder(settings, kind, dtype) if kind in _ENCODERS else _decoder(settings, kind, dtype, kept)]


def _decoder(settings: Settings, kind: str, dtype: str, kept: str) -> Stack:
    hidden, queries = settings.size("hidden_size", "n_embd"), settings.size("num_attention_heads", "n_head")
    between = settings.size("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    layers = settings.size("num_hidden_layers", "n_layer")
    share = settings.fraction("partial_rotary_factor", "rotary_pct")
    window, windowed = settings.windows(kind, layers)
    heads = Heads(
        queries=queries,
        keys=settings.size("num_key_value_heads", default=queries),
        size=settings.size("head_dim", default=max(1, hidden // queries)),
        window=window,
        words="sinks" if kind == "gpt_oss" else "capped" if settings.get("attn_logit_softcapping") else "",
    )
    stack = Stack(
        layers=layers, hidden=hidden, heads=heads, between=between, gate="silu", windowed=windowed,
        rope="part" if share < 1 else "rope_halves", experts=_experts(settings, kind, layers, between),
        vocabulary=settings.size("vocab_size"), weights=kept, dtype=dtype,
    )  # fmt: skip
    return replace(stack, **_DECODERS[kind])


def _experts(settings: Settings, kind: str, layers: int, between: int) -> Experts | None:
    if kind not in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"):
        return None
    count = settings.size("num_local_experts", "num_experts")
    return Experts(
        layers=layers // settings.size("decoder_sparse_step", default=1),
        count=count,
        used=min(count, settings.size("num_experts_per_tok")),
        between=settings.size("moe_intermediate_size", default=between),
        shared=settings.size("shared_expert_intermediate_size", default=0),
        weights="mxfp4" if settings.method == "mxfp4" else "",
    )


def _encoder(settings: Settings, kind: str, dtype: str) -> Stack:
    hidden, queries = settings.size("hidden_size", "dim"), settings.size("num_attention_heads", "n_heads")
    labels = settings.labels(1 if kind in _OF_IMAGES else 0)
    extra = [("pooler", hidden, hidden)] if kind not in ("distilbert", *_OF_IMAGES) else []
    return Stack(
        layers=settings.size("num_hidden_layers", "n_layers"),
        hidden=hidden,
        heads=Heads(queries=queries, keys=queries, size=max(1, hidden // queries), is_causal=False),
        between=settings.size("intermediate_size", "hidden_dim"),
        norm="layer_norm",  # besides those of layers one, of text after the embeddings
        dtype=dtype,
        weights=dtype,
        extra=(*extra, *([("classifier", labels, hidden)] if labels else [])),
    )


def _t5(settings: Settings, dtype: str) -> list[Stack]:
    queries, layers = settings.size("num_heads"), settings.size("num_layers")
    gate, _, activation = settings.text("feed_forward_proj").rpartition("-")
    heads = Heads(queries=queries, keys=queries, size=settings.size("d_kv"), is_causal=False, words="mask")
    encoder = Stack(
        layers=layers, hidden=settings.size("d_model"), heads=heads, between=settings.size("d_ff"),
        gate=activation if gate == "gated" else "", activation=activation or "relu", weights=dtype, dtype=dtype,
    )  # fmt: skip
    decoder = replace(
        encoder, layers=settings.size("num_decoder_layers", default=layers), norms=3, is_crossed=True,
        heads=replace(heads, is_causal=True), vocabulary=settings.size("vocab_size"),
    )  # fmt: skip
    return [encoder, decoder]


def _whisper(settings: Settings, dtype: str, side: str) -> Stack:
    hidden, queries, is_decoder = settings.size("d_model"), settings.size(f"{side}_attention_heads"), side == "decoder"
    return Stack(
        layers=settings.size(f"{side}_layers"),
        hidden=hidden,
        heads=Heads(queries=queries, keys=queries, size=max(1, hidden // queries), is_causal=is_decoder),
        between=settings.size(f"{side}_ffn_dim"),
        norm="layer_norm",
        norms=2 + is_decoder,
        is_crossed=is_decoder,
        vocabulary=settings.size("vocab_size") if is_decoder else 0,
        weights=dtype,
        dtype=dtype,
    )


def _steps(settings: Settings, kind: str, stacks: list[Stack], workload: Workload) -> Iterator[Step]:
    stack, batch = stacks[-1], workload.batch
    if len(stacks) > 1:
        yield from _encoded_steps(settings, kind, stacks, workload)
    elif kind in _OF_IMAGES:
        yield _step_of_images(settings, kind, stack, workload)
    elif kind in _ENCODERS:
        count = workload.prompt or DEFAULT_TOKENS
        yield _whole(f"{batch} x {count} tokens", stack, Tokens(count=count, keys=count, sequences=batch))
    else:
        yield from (_whole(title, stack, tokens) for title, tokens in workload.of_decoder())


def _encoded_steps(settings: Settings, kind: str, stacks: list[Stack], workload: Workload) -> Iterator[Step]:
    """Yield the step of an encoder, with the keys and values that a decoder makes of it, and one of the decoder."""
    (encoder, decoder), is_sound = stacks, kind == "whisper"
    count = settings.size("max_source_positions", default=1500) if is_sound else workload.prompt or DEFAULT_TOKENS
    tokens = Tokens(count=count, keys=count, sequences=workload.batch, encoded=count)
    operations = [*products(encoder, tokens), *without_tensors(encoder, tokens)]
    operations += products(decoder, tokens, (Use.ENCODED,))
    if is_sound:
        bins = settings.size("num_mel_bins")
        first = Convolution(
            batch=workload.batch, size=(1, 2 * count), channels=bins, filters=encoder.hidden, window=(1, 3),
            padding=(0, 1, 0, 1), words="bias",
        )  # fmt: skip
        both = (first, replace(first, channels=encoder.hidden, stride=(1, 2)))
        operations += [convolution("sound", one, encoder.dtype) for one in both]
    amount, units = (workload.batch, "windows") if is_sound else (tokens.rows, "tokens")
    yield step(f"the encoder, {count} positions", operations, amount, units)
    if workload.depth:
        last = replace(tokens, count=1, keys=workload.depth)
        yield _whole(f"one token with {workload.depth} in the cache", decoder, last)


def _step_of_images(settings: Settings, kind: str, stack: Stack, workload: Workload) -> Step:
    side, patch = settings.size("image_size", default=224), settings.size("patch_size", default=16)
    size = workload.image or (side, side)
    count = (size[0] // patch) * (size[1] // patch)
    if not count:
        raise UsageError(f"an image of {size[0]}x{size[1]} has no patch of {patch}x{patch}")
    patches = Convolution(
        batch=workload.batch, size=size, channels=settings.size("num_channels", default=3), filters=stack.hidden,
        window=(patch, patch), stride=(patch, patch), words="bias",
    )  # fmt: skip
    count += 2 if kind == "deit" else 1  # what gathers the class, or that and the distilled one
    tokens = Tokens(count=count, keys=count, sequences=workload.batch)
    operations = (convolution("patches", patches, stack.dtype), *_operations(stack, tokens))
    return step(f"{workload.batch} x {size[0]}x{size[1]}", operations, workload.batch, "images")


def _whole(title: str, stack: Stack, tokens: Tokens) -> Step:
    return step(title, _operations(stack, tokens), tokens.rows, "tokens")


def _operations(stack: Stack, tokens: Tokens) -> Iterator[Operation]:
    yield from products(stack, tokens)
    yield from without_tensors(stack, tokens)


# Headers of safetensors files


def read_tensors(folder: Path) -> list[StoredTensor]:
    """Return the tensors of all safetensors files of a folder; an empty list without any. Raises UsageError."""
    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) > MAX_FILES:
        raise UsageError(f"{folder}: has {len(paths)} files of tensors", hint=f"at most {MAX_FILES} are read")
    return [tensor for path in paths for tensor in read_file(path)]


def read_file(path: Path) -> list[StoredTensor]:
    """Return the tensors of one file, which begins with a header in JSON. Nothing behind that is read.

    Raises UsageError, which names the file and what is wrong with it. Source: the README of the format.
    """
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
