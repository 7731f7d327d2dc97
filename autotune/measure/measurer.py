"""Turns a `Job` into a `Trial`: render, build, verify, time. Runs in a child process, which may crash (worker.py)."""

import dataclasses
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from numpy.typing import NDArray

from autotune import tracing
from autotune.device.clocks import calibrate
from autotune.device.port import Kernel, Port
from autotune.errors import BuildError, ConfigurationError, KernelError, LaunchError, ProblemError, WorkGroupError
from autotune.kernels import find_family
from autotune.kernels.render import render
from autotune.measure.adverse import (
    HALVES,
    Order,
    Refused,
    check_halves,
    check_reversed,
    in_order,
    is_racy_by_design,
    with_whole_groups,
)
from autotune.measure.operands import Loaded, Operands, Workplace
from autotune.measure.probe import Probe
from autotune.measure.runner import FRESH_INPUTS, Built, Runner
from autotune.measure.timing import Stopwatch
from autotune.model.configuration import Configuration
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.model.trial import Calibration, Job, Trial, TrialState
from autotune.space.family import KernelFamily

T = TypeVar("T")
QUICK_NS = 0.1e9
"""Longest call whose problem is tried in several times the size."""
LONGEST_ORDERED_NS = 2e9
"""Longest time of the calls that run in other orders."""


