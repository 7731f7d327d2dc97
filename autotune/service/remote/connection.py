"""A connection to a service: JSON over HTTP with the standard library, kept open between calls."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import suppress
from http.client import TEMPORARY_REDIRECT
from typing import Any
from urllib.parse import urlsplit

from autotune import __version__
from autotune.errors import RefusedError, ServiceError, UnreachableError, UsageError

TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 256 * 2**20


class MovedError(ServiceError):
    """Another service has what was asked for."""

    def __init__(self, url: str) -> None:
        """`url` is the address of that service."""
        super().__init__(f"{url} has it")
        self.url = url


class Connection:
    """For use by one thread. Calls raise UnreachableError without an answer, RefusedError when the service refuses."""

    def __init__(self, url: str, token: str = "") -> None:
        """`url` is the address of the service, such as http://127.0.0.1:8765. Raises UsageError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise UsageError(f"{url[:200]!r} is not the URL of a service", hint="for example http://127.0.0.1:8765")
        try:
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"{url[:200]!r} has an invalid port") from error
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host = parts.hostname
        self._is_secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = {"User-Agent": f"autotune/{__version__}", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._open: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the answer, parsed from JSON. Raises ServiceError when it is not JSON.

        A call that was lost on a connection kept open is sent again, so calls must be safe to repeat.
        """
        data = self.fetch(method, path, body, timeout_s=timeout_s)
        try:
            return json.loads(data) if data else None
        except ValueError as error:
            raise self.not_a_service() from error

    def fetch(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the answer as bytes."""
        with self._answer(method, path, body, timeout_s) as answer:
            data = self._read(answer)
        if answer.will_close:
            self.close()
        self._check(answer, data)
        return data

    def lines(self, path: str, *, timeout_s: float) -> Iterator[str]:
        """Yield the lines of a streamed answer, each of which must arrive within `timeout_s`. Raises MovedError."""
        with self._answer("GET", path, None, timeout_s) as answer:
            try:
                if answer.status == TEMPORARY_REDIRECT:
                    raise MovedError(str(answer.headers["Location"]).removesuffix(path))
                if answer.status >= 300:
                    self._check(answer, self._read(answer))
                while line := self._guarded(answer.readline):
                    yield line.decode("utf-8", "replace").rstrip("\r\n")
            finally:
                self.close()

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _answer(self, method: str, path: str, body: object, timeout_s: float) -> http.client.HTTPResponse:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body, allow_nan=False).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": "application/json"})
        while True:
            is_kept = self._open is not None
            try:
                return self._send(method, path, data, headers, timeout_s)
            except (OSError, http.client.HTTPException) as error:
                self.close()  # so that the next try is the last
                if not is_kept or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> http.client.HTTPResponse:
        if self._open is None:
            if self._is_secure:
                context = ssl.create_default_context()
                self._open = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
            else:
                self._open = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        self._open.timeout = timeout_s
        if self._open.sock is not None:
            self._open.sock.settimeout(timeout_s)
        self._open.request(method, self._prefix + path, body=data, headers=headers)
        return self._open.getresponse()

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        data: bytes = self._guarded(lambda: answer.read(MAX_ANSWER_BYTES + 1))
        if len(data) > MAX_ANSWER_BYTES:
            self.close()
            raise ServiceError(f"the answer from {self.url} is larger than {MAX_ANSWER_BYTES // 2**20} MiB")
        return data

    def _guarded(self, read: Any) -> Any:
        try:
            return read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise self._unreachable(error) from error

    def not_a_service(self) -> ServiceError:
        """Return the error for an answer that no service gives."""
        return ServiceError(f"{self.url} does not answer like an autotune service")

    def _unreachable(self, error: Exception) -> UnreachableError:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return UnreachableError(f"no answer from {self.url}: {cause}", hint="is autotune serve running there?")

    def _check(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        if answer.status < 300:
            return
        message, hint = f"{self.url} answers {answer.status} {answer.reason}", ""
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            refusal = json.loads(data)["error"]
            message, hint = str(refusal["message"])[:2000], str(refusal.get("hint", ""))[:2000]
        raise RefusedError(message, hint=hint, status=answer.status)
