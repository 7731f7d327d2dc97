"""A `Job` becomes a `Trial`: render, build, verify, time. Runs where a crash may be afforded (worker.py)."""

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.clocks import calibrate
from autotune.device.sensors import Sensors, find_sensors
from autotune.device.session import NUMPY_TYPES, KernelFacts, Memory, Session
from autotune.errors import BuildError, KernelError, WorkGroupError
from autotune.family import Buffer, Case, KernelFamily, Plan, Problem, Role, find_family
from autotune.measure.probing import Probe
from autotune.measure.timing import Stopwatch
from autotune.render import render
from autotune.trial import Calibration, Job, Measurement, Trial, TrialState

CANARY_ELEMENTS = 256
"""Elements behind every output, and behind what has to stay zero, that no kernel may touch."""

FRESH_INPUTS = 4
"""Over which many verifications are spread: with and without beta."""

LARGE_FLOPS = 2**37
"""Above this one set of inputs a trial is enough, with beta zero or not by chance: the reference takes seconds."""

FAR_TOO_SLOW = 20.0
"""What the probe foretells to be this much slower than what is given up is not run in full."""
WORTH_REFUSING_NS = 50e6
"""What a call takes at least before it is refused for being slow: running less in full costs little."""


class _Refused(Exception):
    """Ends a trial in a state other than complete."""

    def __init__(self, state: TrialState, message: str) -> None:
        super().__init__(message)
        self.state = state


@dataclass(frozen=True, kw_only=True)
class _Built:
    plan: Plan
    kernels: Sequence[Any]
    facts: KernelFacts
    build_ns: float


class Measurer:
    """Measures jobs on one device, one after the other; keeps the last few programs built."""

    KEPT_PROGRAMS = 32
    """More than the trials between two runs of the sentinel, so that it is built once."""

    def __init__(
        self, session: Session, calibration: Calibration | None = None, sensors: Sensors | None = None
    ) -> None:
        """Calibrates the device's clocks where no calibration is given."""
        self._session = session
        self._tools = _Tools(session, calibration or calibrate(session), sensors or find_sensors(session.whereabouts))
        self._was_run: set[int] = set()
        self._built: OrderedDict[object, _Built] = OrderedDict()
        self._last_case: tuple[Problem, int, Case] | None = None

    def measure(self, job: Job, entering: Callable[[str], None] = lambda _: None) -> Trial:
        """Build, verify and time; `entering` is told "build" and "run" as each begins. Never raises KernelError."""
        family = find_family(job.problem.family)
        state, message, measurement = TrialState.COMPLETE, "", None
        try:
            entering("build")
            built = self._build(family, job)
            entering("run")
            runner = _Runner(self._session, built, self._case, self._tools)
            measurement = runner.run(job, is_first=self._is_first(job))
        except _Refused as refusal:
            state, message = refusal.state, str(refusal)
        except WorkGroupError as error:
            state, message = TrialState.INVALID, str(error)
        except BuildError as error:
            state, message = TrialState.COMPILE_FAILED, str(error)
        except KernelError as error:
            state, message = TrialState.LAUNCH_FAILED, str(error)
        except MemoryError:
            state, message = TrialState.LAUNCH_FAILED, "the host ran out of memory"
        return Trial(
            configuration=job.configuration, state=state, measurement=measurement, message=message, seed=job.seed
        )

    def _is_first(self, job: Job) -> bool:
        """Whether a configuration was not run before; from now on it was."""
        key = hash((job.problem, job.configuration, job.build_options))
        is_first = key not in self._was_run
        self._was_run.add(key)
        return is_first

    def _case(self, problem: Problem, seed: int) -> Case:
        """Inputs for a seed; the last ones are kept, since large ones take longer to draw than to multiply."""
        if self._last_case is None or self._last_case[:2] != (problem, seed):
            self._last_case = None
            self._last_case = (problem, seed, find_family(problem.family).make_case(problem, seed))
        return self._last_case[2]

    def _build(self, family: KernelFamily, job: Job) -> _Built:
        key = (job.problem, job.configuration, job.build_options)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        plan = family.plan(job.problem, job.configuration)
        source = render(family, job.configuration, plan)
        start = time.perf_counter_ns()
        program = self._session.build(source, [*job.build_options, *plan.build_options])
        kernels = self._session.kernels(program, plan)
        built = _Built(
            plan=plan,
            kernels=kernels,
            facts=self._worst_facts(kernels),
            build_ns=time.perf_counter_ns() - start,
        )
        self._built[key] = built
        if len(self._built) > self.KEPT_PROGRAMS:
            self._built.popitem(last=False)
        return built

    def _worst_facts(self, kernels: Sequence[Any]) -> KernelFacts:
        """The most private memory and the lowest work-group limit among the kernels of a plan."""
        facts = [self._session.facts(kernel) for kernel in kernels]
        return KernelFacts(
            work_group_limit=min(f.work_group_limit for f in facts),
            private_memory_bytes=max(f.private_memory_bytes for f in facts),
        )


