"""Kernel files from T1, the JSON format in which Kernel Tuner and KTT describe a kernel to tune."""

import ast
import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.codec import Node, parse, read_file
from autotune.errors import ConfigurationError, TableError, UsageError
from autotune.model.configuration import Value
from autotune.model.problem import ELEMENT_TYPES
from autotune.own.tuned_file import MOST_VALUES, NAME, VALUE
from autotune.space.expression import Expression

_AXES = "XYZ"
_LIMIT = 2**31 - 1
_TYPES = {"bool": "uint8", "half": "float16", "float": "float32", "double": "float64"}
_ACCESS = {"ReadOnly": "in", "WriteOnly": "out", "ReadWrite": "inout"}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
_NOT_PYTHON = (ConfigurationError, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)


def from_t1(path: Path) -> tuple[Path, str, list[str]]:
    """Return the source that a T1 file names, the text of a kernel file, and what could not be translated.

    Raises UsageError when the file cannot be read or lacks what T1 requires.
    """
    try:
        root = parse(read_file(path))
        kernel = root.member("KernelSpecification")
        translation = _Translation(root, kernel)
        lines = list(translation.lines())
        source = path.parent / kernel.member("KernelFile").text()
    except TableError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint or "is it a T1 file?") from error
    notes = list(dict.fromkeys(translation.notes))
    head = [f"# From {path.name}, in T1. Not translated:", *(f"#   {note}" for note in notes)] if notes else []
    return source, "\n".join([*head, f"source = {_quoted(source.name)}", *lines, ""]), notes


