"""`Operation`: the tuned kernels of any family, on arrays named like the buffers of its plans."""

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
from autotune.lookup import TuningTable
from autotune.model.plan import Buffer, Role
from autotune.model.problem import Problem
from autotune.runtime.choice import Weights
from autotune.runtime.engine import Request
from autotune.runtime.executor import Operand, check_result
from autotune.runtime.on_device import Bound, OnDevice
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
    kinds = (given.get(name, Kind.ARRAY) if is_resident else Kind.HOST for name in buffers)
    known = tuple(kind if kind in (Kind.ARRAY, Kind.BUFFER) else Kind.HOST for kind in kinds)
    return _Request(problem=problem, weights=Weights.PER_CALL, kinds=known, buffers=buffers, scalars=scalars)


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
        request, moved, scalars = self._read(problem, operands)
        self._call(request, list(request.buffers), moved, scalars)
        return _results(moved)

    def bind(self, problem: Problem, /, **operands: Any) -> Bound:
        """Return a callable that repeats one call on the device at less cost; the arguments are those of a call."""
        request, moved, scalars = self._read(problem, operands)
        return self._bind(request, list(request.buffers), moved, scalars, _results(moved))

    def _read(self, problem: Problem, operands: dict[str, Any]) -> tuple[_Request, list[Operand], tuple[float, ...]]:
        """Return the request, its operands in the order of the buffers, and the scalars. Raises ProblemError."""
        engine = self._engine
        kinds = {name: kind_of(value) for name, value in operands.items()}
        is_resident = Kind.ARRAY in kinds.values() or Kind.BUFFER in kinds.values()
        key = (problem, *kinds.items())
        request = engine.requests.get(key) or engine.remember(key, _request(engine.family, problem, kinds, is_resident))
        scalars = tuple(_number(name, operands.pop(name, value)) for name, value in request.scalars.items())
        moved = []
        for (name, buffer), kind in zip(request.buffers.items(), request.kinds, strict=True):
            is_written = buffer.role is Role.OUTPUT
            value = operands.pop(name, None)
            if not is_resident:
                value = _contents(buffer, value)
            elif value is None and is_written:
                value = self._allocate((buffer.elements,), buffer.dtype, Kind.ARRAY)
            else:
                _check_resident(buffer, value, kind, problem)
            moved.append(Operand(name, value, kind, is_written=is_written))
        for name in operands:
            known = [*request.buffers, *request.scalars]
            raise ProblemError(f"{engine.family.name} has no operand {name!r}", hint=did_you_mean(name, known))
        for out in moved if is_resident else ():
            if out.is_written:
                check_result(out.value, out.kind, [(o.name, o.value) for o in moved if o is not out])
        return request, moved, scalars


def _results(moved: list[Operand]) -> dict[str, Any]:
    return {operand.name: operand.value for operand in moved if operand.is_written}


def _number(name: str, given: Any) -> float:
    if not isinstance(given, Real):
        raise ProblemError(f"{name} is a {type(given).__name__}", hint="pass a number")
    return float(given)


def _check_resident(buffer: Buffer, given: Any, kind: Kind, problem: Problem) -> None:
    """Raise ProblemError where an operand is not on the device, or does not fit its buffer."""
    if given is None:
        raise ProblemError(f"the operand {buffer.name} is missing")
    if kind is Kind.HOST:
        raise ProblemError(f"{buffer.name} is a {type(given).__name__}, other operands are on the device")
    if kind is Kind.BUFFER and given.size < buffer.size_bytes:
        raise ProblemError(f"{buffer.name} holds {given.size} bytes, {problem.label} needs {buffer.size_bytes}")
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
