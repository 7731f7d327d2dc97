"""The other end of a service: what a worker with a device, and a client without one, need to talk to it.

Only the standard library is loaded until a worker begins to measure, and then what measuring needs: pyopencl, NumPy,
Jinja2. `connection.py` speaks HTTP, `wire.py` defines what is sent, `worker.py` is the worker, `client.py` the API
for programs and the command line.
"""

from autotune.service.remote.client import Client, Event

__all__ = ["Client", "Event"]
