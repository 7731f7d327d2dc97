"""Making a bundle: candidates chosen without the device, the work file, agents, and the script that starts one."""

import itertools
import math
import os
import stat
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from autotune.codec import MAX_BYTES
from autotune.errors import ProblemError, UsageError
from autotune.kernels.render import code_version
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Request
from autotune.phone.bundle.note import MOST_CANDIDATES, MOST_TASKS, Note, Task
from autotune.phone.bundle.result import MOST_TRIALS
from autotune.phone.bundle.script import Candidates, Share, read_back, too_large, write_work
from autotune.phone.links.toolchains import ANDROID, LINUX, build_agent, can_build
from autotune.propose.explorer import Neighbours
from autotune.search.finals import FINALISTS
from autotune.search.knowledge import Knowledge
from autotune.search.proposals import Proposals
from autotune.store import Store

TRIALS_PER_S = 4.0
"""A phone is not expected to try more candidates in its time."""
FEWEST, MOST = 100, 400
"""Candidates of a problem, where the space has as many."""
OPENINGS = 16
NEAR_SHARE = 0.5
"""Part of the candidates that differ from one of the first in one parameter."""
NEAR_OF = 8
RESULT_BYTES = 2**28
"""Outputs in a result, besides those of finalists."""
ALL_OUTPUTS_BYTES = RESULT_BYTES // 4
"""Size of the outputs of all problems: a result has two of each from the reference, and needs room for others'."""
FINALISTS_MEMORY = 0.25
"""Part of the device's memory that the finalists of a problem may take together."""
FOLDER = "autotune-job"
"""Folder of everything in a bundle."""
_ARM = ("aarch64", "armv7l")
_SCRIPT = Path(__file__).with_name("run.sh")


def make_bundle(
    path: Path,
    device: Device,
    requests: Sequence[Request],
    store: Store,
    seconds: float,
    *,
    algorithms: Sequence[str] = (),
    seed: int = 0,
    listener: Callable[[Request, int | str], None] = lambda *_: None,
) -> list[str]:
    """Write a bundle for a device that need not be there, and return the names of the agents in it.

    `listener` is called for each problem with the number of its candidates, or why it is left out. Raises
    DeviceSelectionError when no agent can be built, UsageError when the file cannot be written, ProblemError for a
    problem without candidates, or when all problems are left out.
    """
    if len(requests) > MOST_TASKS:
        raise UsageError(f"a bundle has at most {MOST_TASKS} shapes")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path}: is no file in a folder that exists", hint="-o job.zip")
    agents = _agents()
    count = min(MOST, MOST_CANDIDATES, max(FEWEST, round(TRIALS_PER_S * seconds / len(requests))))
    fitting, chosen, left_bytes = [], [], ALL_OUTPUTS_BYTES
    for request in requests:
        candidates = candidates_of(device, request.problem, store, count, algorithms, seed)
        reason = _why_left_out(candidates, left_bytes)
        listener(request, reason or len(candidates.all))
        if not reason:
            fitting.append(request)
            chosen.append(candidates)
            left_bytes -= _output_bytes(candidates)
    if not chosen:
        raise ProblemError("no shape can be tuned by a bundle")
    tasks = tuple(_task(*both) for both in zip(fitting, chosen, strict=True))
    note = Note(code=code_version(), device=device.slug, seconds=round(seconds), tasks=tasks)
    if len(note.to_json()) > MAX_BYTES or sum(len(task.configurations) for task in tasks) > MOST_TRIALS:
        raise UsageError("the shapes have too many candidates for one bundle", hint="make several of fewer shapes")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as bundle:
            for name, program in agents.items():
                bundle.writestr(_member(f"agent-{name}", 0o755), program.read_bytes())
            bundle.writestr(_member("run.sh", 0o755), _SCRIPT.read_bytes())
            with bundle.open(_member("work.bin", 0o644), "w", force_zip64=True) as file:
                parts = zip(chosen, _shares(device, fitting, chosen), strict=True)
                write_work(file, note, parts, is_cpu=device.limits.is_cpu, budget_s=seconds)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return list(agents)


def check_agents(device: Device) -> None:
    """Raise DeviceSelectionError where a bundle for a phone's GPU would have no agent that runs on its processor."""
    on_arm = [target for target in (*ANDROID.values(), *LINUX.values()) if target.machine in _ARM]
    if device.family in ("adreno", "mali") and not any(map(can_build, on_arm)):
        build_agent(on_arm[0])  # raises, with what can be done


