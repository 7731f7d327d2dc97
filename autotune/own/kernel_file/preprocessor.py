"""What the preprocessor makes of a source: branches that it leaves out, and macros replaced, except by numbers.

Macros that stand for a number keep their names, since a kernel file may choose them.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from autotune.errors import ConfigurationError
from autotune.space.expression import Expression

_STRING = r'"(?:\\.|[^"\\\n])*"'
_TOKEN = re.compile(rf"{_STRING}|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d[\w.]*|\s+|##|(?s:.)")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)")
_DEFINITION = re.compile(r"(\w+)(?:\(([^()]*)\))?[ \t]*(.*)")
_DEFINED = re.compile(r"\bdefined[ \t]*\(?[ \t]*(\w+)[ \t]*\)?")
_NAME = re.compile(r"\b(?!defined\b)[A-Za-z_]\w*")
NUMBER = re.compile(r"\(?(\d{1,9})[uU]?\)?")
OF_COMPILER = re.compile("__|cl_|CL_")
"""How names begin that the compiler may define."""
_MOST_TOKENS = 100_000
"""Results of macros, in one source: more are left as they are."""
_MOST_OF_CALL = 5_000
"""Tokens of a call; a longer one, or one without an end, is none."""
_DEEPEST = 8
"""Macros in arguments of macros."""
_LONGEST_CONDITION = 500


class _Token(NamedTuple):
    text: str
    start: int
    """Where in the source it stands, or the macro that it comes from."""
    end: int
    hidden: frozenset[str] = frozenset()
    """Macros that it comes from, which are not replaced again."""


@dataclass(frozen=True)
class _Macro:
    parameters: Sequence[str] | None
    value: str
    number: str
    """Its value, if that is a number."""


@dataclass(frozen=True, kw_only=True)
class Preprocessed:
    """The text after the preprocessor, and where its parts come from."""

    text: str
    origins: Sequence[_Token]
    _source: str
    _starts: list[int]

    def origin(self, start: int, end: int) -> str:
        """Return how the source writes a part of the text; the part itself, if it is only a part of a macro."""
        first = self.origins[bisect_right(self._starts, start) - 1]
        last = self.origins[bisect_right(self._starts, end - 1) - 1]
        is_of_macro = (first.start, first.end) == (last.start, last.end) and first.hidden
        return self.text[start:end] if is_of_macro else self._source[first.start : last.end]


def without_comments(text: str) -> str:
    """Return a source in which each comment is a space or its line ends, strings are empty, and lines are joined."""

    def without(found: re.Match[str]) -> str:
        return '""' if found[0][0] == '"' else "\n" * found[0].count("\n") or " "

    return re.sub(rf"{_STRING}|//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)", without, re.sub(r"\\\r?\n", "", text))


def preprocess(source: str, is_unknown: Callable[[str], bool], assumed: bool | None = None) -> Preprocessed:
    """Return what the preprocessor makes of a source without comments.

    A condition on a name that `is_unknown` counts as `assumed`; if that is None, all its branches stay. Other names
    that the source does not define are undefined.
    """
    state = _Preprocessor(is_unknown, assumed)
    tokens = [token for start, end in state.live(source) for token in state.replaced(_tokens(source, start, end))]
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token.text))
    return Preprocessed(
        text=_text(tokens), origins=tokens or [_Token("", 0, 0)], _source=source, _starts=starts[:-1] or [0]
    )


def _tokens(text: str, start: int = 0, end: int | None = None) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text, start, len(text) if end is None else end):
        yield _Token(found[0], *found.span())


@dataclass
class _Preprocessor:
    is_unknown: Callable[[str], bool]
    assumed: bool | None
    macros: dict[str, _Macro] = field(default_factory=dict)
    left: int = _MOST_TOKENS

    def live(self, source: str) -> Iterator[tuple[int, int]]:
        """Yield the parts of a source between directives that are not left out, when the macros are those in effect."""
        branches: list[tuple[bool, bool]] = []
        """Of each open condition, whether this branch stays, and whether it or one before surely does."""
        start = 0
        for line in re.finditer(r"(?m)^[ \t]*#.*$", source):
            is_live = all(stays for stays, _ in branches)
            if is_live:
                yield start, line.start()
            start = line.end()
            directive = _DIRECTIVE.match(line[0])
            word, rest = (directive[1], directive[2]) if directive else ("", "")
            if word in ("if", "ifdef", "ifndef"):
                is_met = self._is_met(word, rest)
                branches.append((is_met is not False, is_met is True))
            elif word == "endif" and branches:
                branches.pop()
            elif word in ("else", "elif") and branches:
                was_taken = branches[-1][1]
                is_met = word == "else" or self._is_met("if", rest)
                branches[-1] = (not was_taken and is_met is not False, was_taken or is_met is True)
            elif is_live and word == "define" and (made := _DEFINITION.match(rest)):
                self._define(made)
            elif is_live and word == "undef":
                self.macros.pop(rest.strip(), None)
        if all(stays for stays, _ in branches):
            yield start, len(source)

    def _define(self, made: re.Match[str]) -> None:
        value = made[3].strip()
        number = NUMBER.fullmatch(value)
        parameters = None if made[2] is None else [name.strip() for name in made[2].split(",")]
        macro = _Macro(parameters, value, number[1] if number and parameters is None else "")
        self.macros.setdefault(made[1], macro)

    def _is_met(self, word: str, condition: str) -> bool | None:
        """Return whether a condition is met; None if it is unknown, and all branches stay."""
        if word != "if":
            condition = f"{'!' if word == 'ifndef' else ''}defined({condition.strip()})"
        if len(condition) > _LONGEST_CONDITION or any(map(self.is_unknown, _NAME.findall(condition))):
            return self.assumed
        asked = _DEFINED.sub(lambda found: str(int(found[1] in self.macros)), condition)
        text = _text(self.replaced(_tokens(asked), with_numbers=True))
        if any(map(self.is_unknown, _NAME.findall(text))):
            return self.assumed
        value = _value(_NAME.sub("0", text))
        return self.assumed if value is None else bool(value)

    def replaced(self, tokens: Iterable[_Token], *, with_numbers: bool = False, depth: int = 0) -> list[_Token]:
        """Return tokens with what macros stand for."""
        pending, found = deque(tokens), []
        while pending:
            token = pending.popleft()
            macro = self.macros.get(token.text)
            if macro is None or token.text in token.hidden or self.left <= 0 or (macro.number and not with_numbers):
                found.append(token)
            elif macro.parameters is None:
                pending.extendleft(reversed(self._made(token, macro.value)))
            elif (arguments := self._arguments(pending)) is None:
                found.append(token)
            else:
                value = self._substituted(macro, arguments, depth)
                pending.extendleft(reversed(self._made(token, value)))
        return found

    def _arguments(self, tokens: deque[_Token]) -> list[list[_Token]] | None:
        """Take the arguments of a call that comes next; return None, and take nothing, if none does."""
        found: list[list[_Token]] = [[]]
        depth = 0
        for token in islice(tokens, _MOST_OF_CALL):
            if depth == 0 and token.text != "(" and not token.text.isspace():
                return None
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ")":
                break
            if depth == 1 and token.text == ",":
                found.append([])
            elif depth > 1 or token.text != "(":
                found[-1].append(token)
        else:
            self.left -= _MOST_OF_CALL
            return None
        for _ in range(sum(map(len, found)) + len(found) + 1):
            tokens.popleft()
        return found

    def _made(self, token: _Token, value: str) -> list[_Token]:
        """Return the tokens of a macro's value, which stand where the macro does."""
        hidden = token.hidden | {token.text}
        found = [_Token(part[0], token.start, token.end, hidden) for part in _TOKEN.finditer(value)]
        self.left -= len(found) + 1
        return found

    def _substituted(self, macro: _Macro, arguments: Sequence[Sequence[_Token]], depth: int) -> str:
        """Return the value of a macro with its parameters substituted by arguments.

        Macros in an argument are replaced first, unless ``##`` joins it to another token.
        """
        by_name = dict(zip(macro.parameters or (), arguments, strict=False))

        def substituted(found: re.Match[str]) -> str:
            argument = by_name.get(found[2])
            if found[1] is not None or found[3] is not None:
                word = found[2] if argument is None else _text(argument).strip()
                return self.macros[word].number or word if word in self.macros else word
            if argument is None:
                return found[0]
            return _text(self.replaced(argument, depth=depth + 1) if depth < _DEEPEST else argument)

        return re.sub(r"(##\s*)?\b(\w+)\b(\s*(?=##))?", substituted, macro.value).replace("##", "")


def _text(tokens: Iterable[_Token]) -> str:
    return "".join(token.text for token in tokens)


def _value(condition: str) -> int | None:
    """Return the value of a condition without names; None if it cannot be evaluated."""
    try:
        text = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b", lambda number: str(int(number[1], 0)), condition)
        text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).replace("/", "//")
        return int(Expression(text.strip())({}))
    except (ConfigurationError, SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return None
