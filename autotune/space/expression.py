"""Expressions: one text, evaluated on numbers, on NumPy arrays, and in C.

A constraint such as ``"micro_tile_n % vector_width == 0 and micro_tile_n <= n"`` is written once. Python evaluates it
for one configuration or, with NumPy arrays as values, for many at once; `Expression.to_c` translates it to C.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite
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
    quotient: str
    """A division whose result may have a fraction."""
    choice: str
    calls: Mapping[str, str]
    number: Callable[[float], str]
    guards: Mapping[str, str]
    """What stands for `all_of` and `any_of` where a later operand must not be evaluated needlessly; empty if they do.

    It is a function of functions that give the operands."""


_PYTHON = _Language(
    all_of=" & ", any_of=" | ", truth="({} != 0)", negation="({} == False)", division="//", number=repr,
    quotient="({} / {})", guards={" & ": "_all_of", " | ": "_any_of"}, choice="_choose({}, lambda: {}, lambda: {})",
    calls={name: f"{name}({{a}}, {{b}})" for name in ("min", "max", "ceil_div", "round_up")},
)  # fmt: skip
"""For scalars and arrays: `and` becomes `&` on truth values."""
_C = _Language(
    all_of=" && ", any_of=" || ", truth="{}", negation="(!{})", division="/", quotient="((double){} / {})",
    number=lambda value: str(int(value)) if isinstance(value, bool) else repr(value), choice="({} ? {} : {})",
    guards={},
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

    Allowed: names, constants, ``+ - * / // %``, comparisons (also chained), ``and or not``, ``x in (a, b)``,
    ``x if condition else y``, and ``min``, ``max``, ``ceil_div`` and ``round_up`` of two values. Nothing is calculated
    with strings. The result of ``/`` may have a fraction, with which ``//`` and ``%`` do not calculate. Divide by
    ``//`` and ``%`` only values that are never negative, so that Python and C agree. What follows a side of ``and`` or
    ``or`` that decides is not evaluated: ``x == 0 or n % x == 0`` divides by no zero.

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

    @property
    def definitions(self) -> list["Expression"]:
        """Conditions under which it has a value, in order: that nothing that is evaluated divides by 0."""
        conditions = _definitions(ast.parse(self.text, mode="eval").body)
        return [Expression(text) for text in dict.fromkeys(map(ast.unparse, conditions))]

    @property
    def conjuncts(self) -> list["Expression"]:
        """Conditions that hold together where this one holds: the operands of its outermost `and`."""
        tree = ast.parse(self.text, mode="eval").body
        if not (isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)):
            return [self]
        return [part for value in tree.values for part in Expression(ast.unparse(value)).conjuncts]

    @property
    def results(self) -> list[ast.expr]:
        """The parts that it may result in: `n` and 0 of ``n if c else 0``."""
        return list(_results(ast.parse(self.text, mode="eval").body))

    @property
    def has_fraction(self) -> bool:
        """Whether its result may have a fraction although all names are whole numbers."""
        return _has_fraction(ast.parse(self.text, mode="eval").body)

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
        return frozenset(leaf.id for one in operands for leaf in _results(one) if isinstance(leaf, ast.Name))

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
                if language.guards and any(any(True for _ in _definitions(value)) for value in values[1:]):
                    operands = (f"lambda: {self._truth(value)}" for value in values)
                    return f"{language.guards[joint]}({', '.join(operands)})"
                return _joined(joint, map(self._truth, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return language.negation.format(self.write(operand))
            case ast.UnaryOp(op=ast.USub()) | ast.BinOp():
                return self._arithmetic(node)
            case ast.Compare(left=left, ops=operators, comparators=comparators):
                pairs = zip([left, *comparators], operators, comparators, strict=False)
                return _joined(language.all_of, [self._compare(*pair) for pair in pairs])
            case ast.Call(func=ast.Name(id=function), args=[a, b], keywords=[]) if function in language.calls:
                self._refuse_operands(node, a, b, are_whole=function in ("ceil_div", "round_up"))
                return language.calls[function].format(a=self.write(a), b=self.write(b))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return language.choice.format(self.write(test), self.write(body, result), self.write(orelse, result))
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=str() as value):
                return (result or self.constant)(value)
            case ast.Constant(value=int() | float() as value) if isfinite(value):
                return language.number(value)
        _refuse(self.text, node)

    def _arithmetic(self, node: ast.expr) -> str:
        match node:
            case ast.UnaryOp(operand=operand):
                self._refuse_operands(node, operand)
                return f"(-{self.write(operand)})"
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                self._refuse_operands(node, left, right)
                return self.language.quotient.format(self.write(left), self.write(right))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                self._refuse_operands(node, left, right, are_whole=True)
                return f"({self.write(left)} {self.language.division} {self.write(right)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                self._refuse_operands(node, left, right, are_whole=isinstance(operator, ast.Mod))
                return f"({self.write(left)} {_ARITHMETIC[type(operator)]} {self.write(right)})"
        _refuse(self.text, node)

    def _refuse_operands(self, node: ast.expr, *operands: ast.expr, are_whole: bool = False) -> None:
        """Raise ConfigurationError where an operand of arithmetic is a string, or has a fraction and may not.

        A string times a number may fill the memory.
        """
        for leaf in (leaf for operand in operands for leaf in _results(operand)):
            if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                _refuse(self.text, node, "texts are no numbers")
        if are_whole and any(map(_has_fraction, operands)):
            _refuse(self.text, node, "// and % divide whole numbers, and an operand may have a fraction")

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


def _results(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an expression that it may result in: of a choice those of both branches."""
    if isinstance(node, ast.IfExp):
        yield from _results(node.body)
        yield from _results(node.orelse)
    else:
        yield node


