"""The kernel families: one module each, found by its name."""

from functools import cache
from typing import TYPE_CHECKING

from autotune.errors import ProblemError

if TYPE_CHECKING:
    from autotune.space.family import KernelFamily


def find_family(name: str) -> "KernelFamily":
    """The family of that name, from the module of that name. Raises ProblemError."""
    from importlib import import_module

    from autotune.space.family import KernelFamily

    if name not in family_names():
        raise ProblemError(f"there is no kernel family {name[:80]!r}", hint=f"there are {', '.join(family_names())}")
    family = import_module(f"autotune.kernels.{name}").FAMILY
    assert isinstance(family, KernelFamily)
    return family


@cache
def family_names() -> list[str]:
    """Names of all kernel families."""
    from pathlib import Path

    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
