"""The lookup's steps over several devices and tables: siblings, makers, what ships; misses; many at once."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import factories
from autotune import paths
from autotune.errors import StoreError, TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup import Entry, Match, TuningTable, database, misses
from autotune.lookup.json_table import read_contents
from autotune.lookup.misses import Miss, MissLog, forget_misses, read_misses
from autotune.model.checkup import WIDEST_LOCAL_BYTES
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Winner
from autotune.paths import data_folder
from autotune.store import Store
from databases import change
from factories import naive, product, winner
from waiting import HANG_S

LIMITS = DeviceLimits(compute_units=12, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64))


def device(slug: str, compute_units: int = 12, **changes: Any) -> Device:
    return factories.device(slug, **{"limits": replace(LIMITS, compute_units=compute_units), **changes})


def table(*measured: tuple[Device, GemmProblem, Configuration]) -> TuningTable:
    entries = [(d.slug, Entry(problem=p, configuration=c, time_ns=1000.0)) for d, p, c in measured]
    return TuningTable([d for d, _, _ in measured], entries)


# Other devices


@pytest.fixture
def no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes GEMM a family without a rule, such as a kernel of the user's own."""
    monkeypatch.setattr(type(FAMILY), "has_rule", False)


def test_of_a_relative_a_rule_yields_to_measurements_of_the_same_problem_only() -> None:
    known = table((device("adreno-730"), product(64, 64, 64), naive(4, 8)))
    assert known.find(device("adreno-740"), m=64, n=64, k=64).match is Match.SIBLING
    assert known.find(device("adreno-540"), m=64, n=64, k=64).match is Match.VENDOR
    assert known.find(device("adreno-740"), m=64, n=64, k=65).match is Match.DEFAULT


@pytest.mark.usefixtures("no_rule")
def test_a_sibling_comes_before_another_device_of_the_maker() -> None:
    known = table(
        (device("adreno-630"), product(64, 64, 64), naive(2, 2)),
        (device("adreno-730"), product(64, 64, 64), naive(4, 8)),
        (device("mali-g78"), product(64, 64, 64), naive(8, 8)),
    )
    sibling = known.find(device("adreno-740"), m=64, n=64, k=64)
    assert (sibling.match, sibling.configuration) == (Match.SIBLING, naive(4, 8))
    assert (sibling.device, sibling.source_device) == ("adreno-740", "adreno-730")
    assert sibling.because.endswith("adreno-730 has the same architecture: 64x64x64 was measured on adreno-730")
    vendor = known.find(device("adreno-540"), m=60, n=64, k=64)
    assert (vendor.match, vendor.configuration) == (Match.VENDOR, naive(2, 2))
    assert known.find(device("mali-g78"), m=60, n=64, k=64).match is Match.NEAREST
    assert known.find(device("intel-arc-b580"), m=64, n=64, k=64).match is Match.DEFAULT


@pytest.mark.usefixtures("no_rule")
def test_of_siblings_the_most_alike_is_asked_first() -> None:
    known = table(
        (device("nvidia-h100", 114), product(64, 64, 64), naive(4, 4)),
        (device("nvidia-h200", 132), product(64, 64, 64), naive(8, 8)),
        (device("nvidia-h20", 78), product(64, 64, 64), naive(2, 2)),
    )
    found = {units: known.find(device("nvidia-gh200", units), m=64, n=64, k=80) for units in (130, 112, 80)}
    assert {units: answer.source_device for units, answer in found.items()} == {
        130: "nvidia-h200", 112: "nvidia-h100", 80: "nvidia-h20",
    }  # fmt: skip


@pytest.mark.usefixtures("no_rule")
def test_a_siblings_configuration_must_be_valid_on_the_device_at_hand() -> None:
    known = table(
        (device("adreno-730"), product(64, 64, 64), naive(16, 16)),
        (device("adreno-750"), product(64, 64, 65), naive(4, 8)),
    )
    small = replace(device("adreno-740"), limits=replace(LIMITS, max_work_group_size=64))
    found = known.find(small, m=64, n=64, k=64)
    assert (found.match, found.source_device, found.configuration) == (Match.SIBLING, "adreno-750", naive(4, 8))
    assert not FAMILY.violations(found.problem, found.configuration, small.limits)
    tiny = replace(device("adreno-740"), limits=replace(LIMITS, max_work_group_size=16))
    assert known.find(tiny, m=64, n=64, k=64).match is Match.DEFAULT


