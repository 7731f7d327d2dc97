"""The searches that run for a service, and the processes that run them, as the service sees them."""

import asyncio
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autotune.errors import WorkerLostError
from autotune.messages import read_message, write_message
from autotune.model.events import Event
from autotune.model.trial import Job, Trial
from autotune.paths import safe_path
from autotune.search.place import MOST_HELPERS
from autotune.service.fleet import Fleet
from autotune.service.job_search import Errand, Stopping
from autotune.service.remote.events import plain_event
from autotune.service.search_process import OWN, Result
from autotune.service.station import Assignment, Station
from autotune.service.store.jobs import JobKind, JobProblem, TuningJob
from autotune.store import Attempt, Holder

MOST_DEATHS = 10
"""A problem fails after so many processes that searched it have ended: it may be the reason, or others in them."""
END_S = 2.0
"""How long a process has to end once its input has ended."""

_LOG = logging.getLogger(__name__)

CallSoon = Callable[[Callable[[], object]], None]


@dataclass(eq=False)
class Process:
    """One search process. Only the event loop uses it."""

    target: Any
    """What the process opens as its store."""
    on_message: Callable[..., None]
    on_end: "Callable[[Process], None]"
    call_soon: CallSoon
    searches: "dict[int, Search]" = field(default_factory=dict)
    """What runs there, by number."""
    is_open: bool = False
    """Whether it has opened its store; one that cannot, as while the database is away, ends."""

    def __post_init__(self) -> None:
        """Start it. Raises OSError."""
        command = [sys.executable, "-m", "autotune.service.search_process"]
        self._popen = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **safe_path()},
            process_group=0,
        )  # Ctrl-C is the service's to handle; in a session of its own, Linux would not let it yield to the service
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outgoing.put(self.target)
        for work in (self._write, self._read):
            threading.Thread(target=work, daemon=True, name="search process").start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, number: int, name: str, *content: Any) -> None:
        self._outgoing.put((number, name, *content))

    def end_input(self) -> None:
        """Have it end at once."""
        self._outgoing.put(None)

    def close(self) -> None:
        """Wait until it has ended, and kill it if need be."""
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _write(self) -> None:
        """Write what is to be sent; a process that was suspended must not keep the event loop waiting."""
        assert self._popen.stdin is not None
        try:
            with self._popen.stdin as stream:
                while (message := self._outgoing.get()) is not None:
                    write_message(stream, message)
        except OSError:
            pass  # it has ended, which `_read` notices

    def _read(self) -> None:
        assert self._popen.stdout is not None
        try:
            with self._popen.stdout as stream:
                while True:
                    self.call_soon(partial(self.on_message, self, *read_message(stream)))
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - a message that cannot be read
            _LOG.error("unexpected", exc_info=True)
        self._popen.kill()
        self._popen.wait()
        self.call_soon(partial(self.on_end, self))