class _Translation:
    """The parts of a T1 file, translated in the order of a kernel file."""

    def __init__(self, root: Node, kernel: Node) -> None:
        self.notes: list[str] = []
        self._general = root.members().get("General", Node({}))
        self._space = root.member("ConfigurationSpace")
        self._kernel = kernel
        self._given = kernel.members()
        self._sizes = dict(zip(("problem_size_x", "problem_size_y", "problem_size_z"), self._problem(), strict=False))
        self._parameters: dict[str, list[Value]] = {}
        self._default: dict[str, Value] = {}
        for parameter in self._space.member("TuningParameters").items():
            self._add_parameter(parameter)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the kernel file without its source, and note what could not be translated."""
        kernel = self._kernel.member("KernelName").text()
        language = self._kernel.member("Language").text()
        if language != "OpenCL":
            self.notes.append(f"the source is in {language}: port it to OpenCL C")
        title = self._general.members().get("BenchmarkName")
        family = re.sub(r"\W", "_", (title.text() if title else kernel).lower(), flags=re.ASCII)
        yield f"name = {_quoted(family.lstrip('_0123456789')[:32] or 'kernel')}"
        yield f"kernel = {_quoted(kernel)}"
        yield from self._launch()
        options = [option.text() for option in _items(self._given, "CompilerOptions")]
        kept = [option for option in options if re.match(r"-(cl-|D)", option) and not {*"{}"} & {*option}]
        self.notes += [f"the compiler's option {option}" for option in options if option not in kept]
        yield f"build_options = {json.dumps(kept, ensure_ascii=False)}"
        yield from ("", "[sizes]", *(f"{name} = {value}" for name, value in self._sizes.items()))
        yield from ("", "[parameters]", *(f"{name} = {values}" for name, values in self._parameters.items()))
        yield from ("", "[default]", *(f"{name} = {value!r}" for name, value in self._default.items()))
        yield from ("", "[constraints]")
        for number, condition in enumerate(_items(self._space.members(), "Conditions"), start=1):
            text = self._formula(condition.member("Expression").text(), self._parameters, "the condition")
            if text:
                yield f"condition_{number} = {_quoted(text)}"
        yield from ("", "[arguments]")
        for number, argument in enumerate(_items(self._given, "Arguments")):
            yield self._argument(number, argument.members())
        if _items(self._given, "ReferenceArguments"):
            self.notes.append("ReferenceArguments: say in [reference] what is right, or the default does")

    def _problem(self) -> list[int]:
        if "ProblemSize" in self._given:
            return [size.whole(_LIMIT, 1) for size in self._given["ProblemSize"].items(len(_AXES), 1)]
        self.notes.append("there is no ProblemSize: formulas have constants instead of sizes")
        return [1]

    def _add_parameter(self, parameter: Node) -> None:
        name, text = parameter.member("Name").text(), parameter.member("Values").text()
        try:
            values = _evaluated(ast.parse(text.strip(), mode="eval").body, {})
            if not isinstance(values, list) or not values:
                raise TypeError
        except _NOT_PYTHON:
            raise parameter.wrong(f"the values {text[:80]!r} are not a list of numbers or texts") from None
        choices = [int(value) if isinstance(value, bool) else value for value in values]
        if any(type(value) is not int for value in choices):
            choices = [str(value) for value in choices]
        if not re.fullmatch(NAME.expression, name) or not all(re.fullmatch(VALUE.expression, str(c)) for c in choices):
            raise parameter.wrong("has a name or a value that cannot stand in a #define line")
        self._parameters[name] = list(dict.fromkeys(choices))
        given = parameter.members().get("Default", Node(None)).value
        default = given[0] if isinstance(given, list) and given else given
        default = default if type(choices[0]) is int else str(default)
        if default in choices[1:]:
            self._default[name] = int(default) if isinstance(default, bool) else default

    def _launch(self) -> Iterator[str]:
        """Yield the work-items and the work-group.

        With a ProblemSize they are counted as Kernel Tuner does, which reads no GlobalSize: the problem over the
        divisors gives the work-groups of each dimension.
        """
        counts_groups = "GlobalSizeType" in self._given and self._given["GlobalSizeType"].text() != "OpenCL"
        global_sizes, local_sizes = [], []
        for number, axis in enumerate(_AXES):
            local = self._axis("LocalSize", axis)
            divisors = [divisor.text() for divisor in _items(self._given, f"GridDiv{axis}")]
            if "ProblemSize" not in self._given:
                text = self._axis("GlobalSize", axis)
                text = _product(text, local) if counts_groups else text
            elif number < len(self._sizes) and (divisors or local != "1" or [*self._sizes.values()][number] > 1):
                size = [*self._sizes][number]
                product = [self._formula(divisor, self._parameters, "the divisor") or divisor for divisor in divisors]
                divisor = " * ".join(f"({part})" for part in product) if product else f"({local})"
                text = _product(f"ceil_div({size}, {divisor})", local)
            else:
                text = local
            global_sizes.append(text)
            local_sizes.append(local)
        while len(local_sizes) > 1 and local_sizes[-1] == global_sizes[-1] == "1":
            local_sizes.pop()
            global_sizes.pop()
        yield f"global_size = {_quoted(', '.join(map(_plainer, global_sizes)))}"
        yield f"local_size = {_quoted(', '.join(local_sizes))}"

    def _axis(self, key: str, axis: str) -> str:
        given = self._kernel.member(key).members()
        text = given[axis].text() if axis in given else "1"
        return self._formula(text, [*self._parameters, *self._sizes], f"{key}.{axis}") or text

    def _argument(self, number: int, given: Mapping[str, Node]) -> str:
        name = given["Name"].text() if "Name" in given else ""
        name = name if re.fullmatch(NAME.expression, name) else f"argument_{number}"
        kind, width = given["Type"].text() if "Type" in given else "", 1
        vector = re.fullmatch(r"([a-z]+?)(2|4|8|16)", kind)
        if vector and vector[1] in _TYPES:
            kind, width = vector[1], int(vector[2])
        element = _TYPES.get(kind, kind)
        if element not in ELEMENT_TYPES:
            self.notes.append(f"{name}: the type {kind!r}; bytes stand for it")
            element = "uint8"
        memory = given["MemoryType"].text() if "MemoryType" in given else "Vector"
        fill = given["FillValue"].number(-1e300, 1e300) if "FillValue" in given else None
        if memory == "Scalar":
            value = repr(fill or 0.0) if element.startswith("float") else int(fill or 0)
            return f'{name} = {{ scalar = "{element}", value = {value} }}'
        size = self._size(name, given.get("Size"), width)
        if memory == "Local":
            return f"{name} = {{ local = {_quoted(f'{ELEMENT_TYPES[element].size_bytes} * ({size})')} }}"
        if memory == "Symbol":
            self.notes.append(f"{name}: a symbol of the program; it is a buffer argument here")
        access = _ACCESS.get(given["AccessType"].text() if "AccessType" in given else "ReadOnly", "inout")
        way = given["FillType"].text() if "FillType" in given else "Random"
        contents = ""
        if way == "Constant" and fill is not None:
            contents = f', fill = "{"ones" if fill else "zeros"}"' if fill in (0, 1) else f", range = [{fill}, {fill}]"
        elif way == "Random" and fill and fill > 0:
            contents = f", range = [0, {fill}]"
        elif way not in ("Random", "Constant"):
            self.notes.append(f"{name}: contents by {way}; random numbers stand for them")
        return f'{name} = {{ buffer = "{element}", size = {_quoted(size)}, access = "{access}"{contents} }}'

    def _size(self, name: str, given: Node | None, width: int) -> str:
        """Return the number of elements, `width` of them in one of the argument's type."""
        if given is None or isinstance(given.value, int):
            text = str(given.whole() if given else 1)
        else:
            text = self._formula(given.text(), (), f"the size of {name}") or given.text()
        return f"{width} * ({text})" if width > 1 else text

    def _formula(self, text: str, parameters: Collection[str], place: str) -> str:
        """Return an expression over the sizes and these parameters, empty (and noted) when there is none like it."""
        # A condition compares fractions as they are, a size has none.
        translator = _Translator(self._parameters, list(self._sizes), keeps_fractions=place == "the condition")
        try:
            found = ast.unparse(translator.visit(ast.parse(text.strip(), mode="eval").body))
            unknown = Expression(found).names - {*parameters, *self._sizes, "True", "False"}
        except _NOT_PYTHON:
            unknown = frozenset({"what expressions lack"})
        if unknown:
            self.notes.append(f"{place} {text!r}: it uses {', '.join(sorted(unknown))}")
            return ""
        if translator.has_divided:
            self.notes.append(f"{place} {text!r}: / became //, which is the same only without a remainder")
        return found


