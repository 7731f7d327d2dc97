"""The products of language models whose weights are quantised: those of `language_models.toml`, and of GGUF files.

n is the tokens of a step: 1 when a model writes, more when it reads its prompt. The output layer is multiplied with one
token of a step only. With experts, each token is multiplied with those that it uses. Presets leave out what is kept in
floating point, such as the routers of experts; for a file these are plain products. Attention has presets of its own,
with a cache in float16. Of the operations on rows, those that every model has are listed: the norms of its layers, each
with the sum before it, RoPE, and the product of gate and up.

Sources: the published configurations of the models; which tensor gets which format is llama.cpp's choice without an
importance matrix (`use_more_bits` and fall-backs in its quantiser), except that what it would store as Q5_0 or Q5_K,
which have no kernels here, takes the next larger format, Q8_0 or Q6_K.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.kernels.attention import AttentionProblem
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.gguf_header import TYPES, GgufHeader, Tensor, read_header
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.rows import RowsProblem
from autotune.model.trial import Request

MIXES = ("q4_0", "q4_k_m", "q8_0")
"""Which formats the tensors of a model get; what llama.cpp calls the type of a file."""

STEPS = {"decode": 1, "prefill-128": 128, "prefill-512": 512}
"""Tokens of each step."""


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A published transformer."""

    name: str
    title: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    """Size of a head."""
    between: int
    """Size of the feed-forward layers."""
    vocabulary: int
    is_fused: bool = False
    """Whether query, key and value are one tensor, and gate and up as well."""
    experts: int = 1
    used: int = 1
    """Experts that a token uses."""
    window: int = 0
    """Keys that layers with a sliding window see; 0 if there are none."""
    windowed: int = 0
    """How many layers have one."""
    has_sinks: bool = False
    mixes: tuple[str, ...] = MIXES


MODELS = tuple(
    LanguageModel(**{**entry, "mixes": tuple(entry.get("mixes", MIXES))})
    for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["model"]
)


def attention(model: LanguageModel, tokens: int, depth: int = 0) -> Iterator[Request]:
    """Yield the attention of a step, which ends with `depth` keys in the cache; 0 is 4096, or the prompt alone."""
    depth = depth or (4096 if tokens == 1 else tokens)
    for window, layers in ((0, model.layers - model.windowed), (model.window, model.windowed)):
        problem = AttentionProblem(
            kv_heads=model.key_heads, group=model.heads // model.key_heads, q_length=tokens,
            kv_length=max(tokens, depth), head=str(model.head), causality="causal", window=window, kv_type="float16",
            sinks="sinks" if model.has_sinks else "sinkless",
        )  # fmt: skip
        if layers:
            yield Request(problem=problem, calls=layers, label="attention")


def rows(model: LanguageModel, tokens: int) -> Iterator[Request]:
    """Yield the operations on rows of a step; its last norm is that of one token."""
    gated = "swiglu_halves" if model.is_fused else "swiglu"
    for label, batch, channels, operation, heads, calls in (
        ("first norm", tokens, model.hidden, "rms_norm_weight", 1, 1),
        ("sum and norm", tokens, model.hidden, "rms_norm_add_weight", 1, 2 * model.layers - 1),
        ("query", tokens, model.heads * model.head, "rope_halves", model.heads, model.layers),
        ("key", tokens, model.key_heads * model.head, "rope_halves", model.key_heads, model.layers),
        ("gate and up", tokens * model.used, model.between, gated, 1, model.layers),
        ("last norm", 1, model.hidden, "rms_norm_add_weight", 1, 1),
    ):
        problem = RowsProblem(batch=batch, channels=channels, operation=operation, heads=heads)
        yield Request(problem=problem, calls=calls, label=label)


def products(model: LanguageModel, mix: str, tokens: int) -> Iterator[Request]:
    """Yield the products of a step, layer by layer, without merging equal ones."""
    for layer in range(model.layers):
        for label, m, k in _layer(model):
            if model.experts > 1 and label in ("gate", "up", "down"):
                yield _product(label, m, tokens * model.used, k, "mxfp4", model.experts)
            else:
                yield _product(label, m, tokens, k, _weights(mix, label, layer, model.layers, k))
    k = model.hidden
    yield _product("output", model.vocabulary, 1, k, _weights(mix, "output", 0, model.layers, k))


