"""Constraint expressions: the same truth for numbers, for columns, and in C."""

import random

import numpy as np
import pytest

from autotune.errors import ConfigurationError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.device import DeviceLimits
from autotune.space.expression import FUNCTIONS, Expression

TEXTS = [
    "a % b == 0 and a <= 8",
    "a < b < c or not a == 3",
    "min(a, b) * max(b, c) - 1 > 5",
    "(a + b) // 2 in (1, 2, c)",
    "s == 'pad' or a % 2 == 0",
    "s in ('guard', 'pad') and a * b != c",
    "a if s == 'pad' else b + c",
    "ceil_div(a, b) + round_up(c, b if a > 2 else 3)",
    "(a if b > 1 else c if a < 8 else 7) * 2",
]
CASES = [
    {"a": a, "b": b, "c": c, "s": s} for a in (1, 2, 3, 8) for b in (1, 2, 5) for c in (1, 4) for s in ("pad", "none")
]


@pytest.mark.parametrize("text", TEXTS)
def test_agrees_with_python_for_numbers(text: str) -> None:
    expression = Expression(text)
    for case in CASES:
        assert expression(case) == eval(text, dict(FUNCTIONS), dict(case)), case


@pytest.mark.parametrize("text", TEXTS)
def test_agrees_with_python_for_columns(text: str) -> None:
    columns = {name: np.array([case[name] for case in CASES]) for name in "abcs"}
    expected = [eval(text, dict(FUNCTIONS), dict(case)) for case in CASES]
    assert np.asarray(Expression(text)(columns)).tolist() == expected


def test_mixes_numbers_and_columns() -> None:
    result = Expression("a <= limit and s == 'pad'")({"a": np.array([1, 5, 9]), "limit": 5, "s": "pad"})
    assert result.tolist() == [True, True, False]


def test_names_are_those_used() -> None:
    assert Expression("a % b == 0 or s == 'x'").names == {"a", "b", "s"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.real == 1",
        "[x for x in a]",
        "a ** b",
        "lambda: 1",
        "open(a, b)",
        "a[0]",
        "1e999 < a",
        "'a' * 9",
        "a / b % 2",
    ],
)
def test_refuses_what_is_no_constraint(text: str) -> None:
    with pytest.raises(ConfigurationError, match="may not use"):
        Expression(text)


def test_spells_c() -> None:
    text = Expression("a % b == 0 and (s == 'pad' or min(a, 2) <= b < c) and a in (1, 4) and not a // 2 == 7").to_c(
        str.upper, lambda value: f"S_{value.upper()}"
    )
    assert text == (
        "(((A % B) == 0) && ((S == S_PAD) || (((A < 2 ? A : 2) <= B) && (B < C))) "
        "&& ((A == 1) || (A == 4)) && (!((A / 2) == 7)))"
    )


def test_spells_choices_and_roundings_in_c() -> None:
    text = Expression("ceil_div(a, b) if s == 'pad' else round_up(a, 4)")
    assert text.to_c(str.upper, str.upper) == "((S == PAD) ? ((A + B - 1) / B) : ((A + 4 - 1) / 4 * 4))"


def test_spells_strings_that_result_apart_from_those_compared() -> None:
    text = Expression("'half' if s == 'half' else 'float'")
    sizes = {"half": "2", "float": "4"}
    assert text.to_c(str.upper, str.upper, sizes.__getitem__) == "((S == HALF) ? 2 : 4)"


def test_only_the_branch_taken_is_evaluated() -> None:
    assert Expression("a // b if b > 0 else a")({"a": 3, "b": 0}) == 3


def test_a_known_condition_leaves_one_branch() -> None:
    assert Expression("a + 1 if s == 'pad' else b").given({"s": "none"}).text == "b"
    assert Expression("a if not (s == 'pad') else b").given({"s": "pad"}).text == "b"


def test_values_known_beforehand_change_no_answer() -> None:
    numbers = random.Random(3)
    limits = DeviceLimits(has_images=True, max_image_width=512, max_image_height=512).constraint_values()
    shorter = 0
    for _ in range(300):
        m, n, k = numbers.choice((1, 7, 64, 500)), numbers.choice((1, 8, 96)), numbers.choice((3, 256))
        problem = GemmProblem(m=m, n=n, k=k)
        algorithm = numbers.choice(FAMILY.algorithms)
        known = {**limits, **{p.name: numbers.choice(p.values) for p in algorithm.parameters}}
        values = {**problem.constraint_values(), **known}
        for constraint in algorithm.constraints:
            rest = constraint.condition.given(known)
            assert bool(rest(problem.constraint_values())) == bool(constraint.condition(values)), constraint.name
            shorter += len(rest.text) < len(constraint.condition.text)
    assert shorter > 1000


@pytest.mark.parametrize("text", ["a and b", "a and b == 4", "(a or b) and c", "not a or b and c", "a % 4 and b"])
def test_numbers_are_true_unless_they_are_0(text: str) -> None:
    cases = [{"a": a, "b": b, "c": c} for a in (0, 1, 2, 4) for b in (0, 1, 2, 4) for c in (0, 1, 2)]
    expected = [bool(eval(text, dict(FUNCTIONS), dict(case))) for case in cases]
    assert [bool(Expression(text)(case)) for case in cases] == expected
    columns = {name: np.array([case[name] for case in cases]) for name in "abc"}
    assert np.asarray(Expression(text)(columns)).astype(bool).tolist() == expected
