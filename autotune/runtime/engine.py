"""What `Gemm` and `Reduce` share: device and table, kernels ready to run for each problem, transfer of operands."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune import __version__
from autotune.device.arrays import (
    Context,
    Kind,
    Queue,
    check_context,
    give_shared,
    kind_of,
    resident_memory,
    share_elements,
    take_shared,
)
from autotune.device.port import Memory
from autotune.device.profile import find_profile
from autotune.device.programs import Origin, digest
from autotune.errors import KernelError, ProblemError
from autotune.lookup import TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Buffer, Plan, Role
from autotune.model.problem import Problem
from autotune.runtime.choice import Choice, Weights, choices, packed_operand
from autotune.runtime.executor import BoundCall, Executor, open_executor
from autotune.runtime.verification import LOG, Verifier, announced
from autotune.space.family import KernelFamily

MOST_READY = 1024
"""Problems whose kernels are kept ready: bounds memory when sizes keep changing."""

MOST_REQUESTS = 8 * MOST_READY
"""Forms of operands that are remembered: several may lead to one problem, and products on the host have no kernels."""

SCRATCH_SHARE = 8
"""Scratch memory, over all problems, is limited to the device's global memory over this, and at least 256 MiB."""


@dataclass(kw_only=True)
class Statistics:
    """Counts since the start."""

    calls: int = 0
    bytes_copied: int = 0
    """Bytes copied between host and device, and on the host to close gaps; packing on the device is not counted."""
    packings: int = 0
    """Packings of weights, one for each layout."""
    host_products: int = 0
    """Products done by the host's BLAS."""
    programs_compiled: int = 0
    programs_loaded: int = 0
    """Programs loaded from the binary cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A problem whose kernels are built, with their constant arguments set."""

    problem: Problem
    choice: Choice
    call: BoundCall
    packing: BoundCall | None
    """Packs B into the layout that `call` needs; None where `call` packs it, or where it is not packed."""
    packed: Buffer
    """Buffer of B in that layout, or of B itself."""
    packing_number: int
    """Equal for problems that can use the same packed B."""


@dataclass(kw_only=True)
class Request:
    """What calls with operands of the same form have in common."""

    problem: Problem
    weights: Weights
    kinds: tuple[Kind, ...]
    ready: Ready | None = None


_Request = TypeVar("_Request", bound=Request)


