"""Heads of kernels as people write them with macros and conditions, and what the preprocessor makes of a source."""

import re
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.errors import UsageError
from autotune.own.kernel_file.draft import draft
from autotune.own.kernel_file.family import FileFamily
from autotune.own.kernel_file.format import KernelFile
from autotune.own.kernel_file.preprocessor import preprocess, without_comments
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.own.kernel_file.signature import check_signatures
from autotune.own.kernel_file.syntax import Function, Unit


def kernels_of(source: str) -> list[Function]:
    return Unit(preprocess(without_comments(source), lambda _: False)).kernels


def drafted(folder: Path, source: str) -> KernelFile:
    (folder / "source.cl").write_text(source)
    (folder / "source.toml").write_text(draft(folder / "source.cl"))
    return read_kernel_file(folder / "source.toml")


RANGED = """
#define RANGE_2 __private const int items_x, __private const int items_y,
#define GUARD(x, y) if (x >= items_x || y >= items_y) { return; }
#define PIXEL float
#define VECTOR_OF(type, width) type##width
#define VECTOR(type, width) VECTOR_OF(type, width)
#define PIXEL4 VECTOR(PIXEL, 4)
__constant sampler_t SAMPLER = CLK_NORMALIZED_COORDS_FALSE | CLK_FILTER_NEAREST;
__kernel void blend(RANGE_2 __read_only image2d_t input,
#ifdef WITH_BIAS
                    __read_only image2d_t bias,
#endif
                    __global const PIXEL4 *weights, __write_only image2d_t output, __private const int width) {
    const int x = get_global_id(0), y = get_global_id(1);
    GUARD(x, y);
    PIXEL4 pixel = read_imagef(input, SAMPLER, (int2)(x, y)) * weights[x % width];
    write_imagef(output, (int2)(x, y), pixel);
}
"""
"""Its host gives the number of work-items as the first arguments."""

