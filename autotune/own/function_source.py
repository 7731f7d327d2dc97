"""The source of a function that other processes load: of its file, or of cells of a notebook.

A cell is no file that could be loaded. The functions that a function uses are taken from cells too, modules are
imported, and plain values are written out.
"""

import builtins
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autotune.errors import UsageError
from autotune.own.kernel_file.source import read_text

_MOST_FUNCTIONS = 100
_LONGEST_VALUE = 100_000


def function_source(function: Callable[..., Any]) -> str:
    """Return a text that defines a function when it is run as a file. Raises UsageError where there is none."""
    if not isinstance(function, FunctionType) or "<" in function.__qualname__:
        raise UsageError(
            f"{function!r} is not a function of a module, a script or a cell", hint="define it with def, outside others"
        )
    script = inspect.getsourcefile(function)
    if script is not None and Path(script).is_file():
        return read_text(Path(script))
    found: dict[str, str] = {}
    _add(function, found)
    return "\n".join(found.values()) + "\n"


def _add(function: FunctionType, found: dict[str, str]) -> None:
    """Add the source of a function to those found by name, after what it uses."""
    name = function.__name__
    found[name] = ""
    if len(found) > _MOST_FUNCTIONS:
        raise UsageError(f"{name} uses too many others", hint="put them into a module")
    try:
        source = dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        hint = "define it in a file or in a cell of a notebook"
        raise UsageError(f"the source of {name} is not known", hint=hint) from error
    if function.__closure__:
        raise UsageError(f"{name} uses variables of a function around it", hint="pass them as sizes or arguments")
    for used in dict.fromkeys(_names(function.__code__)):
        if used not in found and used in function.__globals__:
            found[used] = ""
            _add_value(used, function.__globals__[used], name, found)
    del found[name]
    found[name] = source


def _add_value(name: str, value: Any, user: str, found: dict[str, str]) -> None:
    """Add a line that gives a name of a notebook its value."""
    module = getattr(value, "__module__", None)
    if isinstance(value, ModuleType):
        found[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, FunctionType) and module == "__main__":
        if value.__name__ != name:
            raise UsageError(f"{user} uses {value.__name__} by another name, {name}", hint="call it by its own name")
        _add(value, found)
    elif isinstance(module, str) and module != "__main__" and hasattr(value, "__qualname__"):
        found[name] = f"from {module} import {value.__qualname__} as {name}"
    elif _is_plain(value) and len(repr(value)) <= _LONGEST_VALUE:
        found[name] = f"{name} = {value!r}"
    elif not hasattr(builtins, name):
        hint = "make it an argument, or move both into a module"
        raise UsageError(f"{user} uses {name}, a {type(value).__name__} that other processes do not have", hint=hint)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, and those of functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
