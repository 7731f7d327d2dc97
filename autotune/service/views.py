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
from autotune.service.store.jobs import OPEN, JobProblem, JobState, TuningJob


def job_view(job: TuningJob, service: Service, left_out: Sequence[str] = ()) -> JobView:
    """Return a job with the progress of its running searches."""
    problems = [_problem_view(problem, service) for problem in job.problems]
    return JobView(**{**vars(job), "problems": problems, "left_out": left_out})


def picture(job: TuningJob, service: Service) -> Picture:
    """Return a job for the clients that follow it. A cancelled job goes on until its running trials have ended."""
    return Picture(
        job=job_view(replace(job, problems=()), service).model_dump_json(exclude={"problems"}),
        problems={problem.number: _problem_view(problem, service).model_dump_json() for problem in job.problems},
        goes_on=job.state in OPEN or bool(job.counts.get(JobState.RUNNING.value)),
    )


def _problem_view(problem: JobProblem, service: Service) -> ProblemView:
    asked = problem.request.problem
    search = service.searches.get(problem.id) if problem.state is JobState.RUNNING else None
    known = {
        **vars(problem),
        **write(problem.request),
        "spent_s": round(problem.spent_s, 1),
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
    for slug, view in service.stations():
        stations[slug].append(view)
    return [_device_view(known[slug], tuned[slug], stations[slug]) for slug in sorted(known)]


def _device_view(device: Device, tuned: int, stations: list[StationView]) -> DeviceView:
    states = {station.state for station in stations}
    state = next((word for word in ("busy", "idle", "troubled") if word in states), "offline")
    return DeviceView(**vars(device), state=state, tuned=tuned, stations=stations)
