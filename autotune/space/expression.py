"""Expressions: one text, evaluated on numbers, on NumPy arrays, and in C.

A constraint such as ``"micro_tile_n % vector_width == 0 and micro_tile_n <= n"`` is written once. Python evaluates it
for one configuration or, with NumPy arrays as values, for many at once; `Expression.to_c` translates it to C.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from autotune.errors import ConfigurationError

_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


@dataclass(frozen=True, kw_only=True)
class _Language:
    """How a language writes what is not alike in all."""

    all_of: str
    any_of: str
    truth: str
    """What an operand of these two is as a truth value, where it is a number."""
    negation: str
    division: str
    choice: str
    calls: Mapping[str, str]
    number: Callable[[int], str]


_PYTHON = _Language(
    all_of=" & ", any_of=" | ", truth="({} != 0)", negation="({} == False)", division="//", number=repr,
    choice="_choose({}, lambda: {}, lambda: {})",
    calls={name: f"{name}({{a}}, {{b}})" for name in ("min", "max", "ceil_div", "round_up")},
)  # fmt: skip
"""For scalars and arrays: `and` becomes `&` on truth values."""
_C = _Language(
    all_of=" && ", any_of=" || ", truth="{}", negation="(!{})", division="/", number=lambda value: str(int(value)),
    choice="({} ? {} : {})",
    calls={
        "min": "({a} < {b} ? {a} : {b})",
        "max": "({a} > {b} ? {a} : {b})",
        "ceil_div": "(({a} + {b} - 1) / {b})",
        "round_up": "(({a} + {b} - 1) / {b} * {b})",
    },
)  # fmt: skip


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

    Allowed: names, integer and string constants, ``+ - * // %``, comparisons (also chained), ``and or not``,
    ``x in (a, b)``, ``x if condition else y``, and ``min``, ``max``, ``ceil_div`` and ``round_up`` of two values.
    Divide only values that are never negative, so that Python and C agree. Both sides of ``and`` and ``or`` are always
    evaluated.

    Raises ConfigurationError when the text uses anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        names: set[str] = set()

        def spell(name: str) -> str:
            names.add(name)
            return f"_v[{name!r}]"

        self._code = _Writer(_PYTHON, text, spell, repr).write(ast.parse(text, mode="eval").body)
        self.names = frozenset(names)

    @cached_property
    def _function(self) -> Callable[[Mapping[str, Any]], Any]:
        """Compiled when it is first needed, which most expressions of a process never are."""
        found = eval(f"lambda _v: {self._code}", _FUNCTIONS_OF_ARRAYS)  # noqa: S307 - emitted from a whitelist
        return cast(Callable[[Mapping[str, Any]], Any], found)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Evaluate: a truth value for scalars, a boolean array if any value is an array (broadcast together)."""
        return self._function(values)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def given(self, values: Mapping[str, int | str]) -> "Expression":
        """Return the expression with these values substituted and constants folded, which is faster to evaluate."""
        return Expression(ast.unparse(_Known(values).visit(ast.parse(self.text, mode="eval").body)))

    @property
    def divisors(self) -> list["Expression"]:
        """What it divides by, numbers left out, the innermost first: where one is 0 it has no value."""
        found: list[ast.expr] = []
        for node in ast.walk(ast.parse(self.text, mode="eval")):
            match node:
                case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=divisor):
                    found.append(divisor)
                case ast.Call(func=ast.Name(id="ceil_div" | "round_up"), args=[_, divisor]):
                    found.append(divisor)
        return [Expression(ast.unparse(one)) for one in reversed(found) if not isinstance(one, ast.Constant)]

    def taking(self, *names: str) -> Callable[..., int]:
        """Return a function of these names by position, for numbers only: the fastest way to evaluate often."""
        return cast(
            Callable[..., int],
            eval(  # noqa: S307 - the constructor checked the text
                f"lambda {', '.join(names)}: {self.text}", dict(FUNCTIONS)
            ),
        )

    def to_c(
        self, name: Callable[[str], str], constant: Callable[[str], str], result: Callable[[str], str] | None = None
    ) -> str:
        """Return the expression in C; `name` and `constant` spell names and string constants in C.

        `result` spells the strings that the expression may result in, if not like those it compares with.
        """
        tree = ast.parse(self.text, mode="eval").body
        return _Writer(_C, self.text, name, constant).write(tree, result or constant)


