"""A problem on a device: its kernel family, default and search space, and the source of each configuration."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from autotune.device.profile import find_profile
from autotune.errors import BuildError, ProblemError
from autotune.kernels import find_family
from autotune.kernels.render import names_read, provenance_now, render
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.machine import Rates
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildJob, BuildState, Provenance
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace

RECENT = 32
"""Configurations of which plan and source are kept, since a search asks for them more than once."""


class Task:
    """A problem on a device: its family, what the device's profile says about that, and each configuration's source."""

    def __init__(self, device: Device, problem: Problem, rates: Rates | None = None) -> None:
        """`rates` are those measured on the device, by which defaults are estimated.

        Raises ProblemError when the problem's family is not installed."""
        profile = find_profile(device, rates)
        self.device = device
        self.problem = problem
        self.family = find_family(problem.family)
        self.build_options = profile.build_options
        self.starts = profile.starting(problem.family)
        """The configurations to try first, best first."""
        self.default = self.family.default(problem, device.limits, self.starts)
        """The configuration to use without tuning."""
        self.overrides = profile.overrides_for(problem.family)
        """Values that replace those of parameters, by name."""
        self.plan = lru_cache(RECENT)(partial(self.family.plan, problem))
        self._source = lru_cache(RECENT)(partial(_rendered, self.family, self.plan))
        self._hashes: dict[bytes, str] = {}

    def provenance(self, configuration: Configuration) -> Provenance:
        """Return the provenance of something that the device has just built or measured."""
        return provenance_now(self.device, self.family, configuration)

    def space(self, algorithms: Sequence[str] = (), *, may_be_empty: bool = False) -> SearchSpace:
        """Return the search space, restricted to the named `algorithms` if there are any.

        Raises ConfigurationError for an unknown algorithm, and, unless it `may_be_empty`, ProblemError when none of the
        algorithms can solve the problem.
        """
        family, limits = self.family, self.device.limits
        space = SearchSpace(family, self.problem, limits, algorithms=algorithms, overrides=self.overrides)
        if not (may_be_empty or len(space)):
            raise ProblemError(
                f"{' and '.join(algorithms or [family.name])}: no valid configuration for {self.problem.label}",
                hint="leave the shape out, or name other algorithms" if algorithms else "the constraints exclude all",
            )
        return space

    def inputs_of(self, configuration: Configuration) -> tuple[object, ...]:
        """Return everything that source and options depend on: where it is equal, the program is the same."""
        plan = self.plan(configuration)
        read = names_read(self.family, configuration.algorithm)
        values = {**dict(configuration.values), **dict(plan.template_values)}
        seen = tuple(sorted((name, value) for name, value in values.items() if name in read))
        return configuration.algorithm, plan.build_options, seen

    def hash_of(self, configuration: Configuration) -> str:
        """Return 16 hexadecimal digits, a hash over source and options; equal inputs are rendered only once."""
        # A digest takes a tenth of the memory of the inputs: a space may have a million sources.
        key = hashlib.blake2b(repr(self.inputs_of(configuration)).encode(), digest_size=16).digest()
        if key not in self._hashes:
            self._hashes[key] = self.build_job(configuration).source_hash
        return self._hashes[key]

    def build_job(self, configuration: Configuration) -> BuildJob:
        """Return the job that builds a configuration for the device."""
        plan, source = self.plan(configuration), self._source(configuration)
        options = (*self.build_options, *plan.build_options)
        digest = hashlib.sha256("\0".join([*options, source]).encode()).hexdigest()[:16]
        return BuildJob(selector=self.device.selector, source_hash=digest, source=source, options=options, plan=plan)

    def is_unfit(self, configuration: Configuration, builds: Mapping[str, Build]) -> bool:
        """Return whether known builds, by source hash, show that a configuration is not worth running.

        It did not build, cannot be launched with its work-group, or spills registers.
        """
        build = builds.get(self.hash_of(configuration)) if builds else None
        return build is not None and (build.state is not BuildState.BUILT or self._is_too_large(configuration, build))

    def is_doubtful(self, configuration: Configuration, builds: Mapping[str, Build]) -> bool:
        """Return whether builds by another compiler for this device suggest that registers do not suffice.

        That it did not build there says nothing: drivers differ in their extensions. Nor is a spill there a reason to
        leave it out: two of six pairs measured on real Adrenos contradict Mesa (`scripts/adreno_pairs`).
        """
        build = builds.get(self.hash_of(configuration)) if builds else None
        return build is not None and build.state is BuildState.BUILT and self._is_too_large(configuration, build)

    def _is_too_large(self, configuration: Configuration, build: Build) -> bool:
        group = work_items_of_group(self.plan(configuration))
        return spills(build, self.device.limits) or is_limited(build, group)


def _rendered(family: KernelFamily, plan: Callable[[Configuration], Plan], configuration: Configuration) -> str:
    try:
        return render(family, configuration, plan(configuration))
    except BuildError as error:
        # Every compiler rejects this line, so an error in a template is counted like any other build error.
        return f"#error {' '.join(error.message.split())}\n"


def spills(build: Build, limits: DeviceLimits) -> bool:
    """Return whether private memory shows that registers did not suffice; on a CPU it is memory like any other."""
    return build.private_memory_bytes > 0 and not limits.is_cpu


def is_limited(build: Build, work_items: int) -> bool:
    """Return whether the kernel cannot be launched with work-groups of `work_items`."""
    return 0 < build.work_group_limit < work_items


def work_items_of_group(plan: Plan) -> int:
    """Return the work-items of the largest work-group of a plan; 0 where the driver chooses every local_size."""
    return max((math.prod(launch.local_size) for launch in plan.launches if launch.local_size), default=0)
