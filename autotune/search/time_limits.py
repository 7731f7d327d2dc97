"""How long a trial may build and run: a few times what building usually takes and the best runs, in this search.

What is usual is a high quantile of recent trials, not their median: other programs on the machine, and drivers that
finish compiling at the first launch as PoCL does, make some sound trials many times slower than most.
"""

import statistics
from collections import deque
from collections.abc import Collection

from autotune.trial import Job, Trial

LEAST_TRIALS = 3
"""Complete ones, before which only the job's own limits hold."""
RECENT_TRIALS = 20
USUAL_PERCENT = 90
FACTOR = 5.0
LEAST_BUILD_S = 20.0
"""Some configurations unroll far more than the usual ones."""
LEAST_RUN_S = 20.0
"""Verifying tiny kernels takes time on the host, and PoCL compiles a large tile for seconds when it is launched."""


class TimeLimits:
    """Follows the complete trials of a search."""

    def __init__(self) -> None:
        self._build_s: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._run_s: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._seed: int | None = None
        self.fresh_inputs_s = 0.0
        """What the host took to draw the inputs of the latest trial that had its own, and to judge its results."""
        self._best_ns = float("inf")
        self._best_run_s = 0.0

    def learn(self, trial: Trial, run_s: float) -> None:
        """`run_s` is what inputs, reference, verifying and sampling took together."""
        if trial.measurement is None:
            return
        self._build_s.append(trial.measurement.build_ns / 1e9)
        self._run_s.append(run_s)
        if trial.seed != self._seed:
            self._seed = trial.seed
            self.fresh_inputs_s = trial.measurement.inputs_ns / 1e9
        if trial.time_ns < self._best_ns:
            self._best_ns = trial.time_ns
            self._best_run_s = run_s

    def build_s(self, job: Job) -> float:
        """Seconds the job may build, at most its own limit."""
        if len(self._build_s) < LEAST_TRIALS:
            return job.build_limit_s
        return min(job.build_limit_s, max(LEAST_BUILD_S, FACTOR * _usual(self._build_s)))

    def run_s(self, job: Job) -> float:
        """Seconds the job may run, at most its own limit; all of that where it verifies often."""
        if len(self._run_s) < LEAST_TRIALS or job.verifications:
            return job.run_limit_s
        usual_s = max(self._best_run_s, _usual(self._run_s))
        return min(job.run_limit_s, max(LEAST_RUN_S, FACTOR * usual_s))

    @property
    def typical_run_s(self) -> float:
        """What recent trials took without building; 0 before the second.

        The oldest is left out: the first of all opened the device, and drew the inputs that the others share.
        """
        return statistics.median(list(self._run_s)[1:]) if len(self._run_s) > 1 else 0.0


def _usual(seconds: Collection[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[USUAL_PERCENT - 1]
