"""Kernels that a source of OpenCL C defines: their arguments, work-groups, and the functions that they call.

The source is parsed as C, with words of C in place of the qualifiers of OpenCL C. They are as long, so that places in
the text stay the same.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import tree_sitter_c
from tree_sitter import Language, Node, Parser, Point, Range

from autotune.model.problem import ELEMENT_TYPES
from autotune.own.kernel_file.preprocessor import Preprocessed

C_TYPES = {number.in_c: name for name, number in ELEMENT_TYPES.items() if number.in_c}
"""Our names of the types of OpenCL C."""
_OTHERS = {"unsigned": "uint32", "size_t": "uint64", "bool": "uint8", "void": "uint8"}
_SPACES = "global|local|constant|private|generic|read_only|write_only|read_write"
_NOT_C = re.compile(rf"\b(?:(?:__)?(?:kernel|{_SPACES})|__restrict)\b|(?<=[0-9.])([hH])\b")
"""Words that C does not have, and what ends numbers of half precision."""
_QUALIFIER = re.compile(rf"(?:__)?(?:const|volatile|{_SPACES})|unsigned|signed|(?:__)?restrict(?:__)?")
_BEGINNING = re.compile(
    r"(?:__attribute__\s*\(\([^{};]{0,300}?\)\)\s*)*(?:\b(?:void|static|inline)\s+)*\b(?:__)?kernel\b"
)
"""How the head of a kernel begins."""
_BODY = re.compile(r"(?:\s|__attribute__\s*\(\([^{};]*?\)\))*\{")
REQUIRED = re.compile(r"reqd_work_group_size\s*\(([^()]*)\)")
_MOST_HELPERS = 50
"""Functions of the source that are read with a kernel that calls them."""
_DEEPEST_HELPER = 3
"""How deep functions that call others are followed."""
_PLACES = {f"{kind}_expression" for kind in ("subscript", "pointer", "field", "parenthesized", "cast")}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument as a kernel declares it."""

    name: str
    type: str
    """Name in OpenCL C, without qualifiers; empty where a macro that is not known stands for the argument."""
    text: str
    """The whole declaration, as the source has it."""
    words: frozenset[str]
    """Qualifiers without their underscores; of a pointer those of what it points to."""
    is_pointer: bool
    length: str
    """Of an array, the product of its dimensions, as they are declared; else empty."""

    @property
    def is_fixed(self) -> bool:
        """What it points to is constant or local."""
        return not self.words.isdisjoint(("const", "constant", "local"))

    @property
    def is_image(self) -> bool:
        """It is an image of any kind."""
        return self.type.startswith("image")

    @property
    def element(self) -> tuple[str, int]:
        """The type of the elements, and how many there are in one of the argument's type."""
        found = re.fullmatch(r"([a-z]+)(2|3|4|8|16)?", self.type)
        name = C_TYPES.get(found[1]) if found else None
        if found and name:
            return name, {"": 1, "3": 4}.get(found[2] or "", int(found[2] or 1))
        return _OTHERS.get(self.type, "uint8"), 1


@dataclass(frozen=True)
class _Part:
    """A node of the tree with its parent, and its role there."""

    node: Node
    parent: Node
    role: str | None

    @property
    def is_declared(self) -> bool:
        return self.role == "declarator" or (self.role == "name" and self.parent.type == "enumerator")


