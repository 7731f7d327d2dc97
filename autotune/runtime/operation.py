"""`Operation`: the tuned kernels of any family, on NumPy arrays named like the buffers of its plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.arrays import Context, Kind, Queue
from autotune.errors import ProblemError, did_you_mean
from autotune.kernels import find_family
from autotune.lookup import TuningTable
from autotune.model.plan import Buffer, Role
from autotune.model.problem import Problem
from autotune.runtime.choice import Weights
from autotune.runtime.engine import OnDevice, Request
from autotune.runtime.executor import Operand
from autotune.space.family import KernelFamily


@dataclass(kw_only=True)
class _Request(Request):
    buffers: Mapping[str, Buffer]
    """Operands by name, the same for every configuration."""
    scalars: tuple[float, ...]


def _request(family: KernelFamily, problem: Problem) -> _Request:
    plan = family.plan(problem, family.baseline)
    buffers = {b.name: b for b in plan.buffers if b.role in (Role.INPUT, Role.OUTPUT)}
    scalars = tuple(scalar.value for scalar in plan.named_scalars.values())
    kinds = (Kind.HOST,) * len(buffers)
    return _Request(problem=problem, weights=Weights.PER_CALL, kinds=kinds, buffers=buffers, scalars=scalars)


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

    def __call__(self, problem: Problem, /, **operands: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the outputs of the problem by buffer name, each of shape (elements,).

        `operands` are the inputs, C-contiguous arrays of any shape with the type and the number of elements of their
        buffers. An output may be passed as well if the problem reads what it contained; the array is not changed.
        Raises ProblemError and KernelError.
        """
        engine = self._engine
        request = engine.requests.get(problem) or engine.remember(problem, _request(engine.family, problem))
        buffers = request.buffers
        values = {name: _contents(buffer, operands.pop(name, None)) for name, buffer in buffers.items()}
        for name in operands:
            raise ProblemError(f"{engine.family.name} has no operand {name!r}", hint=did_you_mean(name, list(buffers)))
        written = {name for name, buffer in buffers.items() if buffer.role is Role.OUTPUT}
        moved = [Operand(name, value, Kind.HOST, is_written=name in written) for name, value in values.items()]
        with engine.executor.lock:
            engine.stats.calls += 1
            engine.call(request, list(buffers), moved, request.scalars)
        return {name: values[name] for name in buffers if name in written}


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
