"""Kernels that are not ours: those of other people, where a folder of them is here, and small ones of every shape."""

import re
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import ProblemError, UsageError
from autotune.kernels.render import render
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import TrialState
from autotune.own.kernel_file.family import FileFamily
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from factories import Run, first_short
from kernel_files import foreign_files, foreign_folder, measured, placed, registered
from small_kernels import OWN, written

SINGLE = (
    "half=float", "half2=float2", "half4=float4", "half8=float8", "read_imageh=read_imagef",
    "write_imageh=write_imagef", "as_half8(x)=(float8)(0)",
)  # fmt: skip
ALONE = (
    "sub_group_reduce_add(x)=(x)", "sub_group_reduce_max(x)=(x)", "get_sub_group_local_id()=0",
    "get_sub_group_id()=get_local_id(0)", "get_sub_group_size()=1", "get_max_sub_group_size()=1",
    "sub_group_shuffle_xor(x,y)=(x)",
)  # fmt: skip
ELSEWHERE = {
    **{
        f"ggml_flash_attn_{step}_{kind}": "what scripts/bench_ggml changes"
        for step in ("decode", "prefill")
        for kind in ("f16", "q8_0", "q4_0")
    },
    "ggml_gemm_dp4a": "dot products of packed integers",
    "ggml_gemv_noshuffle": "sub-groups of several work-items",
    "ggml_mul_mv_q4_0": "sub-groups of several work-items",
    "ggml_mul_mv_q6_k": "sub-groups of several work-items",
    "ggml_mul_mv_q8_0": "sub-groups of several work-items",
}
"""Files whose kernels cannot run without something that PoCL lacks."""


def states(device: Device, measurer: Measurer, family: FileFamily, trials: int) -> list[TrialState]:
    """Return the states of the default at all sizes to check, and of a few other configurations at the first."""
    numbers = np.random.default_rng(0)
    problems = family.examples()[:-1] or family.examples()
    defaults = [measured(device, measurer, problem, family.usual) for problem in problems]
    space = SearchSpace(family, problems[0], device.limits, algorithms=[family.name])
    drawn = [space[int(row)] for row in numbers.integers(len(space), size=trials)]
    others = [measured(device, measurer, problems[0], configuration) for configuration in drawn]
    for trial in (*defaults, *others):
        print(trial.configuration, trial.state, trial.message)
    return [trial.state for trial in (*defaults, *others)]


# Kernels of other people


def adapted(text: str, limits: DeviceLimits) -> str:
    """Return a kernel file for a device without half precision or sub-groups: single precision, and one work-item."""
    macros: tuple[str, ...] = ()
    if not limits.has_float16 and "has_float16" in text:
        text = re.sub(r"(?m)^(constraints\.)?half = .*$", "", text.replace('"float16"', '"float32"'))
        text = text.replace('nb00 = { scalar = "uint64", value = 2', 'nb00 = { scalar = "uint64", value = 4')
        text = text.replace('"2 * k" }\nnb10', '"4 * k" }\nnb10')
        text = re.sub(r"(?m)^relative = 0\.1 .*$", "relative = 0.001", text)
        macros += SINGLE
    if not limits.has_sub_groups and "has_sub_groups" in text:
        text = re.sub(r"(?m)^(sub_groups|build_options) = .*$", "", re.sub(r"group = \[[\d, ]*\]", "group = [1]", text))
        text = text.replace("default = { group = 64 }\n", "")
        macros += ALONE
    options = ", ".join(f'"-D{macro}"' for macro in macros)
    return f"build_options = [{options}]\n{text}" if macros else text


