"""Probes that are functions, of images and of NVIDIA's matrix units, and what all probes need (see probes.py)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.device.port import NUMPY_TYPES, Memory, Port, Program
from autotune.errors import LaunchError
from autotune.model import checkup
from autotune.model.device import VECTOR_WIDTHS
from autotune.model.plan import Buffer, Launch, Plan, Role
from autotune.model.problem import NUMBER_TYPES

ITEMS = 64
VALUES = ITEMS * VECTOR_WIDTHS[-1]

Numbers = NDArray[Any]


def numbers(operand: int, dtype: str = "float32") -> Numbers:
    """Return the contents of operand 0, 1 or 2, shape (VALUES,): integers from -3 to 3."""
    return np.random.default_rng(operand).integers(-3, 4, VALUES).astype(NUMPY_TYPES[dtype])


def buffer(port: Port, values: Numbers) -> Memory:
    """Return a buffer with these contents."""
    memory = port.allocate(Buffer(name="probed", role=Role.SCRATCH, dtype="int8", elements=values.nbytes))
    port.write(memory, values)
    return memory


def run(port: Port, program: Program, launch: Launch, memory: Mapping[str, Memory]) -> None:
    kernels = port.kernels(program, Plan(buffers=(), launches=(launch,)))
    port.run(port.bind(kernels, [launch], memory), has_events=False)


def difference(found: Numbers, expected: Numbers) -> str:
    if not len(expected):
        return ""
    given = found[: expected.nbytes].view(expected.dtype)
    wrong = np.flatnonzero(given != expected)
    if not len(wrong):
        return ""
    first = wrong[0]
    return (
        f"{len(wrong)} of {len(expected)} results are wrong, the first is {given[first]} instead of {expected[first]}"
    )


# Images

_WIDTH, _HEIGHT = 8, 4
_IMAGE_KERNELS = "".join(
    f"""
__kernel void copy_{letter}(__read_only image2d_t from, __write_only image2d_t into, __global float *seen)
{{
    const int x = get_global_id(0), y = get_global_id(1);
    const {kind}4 pixel = read_image{letter}(from, (int2)(x, y));
    write_image{letter}(into, (int2)(x, y), pixel);
    vstore4(convert_float4(pixel), y * {_WIDTH} + x, seen);
}}
"""
    for letter, kind in (("f", "float"), ("i", "int"))
)

_LINE_KERNELS = "".join(
    f"""
