"""The text of an expression in Python or C, written from its tree, and what a tree may hold and result in."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import NoReturn

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
    floors: Mapping[str, str]
    """How ``//``, ``%`` and the calls that divide are written where an operand may be negative, if not as elsewhere."""


PYTHON = _Language(
    all_of=" & ", any_of=" | ", truth="({} != 0)", negation="({} == False)", division="//", number=repr,
    quotient="({} / {})", guards={" & ": "_all_of", " | ": "_any_of"}, choice="_choose({}, lambda: {}, lambda: {})",
    calls={name: f"{name}({{a}}, {{b}})" for name in ("min", "max", "ceil_div", "round_up")},
    floors={},
)  # fmt: skip
"""For scalars and arrays: `and` becomes `&` on truth values."""
C = _Language(
    all_of=" && ", any_of=" || ", truth="{}", negation="(!{})", division="/", quotient="((double){} / {})",
    number=lambda value: str(int(value)) if isinstance(value, bool) else repr(value), choice="({} ? {} : {})",
    guards={}, floors={},
    calls={
        "min": "({a} < {b} ? {a} : {b})",
        "max": "({a} > {b} ? {a} : {b})",
        "ceil_div": "(({a} + {b} - 1) / {b})",
        "round_up": "(({a} + {b} - 1) / {b} * {b})",
    },
)  # fmt: skip

FLOORING_C = replace(
    C,
    floors={
        "%": "(({a} % {b} + {b}) % {b})",
        "//": "(({a} - ({a} % {b} + {b}) % {b}) / {b})",
        "ceil_div": "(({a} + (-{a} % {b} + {b}) % {b}) / {b})",
        "round_up": "({a} + (-{a} % {b} + {b}) % {b})",
    },
)
"""C that rounds quotients down as Python does: by itself, C rounds them towards 0."""


@dataclass(frozen=True)
class Writer:
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
                if language.guards and any(any(True for _ in definitions_of(value)) for value in values[1:]):
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
                return self._operation(function, language.calls[function], a, b)
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
                return self._operation("//", f"({{a}} {self.language.division} {{b}})", left, right)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                self._refuse_operands(node, left, right, are_whole=isinstance(operator, ast.Mod))
                sign = _ARITHMETIC[type(operator)]
                return self._operation(sign, f"({{a}} {sign} {{b}})", left, right)
        _refuse(self.text, node)

    def _operation(self, operation: str, form: str, a: ast.expr, b: ast.expr) -> str:
        """Return an operation in this form, or in the language's for operands of which one may be negative."""
        if operation in self.language.floors and (may_be_negative(a) or may_be_negative(b)):
            form = self.language.floors[operation]
        return form.format(a=self.write(a), b=self.write(b))

    def _refuse_operands(self, node: ast.expr, *operands: ast.expr, are_whole: bool = False) -> None:
        """Raise ConfigurationError where an operand of arithmetic is a string, or has a fraction and may not.

        A string times a number may fill the memory.
        """
        for leaf in (leaf for operand in operands for leaf in results_of(operand)):
            if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                _refuse(self.text, node, "texts are no numbers")
        if are_whole and any(map(has_fraction, operands)):
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


def results_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an expression that it may result in: of a choice those of both branches."""
    if isinstance(node, ast.IfExp):
        yield from results_of(node.body)
        yield from results_of(node.orelse)
    else:
        yield node


def has_fraction(node: ast.expr) -> bool:
    """Return whether the result of an expression may have a fraction, whatever its names are."""
    match node:
        case ast.BinOp(op=ast.Div()) | ast.Constant(value=float()):
            return True
        case ast.BinOp(left=a, right=b) | ast.IfExp(body=a, orelse=b) | ast.Call(args=[a, b]):
            return has_fraction(a) or has_fraction(b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return has_fraction(operand)
    return False


def may_be_negative(node: ast.expr) -> bool:
    """Return whether an expression may be less than 0, although none of its names is."""
    match node:
        case ast.BinOp(op=ast.Sub()) | ast.UnaryOp(op=ast.USub()):
            return True
        case ast.BinOp(op=ast.Mod(), right=divisor):
            return may_be_negative(divisor)
        case ast.Call(func=ast.Name(id="max"), args=values):
            return all(map(may_be_negative, values))
        case ast.BinOp(left=a, right=b) | ast.IfExp(body=a, orelse=b) | ast.Call(args=[a, b]):
            return may_be_negative(a) or may_be_negative(b)
    return False


def definitions_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yield conditions under which an expression divides by no zero; each may rely on those before it."""
    match node:
        case ast.BoolOp(op=operator, values=values):
            for number, value in enumerate(values):
                before: ast.expr = values[0] if number == 1 else ast.BoolOp(operator, values[:number])
                decides = before if isinstance(operator, ast.Or) else ast.UnaryOp(ast.Not(), before)
                for condition in definitions_of(value):
                    yield ast.BoolOp(ast.Or(), [decides, condition]) if number else condition
            return
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from definitions_of(test)
            yield from (ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), test), one]) for one in definitions_of(body))
            yield from (ast.BoolOp(ast.Or(), [test, one]) for one in definitions_of(orelse))
            return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from definitions_of(child)
    match node:
        case (
            ast.BinOp(op=ast.FloorDiv() | ast.Mod() | ast.Div(), right=divisor)
            | ast.Call(func=ast.Name(id="ceil_div" | "round_up"), args=[_, divisor])
        ):
            if not (isinstance(divisor, ast.Constant) and divisor.value):
                yield ast.Compare(divisor, [ast.NotEq()], [ast.Constant(0)])


def _refuse(text: str, node: ast.AST, reason: str = "") -> NoReturn:
    power = "make the power the parameter, and leave its logarithm out"
    products = "multiply instead, or list the powers, as in 1 if step == 0 else 2 if step == 1 else 4"
    reasons: dict[type[ast.operator], str] = {ast.Pow: products, ast.LShift: power}
    if isinstance(node, ast.BinOp):
        reason = reason or reasons.get(type(node.op), "")
    reason = reason and f": {reason}"
    raise ConfigurationError(f"expression {text[:200]!r} may not use {ast.unparse(node)[:200]!r}{reason}")
