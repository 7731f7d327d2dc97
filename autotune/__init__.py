"""Find the fastest OpenCL kernel for each device and size, keep it, and look it up at run time."""

__version__ = "0.1.0"

TYPE_CHECKING = False
"""As that of typing, which costs time to load."""
if TYPE_CHECKING:
    from autotune.own.tuning import tune as tune


def __getattr__(name: str) -> object:
    """Load `tune` when it is first used, since it needs heavy libraries."""
    if name != "tune":
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from autotune.own.tuning import tune

    return tune
