"""Expressions: one text, evaluated on numbers, on NumPy arrays, and in C.

A constraint such as ``"micro_tile_n % vector_width == 0 and micro_tile_n <= n"`` is written once. Python evaluates it
for one configuration or, with NumPy arrays as values, for many at once; `Expression.to_c` translates it to C.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn, cast

from autotune.errors import ConfigurationError

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "/",
    ast.Mod: "%",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_IN_C = {
    "min": "({a} < {b} ? {a} : {b})",
    "max": "({a} > {b} ? {a} : {b})",
    "ceil_div": "(({a} + {b} - 1) / {b})",
    "round_up": "(({a} + {b} - 1) / {b} * {b})",
}


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
        tree = ast.parse(text, mode="eval")
        names: set[str] = set()
        self._code = _emit(tree.body, names, text)
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
        return _emit_c(ast.parse(self.text, mode="eval").body, name, constant, result or constant)


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

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._worked_out(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return self._worked_out(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return self._worked_out(node)

    def _worked_out(self, node: ast.expr) -> ast.expr:
        self.generic_visit(node)
        if any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
            return node
        try:
            value = _value(node)
        except ZeroDivisionError:
            return node
        return ast.Constant(value) if value >= 0 else node  # expressions do not allow a sign


def _value(node: ast.expr) -> int | bool:
    found = Expression(ast.unparse(node))({})
    assert isinstance(found, int)
    return found


def _emit(node: ast.expr, names: set[str], text: str) -> str:
    """Return Python source that works for scalars and arrays: `and` becomes `&` on comparisons."""
    match node:
        case ast.BoolOp(op=operator, values=values):
            joint = " & " if isinstance(operator, ast.And) else " | "
            return "(" + joint.join(_emit(value, names, text) for value in values) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"({_emit(operand, names, text)} == False)"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            sign = "//" if isinstance(operator, ast.FloorDiv) else _ARITHMETIC[type(operator)]
            return f"({_emit(left, names, text)} {sign} {_emit(right, names, text)})"
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            terms = []
            for comparison, right in zip(operators, comparators, strict=True):
                terms.append(_compare(left, comparison, right, names, text))
                left = right
            return "(" + " & ".join(terms) + ")"
        case ast.Call(func=ast.Name(id=function), args=[first, second], keywords=[]) if function in _IN_C:
            return f"{function}({_emit(first, names, text)}, {_emit(second, names, text)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yes, no = _emit(body, names, text), _emit(orelse, names, text)
            return f"_choose({_emit(test, names, text)}, lambda: {yes}, lambda: {no})"
        case ast.Name(id=name):
            names.add(name)
            return f"_v[{name!r}]"
        case ast.Constant(value=str() | int() as value):
            return repr(value)
        case _:
            _refuse(text, node)


def _compare(left: ast.expr, operator: ast.cmpop, right: ast.expr, names: set[str], text: str) -> str:
    if isinstance(operator, ast.In) and isinstance(right, ast.Tuple):
        options = [f"({_emit(left, names, text)} == {_emit(option, names, text)})" for option in right.elts]
        return "(" + " | ".join(options) + ")"
    if type(operator) not in _COMPARISONS:
        _refuse(text, left)
    return f"({_emit(left, names, text)} {_COMPARISONS[type(operator)]} {_emit(right, names, text)})"


def _emit_c(
    node: ast.expr, name: Callable[[str], str], constant: Callable[[str], str], result: Callable[[str], str]
) -> str:
    def emit(child: ast.expr) -> str:
        return _emit_c(child, name, constant, constant)

    match node:
        case ast.BoolOp(op=operator, values=values):
            return _joined(" && " if isinstance(operator, ast.And) else " || ", map(emit, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"(!{emit(operand)})"
        case ast.BinOp(left=left, op=operator, right=right):
            return f"({emit(left)} {_ARITHMETIC[type(operator)]} {emit(right)})"
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            terms = []
            for comparison, right in zip(operators, comparators, strict=True):
                options = right.elts if isinstance(right, ast.Tuple) else [right]
                sign = "==" if isinstance(comparison, ast.In) else _COMPARISONS[type(comparison)]
                terms.append(_joined(" || ", (f"({emit(left)} {sign} {emit(option)})" for option in options)))
                left = right
            return _joined(" && ", terms)
        case ast.Call(func=ast.Name(id=function), args=[first, second]):
            return _IN_C[function].format(a=emit(first), b=emit(second))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yes, no = (_emit_c(branch, name, constant, result) for branch in (body, orelse))
            return f"({emit(test)} ? {yes} : {no})"
        case ast.Name(id=identifier):
            return name(identifier)
        case ast.Constant(value=str() as value):
            return result(value)
        case ast.Constant(value=value):
            return str(int(value))  # type: ignore[arg-type]
    _refuse(ast.unparse(node), node)


def _joined(joint: str, terms: Iterable[str]) -> str:
    """Join the terms in one pair of parentheses; a single term, which has its own, stays as it is."""
    first, *others = terms
    return f"({joint.join([first, *others])})" if others else first


def _refuse(text: str, node: ast.AST) -> NoReturn:
    raise ConfigurationError(f"expression {text!r} may not use {ast.unparse(node)!r}")


def _minimum(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    import numpy

    return numpy.minimum(a, b)


def _maximum(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    import numpy

    return numpy.maximum(a, b)


def _choose(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Evaluate only the branch that is taken, unless the condition is an array."""
    if getattr(condition, "ndim", 0) == 0:
        return yes() if condition else no()
    import numpy

    return numpy.where(condition, yes(), no())


_FUNCTIONS_OF_ARRAYS = {**FUNCTIONS, "min": _minimum, "max": _maximum, "_choose": _choose}
