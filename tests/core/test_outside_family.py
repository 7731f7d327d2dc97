"""A kernel family from outside the package: found by file or entry point, and served like the built-in ones."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import plugins
from autotune.errors import ProblemError, UsageError
from autotune.kernels import FILES, _built_in_names, families_of_files, family_names, find_family, is_family
from autotune.lookup import TuningTable
from autotune.measure.worker import Worker
from autotune.model.device import Device
from autotune.model.trial import Job, TrialState
from autotune.runtime import Operation
from autotune.space.family import KernelFamily
from waiting import HANG_S

FILE = Path(__file__).parents[1] / "transpose_family.py"
SHAPES = ("64,64", "96,300", "300,70", "128,128")


def forget() -> None:
    for cached in (find_family, families_of_files):
        cached.cache_clear()
    with contextlib.suppress(AttributeError):
        plugins.entry_points.cache_clear()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A registry that is read again, before the test and after it."""
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


@pytest.fixture
def transpose(registry: pytest.MonkeyPatch) -> KernelFamily:
    registry.setenv(FILES, str(FILE))
    return find_family("transpose")


def autotune(*arguments: str, database: Path | None = None) -> str:
    """Run a command in a process of its own, in which the family is listed, and return what it prints."""
    stored = ["--db", str(database)] if database else []
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments, *stored],
        env={**os.environ, FILES: str(FILE)}, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_family_of_a_file_is_found_beside_the_built_in_ones(transpose: KernelFamily) -> None:
    assert family_names() == sorted([*_built_in_names(), "transpose"])
    assert is_family("transpose") and not is_family("pooling")
    assert find_family("transpose") is transpose
    with pytest.raises(ProblemError, match="no kernel family 'pooling'"):
        find_family("pooling")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("import sys; sys.modules.pop(__name__)", "cannot be loaded: AttributeError"),
        ("FAMILY = 'transpose'", "FAMILY is a str"),
        ("{text}\nTranspose.name = 'Trans pose'\nFAMILY = Transpose()", "the name 'Trans pose' is not"),
        ("{text}\nTranspose.name = 'other'\nFAMILY = Transpose()", "TransposeProblem.family is 'transpose'"),
        (
            "{text}\nTranspose.name = TransposeProblem.family = 'gemm'\nFAMILY = Transpose()",
            "its name, gemm, is that of a built-in family",
        ),
        (
            "{text}\nTranspose.template_files = {{'plain.cl.j2': PLAIN}}\nFAMILY = Transpose()",
            "the template tiled.cl.j2 is missing",
        ),
        (
            "{text}\nTranspose.baseline = Configuration.of('plain', rows_per_item=3)\nFAMILY = Transpose()",
            "rows_per_item=3 is not among",
        ),
    ],
)
def test_a_file_that_breaks_the_contract_is_named_with_the_reason(
    registry: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text.format(text=FILE.read_text()))
    registry.setenv(FILES, str(file))
    with pytest.raises(UsageError, match=message) as raised:
        family_names()
    assert str(file) in raised.value.message
    assert find_family("gemm").name == "gemm", "built-in families do not depend on it"