__kernel void copy_line_{letters}(__read_only image1d_buffer_t from, __global float *seen)
{{
    const int x = get_global_id(0);
    vstore4(convert_float4(read_image{letters}(from, x)), x, seen);
}}
"""
    for letters in ("f", "ui")
)


def _image(dtype: str) -> Buffer:
    return Buffer(
        name="image", role=Role.SCRATCH, dtype=dtype, elements=4 * _WIDTH * _HEIGHT,
        image_width=_WIDTH, image_height=_HEIGHT,
    )  # fmt: skip


def _probe_images(port: Port, program: Program) -> None:
    """Test that images of each type in use can be written by the host and by a kernel, and read by a kernel."""
    for dtype in (name for name, number in NUMBER_TYPES.items() if number.channel):
        written, copied = port.allocate(_image(dtype)), port.allocate(_image(dtype))
        port.write(written, _pixels().astype(NUMPY_TYPES[dtype]))
        _copy_image(port, program, dtype, written, copied)
        _copy_image(port, program, dtype, copied, written)


def _probe_views(port: Port, program: Program) -> None:
    """Test that a buffer can be read as an image, without a copy."""
    row = 4 * 64  # no known device requires rows aligned to more than 64 pixels
    contents = np.zeros((_HEIGHT, row), np.float32)
    contents[:, : 4 * _WIDTH] = _pixels().reshape(_HEIGHT, -1)
    view = dataclasses.replace(_image("float32"), role=Role.VIEW, view_of="plain", row_pitch=row)
    image = port.allocate(view, {"plain": buffer(port, contents)})
    _copy_image(port, program, "float32", image, port.allocate(_image("float32")))


def _probe_lines(port: Port, program: Program) -> None:
    """Test that a buffer can be read as an image of one dimension, of each kind that kernels use."""
    expected = np.abs(_pixels()).astype(np.float32)
    for dtype, channels in (("uint32", 4), ("uint32", 1), ("float32", 4), ("float16", 4)):
        width = expected.size // channels
        view = Buffer(
            name="line", role=Role.VIEW, dtype=dtype, elements=expected.size, image_width=width, image_height=1,
            view_of="plain", channels=channels, is_line=True,
        )  # fmt: skip
        contents = buffer(port, expected.astype(NUMPY_TYPES[dtype]))
        seen = np.zeros((width, 4), np.float32)
        memory = {"from": port.allocate(view, {"plain": contents}), "seen": buffer(port, seen)}
        kernel = "copy_line_ui" if dtype == "uint32" else "copy_line_f"
        launch = Launch(kernel=kernel, global_size=(width,), local_size=None, arguments=tuple(memory))
        run(port, program, launch, memory)
        port.read(memory["seen"], seen)
        if wrong := difference(seen[:, :channels].copy().view(np.uint8).ravel(), expected):
            raise LaunchError(f"{dtype}, {channels} in a pixel: {wrong}")


def _copy_image(port: Port, program: Program, dtype: str, source: Memory, target: Memory) -> None:
    """Copy `source` in a kernel. Raises LaunchError when the kernel reads other pixels than `source` should hold."""
    seen = np.zeros_like(_pixels())
    memory = {"from": source, "into": target, "seen": buffer(port, seen)}
    kernel = "copy_i" if NUMBER_TYPES[dtype].is_whole else "copy_f"
    launch = Launch(kernel=kernel, global_size=(_WIDTH, _HEIGHT), local_size=None, arguments=tuple(memory))
    run(port, program, launch, memory)
    port.read(memory["seen"], seen)
    if wrong := difference(seen.view(np.uint8), _pixels()):
        raise LaunchError(f"{dtype}: {wrong}")


def _pixels() -> Numbers:
    return numbers(0)[: 4 * _WIDTH * _HEIGHT]


# Matrix units

_SUB_GROUP = 32
_SIDE = 16
_BYTES = 512
"""Bytes of a matrix with 16 rows: 16 float16 or 32 int8 a row; each work-item copies 16."""

_MATRIX_KERNEL = """
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void multiply_matrices(__global const char *from, __global float *of_halves, __global uint *in_halves,
                       __global int *of_chars)
{
    __local char tile[1024] __attribute__((aligned(128)));
    const int lane = get_local_id(0);
    for (int i = 0; i < 2; ++i)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 16;"
                     :: "r"((uint)(size_t)(tile + 512 * i + 16 * lane)), "l"((ulong)(from + 512 * i + 16 * lane))
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint row = (uint)(size_t)(tile + lane % 16 * 32 + lane / 16 * 16);
    uint a, b, c, d, e, f, g, h;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(row) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(e), "=r"(f), "=r"(g), "=r"(h) : "r"(row) : "memory");
    float x = 0, y = 0, z = 0, w = 0;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(z), "+f"(w) : "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));
    vstore2((float2)(x, y), lane, of_halves);
    vstore2((float2)(z, w), 32 + lane, of_halves);
    uint upper = 0, lower = 0;
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
        "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(upper), "+r"(lower) : "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));
    in_halves[lane] = upper;
    in_halves[32 + lane] = lower;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(row + 512) : "memory");
    int s = 0, t = 0, u = 0, v = 0;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(s), "+r"(t), "+r"(u), "+r"(v) : "r"(a), "r"(b), "r"(c), "r"(d), "r"(a), "r"(c));
    vstore2((int2)(s, t), lane, of_chars);
    vstore2((int2)(u, v), 32 + lane, of_chars);
}
"""
"""Multiplies a matrix of float16 by its first 8 columns, and one of int8 by the transposed first 8 rows."""


def _matrices() -> NDArray[np.uint8]:
    """Return the two matrices, of 16 x 16 float16 and of 16 x 32 int8, one after the other."""
    whole = np.random.default_rng(3).integers(-3, 4, 3 * _SIDE * _SIDE)
    halves = whole[: _SIDE * _SIDE].astype(np.float16)
    return np.concatenate([halves.view(np.uint8), whole[_SIDE * _SIDE :].astype(np.int8).view(np.uint8)])


def _products() -> tuple[Numbers, Numbers, Numbers]:
    """Return the products, each of 16 x 8, in the order of the kernel's arguments."""
    given = _matrices()
    halves = given[:_BYTES].view(np.float16).reshape(_SIDE, _SIDE).astype(np.float32)
    chars = given[_BYTES:].view(np.int8).reshape(_SIDE, 2 * _SIDE).astype(np.int32)
    of_halves = (halves @ halves[:, :8]).ravel()
    return of_halves, of_halves.astype(np.float16), (chars @ chars[:8].T).ravel()


def _probe_matrices(port: Port, program: Program) -> None:
    """Test one product of each kind by a sub-group. Raises LaunchError when one is wrong."""
    expected = _products()
    found = [np.zeros_like(result) for result in expected]
    arguments = dict(zip(("from", *map(str, range(len(found)))), (_matrices(), *found), strict=True))
    memory = {name: buffer(port, values.view(np.uint8)) for name, values in arguments.items()}
    size = (_SUB_GROUP,)
    run(
        port,
        program,
        Launch(kernel="multiply_matrices", global_size=size, local_size=size, arguments=tuple(memory)),
        memory,
    )
    for place, (result, wanted) in enumerate(zip(found, expected, strict=True)):
        port.read(memory[str(place)], result)
        if wrong := difference(result.view(np.uint8), wanted):
            raise LaunchError(f"{wanted.dtype}: {wrong}")


FUNCTIONS: Mapping[str, tuple[str, Callable[[Port, Program], None]]] = {
    checkup.IMAGES: (_IMAGE_KERNELS, _probe_images),
    checkup.IMAGE_VIEWS: (_IMAGE_KERNELS, _probe_views),
    checkup.IMAGE_LINES: (_LINE_KERNELS, _probe_lines),
    checkup.MATRIX_UNITS: (_MATRIX_KERNEL, _probe_matrices),
}
"""Kernels and function of each probe that is not run on every work-item alike."""
