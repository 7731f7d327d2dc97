"""`QGemm`: products with quantised weights by the tuned kernels of a device."""

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.arrays import Kind, kind_of
from autotune.device.port import Memory
from autotune.errors import ProblemError
from autotune.kernels.qgemm import FAMILY, QGemmProblem
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.qgemm.int4 import Int4Weights
from autotune.runtime.choice import Choice, Weights
from autotune.runtime.executor import Executor, Operand, Statistics, Transfer, check_result, form
from autotune.runtime.layout import qgemm_problem
from autotune.runtime.on_device import Bound, OnDevice, ShapedRequest
from autotune.runtime.prepared import Prepared, Ready

_FLOATS = ("F32", "F16", "BF16", "F64")
"""GGUF types of weights that are not quantised."""


class PreparedWeights(Prepared):
    """Quantised weights, packed on the device into each layout that a product needs; made by `QGemm.prepare`.

    NumPy weights, such as a mapped file, stay where they are: they are copied to the device for packing only, or when
    a kernel reads them as they are.
    """

    name = "the weights"

    def __init__(self, owner: object, stats: Statistics, operand: Any, kind: Kind, problem: QGemmProblem) -> None:
        """`problem` is that of one column."""
        self.problem = problem
        self._copy: Memory | None = None
        super().__init__(owner, stats, operand, kind, problem)

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + (0 if self._copy is None else self.operand.nbytes)

    def __repr__(self) -> str:
        p = self.problem
        shape = f"{f'{p.experts} x ' if p.experts > 1 else ''}{p.m} x {p.k}"
        return f"<PreparedWeights {shape} {p.weights}, packed in {len(self._packed)} layouts>"

    def release(self) -> None:
        """Free what is on the device; a later product brings it there again. Bound products keep what they use."""
        super().release()
        self._copy = None

    def unpacked(self, executor: Executor) -> NDArray[np.uint8]:
        """Return the bytes of the weights from a layout in which they are packed. Raises ProblemError if none is."""
        layouts = ((packed, undo) for packed, _, undo in self._packed.values() if undo is not None)
        packed, unpacking = next(layouts, (None, None))
        if packed is None or unpacking is None:
            hint = "a product that needs another layout packs them; what `matrix_tile` reads cannot be unpacked"
            raise ProblemError("the weights are not packed in a layout that can be unpacked", hint=hint)
        memory = executor.buffer(self.operand.nbytes, self.name)
        unpacking().enqueue((memory, packed))
        found = np.empty(self.operand.nbytes, np.uint8)
        executor.port.read(memory, found)
        return found

    def _pack(self, ready: Ready, transfer: Transfer) -> tuple[Memory, ...]:
        was_there = self._copy is not None
        try:
            return super()._pack(ready, transfer)
        finally:
            if not was_there:  # no kernel reads it but the packing
                self._copy = None

    def _plain(self, transfer: Transfer) -> Memory:
        if self.kind is not Kind.HOST:
            return super()._plain(transfer)
        if self._copy is None:
            copy = transfer.executor.buffer(self.operand.nbytes, self.name)
            transfer.upload(self.operand, copy, by_columns=False)
            self._copy = copy
        return self._copy


