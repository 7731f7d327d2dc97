"""Ways past the routes for what is asked most: lookups, and the turns of workers.

The way through the routes takes ten times as long as the answer. A shortcut answers what is plainly right; all else,
and so every refusal, is left to the route of the same path, which reads the request from its beginning.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from autotune.service.access import App, Message, Receive, Scope, Send, answer
from autotune.service.forms import TurnForm

_TURN = re.compile(r"/api/workers/([0-9a-f]{16})/turn")

TakeTurn = Callable[[str, TurnForm], Awaitable[dict[str, Any] | None]]
"""The answer to a turn of the station of that id; None where there is none."""


class Shortcuts:
    """ASGI around the routes, within what looks at tokens and sizes."""

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
        """None for whatever fails: the route meets it again, as a turn bears repeating, and tells."""
        try:
            found = await self._take_turn(station_id, TurnForm.model_validate(json.loads(body)))
        except Exception:  # noqa: BLE001 - as said
            return None
        return None if found is None else json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


def _station_id(scope: Scope) -> str | None:
    """Of a request that may be a turn; None of any other."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    found = _TURN.fullmatch(scope["path"])
    is_json = dict(scope["headers"]).get(b"content-type") == b"application/json"
    return found[1] if found and is_json else None


async def _whole(receive: Receive) -> list[Message]:
    """All of a request, or what came of it before the connection ended."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    """As if nothing had been received yet."""
    left = iter(messages)

    async def receive_again() -> Message:
        return next(left, None) or await receive()

    return receive_again
