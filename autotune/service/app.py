"""The API: the application, its error responses and its routes."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from autotune import __version__
from autotune.errors import AutotuneError, DeviceSelectionError, StoreError
from autotune.service.access import Access
from autotune.service.admission import Admission, Answered
from autotune.service.core import Service
from autotune.service.devices_api import device_routes
from autotune.service.forms import RefusalAnswer
from autotune.service.jobs_api import job_routes
from autotune.service.operations import operation_routes
from autotune.service.page_files import page_routes
from autotune.service.pools import RETRY_AFTER_S, BusyError, Pools
from autotune.service.sizes_api import size_routes
from autotune.service.submission import FullError
from autotune.service.tables_api import table_routes
from autotune.service.workers_api import worker_routes

_LOG = logging.getLogger(__name__)
_STATUSES: dict[type[AutotuneError], int] = {BusyError: 503, DeviceSelectionError: 404, FullError: 429}

DESCRIPTION = """\
Tuning jobs for OpenCL devices that workers offer, lookups, and tables.

If the service has tokens, every request needs `Authorization: Bearer TOKEN`; the token for reading permits only GET.
The body of every refusal is `{"error": {"message": ..., "hint": ...}}`.
"""

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": RefusalAnswer, "description": meaning}
    for status, meaning in (
        (400, "the request cannot be fulfilled as it is"),
        (401, "the token is missing or wrong"),
        (403, "not permitted with this token, from this origin, or under this worker's name"),
        (404, "not found"),
        (409, "conflicts with the state or the version of the service"),
        (413, "the body is too large"),
        (422, "the request is malformed"),
        (429, "a limit is reached, such as the number of open jobs"),
        (503, "the database is unavailable, the service is stopping, or too many requests are waiting"),
    )
}


def make_app(service: Service, access: Access, public_url: str = "") -> Admission:
    """Return the ASGI application of a service; its lifespan starts and stops the service.

    `public_url` is the address of a proxy in front of it. Raises UsageError when that is not a URL.
    """

    pools = Pools()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()
            pools.close()

    app = FastAPI(
        title="autotune",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # documentation pages load scripts from the network
        redoc_url=None,
        responses=REFUSALS,
    )
    app.state.service = service
    app.add_exception_handler(AutotuneError, _refuse_own)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(Exception, _refuse_unexpected)

    app.include_router(job_routes(service, pools))
    app.include_router(worker_routes(service))
    app.include_router(table_routes(service, pools))
    app.include_router(size_routes(service, pools))
    app.include_router(device_routes(service, pools))
    app.include_router(page_routes())
    answered: Answered = Counter()
    app.include_router(operation_routes(service, pools, answered))
    return Admission(app, access, public_url, answered)


def _refusal(status: int, message: str, hint: str = "") -> JSONResponse:
    return JSONResponse({"error": {"message": message, "hint": hint}}, status_code=status)


async def _refuse_own(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotuneError)
    if isinstance(error, StoreError):
        _LOG.warning("%s", error)
        return _refusal(503, "the database is unavailable")  # without the location, which is private
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 400)
    refusal = _refusal(status, error.message, error.hint)
    if status == 503:
        refusal.headers["Retry-After"] = str(RETRY_AFTER_S)
    return refusal


async def _refuse_form(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The submitted values are not echoed.
    text = "; ".join(f"{'.'.join(map(_word, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
    return _refusal(422, text)


def _word(place: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(place))[:80]


async def _refuse_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.detail == HTTPStatus.NOT_FOUND.phrase:  # no route matched; routes name what is missing
        return _refusal(404, "the service has nothing at this address", "/openapi.json lists all addresses")
    response = _refusal(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _refuse_unexpected(_: Request, error: Exception) -> JSONResponse:
    _LOG.error("unexpected", exc_info=error)
    return _refusal(500, "internal error; the log of the service shows where")
