"""Optuna studies, which drive every search. The only module that imports Optuna.

Proposers of this project are samplers of one parameter, the row of the search space. Samplers of Optuna, and any other
given by import path, do not know which configurations are valid: their proposals are replaced by a valid configuration
nearby, whose time is reported to them as that of their proposal.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from autotune.errors import UsageError
from autotune.propose.proposer import Proposer, random_rows
from autotune.space.search_space import SearchSpace

_TRIED = 12
"""Number of proposals that check that a sampler works; most samplers draw the first ten at random."""
ROW = "row"


class _Study:
    """A study in memory, whose trials belong to rows of a space."""

    def __init__(self, sampler: BaseSampler, distributions: dict[str, BaseDistribution]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=sampler)
        self._distributions = distributions
        self._asked: dict[int, optuna.Trial] = {}
        """Trials of rows that were proposed and have no result yet."""

    def _record(self, row: int, value: float | None, params: dict[str, Any]) -> None:
        """Report the value of a row, None if it has none, whether the study proposed it or not."""
        if (asked := self._asked.pop(row, None)) is not None:
            self._study.tell(asked, value, state=_state(value))
            return
        distributions = {name: self._distributions[name] for name in params}
        self._study.add_trial(
            optuna.trial.create_trial(state=_state(value), value=value, params=params, distributions=distributions)
        )


class RowStudy(_Study):
    """A study of rows whose sampler is a proposer of this project."""

    def __init__(self, proposer: Proposer, rows: int) -> None:
        # Of a single value Optuna would not ask the sampler, so that nothing could tell that no row is left.
        super().__init__(_RowSampler(proposer), {ROW: IntDistribution(0, max(1, rows - 1))})
        self._proposer = proposer

    def enqueue(self, rows: Sequence[int]) -> None:
        """Propose these rows before any others."""
        self._proposer.enqueue(rows)

    def ask(self) -> int | None:
        """Return the row of the study's next trial; None when the proposer has no other."""
        try:
            asked = self._study.ask(self._distributions)
        except _NoRowError:
            return None
        row = int(asked.params[ROW])
        self._asked[row] = asked
        return row

    def tell(self, row: int, time_ns: float | None = None, *, at_least_ns: float | None = None) -> None:
        """Take in the result of a row, whether it was proposed or not."""
        self._proposer.tell(row, time_ns, at_least_ns=at_least_ns)
        self._record(row, time_ns, {ROW: row})

    @property
    def expected_gain(self) -> float | None:
        """The share of the best time that the next trial is expected to save; None without a model."""
        return self._proposer.expected_gain


class _NoRowError(Exception):
    """The proposer has no other row."""


class _RowSampler(BaseSampler):
    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def infer_relative_search_space(self, *_: object) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, *_: object) -> dict[str, Any]:
        return {}

    def sample_independent(self, *_: object) -> int:
        """Return the proposer's next row. Raises _NoRowError."""
        row = self._proposer.ask()
        if row is None:
            raise _NoRowError
        return row


