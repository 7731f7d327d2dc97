"""The one reader and writer of values that leave the process: to the network and in tables.

A document is read as hostile input: bounded, and with errors that name the path of what is wrong. Dataclasses are
written and read by walking their fields; annotations hold the bounds of numbers, lists and texts.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import inf, isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin

from autotune.errors import TableError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 32 * 2**20
MAX_TEXT = 1024
MAX_NUMBER = 2**63 - 1
MAX_ITEMS = 1024
"""In a list whose annotation does not say."""

_T = TypeVar("_T")
_E = TypeVar("_E", bound=enum.Enum)


@cache  # compiled when first needed, since the runtime lookup may never need it
def _unprintable() -> re.Pattern[str]:
    """Control characters, line separators, bidirectional formatting, surrogates, byte order marks, noncharacters."""
    return re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")


def printable(text: str) -> str:
    """Return the text as a document may contain it: cut to MAX_TEXT, unprintable characters replaced by spaces."""
    return _unprintable().sub(" ", text)[:MAX_TEXT]


def visible(name: str) -> str:
    """Return the beginning of a name, safe to display."""
    return _unprintable().sub("?", name[:80])


class Node:
    """A value of the document, and its place there: the name of the member or the number of the item in its parent."""

    __slots__ = ("_name", "_parent", "value")

    def __init__(self, value: Any, name: str | int = "", parent: "Node | None" = None) -> None:
        self.value = value
        self._name = name
        self._parent = parent

    @property
    def path(self) -> str:
        """The names and numbers that lead from the root to this value, made only for errors, since it takes time."""
        above = self._parent.path if self._parent else ""
        if isinstance(self._name, int):
            return f"{above}[{self._name}]"
        return f"{above}.{visible(self._name)}" if above else visible(self._name)

    def wrong(self, what: str, *, hint: str = "") -> TableError:
        return TableError(f"{self.path}: {what}" if self.path else what, hint=hint)

    def record(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, "Node"]:
        """Return the members of an object, which must have all of `required` and may also have those of `optional`."""
        members = self.members()
        for name in members:
            if name not in required and name not in optional:
                raise self.wrong(
                    f"has an unknown member {name[:80]!r}", hint=did_you_mean(name, [*required, *optional])
                )
        for name in required:
            if name not in members:
                raise self.wrong(f"{name} is missing")
        return members

    def members(self) -> dict[str, "Node"]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object, not {_kind(self.value)}")
        return {name: Node(value, name, self) for name, value in self.value.items()}

    def member(self, name: str) -> "Node":
        """The member of that name. Raises TableError where there is none."""
        members = self.members()
        if name not in members:
            raise self.wrong(f"{name} is missing")
        return members[name]

    def items(self, most: float = inf, least: int = 0) -> list["Node"]:
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list, not {_kind(self.value)}")
        if len(self.value) > most:
            raise self.wrong(f"has more than {most} items")
        if len(self.value) < least:
            raise self.wrong(f"needs at least {'one item' if least == 1 else f'{least} items'}")
        return [Node(value, number, self) for number, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"must be a string, not {_kind(self.value)}")
        if len(self.value) > MAX_TEXT:
            raise self.wrong(f"is longer than {MAX_TEXT} characters")
        if _unprintable().search(self.value):
            raise self.wrong("has a control character")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong(f"must be true or false, not {_kind(self.value)}")
        return self.value

    def whole(self, most: int = MAX_NUMBER, least: int = 0) -> int:
        if type(self.value) is not int:
            raise self.wrong(f"must be a whole number, not {_kind(self.value)}")
        if not least <= self.value <= most:
            raise self.wrong(f"must be from {least} to {most}, not {self.value}")
        return self.value

    def number(self, least: float, most: float, excludes_least: bool = False) -> float:
        value = self._float()
        is_inside = least < value if excludes_least else least <= value
        if not (isfinite(value) and is_inside and value <= most):
            what = f"above {least:g} and at most {most:g}" if excludes_least else f"from {least:g} to {most:g}"
            raise self.wrong(f"must be {what}, not {value}")
        return value

    def choice(self, kind: type[_E]) -> _E:
        known = {choice.value: choice for choice in kind}
        if self.text() not in known:
            raise self.wrong(f"must be one of {', '.join(known)}")
        return known[self.value]

    def _float(self) -> float:
        if type(self.value) not in (int, float):
            raise self.wrong(f"must be a number, not {_kind(self.value)}")
        try:
            return float(self.value)
        except OverflowError as error:  # an integer may have hundreds of digits
            raise self.wrong("is too large") from error


def read_file(path: "Path") -> bytes:
    """Return the bytes of a file. Raises TableError if it is too large or cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _too_large()
        with path.open("rb") as file:
            # A pipe or a device has no size to look at beforehand.
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}") from error


