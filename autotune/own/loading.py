"""Makes families of kernel files and of command files."""

import sys
import tomllib
from pathlib import Path
from types import ModuleType

from autotune.codec import read_file
from autotune.errors import BuildError, TableError, UsageError
from autotune.own.tuned_family import TunedFileFamily


def load_file(path: Path, module: str) -> TunedFileFamily:
    """Return the family of a kernel file or command file, and make its problems importable as `module`.

    Raises UsageError.
    """
    family = _family_of(path, module)
    holder = ModuleType(module)
    holder.FAMILY = family  # type: ignore[attr-defined]
    setattr(holder, family.problem_type.__name__, family.problem_type)
    sys.modules[module] = holder
    for request in family.requests:
        family.plan(request.problem, family.usual)
        try:
            family.use(request.problem, family.usual)
        except BuildError as error:
            raise UsageError(f"{path}: {error.message}", hint="where it is not Jinja2, write {% raw %}") from error
    return family


def _family_of(path: Path, module: str) -> TunedFileFamily:
    if _has_command(path):
        from autotune.own.command.family import CommandFamily
        from autotune.own.command.format import read_command_file

        return CommandFamily(read_command_file(path), module)
    from autotune.own.kernel_file.family import FileFamily
    from autotune.own.kernel_file.reading import read_kernel_file

    return FileFamily(read_kernel_file(path), module)


def _has_command(path: Path) -> bool:
    """Return whether a file has a key that only command files have; reading it says what else is wrong."""
    try:
        data = tomllib.loads(read_file(path).decode("utf-8-sig")) if path.suffix == ".toml" else {}
    except (TableError, ValueError, RecursionError):
        return False
    return not {"command", "metric"}.isdisjoint(data)
