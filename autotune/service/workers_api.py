"""Routes for workers. A worker only makes outgoing requests: it identifies itself, then polls for trials in turns."""

import asyncio
import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request

from autotune.codec import Node
from autotune.errors import TableError, WorkerError
from autotune.kernels import family_names
from autotune.kernels.render import code_version
from autotune.lookup.json_table import read_device
from autotune.service.core import Service
from autotune.service.fleet import MAX_WAIT_S, NameTakenError, NotStoredError
from autotune.service.forms import MAX_WORKER_NAME, NAME, GreetingAnswer, LeaveForm, TurnAnswer, TurnForm, WorkerForm
from autotune.service.job_search import Stopping
from autotune.service.remote.wire import plain_job
from autotune.service.station import Station
from autotune.service.store.workers import Standing

StationId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
WorkerName = Annotated[str, Path(pattern=NAME, max_length=MAX_WORKER_NAME)]
FOREIGN_NAME = "start this one with another --name, or have an administrator run autotune workers forget NAME"


def worker_routes(service: Service) -> APIRouter:
    """Return the routes under /api/workers."""
    routes = APIRouter(prefix="/api/workers", tags=["workers"])

    def known(station_id: str, session: str) -> Station:
        station = service.fleet.get(station_id, session)
        if station is None:
            raise HTTPException(404, "this worker is not known, or was lost")
        return station

    @routes.post("")
    async def greet(form: WorkerForm, request: Request) -> GreetingAnswer:
        """Offer a device. The worker needs the same wire format, templates and search spaces as the service.

        Results left from earlier are accepted first. Those of a worker that is then refused for differing in these are
        not stored: only what is noted as in flight or lost is cleared.
        """
        address = request.client.host if request.client else ""
        try:
            station = await _greeted(service, form, address)
        except Stopping as error:
            raise _stopping() from error
        return GreetingAnswer(id=station.id, wait_s=MAX_WAIT_S)

    @routes.post("/{station_id}/turn")
    async def take_turn(station_id: StationId, form: TurnForm) -> TurnAnswer:
        """Deliver results and get the next trial; waits for one when idle."""
        station, fleet = known(station_id, form.session), service.fleet
        fleet.note_waiting(station, form.waited_s)
        try:
            given, refused = await fleet.take_turn(station, form.running, _nodes(form.results), form.wait_s)
        except NotStoredError:
            return TurnAnswer(trial=None, is_stored=False)
        except TableError as error:
            raise HTTPException(422, str(error)) from error
        except Stopping as error:
            raise _stopping() from error
        return TurnAnswer(trial={"id": given.id, "job": plain_job(given.job)} if given else None, refused=refused)

    @routes.post("/{station_id}/leave", status_code=204)
    async def leave(station_id: StationId, form: LeaveForm) -> None:
        """End a worker in order; the trial that it was given is taken back, and what it told is stored."""
        await service.fleet.take_leave(known(station_id, form.session))

    @routes.delete("/{name:path}", status_code=204)
    async def forget(name: WorkerName) -> None:
        """Allow the name of a worker to be enrolled again with another secret; for administrators."""
        if not await service.forget_worker(name):
            raise HTTPException(404, "no worker of that name is enrolled")

    return routes


async def _greeted(service: Service, form: WorkerForm, address: str) -> Station:
    """Return the station of an accepted worker. Raises HTTPException for other workers, StoreError."""
    try:
        device = dataclasses.replace(read_device(Node(form.device, "device")), selector=form.selector)
    except TableError as error:
        raise HTTPException(422, str(error)) from error
    others = service.enrolled[address]
    enrolment = await asyncio.to_thread(service.store.workers.enrol, form.name, form.secret, device, others)
    service.enrolled[address] += enrolment.is_new
    if enrolment.standing is Standing.TOO_MANY:
        raise HTTPException(429, "the service accepts no more workers")
    if enrolment.standing is Standing.STRANGER:
        raise HTTPException(403, f"another worker is already enrolled as {form.name}; {FOREIGN_NAME}")
    is_alike = form.code == code_version()
    for result in _nodes(form.results):
        await service.take_late(form.name, device, result, has_our_templates=is_alike)
    if not is_alike:
        raise HTTPException(
            409,
            f"this service has other templates or kernel families ({code_version()}); its families are "
            f"{', '.join(family_names())}; install the same version and list the same files in AUTOTUNE_FAMILIES",
        )
    try:
        station = await service.fleet.greet(form.name, form.session, device, address, enrolment.rank)
    except NameTakenError as error:
        raise HTTPException(403, f"{error.message}; start one of them with another --name") from error
    except WorkerError as error:
        raise HTTPException(429, error.message) from error
    if service.store.is_shared:  # so that jobs for it can be submitted at the other services
        await asyncio.to_thread(service.store.add_device, device)
    return station


def _stopping() -> HTTPException:
    return HTTPException(503, "the service is stopping")


def _nodes(results: list[dict[str, Any]]) -> list[Node]:
    return [Node(result, f"results[{number}]") for number, result in enumerate(results)]
