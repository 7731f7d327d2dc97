"""Options of the compiler as a kernel file lists them, of which drivers read quotes in different ways.

A definition with spaces or quotes becomes a ``#define`` line of the source, and a folder with spaces gets quotes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option with its value."""

    flag: str
    """``-D`` or ``-I``; empty for any other."""
    value: str
    text: str
    """As the file has it."""

    @property
    def definition(self) -> tuple[str, str] | None:
        """The name and the text of a definition that must be a line of the source; None for any other option."""
        found = re.fullmatch(r"(\w+)=(.*)", self.value) if self.flag == "-D" else None
        return (found[1], found[2]) if found and re.search(r"[\s\"]", found[2]) else None

    @property
    def whole(self) -> str:
        """The option as a compiler takes it, in quotes where it needs them."""
        if self.definition:
            name, text = self.definition
            return f'-D{name}="{text}"' if '"' not in text else f"-D{name}={text}"
        if self.flag == "-I" and re.search(r"\s", self.value):
            return f'-I "{self.value}"'
        return self.text


def options_of(texts: Sequence[str]) -> Iterator[Option]:
    """Yield the options of a list, in which ``-D`` and ``-I`` may be followed by their value."""
    words = iter(texts)
    for word in words:
        flag = word[:2] if word[:2] in ("-D", "-I") else ""
        if flag == word:
            value = next(words, "")
            yield Option(flag, value, f"{flag}{value}")
        else:
            # An item may hold several options, as in "-I inc -cl-mad-enable".
            value = word[2:].strip().strip('"') if flag == "-I" else word[2:]
            yield Option("" if flag and re.search(r"\s-[A-Za-z]", word) else flag, value, word)
