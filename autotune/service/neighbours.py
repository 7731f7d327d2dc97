"""What services that share a database tell each other: events of jobs that are followed, and stations.

A client may follow a job at one service while another one searches it. The first asks for the events of the job, again
and again while somebody follows it; the second then sends them. Each service also sends the state of its stations, so
that all of them show every device. All of it may be lost without harm: the job itself is read from the database.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from autotune.service.events import Feed
from autotune.service.fleet import Fleet
from autotune.service.forms import StationView
from autotune.service.searches import Search
from autotune.service.station import Station
from autotune.service.store.notices import Notices

ASK_S = 5.0
"""How often a service asks for the events of a job that is followed there, and sends its stations."""
KNOWN_S = 3 * ASK_S
"""How long a station of another service is known after that has last sent it."""
AT_A_TIME = 6
"""Stations in a notice: with the longest texts of each, it is still not too long."""
MOST_TEXT = 100
WANTED_S = 3 * ASK_S
"""How long events are sent after the last such request."""
MOST_WANTED = 1000

_Key = tuple[str, str, str]
"""Slug, name of the worker, selector."""
Stations = list[tuple[str, StationView]]
"""Each with the slug of its device."""


def station_views(fleet: Fleet, searches: Mapping[int, Search]) -> Stations:
    """Return the state of all stations, with the search that each works on, as its own or as a helper."""
    working = {station.id: search for search in searches.values() for station in search.stations()}
    return [(station.device.slug, _view(station, working.get(station.id))) for station in fleet.stations()]


def _key(slug: str, view: StationView) -> _Key:
    return slug, view.worker, view.selector


def _view(station: Station, search: Search | None) -> StationView:
    return StationView(
        worker=station.name,
        selector=station.device.selector,
        model=station.model_digest,
        state=station.state,
        since=station.since,
        heard_s=round(station.clock() - station.heard, 1),
        trials=station.trials,
        trouble=station.trouble,
        job=search.job.id if search else None,
        problem=search.problem.number if search else None,
        service="",
    )


class Neighbours:
    """The other services. `wants` and `tell` may be called from any thread, the rest in the event loop."""

    def __init__(
        self,
        notices: Notices,
        feed: Feed,
        fleet: Fleet,
        searches: Mapping[int, Search],
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The others are told of the stations of `fleet`, which call `address`, and of what the `searches` do."""
        self._notices = notices
        self._feed = feed
        self._fleet = fleet
        self._searches = searches
        self._address = address[:MOST_TEXT]
        self._clock = clock
        self._stations: dict[_Key, tuple[float, StationView]] = {}
        """Those of the others: when each was last heard of, by the monotonic clock, and its state then."""
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
        """Ask for the events of all jobs that are followed here, again and again, and have these jobs read again.

        The stations are sent as often.
        """
        while True:
            await asyncio.sleep(ASK_S)
            self._feed.refresh()
            self._send_stations()

    def with_others(self, own: Stations) -> Stations:
        """Return these stations and those of the other services; one that has come from there is no longer theirs."""
        now = self._clock()
        self._stations = {key: known for key, known in self._stations.items() if now - known[0] < KNOWN_S}
        ours = {_key(slug, view) for slug, view in own}
        others = [
            (key[0], view.model_copy(update={"heard_s": round(view.heard_s + now - heard, 1)}))
            for key, (heard, view) in self._stations.items()
            if key not in ours
        ]
        return own + others

    def _send_stations(self) -> None:
        own = [
            (slug, {**view.model_dump(), "trouble": view.trouble[:MOST_TEXT], "service": self._address})
            for slug, view in station_views(self._fleet, self._searches)
        ]
        for first in range(0, len(own), AT_A_TIME):
            self._send(stations=own[first : first + AT_A_TIME])

    def wants(self, job_id: int) -> bool:
        """Return whether another service wants the events of a job."""
        return self._clock() - self._wanted.get(job_id, float("-inf")) < WANTED_S

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
        # Of another version, or of whoever else may write to the database.
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            told = json.loads(notice)
            if told["from"] == self._me:
                return
            for slug, view in told.get("stations", ()):
                known = StationView(**view)
                self._stations[_key(slug, known)] = self._clock(), known
            if "stations" in told:
                return
            job_id, event = int(told["job"]), told.get("event")
            if event is not None:
                self._feed.pass_on(job_id, str(event))
                return
            is_new = not self.wants(job_id)
            self._wanted[job_id] = self._clock()
            for search in list(self._searches.values()) if is_new else ():
                for latest in search.latest() if search.job.id == job_id else ():
                    self.tell(job_id, latest)
            while len(self._wanted) > MOST_WANTED:
                del self._wanted[min(self._wanted, key=self._wanted.__getitem__)]

    def _send(self, **told: Any) -> bool:
        return self._notices.send(json.dumps({"from": self._me, **told}, separators=(",", ":")))
