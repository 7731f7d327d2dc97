"""What services that share a database tell each other about jobs: who follows which, and what happens in them.

A client may follow a job at one service while another one searches it. The first asks for the events of the job, again
and again while somebody follows it; the second then sends them. All of it may be lost without harm: the job itself is
read from the database.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from autotune.service.events import Feed
from autotune.store.notices import Notices

ASK_S = 5.0
"""How often a service asks for the events of a job that is followed there."""
WANTED_S = 3 * ASK_S
"""How long events are sent after the last such request."""
MOST_WANTED = 1000


class Neighbours:
    """The other services. `wants` and `tell` may be called from any thread, the rest in the event loop."""

    def __init__(self, notices: Notices, feed: Feed, latest: Callable[[int], Iterable[str]]) -> None:
        """`latest` returns the newest events of a job that this service searches."""
        self._notices = notices
        self._feed = feed
        self._latest = latest
        self._me = secrets.token_hex(4)
        self._wanted: dict[int, float] = {}
        """When each job was last asked for, by the monotonic clock."""

    def open(self, call_soon: Callable[[Callable[[], object]], None], hear_queue: Callable[[str], None]) -> None:
        """Begin to hear the others. `call_soon` has the event loop call something, such as `hear_queue`."""
        self._feed.elsewhere = self
        self._notices.open(
            lambda notice: call_soon(partial(self.hear, notice)), lambda notice: call_soon(partial(hear_queue, notice))
        )

    def close(self) -> None:
        """Hear and tell nothing more."""
        self._notices.close()

    async def keep_asking(self) -> None:
        """Ask for the events of all jobs that are followed here, again and again, and have these jobs read again."""
        while True:
            await asyncio.sleep(ASK_S)
            self._feed.refresh()

    def wants(self, job_id: int) -> bool:
        """Return whether another service wants the events of a job."""
        return time.monotonic() - self._wanted.get(job_id, float("-inf")) < WANTED_S

    def tell(self, job_id: int, event: str) -> None:
        """Send an event to the services that want it; one that is too long only says that something has changed."""
        if not self._send(job=job_id, event=event):
            self._send(job=job_id, event="")

    def ask(self, job_ids: Iterable[int]) -> None:
        """Ask for the events of jobs that are followed here."""
        for job_id in job_ids:
            self._send(job=job_id)

    def hear(self, notice: str) -> None:
        """Take a notice of any service; an empty one says that some may have been missed."""
        if not notice:
            self._feed.refresh()
            return
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # of another version
            told = json.loads(notice)
            if told["from"] == self._me:
                return
            job_id, event = int(told["job"]), told.get("event")
            if event is not None:
                self._feed.pass_on(job_id, str(event))
                return
            is_new = not self.wants(job_id)
            self._wanted[job_id] = time.monotonic()
            for latest in self._latest(job_id) if is_new else ():
                self.tell(job_id, latest)
            while len(self._wanted) > MOST_WANTED:
                del self._wanted[min(self._wanted, key=self._wanted.__getitem__)]

    def _send(self, **told: Any) -> bool:
        return self._notices.send(json.dumps({"from": self._me, **told}, separators=(",", ":")))
