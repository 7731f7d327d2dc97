"""Where data files lie, in a checkout, in an installed package and on each system."""

import sys
from pathlib import Path

import pytest

from autotune import paths
from autotune.errors import AutotuneError
from autotune.paths import data_folder, default_database, schema_revisions


def test_a_checkout_has_its_data_beside_the_package() -> None:
    assert (data_folder("templates") / "gemm").is_dir()
    assert (data_folder("db") / "migrations" / "env.py").is_file()


def test_an_installed_package_has_its_data_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "autotune"
    (package / "templates").mkdir(parents=True)
    (package.parent / "templates").mkdir()  # another package's
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert data_folder("templates") == package / "templates"


def test_missing_data_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "autotune")
    with pytest.raises(AutotuneError, match=r"'db'.*install autotune again"):
        data_folder("db")


def test_revisions_are_read_from_the_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schema_revisions()[0] == "0100"
    versions = tmp_path / "db" / "migrations" / "versions"
    versions.mkdir(parents=True)
    for name in ("0010_c.py", "0002_b.py", "0001_a.py", "notes.py", "0003_d.txt"):
        (versions / name).touch()
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path)
    assert schema_revisions() == ("0001", "0002", "0010")


DATA, CACHE = "user_data_folder", "user_cache_folder"


@pytest.mark.parametrize(
    ("folder", "platform", "variables", "expected"),
    [
        (DATA, "linux", {"XDG_DATA_HOME": "/data"}, "/data/autotune"),
        (DATA, "linux", {"XDG_DATA_HOME": "relative"}, "/home/someone/.local/share/autotune"),
        (DATA, "linux", {"XDG_DATA_HOME": ""}, "/home/someone/.local/share/autotune"),
        (DATA, "linux", {}, "/home/someone/.local/share/autotune"),
        (DATA, "darwin", {"XDG_DATA_HOME": "/data"}, "/home/someone/Library/Application Support/autotune"),
        (DATA, "win32", {"LOCALAPPDATA": "/local"}, "/local/autotune"),
        (DATA, "win32", {}, "/home/someone/AppData/Local/autotune"),
        (CACHE, "linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/autotune"),
        (CACHE, "linux", {}, "/home/someone/.cache/autotune"),
        (CACHE, "darwin", {}, "/home/someone/Library/Caches/autotune"),
        (CACHE, "win32", {"LOCALAPPDATA": "/local"}, "/local/autotune/cache"),
    ],
)
def test_folders_of_a_user(
    monkeypatch: pytest.MonkeyPatch, folder: str, platform: str, variables: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/someone")
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert getattr(paths, folder)() == Path(expected)
    assert folder == CACHE or default_database() == Path(expected) / "autotune.sqlite"


@pytest.mark.parametrize("home", ["", "somewhere"])
def test_without_a_home_folder_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(AutotuneError, match="set HOME"):
        default_database()
