"""Checks a kernel on this driver before its first use: on small inputs, by the family's check, in a child process.

A configuration that was not measured with this driver may give wrong results, abort the process, or never end. The
child runs it on a small problem of the same kind, for which the template renders the same source. The verdict is
stored for later processes; a configuration that fails is replaced by the next answer of the lookup.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.codec import parse, read, write
from autotune.device.programs import digest
from autotune.errors import AutotuneError, ProblemError, TableError, WorkerError
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.model.trial import BUILD_LIMIT_S, Job, Timer, TrialState
from autotune.paths import append_at_once
from autotune.space.family import KernelFamily

LOG = logging.getLogger("autotune.runtime")

RUN_LIMIT_S = 10.0
ANNOUNCED_AFTER_S = 2.0
"""A first call that takes longer logs what it is waiting for."""
IDLE_S = 60.0
"""A child that has been idle for this time is ended."""
TRUSTED_LATENESS_S = 24 * 3600.0
"""A kernel that timed out is tried again after this time: the machine may have been busy."""

FILE_NAME = "verdicts.jsonl"
MAX_FILE_BYTES = 2**20

_PERIODS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 2048)
_MOST_BATCHED = 3
_MOST_FLOPS = 2**28
"""Limit for a small problem: a tenth of a second for the plainest kernel on a slow processor."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a check."""

    failure: str
    """What went wrong; empty where the results were right."""
    was_late: bool = False
    at_s: float = 0.0
    """Seconds since 1970."""

    @property
    def is_trusted(self) -> bool:
        return not self.was_late or 0 <= time.time() - self.at_s < TRUSTED_LATENESS_S


class Verdicts:
    """Verdicts by key, in memory and in a file of JSON lines that processes append to.

    The file is a cache: errors of reading and writing are ignored, lines that are not verdicts are skipped, and a file
    that grew too large is replaced by a new one.
    """

    def __init__(self, path: Path | None) -> None:
        """Without a path, verdicts last as long as the process."""
        self._path = path
        self._known = self._read()

    @property
    def is_empty(self) -> bool:
        return not self._known

    def get(self, key: str) -> Verdict | None:
        verdict = self._known.get(key)
        return verdict if verdict and verdict.is_trusted else None

    def add(self, key: str, verdict: Verdict) -> None:
        self._known[key] = verdict
        line = json.dumps({"key": key, **write(verdict)})
        # A line begins with a newline too, so that it does not join one that a dying process left unfinished.
        with suppress(OSError):
            self._append(f"\n{line}\n".encode())

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if self._path.stat().st_size > MAX_FILE_BYTES:
                self._path.unlink()
        append_at_once(self._path, line)

    def _read(self) -> dict[str, Verdict]:
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                lines = file.read(2 * MAX_FILE_BYTES).splitlines()
        except OSError:
            return {}
        return dict(found for found in map(_read_line, lines) if found is not None)


def _read_line(line: bytes) -> tuple[str, Verdict] | None:
    try:
        node = parse(line)
        return node.member("key").text(), read(Verdict, node, ignored=("key",))
    except TableError:
        return None


class Checker:
    """Runs checks on one device in a child process, which starts when needed and ends after IDLE_S without work."""

    def __init__(self, selector: str) -> None:
        self._selector = selector
        self._worker = Worker(selector=selector)
        self._lock = threading.Lock()
        self._idle: threading.Timer | None = None

    def start(self) -> None:
        """Start the child now, in expectation of a check. Errors are left to that check."""
        with self._lock, suppress(AutotuneError):
            self._worker.start()
            self._close_later()

    def check(self, problem: Problem, configuration: Configuration, build_options: Sequence[str]) -> Verdict:
        """Check a configuration. Raises WorkerError when no child can be started."""
        job = Job(
            selector=self._selector,
            problem=problem,
            configuration=configuration,
            build_options=tuple(build_options),
            samples=1,
            min_sample_ns=1,
            min_sample_ticks=0,
            probe=False,
            timer=Timer.HOST,
            build_limit_s=BUILD_LIMIT_S,
            run_limit_s=RUN_LIMIT_S,
        )
        with self._lock:
            if self._idle:
                self._idle.cancel()
            try:
                trial = self._worker.run(job)
            finally:
                self._close_later()
        failure = "" if trial.state is TrialState.COMPLETE else f"{trial.state.value}: {trial.message}"[:300]
        return Verdict(
            failure=failure, was_late=trial.state in (TrialState.TIMED_OUT, TrialState.CUT_SHORT), at_s=time.time()
        )

    def _close_later(self) -> None:
        self._idle = threading.Timer(IDLE_S, self._close_idle)
        self._idle.daemon = True
        self._idle.start()

    def _close_idle(self) -> None:
        with self._lock:
            if self._idle is threading.current_thread():
                self._worker.close()


