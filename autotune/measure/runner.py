"""Probes, verifies and times one built plan."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from autotune import tracing
from autotune.device.port import NO_SCALARS, Call, Kernel, KernelFacts, Port
from autotune.errors import LaunchError
from autotune.kernels import find_family
from autotune.measure.adverse import LONG_INPUTS_NS, RELIES, SAY_RANGE, Refused, is_timed_with, misleading
from autotune.measure.operands import NO_CONTENTS, Loaded, Operands, Workplace, same_bits
from autotune.measure.probe import Probe
from autotune.measure.timing import Stopwatch
from autotune.model.plan import Launch, Plan, Role
from autotune.model.trial import Job, Measurement, TrialState
from autotune.space.case import Case

FRESH_INPUTS = 4
"""Sets of inputs over which `Job.verifications` runs are spread; half of them have a nonzero beta."""
FRESH_INPUTS_OF_LARGE = 2

LARGE_FLOPS = 2**37
"""Larger problems, and those of which two sets of inputs cannot be kept, are verified on one set in a trial, with beta
zero or not depending on the seed: drawing inputs and computing the reference take seconds."""

WORTH_REFUSING_NS = 50e6
"""A call shorter than this is not refused for being slow: running it in full costs little."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A plan whose kernels are built."""

    plan: Plan
    kernels: Sequence[Kernel]
    facts: KernelFacts
    build_ns: float


