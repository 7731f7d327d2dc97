"""Exported tables: every format, and the C header compiled and asked beside the Python lookup."""

import csv
import io
import json
import random
import re
import shutil
import sqlite3
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from autotune.cli import main
from autotune.errors import DeviceSelectionError, ProblemError, TableError, UsageError
from autotune.export import export_table, text_tables
from autotune.export.c_family import FamilyInC
from autotune.export.c_package import write_c
from autotune.export.contents import DeviceTable, shipped_tables, stored_families
from autotune.export.formats import FORMATS, Format
from autotune.kernels import family_names, find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.render import render_c
from autotune.kernels.rows.problem import OPERATIONS as ROWS
from autotune.lookup import Match, TuningTable
from autotune.lookup.contents import Shipped
from autotune.lookup.json_table import read_contents
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Winner
from autotune.paths import data_folder
from autotune.store import Store
from factories import LARGE_GPU, first_short, naive, product, provenance, random_configuration, winner

TAKING_GEMM = [name for name, form in FORMATS.items() if form.takes("gemm")]
ADRENO = Device(
    slug="adreno-730", vendor="Qualcomm", model="Adreno 730", family="adreno", driver="OpenCL 3.0 */ int x; // ??/",
    limits=DeviceLimits(
        max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), local_memory_bytes=32768,
        has_images=True, max_image_width=2048, max_image_height=2048,
    ),
)  # fmt: skip
CPU = Device(
    slug="pocl-test", vendor="A | B", model="=cmd\\|calc", family="cpu", driver="3.0",
    limits=DeviceLimits(max_work_group_size=4096, max_work_item_sizes=(4096, 4096, 4096), is_cpu=True),
)  # fmt: skip
BARE = Device(slug="mali-t628", vendor="ARM", model="Mali-T628", family="mali")
UNTUNED = (
    Device(
        slug="adreno-610", vendor="Qualcomm", model="Adreno 610", family="adreno",
        limits=replace(ADRENO.limits, compute_units=3, sub_group_sizes=(64, 128)),
    ),
    BARE,
    Device(slug="nvidia-test", vendor="NVIDIA", model="test", family="nvidia", limits=LARGE_GPU),
    Device(
        slug="nvidia-matrix-units", vendor="NVIDIA", model="test", family="nvidia",
        limits=replace(LARGE_GPU, has_matrix_units=True, has_float16=True, declared_local_memory_bytes=144 * 1024),
    ),
    replace(CPU, slug="pocl-untuned", limits=replace(CPU.limits, ordering_standard=300)),
    Device(
        slug="amd-test", vendor="AMD", model="test", family="amd",
        limits=DeviceLimits(compute_units=60, ordering_standard=200),
    ),
)  # fmt: skip
H200 = data_folder("db") / "tables" / "nvidia-h200.json"
Fields = dict[str, Value]
"""Of a problem, or of an answer."""
MATCHES = (None, Match.EXACT, Match.SIBLING, Match.VENDOR, Match.DEFAULT, Match.PRESUMED)
"""In the order of their numbers in C."""
PROVENANCE = provenance(driver="=1+1")
SIZES = (1, 2, 7, 16, 48, 64, 100, 128, 512, 768, 1000, 1024, 4096)
ODD: tuple[dict[str, Any], ...] = (
    {}, {"baseline_ns": None}, {"samples": 0, "gain_low": float("nan")}, {"is_default": True},
)  # fmt: skip
"""What may be special about a winner."""


def make_winner(device: Device, problem: Problem, configuration: Configuration, **changes: Any) -> Winner:
    known = {"time_ns": 1e7 / 3, "baseline_ns": 1e7, "samples": 30, "provenance": PROVENANCE}
    return winner(device, problem, configuration, **{**known, **changes})


