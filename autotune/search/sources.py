"""The source of each configuration, and what its stored build says about running it."""

import hashlib
import math
from collections.abc import Mapping, Sequence

from autotune.device.profile import find_profile
from autotune.errors import BuildError
from autotune.kernels import find_family
from autotune.kernels.render import names_read, render
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.model.trial import Build, BuildJob, BuildState
from autotune.space.family import KernelFamily


class Sources:
    """The source to which each configuration of a family renders, under the build options of one device."""

    def __init__(self, family: KernelFamily, options: Sequence[str]) -> None:
        self._family = family
        self._options = tuple(options)
        self._hashes: dict[object, str] = {}

    def inputs_of(self, configuration: Configuration, plan: Plan) -> tuple[object, ...]:
        """Return everything that source and options depend on: where it is equal, the program is the same."""
        read = names_read(self._family, configuration.algorithm)
        values = {**dict(configuration.values), **dict(plan.template_values)}
        seen = tuple(sorted((name, value) for name, value in values.items() if name in read))
        return configuration.algorithm, plan.build_options, seen

    def hash_of(self, configuration: Configuration, plan: Plan) -> str:
        """Return 16 hexadecimal digits, a hash over source and options; equal inputs are rendered only once."""
        key = self.inputs_of(configuration, plan)
        if key not in self._hashes:
            self._hashes[key] = self.job("", configuration, plan).source_hash
        return self._hashes[key]

    def job(self, selector: str, configuration: Configuration, plan: Plan, *, launches: bool = False) -> BuildJob:
        """Return the build job of a configuration on the device with this selector; `launches` as in BuildJob."""
        options = (*self._options, *plan.build_options)
        source = self._render(configuration, plan)
        digest = hashlib.sha256("\0".join([*options, source]).encode()).hexdigest()[:16]
        return BuildJob(
            selector=selector, source_hash=digest, source=source, options=options, plan=plan, launches=launches
        )

    def _render(self, configuration: Configuration, plan: Plan) -> str:
        try:
            return render(self._family, configuration, plan)
        except BuildError as error:
            # Every compiler rejects this line, so an error in a template is counted like any other build error.
            return f"#error {' '.join(error.message.split())}\n"


class Unfit:
    """Configurations that are not worth running according to known builds: ``configuration in unfit``.

    They did not build, cannot be launched with their work-group, or spill registers.
    """

    def __init__(self, device: Device, problem: Problem, builds: Mapping[str, Build]) -> None:
        """`builds` are the builds for the device and its driver, by source hash."""
        self._family = find_family(problem.family)
        self._problem = problem
        self._limits = device.limits
        self._builds = builds
        self._sources = Sources(self._family, find_profile(device).build_options)

    def __contains__(self, configuration: Configuration) -> bool:
        if not self._builds:
            return False
        plan = self._family.plan(self._problem, configuration)
        build = self._builds.get(self._sources.hash_of(configuration, plan))
        if build is None:
            return False
        return (
            build.state is not BuildState.BUILT
            or spills(build, self._limits)
            or is_limited(build, work_items_of_group(plan))
        )


def spills(build: Build, limits: DeviceLimits) -> bool:
    """Return whether private memory shows that registers did not suffice; on a CPU it is memory like any other."""
    return build.private_memory_bytes > 0 and not limits.is_cpu


def is_limited(build: Build, work_items: int) -> bool:
    """Return whether the kernel cannot be launched with work-groups of `work_items`."""
    return 0 < build.work_group_limit < work_items


def work_items_of_group(plan: Plan) -> int:
    """Return the work-items of the largest work-group of a plan; 0 where the driver chooses every local_size."""
    return max((math.prod(launch.local_size) for launch in plan.launches if launch.local_size), default=0)
