"""The work file of a bundle: what an agent has to do for each candidate, as frames that protocol.h describes.

The commands are those that measuring sends to an agent on a link: inputs, poison, canaries, parts, checks and launches
are the same.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from autotune.device.port import NUMPY_TYPES, Kernel
from autotune.measure.operands import Loaded, Operands, Workplace, with_canary
from autotune.measure.probe import GROWTH, clipped, group_count
from autotune.model.configuration import Configuration
from autotune.model.plan import Buffer, Launch, Plan, Role
from autotune.phone.agent.frames import CONSTANTS, GREETING, Command, encode
from autotune.phone.agent.machine import QUERIES, QUERIES_OF_PLATFORMS
from autotune.phone.agent.recording import RecordingPort, frame
from autotune.phone.bundle.note import Note
from autotune.search.task import Task

_ELEMENTS = {
    "float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "int8": "INT8", "int32": "INT32",
}  # fmt: skip
_TYPE_CPU, _TYPE_OTHER = 0b10, 0xFFFFFFFF & ~0b11  # the lowest bit marks a default
NAME_BYTES = 16
MOST_INPUT_BYTES = 2**31
"""Of one problem, which are drawn again where its result is collected: a result may claim anything."""
MOST_OUTPUT_BYTES = CONSTANTS["MAX_READ_BYTES"]
"""Of a buffer that is compared; a result has it in one record."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one problem gets of an agent's time and of the space in its result."""

    weight: int
    finalists: int
    output_bytes: int


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The candidates of one problem: the reference, the default, then those to begin with, and others."""

    task: Task
    seeds: tuple[int, int]
    openings: Sequence[Configuration]
    others: Sequence[Configuration]

    @property
    def all(self) -> tuple[Configuration, ...]:
        return (*self.openings, *self.others)

    def kind(self, number: int) -> int:
        """Return the kind of a candidate by its number: the first is the reference, unless it is also the default."""
        openings = len(self.openings)
        if number < openings and self.openings[number] == self.task.default:
            return CONSTANTS["KIND_DEFAULT"]
        name = "KIND_REFERENCE" if number == 0 else "KIND_OPENING" if number < openings else "KIND_OTHER"
        return CONSTANTS[name]


def write_work(
    file: IO[bytes], note: Note, parts: Iterable[tuple[Candidates, Share]], *, is_cpu: bool, budget_s: float
) -> None:
    """Write the work of a bundle. Raises BuildError for a template that cannot be rendered."""
    name = secrets.token_bytes(NAME_BYTES)
    head = encode("WORK", f"{len(GREETING)}s{NAME_BYTES}sQ", GREETING, name, round(1000 * budget_s))
    types = _TYPE_CPU if is_cpu else _TYPE_OTHER
    codes = (*QUERIES_OF_PLATFORMS, *QUERIES)
    queries = encode("QUERIES", f"II{len(codes)}I", types, len(QUERIES_OF_PLATFORMS), *codes)
    for command in (head, encode("NOTE", tail=note.to_json()), queries):
        file.write(frame(command))
    for candidates, share in parts:
        file.writelines(_Script(candidates, share).frames())


class _Script:
    """What an agent does at one problem."""

    def __init__(self, candidates: Candidates, share: Share) -> None:
        self._candidates = candidates
        self._share = share
        self._task = task = candidates.task
        self._port = RecordingPort(task.device)
        self._cases = [task.family.make_case(task.problem, seed) for seed in candidates.seeds]
        self._first_groups = task.device.limits.compute_units

    def frames(self) -> Iterator[bytes]:
        recording = self._port.recording
        yield frame(self._head())
        for number, configuration in enumerate(self._candidates.all):
            with self._port.trial():
                self._record(configuration)
            data, commands = recording.take()
            yield from (frame(encode("DATA", tail=contents)) for contents in data)
            yield frame(encode("TRIAL", "BB", self._candidates.kind(number), *self._algorithm(configuration),
                               tail=self._place(configuration)))  # fmt: skip
            yield from commands

    def _head(self) -> Command:
        output = next(b for b in self._task.plan(self._candidates.all[0]).buffers if b.role is Role.OUTPUT)
        element = CONSTANTS[f"ELEMENT_{_ELEMENTS.get(output.dtype, 'OTHER')}"]
        share = self._share
        return encode("PROBLEM", "IIQBQ", share.weight, share.finalists, share.output_bytes, element, output.size_bytes)

    def _algorithm(self, configuration: Configuration) -> tuple[int]:
        names = [algorithm.name for algorithm in self._task.family.algorithms]
        return (names.index(configuration.algorithm),)

    def _place(self, configuration: Configuration) -> bytes:
        """Return where a configuration is among those of its algorithm: a byte for each parameter."""
        values = dict(configuration.values)
        parameters = self._task.family.algorithm(configuration.algorithm).parameters
        return bytes(255 * p.values.index(values[p.name]) // max(1, len(p.values) - 1) for p in parameters)

    def _record(self, configuration: Configuration) -> None:
        task, port = self._task, self._port
        build = task.build_job(configuration)
        plan = build.plan
        kernels = port.kernels(port.build(build.source, build.options), plan)
        port.facts(kernels, plan)
        operands = Operands(port)
        place = Workplace(port, operands, plan)
        place.zero()
        loaded = operands.load(self._cases[0], plan)
        place.use(loaded)
        counted = [
            pair for pair in zip(kernels, plan.launches, strict=True) if not task.problem.is_constant(pair[1].prepares)
        ]
        self._record_parts(counted, place)
        self._mark("CHECK")
        self._record_check(kernels, plan, place, loaded)
        self._mark("TIME")
        if len(counted) < len(kernels):  # constant operands are prepared once, untimed
            port.run(port.bind(kernels, plan.launches, place.memory))
        port.run(port.bind([k for k, _ in counted], [launch for _, launch in counted], place.memory))
        self._mark("CHECK")
        port.release()
        first = place.memory  # keeps its images of buffers alive: finalists are timed after the second check
        other = operands.load(self._cases[1], plan)
        place.use(other)
        self._record_check(kernels, plan, place, other)
        place.memory = first
        del other
        port.release()

    def _mark(self, name: str) -> None:
        self._port.recording.post(encode(name))

    def _record_parts(self, counted: Sequence[tuple[Kernel, Launch]], place: Workplace) -> None:
        """Record a growing series of parts of each launch, as `probe` runs them; the first is run twice."""
        port = self._port
        for kernel, launch in counted:
            whole = group_count(launch)
            if launch.local_size is None and port.quirks.builds_by_work_group_size:
                continue
            groups, repeats = self._first_groups, 2
            while groups < whole:
                part = clipped(launch, groups)
                for _ in range(repeats):
                    port.run(port.bind([kernel], [part], place.memory), has_events=False)
                    port.recording.wrap_last("PART", "QQ", group_count(part), whole)
                groups, repeats = groups * GROWTH, 1
        place.zero()  # with only a part of the work-groups, counters stop halfway

    def _record_check(self, kernels: Sequence[Kernel], plan: Plan, place: Workplace, loaded: Loaded) -> None:
        port = self._port
        place.prepare_outputs(loaded)
        place.poison_scratch()
        port.run(port.bind(kernels, plan.launches, place.memory, loaded.case.scalars), has_events=False)
        for buffer in read_back(plan):
            port.read(place.memory[buffer.name], np.empty(buffer.elements, NUMPY_TYPES[buffer.dtype]))


def too_large(plan: Plan) -> str:
    """Return why outputs of a problem with such a plan cannot be judged where a result is collected, or nothing."""
    if sum(buffer.size_bytes for buffer in plan.buffers) > MOST_INPUT_BYTES:
        return f"its buffers have more than {MOST_INPUT_BYTES / 2**30:g} GiB"
    if any(buffer.size_bytes > MOST_OUTPUT_BYTES for buffer in read_back(plan)):
        return f"an output has more than {MOST_OUTPUT_BYTES / 2**20:.0f} MiB"
    return ""


def read_back(plan: Plan) -> list[Buffer]:
    """Return the buffers that a check reads, with their canaries: the outputs, then what must stay zero."""
    outputs = [b for b in plan.buffers if b.role is Role.OUTPUT]
    return [with_canary(b) for b in (*outputs, *(b for b in plan.buffers if b.is_zeroed and b not in outputs))]
