"""Whether two installations measure the same thing."""

import dataclasses
import hashlib
from functools import cache

from autotune.kernels import family_names, find_family
from autotune.kernels.render import template_hash
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.trial import Job, Measurement, Trial

FORMAT = 2
"""Version of the messages: a service and a worker that differ in it refuse each other.

Increased with every change that `code_version` does not see: it covers the names of the fields of _SENT.
"""

_SENT = (Job, Trial, Measurement, Device, DeviceLimits, Fault)


@cache
def code_version() -> str:
    """Return a digest of the message format, the templates and the search spaces.

    A service and a worker with the same digest measure the same thing. The version of autotune is not part of it, since
    most changes do not affect what is measured.
    """
    fields = [[field.name for field in dataclasses.fields(kind)] for kind in _SENT]
    digest = hashlib.sha256(f"{FORMAT} {fields} ".encode())
    for name in family_names():
        family = find_family(name)
        hashes = [template_hash(family, algorithm.name) for algorithm in family.algorithms]
        digest.update(f"{name} {family.space_version} {hashes}".encode())
    return f"{FORMAT}-{digest.hexdigest()[:12]}"
