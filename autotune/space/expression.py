"""Expressions: one text, evaluated on numbers, on NumPy arrays, and in C.

A constraint such as ``"micro_tile_n % vector_width == 0 and micro_tile_n <= n"`` is written once. Python evaluates it
for one configuration or, with NumPy arrays as values, for many at once; `Expression.to_c` translates it to C.
"""

import ast
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, cast

from autotune.errors import ConfigurationError
from autotune.space.source import FLOORING_C, PYTHON, C, Writer, definitions_of, has_fraction, results_of


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b, rounded up."""
    return -(-a // b)


def round_up(a: Any, b: Any) -> Any:
    """Return the least multiple of b that is at least a."""
    return -(-a // b) * b


def by_value(name: str, results: Mapping[str, str | int]) -> str:
    """Return the text of an expression whose result depends on which of these strings `name` is."""
    *others, (_, last) = results.items()
    return "".join(f"{result!r} if {name} == {value!r} else " for value, result in others) + repr(last)


FUNCTIONS: Mapping[str, Any] = {
    "__builtins__": {}, "min": min, "max": max, "ceil_div": ceil_div, "round_up": round_up,
}  # fmt: skip
"""The namespace in which the text of an expression of numbers may be evaluated."""


class Expression:
    """A boolean condition or a value over named integers and strings.

    Allowed: names, constants, ``+ - * / // %``, comparisons (also chained), ``and or not``, ``x in (a, b)``,
    ``x if condition else y``, and ``min``, ``max``, ``ceil_div`` and ``round_up`` of two values. Nothing is calculated
    with strings. The result of ``/`` may have a fraction, with which ``//`` and ``%`` do not calculate. A family with a
    planner in C divides by ``//`` and ``%`` only values that are never negative, so that Python and C agree. What
    follows a side of ``and`` or ``or`` that decides is not evaluated: ``x == 0 or n % x == 0`` divides by no zero.

    Raises ConfigurationError when the text uses anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        names: set[str] = set()

        def spell(name: str) -> str:
            names.add(name)
            return f"_v[{name!r}]"

        self._code = Writer(PYTHON, text, spell, repr).write(ast.parse(text, mode="eval").body)
        self.names = frozenset(names)

    @cached_property
    def _function(self) -> Callable[[Mapping[str, Any]], Any]:
        """Compiled when it is first needed, which most expressions of a process never are."""
        try:
            found = eval(f"lambda _v: {self._code}", _FUNCTIONS_OF_ARRAYS)  # noqa: S307 - emitted from a whitelist
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ConfigurationError(f"expression {self.text[:80]!r} is nested too deeply") from error
        return cast(Callable[[Mapping[str, Any]], Any], found)

    def prepare(self) -> None:
        """Do all that may fail before it is evaluated. Raises ConfigurationError where it is nested too deeply."""
        _ = self._function, self.definitions

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Evaluate: a truth value for scalars, a boolean array if any value is an array (broadcast together)."""
        return self._function(values)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def given(self, values: Mapping[str, int | str]) -> "Expression":
        """Return the expression with these values substituted and constants folded, which is faster to evaluate."""
        return Expression(ast.unparse(_Known(values).visit(ast.parse(self.text, mode="eval").body)))

    @cached_property
    def definitions(self) -> list["Expression"]:
        """Conditions under which it has a value, in order: that nothing that is evaluated divides by 0."""
        conditions = definitions_of(ast.parse(self.text, mode="eval").body)
        return [Expression(text) for text in dict.fromkeys(map(ast.unparse, conditions))]

    @cached_property
    def conjuncts(self) -> list["Expression"]:
        """Conditions that hold together where this one holds: the operands of its outermost `and`."""
        tree = ast.parse(self.text, mode="eval").body
        if not (isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)):
            return [self]
        return [part for value in tree.values for part in Expression(ast.unparse(value)).conjuncts]

    @property
    def results(self) -> list[ast.expr]:
        """The parts that it may result in: `n` and 0 of ``n if c else 0``."""
        return list(results_of(ast.parse(self.text, mode="eval").body))

    @property
    def has_fraction(self) -> bool:
        """Whether its result may have a fraction although all names are whole numbers."""
        return has_fraction(ast.parse(self.text, mode="eval").body)

    @property
    def counted(self) -> frozenset[str]:
        """Names with which it calculates, or whose order it asks for: those of numbers."""
        operands: list[ast.expr] = []
        for node in ast.walk(ast.parse(self.text, mode="eval")):
            match node:
                case ast.BinOp(left=left, right=right):
                    operands += [left, right]
                case ast.UnaryOp(op=ast.USub(), operand=operand):
                    operands.append(operand)
                case ast.Call(args=arguments):
                    operands += arguments
                case ast.Compare(left=left, ops=operators, comparators=others) if not all(
                    isinstance(operator, ast.Eq | ast.NotEq | ast.In) for operator in operators
                ):
                    operands += [left, *others]
        return frozenset(leaf.id for one in operands for leaf in results_of(one) if isinstance(leaf, ast.Name))

    def taking(self, *names: str) -> Callable[..., int]:
        """Return a function of these names by position, for numbers only: the fastest way to evaluate often."""
        return cast(
            Callable[..., int],
            eval(  # noqa: S307 - the constructor checked the text
                f"lambda {', '.join(names)}: {self.text}", dict(FUNCTIONS)
            ),
        )

    def to_c(
        self,
        name: Callable[[str], str],
        constant: Callable[[str], str],
        result: Callable[[str], str] | None = None,
        *,
        has_negatives: bool = False,
    ) -> str:
        """Return the expression in C; `name` and `constant` spell names and string constants in C.

        `result` spells the strings that the expression may result in, if not like those it compares with. With
        `has_negatives`, quotients of negative numbers are rounded as in Python; names are never negative.
        """
        tree = ast.parse(self.text, mode="eval").body
        return Writer(FLOORING_C if has_negatives else C, self.text, name, constant).write(tree, result or constant)


class _Known(ast.NodeTransformer):
    """Substitutes values and folds constants."""

    def __init__(self, values: Mapping[str, int | str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._values[node.id]) if node.id in self._values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        decides = isinstance(node.op, ast.Or)
        left = []
        for value in map(self.visit, node.values):
            if not isinstance(value, ast.Constant):
                left.append(value)
            elif bool(value.value) is decides:
                return ast.Constant(decides)
        return ast.BoolOp(node.op, left) if len(left) > 1 else left[0] if left else ast.Constant(not decides)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def _worked_out(self, node: ast.expr) -> ast.expr:
        self.generic_visit(node)
        if any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
            return node
        try:
            value = Expression(ast.unparse(node))({})
        except ZeroDivisionError:
            return node
        return ast.Constant(value)

    visit_BinOp = visit_Compare = visit_UnaryOp = _worked_out  # noqa: N815 - the names that ast asks for


def _of_arrays(function: str) -> Callable[[Any, Any], Any]:
    """Return min or max for numbers and, as NumPy's minimum or maximum, for arrays."""
    of_numbers = FUNCTIONS[function]

    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return of_numbers(a, b)
        import numpy

        return getattr(numpy, f"{function}imum")(a, b)

    return choose


def _choose(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Evaluate only the branch that is taken, unless the condition is an array."""
    if getattr(condition, "ndim", 0) == 0:
        return yes() if condition else no()
    import numpy

    return numpy.where(condition, yes(), no())


def _joint(decisive: bool, *operands: Callable[[], Any]) -> Any:
    """Return `or` of operands if `decisive` is true, else `and`; none is evaluated after a number that decides."""
    found: Any = not decisive
    for operand in operands:
        value = operand()
        if getattr(value, "ndim", 0):
            found = (found | value) if decisive else (found & value)
        elif bool(value) is decisive:
            return decisive
    return found


_FUNCTIONS_OF_ARRAYS = {
    **FUNCTIONS, "min": _of_arrays("min"), "max": _of_arrays("max"), "_choose": _choose,
    "_all_of": partial(_joint, False), "_any_of": partial(_joint, True),
}  # fmt: skip
