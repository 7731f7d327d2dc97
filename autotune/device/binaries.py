"""A cache of built programs on disk, so that the next process loads what this one compiled.

A file holds one program for one device, driver and key; the caller's key must cover source and build options. Many
processes may use one folder: files are written atomically and never changed. A file is checked against its own digest
before a driver sees it, since drivers crash on bytes that are not their own. A program that cannot be read, written or
loaded counts as missing: the cache never raises errors to its caller.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyopencl as cl

from autotune.device.answers import ask, cpuinfo, number, text
from autotune.device.pocl import compiler_target
from autotune.device.processors import cpu_flags

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

    def load(self, context: cl.Context, device: cl.Device, key: str, options: Sequence[str] = ()) -> cl.Program | None:
        """Return the built program, or None. `options` are those with which it was first built."""
        path = self._path(device, key)
        binary = self._read(path)
        if binary is None:
            return None
        try:
            program = cl.Program(context, [device], [binary])
            program.build(options=list(options))
        except (cl.Error, UnicodeDecodeError):  # the binary is from another driver after all
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # records the last use
        return program

    def store(self, device: cl.Device, key: str, program: cl.Program) -> bool:
        """Store a built program; return False if its binary is missing or too large, or the file cannot be written.

        Some drivers finish compiling when a kernel first runs (PoCL does, for its work-group size): storing the program
        after that run saves the next process that part too.
        """
        binary = _binary(program, device)
        if not binary or len(binary) > self.max_bytes:
            return False
        try:
            self._write(self._path(device, key), binary)
            self._bound(len(binary))
        except OSError:
            return False
        return True

    def _path(self, device: cl.Device, key: str) -> Path:
        digest = hashlib.sha256("\0".join((*_identity(device), key)).encode()).hexdigest()
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


def digest(*parts: str) -> str:
    """Return a key that is equal only for the same texts in the same order."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hashed.update(b"%d:" % len(data) + data)
    return hashed.hexdigest()


def _binary(program: cl.Program, device: cl.Device) -> bytes:
    try:
        devices, binaries = (program.get_info(what) for what in (cl.program_info.DEVICES, cl.program_info.BINARIES))
        assert isinstance(devices, list) and isinstance(binaries, list)
        return bytes(binaries[devices.index(device)] or b"")
    except (cl.Error, ValueError, MemoryError):
        return b""


def _identity(device: cl.Device) -> tuple[str, ...]:
    """Return what a binary depends on besides its source: device, driver and, for a processor, its instruction set."""
    maker = ask(lambda: device.platform, None)
    told = [text(maker, "name"), text(maker, "version")]
    told += [text(device, attribute) for attribute in ("vendor", "name", "version", "driver_version")]
    is_processor = bool(number(device, "type") & cl.device_type.CPU)
    return (*told, compiler_target(device), _processor() if is_processor else "")


def _processor() -> str:
    """Return the processor's features, else its name.

    Names are not exact enough: a home folder may be shared by machines of different age.
    """
    return " ".join(sorted(cpu_flags(cpuinfo()))) or platform.processor() or platform.machine()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
