"""The store: round trips, what the view tells, several programs at once, kills, and hostile places."""

import dataclasses
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, event

import factories
from autotune import paths
from autotune.cli.lookup import open_table
from autotune.errors import AutotuneError, NewerSchemaError, NotADatabaseError, ReadOnlyDatabaseError, StoreError
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Measurement, Timer, Trial, TrialState, Winner
from autotune.store import Store, StoredTrial, backup, database, failures
from autotune.store.models import Base
from autotune.store.trials import TrialRow
from databases import at_first_pause, change, connect, rows
from factories import provenance
from waiting import HANG_S, in_threads

DEVICE = Device(
    slug="adreno-730", vendor="Qualcomm", model="Adreno 730", family="adreno", platform="QUALCOMM Snapdragon(TM)",
    name="QUALCOMM Adreno(TM)", version="OpenCL 3.0 Adreno(TM) 730", driver="OpenCL 3.0 QUALCOMM build: 1",
    opencl_c_version="OpenCL C 3.0 Adreno(TM) 730",
    limits=DeviceLimits(compute_units=4, has_images=True, sub_group_sizes=(64, 128), extensions=("cl_khr_fp16",)),
)  # fmt: skip
OTHER = dataclasses.replace(DEVICE, slug="mali-g610-mc6", name="Mali-G610", family="mali")
PROBLEM = GemmProblem(m=64, n=32, k=16)
PROVENANCE = provenance(DEVICE.driver, template_hash="0123456789ab")
MEASUREMENT = Measurement(
    time_ns=1234.5678901234567, samples_ns=(1.25, 1e9, 0.1 + 0.2), calls_per_sample=1000, timer=Timer.HOST,
    prepare_ns=3.5, build_ns=1e9, error_ratio=0.25, private_memory_bytes=128, kernel_work_group_limit=512,
)  # fmt: skip
TRIAL = Trial(
    configuration=Configuration.of("microtile", micro_tile_m=4, b_storage="image"), state=TrialState.COMPLETE,
    measurement=MEASUREMENT, message="fine", seed=2**63 - 1,
)  # fmt: skip


