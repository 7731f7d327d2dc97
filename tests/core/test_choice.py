"""Samplers other than ours: by name, by import path, at random, exhaustive; through the same search."""

import json
import math
import re
from pathlib import Path

import optuna
import pytest

from autotune.device.profile import find_profile
from autotune.errors import UsageError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.device import DeviceLimits
from autotune.model.events import Outcome
from autotune.model.trial import Job, Request
from autotune.propose.samplers import SamplerChoice
from autotune.propose.study import construct
from autotune.search import Budget, tune
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from covering import occurring
from fakes import INVENTED_PROCESSOR, FakeWorker
from searches import search

DEVICE = INVENTED_PROCESSOR
PROBLEM = GemmProblem(m=65, n=33, k=17)
LIMITS = DeviceLimits()


def time_of(job: Job) -> float:
    values = dict(job.configuration.values)
    return 1e6 / int(values.get("micro_tile_m", 1)) / int(values.get("micro_tile_n", 1))


def run(
    store: Store, worker: FakeWorker, choice: SamplerChoice, trials: int | None, *algorithms: str, seed: int = 0
) -> Outcome:
    return search(store, worker, trials, PROBLEM, device=DEVICE, sampler=choice, algorithms=algorithms, seed=seed)


@pytest.mark.parametrize("name", ["ours", "tpe", "random", "exhaustive", "optuna.samplers:RandomSampler"])
def test_each_goes_through_the_same_search(store: Store, name: str) -> None:
    worker = FakeWorker(time_of)
    outcome = run(store, worker, SamplerChoice.parse(name), 20)
    searched = [job.configuration for job in worker.jobs if job.verify][:20]
    assert len(set(searched)) == 20, "nothing twice"
    default = FAMILY.default(PROBLEM, DEVICE.limits, find_profile(DEVICE).starting("gemm"))
    assert searched[0] == default and outcome.new_trials == 20
    assert all(not FAMILY.violations(PROBLEM, c, DEVICE.limits) for c in searched)
    assert outcome.winner is not None and outcome.winner.is_final and outcome.winner.verifications
    stored = store.trials(DEVICE.slug, "gemm", PROBLEM)
    assert [s.trial.configuration for s in stored if s.purpose == "search"][:20] == searched
    assert (outcome.gain_left is not None) == (name == "ours")


@pytest.mark.parametrize("name", ["exhaustive", "random", "tpe"])
def test_without_a_limit_all_of_a_space_is_measured_once(store: Store, name: str) -> None:
    worker = FakeWorker(time_of)
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=["naive"])
    outcome = run(store, worker, SamplerChoice.parse(name), None, "naive")
    searched = [job.configuration for job in worker.jobs if job.verify][: outcome.new_trials]
    assert {c for c in searched if c.algorithm == "naive"} == set(space)
    assert len(set(searched)) == len(searched)


@pytest.mark.parametrize("name", ["ours", "tpe", "random", "exhaustive", "optuna.samplers:RandomSampler"])
def test_a_sampler_proposes_every_row_once(name: str) -> None:
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=["naive"])
    proposer = SamplerChoice(name=name).make(space, 0)
    proposed = []
    for number in range(len(space)):
        row = proposer.ask()
        assert row is not None and row not in proposed
        proposed.append(row)
        if number % 2:  # the others still run
            proposer.tell(row, 1000.0 + number)
    assert proposer.ask() is None


def test_exhaustive_goes_by_rows_and_random_by_its_seed() -> None:
    space = SearchSpace(FAMILY, PROBLEM, LIMITS, algorithms=["naive"])

    def drawn(name: str, seed: int) -> list[int]:
        proposer = SamplerChoice(name=name).make(space, seed)
        rows = [proposer.ask() for _ in range(len(space) + 1)]
        assert rows.pop() is None, "each row once"
        return [row for row in rows if row is not None]

    assert drawn("exhaustive", 0) == list(range(len(space)))
    assert sorted(drawn("random", 1)) == list(range(len(space)))
    assert drawn("random", 1) == drawn("random", 1) != drawn("random", 2)


