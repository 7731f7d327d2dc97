"""The choice of the proposer for a search: ours, a list of rows, or a sampler of Optuna to compare with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import UsageError
from autotune.propose.prior import Source
from autotune.propose.proposer import ListProposer, ModelProposer, Proposer, random_rows
from autotune.space.search_space import SearchSpace

OURS, TPE, RANDOM, EXHAUSTIVE = "ours", "tpe", "random", "exhaustive"
_OWN = (OURS, RANDOM, EXHAUSTIVE)
_PATHS = {TPE: "optuna.samplers:TPESampler"}


@dataclass(frozen=True, kw_only=True)
class SamplerChoice:
    """A sampler, by its name or as ``package.module:Class``, and the keyword arguments of its class."""

    name: str = OURS
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, options: str = "") -> "SamplerChoice":
        """Parse a name and a JSON object of options. Raises UsageError, with a hint, if the sampler cannot be made."""
        try:
            given = json.loads(options) if options else {}
        except json.JSONDecodeError as error:
            raise UsageError(
                f"--sampler-options: not valid JSON: {error}", hint='such as {"multivariate": true}'
            ) from error
        if not isinstance(given, dict):
            raise UsageError("--sampler-options: not a JSON object", hint='such as {"multivariate": true}')
        choice = cls(name=name, options=given)
        choice.check()
        return choice

    @property
    def is_ours(self) -> bool:
        """Whether it is our sampler: only this one estimates the remaining gain and learns from similar problems."""
        return self.name == OURS

    def check(self) -> None:
        """Raise UsageError if the sampler cannot be made or does not propose."""
        if self.name in _OWN:
            if self.options:
                raise UsageError(
                    f"--sampler {self.name} takes no options", hint="leave out --sampler-options, or name a class"
                )
            return
        from autotune.propose import study

        study.try_out(self.name, study.construct(self.name, self._path, self.options, 0))

    def make(self, space: SearchSpace, seed: int, sources: Sequence[Source] = ()) -> Proposer:
        """Return a proposer of the rows of one space; only ours uses `sources`."""
        from autotune.propose import study

        if self.name not in _OWN:
            sampler = study.construct(self.name, self._path, self.options, seed)
            return study.StudyProposer(space, self.name, sampler, seed)
        if self.is_ours:
            return study.RowStudy(ModelProposer(space, seed, sources), len(space))
        rows = random_rows(space, seed) if self.name == RANDOM else range(len(space))
        return study.RowStudy(ListProposer(rows), len(space))

    @property
    def _path(self) -> str:
        return _PATHS.get(self.name, self.name)
