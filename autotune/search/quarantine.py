"""Which configurations a search leaves alone, because they took a worker, a run or the machine along."""

from collections import defaultdict
from collections.abc import Set as AbstractSet

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import TrialState
from autotune.store import Fate, Store

PROBLEMS = 2
"""What crashed or was lost at so many problems of a family is not run at any other either."""


def quarantine_of(
    device: Device, problem: Problem, store: Store, right_here: AbstractSet[Configuration]
) -> set[Configuration]:
    """Configurations not to be run at a problem, on a device under its driver.

    In flight on another machine counts too: nobody here knows whether that machine still runs. What happened at
    other problems is not held against those that were `right_here`.
    """
    entries = [q for q in store.quarantined(device.slug, device.driver) if q.problem.family == problem.family]
    here = {q.configuration for q in entries if q.problem == problem}
    problems: defaultdict[Configuration, set[Problem]] = defaultdict(set)
    for entry in entries:
        if entry.reason != TrialState.TIMED_OUT.value:  # slow at large sizes says nothing of small ones
            problems[entry.configuration].add(entry.problem)
    everywhere = {configuration for configuration, seen in problems.items() if len(seen) >= PROBLEMS}
    elsewhere = {
        flight.configuration
        for flight in store.in_flight(device.slug, device.driver)
        if flight.problem == problem and flight.fate is Fate.UNKNOWN
    }
    return here | (everywhere - right_here) | elsewhere
