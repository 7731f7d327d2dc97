"""The outermost layer of the API: refuses what is not allowed, slows token guessing, and writes the request log.

Requests from pages of other sites are refused, because a browser sends them with the network access of its user, not
of the page. If no token is required, requests that a proxy forwarded are refused, because the proxy lets strangers
reach the loopback address.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from autotune.codec import MAX_BYTES, visible
from autotune.errors import UsageError
from autotune.service.access import (
    CHECK_PATH,
    SAFE_METHODS,
    WHO,
    Access,
    App,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    refuse,
    text_of,
)
from autotune.service.shares import CLIENT, may_take

WHAT = "autotune.what"
"""ASGI scope key: what a route has done, for the log."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

MAX_BODY_BYTES = 2**20
MAX_HELD_BYTES = 2**28
"""Of all bodies together, until their requests are answered."""
FREE_GUESSES = 5
"""Wrong tokens that an address may send each minute before its refusals are delayed."""
GUESS_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
LOG_EVERY_S = 60.0
MAX_ADDRESSES = 1000

Answered = Counter[tuple[str, int]]
"""Number of answers by method and status."""

_OPEN_PATHS = frozenset({"/api/health"})
_OWN = frozenset({"", "none", "same-origin"})
_FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip"})
_LOG = logging.getLogger(__name__)


class _Refused(Exception):
    """The rest of the body is not taken."""


class Admission:
    """ASGI middleware around everything else."""

    def __init__(self, app: App, access: Access, public_url: str = "", answered: Answered | None = None) -> None:
        """`answered` counts what is answered. Raises UsageError when `public_url` is not a URL."""
        self._answered = Counter() if answered is None else answered
        self._app = app
        self._access = access
        self._public_origin = read_origin(public_url) if public_url else ""
        self._guesses = Guesses()
        self._held: Counter[str] = Counter()
        """Bytes of bodies in memory, by client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        CLIENT.set(_address(scope))
        headers: dict[bytes, bytes] = dict(scope["headers"])

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                _isolate(message)
                if message["status"] == HTTPStatus.UNAUTHORIZED and headers.get(b"authorization"):
                    await self._guesses.hold_up(_address(scope))
                _log(scope, message["status"])
                method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
                self._answered[method, message["status"]] += 1
            await send(message)

        refusal = self._of_stranger(scope, headers) or self._of_token(scope, headers) or _of_length(scope, headers)
        if refusal is None:
            await self._with_limit(scope, receive, noting)
        else:
            await refuse(noting, *refusal)

    def _of_stranger(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        """Return why a request is refused whatever its token: it comes from another site, or through a proxy."""
        host = text_of(headers.get(b"host"))
        if self._access.is_open and _parts(f"//{host}").hostname not in LOOPBACK:
            return 403, "without a token, only requests to localhost are served", "start the service with --token-file"
        is_forwarded = any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers)
        if self._access.is_open and (is_forwarded or scope.get("http_version") == "1.0"):
            return 403, "without a token, requests from a proxy are not served", "start the service with --token-file"
        is_api = _has_data(scope["path"])
        origin = text_of(headers.get(b"origin"))
        is_own = origin.lower() in ("", self._public_origin) or _parts(origin).netloc.lower() == host.lower()
        if not is_own and (is_api or scope["method"] not in SAFE_METHODS):
            return 403, "requests from another site are not answered", "behind a proxy, use autotune serve --public-url"
        if is_api and text_of(headers.get(b"sec-fetch-site")) not in _OWN:
            return 403, "requests from another site are not answered", ""
        return None

    def _of_token(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        """Return why a request is refused with its token, whose role is noted for the log."""
        path = scope["path"]
        if not _has_data(path) or path in _OPEN_PATHS:
            return None
        kind, _, token = text_of(headers.get(b"authorization")).partition(" ")
        told = token.strip() if kind.lower() == "bearer" else ""
        role, refusal = self._access.refusal(told, path, scope["method"])
        if role and not refusal:
            scope[WHO] = role.value
        return refusal

    async def _with_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, is_begun = 0, False
        refusal: Refusal | None = None

        async def limited() -> Message:
            nonlocal size, refusal
            message = await receive()
            more = len(message.get("body", b""))
            if size + more > _limit(scope["path"]):
                refusal = _too_large(scope["path"])
            elif more and not may_take(self._held, MAX_HELD_BYTES, more):
                refusal = 503, "too many bodies of requests are on their way", "send one after the other"
            if refusal:
                raise _Refused
            size += more
            self._held[CLIENT.get()] += more
            return message

        async def noting(message: Message) -> None:
            nonlocal is_begun
            if refusal and not is_begun:  # replaces what the routes answer to a truncated body
                is_begun = True
                await refuse(send, *refusal)
            if not refusal:
                is_begun = True
                await send(message)

        try:
            await self._app(scope, limited, noting)
        except _Refused:
            if refusal and not is_begun:
                await refuse(send, *refusal)
        finally:
            self._held[CLIENT.get()] -= size
            self._held = +self._held


@dataclass
class _Guesser:
    """An address that sends wrong tokens."""

    since: float
    count: int = 0
    unlogged: int = 0
    free_at: float = 0.0
    """When its next refusal may be sent, by the monotonic clock."""


class Guesses:
    """Wrong tokens by address. A right token is never delayed, so a client cannot lock out others at its address."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()
        self._clock = clock
        self._sleep = sleep

    async def hold_up(self, address: str) -> None:
        """Wait until the refusal may be sent: not at all for the first few, then one after the other."""
        now = self._clock()
        guesser = self._note(address, now)
        if guesser.count <= FREE_GUESSES:
            return
        guesser.free_at = min(max(guesser.free_at, now) + GUESS_PAUSE_S, now + LONGEST_PAUSE_S)
        await self._sleep(guesser.free_at - now)

    def _note(self, address: str, now: float) -> _Guesser:
        guesser = self._guessers.get(address)
        if guesser is None:
            guesser = self._guessers[address] = _Guesser(since=now)
            _LOG.warning("a wrong token from %s", address)
            asyncio.get_running_loop().call_later(LOG_EVERY_S, self._close, address)
            if len(self._guessers) > MAX_ADDRESSES:
                self._guessers.popitem(last=False)
        else:
            guesser.unlogged += 1
        guesser.count += 1
        return guesser

    def _close(self, address: str) -> None:
        """Log the wrong tokens of a minute and forget the address; if it continues, it is logged again."""
        guesser = self._guessers.pop(address, None)
        if guesser is not None and guesser.unlogged:
            _LOG.warning("%d more wrong tokens from %s within %g s", guesser.unlogged, address, LOG_EVERY_S)


