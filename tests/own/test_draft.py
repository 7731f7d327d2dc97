"""What `autotune init` reads from sources that are written in ways of their own."""

import time
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.errors import UsageError
from autotune.own.kernel_file.draft import draft
from autotune.own.kernel_file.format import KernelFile
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.own.kernel_file.signature import check_signatures
from autotune.space.expression import Expression

SOME = (16, 4, 8, 32, 64)
PRODUCT = """
#define WIDTH 4096
#ifndef tile_size_x
    #define tile_size_x 1
#endif
#ifndef fast
    #define fast 1
#endif
static void scaled(local float *x, int n) {
    for (int i = n, j = 0; i < rows_of_tile * n; i += 1, j++) x[i] *= fetch(i, DEPTH);
}
__kernel void matmul(__global float *C, __global float *A, __global float *B) {
    __local float tile[block_size_y * tile_size_x][block_size_x];
    global float * p0, * p1;
    int y = get_group_id(1) * block_size_y + get_local_id(1);
    for (int k = 0; k < WIDTH; k += (tile_size_x * block_size_y)) {
#pragma unroll unroll_factor
        for (int i = 0; i < 4; i++) tile[i][get_local_id(0)] = A[(y + i * block_size_y) * WIDTH + k] * B[k];
        scaled(tile[0], WIDTH);
#if fast == 1
        p1 = C;
#endif
    }
    C[y * WIDTH + get_group_id(0) * block_size_x] = tile[0][0];
}
"""


def drafted(folder: Path, source: str, kernel: str = "") -> KernelFile:
    """Return the kernel file that is drafted for a source; names that only calls use are no declarations."""
    (folder / "source.cl").write_text(source)
    (folder / "drafted.toml").write_text(draft(folder / "source.cl", kernel))
    return read_kernel_file(folder / "drafted.toml")


def test_words_that_formulas_cannot_have_become_no_sizes(tmp_path: Path) -> None:
    file = drafted(tmp_path, "kernel void rows(global float *x, int in, int calls, int rows) { x[rows] = in; }")
    assert [*file.sizes] == ["rows"] and [*file.arguments] == ["x", "in", "calls", "rows"]


def test_products_are_no_declarations_and_arguments_no_parameters(tmp_path: Path) -> None:
    file = drafted(tmp_path, PRODUCT)
    assert file.parameters == {
        "tile_size_x": (1, 2, 4),
        "fast": (1, 0),
        "block_size_y": SOME,
        "block_size_x": SOME,
        "rows_of_tile": SOME,
        "DEPTH": SOME,
        "unroll_factor": (1, 2, 4, 8),
    }
    assert file.local_size == "block_size_x, block_size_y"
    assert file.global_size == "round_up(WIDTH, block_size_x), round_up(WIDTH, block_size_y)"
    assert [file.arguments[name].size for name in "CAB"] == ["WIDTH * WIDTH"] * 3, "one size in two dimensions"
    assert file.outputs == ["C"]


ROWS = """
#if LOCAL_MEM == 1
kernel void rows(global char *src, global char *dst, ulong offset, int columns, int height, ulong nb01) {
    local float held[GROUP + PADDING];
    held[get_local_id(0)] = ((global float *)(src + get_group_id(1) * nb01))[get_local_id(0)];
}
#else
kernel void rows(global char *src, global char *dst, ulong offset, int height, int columns, ulong nb01) {
    global float4 *row = (global float4 *)(src + offset + get_group_id(1) * nb01);
    global half *out = (global half *)(dst + get_group_id(1) * nb01);
    for (int i = get_local_id(0); i < columns; i += get_local_size(0)) out[i] = row[i].x;
}
#endif
"""


def test_a_dimension_of_whole_groups_has_no_work_items_and_bytes_have_the_type_they_are_read_as(tmp_path: Path) -> None:
    file = drafted(tmp_path, ROWS)
    assert (file.global_size, file.local_size) == ("round_up(columns, GROUP), height", "GROUP, 1")
    assert [file.arguments[name].buffer for name in ("src", "dst")] == ["float32", "float16"]
    assert "# check this: it is global char *src" in (tmp_path / "drafted.toml").read_text()
    assert file.sizes == {"height": 1024, "columns": 1024}, "strides in bytes are no sizes"
    assert file.parameters == {"PADDING": (0, 1), "LOCAL_MEM": (0, 1), "GROUP": SOME}


LINES = """
kernel void turned(__read_only image1d_buffer_t input, __write_only image1d_buffer_t output, const uint columns) {
    const int i = get_global_id(0);
    write_imageh(output, i, read_imageh(input, columns - i));
}
"""


