"""A `Job` becomes a `Trial`: render, build, verify, time. Runs where a crash may be afforded (worker.py)."""

import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.session import NUMPY_TYPES, KernelFacts, Memory, Session, event_ns
from autotune.errors import BuildError, KernelError, WorkGroupError
from autotune.family import Buffer, Case, KernelFamily, Plan, Problem, Role, find_family
from autotune.render import render
from autotune.trial import Job, Measurement, Timer, Trial, TrialState

CANARY_ELEMENTS = 256
"""Elements behind every output that no kernel may touch."""

LARGE_FLOPS = 2**37
"""Above this one set of inputs a trial is enough, with beta zero or not by chance: the reference takes seconds."""

MAX_CALLS_PER_SAMPLE = 2000
PATIENCE_NS = 4e9
"""Sampling ends early when it has taken this long."""


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

    KEPT_PROGRAMS = 16

    def __init__(self, session: Session) -> None:
        self._session = session
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
            measurement = _Runner(self._session, built, self._case).run(job)
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


class _Runner:
    """Memory and launches of one built plan."""

    def __init__(self, session: Session, built: _Built, make_case: Callable[[Problem, int], Case]) -> None:
        self._session = session
        self._make_case = make_case
        self._built = built
        self._plan = built.plan
        self._memory: dict[str, Memory] = {}
        for buffer in self._plan.buffers:
            self._memory[buffer.name] = session.allocate(_with_canary(buffer), self._memory)

    def run(self, job: Job) -> Measurement:
        error_ratio = 0.0
        seeds = [2 * job.seed, 2 * job.seed + 1] if job.problem.flops <= LARGE_FLOPS else [job.seed]
        for seed in seeds if job.verify else []:
            error_ratio = max(error_ratio, self._verify(job, seed))
        if not job.verify:
            self._load(self._make_case(job.problem, job.seed).inputs)
        return self._time(job, error_ratio)

    def _verify(self, job: Job, seed: int) -> float:
        """Error over tolerance on fresh inputs. Refuses what is wrong or writes where it may not."""
        case = self._make_case(job.problem, seed)
        self._load(case.inputs)
        self._poison_scratch()
        self._bind(case.scalars)
        self._call()
        self._session.finish()
        outputs = {b.name: self._read_back(b) for b in self._plan.buffers if b.role is Role.OUTPUT}
        ratio = case.error_ratio(outputs)
        if not ratio <= 1.0:
            raise _Refused(TrialState.WRONG_RESULT, f"error is {ratio:.3g} times its tolerance (inputs of seed {seed})")
        return ratio

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
            if buffer.role is not Role.SCRATCH:
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
        once = self._sample(1)
        fastest = max(1.0, min(once.event_ns or once.host_ns, once.host_ns))
        calls = min(MAX_CALLS_PER_SAMPLE, max(1, math.ceil(job.min_sample_ns / fastest)))
        wanted = 1 if fastest > job.give_up_above_ns else job.samples
        samples: list[_Sample] = []
        spent_ns = 0.0
        while len(samples) < wanted and (spent_ns < PATIENCE_NS or not samples):
            samples.append(self._sample(calls))
            spent_ns += samples[-1].host_ns * calls
        timer = Timer.EVENT if all(s.events_agree for s in samples) else Timer.HOST
        times = [s.event_ns if timer is Timer.EVENT else s.host_ns for s in samples]
        return Measurement(
            time_ns=statistics.median(times),
            samples_ns=tuple(times),
            calls_per_sample=calls,
            timer=timer,
            prepare_ns=statistics.median(s.prepare_ns for s in samples) if timer is Timer.EVENT else 0.0,
            build_ns=self._built.build_ns,
            error_ratio=error_ratio,
            private_memory_bytes=self._built.facts.private_memory_bytes,
            kernel_work_group_limit=self._built.facts.work_group_limit,
        )

    def _sample(self, calls: int) -> "_Sample":
        """Times of one call, as the mean of `calls` calls in a row."""
        start = time.perf_counter_ns()
        events = [self._call() for _ in range(calls)]
        self._session.finish()
        host_ns = (time.perf_counter_ns() - start) / calls
        per_launch = [sum(event_ns(call[i]) for call in events) / calls for i in range(len(self._plan.launches))]
        prepare = sum(t for t, launch in zip(per_launch, self._plan.launches, strict=True) if launch.prepares)
        return _Sample(host_ns=host_ns, event_ns=sum(per_launch), prepare_ns=prepare)


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Times of one call, nanoseconds, by the host's clock and by the device's events."""

    host_ns: float
    event_ns: float
    prepare_ns: float

    LONG_NS = 1_000_000.0
    """Above this, launch overhead cannot explain events far shorter than the host saw."""

    @property
    def events_agree(self) -> bool:
        """Whether events are to be believed: never longer than the host saw, and not far shorter for long calls."""
        if self.event_ns <= 0 or self.event_ns > 1.05 * self.host_ns + 2_000:
            return False
        return self.host_ns < self.LONG_NS or self.event_ns > 0.5 * self.host_ns


def _with_canary(buffer: Buffer) -> Buffer:
    if buffer.role is not Role.OUTPUT:
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
