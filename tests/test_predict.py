"""Predictors: chosen from trials, kept as plain data, read back as hostile input, used between exact and nearest."""

import itertools
import json
import math
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import factories
from autotune import search
from autotune.cli import main
from autotune.cli.lookup import open_table
from autotune.codec import Node as Document
from autotune.device import discovery
from autotune.errors import TableError
from autotune.export import export_table
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup import Entry, Match, TuningTable
from autotune.lookup.json_table import read_contents
from autotune.lookup.legality import _OFTEN, Check, Legality
from autotune.lookup.predictor import Cost, Costs, Predictor, agrees
from autotune.lookup.values import plain_predictor, read_predictors
from autotune.measure import worker as worker_module
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.events import Outcome
from autotune.model.problem import Problem
from autotune.model.trial import Job, Request, Trial, TrialState, Winner
from autotune.paths import data_folder
from autotune.predict import (
    add_predictors,
    all_predictors,
    keep_predictors,
    make_predictors,
    note_measured,
    refresh_predictors,
    selection,
)
from autotune.predict.costs import Work, amounts, bare_cost, effects, fit_costs, fit_prices, weigh
from autotune.predict.observations import Observed, observe
from autotune.predict.regret import choose_held_out, measure_regret, summarise
from autotune.predict.selection import cover, favoured, fit, reach
from autotune.search import Budget
from autotune.search.task import Task
from autotune.store import Store
from autotune.testing import FakeWorker
from factories import evaluation, even, naive, product, provenance, trial
from waiting import in_threads

GPU = factories.device(
    limits=DeviceLimits(compute_units=16, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64))
)
PROVENANCE = provenance(driver="")
SMALL, LARGE, ROWS = (
    Configuration.of("naive", work_group_m=0, work_group_n=0),
    Configuration.of("naive", work_group_m=16, work_group_n=16),
    Configuration.of("naive", work_group_m=1, work_group_n=64),
)
SIZES = [(m, n, 64) for m in (1, 4, 16, 64, 256, 1024) for n in (16, 128, 1024)]


def time_ns(problem: GemmProblem, configuration: Configuration) -> float:
    """Small results want SMALL, few long rows ROWS, others LARGE: a round takes longer the more outputs a tile has."""
    if configuration not in (SMALL, LARGE, ROWS):
        return 2 * best_ns(problem)
    work = Work(configuration, GemmProblem.size_axes, GPU.limits)
    rounds = bare_cost(work).amounts(problem.size_vector, problem.bytes_moved, GPU.limits.compute_units)[3]
    return 100.0 + rounds * (100.0 + math.prod(work.sides))


def best_ns(problem: GemmProblem) -> float:
    """The time of the best of the three that are valid."""
    valid = (c for c in (SMALL, LARGE, ROWS) if not FAMILY.violations(problem, c, GPU.limits))
    return min(time_ns(problem, c) for c in valid)


def winner(problem: GemmProblem, configuration: Configuration, time: float) -> Winner:
    return factories.winner(
        GPU, problem, configuration, time, default_ns=time_ns(problem, SMALL), gain_low=0.9, provenance=PROVENANCE
    )


def fill(store: Store, sizes: list[tuple[int, int, int]] = SIZES) -> None:
    store.add_device(GPU)
    for size in sizes:
        problem = product(*size)
        times = {c: time_ns(problem, c) for c in (SMALL, LARGE, ROWS) if not FAMILY.violations(problem, c, GPU.limits)}
        for configuration, time in times.items():
            store.add_trial(GPU, problem, trial(configuration, time), PROVENANCE)
        best = min(times, key=times.__getitem__)
        store.record_winner(winner(problem, best, times[best]))


@pytest.fixture
def store(store: Store) -> Store:
    fill(store)
    return store


def observed_in(store: Store) -> Observed:
    [observed] = observe(GPU, "gemm", store.trials(GPU.slug, "gemm"), store.best(GPU.slug, "gemm"))
    return observed


def test_the_default_of_today_counts_where_it_was_measured(store: Store) -> None:
    """Winners tell what the default was when they were found, which a later version may choose otherwise."""
    [problem] = [p for p in (product(*size) for size in SIZES) if (p.m, p.n) == (64, 128)]
    today = Task(GPU, problem).default
    assert today not in (SMALL, LARGE, ROWS)

    def loss() -> float:
        observed = observed_in(store)
        return float(observed.default_losses[observed.problems.index(problem)])

    best = best_ns(problem)
    assert loss() == pytest.approx(math.log(time_ns(problem, SMALL) / best))
    store.add_trial(GPU, problem, trial(today, 1.25 * best), PROVENANCE)
    assert loss() == pytest.approx(math.log(1.25))


EVALUATION = evaluation()


def ranks(count: int) -> Costs:
    """Costs that rank so many configurations in their own order, whatever the size."""
    known: Any = {"tile": (1, 1, 0, 1), "split": 1, "step": 1, "at_once": 1}
    return Costs(terms=tuple(Cost(**known, weights=(float(place), 0, 0, 0, 0, 0)) for place in range(count)))


