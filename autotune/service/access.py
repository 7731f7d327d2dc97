"""Who may do what: tokens, and sizes of bodies. `admission.py` has turned away by then what no token can allow."""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.lookup.document import MAX_BYTES

MAX_BODY_BYTES = 2**20
LEAST_TOKEN = 16
MAX_TOKEN = 512
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN_PATHS = frozenset({"/api/health"})
WHO = "autotune.who"
"""Key of an ASGI scope: the name of the token that a request carries, for the log."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    """The body goes on beyond what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The tokens; empty where none is asked for. Shown nowhere."""

    writing: str = field(default="", repr=False)
    reading: str = field(default="", repr=False)
    """Allows to read only; without it the token for writing is asked for."""

    @property
    def is_open(self) -> bool:
        return not self.writing

    def allows(self, told: str, *, writing: bool) -> bool:
        """Compares in constant time, whatever was told."""
        if self.is_open:
            return True
        may_write = _same(told, self.writing)
        may_read = _same(told, self.reading) and bool(self.reading)
        return may_write or (may_read and not writing)

    def name_of(self, told: str) -> str:
        """Of a token that is allowed, for the log."""
        if self.is_open:
            return "anyone"
        return "writer" if _same(told, self.writing) else "reader"


def read_token(path: Path) -> str:
    """The first line of a file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            lines = file.read(4 * MAX_TOKEN).splitlines() or [b""]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        token = lines[0].strip().decode("ascii")
    except UnicodeDecodeError:
        token = ""
    if not LEAST_TOKEN <= len(token) <= MAX_TOKEN or not token.isprintable() or " " in token:
        raise UsageError(
            f"{path}: a token is {LEAST_TOKEN} to {MAX_TOKEN} printable characters without a space",
            hint="such as python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


class Guard:
    """ASGI around the routes."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        await self._with_limit(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        """Status, message and hint of a request that may not pass."""
        path, method = scope["path"], scope["method"]
        if path.startswith("/api/") and path not in _OPEN_PATHS:
            kind, _, token = _text(headers.get(b"authorization")).partition(" ")
            told = token.strip() if kind.lower() == "bearer" else ""
            if not self._access.allows(told, writing=method not in _SAFE):
                return self._refusal_of_token(told)
            scope[WHO] = self._access.name_of(told)
        length = _text(headers.get(b"content-length"))
        if length and (not length.isdecimal() or len(length) > 18 or int(length) > _limit(path)):
            return _too_large(path)
        return None

    def _refusal_of_token(self, told: str) -> tuple[int, str, str]:
        if self._access.allows(told, writing=False):
            return 403, "this token is for reading only", "use the token for writing"
        if told:
            return 401, "this token is not known here", "it must be the first line of a token file of the service"
        return 401, "a token is needed", "name its file with --token-file, or send Authorization: Bearer TOKEN"

    async def _with_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = _limit(scope["path"])
        is_begun = False

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _TooLarge
            return message

        async def noting(message: Message) -> None:
            nonlocal is_begun
            if left < 0 and not is_begun:  # whatever the routes make of a body that broke off
                is_begun = True
                await _refuse(send, *_too_large(scope["path"]))
            if left >= 0:
                is_begun = True
                await send(message)

        try:
            await self._app(scope, limited, noting)
        except _TooLarge:
            if not is_begun:
                await _refuse(send, *_too_large(scope["path"]))


def _limit(path: str) -> int:
    return MAX_BYTES if path == "/api/tables" else MAX_BODY_BYTES


def _too_large(path: str) -> tuple[int, str, str]:
    return 413, f"a body here has at most {_limit(path) // 2**20} MiB", ""


def _same(told: str, token: str) -> bool:
    # Digests, since the comparison tells the length of what it compares.
    return hmac.compare_digest(hashlib.sha256(told.encode()).digest(), hashlib.sha256(token.encode()).digest())


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1").strip()


async def _refuse(send: Send, status: int, message: str, hint: str) -> None:
    await answer(send, status, json.dumps({"error": {"message": message, "hint": hint}}).encode())


async def answer(send: Send, status: int, body: bytes) -> None:
    """Send JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
