"""A probing process that misbehaves as EVIL_PROBES says, started by test_doctor.py.

EVIL_PROBES is JSON: the names of probes, or parts of kernels' sources with the variable EVIL_DRIVER set, and whether
to `abort`, to `hang`, to be killed (`kill`), to end in a `fault` of autotune, to `refuse` to build or to be `wrong`;
`prepare` stands for what a worker does first. Without EVIL_DRIVER no OpenCL is needed.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune import child
from autotune.errors import BuildError
from autotune.measure import worker

BEHAVIOUR: dict[str, str] = json.loads(os.environ.get("EVIL_PROBES", "{}"))


def misbehave(how: str) -> str:
    if how == "abort":
        print("LLVM ERROR: Cannot select: v16f32", file=sys.stderr, flush=True)
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        signal.pause()
    if how == "fault":
        raise KeyError("float128")
    return {"refuse": "clBuildProgram failed\n\nerror: unknown target CPU 'generic'", "wrong": "5 of 9 are wrong"}[how]


def probe(message: tuple[str, str, tuple[str, ...]], entering: Callable[[str], None]) -> dict[str, str]:
    _, _, probes = message
    entering("opening")
    with Path(os.environ["EVIL_LOG"]).open("a") as log:
        log.write(f"{len(probes)} {probes[0]}\n")
    entering("probe")
    complaints = dict.fromkeys(probes, "")
    for name in probes:
        if name in BEHAVIOUR:
            said = misbehave(BEHAVIOUR[name])
            # A compiler that refuses one kernel refuses all that is in it.
            complaints |= dict.fromkeys(probes, said) if BEHAVIOUR[name] == "refuse" else {name: said}
    return complaints


def prepare() -> None:
    if "prepare" in BEHAVIOUR:
        misbehave(BEHAVIOUR["prepare"])


def spoil_driver() -> None:
    """The driver is a real one; what it builds is not what it was given."""
    from autotune.device.opencl import Session

    build = Session.build

    def spoilt(self: Session, source: str, options: Any) -> Any:
        for part, how in BEHAVIOUR.items():
            if part in source and how in ("abort", "hang", "refuse"):
                raise BuildError(misbehave(how))
            if part in source:
                source = source.replace(part, how)
        return build(self, source, options)

    Session.build = spoilt  # type: ignore[method-assign]


if __name__ == "__main__":
    if "EVIL_DRIVER" in os.environ:
        spoil_driver()
        worker.serve()
    else:
        child.serve(probe, prepare)