class _Tools:
    """What measuring keeps from trial to trial."""

    def __init__(self, session: Session, calibration: Calibration, sensors: Sensors) -> None:
        self.stopwatch = Stopwatch(session, calibration)
        self.probe = Probe(session, calibration.launch_latency_ns)
        self.sensors = sensors


class _Runner:
    """Memory and launches of one built plan."""

    def __init__(
        self, session: Session, built: _Built, make_case: Callable[[Problem, int], Case], tools: _Tools
    ) -> None:
        self._session = session
        self._tools = tools
        self._make_case = make_case
        self._built = built
        self._plan = built.plan
        self._outputs = {b.name: b for b in built.plan.buffers if b.role is Role.OUTPUT}
        self._zeroed = [b for b in built.plan.buffers if b.is_zeroed]
        self._memory: dict[str, Memory] = {}
        for buffer in self._plan.buffers:
            self._memory[buffer.name] = session.allocate(_with_canary(buffer), self._memory)
        self._zero()

    def run(self, job: Job, *, is_first: bool) -> Measurement:
        error_ratio = 0.0
        seeds = [2 * job.seed, 2 * job.seed + 1] if job.problem.flops <= LARGE_FLOPS else [job.seed]
        if job.probe and is_first and self._tools.probe.has_parts(self._plan.launches):
            self._probe(job, seeds[0])
        if job.verifications:
            error_ratio = self._verify_often(job)
        elif job.verify:
            error_ratio = max(self._verify(job, seed) for seed in seeds)
        else:
            self._load(self._make_case(job.problem, job.seed).inputs)
        return self._time(job, error_ratio)

    def _probe(self, job: Job, seed: int) -> None:
        """Run on small parts of the range. Refuses what would take far too long in full."""
        limit_ns = min(max(WORTH_REFUSING_NS, FAR_TOO_SLOW * job.give_up_above_ns), job.run_limit_s * 1e9)
        self._load(self._make_case(job.problem, seed).inputs)
        self._bind({})
        least_ns = self._tools.probe.least_ns(self._built.kernels, self._plan.launches, limit_ns)
        self._zero()  # a part of the work-groups counts to a part only
        if least_ns > limit_ns:
            message = f"not run in full: a part of its work-groups tells that a call takes {least_ns / 1e6:.3g} ms"
            raise _Refused(TrialState.TOO_SLOW, message)

    def _verify(self, job: Job, seed: int) -> float:
        """Error over tolerance on fresh inputs. Refuses what is wrong or writes where it may not."""
        case = self._make_case(job.problem, seed)
        self._load(case.inputs)
        return _judged(case, self._run_once(case), f"inputs of seed {seed}")

    def _verify_often(self, job: Job) -> float:
        """The largest error over tolerance of many runs on a few fresh inputs. Refuses as `_verify` does.

        Inputs are loaded once, what the kernel writes is poisoned before each run. A run whose output has the very
        bits of one judged before on the same inputs is as right as that one, which saves the reference.
        """
        largest = 0.0
        for number in range(FRESH_INPUTS):
            seed = FRESH_INPUTS * job.seed + number
            case = self._make_case(job.problem, seed)
            self._load(case.inputs)
            judged: dict[str, NDArray[Any]] = {}
            for run in range(number, job.verifications, FRESH_INPUTS):
                self._load({name: case.inputs[name] for name in self._outputs if name in case.inputs})
                outputs = self._run_once(case)
                if not all(_same_bits(judged.get(name), values) for name, values in outputs.items()):
                    ratio = _judged(case, outputs, f"run {run + 1} of {job.verifications}, inputs of seed {seed}")
                    largest, judged = max(largest, ratio), outputs
        return largest

    def _run_once(self, case: Case) -> dict[str, NDArray[Any]]:
        """The outputs of one call on what is loaded. Refuses what writes behind an output."""
        self._poison_scratch()
        self._bind(case.scalars)
        self._call()
        self._session.finish()
        self._check_zeroed()
        return {name: self._read_back(buffer) for name, buffer in self._outputs.items()}

    def _zero(self) -> None:
        """Zeros where the plan wants them, canaries behind."""
        for buffer in self._zeroed:
            zeros = np.zeros(buffer.elements, NUMPY_TYPES[buffer.dtype])
            self._session.write(self._memory[buffer.name], np.concatenate([zeros, _canary(buffer)]))

    def _check_zeroed(self) -> None:
        """Refuses what did not leave zeros where the plan says so: the next call would go wrong."""
        for buffer in self._zeroed:
            if self._read_back(buffer).any():
                raise _Refused(TrialState.WRONG_RESULT, f"the kernel left other than zeros in {buffer.name}")

    def _load(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        for buffer in self._plan.buffers:
            if buffer.name not in inputs:
                continue
            values = inputs[buffer.name].reshape(-1)
            if buffer.role is Role.OUTPUT:
                values = np.concatenate([values, _canary(buffer)])
            self._session.write(self._memory[buffer.name], values)

    def _poison_scratch(self) -> None:
        for buffer in self._plan.buffers:
            if buffer.role is not Role.SCRATCH or buffer.is_zeroed:
                continue
            poison = _poison(buffer)
            if buffer.image_width:
                self._session.write_image(self._memory[buffer.name], poison, buffer)
            else:
                self._session.write(self._memory[buffer.name], poison)

    def _read_back(self, buffer: Buffer) -> NDArray[Any]:
        values: NDArray[Any] = np.empty(buffer.elements + CANARY_ELEMENTS, NUMPY_TYPES[buffer.dtype])
        self._session.read(self._memory[buffer.name], values)
        behind = values[buffer.elements :]
        if behind.tobytes() != _canary(buffer).tobytes():
            raise _Refused(TrialState.WRONG_RESULT, f"the kernel wrote behind the end of {buffer.name}")
        return values[: buffer.elements]

    def _bind(self, scalars: Mapping[str, float]) -> None:
        for kernel, launch in zip(self._built.kernels, self._plan.launches, strict=True):
            self._session.bind(kernel, launch, self._memory, scalars)

    def _call(self) -> list[Any]:
        return [
            self._session.enqueue(kernel, launch)
            for kernel, launch in zip(self._built.kernels, self._plan.launches, strict=True)
        ]

    def _time(self, job: Job, error_ratio: float) -> Measurement:
        self._bind({})
        stopwatch = self._tools.stopwatch
        timing = stopwatch.time(self._call, self._plan.launches, job)
        self._check_zeroed()  # after many calls in a row, too
        reading = self._tools.sensors.read()
        return Measurement(
            time_ns=statistics.median(timing.times_ns),
            samples_ns=timing.times_ns,
            calls_per_sample=timing.samples[0].calls,
            timer=timing.timer,
            prepare_ns=timing.prepare_ns,
            launch_overhead_ns=stopwatch.overhead_ns(timing, len(self._plan.launches)),
            build_ns=self._built.build_ns,
            error_ratio=error_ratio,
            private_memory_bytes=self._built.facts.private_memory_bytes,
            kernel_work_group_limit=self._built.facts.work_group_limit,
            clock_mhz=reading.clock_mhz,
            temperature_c=reading.temperature_c,
        )


def _judged(case: Case, outputs: Mapping[str, NDArray[Any]], on: str) -> float:
    """Error over tolerance. Refuses what is wrong."""
    ratio = case.error_ratio(outputs)
    if not ratio <= 1.0:
        raise _Refused(TrialState.WRONG_RESULT, f"error is {ratio:.3g} times its tolerance ({on})")
    return ratio


def _same_bits(one: NDArray[Any] | None, other: NDArray[Any]) -> bool:
    return one is not None and np.array_equal(one.view(np.uint8), other.view(np.uint8))


def _with_canary(buffer: Buffer) -> Buffer:
    if buffer.role is not Role.OUTPUT and not buffer.is_zeroed:
        return buffer
    return Buffer(
        name=buffer.name, role=buffer.role, dtype=buffer.dtype, elements=buffer.elements + CANARY_ELEMENTS
    )


def _poison(buffer: Buffer) -> NDArray[Any]:
    """Contents that spoil every result they enter."""
    dtype = np.dtype(NUMPY_TYPES[buffer.dtype])
    return np.full(buffer.elements, np.nan if dtype.kind == "f" else np.iinfo(dtype).max, dtype)


def _canary(buffer: Buffer) -> NDArray[Any]:
    pattern = np.arange(CANARY_ELEMENTS, dtype=np.int64) % 100 + 17
    return pattern.astype(NUMPY_TYPES[buffer.dtype])
