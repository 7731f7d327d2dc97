"""What the classes of the runtime share: opening a device and a table, calls, and calls that are bound to operands."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.device.arrays import Context, Kind, Queue, allocate_shared, foreign_arrays, new_array, resident_memory
from autotune.device.port import Memory
from autotune.lookup import TuningTable
from autotune.model.device import Device
from autotune.runtime.engine import Engine, Request
from autotune.runtime.executor import BoundCall, Operand, Statistics, open_executor
from autotune.runtime.prepared import Ready
from autotune.runtime.verification import Verifier
from autotune.space.family import KernelFamily


class Bound:
    """Repeats one call on the same operands; made by `bind`."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        run: Callable[[], object],
        memory: Callable[[Ready], Sequence[Memory] | None],
        scalars: tuple[float, ...],
        result: Any,
    ) -> None:
        """`run` makes one call; `memory` then returns that of the operands, if it is the same at every call."""
        self._engine, self._request, self._run, self._memory = engine, request, run, memory
        self._scalars, self._result = scalars, result
        self._call: BoundCall | None = None

    def __call__(self) -> Any:
        """Make the call, and return its result, which is the same memory every time."""
        engine, call = self._engine, self._call
        if call is not None:
            with engine.executor.lock:
                engine.stats.calls += 1
                call.enqueue((), self._scalars)
            return self._result
        self._run()
        ready = self._request.ready
        memory = self._memory(ready) if ready else None
        if ready and memory is not None:
            self._call = ready.bound(memory)
        return self._result


class OnDevice:
    """Base of `Gemm`, `Reduce` and `Operation`: an engine, and its public properties."""

    _family: KernelFamily

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
        opened = table if isinstance(table, TuningTable) else TuningTable.open(table)
        executor = open_executor(device, queue or context, binaries)
        verifier = None
        if verify:
            cache = executor.programs.cache
            verifier = Verifier(executor.device, cache.folder if cache else None)
            if not opened.knows(executor.device):
                verifier.expect_checks()
        self._engine = Engine(self._family, executor, opened, verifier)

    @property
    def device(self) -> Device:
        return self._engine.device

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.device.slug}>"

    @property
    def queue(self) -> Queue:
        """The queue of the kernels."""
        queue: Queue = self._engine.executor.port.queue
        return queue

    @property
    def stats(self) -> Statistics:
        return self._engine.stats

    def finish(self) -> None:
        """Wait for everything enqueued."""
        self._engine.executor.port.finish()

    def _call(
        self, request: Request, names: Sequence[str], operands: Sequence[Operand], scalars: tuple[float, ...] = ()
    ) -> None:
        """Run a request as `Engine.call` does, counted and under the lock."""
        engine = self._engine
        with engine.executor.lock:
            engine.stats.calls += 1
            if request.ready and request.is_resident:  # fast path: nothing to move, nothing to wait for
                foreign = self._foreign(request, operands)
                request.ready.call.enqueue(self._memory_of(operands), scalars, foreign)
            else:
                engine.call(request, names, operands, scalars)

    def _bind(
        self,
        request: Request,
        names: Sequence[str],
        operands: Sequence[Operand],
        scalars: tuple[float, ...],
        result: Any,
    ) -> Bound:
        """Return a callable that repeats such a call, and returns `result`."""

        def memory(_: Ready) -> list[Memory] | None:
            is_fixed = request.is_resident and not self._foreign(request, operands)
            return self._memory_of(operands) if is_fixed else None

        run = partial(self._call, request, names, operands, scalars)
        return Bound(self._engine, request, run, memory, scalars, result)

    def _foreign(self, request: Request, operands: Sequence[Operand]) -> list[Any]:
        port = self._engine.executor.port
        return foreign_arrays(port, [operand.value for operand in operands], request.arrays)

    def _memory_of(self, operands: Sequence[Operand]) -> list[Memory]:
        """Return the memory of operands that are on the device. Raises ProblemError."""
        port = self._engine.executor.port
        return [resident_memory(port, operand.value, operand.kind, operand.name) for operand in operands]

    def _allocate(self, shape: Any, dtype: Any, kind: Kind) -> Any:
        """Return memory for a result of a kind, contents undefined."""
        port = self._engine.executor.port
        if kind is Kind.ARRAY:
            return new_array(port, shape, dtype)
        if kind is Kind.SHARED:
            return allocate_shared(port, shape or 1, dtype).reshape(shape)
        return np.empty(shape, dtype)