class Engine:
    """A family's kernels on one queue, each built when first needed."""

    def __init__(self, family: KernelFamily, executor: Executor, table: TuningTable, verifier: Verifier | None) -> None:
        """Without a verifier, every configuration is assumed to be right."""
        self.family = family
        self._verifier = verifier
        self.executor = executor
        self.table = table
        self.stats = Statistics()
        self.requests: dict[Any, Any] = {}
        """Requests by the form of their operands; filled by `remember`."""
        self._profile = find_profile(executor.device)
        self._ready: dict[tuple[Problem, Weights], Ready] = {}
        self._packings: dict[object, int] = {}
        self._scratch_bytes = 0

    @property
    def device(self) -> Device:
        return self.executor.device

    def remember(self, form: object, request: _Request) -> _Request:
        """Store a request for later operands of the same form, and return it."""
        if len(self.requests) >= MOST_REQUESTS:
            self.requests.clear()
        self.requests[form] = request
        return request

    def run(self, request: Request, names: Sequence[str], launch: Callable[[Ready], object]) -> Ready:
        """Call `launch` with the kernels of a request, which are built the first time.

        They are those of the best configuration that the device accepts and that gives right results. Raises
        ProblemError when the device cannot do the problem at all, KernelError when no kernel works.
        """
        if request.ready is None:
            request.ready = self._ready.get((request.problem, request.weights))
        if request.ready is None:
            request.ready = self._first(request, names, launch)
        else:
            launch(request.ready)
        return request.ready

    def _first(self, request: Request, names: Sequence[str], launch: Callable[[Ready], object]) -> Ready:
        problem, weights = request.problem, request.weights
        problem.check_device(self.device.limits)
        if len(self._ready) >= MOST_READY:
            self._forget()
        refusals: list[KernelError] = []
        for choice in choices(self.family, self.table, self.device, problem, weights):
            try:
                with ExitStack() as waiting:
                    ready, origin = self._build(problem, choice, weights, names, waiting)
                    launch(ready)
                    if origin is not Origin.KNOWN:
                        self.executor.port.finish()
            except KernelError as error:
                refusals.append(error)
                continue
            self.executor.programs.save()
            self._ready[problem, weights] = ready
            return ready
        if len(refusals) == 1 or self._verifier is None:
            raise refusals[0]
        raise KernelError(
            f"no kernel of {self.family.name} works for {problem.label} on {self.device.slug}, not even the plainest: "
            f"{refusals[-1].message}",
            hint="autotune doctor shows what the driver can do",
        )

    def _check(self, problem: Problem, choice: Choice, options: Sequence[str], recipe: str) -> None:
        """Raise KernelError for a configuration that gives wrong results on this device, crashes or hangs."""
        if self._verifier is None:
            return
        if choice.is_verified and self._verifier.vouches(options, recipe, lambda: self._has_its_templates(choice)):
            return
        failure = self._verifier.failure(self.family, problem, choice.configuration, options, recipe)
        if failure:
            LOG.warning(
                "%s is not used for %s on %s, where it failed a check (%s); another kernel takes its place. "
                "`autotune doctor` shows what else fails with this driver.",
                choice.configuration,
                problem.label,
                self.device.slug,
                failure,
            )
            raise KernelError(f"{choice.configuration.algorithm} failed a check: {failure}")

    def _has_its_templates(self, choice: Choice) -> bool:
        """Return whether a choice was measured with the current templates."""
        from autotune.kernels.render import template_hash  # imported late, see _source

        return choice.template_hash == template_hash(self.family, choice.configuration.algorithm)

    def _forget(self) -> None:
        self._ready.clear()
        self.requests.clear()
        self._scratch_bytes = 0

    def _build(
        self, problem: Problem, choice: Choice, weights: Weights, operands: Sequence[str], waiting: ExitStack
    ) -> tuple[Ready, Origin]:
        """Build kernels. `waiting` stays open until they have run, since some drivers compile again for that."""
        plan = self.family.plan(problem, choice.configuration)
        options = [*self._profile.build_options, *plan.build_options]
        recipe = _recipe(self.family, choice.configuration, plan)
        key = digest(recipe, *options)
        if key not in self.executor.programs:  # otherwise it is too quick to be worth a timer thread
            what = f"{choice.configuration.algorithm} for {problem.label} on {self.device.slug}"
            waiting.enter_context(announced(what))
        self._check(problem, choice, self._profile.build_options, recipe)
        program, origin = self.executor.programs.find(key, options, lambda: self._source(choice, plan))
        self.stats.programs_compiled += origin is Origin.COMPILED
        self.stats.programs_loaded += origin is Origin.LOADED
        packed = packed_operand(plan, "b") if weights is not Weights.PER_CALL else "b"
        packs = tuple(launch for launch in plan.launches if packed != "b" and launch.prepares == "b")
        works = tuple(launch for launch in plan.launches if launch not in packs)
        must_pack = bool(packs) and weights is Weights.PACKED_ONCE
        names = [packed if name == "b" else name for name in operands]
        fixed = {
            buffer.name: self._allocate(buffer)
            for buffer in plan.buffers
            if buffer.role is Role.SCRATCH and buffer.name not in names
        }
        buffers = {buffer.name: buffer for buffer in plan.buffers}
        port = self.executor.port
        ready = Ready(
            problem=problem,
            choice=choice,
            call=BoundCall(port, program, _part(plan, works), names, fixed, tuple(plan.named_scalars)),
            packing=BoundCall(port, program, _part(plan, packs), ("b", packed), {}) if must_pack else None,
            packed=buffers.get(packed) or plan.buffers[0],
            packing_number=self._packings.setdefault((packs, buffers.get(packed)), len(self._packings)),
        )
        return ready, origin

    def _source(self, choice: Choice, plan: Plan) -> str:
        from autotune.kernels.render import (
            render,  # imported late: loads Jinja2, which a process with cached programs never needs
        )

        return render(self.family, choice.configuration, plan)

    def _allocate(self, buffer: Buffer) -> Memory:
        most = max(256 * 2**20, self.device.limits.global_memory_bytes // SCRATCH_SHARE)
        if self._scratch_bytes + buffer.size_bytes > most:
            self._forget()
        self._scratch_bytes += buffer.size_bytes
        return self.executor.port.allocate(buffer)


class OnDevice:
    """Base of `Gemm` and `Reduce`: an engine, and its public properties."""

    _engine: Engine

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


def open_engine(
    family: KernelFamily,
    device: str,
    table: TuningTable | str | Path | None,
    place: "Queue | Context | None",
    binaries: Path | str | None,
    *,
    verify: bool,
) -> Engine:
    """Return an engine on the device named by `device`, or on an existing queue or context."""
    opened = table if isinstance(table, TuningTable) else TuningTable.open(table)
    executor = open_executor(device, place, binaries)
    if not verify:
        return Engine(family, executor, opened, None)
    cache = executor.programs.cache
    verifier = Verifier(executor.device, cache.folder if cache else None)
    if not opened.knows(executor.device):
        verifier.expect_checks()
    return Engine(family, executor, opened, verifier)


class Operands:
    """Moves operands of one call to the device and back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._executor = engine.executor
        self._port = engine.executor.port
        self._shares = engine.device.limits.shares_host_memory
        self._given: list[NDArray[Any]] = []
        self._has_uploads = False

    def check(self, operands: Iterable[tuple[str, Any, Kind]]) -> None:
        """Raise ProblemError if an operand (name, operand, kind) lies in memory of another context."""
        for name, operand, kind in operands:
            check_context(self._port, operand, kind, name)

    def enter(self, name: str, operand: Any, kind: Kind, *, is_read: bool = True, by_columns: bool = False) -> Memory:
        """Return device memory of an operand, copying it there if necessary.

        A copy has rows without gaps; with `by_columns` they are the rows of the transpose.
        """
        if kind in (Kind.ARRAY, Kind.BUFFER):
            return resident_memory(self._port, operand, kind, name)
        if kind is not Kind.HOST:
            self._given.append(operand)
            self._count(0 if self._shares else operand.nbytes)
            return give_shared(self._port, operand, name)
        memory = self._executor.staging(name, operand.nbytes)
        if is_read:
            self.upload(operand, memory, by_columns=by_columns)
        return memory

    def upload(self, values: NDArray[Any], memory: Memory, *, by_columns: bool) -> None:
        """Start copying to the device; `by_columns` is as in `enter`."""
        rows = values.swapaxes(-1, -2) if by_columns else values
        dense = np.ascontiguousarray(rows)
        self._count(values.nbytes if dense is rows else 2 * values.nbytes)
        self._port.write(memory, dense, wait=False)
        self._has_uploads = True

    def download(self, memory: Memory, out: NDArray[Any]) -> None:
        """Wait for the kernels, and copy the result to the host."""
        dense = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        self._port.read(memory, dense)
        self._has_uploads = False
        self._count(out.nbytes)
        if dense is not out:
            out[...] = dense
            self._count(out.nbytes)

    def leave(self) -> None:
        """Wait, and give shared memory back to the host."""
        self._count(0 if self._shares else sum(array.nbytes for array in self._given))
        take_shared(self._port, self._given)
        if self._has_uploads:
            self._port.finish()

    def _count(self, size: int) -> None:
        self._engine.stats.bytes_copied += size


def check_writable(out: Any) -> None:
    """Raise ProblemError for a NumPy array that may not be written."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ProblemError("out is read-only")


def check_apart(out: Any, kind: Kind, operands: Iterable[tuple[str, Any]]) -> None:
    """Raise ProblemError where `out` overlaps an operand that kernels read in place. Copied operands may overlap."""
    for name, operand in operands:
        if out is operand or (kind is not Kind.HOST and share_elements(out, operand)):
            raise ProblemError(f"out shares memory with {name}", hint="pass memory that does not overlap")


def form(operand: Any, name: str) -> tuple[Any, ...]:
    """Return a key that is equal for operands that are handled alike. Raises ProblemError."""
    kind = kind_of(operand)
    if kind is None:
        raise ProblemError(
            f"{name} is a {type(operand).__name__}", hint="pass a NumPy or pyopencl array, or a pyopencl Buffer"
        )
    return (kind,) if kind is Kind.BUFFER else (kind, operand.shape, operand.strides, operand.dtype)


def _part(plan: Plan, launches: Sequence[Any]) -> Plan:
    return Plan(buffers=plan.buffers, launches=tuple(launches))


_hashes: dict[str, str] = {}


def _recipe(family: KernelFamily, configuration: Configuration, plan: Plan) -> str:
    """Return a key that is equal for equal sources, without rendering them."""
    if family.name not in _hashes:
        _hashes[family.name] = digest(*(part for item in family.templates.items() for part in item))
    return digest(
        "recipe", __version__, _hashes[family.name], family.name, configuration.key, repr(plan.template_values)
    )