def _has_data(path: str) -> bool:
    """Whether what is at a path is not for everybody, unlike the page and whether the service is up."""
    return path.startswith("/api/") or path == "/metrics"


def _of_length(scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
    length, path = text_of(headers.get(b"content-length")), scope["path"]
    if length and (not length.isdecimal() or len(length) > 18 or int(length) > _limit(path)):
        return _too_large(path)
    return None


def _limit(path: str) -> int:
    return MAX_BYTES if path == "/api/tables" else MAX_BODY_BYTES


def _too_large(path: str) -> Refusal:
    return 413, f"the body of this request may have at most {_limit(path) // 2**20} MiB", ""


def read_origin(url: str) -> str:
    """Return the origin of a public URL, as browsers send it. Raises UsageError when it is not an HTTP URL."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        default = {"http": 80, "https": 443}.get(parts.scheme) == parts.port
    except ValueError:
        is_url = False
    if not is_url:
        raise UsageError(f"{visible(url)!r} is not a public URL", hint="for example --public-url https://tuner.example")
    netloc = parts.netloc.rpartition(":")[0] if default else parts.netloc
    return f"{parts.scheme}://{netloc}".lower()


def submitter_of(scope: Scope) -> str:
    """Return the sender of a request, as far as it is known: the scope of its token, and its address."""
    return f"{scope.get(WHO, 'anyone')} at {_address(scope)}"


def _isolate(message: Message) -> None:
    """Prevent pages of other origins from embedding the response."""
    headers = message.setdefault("headers", [])
    if not any(name.lower() == b"cross-origin-resource-policy" for name, _ in headers):
        message["headers"] = [*headers, (b"cross-origin-resource-policy", b"same-origin")]


def _log(scope: Scope, status: int) -> None:
    """Log each request that changed something, except turns of workers, which come many times a second."""
    is_silent = scope["method"] in SAFE_METHODS or scope["path"] == CHECK_PATH or scope["path"].endswith("/turn")
    if is_silent or status >= HTTPStatus.BAD_REQUEST:
        return
    what = scope.get(WHAT, "")
    detail = f": {visible(what)}" if what else ""
    _LOG.info("%s %s by %s%s", scope["method"], visible(scope["path"]), submitter_of(scope), detail)


def _address(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else "unknown"


def _parts(url: str) -> SplitResult:
    """Split a URL; the parts of one that cannot be split are empty."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
