"""What a program asks of a service: submit jobs, follow them, look up, fetch tables."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from autotune.errors import UnreachableError
from autotune.remote.connection import Connection

SILENCE_S = 60.0
"""The service says something every 15 s."""
RETRY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a service tells of a job; the names and forms are those of the API."""

    name: str
    data: dict[str, Any]


class Client:
    """The API of a service as calls. A context manager. Raises UnreachableError, RefusedError."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._token = token
        self._connection = Connection(url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the service."""
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
        """Queue a job; the job as the service has it. `shapes` are lines as a shapes file has them."""
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
        """The newest first, without their problems."""
        return list(self._connection.call("GET", f"/api/jobs?limit={limit}")["jobs"])

    def job(self, job_id: int) -> dict[str, Any]:
        """One job with its problems."""
        return dict(self._connection.call("GET", f"/api/jobs/{job_id}"))

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Stop a job after the running trial; what it found stays."""
        return dict(self._connection.call("POST", f"/api/jobs/{job_id}/cancel", {}))

    def follow(self, job_id: int) -> Iterator[Event]:
        """What happens to a job until it has ended; goes on after the service was away.

        The data of each event `job` is the whole job, of which the service tells only what has changed.
        """
        job: dict[str, Any] = {}
        while True:
            try:
                for event in self._events(job_id):
                    if event.name == "end":
                        return
                    if event.name in ("job", "job_changed"):
                        job = _with_changes(job, event)
                        yield Event(name="job", data=job)
                    else:
                        yield event
            except UnreachableError:
                time.sleep(RETRY_S)

    def devices(self) -> list[dict[str, Any]]:
        """What is known, and whether it is there."""
        return list(self._connection.call("GET", "/api/devices")["devices"])

    def forget_worker(self, name: str) -> None:
        """Let the name of a worker be enrolled anew, with another secret; needs the administrators' token."""
        self._connection.call("DELETE", f"/api/workers/{quote(name, safe='')}")

    def lookup(self, device: str, shape: str, family: str = "gemm") -> dict[str, Any]:
        """The configuration to use, and why."""
        question = urlencode({"device": device, "family": family, "shape": shape})
        return dict(self._connection.call("GET", f"/api/lookup?{question}"))

    def export(self, form: str, *, device: str = "", family: str = "") -> bytes:
        """A table: json, csv, markdown, c or sqlite."""
        wanted = {name: value for name, value in (("device", device), ("family", family)) if value}
        return self._connection.fetch("GET", f"/api/export/{quote(form, safe='')}?{urlencode(wanted)}")

    def upload(self, table: bytes) -> dict[str, Any]:
        """An exported JSON table: jobs verify it, and what holds counts."""
        return self._once("/api/tables", table)

    def _once(self, path: str, body: object) -> dict[str, Any]:
        self._connection.close()  # only over a connection kept open is a call repeated, and this one is to count once
        return dict(self._connection.call("POST", path, body))

    def _events(self, job_id: int) -> Iterator[Event]:
        connection = Connection(self._url, self._token)
        name, data = "", ""
        for line in connection.lines(f"/api/jobs/{job_id}/events", timeout_s=SILENCE_S):
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
