"""A process that checks kernels with a compiler that fails at some; started by test_verification.py.

EVIL_KERNELS maps keys of configurations, or algorithms, to what happens to their kernels: wrong, abort or hang.
"""

import json
import os
import signal
from typing import Any

import autotune.kernels.render
import autotune.measure.measurer
import autotune.measure.worker
from autotune.model.configuration import Configuration

_render = autotune.kernels.render.render


def fate_of(configuration: Configuration) -> str:
    fates = json.loads(os.environ["EVIL_KERNELS"])
    return str(fates.get(configuration.key) or fates.get(configuration.algorithm) or "")


def render(family: Any, configuration: Configuration, plan: Any) -> str:
    """The source as this compiler understands it."""
    fate = fate_of(configuration)
    if fate == "abort":
        os.abort()
    if fate == "hang":
        signal.pause()
    source = _render(family, configuration, plan)
    return source.replace("sum += ", "sum -= ").replace("mad(", "fma(-") if fate == "wrong" else source


if __name__ == "__main__":
    vars(autotune.measure.measurer)["render"] = render
    autotune.measure.worker.serve()
