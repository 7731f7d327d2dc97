"""What a timed series of calls starts from, so that its last results show whether every call computed them.

Scratch is left as a call on other inputs left it, and outputs hold wrong numbers that look like results: a kernel that
returns early because of either, or adds to what is there, ends with wrong results.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.model.plan import Plan
from autotune.model.trial import TrialState

LONG_INPUTS_NS = 4e9
"""Inputs of further kinds are not drawn once inputs and their comparison have taken so long; an eighth of it in
trials of a search, whose finals make up for it."""
SAY_RANGE = "`range` or `special = false` of an argument says what does not occur"
RELIES = "does a call rely on what an earlier one left in an output or in scratch?"


class Refused(Exception):
    """Ends a trial in a state other than complete."""

    def __init__(self, state: TrialState, message: str) -> None:
        super().__init__(message)
        self.state = state


def misleading(before: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return finite wrong contents for the outputs; elements that the call leaves as they were `before` are kept."""
    return {name: _misleading(before[name], values) for name, values in right.items()}


def _misleading(before: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    if right.dtype.kind == "f":
        wrong = (np.where(np.isfinite(right), right, 0) / 2 + 1).astype(right.dtype)
        wrong[wrong == right] = 3
    else:
        wrong = right ^ 1
    bits = np.dtype(f"u{right.itemsize}")
    return np.where(before.view(bits) == right.view(bits), before, wrong)


def is_timed_with(plan: Plan, scalars: Mapping[str, float]) -> bool:
    """Return whether these are the values of named scalars with which a plan's calls are timed."""
    named = plan.named_scalars
    return all(named[name].value == value for name, value in scalars.items() if name in named)