class StudyProposer(_Study):
    """Proposes valid rows near the proposals of an Optuna sampler, in a study held in memory."""

    IDLE = 25
    """Consecutive proposals of known rows before a row is drawn at random."""
    expected_gain = None

    def __init__(self, space: SearchSpace, name: str, sampler: BaseSampler, seed: int) -> None:
        """`name` is that of the sampler in errors."""
        super().__init__(sampler, distributions(space))
        self._space = space
        self._name = name
        self._log_times: dict[int, float | None] = {}
        """Logarithms of times, since models fit them better; None for a row without a time."""
        self._leftover = random_rows(space, seed)

    def enqueue(self, rows: Sequence[int]) -> None:
        """Propose these rows before any others."""
        for row in rows:
            self._study.enqueue_trial(to_params(self._space, row))

    def ask(self) -> int | None:
        """Return a row that is not known yet; None when all are. Raises UsageError when the sampler fails."""
        for _ in range(self.IDLE):
            asked, row = self._proposal()
            if row not in self._asked and row not in self._log_times:
                self._asked[row] = asked
                return row
            log_time = self._log_times.get(row)
            self._study.tell(asked, log_time, state=_state(log_time))
        return next((row for row in self._leftover if row not in self._asked and row not in self._log_times), None)

    def tell(self, row: int, time_ns: float | None = None, *, at_least_ns: float | None = None) -> None:  # noqa: ARG002
        """Take in a result; Optuna's samplers have no use for `at_least_ns`."""
        log_time = self._log_times[row] = None if time_ns is None else math.log(time_ns)
        self._record(row, log_time, to_params(self._space, row))

    def _proposal(self) -> tuple[optuna.Trial, int]:
        """Return the study's next trial, and the valid row near it."""
        try:
            asked = self._study.ask()
            algorithm, indices = _suggested(asked, self._space)
        except Exception as error:  # an unknown sampler may raise anything
            raise UsageError(
                f"the sampler {self._name} failed: {type(error).__name__}: {error}",
                hint="all trials are stored; continue with another sampler, or leave out --sampler",
            ) from error
        row = self._space.near_row(algorithm, indices)
        assert row is not None  # the algorithm has rows
        return asked, row


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return a distribution for the algorithm, and one for each parameter of each, named ``algorithm.parameter``."""
    found: dict[str, BaseDistribution] = {"algorithm": CategoricalDistribution(_algorithms(space))}
    for algorithm in _algorithms(space):
        for p in space.parameters[algorithm]:
            name, last = f"{algorithm}.{p.name}", len(p.values) - 1
            found[name] = IntDistribution(0, last) if p.is_numeric else CategoricalDistribution(p.values)
    return found


def to_params(space: SearchSpace, row: int) -> dict[str, Any]:
    """Convert a row to Optuna parameters: a numeric parameter becomes the index of its value."""
    configuration = space[row]
    params: dict[str, Any] = {"algorithm": configuration.algorithm}
    for parameter in space.parameters[configuration.algorithm]:
        value = configuration[parameter.name]
        name = f"{configuration.algorithm}.{parameter.name}"
        params[name] = parameter.values.index(value) if parameter.is_numeric else value
    return params


def _algorithms(space: SearchSpace) -> list[str]:
    """Return the algorithms that have a valid configuration."""
    return [span.algorithm for span in space.spans if span.count]


def _suggested(asked: optuna.Trial, space: SearchSpace) -> tuple[str, dict[str, int]]:
    """Return the algorithm of an Optuna trial and the value index of each of its parameters, valid or not."""
    algorithm = asked.suggest_categorical("algorithm", _algorithms(space))
    indices: dict[str, int] = {}
    for parameter in space.parameters[algorithm]:
        name = f"{algorithm}.{parameter.name}"
        if parameter.is_numeric:
            indices[parameter.name] = asked.suggest_int(name, 0, len(parameter.values) - 1)
        else:
            indices[parameter.name] = parameter.values.index(asked.suggest_categorical(name, parameter.values))
    return algorithm, indices


def _state(log_time: float | None) -> optuna.trial.TrialState:
    return optuna.trial.TrialState.FAIL if log_time is None else optuna.trial.TrialState.COMPLETE


def construct(name: str, path: str, options: Mapping[str, Any], seed: int) -> BaseSampler:
    """Return a sampler of the class at this path; `name` is that of the sampler in errors. Raises UsageError."""
    kind = _load(path)
    arguments = dict(options)
    if "seed" in inspect.signature(kind).parameters:
        arguments.setdefault("seed", seed)
    try:
        return kind(**arguments)
    except (ImportError, TypeError, ValueError) as error:
        raise UsageError(
            f"--sampler {name} cannot be created: {error}",
            hint=_missing(error) or f"pass its arguments with --sampler-options; {path} accepts {_arguments_of(kind)}",
        ) from error


def try_out(name: str, sampler: BaseSampler) -> None:
    """Raise UsageError if a sampler does not propose."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(sampler=sampler)
        for number in range(_TRIED):
            asked = study.ask()
            asked.suggest_categorical("algorithm", ["a", "b"])
            asked.suggest_int("a.size", 0, 63)
            study.tell(asked, math.exp(-number))
    except Exception as error:  # an unknown class may raise anything
        raise UsageError(
            f"--sampler {name} failed to propose a configuration: {type(error).__name__}: {error}",
            hint=_missing(error) or "it must be able to propose a categorical and an integer parameter",
        ) from error
    finally:
        optuna.logging.set_verbosity(verbosity)


def _load(path: str) -> type[BaseSampler]:
    module_name, colon, class_name = path.partition(":")
    if not (colon and module_name and class_name):
        raise UsageError(
            f"--sampler: unknown sampler {path[:80]!r}",
            hint="ours, tpe, random, exhaustive, or a class by its path, such as optuna.samplers:CmaEsSampler",
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
