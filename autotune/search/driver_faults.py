"""Known faults of a driver, derived from how trials ended."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotune import __version__
from autotune.errors import ConfigurationError
from autotune.kernels import family_names, find_family
from autotune.kernels.render import template_hash
from autotune.model.configuration import Configuration
from autotune.model.device import Device, Fault
from autotune.model.trial import TrialState
from autotune.space.family import KernelFamily
from autotune.store import Ending, Store

BAD = frozenset({TrialState.WRONG_RESULT, TrialState.CRASHED, TrialState.TIMED_OUT})
"""States that are the driver's fault if they coincide with a parameter's value."""
FEWEST = 5
"""Configurations with a value that must have ended badly, and none well, before the value is to blame."""
CHANCE = 0.01
"""Largest probability that as many end badly by chance, at the share of the algorithm's trials that do."""


@dataclass(frozen=True, kw_only=True)
class KnownFault:
    """A fault, and how many configurations ended badly because of it; 0 if it is known from a table only."""

    fault: Fault
    configurations: int


def with_checkup(device: Device, store: Store) -> Device:
    """Return the device without what its saved checkup and its trials found broken."""
    checkup = store.checkup(device)
    return with_faults(checkup.applied_to(device) if checkup else device, store)


def with_faults(device: Device, store: Store) -> Device:
    """Return the device with the known faults of its driver."""
    faults = dict.fromkeys([*device.limits.faults, *(known.fault for known in known_faults(device, store))])
    return replace(device, limits=replace(device.limits, faults=tuple(faults))) if faults else device


def known_faults(device: Device, store: Store) -> list[KnownFault]:
    """Return the faults found in the ledger, then those from tables that no trial here contradicts."""
    wrong, imported = store.endings(device, BAD), store.imported_faults(device)
    if len(wrong) < FEWEST and not imported:
        return []
    right = store.endings(device, {TrialState.COMPLETE})
    found = [known for name in family_names() for known in find_faults(find_family(name), [*wrong, *right])]
    own = {known.fault for known in found}
    others = [
        KnownFault(fault=fault, configurations=0)
        for fault in imported
        if fault not in own and not any(e.family == fault.family and fault.matches(e.configuration) for e in right)
    ]
    return [*found, *others]


def find_faults(family: KernelFamily, endings: Iterable[Ending]) -> list[KnownFault]:
    """Return values of parameters with which several configurations ended badly and none well.

    The algorithm must have completed with other values. Only endings under this version and its present templates
    count: another version may itself have been at fault. A configuration whose failure one value explains does not
    count against other values.
    """
    current = [e for e in endings if e.family == family.name and _is_current(family, e)]
    right = {e.configuration for e in current if e.state is TrialState.COMPLETE}
    wrong = {e.configuration for e in current if e.state in BAD} - right
    found: list[KnownFault] = []
    while (known := _worst(family, right, wrong)) is not None:
        found.append(known)
        wrong = {configuration for configuration in wrong if not known.fault.matches(configuration)}
    return _joined(family, found, right)


def _is_current(family: KernelFamily, ending: Ending) -> bool:
    try:
        algorithm = family.algorithm(ending.configuration.algorithm).name
    except ConfigurationError:  # an algorithm of another version
        return False
    return ending.tool_version == __version__ and ending.template_hash == template_hash(family, algorithm)


def _worst(family: KernelFamily, right: set[Configuration], wrong: set[Configuration]) -> KnownFault | None:
    """Return the fault that explains most of the bad endings; None if none explains enough."""
    counts = Counter((c.algorithm, *pair) for c in wrong for pair in c.values)
    sound = {(c.algorithm, *pair) for c in right for pair in c.values}
    of_algorithm = Counter(c.algorithm for c in wrong)
    can = Counter(c.algorithm for c in right)
    suspects = sorted(
        (-count, algorithm, name, str(value), value)
        for (algorithm, name, value), count in counts.items()
        if count >= FEWEST and can[algorithm] and (algorithm, name, value) not in sound
    )
    for count, algorithm, name, _, value in suspects:
        share = of_algorithm[algorithm] / (of_algorithm[algorithm] + can[algorithm])
        fault = Fault(family=family.name, algorithm=algorithm, parameter=name, value=value)
        if share**-count <= CHANCE and not fault.matches(family.baseline):
            return KnownFault(fault=fault, configurations=-count)
    return None


def _joined(family: KernelFamily, found: Sequence[KnownFault], right: set[Configuration]) -> list[KnownFault]:
    """Merge faults: a value with which several algorithms fail, and none works, is to blame wherever it occurs."""
    algorithms = Counter((known.fault.parameter, known.fault.value) for known in found)
    sound = {pair for c in right for pair in c.values}
    joined: Counter[Fault] = Counter()
    for known in found:
        pair = (known.fault.parameter, known.fault.value)
        general = replace(known.fault, algorithm="")
        is_general = algorithms[pair] > 1 and pair not in sound and not general.matches(family.baseline)
        joined[general if is_general else known.fault] += known.configurations
    return [KnownFault(fault=fault, configurations=count) for fault, count in joined.items()]