def predictor(model: Any = None, **changes: Any) -> Predictor:
    made = Predictor(
        example=product(64, 64, 64), sizes=9, configurations=(LARGE, SMALL, ROWS), model=model or ranks(3),
        favours="predicted", expected=EVALUATION,
    )  # fmt: skip
    return replace(made, **changes)


# What is made of trials


def test_a_predictor_finds_what_suits_sizes_it_never_saw(store: Store) -> None:
    (made,) = make_predictors(store, GPU, "gemm")
    assert made.favours == "predicted"
    assert set(made.configurations) == {SMALL, LARGE, ROWS}
    assert made.sizes == len(SIZES)
    table = TuningTable([GPU], [], predictors={GPU.slug: [made]})
    found = {size: table.find(GPU.slug, product(*size)) for size in ((2, 700, 64), (8, 24, 64), (700, 900, 64))}
    assert {size: answer.configuration for size, answer in found.items()} == {
        (2, 700, 64): ROWS, (8, 24, 64): SMALL, (700, 900, 64): LARGE,
    }  # fmt: skip
    assert {answer.match for answer in found.values()} == {Match.PREDICTED}


def test_costs_tell_apart_what_is_plain_to_see(store: Store) -> None:
    observed = observed_in(store)
    model = fit_costs(observed.works, observed.prices(np.arange(len(observed.problems))))
    assert model is not None
    hits = 0
    for problem in observed.problems:
        assert isinstance(problem, GemmProblem)
        ranked = [observed.candidates[row] for row in model.ranking(problem, GPU.limits.compute_units)]
        first = next(c for c in ranked if not FAMILY.violations(problem, c, GPU.limits))
        hits += time_ns(problem, first) == best_ns(problem)
    assert hits >= 0.9 * len(observed.problems)


def test_too_few_sizes_give_no_predictor(tmp_path: Path) -> None:
    with Store.open(tmp_path / "few.sqlite") as few:
        fill(few, SIZES[:4])
        assert make_predictors(few, GPU, "gemm") == []
        assert make_predictors(few, GPU, "reduce") == []


def test_kinds_of_problems_are_predicted_apart(store: Store) -> None:
    for size in SIZES[:6]:
        store.record_winner(winner(product(*size, trans_b=1), SMALL, 1e6))
    made = make_predictors(store, GPU, "gemm")
    assert sorted((p.example.to_dict()["trans_b"], p.sizes) for p in made) == [(0, len(SIZES)), (1, 6)]


def test_leaving_out_tells_what_nearest_and_default_would_lose(store: Store) -> None:
    (made,) = make_predictors(store, GPU, "gemm")
    losses = [math.log(max(1.0, time_ns(w.problem, SMALL) / w.time_ns)) for w in store.best(GPU.slug, "gemm")]  # type: ignore[arg-type]
    assert made.expected.default.mean == pytest.approx(math.exp(-sum(losses) / len(losses)), abs=1e-3)
    assert made.expected.predicted.mean >= made.expected.nearest.mean > made.expected.default.mean


def test_what_was_wrong_once_is_no_candidate(store: Store) -> None:
    for size in SIZES:
        wrong = Trial(configuration=LARGE, state=TrialState.WRONG_RESULT)
        store.add_trial(GPU, product(*size), wrong, PROVENANCE)
    winners = [w for w in store.best(GPU.slug, "gemm") if w.configuration != LARGE]
    (observed,) = observe(GPU, "gemm", store.trials(GPU.slug, "gemm"), winners)
    assert set(observed.candidates) == {SMALL, ROWS}


def test_estimates_follow_the_same_configuration_at_near_sizes(store: Store) -> None:
    observed = observed_in(store)
    row, column = observed.candidates.index(ROWS), observed.problems.index(product(1, 1024, 64))
    gone = replace(observed, losses=observed.losses.copy())
    gone.losses[row, column] = np.nan
    everything = np.arange(len(gone.problems))
    completed = gone.completed(everything, gone.prices(everything))
    near, far = completed[[row, observed.candidates.index(SMALL)], column]
    assert near < 0.1 < far


def test_an_algorithm_is_expected_of_no_size_at_which_it_was_never_tried(tmp_path: Path) -> None:
    """`dot` was tried, and best, where n is 1; what it costs there makes it seem the best everywhere."""
    dot = Configuration.of("dot", **dict(ROWS.values))
    with Store.open(tmp_path / "two.sqlite") as store:
        for m in (64, 256, 1024, 4096):
            for n, configuration in ((1, dot), (m, SMALL)):
                problem = product(m, n, 256)
                store.add_trial(GPU, problem, trial(configuration, m * n / 10), PROVENANCE)
                store.record_winner(winner(problem, configuration, m * n / 10))
        observed = observed_in(store)
    everything = np.arange(len(observed.problems))
    completed = observed.completed(everything, observed.prices(everything))
    for column, of in enumerate(observed.problems):
        best = observed.candidates[int(np.argmin(completed[:, column]))]
        assert best.algorithm == ("dot" if of.to_dict()["n"] == 1 else SMALL.algorithm)