class Search:
    """A search that runs in one of the processes. Only the event loop uses it."""

    def __init__(self, job: TuningJob, problem: JobProblem, station: Station, fleet: Fleet) -> None:
        self.job = job
        self.problem = problem
        self.station = station
        self.is_cancelled = False
        self.is_over = asyncio.Event()
        self.is_superseded = False
        """Whether another service has taken the search: no trial of it is given to any worker any more."""
        self.helpers: dict[int, Station] = {}
        """The stations that help, by the number of their place."""
        self.progress: dict[str, Callable[[], dict[str, Any]]] = {}
        """Encodes the latest event of each name; replaced as a whole, since other threads read it meanwhile."""
        self.number = 0
        self._fleet = fleet
        self._process: Process | None = None
        self._is_closed = job.kind is not JobKind.TUNE
        self._places = itertools.count(OWN + 1)
        self._waited_before_s = {OWN: station.waited_s}

    @property
    def wants_help(self) -> bool:
        """Whether equal devices may measure for this search."""
        return not self._is_closed and len(self.helpers) < MOST_HELPERS

    def stations(self) -> list[Station]:
        """Return the stations that work on this search."""
        return [self.station, *self.helpers.values()]

    def shown(self, encode: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what an event says, with the number of the problem."""
        return {"problem": self.problem.number, **encode()}

    def begin(self, process: Process, number: int, troubles: int) -> None:
        """Begin in a process, where it has this number."""
        self._process, self.number = process, number
        process.searches[number] = self
        errand = Errand(job=self.job, problem=self.problem, device=self.station.device, troubles=troubles)
        self._send("begin", errand, self._holder(self.station))

    def join(self, station: Station) -> None:
        """Have a station help, until the search releases it."""
        place = next(self._places)
        self.helpers[place] = station
        self._waited_before_s[place] = station.waited_s
        station.is_taken = True
        self._send("join", place, self._holder(station))

    def recall_one(self) -> None:
        """Recall the next helper that has nothing to measure."""
        if self.helpers:
            self._send("recall")

    def cancel(self) -> None:
        self.is_cancelled = True
        self._send("cancel")

    def supersede(self) -> None:
        """End, as another service has taken the search; trials that no worker has yet are not given to any."""
        self.is_superseded = True
        self._send("supersede")
        for station in self.stations():
            station.turn.set()

    def measure(self, place: int, number: int, job: Job) -> None:
        """Give a trial to the station of a place."""
        station = self.station if place == OWN else self.helpers[place]
        assignment = Assignment(job, lambda: self.is_superseded)
        assignment.result.add_done_callback(partial(self._answer, place, number, station))
        self._fleet.assign(station, assignment)

    def released(self, place: int) -> None:
        """Free a helper."""
        self._fleet.release(self.helpers.pop(place))

    def closed(self) -> None:
        """Take note that no more helpers are wanted."""
        self._is_closed = True

    def note(self, name: str, told: Event | dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Keep an event for those that follow later; return what encodes it."""
        encode = (lambda: told) if isinstance(told, dict) else partial(plain_event, told)
        self.progress = {**self.progress, name: encode}
        return encode

    def _answer(self, place: int, number: int, station: Station, ended: "Future[Trial]") -> None:
        trial, trouble, error = None, "", ended.exception()
        if error is None:
            trial = ended.result()
        elif not isinstance(error, Stopping):
            trouble = str(error) or type(error).__name__
        result = Result(
            trial=trial,
            trouble=trouble,
            is_lost=isinstance(error, WorkerLostError),
            is_station_lost=station.is_lost,
            waited_s=station.waited_s - self._waited_before_s[place],
        )
        self._send("result", number, result)

    def _holder(self, station: Station) -> Holder:
        attempt = Attempt(problem=self.problem.id, number=self.problem.attempts)
        return replace(station.holder, attempt=attempt)

    def _send(self, name: str, *content: Any) -> None:
        if self._process is not None:
            self._process.send(self.number, name, *content)


class Processes:
    """The search processes; each is started when it is first needed, or again after it ended."""

    def __init__(
        self,
        count: int,
        target: Any,
        on_message: Callable[..., None],
        on_lost: Callable[[Search], None],
        call_soon: CallSoon,
    ) -> None:
        """`on_message` takes the messages of searches, `on_lost` searches whose process has ended unexpectedly."""
        self._count = count
        self._target = target
        self._on_message = on_message
        self._on_lost = on_lost
        self._call_soon = call_soon
        self._running: list[Process] = []
        self._numbers = itertools.count(1)
        self._is_closed = False
        self.troubles: Counter[int] = Counter()
        """How often a device could not be used, by the id of the job's problem."""
        self.deaths: Counter[int] = Counter()
        """How often a process has ended in which a problem was searched."""

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running]

    def begin(self, search: Search) -> None:
        """Begin a search in the process that has the fewest. Raises OSError when the system gives no process."""
        process = min(self._running, key=lambda its: len(its.searches), default=None)
        if process is None or (process.searches and len(self._running) < self._count):
            process = Process(self._target, self._take, self._ended, self._call_soon)
            self._running.append(process)
        search.begin(process, next(self._numbers), self.troubles[search.problem.id])

    def publish_to_all(self, name: str) -> None:
        """Send a message to every process: `stop` or `hurry`."""
        for process in self._running:
            process.send(0, name)

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        running = list(self._running)  # which `_ended` shortens meanwhile
        for process in running:
            process.end_input()
        for process in running:
            process.close()

    def _take(self, process: Process, number: int, name: str, *content: Any) -> None:
        process.is_open = True
        search = process.searches.get(number)
        if search is None:
            return
        if name in ("ended", "unstarted"):
            del process.searches[number]
        self._on_message(search, name, *content)

    def _ended(self, process: Process) -> None:
        self._running.remove(process)
        if not self._is_closed:
            _LOG.error("a search process has ended; its %d searches go on in another", len(process.searches))
        for search in process.searches.values():
            self.deaths[search.problem.id] += process.is_open
            self._on_lost(search)
