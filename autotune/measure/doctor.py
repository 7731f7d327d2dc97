"""Finds out what works on a device, with probes in child processes under time limits.

Related probes are first tried as one program, which is quick when everything works. Those that fail there, in whatever
way, are tried again one by one. A child that crashes or hangs is replaced, and the next probe runs in a fresh one.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence

from autotune import child
from autotune.device.clocks import try_calibration
from autotune.device.link import split
from autotune.device.processors import is_busy
from autotune.device.profile import find_profile
from autotune.errors import WorkerError
from autotune.kernels import family_names, find_family
from autotune.measure.worker import Worker
from autotune.model import checkup
from autotune.model.checkup import Checkup, Finding, Health
from autotune.model.configuration import Configuration
from autotune.model.device import VECTOR_WIDTHS, Device, Fault
from autotune.model.problem import NUMBER_TYPES, Problem
from autotune.model.trial import Calibration, Job, Timer, Trial, TrialState
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace

OPENING_LIMIT_S = 60.0
FIRST_LIMIT_S = 20.0
"""Time limit of the first attempt, which tries all joined groups as one program."""
LEAST_LIMIT_S = 10.0
"""Least time limit for a group of probes, or for a single one."""
SLOWNESS = 20.0
"""On slow devices the limit is this many times the time of the empty kernel."""
MOST_LIMIT_S = 120.0
"""A single probe that is late is asked once more with this limit; if it exceeds that on a quiet machine, it hangs."""
CONFIGURATIONS = 3
"""Configurations of an algorithm that are tried, until one gives a right result."""


def _vectors(*types: str, widths: Sequence[int] = VECTOR_WIDTHS) -> tuple[str, ...]:
    return tuple(checkup.vector_probe(dtype, width) for dtype in types for width in widths)


_GROUPS = (
    _vectors("float32"),
    (*_vectors("float16"), checkup.VSTORE_HALF),
    _vectors(*(name for name, number in NUMBER_TYPES.items() if number.is_whole)),
    (checkup.LOCAL_MEMORY, checkup.ATOMICS),
    (checkup.IMAGES,),
    (checkup.IMAGE_VIEWS,),
    (checkup.IMAGE_LINES,),
    (checkup.SUB_GROUPS,),
    (checkup.SUB_GROUP_SHUFFLES,),
    (checkup.HALF_ARITHMETIC,),
    (checkup.INTEGER_DOT_KHR,),
    (checkup.INTEGER_DOT_ARM,),
    (checkup.INTEGER_DOT_PTX,),
    (checkup.MATRIX_UNITS,),
    (checkup.WIDE_LOCAL_MEMORY,),
    (checkup.WIDEST_LOCAL_MEMORY,),
    (checkup.SUB_GROUP_SIZES,),
)
"""Probes tried together."""
_LEFT_OUT = frozenset(_vectors(*NUMBER_TYPES, widths=(2, 8)))
"""Probes left out of the short form unless another one fails: building them takes half a second."""
_JOINED = frozenset(_GROUPS[:5])
"""Groups whose probes are first tried together as one program."""


def examine(device: Device, *, is_full: bool = True, worker: Worker | None = None) -> Checkup:
    """Run the probes of the short form, or all of them; failures of the driver become findings, never exceptions.

    A `worker` that has already built something on the device makes the short form a second or more faster.
    """
    started = time.monotonic()
    with contextlib.nullcontext(worker) if worker else Worker() as prober:
        findings = _Examiner(device, prober, is_full=is_full).findings()
        if is_full and findings[0].health is Health.WORKS:
            sound = Checkup(findings=findings, is_full=False).applied_to(device)
            findings += (_clocks(device), *_algorithms(sound, prober))
    return Checkup(findings=findings, is_full=is_full, seconds=round(time.monotonic() - started, 3))


class _Examiner:
    """Runs the probes of one device in a worker."""

    def __init__(self, device: Device, worker: Worker, *, is_full: bool) -> None:
        self._device = device
        self._is_full = is_full
        self._worker = worker
        self._limit_s = MOST_LIMIT_S

    def findings(self) -> tuple[Finding, ...]:
        """Return the finding of the empty kernel first; it is the only one when that kernel is broken."""
        limits = self._device.limits
        shown = [tuple(probe for probe in group if checkup.feature_of(probe).is_offered(limits)) for group in _GROUPS]
        offered = [group for group in shown if group]
        missing = [probe for group in _GROUPS for probe in group if not checkup.feature_of(probe).is_offered(limits)]
        found = self._joined([group for group in offered if group in _JOINED])
        by_probe = {finding.probe: finding for finding in found}
        if by_probe[checkup.EMPTY_KERNEL].health is Health.BROKEN:
            return (by_probe[checkup.EMPTY_KERNEL],)
        for group in offered:
            if group not in _JOINED:
                by_probe |= {finding.probe: finding for finding in self._group(group)}
        order = (checkup.EMPTY_KERNEL, *(probe for group in offered for probe in group))
        ordered = [by_probe[probe] for probe in order if probe in by_probe]
        return (*ordered, *(Finding(probe=probe, health=Health.MISSING) for probe in missing))

    def _joined(self, groups: Sequence[tuple[str, ...]]) -> list[Finding]:
        """Try all groups at once; if a probe fails, try group by group, unless even the empty kernel is broken."""
        probes = [probe for group in groups for probe in group if self._is_full or probe not in _LEFT_OUT]
        found = self._ask((checkup.EMPTY_KERNEL, *probes), FIRST_LIMIT_S)
        if all(finding.health is Health.WORKS for finding in found):
            return found
        started = time.monotonic()
        [empty] = self._ask((checkup.EMPTY_KERNEL,), OPENING_LIMIT_S)
        if empty.health is Health.BROKEN:
            return [empty]
        self._limit_s = min(MOST_LIMIT_S, max(LEAST_LIMIT_S, SLOWNESS * (time.monotonic() - started)))
        return [empty, *(finding for group in groups for finding in self._group(group))]

    def _group(self, group: tuple[str, ...]) -> list[Finding]:
        """Try the probes of a group together, then those that failed one by one."""
        findings = self._ask(group, self._limit_s)
        if len(group) == 1:
            return findings
        sound = [finding for finding in findings if finding.health is Health.WORKS]
        suspects = [finding.probe for finding in findings if finding.health is Health.BROKEN]
        return [*sound, *(self._ask((probe,), self._limit_s)[0] for probe in suspects)]

    def _ask(self, probes: tuple[str, ...], limit_s: float) -> list[Finding]:
        answer = self._examined(probes, limit_s)
        if len(probes) == 1 and _is_late(answer):
            answer = self._examined(probes, MOST_LIMIT_S)
        if isinstance(answer, child.Loss) and answer.cause is child.Cause.DIED and split(self._device.selector):
            answer = self._examined(probes, limit_s)  # maybe not the driver ended but the link
        if isinstance(answer, WorkerError):
            return [_finding(probe, answer.message, is_open=True) for probe in probes]
        if not isinstance(answer, child.Loss):
            return [_finding(probe, answer[probe]) for probe in probes]
        is_ours, is_open = answer.cause is child.Cause.FAULT, answer.was_killed
        if answer.cause is child.Cause.LATE:
            is_open = is_busy() or answer.phase != "probe"  # a probe does not open the device
        return [_finding(probe, answer.message, is_ours=is_ours, is_open=is_open) for probe in probes]

    def _examined(self, probes: tuple[str, ...], limit_s: float) -> dict[str, str] | child.Loss | WorkerError:
        limits_s = {"start": OPENING_LIMIT_S, "opening": OPENING_LIMIT_S, "probe": limit_s}
        try:
            return self._worker.examine(self._device.selector, probes, limits_s)
        except WorkerError as error:
            return error


def _is_late(answer: object) -> bool:
    return isinstance(answer, child.Loss) and answer.cause is child.Cause.LATE and answer.phase == "probe"


def _finding(probe: str, complaint: str, *, is_ours: bool = False, is_open: bool = False) -> Finding:
    health = Health.BROKEN if complaint else Health.WORKS
    message = " ".join(complaint.split())[:500]
    return Finding(probe=probe, health=health, message=message, is_ours=is_ours, is_open=is_open)


def _clocks(device: Device) -> Finding:
    found = try_calibration(device.selector)
    if isinstance(found, Calibration):
        return _finding(checkup.CLOCKS, "" if found.timer is Timer.EVENT else found.reason)
    return _finding(checkup.CLOCKS, found)


# Algorithms


def _algorithms(device: Device, worker: Worker) -> Iterator[Finding]:
    """Try each algorithm on a small problem, verified by its family; `device` omits features found to be broken."""
    for name in family_names():
        family = find_family(name)
        for algorithm in family.algorithms:
            yield _try_algorithm(device, family, algorithm.name, worker)


def _try_algorithm(device: Device, family: KernelFamily, algorithm: str, worker: Worker) -> Finding:
    probe = f"{family.name} {algorithm}"
    found = _to_try(device, family, algorithm)
    if found is None:
        return Finding(probe=probe, health=Health.MISSING)
    problem, configurations = found
    trials: list[Trial] = []
    for configuration in configurations:
        try:
            trials.append(worker.run(_job(device, problem, configuration)))
        except WorkerError as error:
            return Finding(probe=probe, health=Health.BROKEN, message=error.message, is_open=True)
        if trials[-1].state is TrialState.COMPLETE:
            break
    failed = [t for t in trials if t.state is not TrialState.COMPLETE]
    message = f"{problem.label}: {failed[0].state.value}: {failed[0].message}" if failed else ""
    health = Health.BROKEN if len(failed) == len(trials) else Health.WORKS
    is_ours = all(trial.state is TrialState.TOOL_FAILED for trial in trials)
    is_open = health is Health.BROKEN and any(trial.state is TrialState.CUT_SHORT for trial in trials)
    fault = None if is_ours or is_open else Fault(family=family.name, algorithm=algorithm)
    text = " ".join(message.split())[:500]
    return Finding(probe=probe, health=health, message=text, fault=fault, is_ours=is_ours, is_open=is_open)


def _to_try(device: Device, family: KernelFamily, algorithm: str) -> tuple[Problem, list[Configuration]] | None:
    """Return the first example with valid configurations of the algorithm, and some of them; None if there is none."""
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
