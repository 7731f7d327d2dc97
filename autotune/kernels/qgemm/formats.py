"""Formats of quantised weights: how blocks of a row of weights lie in memory, and what they stand for.

Names beginning with q and mxfp4 are GGUF's block formats, byte for byte. The int4 formats hold whole matrices in
arrays, as GPTQ, AWQ and MNN do once their nibbles are brought into this order: the quants of all rows, then their
scales, then their zero points. Every format but that with 8 bits stores 4 bits of 32 successive weights (a unit) in 16
bytes, whose byte i holds weight i in its low and weight i + 16 in its high half; Q4_K and Q6_K come to that order when
they are packed. Standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.space.expression import by_value

UNIT = 32
"""Successive weights of a row that kernels handle together; every format has whole units."""
SUPER_UNITS = 8
"""Units of a block of Q4_K and Q6_K."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """What kernels and plans must know of a format. A weight is scale * quant - offset."""

    name: str
    block: int
    """Weights in a block: a row has whole blocks."""
    block_bytes: int
    """Bytes of a block in the file; a matrix takes this times its number of blocks."""
    packed_growth: int = 0
    """How many bytes more a block takes when packed."""
    quant_bytes: int = 16
    """Bytes of a unit's quants when packed, without `high_bytes`."""
    high_bytes: int = 0
    """Bytes of the upper two bits of a unit's quants when packed."""
    group: int = UNIT
    """Weights that share a scale."""
    has_zero_points: bool = False
    in_arrays: bool = False
    """Whether the file holds quants, scales and zero points of all rows one after the other, not block by block."""
    file_alignment: int = 1
    """What the address of a unit's quants in the file is a multiple of, in bytes."""


def _arrays(group: int, has_zero_points: bool) -> WeightFormat:
    return WeightFormat(
        name=f"int4{'z' if has_zero_points else ''}-g{group}",
        block=group,
        block_bytes=group // 2 + 2 + has_zero_points,
        group=group,
        has_zero_points=has_zero_points,
        in_arrays=True,
        file_alignment=4,
    )


FORMATS: Mapping[str, WeightFormat] = {
    one.name: one
    for one in (
        # A float16 scale for 32 weights.
        WeightFormat(name="q4_0", block=UNIT, block_bytes=18, file_alignment=2),
        WeightFormat(name="q8_0", block=UNIT, block_bytes=34, file_alignment=2, quant_bytes=32),
        # Two float16 for a block, with which 6 bits for each unit make its scale and its offset.
        WeightFormat(name="q4_k", block=SUPER_UNITS * UNIT, block_bytes=144, file_alignment=4, packed_growth=4),
        # A float16 scale for a block, and 8 bits for 16 weights.
        WeightFormat(name="q6_k", block=SUPER_UNITS * UNIT, block_bytes=210, file_alignment=2, high_bytes=8),
        # 4-bit floats, with a power of two for 32.
        WeightFormat(name="mxfp4", block=UNIT, block_bytes=17, file_alignment=1),
        *(_arrays(group, zeros) for zeros in (False, True) for group in (32, 64, 128)),
    )
}
"""All formats by name."""


def by_format(value: Callable[[WeightFormat], int]) -> str:
    """Return an expression for a number that the format of a problem determines."""
    return by_value("weights", {name: value(one) for name, one in FORMATS.items()})
