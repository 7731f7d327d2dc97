"""The sampler proposes only what is valid and new, and gets better than chance."""

import copy
import math
import random
from collections.abc import Iterable

import numpy as np
import optuna
import pytest

from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.propose import (
    AT_LEAST,
    ROW,
    Explorer,
    Observations,
    Prior,
    Source,
    SpaceExhaustedError,
    SpaceSampler,
    distributions,
    to_params,
)
from autotune.propose.explorer import expected_improvement
from autotune.propose.features import Features
from autotune.propose.gaussian import GaussianProcess, Hyperparameters, HyperPrior, fit
from autotune.propose.neighbours import Neighbours
from autotune.search.proposals import suggest
from autotune.space.search_space import SearchSpace
from untraced import untraced

ALGORITHMS = ("naive", "dot", "local_tile", "microtile")
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


def small_space() -> SearchSpace:
    """Some thousand configurations of one algorithm."""
    overrides: dict[str, tuple[Value, ...]] = {"work_group_m": (1, 2), "unroll": (1, 4), "b_storage": ("buffer",)}
    return SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS, algorithms=["microtile"], overrides=overrides)


def known_of(space: SearchSpace, rows: Iterable[int]) -> Observations:
    numbers = [int(row) for row in rows]
    log_times = [math.log(invented_time(configuration)) for configuration in space.configurations(numbers)]
    return Observations(log_times=dict(zip(numbers, log_times, strict=True)))


def explore(space: SearchSpace, trials: int, seed: int, fails_from: int = 10**9) -> list[Configuration]:
    study = optuna.create_study(sampler=SpaceSampler(space, seed))
    asked_for: list[Configuration] = []
    for number in range(trials):
        asked = study.ask()
        configuration = suggest(asked, space)
        asked.set_user_attr(ROW, space.row_of(configuration))
        if number % fails_from == fails_from - 1:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, invented_time(configuration))
        asked_for.append(configuration)
    return asked_for


@untraced()
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


def test_a_space_of_one_configuration_is_explored_too() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=1, n=1, k=1), LIMITS, algorithms=["row"])
    assert len(space) == 1
    explorer = Explorer(space)
    assert explorer.propose(Observations()) == [0]
    with pytest.raises(SpaceExhaustedError):
        explorer.propose(Observations(log_times={0: 1.0}))


@untraced()
def test_finds_better_configurations_than_chance() -> None:
    """Of what chance leaves to the best possible, on a logarithmic scale, clearly less is left (24 seeds: a third)."""
    space = SearchSpace(FAMILY, GemmProblem(m=512, n=512, k=512), LIMITS, algorithms=["microtile"])
    ours = [min(map(invented_time, explore(space, 35, seed))) for seed in range(5)]
    chance = []
    for seed in range(40):
        draw = random.Random(seed)
        chance.append(min(invented_time(space[draw.randrange(len(space))]) for _ in range(35)))
    best = 1000.0
    assert np.mean(np.log(ours) - np.log(best)) < 0.7 * np.mean(np.log(chance) - np.log(best))


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
    assert suggest(study.ask(), space) == space[77]


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


