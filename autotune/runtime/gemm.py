"""`Gemm`: matrix products by the tuned kernels of a device."""

from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from autotune.device.arrays import Context, Kind, Queue, allocate_shared, kind_of, shared_memory
from autotune.errors import ProblemError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import TuningTable
from autotune.model.problem import NUMBER_TYPES
from autotune.runtime.choice import Choice, Weights
from autotune.runtime.crossover import Crossover, file_of, host_product
from autotune.runtime.engine import Request
from autotune.runtime.executor import Operand, Transfer, check_result, form
from autotune.runtime.layout import gemm_problem, read_layout, result_shape
from autotune.runtime.on_device import Bound, OnDevice
from autotune.runtime.prepared import PreparedMatrix

_PACKED = frozenset((Kind.HOST, Kind.IMAGE))
"""Kinds whose pitch does not matter: host arrays are copied, images have the driver's own pitch."""
_ON_HOST = frozenset((Kind.HOST, Kind.SHARED))


class _How(NamedTuple):
    """Arguments of a call besides its operands."""

    trans_a: bool = False
    trans_b: bool = False
    mode: str = ""
    problem: GemmProblem | None = None


@dataclass(kw_only=True)
class GemmRequest(Request):
    """A request with the shape of the result."""

    problem: GemmProblem
    shape: tuple[int, ...]
    on_host: bool = False
    """Whether the host's BLAS does the product."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.takes_whole_numbers = self.problem.is_whole
        self.kind_b, self.kind_c = (operand.kind for operand in self.operands[1:])
        self.is_shared = any(operand.kind is Kind.SHARED for operand in self.operands)


class Gemm(OnDevice):
    """``C = alpha * op(A) @ op(B) + beta * C`` with the tuned kernel for each size.

    Operands are NumPy arrays, pyopencl arrays, or pyopencl buffers with a `GemmProblem`. Arrays have two axes, or
    three with the batch first: op(A) is (m, k), op(B) (k, n), C (m, n). Rows may have gaps between them (pitches), and
    a transposed view counts as transposed storage. Types: float32, float16 (summed in float32; in float16 with mode
    "float16-acc16"), int8 (summed in int32, the type of the result). One B without a batch serves a whole batch of A.

    NumPy operands from `allocate` are not copied where device and host share memory; other NumPy operands are. Calls
    with pyopencl operands only return at once, as usual in OpenCL; calls with NumPy operands return when done. Threads
    may share a Gemm. `stats` counts what happened.
    """

    _family = FAMILY

    def __init__(
        self,
        device: str = "",
        *,
        queue: Queue | None = None,
        context: Context | None = None,
        table: TuningTable | str | Path | None = None,
        host_blas: bool | Crossover = True,
        binaries: Path | str | None = None,
        verify: bool = True,
    ) -> None:
        """`device` is chosen as on the command line; by default it is the only device, or the only GPU.

        `queue` or `context` replace it. `table` is a file or an open table, by default the user's database.
        `host_blas` is True to run products on the host that `autotune run` measured to be faster there (its record is
        kept beside the table), False never to do so, or a `Crossover` to use in place of the record. `binaries` is the
        folder for built programs, by default in the user's cache folder. A configuration that was not measured with
        this very driver is checked once, in a child process, before its first use; `verify=False` is for an
        application that has done so itself. Raises DeviceSelectionError, TableError and StoreError.
        """
        super().__init__(device, queue=queue, context=context, table=table, binaries=binaries, verify=verify)
        if isinstance(host_blas, bool):
            record = file_of(table) if isinstance(table, str | Path) else None
            host_blas = Crossover.read(self.device.slug, record) if host_blas else Crossover.NEVER
        self._crossover = host_blas

    def __repr__(self) -> str:
        host = self._crossover.most_host_flops
        by_host = f", by the host's BLAS up to about {host / 1e6:.3g} MFLOP" if host else ""
        return f"<Gemm on {self.device.slug}{by_host}>"

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        mode: str = "",
        problem: GemmProblem | None = None,
    ) -> Any:
        """Return the product, in `out` where given; its shape is (m, n), or (batch, m, n) where A has a batch.

        `trans_a` and `trans_b` multiply by the transpose. With pyopencl buffers `problem` gives sizes, types and
        layout, and `out` is required. The contents of `out` matter only with beta. Raises ProblemError, KernelError,
        and WorkerError when a check needs a child process and none can be started.
        """
        request = self._find(a, b, out, trans_a, trans_b, mode, problem)
        if out is None:
            if beta:
                raise ProblemError("beta scales the previous content of out, but no out was passed", hint="pass out")
            out = self._allocate(request.shape, request.problem.dtype("c"), request.kind_c)
        self._run(request, (a, b, out), (alpha, beta))
        return out

    def bind(self, a: Any, b: Any, out: Any, *, alpha: float = 1.0, beta: float = 0.0, **layout: Any) -> Bound:
        """Return a callable that repeats one product at less cost per call; the arguments are those of a call."""
        request, values, scalars = self._find(a, b, out, *_How(**layout)), (a, b, out), (alpha, beta)
        return Bound(self._engine, request, lambda: self._run(request, values, scalars), values, scalars, out)

    def prepare(self, b: Any, *, trans_b: bool = False) -> PreparedMatrix:
        """Return constant weights, moved to the device and packed once, for use as `b`; the shape is as in a call.

        Calls then choose kernels without counting the cost of packing: those tuned by
        `autotune run --shape "M,N,K constant=b"`, otherwise by the trials of the plain shape. `b` must not change
        while this is in use. Raises ProblemError.
        """
        kind = kind_of(b)
        if kind is None or kind is Kind.BUFFER:
            raise ProblemError("prepare takes a NumPy or pyopencl array")
        if kind is Kind.IMAGE:
            _check_image(b)
        layout = read_layout("b", b, packs=kind in _PACKED)
        engine = self._engine
        if kind is Kind.HOST:
            memory, transfer = engine.executor.buffer(b.nbytes, "b"), Transfer(engine.executor, engine.stats)
            transfer.upload(b, memory, by_columns=layout.is_transposed)
            transfer.leave()
            return PreparedMatrix(
                self, self.stats, memory, Kind.BUFFER, layout, is_transposed=trans_b, copied_bytes=b.nbytes
            )
        self._adopt("b", b, kind)
        return PreparedMatrix(self, self.stats, b, kind, layout, is_transposed=trans_b)

    def allocate(self, shape: Any, dtype: Any, *, image: bool = False) -> Any:
        """Return zeros visible to host and device, as a NumPy array; `image` stores a B for the texture pipe."""
        return allocate_shared(self._engine.executor.port, shape, dtype, image=image)

    def choice(self, a: Any, b: Any, out: Any = None, **layout: Any) -> Choice | None:
        """Return the configuration that ran such operands, and the reason; None before the first call."""
        return self._find(a, b, out, *_How(**layout)).choice

    def _find(
        self, a: Any, b: Any, out: Any, trans_a: bool, trans_b: bool, mode: str, problem: GemmProblem | None
    ) -> GemmRequest:
        forms = (
            form(a, "a"),
            b.form if isinstance(b, PreparedMatrix) else form(b, "b"),
            None if out is None else form(out, "out"),
        )
        key = (forms, trans_a, trans_b, mode, problem)

        def read() -> GemmRequest:
            return _read_request(self, (a, b, out), _How(trans_a, trans_b, mode, problem), self._crossover)

        return self._request(key, read)

    def _run(self, request: GemmRequest, values: tuple[Any, Any, Any], scalars: tuple[float, float]) -> None:
        a, b, out = values
        others = (("a", a), ("b", b.operand if isinstance(b, PreparedMatrix) else b))
        check_result(out, request.kind_c, others)
        _check_scalars(request, scalars)
        if request.on_host:
            with self._engine.executor.lock:
                self.stats.calls += 1
                self.stats.host_products += 1
                if request.is_shared:  # under the lock: another thread may hand it to the device
                    _run_on_host(request, values, scalars)
            if not request.is_shared:
                _run_on_host(request, values, scalars)
            return
        if request.kind_b is Kind.IMAGE and not isinstance(b, PreparedMatrix):
            _check_image(b)
        self._call(request, values, scalars, reads_outputs=bool(scalars[1]))


def _run_on_host(request: GemmRequest, values: tuple[Any, Any, Any], scalars: tuple[float, float]) -> None:
    problem, out = request.problem, values[2]
    op_a, op_b = (
        x if bool(getattr(problem, f"trans_{operand.name}")) == operand.by_columns else x.swapaxes(-1, -2)
        for operand, x in zip(request.operands[:2], values, strict=False)
    )
    host_product(problem, op_a, op_b, out, alpha=scalars[0], beta=scalars[1])


# Requests, read once for all operands of the same form


def _read_request(owner: object, operands: tuple[Any, Any, Any], how: _How, crossover: Crossover) -> GemmRequest:
    """Read the request of `operands` (a, b, out), of which out may be None. Raises ProblemError where they do not fit.

    A `PreparedMatrix` must have been prepared by `owner`.
    """
    a, b, out = operands
    prepared = b if isinstance(b, PreparedMatrix) else None
    kind_a, kind_b = kind_of(a), prepared.kind if prepared else kind_of(b)
    kind_c = kind_of(out) if out is not None else None
    assert kind_a and kind_b
    if how.problem or Kind.BUFFER in (kind_a, kind_c) or (kind_b is Kind.BUFFER and not prepared):
        return _read_buffers((kind_a, kind_b, kind_c), how.problem)
    if kind_a is Kind.IMAGE or kind_c is Kind.IMAGE:
        raise ProblemError("only b can be in an image")
    if prepared and prepared.owner is not owner:
        raise ProblemError("b was prepared by another Gemm")
    if prepared and how.trans_b:
        raise ProblemError("b was prepared, so trans_b cannot be set here", hint="pass trans_b to prepare")
    trans_b = prepared.is_transposed if prepared else how.trans_b
    if kind_b is Kind.IMAGE and trans_b:
        raise ProblemError("an image for b must hold op(B), k x n", hint="fill it with the transpose")
    layout_a = read_layout("a", a, packs=kind_a is Kind.HOST)
    layout_b = prepared.layout if prepared else read_layout("b", b, packs=kind_b in _PACKED)
    layout_c = None if kind_c is None else read_layout("out", out, packs=kind_c is Kind.HOST)
    problem = gemm_problem(layout_a, layout_b, layout_c, trans_a=how.trans_a, trans_b=trans_b, mode=how.mode)
    weights = Weights.IN_IMAGE if kind_b is Kind.IMAGE else Weights.PACKED_ONCE if prepared else Weights.PER_CALL
    if weights is Weights.PACKED_ONCE:
        problem = replace(problem, constant="b")
    # A result that is not passed is of A's kind, but shared with a shared B, since A is copied in any case.
    is_shared = kind_a is Kind.HOST and kind_b in (Kind.SHARED, Kind.IMAGE)
    kinds = (kind_a, kind_b, kind_c or (Kind.SHARED if is_shared else kind_a))
    return GemmRequest(
        problem=problem,
        weights=weights,
        constant="" if weights is Weights.PER_CALL else "b",
        operands=_operands(problem, kinds, layout_a.is_transposed, layout_b.is_transposed),
        shape=result_shape(problem, layout_a),
        on_host=not prepared and _ON_HOST.issuperset(kinds) and crossover.prefers_host(problem),
    )


def _read_buffers(kinds: tuple[Kind | None, ...], problem: GemmProblem | None) -> GemmRequest:
    if problem is None:
        raise ProblemError("a buffer has no shape", hint="pass problem=GemmProblem(m=..., n=..., k=..., ...)")
    if any(kind is not Kind.BUFFER for kind in kinds):
        raise ProblemError("when problem is passed, all of a, b and out must be buffers")
    operands = _operands(problem, (Kind.BUFFER,) * 3)
    return GemmRequest(problem=problem, weights=Weights.PER_CALL, operands=operands, shape=(problem.m, problem.n))


def _operands(problem: GemmProblem, kinds: tuple[Kind, ...], *by_columns: bool) -> tuple[Operand, ...]:
    """Return the operands; a and b may be stored `by_columns`."""
    a, b = by_columns or (False, False)
    return (
        Operand("a", kinds[0], "a", _bytes(problem, "a"), by_columns=a),
        Operand("b", kinds[1], "b", _bytes(problem, "b"), by_columns=b),
        Operand("c", kinds[2], "out", _bytes(problem, "c"), is_written=True),
    )


def _check_scalars(request: GemmRequest, scalars: tuple[Any, Any]) -> None:
    """Raise ProblemError where alpha or beta is not a number that the product can be scaled by."""
    alpha, beta = scalars
    if type(alpha) is type(beta) is float and not request.takes_whole_numbers:  # fast path: runs at every call
        return
    for name, value in (("alpha", alpha), ("beta", beta)):
        is_number = isinstance(value, Real)
        if not is_number:
            raise ProblemError(f"{name} is a {type(value).__name__}", hint="pass a number")
        if request.takes_whole_numbers and not (-(2**31) <= value < 2**31 and value == int(value)):
            raise ProblemError(f"{name} is {value}: in mode int8 alpha and beta must be whole numbers of 32 bits")


def _check_image(b: Any) -> None:
    memory = shared_memory(b)
    if memory is None or not memory.is_whole(b):
        raise ProblemError("b must be an image as allocated, not a view of it", hint="allocate one for this matrix")


def _bytes(problem: GemmProblem, operand: str) -> int:
    """Return the size of an operand in bytes, from its first element to its last."""
    rows, columns = problem.stored[operand]
    last = (problem.batch - 1) * problem.stride(operand) + (rows - 1) * problem.pitch(operand) + columns
    return last * NUMBER_TYPES[problem.dtype(operand)].size_bytes
