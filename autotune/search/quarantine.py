"""Configurations that a search does not run, because they took down a worker, a run or the machine."""

from collections import defaultdict
from collections.abc import Set as AbstractSet

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import TrialState
from autotune.store import Fate, Store

PROBLEMS = 2
"""A configuration that crashed or was lost at this many problems of a family is not run at any other problem of it."""


def quarantine_of(
    device: Device, problem: Problem, store: Store, right_here: AbstractSet[Configuration]
) -> set[Configuration]:
    """Return the configurations not to be run at a problem, on a device under its driver.

    Configurations in flight on another machine are included, since it is unknown here whether that machine still runs.
    Failures at other problems do not count against the configurations in `right_here`, which ran correctly at this one.
    """
    entries = [q for q in store.quarantined(device.slug, device.driver) if q.problem.family == problem.family]
    here = {q.configuration for q in entries if q.problem == problem}
    problems: defaultdict[Configuration, set[Problem]] = defaultdict(set)
    for entry in entries:
        if entry.reason != TrialState.TIMED_OUT.value:  # slowness at large sizes says nothing about small ones
            problems[entry.configuration].add(entry.problem)
    everywhere = {configuration for configuration, seen in problems.items() if len(seen) >= PROBLEMS}
    elsewhere = {
        flight.configuration
        for flight in store.in_flight(device.slug, device.driver)
        if flight.problem == problem and flight.fate is Fate.UNKNOWN
    }
    return here | (everywhere - right_here) | elsewhere
