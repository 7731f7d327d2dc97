"""What an agent found alone, read as hostile input: every record is checked, and no path in an archive is used."""

import lzma
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from autotune.errors import TableError
from autotune.phone.agent.frames import CONSTANTS, GREETING, MAX_TEXT, printable
from autotune.phone.bundle.note import MOST_TASKS
from autotune.search.significance import LOOKS

MOST_BYTES = 2**29
"""Of a result; what an agent writes stays far below (`prepare.RESULT_BYTES`, and finalists)."""
MOST_RECORDS = 2**22
MOST_TRIALS = 2**20
MOST_SAMPLES = 64
MOST_RUNS = 64
"""Of a check of one trial."""
MOST_OUTPUTS = 8
"""Outputs of a kernel, and other buffers that a check reads."""
NAME = "result.bin"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Samples of one round: the nanoseconds of `calls` calls by the host's clock, and by events or 0."""

    round: int
    calls: int
    samples: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Failed:
    why: int
    how: int
    command: int
    number: int
    text: str


@dataclass(kw_only=True)
class Record:
    """What the result tells of one trial."""

    built: tuple[int, int, int] = (0, 0, 0)
    """Nanoseconds of the build, work-group limit and private memory of the kernels."""
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """The digests of its outputs, one for each run, by check and number."""
    timed: dict[int, Timed] = field(default_factory=dict)
    """By round."""
    failed: Failed | None = None


@dataclass(kw_only=True)
class Result:
    """The contents of a result."""

    name: bytes = b""
    """The name of the work, then when it was begun, which tells apart the results of one bundle."""
    note: bytes = b""
    told: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """What the driver answered, by platform, device or NO_HANDLE, and query."""
    chosen: tuple[int, int, int] | None = None
    """Platform, device, and bytes of a size_t there."""
    cpuinfo: str = ""
    contents: dict[int, memoryview] = field(default_factory=dict)
    """Of outputs, by digest, as far as they came along."""
    records: dict[int, Record] = field(default_factory=lambda: defaultdict(Record))
    spent_s: float = 0.0
    solved: set[int] = field(default_factory=set)
    is_cut: bool = False
    """Whether it ends within a record, as after a loss of power."""


def read_result(path: Path) -> Result:
    """Read a file, or one in a folder or a ZIP archive, as far as it is complete. Raises TableError."""
    try:
        if path.is_dir():
            path = path / NAME
        with _opened(path) as file:
            return read_records(file)
    except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError,
            ValueError) as error:  # fmt: skip
        told = error.strerror if isinstance(error, OSError) else ""
        raise TableError(f"{path}: cannot be read: {told or error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, or the one result in an archive."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        found = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == NAME]
        if len(found) != 1:
            raise TableError(f"{path}: has {len(found) or 'no'} files named {NAME}", hint="give the right one itself")
        if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise TableError(f"{path}: is compressed in an unusual way", hint="unpack it, and give the file itself")
        with archive.open(found[0]) as file:
            yield file


def read_records(file: IO[bytes]) -> Result:
    """Read a result as far as it is complete. Raises TableError for anything that no agent of this version writes.

    Reading ends with the first record that is none, whatever follows: an archive may promise any number of bytes.
    """
    result = Result()
    for kind, payload in _frames(file, result):
        if not result.name and kind != "RESULT":
            raise TableError("it is no result of an agent")
        try:
            _TAKE[kind](result, payload)
        except struct.error as error:
            raise TableError(f"a record {kind} has a wrong size") from error
    if not result.name:
        raise TableError("it is no result of an agent")
    return result


def _frames(file: IO[bytes], result: Result) -> Iterator[tuple[str, memoryview]]:
    """Yield the kind and payload of each complete record."""
    count = read_bytes = 0
    while head := file.read(4):
        count += 1
        size = int.from_bytes(head, "little")
        if count > MOST_RECORDS:
            raise TableError(f"a result has at most {MOST_RECORDS} records")
        is_whole = len(head) == 4 and 5 <= size <= CONSTANTS["MAX_FRAME_BYTES"]
        whole = memoryview(file.read(size) if is_whole else b"")
        if len(whole) < max(5, size) or zlib.crc32(whole[:-4]) != int.from_bytes(whole[-4:], "little"):
            result.is_cut = True
            return
        read_bytes += size
        if read_bytes > MOST_BYTES:
            raise TableError(f"a result has at most {MOST_BYTES // 2**20} MiB")
        if whole[0] not in _KINDS:
            raise TableError(f"a record is of the unknown kind {whole[0]}")
        yield _KINDS[whole[0]], whole[1:-4]


