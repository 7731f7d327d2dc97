"""Exports overwrite nothing that autotune did not write, and are whole or not there."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

import factories
from autotune.cli import main
from autotune.device import discovery
from autotune.errors import TableError, UsageError
from autotune.export.contents import DeviceTable
from autotune.export.formats import check_replaceable, write_package
from autotune.export.text_tables import write_markdown
from autotune.kernels import find_family
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup.json_table import read_contents
from autotune.model.device import Device
from autotune.model.trial import Verdict
from autotune.paths import data_folder
from autotune.store import Store
from factories import provenance

FILES = {"autotune.c": "int a;\n", "autotune.h": "/* a */\n", "main.c": "int main(void) { return 0; }\n"}


def contents(folder: Path) -> dict[str, str]:
    """By name, without the first line."""
    return {path.name: path.read_text().partition("\n")[2] for path in folder.iterdir()}


def test_a_package_replaces_what_an_export_has_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "c"
    assert write_package(folder, FILES) == []
    assert contents(folder) == FILES
    newer = {name: f"{text}/* newer */\n" for name, text in FILES.items()}
    assert write_package(folder, newer) == []
    assert contents(folder) == newer


@pytest.mark.parametrize("name", list(FILES))
def test_a_package_is_not_written_over_files_of_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("int main(void) { return 42; }\n")
    with pytest.raises(UsageError, match=f"autotune did not write: {name} .--force") as caught:
        write_package(tmp_path, FILES)
    assert caught.value.exit_status == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]
    kept = write_package(tmp_path, FILES, force=True)
    assert kept == (["main.c"] if name == "main.c" else [])
    assert ("42" in (tmp_path / name).read_text()) == (name == "main.c"), "an example is never taken from its user"


def test_a_changed_example_stays_and_other_changes_are_asked_about(tmp_path: Path) -> None:
    write_package(tmp_path, FILES)
    with (tmp_path / "main.c").open("a") as file:
        file.write("/* mine */\n")
    for force in (False, True):
        assert write_package(tmp_path, FILES, force=force) == ["main.c"]
        assert "mine" in (tmp_path / "main.c").read_text()
    with (tmp_path / "autotune.c").open("a") as file:
        file.write("/* mine */\n")
    with pytest.raises(UsageError, match=r"changed since their export: autotune\.c"):
        write_package(tmp_path, FILES)
    write_package(tmp_path, FILES, force=True)
    assert contents(tmp_path)["autotune.c"] == FILES["autotune.c"]


def test_ends_of_lines_of_another_system_are_no_change(tmp_path: Path) -> None:
    write_package(tmp_path, FILES)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert write_package(tmp_path, FILES) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "c"
    if exists:
        write_package(folder, FILES)
    written = Path.write_text

    def fill(path: Path, *arguments: str, **options: str) -> int:
        if path.name == "main.c":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(TableError, match="cannot be written: No space left"):
        write_package(folder, dict.fromkeys(FILES, "/* newer */\n"))
    assert folder.exists() == exists
    if exists:
        assert contents(folder) == FILES


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ('{\n"format": "autotune-table",\n', True),
        ("device,family,m,n,k\n", True),
        ("## Qualcomm Adreno (`adreno-730`)\n\nFamily `gemm`.\n", True),
        ("/* Tuned configurations of OpenCL kernels, written by autotune. Do not edit: export again. */\n", True),
        ("<!doctype html>\n<!-- Written by autotune. -->\n", True),
        ('<svg xmlns="http://www.w3.org/2000/svg" role="img">\n<!-- Written by autotune. -->\n', True),
        ("", True),
        ("# My project\n\nFamily `x`\n", False),
        ('{"name": "package.json"}', False),
        ("/* my own header */\n", False),
        ("name,family\n", False),
        ("<!doctype html>\n<html>\n", False),
        ('<svg xmlns="http://www.w3.org/2000/svg" role="img">\n<title>', False),
    ],
)
def test_an_output_file_is_replaced_only_where_it_is_an_export(tmp_path: Path, text: str, is_ours: bool) -> None:
    path = tmp_path / "file"
    check_replaceable(path)
    path.write_text(text)
    if is_ours:
        check_replaceable(path)
    else:
        with pytest.raises(UsageError, match="already exists"):
            check_replaceable(path)


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "c", "sqlite", "html"])
def test_the_command_replaces_its_own_files_and_others_only_by_force(
    tmp_path: Path, empty_database: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "table"
    export = ["export", "--db", str(empty_database), "--format", form, "--output", str(output)]
    assert [main(export), main(export)] == [0, 0]
    capsys.readouterr()
    output.write_text("my notes\n")
    assert main(export) != 0
    assert "table already exists and is not" in capsys.readouterr().err and output.read_text() == "my notes\n"
    if form != "sqlite":  # the store never replaces what is no database of its own
        assert main([*export, "--force"]) == 0
        assert output.read_text() != "my notes\n"


def test_files_by_size_go_into_a_folder_and_replace_none_of_others(
    tmp_path: Path, empty_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(slug="mali-g610", vendor="Arm", model="Mali-G610", family="mali", driver="3.1")
    with Store.open(shutil.copy(empty_database, tmp_path / "own.sqlite")) as store:
        store.add_device(device)
        for channels in (10, 9):
            problem = ReduceProblem(batch=100, channels=channels)
            store.record_winner(factories.winner(device, problem, find_family("reduce").baseline))
    folder = tmp_path / "new" / "tuned"
    export = ["export", "--db", str(tmp_path / "own.sqlite"), "--as", "files", "--output", str(folder)]
    assert [main(export), main(export)] == [0, 0]
    (path,) = folder.iterdir()
    assert path.name.startswith("reduce,device=mali-g610,")
    assert list(json.loads(path.read_text())["sizes"]) == ["batch=100,channels=9", "batch=100,channels=10"]
    path.write_text("my notes\n")
    assert main(export) == 2
    assert "already exists" in capsys.readouterr().err and path.read_text() == "my notes\n"
    assert main([*export, "--force"]) == 0 and "sizes" in path.read_text()
    assert main([*export[:-1], str(path)]) == 2
    assert "cannot be a folder" in capsys.readouterr().err


def test_markdown_says_what_was_measured_by_which_driver(store: Store) -> None:
    device = Device(slug="mali-g610", vendor="Arm", model="Mali-G610", family="mali", driver="3.1")
    problem, baseline = ReduceProblem(batch=1000, channels=249), find_family("reduce").baseline
    made = provenance(driver="3.0")
    winner = factories.winner(device, problem, baseline, verdict=Verdict.DEFAULT_FAILED, provenance=made)
    *_, row = write_markdown([DeviceTable(device=device, winners=(winner,))], "reduce").splitlines()
    cells = [cell.strip() for cell in row.split("|")][1:-1]
    assert cells[0] == "1000x249 sum" and cells[3:] == ["1 ms", "1 GB/s", "default fails", "", "3.0"]


@pytest.mark.parametrize("has_database", [True, False])
def test_tables_that_ship_are_exported_like_own_ones(
    tmp_path: Path, empty_database: Path, has_database: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "discover", list)
    database, output = empty_database if has_database else tmp_path / "none.sqlite", tmp_path / "table.json"
    export = ["export", "--db", str(database), "--device", "nvidia-h200", "--format", "json", "--output", str(output)]
    assert main(export) == 0
    shipped = read_contents(data_folder("db") / "tables" / "nvidia-h200.json")
    exported = read_contents(output)
    assert exported.winners and {w.problem for w in exported.winners} == {w.problem for w in shipped.winners}
    assert [device.slug for device in exported.devices] == ["nvidia-h200"]
    assert not (tmp_path / "none.sqlite").exists()


def test_a_device_that_is_stored_nowhere_is_told_with_those_that_are(
    empty_database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(discovery, "discover", list)
    export = ["export", "--db", str(empty_database), "--format", "json", "--device"]
    assert main([*export, "nvidia-h202"]) == 2
    assert "(did you mean nvidia-h200?)" in capsys.readouterr().err
    assert main([*export, "zebra"]) == 2
    assert "stored devices: nvidia-h100-80gb-hbm3, nvidia-h200" in capsys.readouterr().err
