"""The worker: offers the devices of this machine to a service and measures trials for it, by outgoing calls only.

Why no existing engine distributes the trials: Dask distributed, the natural choice, was tried. Its workers listen on a
port, from which the scheduler fetches results, and a phone must not open one. It pickles tasks and results, so anyone
who reaches the scheduler can run code on every device, and a worker can run code in the service, where only values of
declared parameters may pass. It runs a task again elsewhere when its worker died, which the ledger forbids. It brings
more than a dozen packages, some of them compiled, to devices that need three. What remains is placement, here one queue
for each device in the database; `autotune.measure.worker` runs a trial under limits anyway. So a trial travels over the
API that the service has in any case: the worker polls with requests called turns, each of which shows that the device
is alive, and may deliver a result or fetch a trial.

A worker's process has one `Offer` for each device, in its own thread; the driver is called by the child process of the
`Worker`, as in a local search.
"""

import contextlib
import dataclasses
import hashlib
import os
import platform
import random
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from autotune.codec import Node, printable
from autotune.device.profile import find_profile
from autotune.errors import RefusedError, ServiceError, TableError, UnreachableError, UsageError, WorkerError
from autotune.kernels.render import code_version
from autotune.model.device import Device
from autotune.model.trial import Job, Trial
from autotune.paths import default_database
from autotune.service.remote.connection import Connection
from autotune.service.remote.wire import plain_device, plain_trial, read_job

