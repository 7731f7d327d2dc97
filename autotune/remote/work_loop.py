"""The worker: offers the devices of this machine to a service, measures what it is given, and calls out only.

Why no existing engine carries the trials. Dask distributed, the natural one, was tried against what is wanted here:
a worker of it listens on a port of its own, by which the scheduler fetches results, and a phone is to have none;
tasks and results are pickled, so that whoever reaches the scheduler runs code on every device, and a worker runs code
in the service, where nothing but values of declared parameters may pass; a task whose worker died is run again
elsewhere, where the ledger's rule is that it is not; and it brings more than a dozen packages, some of them compiled,
to devices that need three. Placing, which is what remains, is here one queue for each device in the database, and
running a trial under limits is what `autotune.measure.worker` does anyway. So a trial goes over the API that the
service has in any case, as a turn that the worker asks for: HTTP's own server and client are the engine.

A worker's process has one `Offer` for each device, in a thread of its own; the driver is called by the child process
of its `Worker`, as it is locally.
"""

import contextlib
import dataclasses
import os
import platform
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from autotune.codec import Node, printable
from autotune.device.profile import find_profile
from autotune.errors import RefusedError, ServiceError, TableError, UnreachableError, UsageError, WorkerError
from autotune.measure.worker import waited_s
from autotune.model.device import Device
from autotune.model.trial import Job, Trial
from autotune.paths import default_database
from autotune.remote.connection import Connection
from autotune.remote.wire import code_version, plain_device, plain_trial, read_job

HEARTBEAT_S = 10.0
"""How often a device that measures tells that it is there."""
WAIT_S = 20.0
"""How long an idle one lets the service wait with its answer."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
READINGS = 5
LONGEST_MISMATCH_S = 300.0
"""Between tries at a service with other templates: that is mended by people."""

_UNKNOWN, _TEMPLATES_DIFFER = 404, 409
_FATAL = frozenset({401, 403, 422})


class Runs(Protocol):
    """What measures: `autotune.measure.worker.Worker`, or a fake."""

    def run(self, job: Job) -> Trial: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """Where the service is, and as whom to speak to it."""

    url: str
    token: str
    name: str
    """Of the worker, for people."""
    secret: str = dataclasses.field(repr=False)
    """Shows that the name is this worker's; always the same."""
    session: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Of this process, in every turn."""


class Offer:
    """One device offered to a service."""

    def __init__(self, service: Service, device: Device, worker: Runs, tell: Callable[[str], None]) -> None:
        self._service = service
        self._device = device
        self._worker = worker
        self._tell = tell
        self._connection = Connection(service.url, service.token)
        self._options = find_profile(device).build_options
        self._measuring = ThreadPoolExecutor(1)
        self._id = ""
        self._current: tuple[str, Future[dict[str, Any]]] | None = None
        self._delivered: list[dict[str, Any]] = []
        """The last result that was taken: a service that was killed just then may not have stored it, so it is part of
        every greeting."""
        self._pause_s = FIRST_PAUSE_S
        self._told = ""
        """Why the service is not to be had, as it was said last."""
        self.is_stopping = False
        self._closing = threading.Event()

    @property
    def is_measuring(self) -> bool:
        """Whether a trial is running or its result has not arrived yet."""
        return self._current is not None

    def serve(self) -> None:
        """Until told to stop. Raises RefusedError for what waiting does not mend, such as a wrong token."""
        while not self._closing.is_set() and not (self.is_stopping and not self.is_measuring):
            try:
                self._take_turn()
            except UnreachableError as error:
                self._bear(error)
            except RefusedError as error:
                if self._closing.is_set():
                    return  # it has taken leave
                if error.status == _UNKNOWN and self._id:
                    self._id = ""  # the service was started anew, or has given this device up
                elif error.status == _TEMPLATES_DIFFER:
                    self._bear(error, LONGEST_MISMATCH_S)
                elif error.status in _FATAL:
                    raise
                else:
                    self._bear(error)
            else:
                self._return_to_service()

    def close(self) -> None:
        """Take leave, and end what is running; from any thread, once `serve` is to end.

        In this order, and without a word of how the trial then ended: a child that was killed looks like one that
        crashed, and its configuration is not to blame.
        """
        self.is_stopping = True
        self._closing.set()
        try:
            self._leave()
        finally:
            self._worker.close()

    def _leave(self) -> None:
        if self._id:
            connection = Connection(self._service.url, self._service.token)
            try:
                path, session = f"/api/workers/{self._id}/leave", self._service.session
                connection.call("POST", path, {"session": session}, timeout_s=3)
            except ServiceError:
                pass  # it will miss the device
            finally:
                connection.close()

    def _take_turn(self) -> None:
        if not self._id:
            self._greet()
        trial_id = self._current[0] if self._current is not None else ""
        results = self._finished(HEARTBEAT_S)
        if self._closing.is_set():
            return
        running = trial_id if self._current is not None and not results else ""
        wait_s = 0.0 if running or self.is_stopping else WAIT_S
        turn = {
            "session": self._service.session,
            "running": running,
            "waited_s": waited_s(self._worker) if trial_id else 0.0,
            "results": results,
            "wait_s": wait_s,
        }
        answer = self._connection.call(
            "POST", f"/api/workers/{self._id}/turn", turn, timeout_s=wait_s + HEARTBEAT_S + 5
        )
        if results:
            self._current, self._delivered = None, results
        answer = answer if isinstance(answer, dict) else {}
        if answer.get("refused"):
            self._tell(f"{self._device.slug}: a result was refused: {printable(str(answer['refused']))}")
        given = answer.get("trial")
        if given is not None and not self.is_stopping and self._current is None and given["id"] != trial_id:
            self._begin(given)

    def _finished(self, patience_s: float) -> list[dict[str, Any]]:
        """The result of the trial in hand, where there is one by then."""
        if self._current is None or not _wait(self._current[1], patience_s):
            return []
        return [{"id": self._current[0], **self._current[1].result()}]

    def _greet(self) -> None:
        """Offer the device, and bring what is in hand: also a service with other templates takes that."""
        finished = self._finished(0.0)
        form = {
            "name": self._service.name,
            "secret": self._service.secret,
            "session": self._service.session,
            "code": code_version(),
            "selector": self._device.selector,
            "device": plain_device(self._device),
            "results": [*self._delivered, *finished],
        }
        try:
            self._id = str(self._connection.call("POST", "/api/workers", form)["id"])
        except RefusedError as error:
            if finished and error.status == _TEMPLATES_DIFFER:  # then what it brought has been taken
                self._current, self._delivered = None, finished
            raise
        if finished:
            self._current, self._delivered = None, finished
        self._tell(f"{self._device.slug} is offered to {self._service.url}")

    def _begin(self, given: dict[str, Any]) -> None:
        self._current = str(given["id"]), self._measuring.submit(self._measure, given["job"])

    def _measure(self, plain: Any) -> dict[str, Any]:
        """A result as a turn brings it; a device that cannot be used is a trouble."""
        try:
            job = read_job(Node(plain, "job"), self._device.selector, self._options)
            return {"job": plain, "trial": plain_trial(self._worker.run(job))}
        except (WorkerError, TableError) as error:
            self._tell(f"{self._device.slug}: {error}")
            return {"job": plain, "trouble": printable(str(error))}

    def _bear(self, error: ServiceError, longest_s: float = LONGEST_PAUSE_S) -> None:
        """Wait before the next try, longer each time; workers of a rack do not all come back at once."""
        if str(error) != self._told:
            self._tell(f"{error}; trying again")
        self._told = str(error)
        self._connection.close()
        self._closing.wait(self._pause_s * (0.5 + random.random() / 2))  # noqa: S311 - no secret
        self._pause_s = min(2 * self._pause_s, longest_s)

    def _return_to_service(self) -> None:
        if self._told:
            self._tell(f"{self._service.url} answers again")
        self._told, self._pause_s = "", FIRST_PAUSE_S


def _wait(future: "Future[dict[str, Any]]", seconds: float) -> bool:
    try:
        future.exception(timeout=seconds)
    except TimeoutError:
        return False
    return True


def own_name() -> str:
    """The name of this machine, with a few digits of its own: phones are all called localhost."""
    node = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node())[:60] or "worker"
    return f"{node}-{_kept('worker-id', 3)}"


def own_secret() -> str:
    """What shows services that a name is this worker's, kept where only its user can read it."""
    return _kept("worker-secret", 32)