class QGemm(OnDevice):
    """``Y = X @ W.T`` with quantised weights W, by the tuned kernel for each size.

    X is a NumPy or pyopencl array of shape (..., k), float32 or float16; its leading axes are the n columns of the
    product, none for a single one. W comes from `prepare`; Y is (..., m), of X's type. Mode "int8" multiplies integers:
    float32 activations are rounded to 8 bits on the device, 32 with one scale. Memory, copies, the return of calls and
    threads are as with `Gemm`; `stats` counts what happened.
    """

    _family = FAMILY

    def __call__(self, x: Any, weights: PreparedWeights, out: Any = None, *, mode: str = "", starts: Any = None) -> Any:
        """Return the product, in `out` where given, which must not overlap x on the device.

        With experts, the rows of x are sorted by expert: `starts`, experts + 1 integers in a sequence or an int32
        array, are the rows at which each expert's begin, and the number of rows. Raises ProblemError, KernelError, and
        WorkerError when a check needs a child process and none can be started.
        """
        request, values = self._read_call(x, weights, out, mode, starts)
        self._call(request, values, reads_outputs=False)
        return values[-1]

    def bind(self, x: Any, weights: PreparedWeights, out: Any, *, mode: str = "", starts: Any = None) -> Bound:
        """Return a callable that repeats one product at less cost per call; the arguments are those of a call.

        It reads what x, and a pyopencl array of starts, contain when it is called.
        """
        request, values = self._read_call(x, weights, out, mode, starts)
        return self._bind(request, values, values[-1], reads_outputs=False)

    def prepare(
        self,
        weights: Any,
        format: str = "",  # noqa: A002 - the word that everybody uses
        shape: Sequence[int] | None = None,
    ) -> PreparedWeights:
        """Return weights of shape (m, k), or (experts, m, k), for use in products.

        `weights` are a tensor of a `gguf.GGUFReader`, what `from_gptq` or `from_awq` return, or the bytes of a format
        with that format's name and their shape: a uint8 array, NumPy's or pyopencl's, with blocks as in GGUF files. For
        the int4 formats it holds quants, scales and zero points one after the other; see `autotune help quantised`.

        Each layout is packed once, on the device, when a product first needs it; `release` frees all of them. The
        weights must not change while this is in use. Raises ProblemError.
        """
        values, found, sizes = _read_weights(weights, format, shape)
        experts, m, k = sizes if len(sizes) == 3 else (1, *sizes)
        problem = QGemmProblem(m=m, n=1, k=k, weights=found, experts=experts)
        kind = kind_of(values)
        if (
            kind not in (Kind.HOST, Kind.SHARED, Kind.ARRAY)
            or values.dtype.itemsize != 1
            or values.dtype.kind not in "iu"
        ):
            what = f"{values.dtype} in " if hasattr(values, "dtype") else ""
            raise ProblemError(f"the weights are {what}a {type(values).__name__}", hint="pass their bytes as uint8")
        if values.nbytes != problem.weight_bytes:
            label = problem.label.replace("x1x", "x", 1)
            raise ProblemError(f"weights of {label} take {problem.weight_bytes} bytes, not {values.nbytes}")
        if kind is Kind.HOST:
            values = np.ascontiguousarray(values).reshape(-1)
        elif not values.flags.c_contiguous:
            raise ProblemError("the weights are not contiguous", hint="pass contiguous memory")
        else:
            self._adopt("the weights", values, kind)
        return PreparedWeights(self, self.stats, values, kind, problem)

    def unpack(self, weights: PreparedWeights) -> NDArray[np.uint8]:
        """Return the bytes that `prepare` took, from a layout into which a product has packed them.

        Raises ProblemError if none has, or only into that of `matrix_tile`, from which there is no way back.
        """
        self._check_owner(weights)
        executor = self._engine.executor
        with executor.lock:
            return weights.unpacked(executor)

    def choice(
        self, x: Any, weights: PreparedWeights, out: Any = None, *, mode: str = "", starts: Any = None
    ) -> Choice | None:
        """Return the configuration that ran such operands, and the reason; None before the first call."""
        return self._find(x, weights, out, mode, _read_starts(starts, weights, x)).choice

    def _read_call(
        self, x: Any, weights: PreparedWeights, out: Any, mode: str, starts: Any
    ) -> tuple[ShapedRequest, tuple[Any, ...]]:
        """Return the request of a call and its operands; the result is allocated where none was passed."""
        starts = _read_starts(starts, weights, x)
        request = self._find(x, weights, out, mode, starts)
        kind = request.operands[-1].kind
        if out is None:
            out = self._allocate(request.shape, request.dtype, kind)
        check_result(out, kind, (("x", x), ("the weights", weights.operand)))
        return request, (x, weights, *(() if starts is None else (starts,)), out)

    def _find(self, x: Any, weights: PreparedWeights, out: Any, mode: str, starts: Any) -> ShapedRequest:
        forms = (form(x, "x"), None if out is None else form(out, "out"), None if starts is None else kind_of(starts))
        key = (forms, weights.form, mode)
        return self._request(key, lambda: self._read(x, weights, out, mode, starts))

    def _read(self, x: Any, weights: PreparedWeights, out: Any, mode: str, starts: Any) -> ShapedRequest:
        self._check_owner(weights)
        if Kind.BUFFER in (kind_of(x), kind_of(out)):
            raise ProblemError(
                "a buffer has no shape", hint="pass pyopencl.array.Array(queue, shape, dtype, data=buffer)"
            )
        problem = qgemm_problem(x, out, weights.problem, mode)
        kind_x = kind_of(x)
        kind_y = kind_x if out is None else kind_of(out)
        assert kind_x and kind_y
        starts_kind = kind_of(starts)
        operands = (
            Operand("x", kind_x, "x"),
            Operand("weights", weights.kind, "weights"),
            *((Operand("starts", starts_kind, "starts"),) if starts_kind else ()),
            Operand("y", kind_y, "out", is_written=True),
        )
        return ShapedRequest(
            problem=problem,
            weights=Weights.PACKED_ONCE,
            constant="weights",
            operands=operands,
            shape=(*x.shape[:-1], problem.m),
            dtype=problem.stored,
        )

    def _check_owner(self, weights: PreparedWeights) -> None:
        if weights.owner is not self:
            raise ProblemError("the weights were prepared by another QGemm")


