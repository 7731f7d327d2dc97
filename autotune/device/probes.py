"""Small kernels that test whether a driver's features work, run in child processes that may crash (measure/doctor.py).

A `Probe` is a piece of OpenCL C that every work-item runs on small integers, so that its results are exact. Several
probes are built as one program, which is far faster than a program each. Images and matrix units are tested by
functions instead (probe_functions.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.device.port import NUMPY_TYPES, Port, Program
from autotune.device.probe_functions import FUNCTIONS, ITEMS, VALUES, Numbers, buffer, difference, numbers, run
from autotune.errors import AutotuneError
from autotune.model import checkup
from autotune.model.device import VECTOR_WIDTHS
from autotune.model.plan import Launch
from autotune.model.problem import NUMBER_TYPES

GROUP = 16
"""Work-items per work-group; fewer if the device allows only fewer."""
STEPS = 4
_SLICE = 8 * VALUES
"""Bytes of the output that belong to one probe."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Code that reads `a_T`, `b_T`, `c_T` of each type T and writes to `out`, and the values expected there."""

    name: str
    body: str
    expected: Callable[[int], Numbers]
    """Returns the expected values for a work-group size."""
    locals: str = ""
    """Declarations of local memory."""
    head: str = ""
    attribute: str = ""
    options: Sequence[Sequence[str]] = ((),)
    """Build options to try in order; probes with different options are not combined in one kernel."""


def _rows(operand: int, width: int) -> Numbers:
    return numbers(operand, "int32")[: ITEMS * width].reshape(ITEMS, width)


def _sums(width: int) -> Numbers:
    """Return the results of the vector probes, shape (ITEMS, width): one row per work-item."""
    x, y, total = _rows(0, width), _rows(1, width), _rows(2, width)
    for step in range(STEPS):
        total = x[(np.arange(ITEMS) + step) % ITEMS] * y + total
    return np.maximum(total, x)