def winner(time_ns: float = 100.0, **changes: Any) -> Winner:
    known = {
        "device": DEVICE, "problem": PROBLEM, "configuration": TRIAL.configuration, "default_ns": 300.0,
        "baseline_ns": 1000.0 / 3, "gain_low": 1.1, "gain_high": 1.3, "samples": 11, "provenance": PROVENANCE,
    }  # fmt: skip
    return factories.winner(time_ns=time_ns, **{**known, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(place: str, empty_database: Path) -> Iterator[Store]:
    """An empty store that knows DEVICE."""
    if place.endswith(".sqlite"):
        shutil.copy(empty_database, place)
    with Store.open(place) as opened:
        opened.add_device(DEVICE)
        yield opened


def tables(place: str) -> set[str]:
    here = "SELECT name FROM sqlite_master"
    there = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    return {name for (name,) in rows(place, there if "://" in place else here)}


def is_whole(path: str | Path) -> bool:
    """PostgreSQL has no such question, nor a way to switch foreign keys off."""
    if "://" in str(path):
        return True
    return rows(path, "PRAGMA integrity_check") == [("ok",)] and rows(path, "PRAGMA foreign_key_check") == []


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


ADD_TRIALS = """
import sys
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.kernels.gemm import GemmProblem
from autotune.store import Store
from autotune.model.trial import Provenance, Trial, TrialState
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
device = Device(slug="shared", vendor="v", model="m", family="gpu", driver="1")
provenance = Provenance(driver="1", template_hash="h", space_version=1, tool_version="0", measured_at="now")
with Store.open(path) as store:
    for number in range(count):
        trial = Trial(
            configuration=Configuration.of("naive", who=who, number=number), state=TrialState.COMPILE_FAILED
        )
        store.add_trial(device, GemmProblem(m=1 + number % 20, n=1, k=1), trial, provenance, "search")
        print(number, flush=True)
"""


# Round trips


@pytest.mark.parametrize(
    "trial",
    [
        TRIAL,
        dataclasses.replace(TRIAL, message="m" * 1_000_000),
        *(
            Trial(configuration=TRIAL.configuration, state=state, message="line 1\nline 2 ⚠")
            for state in TrialState
            if state is not TrialState.COMPLETE
        ),
    ],
    ids=lambda trial: f"{trial.state.value} {len(trial.message)}",
)
def test_trial_comes_back_as_it_was(store: Store, trial: Trial) -> None:
    store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE, "final")
    [stored] = store.trials(DEVICE.slug, "gemm", PROBLEM)
    assert stored == StoredTrial(trial=trial, problem=PROBLEM, provenance=PROVENANCE, purpose="final")
    assert type(stored.problem) is GemmProblem
    assert (stored.trial.time_ns == math.inf) == (trial.measurement is None)


def test_infinite_and_missing_numbers_survive(store: Store) -> None:
    measurement = dataclasses.replace(MEASUREMENT, error_ratio=math.nan, prepare_ns=math.inf)
    store.add_trial(DEVICE, PROBLEM, dataclasses.replace(TRIAL, measurement=measurement), PROVENANCE)
    [stored] = store.trials(DEVICE.slug, "gemm")
    assert stored.trial.measurement is not None
    assert math.isnan(stored.trial.measurement.error_ratio)
    assert stored.trial.measurement.prepare_ns == math.inf


def test_text_that_databases_refuse_is_kept_as_escapes(store: Store) -> None:
    device = dataclasses.replace(DEVICE, slug="odd", name="a\0b \udcff", driver="d\0")
    provenance = dataclasses.replace(PROVENANCE, driver="d\0")
    store.add_trial(device, PROBLEM, dataclasses.replace(TRIAL, message="x\0\udc80'); DROP"), provenance)
    [stored] = store.trials("odd", "gemm")
    assert stored.trial.message == "x\\0\\udc80'); DROP"
    assert stored.provenance.driver == "d\\0"
    assert [d.name for d in store.devices() if d.slug == "odd"] == ["a\\0b \\udcff"]


@pytest.mark.parametrize(("seed", "purpose"), [(2**64, "search"), (0, "leisure")])
def test_values_that_the_database_cannot_hold_are_an_error(store: Store, seed: int, purpose: str) -> None:
    with pytest.raises(StoreError):
        store.add_trial(DEVICE, PROBLEM, dataclasses.replace(TRIAL, seed=seed), PROVENANCE, purpose)
    assert store.trials(DEVICE.slug, "gemm") == []


def test_trials_are_chosen_by_device_family_and_problem_oldest_first(store: Store) -> None:
    """Under whatever driver; row pitches make another problem."""
    second, pitched = GemmProblem(m=1, n=1, k=1), GemmProblem(m=64, n=32, k=16, lda=64)
    newer = dataclasses.replace(DEVICE, driver="build: 2")
    added = [(DEVICE, PROBLEM), (OTHER, PROBLEM), (DEVICE, second), (newer, PROBLEM), (DEVICE, pitched)]
    for seed, (device, problem) in enumerate(added):
        provenance = dataclasses.replace(PROVENANCE, driver=device.driver)
        store.add_trial(device, problem, dataclasses.replace(TRIAL, seed=seed), provenance)
    assert [s.trial.seed for s in store.trials(DEVICE.slug, "gemm")] == [0, 2, 3, 4]
    of_problem = store.trials(DEVICE.slug, "gemm", PROBLEM)
    assert [(s.trial.seed, s.provenance.driver) for s in of_problem] == [(0, DEVICE.driver), (3, "build: 2")]
    assert [s.trial.seed for s in store.trials(OTHER.slug, "gemm")] == [1]
    assert store.trials(DEVICE.slug, "reduce") == []
    assert store.trials("nobody", "gemm") == []


def test_a_trial_that_comes_again_with_its_identity_is_stored_once(store: Store) -> None:
    crashed = dataclasses.replace(TRIAL, state=TrialState.CRASHED, measurement=None)
    store.add_trial(DEVICE, PROBLEM, crashed, PROVENANCE, identity="f" * 32)
    store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
    assert store.quarantined() == []
    store.add_trial(DEVICE, PROBLEM, crashed, PROVENANCE, identity="f" * 32)
    assert [s.trial for s in store.trials(DEVICE.slug, "gemm")] == [crashed, TRIAL]
    assert store.quarantined() == [], "what came again is old"


def test_a_device_comes_back_without_its_selector_and_with_the_limits_that_the_driver_tells_now(store: Store) -> None:
    store.add_device(dataclasses.replace(DEVICE, selector="0:1"))
    assert store.devices() == [DEVICE]
    changed = dataclasses.replace(DEVICE, limits=dataclasses.replace(DEVICE.limits, compute_units=8))
    store.add_trial(changed, PROBLEM, TRIAL, PROVENANCE)
    assert store.devices() == [changed]


def test_of_several_drivers_the_one_measured_last_comes_last(store: Store) -> None:
    newer = dataclasses.replace(DEVICE, driver="build: 2")
    imported = dataclasses.replace(DEVICE, driver="elsewhere")
    for device in (DEVICE, newer):
        store.add_trial(device, PROBLEM, TRIAL, PROVENANCE)
    store.import_winners([], [imported, OTHER])
    assert store.devices() == [imported, DEVICE, newer, OTHER]
    store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
    assert store.devices() == [imported, newer, DEVICE, OTHER]


def test_a_winner_comes_back_as_it_was_and_the_view_tells_the_same_gains(store: Store, place: str) -> None:
    recorded = winner(time_ns=1e6 / 7, is_default=True)
    store.record_winner(recorded)
    assert store.best() == [recorded]
    told = rows(place, "SELECT gflops, gain_over_default, gain_over_baseline FROM best_configurations")
    assert told == [(recorded.gflops, recorded.gain_over_default, recorded.gain_over_baseline)]


def test_a_winner_without_baseline_or_bounds_comes_back(store: Store) -> None:
    store.record_winner(winner(baseline_ns=None, gain_low=math.nan, gain_high=math.inf, samples=0))
    [best] = store.best()
    assert best.baseline_ns is None
    assert math.isnan(best.gain_low)
    assert best.gain_high == math.inf


@pytest.mark.parametrize(
    "changes",
    [{"time_ns": 0.0}, {"time_ns": -1.0}, {"samples": -1}, {"verifications": -1}, {"source": "heard"}],
)
def test_a_winner_that_cannot_be_is_refused(store: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        store.record_winner(winner(**changes))
    assert store.best() == []


def test_a_winner_needs_a_known_device(store: Store) -> None:
    with pytest.raises(StoreError, match="no device 'unheard-of'"):
        store.record_winner(winner(device="unheard-of"))


# What the view tells


def test_best_is_chosen_and_ordered_by_device_and_sizes(store: Store) -> None:
    store.add_device(OTHER)
    large, small = GemmProblem(m=100, n=1, k=1), GemmProblem(m=20, n=1, k=1)
    store.record_winner(winner(device=OTHER.slug))
    store.record_winner(winner(problem=large))
    store.record_winner(winner(problem=small))
    subjects = [(w.device, w.problem) for w in store.best()]
    assert subjects == [(DEVICE.slug, small), (DEVICE.slug, large), (OTHER.slug, PROBLEM)]
    assert [w.problem for w in store.best(DEVICE.slug)] == [small, large]
    assert store.best(family="reduce") == []
    assert len(store.best(OTHER.slug, "gemm")) == 1
    assert [store.winner(DEVICE.slug, problem) for problem in (small, large)] == store.best(DEVICE.slug)
    assert store.winner(OTHER.slug, small) is None and store.winner(DEVICE.slug, PROBLEM) is None


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ([winner(100), winner(120)], 120),  # the newest final, though slower: the older may be out of date
        ([winner(120), winner(100)], 100),
        ([winner(100), winner(50, samples=0)], 100),  # a provisional one never replaces a final
        ([winner(50, samples=0), winner(60, samples=0)], 60),
        ([winner(50, samples=0), winner(100)], 100),
        ([winner(100), winner(90, source="imported")], 90),
        ([winner(100), winner(110, source="imported")], 100),
        ([winner(100), winner(100, source="imported")], 100),
        ([winner(90, source="imported"), winner(100)], 100),  # finals here settle what was imported before
        ([winner(90, source="imported"), winner(80)], 80),
        ([winner(90, source="imported"), winner(100, samples=0)], 90),  # no finals
        ([winner(80, source="imported"), winner(100), winner(90, source="imported")], 90),
        ([winner(100), winner(90, source="imported"), winner(95, samples=0)], 90),
        ([winner(90, source="imported"), winner(95, source="imported")], 90),
        ([winner(50, samples=0), winner(100, source="imported")], 100),
        ([winner(100), winner(50, source="imported", samples=0)], 100),
        ([winner(50, samples=0), winner(40, source="imported", samples=0)], 40),
        ([winner(80), winner(85, source="imported"), winner(120)], 120),
    ],
)
def test_which_winner_holds(store: Store, recorded: list[Winner], expected: float) -> None:
    for one in recorded:
        store.record_winner(one)
    assert [w.time_ns for w in store.best()] == [expected]
    assert [store.winner(DEVICE.slug, PROBLEM)] == store.best()


