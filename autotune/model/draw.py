"""Random inputs that another machine can draw itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How NumPy's PCG64 drew the values of an input: floats in [-1, 1), or integers in [-128, 127].

    Another machine can draw the same values instead of receiving them.
    """

    dtype: str
    """float32, float16 (rounded from float32) or int8."""
    count: int
    state: int
    increment: int
    half: int | None
    """The half of a number left over from an earlier draw, if any."""
