"""Client of a service: submits and follows jobs, looks up configurations, fetches tables."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlencode

from autotune.errors import RefusedError, UnreachableError
from autotune.service.remote.connection import Connection, MovedError

SILENCE_S = 60.0
"""Read timeout of event streams; the service sends something every 15 s."""
RETRY_S = 2.0
_FOR_A_WHILE = frozenset({502, 503, 504})
"""Statuses of a service, or of a proxy in front of it, while it stops, starts or waits for its database."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a job; names and data are those of the API."""

    name: str
    data: dict[str, Any]


class Client:
    """The API of a service as methods, which raise UnreachableError and RefusedError. A context manager."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._token = token
        self._connection = Connection(url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def submit(
        self,
        device: str,
        *,
        shapes: Sequence[str] = (),
        presets: Sequence[str] = (),
        family: str = "gemm",
        trials: int | None = None,
        seconds: float | None = None,
        algorithms: Sequence[str] = (),
        seed: int = 0,
    ) -> dict[str, Any]:
        """Queue a job and return it as stored by the service. `shapes` are lines in the format of a shapes file."""
        form = {
            "device": device,
            "family": family,
            "shapes": list(shapes),
            "presets": list(presets),
            "trials": trials,
            "seconds": seconds,
            "algorithms": list(algorithms),
            "seed": seed,
        }
        return self._once("/api/jobs", form)

    def jobs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """Return the jobs, newest first, without their problems."""
        return list(self._connection.call("GET", f"/api/jobs?limit={limit}")["jobs"])

    def job(self, job_id: int) -> dict[str, Any]:
        """Return a job with its problems."""
        return dict(self._connection.call("GET", f"/api/jobs/{job_id}"))

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Stop a job after the running trial; its results are kept."""
        return dict(self._connection.call("POST", f"/api/jobs/{job_id}/cancel", {}))

    def follow(self, job_id: int) -> Iterator[Event]:
        """Yield the events of a job until it has ended, reconnecting when the service was unreachable or unavailable.

        The data of each event `job` is the whole job, although the service sends only the changes. A service that
        shares its database redirects to the one that searches the job, which is sent the token, too; if that cannot be
        reached from here, the states come from the first one.
        """
        job: dict[str, Any] = {}
        url, stays = self._url, False
        while True:
            try:
                for event in self._events(url, job_id, stays=stays):
                    if event.name == "end":
                        return
                    if event.name in ("job", "job_changed"):
                        job = _with_changes(job, event)
                        yield Event(name="job", data=job)
                    else:
                        yield event
                url = self._url
            except MovedError as error:
                url = error.url
            except UnreachableError:
                url, stays = self._url, stays or url != self._url
                time.sleep(RETRY_S)
            except RefusedError as error:
                if error.status not in _FOR_A_WHILE:
                    raise
                time.sleep(RETRY_S)

    def devices(self) -> list[dict[str, Any]]:
        """Return the known devices, and whether each is available."""
        return list(self._connection.call("GET", "/api/devices")["devices"])

    def forget_worker(self, name: str) -> None:
        """Allow the name of a worker to be enrolled again with another secret; needs the administrators' token."""
        self._connection.call("DELETE", f"/api/workers/{quote(name, safe='')}")

    def lookup(self, device: str, shape: str, family: str = "gemm") -> dict[str, Any]:
        """Return the configuration to use, and the reason."""
        question = urlencode({"device": device, "family": family, "shape": shape})
        return dict(self._connection.call("GET", f"/api/lookup?{question}"))

    def export(self, form: str, *, device: str = "", family: str = "") -> bytes:
        """Return a table as json, csv, markdown, c or sqlite."""
        wanted = {name: value for name, value in (("device", device), ("family", family)) if value}
        return self._connection.fetch("GET", f"/api/export/{quote(form, safe='')}?{urlencode(wanted)}")

    def upload(self, table: bytes) -> dict[str, Any]:
        """Upload an exported JSON table: jobs verify its entries, and those that are confirmed count."""
        return self._once("/api/tables", table)

    def _once(self, path: str, body: object) -> dict[str, Any]:
        self._connection.close()  # only calls over a kept connection are repeated; this must not be
        return dict(self._connection.call("POST", path, body))

    def _events(self, url: str, job_id: int, *, stays: bool) -> Iterator[Event]:
        connection = Connection(url, self._token)
        path = f"/api/jobs/{job_id}/events{'?stay=true' if stays else ''}"
        name, data = "", ""
        for line in connection.lines(path, timeout_s=SILENCE_S):
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data += value
            elif not line and name:
                found: Mapping[str, Any] = json.loads(data or "{}")
                yield Event(name=name, data=dict(found))
                name, data = "", ""


def _with_changes(job: dict[str, Any], event: Event) -> dict[str, Any]:
    if event.name == "job":
        return event.data
    changed = {problem["number"]: problem for problem in event.data["problems"]}
    return {**event.data, "problems": [changed.get(problem["number"], problem) for problem in job["problems"]]}