def test_a_person_can_query_the_view(place: str) -> None:
    with Store.open(place) as store:
        store.add_device(DEVICE)
        store.record_winner(winner(128.0, default_ns=256.0, baseline_ns=None))
    query = "SELECT * FROM best_configurations WHERE device = 'adreno-730' AND m = 64 AND n = 32 AND k = 16"
    with closing(connect(place)) as connection:
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description]
        [values] = cursor.fetchall()
    assert dict(zip(names, values, strict=True)) == {
        "device": "adreno-730", "family": "gemm", "problem": "64x32x16", "m": 64, "n": 32, "k": 16,
        "algorithm": "microtile", "configuration": '{"algorithm":"microtile","b_storage":"image","micro_tile_m":4}',
        "time_ns": 128.0, "gflops": 512.0, "gain_over_default": 2.0, "gain_low": 1.1, "gain_high": 1.3,
        "gain_over_baseline": None, "samples": 11, "is_default": 0, "source": "measured", "driver": DEVICE.driver,
        "template_hash": "0123456789ab", "space_version": 1, "tool_version": "0.1.0",
        "measured_at": "2026-01-31T12:00:00Z", "spec": PROBLEM.key, "default_ns": 256.0, "baseline_ns": None,
        "verdict": "faster", "verifications": 60,
    }  # fmt: skip


# Import


