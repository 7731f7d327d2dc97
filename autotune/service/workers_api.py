"""Routes of workers, which only call out: they say who they are, then ask for their turn again and again."""

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request

from autotune.errors import TableError, WorkerError
from autotune.lookup.document import Node
from autotune.remote.wire import code_version, read_own_device
from autotune.service.core import Service
from autotune.service.fleet import MAX_WAIT_S, NameTakenError, Station, Stopping, plain_assignment
from autotune.service.forms import GreetingAnswer, TurnAnswer, TurnForm, WorkerForm
from autotune.service.shortcuts import TakeTurn

StationId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


def turns_of(service: Service) -> TakeTurn:
    """What answers a turn, from the route and past it. Raises TableError, Stopping."""

    async def take_turn(station_id: str, form: TurnForm) -> dict[str, Any] | None:
        station = service.fleet.get(station_id)
        if station is None:
            return None
        results = [Node(result, f"results[{number}]") for number, result in enumerate(form.results)]
        assignment = await service.fleet.take_turn(station, form.running, results, form.wait_s)
        return {"trial": plain_assignment(assignment) if assignment else None}

    return take_turn


def worker_routes(service: Service) -> APIRouter:
    """All of /api/workers."""
    routes = APIRouter(prefix="/api/workers", tags=["workers"])
    turn_of = turns_of(service)

    def known(station_id: str) -> Station:
        station = service.fleet.get(station_id)
        if station is None:
            raise HTTPException(404, "this worker is not known, or was lost")
        return station

    @routes.post("")
    async def greet(form: WorkerForm, request: Request) -> GreetingAnswer:
        """Offer a device. Only workers with the same templates and search spaces are welcome."""
        if form.code != code_version():
            raise HTTPException(409, f"this service has version {code_version()}; install the same on the worker")
        try:
            device = dataclasses.replace(read_own_device(Node(form.device, "device")), selector=form.selector)
        except TableError as error:
            raise HTTPException(422, str(error)) from error
        address = request.client.host if request.client else ""
        try:
            station = service.fleet.greet(form.name, form.session, device, address)
        except NameTakenError as error:
            raise HTTPException(409, f"{error.message}; start one of them with --name") from error
        except WorkerError as error:
            raise HTTPException(429, error.message) from error
        return GreetingAnswer(id=station.id, wait_s=MAX_WAIT_S)

    @routes.post("/{station_id}/turn")
    async def take_turn(station_id: StationId, form: TurnForm) -> TurnAnswer:
        """Bring results and get the next trial; waits for one when idle."""
        known(station_id)
        try:
            return TurnAnswer.model_validate(await turn_of(station_id, form))
        except TableError as error:
            raise HTTPException(422, str(error)) from error
        except Stopping as error:
            raise HTTPException(503, "the service ends") from error

    @routes.post("/{station_id}/leave", status_code=204)
    async def leave(station_id: StationId) -> None:
        """The worker ends in order: what it was given goes back."""
        service.fleet.dismiss(known(station_id))

    return routes