def _take_head(result: Result, payload: memoryview) -> None:
    greeting = bytes(payload[: len(GREETING)])
    if greeting != GREETING or result.name:
        raise TableError(
            "it comes from an agent of another version", hint="collect it with the one that made the bundle"
        )
    result.name = bytes(payload[len(GREETING) :])


def _take_note(result: Result, payload: memoryview) -> None:
    result.note = bytes(payload)


def _take_told(result: Result, payload: memoryview) -> None:
    platform, device, query = struct.unpack_from("<III", payload)
    if len(payload) > 12 + MAX_TEXT or len(result.told) > MAX_TEXT:
        raise TableError("a driver's answer is too large")
    result.told[platform, device, query] = bytes(payload[12:])


def _take_chosen(result: Result, payload: memoryview) -> None:
    platform, device, size_t_bytes = struct.unpack_from("<IIB", payload)
    if size_t_bytes not in (4, 8):
        raise TableError("its machine has a size_t that no machine has")
    result.chosen = platform, device, size_t_bytes
    result.cpuinfo = bytes(payload[9 : 9 + CONSTANTS["MAX_FILE_BYTES"]]).decode("utf-8", "replace")


def _record(result: Result, payload: memoryview) -> Record:
    (number,) = struct.unpack_from("<I", payload)
    if number >= MOST_TRIALS:
        raise TableError(f"there is no trial {number}")
    return result.records[number]


def _take_built(result: Result, payload: memoryview) -> None:
    _record(result, payload).built = struct.unpack_from("<QQQ", payload, 4)


def _take_output(result: Result, payload: memoryview) -> None:
    _, check, number, digest = struct.unpack_from("<IBBQ", payload)
    digests = _record(result, payload).outputs[check, number]
    if check > 1 or number > MOST_OUTPUTS or len(digests) >= MOST_RUNS:
        raise TableError("a trial has too many outputs")
    digests.append(digest)
    if len(payload) > 14:
        result.contents[digest] = payload[14:]


def _take_timed(result: Result, payload: memoryview) -> None:
    _, turn, calls = struct.unpack_from("<III", payload)
    if turn > LOOKS[-1] or len(payload) > 12 + 16 * MOST_SAMPLES:
        raise TableError("a trial was timed too often")
    samples = tuple((host, event) for host, event in struct.iter_unpack("<QQ", payload[12:]))
    if not calls or not samples or any(not 0 < host < 2**60 or event >= 2**60 for host, event in samples):
        raise TableError("a trial was timed without a time")
    _record(result, payload).timed[turn] = Timed(round=turn, calls=calls, samples=samples)


def _take_failed(result: Result, payload: memoryview) -> None:
    _, why, how, command, number = struct.unpack_from("<IBBBi", payload)
    text = printable(bytes(payload[11 : 11 + MAX_TEXT]))
    _record(result, payload).failed = Failed(why=why, how=how, command=command, number=number, text=text)


def _take_spent(result: Result, payload: memoryview) -> None:
    result.spent_s = struct.unpack("<Q", payload)[0] / 1000


def _take_solved(result: Result, payload: memoryview) -> None:
    (number,) = struct.unpack("<I", payload)
    if number >= MOST_TASKS:
        raise TableError(f"there is no problem {number}")
    result.solved.add(number)


_TAKE: dict[str, Callable[[Result, memoryview], object]] = {
    "RESULT": _take_head,
    "NOTE": _take_note,
    "TOLD": _take_told,
    "CHOSEN": _take_chosen,
    "BEGUN": _record,
    "BUILT": _take_built,
    "OUTPUT": _take_output,
    "TIMED": _take_timed,
    "FAILED": _take_failed,
    "SPENT": _take_spent,
    "SOLVED": _take_solved,
    "DROPPED": _record,
    "CHECKED": _record,
}
_KINDS = {CONSTANTS[name]: name for name in _TAKE}
