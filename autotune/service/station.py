"""A device that a worker offers, and the trial that it is given. Only the event loop uses these."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from autotune.codec import Node
from autotune.model.device import Device
from autotune.model.trial import Job, Trial
from autotune.service.store.workers import digest_of
from autotune.store import Holder

LIMIT_FACTOR, EXTRA_S = 2.0, 60.0
"""A trial is given up when its worker takes longer than its time limits times this factor plus this extra time."""


@dataclass(eq=False)
class Assignment:
    """One trial for one station."""

    job: Job
    is_off: Callable[[], bool] = lambda: False
    """Whether it must not be given any more, because another service has taken the search."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    result: "Future[Trial]" = field(default_factory=Future)
    deadline: float = float("inf")
    """By the monotonic clock; infinite until the trial is given."""
    given: float = 0.0
    """When it was assigned to a station, by the monotonic clock."""

    waited_s: float = 0.0
    """How long it waited for another program that measures on the device, as reported by its worker."""
    is_hurried: bool = False
    """Whether its job was cancelled: its worker is not believed that it waits."""
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its search, which has the result, has stored it or is gone."""
    is_stored: bool = False
    told: Node | None = None
    """The result as its worker told it."""

    def set_deadline(self, now: float) -> None:
        """Start the time limit: from now on the worker has the trial."""
        limits_s = self.job.build_limit_s + self.job.run_limit_s
        self.deadline = now + LIMIT_FACTOR * limits_s + EXTRA_S

    def finish(self, trial: Trial) -> None:
        if not self.result.done():
            self.result.set_result(trial)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


@dataclass(eq=False)
class Station:
    """A device that a worker offers."""

    id: str
    name: str
    session: str = field(repr=False)
    """A secret of the worker process. Another process of that worker has lost what this one was given."""
    device: Device
    model: Device
    """The device without its selector: stations with equal models measure the same."""
    model_digest: str
    """Digest of driver and limits: all stations that search a job have the same one."""
    address: str
    since: str
    heard: float
    """Time of its last request, by the monotonic clock."""
    rank: int = 0
    """Lower for a worker that was enrolled earlier."""
    turns: int = 0
    """Number of turns so far."""
    is_ready: bool = False
    """Whether it has had a turn with no trial left from before: only then can it be given one."""
    is_taken: bool = False
    """Whether a search uses it."""
    is_lost: bool = False
    trouble: str = ""
    troubled_until: float = 0.0
    trials: int = 0
    waited_s: float = 0.0
    """How long all its trials waited for other programs on its machine."""
    assignment: Assignment | None = None
    reported: Assignment | None = None
    """The trial whose result its search has, and may not have stored yet."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    @property
    def holder(self) -> Holder:
        """The holder under which its running trials are stored."""
        return Holder(worker=self.name, session=digest_of(self.session)[:32], selector=self.device.selector)

    @property
    def state(self) -> str:
        """The state as one word: lost, troubled, idle or busy."""
        if self.is_lost:
            return "lost"
        if self.clock() < self.troubled_until:
            return "troubled"
        return "idle" if self.is_ready and not self.is_taken else "busy"

    def settle(self, *, is_stored: bool) -> None:
        """Note that the search has stored what was reported, or perhaps did not and never will."""
        if self.reported is not None:
            self.reported.is_stored = is_stored
            self.reported.is_settled.set()
            self.reported = None
