"""What the classes of the runtime share: opening a device and a table, calls, and calls that are bound to operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from autotune.device.arrays import (
    Context,
    Kind,
    Queue,
    allocate_shared,
    check_context,
    foreign_arrays,
    kind_of,
    new_array,
)
from autotune.errors import ProblemError
from autotune.lookup import TuningTable
from autotune.model.device import Device
from autotune.runtime.engine import Engine, Request
from autotune.runtime.executor import RESIDENT, BoundCall, Statistics, check_result, open_executor
from autotune.runtime.prepared import Prepared
from autotune.runtime.verification import Verifier
from autotune.space.family import KernelFamily

_Request = TypeVar("_Request", bound=Request)


@dataclass(kw_only=True)
class ShapedRequest(Request):
    """A request with shape and type of the result."""

    shape: tuple[int, ...]
    dtype: str


def check_shaped(name: str, value: Any) -> None:
    """Raise ProblemError for a pyopencl buffer or image, which has no shape."""
    if kind_of(value) in (Kind.BUFFER, Kind.IMAGE):
        raise ProblemError(f"{name} has no shape", hint="pass pyopencl.array.Array(queue, shape, dtype, data=buffer)")


def check_contiguous(name: str, value: Any) -> None:
    if not value.flags.c_contiguous:
        raise ProblemError(f"{name} is not contiguous", hint="pass contiguous memory")


class Bound:
    """Repeats one call on the same operands; made by `bind`."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        run: Callable[[], object],
        values: Sequence[Any],
        scalars: tuple[float, ...],
        result: Any,
    ) -> None:
        """`run` makes one call, on operands with these values."""
        self._engine, self._request, self._run = engine, request, run
        self._values, self._scalars, self._result = values, scalars, result
        self._call: BoundCall | None = None
        self._arrays = request.used_arrays(engine.executor.port, values)

    def __call__(self) -> Any:
        """Make the call, and return its result, which is the same memory every time."""
        engine, call = self._engine, self._call
        if call is not None:
            with engine.executor.lock:
                engine.stats.calls += 1
                call.enqueue((), self._scalars, *self._arrays)
            return self._result
        self._run()
        ready = self._request.ready
        if ready and self._is_fixed(is_packed=ready.packing is not None):
            with engine.executor.lock:
                self._call = ready.bound(engine.memory(self._request, ready, self._values))
        return self._result

    def _is_fixed(self, *, is_packed: bool) -> bool:
        """Return whether the operands are in the same memory at every call, and used by no other queue."""
        request = self._request
        if foreign_arrays(self._engine.executor.port, self._values, request.arrays):
            return False
        return all(
            (is_packed and isinstance(value, Prepared)) or operand.kind in RESIDENT
            for operand, value in zip(request.operands, self._values, strict=True)
        )


class OnDevice:
    """Base of what runs kernels on arrays: an engine, and its public properties."""

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

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Return zeros visible to host and device, as a NumPy array."""
        return allocate_shared(self._engine.executor.port, shape, dtype)

    def _request(self, key: object, read: Callable[[], _Request]) -> _Request:
        """Return the request of operands of this form, read where it is new."""
        found: _Request | None = self._engine.requests.get(key)
        return self._engine.remember(key, read()) if found is None else found

    def _in_order(self, request: "ShapedRequest", named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the operands of a request in order; the output comes last, and is allocated where it is None."""
        *operands, output = request.operands
        if named[output.name] is None:
            named[output.name] = self._allocate(request.shape, request.dtype, output.kind)
        values = [named[operand.name] for operand in operands]
        shown = (value.operand if isinstance(value, Prepared) else value for value in values)
        check_result(named[output.name], output.kind, [(o.shown, v) for o, v in zip(operands, shown, strict=True)])
        return (*values, named[output.name])

    def _adopt(self, name: str, value: Any, kind: Kind) -> None:
        """Wait for what other queues do with constant memory of the device. Raises ProblemError for another device."""
        port = self._engine.executor.port
        check_context(port, value, kind, name)
        if kind is Kind.ARRAY and foreign_arrays(port, [value], [0]):
            value.queue.finish()

    def _call(
        self, request: Request, values: Sequence[Any], scalars: tuple[float, ...] = (), *, reads_outputs: bool = True
    ) -> None:
        """Run a request as `Engine.call` does, counted and under the lock."""
        engine = self._engine
        with engine.executor.lock:
            engine.stats.calls += 1
            engine.call(request, values, scalars, reads_outputs=reads_outputs)

    def _bind(
        self,
        request: Request,
        values: Sequence[Any],
        result: Any,
        scalars: tuple[float, ...] = (),
        *,
        reads_outputs: bool = True,
    ) -> Bound:
        """Return a callable that repeats such a call, and returns `result`."""
        run = partial(self._call, request, values, scalars, reads_outputs=reads_outputs)
        return Bound(self._engine, request, run, values, scalars, result)

    def _allocate(self, shape: Any, dtype: Any, kind: Kind) -> Any:
        """Return memory for a result of a kind, contents undefined."""
        port = self._engine.executor.port
        if kind is Kind.ARRAY:
            return new_array(port, shape, dtype)
        if kind is Kind.SHARED:
            return allocate_shared(port, shape or 1, dtype).reshape(shape)
        return np.empty(shape, dtype)
