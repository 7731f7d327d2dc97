"""Formats of other tuners: kernel files from T1, and trials as T4 results and as a cache of Kernel Tuner."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.errors import UsageError
from autotune.kernels import find_family
from autotune.kernels.render import provenance_now
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.own.foreign import read_foreign
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.own.kernel_file.t1 import from_t1
from autotune.own.kernel_tuner import export_trials
from autotune.search.knowledge import Knowledge
from autotune.search.proposals import Proposals
from autotune.store import Store
from factories import INVENTED_GPU, naive, product, trial, winner

SOURCE = """\
kernel void scale(global const float *x, global float *y, float factor) {
    for (int i = 0; i < PER_ITEM; i++) {
        const int at = get_global_id(0) * PER_ITEM + i;
        if (at < 1000) y[at] = factor * x[at];
    }
}
"""
VECTOR = {"Type": "float", "Size": "ProblemSize[0]", "MemoryType": "Vector"}
T1: dict[str, Any] = {
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "block_size_x", "Type": "int", "Values": "[2**i for i in range(4, 8)]", "Default": 64},
            {"Name": "PER_ITEM", "Type": "int", "Values": "[1] + list(range(2, 7, 2))"},
        ],
        "Conditions": [
            {"Parameters": ["block_size_x", "PER_ITEM"], "Expression": "block_size_x / PER_ITEM >= 8"},
            {"Parameters": ["PER_ITEM"], "Expression": "PER_ITEM in [1, 2, 4]"},
        ],
    },
    "KernelSpecification": {
        "Language": "OpenCL", "KernelName": "scale", "KernelFile": "scale.cl",
        "GlobalSize": {"X": "ProblemSize[0]"}, "LocalSize": {"X": "block_size_x"},
        "GridDivX": ["block_size_x", "PER_ITEM"], "ProblemSize": [1000],
        "Arguments": [
            {"Name": "x", **VECTOR, "AccessType": "ReadOnly", "FillType": "Random", "FillValue": 1.0},
            {"Name": "y", **VECTOR, "AccessType": "WriteOnly", "FillType": "Constant", "FillValue": 0.0},
            {"Name": "factor", "Type": "float", "MemoryType": "Scalar", "FillValue": 2.5},
        ],
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, fresh_families: None) -> Path:
    """A folder with a T1 file and its source."""
    (tmp_path / "scale.cl").write_text(SOURCE)
    write_t1(tmp_path, T1)
    return tmp_path


def write_t1(folder: Path, content: Any) -> Path:
    path = folder / "scale.json"
    path.write_text(json.dumps(content))
    return path


def changed(*keys: Any, value: Any) -> Any:
    """T1 with another value at the place that the keys lead to."""
    content = copy.deepcopy(T1)
    found = content
    for key in keys[:-1]:
        found = found[key]
    found[keys[-1]] = value
    return content


# T1


@pytest.mark.long
def test_a_t1_file_becomes_a_kernel_file_that_runs(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(folder / "scale.json")]) == 0
    told = capsys.readouterr().err
    assert "/ became //" not in told and "not complete" not in told
    file = read_kernel_file(folder / "scale.toml")
    assert file.parameters == {"block_size_x": (16, 32, 64, 128), "PER_ITEM": (1, 2, 4, 6)}
    assert file.default == {"block_size_x": 64}
    assert list(file.constraints.values()) == ["block_size_x / PER_ITEM >= 8", "PER_ITEM in (1, 2, 4)"]
    assert file.global_size == "ceil_div(problem_size_x, block_size_x * PER_ITEM) * block_size_x"
    assert {name: (entry.element, entry.size, entry.access) for name, entry in file.arguments.items()} == {
        "x": ("float32", "problem_size_x", "in"),
        "y": ("float32", "problem_size_x", "out"),
        "factor": ("float32", "", "in"),
    }
    assert main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--no-simulator"]) == 0


def test_sizes_are_counted_as_kernel_tuner_and_as_ktt_do(folder: Path) -> None:
    ktt = changed("KernelSpecification", "GlobalSize", value={"X": "1000 // PER_ITEM", "Y": "3"})
    del ktt["KernelSpecification"]["ProblemSize"]
    for argument in ktt["KernelSpecification"]["Arguments"][:2]:
        argument["Size"] = 1000
    _, text, notes = from_t1(write_t1(folder, ktt))
    assert 'global_size = "1000 // PER_ITEM, 3"\nlocal_size = "block_size_x, 1"' in text
    assert any("no ProblemSize" in note for note in notes)
    ktt["KernelSpecification"]["GlobalSizeType"] = "CUDA"
    _, text, _ = from_t1(write_t1(folder, ktt))
    assert 'global_size = "1000 // PER_ITEM * block_size_x, 3"' in text


@pytest.mark.parametrize(
    ("keys", "value", "note"),
    [
        (("ConfigurationSpace", "Conditions", 0, "Expression"), "abs(PER_ITEM) > 2", "the condition 'abs(PER_ITEM)"),
        (("ConfigurationSpace", "Conditions", 0, "Expression"), "OTHER > 2", "it uses OTHER"),
        (("ConfigurationSpace", "Conditions", 0, "Expression"), "(" * 900, "it uses what expressions lack"),
        (("KernelSpecification", "Language"), "CUDA", "port it to OpenCL C"),
        (("KernelSpecification", "CompilerOptions"), ["-std=c++11"], "option -std"),
        (("KernelSpecification", "LocalSize", "X"), "__import__('os').system('x')", r"LocalSize.X"),
        (("KernelSpecification", "Arguments", 0, "Type"), "custom", "the type 'custom'"),
        (("KernelSpecification", "Arguments", 0, "FillType"), "BinaryRaw", "contents by BinaryRaw"),
        (("KernelSpecification", "Arguments", 0, "MemoryType"), "Symbol", "a symbol"),
        (("KernelSpecification", "ReferenceArguments"), [{}], "ReferenceArguments"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_said(folder: Path, keys: tuple[Any, ...], value: Any, note: str) -> None:
    _, text, notes = from_t1(write_t1(folder, changed(*keys, value=value)))
    assert any(note in found for found in notes), notes
    assert note in text, "the file says so too"


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("KernelSpecification",), [], "must be an object"),
        (("ConfigurationSpace", "TuningParameters", 0, "Values"), "__import__('os')", "not a list of numbers"),
        (("ConfigurationSpace", "TuningParameters", 0, "Values"), "list(range(10**9))", "not a list of numbers"),
        (("ConfigurationSpace", "TuningParameters", 0, "Values"), "[9**9**9]", "not a list of numbers"),
        (("ConfigurationSpace", "TuningParameters", 0, "Values"), "[]", "not a list of numbers"),
        # With three such levels, and a thousand values each, there were more lists than memory.
        (
            ("ConfigurationSpace", "TuningParameters", 0, "Values"),
            "[[b for b in range(9)] for a in range(9)]",
            "not a list of numbers",
        ),
        (("ConfigurationSpace", "TuningParameters", 0, "Values"), "[1.5, '\"']", "cannot stand in a #define"),
        (("ConfigurationSpace", "TuningParameters", 0, "Name"), "a b", "cannot stand in a #define"),
        (("KernelSpecification", "ProblemSize"), [0], r"ProblemSize\[0\]: must be from 1"),
        (("KernelSpecification", "KernelFile"), 3, "KernelFile: must be a string"),
    ],
)
def test_a_wrong_t1_file_is_refused(folder: Path, keys: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_t1(write_t1(folder, changed(*keys, value=value)))


def test_a_source_elsewhere_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = folder / "inner"
    inner.mkdir()
    path = write_t1(inner, changed("KernelSpecification", "KernelFile", value="../scale.cl"))
    assert main(["init", str(path)]) == 2
    assert "must lie in a folder that holds" in capsys.readouterr().err
    assert main(["init", str(path), "-o", str(folder / "scale.toml")]) == 0
    assert read_kernel_file(folder / "scale.toml").sources == ("scale.cl",)


# Trials

PROBLEM = product(64, 64, 64)
STATES = (TrialState.COMPILE_FAILED, TrialState.WRONG_RESULT, TrialState.TOO_SLOW, TrialState.TOOL_FAILED)


@pytest.fixture
def measured(store: Store) -> Store:
    """A store with trials of two algorithms: two complete, and each of STATES."""
    store.add_device(INVENTED_GPU)
    family = find_family("gemm")
    dot = next(algorithm for algorithm in family.algorithms if algorithm.name == "dot")
    usual = Configuration.of("dot", **{p.name: p.values[0] for p in dot.parameters})
    trials = [trial(naive(8, 8), 3e6, samples_ns=(2e6, 3e6, 4e6)), trial(usual, 2e6)]
    trials += [trial(naive(1, 2**number), state) for number, state in enumerate(STATES)]
    for one in trials:
        made = provenance_now(INVENTED_GPU, family, one.configuration)
        store.add_trial(INVENTED_GPU, PROBLEM, one, made)
    store.import_winners([winner(INVENTED_GPU, PROBLEM, usual)], [INVENTED_GPU])
    return store


def exported(store: Store, form: str, shape: str | None = None) -> Any:
    return json.loads(export_trials(store, INVENTED_GPU.slug, "gemm", shape, form))


def test_t4_holds_how_every_configuration_ended(measured: Store) -> None:
    content = exported(measured, "t4")
    found = content["results"]
    assert [(result["invalidity"], result["correctness"]) for result in found] == [
        ("correct", 1), ("correct", 1), ("compile", 0), ("correctness", 0), ("timeout", 0),
    ]  # fmt: skip
    assert found[0]["times"]["runtimes"] == [2.0, 3.0, 4.0]
    assert found[0]["measurements"] == [{"name": "time", "value": 3.0, "unit": "ms"}]
    assert {len(result["configuration"]) for result in found} == {len(found[0]["configuration"])}
    assert (content["metadata"]["problem"]["m"], content["metadata"]["winner"]["algorithm"]) == (64, "dot")


def test_a_cache_has_the_keys_by_which_kernel_tuner_replays_it(measured: Store) -> None:
    text = export_trials(measured, INVENTED_GPU.slug, "gemm", None, "kernel-tuner")
    assert text.strip().endswith("}}}"), "otherwise Kernel Tuner takes it for one that is still written"
    content = json.loads(text)
    names = content["tune_params_keys"]
    for key, entry in content["cache"].items():
        assert key == ",".join(str(entry[name]) for name in names)
        assert all(entry[name] in content["tune_params"][name] for name in names)
    times = [entry["time"] for entry in content["cache"].values()]
    assert times == [3.0, 2.0, "CompilationFailedConfig", "RuntimeFailedConfig", "RuntimeFailedConfig"]


def test_trials_of_several_shapes_are_not_mixed(measured: Store) -> None:
    other = product(8, 8, 8)
    measured.import_winners([winner(INVENTED_GPU, other, naive(8, 8))], [INVENTED_GPU])
    with pytest.raises(UsageError, match=r"several shapes are stored: .*--shape"):
        exported(measured, "t4")
    assert len(exported(measured, "t4", "64,64,64")["results"]) == 5
    with pytest.raises(UsageError, match="another driver or kernel"):
        exported(measured, "t4", "8,8,8")
    with pytest.raises(UsageError, match="no such trials"):
        exported(measured, "t4", "9,9,9")


def test_the_command_writes_trials_and_its_own_file_again(
    measured: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    common = ["export", "--format", "t4", "--device", INVENTED_GPU.slug, "--db", measured.location]
    assert main([*common, "--family", "gemm", "--output", str(path)]) == 0
    assert main([*common, "--family", "gemm", "--output", str(path)]) == 0
    assert len(json.loads(path.read_text())["results"]) == 5
    assert main([*common, "--family", "gemm", "--shape", "64,64,64", "--output", str(path)]) == 0
    assert main(common) == 2
    assert "one device and family (give --family)" in capsys.readouterr().err
    assert main(common[:3]) == 2
    assert "(give --device and --family)" in capsys.readouterr().err


# Results of others

GEMM = find_family("gemm")


def test_a_cache_that_kernel_tuner_has_not_closed_is_read(tmp_path: Path) -> None:
    entries = [{"work_group_m": 8, "work_group_n": size, "time": 1.0} for size in (4, 8)]
    whole = json.dumps(cache_of(entries), indent=1)
    closed, unfinished = whole.rstrip("}\n "), whole[: whole.rindex("time")]
    for text, count in ((f"{closed}}},", 2), (f"{closed}}}", 2), (unfinished, 1)):
        (tmp_path / "cache.json").write_text(text)
        assert read_foreign(tmp_path / "cache.json", GEMM)[1] == count


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def cache_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"device_name": "Tesla", "cache": {str(number): entry for number, entry in enumerate(entries)}}


@pytest.mark.parametrize("form", ["t4", "kernel-tuner"])
def test_what_was_exported_is_read_again(measured: Store, tmp_path: Path, form: str) -> None:
    path = written(tmp_path / "results.json", export_trials(measured, INVENTED_GPU.slug, "gemm", None, form))
    source, count = read_foreign(path, GEMM)
    assert count == 2
    assert [configuration.algorithm for configuration in source.configurations] == ["dot", "naive"]
    assert source.configurations[1] == naive(8, 8)
    assert source.log_times[1] - source.log_times[0] == pytest.approx(math.log(1.5))


def test_foreign_values_are_those_of_the_family_or_left_out(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"work_group_m": 8.0, "work_group_n": 4, "other": 1, "time": 2.0},
        {"work_group_m": 8, "work_group_n": 4, "other": 2, "time": 1.0},
        {"work_group_m": 7, "work_group_n": 4, "time": 0.5},
        {"work_group_m": 16, "time": 0.5},
        {"work_group_m": 16, "work_group_n": 4, "time": "RuntimeFailedConfig"},
    ]
    source, count = read_foreign(written(tmp_path / "cache.json", cache_of(entries)), GEMM)
    assert (source.configurations, source.log_times, count) == ((naive(8, 4),), (0.0,), 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "must be an object"),
        ({}, "neither T4 results nor a cache"),
        ({"results": [{"invalidity": "correct", "configuration": {}}]}, r"results\[0\]: has no measurement named time"),
        (cache_of([{"time": -1}]), r"cache\.0\.time: must be above 0"),
        (cache_of([{"time": [1]}]), "must be a number"),
        (cache_of([{"time": 1.0, "block_size_x": 8}]), "none of .* 1 results fits gemm"),
        (cache_of([{"time": 1.0, "work_group_m": {}, "work_group_n": [[]]}]), "none of .* fits gemm"),
    ],
)
def test_wrong_results_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_foreign(written(tmp_path / "cache.json", content), GEMM)


def test_the_best_of_others_is_measured_first_and_nothing_of_it_is_stored(store: Store, tmp_path: Path) -> None:
    entries = [{"work_group_m": 8, "work_group_n": 2**n, "time": 9.0 - n} for n in range(4)]
    source, _ = read_foreign(written(tmp_path / "cache.json", cache_of(entries)), GEMM)
    knowledge = Knowledge(INVENTED_GPU, PROBLEM, store)
    proposals = Proposals(knowledge, knowledge.space(), 0, foreign=[source])
    assert [proposals.next() for _ in range(3)] == [naive(8, 8), naive(8, 4), naive(8, 2)]
    assert (store.devices(), store.best(None)) == ([], [])
