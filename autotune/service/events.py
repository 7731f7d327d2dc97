"""Events of jobs, sent to the clients that follow them (readers).

Searches publish events from their threads; readers wait in the event loop. All readers of a job share one `_Channel`.
It reads the job once for all of them, at most once a second, and sends only what has changed since; each message is
encoded once and sent to every reader. A reader of a job that another service begins to search is sent away, and
redirected to that one when it comes back, unless it stays: then it gets the states only.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from autotune.errors import AutotuneError
from autotune.service.pools import BusyError
from autotune.service.shares import CLIENT, may_take
from autotune.service.submission import FullError

MAX_BEHIND = 200
"""Messages that a reader may be behind before it is disconnected; when it reconnects, it first gets the whole job."""
MAX_READERS = 1000
READ_EVERY_S = 1.0
ALIVE_S = 15.0
"""Maximum time without a message to a reader."""
PAUSE_PER_READER_S = 0.005
"""Pause after each message, for each reader that it is sent to."""
LONGEST_PAUSE_S = 1.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A job in JSON: all of it without its problems, and each problem by its number."""

    job: str
    problems: dict[int, str]
    goes_on: bool
    elsewhere: str = ""
    """Address of another service that searches the job; empty if this one does as well, or none does."""

    def whole(self) -> str:
        return self._with(self.problems.values())

    def changes(self, before: "Picture") -> str:
        """Return the job with only its changed problems; empty when nothing has changed."""
        changed = [text for number, text in self.problems.items() if before.problems.get(number) != text]
        return self._with(changed) if changed or self.job != before.job else ""

    def _with(self, problems: Any) -> str:
        return f'{self.job[:-1]},"problems":[{",".join(problems)}]}}'


Read = Callable[[], Awaitable[Picture]]
"""Reads the state of a job. May raise AutotuneError, and HTTPException for a job that does not exist."""


class Feed:
    """The channels of all jobs that are followed."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop in which readers wait."""
        self._loop = loop

    def publish(self, job_id: int, name: str = "", encode: Callable[[], Any] = dict) -> None:
        """Publish an event, from any thread; without a name, that a state has changed.

        `encode` returns the data of the event. It is called only if the job is followed.
        """
        if self._loop is not None and job_id in self._channels:
            text = _event(name, json.dumps(encode(), allow_nan=False, separators=(",", ":"))) if name else ""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._note, job_id, text)

    def refresh(self) -> None:
        """Have all jobs that are followed read again, which other services may have changed."""
        for channel in self._channels.values():
            channel.note("")

    def close(self) -> None:
        """End all readers, and accept no more."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.end()

    def join(self, job_id: int, read: Read, *, stays: bool = False) -> "Reader":
        """Follow a job, or its states only if it `stays` here. The caller has to call `leave` in the end.

        Raises FullError when there are too many readers, BusyError when the service is stopping.
        """
        held = Counter(reader.client for channel in self._channels.values() for reader in channel.readers)
        if not may_take(held, MAX_READERS):
            text = f"{held[CLIENT.get()]} readers of this address and {held.total()} of all are already following jobs"
            raise FullError(text, hint="try again later")
        if self._is_closed:
            raise BusyError("the service is stopping", hint="try again later")
        channel = self._channels.get(job_id)
        if channel is None:
            channel = self._channels[job_id] = _Channel(read, lambda: self._channels.pop(job_id, None))
        return Reader(channel, stays=stays)

    def _note(self, job_id: int, text: str) -> None:
        channel = self._channels.get(job_id)
        if channel is not None:
            channel.note(text)


class Reader:
    """A client that follows a job."""

    def __init__(self, channel: "_Channel", *, stays: bool) -> None:
        self.is_new = True
        """Whether it has not yet received the whole job."""
        self.client = CLIENT.get()
        self.stays = stays
        """Whether it goes on here when another service searches the job."""
        self._channel = channel
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_BEHIND)
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.join(self)

    async def begun(self) -> None:
        """Return when there is a message. Raises what reading the job raised."""
        await self._begun

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages until the job has ended or the reader is too far behind."""
        while (message := await self._messages.get()) is not None:
            yield message

    def leave(self) -> None:
        self._channel.leave(self)

    def fail(self, error: Exception) -> None:
        """Make `begun` raise an error, unless there was a message already."""
        if not self._begun.done():
            self._begun.set_exception(error)

    def put(self, message: bytes | None) -> None:
        """Queue a message; None ends the reader."""
        if not self._begun.done():
            self._begun.set_result(None)
        if self._messages.full():
            while not self._messages.empty():
                self._messages.get_nowait()
            message = None
        self._messages.put_nowait(message)


class _Channel:
    """All readers of one job, and the task that sends them messages."""

    def __init__(self, read: Read, on_end: Callable[[], object]) -> None:
        self.readers: set[Reader] = set()
        self._read = read
        self._on_end = on_end
        self._shown: Picture | None = None
        self._read_at = -READ_EVERY_S
        self._texts: list[str] = []
        self._is_stale = True
        self._has_ended = False
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_telling())

    def join(self, reader: Reader) -> None:
        self.readers.add(reader)
        self.note("")

    def leave(self, reader: Reader) -> None:
        self.readers.discard(reader)
        if not self.readers:
            self.end()

    def note(self, text: str) -> None:
        """Queue an event as it is sent; an empty text requests that the job is read again."""
        if text:
            self._texts.append(text)
        else:
            self._is_stale = True
        self._changed.set()

    def end(self) -> None:
        """End all readers. Does nothing the second time."""
        if self._has_ended:
            return
        self._has_ended = True
        for reader in self.readers:
            reader.put(None)
        self._task.cancel()
        self._on_end()

    async def _keep_telling(self) -> None:
        while True:
            wait_s = max(0.0, self._read_at + READ_EVERY_S - time.monotonic()) if self._is_stale else ALIVE_S
            if not (self._is_stale and wait_s == 0):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
            self._changed.clear()
            if self._texts:
                self._send("".join(self._texts))
                self._texts.clear()
            elif not self._is_stale:
                self._send(": alive\n\n")
            if self._is_stale and time.monotonic() >= self._read_at + READ_EVERY_S:
                await self._print_job()
            await asyncio.sleep(min(LONGEST_PAUSE_S, PAUSE_PER_READER_S * len(self.readers)))

    async def _print_job(self) -> None:
        """Read the job, and send all of it to new readers, only changes to the others."""
        self._is_stale, self._read_at = False, time.monotonic()
        new = [reader for reader in self.readers if reader.is_new]
        try:
            picture = await self._read()
        except Exception as error:  # noqa: BLE001 - after any error, no reader waits for ever
            for reader in new:
                reader.fail(error)
            if isinstance(error, AutotuneError):  # such as while the database is unavailable
                self._is_stale = True
                return
            if not isinstance(error, HTTPException):
                _LOG.error("a job cannot be sent to its readers", exc_info=True)
            self.end()
            return
        for reader in [reader for reader in self.readers if picture.elsewhere and not reader.stays]:
            reader.put(None)
            self.leave(reader)
        changes = picture.changes(self._shown) if self._shown else ""
        if changes:
            self._send(_event("job_changed", changes))
        self._shown = picture
        whole = _event("job", picture.whole()).encode() if new else b""
        for reader in self.readers.intersection(new):
            reader.is_new = False
            reader.put(whole)
        if not picture.goes_on:
            self._send(_event("end", "{}"))
            self.end()

    def _send(self, text: str) -> None:
        """Send a message to all readers that have received the whole job."""
        message = text.encode()
        for reader in self.readers:
            if not reader.is_new:
                reader.put(message)


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"
