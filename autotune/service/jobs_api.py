"""Routes for jobs: submit, list, show, follow, cancel."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from autotune.service.access import Receive, Scope, Send
from autotune.service.admission import WHAT, submitter_of
from autotune.service.core import Service
from autotune.service.events import Picture, Reader
from autotune.service.forms import CheckAnswer, JobForm, JobList, JobView
from autotune.service.pools import Pools
from autotune.service.store.jobs import JobLedger, JobState, TuningJob
from autotune.service.submission import check, submit
from autotune.service.views import elsewhere, job_view, picture

LARGEST = 2**31 - 1

JobId = Annotated[int, Path(ge=1, le=LARGEST)]

EVENTS = """\
The progress of a job as server-sent events, until the job has ended. The data of each event is JSON:

- `job`: the complete job, as `GET /api/jobs/{job_id}` returns it; always the first event
- `job_changed`: the job again after a state has changed, at most once a second; its `problems` are only those that
  have changed
- the events of the searches, each with the number of its problem as `problem`: `problem_started` (number, from 1;
  total, configurations, resumed_trials), `trial_finished` (trial, new_trials, best_ns, failures by state),
  `device_drifted` (slowdown, rest_s), `gain_estimated` (gain_left), `budget_judged` (trials, seconds, least_s),
  `finals_started` (finalists), `problem_finished` (outcome)
- `recheck_started`, `recheck_finished`: only in jobs of kind `verify`
- `end`: the last event

Missed events are not repeated: a reader that connects again gets the current state in the first `job`.

Where several services share a database, only the one that searches a job has the events of its searches. Another one
redirects to it, and ends the stream when a search begins there: connect again. With `stay=true` it does not, and sends
the states every few seconds.
"""


class _Following(StreamingResponse):
    """Streams the events of a job. However the connection ends, the reader leaves."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.messages(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reader.leave()


def job_routes(service: Service, pools: Pools) -> APIRouter:
    """Return the routes under /api/jobs."""
    routes = APIRouter(prefix="/api/jobs", tags=["jobs"])
    jobs, run = service.store.jobs, pools.quick.run

    def found(job_id: int) -> TuningJob:
        job = jobs.get(job_id)
        if job is None:
            raise _no_job(job_id)
        return job

    def shown(job_id: int) -> Any:
        """Return a JobView as a response, made in a thread: a job may have thousands of problems."""
        body = job_view(found(job_id), service).model_dump_json()
        return Response(body, media_type="application/json")

    @routes.post("", status_code=201)
    async def submit_job(form: JobForm, request: Request) -> JobView:
        """Queue a job. It begins when a worker offers the device."""
        present = [station.device for station in service.fleet.stations()]
        job_id, left_out = await run(submit, service.store, form, present, submitter_of(request.scope))
        service.wake()
        request.scope[WHAT] = f"job {job_id}"
        return job_view(await run(found, job_id), service, left_out)

    @routes.post("/check")
    async def check_job(form: JobForm) -> CheckAnswer:
        """Return what a job would do: which lines are wrong, how many problems there are, how long they may take."""
        present = [station.device for station in service.fleet.stations()]
        return await run(check, service.store, form, present)

    @routes.get("")
    async def list_jobs(
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
        state: Annotated[JobState | None, Query()] = None,
    ) -> JobList:
        """List jobs, newest first; only those with a lower number than `before`."""
        states = [] if state is None else [state]
        listed = await run(jobs.newest, limit, before, states)
        return JobList(jobs=[job_view(job, service) for job in listed])

    @routes.get("/{job_id}")
    async def get_job(job_id: JobId) -> JobView:
        """Get a job with its problems."""
        return await run(shown, job_id)

    @routes.post("/{job_id}/cancel")
    async def cancel_job(job_id: JobId) -> JobView:
        """Stop a job after the running trial, keeping what was found. A job that has ended does not change."""
        await run(_require, jobs, job_id)
        await run(jobs.cancel, job_id)
        service.cancel(job_id)  # also if it was cancelled before and the database's answer was lost
        return await run(shown, job_id)

    @routes.get(
        "/{job_id}/events",
        description=EVENTS,
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            307: {"description": "another service searches the job"},
        },
    )
    async def follow_job(job_id: JobId, *, stay: bool = False) -> Response:
        if not stay and (there := elsewhere(await run(jobs.services, job_id), service)):
            return RedirectResponse(f"{there}/api/jobs/{job_id}/events", 307)

        async def read() -> Picture:
            return await run(lambda: picture(found(job_id), service))

        return await _followed(service.feed.join(job_id, read, stays=stay))

    return routes


async def _followed(reader: Reader) -> Response:
    """Return the stream of a reader, once there is something to send."""
    try:
        await reader.begun()
    except BaseException:
        reader.leave()
        raise
    return _Following(reader)


def _require(jobs: JobLedger, job_id: int) -> None:
    """Raise HTTPException when there is no such job. Reads the job without its problems."""
    if [job.id for job in jobs.newest(1, job_id + 1)] != [job_id]:
        raise _no_job(job_id)


def _no_job(job_id: int) -> HTTPException:
    return HTTPException(404, f"there is no job {job_id}")
