"""The other end of a service: what a worker with a device, and a client without one, need to talk to it.

Loads nothing but the standard library before a worker begins to measure, and then what measuring needs: pyopencl,
NumPy, Jinja2. `connection.py` is HTTP, `wire.py` what goes over it, `work_loop.py` the worker, `client.py` what a
program or the command line asks of a service.
"""

from autotune.remote.client import Client, Event

__all__ = ["Client", "Event"]