def test_import_adds_what_is_new_or_better_and_keeps_the_rest(store: Store) -> None:
    problems = [GemmProblem(m=m, n=1, k=1) for m in (1, 2, 3, 4)]
    store.record_winner(winner(100, problem=problems[0]))
    store.record_winner(winner(100, problem=problems[1]))
    store.record_winner(winner(100, problem=problems[2], samples=0))
    given = [winner(time_ns, problem=p) for time_ns, p in zip((90, 110, 120, 70), problems, strict=True)]
    assert store.import_winners(given, [DEVICE]) == (3, 1)
    found = [(w.time_ns, w.source) for w in store.best()]
    assert found == [(90, "imported"), (100, "measured"), (120, "imported"), (70, "imported")]
    assert store.import_winners(given, [DEVICE]) == (0, 4)


@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize("is_tried", [True, False])
def test_a_configuration_that_was_tried_here_does_not_win_by_its_time_elsewhere_after_finals_here(
    store: Store, is_final: bool, is_tried: bool
) -> None:
    elsewhere = winner(90, configuration=Configuration.of("naive"))
    assert store.import_winners([elsewhere], [DEVICE]) == (1, 0)
    if is_tried:
        store.add_trial(DEVICE, PROBLEM, dataclasses.replace(TRIAL, configuration=elsewhere.configuration), PROVENANCE)
    store.record_winner(winner(100, samples=30 if is_final else 0))
    assert [w.time_ns for w in store.best()] == [100 if is_final else 90]
    assert store.import_winners([elsewhere], [DEVICE]) == ((1, 0) if is_final and not is_tried else (0, 1))
    assert [w.time_ns for w in store.best()] == [100 if is_final and is_tried else 90]


def test_import_brings_devices_along_but_does_not_change_known_ones(store: Store) -> None:
    told_otherwise = dataclasses.replace(DEVICE, limits=DeviceLimits(compute_units=99))
    assert store.import_winners([winner(device=OTHER.slug)], [OTHER, told_otherwise]) == (1, 0)
    assert store.devices() == [DEVICE, OTHER]


def test_import_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="unheard-of"):
        store.import_winners([winner(), winner(device="unheard-of")], [OTHER])
    assert store.best() == []
    assert store.devices() == [DEVICE]


def test_import_of_the_same_problem_twice_keeps_the_faster(store: Store) -> None:
    assert store.import_winners([winner(80), winner(90), winner(70)], []) == (2, 1)
    assert [w.time_ns for w in store.best()] == [70]


# Several programs at once


@pytest.mark.long
def test_two_programs_make_and_fill_one_database(place: str) -> None:
    programs = [start(ADD_TRIALS, place, who, "200") for who in ("left", "right")]
    for program in programs:
        _, errors = program.communicate(timeout=HANG_S)
        assert (program.returncode, errors) == (0, "")
    with Store.open(place) as store:
        configurations = [s.trial.configuration for s in store.trials("shared", "gemm")]
        assert len(store.devices()) == 1
    for who in ("left", "right"):
        mine = [c.number("number") for c in configurations if c["who"] == who]
        assert mine == list(range(200))
    assert rows(place, "SELECT count(*) FROM problems") == [(20,)]
    assert is_whole(place)


def test_many_threads_open_a_new_database_at_once(place: str) -> None:
    problems: list[Exception] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        try:
            with Store.open(place) as store:
                store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
        except AutotuneError as error:
            problems.append(error)

    in_threads(*[work] * 8)
    assert problems == []
    with Store.open(place) as store:
        assert len(store.trials(DEVICE.slug, "gemm")) == 8
        assert store.devices() == [DEVICE]


@pytest.mark.long
def test_kills_lose_no_stored_trial(place: str) -> None:
    told = 0
    for round_number in range(4):
        program = start(ADD_TRIALS, place, str(round_number), "1000000")
        assert program.stdout is not None
        for _ in range(10 + round_number):
            assert program.stdout.readline()
        program.send_signal(signal.SIGKILL)
        rest = program.stdout.read()  # with what earlier reads kept, which `communicate` would not see
        assert program.wait(HANG_S) == -signal.SIGKILL
        told += 10 + round_number + len([line for line in rest.splitlines(keepends=True) if line.endswith("\n")])
        assert is_whole(place)
        with Store.open(place) as store:
            # The trial in flight may be stored without having been told.
            assert told <= len(store.trials("shared", "gemm")) <= told + round_number + 1


@pytest.mark.long
def test_kill_while_the_database_is_made_leaves_nothing_in_the_way(place: str) -> None:
    # The programs end in the middle of the migration, with the transaction open.
    program = "import os, sys; from autotune.store import Store\n"
    program += f"from autotune import paths as r; r.schema_revisions = lambda: {paths.schema_revisions()}\n"
    program += "from alembic import command; real = command.upgrade\n"
    program += "command.upgrade = lambda *a: (real(*a), os.kill(os.getpid(), 9))\n"
    program += "Store.open(sys.argv[1])"
    killed = start(program, place)
    killed.communicate(timeout=HANG_S)
    assert killed.returncode == -signal.SIGKILL
    with Store.open(place) as store:
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
        assert len(store.trials(DEVICE.slug, "gemm")) == 1