@pytest.mark.parametrize("path", foreign_files(), ids=lambda path: path.stem)
def test_a_kernel_of_other_people_is_described_in_forty_lines(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    file = read_kernel_file(path)
    most_arguments = max(len(file.names_of(launch)) for launch in file.all_launches)
    assert len(text.splitlines()) <= (40 if most_arguments < 40 else 90)
    assert file.name == path.stem
    assert file.check, "names small sizes"


@pytest.mark.long
@pytest.mark.parametrize("path", foreign_files(), ids=lambda path: path.stem)
def test_a_kernel_of_other_people_is_right_as_it_is_and_can_be_tuned(
    path: Path, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    if path.stem in ELSEWHERE and not pocl.limits.has_sub_groups:
        pytest.skip(f"needs {ELSEWHERE[path.stem]}")
    file = placed(tmp_path, path.stem, adapted(path.read_text(), pocl.limits))
    for source in tmp_path.glob("ggml/*.cl") if not pocl.limits.has_float16 else ():
        source.write_text(source.read_text().replace("0.0h", "0.0f"))
    with registered(file) as family:
        found = states(pocl, measurer, family, trials=3)
        checked = len(family.examples()) - 1
        assert set(found[:checked]) == {TrialState.COMPLETE}, "the default is right"
        assert TrialState.WRONG_RESULT not in found


@pytest.mark.long
@pytest.mark.parametrize("name", ["kt_stencil", "ktt_coulomb", "ggml_gelu"])
def test_the_command_tunes_a_kernel_of_other_people(
    name: str, tmp_path: Path, pocl: Device, run: Run, db_file: Path
) -> None:
    file = placed(tmp_path, name)
    shape = ",".join(str(size) for size in read_kernel_file(file).check[0].values())
    with registered(file):
        asked = ["--shape", shape, "--trials", "2", "--db", str(db_file), "--quiet"]
        run(["tune", str(file), "--device", pocl.selector, *asked])
        with Store.open(db_file) as store:
            states = {stored.trial.state for stored in store.trials(pocl.slug, name)}
    assert TrialState.COMPLETE in states


for of_foreign_sources in (
    test_a_kernel_of_other_people_is_right_as_it_is_and_can_be_tuned,
    test_the_command_tunes_a_kernel_of_other_people,
):
    # Collected only where AUTOTUNE_FOREIGN_KERNELS names the folder of their sources, which are not ours to ship.
    vars(of_foreign_sources)["__test__"] = bool(foreign_folder())


# Small kernels of every shape

TRANSPOSED = {"repacked": {"transposed": 1}}
"""What must be chosen for a fault to count."""


@pytest.mark.parametrize("name", first_short(OWN, 2))
def test_a_small_kernel_is_right_in_all_its_configurations(
    name: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    with registered(written(tmp_path, name)) as family:
        for problem in family.examples():
            space = SearchSpace(family, problem, pocl.limits, algorithms=[family.name])
            assert family.usual in list(space)
            for configuration in space:
                trial = measured(pocl, measurer, problem, configuration)
                assert trial.state is TrialState.COMPLETE, trial.message


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("axpy", "y[i] += a", "y[i] = a"),
        ("axpy", "min(n, ", "min(n - 1, "),
        ("repacked", "get_global_id(0) * k + get_global_id(1)]", "get_global_id(1) * k + get_global_id(0)]"),
        ("largest", "place[get_group_id(0)] = best", "place[get_group_id(0)] = found[0]"),
        ("blocks", ">> 4) - 8", ">> 4) - 7"),
        ("stored", "3 * x", "2 * x"),
    ],
)
def test_a_small_kernel_with_a_fault_is_refused(
    name: str, right: str, wrong: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    file = written(tmp_path, name)
    source = file.with_suffix(".cl")
    assert right in source.read_text()
    source.write_text(source.read_text().replace(right, wrong))
    with registered(file) as family:
        changed = Configuration.of(family.name, **{**dict(family.usual.values), **TRANSPOSED.get(name, {})})
        trial = measured(pocl, measurer, family.examples()[-1], changed)
    assert trial.state is TrialState.WRONG_RESULT


def test_a_product_with_images_is_right(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    """Weights are an image over a buffer, activations one of four channels; sizes are ragged."""
    with registered(placed(tmp_path, "image_product")) as family:
        assert set(states(pocl, measurer, family, trials=4)) == {TrialState.COMPLETE}


def test_the_file_says_what_the_macros_of_a_source_are(tmp_path: Path) -> None:
    source = tmp_path / "own.cl"
    source.write_text(
        "#define TILE 4\n#ifdef OTHER\n#undef TILE\n  # define TILE \\\n  8\n#endif\n#define TILES(x) x\n"
        "#define TILE_M TILE\n__kernel void own(__global int *y) { y[0] = TILE_M; }\n"
    )
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\nsource = "own.cl"\nglobal_size = 1\nsizes = { n = 1 }\nparameters = { TILE = [2, 16] }\n'
        'arguments = { y = { buffer = "int32", size = 1, access = "out" } }\n'
    )
    with registered(file) as family:
        text = render(family, family.usual, family.plan(family.examples()[0], family.usual))
    assert re.findall(r"(?:define|undef) (\w+\S*)", text) == ["TILE", "TILES(x)", "TILE_M"]
    assert "#define TILE 2" in text
    assert text.splitlines().index("#define TILE_M TILE") == text.splitlines().index('#line 1 "own.cl"') + 8


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("def packed(m): return [1.0]", "gave 1 elements, weights has 36"),
        ("def packed(m, k): return m / 0", "packed failed: ZeroDivisionError"),
        ("def other(): pass", "defines no function packed"),
    ],
)
def test_a_function_that_gives_no_contents_is_named(tmp_path: Path, function: str, message: str) -> None:
    file = written(tmp_path, "blocks")
    (tmp_path / "reference.py").write_text(f"{function}\n")
    with registered(file) as family, pytest.raises(ProblemError, match=message):
        family.make_case(family.problem_type.parse("2,32"), seed=1)


def test_a_function_is_named_where_contents_come_from_one(tmp_path: Path) -> None:
    file = written(tmp_path, "blocks")
    file.write_text(file.read_text().replace(', python = "reference.py:packed"', ""))
    with pytest.raises(UsageError, match=r"line \d+: arguments\.weights: fill = 'python' and `python` go together"):
        read_kernel_file(file)