def test_images_over_buffers_get_their_buffers_which_the_kernel_is_not_given(tmp_path: Path) -> None:
    file = drafted(tmp_path, LINES)
    assert file.arguments["output"].line == "float16" and file.arguments["output"].over == "output_data"
    assert "output_data" in file.outputs
    check_signatures(file)
    text = (tmp_path / "drafted.toml").read_text()
    launch = next(line for line in text.splitlines() if line.startswith("launches"))
    plain = 'kernel = "turned"\nglobal_size = "columns"\nlocal_size = "LOCAL_SIZE"'
    (tmp_path / "all.toml").write_text(text.replace(launch, plain))
    with pytest.raises(UsageError, match=r"given 5 \(.*\): leave out input_data, output_data by `launches`"):
        check_signatures(read_kernel_file(tmp_path / "all.toml"))


def test_a_power_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(Exception, match=r"may not use 'n \*\* 3': multiply instead"):
        Expression("2 * n ** 3")({"n": 2})
    with pytest.raises(Exception, match=r"may not use '1 << n': make the power the parameter"):
        Expression("1 << n")


BODY = "{ int i = get_global_id(0); if (i < n) y[i] = 2 * x[i]; }\n"
ARGUMENTS = "(global const float *x, global float *y, int n)"
COMMENTED = "(global const float */* y */ x, // (\n global float *y, int n)"


@pytest.mark.parametrize(
    "source",
    [
        f"#define KERNEL __kernel\nKERNEL void k{ARGUMENTS} {BODY}",
        f"void kernel k{ARGUMENTS} {BODY}",
        f"void __kernel k{ARGUMENTS} {BODY}",
        f"ker\\\nnel void k{ARGUMENTS} {BODY}",
        f"kernel/* a {{ */void/* ( */k{COMMENTED}/* ; */ {BODY}",
        f"kernel void k{ARGUMENTS} __attribute__((work_group_size_hint(8, 1, 1))) {BODY}",
        f"typedef global float *out;\ntypedef const global float *in;\nkernel void k(in x, out y, int n) {BODY}",
        f"kernel void k{ARGUMENTS.replace('*x', 'x[]').replace('*y', 'y[restrict]')} {BODY}",
        f'kernel void k{ARGUMENTS} {{ printf("kernel void no(int x) {{ %d \\" // no /* \\n", n); {BODY[1:]}',
        f'#define TOLD "kernel void no(int x) {{"\nkernel void k{ARGUMENTS} {BODY}',
        f"#define NAME(x) x##_kernel\nkernel void k{ARGUMENTS} {BODY}\nkernel void NAME(no)(global float *x) {{ }}",
        f"#define NAME(x) x##k\n#define MADE(name, rest) kernel void NAME(name)rest\nMADE(, {ARGUMENTS}) {BODY}",
    ],
)
def test_init_reads_what_is_written_in_unusual_ways(tmp_path: Path, source: str) -> None:
    file = drafted(tmp_path, source)
    assert file.kernel == "k" and [*file.parameters] == ["LOCAL_SIZE"] and file.sizes == {"n": 1024}
    assert {name: entry.element for name, entry in file.arguments.items()} == dict.fromkeys("xy", "float32") | {
        "n": "int32"
    }
    assert file.outputs == ["y"]


def test_init_tells_what_a_file_cannot_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sampled.cl").write_text(
        "kernel void sampled(read_only image2d_t v, sampler_t s, global float *y, enum mode m, int n) {\n"
        "    y[get_global_id(0)] = read_imagef(v, s, (int2)(0)).x;\n}\n"
    )
    assert main(["init", str(tmp_path / "sampled.cl")]) == 0
    assert "takes a sampler (sampler_t s): declare it in the source" in capsys.readouterr().err
    file = read_kernel_file(tmp_path / "sampled.toml")
    assert [*file.parameters] == ["LOCAL_SIZE"] and file.arguments["m"].scalar == "int32"
    (tmp_path / "wide.cl").write_bytes("kernel void k(global float *x) { }".encode("utf-16"))
    assert main(["init", str(tmp_path / "wide.cl")]) == 2
    assert "wide.cl is not UTF-8 text (byte 0) (save it as UTF-8)" in capsys.readouterr().err