class Code:
    """A part of a source: what is read from and written to there."""

    def __init__(self, unit: "Unit", *spans: tuple[int, int]) -> None:
        self._unit = unit
        self._spans = spans

    def __add__(self, other: "Code") -> "Code":
        return Code(self._unit, *self._spans, *other._spans)

    @property
    def text(self) -> str:
        return "\n".join(self._unit.text[start:end] for start, end in self._spans)

    @cached_property
    def _parts(self) -> list[_Part]:
        return [part for start, end in self._spans for part in self._unit.parts(start, end)]

    def of_kind(self, *kinds: str) -> list[Node]:
        return [part.node for part in self._parts if part.node.type in kinds]

    @cached_property
    def names(self) -> list[str]:
        """Names of values that are used, in order, not those of functions that are called."""
        found = (part for part in self._parts if part.node.type == "identifier" and not part.is_declared)
        return list(dict.fromkeys(self._unit.text_of(part.node) for part in found if part.role != "function"))

    @cached_property
    def calls(self) -> list[tuple[str, list[Node]]]:
        """Names of functions that are called, with the arguments."""
        found = []
        for node in self.of_kind("call_expression"):
            function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if function and arguments and function.type == "identifier":
                found.append((self._unit.text_of(function), arguments.named_children))
        return found

    def asked(self, what: str) -> int:
        """Return how many dimensions it asks for its place in, by functions such as ``get_global_id``."""
        numbers = [
            self._unit.text_of(arguments[0])
            for name, arguments in self.calls
            if arguments and re.fullmatch(rf"get_(?:{what})_\w+", name)
        ]
        return max((int(number) for number in numbers if number in ("0", "1", "2")), default=0) + 1

    def _made_from(self, name: str) -> set[str]:
        """Return the name, and those of pointers that are made from it."""
        found = {name}
        for node in self.of_kind("init_declarator"):
            declarator, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            is_pointer = declarator is not None and declarator.type == "pointer_declarator"
            if is_pointer and declarator and value and found & self._words(value):
                found |= self._words(declarator) - {"const", "restrict"}
        return found

    def _words(self, node: Node) -> set[str]:
        return {*re.findall(r"\w+", self._unit.text_of(node))}

    def access(self, name: str, depth: int = 0) -> tuple[bool, bool]:
        """Return whether memory of this name is written to, and whether what is there is used, by reading or adding."""
        made = self._made_from(name)
        targets: set[int] = set()
        is_written = is_used = False
        for node in self.of_kind("assignment_expression", "update_expression"):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
            if target is None or self._base(target) not in made or target.type == "identifier":
                continue
            operator = node.child_by_field_name("operator")
            is_written = True
            is_used |= operator is None or operator.type != "="
            targets.add(_element(target).start_byte)
        for function, arguments in self.calls:
            kind = re.match("vstore|write_image|atom|vload", function)
            if kind and any(made & self._words(one) for one in arguments):
                is_written |= kind[0] != "vload"
                is_used |= kind[0] in ("vload", "atom")
            helper = self._unit.functions.get(function) if depth < _DEEPEST_HELPER else None
            for parameter, value in zip(helper.arguments if helper else (), arguments, strict=False):
                if helper and parameter.is_pointer and self._base(value) in made:
                    found = helper.code.access(parameter.name, depth + 1)
                    is_written, is_used = is_written or found[0], is_used or found[1]
        read = self.of_kind("subscript_expression", "pointer_expression")
        for node in read:
            if self._unit.text_of(node)[0] == "&" and (pointed := node.child_by_field_name("argument")):
                targets |= {node.start_byte, _element(pointed).start_byte}
        is_used |= any(node.start_byte not in targets and self._base(node) in made for node in read)
        return is_written, is_used

    def _base(self, node: Node | None) -> str:
        """Return the name of what an expression points into."""
        while node is not None and node.type != "identifier":
            if node.type == "binary_expression":
                node = node.child_by_field_name("left")
            elif node.type in _PLACES:
                named = node.child_by_field_name("argument") or node.child_by_field_name("value")
                node = named or next(iter(node.named_children), None)
            else:
                return ""
        return self._unit.text_of(node) if node else ""

    def type_read_as(self, argument: Argument) -> str:
        """Return the type that a pointer to bytes is converted to where it is used; else its own."""
        if not argument.is_pointer or argument.type not in ("char", "uchar", "void"):
            return argument.type
        for node in self.of_kind("cast_expression"):
            made, value = node.child_by_field_name("type"), node.child_by_field_name("value")
            named = made.child_by_field_name("type") if made else None
            if made is None or value is None or named is None or made.child_by_field_name("declarator") is None:
                continue
            kind = self._unit.text_of(named)
            if kind not in ("char", "uchar", "void") and re.search(rf"\b{argument.name}\b", self._unit.text_of(value)):
                return kind
        return argument.type


