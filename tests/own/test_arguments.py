"""What a kernel file passes: vectors, structures, exact numbers, normalized images, NULL, and launches in turn."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import AutotuneError, ConfigurationError, ProblemError, UsageError
from autotune.kernels import find_family
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Structure
from autotune.model.trial import Job, Trial, TrialState
from autotune.own.kernel_file.family import FileFamily
from autotune.own.tuning import use_kernel_file
from autotune.space.search_space import SearchSpace
from kernel_files import measured_afresh

HEAD = """
name = "own"
source = "k.cl"
kernel = "t"
global_size = "round_up(n, WG)"
local_size = "WG"
sizes = { n = 1000 }
parameters = { WG = [16, 64] }
reference = { python = "ref.py:t" }
[arguments]
a = { buffer = "float32", size = "n" }
o = { buffer = "float32", size = "n", access = "out" }
"""
PLAIN = "kernel void t(global const float *a, global float *o) { int i = get_global_id(0); if (i < N) o[i] = a[i]; }"


def kernel(arguments: str, body: str, before: str = "") -> str:
    return f"{before}\nkernel void t({arguments}) {{ int i = get_global_id(0); {body} }}"


@pytest.fixture
def folder(tmp_path: Path, fresh_families: None) -> Path:
    return tmp_path


def made(folder: Path, text: str, source: str = "", reference: str = "") -> FileFamily:
    (folder / "k.cl").write_text(source or PLAIN.replace("N", "1000"))
    (folder / "ref.py").write_text("import numpy as np\n" + textwrap.dedent(reference or "def t(a): return a"))
    (folder / "k.toml").write_text(text)
    return use_kernel_file(folder / "k.toml")


def run(device: Device, family: FileFamily, **values: int) -> Trial:
    configuration = Configuration.of("own", **{**dict(family.usual.values), **values})
    [problem] = [request.problem for request in family.requests]
    assert find_family("own") is family
    return measured_afresh(device, problem, configuration, seed=0)


def is_right(device: Device, family: FileFamily, **values: int) -> bool:
    trial = run(device, family, **values)
    assert trial.state in (TrialState.COMPLETE, TrialState.WRONG_RESULT), trial.message
    return trial.state is TrialState.COMPLETE


STRUCTURE = """
typedef struct { float gain; short count; float matrix[3]; float3 add; uchar more; } params;
"""


def test_vectors_and_structures_are_passed_by_value(folder: Path, pocl: Device) -> None:
    text = (
        HEAD
        + """
