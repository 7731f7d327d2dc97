"""Backups of a database in use, restored elsewhere and in place."""

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import NotADatabaseError, StoreError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.store import Store, new_owner
from autotune.store.backup import back_up, restore
from autotune.store.database import Target, parse_target
from databases import Server, rows
from factories import Run, provenance, trial
from fakes import INVENTED_PROCESSOR

DEVICE = INVENTED_PROCESSOR
PROBLEM = GemmProblem(m=64, n=64, k=64)
COUNTS = "SELECT (SELECT count(*) FROM trials), (SELECT count(*) FROM in_flight)"


def fill(store: Store) -> None:
    """With a trial, and one in flight."""
    store.add_trial(DEVICE, PROBLEM, trial(FAMILY.baseline, 100.0), provenance())
    store.begin_trial(DEVICE, PROBLEM, FAMILY.baseline, new_owner())


def test_database_in_use_is_backed_up_and_restored(store: Store, db_file: Path, tmp_path: Path, run: Run) -> None:
    fill(store)
    copy, elsewhere = tmp_path / "copy", tmp_path / "new folder" / "db.sqlite"
    for _ in range(2):  # a second one replaces the first
        assert f"wrote {copy}" in run(["backup", str(copy), "--db", str(db_file)]).err
    assert rows(copy, COUNTS) == [(1, 1)]
    assert not list(tmp_path.glob("copy-*")), "it is one file"
    assert f"restored {elsewhere}" in run(["restore", str(copy), "--db", str(elsewhere)]).err
    with Store.open(elsewhere) as restored:
        assert len(restored.trials(DEVICE.slug, "gemm")) == 1


def test_file_is_replaced_only_if_asked_for_and_not_in_use(db_file: Path, tmp_path: Path, run: Run) -> None:
    target, copy = parse_target(db_file), tmp_path / "copy"
    back_up(target, copy)
    with Store.open(db_file) as store:
        fill(store)
        with pytest.raises(StoreError, match="there already"):
            restore(target, copy)
        with pytest.raises(StoreError, match="in use"):
            restore(target, copy, replaces=True)
        assert len(store.trials(DEVICE.slug, "gemm")) == 1
    run(["restore", str(copy), "--db", str(db_file), "--force"])
    assert rows(db_file, COUNTS) == [(0, 0)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_backup_without_space_is_named(db_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(path: Path | str, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(path, **options)
        if isinstance(path, Path) and path != db_file:  # coverage connects to text
            connection.execute("PRAGMA max_page_count = 4")
        return connection

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(StoreError, match=f"no space is left to write {tmp_path / 'copy'} "):
        back_up(parse_target(db_file), tmp_path / "copy")


def test_foreign_file_is_refused_as_a_backup_and_left_as_it_is(db_file: Path, tmp_path: Path) -> None:
    target, text, empty = parse_target(db_file), tmp_path / "notes.txt", tmp_path / "empty"
    text.write_text("notes of years")
    empty.touch()
    with pytest.raises(NotADatabaseError):
        back_up(target, text)
    assert text.read_text() == "notes of years"
    with pytest.raises(StoreError, match="the database itself"):
        back_up(target, db_file)
    with pytest.raises(StoreError, match="no database"):
        back_up(parse_target(tmp_path / "missing"), tmp_path / "copy")
    for file in (text, empty, tmp_path / "missing"):
        with pytest.raises(StoreError):
            restore(target, file, replaces=True)


def test_damaged_database_is_reported_and_the_earlier_backup_kept(db_file: Path, tmp_path: Path) -> None:
    target, copy = parse_target(db_file), tmp_path / "copy"
    with Store.open(db_file) as store:
        fill(store)
    back_up(target, copy)
    before = copy.read_bytes()
    page = 4096
    with db_file.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for place in range(2 * page, size - page, 2 * page):
            file.seek(place)
            file.write(b"\xff" * 200)
    with pytest.raises(StoreError):
        back_up(target, copy)
    assert copy.read_bytes() == before


@pytest.mark.parametrize("place", [20, 100], ids=["header", "tables"])
def test_backup_replaces_a_damaged_database_unless_it_is_in_use(
    db_file: Path, tmp_path: Path, run: Run, place: int
) -> None:
    target, copy, kept = parse_target(db_file), tmp_path / "copy", tmp_path / "kept"
    log = db_file.with_name(f"{db_file.name}-wal")
    back_up(target, copy)
    with Store.open(db_file) as store:
        fill(store)
        shutil.copy(log, kept)
        with db_file.open("r+b") as file:
            file.seek(place)
            file.write(b"\xff" * 80)
        with pytest.raises(StoreError, match="in use"):
            restore(target, copy, replaces=True)
    shutil.copy(kept, log)  # as a process leaves it that is killed
    run(["restore", str(copy), "--db", str(db_file), "--force"])
    assert rows(db_file, COUNTS) == [(0, 0)]


@pytest.mark.long
def test_database_server_is_backed_up_and_restored_into_an_empty_database(
    postgresql: str, postgresql_server: Server, tmp_path: Path
) -> None:
    target, dump = parse_target(postgresql), tmp_path / "dump"
    with Store.open(postgresql) as store:
        fill(store)
        back_up(target, dump)
    with pytest.raises(StoreError, match="not empty"):
        restore(target, dump)
    with pytest.raises(NotADatabaseError):
        restore(target, Path(__file__))
    with pytest.raises(NotADatabaseError):
        back_up(target, Path(__file__))
    postgresql_server.execute("DROP SCHEMA here CASCADE; CREATE SCHEMA here")
    restore(target, dump)
    with Store.open(postgresql) as store:
        assert len(store.trials(DEVICE.slug, "gemm")) == 1
        assert rows(postgresql, COUNTS) == [(1, 1)]


def test_errors_of_missing_programs_hide_the_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from autotune.store import backup

    target = Target(url="postgresql+psycopg://someone:hidden@127.0.0.1:1/none")
    with pytest.raises(StoreError) as told:
        backup._run("pg_dump", target, [])
    assert "pg_dump failed" in str(told.value) or "not installed" in str(told.value)
    assert "hidden" not in str(told.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="pg_dump is not installed"):
        backup._run("pg_dump", target, [])