_checkers: dict[str, Checker] = {}
_checkers_lock = threading.Lock()


def _forget_after_fork() -> None:
    """The children belong to the process that started them."""
    global _checkers, _checkers_lock
    _checkers, _checkers_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def checker_of(selector: str) -> Checker:
    """Return this process's checker of a device, given as ``platform:device``."""
    with _checkers_lock:
        return _checkers.setdefault(selector, Checker(selector))


class Verifier:
    """Decides whether configurations may be used on one device."""

    def __init__(self, device: Device, folder: Path | None) -> None:
        """`folder` is that of the built programs; without one, verdicts last as long as the process."""
        self._device = device
        self._verdicts = Verdicts(folder / FILE_NAME if folder else None)

    def expect_checks(self) -> None:
        """Start the child early if nothing has been checked on this machine yet."""
        if self._verdicts.is_empty and self._device.selector:
            checker_of(self._device.selector).start()

    def failure(
        self,
        family: KernelFamily,
        problem: Problem,
        configuration: Configuration,
        build_options: Sequence[str],
        recipe: str,
        is_sound: Callable[[], bool] = lambda: False,
    ) -> str:
        """Return what is wrong with a configuration; empty where its results are right.

        `recipe` is equal for equal sources. Where `is_sound` returns True, no check is needed, and that is stored as
        the verdict. Raises WorkerError when it cannot be checked.
        """
        device = self._device
        key = digest(device.slug, device.name, device.driver, device.version, recipe, *build_options)[:40]
        verdict = known = self._verdicts.get(key)
        if (known is None or known.failure) and is_sound():
            verdict = Verdict(failure="", at_s=time.time())
        if verdict is None:
            verdict = self._check(family, problem, configuration, build_options)
        if verdict is not known:
            self._verdicts.add(key, verdict)
        return verdict.failure

    def _check(
        self, family: KernelFamily, problem: Problem, configuration: Configuration, build_options: Sequence[str]
    ) -> Verdict:
        unable = f"{configuration.algorithm} cannot be checked before its first use on {self._device.slug}"
        hint = "pass verify=False if you have verified it yourself"
        if not self._device.selector:
            raise WorkerError(f"{unable}: the driver does not list the device", hint=hint)
        small = small_problem(family, problem, configuration, self._device.limits)
        try:
            return checker_of(self._device.selector).check(small, configuration, build_options)
        except WorkerError as error:
            raise WorkerError(f"{unable}: {error.message}", hint=hint) from error


def small_problem(
    family: KernelFamily, problem: Problem, configuration: Configuration, limits: DeviceLimits
) -> Problem:
    """Return a small problem of the same kind for which a configuration is valid.

    Where possible it renders the same source and keeps two work-groups along each axis that has several. Returns
    `problem` itself where no smaller one is valid.
    """
    plan = family.plan(problem, configuration)
    best, best_score = problem, 0
    for period in _PERIODS:
        for candidate in _shrunk(problem, period):
            if family.violations(candidate, configuration, limits):
                continue
            found = family.plan(candidate, configuration)
            score = 1 + 2 * _covers(found, plan) + (found.template_values == plan.template_values)
            if score > best_score:
                best, best_score = candidate, score
            if score == 4:  # the highest score
                return best
    return best


def _shrunk(problem: Problem, period: int) -> Iterator[Problem]:
    """Yield the problem with sizes above four periods cut to three and the remainder; then with a smaller batch too."""
    sizes = [size if size <= 4 * period else 3 * period + size % period for size in problem.size_vector]
    named = zip(problem.size_axes, sizes, strict=True)
    fewer = [min(size, _MOST_BATCHED) if name == "batch" else size for name, size in named]
    for wanted in (sizes, fewer):
        with suppress(ProblemError):
            candidate = problem if tuple(wanted) == problem.size_vector else problem.resized(wanted)
            if candidate.flops <= _MOST_FLOPS:
                yield candidate


def _covers(small: Plan, plan: Plan) -> bool:
    """Return whether launches keep two work-groups along axes with several; work-items if the driver groups them."""
    if len(small.launches) != len(plan.launches):
        return False
    for less, more in zip(small.launches, plan.launches, strict=True):
        if less.kernel != more.kernel or less.local_size != more.local_size:
            return False
        groups = less.local_size or (1,) * len(less.global_size)
        for of_less, of_more, group in zip(less.global_size, more.global_size, groups, strict=True):
            if of_less < min(of_more, 2 * group):
                return False
    return True


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Log what is being waited for, if it takes more than ANNOUNCED_AFTER_S."""
    timer = threading.Timer(
        ANNOUNCED_AFTER_S, LOG.warning, (f"{what} is being compiled and checked; the first time may take a minute",)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
