"""Authorization: what each token allows. `admission.py` refuses requests by it, and what no token can allow.

The security model. A *token* is a shared secret that a client sends with every request to be allowed to submit jobs,
offer devices or read tables; each token has one scope:

========= ===============================================================================================
scope     may
========= ===============================================================================================
reader    read everything that the API shows: jobs, devices, tables, lookups, metrics
submitter the same, and submit and cancel jobs, upload tables, and take configurations out of quarantine
worker    offer devices and measure on them, and nothing else
admin     all of the above, and forget workers
========= ===============================================================================================

A token authorizes its bearer but does not identify it. Each worker therefore also has a *secret* of its own, which it
creates on its first run and keeps in a file that only its user can read. The first greeting under a name enrols the
worker: the database stores a digest of the secret with the name and the device. A greeting under that name with
another secret is refused and changes nothing, so a stranger with the worker token can neither take a worker's place
nor get its trial quarantined. In its greeting the worker also sends a random *session*, which is part of every later
request of that process; a turn (a request for the next trial) without it is refused. The API shows neither secret nor
session. A worker that lost its secret can be enrolled again after an administrator has removed it
(`autotune workers forget NAME`).

Data from workers is not trusted either: a worker cannot send code, only times and states; times that no device can
reach are refused; only the worker that was given a trial can report later how it ended; and a job that was begun on
one device continues only on devices that have the same driver and limits. A worker can still lie within these bounds
about its own device: give the worker token only to people whose measurements you would use.

Without tokens, the service answers only this machine, and every user on it may do everything; workers still have their
secrets. Nothing here encrypts: on networks that others can read, put a proxy with TLS in front of the service.
"""

import enum
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import UsageError

LEAST_TOKEN = 16
MAX_TOKEN = 512
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CHECK_PATH = "/api/jobs/check"
"""A POST that changes nothing: what a job would do."""
WHO = "autotune.who"
"""ASGI scope key: the role of the request's token, for the log."""

Refusal = tuple[int, str, str]
"""Status, message and hint."""
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Role(enum.Enum):
    """What a token allows."""

    READER = "reader"
    SUBMITTER = "submitter"
    WORKER = "worker"
    ADMIN = "admin"


_ALLOWED = {
    Role.READER: frozenset({Role.READER}),
    Role.SUBMITTER: frozenset({Role.READER, Role.SUBMITTER}),
    Role.WORKER: frozenset({Role.WORKER}),
    Role.ADMIN: frozenset(Role),
}


@dataclass(frozen=True, kw_only=True)
class Access:
    """The tokens, which are never shown."""

    tokens: Mapping[Role, str] = field(default_factory=dict, repr=False)
    """By what each allows. Without one of administrators, no token is required."""

    @property
    def is_open(self) -> bool:
        return Role.ADMIN not in self.tokens

    def role_of(self, told: str) -> Role | None:
        """Return the role of a token, or None. Compares with every token, each in constant time."""
        found = [role for role, token in self.tokens.items() if token and _same(told, token)]
        return found[-1] if found else None

    def refusal(self, told: str, path: str, method: str) -> tuple[Role | None, Refusal | None]:
        """Return the role of the token that a request sent, and why it is refused, None if it is not."""
        role, needed = self.role_of(told), role_needed(path, method)
        if self.is_open or (role and needed in _ALLOWED[role]):
            return role, None
        if role:
            return role, (403, f"this token is for {_MEANING[role]} only", f"use the token for {_MEANING[needed]}")
        if told:
            hint = "it must be the first line of a token file of the service"
            return None, (401, "this token is not known here", hint)
        return None, (401, "a token is needed", "name its file with --token-file, or send Authorization: Bearer TOKEN")


_MEANING = {
    Role.READER: "reading", Role.SUBMITTER: "submitting", Role.WORKER: "workers", Role.ADMIN: "administrators",
}  # fmt: skip


def role_needed(path: str, method: str) -> Role:
    """Return the role that a request requires."""
    if method in SAFE_METHODS or path == CHECK_PATH:
        return Role.READER
    if path == "/api/workers" or path.startswith("/api/workers/"):
        return Role.ADMIN if method == "DELETE" else Role.WORKER
    return Role.SUBMITTER


def read_token(path: Path) -> str:
    """Return the first line of a file. Raises UsageError when it cannot be read or is not a token."""
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
            hint="make one with python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


def _same(told: str, token: str) -> bool:
    # Compare digests, since the comparison reveals the length of its arguments.
    return hmac.compare_digest(hashlib.sha256(told.encode()).digest(), hashlib.sha256(token.encode()).digest())


def text_of(value: bytes | None) -> str:
    """Return the value of a header; empty if it is missing."""
    return (value or b"").decode("latin-1").strip()


async def refuse(send: Send, status: int, message: str, hint: str) -> None:
    """Send a refusal, in the form of all refusals of the API."""
    await answer(send, status, json.dumps({"error": {"message": message, "hint": hint}}).encode())


async def answer(send: Send, status: int, body: bytes) -> None:
    """Send a JSON response."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
