"""A building process that misbehaves as the source says; started by test_compiling.py. Needs no OpenCL."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from autotune import child
from autotune.errors import AutotuneError
from autotune.model.trial import Build, BuildJob, BuildState


def facts(job: BuildJob) -> Build:
    """Wide tiles spill, tall ones are limited to few work-items."""
    wide = len(set(re.findall(r"c0_\d+", job.source)))
    tall = len(set(re.findall(r"c\d+_0", job.source)))
    return Build(
        source_hash=job.source_hash,
        state=BuildState.BUILT,
        build_ns=1e6,
        private_memory_bytes=600 if wide > 2 else 0,
        work_group_limit=8 if tall > 4 else 256,
        binary_bytes=1000,
    )


def misbehave(job: BuildJob, entering: Callable[[str], None]) -> Build:
    if job.selector == "9:9":
        raise AutotuneError("no such device")
    entering("build")
    with Path(os.environ["BUILD_LOG"]).open("a") as log:
        log.write(f"{job.source_hash}\n")
    how = os.environ.get("BUILD_HOW", "fine")
    if how == "crash" and "c0_1" in job.source:
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        signal.pause()
    if how == "refuse":
        line = len(job.source)
        message = f"clBuildProgram failed\n\n<source>:{line}:7: error: use of undeclared identifier 'x{line}'\n1 error"
        return Build(source_hash=job.source_hash, state=BuildState.FAILED, message=message)
    return facts(job)


child.serve(misbehave)
