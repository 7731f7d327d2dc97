"""The sampler proposes only what is valid and new, and gets better than chance."""

import copy
import math
import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.propose.acquisition import Observations, expected_improvement
from autotune.propose.explorer import Explorer, Neighbours
from autotune.propose.features import Features
from autotune.propose.gaussian import GaussianProcess, Hyperparameters, HyperPrior, fit
from autotune.propose.prior import Source
from autotune.propose.proposer import ListProposer, ModelProposer
from autotune.propose.study import RowStudy, distributions, to_params
from autotune.space.search_space import SearchSpace

ALGORITHMS = ("naive", "dot", "local_tile", "microtile")
LIMITS = DeviceLimits(has_images=True, max_image_width=8192, max_image_height=8192)


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


def asked_rows(proposer: ModelProposer, count: int) -> list[int]:
    """The rows of `count` proposals in a row; fewer if the space runs out."""
    rows = (proposer.ask() for _ in range(count))
    return [row for row in rows if row is not None]


def explore(space: SearchSpace, trials: int, seed: int, fails_from: int = 10**9) -> list[Configuration]:
    proposer = ModelProposer(space, seed)
    asked_for: list[Configuration] = []
    for number in range(trials):
        for row in asked_rows(proposer, 1):
            is_failed = number % fails_from == fails_from - 1
            proposer.tell(row, None if is_failed else invented_time(space[row]))
            asked_for.append(space[row])
    return asked_for


def test_proposals_are_valid_and_never_repeat() -> None:
    problem = GemmProblem(m=65, n=33, k=17)
    space = SearchSpace(FAMILY, problem, LIMITS)
    asked = explore(space, 40, seed=3, fails_from=4)
    assert len(set(asked)) == 40
    assert all(not FAMILY.violations(problem, c, LIMITS) for c in asked)


def test_a_small_space_is_explored_whole_and_then_exhausted() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=4, n=4, k=4), LIMITS, algorithms=["naive"])
    asked = explore(space, len(space) + 1, seed=0)
    assert len(asked) == len(space) and set(asked) == set(space)


def test_a_space_of_one_configuration_is_explored_too() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=1, n=1, k=1), LIMITS, algorithms=["row"])
    assert len(space) == 1
    explorer = Explorer(space)
    assert explorer.propose(Observations()) == 0
    assert explorer.propose(Observations(log_times={0: 1.0})) is None


@pytest.mark.long
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
        for name, value in to_params(space, row).items():
            assert everything[name]._contains(everything[name].to_internal_repr(value))


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


def test_enqueued_rows_come_first_and_results_replace_what_is_pending() -> None:
    proposer = ModelProposer(small_space())
    proposer.enqueue([5, 7])
    assert proposer.known.pending == {5, 7}
    assert asked_rows(proposer, 2) == [5, 7]
    assert proposer.known == Observations(pending=frozenset({5, 7}))
    proposer.tell(7, 2.0)
    assert proposer.known == Observations(log_times={7: math.log(2.0)}, pending=frozenset({5}))
    proposer.tell(5)
    assert proposer.known == Observations(log_times={7: math.log(2.0)}, failed=frozenset({5}))
    proposer.tell(7, 3.0)
    proposer.tell(7)
    proposer.tell(9, at_least_ns=4.0)
    expected = Observations(log_times={7: math.log(2.0)}, failed=frozenset({5}), at_least={9: math.log(4.0)})
    assert proposer.known == expected, "a row that ran correctly keeps its shortest time"


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


def test_features_tell_which_power_of_two_divides_a_value() -> None:
    """A size of 48 is more like 16 than like 40 where the hardware works in sixteens."""
    overrides: dict[str, tuple[Value, ...]] = {"work_group_m": (1, 2, 3, 4, 5, 6, 8, 12), "b_storage": ("buffer",)}
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), LIMITS, algorithms=["microtile"], overrides=overrides)
    rows = np.arange(0, len(space), max(1, len(space) // 200))
    values = np.array([space[int(row)].number("work_group_m") for row in rows])
    assert len(set(values)) > 5
    twos = np.log2(values & -values)
    alike = [np.corrcoef(column, twos)[0, 1] for column in Features(space).of(rows).T if column.std() > 0]
    assert max(alike) == pytest.approx(1.0, abs=1e-4)


def test_what_fails_is_avoided_where_it_is_likely() -> None:
    """Half of the space fails by a rule nobody declared, the promising half; of the later proposals far fewer do."""
    space = small_space()
    explorer = Explorer(space, seed=0)
    times: dict[int, float] = {}
    failed: set[int] = set()
    proposed = []
    for _ in range(45):
        row = explorer.propose(Observations(log_times=times, failed=frozenset(failed)))
        assert row is not None
        proposed.append(row)
        if space[row].number("micro_tile_m") * space[row].number("micro_tile_n") > 16:
            failed.add(row)
        else:
            times = {**times, row: math.log(invented_time(space[row]))}
    assert len(failed & set(proposed[-20:])) <= 8


def test_a_space_where_nearly_everything_fails_is_still_explored() -> None:
    space = small_space()
    known = Observations(failed=frozenset(range(0, len(space), 3)), log_times={1: 1.0, 4: 1.5, 7: 0.5})
    row = Explorer(space).propose(known)
    assert row is not None and row not in known.taken


def test_the_first_trials_are_spread_over_the_space() -> None:
    space = small_space()
    features = Features(space)

    def nearest(rows: Iterable[int]) -> float:
        """Mean distance of each from the one next to it."""
        points = features.of(np.array([*rows]))
        distances = np.linalg.norm(points[:, None, :] - points[None, :, :], axis=2)
        return float(np.sort(distances, axis=1)[:, 1].mean())

    drawn = [nearest(np.random.default_rng(seed).choice(len(space), 8, replace=False)) for seed in range(20)]
    proposed = [nearest(asked_rows(ModelProposer(space, seed), 8)) for seed in range(20)]
    assert np.mean(proposed) > 1.05 * np.mean(drawn)


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
    points = Features(space).of(rows[10:])
    [unbounded_expert], [bounded_expert] = free._believe(known).experts, bounded._believe(cut_off).experts
    assert (bounded_expert.predict(rows[10:], points)[0] > unbounded_expert.predict(rows[10:], points)[0]).all()
    assert bounded.propose(cut_off) not in rows.tolist()


def test_what_is_proposed_ahead_of_the_results_is_distinct_and_takes_account_of_itself() -> None:
    space = small_space()
    known = known_of(space, np.random.default_rng(0).choice(len(space), 15, replace=False))
    proposer = ModelProposer(space)
    for row, log_time in known.log_times.items():
        proposer.tell(row, math.exp(log_time))
    batch = asked_rows(proposer, 16)
    assert len(set(batch)) == 16
    assert known.taken.isdisjoint(batch)
    again = Explorer(space).propose(Observations(log_times=known.log_times, pending=frozenset(batch)))
    assert again is not None and again not in batch


def test_proposals_ahead_of_the_results_end_with_the_space() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=4, n=4, k=4), LIMITS, algorithms=["naive"])
    assert sorted(asked_rows(ModelProposer(space), len(space) + 9)) == list(range(len(space)))