USUAL = """
#if 0
kernel void k(global int *old) { old[0] = OLD; }
#elif 1
#ifdef USE_HALF
typedef half real;
#else
typedef float real;
#endif
#if !defined(NARROW)
#define NUMBER uint
#else
#define NUMBER uchar
#endif
#define EACH(i, n) for (int i = get_global_id(0); i < (n); i += get_global_size(0))
kernel void k(global const real *x, global NUMBER *y, global real *z, int n, int pad_w, int src_step) {
    EACH(index, n) { NUMBER v = y[index]; y[index + src_step] = v + x[index]; z[index] = v - pad_w; }
}
#else
kernel void k(global char *older) { older[0] = OLDER; }
#endif
"""


def test_init_reads_what_is_built_without_options(tmp_path: Path) -> None:
    file = drafted(tmp_path, USUAL)
    assert {name: entry.element for name, entry in file.arguments.items() if entry.buffer} == {
        "x": "float32", "y": "uint32", "z": "float32",
    }  # fmt: skip
    assert (file.arguments["y"].access, file.arguments["z"].access) == ("inout", "out"), "y is read first"
    assert [*file.parameters] == ["LOCAL_SIZE"] and file.sizes == {"n": 1024}
    assert (file.arguments["pad_w"].value, file.arguments["src_step"].value) == (0, 1)
    assert "asks with #ifdef: USE_HALF, NARROW (" in (tmp_path / "drafted.toml").read_text()
    check_signatures(file)


def test_init_takes_what_is_compared_or_indexed_before_it_is_stored_for_an_output(tmp_path: Path) -> None:
    source = """kernel void k(global const int *at, global float *y, global float *z, int n) {
        int i = get_global_id(0);
        if (i == n) y[at[i]] = 1.0f;
        float v = i < n ? 1.0f : 0.0f; z[i + at[0]] = v;
    }"""
    file = drafted(tmp_path, source)
    assert [file.arguments[name].access for name in ("y", "z")] == ["out", "out"]


def test_the_next_kernel_has_no_part_in_one_of_a_single_line(tmp_path: Path) -> None:
    other = f"kernel void other{ARGUMENTS} {{ y[get_global_id(2)] = OTHER; }}\n"
    file = drafted(tmp_path, f"kernel void k{ARGUMENTS} {BODY}{other}")
    assert file.local_size == "LOCAL_SIZE" and [*file.parameters] == ["LOCAL_SIZE"]


@pytest.mark.parametrize(
    "text",
    [
        f"kernel void k{ARGUMENTS} {{ a(b(c(d( ",
        f"kernel void k{ARGUMENTS} {BODY}" * 1000,
        "a(x) { " * 20_000 + f"kernel void k{ARGUMENTS} {{ a(1); b(2);",
        "typedef " * 10_000 + f"kernel void k{ARGUMENTS} {BODY}",
        "".join(f"#define K{i} kernel\n" for i in range(5000)) + f"kernel void k{ARGUMENTS} {BODY}",
        "(" * 100_000 + f";kernel void k{ARGUMENTS} {BODY}",
        f"kernel void k{ARGUMENTS} {{ " + "(global float *)" * 6000 + "}",
        f"kernel void k{ARGUMENTS} {{ " + "vstore( " * 8000 + "}",
        f"kernel void k{ARGUMENTS} {{ " + "".join(f"f{i}(1); " for i in range(8000)) + "}",
    ],
)
def test_reading_a_hostile_source_takes_little_time_of_the_processor(tmp_path: Path, text: str) -> None:
    began = time.process_time()
    drafted(tmp_path, text)
    assert time.process_time() - began < 30.0


def test_types_that_the_build_chooses_are_drafted_as_such(tmp_path: Path) -> None:
    (tmp_path / "k.cl").write_text("""
#define HEAD __private const int count,
typedef struct { float gain; int2 at; uchar table[3]; } params;
__kernel void k(HEAD __global const REAL *in, __global REAL4 *out, params p, int2 shift) {
    REAL4 v = (REAL4)(0);
    if (get_global_id(0) < count) out[get_global_id(0)] = v + in[shift.x] * p.gain;
}
""")
    text = draft(tmp_path / "k.cl")
    assert "REAL4 = ['float4']" in text and "REAL = ['float']" in text
    assert 'out = { buffer = "float32", size = "4 * count"' in text
    assert 'shift = { scalar = "int32", value = [0, 0] }' in text
    members = 'gain = { scalar = "float32", value = 0 }, at = { scalar = "int32", value = [0, 0] }'
    assert f'p = {{ struct = {{ {members}, table = {{ array = "uint8", value = [0, 0, 0] }} }} }}' in text
    assert "[sizes]  # what is tuned unless other sizes are asked for\ncount = 1024\n\n" in text
