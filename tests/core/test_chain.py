"""Conditions that relate more combinations than a table holds allow what they allow evaluated one by one."""

import itertools
from typing import Any

import pytest

from autotune.errors import ConfigurationError
from autotune.space.diagram import Diagram, automaton
from autotune.space.expression import Expression

CHOICES: list[tuple[str, list[Any]]] = [*((name, [0, 1, 2, 3, 4]) for name in "abcde"), ("t", ["x", "y"])]


def diagram(condition: str, choices: list[tuple[str, list[Any]]]) -> Diagram:
    steps = automaton(Expression(condition), choices, {"n": 30})
    return Diagram.of_tables([len(values) for _, values in choices], [], [(range(len(choices)), steps)])


@pytest.mark.parametrize(
    "condition",
    [
        "a * b * c * d * e <= n",
        "a + b * c + d * e * a > 20",
        "a == 0 or (b + c) % a == 0 and d < e",
        "(b + c) % a == 0",
        "ceil_div(b * c, a) * (2 if t == 'x' else d) <= 9",
        "min(a * b, c * d) + max(e, a) < 7",
        "(a if t == 'x' else b) * c in (0, 4, d)",
        "not a * b > c * d or e % (d - 1) == 0",
        "b // c + d / e > 2",
        "a * b <= 4 and -c * d >= -3",
        "1 == 1 and a + e == 4",
        "not (a and b)",
        "a or b and t == 'y'",
        "a * 0 == 1",
    ],
)
def test_a_chain_allows_what_the_condition_does(condition: str) -> None:
    allowed = 0
    known = Expression(condition)
    for values in itertools.product(*(values for _, values in CHOICES)):
        try:
            allowed += bool(known({"n": 30, **dict(zip((name for name, _ in CHOICES), values, strict=True))}))
        except ZeroDivisionError:
            continue
    assert len(diagram(condition, CHOICES)) == allowed


def test_states_stay_few_where_combinations_are_many() -> None:
    names = [f"A{number}" for number in range(12)]
    found = diagram(" + ".join(names) + " > 3", [(name, [1, 2, 3, 4]) for name in names])
    assert len(found) == 4**12
    sizes = [1, 2, 4, 8, 16, 32, 64, 3, 5, 7, 9, 11]
    assert (
        len(diagram("4 * (A * B * (C + D) + E * F * (G + 1)) <= 65536", [(name, sizes) for name in "ABCDEFG"])) > 10**6
    )


def test_what_is_not_feasible_is_refused() -> None:
    odd = " + ".join(f"{3**number} * A{number}" for number in range(16))
    with pytest.raises(ConfigurationError, match="relates too many combinations"):
        diagram(f"({odd}) % 1000003 < 5000", [(f"A{number}", [0, 1, 2]) for number in range(16)])