def test_results_may_stay_behind_the_proposals() -> None:
    space = small_space()
    proposer = ModelProposer(space, 3)
    proposer.enqueue([5])
    running: list[int] = []
    seen: list[int] = []
    for _ in range(40):
        running += asked_rows(proposer, 1)
        seen.append(running[-1])
        if len(running) == 16:
            first = running.pop(0)
            proposer.tell(first, invented_time(space[first]))
    assert len(set(seen)) == 40


def test_trials_that_were_cut_off_are_neither_failed_nor_proposed_again() -> None:
    space = small_space()
    proposer = ModelProposer(space, 0)
    before = proposer.expected_gain
    rows = []
    for number in range(14):
        rows += asked_rows(proposer, 1)
        if number % 4 == 3:
            proposer.tell(rows[-1], at_least_ns=9000.0)
        else:
            proposer.tell(rows[-1], invented_time(space[rows[-1]]))
    assert len(set(rows)) == 14
    assert proposer.known.at_least.keys() == set(rows[3::4]) and not proposer.known.failed
    after = proposer.expected_gain
    assert before is None and after is not None and 0.0 <= after < 1.0


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


def source_of(space: SearchSpace, sign: float) -> Source:
    rows = np.random.default_rng(5).choice(len(space), 120, replace=False).tolist()
    configurations = tuple(space[row] for row in rows)
    times = tuple(sign * math.log(invented_time(configuration)) + 3.0 for configuration in configurations)
    return Source(name="elsewhere", configurations=configurations, log_times=times)


def search_with(space: SearchSpace, sources: Sequence[Source], trials: int) -> list[float]:
    explorer = Explorer(space, 2, sources)
    known = Observations()
    for _ in range(trials):
        row = explorer.propose(known)
        assert row is not None
        known = known_of(space, [*known.log_times, row])
    return list(np.minimum.accumulate(list(known.log_times.values())))


def test_what_a_sibling_knows_is_used_and_what_misleads_is_dropped() -> None:
    space = small_space()
    best = min(math.log(invented_time(configuration)) for configuration in space)
    assert search_with(space, [source_of(space, 1.0)], 5)[-1] <= best + 0.1
    cold, misled = (search_with(space, sources, 40)[-1] for sources in ([], [source_of(space, -1.0)]))
    assert misled <= cold + 0.2


def test_the_first_trials_are_what_a_source_found_fast() -> None:
    space = small_space()
    log_times = sorted(math.log(invented_time(configuration)) for configuration in space)
    fastest = log_times[len(space) // 100]
    found = search_with(space, [source_of(space, 1.0)], 1)
    assert found[0] <= fastest


def test_a_source_of_other_parameters_is_left_out() -> None:
    space = small_space()
    in_words = Configuration.of("microtile", **{**dict(space[0].values), "unroll": "off"})
    for other in (Configuration.of("elsewhere", x=1), in_words):
        source = Source(name="other", configurations=(other,) * 5, log_times=(1.0,) * 5)
        assert asked_rows(ModelProposer(space, 0, [source]), 3) == asked_rows(ModelProposer(space, 0), 3)


def test_every_search_is_an_optuna_study_of_rows() -> None:
    study = RowStudy(ListProposer([3, 1]), 10)
    study.enqueue([7])
    assert [study.ask(), study.ask(), study.ask(), study.ask()] == [7, 3, 1, None]
    study.tell(3, 5.0)
    study.tell(1)
    study.tell(8, 2.0)  # was not proposed
    found = [(trial.params["row"], trial.state.name, trial.value) for trial in study._study.trials if trial.params]
    assert found == [(7, "RUNNING", None), (3, "COMPLETE", 5.0), (1, "FAIL", None), (8, "COMPLETE", 2.0)]


def test_a_study_of_one_row_ends_too() -> None:
    study = RowStudy(ListProposer([0]), 1)
    assert study.ask() == 0
    study.tell(0, 5.0)
    assert study.ask() is None
