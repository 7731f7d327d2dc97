"""Small kernels that show whether a driver does what it offers. They run where a crash may be afforded (doctor.py).

A `Probe` is a block of OpenCL C that every work-item runs on small whole numbers, so that its results are exact.
Several probes make one kernel, which builds far quicker than a kernel each. Images are probed by functions.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from autotune.checkup import (
    ATOMICS,
    EMPTY_KERNEL,
    HALF_ARITHMETIC,
    IMAGE_VIEWS,
    IMAGES,
    INTEGER_DOT_ARM,
    INTEGER_DOT_KHR,
    LOCAL_MEMORY,
    SUB_GROUP_SIZES,
    SUB_GROUPS,
    VSTORE_HALF,
    vector_probe,
)
from autotune.device.session import Memory, Session
from autotune.errors import AutotuneError, LaunchError
from autotune.family import Buffer, Role
from autotune.problem import VECTOR_WIDTHS

ITEMS = 64
GROUP = 16
"""Work-items of a work-group, fewer where the device allows no more."""
STEPS = 4
_VALUES = ITEMS * VECTOR_WIDTHS[-1]
_SLICE = 8 * _VALUES
"""Bytes of the output that belong to one probe."""

Numbers = NDArray[Any]
NUMPY = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "int32": np.int32}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A block that reads `a_T`, `b_T`, `c_T` of each type and writes to `out`, and the bytes it should leave there."""

    name: str
    body: str
    expected: Callable[[int], Numbers]
    """By the size of the work-group."""
    locals: str = ""
    """Declarations of local memory."""
    head: str = ""
    attribute: str = ""
    options: Sequence[Sequence[str]] = ((),)
    """Build options to try one after the other; probes that differ in them are not joined to one kernel."""


def numbers(operand: int, dtype: str = "float32") -> Numbers:
    """The contents of operand 0, 1 or 2: whole numbers from -3 to 3."""
    return np.random.default_rng(operand).integers(-3, 4, _VALUES).astype(NUMPY[dtype])


def _rows(operand: int, width: int) -> Numbers:
    return numbers(operand, "int32")[: ITEMS * width].reshape(ITEMS, width)


def _sums(width: int) -> Numbers:
    """What the blocks of vectors compute, a row a work-item."""
    x, y, total = _rows(0, width), _rows(1, width), _rows(2, width)
    for step in range(STEPS):
        total = x[(np.arange(ITEMS) + step) % ITEMS] * y + total
    return np.maximum(total, x)