def test_short_lock_by_another_program_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)  # so that trying again is what helps
    with (
        Store.open(path) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN EXCLUSIVE")
        at_first_pause(monkeypatch, lambda: other.execute("COMMIT"))
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
        assert len(store.trials(DEVICE.slug, "gemm")) == 1


def test_lasting_lock_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(failures, "PATIENCE_S", 0.0)
    with Store.open(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
        other.execute("ROLLBACK")
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)


def test_reading_continues_while_another_program_writes(path: Path) -> None:
    with Store.open(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.best() == []
        with Store.open(path, read_only=True) as reader:
            assert reader.devices() == []


# Schema


def test_models_and_migrations_agree(place: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    Store.open(place).close()
    url = place.replace("postgresql:", "postgresql+psycopg:") if "://" in place else f"sqlite:///{place}"
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_indexes_and_checks_of_the_models_are_in_the_database(place: str) -> None:
    Store.open(place).close()
    here = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
    there = "SELECT indexname FROM pg_indexes UNION SELECT conname FROM pg_constraint"
    sql = "\n".join(text for (text,) in rows(place, there if "://" in place else here))
    tables = Base.metadata.tables.values()
    named = {str(item.name) for table in tables for item in table.constraints}
    named |= {str(item.name) for table in tables for item in table.indexes}
    assert len(named) > 12
    assert {name for name in named if name not in sql} == set()


NEWEST = paths.schema_revisions()[-1]
NEXT = f"{int(NEWEST) + 1:04}"


def add_revision(folder: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str) -> None:
    """Let the package find one migration more."""
    shutil.copytree(paths.data_folder("db"), folder / "db", ignore=shutil.ignore_patterns("__pycache__"))
    text = f"from alembic import op\nimport sqlalchemy as sa\nrevision = '{NEXT}'\n"
    text += f"down_revision = '{NEWEST}'\n{upgrade}"
    (folder / "db" / "migrations" / "versions" / f"{NEXT}_test.py").write_text(text)
    monkeypatch.setattr(paths, "_PACKAGE", folder)


REBUILD = """
def upgrade():
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "auto"
    with op.batch_alter_table("devices", recreate=recreate) as batch:
        batch.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="none"))
"""


def test_an_older_database_is_migrated_and_keeps_its_rows(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(place) as store:
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
    add_revision(tmp_path / "new %(odd)s folder", monkeypatch, REBUILD)
    with Store.open(place) as store:
        assert [s.trial for s in store.trials(DEVICE.slug, "gemm")] == [TRIAL]
    assert rows(place, "SELECT slug, note FROM devices") == [(DEVICE.slug, "none")]
    assert rows(place, "SELECT version_num FROM alembic_version") == [(NEXT,)]
    assert is_whole(place)


def test_the_predictors_of_earlier_versions_are_dropped(place: str) -> None:
    with Store.open(place) as store:
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
    change(place, "CREATE TABLE predictors (id BIGINT PRIMARY KEY, device TEXT, document TEXT)")
    change(place, "CREATE TABLE service_claim (id BIGINT PRIMARY KEY)")
    change(place, "DROP INDEX ix_job_problems_entry")
    change(place, "DROP TABLE rates")
    for column in ("service", "entry", "entry_model"):
        change(place, f"ALTER TABLE job_problems DROP COLUMN {column}")
    change(place, "UPDATE alembic_version SET version_num = '0100'")
    with Store.open(place) as store:
        assert [s.trial for s in store.trials(DEVICE.slug, "gemm")] == [TRIAL]
    assert rows(place, "SELECT version_num FROM alembic_version") == [(NEWEST,)]
    with pytest.raises(Exception, match="predictors"):
        rows(place, "SELECT * FROM predictors")
    assert rows(place, "SELECT service, entry FROM job_problems") == []


def test_an_older_database_is_not_migrated_for_reading(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(place).close()
    add_revision(tmp_path / "new", monkeypatch, "def upgrade(): pass")
    with pytest.raises(StoreError, match="older schema"):
        Store.open(place, read_only=True)
    assert rows(place, "SELECT version_num FROM alembic_version") == [(NEWEST,)]


@pytest.mark.parametrize("upgrade", ["op.execute('nonsense')", "op.execute('DELETE FROM devices')"])
def test_a_migration_that_fails_changes_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str
) -> None:
    with Store.open(place) as store:
        store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
    with monkeypatch.context() as patch:
        body = f"def upgrade():\n    op.execute('CREATE TABLE extra (x INTEGER)')\n    {upgrade}"
        add_revision(tmp_path / "new", patch, body)
        with pytest.raises(StoreError):
            Store.open(place)
    assert "extra" not in tables(place)
    with Store.open(place) as store:
        assert store.devices() == [DEVICE]


@pytest.mark.parametrize(
    ("revision", "error", "message"),
    [
        ("0999", NewerSchemaError, r"0999.*upgrade autotune"),
        ("0011", StoreError, r"development version of autotune \(schema 0011\).*name another database with --db"),
    ],
)
def test_a_schema_of_another_version_is_refused_and_left_alone(
    place: str, revision: str, error: type[StoreError], message: str
) -> None:
    Store.open(place).close()
    change(place, f"UPDATE alembic_version SET version_num = '{revision}'")
    for read_only in (False, True):
        with pytest.raises(error, match=message):
            Store.open(place, read_only=read_only)
    with pytest.raises(error, match=message):
        open_table(place)
    assert rows(place, "SELECT version_num FROM alembic_version") == [(revision,)]


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    with Store.open(path) as store:
        assert store.devices() == []


@pytest.mark.long
def test_alembic_is_not_imported_for_a_current_database(path: Path) -> None:
    program = "import sys; from autotune.store import Store; Store.open(sys.argv[1]).devices()\n"
    program += "print(sorted(m for m in sys.modules if m.split('.')[0] in ('alembic', 'optuna', 'numpy', 'pyopencl')))"
    with_making, _ = start(program, str(path)).communicate(timeout=HANG_S)
    assert "'alembic'" in with_making
    assert start(program, str(path)).communicate(timeout=HANG_S) == ("[]\n", "")


def test_the_journal_keeps_stored_trials_through_a_power_cut(path: Path) -> None:
    with Store.open(path) as store, store._writing.connect() as connection:
        told = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert told == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


# Hostile places


def test_the_default_database_lies_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "not" / "yet"))
    with Store.open() as store:
        assert store.location == str(tmp_path / "not" / "yet" / "autotune" / "autotune.sqlite")
    assert Path(store.location).is_file()


@pytest.mark.parametrize("name", ["a b.sqlite", "a?mode=ro#x%20.sqlite", "ünï ☃.sqlite", "-x", "'; DROP.sqlite"])
def test_odd_file_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(name) as store:
        store.add_device(DEVICE)
        store.snapshot(f"copy of {name}")
    for file in (name, f"copy of {name}"):
        with Store.open(file, read_only=True) as store:
            assert store.devices() == [DEVICE]
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([name, f"copy of {name}"])


def test_an_sqlite_url_is_a_path(path: Path) -> None:
    with Store.open(f"sqlite:///{path}") as store:
        assert store.location == str(path)
    assert path.is_file()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("sqlite://", "plain file"),
        ("sqlite:///:memory:", "plain file"),
        ("sqlite:///x.sqlite?mode=ro", "plain file"),
        ("nonsense://host/x", "of the kind 'nonsense'"),
        ("mysql://user:secret@host/x", "of the kind 'mysql'"),
        ("postgresql+nonsense://host/x", "names an unknown driver"),
        ("://", "cannot be understood"),
        ("postgresql://user:secret@host:port/x", "cannot be understood"),
        ("postgresql+pg8000://user:secret@host/x", "driver for .* is not installed .*pip install pg8000"),
    ],
)
def test_urls_that_lead_nowhere(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def make_foreign(*statements: str) -> Callable[[Path], None]:
    """Another program's database."""

    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def make_foreign_revision(path: Path) -> None:
    Store.open(path).close()
    change(path, "UPDATE alembic_version SET version_num = 'ab12cd34ef56'")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("SQLite format 4: no database, and long enough to look like one" * 100),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "other tables": make_foreign("CREATE TABLE trials (whatever)"),
    "other tables and alembic": make_foreign(
        "CREATE TABLE alembic_version (version_num)", "INSERT INTO alembic_version VALUES ('0100')",
        "CREATE TABLE theirs (x)",
    ),
    "other revision": make_foreign_revision,
    "header only": lambda path: path.write_bytes(b"SQLite format 3\0" + b"junk" * 1000),
}  # fmt: skip


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_database_is_refused_and_left_as_it_is(path: Path, name: str, read_only: bool) -> None:
    FOREIGN[name](path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(NotADatabaseError) as caught:
        Store.open(path, read_only=read_only)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_damaged_database_is_told(path: Path) -> None:
    with Store.open(path) as store:
        for seed in range(50):
            store.add_trial(DEVICE, PROBLEM, dataclasses.replace(TRIAL, seed=seed, message="x" * 500), PROVENANCE)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreError, match="damaged"), Store.open(path) as store:
        store.trials(DEVICE.slug, "gemm")


