"""A distilled rule as C99, Python and JSON, none of which needs autotune or another library."""

import json
from collections.abc import Iterator, Mapping, Sequence

from autotune.codec import write
from autotune.distill.rules import Judged, Node, Rule, Split
from autotune.errors import UsageError
from autotune.export.c_family import identifier
from autotune.export.choices import plain_option
from autotune.model.configuration import Configuration

SUFFIXES = (".h", ".py", ".json")
"""Endings of the files that `write_rule` writes."""


def write_rule(rule: Rule, judged: Mapping[str, Sequence[Judged]], suffix: str) -> str:
    """Return the text for a file with this ending. Raises UsageError for another, or a value that C cannot hold."""
    if suffix == ".json":
        return _json(rule, judged)
    if suffix == ".py":
        return _python(rule)
    if suffix in (".h", ".c"):
        return _c(rule)
    raise UsageError(
        f"no rule can be written to a file that ends in {suffix[:20]!r}", hint=f"use {', '.join(SUFFIXES)}"
    )


def _json(rule: Rule, judged: Mapping[str, Sequence[Judged]]) -> str:
    plain = {
        "format": "autotune-rule",
        "schema_version": 1,
        "kernel": rule.kernel,
        "kernels": [kernel.to_dict() for kernel in rule.kernels],
        "rule": _tree(rule.root),
        "left_out": {name: write(list(lines)) for name, lines in judged.items()},
    }
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def _tree(node: Node) -> object:
    """Return a split as an object, in which the bound is a number or a text; a leaf is the number of a kernel."""
    if isinstance(node, int):
        return node
    return {"feature": node.feature, "bound": node.bound, "yes": _tree(node.yes), "no": _tree(node.no)}


def _python(rule: Rule) -> str:
    kernels = "".join(f"    {kernel.to_dict()!r},\n" for kernel in rule.kernels)
    body = "\n".join(_branches(rule.root, "    ", _PYTHON))
    return (
        f"# Written by autotune distill: which of these kernels of {rule.kernel} to use.\n\n"
        f"KERNELS = (\n{kernels})\n"
        f'"""Those that `choose` uses come first; the others may be tried on a device, too."""\n\n\n'
        f"def choose({', '.join(rule.inputs)}):\n"
        f'    """Return the number of the kernel for these sizes, types and facts of a device."""\n'
        f"{body}\n"
    )


def _c(rule: Rule) -> str:
    name = f"autotune_{identifier(rule.kernel)}"
    guard = f"{name}_RULE_H".upper()
    inputs = ", ".join(f"{'const char *' if kind is str else 'double '}{n}" for n, kind in rule.inputs.items())
    members = _members(rule.kernels)
    fields = "".join(f" {'const char *' if kind is str else 'int '}{n};" for n, kind in members.items())
    rows = "".join(f"        {{{_row(kernel, members)}}},\n" for kernel in rule.kernels)
    body = "\n".join(_branches(rule.root, "    ", _C))
    return (
        f"/* Written by autotune distill: which of {len(rule.kernels)} kernels of {rule.kernel} to use. */\n"
        f"#ifndef {guard}\n#define {guard}\n\n"
        + ("#include <string.h>\n\n" if str in rule.inputs.values() else "")
        + f"/* A number that an algorithm does not have is 0, a text is empty. */\n"
        f"struct {name}_kernel {{\n    const char *algorithm; const char *options;{fields}\n}};\n\n"
        f"enum {{ {name.upper()}_KERNELS = {len(rule.kernels)} }};\n\n"
        f"/* Those that {name}_choose uses come first; the others may be tried on a device, too. */\n"
        f"static inline struct {name}_kernel {name}_kernel(int number) {{\n"
        f"    static const struct {name}_kernel kernels[] = {{\n{rows}    }};\n"
        f"    return kernels[number];\n}}\n\n"
        f"static inline int {name}_choose({inputs or 'void'}) {{\n{body}\n}}\n\n#endif\n"
    )


def _members(kernels: Sequence[Configuration]) -> dict[str, type]:
    """Return the type of each parameter: texts for those that are a text in some kernel."""
    values = [pair for kernel in kernels for pair in kernel.values]
    names = sorted({name for name, _ in values})
    return {name: str if any(n == name and isinstance(v, str) for n, v in values) else int for name in names}


def _row(kernel: Configuration, members: Mapping[str, type]) -> str:
    values = dict(kernel.values)
    options = " ".join(f"-D{name}={plain_option(value)}" for name, value in values.items())
    cells = [json.dumps(kernel.algorithm), json.dumps(options)]
    for name, kind in members.items():
        value = values.get(name, "" if kind is str else 0)
        cells.append(json.dumps(str(value)) if kind is str else str(value))
    return ", ".join(cells)


_PYTHON = ("if {condition}:", "return {number}", "{feature} <= {bound!r}", "{feature} == {bound!r}", "")
_C = ("if ({condition}) {{", "return {number};", "{feature} <= {bound!r}", 'strcmp({feature}, "{bound}") == 0', "}")
"""How a language writes a split, a leaf, a number's and a text's condition, and the end of a branch."""


def _branches(node: Node, indent: str, language: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a tree: each branch returns, so that none needs an else."""
    split, leaf, at_most, is_text, end = language
    if not isinstance(node, Split):
        yield indent + leaf.format(number=node)
        return
    condition = (is_text if isinstance(node.bound, str) else at_most).format(feature=node.feature, bound=node.bound)
    yield indent + split.format(condition=condition)
    yield from _branches(node.yes, indent + "    ", language)
    if end:
        yield indent + end
    yield from _branches(node.no, indent, language)
