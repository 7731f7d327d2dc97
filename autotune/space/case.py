"""Inputs for one verification of a kernel, and the check of its outputs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotune.model.configuration import Configuration
from autotune.model.draw import Draw
from autotune.model.plan import Launch, Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Case(ABC):
    """Inputs for one verification, and the check of its outputs."""

    reference: Configuration | None = None
    """A configuration whose outputs on the device are the right ones, passed to `expect` before the first check."""
    inputs: Mapping[str, "NDArray[Any]"]
    """Initial contents by buffer name; an output that must be written completely starts poisoned."""
    scalars: Mapping[str, float] = MappingProxyType({})
    draws: Mapping[str, Draw] = MappingProxyType({})
    """For those of the inputs, by buffer name, that consist of nothing but random numbers."""
    counts: bool = True
    """Whether results on these inputs decide. On those of a further regime, what is right may not be defined."""
    reads: frozenset[str] = frozenset()
    """Outputs whose contents before a call enter its result."""
    remark: str = ""
    """What a person should know of outputs that are right, such as elements that are never written."""

    def launches(self, plan: Plan) -> Sequence[Launch]:
        """Return a plan's launches, with the numbers that belong to these inputs."""
        return plan.launches

    def other_contents(self) -> Mapping[str, "NDArray[Any]"]:
        """Return other contents for outputs that a call must write completely, on which no result may depend."""
        return {}

    def expect(self, outputs: Mapping[str, "NDArray[Any]"], again: Mapping[str, "NDArray[Any]"]) -> str:
        """Take the outputs of `reference` as the right ones, after which it is None.

        `again` are those of a second call, on the other contents. Return why they cannot be right, or an empty string.
        """
        raise NotImplementedError

    def valid_part(self, _name: str, stored: "NDArray[Any]", /) -> "NDArray[Any]":
        """Return the elements of an output that its check compares."""
        return stored

    @abstractmethod
    def error_ratio(self, outputs: Mapping[str, "NDArray[Any]"]) -> float:
        """Return the largest error divided by its tolerance: right if at most 1; NaN and infinity are wrong."""
