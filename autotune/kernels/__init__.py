"""The registry of kernel families, which are found by name.

The subpackages of this package are built in. Other families come with installed packages, as entry points of the group
``autotune.families``, or from files that the environment variable AUTOTUNE_FAMILIES lists, separated as in PATH: kernel
files (``.toml``, see `kernel_file`), and Python files, each of which defines its family as ``FAMILY``. Child processes
inherit the variable. A family is code, so tables, databases and services can only name families, never say where to
load one from.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from autotune.errors import ProblemError, UsageError
from autotune.plugins import entry_points, part

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from autotune.model.problem import Problem
    from autotune.space.family import KernelFamily

DEFAULT_FAMILY = "gemm"
"""The family that is meant where none is named or stored."""
ENTRY_POINTS = "autotune.families"
FILES = "AUTOTUNE_FAMILIES"
KERNEL_FILES = (".toml", ".json")
"""Endings of kernel files; other files are Python."""
FILE_MODULE = "autotune_family_"
"""Beginning of the names of the modules that are made of files."""


@cache
def find_family(name: str) -> "KernelFamily":
    """Return the family of that name.

    Raises ProblemError if there is none, and UsageError, which names the package or file, if it cannot be used.
    """
    from importlib import import_module

    if name in _built_in_names():
        built_in: KernelFamily = import_module(f"autotune.kernels.{name}").FAMILY
        return built_in
    if name in families_of_files():
        return families_of_files()[name]
    if name in _entry_points():
        point = _entry_points()[name]
        return _checked(point.load, f"the entry point {point.value} of {ENTRY_POINTS}", name)
    raise ProblemError(f"there is no kernel family {name[:80]!r}", hint=f"there are {', '.join(family_names())}")


def family_names() -> list[str]:
    """Return the names of all kernel families, sorted."""
    return sorted({*_built_in_names(), *families_of_files(), *_entry_points()})


def require_kernels(name: str) -> None:
    """Raise UsageError for a family whose configurations are commands."""
    if find_family(name).is_command:
        raise UsageError(f"{name} is a command, not a kernel", hint="autotune tune, run, verify and show support it")


def parse_shape(problem_type: "type[Problem]", text: str) -> "Problem":
    """Return the problem of a shape. Raises ProblemError, with a hint if the shape is one of another family."""
    try:
        return problem_type.parse(text)
    except ProblemError as error:
        others = [name for name in family_names() if _is_shape(name, text)]
        if not others:
            raise
        raise ProblemError(error.message, hint=f"{error.hint}; or add --family {others[0]}") from error


def _is_shape(family: str, text: str) -> bool:
    try:
        find_family(family).problem_type.parse(text)
    except ProblemError:
        return False
    return True


def is_family(name: str) -> bool:
    """Return whether there is a family of that name; looks for packages only if it is not built in."""
    return name in _built_in_names() or name in family_names()


@cache
def families_of_files() -> Mapping[str, "KernelFamily"]:
    """Return the families of the files that AUTOTUNE_FAMILIES lists, by name. Raises UsageError."""
    import os

    found: dict[str, KernelFamily] = {}
    for path in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
        # A kernel file's own errors name it and the line.
        family = (
            _run_file(path)
            if path.endswith(KERNEL_FILES)
            else _checked(lambda path=path: _run_file(path), f"{FILES}: {path}")
        )
        if family.name in _built_in_names():
            raise UsageError(f"{path}: {family.name} is a kernel family of autotune's own", hint="choose another name")
        if family.name in found:
            raise UsageError(f"{FILES}: two files define a kernel family {family.name}", hint="list one of them")
        found[family.name] = family
    return found


@cache
def _built_in_names() -> frozenset[str]:
    from pathlib import Path

    return frozenset(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))


def _entry_points() -> Mapping[str, "EntryPoint"]:
    return {name: point for name, point in entry_points(ENTRY_POINTS).items() if name not in _built_in_names()}


def _run_file(path: str) -> Any:
    """Read a kernel file, or run a Python file as a module, and return its family.

    The module's name depends on the path alone, so that child processes find the classes of the objects they are sent.
    """
    import hashlib
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    file = Path(path).resolve(strict=True)
    name = f"{FILE_MODULE}{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if file.suffix in KERNEL_FILES:
        return part("load_file")(file, name)
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError("it is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAMILY


def _checked(load: Any, source: str, name: str = "") -> "KernelFamily":
    """Return the family that `load` returns. Raises UsageError if it raises anything or breaks the contract."""
    from autotune.space.family import KernelFamily

    try:
        family = load()
    except Exception as error:  # code of others may raise anything
        if isinstance(error, UsageError):
            raise UsageError(f"{source} cannot be loaded: {error.message}", hint=error.hint) from error
        raise UsageError(f"{source} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(family, KernelFamily):
        raise UsageError(f"{source}: FAMILY is a {type(family).__name__}", hint="it must be a KernelFamily object")
    faults = family.contract_faults()
    if name and family.name != name:
        faults.append(f"its name is {family.name!r}, not {name!r}")
    if family.name in _built_in_names():
        faults.append(f"its name, {family.name}, is that of a built-in family")
    if faults:
        raise UsageError(f"{source}: {faults[0]}")
    return family