def _element(node: Node) -> Node:
    """Return the element of memory of which an expression is a component."""
    while node.type in ("field_expression", "parenthesized_expression"):
        node = node.named_children[0]
    return node


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that a source defines, such as a kernel."""

    name: str
    arguments: Sequence[Argument]
    required: str
    """The work-group that its attribute requires, as the source writes it; else empty."""
    code: Code
    """Its head and body."""


class Unit:
    """A source of OpenCL C as the preprocessor leaves it, parsed."""

    def __init__(self, preprocessed: Preprocessed) -> None:
        self._preprocessed = preprocessed
        self.text = preprocessed.text
        as_c = _NOT_C.sub(lambda found: "f" if found[1] else "const".ljust(len(found[0])), self.text)
        # Each kernel is parsed for itself, so that text that is not C before one makes no error in the others.
        starts = [0, *(found.start() for found in _BEGINNING.finditer(self.text)), len(self.text)]
        data = as_c.encode("ascii", "replace")
        self._trees = [(_parsed(data, start, end), start, end) for start, end in pairwise(starts)]

    def text_of(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte]

    @cached_property
    def _parts(self) -> list[_Part]:
        return [part for root, _, _ in self._trees for part in _parts(root)]

    @cached_property
    def _starts(self) -> list[int]:
        return [part.node.start_byte for part in self._parts]

    def parts(self, start: int, end: int) -> list[_Part]:
        """Return the nodes that begin in a part of the text."""
        return self._parts[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    @cached_property
    def declared(self) -> set[str]:
        """Names that anything declares."""
        return {self.text_of(part.node) for part in self._parts if part.is_declared}

    @cached_property
    def kernels(self) -> list[Function]:
        """The kernels, in order; several of one name where conditions choose among them."""
        found = []
        for root, start, end in self._trees[1:]:
            head = next((part.node for part in _parts(root) if part.node.type == "function_declarator"), None)
            if head and not re.search("[;{}]", self.text[start : head.start_byte]):
                found.append(self._function(head, start, end))
        return [kernel for kernel in found if kernel]

    @cached_property
    def functions(self) -> dict[str, Function]:
        """All functions, by name."""
        heads = Code(self, (0, len(self.text))).of_kind("function_declarator")
        found = (self._function(head, head.start_byte, head.end_byte) for head in heads)
        return {function.name: function for function in found if function}

    def _function(self, head: Node, start: int, end: int) -> Function | None:
        name, parameters = head.child_by_field_name("declarator"), head.child_by_field_name("parameters")
        body = _BODY.match(self.text, head.end_byte)
        if not (name and parameters and body) or name.type != "identifier":
            return None
        if head.parent and head.parent.type == "function_definition":
            end = head.parent.end_byte
        required = REQUIRED.search(self.text, start, body.end())
        return Function(
            name=self.text_of(name),
            arguments=[*self._arguments(parameters)],
            required=required[1] if required else "",
            code=Code(self, (start, end)),
        )

    def _arguments(self, parameters: Node) -> Iterator[Argument]:
        start = parameters.start_byte + 1
        for child in parameters.children:
            if child.type in (",", ")") and child.start_byte >= start:
                part = self.text[start : child.start_byte]
                if part.strip() not in ("", "void"):
                    begin = start + len(part) - len(part.lstrip())
                    yield self._argument(part, self._preprocessed.origin(begin, start + len(part.rstrip())), self.types)
                start = child.end_byte

    def _argument(self, declaration: str, text: str, meanings: Mapping[str, Argument]) -> Argument:
        plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|\[[^\]]*\]", "", declaration)
        lengths = re.findall(r"\[\s*((?!restrict|const)[^\]\s][^\]]*)\]", declaration)
        named = [word for word in re.findall(r"\w+", plain) if not _QUALIFIER.fullmatch(word)]
        before = re.findall(r"\w+", plain.partition("*")[0])
        types = [word for word in before if word in named and word not in ("int", "struct", "enum")]
        types = types if "*" in plain else types[:-1]
        kind = f"{'u' if 'unsigned' in before else ''}{types[-1] if types else 'int'}"
        meaning = meanings.get(kind) if "enum" not in before else None
        is_unknown = len(named) < 2 and not {"unsigned", "signed"} & {*before}
        words = {word.removeprefix("__") for word in before if _QUALIFIER.fullmatch(word)}
        return Argument(
            name=named[-1] if named else "unnamed",
            type="int" if "enum" in before else meaning.type if meaning else "" if is_unknown else kind,
            text=text,
            words=frozenset(words | (meaning.words if meaning else set())),
            is_pointer="*" in plain or "[" in declaration or (meaning is not None and meaning.is_pointer),
            length=" * ".join(f"({length.strip()})" for length in lengths),
        )

    @cached_property
    def types(self) -> dict[str, Argument]:
        """What names of types stand for, the first meaning of each."""
        found: dict[str, Argument] = {}
        nodes = (node for root, _, _ in self._trees for node in root.children if node.type == "type_definition")
        for node in nodes:
            text = self.text_of(node).removeprefix("typedef").removesuffix(";").strip()
            if "{" not in text and "(" not in text:
                meaning = self._argument(text, text, found)
                found.setdefault(meaning.name, meaning)
        return found

    def helpers(self, code: Code) -> Code:
        """Return the functions that a part of the source calls, and those that these call."""
        found: dict[str, Code] = {}
        left = [code]
        while left:
            for name, _ in left.pop().calls:
                if name in self.functions and name not in found and len(found) < _MOST_HELPERS:
                    found[name] = self.functions[name].code
                    left.append(found[name])
        return sum(found.values(), Code(self))


@cache
def _language() -> Language:
    return Language(tree_sitter_c.language())


def _parsed(text: bytes, start: int, end: int) -> Node:
    """Return the tree of a part of a text, in which places are those of the whole."""
    part = Range(start_point=Point(0, start), end_point=Point(0, end), start_byte=start, end_byte=end)
    return Parser(_language(), included_ranges=[part]).parse(text).root_node


def _parts(root: Node) -> Iterator[_Part]:
    """Yield all nodes with a name, in order of their beginnings, parents first."""
    cursor = root.walk()
    parents = [root]
    while True:
        if cursor.node is not None and cursor.node.is_named and not cursor.node.is_missing:
            yield _Part(cursor.node, parents[-1], cursor.field_name)
        node = cursor.node
        is_attribute = node is not None and node.type == "attribute_specifier"
        if not is_attribute and cursor.goto_first_child():
            parents.append(node or root)
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return
            parents.pop()
