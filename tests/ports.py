"""A port for a process that tests or scripts start."""

import socket


def free_port() -> int:
    """Return one that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
