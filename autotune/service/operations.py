"""Routes for those who run the service: whether it is up, whether it is ready, and numbers for Prometheus."""

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from autotune import __version__
from autotune.errors import AutotuneError
from autotune.kernels.render import code_version
from autotune.service.admission import Answered
from autotune.service.core import Service
from autotune.service.forms import Health
from autotune.service.pools import Pools
from autotune.service.store import ServiceStore

READY_LIMIT_S = 5.0
"""How long the database may take to answer whether it is ready."""
READY_AGE_S = 1.0
"""How long that answer holds: anybody may ask, and as often as they like."""
YOUNG_TRIALS = 2000
"""More than are stored while the transaction of a trial lasts."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """One metric with its values, each under labels."""

    kind: str
    """`counter` or `gauge`."""
    name: str
    meaning: str
    values: Iterable[tuple[Mapping[str, object], float]]

    def __str__(self) -> str:
        head = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} {self.kind}"]
        return "\n".join([*head, *(f"{self.name}{_labels(labels)} {value:g}" for labels, value in self.values), ""])


_counter, _gauge = partial(Metric, "counter"), partial(Metric, "gauge")


def operation_routes(service: Service, pools: Pools, answered: Answered) -> APIRouter:
    """Return the routes /health, /ready and /metrics."""
    routes = APIRouter(tags=["operations"])
    readiness, totals = _Readiness(service.store), TrialTotals(service.store)

    @routes.get("/health")
    @routes.get("/api/health")
    async def health() -> Health:
        """Report that the process lives, and its version. Needs no token."""
        return Health(status="ok", tool_version=__version__, code=code_version())

    @routes.get("/ready", responses={503: {"description": "it is not ready"}})
    async def ready() -> Response:
        """Report whether the database answers and has the newest schema. Needs no token."""
        missing = "the service is stopping" if service.is_stopping else await readiness.missing()
        return JSONResponse({"status": missing or "ready"}, status_code=503 if missing else 200)

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {TEXT.partition(";")[0]: {}}}})
    async def metrics() -> Response:
        """Return numbers in the text format of Prometheus. Needs a token for reading, where there are tokens."""
        stored = await pools.heavy.run(lambda: list(_stored(service.store, totals)))
        return Response("".join(map(str, [*_live(service, answered), *stored])), media_type=TEXT)

    return routes


class _Readiness:
    """Whether the database is ready, asked by one request for all that come at the same time."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._asking = asyncio.Lock()
        self._until = 0.0
        self._missing = ""

    async def missing(self) -> str:
        """Return what is missing, an empty string if nothing is."""
        async with self._asking:
            if time.monotonic() >= self._until:
                self._missing = await self._asked()
                self._until = time.monotonic() + READY_AGE_S
        return self._missing

    async def _asked(self) -> str:
        try:
            is_ready = await asyncio.wait_for(asyncio.to_thread(self._store.is_ready), READY_LIMIT_S)
        except (AutotuneError, TimeoutError) as error:
            _LOG.warning("not ready: %s", error)
            return "the database does not answer"
        return "" if is_ready else "the database has an older schema"


def _live(service: Service, answered: Answered) -> Iterable[Metric]:
    """Yield what the process knows."""
    stations, now = service.fleet.stations(), time.monotonic()
    of = [({"device": its.device.slug, "worker": its.name, "selector": its.device.selector}, its) for its in stations]
    states = Counter((station.device.slug, station.state) for station in stations)
    requests = [({"method": method, "status": status}, count) for (method, status), count in sorted(answered.items())]
    found = [({"number": number}, _used(pid)) for number, pid in enumerate(service.search_pids)]
    searching = [(labels, *used) for labels, used in found if used]
    yield _gauge("autotune_info", "Version of the service.", [({"version": __version__, "code": code_version()}, 1)])
    yield _gauge("autotune_devices_offered", "Devices that workers offer, by state.", _by_device(states, "state"))
    trials = [(labels, station.trials) for labels, station in of]
    yield _counter("autotune_worker_trials_total", "Trials of a worker since it was offered.", trials)
    silences = [(labels, now - station.heard) for labels, station in of]
    yield _gauge("autotune_worker_silent_seconds", "Time since a worker was last heard from.", silences)
    yield _gauge("autotune_searches", "Searches that run.", [({}, len(service.searches))])
    yield _counter("autotune_http_answers_total", "Answers by method and status.", requests)
    meaning = "Processor time of the process that answers, without those that search."
    yield _counter("process_cpu_seconds_total", meaning, [({}, time.process_time())])
    name, times = "autotune_search_process_cpu_seconds_total", [(labels, cpu_s) for labels, cpu_s, _ in searching]
    yield _counter(name, "Processor time of a search process.", times)
    name, sizes = "autotune_search_process_resident_memory_bytes", [(labels, memory) for labels, _, memory in searching]
    yield _gauge(name, "Memory of a search process.", sizes)
    if (memory := _memory_bytes()) is not None:
        yield _gauge("process_max_resident_memory_bytes", "Most memory that the service has used.", [({}, memory)])


class TrialTotals:
    """The number of trials in the database. Rows are only added, so that each look counts only the last of them.

    Of transactions at the same time, one with lower ids may end last: the last YOUNG_TRIALS are counted again.
    """

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._settled: Counter[tuple[str, str]] = Counter()
        self._until = 0
        """The last id among them."""

    def read(self) -> Counter[tuple[str, str]]:
        """Return the counts by slug and state. Raises StoreError."""
        last = self._store.last_trial()
        if (settled := last - YOUNG_TRIALS) > self._until:
            self._settled += self._store.count_trials(self._until, settled)
            self._until = settled
        return self._settled + self._store.count_trials(self._until, last)


def _stored(store: ServiceStore, totals: TrialTotals) -> Iterable[Metric]:
    """Yield what the database knows. Raises StoreError."""
    jobs, _ = store.jobs.open_counts()
    yield _gauge("autotune_jobs_open", "Jobs that wait or run.", [({}, jobs)])
    problems = _by_device(store.jobs.open_problems(), "state")
    yield _gauge("autotune_open_job_problems", "Problems of open jobs, by state.", problems)
    trials = _by_device(totals.read(), "state")
    yield _counter("autotune_trials_total", "Trials in the database, by how they ended.", trials)
    quarantined = _by_device(store.quarantine_counts(), "reason")
    yield _gauge("autotune_quarantined", "Configurations in quarantine, by reason.", quarantined)


def _by_device(counts: Mapping[tuple[str, str], int], name: str) -> list[tuple[Mapping[str, object], float]]:
    return [({"device": slug, name: word}, count) for (slug, word), count in sorted(counts.items())]


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _used(pid: int) -> tuple[float, int] | None:
    """Return the processor time in seconds and the resident memory in bytes of a process; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or the system is not Linux
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def _memory_bytes() -> int | None:
    """Return the largest resident size so far; None on a system that does not tell it."""
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
