"""The state of the service as response bodies of the API."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from autotune.codec import write
from autotune.model.device import Device
from autotune.service.core import Service
from autotune.service.events import Picture
from autotune.service.forms import DeviceView, JobView, ProblemView, StationView
from autotune.service.searches import Search
from autotune.service.station import Station
from autotune.service.store.jobs import OPEN, JobProblem, JobState, TuningJob


def job_view(job: TuningJob, service: Service, left_out: Sequence[str] = ()) -> JobView:
    """Return a job with the progress of its running searches."""
    problems = [_problem_view(problem, service) for problem in job.problems]
    return JobView(**{**vars(job), "problems": problems, "left_out": left_out})


def picture(job: TuningJob, service: Service) -> Picture:
    """Return a job for the clients that follow it. A cancelled job goes on until its running trials have ended."""
    return Picture(
        elsewhere=elsewhere(
            [problem.service for problem in job.problems if problem.state is JobState.RUNNING], service
        ),
        job=job_view(replace(job, problems=()), service).model_dump_json(exclude={"problems"}),
        problems={problem.number: _problem_view(problem, service).model_dump_json() for problem in job.problems},
        goes_on=job.state in OPEN or bool(job.counts.get(JobState.RUNNING.value)),
    )


def elsewhere(services: Sequence[str], service: Service) -> str:
    """Return the address of another service that searches a job; empty if this one does as well, or none does."""
    return "" if service.address in services else next(filter(None, services), "")


def _problem_view(problem: JobProblem, service: Service) -> ProblemView:
    asked = problem.request.problem
    search = service.searches.get(problem.id) if problem.state is JobState.RUNNING else None
    known = {
        **vars(problem),
        **write(problem.request),
        "spent_s": round(problem.spent_s, 1),
        "service": elsewhere([problem.service], service) if problem.state is JobState.RUNNING else "",
        "outcome": json.loads(problem.outcome) if problem.outcome else None,
        "progress": {name: encode() for name, encode in search.progress.items()} if search else None,
    }
    return ProblemView(
        family=asked.family, shape=asked.label, flops=asked.flops, bytes_moved=asked.bytes_moved, **known
    )


def device_views(stored: Sequence[Device], tuned: Counter[str], service: Service) -> list[DeviceView]:
    """Return every device that is stored or that a worker offers, sorted by slug."""
    offered = {station.device.slug: station.device for station in service.fleet.stations()}
    known = {device.slug: device for device in stored} | offered
    stations: defaultdict[str, list[StationView]] = defaultdict(list)
    working = {station.id: search for search in service.searches.values() for station in search.stations()}
    for station in service.fleet.stations():
        stations[station.device.slug].append(_station_view(station, working.get(station.id)))
    return [_device_view(known[slug], tuned[slug], stations[slug]) for slug in sorted(known)]


def _station_view(station: Station, search: Search | None) -> StationView:
    """Return the state of a station, with the search that it works on, as its own or as a helper."""
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
    )


def _device_view(device: Device, tuned: int, stations: list[StationView]) -> DeviceView:
    states = {station.state for station in stations}
    state = next((word for word in ("busy", "idle", "troubled") if word in states), "offline")
    return DeviceView(**vars(device), state=state, tuned=tuned, stations=stations)