def _kept(name: str, size: int) -> str:
    """So many random bytes as digits, the same each time; another one each time where the folder cannot be written.

    Raises UsageError where something else lies there.
    """
    place = default_database().with_name(name)
    for _ in range(READINGS):
        digits = secrets.token_hex(size)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            new = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                digits = place.read_text(encoding="ascii").strip()
                if re.fullmatch(f"[0-9a-f]{{{2 * size}}}", digits):
                    return digits
            time.sleep(0.1)  # another process may just be writing it
        except OSError:
            return digits
        else:
            with os.fdopen(new, "w", encoding="ascii") as file:
                file.write(digits)
            return digits
    raise UsageError(
        f"{place} cannot be read, or is not what autotune wrote", hint="delete it; the worker gets a new one"
    )


def offer_all(offers: Sequence[Offer], should_stop: Callable[[], bool]) -> None:
    """Serve with all until asked to stop; then the running trials are waited for.

    Raises RefusedError when one was refused for good.
    """
    refusals: list[BaseException] = []

    def serve(offer: Offer) -> None:
        try:
            offer.serve()
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            refusals.append(error)

    threads = [threading.Thread(target=serve, args=(offer,), daemon=True) for offer in offers]
    for thread in threads:
        thread.start()
    try:
        while not refusals and not should_stop():
            time.sleep(0.2)
        for offer in offers:
            offer.is_stopping = True
        while not refusals and any(offer.is_measuring for offer in offers):
            time.sleep(0.2)
    finally:
        for offer in offers:
            offer.close()
    if refusals:
        raise refusals[0]