def _has_fraction(node: ast.expr) -> bool:
    """Return whether the result of an expression may have a fraction, whatever its names are."""
    match node:
        case ast.BinOp(op=ast.Div()) | ast.Constant(value=float()):
            return True
        case ast.BinOp(left=a, right=b) | ast.IfExp(body=a, orelse=b) | ast.Call(args=[a, b]):
            return _has_fraction(a) or _has_fraction(b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _has_fraction(operand)
    return False


def _definitions(node: ast.expr) -> Iterator[ast.expr]:
    """Yield conditions under which an expression divides by no zero; each may rely on those before it."""
    match node:
        case ast.BoolOp(op=operator, values=values):
            for number, value in enumerate(values):
                before: ast.expr = values[0] if number == 1 else ast.BoolOp(operator, values[:number])
                decides = before if isinstance(operator, ast.Or) else ast.UnaryOp(ast.Not(), before)
                for condition in _definitions(value):
                    yield ast.BoolOp(ast.Or(), [decides, condition]) if number else condition
            return
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from _definitions(test)
            yield from (ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), test), one]) for one in _definitions(body))
            yield from (ast.BoolOp(ast.Or(), [test, one]) for one in _definitions(orelse))
            return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _definitions(child)
    match node:
        case (
            ast.BinOp(op=ast.FloorDiv() | ast.Mod() | ast.Div(), right=divisor)
            | ast.Call(func=ast.Name(id="ceil_div" | "round_up"), args=[_, divisor])
        ):
            if not (isinstance(divisor, ast.Constant) and divisor.value):
                yield ast.Compare(divisor, [ast.NotEq()], [ast.Constant(0)])


def _refuse(text: str, node: ast.AST, reason: str = "") -> NoReturn:
    power = "make the power the parameter, and leave its logarithm out"
    reasons: dict[type[ast.operator], str] = {ast.Pow: "multiply instead", ast.LShift: power}
    if isinstance(node, ast.BinOp):
        reason = reason or reasons.get(type(node.op), "")
    reason = reason and f": {reason}"
    raise ConfigurationError(f"expression {text[:200]!r} may not use {ast.unparse(node)[:200]!r}{reason}")


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