def _read_starts(starts: Any, weights: Any, x: Any) -> Any:
    """Return starts as an int32 array, or None for weights without experts. Raises ProblemError."""
    if not isinstance(weights, PreparedWeights):
        raise ProblemError(f"the weights are a {type(weights).__name__}", hint="pass what prepare returns")
    experts = weights.problem.experts
    if starts is None and experts == 1:
        return None
    if starts is None or experts == 1:
        raise ProblemError(
            f"the weights have {experts} experts, so starts must {'' if experts > 1 else 'not '}be passed",
            hint="experts are the first axis of the weights' shape",
        )
    if kind_of(starts) is Kind.ARRAY:
        if starts.dtype != np.int32 or starts.shape != (experts + 1,):
            raise ProblemError(f"starts are {starts.dtype} of shape {starts.shape}, not int32 of ({experts + 1},)")
        return starts
    values: NDArray[np.int64] = np.asarray(starts)
    rows = int(np.prod(np.shape(x)[:-1], dtype=np.int64))
    if values.shape != (experts + 1,) or values.dtype.kind not in "iu":
        raise ProblemError(f"starts must be {experts + 1} integers, not {values.dtype} of shape {values.shape}")
    if values[0] != 0 or values[-1] != rows or (np.diff(values.astype(np.int64)) < 0).any():
        raise ProblemError(f"starts must ascend from 0 to the rows of x, which are {rows}")
    return values.astype(np.int32)


def _read_weights(weights: Any, name: Any, shape: Sequence[int] | None) -> tuple[Any, str, tuple[int, ...]]:
    """Return the bytes of weights, their format and their shape. Raises ProblemError."""
    is_tensor = all(hasattr(weights, part) for part in ("tensor_type", "data", "shape"))
    if (is_tensor or isinstance(weights, Int4Weights)) and (name or shape is not None):
        raise ProblemError("such weights know their format and shape", hint="pass neither")
    if isinstance(weights, Int4Weights):
        return weights.data, weights.format, weights.shape
    if is_tensor:
        name = _format_of_tensor(weights)
        return weights.data.reshape(-1), name, tuple(int(size) for size in reversed(weights.shape))
    if not name or not isinstance(name, str) or shape is None:
        raise ProblemError("the bytes of weights do not tell their format and shape", hint="pass format and shape")
    try:
        sizes = tuple(index(size) for size in shape)
    except TypeError:
        sizes = ()
    if len(sizes) not in (2, 3):
        raise ProblemError(f"weights have shape (m, k) or (experts, m, k), not {shape!r:.80}")
    return weights, name.lower(), sizes


def _format_of_tensor(tensor: Any) -> str:
    kind = getattr(tensor.tensor_type, "name", str(tensor.tensor_type))
    if len(tensor.shape) not in (2, 3):
        raise ProblemError(f"the tensor {tensor.name} has {len(tensor.shape)} axes, weights have two or three")
    if kind.lower() not in FORMATS:
        hint = "use Gemm for it" if kind in _FLOATS else "requantise it, or dequantise it for Gemm"
        there = ", ".join(one.upper() for one in FORMATS if not FORMATS[one].in_arrays)
        raise ProblemError(f"the tensor {tensor.name} has type {kind}; there are kernels for {there}", hint=hint)
    # The bytes of blocks are as in the file; only the numbers of the header tell their order.
    parts = getattr(getattr(tensor, "field", None), "parts", ())
    if any(part.dtype != part.dtype.newbyteorder("<") for part in parts):
        raise ProblemError(f"the tensor {tensor.name} is big-endian", hint="convert the file to little-endian")
    return kind.lower()