CHECKED = """
#define KERNEL __kernel
#ifdef CHECKS_RANGE
#define FLAG_ARGUMENT __global int *flag,
#else
#define FLAG_ARGUMENT
#endif
#ifndef WHOLE_GROUPS
#define RANGE_ARGUMENTS __private const int items_x, __private const int items_y,
#else
#define RANGE_ARGUMENTS
#endif
KERNEL void scale(FLAG_ARGUMENT RANGE_ARGUMENTS __global const float *in, __global float *out) {
    if (get_global_id(0) < items_x && get_global_id(1) < items_y)
        out[get_global_id(1) * items_x + get_global_id(0)] = 2 * in[get_global_id(1) * items_x + get_global_id(0)];
}
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (RANGED, ["items_x", "items_y", "input", "weights", "output", "width"]),
        (f"#define WITH_BIAS\n{RANGED}", ["items_x", "items_y", "input", "bias", "weights", "output", "width"]),
        (CHECKED, ["items_x", "items_y", "in", "out"]),
        (f"#define CHECKS_RANGE\n#define WHOLE_GROUPS\n{CHECKED}", ["flag", "in", "out"]),
    ],
)
def test_argument_lists_that_macros_and_conditions_make(tmp_path: Path, source: str, names: list[str]) -> None:
    (kernel,) = kernels_of(source)
    assert [argument.name for argument in kernel.arguments] == names
    if not source.startswith("#define CHECKS"):  # or the reserved `in` would be an output
        file = drafted(tmp_path, source)
        assert [*file.arguments] == names
        check_signatures(file)
        text = re.sub(r"(?m)^items_y = \{.*\n", "", (tmp_path / "source.toml").read_text())
        (tmp_path / "source.toml").write_text(text)
        with pytest.raises(UsageError, match=f"takes {len(names)} arguments .*, and is given {len(names) - 1} "):
            check_signatures(read_kernel_file(tmp_path / "source.toml"))


def test_types_address_spaces_and_accesses_are_read_through_macros(tmp_path: Path) -> None:
    (kernel,) = kernels_of(RANGED)
    by_name = {argument.name: argument for argument in kernel.arguments}
    assert by_name["weights"].type == "float4" and by_name["weights"].words == {"global", "const"}
    assert by_name["weights"].text == "__global const PIXEL4 *weights", "as the source writes it"
    assert by_name["items_y"].text == "__private const int items_y", "a part of what a macro stands for"
    assert by_name["output"].is_image and by_name["output"].words == {"write_only"}
    assert kernel.code.asked("global") == 2


def test_numbers_without_a_name_of_a_type_and_of_half_precision_are_read(tmp_path: Path) -> None:
    file = drafted(
        tmp_path,
        "kernel void k(global half *y, const unsigned n, unsigned long m, signed char c) {\n"
        "    y[n] = 0.5h * m + .25H + c; }",
    )
    assert [file.arguments[name].scalar for name in "nmc"] == ["uint32", "uint64", "int8"]
    assert [*file.parameters] == ["LOCAL_SIZE"] and file.sizes == {"n": 1024}


def test_what_only_helpers_declare_is_no_parameter(tmp_path: Path) -> None:
    file = drafted(
        tmp_path,
        "float of(global const float *from, int place) { float sum = 0; sum += from[place]; return sum * SCALE; }\n"
        "kernel void k(global const float *x, global float *y, int n) { y[get_global_id(0)] = of(x, n); }",
    )
    assert [*file.parameters] == ["LOCAL_SIZE", "SCALE"]


def test_outputs_are_found_through_helpers_and_pointers(tmp_path: Path) -> None:
    file = drafted(
        tmp_path,
        "void put(global float *to, float value) { global float *place = to + 1; place[0] = value; }\n"
        "void add(global float *to, float value) { *to += value; }\n"
        "kernel void k(global float *a, global float *b, global float *c, int n) {\n"
        "    put(a, c[n]); add(&b[get_global_id(0)], c[0]);\n}",
    )
    assert {name: entry.access for name, entry in file.arguments.items() if entry.buffer} == {
        "a": "out", "b": "inout", "c": "in",
    }  # fmt: skip


def test_local_memory_has_its_declared_size_or_is_marked(tmp_path: Path) -> None:
    file = drafted(
        tmp_path,
        "#define A 4\n#define B 8\nkernel void k(global float *y, local float x[A + B], local float2 *z, int n) {\n"
        "    y[get_global_id(0)] = x[0] + z[n].x; }",
    )
    assert (file.arguments["x"].local, file.arguments["z"].local) == ("4 * (A + B)", "8 * LOCAL_SIZE")
    marked = [line for line in (tmp_path / "source.toml").read_text().splitlines() if "# check this: it is" in line]
    assert [line.split()[0] for line in marked] == ["z"]


def test_the_kernel_that_is_built_without_options_is_the_first(tmp_path: Path) -> None:
    file = drafted(
        tmp_path,
        "#ifdef SINGLE\n#define NAME of_one\n#else\n#define NAME of_many\n#endif\n"
        "int times(int x) { return x * FACTOR; }\n"
        "kernel void NAME(global int *y, int n) { y[get_global_id(0)] += times(n); }",
    )
    assert file.kernel == "of_many" and [*file.parameters] == ["LOCAL_SIZE", "FACTOR"]
    assert file.arguments["y"].access == "inout"
    assert "(--kernel NAME): of_one" in (tmp_path / "source.toml").read_text()


def test_a_size_that_only_the_build_defines_is_a_size(tmp_path: Path) -> None:
    file = drafted(tmp_path, "kernel void g(global float *o) { int i = get_global_id(0); if (i < n) o[i] = 1; }")
    assert file.sizes == {"n": 1024} and file.defines == {"n": "n"} and [*file.parameters] == ["LOCAL_SIZE"]


@pytest.mark.parametrize("name", ['"inc/a.h"', "<inc/a.h>"])
def test_init_finds_includes_from_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "src" / "inc").mkdir(parents=True)
    (tmp_path / "src" / "inc" / "a.h").write_text("#define GAIN 2\n")
    (tmp_path / "src" / "f.cl").write_text(
        f"#include {name}\nkernel void f(global float *o, int n) {{ if (get_global_id(0) < n) o[0] = GAIN; }}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["init", "src/f.cl"]) == 0
    family = FileFamily(read_kernel_file(tmp_path / "src" / "f.toml"), "a_module")
    assert family.file.parameters["GAIN"] == (2, 1, 4, 8)


def test_a_type_that_the_file_chooses_is_not_that_of_the_source(tmp_path: Path) -> None:
    source = "#define REAL float\nkernel void k(global REAL *y, REAL a, int n) { y[n] = a; }"
    drafted(tmp_path, source)
    text = (tmp_path / "source.toml").read_text().replace('scalar = "float32"', 'scalar = "float16"')
    (tmp_path / "source.toml").write_text(text)
    with pytest.raises(UsageError, match=r"takes a number of float32 \(REAL a\), and is given a of float16"):
        check_signatures(read_kernel_file(tmp_path / "source.toml"))
    chosen = re.sub(r"(?m)^LOCAL_SIZE = ", 'REAL = ["half"]\\nLOCAL_SIZE = ', text)
    (tmp_path / "source.toml").write_text(chosen)
    check_signatures(read_kernel_file(tmp_path / "source.toml"))


def made_of(source: str, *unknown: str, assumed: bool | None = None) -> str:
    return " ".join(preprocess(source, lambda name: name in unknown, assumed).text.split())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#define F(x, y) (x + y)\nF(1, F(2, (3, 4))) F", "(1 + (2 + (3, 4))) F"),
        ("#define A B\n#define B A\nA B", "A B"),
        ("#define F(x) x F(x)\nF(1)", "1 F(1)"),
        ("#define J(a, b) a##b\n#define X(a, b) J(a, b)\n#define W 4\n#define T float\nX(T, W) J(T, W)", "float4 T4"),
        ("#define W 4\n#if W * 2 == 8 && !defined(V) || 0x10UL > 99\nyes W\n#else\nno\n#endif", "yes W"),
        ("#if V\nno\n#elif !V\nyes\n#else\nno\n#endif", "yes"),
        ("#define V\n#undef V\n#ifdef V\nno\n#endif\n#ifndef V\nyes\n#endif", "yes"),
        ("#if 0\n#if 1\nno\n#endif\n#else\nyes\n#endif", "yes"),
        ("#if 1 / 0\nboth\n#else\nkept\n#endif", "both kept"),
        ("#if 018\nboth\n#else\nkept\n#endif", "both kept"),
        (f"#if {'!' * 450}1\nboth\n#else\nkept\n#endif", "both kept"),
        ("#define F(x) x\nF(1\nF (\n2)", "F(1 2"),
    ],
)
def test_the_preprocessor_is_followed(source: str, expected: str) -> None:
    assert made_of(source) == expected


def test_unknown_conditions_keep_all_branches_unless_assumed() -> None:
    source = "#if N > 1\na\n#elif M\nb\n#else\nc\n#endif"
    assert made_of(source, "N") == "a c"
    assert made_of(source, "N", "M") == "a b c"
    assert made_of(source, "N", assumed=True) == "a"
    assert made_of(source, "N", assumed=False) == "c"


@pytest.mark.parametrize(
    "source",
    [
        "#define A0 x x x x x x x x\n" + "".join(f"#define A{i + 1} {f'A{i} ' * 8}\n" for i in range(20)) + "A20",
        "#define F(x) x x\n" + "F(" * 2000 + "1" + ")" * 2000,
        "#define F(x) x\n" + "F( " * 100_000,
    ],
)
def test_macros_that_grow_without_end_are_left_as_they_are(source: str) -> None:
    assert len(preprocess(source, lambda _: False).text) < 5_000_000