def _too_large() -> TableError:
    return TableError(f"a table may have at most {MAX_BYTES // 2**20} MiB", hint="export one device at a time")


def parse(source: str | bytes) -> Node:
    """Return the root of the document. Raises TableError if it is too large or not valid JSON."""
    if len(source) > MAX_BYTES:
        raise _too_large()
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=_unique, parse_int=_parse_whole, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise TableError(f"byte {error.start} is not UTF-8 text") from error
    except RecursionError as error:
        raise TableError("lists and objects are nested too deeply") from error
    except json.JSONDecodeError as error:
        raise TableError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    return Node(data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"member {name[:80]!r} occurs twice in one object")
        found[name] = value
    return found


def _parse_whole(digits: str) -> int:
    if len(digits) > 20:
        raise TableError(f"the number {digits[:20]}... is too large")
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise TableError(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    numbers = {int: "a number", float: "one with a fraction or an exponent"}
    return (names | numbers).get(type(value), "a date or time")


# Values


class Bounds(NamedTuple):
    """An annotation that limits a number: `Annotated[float, Bounds(0, 1)]`."""

    least: float
    most: float
    excludes_least: bool = False


class Null(NamedTuple):
    """An annotation naming the value that null stands for: one that JSON cannot represent, such as infinity."""

    value: float


class Pattern(NamedTuple):
    """An annotation with the regular expression that a whole text must match, and the message if it does not."""

    expression: str
    description: str


class Items(NamedTuple):
    """An annotation that limits the number of items of a list, in place of `MAX_ITEMS`."""

    most: int
    least: int = 0


LOCAL: Mapping[str, Any] = {"is_local": True}
"""Metadata of a dataclass field that belongs to one machine or process and is never written or read."""

SLUG = Pattern(r"(?!.{65})[a-z0-9]+(-[a-z0-9]+)*", "must be up to 64 lowercase letters, digits and single hyphens")
COUNT = Bounds(0, 2**31 - 1)
_ANY_COUNT = Bounds(0, MAX_NUMBER)

Reader = Callable[[Node], Any]
_Readers = Mapping[type, Reader]
_ReadValue = Callable[[Node, _Readers], Any]


class _Field(NamedTuple):
    name: str
    read: _ReadValue
    is_optional: bool
    omitted: Any
    """The value that is not written."""


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    """Return the fields that are written and read. In a class with `is_sparse`, those with a default may be missing.

    With `omits_defaults` they may be missing too, and are left out by `write` while they have their default.
    """
    omits, missing = getattr(kind, "omits_defaults", False), dataclasses.MISSING
    is_sparse = omits or getattr(kind, "is_sparse", False)
    found = []
    for field in dataclasses.fields(kind):
        if not field.metadata.get("is_local"):
            has_default = field.default is not missing or field.default_factory is not missing
            omitted = field.default if omits else missing
            found.append(_Field(field.name, _reader(field.type), is_sparse and has_default, omitted))
    return tuple(found)


def write(value: Any, *, without: Sequence[str] = ()) -> Any:
    """Return the JSON form of a value, walking dataclasses; `without` names fields of the outermost one to leave out.

    `read` is the inverse. Characters that a reader would refuse become spaces; numbers that are not finite become null.
    """
    if isinstance(value, float):  # the most frequent kinds come first
        return value if isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple | list):
        return [write(item) for item in value]
    if hasattr(value, "to_dict"):
        return write(value.to_dict())
    if isinstance(value, Mapping):
        return {name: write(item) for name, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    plain = {}
    for field in _fields(cast("Any", type(value))):
        item = getattr(value, field.name)
        if field.name not in without and item != field.omitted:
            plain[field.name] = write(item)
    return plain


def read(
    kind: type[_T],
    node: Node,
    *,
    given: Mapping[str, Any] = MappingProxyType({}),
    ignored: Collection[str] = (),
    readers: _Readers = MappingProxyType({}),
) -> _T:
    """Read a dataclass from a document, treating it as hostile input: the inverse of `write`.

    Every field must be a member, except those in `given`, which supplies their values, and fields that may be missing
    (see `_fields`). Other members are refused, except those that `ignored` names. Values of a type in `readers` are
    read by that function, at any depth. Raises TableError, which names the path of the faulty value.
    """
    fields = [field for field in _fields(cast("Any", kind)) if field.name not in given]
    required = [field.name for field in fields if not field.is_optional]
    optional = [field.name for field in fields if field.is_optional]
    members = node.record(required, (*optional, *ignored))
    values = {field.name: field.read(members[field.name], readers) for field in fields if field.name in members}
    return kind(**values, **given)


# What an annotation says is worked out once: documents have many values of few types.


def _reader(annotation: Any) -> _ReadValue:
    """Return the function that reads values of an annotated type."""
    wanted, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    nulls: list[Any] = [mark.value for mark in marks if isinstance(mark, Null)]
    options = list(get_args(wanted)) if isinstance(wanted, UnionType) else [wanted]
    if NoneType in options:
        nulls.append(None)
        options.remove(NoneType)
    read_value = _reader_of_union(options, marks) if options[1:] else _reader_of_one(options[0], marks)
    if not nulls:
        return read_value
    return lambda node, readers: nulls[0] if node.value is None else read_value(node, readers)


def _reader_of_union(options: Sequence[Any], marks: Sequence[Any]) -> _ReadValue:
    """Return the function for several types; what is of none of them is read as the last that is not text."""
    readers_of = {get_origin(option) or option: _reader_of_one(option, marks) for option in options}
    last = [option for option in options if option is not str][-1]
    read_last = readers_of[get_origin(last) or last]
    kinds: dict[type, Any] = {list: tuple, dict: Mapping}

    def read_any(node: Node, readers: _Readers) -> Any:
        kind = type(node.value)
        return readers_of.get(kinds.get(kind, kind), read_last)(node, readers)

    return read_any


def _reader_of_one(wanted: Any, marks: Sequence[Any]) -> _ReadValue:
    if get_origin(wanted) is tuple:
        read_item = _reader(get_args(wanted)[0])
        most, least = next((mark for mark in marks if isinstance(mark, Items)), Items(MAX_ITEMS))
        return lambda node, readers: tuple([read_item(item, readers) for item in node.items(most, least)])
    if get_origin(wanted) in (dict, Mapping):
        read_member = _reader(get_args(wanted)[1])
        return lambda node, readers: {name: read_member(item, readers) for name, item in _named(node)}
    bounds = next((mark for mark in marks if isinstance(mark, Bounds)), _ANY_COUNT)
    if wanted is bool:
        return lambda node, _: node.truth()
    if wanted is str:
        patterns = [(re.compile(mark.expression), mark.description) for mark in marks if isinstance(mark, Pattern)]
        return lambda node, _: _read_text(patterns, node)
    if wanted is int:
        return lambda node, _: node.whole(int(bounds.most), int(bounds.least))
    if wanted is float:
        return lambda node, _: node.number(*bounds)
    return lambda node, readers: _read_other(wanted, node, readers)


def _named(node: Node) -> Iterable[tuple[str, Node]]:
    """Return the members of an object whose names are data, as hostile as any other text."""
    members = node.members()
    if len(members) > MAX_ITEMS:
        raise node.wrong(f"has more than {MAX_ITEMS} members")
    return [(Node(name, "a name", node).text(), member) for name, member in members.items()]


def _read_other(wanted: Any, node: Node, readers: _Readers) -> Any:
    if wanted in readers:
        return readers[wanted](node)
    if dataclasses.is_dataclass(wanted):
        return read(cast("type[Any]", wanted), node, readers=readers)
    if issubclass(wanted, enum.Enum):
        return node.choice(wanted)
    raise TypeError(f"a value of type {wanted} cannot be read")


def _read_text(patterns: Sequence[tuple[re.Pattern[str], str]], node: Node) -> str:
    text = node.text()
    for expression, description in patterns:
        if not expression.fullmatch(text):
            raise node.wrong(description)
    return text