def _layer(model: LanguageModel) -> Iterator[tuple[str, int, int]]:
    """Yield the label, m and k of each tensor of a layer."""
    queries, keys = model.heads * model.head, model.key_heads * model.head
    if model.is_fused:
        yield "query, key, value", queries + 2 * keys, model.hidden
    else:
        yield from (("query", queries, model.hidden), ("key", keys, model.hidden), ("value", keys, model.hidden))
    yield "attention output", model.hidden, queries
    if model.is_fused:
        yield "gate and up", 2 * model.between, model.hidden
    else:
        yield from (("gate", model.between, model.hidden), ("up", model.between, model.hidden))
    yield "down", model.hidden, model.between


def _weights(mix: str, label: str, layer: int, layers: int, k: int) -> str:
    """Return the format that llama.cpp stores a tensor in; see the module's docstring."""
    wanted = "q8_0"
    if mix in ("q4_0", "q4_k_m"):
        more_bits = label == "query, key, value" or (label in ("value", "down") and _gets_more_bits(layer, layers))
        wanted = "q6_k" if label == "output" or (mix == "q4_k_m" and more_bits) else mix.removesuffix("_m")
    return wanted if k % FORMATS[wanted].block == 0 else "q8_0"


def _gets_more_bits(layer: int, layers: int) -> bool:
    """Return whether the values and the down layer of a layer are Q6_K in Q4_K_M, as about half of them are."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _product(label: str, m: int, n: int, k: int, weights: str, experts: int = 1) -> Request:
    return Request(problem=QGemmProblem(m=m, n=n, k=k, weights=weights, experts=experts), label=label)


# Models in GGUF files


FLOATS = {"f16": "float16", "bf16": "float32", "f32": "float32"}
"""Modes of plain products by the types of their weights."""
_LARGER = {
    **dict.fromkeys(("q4_1", "q5_0", "q5_1", "q5_k"), ("q6_k", "q8_0")),
    **dict.fromkeys(("q8_1", "q8_k"), ("q8_0",)),
    **dict.fromkeys((one for one in TYPES.values() if one.startswith(("q2", "q3", "iq", "tq"))), ("q4_k", "q4_0")),
}
"""The next larger formats of types without kernels, the first that fits the rows."""


def gguf_products(path: Path, tokens: int) -> tuple[list[Request], list[str]]:
    """Return the products of a step of the model in a GGUF file, not merged, and what stands for some tensors.

    Only the header is read, so that the file may end where the weights would begin. Raises UsageError.
    """
    header = read_header(path)
    requests: list[Request] = []
    notes: Counter[str] = Counter()
    for tensor in multiplied(header):
        try:
            requests.append(product_of(tensor, tokens, header.experts_used))
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
        problem = requests[-1].problem
        stands = problem.weights if isinstance(problem, QGemmProblem) else f"gemm in {FLOATS[tensor.type]}"
        if stands != tensor.type:
            notes[f"{stands} stands for {tensor.type.upper()}"] += 1
    if not requests:
        hint = "it has no weights of layers (blk.*.weight, output.weight)"
        raise UsageError(f"{path}: holds no products", hint=hint)
    return requests, [f"{count} tensors: {message}" for message, count in notes.items()]


def multiplied(header: GgufHeader) -> Iterator[Tensor]:
    """Yield the tensors that a step multiplies with, the output layer last; embeddings serve as it where it is none."""
    weights = [one for one in header.tensors if one.name.endswith(".weight") and len(one.shape) in (2, 3)]
    yield from (one for one in weights if one.name.startswith("blk."))
    by_name = {one.name: one for one in weights}
    output = by_name.get("output.weight") or by_name.get("token_embd.weight")
    if output is not None:
        yield output


def product_of(tensor: Tensor, tokens: int, experts_used: int, outputs: int = 1) -> Request:
    """Return the product of so many tokens with a tensor, of `outputs` of them with the output layer.

    Raises UsageError for types of which no model has weights.
    """
    k, m, experts = (*tensor.shape, 1)[:3]
    is_output = not tensor.name.startswith("blk.")
    n = outputs if is_output else tokens * (experts_used if experts > 1 else 1)
    label = "output" if is_output else tensor.name.split(".", 2)[-1].removesuffix(".weight")
    if tensor.type in FLOATS:
        used = min(experts, n)
        mode = FLOATS[tensor.type]
        rows = -(-n // used)
        problem = GemmProblem(m=rows, n=m, k=k, trans_b=1, batch=used, mode=mode, constant="b")
        return Request(problem=problem, label=label)
    *others, weights = _LARGER.get(tensor.type, (tensor.type,))
    if weights not in FORMATS:
        raise UsageError(f"there are no kernels for {tensor.type.upper()}")
    fitting = (one for one in others if k % FORMATS[one].block == 0)
    return _product(label, m, n, k, next(fitting, weights), experts)