def test_points_believed_are_as_if_measured() -> None:
    draw = np.random.default_rng(3)
    at = Hyperparameters(log_weights=np.full(4, -0.5), log_noise=math.log(0.01))
    features, more, asked = draw.normal(size=(20, 4)), draw.normal(size=(5, 4)), draw.normal(size=(9, 4))
    few = GaussianProcess(features, draw.normal(size=20), at)
    believing = few.believing(more)
    anew = copy.copy(believing)
    anew._solve()
    for one, other in zip(believing.predict(asked), anew.predict(asked), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert (believing.predict(asked)[1] <= few.predict(asked)[1] + 1e-6).all()
    assert believing.log_likelihood == pytest.approx(anew.log_likelihood)


def test_a_study_is_read_as_it_goes_on() -> None:
    space = small_space()
    sampler = SpaceSampler(space, 0)
    study = optuna.create_study(sampler=sampler)
    first, second = (study.ask({}) for _ in range(2))
    first.set_user_attr(ROW, 5)
    second.set_user_attr(ROW, 7)
    assert sampler._known(study) == Observations(pending=frozenset({5, 7}))
    assert sampler._known(study, leaving_out=second.number).pending == {5}
    study.tell(second, 2.0)
    assert sampler._known(study) == Observations(log_times={7: math.log(2.0)}, pending=frozenset({5}))
    study.tell(first, state=optuna.trial.TrialState.FAIL)
    assert sampler._known(study) == Observations(log_times={7: math.log(2.0)}, failed=frozenset({5}))
    assert sampler._known(optuna.create_study(sampler=sampler)) == Observations(), "another study"


def test_expected_improvement_prefers_the_better_and_the_less_known() -> None:
    gains = expected_improvement(np.array([1.0, 0.5, 1.0]), np.array([0.1, 0.1, 1.0]), best=0.8)
    assert gains[1] > gains[0]
    assert gains[2] > gains[0]
    assert (gains >= 0).all()


def test_neighbours_differ_in_one_parameter_or_in_two() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=16, n=16, k=16), LIMITS, algorithms=["naive", "dot"])
    everything = list(space)
    neighbours = Neighbours(space)
    for row in (0, len(space) // 2, len(space) - 1):
        mine = everything[row]
        alike = [r for r, other in enumerate(everything) if other.algorithm == mine.algorithm]
        changes = {r: sum(a != b for a, b in zip(mine.values, everything[r].values, strict=True)) for r in alike}
        assert sorted(neighbours.of(np.array([row]))) == [r for r in alike if changes[r] == 1]
        assert sorted(neighbours.within_two(row)) == [r for r in alike if changes[r] in (1, 2)]
    of_two = neighbours.of(np.array([0, len(space) - 1]))
    assert sorted(of_two) == sorted([*neighbours.of(np.array([0])), *neighbours.of(np.array([len(space) - 1]))])


def test_features_of_rows_and_of_configurations_agree() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS)
    features = Features(space)
    rows = np.arange(0, len(space), len(space) // 40)
    by_row = features.of(rows)
    np.testing.assert_allclose(by_row, features.of_configurations([space[int(r)] for r in rows]), atol=1e-6)
    assert by_row.shape[1] == features.count
    assert np.isfinite(by_row).all()


def test_what_fails_is_avoided_where_it_is_likely() -> None:
    """Half of the space fails by a rule nobody declared, the promising half; of the later proposals far fewer do."""
    space = small_space()
    explorer = Explorer(space, seed=0)
    times: dict[int, float] = {}
    failed: set[int] = set()
    proposed = []
    for _ in range(45):
        [row] = explorer.propose(Observations(log_times=times, failed=frozenset(failed)))
        proposed.append(row)
        if space[row].number("micro_tile_m") * space[row].number("micro_tile_n") > 16:
            failed.add(row)
        else:
            times = {**times, row: math.log(invented_time(space[row]))}
    assert len(failed & set(proposed[-20:])) <= 8


def test_a_space_where_nearly_everything_fails_is_still_explored() -> None:
    space = small_space()
    known = Observations(failed=frozenset(range(0, len(space), 3)), log_times={1: 1.0, 4: 1.5, 7: 0.5})
    [row] = Explorer(space).propose(known)
    assert row not in known.taken


def test_the_first_trials_are_spread_over_the_space() -> None:
    space = small_space()
    features = Features(space)

    def nearest(rows: Iterable[int]) -> float:
        """Mean distance of each from the one next to it."""
        points = features.of(np.array([*rows]))
        distances = np.linalg.norm(points[:, None, :] - points[None, :, :], axis=2)
        return float(np.sort(distances, axis=1)[:, 1].mean())

    drawn = [nearest(np.random.default_rng(seed).choice(len(space), 8, replace=False)) for seed in range(20)]
    proposed = [nearest(Explorer(space, seed).propose(Observations(), 8)) for seed in range(3)]
    assert min(proposed) > np.median(drawn)


def test_a_model_is_asked_after_few_trials_and_one_more_for_each_algorithm() -> None:
    """Until then the gain is unknown, unless so much was attempted that few must do."""
    one, four = small_space(), SearchSpace(FAMILY, GemmProblem(m=32, n=32, k=32), LIMITS, algorithms=ALGORITHMS)
    for space, trials in ((one, 3), (four, 6)):
        known = known_of(space, range(trials))
        fewer = Observations(log_times=dict(list(known.log_times.items())[:-1]))
        assert Explorer(space).expected_gain(fewer) == 1.0 > Explorer(space).expected_gain(known)
    failed = frozenset(range(100, 100 + Explorer.FIRST_ATTEMPTS))
    tried = Observations(log_times=known_of(four, range(3)).log_times, failed=failed)
    assert Explorer(four).expected_gain(tried) < 1.0


def test_what_was_cut_off_counts_as_at_least_that_slow() -> None:
    space = small_space()
    rows = np.random.default_rng(0).choice(len(space), 12, replace=False)
    known = known_of(space, rows[:10])
    worst = max(known.log_times.values())
    cut_off = Observations(log_times=known.log_times, at_least={int(row): worst + 1 for row in rows[10:]})
    free, bounded = Explorer(space, seed=0), Explorer(space, seed=0)
    free_mean = free.foretell(known, rows[10:])
    assert (bounded.foretell(cut_off, rows[10:]) > free_mean).all()
    assert set(bounded.propose(cut_off, 3)).isdisjoint(rows.tolist())


def test_a_batch_is_distinct_and_takes_account_of_itself() -> None:
    space = small_space()
    explorer = Explorer(space, seed=0)
    known = known_of(space, np.random.default_rng(0).choice(len(space), 15, replace=False))
    batch = explorer.propose(known, 16)
    assert len(set(batch)) == 16
    assert known.taken.isdisjoint(batch)
    again = explorer.propose(Observations(log_times=known.log_times, pending=frozenset(batch)))
    assert again[0] not in batch


def test_a_batch_ends_with_the_space() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=4, n=4, k=4), LIMITS, algorithms=["naive"])
    assert sorted(Explorer(space).propose(Observations(), len(space) + 9)) == list(range(len(space)))