def test_a_cover_takes_what_serves_most_and_stops_when_nothing_is_gained() -> None:
    losses = np.array([[0.0, 0.0, 0.9, 0.9], [0.4, 0.4, 0.4, 0.4], [0.9, 0.9, 0.0, 0.0], [0.1, 0.9, 0.1, 0.9]])
    assert cover(losses, 4) == [1, 0, 2]
    assert cover(losses, 1) == [1]


def test_what_is_reached() -> None:
    told = reach(np.log([1.0, 1.0, 2.0, 4.0]))
    assert told.mean == pytest.approx(2**-0.75, abs=1e-4)
    assert (told.median, told.worst) == (0.75, 0.25)


def test_the_default_is_favoured_unless_it_is_beaten() -> None:
    def favours(*reached: float) -> str:
        return favoured(evaluation(*reached))

    assert favours(0.9, 0.9, 0.9) == favours(0.9, 0.8, 0.899) == "default"
    assert favours(0.9, 0.9, 0.8) == favours(0.9, 0.901, 0.8) == "predicted"
    assert favours(0.8, 0.9, 0.7) == "nearest"


def test_sizes_and_tiles_are_told_from_names() -> None:
    assert GemmProblem.size_axes == ("m", "n", "k", "batch")
    assert ReduceProblem.size_axes == ("batch", "channels")
    work = Work(
        Configuration.of("row", micro_tile_m=2, micro_tile_n=4, work_group_n=8, work_group_k=4, split_k=16, unroll=2),
        GemmProblem.size_axes,
        GPU.limits,
    )
    assert (work.tile, work.split, work.step, work.items) == ((2, 32, 0, 1), 16, 8, 32)
    # 5 x 2 tiles for each of 3 matrices, each shared by 16: 480 groups, in 120 rounds on 4 units, 8 waves of 16
    cost = Cost(tile=work.tile, split=16, step=8, at_once=16, weights=(0.0,) * 6)
    assert cost.amounts((9, 40, 300, 3), 77, 4) == (1, 77, 9 * 40 * 3, 120, 120 * 24, 8 * 24)
    tree = Configuration.of("local_tree", work_group_size=64, rows_per_group=4)
    rows = Work(tree, ReduceProblem.size_axes, GPU.limits)
    assert (rows.tile, rows.items, rows.along_depth) == ((4, 0), 64, 16)


def _drawn_tiles(draw: random.Random, count: int) -> list[Configuration]:
    tile = FAMILY.algorithm("local_tile")
    drawn = ({p.name: draw.choice(p.values) for p in tile.parameters} for _ in range(count))
    return [Configuration.of("local_tile", **values) for values in drawn]


def test_prices_are_found_again_in_the_times_they_made() -> None:
    draw = random.Random(1)
    problems = [product(*(draw.randrange(1, 3000) for _ in "mnk")) for _ in range(12)]
    works = [Work(c, GemmProblem.size_axes, GPU.limits) for c in _drawn_tiles(draw, 40)]
    true = np.zeros(len(effects(works[0])))
    true[[0, 1, 5, 13, 15]] = (4000.0, 3e-4, 2e-3, 90.0, 5000.0)
    rows = np.vstack([amounts(work, problems, 132) for work in works])
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.02, len(rows)))
    spoilt = np.where(np.arange(len(rows)) % 10, 1.0, 4.0)  # as of kernels that spill: they must not count
    found = fit_prices(rows, rows @ true * noise * spoilt)
    assert (found >= 0).all()
    errors = np.log(rows @ found / (rows @ true))
    assert abs(np.median(errors)) < 0.02 and np.quantile(np.abs(errors), 0.9) < 0.04
    # One configuration's weights say the same as its effects and their prices.
    for work in works[:5]:
        weights = weigh(work, found)
        cost = Cost(tile=work.tile, split=work.split, step=work.step, at_once=work.at_once, weights=weights)
        told = [np.dot(weights, cost.amounts(p.size_vector, p.bytes_moved, 132)) for p in problems]
        assert told == pytest.approx(amounts(work, problems, 132) @ found, rel=1e-4)


def test_a_sum_of_costs_is_what_its_terms_say() -> None:
    draw = random.Random(2)
    works = [Work(c, GemmProblem.size_axes, GPU.limits) for c in _drawn_tiles(draw, 9)]
    terms = tuple(
        Cost(
            tile=work.tile, split=work.split, step=work.step, at_once=work.at_once,
            weights=tuple(draw.uniform(0, 1) for _ in range(6)),
        )
        for work in works
    )  # fmt: skip
    for _ in range(50):
        problem = product(*(draw.randrange(1, 5000) for _ in "mnk"), batch=draw.randrange(1, 9))
        told = [np.dot(t.weights, t.amounts(problem.size_vector, problem.bytes_moved, 7)) for t in terms]
        assert Costs(terms=terms).times_ns(problem, 7) == pytest.approx(told)
        assert list(Costs(terms=terms).ranking(problem, 7)) == sorted(range(9), key=told.__getitem__)


