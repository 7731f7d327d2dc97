"""The runtime lookup: exact, nearest, default; what it reads, and what it loads."""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import factories
from autotune import lookup, paths
from autotune.cli import main
from autotune.device.profile import find_profile
from autotune.errors import AutotuneError, NewerSchemaError, NotADatabaseError, ProblemError, StoreError, TableError
from autotune.export import export_table
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import Entry, Match, TuningTable
from autotune.lookup import database as sqlite_reader
from autotune.lookup.answer import plain_tuned
from autotune.lookup.contents import Shelf
from autotune.lookup.database import read_trials
from autotune.lookup.json_table import read_contents
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Winner
from autotune.paths import data_folder
from autotune.store import Store, failures
from factories import LARGE_GPU, device, naive, product, provenance
from waiting import in_threads

GPU = device(
    name="QUALCOMM Adreno(TM) 730",
    driver="one",
    limits=DeviceLimits(max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64), local_memory_bytes=32768),
)


def table(*measured: tuple[GemmProblem, Configuration], device: Device = GPU) -> TuningTable:
    entries = [(device.slug, Entry(problem=p, configuration=c, time_ns=1000.0)) for p, c in measured]
    return TuningTable([device], entries)


def winner(problem: GemmProblem, configuration: Configuration, time_ns: float = 1e6, slug: str = GPU.slug) -> Winner:
    return factories.winner(slug, problem, configuration, time_ns, provenance=provenance(driver="one"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a % folder?#" / "tuned.sqlite"
    with Store.open(path) as store:
        store.add_device(GPU)
        store.record_winner(winner(product(64, 64, 64), naive(4, 8)))
        store.record_winner(winner(product(512, 512, 512), naive(8, 16), 5e6))
    return path


# What is found


@pytest.fixture
def no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes GEMM a family without a rule, such as a kernel of the user's own."""
    monkeypatch.setattr(type(FAMILY), "has_rule", False)


def test_a_rule_is_preferred_to_the_winner_of_a_near_size() -> None:
    found = table((product(64, 64, 64), naive(4, 8))).find(GPU.slug, m=64, n=64, k=65)
    assert (found.match, found.source_problem) == (Match.DEFAULT, None)
    assert found.because.startswith("64x64x65 was not measured on adreno-730; the default is chosen by rule")
    assert [find_family(name).has_rule for name in ("gemm", "qgemm", "reduce", "rows")] == [True] * 4


def test_an_exact_hit_is_what_was_measured() -> None:
    found = table((product(64, 64, 64), naive(4, 8)), (product(65, 64, 64), naive(1, 1))).find(
        "adreno-730", m=64, n=64, k=64
    )
    assert (found.match, found.configuration, found.time_ns) == (Match.EXACT, naive(4, 8), 1000.0)
    assert found.source_problem == found.problem == product(64, 64, 64)
    assert found.because == "64x64x64 was measured on adreno-730"


def test_pitches_and_types_are_part_of_an_exact_hit() -> None:
    measured = table((product(64, 64, 64, lda=128), naive(4, 8)), (product(64, 64, 64), naive(2, 2)))
    assert measured.find(GPU.slug, product(64, 64, 64, lda=128)).configuration == naive(4, 8)
    assert measured.find(GPU.slug, product(64, 64, 64)).configuration == naive(2, 2)
    other = measured.find(GPU.slug, product(64, 64, 64, mode="float16"))
    assert (other.match, other.source_problem, other.time_ns) == (Match.DEFAULT, None, None)


def test_a_stride_without_a_gap_is_the_same_problem() -> None:
    measured = table((product(64, 64, 64), naive(4, 8)))
    assert measured.find(GPU.slug, product(64, 64, 64, lda=64, stride_c=4096)).match is Match.EXACT


@pytest.mark.usefixtures("no_rule")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [((70, 70, 70), 64), ((76, 76, 76), 80), ((64, 64, 90), 64), ((80, 80, 110), 80), ((60, 68, 64), 64)],
)
def test_the_nearest_is_nearest_by_ratios(asked: tuple[int, int, int], expected: int) -> None:
    measured = table((product(64, 64, 64), naive(0, 0)), (product(80, 80, 80), naive(0, 0)))
    found = measured.find(GPU.slug, product(*asked))
    assert (found.match, found.source_problem) == (Match.NEAREST, product(expected, expected, expected))
    assert f"{expected}x{expected}x{expected}, off by a factor of" in found.because


@pytest.mark.usefixtures("no_rule")
def test_of_equally_near_problems_the_first_of_the_table_is_taken() -> None:
    far, near = (product(150, 64, 64), naive(2, 2)), (product(96, 64, 64), naive(1, 1))
    for order in ((far, near), (near, far)):
        assert table(*order).find(GPU.slug, m=120, n=64, k=64).source_problem == product(96, 64, 64)


@pytest.mark.usefixtures("no_rule")
@pytest.mark.parametrize("asked", [(1024, 1024, 1024), (64, 64, 97), (1, 1, 1)])
def test_a_nearest_size_that_is_far_away_gives_way_to_the_rule(asked: tuple[int, int, int]) -> None:
    found = table((product(64, 64, 64), naive(1, 1))).find(GPU.slug, product(*asked))
    assert (found.match, found.source_problem) == (Match.DEFAULT, None)
    assert "64x64x64, off by a factor of" in found.because and "too far" in found.because
    assert table((product(64, 64, 64), naive(1, 1))).find(GPU.slug, m=64, n=64, k=96).match is Match.NEAREST


def test_an_answer_of_an_earlier_driver_says_so() -> None:
    entry = Entry(problem=product(64, 64, 64), configuration=naive(1, 1), time_ns=1.0, driver="v1", version="x")
    now = replace(GPU, driver="v2", version="x")
    found = TuningTable([now], [(GPU.slug, entry)]).find(GPU.slug, m=64, n=64, k=64)
    assert found.because == "64x64x64 was measured on adreno-730, with driver v1 (now v2)"
    assert plain_tuned(found)["driver"] == "v1" and not found.was_measured_on(now)
    today = TuningTable([replace(now, driver="v1")], [(GPU.slug, entry)]).find(GPU.slug, m=64, n=64, k=64)
    assert "driver" not in today.because and today.was_measured_on(replace(now, driver="v1"))


def test_the_algorithm_is_a_member_of_a_configuration() -> None:
    configuration = table((product(64, 64, 64), naive(1, 1))).find(GPU.slug, m=64, n=64, k=64).configuration
    assert {name: configuration[name] for name in configuration.to_dict()} == configuration.to_dict()
    assert configuration["algorithm"] == "naive"


@pytest.mark.usefixtures("no_rule")
def test_a_nearest_configuration_that_is_not_valid_is_passed_over() -> None:
    measured = table(
        (product(32, 66, 64), naive(32, 8)), (product(32, 80, 64), naive(2, 16)), (product(34, 64, 64), naive(32, 2))
    )
    found = measured.find(GPU.slug, m=31, n=64, k=64)
    assert (found.match, found.source_problem) == (Match.NEAREST, product(32, 80, 64))
    assert "2 nearer configurations would not be valid" in found.because
    assert not FAMILY.violations(found.problem, found.configuration, GPU.limits)


@pytest.mark.usefixtures("no_rule")
def test_without_a_valid_one_the_profile_decides() -> None:
    found = table((product(16, 16, 2), naive(16, 16))).find(GPU.slug, m=15, n=15, k=2)
    starts = find_profile(GPU).starting("gemm")
    assert found.match is Match.DEFAULT
    assert found.configuration == FAMILY.default(found.problem, GPU.limits, starts)
    assert "none of the configurations of 1 comparable shape near it is valid here" in found.because


@pytest.mark.usefixtures("no_rule")
def test_what_the_device_can_no_longer_do_is_not_an_exact_hit() -> None:
    small = Device(**{**vars(GPU), "limits": DeviceLimits(max_work_group_size=8)})
    found = table((product(64, 64, 64), naive(4, 8)), (product(70, 64, 64), naive(2, 4)), device=small).find(
        small.slug, m=64, n=64, k=64
    )
    assert (found.match, found.configuration) == (Match.NEAREST, naive(2, 4))
    assert "no longer valid" in found.because


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration.of("of_tomorrow", x=1),
        Configuration.of("naive", work_group_m=3, work_group_n=3),
        naive(2, 2).of("naive"),
    ],
    ids=["algorithm", "value", "missing"],
)
def test_configurations_of_other_versions_are_never_used(configuration: Configuration) -> None:
    found = table((product(64, 64, 64), configuration)).find(GPU.slug, m=64, n=64, k=64)
    assert found.match is Match.DEFAULT
    assert found.configuration != configuration


