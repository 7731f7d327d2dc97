"""The page and the manual: files read once, served under a content security policy that allows nothing else.

They need no token: they are the same for every user, and the data that they show comes from the API.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException
from fastapi.responses import RedirectResponse, Response

from autotune.paths import PAGE
from autotune.service.manual_pages import manual_pages

_FIRST = "index.html"
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    # No text ever becomes markup or code: trusted types forbid even innerHTML.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, kw_only=True)
class _File:
    data: bytes
    media: str
    tag: str


def page_routes() -> APIRouter:
    """Return the routes of the page at /, its files under /page, and the manual at /manual/TOPIC."""
    files = _read()
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def first(if_none_match: Annotated[str, Header()] = "") -> Response:
        return _answer(files[_FIRST], if_none_match)

    @routes.get("/page/{name:path}")
    async def beside(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if name not in files:  # names are looked up, never opened as paths
            raise HTTPException(404, "there is no such file")
        return _answer(files[name], if_none_match)

    @routes.get("/manual")
    async def manual() -> Response:
        return RedirectResponse("manual/start", headers=HEADERS)

    @routes.get("/manual/{name}")
    def topic(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        pages = _manual()
        if name not in pages:
            raise HTTPException(404, "the manual has no such page")
        return _answer(pages[name], if_none_match)

    return routes


def _read() -> dict[str, _File]:
    found = {}
    for path in sorted(PAGE.rglob("*")):
        if path.is_file():
            found[path.relative_to(PAGE).as_posix()] = _file(path.read_bytes(), path.suffix)
    return found


@cache
def _manual() -> dict[str, _File]:
    """Return the pages of the manual, rendered on first use."""
    return {name: _file(data, Path(name).suffix or ".html") for name, data in manual_pages().items()}


def _file(data: bytes, suffix: str) -> _File:
    return _File(data=data, media=_MEDIA[suffix], tag=f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _answer(file: _File, known: str) -> Response:
    headers = {**HEADERS, "ETag": file.tag}
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media, headers=headers)
