"""Shortcuts around the routes for the most frequent requests: lookups, and the turns of workers.

Going through the routes takes ten times as long as the answer itself. A shortcut answers only requests that are clearly
valid; all others, and so every refusal, are left to the route of the same path, which reads the whole request again.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from autotune.service.access import App, Message, Receive, Scope, Send, answer
from autotune.service.forms import TurnForm

_TURN = re.compile(r"/api/workers/([0-9a-f]{16})/turn")

TakeTurn = Callable[[str, TurnForm], Awaitable[dict[str, Any] | None]]
"""Returns the answer to a turn of the station with that id, or None if there is no such station."""


class Shortcuts:
    """ASGI middleware around the routes, inside the one that checks tokens and body sizes."""

    def __init__(self, app: App, lookup: Callable[[bytes], bytes | None], take_turn: TakeTurn) -> None:
        self._app = app
        self._lookup = lookup
        self._take_turn = take_turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = None
        if scope["type"] == "http" and scope["path"] == "/api/lookup" and scope["method"] == "GET":
            body = self._lookup(scope["query_string"])
        elif (station_id := _station_id(scope)) is not None:
            messages = await _whole(receive)
            receive = _again(messages, receive)
            body = await self._turn(station_id, b"".join(message.get("body", b"") for message in messages))
        if body is None:
            await self._app(scope, receive, send)
        else:
            await answer(send, 200, body)

    async def _turn(self, station_id: str, body: bytes) -> bytes | None:
        """Return the answer, or None on any error: the route then safely repeats the turn and reports the error."""
        try:
            found = await self._take_turn(station_id, TurnForm.model_validate(json.loads(body)))
        except Exception:  # noqa: BLE001 - the route reports it
            return None
        return None if found is None else json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


def _station_id(scope: Scope) -> str | None:
    """Return the station id of a request that may be a turn, None for any other."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    found = _TURN.fullmatch(scope["path"])
    is_json = dict(scope["headers"]).get(b"content-type") == b"application/json"
    return found[1] if found and is_json else None


async def _whole(receive: Receive) -> list[Message]:
    """Receive a whole request, or what arrives of it before the connection ends."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Return a `receive` that first returns `messages` again."""
    left = iter(messages)

    async def receive_again() -> Message:
        return next(left, None) or await receive()

    return receive_again
