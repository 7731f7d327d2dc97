"""Runs tests in a child process: a driver that aborts or hangs fails one test and ends no worker of pytest-xdist.

Both collect as ever. The parent hands over one test at a time by its node id, the child runs it with all its fixtures
and answers with pytest's reports, one line of JSON each way. The child lives until the last test, or until one ends it:
then that test fails with the signal and the last words of the child, and the next test gets a new one. With `-s` or
`--pdb` tests run in pytest's own process, for a debugger.

Coverage traces a parametrized test with its first arguments only: tracing makes Python two to three times slower, and
further arguments reach few lines that the first ones do not. Nor does it trace how the parent collects.
"""

import contextlib
import gc
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import pytest
from _pytest.runner import runtestprotocol

from untraced import untraced

LIMIT_S = 300.0
"""How long a test may take that is not marked otherwise, with `pytest.mark.limit(seconds)`; on a machine that others
use too."""
_STARTING_S = 120.0
_ENDING_S = 20.0
_LAST_LINES = 60


_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


class Parent:
    """The plugin of the process that collects and reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._child: _Child | None = None
        self._numbers = itertools.count()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with untraced():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        began = time.monotonic()
        marker = item.get_closest_marker("limit")
        limit_s = float(marker.args[0]) if marker else LIMIT_S
        child = self._child = self._child or _Child(self._config, next(self._numbers))
        try:
            answers = child.ask([item.nodeid, nextitem.nodeid if nextitem else ""], limit_s)
        except ChildDied as death:
            self._child = None
            return [_failed(item, str(death), time.monotonic() - began)]
        except BaseException:
            child.kill()
            raise
        read = self._config.hook.pytest_report_from_serializable
        reports = [read(config=self._config, data=answer) for answer in answers]
        for report in reports:
            if isinstance(report.longrepr, list):  # where and why a test was skipped, which JSON made a list of
                report.longrepr = tuple(report.longrepr)
            if report.failed and (words := child.words()):
                report.sections.append(("Written by drivers and children", words))
        return reports

    def pytest_sessionfinish(self) -> None:
        if self._child:
            self._child.close()


class Child:
    """The plugin of the process that runs the tests."""

    def __init__(self, questions: IO[str], answers: IO[str]) -> None:
        self._questions = questions
        self._answers = answers
        self._traced: set[Hashable] = set()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # what was collected stays until the end: no need to look through it again and again
        self._answer("ready")
        for line in self._questions:
            name, following = json.loads(line)
            convert = session.config.hook.pytest_report_to_serializable
            with self._tracing(items[name]):
                reports = runtestprotocol(items[name], log=False, nextitem=items.get(following))
            self._answer([convert(config=session.config, report=report) for report in reports])
        return True

    def _tracing(self, item: pytest.Item) -> AbstractContextManager[None]:
        """Turns tracing off for a test that ran before with other arguments."""
        test = _without_arguments(item)
        if test in self._traced:
            return untraced()
        self._traced.add(test)
        return contextlib.nullcontext()

    def _answer(self, answer: Any) -> None:
        self._answers.write(json.dumps(answer, default=str) + "\n")
        self._answers.flush()


def _without_arguments(item: pytest.Item) -> Hashable:
    """Identifies a test whatever `pytest.mark.parametrize` gives it. Parameters of fixtures, such as the kind of
    database, do tell tests apart."""
    given: set[str] = set()
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0]
        given.update(map(str.strip, names.split(",")) if isinstance(names, str) else names)
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.items() if callspec else ()
    kept = tuple(sorted((name, str(value)) for name, value in parameters if name not in given))
    return item.nodeid.partition("[")[0], kept


class ChildDied(Exception):
    """The child ended, or had to be ended, before it answered. The text says how, with its last words."""


class _Child:
    """The parent's end of a child."""

    def __init__(self, config: pytest.Config, number: int) -> None:
        base = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        option = config.option
        arguments = [
            *("-p", "no:cacheprovider", "--capture=sys", "--rootdir", str(config.rootpath)),
            *(["-c", str(config.inipath)] if config.inipath else []),
            *(
                "--basetemp",
                str(base / f"child-{number}"),
                f"--tb={option.tbstyle}",
                *(["-v"] * option.verbose or ["-q"]),
            ),
            *(["--showlocals"] if option.showlocals else []),
            *config.args,
        ]
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        """What is written past Python's streams, which is all that drivers write."""
        self._words_before = 0
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True, encoding="utf-8",
            start_new_session=True, env={**os.environ, "PYTEST_ADDOPTS": ""},
        )  # fmt: skip
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, question: Any, limit_s: float) -> Any:
        """The answer. Raises ChildDied when there is none within the limit."""
        assert self._process.stdin is not None
        self._words_before = os.fstat(self._words.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):  # what it died of is told below
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        if not self._is_ready:
            self._wait(_STARTING_S, "the process for tests did not start within")
            self._is_ready = True
        return json.loads(self._wait(limit_s, "the test took more than"))

    def _wait(self, limit_s: float, complaint: str) -> str:
        try:
            answer = self._answers.get(timeout=limit_s)
        except queue.Empty:
            self._dump_stacks()
            raise ChildDied(f"{complaint} {limit_s:g} s\n{self.kill()}") from None
        if not answer:
            status = self._process.wait()
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
            raise ChildDied(f"the test ended its process {how}\n{self.kill()}")
        return answer

    def close(self) -> None:
        """Lets the child finish its fixtures of the session, and write what coverage has counted."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ENDING_S)
        finally:
            self.kill()

    def kill(self) -> str:
        """Ends the child with all that it started, and returns its last words."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        words = self.words()
        self._words.close()
        return words

    def words(self) -> str:
        """The end of what was written since the last question. The position that the child writes at is not moved."""
        size = os.fstat(self._words.fileno()).st_size - self._words_before
        read = os.pread(self._words.fileno(), size, self._words_before).decode(errors="replace")
        return "\n".join(read.splitlines()[-_LAST_LINES:])

    def _dump_stacks(self) -> None:
        """Has pytest's faulthandler write what each thread of the child is doing."""
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put("")


def install(config: pytest.Config) -> None:
    """Has the tests of this process run in a child, unless it is one or is being debugged."""
    config.addinivalue_line("markers", f"limit(seconds): ends the test after that time instead of {LIMIT_S:g} s")
    debugged = config.option.capture == "no" or config.option.usepdb or sys.platform == "win32"
    if not debugged and not config.option.collectonly and not _is_child(config):
        config.pluginmanager.register(Parent(config))


def fail_missing_tools(report: _Report) -> _Report:
    """In continuous integration, where everything is installed, a skip is a failure.

    The exception is what a device cannot do: reasons that begin with "not covered".
    """
    if not report.skipped or not os.environ.get("CI") or hasattr(report, "wasxfail"):
        return report
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not told.removeprefix("Skipped: ").startswith("not covered"):
        report.outcome = "failed"
        report.longrepr = f"{told}\n(no test is skipped where CI is set)"
    return report


def _is_child(config: pytest.Config) -> bool:
    """The plugin's class is another there, of the module `__main__`."""
    return any(type(plugin).__name__ == Child.__name__ for plugin in config.pluginmanager.get_plugins())


def _failed(item: pytest.Item, told: str, duration_s: float) -> pytest.TestReport:
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", told, "call", duration=duration_s)


def _run_child() -> int:
    """Keeps the two pipes for itself, before a test can write to them."""
    questions, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open() as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    return pytest.main(sys.argv[1:], plugins=[Child(questions, answers)])


if __name__ == "__main__":
    sys.exit(_run_child())