def test_models_evaluate_as_written() -> None:
    # On one unit small tiles need 16 times the rounds, of a quarter of the time each; on many the large wait.
    small, large = (
        Cost(tile=(tile, tile, 0, 1), split=1, step=8, at_once=1, weights=(0.0, 0.0, 0.0, 0.0, weight, 0.0))
        for tile, weight in ((16, 1.0), (64, 4.0))
    )
    costs = Costs(terms=(small, large))
    assert list(costs.ranking(product(64, 64, 64), 16)) == [0, 1]
    assert list(costs.ranking(product(64, 64, 64), 1)) == [1, 0]


def test_of_many_sizes_some_are_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_LEFT_OUT", 7)
    (made,) = make_predictors(store, GPU, "gemm")
    assert (made.expected.sizes, made.sizes) == (7, len(SIZES))


# What the lookup makes of it


def table(*predictors: Predictor, entries: tuple[tuple[GemmProblem, Configuration], ...] = ()) -> TuningTable:
    found = [(GPU.slug, Entry(problem=p, configuration=c, time_ns=1000.0)) for p, c in entries]
    return TuningTable([GPU], found, predictors={GPU.slug: predictors})


def test_what_was_measured_comes_before_what_is_predicted() -> None:
    known = table(predictor(), entries=((product(64, 64, 64), SMALL),))
    assert known.find(GPU.slug, m=64, n=64, k=64).match is Match.EXACT
    found = known.find(GPU.slug, m=64, n=64, k=65)
    assert (found.match, found.configuration, found.source_problem) == (Match.PREDICTED, LARGE, None)
    assert found.expected_loss == pytest.approx(0.04)
    assert found.because == "predicted by a sum of costs over 3 configurations that cover 9 measured sizes"


def test_what_costs_cannot_express_gets_no_predictor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a family of the user's own whose work-groups share out four of six sizes, or now some and now others."""
    axes = ("p", "q", "r", "s", "t", "u")
    four, two = (
        Work(Configuration.of("own", **{f"work_group_{axis}": 8 for axis in shared}), axes, GPU.limits)
        for shared in ("pqrs", "pq")
    )
    prices = {"own": np.ones(len(effects(two)))}
    assert fit_costs([four], prices) is None and fit_costs([two, four], prices) is None
    assert fit_costs([two], prices) is not None
    monkeypatch.setattr(selection, "fit_costs", lambda *_: None)
    assert make_predictors(store, GPU, "gemm") == []


TILE = Task(GPU, product(64, 64, 64)).default
CONTRADICTED = tuple((product(64, 64, k), TILE) for k in (32, 64, 128, 256))
"""Measured winners that are none of what `predictor` chooses."""


def test_a_predictor_that_contradicts_its_table_is_not_asked() -> None:
    assert TILE.algorithm != SMALL.algorithm
    known = table(predictor(), entries=CONTRADICTED)
    found = known.find(GPU.slug, m=640, n=640, k=64)
    assert found.match is Match.DEFAULT
    assert known.find(GPU.slug, m=64, n=64, k=65).match is Match.NEAREST
    assert known.predictor(GPU.slug, product(640, 640, 64)) is None
    half = ((product(64, 64, 65), LARGE), (product(64, 64, 66), LARGE), (product(64, 64, 67), LARGE))
    assert (
        table(predictor(), entries=(*CONTRADICTED[:3], *half)).find(GPU.slug, m=640, n=640, k=64).configuration == LARGE
    )
    assert table(predictor(), entries=CONTRADICTED[:2]).find(GPU.slug, m=640, n=640, k=64).match is Match.PREDICTED
    declining = replace(predictor(), favours="default")  # what it would choose does not matter
    assert table(declining, entries=CONTRADICTED).predictor(GPU.slug, product(640, 640, 64)) == declining


