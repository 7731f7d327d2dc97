"""Inputs, outputs and scratch on the device, kept from trial to trial: drawing and copying them takes longer than most
kernels. Guards, which no kernel may write, stand behind all buffers, and before those of own kernels.

Kernels read the inputs in place, so a kernel with a stray write may corrupt the inputs of the next: a wrong result
counts only if the inputs are intact. Before every checked run, outputs get their initial contents by a copy on the
device, and scratch is filled with poison.
"""

import dataclasses
import os
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune import tracing
from autotune.device.port import NUMPY_TYPES, Memory, Port
from autotune.errors import LaunchError
from autotune.kernels import find_family
from autotune.measure.adverse import LocalMemoryPoison, Refused
from autotune.model.plan import Buffer, Plan, Role
from autotune.model.problem import Problem
from autotune.model.trial import TrialState
from autotune.space.case import Case

NO_CONTENTS: Mapping[str, NDArray[Any]] = MappingProxyType({})
SIMULATED = "AUTOTUNE_SIMULATED"
"""Environment variable of processes that Oclgrind runs, which itself watches what is around a buffer and what was never
written."""
_IS_SIMULATED = bool(os.environ.get(SIMULATED))
CANARY_ELEMENTS = 0 if _IS_SIMULATED else 2048
"""Elements of a guard, which no kernel may write."""


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """The memory of a buffer or image with its guards."""

    buffer: Buffer
    whole: Memory
    inner: Memory
    """What kernels are given: all but the guard before."""
    before: int
    """Elements of the guard before; an image has no guards, since no kernel can write outside one."""

    @property
    def size(self) -> int:
        """Number of elements with guards."""
        return self.before + with_canary(self.buffer).elements

    @property
    def contents(self) -> slice:
        return slice(self.before, self.before + self.buffer.elements)

    @property
    def guards(self) -> Mapping[str, slice]:
        """Where guards are, by what a kernel did that changed them."""
        around = {"before the start": slice(0, self.before), "past the end": slice(self.contents.stop, self.size)}
        return {what: guard for what, guard in around.items() if guard.stop > guard.start}

    def surrounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return contents with guards around them."""
        guard = canary(self.buffer.dtype, self.buffer.name)
        return np.concatenate([guard[: self.before], values, guard[: self.size - self.contents.stop]])


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A case whose inputs, and initial contents of outputs, are on the device, by buffer name."""

    case: Case
    host: dict[str, NDArray[Any]]
    """The same contents on the host, with the guards of each."""
    memory: dict[str, Guarded]

    def contents(self) -> dict[str, NDArray[Any]]:
        """Return the contents on the host without guards."""
        return {name: self.host[name][memory.contents] for name, memory in self.memory.items()}


