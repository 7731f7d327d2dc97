"""Models in GGUF files whose tensors are named as llama.cpp names them, of any architecture; see `gguf_header`.

Products are those of the tensors; the sizes of attention, norms and so on are among the header's values. Activations
are float32, keys and values float16, as llama.cpp has them unless asked for something else.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.model.trial import Request
from autotune.networks.gguf_header import TYPES, GgufHeader, Tensor, read_header
from autotune.networks.operation import MAX_SIZE, Heads, Network, Operation, other, row_operation, step
from autotune.networks.settings import Workload
from autotune.networks.transformer import Experts, Stack, Tokens, cache_bytes, quantised, without_tensors

_HALVES = (
    "qwen", "phi", "gemma", "stablelm", "gptneox", "falcon", "starcoder", "olmo", "gpt-oss", "nomic", "bitnet", "glm",
)  # fmt: skip
"""Beginnings of the names of architectures whose RoPE turns an element with that half a head away, not its neighbour.
Source: `llama_model_rope_type` of llama.cpp."""
_QUERIES = (".attn_q.weight", ".attn_qkv.weight", ".attn_q_b.weight")
"""Endings of the names of tensors, of which each layer with attention has one."""
_ALIBI = ("bloom", "mpt", "jais", "jina-bert")
_GATES = {**dict.fromkeys(("gemma", "jina-bert", "t5", "grok"), "gelu"), "gpt-oss": "clamped silu"}
"""Activations of gates by the beginnings of the names of architectures; silu of all others."""
_ENCODERS = ("bert", "nomic-bert", "jina-bert", "t5encoder")
FLOATS = {"f16": "float16", "bf16": "float32", "f32": "float32"}
"""Modes of plain products by the types of their weights."""
_LARGER = {
    **dict.fromkeys(("q4_1", "q5_0", "q5_1", "q5_k"), ("q6_k", "q8_0")),
    **dict.fromkeys(("q8_1", "q8_k"), ("q8_0",)),
    **dict.fromkeys((one for one in TYPES.values() if one.startswith(("q2", "q3", "iq", "tq"))), ("q4_k", "q4_0")),
}
"""The next larger formats of types without kernels, the first that fits the rows."""
_ALTERNATING = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
"""Of so many successive layers, the last has no window. Source: llama.cpp's `set_swa_pattern`."""


@dataclass(frozen=True, kw_only=True)
class _Values:
    """The values of a header by the names behind that of the architecture."""

    header: GgufHeader
    architecture: str

    def number(self, name: str, default: int = 0) -> int:
        """Return a number; of a list, its largest one. Raises UsageError for one that cannot be."""
        value = self.header.values.get(f"{self.architecture}.{name}", default)
        value = max(value, default=0) if isinstance(value, tuple) else value
        if not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
            raise UsageError(f"{name} is {str(value)[:40]!r}, not a size")
        return value


def read_gguf(path: Path, workload: Workload) -> Network:
    """Return the network of a file. Raises UsageError."""
    header = read_header(path)
    try:
        return _network(header, workload)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error


def _network(header: GgufHeader, workload: Workload) -> Network:
    stack, notes = _stack(header), Counter[str]()
    is_encoder = not stack.heads.is_causal
    prompt = workload.prompt or (128 if is_encoder else 0)
    depth = 0 if is_encoder else workload.depth
    steps = []
    for title, tokens in replace(workload, prompt=prompt, depth=depth).of_decoder():
        found = (*_products(header, tokens, notes), *_norms(header, stack, tokens))
        steps.append(step(title, (*found, *without_tensors(stack, tokens)), tokens.rows, "tokens"))
    if any(".ssm_" in one.name for one in header.tensors):
        notes["not counted: the scans of state-space layers"] += 1
    return Network(
        title=f"{header.values.get('general.architecture')}, {stack.layers} layers of {stack.hidden}",
        steps=tuple(steps),
        weight_bytes=header.size_bytes,
        cache_bytes=0 if is_encoder else workload.batch * cache_bytes(stack, max(prompt, depth)),
        notes=tuple(notes),
    )


