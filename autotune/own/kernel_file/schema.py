"""The JSON schema of kernel files, for editors, made from the annotations that reading obeys."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

from autotune.codec import Bounds, Items, Pattern
from autotune.own.kernel_file.format import KernelFile

_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """Return the schema, of JSON Schema's draft 2020-12."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kernel file", **_of(KernelFile)}


def _of(kind: Any) -> dict[str, Any]:
    wanted, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if isinstance(wanted, UnionType):
        options = [_of(Annotated[option, *marks] if marks else option) for option in get_args(wanted)]
        options = [option for option, one in zip(options, get_args(wanted), strict=True) if one is not NoneType]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if get_origin(wanted) is tuple:
        items = next((mark for mark in marks if isinstance(mark, Items)), None)
        limits = {"minItems": items.least, "maxItems": items.most} if items else {}
        return {"type": "array", "items": _of(get_args(wanted)[0]), **limits}
    if get_origin(wanted) is Mapping:
        return {"type": "object", "additionalProperties": _of(get_args(wanted)[1])}
    if dataclasses.is_dataclass(wanted):
        return _of_class(wanted)
    return {"type": _TYPES.get(wanted, "null"), **_limits(wanted, marks)}


def _limits(wanted: Any, marks: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mark in marks:
        if isinstance(mark, Pattern) and wanted is str:
            found["pattern"] = f"^(?:{mark.expression})$"
        if isinstance(mark, Bounds) and wanted in (int, float):
            found |= {"minimum": mark.least, "maximum": mark.most}
    return found


def _of_class(kind: Any) -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(kind) if not field.metadata.get("is_local")]
    meanings = _meanings(kind)
    missing = dataclasses.MISSING
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "additionalProperties": False,
        "required": [f.name for f in fields if f.default is missing and f.default_factory is missing],
        "properties": {
            f.name: _of(f.type) | ({"description": meanings[f.name]} if f.name in meanings else {}) for f in fields
        },
    }


def _meanings(kind: Any) -> dict[str, str]:
    """Return the docstrings of a class's fields, which follow them in the source."""
    sources = [inspect.getsource(one) for one in reversed(kind.__mro__) if "__dataclass_fields__" in vars(one)]
    found = re.findall(r'^    (\w+): .*(?:\n        .*)*\n    """((?:.|\n)*?)"""', "\n".join(sources), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
