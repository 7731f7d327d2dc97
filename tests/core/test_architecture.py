"""The direction of imports, and the one owner of each heavy library, read from the syntax tree.

Imports inside functions and under TYPE_CHECKING count too, and so do import_module calls with a constant name.
"""

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "autotune"

ORDER = (
    "errors",
    "codec",
    "tracing",
    "manual",
    "paths",
    "plugins",
    "model",
    "space",
    "kernels",
    "messages",
    "child",
    "device",
    "lookup",
    "networks",
    "measure",
    "store",
    "propose",
    "search",
    "distill",
    "runtime",
    "export",
    "display",
    "cli",
    "__main__",
)
"""The rooms of the core (a folder or a file of the package): each may import those before it, never one after it."""
WINGS = ("own", "phone", "service")
"""A wing may import every room of the core, and no other wing; the core knows them by the names in `plugins` alone."""

OWNERS = {
    "jinja2": {"kernels/render.py"},
    "pyopencl": {"device/opencl.py", "device/arrays.py", "device/description.py", "device/quirks.py"},
    "pynvml": {"device/sensors.py"},
    "sqlalchemy": {"store", "service/store"},
    "alembic": {"store/migration.py"},
    "filelock": {"paths.py", "cli/device_lock.py", "service/store/__init__.py"},
    "psutil": {"store/owner.py"},
    "psycopg": set(),  # reached through SQLAlchemy and procrastinate
    "procrastinate": {"service/store/entries.py", "service/engine.py"},
    "onnx": {"networks/onnx_graph.py"},
    "optuna": {"propose/study.py"},
    "rich": {"display"},
    "shtab": {"cli/help.py"},
    "tree_sitter": {"own/kernel_file/syntax.py"},
    "tree_sitter_c": {"own/kernel_file/syntax.py"},
    "fastapi": {"service"},
    "markdown_it": {"service/manual_pages.py"},
    "starlette": {"service"},
    "pydantic": {"service"},
    "uvicorn": {"service"},
    "numpy": {
        "own",
        "phone",
        "space",
        "kernels",
        "device",
        "measure",
        "propose",
        "search",
        "distill",
        "runtime",
    },
}
"""Libraries outside the standard one, and the rooms or files that may import them."""

LIGHT = (
    "autotune.lookup.",
    "autotune.kernels.gemm",
    "autotune.kernels.reduce",
    "autotune.kernels.rows",
    "autotune.own.kernel_file.family",
)
"""What these modules and packages load may import a library only where a function needs it, or for types."""


@dataclass(frozen=True, kw_only=True)
class Import:
    file: Path
    line: int
    name: str
    members: tuple[str, ...]
    """Imported from it, some of which may be modules."""
    is_at_load: bool
    """Runs when the module is loaded: neither in a function nor for type checking only."""

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.line}"


def _imports(file: Path) -> list[Import]:
    found: list[Import] = []
    _collect(ast.parse(file.read_text(encoding="utf-8")), file, found, is_at_load=True)
    return found


def _collect(node: ast.AST, file: Path, found: list[Import], *, is_at_load: bool) -> None:
    for child in ast.iter_child_nodes(node):
        for name in _names(child):
            members = tuple(alias.name for alias in child.names) if isinstance(child, ast.ImportFrom) else ()
            line = getattr(child, "lineno", 0)
            found.append(Import(file=file, line=line, name=name, members=members, is_at_load=is_at_load))
        is_deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        _collect(child, file, found, is_at_load=is_at_load and not is_deferred)


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module="autotune", level=0, names=names):
            return [f"autotune.{alias.name}" for alias in names]
        case ast.ImportFrom(module=module, level=level):
            return ["." * level + (module or "")]
        case ast.Call(func=function, args=[ast.Constant(value=str() as name), *_]):
            is_import = ast.unparse(function).split(".")[-1] in ("import_module", "__import__")
            return [name] if is_import else []
    return []


