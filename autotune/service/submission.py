"""Turns what a client sends into jobs in the ledger. Everything is checked before anything is queued."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autotune.device.discovery import select
from autotune.errors import DeviceSelectionError, ProblemError, ServiceError, UsageError
from autotune.kernels import find_family, require_kernels
from autotune.kernels.shapes import fitting, parse_lines, parse_shapes
from autotune.lookup.json_table import plain_entry, read_contents
from autotune.model.device import Device
from autotune.model.trial import Request, Winner
from autotune.networks.presets import preset
from autotune.service.forms import MAX_SHAPES, CheckAnswer, JobForm, LineFault, UploadAnswer
from autotune.service.store import ServiceStore
from autotune.service.store.jobs import JobKind, NewJob

DEFAULT_TRIALS = 100
MAX_OPEN_JOBS = 2000
MAX_OPEN_PROBLEMS = 50_000
SUBMITTER_SHARE = 0.5
"""Maximum share of all open jobs and problems that one submitter may have."""
DEVICE_SHARE = 0.1
"""Maximum share that one device may have, since it may never answer."""


class FullError(ServiceError):
    """The service has too much to do already."""


def _of_presets(form: JobForm) -> list[Request]:
    return [request for name in form.presets for request in preset(name, family=form.family)]


def submit(store: ServiceStore, form: JobForm, present: Sequence[Device], submitter: str = "") -> tuple[int, list[str]]:
    """Queue a job. Returns its number, and the shapes of presets that the device cannot hold.

    `present` are devices that workers offer. Raises DeviceSelectionError, UsageError, ConfigurationError, FullError.
    """
    device = chosen_device(form.device, [*store.devices(), *present])
    require_kernels(form.family)
    problem_type = find_family(form.family).problem_type
    own = parse_shapes(form.shapes, "shapes", problem_type) if form.shapes else []
    kept, left_out = fitting(own, _of_presets(form), device.limits)
    if not kept:
        raise UsageError("no shape to tune", hint="give shapes, or presets with shapes that fit the device")
    for family in {request.problem.family for request in kept} if form.algorithms else ():
        for name in form.algorithms:
            find_family(family).algorithm(name)
    if len(kept) > MAX_SHAPES:
        raise UsageError(f"a job has at most {MAX_SHAPES} shapes", hint="split it into several jobs")
    _check_room(store, {device.slug: len(kept)}, submitter)
    trials, seconds = _limits(form)
    job = NewJob(
        kind=JobKind.TUNE,
        device=device.slug,
        requests=tuple(kept),
        trials=trials,
        seconds=seconds,
        algorithms=tuple(dict.fromkeys(form.algorithms)),
        seed=form.seed,
        submitter=submitter,
    )
    return store.jobs.add(job), left_out


def check(store: ServiceStore, form: JobForm, present: Sequence[Device]) -> CheckAnswer:
    """Return what `submit` would queue, without queueing it, and what is wrong with each line of the shapes.

    Raises DeviceSelectionError, UsageError.
    """
    device = chosen_device(form.device, [*store.devices(), *present])
    faults: list[LineFault] = []
    own: list[Request] = []
    for line, found in parse_lines(form.shapes, find_family(form.family).problem_type):
        if fault := _fault(found, device):
            faults.append(LineFault(line=line, message=str(fault)))
        elif isinstance(found, Request):
            own.append(found)
    kept, left_out = fitting(own, _of_presets(form), device.limits)
    trials, seconds = _limits(form)
    pace_s = store.jobs.pace_s(device.slug)
    estimates = [len(kept) * trials * pace_s if trials and pace_s else None, seconds]
    return CheckAnswer(
        faults=faults, sizes=len(kept), left_out=left_out, seconds=min((s for s in estimates if s), default=None)
    )


def _fault(found: Request | UsageError, device: Device) -> UsageError | None:
    """Return why a line cannot be tuned on a device."""
    if isinstance(found, UsageError):
        return found
    try:
        found.problem.check_device(device.limits)
    except ProblemError as error:
        return error
    return None


def _limits(form: JobForm) -> tuple[int | None, float | None]:
    """Return the trials for each problem and the seconds for all; without either, the default number of trials."""
    return (DEFAULT_TRIALS if form.trials is form.seconds is None else form.trials), form.seconds


def chosen_device(selector: str, devices: Iterable[Device]) -> Device:
    """Return the device that `selector` names. `devices` may hold duplicates. Raises DeviceSelectionError."""
    # platform:device numbers are valid only on the machine of a worker
    by_slug = {device.slug: dataclasses.replace(device, selector="") for device in devices}
    if selector in by_slug:
        return by_slug[selector]
    if not by_slug:
        raise DeviceSelectionError("there is no device yet", hint="offer one with autotune worker --server URL")
    try:
        return select(selector, list(by_slug.values()))
    except DeviceSelectionError as error:
        there = ", ".join(sorted(by_slug)[:20])
        raise DeviceSelectionError(f"no single device fits {selector[:80]!r}", hint=f"there are {there}") from error


def take_table(store: ServiceStore, table: bytes, submitter: str = "") -> UploadAnswer:
    """Queue the verification of every winner of an exported table that is not already a measured winner here.

    A winner of the table counts only after a device of that name has confirmed it; it is then stored as measured.
    Raises TableError, FullError.
    """
    contents = read_contents(table)
    holding = {(w.device, w.problem): w.configuration for w in store.best() if w.source == "measured"}
    wanted = [w for w in contents.winners if holding.get((w.device, w.problem)) != w.configuration]
    slugs = sorted({w.device for w in wanted})
    _check_room(store, Counter(w.device for w in wanted), submitter)
    jobs = [store.jobs.add(_verification(slug, [w for w in wanted if w.device == slug], submitter)) for slug in slugs]
    return UploadAnswer(jobs=jobs, accepted=len(wanted), left_out=len(contents.winners) - len(wanted))


def _verification(slug: str, winners: Sequence[Winner], submitter: str) -> NewJob:
    return NewJob(
        kind=JobKind.VERIFY,
        device=slug,
        requests=tuple(Request(problem=winner.problem, label="uploaded") for winner in winners),
        candidates=tuple(json.dumps(plain_entry(winner), allow_nan=False) for winner in winners),
        submitter=submitter,
    )


def _check_room(store: ServiceStore, problems: Mapping[str, int], submitter: str) -> None:
    """Raise FullError when one more job for each device, with these numbers of problems, would exceed a limit."""
    open_jobs = store.jobs.open_counts
    for slug, count in problems.items():
        _check_share(f"for {slug}", open_jobs(device=slug), (1, count), DEVICE_SHARE)
    wanted = (len(problems), sum(problems.values()))
    _check_share(f"of {submitter}", open_jobs(submitter=submitter), wanted, SUBMITTER_SHARE)
    _check_share("", open_jobs(), wanted, 1.0)


def _check_share(whose: str, there: tuple[int, int], wanted: tuple[int, int], share: float) -> None:
    most_jobs, most_problems = max(1, round(share * MAX_OPEN_JOBS)), round(share * MAX_OPEN_PROBLEMS)
    if there[0] + wanted[0] > most_jobs or there[1] + wanted[1] > most_problems:
        text = " ".join(filter(None, (f"{there[0]} jobs with {there[1]} shapes", whose, "are open already")))
        raise FullError(text, hint=f"at most {most_jobs} with {most_problems} are allowed; wait, or cancel some")
