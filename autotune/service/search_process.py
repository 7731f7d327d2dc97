"""A process that runs searches, each in a thread, for the service that started it: `python -m` this module.

Web, workers and queue are the service's; what computes is here: proposals, models, the ledger of trials. The two
exchange pickles over standard input and output. If this process dies, the service has its searches go on in another
one: at most the trials that were being measured are lost to them, and what workers tell of those is stored.
"""

import contextlib
import gc
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from autotune.errors import AutotuneError, WorkerError, WorkerLostError
from autotune.messages import read_message, write_message
from autotune.model.trial import Job, Trial
from autotune.search.place import Helpers
from autotune.service.job_search import Errand, Search, Stopping
from autotune.service.store import ServiceStore
from autotune.store import Holder

YOUNG_OBJECTS = 20_000
"""New objects after which the garbage collector examines them; Python's default of 700 is less than one proposal."""
NICENESS = 5
"""By how much search processes yield to the service, which must answer while they use all cores."""
OWN = 0
"""Number of the place of the search's own device; helpers have others."""
END_S = 2.0
"""Delay before a process ends that cannot open its store: the service starts another at once."""

_LOG = logging.getLogger(__name__)

Send = Callable[..., None]
"""Sends a message to the service: the number of the search, what it is about, and the rest."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a trial that a search wanted measured."""

    trial: Trial | None = None
    trouble: str = ""
    """Why there is none; empty where the service stops."""
    is_lost: bool = False
    """Whether the trial may be to blame."""
    is_station_lost: bool = False
    """Whether the device is not there any more."""
    waited_s: float = 0.0
    """How long all trials of this place have waited for other programs."""


class StationDevice:
    """A device that measures for a search: implements `autotune.search.helpers.Measures`."""

    def __init__(self, run: "Run", number: int, holder: Holder) -> None:
        self.holder = holder
        self.waited_s = 0.0
        self._run = run
        self._number = number

    def prepare(self, job: Job) -> None:
        """Do nothing: a job is sent when it may be launched."""

    def run(self, job: Job) -> Trial:
        """Measure a trial. Raises WorkerError, WorkerLostError when the device is gone, Stopping."""
        result = self._run.measured(self._number, job)
        self.waited_s = result.waited_s
        if self._number == OWN:
            self._run.search.is_device_lost |= result.is_station_lost
        if result.trial is not None:
            return result.trial
        if not result.trouble:
            raise Stopping
        raise (WorkerLostError if result.is_lost else WorkerError)(result.trouble)

    def close(self) -> None:
        """Free the device."""
        if self._number != OWN:
            self._run.send("released", self._number)


class _Helpers(Helpers):
    """Tells the service when no more helpers are wanted."""

    def __init__(self, report_closed: Callable[[], None]) -> None:
        super().__init__()
        self._report_closed = report_closed

    def close(self) -> None:
        super().close()
        self._report_closed()


class Run:
    """One search. Methods whose names are in messages of the service are called in the thread that reads these."""

    def __init__(self, errand: Errand, holder: Holder, process: "SearchProcess", send: Send) -> None:
        self.send = send
        self._waiting: dict[int, Future[Result]] = {}
        self._numbers = itertools.count()
        self._own = StationDevice(self, OWN, holder)
        helpers = _Helpers(lambda: send("closed"))
        self.search = Search(errand, process.store, lambda *told: send("event", *told), process.is_stopping, helpers)

    def start(self) -> None:
        threading.Thread(target=self._work, daemon=True, name=f"job {self.search.errand.job.id}").start()

    def measured(self, place: int, job: Job) -> Result:
        """Have a job measured, and wait for what becomes of it."""
        number, future = next(self._numbers), Future[Result]()
        self._waiting[number] = future
        self.send("measure", place, number, job)
        return future.result()

    def result(self, number: int, result: Result) -> None:
        self._waiting.pop(number).set_result(result)

    def join(self, place: int, holder: Holder) -> None:
        helper = StationDevice(self, place, holder)
        if not self.search.helpers.join(helper):
            helper.close()

    def recall(self) -> None:
        self.search.helpers.recall_one()

    def cancel(self) -> None:
        self.search.is_cancelled = True

    def supersede(self) -> None:
        self.search.is_superseded = True

    def _work(self) -> None:
        try:
            self.search.run(self._own)
        finally:
            self.send("ended", self.search.is_troubled)


class SearchProcess:
    """All searches of this process."""

    def __init__(self, store: ServiceStore, send: Send) -> None:
        self.store = store
        self._send = send
        self._is_stopping = threading.Event()
        self._runs: dict[int, Run] = {}

    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    def take(self, number: int, name: str, *content: Any) -> None:
        """Take a message of the service."""
        match name:
            case "stop":
                self._is_stopping.set()
            case "hurry":
                self.store.hurry()
            case "begin":
                self._begin(number, *content)
            case "result" | "join" | "recall" | "cancel" | "supersede":
                if (run := self._runs.get(number)) is not None:  # or it has ended
                    getattr(run, name)(*content)

    def _begin(self, number: int, errand: Errand, holder: Holder) -> None:
        def send(name: str, *content: Any) -> None:
            if name == "ended":
                self._runs.pop(number, None)
            self._send(number, name, *content)

        run = self._runs[number] = Run(errand, holder, self, send)
        try:
            run.start()
        except RuntimeError:  # the system gives no thread
            send("unstarted")


def main() -> None:
    """Run searches until the input ends; then end at once: the service is gone."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    turn, answers = threading.Lock(), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no message

    def send(*message: Any) -> None:
        with turn, contextlib.suppress(OSError):  # the service is gone
            write_message(answers, message)

    if hasattr(os, "nice"):
        os.nice(NICENESS)
    # What is loaded now stays loaded, and hardly any later object needs the garbage collector.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        process = SearchProcess(ServiceStore.open(read_message(sys.stdin.buffer)), send)
        send(0, "opened")
        while True:
            process.take(*read_message(sys.stdin.buffer))
    except (EOFError, OSError):
        os._exit(0)
    except AutotuneError as error:
        _LOG.error("%s", error)
        time.sleep(END_S)
        os._exit(1)


if __name__ == "__main__":
    main()
