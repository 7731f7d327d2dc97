"""A device that is not here: its public limits, and that every door gives the same answer for it."""

import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from autotune.device.identity import architecture_of, family_of
from autotune.device.machine import _FOLDER, absent_device, is_known, machine_of, public_limits
from autotune.device.profile import find_profile
from autotune.export import export_package, export_table
from autotune.export.c_family import FamilyInC
from autotune.export.contents import DeviceTable
from autotune.kernels import find_family, parse_shape
from autotune.lookup import Match, TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.machine import UNKNOWN
from autotune.model.problem import Problem
from autotune.phone.bundle.prepare import candidates_of
from autotune.store import Store

MODELS = [
    (family.stem, architecture, model)
    for family in sorted(_FOLDER.glob("*.toml"))
    for architecture, generation in tomllib.loads(family.read_text()).get("generation", {}).items()
    for model in generation.get("models", {})
]
DOORS = (
    ("adreno-530", "gemm", "1024,1024,1024"),
    ("adreno-750", "gemm", "128,128,128"),
    ("adreno-750", "qgemm", "2048,128,2048 q4_0"),
    ("mali-t860-mc4", "gemm", "512,512,512"),
    ("mali-g925", "gemm", "1,2048,2048 float16"),
    ("adreno-x1-85", "reduce", "64,1000"),
    ("adreno-640", "gemm", "1000,777,555 float16"),
    ("adreno-840", "gemm", "256,256,256 constant=b"),
    ("mali-g77", "gemm", "1024,1024,1024 float16 constant=b"),
    ("mali-g710-mc10", "gemm", "1024,1024,1024 float16 constant=b"),
)
"""Devices, families and shapes for which every door is asked."""


def problem_of(family: str, shape: str) -> Problem:
    return parse_shape(find_family(family).problem_type, shape)


def looked_up(slug: str, problem: Problem) -> Configuration:
    found = TuningTable([], []).find(slug, problem)
    assert found.match is Match.PRESUMED
    return found.configuration


# The limits


def test_models_lie_in_their_generation_and_state_known_limits() -> None:
    known = {field.name for field in fields(DeviceLimits)}
    for path in _FOLDER.glob("*.toml"):
        file = tomllib.loads(path.read_text())
        stated = [file["limits"]]
        for generation in file.get("generation", {}).values():
            stated += [generation["limits"], *generation.get("models", {}).values()]
        assert {name for limits in stated for name in limits} <= known | {"machine"}
    for family, architecture, model in MODELS:
        assert machine_of(model, family) != UNKNOWN or family == "cpu"
        assert (family_of(model), architecture_of(model)) == (family, architecture)
    assert sum(family == "adreno" for family, _, _ in MODELS) >= 40
    assert sum(family == "mali" for family, _, _ in MODELS) >= 30


@pytest.mark.parametrize(
    ("slug", "source", "units"),
    [
        ("adreno-735", "adreno-735", 3),
        ("adreno-642l", "adreno-642l", 2),
        ("adreno-702", "adreno-702", 1),
        ("adreno-799", "adreno-7xx", 4),
        ("adreno-x1-45", "adreno-x1-45", 3),
        ("adreno-9999", "adreno", 2),
        ("adreno", "adreno", 2),
        ("mali-g610", "mali-g610", 6),
        ("mali-g610-mc4", "mali-g610", 4),
        ("mali-t860-mp2", "mali-t860", 2),
        ("mali-g71-mc20", "mali-g71", 20),
        ("mali-g710", "mali-g710", 10),
        ("mali-g1-ultra", "mali-g1", 12),
        ("amd-gfx1100-cu48", "amd", 48),
        ("pocl-amd-epyc-avx2", "cpu", 4),
        ("nvidia-h100-80gb-hbm3", "nvidia-hopper", 132),
    ],
)
def test_limits_are_those_of_the_model_else_the_generation_else_the_family(slug: str, source: str, units: int) -> None:
    limits, found = public_limits(slug, family_of(slug))
    assert (found, limits.compute_units) == (source, units)
    assert absent_device(slug).presumed_from == source


