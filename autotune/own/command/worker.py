"""Measures by running commands: writes the files of a configuration, builds, checks, and reads the number."""

import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Self

from autotune.child import signal_name
from autotune.codec import printable
from autotune.device.processors import is_busy, load
from autotune.errors import BuildError, WorkerError
from autotune.model.configuration import Value
from autotune.model.trial import MAX_TIME_NS, Job, Measurement, Timer, Trial, TrialState
from autotune.own.command.family import CommandFamily
from autotune.own.command.format import MEMBER, NANOSECONDS, MetricEntry, words_of

LONG_S = 2.0
"""Runs that last longer, all of a trial together, are not repeated."""
MOST_OUTPUT_BYTES = 16 * 2**20
"""The end of the output that is read."""
GRACE_S = 5.0
"""How long a process may take to end once it was killed."""
SLOWER_BUILD = 3.0
"""A build may take this many times the longest so far."""
BEFORE = ".before-autotune"
"""Ending of the copies of files as they were, which a run that was killed leaves for the next."""


class _FailedError(Exception):
    """A command that ended a trial, with the state of the trial."""

    def __init__(self, state: TrialState, message: str) -> None:
        super().__init__(message)
        self.state = state


class CommandWorker:
    """Runs jobs of a command file's family, one at a time. A context manager; leaving it ends what runs."""

    holder = None
    waited_s = 0.0

    def __init__(self, family: CommandFamily) -> None:
        self._family = family
        self._command = family.file.command
        self._folder = (family.file.path.parent / self._command.folder).resolve()
        self._built: tuple[list[str], dict[str, str]] | None = None
        """Command and files of what was built last."""
        self._longest_build_s = 0.0
        self._has_written = False
        """Whether what an earlier run may have left was written back."""
        self._created: set[Path] = set()
        """Files that there were not before."""
        self._turn = threading.Lock()
        """Held while a process is started and while files are written, so that nothing follows the end."""
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.phase = ""
        """What runs now: ``build`` or ``run``; empty between jobs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Do nothing: no process waits for jobs."""

    def prepare(self, job: Job) -> None:
        """Do nothing: the files that a build reads and writes may be those of the command that runs now."""

    def run(self, job: Job) -> Trial:
        """Build if need be, check and measure. Raises WorkerError when a command cannot be started."""
        values = self._family.values_of(job.problem, job.configuration)
        try:
            build_s = self._build(job, values)
            return Trial(
                configuration=job.configuration,
                state=TrialState.COMPLETE,
                measurement=self._measure(job, values, build_s),
                seed=job.seed,
            )
        except _FailedError as error:
            return Trial(
                configuration=job.configuration, state=error.state, message=printable(str(error)), seed=job.seed
            )
        finally:
            self.phase = ""

    def close(self) -> None:
        """End what runs at once, from any thread, and write back the files as they were. Raises WorkerError."""
        self._ending.set()
        with self._turn:
            if self._process is not None:
                _kill(self._process)
            try:
                self._restore()
            except OSError as error:
                raise WorkerError(f"{error.filename} could not be written back: {error.strerror or error}") from error

    def _build(self, job: Job, values: Mapping[str, Value]) -> float:
        """Write the files and build, unless that was done last; return how long that took, in seconds."""
        self.phase = "build"
        command = words_of(self._command.build, values)
        try:
            files = self._family.files(values)
        except BuildError as error:
            raise _FailedError(TrialState.COMPILE_FAILED, f"build: {error.message}") from error
        if (command, files) == self._built:
            return 0.0
        began, self._built = time.monotonic(), None
        try:
            self._write(files)
        except OSError as error:
            raise WorkerError(f"cannot write {error.filename}: {error.strerror or error}") from error
        if command:
            limit_s = min(self._command.limit_s, max(job.build_limit_s, SLOWER_BUILD * self._longest_build_s))
            self._run(command, {}, limit_s, TrialState.COMPILE_FAILED)
        took_s, self._built = time.monotonic() - began, (command, files)
        self._longest_build_s = max(self._longest_build_s, took_s)
        return took_s

    def _write(self, files: Mapping[str, str]) -> None:
        """Write the files of a configuration, after a copy of each as it was."""
        with self._turn:
            if self._ending.is_set():
                raise _ended()
            if not self._has_written:
                self._restore()
                self._has_written = True
            for name, text in files.items():
                path = self._folder / name
                before = path.with_name(path.name + BEFORE)
                if not path.exists():
                    self._created.add(path)
                elif path not in self._created and not before.exists():
                    unfinished = before.with_name(before.name + "~")
                    unfinished.write_bytes(path.read_bytes())
                    unfinished.replace(before)
                _write(path, text.encode())

    def _restore(self) -> None:
        self._built = None
        for path in self._created:
            path.unlink(missing_ok=True)
        self._created.clear()
        for path in map(self._folder.joinpath, self._command.files):
            before = path.with_name(path.name + BEFORE)
            if before.exists():
                _write(path, before.read_bytes())
                before.unlink()

    def _measure(self, job: Job, values: Mapping[str, Value], build_s: float) -> Measurement:
        self.phase = "run"
        command, ends = self._command, time.monotonic() + job.run_limit_s
        variables = self._family.environment(values)

        def run(words: Sequence[str], refused: TrialState) -> str:
            left_s = ends - time.monotonic()
            state = TrialState.TOO_SLOW if job.is_cut_off else TrialState.CUT_SHORT
            if left_s <= 0:
                raise _FailedError(state, f"run: the trial took more than {job.run_limit_s:.3g} s")
            return self._run(words_of(words, values), variables, min(left_s, command.limit_s), refused, late=state)

        checking_s = 0.0
        for _ in range(max(int(job.verify), job.verifications) if command.check else 0):
            began = time.monotonic()
            self._expect(run(command.check, TrialState.WRONG_RESULT), "check")
            checking_s += time.monotonic() - began
        samples: list[float] = []
        first, least = time.monotonic(), 1 if command.check else max(1, job.verifications)
        while len(samples) < least or not _is_enough(samples, job, time.monotonic() - first):
            self._ending.wait(job.pause_ns / 1e9)
            began = time.monotonic()
            output = run(command.run, TrialState.LAUNCH_FAILED)
            took_s = time.monotonic() - began
            if not command.check:
                self._expect(output, "run")
            samples.append(_time_ns(self._family.file.metric, output, took_s))
        return Measurement(
            time_ns=statistics.median(samples),
            samples_ns=tuple(samples),
            calls_per_sample=1,
            timer=Timer.HOST,
            build_ns=build_s * 1e9,
            inputs_ns=checking_s * 1e9,
        )

    def _expect(self, output: str, name: str) -> None:
        if not re.search(self._command.expect, output):
            raise _FailedError(
                TrialState.WRONG_RESULT, f"{name}: the output lacks {self._command.expect!r}: {_end_of(output)}"
            )

    def _run(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        limit_s: float,
        refused: TrialState,
        late: TrialState = TrialState.CUT_SHORT,
    ) -> str:
        """Run a command with further variables of the environment, for at most so many seconds; return its output.

        Raises _FailedError unless its exit status is 0; then the trial is in the state `refused`, in that of a crash,
        or, where it took too long, in the state `late`, or TIMED_OUT if it had all of the file's limit.
        """
        with tempfile.TemporaryFile() as output:
            process = self._started(command, variables, output.fileno())
            is_late = False
            try:
                process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                is_late = True
                _kill(process)
            finally:
                self._process = None
            output.seek(max(0, output.seek(0, os.SEEK_END) - MOST_OUTPUT_BYTES))
            text = output.read().decode("utf-8", "replace")
        what = f"{self.phase}: {command[0]}"
        if is_late:
            state = TrialState.TIMED_OUT if limit_s >= self._command.limit_s and not is_busy() else late
            raise _FailedError(state, f"{what} took more than {limit_s:.3g} s (the machine's load was {load():.1f})")
        if process.returncode < 0:
            # Systems short of memory kill a process so, which may be no fault of its own.
            is_killed = -process.returncode == getattr(signal, "SIGKILL", None)
            state = TrialState.CUT_SHORT if is_killed else TrialState.CRASHED
            raise _FailedError(state, f"{what} was killed by {signal_name(-process.returncode)}. {_end_of(text)}")
        if process.returncode:
            raise _FailedError(refused, f"{what} ended with exit status {process.returncode}. {_end_of(text)}")
        return text

    def _started(self, command: Sequence[str], variables: Mapping[str, str], output: int) -> "subprocess.Popen[bytes]":
        with self._turn:
            if self._ending.is_set():
                raise _ended()
            try:
                self._process = subprocess.Popen(  # noqa: S603 - what the user's file says
                    command,
                    cwd=self._folder,
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is the parent's to handle
                )
            except OSError as error:
                raise WorkerError(f"cannot run {command[0]} in {self._folder}: {error.strerror or error}") from error
            return self._process


