"""`Attention`: attention to a cache of keys and values by the tuned kernels of a device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.device.arrays import Kind, kind_of
from autotune.errors import ProblemError
from autotune.kernels.attention import FAMILY, AttentionProblem
from autotune.kernels.attention.problem import BLOCKS, HEADS, WORDS
from autotune.kernels.qgemm.formats import FORMATS
from autotune.runtime.choice import Choice, Weights
from autotune.runtime.executor import Operand, form
from autotune.runtime.on_device import Bound, OnDevice, ShapedRequest, check_contiguous, check_shaped

LEAST_CLASS = 64
"""The shortest class of lengths."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyValues:
    """A cache of keys and values, as it lies in memory; calls read it and never change it.

    In the layout `heads`, k and v have shape (batch, KV heads, capacity, size), in `tokens` (batch, capacity, KV heads,
    size), and in `pages` (pages, tokens of a page, KV heads, size) with a `table`, int32 of shape (batch, pages of a
    sequence). They are float32 or float16, or, with `blocks` q8_0 or q4_0, uint8: then the last axis counts the bytes
    of a row in blocks as GGUF files have them.
    """

    k: Any
    v: Any
    layout: str = "heads"
    blocks: str = ""
    table: Any = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What scales, changes and hides scores, alike in all calls of a layer of a model."""

    causal: bool = False
    """Whether a query sees no key after its own; the last query has the place of the last key."""
    window: int = 0
    """A query sees only keys fewer than so many places away; 0 for all."""
    scale: float | None = None
    """None for 1 / sqrt(size of a head)."""
    cap: float = 0.0
    """Scores are ``cap * tanh(score / cap)``; 0 leaves them."""


PLAIN = Scores()


class Attention(OnDevice):
    """``softmax(scale * Q @ K.T) @ V`` for each query head, by the tuned kernel for each size.

    Kernels are chosen for classes of lengths, powers of two, so that a cache that grows by a token asks for a new one
    only when it has doubled. Memory, copies, the return of calls and threads are as with `Gemm`.
    """

    _family = FAMILY

    def __call__(
        self,
        q: Any,
        cache: KeyValues,
        lengths: Any = None,
        out: Any = None,
        *,
        scores: Scores = PLAIN,
        longest: int = 0,
        mask: Any = None,
        slopes: Any = None,
        sinks: Any = None,
    ) -> Any:
        """Return the attention of q, of its type, float32 or float16, in `out` where given.

        q has shape (batch, heads, queries, size) with a cache by heads, else (batch, queries, heads, size); the result
        has the size of V. `lengths` are how many keys each sequence has: an integer, a sequence of them, or an int32
        pyopencl array of shape (batch,), with which the call does not wait and `longest` says how many there are at
        most; by default all that there is room for. More keys than the class of `longest` are not read. `mask`, of q's
        type and shape (batch, queries, capacity), is added to scores; `slopes` of ALiBi and `sinks` are float32 of
        shape (heads,). A query without keys gives zeros. Raises ProblemError and KernelError.
        """
        request, values, scalars = self._read(q, cache, lengths, out, scores, longest, (mask, slopes, sinks))
        self._call(request, values, scalars, reads_outputs=False)
        return values[-1]

    def bind(
        self,
        q: Any,
        cache: KeyValues,
        lengths: Any = None,
        out: Any = None,
        *,
        scores: Scores = PLAIN,
        longest: int = 0,
        mask: Any = None,
        slopes: Any = None,
        sinks: Any = None,
    ) -> Bound:
        """Return a callable that repeats one call at less cost per call; the arguments are those of a call.

        It reads what its operands contain when it is called, lengths in a pyopencl array too.
        """
        request, values, scalars = self._read(q, cache, lengths, out, scores, longest, (mask, slopes, sinks))
        return self._bind(request, values, values[-1], scalars, reads_outputs=False)

    def choice(self, q: Any, cache: KeyValues, lengths: Any = None, *, scores: Scores = PLAIN) -> Choice | None:
        """Return the configuration that ran such operands, and the reason; None before the first call."""
        return self._read(q, cache, lengths, None, scores, 0, (None, None, None))[0].choice

    def _read(
        self,
        q: Any,
        cache: KeyValues,
        lengths: Any,
        out: Any,
        scores: Scores,
        longest: int,
        added: tuple[Any, Any, Any],
    ) -> tuple[ShapedRequest, tuple[Any, ...], tuple[float, ...]]:
        """Return the request of a call, its operands in order, and its scalars; a missing result is allocated."""
        counted = _counted(lengths, cache, q)
        most = longest or (int(counted.max(initial=0)) if isinstance(counted, np.ndarray) else 0)
        named = {
            "q": q, "k": cache.k, "v": cache.v, "lengths": counted, "mask": added[0], "slopes": added[1],
            "sink": added[2], "table": cache.table, "output": out,
        }  # fmt: skip
        forms = tuple(None if value is None else form(value, name) for name, value in named.items())
        key = (forms, cache.layout, cache.blocks, _class_of(most), scores)
        request = self._request(key, lambda: _request(named, cache, scores, most))
        assert isinstance(request.problem, AttentionProblem)
        scale = 1 / math.sqrt(request.problem.k_size) if scores.scale is None else scores.scale
        return request, self._in_order(request, named), (float(scale), float(scores.cap))


def _class_of(length: int) -> int:
    """Return the least power of two that is not less than a length; 0 for 0, which means the capacity."""
    return max(LEAST_CLASS, 1 << (length - 1).bit_length()) if length else 0


def _counted(lengths: Any, cache: KeyValues, q: Any) -> Any:
    """Return lengths as an int32 array. Raises ProblemError."""
    if kind_of(lengths) is Kind.ARRAY:
        return lengths
    batch = int(q.shape[0]) if np.ndim(q) == 4 else 1
    if lengths is None:
        lengths = cache.k.shape[1 if cache.layout == "tokens" else 2]
        if cache.layout == "pages":
            lengths = cache.k.shape[1] * (np.shape(cache.table) or (0,))[-1]
    found = np.asarray(lengths)
    if found.dtype.kind not in "iu" or found.shape not in ((), (batch,)) or found.min(initial=0) < 0:
        raise ProblemError(f"lengths are {lengths!r:.80}", hint=f"pass an integer, or {batch} of them")
    return np.broadcast_to(found, (batch,)).astype(np.int32)


def _request(named: dict[str, Any], cache: KeyValues, scores: Scores, longest: int) -> ShapedRequest:
    """Read the request of such operands. Raises ProblemError."""
    for name, value in named.items():
        check_shaped(name, value)
    p = _problem(named, cache, scores, longest)
    by_tokens = p.layout != "heads"
    shape = (p.batch, p.q_length, p.q_heads, p.v_size) if by_tokens else (p.batch, p.q_heads, p.q_length, p.v_size)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "output": (p.dtype, shape), "mask": (p.dtype, (p.batch, p.q_length, p.capacity)),
        "slopes": ("float32", (p.q_heads,)), "sink": ("float32", (p.q_heads,)),
        "lengths": ("int32", (p.batch,)), "table": ("int32", (p.batch, p.pages)),
    }  # fmt: skip
    for name, value in named.items():
        if value is None:
            continue
        dtype, needed = wanted.get(name, (value.dtype.name, tuple(value.shape)))
        if value.dtype != dtype or tuple(value.shape) != needed:
            raise ProblemError(f"{name} is {value.dtype} of shape {tuple(value.shape)}, not {dtype} of {needed}")
        if kind_of(value) is not Kind.HOST:
            check_contiguous(name, value)
    kinds = {name: kind_of(named["q"] if value is None else value) for name, value in named.items()}
    operands = tuple(
        Operand(name, kind, name, is_written=name == "output")
        for name, kind in kinds.items()
        if kind and (name == "output" or named[name] is not None)
    )
    return ShapedRequest(problem=p, weights=Weights.PER_CALL, operands=operands, shape=shape, dtype=p.dtype)


def _problem(named: dict[str, Any], cache: KeyValues, scores: Scores, longest: int) -> AttentionProblem:
    q, k, v, table = (named[name] for name in ("q", "k", "v", "table"))
    shapes = [tuple(int(size) for size in value.shape) for value in (q, k, v)]
    if any(len(shape) != 4 or min(shape) < 1 for shape in shapes) or shapes[1][:3] != shapes[2][:3]:
        found = ", ".join(map(str, shapes))
        raise ProblemError(
            f"q, k and v have shapes {found}", hint="each has four axes, and those of k and v differ in the last"
        )
    (batch, *of_q, k_size), of_k = shapes[0], shapes[1]
    heads, q_length = of_q if cache.layout == "heads" else of_q[::-1]
    kv_heads, capacity = (of_k[1], of_k[2]) if cache.layout == "heads" else (of_k[2], of_k[1])
    page, pool = 0, 0
    if cache.layout == "pages":
        if table is None:
            raise ProblemError("a cache in pages needs a table")
        page, pool, capacity = capacity, of_k[0], capacity * int(table.shape[-1])
    elif of_k[0] != batch or table is not None:
        raise ProblemError(f"q has {batch} sequences, the cache {of_k[0]}", hint="a table is for the layout pages only")
    kv_type = cache.blocks or k.dtype.name
    v_size = _size(v, shapes[2], cache.blocks)
    if heads % kv_heads or k_size != _size(k, of_k, cache.blocks) or v.dtype != k.dtype:
        raise ProblemError(f"q is {q.dtype} of shape {shapes[0]}, k {k.dtype} of {of_k}: heads or sizes do not match")
    head = next((name for name, sizes in HEADS.items() if sizes == (k_size, v_size)), "")
    if not head or q.dtype.name not in WORDS["dtype"] or kv_type not in WORDS["kv_type"]:
        hint = f"there are heads of {', '.join(HEADS)}, in {', '.join(WORDS['kv_type'])}; q is float32 or float16"
        raise ProblemError(f"there are no kernels for heads of {k_size} and {v_size} in {kv_type}", hint=hint)
    return AttentionProblem(
        kv_heads=kv_heads, group=heads // kv_heads, q_length=q_length, head=head, batch=batch,
        kv_length=min(_class_of(longest) or capacity, capacity), capacity=capacity, page=page, pool=pool,
        causality="causal" if scores.causal else "full", window=scores.window, layout=cache.layout,
        bias="mask" if named["mask"] is not None else "alibi" if named["slopes"] is not None else "none",
        capping="capped" if scores.cap else "uncapped", sinks="sinks" if named["sink"] is not None else "sinkless",
        dtype=q.dtype.name, kv_type=kv_type,
    )  # fmt: skip


def _size(rows: Any, shape: Sequence[int], blocks: str) -> int:
    """Return the elements of a row of K or V."""
    if not blocks:
        return shape[-1]
    if blocks not in BLOCKS or rows.dtype.itemsize != 1 or shape[-1] % FORMATS[blocks].block_bytes:
        raise ProblemError(
            f"{blocks!r:.40} is not one of {', '.join(BLOCKS)}, or rows of {shape[-1]} bytes are not whole"
        )
    return shape[-1] // FORMATS[blocks].block_bytes * FORMATS[blocks].block
