"""What a wheel holds, and that an installed package finds it without the checkout."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from autotune.cli import EXTRAS
from autotune.kernels import _built_in_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation, so without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.long
def test_wheel_holds_every_data_file_and_nothing_of_the_checkout(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("autotune", "autotune"), ("templates", "autotune/templates"), ("db", "autotune/db")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected = {f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" for path in files}
        assert expected - names == set()
    page = "autotune/service/page"
    assert {f"{page}/index.html", f"{page}/main.js", f"{page}/vendor/uplot.js", f"{page}/vendor/uplot.LICENSE"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"autotune"}
    assert not [name for name in names if name.endswith((".pyc", ".sqlite"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.long
def test_installed_wheel_finds_templates_and_migrations(wheel: Path, tmp_path: Path) -> None:
    """Also when nothing but the wheel is on the path."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from autotune.paths import data_folder\n"
        "from autotune.kernels import family_names\n"
        "from autotune.device.profile import profile_names\n"
        "print(data_folder('templates') / 'gemm', data_folder('db') / 'migrations')\n"
        "print(family_names())\n"
        "print(len(profile_names()))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, tmp_path / "site"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    folders, families, profiles = done.stdout.splitlines()
    templates, migrations = folders.split()
    assert Path(templates).is_relative_to(tmp_path)
    assert (Path(templates) / "microtile.cl.j2").is_file()
    assert list((Path(migrations) / "versions").glob("0100_*.py"))
    assert families == str(sorted(_built_in_names()))
    assert int(profiles) >= 7


def test_a_base_install_has_what_a_worker_needs_and_extras_bring_what_tuning_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {requirement.split(">=")[0] for requirement in project["dependencies"]}
    assert base == {"filelock", "jinja2", "numpy", "pyopencl"}
    extras = project["optional-dependencies"]
    assert extras["worker"] == [], "a worker needs no more"
    tuning = {requirement.split(">=")[0].replace("-", "_") for requirement in extras["tune"]}
    assert tuning == {name for name, extra in EXTRAS.items() if extra == "tune"}
    for extra in ("service", "postgres", "dev"):
        assert f"{project['name']}[tune]" in extras[extra]
    assert project["name"] != "autotune", "that is another project on PyPI"
    assert project["scripts"] == {"autotune": "autotune.__main__:run"}


def test_every_dependency_has_a_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(">=" in requirement for requirement in project["dependencies"])
    assert set(project["optional-dependencies"]) >= {"pocl", "dev"}
