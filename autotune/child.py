"""A child process that answers one message at a time, and is replaced when it dies or hangs.

Parent and child exchange length-prefixed pickles over the child's standard input and output. The child first redirects
its standard output, so a driver that prints cannot disturb the exchange, and exits when its input ends, so that it
never outlives the parent. It reports when its libraries are loaded and when it has received a message, so that each
can have its own time limit.
"""

import contextlib
import enum
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from autotune import tracing
from autotune.errors import AgentKilledError, AutotuneError, DeviceLostError, WorkerError
from autotune.messages import read_message, write_message
from autotune.paths import safe_path

_LOG = logging.getLogger(__name__)

LOAD_LIMIT_S = 600.0
"""Limit for loading Python's libraries: it takes half a second, but more than a minute on an emulated processor."""
START_LIMIT_S = 120.0
"""Limit from the end of loading until the child begins its first phase; at least SLOWNESS times the loading time."""
RESPONSE_LIMIT_S = 10.0
"""Limit for a loaded child to confirm that it has received a message; at least the loading time."""
SLOWNESS = 20.0
_ENVIRONMENT = {
    "PYOPENCL_NO_CACHE": "1",  # thousands of kernels that are not run again
    "OPENBLAS_NUM_THREADS": "1",  # several children work at once, and their threads would wait for each other
}
"""Environment variables of a child, unless the caller's environment sets them."""
START_TRIES = 3
FIRST_PAUSE_S = 0.5
"""Pause before restarting a child that failed at its start; doubled each time, as a driver may need to recover."""

KILLED = "killed by SIGKILL"
EXIT_LIMIT_S = 5.0
"""How long a child that sends nothing more is given to end."""

MAX_ANSWERS = 2000
MAX_GROWTH_BYTES = 2**29
"""A child is replaced when its memory has grown this much since its first result, because drivers leak programs, or
after MAX_ANSWERS, since not every leak shows. It is not replaced more often because opening a device takes as long as
measuring a hundred kernels."""

Entering = Callable[[str], None]
"""Reports to the parent which phase of its work the child begins; every phase has its own time limit."""


class _NoStart(Exception):
    """A child ended, hung or gave up before it began the work, so the work did not cause it."""


class _Closed(_NoStart):
    """Another thread closed the child. It must not be replaced: that thread would not close the replacement."""


class Cause(enum.Enum):
    """Why there was no answer."""

    LATE = "late"
    """The child took longer than the limit of its phase, and was killed."""
    DIED = "died"
    FAULT = "fault"
    """An unexpected exception of autotune in the child, not caused by what it was working on."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Result when there was no answer and the child is gone."""

    cause: Cause
    phase: str
    message: str
    was_killed: bool = False
    """Whether something outside killed it, as the system does when memory runs out: a driver cannot raise SIGKILL."""