HEARTBEAT_S = 10.0
"""How often a device that is measuring reports to the service."""
WAIT_S = 20.0
"""How long an idle device lets the service delay its answer."""
ANSWER_S = 15.0
"""How long the answer to a turn may take beyond the delay that was asked for."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
READINGS = 5
LONGEST_MISMATCH_S = 300.0
"""Longest pause between tries at a service with other templates, which only people can fix."""

_UNKNOWN, _TEMPLATES_DIFFER = 404, 409
_FATAL = frozenset({401, 403, 422})

_Begun = tuple[str, Future[dict[str, Any]]]
"""The id of a trial, and its result when it has ended."""


class Runs(Protocol):
    """What an `Offer` needs to measure: `autotune.measure.worker.Worker`, or a fake."""

    @property
    def waited_s(self) -> float: ...

    def run(self, job: Job) -> Trial: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """Addresses of a service, and the worker's credentials."""

    urls: Sequence[str]
    """One or more, in order of preference; all of them serve the same database."""
    token: str
    name: str
    """Name of the worker, for people."""
    secret: str = dataclasses.field(repr=False)
    """Proves that the name is this worker's; always the same."""
    session: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Random secret of this process, sent with every turn."""


class Offer:
    """One device offered to a service."""

    def __init__(self, service: Service, device: Device, worker: Runs, report: Callable[[str], None]) -> None:
        self._service = service
        self._device = device
        self._worker = worker
        self._report = report
        self._connections = deque(Connection(url, service.token) for url in service.urls)
        """The first one is used; the others follow when it does not answer."""
        self._options = find_profile(device).build_options
        self._measuring = ThreadPoolExecutor(1)
        self._id = ""
        self._current: _Begun | None = None
        """What is measured now, or was measured and has not been stored."""
        self._last: _Begun | None = None
        """What was begun last, stored or not. Every greeting repeats its result, and it is never begun again."""
        self._failures = 0
        """Number of addresses that failed since a call last succeeded."""
        self._pause_s = FIRST_PAUSE_S
        self._told = ""
        """The last reported reason why the service is not available."""
        self._was_accepted = False
        """Whether a service has ever registered the device."""
        self.is_stopping = False
        self._closing = threading.Event()

    @property
    def is_measuring(self) -> bool:
        """Whether a trial is running or its result has not arrived yet."""
        return self._current is not None

    @property
    def _connection(self) -> Connection:
        return self._connections[0]

    def serve(self) -> None:
        """Serve until stopped, at one address as long as it answers, then at the next.

        What was measured meanwhile is delivered there. Raises RefusedError for refusals that waiting does not fix, such
        as a wrong token.

        Raises ServiceError if the first answer is not that of a service; after that, an odd answer is taken to come
        from a proxy, and the call is repeated.
        """
        while not self._closing.is_set() and not (self.is_stopping and not self.is_measuring):
            try:
                self._take_turn()
            except UnreachableError as error:
                self._back_off(error)
            except RefusedError as error:
                if self._closing.is_set():
                    return  # `close` has unregistered the device
                if error.status == _UNKNOWN and self._id:
                    self._id = ""  # the service was restarted, or has dropped this device
                elif error.status == _TEMPLATES_DIFFER:
                    self._back_off(error, LONGEST_MISMATCH_S)
                elif error.status in _FATAL:
                    raise
                else:
                    self._back_off(error)
            except ServiceError as error:
                if not self._was_accepted:
                    raise
                self._back_off(error)
            else:
                self._return_to_service()

    def close(self) -> None:
        """Unregister the device, then end the running trial; from any thread, once `serve` should end.

        In this order, and without reporting how the trial ended: a killed child looks like a crashed one, for which
        its configuration is not to blame.
        """
        self.is_stopping = True
        self._closing.set()
        try:
            self._leave()
        finally:
            self._worker.close()

    def _leave(self) -> None:
        if self._id:
            connection = Connection(self._connection.url, self._service.token)
            try:
                path, session = f"/api/workers/{self._id}/leave", self._service.session
                connection.call("POST", path, {"session": session}, timeout_s=3)
            except ServiceError:
                pass  # it will notice that the device is gone
            finally:
                connection.close()

    def _take_turn(self) -> None:
        if not self._id:
            self._greet()
        trial_id = self._current[0] if self._current is not None else ""
        results = _result_of(self._current, HEARTBEAT_S)
        if self._closing.is_set():
            return
        running = trial_id if self._current is not None and not results else ""
        wait_s = 0.0 if running or self.is_stopping else WAIT_S
        turn = {
            "session": self._service.session,
            "running": running,
            "waited_s": self._worker.waited_s if trial_id else 0.0,
            "results": results,
            "wait_s": wait_s,
        }
        answer = self._connection.call("POST", f"/api/workers/{self._id}/turn", turn, timeout_s=wait_s + ANSWER_S)
        if not isinstance(answer, dict):
            raise self._connection.not_a_service()
        if results and (answer.get("is_stored", True) or self.is_stopping):  # when this one leaves, it is stored
            self._current = None
        if answer.get("refused"):
            self._report(f"{self._device.slug}: a result was refused: {printable(str(answer['refused']))}")
        given = answer.get("trial")
        if given is not None and not (isinstance(given, dict) and {"id", "job"} <= given.keys()):
            raise self._connection.not_a_service()
        if given is not None and not self.is_stopping and self._current is None:
            if self._last is not None and self._last[0] == given["id"]:
                self._current = self._last  # this service does not know yet that another has the result
            else:
                self._begin(given)

    def _greet(self) -> None:
        """Register the device and deliver finished results.

        A service with other templates does not store them, and clears their configurations of blame.
        """
        results = _result_of(self._last, 0.0)
        form = {
            "name": self._service.name,
            "secret": self._service.secret,
            "session": self._service.session,
            "code": code_version(),
            "selector": _number_of(self._device.selector),
            "device": plain_device(self._device),
            "results": results,
        }
        try:
            answer = self._connection.call("POST", "/api/workers", form)
        except RefusedError as error:
            if results and error.status == _TEMPLATES_DIFFER:  # they count nowhere any more
                self._current = None
            raise
        if not isinstance(answer, dict) or "id" not in answer:
            raise self._connection.not_a_service()
        self._id, self._was_accepted = str(answer["id"]), True
        if self._closing.is_set():
            self._leave()  # `close` could not: it did not have the id yet
        if results:
            self._current = None
        self._told = ""
        self._report(f"{self._device.slug} is offered to {self._connection.url}")

    def _begin(self, given: dict[str, Any]) -> None:
        self._current = self._last = str(given["id"]), self._measuring.submit(self._measure, given["job"])

    def _measure(self, plain: Any) -> dict[str, Any]:
        """Return a result in the form that a turn sends; when the device cannot be used, it contains ``trouble``."""
        try:
            job = read_job(Node(plain, "job"), self._device.selector, self._options)
            return {"job": plain, "trial": plain_trial(self._worker.run(job))}
        except (WorkerError, TableError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - one trial must not end the worker with all its devices
            reason = f"unexpected {type(error).__name__}: {error}"
        self._report(f"{self._device.slug}: {reason}")
        return {"job": plain, "trouble": printable(reason)}

    def _back_off(self, error: ServiceError, longest_s: float = LONGEST_PAUSE_S) -> None:
        """Go on to the next address; wait first when all have failed, longer each time.

        The wait is random, so that not all workers return at once.
        """
        self._connection.close()
        self._failures += 1
        if len(self._connections) > 1:
            self._id = ""
            self._connections.rotate(-1)
        have_all_failed = self._failures % len(self._connections) == 0
        if str(error) != self._told:
            where = "" if have_all_failed else f" at {self._connection.url}"
            self._report(f"{error}; trying again{where}")
        self._told = str(error)
        if have_all_failed:
            self._closing.wait(self._pause_s * (0.5 + random.random() / 2))  # noqa: S311 - no secret
            self._pause_s = min(2 * self._pause_s, longest_s)

    def _return_to_service(self) -> None:
        if self._told:
            self._report(f"{self._connection.url} answers again")
        self._told, self._pause_s, self._failures = "", FIRST_PAUSE_S, 0


def _result_of(begun: _Begun | None, patience_s: float) -> list[dict[str, Any]]:
    """Return the result of a trial in a list, empty if there is none within `patience_s`."""
    if begun is None or not wait([begun[1]], patience_s).done:
        return []
    return [{"id": begun[0], **begun[1].result()}]


def _number_of(selector: str) -> str:
    """Return what tells a device from others of this worker, in digits: a link's selector may hold a whole command."""
    is_local = re.fullmatch(r"[0-9:]{0,20}", selector)
    return selector if is_local else str(int(hashlib.sha256(selector.encode()).hexdigest()[:15], 16))


def own_name() -> str:
    """Return this machine's name with a few random digits that it keeps: phones are all called localhost."""
    node = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node())[:60] or "worker"
    return f"{node}-{_kept('worker-id', 3)}"


def own_secret() -> str:
    """Return the secret that proves that a name is this worker's, kept where only its user can read it."""
    return _kept("worker-secret", 32)


def _kept(name: str, size: int) -> str:
    """Return `size` random bytes in hexadecimal, the same each time; new ones each time if the folder is not writable.

    Raises UsageError when the file cannot be read or holds something else.
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
            time.sleep(0.1)  # another process may be writing it
        except OSError:
            return digits
        else:
            with os.fdopen(new, "w", encoding="ascii") as file:
                file.write(digits)
            return digits
    raise UsageError(
        f"{place} cannot be read, or was not written by autotune", hint="delete it; a new one is then created"
    )


def offer_all(offers: Sequence[Offer], should_stop: Callable[[], bool]) -> None:
    """Serve all offers until asked to stop, then wait for the running trials.

    Raises RefusedError when an offer was refused for good.
    """
    refusals: list[BaseException] = []

    def serve(offer: Offer) -> None:
        try:
            offer.serve()
        except BaseException as error:  # noqa: BLE001 - raised again below
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