def test_every_published_table_still_serves() -> None:
    tables = sorted((data_folder("db") / "tables").glob("*.json"))
    assert tables
    for path in tables:
        winners = read_contents(path).winners
        published = TuningTable.open(path)
        assert {published.find(w.device, w.problem).match for w in winners} == {Match.EXACT}


def test_an_unknown_slug_gets_its_familys_profile_and_is_told() -> None:
    found = table((product(64, 64, 64), naive(4, 8))).find("mali-g999", m=64, n=64, k=64)
    assert found.match is Match.PRESUMED
    assert "no measurements for mali-g999 in the table" in found.because
    assert "profile 'mali'" in found.because


@pytest.mark.parametrize(("images", "storage"), [(8192, "image"), (0, "buffer")])
def test_an_unknown_device_gets_what_its_own_limits_allow(images: int, storage: str) -> None:
    limits = DeviceLimits(
        max_work_group_size=1024, has_images=images > 0, max_image_width=images, max_image_height=images
    )
    found = table().find(device("adreno-999", limits=limits), m=1024, n=1024, k=1024)
    assert found.configuration["b_storage"] == storage
    assert not FAMILY.violations(found.problem, found.configuration, limits)


def test_a_default_says_what_it_rests_on() -> None:
    intel = device("intel-x", limits=LARGE_GPU)
    start = table(device=intel).find(intel, product(2048, 2048, 2048))
    assert start.configuration in find_profile(intel).starting("gemm")
    assert start.because.endswith("the default is chosen by rule from the configurations of the profile 'intel'")
    reduce = find_family("reduce")
    variant = table().find(GPU, product(2048, 2048, 2048))
    by_size = table().find(GPU, reduce.problem_type.from_dict({"batch": 4, "channels": 100_000}))
    assert variant.configuration not in find_profile(GPU).starting("gemm")
    assert by_size.configuration != reduce.baseline
    for found in (variant, by_size):
        assert "the default is chosen by rule from the sizes, the device's limits and the profile" in found.because
    plain = table().find(device("x", family="gpu"), product(1, 1, 1))
    assert plain.configuration == FAMILY.baseline