class Operands:
    """All memory that measuring uses on one device."""

    KEPT_BYTES = 2**28
    """Limit of the cases that are kept, and of free memory; what exceeds it is released."""
    KEPT_CASES = 16

    def __init__(self, port: Port, source: "Operands | None" = None) -> None:
        """Inputs that `source` keeps are copied to other buffers instead of being drawn again."""
        self._port = port
        self._source = source
        self._loaded: OrderedDict[object, Loaded] = OrderedDict()
        self._free: defaultdict[object, list[Guarded]] = defaultdict(list)
        self._free_bytes = 0

    def case(self, problem: Problem, seed: int, plan: Plan, regime: str = "") -> Loaded:
        """Return the inputs for a seed, or those of one of the family's regimes, on the device. Raises LaunchError."""
        family = find_family(problem.family)
        front = () if family.is_trusted else fronted(plan)
        key = (problem, seed, regime, _given(plan), front)
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        while len(self._loaded) >= self.fitting(plan):  # counting all sets of inputs as equally large
            self._loaded.popitem(last=False)  # freed before the next one is allocated
        known = self._source._loaded.get(key) if self._source else None
        with tracing.span("draw inputs"):
            drawn = family.make_case_of(regime, problem, seed) if regime else None
            case = known.case if known else drawn or family.make_case(problem, seed)
        loaded = self._loaded[key] = self.load(case, plan, front)
        return loaded

    def load(self, case: Case, plan: Plan, front: Collection[str] = ()) -> Loaded:
        """Return a case whose inputs are on the device, those in `front` with a guard before. Raises LaunchError."""
        loaded = Loaded(case=case, host={}, memory={})
        with tracing.span("write inputs"):
            for buffer in _given(plan):
                if buffer.name in case.inputs:
                    memory = loaded.memory[buffer.name] = self._allocate(buffer, has_front=buffer.name in front)
                    loaded.host[buffer.name] = memory.surrounded(case.inputs[buffer.name].reshape(-1))
            self.reload(loaded)
        return loaded

    def fitting(self, plan: Plan) -> int:
        """Return how many cases of a plan can be kept, at least 1."""
        size_bytes = sum(b.size_bytes for b in _given(plan))
        return max(1, min(self.KEPT_CASES, self.KEPT_BYTES // max(1, size_bytes)))

    def reload(self, loaded: Loaded) -> None:
        """Write the contents to the device again. Raises LaunchError."""
        for name, values in loaded.host.items():
            memory, draw = loaded.memory[name].whole, loaded.case.draws.get(name)
            if draw is None or not self._port.draw(memory, draw, values[draw.count :]):
                self._port.write(memory, values)

    def are_intact(self, loaded: Loaded) -> bool:
        """Return whether the device still holds what was written there. Raises LaunchError."""
        return all(self._holds(memory, loaded.host[name]) for name, memory in loaded.memory.items())

    def inputs_are_intact(self, loaded: Loaded, *, only_guards: bool) -> bool:
        """Return whether kernels have changed no input, or only no guard of one. Raises LaunchError."""
        for name, memory in loaded.memory.items():
            parts = [*memory.guards.values()] if only_guards else [slice(0, memory.size)]
            if memory.buffer.role is Role.INPUT and not self._holds(memory, loaded.host[name], parts):
                return False
        return True

    def _holds(self, memory: Guarded, values: NDArray[Any], parts: Sequence[slice] = (slice(0, None),)) -> bool:
        for part in parts:
            found = np.empty_like(values[part])
            self._port.read(memory.whole, found, part.start * values.itemsize)
            if not same_bits(found, values[part]):
                return False
        return True

    def borrow(self, buffer: Buffer, *, has_front: bool = False) -> Guarded:
        """Return memory with undefined contents, for `give_back` later. Raises LaunchError."""
        free = self._free[_shape(buffer, has_front)]
        if free:
            memory = free.pop()
            self._free_bytes -= memory.buffer.size_bytes
            return dataclasses.replace(memory, buffer=buffer)
        return self._allocate(buffer, has_front=has_front)

    def give_back(self, memory: Guarded, *, has_front: bool = False) -> None:
        """Keep memory for the next `borrow` of the same shape."""
        buffer = memory.buffer
        if self._free_bytes + buffer.size_bytes > self.KEPT_BYTES:
            self.forget_free()
        if buffer.size_bytes <= self.KEPT_BYTES:
            self._free[_shape(buffer, has_front)].append(memory)
            self._free_bytes += buffer.size_bytes

    def _allocate(self, buffer: Buffer, *, has_front: bool) -> Guarded:
        guarded = with_canary(buffer)
        if has_front and guarded is not buffer and CANARY_ELEMENTS:
            guard_bytes = CANARY_ELEMENTS * np.dtype(NUMPY_TYPES[buffer.dtype]).itemsize
            whole = self._port.allocate(dataclasses.replace(guarded, elements=guarded.elements + CANARY_ELEMENTS))
            if inner := self._port.part(whole, guard_bytes, guarded.size_bytes):
                return Guarded(buffer=buffer, whole=whole, inner=inner, before=CANARY_ELEMENTS)
        memory = self._port.allocate(guarded)
        return Guarded(buffer=buffer, whole=memory, inner=memory, before=0)

    def poison_local(self, number: int) -> None:
        """Fill local memory with one of several poisons. Raises LaunchError."""
        self._local_poison.spread(number)

    @cached_property
    def _local_poison(self) -> LocalMemoryPoison:
        return LocalMemoryPoison(self._port)

    def forget_free(self) -> None:
        """Release the memory that is not in use."""
        self._free.clear()
        self._free_bytes = 0


class Workplace:
    """The memory of one plan: borrowed outputs and scratch, and the inputs of one case at a time.

    A context manager; inputs must not change while it is open. Leaving it gives back the outputs and scratch, unless an
    error has left them in doubt.
    """

    def __init__(self, port: Port, operands: Operands, plan: Plan, *, is_trusted: bool = True) -> None:
        """Kernels that are not trusted get guards before their buffers, too, and poisoned local memory.

        Raises LaunchError when there is not enough memory.
        """
        self._port = port
        self._is_trusted = is_trusted
        self._front = front = () if is_trusted else fronted(plan)
        self._operands = operands
        self._plan = plan
        self.memory: dict[str, Memory] = {}
        """Device memory by the names of the plan's buffers, as kernels are given it."""
        self._poisonings = 0
        self._own: dict[str, Guarded] = {}
        try:
            for buffer in plan.buffers:
                if buffer.role in (Role.OUTPUT, Role.SCRATCH):
                    self._own[buffer.name] = operands.borrow(buffer, has_front=buffer.name in front)
        except LaunchError:
            self._own.clear()
            operands.forget_free()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for name, memory in {} if error else self._own.items():
            self._operands.give_back(memory, has_front=name in self._front)

    def use(self, loaded: Loaded) -> None:
        """Use the inputs of a case. Raises LaunchError."""
        self.memory = {name: memory.inner for name, memory in {**loaded.memory, **self._own}.items()}
        for buffer in self._plan.buffers:
            if buffer.role is Role.VIEW:
                self.memory[buffer.name] = self._port.allocate(buffer, self.memory)

    def prepare_outputs(self, loaded: Loaded, others: Mapping[str, NDArray[Any]] = NO_CONTENTS) -> None:
        """Write the initial contents of the outputs: values to be read, or poison, with guards.

        `others` replace the contents of these outputs.
        """
        for name, memory in self._own.items():
            if name in others:
                self._port.write(memory.whole, memory.surrounded(others[name]))
            elif name in loaded.memory:
                self._port.copy(loaded.memory[name].whole, memory.whole, loaded.host[name].nbytes)

    def poison_scratch(self) -> None:
        """Fill scratch with values that spoil every result they enter, in turns a maximum and a minimum, too.

        Oclgrind takes memory that was filled for uninitialised whatever kernels write there, but not what is copied.
        """
        self._poisonings += 1
        if not self._is_trusted and not _IS_SIMULATED:
            self._operands.poison_local(self._poisonings)
        for memory in self._scratch():
            poison = _poison(memory.buffer.dtype, self._poisonings)
            if _IS_SIMULATED:
                self._port.write(memory.whole, np.repeat(poison, memory.size))
            else:
                self._port.fill(memory.whole, poison)

    def check_scratch(self) -> None:
        """Raises Refused when something was written around scratch since it was poisoned."""
        for memory in self._scratch() if self._poisonings else ():
            poison = _poison(memory.buffer.dtype, self._poisonings)
            for what, guard in memory.guards.items():
                found = np.empty(guard.stop - guard.start, poison.dtype)
                self._port.read(memory.whole, found, guard.start * poison.itemsize)
                if (found != poison).any():
                    raise _stray(what, memory.buffer)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return what an output or zeroed buffer holds. Raises Refused when something was written around it."""
        memory = self._own[buffer.name]
        found = np.empty(memory.size, NUMPY_TYPES[buffer.dtype])
        self._port.read(memory.whole, found)
        values = found[memory.contents]
        for what, guard in memory.guards.items():
            if not same_bits(found[guard], canary(buffer.dtype, buffer.name)):
                raise _stray(what, buffer)
        return values

    def _scratch(self) -> list[Guarded]:
        return [m for m in self._own.values() if m.buffer.role is Role.SCRATCH and not m.buffer.is_zeroed]

    def zero(self) -> None:
        """Write zeros where the plan needs them before the first call, with guards."""
        for memory in self._own.values():
            if memory.buffer.is_zeroed:
                zeros = np.zeros(memory.buffer.elements, NUMPY_TYPES[memory.buffer.dtype])
                self._port.write(memory.whole, memory.surrounded(zeros))


def with_canary(buffer: Buffer) -> Buffer:
    """Return the buffer enlarged by a guard behind it.

    Images have none: no kernel can write outside one.
    """
    if buffer.image_width:
        return buffer
    return Buffer(name=buffer.name, role=buffer.role, dtype=buffer.dtype, elements=buffer.elements + CANARY_ELEMENTS)


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays of one size are equal bit for bit."""
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


def canary(dtype: str, name: str) -> NDArray[Any]:
    """Return a buffer's guard, shape (CANARY_ELEMENTS,): of floats all NaN, which spoil what reads them.

    Those of two buffers differ, so that copying one guard over another shows.
    """
    pattern = (np.arange(CANARY_ELEMENTS, dtype=np.int64) + zlib.crc32(name.encode())) % 100 + 17
    kind = np.dtype(NUMPY_TYPES[dtype])
    if kind.kind != "f":
        return pattern.astype(kind)
    bits = np.dtype(f"u{kind.itemsize}")
    spoilt: NDArray[Any] = (np.full(1, np.nan, kind).view(bits) + pattern.astype(bits)).view(kind)
    return spoilt


def fronted(plan: Plan) -> tuple[str, ...]:
    """Return the buffers that can have a guard before: those that no image shows, as its rows must be aligned."""
    shown = {buffer.view_of for buffer in plan.buffers}
    return tuple(b.name for b in plan.buffers if b.role is not Role.VIEW and b.name not in shown)


def _stray(what: str, buffer: Buffer) -> Refused:
    return Refused(TrialState.WRONG_RESULT, f"the kernel wrote {what} of {buffer.name}")


def _given(plan: Plan) -> tuple[Buffer, ...]:
    """Return the buffers that have contents before a run."""
    return tuple(b for b in plan.buffers if b.role in (Role.INPUT, Role.OUTPUT))


def _poison(dtype: str, number: int) -> NDArray[Any]:
    """Return an infinity, since a maximum or minimum would pass over NaN, or the largest or least integer."""
    kind = np.dtype(NUMPY_TYPES[dtype])
    if kind.kind == "f":
        return np.full(1, (-1) ** number * np.inf, kind)
    limits = np.iinfo(kind)
    return np.full(1, limits.max if number % 2 else limits.min or limits.max // 3, kind)


def _shape(buffer: Buffer, has_front: bool) -> object:
    """Return a key that is equal for buffers whose memory is interchangeable."""
    return has_front, buffer.dtype, buffer.elements, buffer.image_width, buffer.image_height, buffer.channels
