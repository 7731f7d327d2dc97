"""Built programs kept on disk, so that the next process loads what this one compiled.

A file holds one program for one device, driver and key; what the key must tell apart (source, options) is the
caller's to say. Many processes may use one folder: files appear whole or not at all, and are never changed. A file
is checked against its own digest before a driver sees it, since drivers crash on bytes that are not their own. What
cannot be read, written or loaded counts as not there: a cache never fails its user.
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
"""By default; the files used longest ago are removed first."""

_MAGIC = b"autotune program 1\n"
_DIGEST_BYTES = 32
_ENDING = ".bin"
_UNFINISHED = ".part"
_ABANDONED_S = 3600.0
"""Age after which an unfinished file is nobody's any more."""
_KEPT_SHARE = 0.75
"""Of the bound, after files had to be removed: not to do so again at the next one."""


class BinaryCache:
    """Programs by device, driver and key in one folder, of a bounded size. Safe for threads and processes."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """The folder is made when something is stored."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._bytes_known: int | None = None

    def load(self, context: cl.Context, device: cl.Device, key: str, options: Sequence[str] = ()) -> cl.Program | None:
        """The built program, or None. `options` are those it was first built with."""
        path = self._path(device, key)
        binary = self._read(path)
        if binary is None:
            return None
        try:
            program = cl.Program(context, [device], [binary])
            program.build(options=list(options))
        except (cl.Error, UnicodeDecodeError):  # of another driver after all
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return program

    def store(self, device: cl.Device, key: str, program: cl.Program) -> bool:
        """Keep a built program; False where the driver gives no binary or the folder takes no file.

        Some drivers finish compiling when a kernel first runs (PoCL does, for its work-group size): what is stored
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
        """The program's bytes; a file that is damaged is removed."""
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
        """Keep the folder within its bound, as far as this process knows; it looks again when that is reached."""
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
        """Time of last use, bytes and path of every program; what writers that died left behind is removed."""
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
    """A key of any texts: equal only for the same texts in the same order."""
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
    """What a binary depends on besides its source: device, driver, and for a processor its instructions."""
    maker = ask(lambda: device.platform, None)
    told = [text(maker, "name"), text(maker, "version")]
    told += [text(device, attribute) for attribute in ("vendor", "name", "version", "driver_version")]
    is_processor = bool(number(device, "type") & cl.device_type.CPU)
    return (*told, compiler_target(device), _processor() if is_processor else "")


def _processor() -> str:
    """Names of processors are not exact enough: a home folder may be shared by machines of different age."""
    return " ".join(sorted(cpu_flags(cpuinfo()))) or platform.processor() or platform.machine()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
