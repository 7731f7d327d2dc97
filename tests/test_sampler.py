"""The sampler proposes only what is valid and new, and gets better than chance."""

import math
import random

import numpy as np
import optuna
import pytest

from autotune.family import Configuration, DeviceLimits
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.sampler import (
    ROW,
    SpaceExhaustedError,
    SpaceSampler,
    distributions,
    to_params,
)
from autotune.sampler.explorer import expected_improvement
from autotune.sampler.gaussian import Hyperparameters, HyperPrior, fit
from autotune.search import _suggest
from autotune.space import SearchSpace

LIMITS = DeviceLimits(has_images=True, max_image_width=8192, max_image_height=8192)
optuna.logging.set_verbosity(optuna.logging.WARNING)


def invented_time(configuration: Configuration) -> float:
    """A smooth landscape over tile sizes with one best corner, worse for other algorithms."""
    values = dict(configuration.values)
    score: float = {"naive": 4.0, "dot": 3.0, "local_tile": 1.0, "microtile": 0.0}[configuration.algorithm]
    for name, best in (("micro_tile_m", 8), ("micro_tile_n", 4), ("unroll", 4), ("work_group_n", 16)):
        value = values.get(name, 1)
        assert isinstance(value, int)
        score += abs(math.log2(max(1, value)) - math.log2(best)) * 0.4
    return 1000.0 * float(2.0**score)


def explore(space: SearchSpace, trials: int, seed: int, fails_from: int = 10**9) -> list[Configuration]:
    study = optuna.create_study(sampler=SpaceSampler(space, seed))
    asked_for: list[Configuration] = []
    for number in range(trials):
        asked = study.ask()
        configuration = _suggest(asked, space)
        asked.set_user_attr(ROW, space.row_of(configuration))
        if number % fails_from == fails_from - 1:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, invented_time(configuration))
        asked_for.append(configuration)
    return asked_for


def test_proposals_are_valid_and_never_repeat() -> None:
    problem = GemmProblem(m=65, n=33, k=17)
    space = SearchSpace(FAMILY, problem, LIMITS)
    asked = explore(space, 40, seed=3, fails_from=4)
    assert len(set(asked)) == 40
    assert all(not FAMILY.violations(problem, c, LIMITS) for c in asked)


def test_a_small_space_is_explored_whole_and_then_exhausted() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=4, n=4, k=4), LIMITS, algorithms=["naive"])
    assert set(explore(space, len(space), seed=0)) == set(space)
    with pytest.raises(SpaceExhaustedError):
        explore(space, len(space) + 1, seed=0)


def test_finds_better_configurations_than_chance() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=512, n=512, k=512), LIMITS, algorithms=["microtile"])
    ours = [min(map(invented_time, explore(space, 60, seed))) for seed in range(5)]
    chance = []
    for seed in range(9):
        draw = random.Random(seed)
        chance.append(min(invented_time(space[draw.randrange(len(space))]) for _ in range(60)))
    assert np.median(ours) < 0.8 * np.median(chance)


def test_same_seed_same_proposals() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS)
    assert explore(space, 14, seed=1) == explore(space, 14, seed=1)
    assert explore(space, 14, seed=1) != explore(space, 14, seed=2)


def test_parameters_fit_their_distributions() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS)
    everything = distributions(space)
    for row in range(0, len(space), len(space) // 50):
        for name, value in to_params(space, space[row]).items():
            assert everything[name]._contains(everything[name].to_internal_repr(value))


def test_enqueued_configurations_come_first() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS)
    study = optuna.create_study(sampler=SpaceSampler(space))
    study.enqueue_trial(to_params(space, space[77]))
    assert _suggest(study.ask(), space) == space[77]


def plain_prior(features: int) -> HyperPrior:
    return HyperPrior(mean=Hyperparameters(log_weights=np.zeros(features), log_noise=math.log(0.01)))


def test_the_model_fits_and_knows_what_it_does_not_know() -> None:
    features = np.linspace(0, 1, 12)[:, None]
    prior = plain_prior(1)
    mean, deviation = fit(features, np.sin(4 * features[:, 0]), prior, prior.mean, 30).predict(np.array([[0.5], [4.0]]))
    assert mean[0] == pytest.approx(np.sin(2.0), abs=0.05)
    assert deviation[1] > 5 * deviation[0]


def test_equal_times_do_not_upset_the_model() -> None:
    prior = plain_prior(2)
    mean, deviation = fit(np.zeros((3, 2)), np.ones(3), prior, prior.mean, 5).predict(np.ones((2, 2)))
    assert np.isfinite(mean).all() and np.isfinite(deviation).all()


def test_expected_improvement_prefers_the_better_and_the_less_known() -> None:
    gains = expected_improvement(np.array([1.0, 0.5, 1.0]), np.array([0.1, 0.1, 1.0]), best=0.8)
    assert gains[1] > gains[0]
    assert gains[2] > gains[0]
    assert (gains >= 0).all()
