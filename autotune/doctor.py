"""What works on a device: probes in child processes with time limits, and what is done about what does not.

Probes that go together are tried in one kernel first, which is quick where all is well. What fails there, in whatever
way, is tried again one by one. A child that crashes or hangs is replaced, and the next probe goes on in a fresh one.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune import child
from autotune.calibrating import CALIBRATOR, try_calibration
from autotune.checkup import (
    ATOMICS,
    CLOCKS,
    EMPTY_KERNEL,
    HALF_ARITHMETIC,
    IMAGE_VIEWS,
    IMAGES,
    INTEGER_DOT_ARM,
    INTEGER_DOT_KHR,
    LOCAL_MEMORY,
    SUB_GROUP_SIZES,
    SUB_GROUPS,
    VECTOR_TYPES,
    VSTORE_HALF,
    Checkup,
    Finding,
    Health,
    vector_probe,
)
from autotune.errors import WorkerError
from autotune.family import KernelFamily
from autotune.kernels import family_names, find_family
from autotune.problem import VECTOR_WIDTHS, Configuration, Device, DeviceLimits, Fault, Problem
from autotune.profile import find_profile
from autotune.space import SearchSpace
from autotune.trial import Calibration, Job, Timer, Trial, TrialState
from autotune.worker import WORKER, Worker

if TYPE_CHECKING:
    from autotune.device.session import Session

PROBER = (sys.executable, "-m", "autotune.doctor")
"""Starts a child process that runs probes."""

OPENING_LIMIT_S = 60.0
FIRST_LIMIT_S = 20.0
"""For the first try of all that goes into one kernel."""
LEAST_LIMIT_S = 10.0
"""For a group of probes, or one."""
SLOWNESS = 20.0
"""On slow devices the limit is this many times what an empty kernel takes."""
MOST_LIMIT_S = 120.0
CHILDREN = 2
"""That probe at the same time."""
CONFIGURATIONS = 3
"""Of an algorithm, tried until one runs right."""

_GROUPS = (
    tuple(vector_probe("float32", width) for width in VECTOR_WIDTHS),
    (*(vector_probe("float16", width) for width in VECTOR_WIDTHS), VSTORE_HALF),
    tuple(vector_probe(dtype, width) for dtype in ("int8", "int32") for width in VECTOR_WIDTHS),
    (LOCAL_MEMORY, ATOMICS),
    (IMAGES,),
    (IMAGE_VIEWS,),
    (SUB_GROUPS,),
    (HALF_ARITHMETIC,),
    (INTEGER_DOT_KHR,),
    (INTEGER_DOT_ARM,),
    (SUB_GROUP_SIZES,),
)
"""Probes tried together."""
_LEFT_OUT = frozenset(vector_probe(dtype, width) for dtype in VECTOR_TYPES for width in (2, 8))
"""Not in the short form, unless something else goes wrong: building them takes half a second."""
_JOINED = frozenset(_GROUPS[:4])
"""Groups whose probes go into one kernel at first."""


def is_offered(probe: str, limits: DeviceLimits) -> bool:
    """Whether the driver says that it can do what a probe tries."""
    extensions = limits.extensions
    return {
        IMAGES: limits.has_images,
        IMAGE_VIEWS: limits.has_images and "cl_khr_image2d_from_buffer" in extensions,
        SUB_GROUPS: limits.has_sub_groups,
        HALF_ARITHMETIC: limits.has_float16,
        INTEGER_DOT_KHR: "cl_khr_integer_dot_product" in extensions,
        INTEGER_DOT_ARM: "cl_arm_integer_dot_product_int8" in extensions,
        SUB_GROUP_SIZES: "cl_qcom_reqd_sub_group_size" in extensions,
    }.get(probe, True)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Probes to run on one device, in one kernel where that goes."""

    selector: str
    probes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What starts the child processes."""

    prober: Sequence[str] = PROBER
    worker: Sequence[str] = WORKER
    calibrator: Sequence[str] = CALIBRATOR


_COMMANDS = Commands()


def examine(device: Device, *, is_full: bool = True, commands: Commands = _COMMANDS) -> Checkup:
    """Run the probes of the short form, or all; never raises for what a driver does."""
    started = time.monotonic()
    findings = _Examiner(device, commands.prober, is_full=is_full).findings()
    if is_full and findings[0].health is Health.WORKS:
        sound = Checkup(findings=findings, is_full=False).applied_to(device)
        findings += (_clocks(device, commands), *_algorithms(sound, commands.worker))
    return Checkup(findings=findings, is_full=is_full, seconds=round(time.monotonic() - started, 3))


class _Examiner:
    """The probes of one device, shared out among children."""

    def __init__(self, device: Device, command: Sequence[str], *, is_full: bool) -> None:
        self._device = device
        self._is_full = is_full
        self._command = command
        self._limit_s = MOST_LIMIT_S

    def findings(self) -> tuple[Finding, ...]:
        """That of the empty kernel first, and no other where that is broken."""
        limits = self._device.limits
        shown = [tuple(probe for probe in group if is_offered(probe, limits)) for group in _GROUPS]
        offered = [group for group in shown if group]
        missing = [probe for group in _GROUPS for probe in group if not is_offered(probe, limits)]
        joined = [group for group in offered if group in _JOINED]
        tasks = iter([joined, *([group] for group in offered if group not in _JOINED)])
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(child.Child(self._command)) for _ in range(CHILDREN)]
            with ThreadPoolExecutor(CHILDREN) as threads:
                found = [f for part in threads.map(lambda prober: self._serve(prober, tasks), children) for f in part]
        by_probe = {finding.probe: finding for finding in found}
        if by_probe[EMPTY_KERNEL].health is Health.BROKEN:
            return (by_probe[EMPTY_KERNEL],)
        order = (EMPTY_KERNEL, *(probe for group in offered for probe in group))
        ordered = [by_probe[probe] for probe in order if probe in by_probe]
        return (*ordered, *(Finding(probe=probe, health=Health.MISSING) for probe in missing))

    def _serve(self, prober: child.Child, tasks: Iterator[list[tuple[str, ...]]]) -> list[Finding]:
        """What one child finds of the tasks that the other leaves it."""
        found: list[Finding] = []
        for groups in tasks:
            found += self._joined(prober, groups) if groups[0] in _JOINED else self._group(prober, groups[0])
        return found

    def _joined(self, prober: child.Child, groups: Sequence[tuple[str, ...]]) -> list[Finding]:
        """All at once; where that fails, group by group, unless not even an empty kernel works."""
        probes = [probe for group in groups for probe in group if self._is_full or probe not in _LEFT_OUT]
        found = self._ask(prober, (EMPTY_KERNEL, *probes), FIRST_LIMIT_S)
        if all(finding.health is Health.WORKS for finding in found):
            return found
        started = time.monotonic()
        [empty] = self._ask(prober, (EMPTY_KERNEL,), OPENING_LIMIT_S)
        if empty.health is Health.BROKEN:
            return [empty]
        self._limit_s = min(MOST_LIMIT_S, max(LEAST_LIMIT_S, SLOWNESS * (time.monotonic() - started)))
        return [empty, *(finding for group in groups for finding in self._group(prober, group))]

    def _group(self, prober: child.Child, group: tuple[str, ...]) -> list[Finding]:
        """Those of a group; what fails together is tried one by one."""
        findings = self._ask(prober, group, self._limit_s)
        if len(group) == 1:
            return findings
        sound = [finding for finding in findings if finding.health is Health.WORKS]
        suspects = [finding.probe for finding in findings if finding.health is Health.BROKEN]
        return [*sound, *(self._ask(prober, (probe,), self._limit_s)[0] for probe in suspects)]

    def _ask(self, prober: child.Child, probes: tuple[str, ...], limit_s: float) -> list[Finding]:
        message = Examination(selector=self._device.selector, probes=probes)
        try:
            answer = prober.ask(message, {"opening": OPENING_LIMIT_S, "probe": limit_s})
        except WorkerError as error:
            answer = dict.fromkeys(probes, error.message)
        if isinstance(answer, child.Loss):
            answer = dict.fromkeys(probes, answer.message)
        return [_finding(probe, answer[probe]) for probe in probes]


def _finding(probe: str, complaint: str) -> Finding:
    health = Health.BROKEN if complaint else Health.WORKS
    return Finding(probe=probe, health=health, message=" ".join(complaint.split())[:500])


def _clocks(device: Device, commands: Commands) -> Finding:
    found = try_calibration(device.selector, command=commands.calibrator)
    if isinstance(found, Calibration):
        return _finding(CLOCKS, "" if found.timer is Timer.EVENT else found.reason)
    return _finding(CLOCKS, found)


# Algorithms


def _algorithms(device: Device, command: Sequence[str]) -> Iterator[Finding]:
    """Each algorithm on a small problem, judged by its family; `device` is without what is broken already."""
    with Worker(command) as worker:
        for name in family_names():
            family = find_family(name)
            for algorithm in family.algorithms:
                yield _try_algorithm(device, family, algorithm.name, worker)


def _try_algorithm(device: Device, family: KernelFamily, algorithm: str, worker: Worker) -> Finding:
    probe, fault = f"{family.name} {algorithm}", Fault(family=family.name, algorithm=algorithm)
    found = _to_try(device, family, algorithm)
    if found is None:
        return Finding(probe=probe, health=Health.MISSING)
    problem, configurations = found
    trials: list[Trial] = []
    for configuration in configurations:
        try:
            trials.append(worker.run(_job(device, problem, configuration)))
        except WorkerError as error:
            return Finding(probe=probe, health=Health.BROKEN, message=error.message)
        if trials[-1].state is TrialState.COMPLETE:
            break
    failed = [t for t in trials if t.state is not TrialState.COMPLETE]
    message = f"{problem.label}: {failed[0].state.value}: {failed[0].message}" if failed else ""
    health = Health.BROKEN if len(failed) == len(trials) else Health.WORKS
    return Finding(probe=probe, health=health, message=" ".join(message.split())[:500], fault=fault)


def _to_try(device: Device, family: KernelFamily, algorithm: str) -> tuple[Problem, list[Configuration]] | None:
    """The first example for which the algorithm has valid configurations, and some of these; None without any."""
    profile = find_profile(device)
    for problem in family.examples():
        overrides = profile.overrides_for(family.name)
        space = SearchSpace(family, problem, device.limits, algorithms=[algorithm], overrides=overrides)
        if len(space):
            ranked = family.candidates(problem, device.limits, profile.starting(family.name))
            best = [c for c in ranked if c.algorithm == algorithm][:1]
            rows = [len(space) * part // CONFIGURATIONS for part in range(CONFIGURATIONS)]
            return problem, list(dict.fromkeys([*best, *(space[row] for row in rows)]))[:CONFIGURATIONS]
    return None


def _job(device: Device, problem: Problem, configuration: Configuration) -> Job:
    return Job(
        selector=device.selector,
        problem=problem,
        configuration=configuration,
        build_options=find_profile(device).build_options,
        samples=1,
        min_sample_ns=1,
        min_sample_ticks=1,
    )


# The child


def serve() -> None:
    """The child: run probes until the input ends."""
    sessions: dict[str, Session] = {}

    def probe(message: Examination, entering: Callable[[str], None]) -> dict[str, str]:
        entering("opening")
        from autotune.device.probes import run_probes
        from autotune.device.session import Session

        if message.selector not in sessions:
            sessions[message.selector] = Session(message.selector)
        entering("probe")
        return run_probes(sessions[message.selector], message.probes)

    child.serve(probe)


if __name__ == "__main__":
    # By its name, as what is sent to this process was pickled under that.
    from autotune.doctor import serve as serve_by_name

    serve_by_name()