class Child:
    """A child process, started when first needed. A context manager; closing ends the child."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`environment` defaults to that of this process; `wait` is called before each start, and may block."""
        self._command = command
        self._wait = wait
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._errors: IO[bytes] | None = None
        self._has_answered = False
        self._is_killed_here = False
        self._started_s = 0.0
        self._load_s: float | None = None
        """Seconds the current process took to load its libraries; None until it has."""
        self.phase = ""
        """Phase of the message being answered, for display; empty between messages."""
        self.answers = 0
        """Number of answers of the current process."""
        self._first_bytes = 0
        """Memory after the first answer that is not None: a job that is only prepared has no inputs yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child while one is running, else None."""
        return self._process.pid if self._process else None

    def ask(self, message: object, limits_s: Mapping[str, float]) -> Any:
        """Send a message and return the child's answer, or a Loss; `limits_s` has the time limit of each phase.

        If it has a limit for the phase "start", a child that exceeds it is a Loss too, and is not replaced.

        A child that dies, hangs or gives up before its first phase is replaced a few times, unless another thread
        has closed it; what a child was doing that was killed from outside is begun once more. Raises WorkerError when
        no child can be started or survives its start, or when a child reports that it cannot work at all before any
        child has answered.
        """
        answer = self._ask_again(message, limits_s)
        if isinstance(answer, Loss) and answer.was_killed:
            _LOG.warning("a child process was killed from outside; its work begins once more (%s)", answer.message)
            answer = self._ask_again(message, limits_s)
        return answer

    def _ask_again(self, message: object, limits_s: Mapping[str, float]) -> Any:
        """Ask until a child survives its start."""
        for tries_left in reversed(range(START_TRIES)):
            try:
                return self._ask_once(message, limits_s)
            except _NoStart as reason:
                self.close()
                if not tries_left or isinstance(reason, _Closed):
                    raise WorkerError(str(reason)) from reason
                _LOG.warning("a child process is replaced: %s", reason)
                time.sleep(FIRST_PAUSE_S * 2 ** (START_TRIES - 1 - tries_left))

    def _ask_once(self, message: object, limits_s: Mapping[str, float]) -> Any:
        self.start()
        assert self._process and self._process.stdin
        try:
            try:
                write_message(self._process.stdin, message)
            except OSError:
                raise _NoStart(self._last_words()) from None
            answer = self._await_answer(limits_s)
        except BaseException:  # as Ctrl-C: the answer would be taken for that to the next message
            self.close()
            raise
        if not isinstance(answer, Loss):
            self._has_answered = True
            self.answers += 1
            if answer is not None and not self._first_bytes:
                self._first_bytes = self.memory_bytes
        return answer

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the child; 0 without a child, or if the system does not report it."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    @property
    def _is_worn(self) -> bool:
        has_grown = self._first_bytes > 0 and self.memory_bytes - self._first_bytes > MAX_GROWTH_BYTES
        return has_grown or self.answers >= MAX_ANSWERS

    def kill(self) -> None:
        """End only the process, from any thread. A thread that waits for its answer gets a Loss."""
        process = self._process
        if process is not None:
            self._is_killed_here = True
            process.kill()

    def close(self) -> None:
        """End the child at once, from any thread, even while another thread asks or closes."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
            self.answers = self._first_bytes = 0
        if errors is not None:
            errors.close()

    def _await_answer(self, limits_s: Mapping[str, float]) -> Any:
        phase, limit = "start", self._first_limit_s
        while True:
            self.phase = phase
            try:
                kind, content = self._messages.get(timeout=limit)
            except queue.Empty:
                kind, content = "late", None
            self.phase = ""
            if kind == "alive":  # comes before any phase
                self._load_s = content - self._started_s if self._load_s is None else self._load_s
                limit = max(limits_s.get("start", START_LIMIT_S), SLOWNESS * self._load_s)
            elif kind == "phase":
                phase, limit = content, limits_s[content]
            elif kind == "answer":
                answer, spans = content
                tracing.add(spans)
                return answer
            elif kind == "unusable":
                self.close()
                if self._has_answered:  # a driver that is recovering may hide its device for a moment
                    raise _NoStart(content)
                raise WorkerError(content)
            elif phase == "start" and not (kind == "late" and "start" in limits_s):
                words = {"fault": content, "late": f"no response from the child process within {limit:g} s"}
                raise _NoStart(words.get(kind) or self._last_words())
            elif kind == "fault":
                self.close()
                return Loss(cause=Cause.FAULT, phase=phase, message=f"{phase}: {content}")
            elif kind == "late":
                self.close()
                return Loss(cause=Cause.LATE, phase=phase, message=f"{phase} took more than {limit:g} s")
            else:
                status, last_words = self._bury()
                message = f"{phase}: {status}. {last_words}".strip()
                was_killed = status == KILLED and not self._is_killed_here
                return Loss(cause=Cause.DIED, phase=phase, message=message, was_killed=was_killed)

    @property
    def _first_limit_s(self) -> float:
        """Limit for the first reply to a message; a child that was stopped or hangs between messages never replies."""
        return LOAD_LIMIT_S if self._load_s is None else max(RESPONSE_LIMIT_S, self._load_s)

    def _last_words(self) -> str:
        """Describe how a child ended before it began its work. Raises _Closed if another thread has closed it."""
        if self._process is None:
            raise _Closed("the child process was closed")
        status, last_words = self._bury()
        return f"the child process ended at its start ({status}): {last_words}"

    def start(self) -> None:
        """Start a child unless a usable one is running. Raises WorkerError when it cannot be started."""
        if self._process is not None and self._process.poll() is None and not self._is_worn:
            return
        self.close()
        self._wait()
        self._messages = queue.Queue()
        self._is_killed_here = False
        self._started_s, self._load_s = time.monotonic(), None
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_ENVIRONMENT | dict(os.environ if self._environment is None else self._environment) | safe_path(),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            raise WorkerError(f"cannot start the child process: {error}") from error
        threading.Thread(target=_pump, args=(self._process.stdout, self._messages), daemon=True).start()

    def _bury(self) -> tuple[str, str]:
        """Close the child; return how it ended and the last lines of its standard error."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return "closed", ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=EXIT_LIMIT_S)
        code = process.poll()
        if code is not None and code < 0:
            status = f"killed by {signal_name(-code)}"
        else:
            status = "its answer was spoilt" if code is None else f"exit status {code}"
        last_words = ""
        with contextlib.suppress(ValueError):  # closed meanwhile
            size = errors.seek(0, os.SEEK_END)
            errors.seek(max(0, size - 500))
            last_words = " | ".join(errors.read().decode("utf-8", "replace").split("\n")[-4:]).strip(" |")
        self.close()
        return status, last_words