def random_problem(numbers: random.Random, sizes: tuple[int, ...] = SIZES) -> GemmProblem:
    m, n, k = (numbers.choice(sizes) for _ in "mnk")
    values: dict[str, Any] = {}
    if numbers.random() < 0.2:
        values = {"lda": k + numbers.choice((0, 3, 8)), "ldc": n + 4}
    elif numbers.random() < 0.2:
        values = {"trans_a": numbers.randrange(2), "trans_b": numbers.randrange(2), "batch": numbers.choice((1, 3, 12))}
    if numbers.random() < 0.2:
        values["mode"] = numbers.choice(("float16", "float16-acc16", "int8"))
    return GemmProblem(m=m, n=n, k=k, **values)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two devices with 60 problems each, and one without any."""
    numbers = random.Random(7)
    store = Store.open(tmp_path_factory.mktemp("export") / "tuned.sqlite")
    for device in (ADRENO, CPU, BARE):
        store.add_device(device)
    for device in (ADRENO, CPU):
        problems = {random_problem(numbers): None for _ in range(60)}
        for number, problem in enumerate(problems):
            configuration = random_configuration(device, problem, numbers)
            store.record_winner(make_winner(device, problem, configuration, **ODD[number % len(ODD)]))
    return store


@cache
def text_of(store: Store, slug: str | None, form: str, family: str = "gemm") -> str:
    """Made once: nothing may be added to the store afterwards."""
    text = export_table(store, slug, family, form)
    assert isinstance(text, str)
    return text


# All formats


@pytest.mark.parametrize("form", TAKING_GEMM)
def test_equal_contents_give_equal_tables_and_what_is_not_there_none(store: Store, form: str) -> None:
    one = export_table(store, "adreno-730", "gemm", form)
    assert len(one) > 1000
    if form != "sqlite":  # its pages hold more than the contents
        assert one == text_of(store, "adreno-730", form)
    with pytest.raises(DeviceSelectionError, match=r"no-such.*there are adreno-730, mali-t628, pocl-test"):
        export_table(store, "no-such", "gemm", form)
    with pytest.raises(ProblemError, match="no kernel family"):
        export_table(store, None, "no_such", form)


def test_an_unknown_format_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="there are json, csv, markdown, c, defines, files, toml, sqlite, html"):
        export_table(store, None, "gemm", "xml")


def test_options_of_a_compiler_are_for_sources_of_users(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = ["export", "--format", "defines", "--db", store.location]
    for family in ([], ["--family", "gemm"]):
        assert main([*refused, *family]) == 2
        told = capsys.readouterr()
        assert "the sources of gemm are rendered from templates" in told.err and "json, files or toml" in told.err
        assert not told.out


@pytest.mark.parametrize("form", TAKING_GEMM)
def test_an_empty_store_gives_an_empty_table(tmp_path: Path, form: str) -> None:
    with Store.open(tmp_path / "empty.sqlite") as empty:
        assert len(export_table(empty, None, "gemm", form)) > 10


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "c"])
def test_what_is_no_longer_declared_is_left_out(tmp_path: Path, form: str) -> None:
    gone = Configuration.of("naive", work_group_m=5, work_group_n=77777)
    with Store.open(tmp_path / "old.sqlite") as old:
        old.add_device(ADRENO)
        old.record_winner(make_winner(ADRENO, GemmProblem(m=123, n=123, k=123), gone))
        text = text_of(old, None, form)
    assert "77777" not in text and "123" not in text


def test_sqlite_is_a_whole_database(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    content = export_table(store, "pocl-test", "gemm", "sqlite")
    assert isinstance(content, bytes)
    path.write_bytes(content)
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    devices = connection.execute("SELECT DISTINCT device FROM best_configurations").fetchall()
    connection.close()
    assert devices == [("pocl-test",)]
    assert TuningTable.open(path).devices == (CPU,)


def test_json_holds_everything(store: Store) -> None:
    document = json.loads(text_of(store, "adreno-730", "json"))
    (device,) = document["devices"]
    assert {name: device[name] for name in ("slug", "family", "vendor", "model", "driver")} == {
        name: getattr(ADRENO, name) for name in ("slug", "family", "vendor", "model", "driver")
    }
    assert DeviceLimits.from_dict(device["limits"]) == ADRENO.limits
    winners = {w.problem.key: w for w in store.best("adreno-730")}
    assert len(device["entries"]) == len(winners) > 40
    for entry in device["entries"]:
        winner = winners[GemmProblem.from_dict(entry["problem"]).key]
        assert entry["configuration"] == winner.configuration.to_dict()
        assert (entry["time_ns"], entry["gain_over_default"]) == (winner.time_ns, winner.gain_over_default)
        assert entry["provenance"] == vars(PROVENANCE)
        assert (entry["gain_low"] is None) == (winner.samples == 0)


def test_json_that_could_not_be_read_back_is_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "MAX_BYTES", 1000)
    with pytest.raises(TableError, match="one device at a time"):
        export_table(store, None, "gemm", "json")


def test_files_by_size_are_named_by_what_they_are_and_hold_each_winner_once(store: Store) -> None:
    files = {name: json.loads(text) for name, text in json.loads(text_of(store, None, "files"))["files"].items()}
    assert {f"gemm,device=adreno-730,mode=float32,layout={way}.json" for way in ("00", "10")} <= files.keys()
    found = 0
    for best in store.best():
        problem = best.problem
        assert isinstance(problem, GemmProblem)
        kind = ",".join(f"{name}={text}" for name, text in problem.kind)
        entries = files[f"gemm,device={best.device},{kind}.json"]["sizes"]
        (size,) = [size for size in entries if GemmProblem(mode=problem.mode, **_numbers(size)) == problem]
        assert ("lda" in size) == (problem.lda != (problem.m if problem.trans_a else problem.k)), "only with gaps"
        assert entries[size]["configuration"] == best.configuration.to_dict()
        assert (entries[size]["time_ns"], entries[size]["provenance"]) == (best.time_ns, vars(PROVENANCE))
        found += 1
    assert found == sum(len(document["sizes"]) for document in files.values()) > 80
    for document in files.values():
        sizes = [tuple(_numbers(size)[axis] for axis in GemmProblem.size_axes) for size in document["sizes"]]
        assert sizes == sorted(sizes)


def _numbers(size: str) -> dict[str, Any]:
    return {name: int(number) for name, _, number in (part.partition("=") for part in size.split(","))}


def test_toml_says_what_the_files_by_size_say(store: Store) -> None:
    files = json.loads(text_of(store, None, "files"))["files"]
    told = {name.removesuffix(".json"): json.loads(text)["sizes"] for name, text in files.items()}
    for entries in told.values():
        for entry in entries.values():
            for name in [name for name, value in entry.items() if value is None]:
                del entry[name]
    assert tomllib.loads(text_of(store, None, "toml")) == told


def test_kinds_are_told_apart_in_names_of_files_by_what_they_are(tmp_path: Path) -> None:
    constant = GemmProblem(m=8, n=8, k=8, constant="b")
    with Store.open(tmp_path / "few.sqlite") as few:
        few.add_device(ADRENO)
        for problem in (constant, constant.plain, ReduceProblem(batch=4, channels=7)):
            baseline = find_family(problem.family).baseline
            few.record_winner(make_winner(ADRENO, problem, baseline))
        files = json.loads(export_table(few, None, None, "files"))["files"]
    assert list(files) == [
        "gemm,device=adreno-730,mode=float32,layout=00.json",
        "gemm,device=adreno-730,mode=float32,layout=00,constant=b.json",
        "reduce,device=adreno-730,operation=sum,dtype=float32.json",
    ]


def test_csv_has_one_row_a_winner(store: Store) -> None:
    rows = list(csv.DictReader(io.StringIO(text_of(store, None, "csv"))))
    winners = store.best(None, "gemm")
    assert len(rows) == len(winners)
    by_place = {(w.device, w.problem.label): w for w in winners}
    for row in rows:
        sizes: dict[str, Any] = {f.name: f.type(row[f.name]) for f in fields(GemmProblem)}  # type: ignore[operator]
        winner = by_place[row["device"], GemmProblem(**sizes).label]
        assert float(row["time_ns"]) == winner.time_ns
        chosen = {name: row[name] for name, _ in winner.configuration.values}
        assert chosen == {name: str(value) for name, value in winner.configuration.values}


@pytest.mark.parametrize("name", family_names())
def test_no_two_columns_of_csv_have_one_name(store: Store, name: str) -> None:
    columns = text_of(store, None, "csv", name).splitlines()[0].split(",")
    assert sorted(set(columns)) == sorted(columns)


def test_csv_runs_no_formulas(store: Store) -> None:
    rows = list(csv.reader(io.StringIO(text_of(store, None, "csv"))))
    cells = [cell for row in rows for cell in row]
    assert "'=1+1" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_csv_runs_no_formulas_behind_spaces_either(tmp_path: Path) -> None:
    with Store.open(tmp_path / "few.sqlite") as few:
        few.add_device(ADRENO)
        few.record_winner(make_winner(ADRENO, product(8, 8, 8), naive(1, 1), provenance=provenance(driver=" =1+1")))
        [row] = csv.DictReader(io.StringIO(text_of(few, None, "csv")))
    assert row["driver"] == "' =1+1"


def test_markdown_keeps_its_columns(store: Store) -> None:
    text = text_of(store, None, "markdown")
    assert r"## A \| B =cmd\\\|calc (`pocl-test`)" in text
    assert r"`mali-t628`" in text and "Nothing is measured yet." in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4 + len(store.best())
    assert {line.replace(r"\|", "").count("|") for line in rows} == {9}
    assert "= default" in text and "| provisional |" in text and "(1.90 to 2.10)" in text


# The header in C

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
C, CPP = ("cc", "-std=c99", "-x", "c"), ("g++", "-std=c++11", "-x", "c++")


Test = TypeVar("Test", bound=Callable[..., None])


has_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


def needs_compiler(test: Test) -> Test:
    marked: Test = has_compiler(pytest.mark.long(test))
    return marked


def compile_text(compiler: tuple[str, ...], text: str, folder: Path, *arguments: str) -> None:
    source = folder / "source.c"
    source.write_text(text, encoding="ascii")
    command = [*compiler, *WARNINGS, *arguments, str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("compiler", [C, CPP], ids=["c99", "c++11"])
def test_the_header_compiles_without_warnings(store: Store, tmp_path: Path, compiler: tuple[str, ...]) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]} here")
    for slug in ("adreno-730", "pocl-test", "mali-t628"):
        (tmp_path / f"{slug}.h").write_text(text_of(store, slug, "c"), encoding="ascii")
    includes = "".join(f'#include "{slug}.h"\n' for slug in ("adreno-730", "adreno-730", "pocl-test", "mali-t628"))
    use = (
        "int use(void) { struct autotune_gemm_configuration c;\n"
        "return autotune_find_gemm_adreno_730(1, 2, 3, &c) == autotune_find_gemm_mali_t628(1, 2, 3, &c); }\n"
    )
    compile_text(compiler, includes + use, tmp_path, "-c", "-O2", "-o", "used.o")
    both = f"{text_of(store, None, 'c')}\n{text_of(store, None, 'c', 'reduce')}"
    compile_text(compiler, both, tmp_path, "-c", "-o", "unused.o")


@needs_compiler
def test_headers_of_different_versions_are_told_apart(store: Store, tmp_path: Path) -> None:
    one, other = text_of(store, "adreno-730", "c"), text_of(store, "pocl-test", "c")
    checksum = one.split("#define AUTOTUNE_GEMM_TYPES_CHECKSUM ")[1].split()[0]
    (tmp_path / "both.c").write_text(one + other.replace(checksum, "0x1"))
    done = subprocess.run([*C, "-fsyntax-only", "both.c"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and "different versions of autotune" in done.stderr


def test_two_devices_with_one_name_in_c_are_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "both.sqlite") as both:
        for slug in ("a-b", "a_b"):
            both.add_device(replace(BARE, slug=slug))
        with pytest.raises(TableError, match="a-b and a_b have the same name in C"):
            export_table(both, None, "gemm", "c")


def test_texts_cannot_leave_a_comment(store: Store) -> None:
    line = next(line for line in text_of(store, "adreno-730", "c").splitlines() if "driver" in line)
    assert (line.count("*/"), line.count("/*")) == (1, 1) and line.endswith("*/")
    assert "?" not in line and "\\" not in line


def test_rules_for_c_are_those_of_python() -> None:
    rules = find_family("gemm").c_export
    assert rules
    plain = GemmProblem(m=2, n=3, k=4)
    assert tuple(getattr(plain, name) for name in plain.size_axes) == plain.size_vector
    assert set(rules.words) == {name for name, value in plain.to_dict().items() if isinstance(value, str)}
    for name, value in {"lda": 7, "ldb": 7, "ldc": 7, "stride_a": 99, "stride_b": 99, "stride_c": 99}.items():
        assert GemmProblem(**{"m": 2, "n": 3, "k": 4, name: value}).is_comparable(plain)  # type: ignore[arg-type]
    for name in ("trans_a", "trans_b"):
        assert name in rules.kind
        assert not GemmProblem(**{"m": 2, "n": 3, "k": 4, name: 1}).is_comparable(plain)  # type: ignore[arg-type]
    for name, words in rules.words.items():
        for word in words:
            changed = replace(plain, **{name: word})  # type: ignore[arg-type]
            assert changed.is_comparable(plain) == (word == getattr(plain, name))
        with pytest.raises(ProblemError):
            replace(plain, **{name: "of tomorrow"})  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize(
    ("name", "fills"),
    [
        ("gemm", "lda, ldb, ldc, stride_a, stride_b, stride_c"), ("qgemm", ""), ("reduce", "pitch"),
        ("rows", "heads, pitch, out_pitch"),
    ],
)  # fmt: skip
def test_c_says_which_fields_may_be_0(tmp_path: Path, name: str, fills: str) -> None:
    c = FamilyInC(find_family(name))
    usual = c.plain.resized([64] * len(c.sizes)).to_dict()
    names = [field for field, value in usual.items() if isinstance(value, int) and not field.startswith("trans_")]
    header = write_c([DeviceTable(device=BARE, winners=())], name)
    answers = ask_c(header, BARE.slug, name, [{**usual, field: 0} for field in names], tmp_path)
    valid = [field for field, answer in zip(names, answers, strict=True) if answer["match"]]
    assert sorted(valid) == sorted(c.filled_in) == sorted(fills.split(", ") if fills else [])
    declared = render_c("autotune_families.h", families=[c], buffers=1, launches=1, arguments=1)
    said = f"Of the problem, {fills} may be 0, and are filled in then" if fills else "All fields of the problem have"
    assert said in declared and (f"any problem; {fills} may be 0" in header) == bool(fills)


@needs_compiler
@pytest.mark.parametrize("device", [ADRENO, CPU, BARE], ids=lambda device: device.slug)
def test_c_gives_the_answers_of_python(store: Store, tmp_path: Path, device: Device) -> None:
    numbers = random.Random(3)
    problems = [w.problem.to_dict() for w in store.best(device.slug)]
    problems += [random_problem(numbers).to_dict() for _ in range(300)]
    problems += [near(numbers.choice(problems), numbers) for _ in range(300)]
    problems += [odd_problem(numbers) for _ in range(400)]
    header, table = text_of(store, device.slug, "c"), as_json(store, device.slug, tmp_path)
    answers = ask_both(header, table, device.slug, "gemm", problems, tmp_path)
    assert {answer["match"] for answer in answers} == {ADRENO: {0, 1, 4}, CPU: {0, 1, 4}, BARE: {0, 4}}[device]


@has_compiler
def test_c_finds_every_size_that_was_measured(tmp_path: Path) -> None:
    problems = [ReduceProblem(batch=batch, channels=channels) for batch in (1, 7, 64) for channels in (3, 64, 1000)]
    with Store.open(tmp_path / "few.sqlite") as few:
        few.add_device(ADRENO)
        for problem in problems:
            few.record_winner(make_winner(ADRENO, problem, find_family("reduce").baseline))
        header, table = text_of(few, None, "c", "reduce"), TuningTable.open(few.location)
    answers = ask_both(header, table, ADRENO.slug, "reduce", [problem.to_dict() for problem in problems], tmp_path)
    assert [answer["match"] for answer in answers] == [1] * len(problems)


def as_json(store: Store, slug: str | None, folder: Path, family: str = "gemm") -> TuningTable:
    """What Python makes of the same contents."""
    place = folder / "table.json"
    place.write_text(text_of(store, slug, "json", family))
    return TuningTable.open(place)


@pytest.fixture
def over_shipped(tmp_path: Path) -> Path:
    """A database with two winners of a device whose table ships, one of them at a size that the table has as well."""
    contents = read_contents(H200)
    device, known = contents.devices[0], next(w for w in contents.winners if w.problem.family == "gemm")
    with Store.open(tmp_path / "own.sqlite") as own:
        own.add_device(device)
        for problem in (known.problem, product(33, 65, 129)):
            own.record_winner(make_winner(device, problem, naive(1, 32), time_ns=2 * known.time_ns))
    return tmp_path / "own.sqlite"


@needs_compiler
def test_c_gives_the_answers_of_python_over_a_table_that_ships(over_shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    shutil.copy(H200, tmp_path / "tables")
    table = TuningTable.open(over_shipped).over(Shipped(tmp_path / "tables"))
    numbers, winners = random.Random(9), [w for w in read_contents(H200).winners if w.problem.family == "gemm"]
    problems = [w.problem.to_dict() for w in winners] + [product(33, 65, 129).to_dict()]
    problems += [random_problem(numbers).to_dict() for _ in range(100)]
    export = ["export", "--db", str(over_shipped), "--device", "nvidia-h200", "--family", "gemm", "--format", "c"]
    assert main([*export, "--output", str(tmp_path / "h200.h")]) == 0
    answers = ask_both((tmp_path / "h200.h").read_text(), table, "nvidia-h200", "gemm", problems, tmp_path)
    assert [answer["match"] for answer in answers[: len(winners) + 1]] == [1] * (len(winners) + 1)
    assert sum(answer.get("algorithm") == "naive" for answer in answers[: len(winners) + 1]) >= 2


@pytest.mark.parametrize(
    "form", [FORMATS[form] for form in TAKING_GEMM if FORMATS[form].writer], ids=lambda one: one.name
)
def test_only_tables_for_lookups_hold_what_ships(over_shipped: Path, tmp_path: Path, form: Format) -> None:
    with Store.open(over_shipped) as own:
        text = str(export_table(own, "nvidia-h200", "gemm", form.name, shipped_tables(own, None)))
        alone = export_table(own, "nvidia-h200", "gemm", form.name)
        assert shipped_tables(own, "adreno-730") == {}
        assert stored_families(own, None, shipped_tables(own, None)) == ["gemm", "reduce"]
    assert form.has_shipped == (form.name in {"c", "files", "toml"}) == (text != alone)


def test_own_winners_replace_those_that_ship(over_shipped: Path) -> None:
    with Store.open(over_shipped) as own:
        tables = tomllib.loads(str(export_table(own, "nvidia-h200", "gemm", "toml", shipped_tables(own, None))))
        winners = own.best("nvidia-h200", "gemm")
    for best in winners:
        problem = best.problem
        assert isinstance(problem, GemmProblem)
        kind = ",".join(f"{name}={text}" for name, text in problem.kind)
        sizes = tables[f"gemm,device=nvidia-h200,{kind}"]
        [size] = [size for size in sizes if GemmProblem(mode=problem.mode, **_numbers(size)) == problem]
        assert sizes[size]["configuration"] == best.configuration.to_dict()


def default_answers(device: Device, family: str, problems: list[Fields], folder: Path) -> list[Fields]:
    """The answers where nothing is measured, by the rule alone."""
    with Store.open(folder / "untuned.sqlite") as untuned:
        untuned.add_device(device)
        header, table = text_of(untuned, device.slug, "c", family), TuningTable.open(untuned.location)
    return ask_both(header, table, device.slug, family, problems, folder)


@needs_compiler
@pytest.mark.parametrize("device", first_short(UNTUNED, 1))
def test_c_chooses_the_reductions_of_python(tmp_path: Path, device: Device) -> None:
    """Rows of all lengths, with gaps of all sizes between them."""
    numbers = random.Random(6)
    lengths = [1, 2, 3, 2**31 - 9, *(2**power + off for power in range(2, 20, 2) for off in (-1, 0, 1))]
    problems: list[Fields] = []
    for _ in range(800):
        channels = numbers.choice((numbers.choice(lengths), numbers.randrange(1, 5000)))
        pitch = channels + numbers.choice((0, 0, 1, 2, 4))
        problems.append(ReduceProblem(batch=numbers.choice((1, 2, 60, 9000)), channels=channels, pitch=pitch).to_dict())
    answers = default_answers(device, "reduce", problems, tmp_path)
    assert len({str(answer) for answer in answers}) > 3
    ordering = device.limits.ordering
    joins = {answer["combine"] for answer in answers if answer["algorithm"] == "split_row"}
    assert joins == {f"last_group_{ordering}" if ordering else "launch"}


@needs_compiler
@pytest.mark.parametrize("device", first_short(UNTUNED, 1))
def test_c_chooses_the_row_operations_of_python(tmp_path: Path, device: Device) -> None:
    """Operations of all kinds on rows of all lengths, with gaps of all sizes between them, and what is no problem."""
    numbers = random.Random(7)
    lengths = [1, 2, 3, *(2**power + off for power in range(2, 18, 2) for off in (-1, 0, 1))]
    problems: list[Fields] = []
    for _ in range(1000):
        channels = numbers.choice((numbers.choice(lengths), numbers.randrange(1, 5000)))
        pitch = 2 * channels + numbers.choice((0, 0, 1, 2, 4))
        problems.append({
            "batch": numbers.choice((1, 2, 60, 9000)), "channels": channels, "operation": numbers.choice(list(ROWS)),
            "dtype": numbers.choice(("float32", "float16")), "heads": numbers.choice((0, 1, 1, 2)),
            "pitch": numbers.choice((0, 0, pitch, channels)), "out_pitch": numbers.choice((0, pitch)),
        })  # fmt: skip
    answers = default_answers(device, "rows", problems, tmp_path)
    assert len({str(answer) for answer in answers}) > 5 and {"match": 0} in answers


@needs_compiler
@pytest.mark.parametrize("device", first_short(UNTUNED, 1))
def test_c_chooses_the_defaults_of_python(tmp_path: Path, device: Device) -> None:
    """Many shapes, since each decides between some 40 candidates."""
    numbers = random.Random(5)
    problems = [random_problem(numbers, (*SIZES, 3, 5, 9, 33, 65, 300, 2500, 12000)).to_dict() for _ in range(1500)]
    problems += [odd_problem(numbers) for _ in range(300)]
    for mode in ("float32", "float16", "int8"):
        sizes = zip(numbers.choices(SIZES[:-1], k=40), numbers.choices(SIZES[:-1], k=40), strict=True)
        deep = (GemmProblem(m=m, n=n, k=numbers.choice((16_400, 50_000, 400_000)), mode=mode) for m, n in sizes)
        problems += [problem.to_dict() for problem in deep]
    answers = default_answers(device, "gemm", problems, tmp_path)
    assert len({str(answer) for answer in answers}) > 5, "a rule that always chooses the same"
    if device.family == "nvidia":
        assert any(int(str(answer.get("split_k", 1))) > 32 for answer in answers)
        has_tiles = any(answer.get("algorithm") == "matrix_tile" for answer in answers)
        assert has_tiles == device.limits.has_matrix_units


def near(problem: Fields, numbers: random.Random) -> Fields:
    """One size a little off, and no gaps."""
    sizes = {name: problem[name] for name in ("m", "n", "k", "trans_a", "trans_b", "batch", "mode")}
    name = numbers.choice(("m", "n", "k"))
    return {**sizes, name: max(1, int(sizes[name]) + numbers.choice((-3, -1, 1, 2, 16)))}


def odd_problem(numbers: random.Random) -> Fields:
    """Anything from sensible to what is no problem at all."""
    extreme = (0, -1, 1, 2, 3, 46340, 46341, 65536, 2**20, 2**31 - 1, 2**31, 2**62, -(2**62))
    problem: Fields = {name: numbers.choice((1, 1, 5, 64, numbers.choice(extreme))) for name in "mnk"}
    for name in ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c", "batch", "trans_a", "trans_b"):
        if numbers.random() < 0.1:
            problem[name] = numbers.choice(extreme)
    return problem


def ask_both(
    header: str, table: TuningTable, slug: str, family: str, problems: list[Fields], folder: Path
) -> list[Fields]:
    """The answers of Python, which those of C must equal."""
    expected = [ask_python(table, slug, family, problem) for problem in problems]
    for problem, one, other in zip(problems, ask_c(header, slug, family, problems, folder), expected, strict=True):
        assert one == other, (slug, problem)
    return expected


def ask_python(table: TuningTable, slug: str, family: str, problem: Fields) -> Fields:
    kind = find_family(family)
    try:
        tuned = table.find(slug, kind.problem_type.from_dict(problem))
    except ProblemError:
        return {"match": 0}
    return {"match": MATCHES.index(tuned.match), **tuned.configuration.to_dict()}


def ask_c(header: str, slug: str, family: str, problems: list[Fields], folder: Path) -> list[Fields]:
    """Answers of a program that reads problems and prints configurations, members in the order of the structures."""
    sizes, parameters = members(header, f"{family}_problem"), members(header, f"{family}_configuration")
    reading = "".join(f'        if (scanf("%lld", &v) != 1) return 0;\n        p.{n} = ({t})v;\n' for n, t in sizes)
    writing = "".join(f'        printf(" %d", (int)c.{name});\n' for name, _ in parameters)
    program = (
        '#include "table.h"\n#include <stdio.h>\n#include <string.h>\nint main(void) {\n'
        f"    long long v;\n    struct autotune_{family}_problem p;\n    struct autotune_{family}_configuration c;\n"
        f"    for (;;) {{\n        memset(&c, 0, sizeof c);\n{reading}"
        f'        printf("%d", (int)autotune_find_{family}_problem_{slug.replace("-", "_")}(&p, &c));\n{writing}'
        '        printf("\\n");\n    }\n}\n'
    )
    (folder / "table.h").write_text(header, encoding="ascii")
    compile_text(C, program, folder, "-O1", "-o", "ask")
    words = word_numbers(header, family)
    plain = {field.name: field.default for field in fields(find_family(family).problem_type)}
    rows = [[{**plain, **problem}[name] for name, _ in sizes] for problem in problems]
    text = "\n".join(" ".join(str(words[v] if isinstance(v, str) else v) for v in row) for row in rows)
    done = subprocess.run([str(folder / "ask")], input=text, capture_output=True, text=True, check=True)
    back = {number: word for word, number in words.items()}
    return [to_plain(line, parameters, back, family) for line in done.stdout.splitlines()]


def members(header: str, structure: str) -> list[tuple[str, str]]:
    """Names and types of what a structure of the header holds."""
    found = re.search(rf"struct autotune_{structure} {{\n(.*?)}}", header, re.DOTALL)
    assert found
    return [(name, kind) for kind, name in re.findall(r"    (.+) (\w+);\n", found[1])]


def word_numbers(header: str, family: str) -> dict[str, int]:
    """What the header writes for each text of a problem or a configuration."""
    parameters = [p for algorithm in find_family(family).algorithms for p in algorithm.parameters]
    rules = find_family(family).c_export
    assert rules
    words = {w for values in rules.words.values() for w in values}
    words |= {value for p in parameters for value in p.values if isinstance(value, str)}
    numbers = dict(re.findall(rf"    AUTOTUNE_{family.upper()}_(\w+) = (\d+)", header))
    return {word: int(numbers[re.sub("[^a-z0-9]", "_", word.lower()).upper()]) for word in words}


def to_plain(line: str, parameters: list[tuple[str, str]], words: dict[int, str], family: str) -> Fields:
    match, number, *values = map(int, line.split())
    if match == 0:
        assert not any((number, *values))
        return {"match": 0}
    algorithm = find_family(family).algorithms[number - 1]
    found: Fields = {"match": match, "algorithm": algorithm.name}
    for (name, kind), value in zip(parameters[1:], values, strict=True):
        if name in algorithm.by_name:
            found[name] = words[value] if kind.startswith("enum") else value
        else:
            assert value == 0
    return found
