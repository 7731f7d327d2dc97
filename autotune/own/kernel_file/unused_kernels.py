"""Leaves out the kernels of a source that a kernel file does not use: one that does not build would fail the others.

Only what is plain is left out: a kernel whose name occurs nowhere else, between whole conditions of the preprocessor.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice

_MOST_KERNELS, _LONGEST = 500, 100_000
"""Kernels of a source that are looked at, and characters of their arguments and body; the others are left."""
_HIDDEN = re.compile(r'//(?:\\\r?\n|[^\n])*|/\*(?s:.*?)(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
"""Comments, strings and characters."""
_ATTRIBUTE = r"__attribute__\s*\(\([^;{}]{0,300}?\)\)"
_HEAD = re.compile(
    rf"\b(?:__)?kernel\b(?:\s{{1,99}}(?:{_ATTRIBUTE}|void))*?\s+void\s+(?:{_ATTRIBUTE}\s*)?([A-Za-z_]\w*)\s*\("
)
_BETWEEN = re.compile(rf"(?:\s|{_ATTRIBUTE})*\{{")
_DIRECTIVE = re.compile(r"(?m)^[ \t]*#[ \t]*(\w+)")
_DEFINITION = re.compile(r"(?m)^[ \t]*#[ \t]*define\b(?:\\\r?\n|[^\n])*")
_BEFORE = re.compile(r"(?:^|[;}]|\n[ \t]*#[^\n]*\n)\s*\Z")
"""What ends the declaration before a kernel."""


def without_unused(text: str, used: Collection[str]) -> str:
    """Return a source in which kernels other than those `used` are blank; lines keep their numbers."""
    plain = _HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    if any(found[0].count("{") != found[0].count("}") for found in _DEFINITION.finditer(plain)):
        return text  # brackets do not show where a function ends
    counts = Counter(re.findall(r"[A-Za-z_]\w*", plain))
    closings = {**_closings(plain, "()"), **_closings(plain, "{}")}
    spans = []
    for head in islice(_HEAD.finditer(plain), _MOST_KERNELS):
        if head[1] not in used and counts[head[1]] == 1:
            end = _end(plain, head.end(), closings)
            is_alone = _BEFORE.search(plain[max(0, head.start() - 2000) : head.start()])
            if is_alone and 0 < end - head.end() <= _LONGEST and _is_whole(plain[head.start() : end]):
                spans.append((head.start(), end))
    for start, end in reversed(spans):
        text = text[:start] + re.sub(r"[^\n]", "", text[start:end]) + text[end:]
    return text


def _end(plain: str, start: int, closings: Mapping[int, int]) -> int:
    """Return where the body ends of a function whose arguments begin here; 0 where it has none."""
    arguments = closings.get(start)
    body = _BETWEEN.match(plain, arguments) if arguments else None
    return closings.get(body.end(), 0) if body else 0


def _closings(plain: str, pair: str) -> dict[int, int]:
    """Return, by the place behind each bracket that is closed, the place behind the bracket that closes it."""
    found, still_open = dict[int, int](), list[int]()
    for bracket in re.finditer(f"[{re.escape(pair)}]", plain):
        if bracket[0] == pair[0]:
            still_open.append(bracket.end())
        elif still_open:
            found[still_open.pop()] = bracket.end()
    return found


def _is_whole(part: str) -> bool:
    """Return whether a part of a source has only whole conditions, and no definition that others may need."""
    depth = 0
    for word in _DIRECTIVE.findall(part):
        depth += word.startswith("if") - (word == "endif")
        if depth < 0 or (not depth and word.startswith("el")) or word in ("define", "undef", "include"):
            return False
    return depth == 0
