"""What a source of OpenCL C declares: kernels, their arguments, and the functions that they call."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.model.problem import ELEMENT_TYPES

_BEGINNING = re.compile(r"\b(?:__)?kernel\b")
_HEAD = re.compile(
    r"(?:__)?kernel\b(?>(?P<attributes>[^;{}]*?)\bvoid\b)(?:[^;{}()]*\([^{};]*?\)\))?[^;{}()]*?"
    r"\b(?P<name>\w+)\s*\((?P<arguments>[^{};]*?)\)(?:\s*__attribute__\s*\(\([^{};]*?\)\))?\s*\{"
)
_SWAPPED = re.compile(r"\b(void)(\s+)((?:__)?kernel)\b")
_STRING = r'"(?:\\.|[^"\\\n])*"'
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b[ \t]*(.*)")
_LONGEST_HEAD = 4096
"""Characters of a kernel's declaration."""
C_TYPES = {number.in_c: name for name, number in ELEMENT_TYPES.items()}
"""Our names of the types of OpenCL C."""
_OTHERS = {"unsigned": "uint32", "size_t": "uint64", "bool": "uint8", "void": "uint8"}
OF_LANGUAGE = re.compile(
    r"(?:CLK_|CL_|M_|FLT_|DBL_|HALF_|U?(?:CHAR|SHRT|INT|LONG)_|__|cl_|as_|convert_)\w*|\d\w*|INFINITY|NAN|MAXFLOAT|NULL"
    r"|HUGE_VALF?|true|false|if|else|for|while|do|return|break|continue|switch|case|default|goto|sizeof|struct|typedef"
    r"|(?:u?(?:char|short|int|long)|float|double|half)\d*|unsigned|signed|bool|void|size_t|ptrdiff_t|const|restrict"
    r"|volatile|static|inline|sampler_t|pipe|(?:__)?(?:kernel|global|local|constant|private)|enum|union|read_only|write_only|[su]\d+"
)
_LONGEST_BODY = 65536
_MOST_HELPERS = 50
"""Functions of the source that are read with a kernel that calls them."""
_MOST_CALLS = 200
"""Names that look like calls, in one function, which are looked for in the source."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument as a kernel declares it."""

    name: str
    type: str
    """Name in OpenCL C, without qualifiers."""
    text: str
    """The whole declaration."""
    is_written: bool
    """The kernel's body seems to write to it."""
    is_updated: bool
    """The body seems to add to what is there, or to read it."""

    @property
    def is_pointer(self) -> bool:
        return "*" in self.text or "[" in self.text

    @property
    def is_fixed(self) -> bool:
        """What it points to is constant or local."""
        return re.search(r"\b(?:const|(?:__)?constant|(?:__)?local)\b", self.text.partition("*")[0]) is not None

    def has(self, *words: str) -> bool:
        return any(re.search(rf"\b(?:__)?{word}\b", self.text) for word in words)

    @property
    def element(self) -> tuple[str, int]:
        """The type of the elements, and how many there are in one of the argument's type."""
        found = re.fullmatch(r"([a-z]+)(2|3|4|8|16)?", self.type)
        name = C_TYPES.get(found[1]) if found else None
        if re.search(r"\benum\b", self.text):
            return "int32", 1
        if found and name:
            return name, {"": 1, "3": 4}.get(found[2] or "", int(found[2] or 1))
        return _OTHERS.get(self.type, "uint8"), 1


def heads(text: str) -> Iterator[re.Match[str]]:
    """Yield where kernels are defined, up to their braces. The search is bounded, as a source may be anything."""
    text = _SWAPPED.sub(r"\3\2\1", text)  # as long as before
    end = 0
    for beginning in _BEGINNING.finditer(text):
        if beginning.start() < end:
            continue
        brace = text.find("{", beginning.start(), beginning.start() + _LONGEST_HEAD) + 1
        semicolon = text.find(";", beginning.start(), brace)
        found = _HEAD.match(text, beginning.start(), brace) if brace and semicolon < 0 else None
        if found:
            end = found.end()
            yield found


def without_comments(text: str) -> str:
    """Return a source with a space or its lines for each comment."""

    def without(found: re.Match[str]) -> str:
        return found[0] if found[0][0] == '"' else "\n" * found[0].count("\n") or " "

    return re.sub(rf"{_STRING}|//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)", without, text)


def without_strings(text: str) -> str:
    """Return a source in which each string is empty."""
    return re.sub(_STRING, '""', text)


def without_dead(text: str, is_undefined: Callable[[str], bool] = lambda _: False) -> str:
    """Return a source with empty lines for those that ``#if 0`` leaves out, or a condition on an undefined name."""
    lines: list[str] = []
    branches: list[tuple[bool, bool]] = []
    """Of each open condition, whether this branch is left out, and whether it or one before surely is not."""
    for line in text.split("\n"):
        found = _CONDITION.match(line)
        word, is_met = (found[1], _is_met(found[1], found[2], is_undefined)) if found else ("", None)
        if word.startswith("if"):
            branches.append((is_met is False, is_met is True))
        elif word == "endif" and branches:
            branches.pop()
        elif word and branches:
            was_taken = branches[-1][1]
            branches[-1] = (was_taken or is_met is False, was_taken or is_met is True)
        lines.append("" if any(is_dead for is_dead, _ in branches) else line)
    return "\n".join(lines)


