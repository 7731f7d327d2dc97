"""`Reduce`: sums, means, maxima and minima along rows by the tuned kernels of a device."""

from pathlib import Path
from typing import Any

import numpy as np

from autotune.device.arrays import Context, Kind, Queue, allocate_shared, foreign_arrays, kind_of, new_array
from autotune.errors import ProblemError
from autotune.kernels.reduce import FAMILY, ReduceProblem
from autotune.lookup import TuningTable
from autotune.model.problem import DTYPE_BYTES
from autotune.runtime.choice import Weights
from autotune.runtime.engine import OnDevice, Operands, Ready, Request, check_apart, check_writable, form, open_engine
from autotune.runtime.layout import reduce_problem

_NAMES = ("input", "output")


class Reduce(OnDevice):
    """Reduces rows to one number each: the last axis of a NumPy or pyopencl array, or of a pyopencl buffer.

    Types: float32 and float16. Memory, copies and the return of calls are as with `Gemm`.
    """

    def __init__(
        self,
        device: str = "",
        *,
        queue: Queue | None = None,
        context: Context | None = None,
        table: TuningTable | str | Path | None = None,
        binaries: Path | str | None = None,
        verify: bool = True,
    ) -> None:
        """Arguments and errors are those of `Gemm`."""
        self._engine = open_engine(FAMILY, device, table, queue or context, binaries, verify=verify)

    def __call__(
        self, values: Any, operation: str = "sum", out: Any = None, *, problem: ReduceProblem | None = None
    ) -> Any:
        """Return the sum, mean, max or min of each row, in `out` where given.

        The result has the shape of `values` without its last axis. With pyopencl buffers `problem` gives operation
        and sizes, and `out` is required. Raises ProblemError and KernelError.
        """
        key = (form(values, "the input"), operation, None if out is None else form(out, "out"), problem)
        request = self._engine.requests.get(key)
        if request is None:
            request = self._engine.remember(key, _read(values, operation, out, problem))
        if out is None:
            out = self._new_result(request, values)
        self._run(request, values, out)
        return out

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Return zeros visible to host and device, as a NumPy array."""
        return allocate_shared(self._engine.executor.port, shape, dtype)

    def _new_result(self, request: Request, values: Any) -> Any:
        match request.kinds[1]:
            case Kind.ARRAY:
                return new_array(self._engine.executor.port, values.shape[:-1], values.dtype.name)
            case Kind.SHARED:
                return self.allocate(values.shape[:-1] or 1, values.dtype).reshape(values.shape[:-1])
        return np.empty(values.shape[:-1], values.dtype)

    def _run(self, request: Request, values: Any, out: Any) -> None:
        check_apart(out, request.kinds[1], (("the input", values),))
        check_writable(out)
        engine = self._engine
        kind_in, kind_out = request.kinds
        results: list[Any] = []
        with engine.executor.lock:
            engine.stats.calls += 1
            operands = Operands(engine)
            operands.check((("the input", values, kind_in), ("out", out, kind_out)))
            arrays = [number for number, kind in enumerate(request.kinds) if kind is Kind.ARRAY]
            foreign = foreign_arrays(engine.executor.port, (values, out), arrays)

            def launch(ready: Ready) -> None:
                memory = (
                    operands.enter("the input", values, kind_in),
                    operands.enter("out", out, kind_out, is_read=False),
                )
                ready.call.enqueue(memory, (), foreign)
                results[:] = [memory[1]]

            try:
                engine.run(request, _NAMES, launch)
                if kind_out is Kind.HOST:
                    operands.download(results[0], out)
            finally:
                operands.leave()


def _read(values: Any, operation: str, out: Any, problem: ReduceProblem | None) -> Request:
    kind = kind_of(values)
    kind_out = kind if out is None else kind_of(out)
    assert kind and kind_out
    if Kind.IMAGE in (kind, kind_out):
        raise ProblemError("rows in an image cannot be reduced")
    if Kind.BUFFER in (kind, kind_out) or problem is not None:
        return _read_buffers(values, out, kind, kind_out, problem)
    asked = reduce_problem(values, operation, packs=kind is Kind.HOST)
    if out is not None:
        _check_result(out, kind_out, values)
    return Request(problem=asked, weights=Weights.PER_CALL, kinds=(kind, kind_out))


def _check_result(out: Any, kind: Kind, values: Any) -> None:
    if tuple(out.shape) != tuple(values.shape[:-1]) or out.dtype != values.dtype:
        raise ProblemError(
            f"out is {out.dtype} of shape {tuple(out.shape)}, "
            f"the result is {values.dtype} of shape {tuple(values.shape[:-1])}"
        )
    if kind is not Kind.HOST and not out.flags.c_contiguous:
        raise ProblemError("out is not contiguous", hint="pass contiguous memory")


def _read_buffers(values: Any, out: Any, kind: Kind, kind_out: Kind, problem: ReduceProblem | None) -> Request:
    if problem is None:
        raise ProblemError("a buffer has no shape", hint="pass problem=ReduceProblem(batch=..., channels=...)")
    if kind is not Kind.BUFFER or kind_out is not Kind.BUFFER or out is None:
        raise ProblemError("when problem is passed, both the input and out must be buffers")
    size = DTYPE_BYTES[problem.dtype]
    needed = ((problem.batch - 1) * problem.pitch + problem.channels) * size, problem.batch * size
    for name, memory, least in (("the input", values, needed[0]), ("out", out, needed[1])):
        if memory.size < least:
            raise ProblemError(f"{name} holds {memory.size} bytes, {problem.label} needs {least}")
    return Request(problem=problem, weights=Weights.PER_CALL, kinds=(Kind.BUFFER, Kind.BUFFER))
