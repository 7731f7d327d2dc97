"""GEMM for exported C code."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.gemm.plan import PLAN
from autotune.kernels.gemm.problem import BYTES_MOVED, MAX_ELEMENTS, MODES, GemmProblem
from autotune.kernels.gemm.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.c_export import CExport


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, GemmProblem)
    values = PLAN.values(example, configuration)

    def lengths(tile: int, group: int) -> list[int]:
        """Return whole tiles of a work-group and a work-item with each remainder by 4 possible, then ragged lengths."""
        steps = (1, 2, 3, 4)
        wanted = [step * part for part in (group, tile) for step in steps] + [4 * group + step for step in steps]
        return list({(length % group, length % tile, length % 4): length for length in wanted}.values())

    tile_m, tile_n = values["micro_tile_m"], values["micro_tile_n"]
    rows = lengths(tile_m, tile_m * max(values["work_group_m"], 1) * values["tiles_m"])
    columns = lengths(tile_n, tile_n * max(values["work_group_n"], 1))
    deep = 4 * values["unroll"] * values["vector_width"] * values["tile_k"]
    for batch, m, n, k, gap in product((1, 2), rows, columns, (deep, deep + 1), (0, 1)):
        yield replace(
            example, m=m, n=n, k=k, batch=batch, lda=0, ldb=0, ldc=n + gap, stride_a=0, stride_b=0, stride_c=0
        )


C_EXPORT = CExport(
    about="C = alpha * op(A) * op(B) + beta * C, row-major, in buffers.",
    kind=("mode", "trans_a", "trans_b"),
    words={"mode": tuple(MODES)},
    least={
        **dict.fromkeys(("m", "n", "k", "batch"), "1"),
        "lda": "m if trans_a == 1 else k",
        "ldb": "k if trans_b == 1 else n",
        "ldc": "n",
        "stride_a": "(k if trans_a == 1 else m) * lda",
        "stride_b": "(n if trans_b == 1 else k) * ldb",
        "stride_c": "m * ldc",
    },
    conditions=(
        "trans_a in (0, 1) and trans_b in (0, 1)",
        *(f"batch * stride_{operand} <= {MAX_ELEMENTS}" for operand in "abc"),
    ),
    candidates=candidates,
    estimate=ESTIMATE,
    bytes_moved=BYTES_MOVED,
    plan=PLAN,
    samples=_samples,
)
