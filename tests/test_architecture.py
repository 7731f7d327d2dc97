"""The direction of imports, and the one owner of each heavy library, read from the syntax tree.

Imports inside functions and under TYPE_CHECKING count too, and so do import_module calls with a constant name.
"""

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

ORDER = (
    "errors",
    "tracing",
    "turns",
    "expression",
    "resources",
    "manual",
    "problem",
    "family",
    "combining",
    "occupancy",
    "kernels",
    "profile",
    "processors",
    "identity",
    "trial",
    "checkup",
    "lookup",
    "render",
    "messages",
    "child",
    "device",
    "measure",
    "worker",
    "builder",
    "calibrating",
    "remote",
    "store",
    "diagram",
    "space",
    "compiling",
    "doctor",
    "sampler",
    "search",
    "predict",
    "runtime",
    "comparing",
    "export",
    "presets",
    "service",
    "display",
    "cli",
    "__main__",
    "testing",
)
"""A module may import those before it, never one after it."""

OWNERS = {
    "jinja2": {"render"},
    "pyopencl": {"device"},
    "pynvml": {"device"},
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "psycopg": {"lookup"},  # the store reaches it through SQLAlchemy
    "optuna": {"sampler", "search"},
    "rich": {"display"},
    "fastapi": {"service"},
    "markdown_it": {"service"},
    "starlette": {"service"},
    "pydantic": {"service"},
    "uvicorn": {"service"},
    "numpy": {
        "expression", "family", "kernels", "device", "measure", "diagram", "space", "sampler", "search", "predict",
        "runtime", "testing",
    },
}  # fmt: skip
"""Libraries outside the standard one, and who may import them."""

JUDGES = ("reference.py",)
"""Files of a light module that load NumPy, and are loaded only by the functions that need them."""

LIGHT = ORDER[: ORDER.index("lookup") + 1]
"""What the runtime lookup loads: these may import a library only where a function needs it, or for types."""


@dataclass(frozen=True, kw_only=True)
class Import:
    file: Path
    line: int
    name: str
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
            found.append(Import(file=file, line=getattr(child, "lineno", 0), name=name, is_at_load=is_at_load))
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
    assert {_stage(file) for file in _files()} - set(ORDER) == set()


def test_imports_point_only_up() -> None:
    wrong = []
    for stage, item in _all_imports():
        if not item.name.startswith("autotune."):
            continue
        target = item.name.split(".")[1]
        if target == "__version__" or target == stage:
            continue
        if target not in ORDER or ORDER.index(target) > ORDER.index(stage):
            wrong.append(f"{item.place}: {stage} imports {target}")
    assert wrong == []


def test_imports_are_absolute() -> None:
    assert [item.place for _, item in _all_imports() if item.name.startswith(".")] == []


def test_every_library_has_its_owner() -> None:
    wrong = []
    for stage, item in _all_imports():
        root = item.name.split(".")[0]
        if root in sys.stdlib_module_names or root in ("autotune", ""):
            continue
        if stage not in OWNERS.get(root, set()):
            wrong.append(f"{item.place}: {stage} imports {root}")
    assert wrong == []


def test_light_modules_load_nothing_but_the_standard_library() -> None:
    libraries = [(s, item) for s, item in _all_imports() if s in LIGHT and item.name.split(".")[0] in OWNERS]
    at_load = [item for _, item in libraries if item.is_at_load and item.file.name not in JUDGES]
    assert [item.place for item in at_load] == []
    judges = {file.relative_to(PACKAGE).with_suffix("").as_posix() for file in _files() if file.name in JUDGES}
    names = {f"autotune.{judge.replace('/', '.')}" for judge in judges}
    assert [item.place for _, item in _all_imports() if item.is_at_load and item.name in names] == []


def test_package_itself_imports_nothing() -> None:
    assert _imports(PACKAGE / "__init__.py") == []


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
