"""Converts predictors to plain data, and back as hostile input; `db/table.schema.json` is the schema of that data."""

import json
from collections.abc import Iterable
from typing import Any

from autotune.codec import Node, parse
from autotune.errors import ProblemError
from autotune.lookup.predictor import (
    COSTS,
    FAVOURS,
    MOST_SHARED,
    Cost,
    Costs,
    Evaluation,
    Model,
    Neighbours,
    Point,
    Predictor,
    Reach,
)
from autotune.lookup.values import read_configuration, read_family
from autotune.model.configuration import Configuration
from autotune.space.family import KernelFamily

MAX_PREDICTORS = 64
"""Maximum number for one device."""
MAX_CONFIGURATIONS = 32
MAX_POINTS = 1024
MAX_SIZE = 2**63 - 1
MAX_COST = 1e15
"""Nanoseconds."""
MAX_STEP = 2**20
MAX_REACH = 100.0


def write_document(predictors: Iterable[Predictor]) -> str:
    """Return the predictors of one device as the text that a database stores."""
    return json.dumps([to_plain(predictor) for predictor in predictors], allow_nan=False)


def read_document(text: str) -> list[Predictor]:
    """Read such a text. Raises TableError that names the path in the document."""
    return read_predictors(parse(text))


def to_plain(predictor: Predictor) -> dict[str, Any]:
    """Return the predictor as plain data for JSON."""
    data = {
        "family": predictor.example.family,
        "example": predictor.example.to_dict(),
        "sizes": predictor.sizes,
        "configurations": [configuration.to_dict() for configuration in predictor.configurations],
        "model": _plain_model(predictor.model),
        "favours": predictor.favours,
        "expected": _plain_evaluation(predictor.expected),
    }
    if predictor.measured:
        data["measured"] = _plain_evaluation(predictor.measured)
    if predictor.left_to_default:
        data["left_to_default"] = predictor.left_to_default
    return data


def read_predictors(node: Node) -> list[Predictor]:
    """Read the predictors of one device. Raises TableError that names the path."""
    found: list[Predictor] = []
    for item in node.items(MAX_PREDICTORS):
        predictor = _read_predictor(item)
        if any(predictor.example.is_comparable(other.example) for other in found):
            raise item.wrong("the kind of problem stands twice")
        found.append(predictor)
    return found


def _plain_model(model: Model) -> dict[str, Any]:
    match model:
        case Neighbours(count=count, points=points):
            return {"kind": "neighbours", "count": count, "points": [vars(point) for point in points]}
        case Costs(terms=terms):
            return {"kind": "costs", "terms": [vars(term) for term in terms]}


def _plain_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    steps = {name: vars(getattr(evaluation, name)) for name in FAVOURS}
    return {"sizes": evaluation.sizes, **steps}


def _read_predictor(node: Node) -> Predictor:
    members = node.record(
        ("family", "example", "sizes", "configurations", "model", "favours", "expected"),
        ("measured", "left_to_default"),
    )
    family = read_family(members["family"])
    try:
        example = family.problem_type.from_dict({n: m.value for n, m in members["example"].members().items()})
    except ProblemError as error:
        raise members["example"].wrong(error.message, hint=error.hint) from error
    configurations = _read_configurations(members["configurations"], family, read_configuration)
    if members["favours"].value not in FAVOURS:
        raise members["favours"].wrong(f"must be one of {', '.join(FAVOURS)}")
    axes, left = len(example.size_vector), members.get("left_to_default")
    return Predictor(
        example=example,
        sizes=members["sizes"].whole(2**31 - 1),
        configurations=configurations,
        model=_read_model(members["model"], axes, len(configurations)),
        favours=members["favours"].value,
        expected=_read_evaluation(members["expected"]),
        measured=_read_evaluation(members["measured"]) if "measured" in members else None,
        left_to_default=tuple(item.whole(axes - 1) for item in left.items(axes)) if left else (),
    )


def _read_configurations(node: Node, family: KernelFamily, read: Any) -> tuple[Configuration, ...]:
    found = tuple(read(item, family) for item in node.items(MAX_CONFIGURATIONS))
    if not found:
        raise node.wrong("needs at least one")
    return found


def _read_model(node: Node, axes: int, choices: int) -> Model:
    kind = node.members().get("kind")
    if kind is None:
        raise node.wrong("kind is missing")
    match kind.value:
        case "neighbours":
            members = node.record(("kind", "count", "points"))
            count = members["count"].whole(MAX_POINTS)
            if not count:
                raise members["count"].wrong("must be at least 1")
            points = [_read_point(item, axes, choices) for item in _some(members["points"], MAX_POINTS)]
            return Neighbours(count=count, points=tuple(points))
        case "costs":
            terms = node.record(("kind", "terms"))["terms"]
            return Costs(terms=_read_costs(terms, axes, choices))
        case _:
            raise kind.wrong("must be neighbours or costs")


def _read_point(node: Node, axes: int, choices: int) -> Point:
    members = node.record(("sizes", "losses"))
    sizes = _exactly(members["sizes"], axes)
    for item in sizes:
        if not item.whole(MAX_SIZE):
            raise item.wrong("must be at least 1")
    losses = tuple(item.number(-1e3, 1e3) for item in _exactly(members["losses"], choices))
    return Point(sizes=tuple(item.value for item in sizes), losses=losses)


def _read_costs(node: Node, axes: int, choices: int) -> tuple[Cost, ...]:
    items = _exactly(node, choices)
    costs = tuple(_read_cost(item, axes) for item in items)
    shared = [[part > 0 for part in cost.tile] for cost in costs]
    for item, of_item in zip(items, shared, strict=True):
        if of_item != shared[0] or sum(of_item) > MOST_SHARED:
            raise item.wrong(f"all must share out the same sizes, at most {MOST_SHARED}")
    return costs


def _read_cost(node: Node, axes: int) -> Cost:
    members = node.record(("tile", "split", "step", "at_once", "weights"))
    for name in ("split", "step", "at_once"):
        if not members[name].whole(MAX_STEP):
            raise members[name].wrong("must be at least 1")
    return Cost(
        tile=tuple(item.whole(MAX_STEP) for item in _exactly(members["tile"], axes)),
        split=members["split"].value,
        step=members["step"].value,
        at_once=members["at_once"].value,
        weights=tuple(item.number(-MAX_COST, MAX_COST) for item in _exactly(members["weights"], len(COSTS))),
    )


def _read_evaluation(node: Node) -> Evaluation:
    members = node.record(("sizes", *FAVOURS))
    predicted, nearest, default = (_read_reach(members[name]) for name in FAVOURS)
    return Evaluation(sizes=members["sizes"].whole(2**31 - 1), predicted=predicted, nearest=nearest, default=default)


def _read_reach(node: Node) -> Reach:
    members = node.record(("mean", "median", "low", "worst"))
    return Reach(**{name: member.number(0, MAX_REACH, excludes_least=True) for name, member in members.items()})


def _some(node: Node, most: int) -> list[Node]:
    items = node.items(most)
    if not items:
        raise node.wrong("needs at least one item")
    return items


def _exactly(node: Node, count: int) -> list[Node]:
    items = node.items(count)
    if len(items) != count:
        raise node.wrong(f"needs {count} items")
    return items
