"""Built programs: one of a recipe for each process, and on disk for the next process.

A file holds one program for one toolchain (`Port.toolchain`) and key; the caller's key must cover source and build
options. Many processes may use one folder: files are written atomically and never changed. A file is checked against
its own digest before a driver sees it, since drivers crash on bytes that are not their own. A program that cannot be
read, written or loaded counts as missing: the cache never raises errors to its caller.
"""

import contextlib
import enum
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.device.port import Port, Program
from autotune.errors import BuildError

MAX_BYTES = 256 * 2**20
"""Default size limit of a cache; the least recently used files are removed first."""

_MAGIC = b"autotune program 1\n"
_DIGEST_BYTES = 32
_ENDING = ".bin"
_UNFINISHED = ".part"
_ABANDONED_S = 3600.0
"""Age after which an unfinished file counts as abandoned."""
_KEPT_SHARE = 0.75
"""Share of the limit to which the files are reduced, so that storing the next one does not remove files again."""


class BinaryCache:
    """Programs by device, driver and key in one folder of limited size. Safe for threads and processes."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """The folder is created when the first program is stored."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._bytes_known: int | None = None

    def load(self, port: Port, key: str, options: Sequence[str] = ()) -> Program | None:
        """Return the built program, or None. `options` are those with which it was first built."""
        path = self._path(port, key)
        binary = self._read(path)
        if binary is None:
            return None
        try:
            program = port.load(binary, options)
        except BuildError:  # the binary is from another driver after all
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # records the last use
        return program

    def store(self, port: Port, key: str, program: Program) -> bool:
        """Store a built program; return False if its binary is missing or too large, or the file cannot be written.

        Some drivers finish compiling when a kernel first runs (PoCL does, for its work-group size): storing the program
        after that run saves the next process that part too.
        """
        binary = port.binary(program)
        if not binary or len(binary) > self.max_bytes:
            return False
        try:
            self._write(self._path(port, key), binary)
            self._bound(len(binary))
        except OSError:
            return False
        return True

    def _path(self, port: Port, key: str) -> Path:
        digest = hashlib.sha256("\0".join((*port.toolchain, key)).encode()).hexdigest()
        return self.folder / f"{digest[:40]}{_ENDING}"

    def _read(self, path: Path) -> bytes | None:
        """Return the program's binary, or None; a damaged file is removed."""
        try:
            content = path.read_bytes()
        except OSError:
            return None
        header = len(_MAGIC) + _DIGEST_BYTES
        binary = content[header:]
        if content[:header] == _MAGIC + hashlib.sha256(binary).digest():
            return binary
        _remove(path)
        return None

    def _write(self, path: Path, binary: bytes) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
            Path(name).replace(path)
        except OSError:
            _remove(Path(name))
            raise

    def _bound(self, added_bytes: int) -> None:
        """Keep the folder within its limit; it is listed only when the bytes known to this process reach the limit."""
        if self._bytes_known is not None and self._bytes_known + added_bytes <= self.max_bytes:
            self._bytes_known += added_bytes
            return
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total > self.max_bytes:
            for _, size, path in files:
                if total <= _KEPT_SHARE * self.max_bytes:
                    break
                _remove(path)
                total -= size
        self._bytes_known = total

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return time of last use, bytes and path of every program; remove abandoned files of writers that died."""
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == _ENDING:
                    found.append((status.st_mtime, status.st_size, path))
                elif path.suffix == _UNFINISHED and time.time() - status.st_mtime > _ABANDONED_S:
                    path.unlink()
        return found


class Origin(enum.Enum):
    """Where a program came from."""

    COMPILED = "compiled"
    LOADED = "loaded"
    """From the cache on disk."""
    KNOWN = "known"
    """Built earlier in this process."""


class Programs:
    """The programs of one device in this process. Safe for threads."""

    def __init__(self, port: Port, cache: BinaryCache | None) -> None:
        """Without a cache, programs are kept in this process only."""
        self.cache = cache
        self._port = port
        self._lock = threading.Lock()
        self._known: dict[str, Program] = {}
        self._unsaved: list[tuple[str, Program]] = []

    def __contains__(self, key: str) -> bool:
        """Whether a program is in memory."""
        return key in self._known

    def find(self, key: str, options: Sequence[str], make_source: Callable[[], str]) -> tuple[Program, Origin]:
        """Return a program from memory, from disk or compiled. Raises BuildError."""
        with self._lock:
            if key in self._known:
                return self._known[key], Origin.KNOWN
            origin = Origin.LOADED
            program = self.cache.load(self._port, key, options) if self.cache else None
            if program is None:
                program, origin = self._port.build(make_source(), options), Origin.COMPILED
                self._unsaved.append((key, program))
            self._known[key] = program
            return program, origin

    def save(self) -> None:
        """Store what was compiled since the last call; to be called after its kernels ran, see `BinaryCache.store`."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, []
        for key, program in unsaved:
            if self.cache:
                self.cache.store(self._port, key, program)


def digest(*parts: str) -> str:
    """Return a key that is equal only for the same texts in the same order."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hashed.update(b"%d:" % len(data) + data)
    return hashed.hexdigest()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
