"""A decision diagram holds what its tables allow, in order, and finds each path by its number and back."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import ConfigurationError
from autotune.space.diagram import Diagram
from covering import pairs_of, values_of

Table = tuple[Sequence[int], NDArray[np.bool_]]


def listed(sizes: Sequence[int], tables: Sequence[Table]) -> list[tuple[int, ...]]:
    combinations = itertools.product(*map(range, sizes))
    return [c for c in combinations if all(table[tuple(c[layer] for layer in layers)] for layers, table in tables)]


def drawn(seed: int) -> tuple[list[int], list[Table]]:
    """Up to six layers, and tables of none to four of them."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = rng.integers(1, 5, int(rng.integers(1, 7))).tolist()
    tables: list[Table] = []
    for _ in range(rng.integers(0, 6)):
        layers: list[int] = sorted(rng.permutation(len(sizes))[: int(rng.integers(1, 5))].tolist())
        tables.append((layers, rng.random([sizes[layer] for layer in layers]) < rng.choice([0.3, 0.7, 0.95])))
    return sizes, tables


@pytest.mark.parametrize("seed", range(60))
def test_paths_are_what_the_tables_allow(seed: int) -> None:
    sizes, tables = drawn(seed)
    expected = listed(sizes, tables)
    diagram = Diagram.of_tables(sizes, tables)
    numbers = np.arange(len(diagram))
    assert [tuple(path) for path in diagram.paths(numbers).tolist()] == expected
    everything = np.array(list(itertools.product(*map(range, sizes))), dtype=np.uint16)
    places = {path: number for number, path in enumerate(expected)}
    assert diagram.numbers(everything).tolist() == [places.get(tuple(path), -1) for path in everything.tolist()]
    for layer in range(len(sizes)):
        assert values_of(diagram, layer) == sorted({path[layer] for path in expected})


@pytest.mark.parametrize("seed", range(60))
def test_pairs_are_all_that_occur_each_with_a_path_that_has_it(seed: int) -> None:
    sizes, tables = drawn(seed)
    firsts = np.cumsum([0, *sizes[:-1]])
    expected = [set((firsts + path).tolist()) for path in listed(sizes, tables)]
    pairs = pairs_of(Diagram.of_tables(sizes, tables))
    assert pairs.shape == (sum(sizes), sum(sizes))
    occurring = {pair for path in expected for pair in itertools.product(path, path)}
    assert {(a, b) for a, b in np.argwhere(pairs >= 0).tolist()} == occurring
    assert all({a, b} <= expected[pairs[a, b]] for a, b in occurring)


def test_the_nearest_keeps_the_first_choices_and_knows_no_order_where_there_is_none() -> None:
    table = np.ones((4, 4), dtype=bool)
    table[3] = False
    table[2, :] = [True, False, False, True]
    diagram = Diagram.of_tables([4, 4], [((0, 1), table)])
    assert diagram.nearest([3, 2], [True, True]) == [2, 3]
    assert diagram.nearest([3, 1], [True, True]) == [2, 0]
    assert diagram.nearest([3, 2], [True, False]) == [2, 0]
    assert diagram.nearest([3, 2], [False, True]) == [0, 2]
    assert Diagram.of_tables([2], [((), np.array(False))]).nearest([0], [True]) is None


def test_a_space_far_too_large_to_list_takes_no_time() -> None:
    """Thirty layers of ten values, each no less than the one before: 211 million paths by a known formula."""
    rising = np.greater_equal.outer(np.arange(10), np.arange(10)).T
    diagram = Diagram.of_tables([10] * 30, [((layer, layer + 1), rising) for layer in range(29)])
    assert len(diagram) == 211_915_132
    numbers = np.array([0, 1, 105_957_566, 211_915_131])
    paths = diagram.paths(numbers)
    assert diagram.numbers(paths).tolist() == numbers.tolist()
    assert (np.diff(paths.astype(int), axis=1) >= 0).all()
    assert paths[0].tolist() == [0] * 30
    assert paths[-1].tolist() == [9] * 30
    pairs = pairs_of(diagram).reshape(30, 10, 30, 10)
    assert all(((pairs[i, :, j] >= 0) == rising).all() for i, j in itertools.combinations(range(30), 2))


def test_more_than_can_be_numbered_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too many configurations to number them"):
        Diagram.of_tables([10] * 19, [])