def test_a_known_device_may_be_asked_for_by_itself() -> None:
    assert table((product(64, 64, 64), naive(4, 8))).find(GPU, m=64, n=64, k=64).match is Match.EXACT


@pytest.mark.parametrize(
    "sizes", [{"m": 0, "n": 1, "k": 1}, {"m": -5, "n": 1, "k": 1}, {"m": 1, "n": 1}, {}, {"m": 2**40, "n": 1, "k": 1}]
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ProblemError):
        table().find(GPU.slug, **sizes)  # type: ignore[arg-type]


def test_a_question_asked_before_costs_one_access() -> None:
    measured = table((product(64, 64, 64), naive(4, 8)))
    first = measured.find(GPU.slug, m=64, n=64, k=64)
    assert measured.find(GPU.slug, m=64, n=64, k=64) is first
    of_a_device = measured.find(GPU, product(64, 64, 64))
    assert measured.find(GPU, product(64, 64, 64)) is of_a_device


def test_answers_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_MOST_ANSWERS", 10)
    measured = table((product(64, 64, 64), naive(0, 0)))
    for m in range(1, 50):
        assert measured.find(GPU.slug, m=m, n=64, k=64).problem == product(m, 64, 64)
    assert len(measured._answers) <= 10


def test_a_thread_that_looks_while_another_reads_finds_the_same() -> None:
    problem, seen = GemmProblem(m=64, n=64, k=64), list[list[Entry]]()
    entry = Entry(problem=problem, configuration=FAMILY.baseline, time_ns=1.0)

    def read(_: object) -> Entry:
        if not seen:
            seen.append([])
            in_threads(lambda: seen.append(shelf.comparable(problem)))
        return entry

    shelf = Shelf({problem.key: (problem.key, "", 1.0, "", "")}, read)
    assert shelf.comparable(problem) == [entry]
    assert seen == [[], [entry]]


