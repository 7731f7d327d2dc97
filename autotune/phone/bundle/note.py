"""What a bundle is for. The result repeats this note, so that it can be understood anywhere."""

import json
from dataclasses import dataclass
from typing import Annotated

from autotune.codec import COUNT, SLUG, Bounds, Items, Node, parse, read, write
from autotune.errors import TableError
from autotune.kernels.render import code_version
from autotune.kernels.shapes import MAX_CALLS
from autotune.lookup.json_table import read_family, readers_for
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.model.trial import Request

MOST_TASKS = 4096
MOST_CANDIDATES = 4096
_SEED = Bounds(0, 2**31)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem and its candidates, numbered through all tasks in this order."""

    problem: Problem
    calls: Annotated[int, Bounds(1, MAX_CALLS)]
    label: str
    seeds: Annotated[tuple[Annotated[int, _SEED], ...], Items(2, least=2)]
    """Of the inputs of the two checks."""
    configurations: Annotated[tuple[Configuration, ...], Items(MOST_CANDIDATES, least=1)]

    @property
    def request(self) -> Request:
        return Request(problem=self.problem, calls=self.calls, label=self.label)


@dataclass(frozen=True, kw_only=True)
class Note:
    """What to measure, on which device, and for how long."""

    code: str
    """`code_version` of the templates and search spaces."""
    device: Annotated[str, SLUG]
    """The slug of the device that the candidates were chosen for; the one that is found may be another."""
    seconds: Annotated[int, COUNT]
    tasks: Annotated[tuple[Task, ...], Items(MOST_TASKS, least=1)]

    def to_json(self) -> bytes:
        tasks = [{"family": task.problem.family, **write(task)} for task in self.tasks]
        return json.dumps({**write(self, without=("tasks",)), "tasks": tasks}, separators=(",", ":")).encode()


def read_note(data: bytes) -> Note:
    """Read a note as hostile input. Raises TableError, also for kernels other than those of this version."""
    root = parse(data)
    if root.member("code").text() != code_version():
        raise TableError(
            "the bundle was made by another version of autotune, or with other kernels of your own",
            hint="collect its result with that version; for a kernel of your own, with --family FILE",
        )
    return read(Note, root, readers={Task: _read_task})


def _read_task(node: Node) -> Task:
    family = read_family(node.member("family"))
    return read(Task, node, ignored=("family",), readers=readers_for(family))
