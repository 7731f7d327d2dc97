"""A port for a process that tests or scripts start."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return one without a listener, below those that systems give to programs that ask for any."""
    while True:
        port = random.SystemRandom().randrange(10_240, 32_768)
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