def test_a_machine_has_what_its_model_and_generation_state() -> None:
    of_650, of_610, of_730 = (machine_of(f"adreno-{number}", "adreno") for number in (650, 610, 730))
    assert (of_650.registers, of_610.registers, of_730.registers) == (32768, 12288, 49152)
    malis = [machine_of(f"mali-{name}", "mali") for name in ("t860-mc4", "g77", "g710-mc10", "g925")]
    assert [machine.image_element_bytes for machine in malis] == [0, 4, 2, 2]
    assert machine_of("powervr-rogue", "powervr") == UNKNOWN


def test_of_an_unknown_family_only_the_least_is_presumed() -> None:
    for slug in ("powervr-rogue-ge8320", "adreno-x1-85-on12", "gpu-something"):
        assert absent_device(slug).limits == DeviceLimits()
        assert not is_known(slug)


def test_phones_are_presumed_to_read_images() -> None:
    assert all(absent_device(model).limits.has_images for family, _, model in MODELS if family in ("adreno", "mali"))
    assert absent_device("pocl-unknown").limits.is_cpu


# The doors


@pytest.mark.parametrize(("slug", "family", "shape"), DOORS)
def test_every_door_gives_the_same_answer(
    slug: str, family: str, shape: str, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.device.discovery.discover", list)
    problem = problem_of(family, shape)
    expected = looked_up(slug, problem)
    device = absent_device(slug)
    rule = find_family(family).default(problem, device.limits, find_profile(device).starting(family))
    assert rule == expected
    empty = tmp_path / "empty.sqlite"
    with Store.open(empty) as store:
        assert candidates_of(device, problem, store, 16).task.default == expected
    for command in ("lookup", "show"):
        arguments = [command, "--device", slug, "--family", family, shape, "--db", str(empty), "--json"]
        answer = json.loads(run(arguments).out)
        assert (answer["match"], answer["configuration"]) == ("presumed", expected.to_dict())
        assert answer["because"].endswith(f", for the public limits of {device.presumed_from}")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_c_header_gives_it_too(tmp_path: Path) -> None:
    slug, family = "adreno-750", find_family("gemm")
    c = FamilyInC(family)
    with Store.open(tmp_path / "empty.sqlite") as store:
        header = export_table(store, slug, "gemm", "c")
    assert isinstance(header, str)
    asked = ""
    for sizes in ((1024, 1024, 1024), (128, 128, 128), (1, 2048, 2048)):
        wanted = c.configuration(looked_up(slug, problem_of("gemm", ",".join(map(str, sizes)))))
        asked += (
            f"{{ const struct autotune_gemm_configuration wanted = {wanted};\n"
            f"  right += autotune_find_gemm_adreno_750({', '.join(map(str, sizes))}, &found) == AUTOTUNE_PRESUMED\n"
            "      && memcmp(&found, &wanted, sizeof found) == 0; }\n"
        )
    program = f"struct autotune_gemm_configuration found; int right = 0;\n{asked}return right;"
    (tmp_path / "ask.c").write_text(f"#include <string.h>\n{header}\nint main(void) {{ {program} }}\n")
    subprocess.run(["cc", "-O0", "ask.c", "-lm", "-o", "ask"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "ask"]).returncode == 3


@pytest.mark.parametrize(("slug", "also"), [("adreno-750", []), (None, ["adreno-750"])])
def test_the_c_package_is_made_for_the_same_device(
    slug: str | None, also: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[DeviceTable] = []

    def keep(tables: dict[str, list[DeviceTable]], _: object) -> dict[str, str]:
        written.extend(tables["gemm"])
        return {}

    monkeypatch.setattr("autotune.export.c_package.package_files", keep)
    with Store.open(tmp_path / "empty.sqlite") as store:
        export_package(store, slug, ["gemm"], tmp_path / "package", also=also)
    assert written == [DeviceTable(device=absent_device("adreno-750"), winners=())]