def test_a_device_lives_as_long_as_its_answer_whatever_other_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers go by its identity, which another one could have after it."""
    monkeypatch.setattr(lookup, "_MOST_ANSWERS", 1)
    measured = table((product(64, 64, 64), naive(0, 0)))
    others = iter([product(9, 9, 9)])

    class Answers(dict[Any, Any]):
        def __setitem__(self, question: Any, answer: Any) -> None:
            for other in others:  # just now, and so all that is known is forgotten
                self |= {"a question": "of before"}
                measured.find("adreno-740", other)
            super().__setitem__(question, answer)

    measured._answers = Answers()
    measured.find(GPU, product(8, 8, 8))
    assert (id(GPU), product(8, 8, 8), None, None, None) in measured._answers
    assert list(measured._asked.values()) == [GPU]


# What is read


def test_a_database_a_snapshot_and_a_json_table_give_the_same_answers(database: Path) -> None:
    snapshot, exported = database.with_name("snapshot.sqlite"), database.with_name("table.json")
    with Store.open(database) as store:
        store.snapshot(snapshot)
        text = export_table(store, None, "gemm", "json")
    assert isinstance(text, str)
    exported.write_text("\ufeff  " + text, encoding="utf-8")
    tables = [TuningTable.open(path) for path in (database, str(snapshot), exported)]
    assert [t.devices for t in tables] == [(GPU,)] * 3
    for asked in ((64, 64, 64), (500, 500, 500), (1, 1, 1)):
        answers = [t.find(GPU.slug, product(*asked)) for t in tables]
        assert answers[0] == answers[1] == answers[2]
    assert tables[0].find(GPU.slug, m=512, n=512, k=512).time_ns == 5e6


def test_the_users_own_database_is_read_and_may_be_missing(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.sqlite"
    monkeypatch.setattr(paths, "default_database", lambda: own)
    shipped = TuningTable.open().devices
    assert [device.slug for device in shipped] == sorted(p.stem for p in data_folder("db").glob("tables/*.json"))
    assert TuningTable.open().find("adreno-730", m=8, n=8, k=8).match is Match.PRESUMED
    own.touch()
    assert TuningTable.open().devices == shipped
    database.rename(own)
    assert TuningTable.open().find("adreno-730", m=64, n=64, k=64).match is Match.EXACT
    assert TuningTable.open().devices == (GPU, *shipped)


def test_a_named_table_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no table"):
        TuningTable.open(tmp_path / "none.sqlite")
    (tmp_path / "begun.sqlite").touch()  # as SQLite leaves it until the first table is there
    with pytest.raises(TableError, match="there is no table"):
        TuningTable.open(tmp_path / "begun.sqlite")
    with pytest.raises(TableError, match="cannot be read"):
        TuningTable.open(tmp_path)


def test_what_another_program_is_writing_is_read(database: Path) -> None:
    before = {path.name: path.read_bytes() for path in database.parent.iterdir()}
    with Store.open(database) as store:
        store.record_winner(winner(product(7, 5, 3), naive(1, 1)))
        assert database.with_name("tuned.sqlite-wal").stat().st_size > 0
        assert TuningTable.open(database).find(GPU.slug, m=7, n=5, k=3).match is Match.EXACT
        writer = sqlite3.connect(database, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM winners")
        assert TuningTable.open(database).find(GPU.slug, m=7, n=5, k=3).match is Match.EXACT
        writer.execute("ROLLBACK")
        writer.close()
    assert TuningTable.open(database).find(GPU.slug, m=7, n=5, k=3).match is Match.EXACT
    assert {path.name for path in database.parent.iterdir()} == set(before)


def test_reading_leaves_nothing_behind_and_changes_nothing(database: Path) -> None:
    before = {path.name: path.read_bytes() for path in database.parent.iterdir()}
    TuningTable.open(database)
    assert {path.name: path.read_bytes() for path in database.parent.iterdir()} == before


def test_a_read_only_folder_is_read_unless_something_would_be_missed(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, whom no permission binds: what SQLite and the system then say is played."""
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(sqlite_reader, "_opens", lambda *_: False)
    assert sqlite_reader.read_only_options(database) == "?mode=ro&immutable=1"
    assert TuningTable.open(database).find(GPU.slug, m=64, n=64, k=64).match is Match.EXACT
    database.with_name("tuned.sqlite-wal").write_bytes(b"what was not merged")
    with pytest.raises(StoreError, match="was not closed"):
        TuningTable.open(database)