def _stack(header: GgufHeader) -> Stack:
    """Return what the layers are but for their products. Raises UsageError where the header lacks a size."""
    architecture = header.values.get("general.architecture", "")
    values = _Values(header=header, architecture=str(architecture))
    layers, hidden, queries = (values.number(n) for n in ("block_count", "embedding_length", "attention.head_count"))
    if not (layers and hidden and queries):
        missing = f"{architecture}.block_count, embedding_length and attention.head_count"
        raise UsageError(f"{missing} are missing", hint="is it a language model?")
    names = {one.name.split(".", 2)[-1] for one in header.tensors}
    size = values.number("attention.key_length", hidden // queries)
    part = values.number("rope.dimension_count", size)
    turned = "rope_halves" if str(architecture).startswith(_HALVES) else "rope"
    is_alibi = architecture in _ALIBI
    has_rope = not is_alibi and not any(one.name.startswith("position_embd") for one in header.tensors)
    has_gate = bool(names & {"ffn_gate.weight", "ffn_gate_exps.weight"})
    between = values.number("feed_forward_length")
    is_fused = _outputs(header, ".ffn_up.weight") > between or "ffn_gate_up_exps.weight" in names
    gate = next((gate for name, gate in _GATES.items() if str(architecture).startswith(name)), "silu")
    window, every = values.number("attention.sliding_window"), _ALTERNATING.get(str(architecture), 1)
    return Stack(
        layers=layers,
        hidden=hidden,
        heads=Heads(
            queries=queries,
            keys=values.number("attention.head_count_kv", queries) or queries,
            size=size,
            value_size=values.number("attention.value_length", size),
            is_causal=architecture not in _ENCODERS,
            window=window,
            words="alibi" if is_alibi else "sinks" if "attn_sinks.weight" in names else "",
        ),
        between=between,
        gate=gate if has_gate or is_fused else "",
        gate_is_fused=not has_gate,
        norms=0,
        has_last_norm=False,
        rope=(turned if part == size else "part") if has_rope else "",
        windowed=layers - layers // every if window and every > 1 else 0,
        experts=_experts(values, header, layers),
        cache="float16",
        attention_layers=sum(one.name.endswith(_QUERIES) for one in header.tensors),
    )


def _experts(values: _Values, header: GgufHeader, layers: int) -> Experts | None:
    routed = [one for one in header.tensors if one.name.endswith((".ffn_up_exps.weight", ".ffn_gate_up_exps.weight"))]
    if not routed or len(routed[0].shape) != 3:
        return None
    return Experts(
        layers=min(len(routed), layers),
        count=routed[0].shape[2],
        used=min(header.experts_used, routed[0].shape[2]),
        between=values.number("expert_feed_forward_length") or routed[0].shape[1],
        shared=_outputs(header, ".ffn_up_shexp.weight"),
    )


def _outputs(header: GgufHeader, ending: str) -> int:
    """Return the outputs of the first matrix whose name ends so; 0 without any."""
    return next((one.shape[1] for one in header.tensors if one.name.endswith(ending) and len(one.shape) > 1), 0)


def _products(header: GgufHeader, tokens: Tokens, notes: Counter[str]) -> Iterator[Operation]:
    """Yield the products with the tensors, and add what stands for types without kernels to `notes`."""
    is_encoder = header.values.get("general.architecture") in _ENCODERS
    for tensor in multiplied(header):
        if is_encoder and tensor.name == "token_embd.weight":
            continue
        if "conv1d" in tensor.name or "ssm_a" in tensor.name:
            yield other(_label(tensor), tokens.rows * tensor.shape[-1], flops=2 * tensor.shape[0])
            continue
        k, m, matrices = (*tensor.shape, 1)[:3]
        used = min(header.experts_used, matrices) if "exps" in tensor.name else matrices  # or one for each head
        try:
            request = product_of(tensor, tokens.rows, used, tokens.sequences)
        except UsageError as error:
            notes[f"{tensor.name}: {error.message}"] += 1
            yield other(f"{_label(tensor)} in {tensor.type.upper()}", m * tokens.rows * used, flops=2 * k)
            continue
        problem = request.problem
        stands = getattr(problem, "weights", None) or FLOATS[tensor.type]
        if stands not in (tensor.type, {"f32": "float32", "f16": "float16"}.get(tensor.type)):
            notes[f"{stands} stands for {tensor.type.upper()}"] += 1
        yield Operation(
            label=request.label, family=problem.family, shape=problem.label, flops=problem.flops,
            bytes_moved=problem.bytes_moved, problem=problem,
        )  # fmt: skip


def _norms(header: GgufHeader, stack: Stack, tokens: Tokens) -> Iterator[Operation]:
    """Yield the norms, of which each has a vector of weights; the last one is of one token, as the product after it."""
    names = {one.name for one in header.tensors}
    for tensor in header.tensors:
        label, size = _label(tensor), tensor.shape[0]
        if not tensor.name.endswith("norm.weight"):
            continue
        heads = {"attn_q_norm": stack.heads.queries, "attn_k_norm": stack.heads.keys}.get(label, 1)
        per_token = heads if size == stack.heads.size else 1
        rows = tokens.sequences if tensor.name == "output_norm.weight" else tokens.rows * per_token
        has_bias = tensor.name.replace(".weight", ".bias") in names
        yield row_operation(label, rows, size, "layer_norm" if has_bias else "rms_norm_weight")


def _label(tensor: Tensor) -> str:
    name = tensor.name.removesuffix(".weight")
    return name.split(".", 2)[-1] if name.startswith("blk.") else name


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
    return quantised(label, m, n, k, next(fitting, weights), experts)
