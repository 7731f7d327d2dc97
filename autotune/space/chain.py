"""Automata of conditions that relate more combinations than a table can hold.

What is left to decide after some choices depends only on the values of the parts of a condition that these choices
determine, such as a partial product. Choices with equal values are one state, so the states stay few where the
combinations are many.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigurationError
from autotune.model.configuration import Value
from autotune.space.diagram import Numbers, distinct
from autotune.space.expression import Expression

MOST_STEPS = 2_000_000
"""Most states times values of a layer."""


def automaton(
    condition: Expression, choices: Sequence[tuple[str, Sequence[Value]]], known: Mapping[str, Value]
) -> list[Numbers]:
    """Return one step per parameter: ``[state, value]`` is the next state, -1 where no later choice is allowed.

    `choices` are the values of the parameters that the condition names, in order. Raises ConfigurationError when there
    are too many states, ZeroDivisionError when the condition divides by 0 whatever is chosen.
    """
    parts = [f"({part.text})" for part in (*condition.definitions, condition)]
    tree = ast.parse(Expression(" and ".join(parts)).given(dict(known)).text, mode="eval").body
    steps: list[Numbers] = []
    columns: dict[str, NDArray[Any]] = {}
    count = 1
    for layer, (name, values) in enumerate(choices):
        if count * len(values) > MOST_STEPS:
            text = f"{condition.text[:80]!r} relates too many combinations of values"
            raise ConfigurationError(text, hint="divide it into several constraints")
        closed = _Closed({*columns, name}, layer)
        tree = closed.visit(tree)
        given = {**{key: column[:, None] for key, column in columns.items()}, name: np.array(values)[None, :]}
        shape = (count, len(values))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {key: np.broadcast_to(part(given), shape).reshape(-1) for key, part in closed.parts.items()}
        if layer == len(choices) - 1:
            [truth] = found.values() or [np.array(bool(Expression(ast.unparse(tree))({})))]
            steps.append(np.where(np.broadcast_to(truth != 0, count * len(values)), 0, -1).reshape(shape))
            break
        codes = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in found.values()]
        kept, numbers = distinct(np.stack(codes, axis=1) if codes else np.zeros((count * len(values), 1), np.int64))
        firsts = np.full(len(kept), len(numbers))
        np.minimum.at(firsts, numbers, np.arange(len(numbers)))
        columns = {key: column[firsts] for key, column in found.items()}
        steps.append(numbers.reshape(shape))
        count = len(kept)
    return _smallest(steps)


class _Closed(ast.NodeTransformer):
    """Puts a name in the place of each largest part of a condition that has known names only, and keeps the parts."""

    def __init__(self, known: set[str], layer: int) -> None:
        self._known, self._layer = known, layer
        self.parts: dict[str, Expression] = {}
        self._names: dict[str, str] = {}

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr):
            return node
        if self._is_known(node):
            return self._named(node)
        match node:
            case ast.BinOp(op=ast.Add() | ast.Mult() as operator):
                operands = _operands(node, type(operator))
                return _joined(operator, self._together(operands, lambda some: _joined(operator, some)))
            case ast.BoolOp(op=joint, values=values):
                return ast.BoolOp(joint, self._together(values, lambda some: ast.BoolOp(joint, some)))
            case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=options)]):
                equal: list[ast.expr] = [ast.Compare(left, [ast.Eq()], [option]) for option in options]
                return self.visit(ast.BoolOp(ast.Or(), [*equal, *equal[:1]]))
            case ast.Call(args=arguments):
                node.args = [self.visit(argument) for argument in arguments]
                return node
        return self.generic_visit(node)

    def _named(self, node: ast.expr) -> ast.expr:
        text = ast.unparse(node)
        name = self._names.setdefault(text, f"_{self._layer}_{len(self._names)}")
        self.parts[name] = Expression(text)
        return ast.Name(name)

    def _together(self, operands: Sequence[ast.expr], join: Any) -> list[ast.expr]:
        """Return operands whose order does not count, with those that are known as one."""
        known = [one for one in operands if self._is_known(one)]
        others = [self.visit(one) for one in operands if not self._is_known(one)]
        return [*([self._named(join(known) if len(known) > 1 else known[0])] if known else []), *others]

    def _is_known(self, node: ast.expr) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {*_CALLS}
        return bool(names) and names <= self._known


_CALLS = ("min", "max", "ceil_div", "round_up")


def _operands(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, operator):
        return [*_operands(node.left, operator), *_operands(node.right, operator)]
    return [node]


def _joined(operator: ast.operator, operands: Sequence[ast.expr]) -> ast.expr:
    first, *others = operands
    for other in others:
        first = ast.BinOp(first, operator, other)
    return first


def _smallest(steps: Sequence[Numbers]) -> list[Numbers]:
    """Return an automaton in which states that allow the same are one, and those that allow nothing are -1."""
    found: list[Numbers] = []
    numbers = np.zeros(1, np.int64)  # of the only state at the end
    for targets in reversed(steps):
        renamed = np.where(targets < 0, -1, np.append(numbers, -1)[targets])
        rows, inverse = np.unique(renamed, axis=0, return_inverse=True)
        is_alive = (rows >= 0).any(axis=1)
        found.insert(0, rows[is_alive])
        numbers = np.where(is_alive, np.cumsum(is_alive) - 1, -1)[inverse.reshape(-1)]
    return found