def _vectors(dtype: str, width: int) -> Probe:
    """Test loads of both kinds, multiply-adds in a loop, a maximum, conversions, and stores of both kinds."""
    number = NUMBER_TYPES[dtype]
    short, of_result = number.in_c, NUMBER_TYPES[number.widened].in_c
    kind = f"{of_result}{width}"
    product = "x * y + total" if number.is_whole else "mad(x, y, total)"
    if dtype == "float16":
        load = f"vload_half{width}({{row}}, {{operand}}_half)"
        aligned = f"vloada_half{width}(item, b_half)"
        store = (
            f"vstore_half{width}(total, item, (__global half *)out);\n"
            f"vstorea_half{width}(total, item, (__global half *)(out + {_SLICE // 2}));"
        )
    else:
        load = f"vload{width}({{row}}, {{operand}}_{short})"
        aligned = f"*(__global const {short}{width} *)(b_{short} + item * {width})"
        if short != of_result:
            load, aligned = f"convert_{kind}({load})", f"convert_{kind}({aligned})"
        store = (
            f"vstore{width}(total, item, (__global {of_result} *)out);\n"
            f"*(__global {kind} *)(out + {_SLICE // 2} + item * sizeof({kind})) = total;"
        )
    body = f"""
    {kind} total = {load.format(row="item", operand="c")};
    const {kind} y = {aligned};
    for (int step = 0; step < {STEPS}; step++) {{
        const {kind} x = {load.format(row=f"(item + step) % {ITEMS}", operand="a")};
        total = {product};
    }}
    total = max(total, {load.format(row="item", operand="a")});
    {store}"""

    stored = NUMPY_TYPES["float16" if dtype == "float16" else number.widened]

    def expected(_: int) -> Numbers:
        half = np.zeros(_SLICE // 2, np.uint8)
        result = _sums(width).astype(stored).reshape(-1).view(np.uint8)
        half[: len(result)] = result
        return np.concatenate([half, half])

    return Probe(name=checkup.vector_probe(dtype, width), body=body, expected=expected)


def _half_arithmetic(width: int) -> str:
    load = f"vload{width}(item, {{}}_half)".format
    return (
        f"{{ const half{width} r = {load('a')} * {load('b')} + {load('c')};"
        f" vstore{width}(r > {load('a')} ? r : {load('a')}, item, (__global half *)out + {width * ITEMS}); }}\n"
    )


_HALF_FUNCTIONS = "\n".join(
    (
        "#ifndef cl_khr_fp16",
        *(f"#define vload{n}(i, p) (*(const __global half{n} *)((p) + {n} * (i)))" for n in VECTOR_WIDTHS),
        *(f"#define vstore{n}(v, i, p) (*(__global half{n} *)((p) + {n} * (i)) = (v))" for n in VECTOR_WIDTHS),
        "#endif\n",
    )
)
"""NVIDIA's compiler computes with half without announcing it, and has no functions of it."""


def _half_results() -> Numbers:
    results = [np.maximum(_rows(0, w) * _rows(1, w) + _rows(2, w), _rows(0, w)).reshape(-1) for w in VECTOR_WIDTHS]
    return np.concatenate([np.zeros(2 * ITEMS), *results]).astype(np.float16)


def _integer_dot(name: str, call: str, head: str = "", standard: str = "") -> Probe:
    """Test the dot product of four pairs of int8 values, built as kernels with it are."""
    body = f"((__global int *)out)[item] = {call.format(a='vload4(item, a_char)', b='vload4(item, b_char)')};"
    products = (_rows(0, 4) * _rows(1, 4)).sum(axis=1).astype(np.int32)
    options = ((standard,) if standard else (),)
    return Probe(name=name, head=head, body=body, expected=lambda _: products, options=options)


def _enabled(extension: str) -> str:
    return f"#pragma OPENCL EXTENSION {extension} : enable\n"


_DP4A = """
int dp4a(const int a, const int b)
{
    int sum = 0;
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}
"""


def _sums_of_groups(group: int) -> Numbers:
    return np.repeat(_A.reshape(-1, group).sum(axis=1), group)


_A, _B = (numbers(operand, "int32")[:ITEMS] for operand in (0, 1))


def _wide_local_memory(name: str, elements: int) -> Probe:
    return Probe(
        name=name,
        locals=f"__local int wide[{elements}];",
        body=f"""
    wide[lane] = a_int[item];
    wide[{elements - 1} - lane] = b_int[item];
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global int *)out)[item] = wide[group - 1 - lane];
    ((__global int *)out)[{ITEMS} + item] = wide[{elements} - group + lane];""",
        expected=lambda group: np.concatenate([x.reshape(-1, group)[:, ::-1].ravel() for x in (_A, _B)]),
    )


PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe(name=checkup.EMPTY_KERNEL, body="", expected=lambda _: np.zeros(0, np.uint8)),
        *(_vectors(dtype, width) for dtype in NUMBER_TYPES for width in VECTOR_WIDTHS),
        Probe(
            name=checkup.VSTORE_HALF,
            body="vstore_half(vload_half(item, a_half) * vload_half(item, b_half), item, (__global half *)out);",
            expected=lambda _: (_A * _B).astype(np.float16),
        ),
        Probe(
            name=checkup.HALF_ARITHMETIC,
            head=_enabled("cl_khr_fp16") + _HALF_FUNCTIONS,
            body="".join(map(_half_arithmetic, VECTOR_WIDTHS)),
            expected=lambda _: _half_results(),
        ),
        Probe(
            name=checkup.LOCAL_MEMORY,
            locals=f"__local int shared[{GROUP}];",
            body=f"""
    shared[lane] = a_int[item];
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global int *)out)[item] = shared[group - 1 - lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = group / 2; half_way > 0; half_way /= 2) {{
        if (lane < half_way)
            shared[lane] += shared[lane + half_way];
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    ((__global int *)out)[{ITEMS} + item] = shared[0];""",
            expected=lambda group: np.append(_A.reshape(-1, group)[:, ::-1], _sums_of_groups(group)).astype(np.int32),
        ),
        _wide_local_memory(checkup.WIDE_LOCAL_MEMORY, checkup.WIDE_LOCAL_BYTES // 4),
        _wide_local_memory(checkup.WIDEST_LOCAL_MEMORY, checkup.WIDEST_LOCAL_BYTES // 4),
        Probe(
            name=checkup.ATOMICS,
            locals="__local int tally;",
            body="""
    volatile __global int *counter = (volatile __global int *)out;
    if (lane == 0)
        tally = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&tally, a_int[item]);
    atomic_inc(counter);
    atomic_max(counter + 1, b_int[item]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0)
        atomic_add(counter + 2, tally);""",
            expected=lambda _: np.array([ITEMS, max(0, int(_B.max())), int(_A.sum())], np.int32),
        ),
        Probe(  # the sums of sub-groups add up to the sum of the work-group, whatever the sub-group size
            name=checkup.SUB_GROUPS,
            head=f"#ifdef cl_khr_subgroups\n{_enabled('cl_khr_subgroups')}#endif\n",
            options=(("-cl-std=CL2.0",), ("-cl-std=CL3.0",)),
            locals="__local int joined;",
            body="""
    const int sum = sub_group_reduce_add(a_int[item]);
    const int most = sub_group_broadcast(sub_group_reduce_max((int)get_sub_group_local_id()), 0);
    if (lane == 0)
        joined = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_sub_group_local_id() == 0)
        atomic_add(&joined, sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global int *)out)[item] = joined;
    ((__global int *)out)[64 + item] = most + 1 - (int)get_sub_group_size();""",
            expected=lambda group: np.append(_sums_of_groups(group), np.zeros(ITEMS)).astype(np.int32),
        ),
        Probe(  # as kernels use it: successive work-items are neighbours
            name=checkup.SUB_GROUP_SHUFFLES,
            head=_enabled("cl_khr_subgroups") + _enabled("cl_khr_subgroup_shuffle"),
            body="""
    ((__global float *)out)[item] = sub_group_shuffle_xor(a_float[item], 1u);
    ((__global float *)out)[64 + item] = sub_group_shuffle_xor(b_float[item], 2u);""",
            expected=lambda _: np.concatenate([x[np.arange(ITEMS) ^ d] for x, d in ((_A, 1), (_B, 2))]).astype(
                np.float32
            ),
        ),
        Probe(
            name=checkup.SUB_GROUP_SIZES,
            head=_enabled("cl_qcom_reqd_sub_group_size"),
            attribute='__attribute__((qcom_reqd_sub_group_size("half")))',
            body="((__global int *)out)[item] = a_int[item];",
            expected=lambda _: _A,
        ),
        _integer_dot(
            checkup.INTEGER_DOT_KHR, "dot_4x8packed_ss_int(as_uint({a}), as_uint({b}))", standard="-cl-std=CL3.0"
        ),
        _integer_dot(checkup.INTEGER_DOT_ARM, "arm_dot({a}, {b})", _enabled("cl_arm_integer_dot_product_int8")),
        _integer_dot(checkup.INTEGER_DOT_PTX, "dp4a(as_int({a}), as_int({b}))", _DP4A),
    )
}


# Running probes


def run_probes(port: Port, names: Sequence[str]) -> dict[str, str]:
    """Build the probes as one program and run them; return what is wrong with each, empty if nothing is.

    Probes with local memory have a kernel of their own, since a barrier makes everything in its kernel slow to build.
    """
    found = dict.fromkeys(names, "")
    kernels: dict[str, list[Probe]] = {}
    for probe in (PROBES[name] for name in names if name in PROBES):
        kernels.setdefault("probe_local" if probe.locals else "probe", []).append(probe)
    sources = [_source(kernel, probes) for kernel, probes in kernels.items()]
    sources += dict.fromkeys(FUNCTIONS[name][0] for name in names if name in FUNCTIONS)
    options = PROBES[names[0]].options if names[0] in PROBES else ((),)
    try:
        program = _built(port, "".join(sources), options)
    except _TROUBLES as error:
        return dict.fromkeys(names, _complaint(error))
    for kernel, probes in kernels.items():
        try:
            found |= _run_blocks(port, program, kernel, probes)
        except _TROUBLES as error:
            found |= dict.fromkeys((probe.name for probe in probes), _complaint(error))
    for name in names:
        if name in FUNCTIONS:
            try:
                FUNCTIONS[name][1](port, program)
            except _TROUBLES as error:
                found[name] = _complaint(error)
    return found


_TROUBLES = (AutotuneError, UnicodeDecodeError)
"""pyopencl raises the second for names that are not UTF-8."""


def _complaint(error: Exception) -> str:
    return str(error) or type(error).__name__


def _run_blocks(port: Port, program: Program, kernel: str, blocks: Sequence[Probe]) -> dict[str, str]:
    group = 2 ** (min(GROUP, port.device.limits.max_work_group_size).bit_length() - 1)
    values = np.concatenate([numbers(i, dtype).view(np.uint8) for dtype in NUMBER_TYPES for i in range(3)])
    into = np.zeros(len(blocks) * _SLICE, np.uint8)
    memory = {"input": buffer(port, values), "output": buffer(port, into)}
    arguments = ("input", "output")
    run(port, program, Launch(kernel=kernel, global_size=(ITEMS,), local_size=(group,), arguments=arguments), memory)
    port.read(memory["output"], into)
    return {
        probe.name: difference(into[place * _SLICE : (place + 1) * _SLICE], probe.expected(group))
        for place, probe in enumerate(blocks)
    }


def _built(port: Port, source: str, options: Sequence[Sequence[str]]) -> Program:
    """Build with the first options that the driver accepts."""
    for some in options[:-1]:
        try:
            return port.build(source, some)
        except AutotuneError:
            continue
    return port.build(source, options[-1])


def _source(kernel: str, blocks: Sequence[Probe]) -> str:
    """Return one kernel of that name that runs all probes, each on its own part of the output."""
    bodies = "".join(
        f"    {{\n    __global uchar *out = output + {place * _SLICE};\n{probe.body}\n    }}\n"
        for place, probe in enumerate(blocks)
    )
    starts, offset = [], 0
    for number in NUMBER_TYPES.values():
        kind, typed = number.in_c, f"__global const {number.in_c} *"
        for name in "abc":
            if f"{name}_{kind}" in bodies:
                starts.append(f"    {typed}{name}_{kind} = ({typed})(input + {offset});")
            offset += VALUES * number.size_bytes
    heads = "".join(dict.fromkeys(probe.head for probe in blocks))
    declared = "".join(f"    {probe.locals}\n" for probe in blocks if probe.locals)
    return (
        f"{heads}__kernel {blocks[0].attribute} void {kernel}(__global const uchar *input, __global uchar *output)\n"
        f"{{\n{declared}    const int item = get_global_id(0), lane = get_local_id(0), group = get_local_size(0);\n"
        f"{chr(10).join(starts)}\n{bodies}}}\n"
    )