def _vectors(dtype: str, width: int) -> Probe:
    """Loads of both kinds, multiply-adds in a loop, a maximum, conversions, stores of both kinds."""
    short = {"float32": "float", "float16": "half", "int8": "char", "int32": "int"}[dtype]
    kind = {"float32": "float", "float16": "float", "int8": "int", "int32": "int"}[dtype] + str(width)
    product = "mad(x, y, total)" if kind.startswith("float") else "x * y + total"
    if dtype == "float16":
        load = f"vload_half{width}({{row}}, {{operand}}_half)"
        aligned = f"vloada_half{width}(item, b_half)"
        store = (
            f"vstore_half{width}(total, item, (__global half *)out);\n"
            f"vstorea_half{width}(total, item, (__global half *)(out + {_SLICE // 2}));"
        )
        out: type[np.generic] = np.float16
    else:
        load = f"vload{width}({{row}}, {{operand}}_{short})"
        aligned = f"*(__global const {short}{width} *)(b_{short} + item * {width})"
        if dtype == "int8":
            load, aligned = f"convert_{kind}({load})", f"convert_{kind}({aligned})"
        of_result = kind.rstrip("0123456789")
        store = (
            f"vstore{width}(total, item, (__global {of_result} *)out);\n"
            f"*(__global {kind} *)(out + {_SLICE // 2} + item * sizeof({kind})) = total;"
        )
        out = np.float32 if dtype == "float32" else np.int32
    body = f"""
    {kind} total = {load.format(row="item", operand="c")};
    const {kind} y = {aligned};
    for (int step = 0; step < {STEPS}; step++) {{
        const {kind} x = {load.format(row=f"(item + step) % {ITEMS}", operand="a")};
        total = {product};
    }}
    total = max(total, {load.format(row="item", operand="a")});
    {store}"""

    def expected(_: int) -> Numbers:
        half = np.zeros(_SLICE // 2, np.uint8)
        result = _sums(width).astype(out).reshape(-1).view(np.uint8)
        half[: len(result)] = result
        return np.concatenate([half, half])

    return Probe(name=vector_probe(dtype, width), body=body, expected=expected)


def _vstore_half() -> Probe:
    body = "vstore_half(vload_half(item, a_half) * vload_half(item, b_half), item, (__global half *)out);"
    product = (numbers(0)[:ITEMS] * numbers(1)[:ITEMS]).astype(np.float16)
    return Probe(name=VSTORE_HALF, body=body, expected=lambda _: product)


def _half_arithmetic() -> Probe:
    blocks = [
        f"{{ const half{w} r = vload{w}(item, a_half) * vload{w}(item, b_half) + vload{w}(item, c_half);"
        f" vstore{w}(max(r, vload{w}(item, a_half)), item, (__global half *)out + {w * ITEMS}); }}"
        for w in VECTOR_WIDTHS
    ]

    results = [np.maximum(_rows(0, w) * _rows(1, w) + _rows(2, w), _rows(0, w)) for w in VECTOR_WIDTHS]
    whole = np.concatenate([np.zeros(2 * ITEMS), *(r.reshape(-1) for r in results)]).astype(np.float16)
    head = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
    return Probe(name=HALF_ARITHMETIC, head=head, body="\n".join(blocks), expected=lambda _: whole)


def _local_memory() -> Probe:
    body = f"""
    shared[lane] = a_int[item];
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global int *)out)[item] = shared[group - 1 - lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = group / 2; half_way > 0; half_way /= 2) {{
        if (lane < half_way)
            shared[lane] += shared[lane + half_way];
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    ((__global int *)out)[{ITEMS} + item] = shared[0];"""

    def expected(group: int) -> Numbers:
        rows = numbers(0, "int32")[:ITEMS].reshape(-1, group)
        return np.concatenate([rows[:, ::-1].reshape(-1), np.repeat(rows.sum(axis=1), group)]).astype(np.int32)

    return Probe(name=LOCAL_MEMORY, locals=f"__local int shared[{GROUP}];", body=body, expected=expected)


def _atomics() -> Probe:
    body = """
    volatile __global int *counter = (volatile __global int *)out;
    if (lane == 0)
        tally = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&tally, a_int[item]);
    atomic_inc(counter);
    atomic_max(counter + 1, b_int[item]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0)
        atomic_add(counter + 2, tally);"""

    a, b = (numbers(operand, "int32")[:ITEMS] for operand in (0, 1))
    counts = np.array([ITEMS, max(0, int(b.max())), int(a.sum())], np.int32)
    return Probe(name=ATOMICS, locals="__local int tally;", body=body, expected=lambda _: counts)


def _sub_groups() -> Probe:
    """A sub-group's own sums must add up to those of the work-group, whatever its size."""
    body = """
    const int sum = sub_group_reduce_add(a_int[item]);
    const int most = sub_group_broadcast(sub_group_reduce_max((int)get_sub_group_local_id()), 0);
    if (lane == 0)
        joined = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_sub_group_local_id() == 0)
        atomic_add(&joined, sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global int *)out)[item] = joined;
    ((__global int *)out)[64 + item] = most + 1 - (int)get_sub_group_size();"""

    def expected(group: int) -> Numbers:
        rows = numbers(0, "int32")[:ITEMS].reshape(-1, group)
        return np.concatenate([np.repeat(rows.sum(axis=1), group), np.zeros(ITEMS)]).astype(np.int32)

    head = "#ifdef cl_khr_subgroups\n#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n#endif\n"
    return Probe(
        name=SUB_GROUPS, head=head, locals="__local int joined;", body=body, expected=expected,
        options=(("-cl-std=CL2.0",), ("-cl-std=CL3.0",)),
    )  # fmt: skip


def _sub_group_sizes() -> Probe:
    body = "((__global int *)out)[item] = a_int[item];"
    head = "#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable\n"
    return Probe(
        name=SUB_GROUP_SIZES, head=head, attribute='__attribute__((qcom_reqd_sub_group_size("half")))', body=body,
        expected=lambda _: numbers(0, "int32")[:ITEMS],
    )  # fmt: skip


def _integer_dot(name: str, function: str, extension: str) -> Probe:
    """Four pairs of int8 at a time."""
    call = function.format(a="vload4(item, a_char)", b="vload4(item, b_char)")
    body = f"((__global int *)out)[item] = {call};"
    head = f"#pragma OPENCL EXTENSION {extension} : enable\n" if extension else ""
    products = (_rows(0, 4) * _rows(1, 4)).sum(axis=1).astype(np.int32)
    return Probe(name=name, head=head, body=body, expected=lambda _: products)


PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe(name=EMPTY_KERNEL, body="", expected=lambda _: np.zeros(0, np.uint8)),
        *(_vectors(dtype, width) for dtype in NUMPY for width in VECTOR_WIDTHS),
        _vstore_half(),
        _half_arithmetic(),
        _local_memory(),
        _atomics(),
        _sub_groups(),
        _sub_group_sizes(),
        _integer_dot(INTEGER_DOT_KHR, "dot_4x8packed_ss_int(as_uint({a}), as_uint({b}))", ""),
        _integer_dot(INTEGER_DOT_ARM, "arm_dot({a}, {b})", "cl_arm_integer_dot_product_int8"),
    )
}