def test_unlike_devices_are_no_relatives() -> None:
    """Behind a layer neither compiler nor options are the maker's; makers of the family `gpu` are many."""
    known = table(
        (device("adreno-x1-85-on12", family="gpu", vendor="Qualcomm"), product(8, 8, 8), naive(2, 2)),
        (device("gpu-samsung-xclipse-920", vendor="Samsung"), product(8, 8, 8), naive(4, 4)),
    )
    assert known.find(device("adreno-x1-85"), m=8, n=8, k=8).match is Match.DEFAULT
    assert known.find(device("gpu-imagine", vendor="Imagine"), m=8, n=8, k=8).match is Match.DEFAULT
    assert known.find(device("gpu-xclipse-940", vendor="Samsung"), m=8, n=8, k=8).match is Match.VENDOR


def test_a_device_without_anything_comparable_of_its_own_asks_its_relatives() -> None:
    known = table(
        (device("adreno-730"), product(64, 64, 64, mode="float16"), naive(4, 8)),
        (device("adreno-740"), product(64, 64, 64), naive(2, 2)),
    )
    found = known.find("adreno-740", product(64, 64, 64, mode="float16"))
    assert (found.match, found.source_device) == (Match.SIBLING, "adreno-730")
    assert found.because.startswith("64x64x64 float16 was not measured on adreno-740; adreno-730 has")


def test_a_table_of_other_devices_is_no_answer_and_says_so() -> None:
    found = table((device("mali-g78"), product(64, 64, 64), naive(4, 8))).find("nvidia-h200", m=64, n=64, k=64)
    assert (found.match, found.source_device, found.time_ns) == (Match.PRESUMED, "", None)
    assert found.because.startswith("no measurements for nvidia-h200 in the table; the default")


@pytest.mark.usefixtures("no_rule")
def test_a_sibling_is_asked_for_sizes_near_by_only() -> None:
    known = table((device("adreno-730"), product(64, 64, 64), naive(4, 4)))
    assert known.find(device("adreno-740"), m=64, n=64, k=90).match is Match.SIBLING
    assert known.find(device("adreno-740"), m=64, n=64, k=100).match is Match.DEFAULT


def test_no_folder_of_the_user_shows_in_an_answer(own: Path) -> None:
    with Store.open(own) as store:
        store.add_device(device("mali-g78"))
    found = TuningTable.open().find("adreno-999", m=64, n=64, k=64)
    assert "no measurements for adreno-999 in your database or the shipped tables" in found.because
    assert str(own.parent) not in found.because + TuningTable.open(own).find("adreno-999", m=1, n=1, k=1).because


# The user's own over what ships


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own.sqlite"
    monkeypatch.setattr(paths, "default_database", lambda: path)
    return path


def shipped() -> tuple[Device, Winner]:
    contents = read_contents(data_folder("db") / "tables" / "nvidia-h200.json")
    return contents.devices[0], next(w for w in contents.winners if w.problem.family == "gemm")


def test_every_shipped_table_is_named_after_its_one_device() -> None:
    paths = sorted((data_folder("db") / "tables").iterdir())
    assert paths
    for path in paths:
        assert [device.slug for device in read_contents(path).devices] == [path.stem]


