"""The kernel families: one subpackage each, found by name."""

from functools import cache
from typing import TYPE_CHECKING

from autotune.errors import ProblemError

if TYPE_CHECKING:
    from autotune.space.family import KernelFamily


def find_family(name: str) -> "KernelFamily":
    """Return the family of that name. Raises ProblemError when there is none."""
    from importlib import import_module

    from autotune.space.family import KernelFamily

    if name not in family_names():
        raise ProblemError(f"there is no kernel family {name[:80]!r}", hint=f"there are {', '.join(family_names())}")
    family = import_module(f"autotune.kernels.{name}").FAMILY
    assert isinstance(family, KernelFamily)
    return family


@cache
def family_names() -> list[str]:
    """Return the names of all kernel families, sorted."""
    from pathlib import Path

    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
