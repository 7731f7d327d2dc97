"""Inputs, outputs and scratch on the device, kept from trial to trial: drawing and copying them takes longer than most
kernels.

Kernels read the inputs where they lie, so one that writes astray may spoil those of the next: what looks wrong is
believed only while the inputs are what they were. Outputs get their first contents by a copy on the device, scratch is
filled with poison, before every run that is checked.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune import tracing
from autotune.device.session import NUMPY_TYPES, Memory, Session
from autotune.errors import LaunchError
from autotune.kernels import find_family
from autotune.model.plan import Buffer, Plan, Role
from autotune.model.problem import Problem
from autotune.space.family import Case

CANARY_ELEMENTS = 256
"""Elements behind every output, and behind what has to stay zero, that no kernel may touch."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A case, and on the device its inputs and what its outputs hold before a run, by buffer name."""

    case: Case
    seed: int
    host: dict[str, NDArray[Any]]
    """The same on the host, a canary behind each output."""
    memory: dict[str, Memory]


class Operands:
    """All memory that measuring uses on one device."""

    KEPT_BYTES = 2**28
    """Of cases kept beside the one in use, and of memory that nobody uses now: more than that is given back."""
    KEPT_CASES = 4

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loaded: OrderedDict[tuple[Problem, int, tuple[Buffer, ...]], Loaded] = OrderedDict()
        self._free: defaultdict[object, list[tuple[Buffer, Memory]]] = defaultdict(list)
        self._free_bytes = 0

    def case(self, problem: Problem, seed: int, plan: Plan) -> Loaded:
        """Inputs for a seed, on the device. Raises LaunchError."""
        given = _given(plan)
        key = (problem, seed, given)
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        while len(self._loaded) >= self.fitting(plan):  # one set of inputs is as large as another
            self._loaded.popitem(last=False)  # before its successor is made
        with tracing.span("draw inputs"):
            case = find_family(problem.family).make_case(problem, seed)
        host = {b.name: _contents(b, case) for b in given if b.name in case.inputs}
        loaded = Loaded(case=case, seed=seed, host=host, memory={})
        with tracing.span("write inputs"):
            for buffer in given:
                if buffer.name in host:
                    loaded.memory[buffer.name] = self._session.allocate(with_canary(buffer))
            self.reload(loaded)
        self._loaded[key] = loaded
        return loaded

    def fitting(self, plan: Plan) -> int:
        """How many cases of a plan can be kept; one at least."""
        size_bytes = sum(b.size_bytes for b in _given(plan))
        return max(1, min(self.KEPT_CASES, self.KEPT_BYTES // max(1, size_bytes)))

    def reload(self, loaded: Loaded) -> None:
        """Bring the contents to the device again. Raises LaunchError."""
        for name, values in loaded.host.items():
            self._session.write(loaded.memory[name], values)

    def are_intact(self, loaded: Loaded) -> bool:
        """Whether the device still holds what was brought there. Raises LaunchError."""
        return all(self._session.holds(loaded.memory[name], values) for name, values in loaded.host.items())

    def borrow(self, buffer: Buffer) -> Memory:
        """Memory with any contents; to be given back. Raises LaunchError."""
        free = self._free[_shape(buffer)]
        if free:
            kept, memory = free.pop()
            self._free_bytes -= kept.size_bytes
            return memory
        return self._session.allocate(buffer)

    def give_back(self, buffer: Buffer, memory: Memory) -> None:
        """For who needs the same next."""
        if self._free_bytes + buffer.size_bytes > self.KEPT_BYTES:
            self.forget_free()
        if buffer.size_bytes <= self.KEPT_BYTES:
            self._free[_shape(buffer)].append((buffer, memory))
            self._free_bytes += buffer.size_bytes

    def forget_free(self) -> None:
        """Let go of what nobody uses now."""
        self._free.clear()
        self._free_bytes = 0


class Workplace:
    """The memory of one plan: borrowed outputs and scratch, and the inputs of one case at a time.

    Inputs may not change while it is open; `close` gives the rest back.
    """

    def __init__(self, session: Session, operands: Operands, plan: Plan) -> None:
        """Raises LaunchError when there is not enough memory."""
        self._session = session
        self._operands = operands
        self._plan = plan
        self._borrowed: list[tuple[Buffer, Memory]] = []
        self.memory: dict[str, Memory] = {}
        """By the names of the plan's buffers."""
        try:
            self._own = {b.name: self._borrow(with_canary(b)) for b in plan.buffers if _is_written(b)}
        except LaunchError:
            self._borrowed.clear()
            operands.forget_free()
            raise

    def _borrow(self, buffer: Buffer) -> Memory:
        memory = self._operands.borrow(buffer)
        self._borrowed.append((buffer, memory))
        return memory

    def close(self, *, is_sound: bool = True) -> None:
        """Give back the memory, if it is fit for others."""
        for buffer, memory in self._borrowed if is_sound else ():
            self._operands.give_back(buffer, memory)
        self._borrowed.clear()

    def leave(self) -> None:
        """Let go of the inputs, so that their memory may serve the next."""
        self.memory = {}

    def use(self, loaded: Loaded) -> None:
        """Take the inputs of a case. Raises LaunchError."""
        inputs = {name: memory for name, memory in loaded.memory.items() if name not in self._own}
        self.memory = {**inputs, **self._own}
        self.memory.update(self._make_views())

    def prepare_outputs(self, loaded: Loaded) -> None:
        """What outputs hold before a run: what is to be read, or poison; canaries behind."""
        for buffer in self._plan.buffers:
            if buffer.role is Role.OUTPUT and buffer.name in loaded.memory:
                self._session.copy(loaded.memory[buffer.name], self._own[buffer.name], with_canary(buffer).size_bytes)

    def poison_scratch(self) -> None:
        """Contents that spoil every result they enter."""
        for buffer in self._plan.buffers:
            if buffer.role is Role.SCRATCH and not buffer.is_zeroed:
                self._session.fill(self._own[buffer.name], buffer, _poison(buffer.dtype))

    def zero(self) -> None:
        """Zeros where the plan wants them before the first call, canaries behind."""
        for buffer in self._plan.buffers:
            if buffer.is_zeroed:
                zeros = np.zeros(buffer.elements, NUMPY_TYPES[buffer.dtype])
                self._session.write(self._own[buffer.name], np.concatenate([zeros, canary(buffer.dtype)]))

    def _make_views(self) -> dict[str, Memory]:
        views: dict[str, Memory] = {}
        for buffer in self._plan.buffers:
            if buffer.role is Role.VIEW:
                views[buffer.name] = self._session.allocate(buffer, {**self.memory, **views})
        return views


def with_canary(buffer: Buffer) -> Buffer:
    """Larger by what no kernel may touch, where it is an output or has to stay zero."""
    if buffer.role is not Role.OUTPUT and not buffer.is_zeroed:
        return buffer
    return Buffer(name=buffer.name, role=buffer.role, dtype=buffer.dtype, elements=buffer.elements + CANARY_ELEMENTS)


def canary(dtype: str) -> NDArray[Any]:
    """What stands behind an output."""
    pattern = np.arange(CANARY_ELEMENTS, dtype=np.int64) % 100 + 17
    return pattern.astype(NUMPY_TYPES[dtype])


def _contents(buffer: Buffer, case: Case) -> NDArray[Any]:
    values = case.inputs[buffer.name].reshape(-1)
    return np.concatenate([values, canary(buffer.dtype)]) if buffer.role is Role.OUTPUT else values


def _given(plan: Plan) -> tuple[Buffer, ...]:
    """What has contents before a run."""
    return tuple(b for b in plan.buffers if b.role in (Role.INPUT, Role.OUTPUT))


def _is_written(buffer: Buffer) -> bool:
    return buffer.role in (Role.OUTPUT, Role.SCRATCH)


def _poison(dtype: str) -> NDArray[Any]:
    kind = np.dtype(NUMPY_TYPES[dtype])
    return np.full(1, np.nan if kind.kind == "f" else np.iinfo(kind).max, kind)


def _shape(buffer: Buffer) -> object:
    """Equal where one memory can stand for another."""
    return buffer.dtype, buffer.elements, buffer.image_width, buffer.image_height
