"""A measuring process whose kernels misbehave as the seed of the job says; started by test_worker.py."""

import os
import sys
import time
from typing import Any

import autotune.measure
import autotune.worker
from autotune.device.session import Session
from autotune.render import render

NEVER_ENDING = "__kernel void gemm() { volatile int x = 1; while (x) { } }"
STRAY_WRITE = "__kernel void gemm() { *(volatile __global int *)8 = 1; }"

_measure, _bind = autotune.measure.Measurer.measure, Session.bind


def measure(self: autotune.measure.Measurer, job: Any, entering: Any = lambda _: None) -> Any:
    source = {1: NEVER_ENDING, 2: STRAY_WRITE}.get(job.seed)
    vars(autotune.measure)["render"] = lambda *a: source or render(*a)
    Session.bind = (lambda *_: None) if source else _bind  # type: ignore[method-assign]
    self._built.clear()
    print("a driver that prints to standard output")
    entering("build")
    if job.seed == 3:
        time.sleep(60)
    if job.seed == 4:
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    return _measure(self, job, entering)


autotune.measure.Measurer.measure = measure  # type: ignore[method-assign]
autotune.worker.serve()