def _is_met(word: str, condition: str, is_undefined: Callable[[str], bool]) -> bool | None:
    """Return whether a condition of the preprocessor is met; None where that is not known."""
    if word == "else" or condition.strip() in ("0", "1"):
        return condition.strip() != "0"
    asked = re.match(r"\w+" if word in ("ifdef", "ifndef") else r"(!?)[ \t]*defined[ \t(]*(\w+)[ \t)]*$", condition)
    if not asked or not is_undefined(asked[asked.re.groups]):
        return None
    return word == "ifndef" or (asked.re.groups > 0 and asked[1] == "!")


def written_out(text: str) -> str:
    """Return a source with its lines joined that go on, and the keyword for macros that stand for it."""
    text = re.sub(r"\\\n", "", text)
    names = re.findall(r"(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(?:__)?kernel[ \t]*$", text)
    return re.sub(rf"\b(?:{'|'.join(names[:20])})\b(?=\s+[\w(])", "kernel", text) if names else text


def without_names_of_pointers(arguments: str, text: str) -> str:
    """Return declarations of arguments with what names of pointer types stand for in a source."""
    for meaning, name in re.findall(r"\btypedef\s+([^;{}()]{1,200}\*)\s*(\w+)\s*;", text)[:50]:
        arguments = re.sub(rf"\b{name}\b", meaning, arguments)
    return arguments


def declared_arguments(text: str, body: str) -> Iterator[Argument]:
    """Yield the arguments that a kernel declares, from the text between its parentheses and that of its body."""
    qualifiers = (
        r"\b(?:__)?(?:const|volatile|global|local|constant|private|read_only|write_only|unsigned)\b"
        r"|\b(?:__)?restrict(?:__)?\b"
    )
    for part in map(str.strip, re.sub(r"(?m)^[ \t]*#.*$", "", text).split(",")):
        if part in ("", "void"):
            continue
        plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|\[[^\]]*\]", "", part)
        words = re.findall(r"\w+", re.sub(qualifiers, " ", plain))
        unsigned = "u" if re.search(r"\bunsigned\b", part) else ""
        name = words[-1] if words else "unnamed"
        # Macros may stand before a type, and after the star; long int is long.
        before = re.findall(r"\w+", re.sub(qualifiers, " ", plain.partition("*")[0])) if "*" in plain else words[:-1]
        types = [word for word in before if word != "int"]
        kind = f"{unsigned}{types[-1] if types else 'int'}"
        # Through a pointer that is made from it, too.
        made = "|".join([name, *re.findall(rf"\*\s*(\w+)\s*=[^;=]*\b{name}\b[^;]*;", body)])
        written = rf"\b(?:{made})\s*\[[^;]*?\][.\w]*\s*[-+*/%&|^]?=(?!=)|[;{{}})]\s*\*[^;=]*\b(?:{made})\b[^;=]*=(?!=)"
        stored = rf"\b(?:vstore\w*|atom\w*|write_image\w*)\s*\([^;]{{0,500}}\b(?:{made})\b"
        is_written = bool(re.search(f"{written}|{stored}", body))
        updated = rf"\b(?:{made})\s*\[[^;=]*?\][.\w]*\s*[-+*/%&|^]=|\batom\w*\s*\([^;]{{0,500}}\b(?:{made})\b"
        not_stored = r"(?!(?:[^\[\];]|\[[^\]]*\])*\]\s*=[^=])"
        read = rf"(?<![=!<>])=(?!=)[^;=]*\b(?:{made})\s*\[{not_stored}|\bvload\w*\s*\([^;]{{0,500}}\b(?:{made})\b"
        is_updated = bool(re.search(f"{updated}|{read}", body))
        yield Argument(name=name, type=kind, text=part, is_written=is_written, is_updated=is_updated)


def helpers(text: str, body: str) -> str:
    """Return the functions of a source, without its macros, that a body calls, and those that these call."""
    found: dict[str, str] = {}
    calling = body
    for _ in range(2):
        calls = dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\s*\(", calling))
        calling = ""
        names = [name for name in calls if name not in found and not OF_LANGUAGE.fullmatch(name)]
        for name in names[:_MOST_CALLS]:
            for call in re.finditer(rf"\b{name}\s*\(", text) if len(found) < _MOST_HELPERS else ():
                brace = text.find("{", call.end(), call.end() + _LONGEST_HEAD)
                if brace >= 0 and re.fullmatch(r"[^;{}]*\)\s*", text[call.end() : brace]):
                    found[name] = text[call.start() : end_of(text, brace)]
                    calling += found[name]
                    break
    return "".join(found.values())


def end_of(text: str, brace: int) -> int:
    """Return where the block ends that begins at a brace, or how much of it is read at most."""
    depth = 0
    last = brace + _LONGEST_BODY
    for found in re.finditer(r"[{}]", text[brace:last]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return brace + found.end()
    return last


def shown_as(argument: Argument, body: str) -> str:
    """Return the type that a pointer to bytes is converted to where its body reads or writes; else its own."""
    if not argument.is_pointer or argument.type not in ("char", "uchar", "void"):
        return argument.type
    converted = (
        rf"\(\s*(?:__)?(?:global|constant)\s+(?:const\s+)?(?!u?char\b|void\b)(\w+)\s*\*\s*\)"
        rf"[^;{{}}]{{0,200}}?\b{argument.name}\b"
    )
    found = re.search(converted, body)
    return found[1] if found else argument.type


def is_image(argument: Argument) -> bool:
    """Return whether an argument is an image of any kind."""
    return argument.type.startswith("image")
