"""Lines between services and their workers that can be cut: relays on this machine, or a network of its own for each.

A relay drops every connection, and both ends know at once. A link that is down swallows what is sent, and nobody is
told: that is how a cable or a radio is lost. It takes Linux, `ip`, and the right to make network namespaces.
"""

import contextlib
import os
import random
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

NOBODY = "02:00:00:00:00:01"
"""A hardware address that nobody has."""
WORKER = 199
T = TypeVar("T")


class Lines(Protocol):
    """How workers reach the service."""

    host: str
    """Where the service has to listen."""

    def urls(self, name: str) -> str:
        """Of all services, the worker's first choice first."""
        ...

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """What starts a worker where its line is."""
        ...

    def cut(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Until its end nothing passes, on all lines or on that of one worker."""
        ...

    def close(self) -> None: ...


class Relay(threading.Thread):
    """Passes bytes on to the service while the line is whole; cut, it drops every connection and takes no other."""

    def __init__(self, to_port: int) -> None:
        super().__init__(daemon=True)
        self._to_port = to_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._is_cut = False
        self._partners: dict[socket.socket, socket.socket] = {}
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self._is_cut = True
        try:
            yield
        finally:
            self._is_cut = False

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(0.1):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    self._connect(selector) if one is self._listening else self._pass_on(selector, one)
                if self._is_cut:
                    for one in list(self._partners):
                        self._drop(selector, one)

    def _connect(self, selector: selectors.BaseSelector) -> None:
        here, _ = self._listening.accept()
        there = None
        with contextlib.suppress(OSError):
            there = None if self._is_cut else socket.create_connection(("127.0.0.1", self._to_port), timeout=5)
        if there is None:
            here.close()
            return
        for one, other in ((here, there), (there, here)):
            self._partners[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        other = self._partners.get(one)
        try:
            data = one.recv(65536) if other else b""
            if data and other:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(selector, one)

    def _drop(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        for end in (one, self._partners.get(one)):
            if end is not None and self._partners.pop(end, None) is not None:
                selector.unregister(end)
                end.close()


class Relays:
    """A relay to each of several services."""

    host = "127.0.0.1"

    def __init__(self, to_ports: Sequence[int], names: Sequence[str]) -> None:
        self._relays = [Relay(port) for port in to_ports]
        self._names = list(names)

    def urls(self, name: str) -> str:
        return ",".join(relay.url for relay in _turned(self._relays, self._names.index(name)))

    def command(self, name: str, command: Sequence[str]) -> list[str]:  # noqa: ARG002
        return list(command)

    @contextlib.contextmanager
    def cut(self, name: str) -> Iterator[None]:  # noqa: ARG002
        """All of them are cut."""
        with contextlib.ExitStack() as stack:
            for relay in self._relays:
                stack.enter_context(relay.cut())
            yield

    def close(self) -> None:
        """They go with the process."""


class Networks:
    """A network namespace for each worker, with a link of its own to this machine."""

    host = "0.0.0.0"  # noqa: S104 - with a token

    def __init__(self, to_ports: Sequence[int], names: Sequence[str]) -> None:
        self._to_ports = to_ports
        self._numbers = {name: number for number, name in enumerate(names)}
        self._made: list[str] = []
        try:
            for number in self._numbers.values():
                self._make(number)
        except BaseException:
            self.close()
            raise

    def urls(self, name: str) -> str:
        number = self._numbers[name]
        addresses = [f"http://{_address(number, end)}:{port}" for end, port in enumerate(self._to_ports)]
        return ",".join(_turned(addresses, number))

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", _space(self._numbers[name]), *command]

    @contextlib.contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """The link is down, or what the worker sends to one of the services goes astray and no other is cut off."""
        number = self._numbers[name]
        end = random.randrange(-1, len(self._to_ports))  # noqa: S311 - no secret
        link, neighbour = _link(number), ["-n", _space(number), "neigh"]
        if end < 0:
            _ip("link", "set", link, "down")
        else:
            _ip(*neighbour, "replace", _address(number, end), "lladdr", NOBODY, "dev", "line", "nud", "permanent")
        try:
            yield
        finally:
            if end < 0:
                _ip("link", "set", link, "up")
            else:
                _ip(*neighbour, "del", _address(number, end), "dev", "line")

    def close(self) -> None:
        for space in self._made:
            _ip("netns", "delete", space)  # and the link with it

    def _make(self, number: int) -> None:
        space, link = _space(number), _link(number)
        _ip("netns", "add", space)
        self._made.append(space)
        _ip("link", "add", link, "type", "veth", "peer", "name", "line", "netns", space)
        for end in range(len(self._to_ports)):
            _ip("address", "add", f"{_address(number, end)}/24", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", space, "address", "add", f"{_address(number, WORKER)}/24", "dev", "line")
        _ip("-n", space, "link", "set", "line", "up")
        _ip("-n", space, "link", "set", "lo", "up")


def _space(number: int) -> str:
    return f"chaos-{os.getpid()}-{number}"


def _link(number: int) -> str:
    return f"chaos{os.getpid() % 10**6}-{number}"


def _address(number: int, end: int) -> str:
    """Of a service, by its number, or of the worker, on the link of that number."""
    return f"10.213.{number}.{end + 1}"


def _turned(items: Sequence[T], count: int) -> list[T]:
    """Return the items, beginning with another one."""
    first = count % len(items)
    return [*items[first:], *items[:first]]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # noqa: S603, S607 - of this file