class Runner:
    """Probes, verifies and times one built plan."""

    def __init__(
        self,
        port: Port,
        built: Built,
        operands: Operands,
        place: Workplace,
        stopwatch: Stopwatch,
        probe: Probe,
        entering: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`entering` is called with "inputs" and "run" as each begins."""
        self._port, self._entering = port, entering
        self._built = built
        self._plan = built.plan
        self._operands = operands
        self._place = place
        self._stopwatch, self._small_probe = stopwatch, probe
        self._outputs = {b.name: b for b in built.plan.buffers if b.role is Role.OUTPUT}
        self._zeroed = [b for b in built.plan.buffers if b.is_zeroed]
        self._inputs_ns = 0
        self._first: Mapping[str, NDArray[Any]] = NO_CONTENTS
        """What was right on the first inputs, to which the results of a timed series are compared."""
        self._is_trusted = self._is_thrifty = True
        self.remark = ""
        place.zero()

    def run(self, job: Job, expect: Callable[[Loaded], None], *, is_new: bool) -> Measurement:
        """Measure; `expect` is called with the inputs of each check before it. What `is_new` is probed.

        Kernels of a trusted family are judged with as few copies from and to the device as can be until they are
        verified: over a phone's cable these take longer than the kernels.
        """
        family = find_family(job.problem.family)
        self._is_trusted = family.is_trusted
        self._is_thrifty = family.is_trusted and not job.verifications
        is_large = job.problem.flops > LARGE_FLOPS or self._operands.fitting(self._plan) < 2
        seeds: Sequence[int] = [job.seed] if is_large else [2 * job.seed, 2 * job.seed + 1]
        if job.probe and is_new and self._small_probe.has_parts(self._counted(job)[1]):
            with tracing.span("probe"):
                self._probe(job, seeds[0])
        if job.verifications:
            fresh = FRESH_INPUTS_OF_LARGE if is_large else FRESH_INPUTS
            seeds = range(fresh * job.seed, fresh * (job.seed + 1))
            seeds = (seeds[::-1] if is_large else seeds)[: job.verifications]
        elif not job.verify:
            self._place.prepare_outputs(self._load(job, seeds[-1]))
            return self._time(job, 0.0)
        error_ratio = self._verify(job, seeds, job.verifications or len(seeds), expect)
        regimes = family.regimes
        if family.is_trusted:  # one of them for each winner, unless that takes long
            regimes = regimes[job.seed % len(regimes) :][:1] if job.verifications and regimes and not is_large else ()
        if job.verifications or self._operands.fitting(self._plan) >= len(regimes) + len(seeds):
            self._verify_regimes(job, regimes, expect)
        loaded = self._load(job, min(seeds))  # of large ones, what is there
        expect(loaded)
        return self._time(job, error_ratio, loaded)

    def _verify_regimes(self, job: Job, regimes: Sequence[str], expect: Callable[[Loaded], None]) -> None:
        """Compare results on inputs of other kinds, as long as they do not take long. Raises Refused."""
        limit_ns = LONG_INPUTS_NS if job.verifications else LONG_INPUTS_NS / 8
        for regime in regimes:
            if self._inputs_ns > limit_ns:
                break
            loaded = self._load(job, job.seed, regime)
            with suppress(LaunchError):  # what the default cannot run is not asked of others
                expect(loaded)
            if loaded.case.counts and not loaded.case.reference:
                also = "" if self._is_trusted else f"; {SAY_RANGE}"
                self._judged(loaded, self._run_once(loaded), f"inputs: {regime}{also}")
            elif loaded.case.remark and job.configuration == find_family(job.problem.family).baseline:
                self.remark = "; ".join(filter(None, [self.remark, loaded.case.remark]))
            del loaded

    def _load(self, job: Job, seed: int, regime: str = "") -> Loaded:
        self._place.memory = {}  # so that the memory of the last inputs can be reused
        with self._on_host():
            loaded = self._operands.case(job.problem, seed, self._plan, regime)
        self._place.use(loaded)
        return loaded

    def _probe(self, job: Job, seed: int) -> None:
        """Run small parts of the range. Raises Refused when the full range would take far too long."""
        limit_ns = min(max(WORTH_REFUSING_NS, job.FAR_TOO_SLOW * job.give_up_above_ns), job.run_limit_s * 1e9)
        self._place.prepare_outputs(self._load(job, seed))
        with tracing.span("run parts"):
            least_ns = self._small_probe.least_ns(*self._counted(job), self._place.memory, limit_ns)
        self._place.zero()  # with only a part of the work-groups, counters stop halfway
        if least_ns > limit_ns:
            message = f"not run in full: extrapolated from some work-groups, a call takes {least_ns / 1e6:.3g} ms"
            raise Refused(TrialState.TOO_SLOW, message)

    def run_once(self, loaded: Loaded, others: Mapping[str, NDArray[Any]] = NO_CONTENTS) -> dict[str, NDArray[Any]]:
        """Return the outputs of one call on these inputs, with other contents of outputs before. Raises Refused."""
        self._place.use(loaded)
        return self._run_once(loaded, others)

    def _verify(self, job: Job, seeds: Sequence[int], runs: int, expect: Callable[[Loaded], None]) -> float:
        """Return the largest error over tolerance of runs spread over the inputs of these seeds.

        What the kernel writes is poisoned before each run. An output that equals the last one checked on the same
        inputs, bit for bit, is as right as that one and is not compared with the reference again. Raises Refused for a
        wrong result or a stray write.
        """
        largest = 0.0
        for number, seed in enumerate(seeds):
            loaded = self._load(job, seed)
            expect(loaded)
            judged: dict[str, NDArray[Any]] = {}
            for run in range(number, runs, len(seeds)):
                outputs = self._run_once(loaded)
                if not (judged and all(same_bits(judged[name], values) for name, values in outputs.items())):
                    ratio, judged = self._judged(loaded, outputs, f"run {run + 1} of {runs}, inputs of seed {seed}")
                    largest = max(largest, ratio)
            if seed == min(seeds):
                self._first = judged
            self.remark = loaded.case.remark
            del loaded  # frees it before the next inputs are loaded
        return largest

    def _judged(
        self, loaded: Loaded, outputs: dict[str, NDArray[Any]], on: str
    ) -> tuple[float, dict[str, NDArray[Any]]]:
        """Return error over tolerance, and the outputs it belongs to.

        When it is wrong and the inputs have changed, an earlier kernel may be the cause: they are written again and the
        call is repeated. Raises Refused for a wrong result, and when the kernel writes into its inputs.
        """
        ratio = self._error_ratio(loaded.case, outputs)
        if not ratio <= 1.0 and not self._operands.are_intact(loaded):
            self._operands.reload(loaded)
            outputs = self._run_once(loaded)
            ratio = self._error_ratio(loaded.case, outputs)
            if not self._operands.are_intact(loaded):
                raise Refused(TrialState.WRONG_RESULT, f"the kernel writes into its inputs ({on})")
        if not ratio <= 1.0:
            also = f"; {loaded.case.remark}" if loaded.case.remark else ""
            raise Refused(TrialState.WRONG_RESULT, f"the error is {ratio:.3g} times the tolerance ({on}){also}")
        return ratio, outputs

    def _error_ratio(self, case: Case, outputs: Mapping[str, NDArray[Any]]) -> float:
        with self._on_host(), tracing.span("check"):
            return case.error_ratio(outputs)

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """Count the time that inputs and the reference take apart: it is no time of the kernel's."""
        began = time.perf_counter_ns()
        self._entering("inputs")
        try:
            yield
        finally:
            self._entering("run")
            self._inputs_ns += time.perf_counter_ns() - began

    def _run_once(self, loaded: Loaded, others: Mapping[str, NDArray[Any]] = NO_CONTENTS) -> dict[str, NDArray[Any]]:
        """Run one call on the loaded inputs and return its outputs. Raises Refused for writes behind an output."""
        with tracing.span("prepare memory"):
            self._place.prepare_outputs(loaded, others)
            self._place.poison_scratch()
            call = self._bind(self._built.kernels, loaded.case.launches(self._plan), loaded.case.scalars)
        with tracing.span("run once"):
            self._port.run(call, has_events=False)
        with tracing.span("read back"):
            self._check_zeroed()
            return {name: self._place.read(buffer) for name, buffer in self._outputs.items()}

    def _check_zeroed(self) -> None:
        """Raises Refused when a buffer that must be left zero is not: the next call would go wrong."""
        for buffer in self._zeroed:
            if self._place.read(buffer).any():
                raise Refused(TrialState.WRONG_RESULT, f"the kernel left values other than zero in {buffer.name}")

    def _bind(
        self, kernels: Sequence[Kernel], launches: Sequence[Launch], scalars: Mapping[str, float] = NO_SCALARS
    ) -> Call:
        return self._port.bind(kernels, launches, self._place.memory, scalars)

    def _check_series(self, loaded: Loaded, call: Call) -> None:
        """Compare the results that timed calls left. Raises Refused when they are wrong, or the inputs changed.

        Where a call reads what is in its outputs, the contents are restored and the result of one more call counts. An
        own kernel is called twice more in any case, since it may have skipped all calls but the first, or every other
        one.
        """
        if not is_timed_with(self._plan, loaded.case.scalars):
            return
        if not loaded.case.reads:
            self._check_repeated(loaded)
        for _ in range(2 if not self._is_trusted else 1 if loaded.case.reads else 0):
            self._prepare_misleading(loaded)
            self._port.run(call, has_events=False)
            self._check_repeated(loaded)
        self._place.check_scratch()
        if not self._operands.inputs_are_intact(loaded, only_guards=self._is_thrifty):
            self._operands.reload(loaded)  # an earlier kernel may have been the cause
            self._port.run(call, has_events=False)
            if not self._operands.inputs_are_intact(loaded, only_guards=False):
                raise Refused(TrialState.WRONG_RESULT, "the kernel writes into its inputs or around them")

    def _check_repeated(self, loaded: Loaded) -> None:
        outputs = {name: self._place.read(buffer) for name, buffer in self._outputs.items()}
        if all(same_bits(self._first[name], values) for name, values in outputs.items()):
            return
        ratio = self._error_ratio(loaded.case, outputs)
        if not ratio <= 1.0:
            message = f"after many calls in a row, the error is {ratio:.3g} times the tolerance: {RELIES}"
            raise Refused(TrialState.WRONG_RESULT, message)

    def _prepare_misleading(self, loaded: Loaded) -> None:
        """Write contents of the outputs that look like results, unless a call reads what is there."""
        keeps = loaded.case.reads or self._is_thrifty
        others = NO_CONTENTS if keeps else misleading(loaded.contents(), self._first)
        self._place.prepare_outputs(loaded, others)

    def _counted(self, job: Job) -> tuple[list[Kernel], list[Launch]]:
        """Return the kernels and launches to be timed: all but those that only prepare a constant operand."""
        both = zip(self._built.kernels, self._plan.launches, strict=True)
        counted = [item for item in both if not job.problem.is_constant(item[1].prepares)]
        return [kernel for kernel, _ in counted], [launch for _, launch in counted]

    def _time(self, job: Job, error_ratio: float, loaded: Loaded | None = None) -> Measurement:
        """Time calls; on what is `loaded`, their results must still be right at the end. Raises Refused."""
        kernels, launches = self._counted(job)
        if len(launches) < len(self._plan.launches):  # constant operands are prepared once, untimed
            self._port.run(self._bind(self._built.kernels, self._plan.launches), has_events=False)
        if loaded:
            # Scratch is left as a call on other inputs left it: what a kernel keeps there is of no use to it now.
            self._prepare_misleading(loaded)
        with tracing.span("time"):
            timing = self._stopwatch.time(self._bind(kernels, launches), launches, job)
        self._check_zeroed()  # also after many calls in a row
        if loaded:
            self._check_series(loaded, self._bind(kernels, launches, loaded.case.scalars))
        with tracing.span("sensors"):
            reading = self._port.read_sensors()
        return Measurement(
            time_ns=statistics.median(timing.times_ns),
            samples_ns=timing.times_ns,
            calls_per_sample=timing.samples[0].calls,
            timer=timing.timer,
            prepare_ns=timing.prepare_ns,
            launch_overhead_ns=self._stopwatch.overhead_ns(timing, len(launches)),
            build_ns=self._built.build_ns,
            inputs_ns=self._inputs_ns,
            error_ratio=error_ratio,
            private_memory_bytes=self._built.facts.private_memory_bytes,
            kernel_work_group_limit=self._built.facts.work_group_limit,
            clock_mhz=reading.clock_mhz,
            temperature_c=reading.temperature_c,
        )
