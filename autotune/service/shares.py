"""Shares of what is limited, by client: memory for uploads, places in queues, readers, stations, names of workers.

A client is an address. It may take more only while at least as much stays free as it then holds: alone it gets half,
and however much it takes, others still get some.
"""

from collections import Counter
from contextvars import ContextVar

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client whose request is answered; empty for what the service does by itself."""


def may_take(held: Counter[str], most: int, amount: int = 1, client: str | None = None) -> bool:
    """Return whether a client, by default the present one, may take an amount of what clients hold `most` of."""
    mine = held[CLIENT.get() if client is None else client] + amount
    return mine <= most - held.total() - amount
