"""Inputs, outputs and scratch on the device, kept from trial to trial: drawing and copying them takes longer than most
kernels.

Kernels read the inputs in place, so a kernel with a stray write may corrupt the inputs of the next: a wrong result
counts only if the inputs are intact. Before every checked run, outputs get their initial contents by a copy on the
device, and scratch is filled with poison.
"""

import os
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune import tracing
from autotune.device.port import NUMPY_TYPES, Memory, Port
from autotune.errors import LaunchError
from autotune.kernels import find_family
from autotune.model.plan import Buffer, Plan, Role
from autotune.model.problem import Problem
from autotune.space.family import Case

NO_CONTENTS: Mapping[str, NDArray[Any]] = MappingProxyType({})
SIMULATED = "AUTOTUNE_SIMULATED"
"""Environment variable of processes that Oclgrind runs, which itself watches what is behind a buffer."""
CANARY_ELEMENTS = 0 if os.environ.get(SIMULATED) else 2048
"""Elements behind every buffer that no kernel may write."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A case whose inputs, and initial contents of outputs, are on the device, by buffer name."""

    case: Case
    host: dict[str, NDArray[Any]]
    """The same contents on the host, with a canary behind each."""
    memory: dict[str, Memory]


class Operands:
    """All memory that measuring uses on one device."""

    KEPT_BYTES = 2**28
    """Limit of the cases that are kept, and of free memory; what exceeds it is released."""
    KEPT_CASES = 12

    def __init__(self, port: Port, beside: "Operands | None" = None) -> None:
        """Inputs that `beside` keeps are copied to other buffers instead of being drawn again."""
        self._port = port
        self._beside = beside
        self._loaded: OrderedDict[tuple[Problem, int, str, tuple[Buffer, ...]], Loaded] = OrderedDict()
        self._free: defaultdict[object, list[tuple[Buffer, Memory]]] = defaultdict(list)
        self._free_bytes = 0

    def case(self, problem: Problem, seed: int, plan: Plan, regime: str = "") -> Loaded:
        """Return the inputs for a seed, or those of one of the family's regimes, on the device. Raises LaunchError."""
        key = (problem, seed, regime, _given(plan))
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        while len(self._loaded) >= self.fitting(plan):  # counting all sets of inputs as equally large
            self._loaded.popitem(last=False)  # freed before the next one is allocated
        known = self._beside._loaded.get(key) if self._beside else None
        with tracing.span("draw inputs"):
            family = find_family(problem.family)
            drawn = family.make_case_of(regime, problem, seed) if regime else None
            case = known.case if known else drawn or family.make_case(problem, seed)
        loaded = self._loaded[key] = self.load(case, plan)
        return loaded

    def load(self, case: Case, plan: Plan) -> Loaded:
        """Return a case whose inputs are on the device. Raises LaunchError."""
        host = {b.name: _contents(b, case) for b in _given(plan) if b.name in case.inputs}
        loaded = Loaded(case=case, host=host, memory={})
        with tracing.span("write inputs"):
            for buffer in _given(plan):
                if buffer.name in host:
                    loaded.memory[buffer.name] = self._port.allocate(with_canary(buffer))
            self.reload(loaded)
        return loaded

    def fitting(self, plan: Plan) -> int:
        """Return how many cases of a plan can be kept, at least 1."""
        size_bytes = sum(b.size_bytes for b in _given(plan))
        return max(1, min(self.KEPT_CASES, self.KEPT_BYTES // max(1, size_bytes)))

    def reload(self, loaded: Loaded) -> None:
        """Write the contents to the device again. Raises LaunchError."""
        for name, values in loaded.host.items():
            memory, draw = loaded.memory[name], loaded.case.draws.get(name)
            if draw is None or not self._port.draw(memory, draw, values[draw.count :]):
                self._port.write(memory, values)

    def are_intact(self, loaded: Loaded) -> bool:
        """Return whether the device still holds what was written there. Raises LaunchError."""
        for name, values in loaded.host.items():
            found = np.empty_like(values)
            self._port.read(loaded.memory[name], found)
            if not same_bits(found, values):
                return False
        return True

    def borrow(self, buffer: Buffer) -> Memory:
        """Return memory with undefined contents, for `give_back` later. Raises LaunchError."""
        free = self._free[_shape(buffer)]
        if free:
            kept, memory = free.pop()
            self._free_bytes -= kept.size_bytes
            return memory
        return self._port.allocate(buffer)

    def give_back(self, buffer: Buffer, memory: Memory) -> None:
        """Keep memory for the next `borrow` of the same shape."""
        if self._free_bytes + buffer.size_bytes > self.KEPT_BYTES:
            self.forget_free()
        if buffer.size_bytes <= self.KEPT_BYTES:
            self._free[_shape(buffer)].append((buffer, memory))
            self._free_bytes += buffer.size_bytes

    def forget_free(self) -> None:
        """Release the memory that is not in use."""
        self._free.clear()
        self._free_bytes = 0


class Workplace:
    """The memory of one plan: borrowed outputs and scratch, and the inputs of one case at a time.

    A context manager; inputs must not change while it is open. Leaving it gives back the outputs and scratch, unless an
    error has left them in doubt.
    """

    def __init__(self, port: Port, operands: Operands, plan: Plan) -> None:
        """Raises LaunchError when there is not enough memory."""
        self._port = port
        self._operands = operands
        self._plan = plan
        self.memory: dict[str, Memory] = {}
        """Device memory by the names of the plan's buffers."""
        self._poisonings = 0
        self._written = [with_canary(b) for b in plan.buffers if b.role in (Role.OUTPUT, Role.SCRATCH)]
        self._own: dict[str, Memory] = {}
        try:
            for buffer in self._written:
                self._own[buffer.name] = operands.borrow(buffer)
        except LaunchError:
            self._own.clear()
            operands.forget_free()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for buffer in () if error else self._written:
            self._operands.give_back(buffer, self._own[buffer.name])

    def use(self, loaded: Loaded) -> None:
        """Use the inputs of a case. Raises LaunchError."""
        inputs = {name: memory for name, memory in loaded.memory.items() if name not in self._own}
        self.memory = {**inputs, **self._own}
        for buffer in self._plan.buffers:
            if buffer.role is Role.VIEW:
                self.memory[buffer.name] = self._port.allocate(buffer, self.memory)

    def prepare_outputs(self, loaded: Loaded, others: Mapping[str, NDArray[Any]] = NO_CONTENTS) -> None:
        """Write the initial contents of the outputs: values to be read, or poison, with a canary behind.

        `others` replace the contents of these outputs.
        """
        for buffer in self._plan.buffers:
            if buffer.role is Role.OUTPUT and buffer.name in others:
                self._port.write(self._own[buffer.name], _guarded(buffer, others[buffer.name]))
            elif buffer.role is Role.OUTPUT and buffer.name in loaded.memory:
                self._port.copy(loaded.memory[buffer.name], self._own[buffer.name], with_canary(buffer).size_bytes)

    def poison_scratch(self) -> None:
        """Fill scratch with values that spoil every result they enter, in turns a maximum and a minimum, too."""
        self._poisonings += 1
        for buffer in self._plan.buffers:
            if buffer.role is Role.SCRATCH and not buffer.is_zeroed:
                self._port.fill(self._own[buffer.name], _poison(buffer.dtype, self._poisonings))

    def overrun_scratch(self) -> str:
        """Return the name of a scratch buffer behind which something was written since it was poisoned, or nothing."""
        for buffer in self._plan.buffers:
            if buffer.role is Role.SCRATCH and not buffer.is_zeroed and self._poisonings:
                found = np.empty(with_canary(buffer).elements, NUMPY_TYPES[buffer.dtype])
                self._port.read(self._own[buffer.name], found)
                if (found[buffer.elements :] != _poison(buffer.dtype, self._poisonings)).any():
                    return buffer.name
        return ""

    def zero(self) -> None:
        """Write zeros where the plan needs them before the first call, with a canary behind."""
        for buffer in self._plan.buffers:
            if buffer.is_zeroed:
                zeros = np.zeros(buffer.elements, NUMPY_TYPES[buffer.dtype])
                self._port.write(self._own[buffer.name], np.concatenate([zeros, canary(buffer.dtype)]))


def with_canary(buffer: Buffer) -> Buffer:
    """Return the buffer enlarged by a canary.

    Images have none: no kernel can write outside one.
    """
    if buffer.image_width:
        return buffer
    return Buffer(name=buffer.name, role=buffer.role, dtype=buffer.dtype, elements=buffer.elements + CANARY_ELEMENTS)


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays of one size are equal bit for bit."""
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


def canary(dtype: str) -> NDArray[Any]:
    """Return the pattern behind a buffer, of shape (CANARY_ELEMENTS,)."""
    pattern = np.arange(CANARY_ELEMENTS, dtype=np.int64) % 100 + 17
    return pattern.astype(NUMPY_TYPES[dtype])


def _contents(buffer: Buffer, case: Case) -> NDArray[Any]:
    return _guarded(buffer, case.inputs[buffer.name].reshape(-1))


def _guarded(buffer: Buffer, values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, canary(buffer.dtype)]) if with_canary(buffer) is not buffer else values


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


def _shape(buffer: Buffer) -> object:
    """Return a key that is equal for buffers whose memory is interchangeable."""
    return buffer.dtype, buffer.elements, buffer.image_width, buffer.image_height, buffer.channels
