"""Judging the outputs in a result: which trials were right, by inputs drawn anew from their seeds."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.port import NUMPY_TYPES
from autotune.errors import TableError
from autotune.measure.operands import canary
from autotune.model.configuration import Configuration
from autotune.model.plan import Plan, Role
from autotune.phone.bundle.note import Task
from autotune.phone.bundle.result import Record
from autotune.phone.bundle.script import read_back, too_large
from autotune.search.knowledge import Knowledge
from autotune.space.case import Case

MOST_WORK = 2.0**48
"""Floating point operations of a problem, times its outputs to be judged."""


class Checks:
    """The two checks of a problem: which outputs are right."""

    def __init__(
        self, task: Task, knowledge: Knowledge, records: Mapping[int, Record], contents: Mapping[int, memoryview]
    ) -> None:
        """Judge all outputs; `contents` are those by digest.

        Raises TableError for outputs of a wrong size, and for a problem that is too large to be judged here.
        """
        self._task = task
        self._knowledge = knowledge
        self._records = records
        self._contents = contents
        self._ratios = [self._judge_all(check) for check in range(len(task.seeds))]

    def ratio(self, number: int) -> float | None:
        """Return the largest error over tolerance of a trial's outputs, infinity for stray writes.

        None unless some of its outputs of the first check came along.
        """
        found = self._ratios[0].get(number, [])
        both = [*found, *self._ratios[1].get(number, [])]
        return max(both, key=lambda ratio: (not ratio <= 1.0, ratio)) if found else None

    def count(self, number: int) -> int:
        """Return how many runs of a trial were judged."""
        return sum(len(of_check.get(number, [])) for of_check in self._ratios)

    def _judge_all(self, check: int) -> dict[int, list[float]]:
        """Return for each trial the error over tolerance of each run of a check whose outputs came along."""
        judged: dict[object, float] = {}
        found: dict[int, list[float]] = {}
        case: Case | None = None  # large: only one at a time
        for number in self._records:
            plan = self._plan(number)
            for digests, parts in self._runs(number, check):
                key = (plan.buffers, digests)
                if key not in judged:
                    case = case or self._case(check)
                    values = _values(plan, parts)
                    judged[key] = float("inf") if values is None else case.error_ratio(values)
                    if len(judged) * self._task.problem.flops > MOST_WORK:
                        raise TableError("it has too many outputs to be judged here")
                found.setdefault(number, []).append(judged[key])
        return found

    def _plan(self, number: int) -> Plan:
        return self._knowledge.plan(self._task.configurations[number])

    def _runs(self, number: int, check: int) -> Iterator[tuple[tuple[int, ...], list[memoryview]]]:
        """Yield the outputs, and their digests, of each run of a check whose outputs came along."""
        outputs = self._records[number].outputs
        places = [outputs.get((check, place), []) for place in range(len(read_back(self._plan(number))))]
        for digests in zip(*places, strict=False):
            parts = [part for digest in digests if (part := self._contents.get(digest)) is not None]
            if len(parts) == len(digests):
                yield digests, parts

    def _case(self, check: int) -> Case:
        task, knowledge = self._task, self._knowledge
        reason = too_large(self._plan(0))
        if reason:
            raise TableError(f"it is too large to be judged here: {reason}")
        case = knowledge.family.make_case(task.problem, task.seeds[check])
        if case.reference is not None:
            outputs = self._outputs_of(case.reference, check)
            case.expect(outputs, outputs)
        return case

    def _outputs_of(self, reference: Configuration, check: int) -> Mapping[str, NDArray[Any]]:
        """Return the outputs of the kernel that says what is right, which is the first candidate."""
        is_there = self._task.configurations[0] == reference and 0 in self._records
        _, parts = next(self._runs(0, check) if is_there else iter(()), ((), []))
        values = _values(self._plan(0), parts) if parts else None
        if values is None:
            raise TableError("nothing tells what is right: its reference has no outputs")
        return values


def _values(plan: Plan, parts: list[memoryview]) -> dict[str, NDArray[Any]] | None:
    """Return the outputs in what a check read, by name; None after stray writes. Raises TableError for wrong sizes."""
    values: dict[str, NDArray[Any]] = {}
    for buffer, part in zip(read_back(plan), parts, strict=True):
        whole = next(b for b in plan.buffers if b.name == buffer.name)
        if len(part) != buffer.size_bytes:
            raise TableError("an output has a wrong size")
        found = np.frombuffer(part, NUMPY_TYPES[buffer.dtype])
        if found[whole.elements :].tobytes() not in (b"", canary(buffer.dtype, buffer.name).tobytes()):
            return None
        if whole.is_zeroed and found[: whole.elements].any():
            return None
        if whole.role is Role.OUTPUT:
            values[buffer.name] = found[: whole.elements]
    return values