class Measurer:
    """Measures jobs on one device, one after the other; keeps the most recent programs."""

    KEPT_PROGRAMS = 32
    """More than the trials between two runs of the sentinel, so that the sentinel is built only once."""
    PLACED_SHARE, PLACED_BYTES = 1 / 16, 2**26
    """Limits of the memory that a configuration's buffers take in all their places, one as a share of the device's.
    Places matter: at 512 cubed on an H100 the ratio of two configurations scattered by 3.6% with new buffers, by 0.7%
    with new programs on the same buffers."""

    def __init__(self, port: Port, calibration: Calibration | None = None) -> None:
        """Calibrate the device's clocks unless a calibration is given."""
        self._port = port
        calibration = calibration or calibrate(port)
        self._stopwatch = Stopwatch(port, calibration, needs_warming=not port.device.limits.is_cpu)
        self._probe = Probe(port, calibration.launch_latency_ns)
        self._was_run: set[int] = set()
        self._built: OrderedDict[object, Built] = OrderedDict()
        self._operands = Operands(port)
        self._elsewhere: tuple[Problem, dict[int, Operands]] | None = None
        """Further places of one problem's buffers."""

    def build(self, job: Job, entering: Callable[[str], None] = lambda _: None) -> Trial | None:
        """Build a job without launching anything, and keep its program; return its trial if it has ended by that.

        Calls `entering` with "build". Never raises KernelError.
        """
        entering("build")
        built = _attempt(job, lambda: self._build(find_family(job.problem.family), job))
        return built if isinstance(built, Trial) else None

    def measure(self, job: Job, entering: Callable[[str], None] = lambda _: None) -> Trial:
        """Build, verify and time; calls `entering` with "build", "run" and "inputs" as these begin.

        Never raises KernelError.

        A winner, which is verified many times, must be right at the small sizes of its family as well, and in other
        orders of work-groups and work-items.
        """
        trial = self._measure(job, entering)
        if not job.verifications:
            return trial
        return self._ordered(self._checked(trial, job, entering), job, entering)

    def _checked(self, trial: Trial, job: Job, entering: Callable[[str], None]) -> Trial:
        """Return the trial, or that it fails at one of the small sizes of its family."""
        family = find_family(job.problem.family)
        unasked = family.unasked if _is_quick(trial) else ()
        for problem in (*family.checks, *unasked) if trial.state is TrialState.COMPLETE else ():
            if problem != job.problem and self._can_be_checked(family, problem, job.configuration):
                small = _unbuilt(job, problem=problem, samples=1, verifications=0, give_up_above_ns=math.inf)
                if problem in unasked:
                    default = dataclasses.replace(small, configuration=family.baseline)
                    if self._measure(default, entering).state is not TrialState.COMPLETE:
                        continue
                found = self._measure(small, entering)
                if found.state is not TrialState.COMPLETE:
                    return dataclasses.replace(found, message=f"at {problem.label}: {found.message}")
        return trial

    def _ordered(self, trial: Trial, job: Job, entering: Callable[[str], None]) -> Trial:
        """Return the trial, or that its results rely on an order. What takes long is not run again for that."""
        if trial.measurement is None or trial.measurement.time_ns > LONGEST_ORDERED_NS:
            return trial
        calls = int(LONGEST_ORDERED_NS / trial.measurement.time_ns)
        found = _attempt(job, lambda: self._check_orders(job, calls, entering))
        return found if found and found.state is TrialState.WRONG_RESULT else trial

    def _check_orders(self, job: Job, most_calls: int, entering: Callable[[str], None]) -> None:
        """Run own kernels, and others whose work-groups join their results, in other orders. Raises Refused."""
        family = find_family(job.problem.family)
        usual = self._build(family, job)
        plan = with_whole_groups(usual.plan)
        if plan is None or (family.is_trusted and not any(buffer.is_zeroed for buffer in plan.buffers)):
            return
        may_race = family.is_trusted or is_racy_by_design(self._source(family, job, plan))
        halves = () if may_race or 3 * len(plan.launches) > most_calls else HALVES
        kernels = {}
        for order in (Order.REVERSED, *halves):
            entering("build")
            kernels[order] = self._build(family, job, order).kernels
        entering("run")
        with self._workplace(family, self._operands, plan) as place:
            loaded = self._operands.case(job.problem, FRESH_INPUTS * job.seed, plan)
            self._expect(family, job, self._operands, loaded)

            def run(first: Sequence[Kernel]) -> dict[str, NDArray[Any]]:
                part = dataclasses.replace(plan, launches=plan.launches[: len(first)])
                built = dataclasses.replace(usual, plan=part, kernels=first)
                return self._runner(built, self._operands, place).run_once(loaded)

            check_reversed(loaded.case.error_ratio(run(kernels[Order.REVERSED])))
            for number in range(len(plan.launches) if halves else 0):
                earlier = usual.kernels[:number]
                before = run(earlier) if earlier else loaded.contents()
                outputs = (run([*earlier, kernels[half][number]]) for half in halves)
                check_halves(*({n: loaded.case.valid_part(n, v) for n, v in one.items()} for one in (before, *outputs)))

    def _can_be_checked(self, family: KernelFamily, problem: Problem, configuration: Configuration) -> bool:
        """Return whether a small size suits the device, a configuration, and the kernel that says what is right."""
        limits = self._port.device.limits
        try:
            problem.check_device(limits)
            reference = family.make_case(problem, 0).reference
            is_default = reference and reference.algorithm == configuration.algorithm
            needed = (configuration, reference) if reference and is_default else (configuration,)
            return not any(family.violations(problem, one, limits) for one in needed)
        except (ProblemError, ConfigurationError):
            return False

    def _measure(self, job: Job, entering: Callable[[str], None]) -> Trial:
        return _attempt(job, lambda: self._complete(job, entering))

    def _complete(self, job: Job, entering: Callable[[str], None]) -> Trial:
        """Return the trial of a job that nothing ends early."""
        family = find_family(job.problem.family)
        entering("build")
        built = self._build(family, job)
        entering("run")
        with tracing.span("allocate"):
            operands = self._placed(job, built.plan)
            place = self._workplace(family, operands, built.plan)
        key = hash((job.problem, job.configuration, job.build_options))
        is_first, is_new = not self._was_run, key not in self._was_run
        self._was_run.add(key)
        with place:
            runner = self._runner(built, operands, place, entering)
            measurement = runner.run(job, lambda loaded: self._expect(family, job, operands, loaded), is_new=is_new)
        return Trial(
            configuration=job.configuration,
            state=TrialState.COMPLETE,
            measurement=dataclasses.replace(measurement, is_first=is_first),
            message=runner.remark,
            seed=job.seed,
        )

    def _placed(self, job: Job, plan: Plan) -> Operands:
        """Return the operands at the job's placement; there are no more places than the limits of memory allow."""
        if self._elsewhere is None or self._elsewhere[0] != job.problem:
            self._elsewhere = (job.problem, {})
        share_bytes = self.PLACED_SHARE * self._port.device.limits.global_memory_bytes
        size_bytes = max(1, sum(buffer.size_bytes for buffer in plan.buffers))
        number = job.placement % max(1, int(min(share_bytes, self.PLACED_BYTES) / size_bytes))
        if number == 0:
            return self._operands
        return self._elsewhere[1].setdefault(number, Operands(self._port, self._operands))

    def _workplace(self, family: KernelFamily, operands: Operands, plan: Plan) -> Workplace:
        return Workplace(self._port, operands, plan, is_trusted=family.is_trusted)

    def _runner(
        self, built: Built, operands: Operands, place: Workplace, entering: Callable[[str], None] = lambda _: None
    ) -> Runner:
        return Runner(self._port, built, operands, place, self._stopwatch, self._probe, entering)

    def _expect(self, family: KernelFamily, job: Job, operands: Operands, loaded: Loaded) -> None:
        """Run the reference kernel of a case, if it has one that was not run yet."""
        if loaded.case.reference is None:
            return
        wanted = _unbuilt(job, configuration=loaded.case.reference)
        try:
            with tracing.span("reference"):
                built = self._build(family, wanted)
                with self._workplace(family, operands, built.plan) as place:
                    runner, others = self._runner(built, operands, place), loaded.case.other_contents()
                    outputs = runner.run_once(loaded)
                    again = runner.run_once(loaded, others) if others else outputs
                fault = loaded.case.expect(outputs, again)
        except (KernelError, Refused) as error:
            raise LaunchError(f"the reference kernel failed: {error}") from error
        if fault:
            raise LaunchError(f"the reference kernel failed: {fault}")

    def _build(self, family: KernelFamily, job: Job, order: Order = Order.USUAL) -> Built:
        key = (job.problem, job.configuration, job.build_options, order)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        with tracing.span("render"):
            plan = family.plan(job.problem, job.configuration)
            source = in_order(self._source(family, job, plan), order)
        start = time.perf_counter_ns()
        with tracing.span("build"):
            kernels = self._kernels(job if order is Order.USUAL else _unbuilt(job), plan, source)
        build_ns = time.perf_counter_ns() - start
        built = Built(plan=plan, kernels=kernels, facts=self._port.facts(kernels, plan), build_ns=build_ns)
        self._built[key] = built
        if len(self._built) > self.KEPT_PROGRAMS:
            self._built.popitem(last=False)
        return built

    def _source(self, family: KernelFamily, job: Job, plan: Plan) -> str:
        return job.source or render(family, job.configuration, plan)

    def _kernels(self, job: Job, plan: Plan, source: str) -> list[Kernel]:
        options = [*job.build_options, *plan.build_options]
        if job.binary:
            with suppress(BuildError):
                return self._port.kernels(self._port.load(job.binary, options), plan)
        return self._port.kernels(self._port.build(source, options), plan)


def _unbuilt(job: Job, **changes: Any) -> Job:
    """Return a job for another program."""
    return dataclasses.replace(job, source="", binary=b"", **changes)


def _is_quick(trial: Trial) -> bool:
    """Return whether a problem of several times the size takes no long time."""
    measured = trial.measurement
    return measured is not None and measured.time_ns < QUICK_NS and measured.inputs_ns < 10 * QUICK_NS


def _attempt(job: Job, work: Callable[[], T]) -> T | Trial:
    """Return what `work` returns, or the trial of the job if that ends early."""
    try:
        return work()
    except Refused as refusal:
        state, message = refusal.state, str(refusal)
    except WorkGroupError as error:
        state, message = TrialState.INVALID, str(error)
    except BuildError as error:
        state, message = TrialState.COMPILE_FAILED, str(error)
    except KernelError as error:
        state, message = TrialState.LAUNCH_FAILED, str(error)
    except MemoryError:
        state, message = TrialState.LAUNCH_FAILED, "the host ran out of memory"
    return Trial(configuration=job.configuration, state=state, message=message, seed=job.seed)
