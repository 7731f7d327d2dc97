"""`Reduce`: sums, means, maxima and minima along rows by the tuned kernels of a device."""

from typing import Any

from autotune.device.arrays import Kind, kind_of
from autotune.errors import ProblemError
from autotune.kernels.reduce import FAMILY, ReduceProblem
from autotune.model.problem import NUMBER_TYPES
from autotune.runtime.choice import Weights
from autotune.runtime.engine import Request
from autotune.runtime.executor import Operand, check_result, form
from autotune.runtime.layout import reduce_problem
from autotune.runtime.on_device import Bound, OnDevice, check_contiguous


class Reduce(OnDevice):
    """Reduces rows to one number each: the last axis of a NumPy or pyopencl array, or of a pyopencl buffer.

    Types: float32 and float16. Memory, copies and the return of calls are as with `Gemm`.
    """

    _family = FAMILY

    def __call__(
        self, values: Any, operation: str = "sum", out: Any = None, *, problem: ReduceProblem | None = None
    ) -> Any:
        """Return the sum, mean, max or min of each row, in `out` where given.

        The result has the shape of `values` without its last axis. With pyopencl buffers `problem` gives operation
        and sizes, and `out` is required. Raises ProblemError and KernelError.
        """
        request, out = self._find(values, operation, out, problem)
        self._call(request, (values, out), reads_outputs=False)
        return out

    def bind(
        self, values: Any, operation: str = "sum", out: Any = None, *, problem: ReduceProblem | None = None
    ) -> Bound:
        """Return a callable that repeats one reduction at less cost per call; the arguments are those of a call."""
        request, out = self._find(values, operation, out, problem)
        return self._bind(request, (values, out), out, reads_outputs=False)

    def _find(self, values: Any, operation: str, out: Any, problem: ReduceProblem | None) -> tuple[Request, Any]:
        """Return the request of such a call, and its result, which is allocated where none was passed."""
        key = (form(values, "the input"), operation, None if out is None else form(out, "out"), problem)
        request = self._request(key, lambda: _read(values, operation, out, problem))
        kind = request.operands[1].kind
        if out is None:
            out = self._allocate(values.shape[:-1], values.dtype.name, kind)
        check_result(out, kind, (("the input", values),))
        return request, out


def _read(values: Any, operation: str, out: Any, problem: ReduceProblem | None) -> Request:
    kind = kind_of(values)
    kind_out = kind if out is None else kind_of(out)
    assert kind and kind_out
    if Kind.IMAGE in (kind, kind_out):
        raise ProblemError("rows in an image cannot be reduced")
    if Kind.BUFFER in (kind, kind_out) or problem is not None:
        if problem is None:
            raise ProblemError("a buffer has no shape", hint="pass problem=ReduceProblem(batch=..., channels=...)")
        if kind is not Kind.BUFFER or kind_out is not Kind.BUFFER or out is None:
            raise ProblemError("when problem is passed, both the input and out must be buffers")
        return _request(problem, kind, kind_out)
    asked = reduce_problem(values, operation, packs=kind is Kind.HOST)
    if out is not None:
        _check_result(out, kind_out, values)
    return _request(asked, kind, kind_out)


def _request(problem: ReduceProblem, kind: Kind, kind_out: Kind) -> Request:
    size = NUMBER_TYPES[problem.dtype].size_bytes
    needed = ((problem.batch - 1) * problem.pitch + problem.channels) * size
    operands = (
        Operand("input", kind, "the input", needed),
        Operand("output", kind_out, "out", problem.batch * size, is_written=True),
    )
    return Request(problem=problem, weights=Weights.PER_CALL, operands=operands)


def _check_result(out: Any, kind: Kind, values: Any) -> None:
    if tuple(out.shape) != tuple(values.shape[:-1]) or out.dtype != values.dtype:
        raise ProblemError(
            f"out is {out.dtype} of shape {tuple(out.shape)}, "
            f"the result is {values.dtype} of shape {tuple(values.shape[:-1])}"
        )
    if kind is not Kind.HOST:
        check_contiguous("out", out)
