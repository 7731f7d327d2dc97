"""Kernels ready to run for each problem: chosen, checked and built when first needed."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from autotune import __version__
from autotune.device.arrays import Kind, foreign_arrays, resident_memory
from autotune.device.port import Memory, Port
from autotune.device.profile import find_profile
from autotune.device.programs import Origin, digest
from autotune.device.quirks import first_line
from autotune.errors import KernelError
from autotune.lookup import TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar
from autotune.model.problem import Problem
from autotune.runtime.choice import Choice, Weights, choices, packed_operand
from autotune.runtime.executor import RESIDENT, BoundCall, Executor, Operand, Statistics, Transfer
from autotune.runtime.prepared import Prepared, Ready
from autotune.runtime.verification import LOG, Verifier, announced
from autotune.space.family import KernelFamily

MOST_READY = 1024
"""Problems whose kernels are kept ready: bounds memory when sizes keep changing."""

MOST_REQUESTS = 8 * MOST_READY
"""Forms of operands that are remembered: several may lead to one problem, and products on the host have no kernels."""

SCRATCH_SHARE = 8
"""Scratch memory, over all problems, is limited to the device's global memory over this, and at least 256 MiB."""


@dataclass(kw_only=True)
class Request:
    """What calls with operands of the same form have in common."""

    problem: Problem
    weights: Weights
    constant: str = ""
    """Name, in plans, of the operand that `weights` is about; empty where all are passed per call."""
    operands: tuple[Operand, ...]
    ready: Ready | None = None

    def __post_init__(self) -> None:
        """Derive what every call needs: whether all operands are on the device, and which are arrays, by number."""
        self.is_resident = all(operand.kind in RESIDENT for operand in self.operands)
        is_packed = self.weights is Weights.PACKED_ONCE
        varying = [n for n, operand in enumerate(self.operands) if not is_packed or operand.name != self.constant]
        self.arrays = [n for n in varying if self.operands[n].kind is Kind.ARRAY]
        self._results = [n for n in self.arrays if self.operands[n].is_written]

    @property
    def choice(self) -> Choice | None:
        """What runs it; None before the first call."""
        return self.ready.choice if self.ready else None

    def used_arrays(self, port: Port, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the arrays that a call uses, and those for which other queues must wait for it."""
        foreign = foreign_arrays(port, values, self.arrays)
        return [values[n] for n in self.arrays], [*foreign, *[values[n] for n in self._results]]


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

    def call(
        self, request: Request, values: Sequence[Any], scalars: tuple[float, ...] = (), *, reads_outputs: bool = True
    ) -> None:
        """Run a request on its operands; wait for results that go to the host.

        The kernels, which are built the first time, are those of the best configuration that the device accepts and
        that gives right results. The lock of the executor must be held. Raises ProblemError when the device cannot do
        the problem at all or an operand does not fit, KernelError when no kernel works.
        """
        used = request.used_arrays(self.executor.port, values)
        if request.ready and request.is_resident:  # fast path: nothing to move, nothing to wait for
            request.ready.call.enqueue(self.memory(request, request.ready, values), scalars, *used)
            return
        transfer = Transfer(self.executor, self.stats)
        memory: list[Memory] = []

        def launch(ready: Ready) -> None:
            memory[:] = self.memory(request, ready, values, transfer, reads_outputs=reads_outputs)
            ready.call.enqueue(memory, scalars, *used)

        try:
            request.ready = request.ready or self._ready.get((request.problem, request.weights))
            if request.ready is None:
                request.ready = self._first(request, launch)
            else:
                launch(request.ready)
            for operand, value, there in zip(request.operands, values, memory, strict=False):
                if operand.is_written and operand.kind is Kind.HOST:
                    transfer.download(there, value)
        finally:
            transfer.leave()

    def memory(
        self,
        request: Request,
        ready: Ready,
        values: Sequence[Any],
        transfer: Transfer | None = None,
        *,
        reads_outputs: bool = True,
    ) -> list[Memory]:
        """Return device memory of operands, then the views over a constant one.

        `transfer` moves what is not on the device; without it, all but constant operands have to be there.
        """
        port, problem = self.executor.port, request.problem
        memory: list[Memory] = []
        views: tuple[Memory, ...] = ()
        for operand, value in zip(request.operands, values, strict=True):
            name, kind, shown, needed_bytes, is_written, by_columns = operand
            if name == request.constant and isinstance(value, Prepared):
                packed, *images = value.memory(ready, transfer or Transfer(self.executor, self.stats))
                memory.append(packed)
                views = (*images,)
            elif kind in RESIDENT:
                memory.append(resident_memory(port, value, kind, shown, needed_bytes, problem))
            else:
                assert transfer
                is_read = reads_outputs or not is_written
                memory.append(transfer.enter(value, kind, shown, by_columns=by_columns, is_read=is_read))
        memory += views
        return memory

    def _first(self, request: Request, launch: Callable[[Ready], object]) -> Ready:
        problem, weights = request.problem, request.weights
        problem.check_device(self.device.limits)
        if len(self._ready) >= MOST_READY:
            self._forget()
        refusals: list[KernelError] = []
        for choice in choices(self.family, self.table, self.device, problem, weights):
            try:
                with ExitStack() as waiting:
                    ready, origin = self._build(request, choice, waiting)
                    launch(ready)
                    # A port may report only now what it refuses; calls with operands on the host wait in any case.
                    if origin is not Origin.KNOWN or not request.is_resident:
                        self.executor.port.finish()
            except KernelError as error:
                refusals.append(error)
                LOG.warning(
                    "%s is not used for %s on %s (%s); another kernel takes its place. `autotune doctor` shows what "
                    "else fails with this driver.",
                    choice.configuration,
                    problem.label,
                    self.device.slug,
                    first_line(error),
                )
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

        def is_sound() -> bool:
            """Whether the choice was measured with this driver and the current templates."""
            if not choice.is_verified:
                return False
            from autotune.kernels.render import template_hash  # imported late, see _source

            return choice.template_hash == template_hash(self.family, choice.configuration.algorithm)

        failure = self._verifier.failure(self.family, problem, choice.configuration, options, recipe, is_sound)
        if failure:
            raise KernelError(f"{choice.configuration.algorithm} failed a check: {failure}")

    def _forget(self) -> None:
        self._ready.clear()
        self.requests.clear()
        self._scratch_bytes = 0

    def _build(self, request: Request, choice: Choice, waiting: ExitStack) -> tuple[Ready, Origin]:
        """Build kernels. `waiting` stays open until they have run, since some drivers compile again for that."""
        problem, constant = request.problem, request.constant
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
        packed = packed_operand(plan, constant) if constant else ""
        packs = tuple(launch for launch in plan.launches if packed != constant and launch.prepares == constant)
        works = tuple(launch for launch in plan.launches if launch not in packs)
        must_pack = bool(packs) and request.weights is Weights.PACKED_ONCE
        views = tuple(buffer for buffer in plan.buffers if must_pack and buffer.view_of == packed)
        names = [packed if operand.name == constant else operand.name for operand in request.operands]
        names += [view.name for view in views]
        fixed = {
            buffer.name: self._allocate(buffer)
            for buffer in plan.buffers
            if buffer.role is Role.SCRATCH and buffer.name not in names
        }
        buffers = {buffer.name: buffer for buffer in plan.buffers}
        values = dict(choice.configuration.values)
        layout = (packs, buffers.get(packed), *map(values.get, self.family.packing_parameters))
        port, work = self.executor.port, _part(plan, works)

        def bound(memory: Sequence[Memory]) -> BoundCall:
            operands = dict(zip(names, memory, strict=True))
            return BoundCall(port, program, work, (), {**fixed, **operands}, tuple(plan.named_scalars))

        def unpacking() -> BoundCall:
            again = Scalar(dtype="int32", value=1)  # see `KernelFamily.can_unpack`
            undone = _part(plan, [replace(its, arguments=(*its.arguments[:-1], again)) for its in packs])
            return BoundCall(port, program, undone, (constant, packed), {})

        ready = Ready(
            problem=problem,
            choice=choice,
            call=BoundCall(port, program, work, names, fixed, tuple(plan.named_scalars)),
            bound=bound,
            packing=BoundCall(port, program, _part(plan, packs), (constant, packed), {}) if must_pack else None,
            unpacking=unpacking if self.family.can_unpack and all(map(can_be_undone, packs)) else None,
            packed=buffers.get(packed) or plan.buffers[0],
            views=views,
            packing_number=self._packings.setdefault(layout, len(self._packings)),
            form_number=self._packings.setdefault((layout, views), len(self._packings)),
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
        memory = self.executor.port.allocate(buffer)
        self._scratch_bytes += buffer.size_bytes
        return memory


def _part(plan: Plan, launches: Sequence[Launch]) -> Plan:
    return Plan(buffers=plan.buffers, launches=tuple(launches))


def can_be_undone(launch: Launch) -> bool:
    """Return whether a launch that prepares an operand has the last argument by which it can undo that."""
    last = launch.arguments[-1]
    return isinstance(last, Scalar) and not last.name and last.value == 0


_hashes: dict[str, str] = {}


def _recipe(family: KernelFamily, configuration: Configuration, plan: Plan) -> str:
    """Return a key that is equal for equal sources, without rendering them."""
    if family.name not in _hashes:
        _hashes[family.name] = digest(*(part for item in family.templates.items() for part in item))
    return digest(
        "recipe", __version__, _hashes[family.name], family.name, configuration.key, repr(plan.template_values)
    )