# Running them


def run_probes(session: Session, names: Sequence[str]) -> dict[str, str]:
    """What is wrong with each, empty where nothing is; those that go together share a kernel."""
    found: dict[str, str] = {}
    for name in names:
        if name in _FUNCTIONS:
            found[name] = _complaint(partial(_FUNCTIONS[name], session))
    blocks = [PROBES[name] for name in names if name not in _FUNCTIONS]
    if blocks:
        try:
            found |= _run_blocks(session, blocks)
        except (AutotuneError, cl.Error, UnicodeDecodeError) as error:
            found |= dict.fromkeys((probe.name for probe in blocks), str(error) or type(error).__name__)
    return found


def _complaint(probe: Callable[[], None]) -> str:
    try:
        probe()
    except (AutotuneError, cl.Error, UnicodeDecodeError) as error:
        return str(error) or type(error).__name__
    return ""


def _run_blocks(session: Session, blocks: Sequence[Probe]) -> dict[str, str]:
    program = _built(session, _source(blocks), blocks[0].options)
    queue = session.queue
    group = 2 ** (min(GROUP, max(1, queue.device.max_work_group_size)).bit_length() - 1)
    values = np.concatenate([numbers(i, dtype).view(np.uint8) for dtype in NUMPY for i in range(3)])
    into = np.zeros(len(blocks) * _SLICE, np.uint8)
    flags = cl.mem_flags
    given = cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=values)
    result = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=into)
    kernel = cl.Kernel(program, "probe")
    kernel.set_args(given, result)
    cl.enqueue_nd_range_kernel(queue, kernel, (ITEMS,), (group,))
    cl.enqueue_copy(queue, into, result, is_blocking=True)
    return {
        probe.name: _difference(into[place * _SLICE : (place + 1) * _SLICE], probe.expected(group))
        for place, probe in enumerate(blocks)
    }


def _built(session: Session, source: str, options: Sequence[Sequence[str]]) -> cl.Program:
    """By the first options that the driver takes."""
    for some in options[:-1]:
        try:
            return session.build(source, some)
        except AutotuneError:
            continue
    return session.build(source, options[-1])


def _difference(found: Numbers, expected: Numbers) -> str:
    if not len(expected):
        return ""
    told = found[: expected.nbytes].view(expected.dtype)
    wrong = np.flatnonzero(told != expected)
    if not len(wrong):
        return ""
    first = wrong[0]
    return f"{len(wrong)} of {len(expected)} results are wrong, the first is {told[first]} instead of {expected[first]}"