def test_a_missing_database_is_not_made_for_reading(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no database"):
        Store.open(path, read_only=True)
    path.touch()
    with pytest.raises(StoreError, match="there is no database"):
        Store.open(path, read_only=True)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("name", ["file/x.sqlite", "n" * 300, "a\0b"])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(StoreError) as caught:
        Store.open(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_full_disk_is_an_error_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "PATIENCE_S", 0.1)

    def fill(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    event.listen(Engine, "connect", fill)
    try:
        with Store.open(path) as store:
            store.add_trial(DEVICE, PROBLEM, TRIAL, PROVENANCE)
            with pytest.raises(StoreError, match="no space is left"):
                store.add_trial(DEVICE, PROBLEM, dataclasses.replace(TRIAL, message="x" * 500_000), PROVENANCE)
            assert [s.trial for s in store.trials(DEVICE.slug, "gemm")] == [TRIAL]
    finally:
        event.remove(Engine, "connect", fill)
    assert is_whole(path)
    assert caplog.messages == [f"no space is left to write {path}: trying again for up to 0 s"]


def test_where_there_is_no_space_for_a_copy_the_copy_is_named(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"

    def fill(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 4")

    event.listen(Engine, "connect", fill)
    try:
        with pytest.raises(StoreError, match=f"no space is left to write {copy} "):
            store.snapshot(copy)
    finally:
        event.remove(Engine, "connect", fill)


# Places that may not be written. The tests may run as root, whom no mode binds; then another user tries.


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)
        Path(folder).chmod(0o777)


AS_ANOTHER_USER = """
import os, sys
from autotune.cli.lookup import open_table
from autotune.errors import AutotuneError
from autotune import paths
from autotune.store import Store
# The other user may not be able to enter the folders that these come from.
import sqlalchemy.dialects.sqlite.pysqlite
revisions = paths.schema_revisions()
paths.schema_revisions = lambda: revisions
is_root = os.geteuid() == 0
if is_root:
    os.setresuid(65534, 65534, 0)
try:
    with Store.open(sys.argv[1], read_only=sys.argv[2] == "ro") as store:
        print([d.slug for d in store.devices()], len(store.best(family="reduce")))
except AutotuneError as error:
    print(type(error).__name__, error)
if is_root:
    os.setresuid(0, 0, 0)
"""


def as_another_user(path: Path, mode: str) -> str:
    output, errors = start(AS_ANOTHER_USER, str(path), mode).communicate(timeout=HANG_S)
    assert errors == ""
    return output.strip()


def filled(place: str | Path) -> Store:
    store = Store.open(place)
    store.add_device(DEVICE)
    store.record_winner(winner())
    return store


@pytest.mark.long
def test_a_read_only_file_is_named(public: Path) -> None:
    path = public / "store.sqlite"
    filled(path).close()
    path.chmod(0o444)
    assert as_another_user(path, "rw").startswith(f"ReadOnlyDatabaseError the file {path} is not writable (")
    assert as_another_user(path, "ro") == "['adreno-730'] 0"


@pytest.mark.long
def test_a_read_only_folder_is_named(public: Path) -> None:
    path = public / "store.sqlite"
    filled(path).close()
    path.chmod(0o666)
    public.chmod(0o555)
    assert as_another_user(path, "rw").startswith(f"ReadOnlyDatabaseError the folder {public} is not writable (")
    assert as_another_user(path, "ro") == "['adreno-730'] 0"
    assert as_another_user(public / "below" / "new.sqlite", "rw").startswith("ReadOnlyDatabaseError the file or folder")
    assert as_another_user(public / "new.sqlite", "rw").startswith("ReadOnlyDatabaseError the folder")


@pytest.mark.long
def test_a_database_that_was_not_closed_is_not_read_without_its_log(public: Path) -> None:
    source, path = public / "source.sqlite", public / "copy.sqlite"
    with filled(source):
        shutil.copy(source, path)
        shutil.copy(f"{source}-wal", f"{path}-wal")
    public.chmod(0o555)
    assert path.with_name("copy.sqlite-wal").stat().st_size
    assert "was not closed" in as_another_user(path, "ro")
    public.chmod(0o777)
    assert as_another_user(path, "ro") == "['adreno-730'] 0"


@pytest.mark.long
def test_a_snapshot_lies_in_a_read_only_folder(public: Path) -> None:
    path = public / "snapshot.sqlite"
    with filled(public / "store.sqlite") as store:
        store.snapshot(path)
    path.chmod(0o444)
    public.chmod(0o555)
    assert as_another_user(path, "ro") == "['adreno-730'] 0"


def test_nothing_is_written_through_a_store_opened_for_reading(place: str) -> None:
    filled(place).close()
    with Store.open(place, read_only=True) as store:
        assert len(store.best()) == 1
        with pytest.raises(ReadOnlyDatabaseError, match=r"is not writable"):
            store.record_winner(winner())


def test_a_store_opened_for_reading_sees_what_others_add(place: str) -> None:
    with filled(place) as store, Store.open(place, read_only=True) as reader:
        store.record_winner(winner(1))
        assert reader.best()[0].time_ns == 1


# Snapshots


def test_a_snapshot_holds_everything_in_one_file(store: Store, tmp_path: Path) -> None:
    store.add_trial(OTHER, PROBLEM, TRIAL, PROVENANCE)
    store.record_winner(winner())
    copy = tmp_path / "new folder" / "copy.sqlite"
    store.snapshot(copy)
    assert [item.name for item in copy.parent.iterdir()] == ["copy.sqlite"]
    assert rows(copy, "PRAGMA journal_mode") == [("delete",)]
    assert is_whole(copy)
    with Store.open(copy, read_only=True) as other:
        assert other.best() == store.best()
        assert other.devices() == store.devices()
        assert other.trials(OTHER.slug, "gemm") == store.trials(OTHER.slug, "gemm")
    with Store.open(copy) as other:  # a working database like any other
        other.add_trial(OTHER, PROBLEM, TRIAL, PROVENANCE)
        assert len(other.trials(OTHER.slug, "gemm")) == 2


def test_a_snapshot_of_one_device_holds_nothing_of_others(store: Store, tmp_path: Path) -> None:
    theirs, only_tried = GemmProblem(m=7, n=7, k=7), GemmProblem(m=8, n=8, k=8)
    store.add_trial(OTHER, theirs, TRIAL, PROVENANCE)
    store.add_trial(DEVICE, only_tried, TRIAL, PROVENANCE)
    store.record_winner(winner())
    store.record_winner(winner(device=OTHER.slug, problem=theirs))
    copy = tmp_path / "copy.sqlite"
    store.snapshot(copy, DEVICE.slug)
    with Store.open(copy, read_only=True) as other:
        assert other.devices() == [DEVICE]
        assert other.best() == [winner()]
        assert len(other.trials(DEVICE.slug, "gemm")) == 1
    assert rows(copy, "SELECT label FROM problems ORDER BY label") == [("64x32x16",), ("8x8x8",)]
    assert b"Mali" not in copy.read_bytes()
    assert is_whole(copy)


def test_a_snapshot_is_taken_while_another_program_writes(path: Path) -> None:
    with filled(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.snapshot(path.with_name("copy.sqlite"))


def test_a_snapshot_replaces_an_older_one(path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    with filled(path) as store:
        store.snapshot(copy)
        store.record_winner(winner(1))
        store.snapshot(str(copy))
    with Store.open(copy, read_only=True) as other:
        assert [w.time_ns for w in other.best()] == [1]


def test_a_snapshot_does_not_replace_a_database_in_use(path: Path) -> None:
    with filled(path) as store:
        with pytest.raises(StoreError, match="is the database itself"):
            store.snapshot(path)
        used = path.with_name("used.sqlite")
        with filled(used), pytest.raises(StoreError, match="is a database in use"):
            store.snapshot(used)
        with pytest.raises(StoreError, match="is a folder"):
            store.snapshot(path.parent)
        text = path.with_name("text.txt")
        text.write_text("keep me")
        with pytest.raises(NotADatabaseError):
            store.snapshot(text)
        assert text.read_text() == "keep me"


def _schema(path: Path) -> dict[str, Any]:
    """Everything that an SQLite file declares, however its statements are written."""
    found: dict[str, Any] = {"application": rows(path, "PRAGMA application_id")}
    for kind, name, sql in rows(path, "SELECT type, name, sql FROM sqlite_master"):
        if kind == "view":
            found[name] = sql.split()
        elif kind == "table":
            columns = [c[1:] for c in rows(path, f"PRAGMA table_info({name})")]
            checks = sorted(re.findall(r"CONSTRAINT (\w+) CHECK", sql))
            keys = sorted(key[2:] for key in rows(path, f"PRAGMA foreign_key_list({name})"))
            found[name] = sorted(columns, key=str), keys, checks
        else:
            found[name] = [column for _, _, column in rows(path, f"PRAGMA index_info({name})")]
    return found


def test_a_snapshot_has_the_schema_that_the_migrations_make(path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    with filled(path) as store:
        store.snapshot(copy)
    assert _schema(copy) == _schema(path)
    assert rows(copy, "SELECT version_num FROM alembic_version") == [(NEWEST,)]


IN_THREADS = """
import sys, threading
from pathlib import Path
from autotune.store import Store
folder = Path(sys.argv[1])
failures = []
def work(number):
    try:
        for turn in range(4):
            store.snapshot(folder / f"copy-{number}.sqlite")
            Store.open(folder / f"new-{number}-{turn}.sqlite").close()
    except Exception as error:
        failures.append(repr(error))
with Store.open(folder / "store.sqlite") as store:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(failures)
"""


@pytest.mark.long
def test_snapshots_and_new_databases_are_made_in_several_threads(path: Path) -> None:
    """In a process of its own, since Alembic in two threads may end it."""
    filled(path).close()
    program = start(IN_THREADS, str(path.parent))
    out, err = program.communicate(timeout=HANG_S)
    assert (program.returncode, out) == (0, "[]\n"), err
    assert len(list(path.parent.glob("new-*.sqlite"))) == 16
    assert all(is_whole(copy) for copy in path.parent.glob("*.sqlite"))


def test_failed_snapshot_leaves_the_older_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = path.with_name("copy.sqlite")
    with filled(path) as store:
        store.snapshot(copy)
        before = copy.read_bytes()
        monkeypatch.setattr(backup, "_compact", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(StoreError, match="full"):
            store.snapshot(copy)
    assert copy.read_bytes() == before
    assert sorted(item.name for item in path.parent.iterdir()) == ["copy.sqlite", "store.sqlite"]


def test_every_field_of_a_measurement_is_stored() -> None:
    """A field without a column would be lost in silence, since it has its default where it is read."""
    names = {field.name for field in dataclasses.fields(Measurement)}
    missing = names - set(TrialRow.__table__.columns.keys())
    assert missing == {"samples_ns", "inputs_ns", "is_first"}  # the first is `samples`