def serve(answer: Callable[[Any, Entering], Any], prepare: Callable[[], object] = lambda: None) -> NoReturn:
    """Main loop of the child: answer messages until the input ends. An AutotuneError means that it is unusable.

    `prepare` runs before the first message; its failures are ignored, since they show up again with the messages.
    """
    replies = _Replies()
    messages: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_collect, args=(messages, replies), daemon=True).start()
    tracing.collect(tracing.MOST_SPANS)
    replies.send("alive", None)
    with contextlib.suppress(Exception), tracing.span("prepare"):
        prepare()
    while True:
        message = messages.get()
        try:
            with tracing.span("job"):
                content = answer(message, partial(replies.send, "phase"))
        except DeviceLostError as error:  # ends this process as the loss of its own driver would
            print(error, file=sys.stderr, flush=True)
            if isinstance(error, AgentKilledError):
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(1)
        except AutotuneError as error:
            replies.send("unusable", str(error))
        except Exception as error:  # noqa: BLE001 - reported at once, since drivers may abort when a process ends
            replies.send("fault", _in_one_line(error))
        else:
            replies.send("answer", (content, tracing.take()))


class _Replies:
    """Sends messages of a child to its parent, from any of its threads."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "wb")
        self._turn = threading.Lock()
        os.dup2(2, 1)

    def send(self, kind: str, content: object) -> None:
        with self._turn:
            write_message(self._stream, (kind, content))


def _pump(stream: IO[bytes], messages: "queue.Queue[tuple[str, Any]]") -> None:
    """Move a child's messages into a queue, which supports waiting with a time limit on every system.

    The content of a message of kind "alive" is the time of its arrival; the last message is of kind "ended", also where
    a kernel or driver has spoilt what the child sends, of which unpickling may raise anything.
    """
    with contextlib.suppress(Exception), stream:
        while True:
            kind, content = read_message(stream)
            messages.put((kind, time.monotonic() if kind == "alive" else content))
    messages.put(("ended", None))


def _in_one_line(error: Exception) -> str:
    """Format an exception with the place in autotune where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "autotune" in Path(frame.filename).parts] or frames
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"unexpected {' '.join(f'{type(error).__name__}: {error}'.split())[:400]}{where}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; real-time signals have a number only."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _collect(messages: "queue.Queue[Any]", replies: _Replies) -> None:
    """Queue messages as they arrive; when the parent is gone, exit at once, even while a kernel is running."""
    try:
        while True:
            message = read_message(sys.stdin.buffer)
            replies.send("alive", None)
            messages.put(message)
    except (EOFError, OSError):
        os._exit(0)
    except Exception:  # noqa: BLE001 - it contains an object of a class that cannot be imported here
        traceback.print_exc()
        os._exit(1)