class _Translator(ast.NodeTransformer):
    """Rewrites what expressions have not, or have otherwise: ``/``, lists, ``ProblemSize[0]``, ``max(parameter)``."""

    def __init__(self, parameters: Mapping[str, list[Value]], sizes: list[str], *, keeps_fractions: bool) -> None:
        self._keeps_fractions = keeps_fractions
        self._parameters = parameters
        self._sizes = sizes
        self.has_divided = False

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div) and not self._keeps_fractions:
            node.op = ast.FloorDiv()
            self.has_divided = True
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.Tuple(node.elts, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name(id="ProblemSize"), slice=ast.Constant(value=int() as number)):
                return ast.Name(self._sizes[number]) if number < len(self._sizes) else node
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Name(id="max" | "min" as which), args=[ast.Name(id=name)]) if (
                name in self._parameters
            ):
                values = [value for value in self._parameters[name] if isinstance(value, int)]
                return ast.Constant(max(values) if which == "max" else min(values))
        self.generic_visit(node)
        return node


def _evaluated(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of a list such as ``[1] + [2 * i for i in range(1, 11)]``, or of one of its parts.

    Raises ValueError for anything else, and for numbers and lists that are too large; TypeError, ArithmeticError.
    """
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand, known)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluated(item, known) for item in items]
        case ast.Call(func=ast.Name(id="list"), args=[items], keywords=[]):
            return _evaluated(items, known)
        case ast.Call(func=ast.Name(id="range"), args=limits, keywords=[]):
            return list(_bounded(range(*(_evaluated(limit, known) for limit in limits))))
        case ast.ListComp(elt=item, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]):
            return [_one(_evaluated(item, {**known, name: value})) for value in _evaluated(items, known)]
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _ARITHMETIC:
            a, b = _evaluated(left, known), _evaluated(right, known)
            is_list = isinstance(a, list) and isinstance(b, list) and isinstance(operation, ast.Add)
            if not is_list and not (isinstance(a, int | float) and isinstance(b, int | float)):
                raise ValueError
            if isinstance(operation, ast.Pow) and not (abs(a) <= MOST_VALUES and abs(b) <= 31):
                raise ValueError
            return _bounded(_ARITHMETIC[type(operation)](a, b))
    raise ValueError


def _one(value: Any) -> Any:
    """Return a value of a list; lists of lists would grow with each level. Raises TypeError for a list."""
    if isinstance(value, list):
        raise TypeError
    return _bounded(value)


def _bounded(value: Any) -> Any:
    if len(value) > MOST_VALUES if isinstance(value, list | range) else not abs(value) <= _LIMIT:
        raise ValueError
    return value


def _items(members: Mapping[str, Node], name: str) -> list[Node]:
    """Return the items of a list that may be missing or null."""
    return members[name].items(MOST_VALUES) if name in members and members[name].value is not None else []


def _product(a: str, b: str) -> str:
    return a if b == "1" else b if a == "1" else f"({a}) * ({b})"


def _plainer(text: str) -> str:
    """Return a formula without needless parentheses; what is none stays as it is."""
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except _NOT_PYTHON:
        return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
