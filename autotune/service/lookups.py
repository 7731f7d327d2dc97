"""Lookups from memory: the database's table over the shipped ones, rebuilt for new winners."""

import json
from typing import Any
from urllib.parse import parse_qsl

from autotune.device.identity import MAX_SLUG, is_slug
from autotune.errors import AutotuneError, DeviceSelectionError
from autotune.kernels import find_family
from autotune.lookup import TuningTable
from autotune.lookup.answer import Tuned, plain_tuned
from autotune.lookup.contents import entries_of, shipped
from autotune.service.store import ServiceStore
from autotune.service.submission import chosen_device

MAX_REMEMBERED_BYTES = 32 * 2**20
"""Limit on the total size of cached queries and answers."""
MAX_QUESTION_BYTES = 1000
"""A longer query is answered but not cached."""
MAX_SHAPE = 500


class Lookups:
    """Answers lookups as JSON. Lookups and their cache run in the event loop; the table is built in a thread."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._read = -1
        self._remembered: dict[bytes, bytes] = {}
        self._remembered_bytes = 0
        self.use(TuningTable([], []).over(shipped()))

    def read_again(self) -> TuningTable | None:
        """Return a new table if there is a new winner, else None. Raises StoreError."""
        now = self._store.decisions()
        if now == self._read:
            return None
        devices = self._store.devices()
        entries = entries_of(devices, self._store.best())
        table = TuningTable(devices, entries, source="the service")
        self._read = now
        return table.over(shipped())

    def use(self, table: TuningTable) -> None:
        """Answer from this table from now on, and clear the cache."""
        self._table = table
        self._devices = table.devices
        self._slugs = {device.slug for device in self._devices}
        self._forget()

    def direct(self, query: bytes) -> bytes | None:
        """Return the answer to a raw query string, or None if the route has to report what is wrong with it."""
        known = self._remembered.get(query)
        if known is not None:
            return known
        try:
            asked = dict(
                parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=3)
            )
            device, shape, family = asked.pop("device"), asked.pop("shape"), asked.pop("family", "gemm")
            if asked or len(shape) > MAX_SHAPE or len(device) > MAX_SLUG:
                return None
            return self._remember(query, self.answer(device, shape, family))
        except (KeyError, ValueError, AutotuneError):
            return None

    def answer(self, device: str, shape: str, family: str) -> dict[str, Any]:
        """Return the answer to a lookup. Raises ProblemError, DeviceSelectionError."""
        slug, tuned = self.find(device, shape, family)
        problem = tuned.problem
        return {"device": slug, "family": family, "shape": problem.label, "problem": problem.to_dict()} | plain_tuned(
            tuned
        )

    def find(self, device: str, shape: str, family: str) -> tuple[str, Tuned]:
        """Return the slug of the device, and what a lookup finds. Raises ProblemError, DeviceSelectionError."""
        problem = find_family(family).problem_type.parse(shape)
        slug = self._slug(device)
        return slug, self._table.find(slug, problem)

    def _remember(self, query: bytes, answer: dict[str, Any]) -> bytes:
        """Return the answer as it is sent, and cache it for the next time."""
        body = json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
        if len(query) <= MAX_QUESTION_BYTES:
            self._remembered_bytes += len(query) + len(body)
            if self._remembered_bytes > MAX_REMEMBERED_BYTES:
                self._forget()
            self._remembered[query] = body
        return body

    def _forget(self) -> None:
        self._remembered, self._remembered_bytes = {}, 0

    def _slug(self, device: str) -> str:
        """Return the slug of a device in the table, or `device` if it is another slug: tables answer for those too."""
        if device in self._slugs:
            return device
        try:
            return chosen_device(device, self._devices).slug
        except DeviceSelectionError:
            if is_slug(device) and "-" in device:
                return device
            raise
