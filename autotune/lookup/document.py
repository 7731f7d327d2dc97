"""Reads JSON documents as hostile input: their size is bounded, and errors name the path of the faulty value."""

import json
import re
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.errors import TableError

MAX_BYTES = 32 * 2**20
MAX_TEXT = 1024
MAX_NUMBER = 2**63 - 1

_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Control characters, line separators, bidirectional formatting, surrogates, byte order marks, noncharacters."""
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def printable(text: str) -> str:
    """Return the text as a document may contain it: cut to MAX_TEXT, unprintable characters replaced by spaces."""
    return _UNPRINTABLE.sub(" ", text)[:MAX_TEXT]


def visible(name: str) -> str:
    """Return the beginning of a name, safe to display."""
    return _UNPRINTABLE.sub("?", name[:80])


class Node:
    """A value of the document and its path."""

    def __init__(self, value: Any, path: str) -> None:
        self.value = value
        self.path = path

    def wrong(self, what: str, *, hint: str = "") -> TableError:
        return TableError(f"{self.path}: {what}" if self.path else what, hint=hint)

    def record(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, "Node"]:
        """Return the members of an object, which must have all of `required` and may also have those of `optional`."""
        members = self.members()
        for name in members:
            if name not in required and name not in optional:
                raise self.wrong(f"has an unknown member {name[:80]!r}")
        for name in required:
            if name not in members:
                raise self.wrong(f"{name} is missing")
        return members

    def members(self) -> dict[str, "Node"]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object, not {_kind(self.value)}")
        prefix = f"{self.path}." if self.path else ""
        return {name: Node(value, prefix + visible(name)) for name, value in self.value.items()}

    def items(self, most: int | None = None) -> list["Node"]:
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list, not {_kind(self.value)}")
        if most is not None and len(self.value) > most:
            raise self.wrong(f"has more than {most} items")
        return [Node(value, f"{self.path}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"must be a text, not {_kind(self.value)}")
        if len(self.value) > MAX_TEXT:
            raise self.wrong(f"is longer than {MAX_TEXT} characters")
        if _UNPRINTABLE.search(self.value):
            raise self.wrong("has a control character")
        return self.value

    def slug(self) -> str:
        if len(self.text()) > 64 or not _SLUG.fullmatch(self.value):
            raise self.wrong("must be up to 64 small letters, digits and single hyphens")
        return str(self.value)

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong(f"must be true or false, not {_kind(self.value)}")
        return self.value

    def whole(self, most: int = MAX_NUMBER) -> int:
        if type(self.value) is not int:
            raise self.wrong(f"must be a whole number, not {_kind(self.value)}")
        if not 0 <= self.value <= most:
            raise self.wrong(f"must be from 0 to {most}, not {self.value}")
        return self.value

    def number(self, most: float) -> float:
        value = self._float()
        if not (isfinite(value) and 0 < value <= most):
            raise self.wrong(f"must be above 0 and at most {most:g}, not {value}")
        return value

    def signed(self, most: float) -> float:
        value = self._float()
        if not (isfinite(value) and abs(value) <= most):
            raise self.wrong(f"must be from -{most:g} to {most:g}, not {value}")
        return value

    def _float(self) -> float:
        if type(self.value) not in (int, float):
            raise self.wrong(f"must be a number, not {_kind(self.value)}")
        try:
            return float(self.value)
        except OverflowError as error:  # an integer may have hundreds of digits
            raise self.wrong("is too large") from error


def read_file(path: Path) -> bytes:
    """Return the bytes of a file. Raises TableError if it is too large or cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _too_large()
        with path.open("rb") as file:
            # The size of a pipe or a device is not known beforehand.
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}") from error


def _too_large() -> TableError:
    return TableError(f"a table has at most {MAX_BYTES // 2**20} MiB", hint="export one device at a time")


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
    return Node(data, "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"a member {name[:80]!r} stands twice in one object")
        found[name] = value
    return found


def _parse_whole(digits: str) -> int:
    if len(digits) > 20:
        raise TableError(f"the number {digits[:20]}... is too large")
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise TableError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
