"""`Gemm`: products of matrices by the tuned kernels of a device."""

from pathlib import Path
from typing import Any

import numpy as np

from autotune.device.execution import Context, Kind, Queue, kind_of
from autotune.device.memory import allocate_shared, shared_memory
from autotune.errors import ProblemError
from autotune.family import DTYPE_BYTES, Device
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import TuningTable
from autotune.runtime.choosing import Choice, Weights
from autotune.runtime.crossover import Crossover, host_product
from autotune.runtime.layout import Layout, gemm_problem, read_layout, result_shape
from autotune.runtime.running import Operands, Ready, Request, Statistics, form, open_engine

_NAMES = ("a", "b", "c")
_SHOWN = ("a", "b", "out")
_PACKED = frozenset((Kind.HOST, Kind.IMAGE))
"""Kinds whose pitch does not matter: copied, or the driver's own."""
_ON_HOST = frozenset((Kind.HOST, Kind.SHARED))


class PreparedMatrix:
    """A constant B, packed once for each layout that a product wants; made by `Gemm.prepare`."""

    def __init__(self, owner: "Gemm", operand: Any, kind: Kind, layout: Layout, *, is_transposed: bool) -> None:
        self.owner = owner
        self.operand, self.kind, self.layout = operand, kind, layout
        self.is_transposed = is_transposed
        self.form = ("prepared", id(owner), kind, layout, is_transposed)
        self.packed: dict[int, Any] = {}


class _Request(Request):
    """With the result's shape, and which operands are stored by columns."""

    def __init__(
        self, problem: GemmProblem, weights: Weights, kinds: tuple[Kind, ...], shape: tuple[int, ...], **more: bool
    ) -> None:
        super().__init__(problem=problem, weights=weights, kinds=kinds)
        self.gemm = problem
        self.shape = shape
        self.a_by_columns = more.get("a_by_columns", False)
        self.b_by_columns = more.get("b_by_columns", False)
        self.on_host = more.get("on_host", False)
        self.resident = all(kind in (Kind.ARRAY, Kind.BUFFER) for kind in kinds)
        is_prepared = weights is Weights.PACKED_ONCE
        self.arrays = [i for i, kind in enumerate(kinds) if kind is Kind.ARRAY and not (is_prepared and i == 1)]
        self.takes_whole_numbers = problem.accumulator == "int32"
        self.bytes = tuple(_bytes(problem, name) for name in _NAMES)