def test_child_processes_measure_built_in_families_although_a_file_is_broken(
    registry: pytest.MonkeyPatch, pocl: Device, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 / 0")
    registry.setenv(FILES, str(file))
    gemm = find_family("gemm")
    with Worker(selector=pocl.selector) as worker:
        job = Job(selector=pocl.selector, problem=gemm.problem_type.parse("8,8,8"), configuration=gemm.baseline)
        assert worker.run(job).state is TrialState.COMPLETE


def test_a_missing_file_and_two_files_with_one_family_are_refused(registry: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry.setenv(FILES, str(tmp_path / "none.py"))
    with pytest.raises(UsageError, match=r"none\.py cannot be loaded: FileNotFoundError"):
        family_names()
    forget()
    copy = tmp_path / "copy.py"
    copy.write_text(FILE.read_text())
    registry.setenv(FILES, os.pathsep.join((str(FILE), str(copy))))
    with pytest.raises(UsageError, match="two files define a kernel family transpose"):
        family_names()


def test_an_installed_package_adds_a_family_by_entry_point(registry: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its templates lie in a folder of the package."""
    package, information = tmp_path / "somebody_kernels", tmp_path / "somebody_kernels-1.0.dist-info"
    (package / "templates").mkdir(parents=True)
    information.mkdir()
    text = FILE.read_text().replace('template_files: ClassVar = {"plain.cl.j2": PLAIN, "tiled.cl.j2": TILED}',
                                    'template_files: ClassVar = Path(__file__).parent / "templates"')  # fmt: skip
    (package / "__init__.py").write_text(f"from pathlib import Path\n{text}")
    for name, source in vars(sys.modules[type(family_of_file()).__module__]).items():
        if name in ("PLAIN", "TILED"):
            (package / "templates" / f"{name.lower()}.cl.j2").write_text(source)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-kernels\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[autotune.families]\ntranspose = somebody_kernels:FAMILY\nother = somebody_kernels:FAMILY\n"
    )
    forget()
    registry.syspath_prepend(str(tmp_path))
    assert family_names() == sorted([*_built_in_names(), "other", "transpose"])
    family = find_family("transpose")
    assert type(family).__module__ == "somebody_kernels"
    assert "local float tile" in family.templates["transpose/tiled.cl.j2"]
    with pytest.raises(UsageError, match="its name is 'transpose', not 'other'"):
        find_family("other")


def family_of_file() -> KernelFamily:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILES, str(FILE))
        return find_family("transpose")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, pocl: Device) -> Path:
    """A database with four sizes of the family, tuned by the command line."""
    database = tmp_path_factory.mktemp("outside") / "tuned.sqlite"
    told = autotune("run", "--device", pocl.slug, "--family", "transpose", "--shape", *SHAPES, "--trials", "3",
                    "--json", database=database)  # fmt: skip
    assert {outcome["problem"]["rows"] for outcome in json.loads(told)["outcomes"]} == {64, 96, 300, 128}
    return database


@pytest.mark.long
def test_the_commands_serve_it_like_a_built_in_family(tuned: Path, pocl: Device, tmp_path: Path) -> None:
    of = ("--device", pocl.slug, "--family", "transpose")
    assert "4 problems" in autotune("status", database=tuned)
    found = json.loads(autotune("lookup", *of, "96,300", "--json", database=tuned))
    assert found["match"] == "exact" and found["configuration"]["algorithm"] in ("plain", "tiled")
    assert "kernel void transpose" in autotune("show", *of, "96,300", "--source", database=tuned)
    table = tmp_path / "table.json"
    table.write_text(autotune("export", *of, "--format", "json", database=tuned))
    copy = tmp_path / "copy.sqlite"
    autotune("import", str(table), database=copy)
    entries = [json.loads(text)["devices"][0]["entries"] for text in (
        table.read_text(), autotune("export", *of, "--format", "json", database=copy))]  # fmt: skip
    assert len(entries[0]) == len(SHAPES) and [e["time_ns"] for e in entries[0]] == [e["time_ns"] for e in entries[1]]


@pytest.mark.long
def test_a_lookup_without_the_family_leaves_its_rows_out(
    tuned: Path, pocl: Device, registry: pytest.MonkeyPatch
) -> None:
    registry.delenv(FILES, raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "status", "--db", str(tuned)],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "unexpected" not in done.stderr
    with pytest.raises(ProblemError, match="no kernel family 'transpose'"):
        Operation("transpose", pocl.selector, table=str(tuned))


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), [(96, 300), (300, 70), (1, 1), (77, 1023)])
def test_tuned_kernels_transpose_arrays(
    tuned: Path, pocl: Device, transpose: KernelFamily, tmp_path: Path, rows: int, columns: int
) -> None:
    operation = Operation("transpose", pocl.selector, table=str(tuned), binaries=tmp_path)
    problem: Any = transpose.problem_type.parse(f"{rows},{columns}")
    given = np.random.default_rng(rows).random((rows, columns), dtype=np.float32)
    for _ in range(2):
        found = operation(problem, input=given)
        assert found.keys() == {"output"}
        np.testing.assert_array_equal(found["output"].reshape(columns, rows), given.T)
    assert operation.stats.calls == 2 and operation.stats.programs_compiled == 1


def test_operands_of_an_operation_are_checked(pocl: Device, transpose: KernelFamily, tmp_path: Path) -> None:
    operation = Operation("transpose", pocl.selector, table=TuningTable([pocl], []), binaries=tmp_path)
    problem = transpose.problem_type.parse("4,8")
    right = np.zeros((4, 8), np.float32)
    for operands, message in (
        ({}, "the operand input is missing"),
        ({"input": right[:3]}, r"input is float32 of shape \(3, 8\), the problem needs 32 elements of float32"),
        ({"input": right.astype(float)}, "input is float64"),
        ({"input": [0.0]}, "input is list"),
        ({"input": right, "inputs": right}, "transpose has no operand 'inputs'"),
    ):
        with pytest.raises(ProblemError, match=message):
            operation(problem, **operands)


def test_an_operation_reads_outputs_that_the_problem_reads(pocl: Device, tmp_path: Path) -> None:
    """GEMM's beta is 0 by default, so the result does not depend on what C contained."""
    operation = Operation("gemm", pocl.selector, table=TuningTable([pocl], []), binaries=tmp_path)
    random = np.random.default_rng(1)
    a, b = random.random((5, 7), dtype=np.float32), random.random((7, 3), dtype=np.float32)
    c = np.full((5, 3), 9.0, np.float32)
    found = operation(find_family("gemm").problem_type.parse("5,3,7"), a=a, b=b, c=c)["c"]
    np.testing.assert_allclose(found.reshape(5, 3), a @ b, rtol=1e-5)
    assert (c == 9.0).all(), "the array that was passed is not changed"
