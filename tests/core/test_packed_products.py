"""local_tile with two numbers in a word, which on PoCL, without half arithmetic, are int16; C is float32 there."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from numpy.typing import NDArray

from autotune.device.opencl import Session
from autotune.device.profile import find_profile
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import render
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.space.search_space import SearchSpace
from covering import covering_sample, occurring
from factories import LARGE_GPU, UNOPTIMIZED, device, first_short

LIMITS = replace(LARGE_GPU, has_float16=True)

STAND_INS = {
    "add_products": "uint add_products(uint a, uint b, uint sum)\n"
    "{\n    return as_uint(as_short2(a) * as_short2(b) + as_short2(sum));\n}\n",
    "total": "float total(uint sums)\n{\n    return as_short2(sums).x + as_short2(sums).y;\n}\n",
}


def runnable(source: str) -> str:
    """Return the source for PoCL: pairs are of int16, and what is computed of their total is float32."""
    source = re.sub(r"#pragma OPENCL EXTENSION cl_khr_fp16.*?#endif\n", "", source, flags=re.DOTALL)
    packing, begin, product = source.partition("__kernel __attribute__((reqd_work_group_size")
    packing = re.sub(r"(__global const|__global|\()( ?)half\b", r"\1\2ushort", packing)
    product = product.replace("__global const half *", "__global const ushort *")
    product = re.sub(r"\bhalf(2?)\b", r"float\1", product)
    for name, stand_in in STAND_INS.items():
        packing, replaced = re.subn(rf"^\w+ {name}\(.*?^}}\n", stand_in, packing, flags=re.MULTILINE | re.DOTALL)
        assert replaced == 1
    return packing + begin + product


def found(pocl: Device, problem: GemmProblem, configuration: Configuration, inputs: dict[str, Any]) -> NDArray[Any]:
    """Return C, shape (batch, m, n)."""
    plan = FAMILY.plan(problem, configuration)
    session = Session(pocl.selector)
    program = session.build(runnable(render(FAMILY, configuration, plan)), [*plan.build_options, *UNOPTIMIZED])
    flags = cl.mem_flags.READ_WRITE
    memory = {b.name: cl.Buffer(session.context, flags, 4 * b.elements) for b in plan.buffers}
    for name, values in inputs.items():
        session.write(memory[name], values)
    session.run(session.bind(session.kernels(program, plan), plan.launches, memory), has_events=False)
    result = np.zeros(problem.batch * problem.stride("c"), np.float32)
    session.read(memory["c"], result)
    return unpacked(problem, "c", result)


def unpacked(problem: GemmProblem, operand: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the matrices of an operand as stored, shape (batch, rows, columns)."""
    rows, columns = problem.stored[operand]
    each = values.reshape(problem.batch, problem.stride(operand))[:, : rows * problem.pitch(operand)]
    return each.reshape(problem.batch, rows, problem.pitch(operand))[:, :, :columns].astype(np.float32)


def drawn(problem: GemmProblem) -> tuple[dict[str, Any], NDArray[Any]]:
    """Return small whole numbers for A and B, and their product, shape (batch, m, n)."""
    numbers = np.random.default_rng(0)
    inputs = {name: numbers.integers(-2, 3, problem.batch * problem.stride(name)).astype(np.int16) for name in "ab"}
    a, b = (unpacked(problem, name, values) for name, values in inputs.items())
    return inputs, (a.swapaxes(1, 2) if problem.trans_a else a) @ (b.swapaxes(1, 2) if problem.trans_b else b)


SMALL: dict[str, tuple[Value, ...]] = {
    "multiply_add": ("packed",), "work_group_m": (4, 8), "work_group_n": (4, 8), "micro_tile_m": (1, 2, 4),
    "micro_tile_n": (2, 4, 8), "tile_k": (8, 16),
}  # fmt: skip
SHAPES = (
    "36,52,40 float16-acc16", "35,50,30 float16-acc16 batch=2", "34,45,28 nt float16-acc16",
    "38,44,26 tn float16-acc16",
    "36,33,22 tt float16-acc16 ldb=24", "33,35,31 float16-acc16", "21,37,50 tt float16-acc16 ldb=51",
)  # fmt: skip


@pytest.mark.parametrize("shape", first_short(SHAPES, 2))
def test_a_product_of_pairs_is_right(pocl: Device, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    inputs, expected = drawn(problem)
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["local_tile"], overrides=SMALL)
    samples = covering_sample([space], "local_tile", strength=1, seed=1)[:4]
    assert samples
    wrong = [s.configuration for s in samples if (found(pocl, problem, s.configuration, inputs) != expected).any()]
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("load_width", [1, 2, 4])
@pytest.mark.parametrize("shape", ["132,140,40 float16-acc16", "140,132,56 tt float16-acc16"])
def test_a_large_micro_tile_of_pairs_is_right(pocl: Device, shape: str, load_width: int) -> None:
    """Rows of single elements are joined to rows of pairs in words of one, two or four elements."""
    problem = GemmProblem.parse(shape)
    starts = find_profile(device("nvidia-h100", limits=LIMITS)).starting("gemm")
    start = next(s for s in starts if dict(s.values).get("multiply_add") == "packed")
    changes: dict[str, Value] = {"a_load_width": load_width, "b_load_width": load_width, "group_rows": 0}
    configuration = Configuration.of("local_tile", **{**dict(start.values), **changes})
    assert FAMILY.violations(problem, configuration, LIMITS) == []
    inputs, expected = drawn(problem)
    assert (found(pocl, problem, configuration, inputs) == expected).all()


def edges(shape: str) -> set[Value]:
    problem = GemmProblem.parse(shape)
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["local_tile"], overrides={"multiply_add": ("packed",)})
    return set(occurring(space, "local_tile", "edges")) if len(space) else set()


def test_what_does_not_come_in_pairs_is_padded() -> None:
    assert "guard" in edges("512,512,512 float16-acc16")
    assert edges("512,512,511 float16-acc16") == edges("512,512,512 float16-acc16 lda=513") == {"pad"}
    assert edges("512,512,512 float16") == set()


def test_the_rule_takes_pairs() -> None:
    problem = GemmProblem.parse("2048,2048,2048 float16-acc16")
    starts = find_profile(device("nvidia-h100", limits=LIMITS)).starting("gemm")
    assert FAMILY.default(problem, LIMITS, starts)["multiply_add"] == "packed"
