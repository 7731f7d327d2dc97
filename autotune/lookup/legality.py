"""Fast checks of configurations: constraints that do not depend on the problem are evaluated only once."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits, Fault
from autotune.space.expression import Expression
from autotune.space.family import Constraint, KernelFamily, reason_of

_MOST_KEPT = 4096
_OFTEN = 16
"""Number of checks after which a configuration's values are substituted into its conditions (about a millisecond)."""


class Legality:
    """Checks configurations of one family on one device, with the same results as `KernelFamily.violations`."""

    def __init__(self, family: KernelFamily, limits: DeviceLimits) -> None:
        self._family = family
        self._limits = limits.constraint_values()
        self._faults = family.faults(limits)
        self._checks: dict[Configuration, Check] = {}

    def check(self, configuration: Configuration, problem_values: Mapping[str, Value]) -> "Check":
        """Return the check of a configuration, for problems whose constraint values have the same names."""
        check = self._checks.get(configuration)
        if check is None:
            if len(self._checks) >= _MOST_KEPT:
                self._checks.clear()
            check = self._checks[configuration] = Check(
                self._family, configuration, self._limits, problem_values, self._faults
            )
        return check

    def is_valid(self, configuration: Configuration, problem_values: Mapping[str, Value]) -> bool:
        return self.check(configuration, problem_values).is_valid(problem_values)

    def violation(self, configuration: Configuration, problem_values: Mapping[str, Value]) -> str:
        """Return why a configuration is not valid, or an empty text.

        `problem_values` are the problem's `constraint_values()`.
        """
        return self.check(configuration, problem_values).violation(problem_values)


class Check:
    """Checks one configuration against the constraints and the device's faults."""

    def __init__(
        self,
        family: KernelFamily,
        configuration: Configuration,
        limits: Mapping[str, int],
        problem_names: Mapping[str, Value],
        faults: Sequence[Fault] = (),
    ) -> None:
        self._open: list[Constraint] = []
        self._rest: tuple[Expression, Mapping[str, Value]] | None = None
        """The open conditions in one, with values that it needs; one attribute, since another thread may be asking."""
        self._known: dict[str, Value] = {}
        self._times_asked = 0
        self._always = next(iter(family.misfits(configuration)), "")
        if not self._always:
            self._always = next((reason_of(fault) for fault in faults if fault.matches(configuration)), "")
        if self._always:
            return
        algorithm, given = family.algorithm(configuration.algorithm), dict(configuration.values)
        known = {**limits, **given}
        for constraint in algorithm.constraints:
            if constraint.condition.names & (problem_names.keys() - given.keys()):
                self._open.append(constraint)
            elif not self._always and not _holds(constraint.condition, known):
                self._always = f"{constraint.name}: {constraint.because}"
        if self._open:
            condition = _joined(tuple(constraint.condition.text for constraint in self._open))
            self._known = {name: value for name, value in known.items() if name in condition.names}
            self._rest = condition, self._known

    def is_valid(self, problem_values: Mapping[str, Value]) -> bool:
        """Return whether there is no violation; faster than `violation` if there is one."""
        if self._always:
            return False
        if self._rest is None:
            return True
        condition, fixed = self._rest
        self._times_asked += 1
        if self._times_asked == _OFTEN:
            condition, fixed = self._rest = condition.given(fixed), {}
        return _holds(condition, {**problem_values, **fixed} if fixed else problem_values)

    def violation(self, problem_values: Mapping[str, Value]) -> str:
        if self._always or self.is_valid(problem_values):
            return self._always
        values = {**problem_values, **self._known}
        broken = next(constraint for constraint in self._open if not _holds(constraint.condition, values))
        return f"{broken.name}: {broken.because}"


def _holds(condition: Expression, values: Mapping[str, Value]) -> bool:
    """Return whether a condition holds; one that divides by zero does not."""
    try:
        return bool(condition(values))
    except ZeroDivisionError:
        return False


@lru_cache(maxsize=256)
def _joined(conditions: tuple[str, ...]) -> Expression:
    """Join conditions into one, which evaluates in half the time; configurations of an algorithm mostly share it."""
    return Expression(" and ".join(f"({condition})" for condition in conditions))
