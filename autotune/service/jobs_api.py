"""Routes of jobs: submit, list, look at, follow, cancel."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import StreamingResponse

from autotune.service.admission import WHAT
from autotune.service.core import Service
from autotune.service.forms import JobForm, JobList, JobView
from autotune.service.submitting import submit
from autotune.service.views import job_view
from autotune.store.jobs import OPEN, JobState, TuningJob

ALIVE_S = 15.0
"""A reader hears something at least so often."""
LARGEST = 2**31 - 1

JobId = Annotated[int, Path(ge=1, le=LARGEST)]

EVENTS = """\
What happens to a job as server-sent events, until it has ended. The data of each is JSON:

- `job`: the whole job, as `GET /api/jobs/{job_id}` has it; first of all, and whenever a state has changed
- `problem_started`: problem (its number), configurations, resumed
- `trial_finished`: problem, trial (configuration, state, time_ns, message), new_trials, best_ns, failures
- `device_drifted`: problem, slowdown, rest_s
- `finals_started`: problem, finalists
- `problem_finished`: problem, outcome
- `recheck_started`, `recheck_finished`: of a job that verifies
- `end`: nothing comes after it

Events that a reader missed are not repeated: the first `job` of a new reading tells how things stand.
"""


def job_routes(service: Service) -> APIRouter:
    """All of /api/jobs."""
    routes = APIRouter(prefix="/api/jobs", tags=["jobs"])

    @routes.post("", status_code=201)
    async def submit_job(form: JobForm, request: Request) -> JobView:
        """Queue a job. It begins when a worker offers the device."""
        present = [station.device for station in service.fleet.stations()]
        job_id, left_out = await asyncio.to_thread(submit, service.store, form, present)
        service.wake()
        request.scope[WHAT] = f"job {job_id}"
        return job_view(await _read(service, job_id), service, left_out)

    @routes.get("")
    async def list_jobs(
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
        state: Annotated[JobState | None, Query()] = None,
    ) -> JobList:
        """The newest first; `before` a number goes on from there."""
        states = [] if state is None else [state]
        jobs = await asyncio.to_thread(service.store.jobs.newest, limit, before, states)
        return JobList(jobs=[job_view(job, service) for job in jobs])

    @routes.get("/{job_id}")
    async def get_job(job_id: JobId) -> JobView:
        """A job with its problems."""
        return job_view(await _read(service, job_id), service)

    @routes.post("/{job_id}/cancel")
    async def cancel_job(job_id: JobId) -> JobView:
        """Stop after the running trial; what was found stays. Of a job that has ended nothing changes."""
        await _read(service, job_id)
        await asyncio.to_thread(service.store.jobs.cancel, job_id)
        service.cancel(job_id)  # also where it was cancelled before, and the answer of the database was lost
        return job_view(await _read(service, job_id), service)

    @routes.get(
        "/{job_id}/events",
        description=EVENTS,
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def follow_job(job_id: JobId) -> StreamingResponse:
        await _read(service, job_id)
        found = _events(service, job_id)
        return StreamingResponse(found, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return routes


async def _read(service: Service, job_id: int) -> TuningJob:
    job = await asyncio.to_thread(service.store.jobs.get, job_id)
    if job is None:
        raise HTTPException(404, f"there is no job {job_id}")
    return job


async def _events(service: Service, job_id: int) -> AsyncIterator[str]:
    """As they are sent; begins with how things stand."""
    with service.feed.reading(job_id) as queue:
        event: tuple[str, Any] | None = ("job", None)
        while event is not None and not service.is_stopping:
            name, data = event
            if event == _ALIVE:
                yield ": alive\n\n"
            elif name != "job":
                yield _event(name, data)
            else:
                job = await _read(service, job_id)
                yield _event("job", job_view(job, service).model_dump())
                if not _goes_on(job):
                    yield _event("end", {})
                    return
            event = await _next(queue)


_ALIVE = ("alive", None)


async def _next(queue: "asyncio.Queue[tuple[str, Any] | None]") -> tuple[str, Any] | None:
    try:
        return await asyncio.wait_for(queue.get(), ALIVE_S)
    except TimeoutError:
        return _ALIVE


def _goes_on(job: TuningJob) -> bool:
    """A job that was cancelled goes on until its running trials have ended."""
    return job.state in OPEN or bool(job.counts.get(JobState.RUNNING.value))


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"