@pytest.mark.long
def test_tpe_learns_through_what_its_proposals_are_moved_to(tmp_path: Path) -> None:
    def late_mean(name: str, seed: int) -> float:
        worker = FakeWorker(time_of)
        with Store.open(tmp_path / f"{name}{seed}.sqlite") as own:
            run(own, worker, SamplerChoice.parse(name), 60, "microtile", seed=seed)
        last = [job for job in worker.jobs if job.verify][35:60]
        return sum(math.log(time_of(job)) for job in last) / len(last)

    assert late_mean("tpe", 1) < late_mean("random", 1) - 0.5


class TestNearRow:
    SPACE = SearchSpace(FAMILY, PROBLEM, LIMITS)

    def test_a_valid_configuration_is_its_own(self) -> None:
        for row in range(0, len(self.SPACE), len(self.SPACE) // 40):
            configuration = self.SPACE[row]
            parameters = self.SPACE.parameters[configuration.algorithm]
            indices = {p.name: p.values.index(configuration[p.name]) for p in parameters}
            assert self.SPACE.near_row(configuration.algorithm, indices) == row

    def test_an_invalid_one_keeps_what_it_can(self) -> None:
        parameters = self.SPACE.parameters["microtile"]
        largest = {p.name: len(p.values) - 1 for p in parameters}
        row = self.SPACE.near_row("microtile", largest)
        assert row is not None
        found = self.SPACE[row]
        first = parameters[0]
        assert found.algorithm == "microtile"
        assert found[first.name] == occurring(self.SPACE, "microtile", first.name)[-1]

    def test_an_algorithm_without_rows_has_none(self) -> None:
        parameters = self.SPACE.parameters["row"]
        assert self.SPACE.near_row("row", {p.name: 0 for p in parameters}) is None


@pytest.mark.parametrize(
    ("name", "options", "message", "hint"),
    [
        ("tpa", "", "unknown sampler 'tpa'", "exhaustive"),
        ("no_such_package.samplers:Fine", "", "cannot be imported", "install no_such_package"),
        ("optuna.samplers:NoneSuch", "", "has no attribute 'NoneSuch'", "package.module:Class"),
        ("pathlib:Path", "", "is not a sampler", "BaseSampler"),
        ("optuna.samplers:GridSampler", "", "cannot be created: .*search_space", "search_space"),
        ("tpe", '{"magic": 1}', "cannot be created: .*magic", "n_startup_trials"),
        ("tpe", "{", "not valid JSON", "multivariate"),
        ("tpe", "[1]", "not a JSON object", "multivariate"),
        ("random", '{"seed": 1}', "random takes no options", "name a class"),
    ],
)
def test_errors_say_what_to_do(name: str, options: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        SamplerChoice.parse(name, options)
    assert re.search(hint, caught.value.hint)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_options_reach_the_class_and_the_seed_only_where_it_has_one() -> None:
    path, options = "optuna.samplers:TPESampler", {"n_startup_trials": 3}
    SamplerChoice.parse(path, json.dumps(options))
    sampler = construct("tpe", path, options, 7)
    assert isinstance(sampler, optuna.samplers.TPESampler)
    assert sampler._n_startup_trials == 3
    assert isinstance(construct("all", "optuna.samplers:BruteForceSampler", {}, 0), optuna.samplers.BruteForceSampler)


BROKEN = """
import optuna
class Refuses(optuna.samplers.RandomSampler):
    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._left = after
    def sample_independent(self, *arguments):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("had enough")
        return super().sample_independent(*arguments)
"""


def test_a_sampler_that_fails_is_told_before_or_while_searching(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samplers_that_break.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="failed to propose a configuration: RuntimeError: had enough"):
        SamplerChoice.parse("samplers_that_break:Refuses")
    choice = SamplerChoice.parse("samplers_that_break:Refuses", '{"after": 100}')
    worker = FakeWorker(time_of)
    with pytest.raises(UsageError, match="failed: RuntimeError: had enough"):
        run(store, worker, choice, 50)
    assert len(store.trials(DEVICE.slug, "gemm", PROBLEM)) == len(worker.jobs) > 0, "every trial is kept"
    assert worker.is_closed


def test_only_ours_estimates_what_is_left_to_gain(store: Store) -> None:
    with pytest.raises(UsageError, match="does not estimate"):
        tune(
            DEVICE, [Request(problem=PROBLEM)], store, Budget(until_gain=0.01),
            worker=FakeWorker(time_of), sampler=SamplerChoice(name="tpe"),
        )  # fmt: skip