[arguments.p.struct]
gain = { scalar = "float32", value = 2 }
count = { scalar = "int16", value = "n - 3" }
matrix = { array = "float32", value = [1, 2, "n / 2"] }
add = { scalar = "float32", value = [0, 0, 0.5] }
more = { scalar = "uint8", value = 7 }
[arguments.v]
scalar = "int32"
value = [1, -2, 3]
"""
    )
    source = kernel(
        "global const float *a, global float *o, params p, int3 v",
        "if (i < 1000) o[i] = i < p.count ? p.gain * a[i] + p.matrix[2] + p.add.z + p.more + v.y : 0;",
        STRUCTURE,
    )
    reference = """
    def t(a, p, v, n):
        found = p["gain"] * a + p["matrix"][2] + p["add"][2] + p["more"] + v[1]
        return np.where(np.arange(n) < p["count"], found, 0)
    """
    family = made(folder, text, source, reference)
    plan = family.plan(family.requests[0].problem, family.usual)
    structure = plan.launches[0].arguments[2]
    assert isinstance(structure, Structure)
    assert len(structure.content) == 64  # of which the vector begins at 32, and takes 16
    assert is_right(pocl, family)
    assert not is_right(pocl, made(folder, text, source.replace("p.add.z", "p.add.y"), reference))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            'p = { scalar = "float32", value = 2 }',
            r"takes a structure \(params p\): list .* matrix = \{ array = \"float32\", value = \[0, 0, 0\] \}",
        ),
        ("p = { struct = { gain = { scalar = 'float32' } } }", r"with 5 members \(gain, .*, more\), and p has 1"),
        ("p = { struct = {} }", "needs one of buffer"),
        ("p = { struct = { x = { value = 2 } } }", "a member of a structure needs one of scalar and array"),
        ('p = { struct = { x = { scalar = "float32", value = [1, 2, 3, 4, 5] } } }', "vectors have 2, 3, 4, 8 or 16"),
        ('p = { struct = { x = { array = "uint8", value = [1, 256] } } }', "with 5 members"),
        ('p = { struct = { x = { scalar = "uint8", value = "m" } } }', "uses m, which is not known here"),
    ],
)
def test_structures_that_cannot_be_are_refused(folder: Path, entry: str, message: str) -> None:
    source = kernel("global const float *a, global float *o, params p", "o[i] = a[i];", STRUCTURE)
    with pytest.raises(AutotuneError, match=message):
        made(folder, HEAD + entry, source)


def test_only_the_valid_part_of_an_output_is_compared(folder: Path, pocl: Device) -> None:
    text = HEAD.replace('size = "n"', 'size = "4 * n"').replace('"out"', '"out", valid = "index % 4 < 3"')
    source = kernel(
        "global const float3 *a, global float3 *o", "if (i < 1000) vstore3(a[i].zyx, 0, (global float *)(o + i));"
    )
    reference = "def t(a): return a.reshape(-1, 4)[:, 2::-1]"
    assert is_right(pocl, made(folder, text, source, reference))
    whole = "def t(a): return np.pad(a.reshape(-1, 4)[:, 2::-1], ((0, 0), (0, 1)))"
    assert is_right(pocl, made(folder, text, source, whole))
    assert not is_right(pocl, made(folder, text, source.replace("zyx", "zyy"), reference))
    assert not is_right(pocl, made(folder, text.replace(', valid = "index % 4 < 3"', ""), source, whole))


@pytest.mark.parametrize("condition", ["index < 0", "index // (n - n) == 0", "n // (n - n) == 0"])
def test_a_condition_that_leaves_nothing_to_compare_is_refused(folder: Path, condition: str) -> None:
    family = made(folder, HEAD.replace('"out"', f'"out", valid = "{condition}"'))
    with pytest.raises(ProblemError, match=r"o: .* holds for no element"):
        family.make_case(family.requests[0].problem, 0)


def test_whole_numbers_of_64_bits_are_exact(folder: Path, pocl: Device) -> None:
    text = HEAD.replace('"float32", size = "n" }', '"uint64", size = "n", range = [0, 18446744073709551615] }')
    text = text.replace("float32", "uint64") + 's = { scalar = "uint64", value = 9007199254740993 }'
    source = kernel("global const ulong *a, global ulong *o, ulong s", "if (i < 1000) o[i] = a[i] ^ s;")
    reference = "def t(a): return a ^ np.uint64(9007199254740993)"
    assert is_right(pocl, made(folder, text, source, reference))
    assert not is_right(pocl, made(folder, text.replace("0993", "0992"), source, reference))
    assert is_right(pocl, made(folder, text, source, "def t(a, s): return a ^ np.uint64(s)"))


def test_normalized_images_are_compared_as_kernels_read_them(folder: Path, pocl: Device) -> None:
    text = HEAD.replace('buffer = "float32", size = "n"', 'image = "snorm8", size = "4 * 40, 25"', 1)
    text = text.replace('buffer = "float32", size = "n"', 'image = "unorm16", size = "4 * 40, 25"', 1)
    source = kernel(
        "read_only image2d_t a, write_only image2d_t o",
        "int2 at = (int2)(i % 40, i / 40); if (i < 1000) write_imagef(o, at, read_imagef(a, S, at) * 0.5f + 0.4f);",
        "constant sampler_t S = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;",
    )
    reference = "def t(a): return np.clip(a * 0.5 + 0.4, 0, 1)"
    assert is_right(pocl, made(folder, text, source, reference))
    assert not is_right(pocl, made(folder, text, source.replace("0.4f", "0.3999f"), reference))
    with pytest.raises(UsageError, match=r'a has channels of int8: image = "snorm8" is for that'):
        made(folder, text.replace("snorm8", "int8"), source, reference)


def test_a_channel_that_is_rounded_to_what_was_there_before_is_written(folder: Path) -> None:
    text = HEAD.replace('buffer = "float32", size = "n", access', 'image = "unorm8", size = "4 * 40, 25", access')
    source = kernel("global const float *a, write_only image2d_t o", "")
    family = made(folder, text, source, "def t(a): return np.full(4000, 254 / 255)")
    case = family.make_case(family.requests[0].problem, 0)
    assert case.error_ratio({"o": np.full(4000, 255, np.uint8)}) <= 1 and not case.remark


def test_a_buffer_of_no_elements_is_null(folder: Path, pocl: Device) -> None:
    text = HEAD + 'bias = { buffer = "float32", size = "n if n < 500 else 0" }'
    source = kernel(
        "global const float *a, global float *o, global const float *bias",
        "if (i < get_global_size(0) && i < N) o[i] = a[i] + (bias ? bias[i] : 1);",
    )
    reference = "def t(a, bias): return a + (1 if bias is None else bias)"
    given = '"-DN={n}"'
    text = text.replace("[arguments]", "[arguments]\n").replace("sizes", f"build_options = [{given}]\nsizes")
    assert is_right(pocl, made(folder, text, source, reference))
    assert is_right(pocl, made(folder, text.replace("n = 1000", "n = 100"), source, reference))


TURNS = """
name = "own"
source = "k.cl"
sizes = { n = 1000 }
parameters = { WG = [16, 64], EACH = [1, 2, 4] }
reference = { python = "ref.py:t" }
[[launches]]
kernel = "t"
global_size = "round_up(n, WG)"
local_size = "WG"
times = "8 // EACH"
arguments = [
    "a if step == 0 else o if (8 // EACH - step) % 2 == 0 else b",
    "o if (8 // EACH - step) % 2 == 1 else b",
    "f",
    "step + 1",
]
[arguments]
a = { buffer = "float32", size = "n" }
o = { buffer = "float32", size = "n", access = "out" }
b = { buffer = "float32", size = "n", access = "scratch" }
f = { scalar = "float32", value = "step + 0.5" }
"""
TURN = kernel(
    "global const float *x, global float *y, float f, int s",
    "if (i < 1000) y[i] = x[i] + (f * 2 == 2 * s - 1 ? EACH : 100);",
)


def test_launches_are_repeated_and_exchange_their_buffers(folder: Path, pocl: Device) -> None:
    family = made(folder, TURNS, TURN, "def t(a): return a + 8")
    for each in (1, 2, 4):
        plan = family.plan(family.requests[0].problem, Configuration.of("own", WG=16, EACH=each))
        assert len(plan.launches) == 8 // each
        assert is_right(pocl, family, EACH=each)


def test_several_kernels_are_launched_in_turn(folder: Path, pocl: Device) -> None:
    text = TURNS.replace(
        "[arguments]",
        """