def test_a_predictor_that_contradicts_its_table_is_not_taken_over(
    tmp_path: Path, empty_database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(shutil.copy(empty_database, tmp_path / "other.sqlite")) as store:
        store.add_device(GPU)
        for problem, configuration in CONTRADICTED:
            store.record_winner(winner(problem, configuration, 1000.0))
        add_predictors(store, {GPU.slug: [predictor()]})
        assert all_predictors(store) == {} and "contradicts the measured winners" in caplog.text
        keep_predictors(store, GPU.slug, [predictor()])  # as an earlier version kept it
        header = export_table(store, GPU.slug, "gemm", "c")
        assert "AUTOTUNE_PREDICTED;" not in str(header)
        assert json.loads(export_table(store, GPU.slug, "gemm", "json"))["devices"][0].get("predictors", []) == []


def test_a_predictor_carried_away_by_estimates_is_not_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_predictors(store, GPU, "gemm")[0].favours == "predicted"
    calls = itertools.count(1)

    def fit_wrong(works: Sequence[Work], prices: Any) -> Costs | None:
        """Right where a size is left out; from all of them, the slowest configuration for each."""
        good = fit_costs(works, prices)
        if good is None or next(calls) <= len(SIZES):
            return good
        return Costs(terms=tuple(replace(t, weights=tuple(-weight for weight in t.weights)) for t in good.terms))

    monkeypatch.setattr(selection, "fit_costs", fit_wrong)
    assert make_predictors(store, GPU, "gemm")[0].favours != "predicted"


def test_every_published_predictor_agrees_with_its_table() -> None:
    for path in sorted((data_folder("db") / "tables").glob("*.json")):
        contents = read_contents(path)
        for device in contents.devices:
            for one in contents.predictors[device.slug]:
                family = find_family(one.example.family)
                winners = [w for w in contents.winners if w.problem.family == family.name and w.device == device.slug]
                assert agrees(replace(one, favours="predicted"), family, device.limits, winners), (path, one.because)


def test_a_prediction_that_is_not_valid_is_passed_over() -> None:
    known = table(predictor(configurations=(LARGE, ROWS, SMALL)), entries=((product(64, 64, 64), LARGE),))
    assert known.find(GPU.slug, m=16, n=64, k=64).configuration == LARGE
    assert known.find(GPU.slug, m=15, n=64, k=64).configuration == ROWS
    assert known.find(GPU.slug, m=15, n=63, k=64).configuration == SMALL
    hopeless = table(predictor(configurations=(LARGE,), model=ranks(1)), entries=((product(1, 1, 2), SMALL),))
    found = hopeless.find(GPU.slug, m=1, n=1, k=3)
    assert (found.match, found.configuration) == (Match.NEAREST, SMALL)
    assert "none of the 1 predicted configuration is valid" in found.because
    assert found.expected_loss == pytest.approx(0.1)


def test_the_limits_of_the_device_at_hand_hold() -> None:
    small = replace(GPU, limits=DeviceLimits(max_work_group_size=32))
    assert table(predictor()).find(GPU, m=999, n=999, k=9).configuration == LARGE
    assert table(predictor()).find(small, m=999, n=999, k=9).configuration == SMALL


@pytest.mark.parametrize(("favours", "match"), [("nearest", Match.NEAREST), ("default", Match.DEFAULT)])
def test_where_prediction_did_worse_it_is_left_out(favours: str, match: Match) -> None:
    found = table(predictor(favours=favours), entries=((product(64, 64, 64), ROWS),)).find(GPU.slug, m=99, n=99, k=9)
    assert found.match is match
    assert found.expected_loss == pytest.approx(1 - getattr(EVALUATION, favours).mean)


def test_where_a_size_is_one_the_default_may_answer() -> None:
    known = table(predictor(left_to_default=(0, 2)), entries=((product(64, 64, 64), ROWS),))
    assert known.find(GPU.slug, m=99, n=1, k=9).match is Match.PREDICTED
    for one in (product(1, 99, 9), product(99, 99, 1)):
        found = known.find(GPU.slug, one)
        assert found.match is Match.DEFAULT
        assert found.expected_loss == pytest.approx(0.5)
    assert read_predictors(
        Document(json.loads(json.dumps([plain_predictor(predictor(left_to_default=(0, 2)))])), "")
    ) == [predictor(left_to_default=(0, 2))]


def test_rows_are_left_to_the_default_where_it_did_better_or_nobody_measured(tmp_path: Path) -> None:
    with Store.open(tmp_path / "rows.sqlite") as opened:
        fill(opened)
        (made,) = make_predictors(opened, GPU, "gemm")
        assert made.left_to_default == (1, 2), "no single column and no k of 1 was measured, single rows were"
        for m, n, k in SIZES:
            if m == 1:
                better = replace(winner(product(m, n, k), ROWS, 1000.0), default_ns=1000.0)
                opened.record_winner(better)
        (made,) = make_predictors(opened, GPU, "gemm")
        assert made.left_to_default == (0, 1, 2)


def test_what_was_measured_of_a_predictor_counts_more_than_what_is_expected() -> None:
    measured = predictor(measured=replace(EVALUATION, predicted=even(0.99)))
    assert table(measured).find(GPU.slug, m=9, n=9, k=9).expected_loss == pytest.approx(0.01)


def test_legality_agrees_with_the_family() -> None:
    draw = random.Random(0)
    legality = Legality(FAMILY, GPU.limits)
    problems = [product(*size) for size in SIZES] + [product(37, 50, 129, trans_a=1, mode="int8", batch=2)]
    verdicts = set()
    for _ in range(300):
        algorithm = draw.choice(FAMILY.algorithms)
        values = {p.name: draw.choice(p.values) for p in algorithm.parameters}
        configuration = Configuration.of(algorithm.name, **values)
        for problem in draw.sample(problems, 3):
            expected = FAMILY.violations(problem, configuration, GPU.limits)
            told = legality.violation(configuration, problem.constraint_values())
            assert bool(told) == bool(expected)
            assert not told or told in expected
            verdicts.add(bool(told))
    assert verdicts == {True, False}
    for odd in (Configuration.of("of_tomorrow"), Configuration.of("naive", work_group_m=3, work_group_n=0)):
        assert legality.violation(odd, problems[0].constraint_values())


def test_a_check_answers_whatever_another_thread_asks_it_meanwhile() -> None:
    values = product(64, 64, 64).constraint_values()
    begun = []

    def stop_at(instruction: int, check: Check) -> Callable[[Any, str, Any], Any]:
        """Return a tracer that has another thread ask often before an instruction of `Check.is_valid`."""
        left = [instruction]

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code is not Check.is_valid.__code__:
                return None
            frame.f_trace_opcodes = True
            left[0] -= event == "opcode"
            if left[0] == 0 and event == "opcode":
                begun.append(instruction)
                in_threads(lambda: [check.is_valid(values) for _ in range(_OFTEN)])
            return trace

        return trace

    former = sys.gettrace()
    for instruction in range(1, 100):
        check = Legality(FAMILY, GPU.limits).check(naive(4, 4), values)
        sys.settrace(stop_at(instruction, check))
        try:
            assert check.is_valid(values)
        finally:
            sys.settrace(former)
    assert len(begun) > 20


# As text


def test_a_predictor_comes_back_as_it_was_written() -> None:
    term = Cost(tile=(16, 4, 0, 1), split=2, step=8, at_once=4, weights=(1.0, 2.0, 0, 0.5, 0.1, 9.0))
    written = predictor(Costs(terms=(term,) * 3), measured=EVALUATION)
    assert read_predictors(Document(json.loads(json.dumps([plain_predictor(written)])), "")) == [written]


def hostile(path: str, value: Any) -> Any:
    """A predictor's data with something else at a path; the model may be replaced too."""
    data = json.loads(json.dumps(plain_predictor(predictor())))
    place: Any = data
    *way, last = path.split(".")
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return [data]


COST = {"tile": [1, 1, 0, 1], "split": 1, "step": 8, "at_once": 1, "weights": [0] * 6}
HOSTILE = {
    "no such family": ("family", "of_tomorrow", "no kernel family"),
    "no such parameter": ("configurations.0", {"algorithm": "naive", "x": 1}, "naive has no parameter 'x'"),
    "a value that is none": ("configurations.0.work_group_m", 3, "work_group_m=3 is not among"),
    "no configuration": ("configurations", [], "configurations: needs at least one item"),
    "too many configurations": ("configurations", [{}] * 33, "more than 32 items"),
    "no size": ("example.m", 0, "m must be at least 1"),
    "favours": ("favours", "luck", "must be one of"),
    "no model": ("model", {"kind": "oracle"}, "unknown member 'kind'"),
    "nan": ("model.terms.0.weights.0", math.nan, "weights[0]: must be from -1e+15 to 1e+15"),
    "axes": ("model.terms.0.tile", [1], "tile: needs 4 items"),
    "split": ("model.terms.0.split", 0, "split: must be from 1"),
    "costs": ("model.terms", [COST] * 2, "terms: needs 3 items"),
    "weights": ("model.terms.0.weights", [0] * 7, "weights: needs 6 items"),
    "step of zero": ("model.terms.0.step", 0, "step: must be from 1"),
    "cost": ("model.terms.0.weights", [1e16] * 6, "weights"),
    "shared sizes": ("model.terms", [COST, COST, {**COST, "tile": [1, 0, 1, 1]}], "terms[2]: all must share"),
    "all sizes shared": ("model.terms", [{**COST, "tile": [1] * 4}] * 3, "at most 3"),
    "axis": ("left_to_default", [4], "must be from 0 to 3"),
    "reach": ("expected.predicted.mean", -1, "mean: must be above 0"),
    "unknown member": ("surprise", 1, "unknown member"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_predictor_may_not_hold_is_refused_with_its_path(name: str) -> None:
    path, value, message = HOSTILE[name]
    with pytest.raises(TableError) as caught:
        read_predictors(Document(hostile(path, value), "predictors"))
    assert message in caught.value.message
    assert caught.value.message.startswith("predictors[0]")


def test_two_of_one_kind_are_refused() -> None:
    with pytest.raises(TableError, match="stands twice"):
        read_predictors(Document(json.loads(json.dumps([plain_predictor(predictor())] * 2)), "predictors"))


# In the database


def test_predictors_lie_in_the_database_and_are_found_by_lookups(place: str) -> None:
    with Store.open(place) as store:
        fill(store)
        assert open_table(place).find(GPU.slug, m=2, n=700, k=64).match is Match.DEFAULT
        (made,) = refresh_predictors(store, GPU, ["gemm"])
        found = open_table(place).find(GPU.slug, m=2, n=700, k=64)
        assert (found.match, found.configuration) == (Match.PREDICTED, ROWS)
        assert note_measured(store, GPU.slug, product(1, 1, 1), EVALUATION)
        assert not note_measured(store, GPU.slug, product(1, 1, 1, trans_a=1), EVALUATION)
        # What was measured outlives the next making.
        assert refresh_predictors(store, GPU, ["gemm"]) == [replace(made, measured=EVALUATION)]
        known = open_table(place).predictor(GPU.slug, product(5, 5, 5))
        assert known and known.measured == EVALUATION


def test_what_was_measured_decides_what_answers(store: Store) -> None:
    path = Path(store.location)
    refresh_predictors(store, GPU, ["gemm"])
    worse = replace(EVALUATION, default=even(0.97))
    note_measured(store, GPU.slug, product(1, 1, 1), replace(worse, sizes=4))
    assert TuningTable.open(path).find(GPU.slug, m=2, n=700, k=64).match is Match.PREDICTED
    note_measured(store, GPU.slug, product(1, 1, 1), worse)
    assert TuningTable.open(path).find(GPU.slug, m=2, n=700, k=64).match is Match.DEFAULT
    # Where the default is favoured, it is what was measured as the lookup's answer: that says nothing for a prediction.
    note_measured(store, GPU.slug, product(1, 1, 1), replace(worse, predicted=even(0.97)))
    assert TuningTable.open(path).find(GPU.slug, m=2, n=700, k=64).match is Match.DEFAULT


def test_of_predictors_from_elsewhere_those_that_rest_on_more_sizes_are_taken(store: Store) -> None:
    add_predictors(store, {})
    assert all_predictors(store) == {}
    add_predictors(store, {GPU.slug: [predictor(sizes=9)]})
    add_predictors(store, {GPU.slug: [predictor(sizes=8, favours="nearest")]})
    assert all_predictors(store) == {GPU.slug: [predictor(sizes=9)]}
    add_predictors(store, {GPU.slug: [predictor(sizes=10)], "mali-g78": [predictor()]})
    assert all_predictors(store) == {GPU.slug: [predictor(sizes=10)], "mali-g78": [predictor()]}


@pytest.mark.parametrize(
    ("document", "message"),
    [('[{"family": ', "not JSON"), ("{}", "must be a list"), ("[{}]", r"\[0\]: family is missing")],
)
def test_predictors_that_cannot_be_read_are_told(store: Store, document: str, message: str) -> None:
    store.keep_predictors(GPU.slug, document)
    with pytest.raises(TableError, match=message) as caught:
        TuningTable.open(Path(store.location)).find(GPU.slug, m=3, n=3, k=3)
    assert f"{store.location}: what predicts on {GPU.slug}: " in str(caught.value)
    with pytest.raises(TableError, match=message) as told:
        all_predictors(store)
    assert str(told.value) == str(caught.value)


# Measured regret


def told(job: Job) -> float:
    assert isinstance(job.problem, GemmProblem)
    return time_ns(job.problem, job.configuration)


def broken(job: Job) -> float | TrialState:
    """LARGE fails."""
    return TrialState.CRASHED if job.configuration == LARGE else told(job)


def test_regret_is_measured_in_turns_against_what_was_tuned(store: Store) -> None:
    held = [w for w in store.best(GPU.slug, "gemm") if w.problem in (product(1, 16, 64), product(1024, 128, 64))]
    worker = FakeWorker(told)
    comparisons = measure_regret(GPU, held, store, worker, rounds=3)
    assert [c.problem for c in comparisons] == [w.problem for w in held]
    assert [c.match for c in comparisons] == [Match.PREDICTED] * 2
    assert [c.reached["predicted"] for c in comparisons] == [1.0, 1.0]
    assert all(c.reached["default"] <= 1.0 for c in comparisons)
    of_first = [job for job in worker.jobs if job.problem == held[0].problem]
    assert sum(job.verify for job in of_first) == len({job.configuration for job in of_first})
    first, second = ([job.configuration for job in of_first if job.seed == number] for number in (0, 1))
    assert set(first) == set(second) and (len(first) == 1 or first != second)
    summary = summarise(comparisons)
    assert (summary.sizes, summary.predicted.worst) == (2, 1.0)


def test_what_fails_where_it_was_predicted_counts_as_very_slow(store: Store) -> None:
    held = [w for w in store.best(GPU.slug, "gemm") if w.problem == product(4, 128, 64)]
    store_of_large = [replace(w, configuration=ROWS) for w in held]
    (comparison,) = measure_regret(GPU, store_of_large, store, FakeWorker(broken), rounds=2)
    assert comparison.failed == () or comparison.reached[comparison.failed[0]] == pytest.approx(1 / 8)
    gone = [replace(w, configuration=LARGE) for w in store.best(GPU.slug, "gemm") if w.problem == product(64, 1024, 64)]
    assert measure_regret(GPU, gone, store, FakeWorker(broken), rounds=2) == []


def test_sizes_are_held_out_evenly_and_not_at_the_ends() -> None:
    problems = [product(m, 8, 8) for m in range(1, 21)]
    held = choose_held_out(problems, 5)
    assert len(held) == 5 and problems[0] not in held and problems[-1] not in held
    assert choose_held_out(problems[:3], 10) == [problems[1]]
    assert choose_held_out(problems[:2], 10) == []


def test_a_predictor_with_no_measured_kind_is_none() -> None:
    (observed,) = observe(GPU, "gemm", [], [winner(product(8, 8, 8), SMALL, 1e6)])
    assert fit(observed) is None


# The commands


@pytest.fixture
def commands(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    class Context(FakeWorker):
        def __init__(self) -> None:
            super().__init__(told)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(discovery, "discover", lambda: [GPU])
    monkeypatch.setattr(worker_module, "Worker", Context)
    return store


def test_evaluate_prints_what_is_reached_and_lookup_tells_it(
    commands: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    database = commands.location
    assert main(["evaluate", "--device", "adreno", "--holdout", "5", "--db", database]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "5 sizes held out on adreno-730; fractions of the tuned speed reached:"
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["predicted", "nearest", "default"]
    assert len(err.splitlines()) == 5
    (known,) = all_predictors(commands)[GPU.slug]
    assert known.measured and known.measured.sizes == 5
    assert main(["lookup", "--device", "adreno-730", "3,500,64", "--db", database, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "at 5 sizes, measured at held-out sizes" in shown and "predicted    median" in shown
    assert "expected loss" in shown


def test_evaluate_holds_out_the_shapes_named(
    commands: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("4,128,64\n16 1024 64 x3 label\n")
    evaluate = ["evaluate", "--device", "adreno", "--db", commands.location, "--quiet", "--json"]
    assert main([*evaluate, "--shapes", str(shapes)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [c["problem"]["m"] for c in told["comparisons"]] == [4, 16]
    assert told["sizes"] == 2 and 0 < told["default"]["worst"] <= 1
    assert main([*evaluate, "--shape", "5,5,5"]) == 2
    assert "5x5x5: not tuned on adreno-730" in capsys.readouterr().err
    assert main([*evaluate, "--family", "reduce"]) == 2
    assert "too few to hold some out" in capsys.readouterr().err


def test_evaluate_tunes_afresh_where_a_budget_is_given(
    commands: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = product(5, 300, 64)
    known = {w.problem for w in commands.best(GPU.slug, "gemm")}
    searched: list[tuple[list[Problem], Budget, str]] = []

    def tune(_: Device, requests: list[Request], store: Store, budget: Budget, *__: Any, **___: Any) -> list[Outcome]:
        searched.append(([r.problem for r in requests], budget, store.location))
        best = winner(asked, ROWS, time_ns(asked, ROWS))
        return [
            Outcome(request=r, winner=best, new_trials=3, resumed_trials=0, failures={}, is_finished=True)
            for r in requests
        ]

    monkeypatch.setattr(search, "tune", tune)
    evaluate = ["evaluate", "--device", "adreno", "--db", commands.location, "--quiet", "--json"]
    assert main([*evaluate, "--shape", "5,300,64", "--budget", "20s"]) == 0
    told = json.loads(capsys.readouterr().out)
    ((problems, budget, place),) = searched
    assert (problems, budget.seconds) == ([asked], 20.0)
    assert place != commands.location and not Path(place).exists()
    assert told["sizes"] == 1 and told["predicted"]["worst"] == pytest.approx(1.0)
    assert {w.problem for w in commands.best(GPU.slug, "gemm")} == known


def test_exports_and_imports_carry_predictors(
    commands: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refresh_predictors(commands, GPU, ["gemm"])
    snapshot, exported = tmp_path / "snapshot.sqlite", tmp_path / "table.json"
    assert main(["export", "--format", "sqlite", "--output", str(snapshot), "--db", commands.location]) == 0
    assert main(["export", "--format", "json", "--output", str(exported), "--db", commands.location]) == 0
    other = tmp_path / "other.sqlite"
    assert main(["import", str(exported), "--db", str(other)]) == 0
    asked = product(2, 700, 64)
    answers = [TuningTable.open(path).find(GPU.slug, asked) for path in (snapshot, exported, other)]
    assert {answer.match for answer in answers} == {Match.PREDICTED}
    assert len({answer.configuration for answer in answers}) == 1
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((data_folder("db") / "table.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(exported.read_text()))