@pytest.mark.parametrize("name", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_what_ships_takes_nothing_from_a_device_with_its_driver(own: Path, name: str) -> None:
    (known,) = read_contents(data_folder("db") / "tables" / f"{name}.json").devices
    opened = TuningTable.open()
    for problem in (GemmProblem.parse("4096,4096,4096 float16"), GemmProblem.parse("4096,4096,4096 int8")):
        found = {opened.find(device, problem).configuration for device in (known, replace(known, driver="1"))}
        assert [configuration.algorithm for configuration in found] == ["matrix_tile"], "as the compute capability says"
    assert known.limits.has_ptx_integer_dot
    assert known.limits.declared_local_memory_bytes == WIDEST_LOCAL_BYTES
    assert not own.exists()


def test_what_ships_is_found_without_a_database(own: Path) -> None:
    known, tuned = shipped()
    found = TuningTable.open().find(known.slug, tuned.problem)
    assert (found.match, found.configuration, found.time_ns) == (Match.EXACT, tuned.configuration, tuned.time_ns)
    assert not own.exists()


def test_what_was_measured_here_holds_over_what_ships(own: Path) -> None:
    known, tuned = shipped()
    with Store.open(own) as store:
        store.add_device(known)
        store.record_winner(winner(known.slug, tuned.problem, naive(1, 64), 5.0))
    opened = TuningTable.open()
    assert opened.find(known.slug, tuned.problem).configuration == naive(1, 64)
    others = [w for w in read_contents(data_folder("db") / "tables" / "nvidia-h200.json").winners if w != tuned]
    for other in others:
        if other.problem.family == "gemm":
            assert opened.find(known.slug, other.problem).match is Match.EXACT
    unseen = opened.find(known.slug, product(2, 4000, 4000))
    alone = TuningTable.open(data_folder("db") / "tables" / "nvidia-h200.json").find(known.slug, product(2, 4000, 4000))
    assert unseen == alone
    assert unseen.match is Match.DEFAULT


def test_a_table_that_is_named_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    with Store.open(path) as store:
        store.add_device(device("mali-g78"))
    assert [d.slug for d in TuningTable.open(path).devices] == ["mali-g78"]


# Large databases


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "tuned.sqlite")


