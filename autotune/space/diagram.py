"""A decision diagram: the allowed combinations of values, without listing them; and automata of conditions.

A layer is a parameter, an edge a choice of its value; the paths from the root to the end are the allowed combinations,
numbered in lexicographic order. A state keeps only what the remaining constraints need to know of the choices before
it, so millions of paths share a few thousand states. The number of paths below each state converts a path's number to
the path and back.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigurationError
from autotune.model.configuration import Value
from autotune.space.expression import Expression

Numbers = NDArray[np.int64]
Paths = NDArray[np.uint16]
"""Shape (paths, layers): for each layer the index of the chosen value."""

MOST_PATHS = 2**62
MOST_STEPS = 2_000_000
"""Most states times values of a layer."""


class Diagram:
    """A set of combinations of one value from each of several layers, numbered from 0 in lexicographic order."""

    def __init__(self, edges: Sequence[Numbers]) -> None:
        """`edges[layer][state, value]` is the state of the next layer, or -1; the first layer has one state.

        In the last layer any target but -1 ends a path. Raises ConfigurationError for more than MOST_PATHS paths.
        """
        self.edges: list[Numbers] = []
        """As given, with a last state of each layer from which no path is allowed."""
        self.starts: list[Numbers] = []
        """For each edge, the number of paths of its state that precede those of the edge."""
        self._ends: list[Numbers] = []
        below = np.ones(int(edges[-1].max(initial=-1)) + 1, dtype=np.int64)
        for targets in reversed(edges):
            counts = np.append(below, 0)[targets]  # the target -1 indexes the appended 0
            if counts.sum(dtype=np.float64) > MOST_PATHS:
                raise ConfigurationError("the search space has too many configurations to number them")
            ends = np.cumsum(counts, axis=1)
            # The extra last state, also reached as -1, absorbs every path that is not allowed.
            self.edges.insert(0, _with_last(np.where(counts > 0, targets, -1), -1))
            self.starts.insert(0, _with_last(ends - counts, 0))
            self._ends.insert(0, ends)
            below = ends[:, -1]
        self.sizes = tuple(targets.shape[1] for targets in edges)
        self._count = int(below[0])

    @classmethod
    def of_tables(
        cls,
        sizes: Sequence[int],
        tables: Sequence[tuple[Sequence[int], NDArray[np.bool_]]],
        others: Sequence[tuple[Sequence[int], list[Numbers]]] = (),
    ) -> Self:
        """The combinations, with `sizes` values in the layers, that every table allows, and every automaton of others.

        A table comes with the layers it constrains, in ascending order, and has one axis for each of them; an automaton
        has one step for each, as `_automaton` returns.
        """
        if not all(table.any() for _, table in tables) or not all(len(steps[0]) for _, steps in others):
            return cls([np.full((1, size), -1) for size in sizes])
        automata = [(layers, _automaton(table)) for layers, table in tables if not table.all()]
        automata += others
        states = np.zeros((1, len(automata)), dtype=np.int64)
        """Shape (states, automata): the state of each table's automaton after the choices so far; rows are distinct."""
        edges = []
        for layer, size in enumerate(sizes):
            reached = np.repeat(states, size, axis=0)
            values = np.tile(np.arange(size), len(states))
            for column, (layers, steps) in enumerate(automata):
                if layer in layers:
                    reached[:, column] = steps[layers.index(layer)][reached[:, column], values]
            is_allowed = (reached >= 0).all(axis=1)
            states, numbers = distinct(reached[is_allowed])
            targets = np.full(len(reached), -1)
            targets[is_allowed] = numbers
            edges.append(targets.reshape(-1, size))
        return cls(edges)

    def __len__(self) -> int:
        return self._count

    def paths(self, numbers: Numbers) -> Paths:
        """Return the paths, shape (n, layers), with these n numbers, each from 0 to less than the length."""
        found = np.empty((len(numbers), len(self.sizes)), dtype=np.uint16)
        states, rest = np.zeros(len(numbers), dtype=np.int64), numbers.copy()
        for layer, (targets, starts, ends) in enumerate(zip(self.edges, self.starts, self._ends, strict=True)):
            values = (ends.take(states, axis=0) <= rest[:, None]).sum(axis=1)
            found[:, layer] = values
            places = states * targets.shape[1] + values
            rest -= starts.take(places)
            states = targets.take(places)
        return found

    def numbers(self, paths: Paths) -> Numbers:
        """Return the number of each of n paths, shape (n,); -1 for a path that is not allowed."""
        states, found = np.zeros(len(paths), dtype=np.int64), np.zeros(len(paths), dtype=np.int64)
        for layer, (targets, starts) in enumerate(zip(self.edges, self.starts, strict=True)):
            places = states * targets.shape[1] + paths[:, layer]
            found += starts.take(places)
            states = targets.take(places)
        found[states < 0] = -1
        return found

    def nearest(self, wanted: Sequence[int], is_ordered: Sequence[bool]) -> list[int] | None:
        """Return a path near these values, or None if the diagram has no path.

        Greedy: each layer in order takes the nearest value that continues an allowed path, the smaller of two equally
        near ones. In a layer without order all other values are equally far.
        """
        if not self._count:
            return None
        path, state = [], 0
        for targets, value, has_order in zip(self.edges, wanted, is_ordered, strict=True):
            allowed = np.flatnonzero(targets[state] >= 0)
            distances = np.abs(allowed - value) if has_order else allowed != value
            path.append(int(allowed[np.argmin(distances)]))
            state = int(targets[state, path[-1]])
        return path


def _with_last(lines: Numbers, value: int) -> Numbers:
    return np.append(lines, np.full((1, lines.shape[1]), value), axis=0)


def _automaton(table: NDArray[np.bool_]) -> list[Numbers]:
    """Convert a table that allows something into one step per axis: ``[state, value]`` is the next state, -1 if none.

    A state stands for all previous choices that leave the same choices open.
    """
    steps = []
    open_choices = table.reshape(1, -1)
    for size in table.shape:
        after = open_choices.reshape(len(open_choices) * size, -1)
        packed = np.packbits(after, axis=1)
        lines = packed.view(np.dtype((np.void, packed.shape[1])))  # as one element each, faster than along an axis
        _, first, numbers = np.unique(lines, return_index=True, return_inverse=True)
        is_alive = after[first].any(axis=1)
        states = np.where(is_alive, np.cumsum(is_alive) - 1, -1)
        steps.append(states[numbers.ravel()].reshape(len(open_choices), size))
        open_choices = after[first][is_alive]
    return steps


def distinct(lines: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct rows, and for each row its index among them; faster than NumPy for short rows."""
    keys = np.zeros(len(lines), dtype=np.int64)
    for column in lines.T:
        count = int(column.max(initial=0)) + 1
        if int(keys.max(initial=0)) >= MOST_PATHS // count:
            keys = np.unique(keys, return_inverse=True)[1]
        keys = keys * count + column
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return lines[first], numbers


def automaton(
    condition: Expression, choices: Sequence[tuple[str, Sequence[Value]]], known: Mapping[str, Value]
) -> list[Numbers]:
    """Return one step per parameter: ``[state, value]`` is the next state, -1 where no later choice is allowed.

    It is for conditions that relate more combinations than a table can hold. What is left to decide after some choices
    depends only on the values of the parts of a condition that these choices determine, such as a partial product.
    Choices with equal values are one state, so the states stay few where the combinations are many.

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