def _source(blocks: Sequence[Probe]) -> str:
    """One kernel that runs all blocks, each on its own part of the output."""
    bodies = "".join(
        f"    {{\n    __global uchar *out = output + {place * _SLICE};\n{probe.body}\n    }}\n"
        for place, probe in enumerate(blocks)
    )
    starts, offset = [], 0
    for dtype, kind in (("float32", "float"), ("float16", "half"), ("int8", "char"), ("int32", "int")):
        typed = f"__global const {kind} *"
        for name in "abc":
            if f"{name}_{kind}" in bodies:
                starts.append(f"    {typed}{name}_{kind} = ({typed})(input + {offset});")
            offset += _VALUES * np.dtype(NUMPY[dtype]).itemsize
    heads = "".join(dict.fromkeys(probe.head for probe in blocks))
    declared = "".join(f"    {probe.locals}\n" for probe in blocks if probe.locals)
    return (
        f"{heads}__kernel {blocks[0].attribute} void probe(__global const uchar *input, __global uchar *output)\n{{\n"
        f"{declared}    const int item = get_global_id(0), lane = get_local_id(0), group = get_local_size(0);\n"
        f"{chr(10).join(starts)}\n{bodies}}}\n"
    )


# Images

_WIDTH, _HEIGHT = 8, 4
_IMAGE_KERNELS = """
__kernel void fill_{letter}(__write_only image2d_t image, __global const float *from)
{{
    const int x = get_global_id(0), y = get_global_id(1);
    write_image{letter}(image, (int2)(x, y), convert_{kind}4(vload4(y * {width} + x, from)));
}}
__kernel void fetch_{letter}(__read_only image2d_t image, __global float *into)
{{
    const int x = get_global_id(0), y = get_global_id(1);
    vstore4(convert_float4(read_image{letter}(image, (int2)(x, y))), y * {width} + x, into);
}}
"""


def _image_program(session: Session, letters: str) -> cl.Program:
    kinds = {"f": "float", "i": "int"}
    return session.build("".join(_IMAGE_KERNELS.format(letter=i, kind=kinds[i], width=_WIDTH) for i in letters), ())


def _image(dtype: str) -> Buffer:
    return Buffer(
        name="image", role=Role.SCRATCH, dtype=dtype, elements=4 * _WIDTH * _HEIGHT,
        image_width=_WIDTH, image_height=_HEIGHT,
    )  # fmt: skip


def _probe_images(session: Session) -> None:
    """Images of each type that kernels use are written, and read back."""
    program = _image_program(session, "fi")
    for dtype in ("float32", "float16", "int8"):
        _through_image(session, program, dtype, session.allocate(_image(dtype)), fills=True)


def _probe_views(session: Session) -> None:
    """A buffer is read as an image, without a copy."""
    row = 4 * 64  # no device is known that wants rows aligned to more than 64 pixels
    contents = np.zeros((_HEIGHT, row), np.float32)
    contents[:, : 4 * _WIDTH] = _pixels().reshape(_HEIGHT, -1)
    plain = Buffer(name="plain", role=Role.SCRATCH, dtype="float32", elements=contents.size)
    memory = session.allocate(plain)
    session.write(memory, contents)
    view = dataclasses.replace(_image("float32"), role=Role.VIEW, view_of="plain", row_pitch=row)
    image = session.allocate(view, {"plain": memory})
    _through_image(session, _image_program(session, "f"), "float32", image, fills=False)


def _through_image(session: Session, program: cl.Program, dtype: str, image: Memory, *, fills: bool) -> None:
    letter = "i" if dtype == "int8" else "f"
    queue, flags, pixels = session.queue, cl.mem_flags, _pixels()
    given = cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=pixels)
    into = np.zeros_like(pixels)
    result = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=into)
    for name, memory in (("fill", given), ("fetch", result)):
        if name == "fetch" or fills:
            kernel = cl.Kernel(program, f"{name}_{letter}")
            kernel.set_args(image, memory)
            cl.enqueue_nd_range_kernel(queue, kernel, (_WIDTH, _HEIGHT), None)
    cl.enqueue_copy(queue, into, result, is_blocking=True)
    difference = _difference(into.view(np.uint8), pixels)
    if difference:
        raise LaunchError(f"{dtype}: {difference}")


def _pixels() -> Numbers:
    return numbers(0)[: 4 * _WIDTH * _HEIGHT]


_FUNCTIONS: Mapping[str, Callable[[Session], None]] = {IMAGES: _probe_images, IMAGE_VIEWS: _probe_views}
