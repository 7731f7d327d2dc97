"""`Operation`: the kernels of any family, on arrays named like the buffers of its plans; `Reduce`: sums of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.arrays import Context, Kind, Queue, kind_of
from autotune.errors import ProblemError, did_you_mean
from autotune.kernels import find_family
from autotune.kernels.reduce import FAMILY, ReduceProblem
from autotune.lookup import TuningTable
from autotune.model.plan import Buffer, Role
from autotune.model.problem import NUMBER_TYPES, Problem
from autotune.runtime.choice import Weights
from autotune.runtime.engine import Request
from autotune.runtime.executor import RESIDENT, Operand, check_result, form
from autotune.runtime.layout import reduce_problem
from autotune.runtime.on_device import Bound, OnDevice, check_contiguous
from autotune.space.family import KernelFamily


@dataclass(kw_only=True)
class _Request(Request):
    buffers: Mapping[str, Buffer]
    """Operands by name, the same for every configuration."""
    scalars: Mapping[str, float]
    """Numbers that a call may supply, with what they are otherwise."""


def _request(family: KernelFamily, problem: Problem, given: Mapping[str, Kind | None], is_resident: bool) -> _Request:
    """Read the request of operands of these kinds by name; what is not on the device is taken as a NumPy array."""
    if not isinstance(problem, family.problem_type):
        raise ProblemError(f"{family.name} takes a {family.problem_type.__name__}, not a {type(problem).__name__}")
    plan = family.plan(problem, family.baseline)
    buffers = {b.name: b for b in plan.buffers if b.role in (Role.INPUT, Role.OUTPUT)}
    scalars = {name: scalar.value for name, scalar in plan.named_scalars.items()}
    kinds = {name: given.get(name, Kind.ARRAY) if is_resident else Kind.HOST for name in buffers}
    operands = tuple(
        Operand(
            name=name,
            kind=kind if kind in RESIDENT else Kind.HOST,
            shown=name,
            needed_bytes=buffers[name].size_bytes,
            is_written=buffers[name].role is Role.OUTPUT,
        )
        for name, kind in kinds.items()
    )
    return _Request(problem=problem, weights=Weights.PER_CALL, operands=operands, buffers=buffers, scalars=scalars)


class Operation(OnDevice):
    """Runs the kernels of a family, such as one from another package that has no class of its own here.

    operation = Operation("scale")
    result = operation(problem, x=x)["y"]
    """

    def __init__(
        self,
        family: str,
        device: str = "",
        *,
        queue: Queue | None = None,
        context: Context | None = None,
        table: TuningTable | str | Path | None = None,
        binaries: Path | str | None = None,
        verify: bool = True,
    ) -> None:
        """`family` is the name of a kernel family; the other arguments and the errors are those of `Gemm`."""
        self._family = find_family(family)
        super().__init__(device, queue=queue, context=context, table=table, binaries=binaries, verify=verify)

    def __call__(self, problem: Problem, /, **operands: Any) -> dict[str, Any]:
        """Return the outputs of the problem by buffer name, each of shape (elements,) where it was not passed.

        `operands` are the inputs, C-contiguous NumPy or pyopencl arrays of any shape with the type and the number of
        elements of their buffers, or pyopencl buffers; and numbers for the scalars of the plan. A NumPy output may be
        passed if the problem reads what it contained; the array is not changed. Where operands are on the device, all
        have to be, outputs that are passed are written, and the call returns at once. Raises ProblemError and
        KernelError.
        """
        request, values, scalars = self._read(problem, operands)
        self._call(request, values, scalars)
        return _results(request, values)

    def bind(self, problem: Problem, /, **operands: Any) -> Bound:
        """Return a callable that repeats one call on the device at less cost; the arguments are those of a call."""
        request, values, scalars = self._read(problem, operands)
        return self._bind(request, values, _results(request, values), scalars)

    def _read(self, problem: Problem, operands: dict[str, Any]) -> tuple[_Request, list[Any], tuple[float, ...]]:
        """Return the request, its operands in the order of the buffers, and the scalars. Raises ProblemError."""
        engine = self._engine
        kinds = {name: kind_of(value) for name, value in operands.items()}
        is_resident = Kind.ARRAY in kinds.values() or Kind.BUFFER in kinds.values()
        key = (problem, *kinds.items())
        request = self._request(key, lambda: _request(engine.family, problem, kinds, is_resident))
        scalars = tuple(_number(name, operands.pop(name, value)) for name, value in request.scalars.items())
        values = []
        for operand, buffer in zip(request.operands, request.buffers.values(), strict=True):
            value = operands.pop(operand.name, None)
            if not is_resident:
                value = _contents(buffer, value)
            elif value is None and operand.is_written:
                value = self._allocate((buffer.elements,), buffer.dtype, Kind.ARRAY)
            else:
                _check_resident(buffer, value, operand.kind)
            values.append(value)
        for name in operands:
            known = [*request.buffers, *request.scalars]
            raise ProblemError(f"{engine.family.name} has no operand {name!r}", hint=did_you_mean(name, known))
        named = list(zip(request.operands, values, strict=True))
        for operand, out in named if is_resident else ():
            if operand.is_written:
                check_result(out, operand.kind, [(o.name, value) for o, value in named if o is not operand])
        return request, values, scalars


def _results(request: _Request, values: list[Any]) -> dict[str, Any]:
    return {o.name: value for o, value in zip(request.operands, values, strict=True) if o.is_written}


def _number(name: str, given: Any) -> float:
    if not isinstance(given, Real):
        raise ProblemError(f"{name} is a {type(given).__name__}", hint="pass a number")
    return float(given)


def _check_resident(buffer: Buffer, given: Any, kind: Kind) -> None:
    """Raise ProblemError where an operand is not on the device, or is an array that does not fit its buffer."""
    if given is None:
        raise ProblemError(f"the operand {buffer.name} is missing")
    if kind is Kind.HOST:
        raise ProblemError(f"{buffer.name} is a {type(given).__name__}, other operands are on the device")
    if kind is Kind.ARRAY and not (
        given.dtype == buffer.dtype and given.size == buffer.elements and given.flags.c_contiguous
    ):
        raise ProblemError(
            f"{buffer.name} is {given.dtype} of shape {given.shape}, the problem needs {buffer.elements} contiguous "
            f"elements of {buffer.dtype}"
        )


def _contents(buffer: Buffer, given: Any) -> NDArray[Any]:
    """Return the contents of a buffer before the call, shape (elements,). Raises ProblemError."""
    if given is None and buffer.role is Role.INPUT:
        raise ProblemError(f"the operand {buffer.name} is missing")
    if given is None:
        return np.zeros(buffer.elements, buffer.dtype)
    if not isinstance(given, np.ndarray) or given.dtype != buffer.dtype or given.size != buffer.elements:
        found = f"{given.dtype} of shape {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise ProblemError(f"{buffer.name} is {found}, the problem needs {buffer.elements} elements of {buffer.dtype}")
    flat = np.ascontiguousarray(given).reshape(-1)
    return flat.copy() if buffer.role is Role.OUTPUT else flat


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
        return _reduction(problem, kind, kind_out)
    asked = reduce_problem(values, operation, packs=kind is Kind.HOST)
    if out is not None:
        _check_result(out, kind_out, values)
    return _reduction(asked, kind, kind_out)


def _reduction(problem: ReduceProblem, kind: Kind, kind_out: Kind) -> Request:
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