def _stage(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _files() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@cache
def _all_imports() -> tuple[tuple[str, Import], ...]:
    return tuple((_stage(file), item) for file in _files() for item in _imports(file))


def test_every_module_has_its_place_in_the_order() -> None:
    assert {_stage(file) for file in _files()} == {*ORDER, *WINGS}


def test_imports_point_only_up() -> None:
    wrong = []
    for stage, item in _all_imports():
        if not item.name.startswith("autotune."):
            continue
        target = item.name.split(".")[1]
        if target == "__version__" or target == stage:
            continue
        is_before = target in ORDER and (stage in WINGS or ORDER.index(target) < ORDER.index(stage))
        if not is_before:
            wrong.append(f"{item.place}: {stage} imports {target}")
    assert wrong == []


def test_no_files_import_one_another_in_a_circle() -> None:
    modules = {_module(file) for file in _files()}
    graph: dict[str, set[str]] = {}
    for file in _files():
        of_file = graph.setdefault(_module(file), set())
        for item in _imports(file):
            members = {f"{item.name}.{member}" for member in item.members} & modules
            of_file |= members or ({item.name} & modules)
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_imports_are_absolute() -> None:
    assert [item.place for _, item in _all_imports() if item.name.startswith(".")] == []


def test_every_library_has_its_owner() -> None:
    wrong = []
    for stage, item in _all_imports():
        root = item.name.split(".")[0]
        if root in sys.stdlib_module_names or root in ("autotune", ""):
            continue
        file = item.file.relative_to(PACKAGE)
        rooms = {file.as_posix(), *(parent.as_posix() for parent in file.parents)}
        if not rooms & OWNERS.get(root, set()):
            wrong.append(f"{item.place}: {stage} imports {root}")
    assert wrong == []


def _loaded_with(names: Sequence[str]) -> list[Path]:
    """Files that run when these are imported; a name with a dot at its end stands for a package's modules."""
    files, found = {_module(file): file for file in _files()}, set[str]()
    left = [module for module in files if module in names or f"{module.rpartition('.')[0]}." in names]
    while left:
        module = left.pop()
        if module in found or module not in files:
            continue
        found.add(module)
        left.append(module.rpartition(".")[0])
        for item in _imports(files[module]):
            if item.is_at_load:
                left += [item.name, *(f"{item.name}.{member}" for member in item.members)]
    return [files[module] for module in found]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_lookup_loads_nothing_but_the_standard_library() -> None:
    loaded = _loaded_with(LIGHT)
    assert PACKAGE / "model" / "problem.py" in loaded and PACKAGE / "kernels" / "__init__.py" in loaded
    libraries = [item for file in loaded for item in _imports(file) if item.name.split(".")[0] in OWNERS]
    assert [item.place for item in libraries if item.is_at_load] == []


ALSO_WORDS = {"rows": re.compile(r"[\"'._/]rows[\"'._/]|_rows\b")}
"""Families whose names are words of plain English: how code would name them, and not others of that word."""


def test_exports_name_no_family() -> None:
    """A family declares what C needs of it, so one from outside the package is exported like the others."""
    families = [path.parent.name for path in (PACKAGE / "kernels").glob("*/__init__.py")]
    templates = PACKAGE.parent / "templates/c"
    library = [templates / "autotune.c", templates / "autotune_plan.h", *templates.glob("*.j2")]
    for file in [*(PACKAGE / "export").glob("*.py"), *library]:
        text = file.read_text(encoding="utf-8").lower()
        named = [f for f in families if (ALSO_WORDS[f].search(text) if f in ALSO_WORDS else f in text)]
        assert families and not named, file


def test_package_itself_imports_nothing() -> None:
    assert [item for item in _imports(PACKAGE / "__init__.py") if item.is_at_load] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import optuna", [("optuna", True)]),
        ("def f():\n    import optuna.samplers", [("optuna.samplers", False)]),
        ("class C:\n    import rich", [("rich", True)]),
        ("if TYPE_CHECKING:\n    import numpy", [("numpy", False)]),
        ("try:\n    from autotune import store\nexcept ImportError:\n    pass", [("autotune.store", True)]),
        ("from . import store", [(".", True)]),
        ("importlib.import_module('autotune.cli')", [("autotune.cli", True)]),
        ("import_module(name)", []),
    ],
)
def test_reader_sees_every_way_to_import(tmp_path: Path, source: str, expected: list[tuple[str, bool]]) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert [(item.name, item.is_at_load) for item in _imports(file)] == expected
