"""The choice of the sampler for a search: ours, or another to compare it with.

Optuna's own samplers, and any other given by import path, do not know which configurations are valid. Their proposals
are replaced by a valid configuration nearby, whose time is reported to them as that of their proposal.
"""

import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from autotune.errors import UsageError
from autotune.propose import SpaceExhaustedError, SpaceSampler, distributions, to_params
from autotune.propose.prior import Prior
from autotune.space.search_space import SearchSpace

OURS, TPE, RANDOM, EXHAUSTIVE = "ours", "tpe", "random", "exhaustive"
NAMES = (OURS, TPE, RANDOM, EXHAUSTIVE)
_PATHS = {TPE: "optuna.samplers:TPESampler"}
_TRIED = 12
"""Number of proposals that check that a sampler works; most samplers draw the first ten at random."""


@dataclass(frozen=True, kw_only=True)
class SamplerChoice:
    """A sampler, as one of NAMES or ``package.module:Class``, and the keyword arguments of its class."""

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

    @property
    def knows_the_space(self) -> bool:
        """Whether it proposes only valid configurations, each once."""
        return self.name in (OURS, RANDOM, EXHAUSTIVE)

    def check(self) -> None:
        """Raise UsageError if the sampler cannot be made or does not propose."""
        if self.knows_the_space:
            if self.options:
                raise UsageError(
                    f"--sampler {self.name} takes no options", hint="leave out --sampler-options, or name a class"
                )
            return
        sampler = self._construct(0)
        try:
            _try(sampler)
        except Exception as error:  # an unknown class may raise anything
            raise UsageError(
                f"--sampler {self.name} failed to propose a configuration: {type(error).__name__}: {error}",
                hint=_missing(error) or "it must be able to propose a categorical and an integer parameter",
            ) from error

    def make(self, space: SearchSpace, seed: int, prior: Prior) -> BaseSampler:
        """Return a sampler for one space; only ours uses `prior`."""
        if self.is_ours:
            return SpaceSampler(space, seed, prior=prior)
        if self.name == RANDOM:
            return ListSampler(space, random_rows(space, seed))
        if self.name == EXHAUSTIVE:
            return ListSampler(space, iter(range(len(space))))
        return self._construct(seed)

    def _construct(self, seed: int) -> BaseSampler:
        path = _PATHS.get(self.name, self.name)
        kind = _load(path)
        arguments = dict(self.options)
        if "seed" in inspect.signature(kind).parameters:
            arguments.setdefault("seed", seed)
        try:
            return kind(**arguments)
        except (ImportError, TypeError, ValueError) as error:
            raise UsageError(
                f"--sampler {self.name} cannot be created: {error}",
                hint=_missing(error)
                or f"pass its arguments with --sampler-options; {path} accepts {_arguments_of(kind)}",
            ) from error


class ListSampler(BaseSampler):
    """Proposes rows in the given order, each once; enqueued trials come first."""

    def __init__(self, space: SearchSpace, rows: Iterator[int]) -> None:
        self._space = space
        self._distributions = distributions(space)
        self._rows = rows

    def infer_relative_search_space(self, _study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if "fixed_params" in trial.system_attrs else self._distributions

    def sample_relative(
        self, _study: Study, _trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Raises SpaceExhaustedError after the last row."""
        if not search_space:
            return {}
        row = next(self._rows, None)
        if row is None:
            raise SpaceExhaustedError
        return to_params(self._space, self._space[row])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError(f"{param_name} is not a parameter of the search space")


def random_rows(space: SearchSpace, seed: int) -> Iterator[int]:
    """Yield every row once, in a random order given by the seed."""
    return map(int, np.random.default_rng(seed).permutation(len(space)))


def near_row(space: SearchSpace, algorithm: str, indices: Mapping[str, int]) -> int | None:
    """Return a valid row near these indices into the values of an algorithm's parameters; None if it has no row.

    Greedy: each parameter in order takes the nearest value that some valid row combines with those chosen before.
    """
    parameters = space.parameters[algorithm]
    path = space.diagrams[algorithm].nearest([indices[p.name] for p in parameters], [p.is_numeric for p in parameters])
    return None if path is None else space.row_at(algorithm, path)


def _try(sampler: BaseSampler) -> None:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(sampler=sampler)
        for number in range(_TRIED):
            asked = study.ask()
            asked.suggest_categorical("algorithm", ["a", "b"])
            asked.suggest_int("a.size", 0, 63)
            study.tell(asked, math.exp(-number))
    finally:
        optuna.logging.set_verbosity(verbosity)


def _load(path: str) -> type[BaseSampler]:
    module_name, colon, class_name = path.partition(":")
    if not (colon and module_name and class_name):
        raise UsageError(
            f"--sampler: unknown sampler {path[:80]!r}",
            hint=f"{', '.join(NAMES)}, or a class by its path, such as optuna.samplers:CmaEsSampler",
        )
    try:
        kind = getattr(import_module(module_name), class_name)
    except (ImportError, ValueError) as error:
        raise UsageError(f"--sampler: {module_name} cannot be imported: {error}", hint=_missing(error)) from error
    except AttributeError as error:
        raise UsageError(f"--sampler: {error}", hint="the path is package.module:Class") from error
    if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
        raise UsageError(
            f"--sampler: {path} is not a sampler", hint="give a class that derives from Optuna's BaseSampler"
        )
    return kind


def _missing(error: Exception) -> str:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"install {name.partition('.')[0]}, or put its folder into PYTHONPATH" if name else ""


def _arguments_of(kind: type[BaseSampler]) -> str:
    names = [name for name in inspect.signature(kind).parameters if name != "seed"]
    return ", ".join(names) or "none"