def test_a_study_may_be_asked_ahead_of_its_results() -> None:
    space = small_space()
    study = optuna.create_study(sampler=SpaceSampler(space, 3))
    study.enqueue_trial(to_params(space, space[5]))
    running = []
    seen: list[Configuration] = []
    for _ in range(40):
        asked = study.ask()
        running.append((asked, suggest(asked, space)))
        seen.append(running[-1][1])
        if len(running) == 16:
            first, configuration = running.pop(0)
            first.set_user_attr(ROW, space.row_of(configuration))
            study.tell(first, invented_time(configuration))
    assert len(set(seen)) == 40


def test_a_trial_cut_off_is_told_as_such() -> None:
    space = small_space()
    sampler = SpaceSampler(space, 0)
    study = optuna.create_study(sampler=sampler)
    for number in range(14):
        asked = study.ask()
        configuration = suggest(asked, space)
        asked.set_user_attr(ROW, space.row_of(configuration))
        if number % 4 == 3:
            asked.set_user_attr(AT_LEAST, 9000.0)
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, invented_time(configuration))
    assert len({t.user_attrs[ROW] for t in study.trials}) == 14
    assert 0.0 <= sampler.expected_gain(study) < 1.0


def test_the_expected_gain_falls_as_more_is_known() -> None:
    space = small_space()
    explorer = Explorer(space, seed=1)
    assert explorer.expected_gain(Observations()) == 1.0
    rows = np.random.default_rng(1).permutation(len(space))
    early = Explorer(space, seed=1).expected_gain(known_of(space, rows[:12]))
    everything = known_of(space, range(len(space)))
    ranked = sorted(rows.tolist(), key=everything.log_times.__getitem__)
    late = Explorer(space, seed=1).expected_gain(known_of(space, [*ranked[:60], *rows[:120]]))
    assert 0.0 <= late < 0.5 * early < 1.0
    assert explorer.expected_gain(everything) == 0.0


def source_of(space: SearchSpace, sign: float) -> Prior:
    rows = np.random.default_rng(5).choice(len(space), 120, replace=False).tolist()
    configurations = tuple(space[row] for row in rows)
    times = tuple(sign * math.log(invented_time(configuration)) + 3.0 for configuration in configurations)
    return Prior(sources=(Source(name="elsewhere", configurations=configurations, log_times=times),))


def search_with(space: SearchSpace, prior: Prior | None, trials: int) -> list[float]:
    explorer = Explorer(space, 2, prior)
    known = Observations()
    for _ in range(trials):
        known = known_of(space, [*known.log_times, *explorer.propose(known)])
    return list(np.minimum.accumulate(list(known.log_times.values())))


def test_what_a_sibling_knows_is_used_and_what_misleads_is_dropped() -> None:
    space = small_space()
    best = min(math.log(invented_time(configuration)) for configuration in space)
    assert search_with(space, source_of(space, 1.0), 5)[-1] <= best + 0.1
    cold, misled = (search_with(space, prior, 40)[-1] for prior in (None, source_of(space, -1.0)))
    assert misled <= cold + 0.2


def test_a_source_of_other_parameters_is_left_out() -> None:
    space = small_space()
    other = Configuration.of("elsewhere", x=1)
    prior = Prior(sources=(Source(name="other", configurations=(other,) * 5, log_times=(1.0,) * 5),))
    assert len(Explorer(space, 0, prior).propose(Observations(), 3)) == 3
