"""Built programs kept on disk: what is loaded, what is not, and what many processes do to one folder."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from autotune.device import description
from autotune.device.opencl import Session
from autotune.device.programs import BinaryCache, digest
from autotune.model.device import Device
from waiting import in_threads

SOURCE = "__kernel void put(__global int *x) { x[get_global_id(0)] = VALUE; }"


@pytest.fixture(scope="module")
def session(pocl: Device) -> Session:
    return Session(pocl.selector)


@pytest.fixture(scope="module")
def program(session: Session) -> cl.Program:
    built = session.build(SOURCE, ["-DVALUE=42"])
    assert answer(session, built) == 42
    return built


def answer(session: Session, program: cl.Program) -> int:
    memory = cl.Buffer(session.queue.context, cl.mem_flags.READ_WRITE, 4)
    cl.Kernel(program, "put")(session.queue, (1,), (1,), memory)
    into = np.zeros(1, np.int32)
    cl.enqueue_copy(session.queue, into, memory)
    return int(into[0])


def load(cache: BinaryCache, session: Session, key: str = "key") -> cl.Program | None:
    return cache.load(session, key)


def store(cache: BinaryCache, session: Session, program: Any, key: str = "key") -> bool:
    return cache.store(session, key, program)


def test_a_stored_program_is_loaded_and_runs(session: Session, program: cl.Program, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path / "new" / "folder")
    assert load(cache, session) is None
    assert store(cache, session, program)
    loaded = load(BinaryCache(cache.folder), session)
    assert loaded is not None and answer(session, loaded) == 42
    assert load(cache, session, "another key") is None
    assert [path.suffix for path in cache.folder.iterdir()] == [".bin"]


def test_another_driver_or_processor_has_programs_of_its_own(
    session: Session, program: cl.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BinaryCache(tmp_path)
    store(cache, session, program)
    monkeypatch.setattr(description, "instruction_set", lambda _: "flags : none")
    assert load(cache, session) is None
    monkeypatch.undo()
    assert load(cache, session) is not None


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "another version"])
def test_damaged_files_never_reach_the_driver(
    session: Session, program: cl.Program, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BinaryCache(tmp_path)
    store(cache, session, program)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    file.write_bytes(
        {
            "truncated": content[:-1],
            "flipped": bytes(flipped),
            "empty": b"",
            "foreign": b"\x7fELF" + content,
            "another version": content.replace(b"program 1", b"program 2"),
        }[damage]
    )
    with monkeypatch.context() as patch:
        patch.setattr(cl, "Program", None)
        assert load(cache, session) is None
    assert not file.exists()
    assert store(cache, session, program) and load(cache, session) is not None


def test_a_binary_that_the_driver_refuses_is_removed(session: Session, program: cl.Program, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    store(cache, session, program)
    (file,) = tmp_path.iterdir()
    cache._write(file, b"not a program of this driver")
    assert load(cache, session) is None
    assert not file.exists()


def test_the_folder_is_bounded_and_what_was_used_last_stays(
    session: Session, program: cl.Program, tmp_path: Path
) -> None:
    store(BinaryCache(tmp_path), session, program, "0")
    (path,) = before = [*tmp_path.iterdir()]
    size = path.stat().st_size
    os.utime(path, (1e9, 1e9))
    cache = BinaryCache(tmp_path, max_bytes=4 * size + size // 2)
    for number in range(1, 4):
        store(cache, session, program, str(number))
        (path,) = {*tmp_path.iterdir()} - {*before}
        before.append(path)
        os.utime(path, (1e9 + number,) * 2)
    assert load(cache, session, "0") is not None  # the oldest, used just now
    (tmp_path / "old.part").write_bytes(b"x")
    os.utime(tmp_path / "old.part", (1, 1))
    (tmp_path / "young.part").write_bytes(b"x")
    store(cache, session, program, "4")
    names = {path.name for path in tmp_path.iterdir()}
    assert "old.part" not in names and "young.part" in names
    assert sum(path.stat().st_size for path in tmp_path.glob("*.bin")) <= cache.max_bytes
    kept = [key for key in "01234" if load(cache, session, key) is not None]
    assert "0" in kept and "4" in kept and "1" not in kept
    assert not store(BinaryCache(tmp_path, max_bytes=10), session, program)


def test_a_folder_that_takes_no_file_is_no_error(session: Session, program: cl.Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = BinaryCache(tmp_path / "file")
    assert not store(cache, session, program)
    assert load(cache, session) is None


def test_a_program_without_a_binary_is_not_stored(session: Session, tmp_path: Path) -> None:
    unbuilt = cl.Program(session.queue.context, SOURCE)
    cache = BinaryCache(tmp_path)
    with pytest.warns(UserWarning, match="Pre-build"):
        assert not store(cache, session, unbuilt)


def test_many_write_and_read_one_key_at_once(session: Session, program: cl.Program, tmp_path: Path) -> None:
    """Half of them store again and again, half load: every load finds a whole program, or none before the first."""
    cache = BinaryCache(tmp_path)
    store(cache, session, program)
    (path,) = tmp_path.iterdir()
    content = cache._read(path)
    assert content
    missed: list[str] = []

    def write() -> None:
        for _ in range(100):
            BinaryCache(tmp_path)._write(path, content)

    def read() -> None:
        for _ in range(100):
            if BinaryCache(tmp_path)._read(path) != content:
                missed.append("damaged")

    in_threads(*(write, read) * 3)
    assert missed == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".bin"]


def test_keys_of_parts_do_not_run_together() -> None:
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", "")}) == 4