def _ended() -> _FailedError:
    return _FailedError(TrialState.CUT_SHORT, "the search has ended")


def _is_enough(samples: Sequence[float], job: Job, seconds: float) -> bool:
    """Return whether a trial needs no more samples after so many seconds."""
    if seconds > LONG_S or len(samples) >= job.samples or samples[-1] > job.give_up_above_ns:
        return True
    return len(samples) >= Job.FEW and max(samples) <= (1 + job.agreement) * min(samples)


def _time_ns(metric: MetricEntry, output: str, took_s: float) -> float:
    """Return the number of an output as a time in nanoseconds, of which less is better.

    For a number that is better higher it is the time of one unit, if the number counts these by the second.
    """
    found: object = took_s
    if metric.pattern:
        found = next(iter(re.findall(metric.pattern, output)[-1:]), None)
    elif metric.json:
        found = _member(output, metric.json)
    try:
        value = float(str(found))
    except ValueError:
        place = metric.pattern or metric.json
        raise _FailedError(
            TrialState.LAUNCH_FAILED, f"run: the output has no number at {place!r}: {_end_of(output)}"
        ) from None
    time_ns = math.inf
    if math.isfinite(value) and value > 0:
        time_ns = 1e9 / value if metric.better == "higher" else value * NANOSECONDS[metric.unit or "s"]
    if time_ns > MAX_TIME_NS:
        raise _FailedError(TrialState.LAUNCH_FAILED, f"run: {value:g} is not a number that can be improved")
    return time_ns


def _member(output: str, path: str) -> object:
    """Return what JSON has at a path; None if that is nowhere. The JSON may follow, or be followed by, other lines."""
    decoder, lines = json.JSONDecoder(), output.splitlines(keepends=True)
    for line, end in zip(lines, accumulate(map(len, lines)), strict=True):
        if line.lstrip()[:1] not in ("[", "{"):
            continue
        with contextlib.suppress(ValueError, LookupError, TypeError):
            value = decoder.raw_decode(output, end - len(line.lstrip()))[0]
            for name, number in MEMBER.findall(path):
                value = value[name] if name else value[int(number)]
            return value
    return None


def _end_of(output: str) -> str:
    """Return the last lines of an output in one."""
    return " | ".join(filter(None, map(str.strip, output[-2000:].splitlines()[-4:])))[-400:]


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it has that content, since builds go by the time of its last change."""
    if not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it has started."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