def test_where_files_beside_it_can_be_made_a_database_opens_for_reading_alone(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert sqlite_reader.read_only_options(database) == "?mode=ro"
    assert TuningTable.open(database).find(GPU.slug, m=64, n=64, k=64).match is Match.EXACT


def test_a_log_that_cannot_be_opened_is_noticed(database: Path) -> None:
    database.with_name("tuned.sqlite-wal").mkdir()  # in its way, as a read-only folder would be
    assert not sqlite_reader._opens(database, "?mode=ro")


def test_of_several_drivers_the_one_that_measured_last_sets_the_limits(database: Path) -> None:
    newer = Device(**{**vars(GPU), "driver": "two", "limits": DeviceLimits(max_work_group_size=8)})
    with Store.open(database) as store:
        store.add_device(newer)
        assert TuningTable.open(database).devices == (store.devices()[-1],) == (newer,)


# What cannot be read


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def execute(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return change


_ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT"

BROKEN: dict[str, tuple[Callable[[Path], object], type[AutotuneError], str]] = {
    "truncated": (truncate, NotADatabaseError, "is damaged"),
    "overwritten": (overwrite, NotADatabaseError, "is damaged"),
    "text": (lambda path: path.write_text("hello " * 50), NotADatabaseError, "neither a database nor"),
    "bytes": (lambda path: path.write_bytes(bytes(range(128, 256))), NotADatabaseError, "neither a database nor"),
    "nothing": (lambda path: path.write_bytes(b""), TableError, "there is no table"),
    "header only": (lambda path: path.write_bytes(b"SQLite format 3\0" * 2), NotADatabaseError, "is damaged"),
    "newer": (execute("UPDATE alembic_version SET version_num = '9999'"), NewerSchemaError, "schema 9999"),
    "another program": (execute("PRAGMA application_id = 7"), NotADatabaseError, "another program"),
    "no table": (execute("PRAGMA foreign_keys = 0", "DROP TABLE winners"), NotADatabaseError, "another program"),
    "a view as table": (
        execute("ALTER TABLE devices RENAME TO hidden", f"CREATE VIEW devices AS {_ENDLESS} 's' || x AS slug FROM r"),
        NotADatabaseError, "another program",
    ),
    "computed column": (
        execute(
            "ALTER TABLE devices RENAME COLUMN limits TO old",
            "ALTER TABLE devices ADD COLUMN limits TEXT AS (hex(zeroblob(400000000)))",
        ),
        NotADatabaseError, "another program",
    ),
    "long text": (execute("UPDATE devices SET limits = hex(zeroblob(9000000))"), NotADatabaseError, "is damaged"),
    "no UTF-8": (execute("UPDATE devices SET limits = CAST(x'ff' AS TEXT)"), TableError, "a row of devices"),
    "bytes as a name": (
        execute("PRAGMA writable_schema = 1", "UPDATE sqlite_master SET name = CAST(x'ff' AS TEXT), sql = 'f'"),
        NotADatabaseError, "is damaged",
    ),
    "limits": (execute("UPDATE devices SET limits = '[1'"), TableError, "a row of devices (adreno-730)"),
    "odd limits": (
        execute("""UPDATE devices SET limits = '{"max_work_item_sizes": 3}'"""), TableError, "a row of devices"
    ),
    "problem": (execute("UPDATE problems SET spec = id"), TableError, "best_configurations (adreno-730, gemm)"),
    "nested": (execute(f"UPDATE winners SET configuration = '{'[' * 99999}'"), TableError, "a row of best"),
    "blob": (execute("UPDATE winners SET configuration = x'ff00'"), TableError, "a row of best_configurations"),
    "time": (execute("UPDATE winners SET time_ns = 'soon'"), TableError, "time_ns is not a positive number"),
    "json": (lambda path: path.write_text('{"format": "autotune-table"'), TableError, "not JSON"),
    "other json": (lambda path: path.write_text("{}"), TableError, "is not a tuning table"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_table_is_one_clear_line(database: Path, name: str) -> None:
    change, error, text = BROKEN[name]
    change(database)
    with pytest.raises(error) as caught:
        TuningTable.open(database)
    assert text in str(caught.value)
    assert str(database) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("opened", [TuningTable.open, lambda path: Store.open(path, read_only=True).best()])
def test_damaged_bytes_of_a_database_raise_our_errors_alone(database: Path, opened: Callable[[Path], object]) -> None:
    execute("PRAGMA journal_mode = DELETE")(database)
    whole, random = database.read_bytes(), Random(1)
    seen = set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random.choice([1, 30, 300])):
            damaged[random.randrange(16, len(whole))] = random.randrange(256)
        database.write_bytes(damaged)
        try:
            opened(database)
        except AutotuneError as error:
            seen.add(type(error))
    assert NotADatabaseError in seen or StoreError in seen


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE problems SET spec = id",
        "UPDATE winners SET configuration = '[1]'",
        "UPDATE devices SET limits = '3'",
        f"UPDATE devices SET limits = '{'[' * 99999}'",
        "UPDATE winners SET verdict = 'perhaps'",
    ],
)  # fmt: skip
def test_a_row_that_no_version_writes_is_told_as_damage(database: Path, change: str) -> None:
    execute(change)(database)
    with Store.open(database, read_only=True) as store, pytest.raises(StoreError, match="is damaged"):
        (store.devices(), store.best())


def test_the_view_of_a_file_is_not_run(database: Path) -> None:
    execute(
        "DROP VIEW best_configurations",
        f"CREATE VIEW best_configurations AS {_ENDLESS} x AS device, 'gemm' AS family, x AS spec FROM r",
    )(database)
    assert TuningTable.open(database).find(GPU.slug, m=64, n=64, k=64).match is Match.EXACT
    with Store.open(database, read_only=True) as store:
        assert len(store.best()) == 2


def test_reading_a_file_ends(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ", ".join(["winners"] * 4)
    monkeypatch.setattr(sqlite_reader, "_DEVICES", f"SELECT max(a.id) FROM ({_ENDLESS} x AS id FROM r) AS a, {many}")
    monkeypatch.setattr(sqlite_reader, "_LONGEST_S", 0.05)
    with pytest.raises(NotADatabaseError, match="takes longer than"):
        TuningTable.open(database)
    monkeypatch.setattr(sqlite_reader, "_DEVICES", f"{_ENDLESS} printf('%99999d', x) FROM r")
    monkeypatch.setattr(sqlite_reader, "_LONGEST_S", 20.0)
    monkeypatch.setattr(sqlite_reader, "_MOST_BYTES", 2**24)
    with pytest.raises(NotADatabaseError, match="holds more than"):
        TuningTable.open(database)


def test_a_file_system_without_locks_is_told(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(sqlite_reader, "_WAIT_S", 0.05)
    monkeypatch.setattr(fcntl, "lockf", no_locks)
    execute("PRAGMA journal_mode = DELETE")(database)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="has no locks"):
            TuningTable.open(database)


def test_a_lookup_needs_no_space_on_a_disk(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(path: Path, options: str) -> bool:
        return options == "?mode=ro"

    monkeypatch.setattr(sqlite_reader, "_opens", opens)
    assert sqlite_reader.read_only_options(database) == "?mode=ro"
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    with pytest.raises(StoreError, match="no space is left"):
        failures.attempt(raiser(error), "a place")


def raiser(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def test_locked_database_is_an_error(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_reader, "_WAIT_S", 0.05)
    execute("PRAGMA journal_mode = DELETE")(database)
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked by another program"):
        TuningTable.open(database)
    writer.close()


def test_rows_that_only_another_version_knows_are_left_out(database: Path) -> None:
    spec = product(512, 512, 512).key
    unknown = spec.replace('"k"', '"depth"')
    execute(f"UPDATE problems SET spec = '{unknown}' WHERE spec = '{spec}'")(database)
    measured = TuningTable.open(database)
    assert measured.find(GPU.slug, m=512, n=512, k=512).match is Match.DEFAULT
    execute("UPDATE problems SET family = 'of_tomorrow'")(database)
    assert TuningTable.open(database).find(GPU.slug, m=64, n=64, k=64).match is Match.DEFAULT


def test_an_empty_database_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    execute("CREATE TABLE t (a)", "DROP TABLE t")(path)
    assert TuningTable.open(path).devices == ()


# By URL: the command reads a database server through the store, the library refuses it with a hint


def test_the_command_gives_the_answers_of_a_snapshot_of_the_server(
    postgresql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(postgresql) as store:
        store.add_device(GPU)
        for size in (64, 512):
            store.record_winner(winner(product(size, size, size), FAMILY.baseline, 1000.0 * size))
        store.snapshot(tmp_path / "copy.sqlite")

    def answer(size: int, place: str) -> Any:
        shape = (str(size),) * 3
        assert main(["lookup", "--device", GPU.slug, *shape, "--explain", "--json", "--db", place]) == 0
        return json.loads(capsys.readouterr().out)

    found = [answer(size, postgresql) for size in (64, 500, 1)]
    assert found == [answer(size, str(tmp_path / "copy.sqlite")) for size in (64, 500, 1)]
    assert [of["match"] for of in found[:2]] == ["exact", "default"]


def test_an_sqlite_url_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a table.sqlite"
    Store.open(path).close()
    table = TuningTable.open(f"sqlite:///{path}")
    assert (table.source, table.devices) == (str(path), ())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:secret@host/x", "cannot open a table from a URL of the kind postgresql://"),
        ("mysql://me:secret@localhost/x", "cannot open a table from a URL of the kind mysql://"),
        ("sqlite:///nowhere/x.sqlite", "there is no table"),
    ],
)
def test_urls_that_lead_nowhere(url: str, message: str) -> None:
    with pytest.raises(TableError, match=message) as caught:
        TuningTable.open(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert read_trials(url, GPU, product(9, 9, 9)) == []


# What is loaded


def test_a_lookup_loads_the_standard_library_only(database: Path) -> None:
    code = (
        "import sys, json\nbare = set(sys.modules)\nimport autotune.lookup\nfirst = sorted(set(sys.modules) - bare)\n"
        f"found = autotune.lookup.TuningTable.open({str(database)!r}).find('adreno-730', m=60, n=60, k=60)\n"
        "default = autotune.lookup.TuningTable.open().find('cpu', m=60, n=60, k=60)\n"
        "print(json.dumps([first, sorted(set(sys.modules) - bare), found.match.value, default.match.value]))"
    )
    environment = {**os.environ, "XDG_DATA_HOME": str(database.parent / "nowhere")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    first, last, *matches = json.loads(done.stdout)
    assert matches == ["default", "presumed"]
    assert "autotune.model.problem" in first
    needless = {
        "sqlite3",
        "tomllib",
        "subprocess",
        "autotune.space.family",
        "autotune.model.trial",
        "autotune.kernels.gemm",
    }
    assert needless & set(first) == set()
    heavy = {"numpy", "jinja2", "pyopencl", "sqlalchemy", "alembic", "optuna", "rich"}
    assert heavy & {name.partition(".")[0] for name in last} == set()


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("adreno-730", "adreno-730"), ("adreno730", "adreno-730"), ("QUALCOMM Adreno(TM) 730", "adreno-730"),
        ("NVIDIA H200", "nvidia-h200"), ("nvidia h200", "nvidia-h200"), ("Mali-G710 MC10", "mali-g710-mc10"),
        ("pocl-amd-epyc-avx512", "pocl-amd-epyc-avx512"), ("gpu-samsung-xclipse-920", "gpu-samsung-xclipse-920"),
    ],
)  # fmt: skip
def test_devices_may_be_named_as_their_drivers_do(name: str, slug: str) -> None:
    assert TuningTable([], []).find(name, m=64, n=64, k=64).device == slug


def test_a_misspelled_device_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    table = TuningTable([GPU], [])
    table.find(f"{GPU.slug}y", m=64, n=64, k=64)
    table.find(f"{GPU.slug}y", m=64, n=64, k=65)
    table.find(GPU.slug, m=64, n=64, k=64)
    table.find("adreno-730", m=64, n=64, k=64)
    assert caplog.text.count("unknown") == 1 and f"did you mean {GPU.slug}?" in caplog.text
    table.find("toaster", m=64, n=64, k=64)
    assert "toaster: this device is unknown, so the answers are those for any device" in caplog.text