class Gemm:
    """``C = alpha * op(A) @ op(B) + beta * C`` with the tuned kernel for each size.

    Operands are NumPy arrays, pyopencl arrays, or pyopencl buffers with a `GemmProblem`; of two axes, or three with
    a batch first. Rows may be apart (pitches), and a transposed view counts as transposed storage. Types: float32,
    float16 (summed in float32; mode "float16-acc16" in float16), int8 (summed in int32, as the result is). One B
    without a batch serves a whole batch of A.

    NumPy operands in memory of `allocate` are not copied where device and host share memory; others are. With
    pyopencl operands alone calls return at once, like all of OpenCL; with NumPy operands when they are done. Threads
    may share a Gemm. `stats` counts what happened.
    """

    def __init__(
        self,
        device: str = "",
        *,
        queue: Queue | None = None,
        context: Context | None = None,
        table: TuningTable | str | Path | None = None,
        host_blas: bool | Crossover = True,
        binaries: Path | None = None,
    ) -> None:
        """`device` is chosen as on the command line; by default the only one there is, or the only GPU.

        `queue` or `context` take its place. `table` is a file or an open table, by default the user's database.
        `host_blas` lets the host do what was measured to be faster there; False never, a `Crossover` as that says.
        `binaries` is the folder for built programs, by default in the user's cache folder.
        Raises DeviceSelectionError, TableError, StoreError.
        """
        self._engine = open_engine(FAMILY, device, table, queue or context, binaries)
        if isinstance(host_blas, bool):
            host_blas = Crossover.read(self.device.slug) if host_blas else Crossover.NEVER
        self._crossover = host_blas

    @property
    def device(self) -> Device:
        return self._engine.device

    @property
    def queue(self) -> Queue:
        """Where kernels are enqueued."""
        return self._engine.executor.queue

    @property
    def stats(self) -> Statistics:
        return self._engine.stats

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
        """The product, in `out` where given. Raises ProblemError, KernelError.

        `trans_a` and `trans_b` multiply by the transpose. With pyopencl buffers `problem` says all, and `out` must be
        given. What `out` held matters only with beta.
        """
        request = self._request(a, b, out, trans_a, trans_b, mode, problem)
        if out is None:
            out = self._new_result(request, beta)
        self._run(request, a, b, out, (alpha, beta))
        return out

    def bind(self, a: Any, b: Any, out: Any, *, alpha: float = 1.0, beta: float = 0.0, **layout: Any) -> "BoundGemm":
        """The same product to be called again and again, for less; takes what a call takes."""
        given: dict[str, Any] = {"trans_a": False, "trans_b": False, "mode": "", "problem": None} | layout
        request = self._request(a, b, out, **given)
        return BoundGemm(self, request, (a, b, out), (alpha, beta))

    def prepare(self, b: Any, *, trans_b: bool = False) -> PreparedMatrix:
        """Constant weights: brought to the device and packed once, so that calls choose kernels without that cost.

        `b` must not change as long as this is used.
        """
        kind = kind_of(b)
        if kind is None or kind is Kind.BUFFER:
            raise ProblemError("prepare takes a NumPy or pyopencl array")
        if kind is Kind.IMAGE:
            _check_image(b)
        layout = read_layout("b", b, packs=kind in _PACKED)
        engine = self._engine
        if kind is Kind.HOST:
            memory, operands = engine.executor.buffer(b.nbytes, "b"), Operands(engine)
            operands.upload(b, memory, by_columns=layout.is_transposed)
            operands.leave()
            return PreparedMatrix(self, memory, Kind.BUFFER, layout, is_transposed=trans_b)
        engine.executor.check(b, kind, "b")
        if kind is Kind.ARRAY and engine.executor.is_foreign(b):
            b.queue.finish()
        return PreparedMatrix(self, b, kind, layout, is_transposed=trans_b)

    def allocate(self, shape: Any, dtype: Any, *, image: bool = False) -> Any:
        """Zeros that host and device both see, as a NumPy array; with `image` for a B read through the texture pipe."""
        return allocate_shared(self.queue, shape, dtype, image=image)

    def choice(self, a: Any, b: Any, out: Any = None, **layout: Any) -> Choice | None:
        """The configuration that such operands ran with, and why; None before the first call."""
        given: dict[str, Any] = {"trans_a": False, "trans_b": False, "mode": "", "problem": None} | layout
        ready = self._request(a, b, out, **given).ready
        return ready.choice if ready else None

    def finish(self) -> None:
        """Wait for everything enqueued."""
        self._engine.executor.finish()

    # What operands ask for

    def _request(
        self, a: Any, b: Any, out: Any, trans_a: bool, trans_b: bool, mode: str, problem: GemmProblem | None
    ) -> _Request:
        forms = (
            form(a, "a"),
            b.form if isinstance(b, PreparedMatrix) else form(b, "b"),
            None if out is None else form(out, "out"),
        )
        key = (forms, trans_a, trans_b, mode, problem)
        known = self._engine.requests.get(key)
        if known is None:
            known = self._read(a, b, out, trans_a, trans_b, mode, problem)
            self._engine.requests[key] = known
        assert isinstance(known, _Request)
        return known

    def _read(
        self, a: Any, b: Any, out: Any, trans_a: bool, trans_b: bool, mode: str, problem: GemmProblem | None
    ) -> _Request:
        prepared = b if isinstance(b, PreparedMatrix) else None
        kind_a, kind_b = kind_of(a), prepared.kind if prepared else kind_of(b)
        kind_c = kind_of(out) if out is not None else None
        assert kind_a and kind_b
        if problem is not None or (Kind.BUFFER in (kind_a, kind_c)) or (kind_b is Kind.BUFFER and not prepared):
            return self._read_buffers((kind_a, kind_b, kind_c), problem)
        if kind_a is Kind.IMAGE or kind_c is Kind.IMAGE:
            raise ProblemError("only b can lie in an image")
        layout_a = read_layout("a", a, packs=kind_a is Kind.HOST)
        if kind_b is Kind.IMAGE and trans_b:
            raise ProblemError("an image for b must hold op(B), k x n", hint="fill it with the transpose")
        layout_b = prepared.layout if prepared else read_layout("b", b, packs=kind_b in _PACKED)
        layout_c = None if kind_c is None else read_layout("out", out, packs=kind_c is Kind.HOST)
        if prepared and prepared.owner is not self:
            raise ProblemError("b was prepared by another Gemm")
        if prepared and trans_b:
            raise ProblemError("b was prepared", hint="say trans_b when it is")
        asked = gemm_problem(
            layout_a,
            layout_b,
            layout_c,
            trans_a=trans_a,
            trans_b=prepared.is_transposed if prepared else trans_b,
            mode=mode,
        )
        kinds = (kind_a, kind_b, kind_c or _kind_of_result(kind_a, kind_b))
        return _Request(
            asked,
            _weights(kind_b, is_prepared=prepared is not None),
            kinds,
            result_shape(asked, layout_a),
            a_by_columns=layout_a.is_transposed,
            b_by_columns=layout_b.is_transposed,
            on_host=not prepared and _ON_HOST.issuperset(kinds) and self._crossover.prefers_host(asked),
        )

    def _read_buffers(self, kinds: tuple[Kind | None, ...], problem: GemmProblem | None) -> _Request:
        if problem is None:
            raise ProblemError("a buffer has no shape", hint="pass problem=GemmProblem(m=..., n=..., k=..., ...)")
        if any(kind is not Kind.BUFFER for kind in kinds):
            raise ProblemError("with a problem all of a, b and out must be buffers")
        return _Request(problem, Weights.PER_CALL, (Kind.BUFFER,) * 3, (problem.m, problem.n))

    def _new_result(self, request: _Request, beta: float) -> Any:
        if beta:
            raise ProblemError("beta adds to what out holds", hint="pass out")
        dtype = request.gemm.dtype("c")
        match request.kinds[2]:
            case Kind.ARRAY:
                return self._engine.executor.new_array(request.shape, dtype)
            case Kind.SHARED:
                return self.allocate(request.shape, dtype)
        return np.empty(request.shape, dtype)

    # Running

    def _run(self, request: _Request, a: Any, b: Any, out: Any, scalars: tuple[float, float]) -> None:
        if out is a or out is b:
            raise ProblemError("out is an operand as well", hint="pass other memory")
        if request.takes_whole_numbers and any(value != int(value) for value in scalars):
            raise ProblemError("alpha and beta must be whole numbers in mode int8")
        engine = self._engine
        with engine.executor.lock:
            engine.stats.calls += 1
            engine.stats.host_products += request.on_host
            if request.resident:
                self._run_resident(request, a, b, out, scalars)
            elif not request.on_host:
                self._run_with_host(request, a, b, out, scalars)
        if request.on_host:
            self._run_on_host(request, a, b, out, scalars)

    def _run_on_host(self, request: _Request, a: Any, b: Any, out: Any, scalars: tuple[float, float]) -> None:
        problem = request.gemm
        op_a, op_b = (
            x if bool(getattr(problem, f"trans_{name}")) == by_columns else x.swapaxes(-1, -2)
            for name, x, by_columns in (("a", a, request.a_by_columns), ("b", b, request.b_by_columns))
        )
        host_product(problem, op_a, op_b, out, alpha=scalars[0], beta=scalars[1])

    def _run_resident(self, request: _Request, a: Any, b: Any, out: Any, scalars: tuple[float, float]) -> None:
        """Enqueue, and do not wait."""
        if request.ready is not None:
            self._enqueue(request, request.ready, (a, b, out), scalars)
            return
        self._engine.run(request, _NAMES, lambda ready: self._enqueue(request, ready, (a, b, out), scalars))

    def _enqueue(
        self, request: _Request, ready: Ready, operands: tuple[Any, Any, Any], scalars: tuple[float, float]
    ) -> None:
        memory = self._resident(request, ready, operands)
        executor = self._engine.executor
        foreign = [operands[i] for i in request.arrays if executor.is_foreign(operands[i])]
        if not foreign:
            ready.call.enqueue(memory, scalars)
            return
        event = ready.call.enqueue(memory, scalars, [event for array in foreign for event in array.events])
        for array in foreign:
            array.add_event(event)  # its queue must not change it before

    def _resident(self, request: _Request, ready: Ready, operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Memory of operands that are on the device. Raises ProblemError."""
        a, b, out = operands
        return (
            self._buffer(request, a, 0),
            self._packed(b, ready) if isinstance(b, PreparedMatrix) else self._buffer(request, b, 1),
            self._buffer(request, out, 2),
        )

    def _fixed_memory(self, request: _Request, operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any] | None:
        """Memory that stays the same from call to call; None where calls have to look again."""
        executor = self._engine.executor
        if not request.resident or any(executor.is_foreign(operands[number]) for number in request.arrays):
            return None
        assert request.ready
        return self._resident(request, request.ready, operands)

    def _buffer(self, request: _Request, operand: Any, number: int) -> Any:
        executor = self._engine.executor
        if operand.context is not executor.context:
            executor.check(operand, request.kinds[number], _SHOWN[number])
        if request.kinds[number] is Kind.ARRAY:
            return executor.array_memory(operand, _SHOWN[number]) if operand.offset else operand.base_data
        if operand.size < request.bytes[number]:
            raise ProblemError(
                f"{_SHOWN[number]} holds {operand.size} bytes, {request.gemm.label} takes {request.bytes[number]}"
            )
        return operand

    def _packed(self, weights: PreparedMatrix, ready: Ready) -> Any:
        return self._weights_memory(weights, ready, Operands(self._engine))

    def _run_with_host(self, request: _Request, a: Any, b: Any, out: Any, scalars: tuple[float, float]) -> None:
        """Bring operands to the device, run, and wait for the result."""
        operands = Operands(self._engine)
        kind_a, kind_b, kind_c = request.kinds
        for name, operand, kind in (("a", a, kind_a), ("b", b, kind_b), ("out", out, kind_c)):
            if isinstance(operand, PreparedMatrix):
                continue
            if kind is not Kind.HOST:
                self._engine.executor.check(operand, kind, name)
            if kind is Kind.IMAGE:
                _check_image(operand)
        results: list[Any] = []

        def launch(ready: Ready) -> None:
            memory_a = operands.enter("a", a, kind_a, by_columns=request.a_by_columns)
            if isinstance(b, PreparedMatrix):
                memory_b = self._weights_memory(b, ready, operands)
            else:
                memory_b = operands.enter("b", b, kind_b, by_columns=request.b_by_columns)
            memory_c = operands.enter("out", out, kind_c, is_read=bool(scalars[1]))
            ready.call.enqueue((memory_a, memory_b, memory_c), scalars)
            results[:] = [memory_c]

        try:
            self._engine.run(request, _NAMES, launch)
            if kind_c is Kind.HOST:
                operands.download(results[0], out)
        finally:
            operands.leave()

    def _weights_memory(self, weights: PreparedMatrix, ready: Ready, operands: Operands) -> Any:
        """B in the layout that the kernels want, packed now if it has not been."""
        if ready.packing is None:
            return operands.enter("b", weights.operand, weights.kind)
        packed = weights.packed.get(ready.packing_number)
        if packed is None:
            packed = self._engine.executor.allocate(ready.packed)
            ready.packing.enqueue((operands.enter("b", weights.operand, weights.kind), packed))
            weights.packed[ready.packing_number] = packed
            self.stats.packings += 1
        return packed


class BoundGemm:
    """One product on the same operands, call after call; made by `Gemm.bind`."""

    def __init__(
        self, gemm: Gemm, request: _Request, operands: tuple[Any, Any, Any], scalars: tuple[float, float]
    ) -> None:
        self._gemm, self._request, self._operands, self._scalars = gemm, request, operands, scalars
        self._memory: tuple[Any, Any, Any] | None = None

    def __call__(self) -> Any:
        """Run once more; returns `out`."""
        gemm, ready = self._gemm, self._request.ready
        if self._memory is None or ready is None:
            gemm._run(self._request, *self._operands, self._scalars)
            self._memory = gemm._fixed_memory(self._request, self._operands)
        else:
            engine = gemm._engine
            with engine.executor.lock:
                engine.stats.calls += 1
                ready.call.enqueue(self._memory, self._scalars)
        return self._operands[2]


def _check_image(b: Any) -> None:
    memory = shared_memory(b)
    if memory is None or not memory.is_whole(b):
        raise ProblemError("an image for b must be passed whole", hint="allocate one for this matrix")


def _weights(kind: Kind, *, is_prepared: bool) -> Weights:
    if kind is Kind.IMAGE:
        return Weights.IN_IMAGE
    return Weights.PACKED_ONCE if is_prepared else Weights.PER_CALL


def _kind_of_result(a: Kind, b: Kind) -> Kind:
    """Where a result goes that the caller has no place for: beside A, in shared memory where one operand is."""
    if a is Kind.HOST and b in (Kind.SHARED, Kind.IMAGE):
        return Kind.SHARED
    return a


def _bytes(problem: GemmProblem, operand: str) -> int:
    """From the first element to the last."""
    rows, columns = problem.stored[operand]
    last = (problem.batch - 1) * problem.stride(operand) + (rows - 1) * problem.pitch(operand) + columns
    return last * DTYPE_BYTES[problem.dtype(operand)]