@pytest.fixture
def lazy(place: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(database, "_READ_AT_ONCE", 1)
    with Store.open(place) as store:
        for slug in ("mali-g78", "mali-g610-mc6", "adreno-730"):
            store.add_device(device(slug))
            store.record_winner(winner(slug, product(64, 64, 64), naive(4, 8)))
            store.record_winner(winner(slug, product(8, 8, 8), naive(2, 2)))
    return place


@pytest.mark.usefixtures("no_rule")
def test_of_a_large_database_only_what_is_asked_for_is_read(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    entry = database._entry

    def spied(source: Any, slug: str, *others: Any) -> Any:
        read.append(slug)
        return entry(source, slug, *others)

    monkeypatch.setattr(database, "_entry", spied)
    opened = TuningTable.open(lazy)
    assert read == []
    assert opened.find("mali-g78", m=64, n=64, k=64).match is Match.EXACT
    assert read == ["mali-g78"]
    found = opened.find("mali-g78", m=9, n=9, k=9)
    assert (found.match, found.source_problem) == (Match.NEAREST, product(8, 8, 8))
    assert set(read) == {"mali-g78"}


def test_a_large_database_gives_the_answers_of_a_small_one(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    large = TuningTable.open(lazy)
    monkeypatch.setattr(database, "_READ_AT_ONCE", 1000)
    small = TuningTable.open(lazy)
    for slug in ("mali-g78", "adreno-730", "adreno-740", "nvidia-h100"):
        for size in (64, 8, 9, 500, 1):
            assert large.find(slug, m=size, n=size, k=size) == small.find(slug, m=size, n=size, k=size)


def test_a_large_database_that_is_gone_or_broken_when_asked_is_told(lazy: str) -> None:
    change(lazy, "UPDATE winners SET configuration = '[]' WHERE device = 'mali-g78'")
    opened = TuningTable.open(lazy)
    with pytest.raises(TableError, match=r"best_configurations \(mali-g78, gemm\) cannot be understood: not a JSON"):
        opened.find("mali-g78", m=64, n=64, k=64)
    Path(lazy).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        opened.find("adreno-730", m=64, n=64, k=64)


@pytest.mark.long
def test_eight_processes_open_and_ask_at_once(lazy: str) -> None:
    code = (
        "import sys; from autotune.lookup import TuningTable\n"
        "sys.stdin.read()\n"
        f"found = [TuningTable.open({lazy!r}).find('mali-g78', m=m, n=64, k=64).match.value for m in (64, 65)]\n"
        "print(found)"
    )
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(8)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    with Store.open(lazy) as store:  # and one that writes meanwhile
        for size in range(20):
            store.record_winner(winner("adreno-730", product(size + 1, 7, 7), naive(1, 1)))
    answers = [process.communicate(timeout=HANG_S) for process in started]
    assert [out for out, _ in answers] == ["['exact', 'default']\n"] * 8, answers


# Misses


@pytest.fixture
def log(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "misses.jsonl"
    monkeypatch.delenv("AUTOTUNE_MISSES")
    monkeypatch.setattr(misses, "default_file", lambda: path)
    return path


def write_misses() -> None:
    """Write what is noted so far, as the process does when it ends."""
    noted = MissLog.default()
    assert noted is not None
    noted.write()


def test_each_size_that_is_missed_is_noted_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = TuningTable.open()
    _, tuned = shipped()
    for _ in range(3):
        opened.find("nvidia-h200", m=77, n=77, k=77)
        opened.find("adreno-730", ReduceProblem(batch=3, channels=5))
    opened.find("nvidia-h200", tuned.problem)
    write_misses()
    expected = {
        Miss("nvidia-h200", product(77, 77, 77)): 1, Miss("adreno-730", ReduceProblem(batch=3, channels=5)): 1,
    }  # fmt: skip
    assert read_misses(log) == expected
    again = TuningTable.open()
    again.find("nvidia-h200", m=77, n=77, k=77)
    write_misses()
    assert read_misses(log) == expected
    monkeypatch.setattr(MissLog, "_OF_THIS_PROCESS", {})  # as in another process
    another = TuningTable.open()
    another.find("nvidia-h200", m=77, n=77, k=77)
    write_misses()
    assert read_misses(log)[Miss("nvidia-h200", product(77, 77, 77))] == 2


def test_misses_are_written_by_the_dozen_and_when_the_process_ends(log: Path, tmp_path: Path) -> None:
    opened = TuningTable.open()
    for size in range(1, 32):
        opened.find("adreno-730", m=size, n=1, k=1)
    assert not log.exists()
    opened.find("adreno-730", m=32, n=1, k=1)
    assert len(read_misses(log)) == 32
    code = "from autotune.lookup import TuningTable; TuningTable.open().find('mali-g78', m=5, n=6, k=7)"
    environment = {"XDG_DATA_HOME": str(tmp_path), "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert read_misses(tmp_path / "autotune" / "misses.jsonl") == {Miss("mali-g78", product(5, 6, 7)): 1}


def test_nothing_is_noted_of_named_tables_nor_when_turned_off(
    log: Path, lazy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [TuningTable.open(lazy), TuningTable.open(log_misses=False), TuningTable([], [])]
    monkeypatch.setenv("AUTOTUNE_MISSES", "0")
    for table in (*tables, TuningTable.open()):
        for size in range(1, 33):
            table.find("adreno-730", m=size, n=1, k=1)
    assert not log.exists()


def test_the_log_is_bounded_and_never_in_the_way(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MAX_BYTES", 1000)
    noted = MissLog(log)
    for size in range(1, 200):
        noted.add("adreno-730", product(size, 1, 1))
    noted.write()
    assert log.stat().st_size <= 1000
    blocked = MissLog(log / "a file is no folder" / "x")
    blocked.add("adreno-730", product(1, 1, 1))
    blocked.write()


def test_lines_that_are_none_are_left_out_and_tuned_ones_forgotten(log: Path) -> None:
    log.parent.mkdir()
    good = {"device": "mali-g78", "family": "gemm", "problem": {"m": 4, "n": 5, "k": 6}}
    lines = [
        json.dumps(good), json.dumps(good), json.dumps({**good, "problem": {"m": 9, "n": 9, "k": 9}}),
        "{", "[]", "7", "\xff", "[" * 5000,
        json.dumps({**good, "family": "of_tomorrow"}), json.dumps({**good, "device": 1}),
        json.dumps({**good, "problem": {"m": -1}}), json.dumps({**good, "problem": [1]}), "x" * 5000,
    ]  # fmt: skip
    log.write_text("\n".join(lines), encoding="latin-1")
    assert read_misses(log) == {Miss("mali-g78", product(4, 5, 6)): 2, Miss("mali-g78", product(9, 9, 9)): 1}
    forget_misses(log, {Miss("mali-g78", product(4, 5, 6))})
    assert read_misses(log) == {Miss("mali-g78", product(9, 9, 9)): 1}
    assert read_misses(log.parent / "none") == {}
