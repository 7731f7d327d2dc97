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
    meaning: str
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


def _blocks(
    name: str,
    meaning: str,
    block: int,
    block_bytes: int,
    file_alignment: int,
    quant_bytes: int = 16,
    high_bytes: int = 0,
    packed_growth: int = 0,
) -> WeightFormat:
    return WeightFormat(
        name=name,
        meaning=meaning,
        block=block,
        block_bytes=block_bytes,
        file_alignment=file_alignment,
        quant_bytes=quant_bytes,
        high_bytes=high_bytes,
        packed_growth=packed_growth,
    )


def _arrays(group: int, has_zero_points: bool) -> WeightFormat:
    return WeightFormat(
        name=f"int4{'z' if has_zero_points else ''}-g{group}",
        meaning=f"4 bits with a float16 scale{' and a zero point' if has_zero_points else ''} for {group} weights",
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
        _blocks("q4_0", "GGUF: 4 bits, a float16 scale for 32 weights", UNIT, 18, 2),
        _blocks("q8_0", "GGUF: 8 bits, a float16 scale for 32 weights", UNIT, 34, 2, quant_bytes=32),
        _blocks(
            "q4_k",
            "GGUF: 4 bits, scale and offset of 6 bits for 32 weights",
            SUPER_UNITS * UNIT,
            144,
            4,
            packed_growth=4,
        ),
        _blocks("q6_k", "GGUF: 6 bits, a scale of 8 bits for 16 weights", SUPER_UNITS * UNIT, 210, 2, high_bytes=8),
        _blocks("mxfp4", "OCP: 4-bit floats, a power of two for 32 weights", UNIT, 17, 1),
        *(_arrays(group, zeros) for zeros in (False, True) for group in (32, 64, 128)),
    )
}
"""All formats by name."""


def by_format(value: Callable[[WeightFormat], int]) -> str:
    """Return an expression for a number that the format of a problem determines."""
    return by_value("weights", {name: value(one) for name, one in FORMATS.items()})