[[launches]]
kernel = "more"
global_size = "max(1, n * (step % 2))"
when = "step > 0"
arguments = ["o if (8 // EACH - step) % 2 == 1 else b", "by"]
in_turn = true
[arguments]
by = { scalar = "int32", value = ["step", 1] }""",
    ).replace('value = ["step", 1]', 'value = ["step", 1]')
    more = (
        "kernel void more(global float *x, int2 by) { if (get_global_size(0) > 1) x[get_global_id(0)] += by.x * by.y; }"
    )
    family = made(folder, text, f"{TURN}\n{more}", "def t(a): return a + 8")
    [problem] = [request.problem for request in family.requests]
    plan = family.plan(problem, Configuration.of("own", WG=16, EACH=2))
    assert [launch.kernel for launch in plan.launches] == ["t", "t", "more", "t", "more", "t", "more"]
    assert [launch.global_size for launch in plan.launches if launch.kernel == "more"] == [(1000,), (1,), (1000,)]
    assert not is_right(pocl, family, EACH=2)
    assert is_right(pocl, made(folder, text, f"{TURN}\n{more}", "def t(a): return a + 8 + 1 + 3"), EACH=2)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"8 // EACH"', '"n * n"', "where from 1 to 1024 are possible"),
        ('"8 // EACH"', '"0"', "there are no launches"),
        ('"step + 1"', '"step / 2"', "must result in arguments by name, or in a whole number"),
        ('"step + 1"', "\"'a'\"", "must result in arguments by name, or in a whole number"),
        ('times = "8 // EACH"', "times = 1", "uses step, which is not known here"),
        ("n = 1000", "n = 1000, step = 2", "count them by `step`: give that name to nothing else"),
        ('"step + 1"', '"more"', "t has no argument more"),
    ],
)
def test_launches_that_cannot_be_repeated_are_refused(folder: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(AutotuneError, match=message):
        made(folder, TURNS.replace(before, after), TURN)


def test_a_number_is_counted_only_where_launches_are(folder: Path) -> None:
    text = TURNS.replace('times = "8 // EACH"', "").replace("step == 0 else o if (8 // EACH - step) % 2 == 0", "n > 0")
    text = text.replace("(8 // EACH - step) % 2 == 1", "n > 0").replace('"step + 1"', '"n"')
    with pytest.raises(UsageError, match=r"f needs `step`, and t has no `times`|uses step, which is not known"):
        made(folder, text, TURN)


def space_of(family: FileFamily) -> list[dict[str, object]]:
    space = SearchSpace(family, family.requests[0].problem, DeviceLimits())
    return [dict(configuration.values) for configuration in space]


def test_what_a_condition_decides_before_it_divides_is_legal(folder: Path) -> None:
    text = HEAD.replace("WG = [16, 64]", "WG = [16, 64], VW = [0, 3, 4]")
    source = PLAIN.replace("N", "1000 + VW")
    family = made(folder, text.replace("[arguments]", 'constraints.c = "VW == 0 or WG % VW == 0"\n[arguments]'), source)
    assert {found["VW"] for found in space_of(family)} == {0, 4}
    limits = DeviceLimits()
    problem = family.requests[0].problem
    assert not family.violations(problem, Configuration.of("own", WG=16, VW=0), limits)
    family = made(folder, text.replace("[arguments]", 'constraints.c = "n // VW > 4"\n[arguments]'), source)
    assert {found["VW"] for found in space_of(family)} == {3, 4}
    assert family.violations(problem, Configuration.of("own", WG=16, VW=0), limits)


def test_formulas_take_signs_fractions_and_sub_groups(folder: Path, pocl: Device) -> None:
    text = HEAD.replace("WG = [16, 64]", "WG = [16, 64], SHIFT = [0, -1, 1]").replace(
        "[arguments]", 'constraints.c = "SHIFT >= -1 and -SHIFT < 1 and WG % sub_group_size == 0"\n'
        'defines = { HALF = 0.5, SCALE = "1 / WG" }\n[arguments]',
    )  # fmt: skip
    source = kernel(
        "global const float *a, global float *o", "if (i < 1000) o[i] = HALF * a[i] * SCALE * WG + 0 * SHIFT;"
    )
    family = made(folder, text, source, "def t(a): return a / 2")
    assert {found["SHIFT"] for found in space_of(family)} == {0, 1}
    assert is_right(pocl, family)
    plan = family.plan(family.requests[0].problem, family.usual)
    assert dict(plan.template_values)["SCALE"] == "0.0625f"
    with pytest.raises(ConfigurationError, match="which is not whole"):
        made(folder, text.replace('"round_up(n, WG)"', '"n / WG"'), source)


@pytest.mark.parametrize("formula", ["'a' * 2000000000", "T * 2000000000", "-T", "min(T, 1)", "T < 2"])
def test_texts_are_not_calculated_with(folder: Path, formula: str) -> None:
    text = HEAD.replace("WG = [16, 64]", 'WG = [16, 64], T = ["aaaa", "b"]')
    with pytest.raises(UsageError, match=r"texts are no numbers|calculates with T, whose values are texts"):
        made(folder, text.replace("[arguments]", f'defines.X = "{formula}"\n[arguments]'), PLAIN.replace("N", "X"))


@pytest.mark.long
def test_a_slow_reference_is_not_under_the_limit_of_the_kernel(folder: Path, pocl: Device) -> None:
    slow = """
    import time
    def t(a):
        (open(__file__ + ".calls", "a").write("x"), time.sleep(2))
        return a
    """
    family = made(folder, HEAD, "", slow)
    [problem] = [request.problem for request in family.requests]
    with Worker(selector=pocl.selector) as worker:
        for group in (16, 64):
            configuration = Configuration.of("own", WG=group)
            job = Job(
                selector=pocl.selector, problem=problem, configuration=configuration, samples=1, seed=0, run_limit_s=1.5
            )
            assert worker.run(job).state is TrialState.COMPLETE
    calls = (folder / "ref.py.calls").read_text()
    assert len(calls) <= 4, "once for each of two sets of inputs, and for one other kind"
    case = family.make_case(problem, 5)
    assert family.make_case(problem, 5) is case, "kept"