class _Known(ast.NodeTransformer):
    """Substitutes values and folds constants."""

    def __init__(self, values: Mapping[str, int | str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._values.get(node.id, "")
        if isinstance(value, int) and value < 0:  # expressions do not allow a sign
            return ast.BinOp(ast.Constant(0), ast.Sub(), ast.Constant(-value))
        return ast.Constant(value) if node.id in self._values else node

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
        return ast.Constant(value) if value >= 0 else node  # expressions do not allow a sign

    visit_BinOp = visit_Compare = visit_UnaryOp = _worked_out  # noqa: N815 - the names that ast asks for


@dataclass(frozen=True)
class _Writer:
    """Writes expressions in a language; `name` and `constant` spell names and string constants."""

    language: _Language
    text: str
    """The whole expression, for errors."""
    name: Callable[[str], str]
    constant: Callable[[str], str]

    def write(self, node: ast.expr, result: Callable[[str], str] | None = None) -> str:
        """Return the expression; `result` spells the strings that it results in, if not like other constants.

        Raises ConfigurationError for what an expression may not use.
        """
        language = self.language
        match node:
            case ast.BoolOp(op=operator, values=values):
                joint = language.all_of if isinstance(operator, ast.And) else language.any_of
                return _joined(joint, map(self._truth, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return language.negation.format(self.write(operand))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return f"({self.write(left)} {language.division} {self.write(right)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return f"({self.write(left)} {_ARITHMETIC[type(operator)]} {self.write(right)})"
            case ast.Compare(left=left, ops=operators, comparators=comparators):
                pairs = zip([left, *comparators], operators, comparators, strict=False)
                return _joined(language.all_of, [self._compare(*pair) for pair in pairs])
            case ast.Call(func=ast.Name(id=function), args=[a, b], keywords=[]) if function in language.calls:
                return language.calls[function].format(a=self.write(a), b=self.write(b))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return language.choice.format(self.write(test), self.write(body, result), self.write(orelse, result))
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=str() as value):
                return (result or self.constant)(value)
            case ast.Constant(value=int() as value):
                return language.number(value)
        _refuse(self.text, node)

    def _truth(self, node: ast.expr) -> str:
        """Return an operand of `and` and `or`, for which ``&`` and ``|`` stand: 4 & 2 is 0, and both are true."""
        is_truth = isinstance(node, ast.BoolOp | ast.Compare) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        return self.write(node) if is_truth else self.language.truth.format(self.write(node))

    def _compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        if isinstance(operator, ast.In) and isinstance(right, ast.Tuple):
            options = (f"({self.write(left)} == {self.write(option)})" for option in right.elts)
            return _joined(self.language.any_of, options)
        if type(operator) not in _COMPARISONS:
            _refuse(self.text, left)
        return f"({self.write(left)} {_COMPARISONS[type(operator)]} {self.write(right)})"


def _joined(joint: str, terms: Iterable[str]) -> str:
    """Join the terms in one pair of parentheses; a single term, which has its own, stays as it is."""
    first, *others = terms
    return f"({joint.join([first, *others])})" if others else first


def _refuse(text: str, node: ast.AST) -> NoReturn:
    power = ": make the power the parameter, and leave its logarithm out"
    reasons = {ast.Div: ": // divides whole numbers", ast.Pow: ": multiply instead", ast.LShift: power}
    reason = reasons.get(type(node.op), "") if isinstance(node, ast.BinOp) else ""
    raise ConfigurationError(f"expression {text!r} may not use {ast.unparse(node)!r}{reason}")


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


_FUNCTIONS_OF_ARRAYS = {**FUNCTIONS, "min": _of_arrays("min"), "max": _of_arrays("max"), "_choose": _choose}
