"""Reads families, problems, configurations and predictors as hostile input: only what a kernel family declares.

`db/table.schema.json` is the schema of predictors, too.
"""

import json
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from autotune.codec import Node, Reader, parse, read, write
from autotune.errors import ProblemError, TableError
from autotune.kernels import family_names, find_family, is_family
from autotune.lookup.predictor import COSTS, MOST_SHARED, Predictor
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

MAX_PREDICTORS = 64
"""Maximum number for one device."""


def readers_for(family: KernelFamily) -> dict[type, Reader]:
    """Return the readers of problems and configurations of a family, for `codec.read`."""
    return {
        **dict.fromkeys((Problem, family.problem_type), lambda node: read_problem(node, family)),
        Configuration: lambda node: read_configuration(node, family),
    }


def read_family(node: Node) -> KernelFamily:
    """Return the kernel family with this name."""
    # The name selects code to load, so it must be registered.
    if not is_family(node.text()):
        raise node.wrong(f"there is no kernel family {node.value[:80]!r}, only {', '.join(family_names())}")
    return find_family(node.value)


def read_problem(node: Node, family: KernelFamily) -> Problem:
    """Return the problem, whose sizes and types must be valid for the family."""
    for member in node.members().values():
        if isinstance(member.value, str):
            member.text()
    try:
        return family.problem_type.from_dict(node.value)
    except ProblemError as error:
        raise node.wrong(error.message, hint=error.hint) from error


def read_configuration(node: Node, family: KernelFamily) -> Configuration:
    """Return the configuration, which the family must declare."""
    members = node.members()
    if "algorithm" not in members:
        raise node.wrong("algorithm is missing")
    for name, member in members.items():
        if type(member.value) not in (int, str) or (name == "algorithm" and type(member.value) is not str):
            raise member.wrong(f"must be {'a string' if name == 'algorithm' else 'a whole number or a string'}")
    values = {name: member.value for name, member in members.items() if name != "algorithm"}
    configuration = family.complete(
        Configuration(algorithm=members["algorithm"].value, values=tuple(sorted(values.items())))
    )
    if misfits := family.misfits(configuration):
        raise node.wrong(misfits[0])
    return configuration


# Predictors


def write_predictors(predictors: Iterable[Predictor]) -> str:
    """Return the predictors of one device as the text that a database stores; `read_predictors` reads it, parsed."""
    return json.dumps([plain_predictor(predictor) for predictor in predictors], allow_nan=False)


def plain_predictor(predictor: Predictor) -> dict[str, Any]:
    """Return the predictor as plain data for JSON."""
    return {"family": predictor.example.family, **write(predictor)}


def read_document(text: str, place: object, slug: str) -> list[Predictor]:
    """Read a text of `write_predictors`. Raises TableError that names the database, the device and the path."""
    try:
        return read_predictors(parse(text))
    except TableError as error:
        raise TableError(f"{place}: what predicts on {slug}: {error.message}", hint=error.hint) from error


def read_predictors(node: Node) -> list[Predictor]:
    """Read the predictors of one device. Raises TableError that names the path."""
    found: list[Predictor] = []
    for item in node.items(MAX_PREDICTORS):
        predictor = read(Predictor, item, beside=("family",), readers=readers_for(read_family(item.member("family"))))
        _check(predictor, item)
        if any(predictor.example.is_comparable(other.example) for other in found):
            raise item.wrong("the kind of problem stands twice")
        found.append(predictor)
    return found


def _check(predictor: Predictor, node: Node) -> None:
    """Raise TableError where lists do not fit the problem and the configurations, or each other."""
    for path, items, count in _lists(predictor):
        if len(items) != count:
            raise Node(None, path, node).wrong(f"needs {count} items")
    axes = len(predictor.example.size_vector)
    for item in node.members()["left_to_default"].items(axes) if predictor.left_to_default else ():
        item.whole(axes - 1)
    shared = [[part > 0 for part in term.tile] for term in predictor.model.terms]
    for number, parts in enumerate(shared):
        if parts != shared[0] or sum(parts) > MOST_SHARED:
            place = Node(None, f"model.terms[{number}]", node)
            raise place.wrong(f"all must share out the same sizes, at most {MOST_SHARED}")


def _lists(predictor: Predictor) -> Iterator[tuple[str, Sized, int]]:
    """Yield the path of each list whose length follows from other values, the list, and that length."""
    terms = predictor.model.terms
    yield "model.terms", terms, len(predictor.configurations)
    for number, term in enumerate(terms):
        yield f"model.terms[{number}].tile", term.tile, len(predictor.example.size_vector)
        yield f"model.terms[{number}].weights", term.weights, len(COSTS)