def _member(name: str, mode: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(f"{FOLDER}/{name}")
    member.external_attr = (stat.S_IFREG | mode) << 16
    member.compress_type = zipfile.ZIP_DEFLATED
    return member


def candidates_of(
    device: Device, problem: Problem, store: Store, count: int, algorithms: Sequence[str] = (), seed: int = 0
) -> Candidates:
    """Choose candidates by what is known without the device; fewer than `count` where the space has no more.

    First come the plainest kernel, the default, and what a search would begin with: winners of near problems and other
    devices, profile and rule. Then come neighbours of these, and configurations spread over the space.
    """
    knowledge = Knowledge(device, problem, store)
    space = knowledge.space(algorithms, may_be_empty=True)
    rng = np.random.default_rng(seed)
    seeds = [int(drawn) for drawn in 2 * rng.integers(2**29, size=2) + np.array([0, 1])]
    reference = knowledge.family.make_case(problem, seeds[0]).reference or knowledge.family.baseline
    proposed: list[Configuration] = []
    close: list[Configuration] = []
    if len(space):
        proposed = list(itertools.islice(iter(Proposals(knowledge, space, seed).next, None), count))
        starts = [knowledge.default, *proposed[:NEAR_OF]]
        rows = np.array([row for start in starts if (row := space.row_of(start)) is not None], dtype=np.int64)
        near = rng.permutation(np.unique(Neighbours(space).of(rows)))[: int(NEAR_SHARE * count)]
        close = [space[int(row)] for row in near]
    openings = list(dict.fromkeys([reference, knowledge.default, *proposed[:OPENINGS]]))
    both = itertools.zip_longest(close, proposed[OPENINGS:])
    others = dict.fromkeys(configuration for pair in both for configuration in pair if configuration)
    rest = [c for c in others if c not in openings and c not in knowledge.quarantine]
    return Candidates(
        task=knowledge, seeds=(seeds[0], seeds[1]), openings=openings, others=rest[: max(0, count - len(openings))]
    )


def _why_left_out(candidates: Candidates, left_bytes: int) -> str:
    """Return why a problem cannot be judged where a result is collected, or nothing.

    `left_bytes` is what the outputs of the problems before it leave of `ALL_OUTPUTS_BYTES`.
    """
    reference, task = candidates.all[0], candidates.task
    if reference.algorithm not in {algorithm.name for algorithm in task.family.algorithms}:
        return "what is right is told by another kernel, which is not among the candidates"
    if reason := too_large(task.plan(reference)):
        return reason
    if _output_bytes(candidates) > left_bytes:
        return f"the outputs of all shapes would have more than {ALL_OUTPUTS_BYTES // 2**20} MiB; make another bundle"
    return ""


def _output_bytes(candidates: Candidates) -> int:
    """Return the size in bytes of what one check of a problem reads."""
    return sum(buffer.size_bytes for buffer in read_back(candidates.task.plan(candidates.all[0])))


def _task(request: Request, candidates: Candidates) -> Task:
    return Task(
        problem=request.problem,
        calls=request.calls,
        label=request.label,
        seeds=candidates.seeds,
        configurations=candidates.all,
    )


def _shares(device: Device, requests: Sequence[Request], chosen: Sequence[Candidates]) -> list[Share]:
    """Return what each problem gets: time in equal parts, and by the root of all operations; space by size."""
    works = [math.sqrt(request.calls * max(1.0, request.problem.flops)) for request in requests]
    weights = [1 / len(works) + work / sum(works) for work in works]
    outputs = [_output_bytes(candidates) for candidates in chosen]
    memory = FINALISTS_MEMORY * device.limits.global_memory_bytes
    return [
        Share(
            weight=max(1, round(1e6 * weight)),
            finalists=max(2, min(FINALISTS + 1, int(memory / _size_bytes(candidates)))),
            output_bytes=RESULT_BYTES * output // sum(outputs),
        )
        for weight, candidates, output in zip(weights, chosen, outputs, strict=True)
    ]


def _size_bytes(candidates: Candidates) -> int:
    buffers = candidates.task.plan(candidates.task.default).buffers
    return max(1, sum(buffer.size_bytes for buffer in buffers))


def _agents() -> dict[str, Path]:
    """Return the agents that can be built here, by the name of their target. Raises DeviceSelectionError for none."""
    targets = [*ANDROID.values(), *LINUX.values()]
    usable = [target for target in targets if can_build(target)]
    if not usable:
        build_agent(targets[0])  # raises, with what can be done
    return {target.name: build_agent(target) for target in usable}
