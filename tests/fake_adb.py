"""A server of adb with phones that are folders: the real client talks to it, and what it starts runs on this machine.

It speaks the host protocol of adb's server as far as the client needs it to list phones and to run commands in the
shell protocol with separate streams and an exit status (``shell,v2,raw``). Paths below /data, /vendor and /system in a
command are those of the phone's folder, and so are the programs in its ``bin``. Faults: a phone can be unplugged,
restarted, offline or not authorised, have a full disk, or an old Android.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

VERSION = 41
"""What every client since 2018 expects of its server; it would restart one with another version."""
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = 0, 1, 2, 3, 4


@dataclass(eq=False)
class FakePhone:
    """A phone, whose storage is a folder."""

    serial: str
    root: Path
    model: str = "Fake_1"
    state: str = "device"
    features: str = "shell_v2,cmd"
    properties: dict[str, str] = field(
        default_factory=lambda: {
            "ro.product.cpu.abilist": "x86_64",
            "ro.build.version.sdk": "34",
            "sys.boot_completed": "1",
        }
    )
    environment: dict[str, str] = field(default_factory=dict)
    """Of all programs on the phone."""
    is_plugged: bool = True
    commands: list[str] = field(default_factory=list)
    """All that ran."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._sockets: set[socket.socket] = set()
        (self.root / "bin").mkdir(parents=True)
        (self.root / "data/local/tmp").mkdir(parents=True)
        self.program("getprop", f'cat "{self.root}/properties/$1" 2>/dev/null')
        (self.root / "properties").mkdir()
        self.set_properties()

    def set_properties(self) -> None:
        for name, value in self.properties.items():
            (self.root / "properties" / name).write_text(value + "\n")

    def program(self, name: str, script: str) -> None:
        """Puts a shell script in the place of a program of the phone."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def remove_program(self, name: str) -> None:
        (self.root / "bin" / name).unlink()

    @property
    def agents(self) -> list[str]:
        """The agents on it."""
        return sorted(path.name for path in (self.root / "data/local/tmp/autotune").glob("agent-*"))

    @property
    def pids(self) -> list[int]:
        """The processes that commands are."""
        with self.lock:
            return [process.pid for process in self._processes if process.poll() is None]

    def unplug(self) -> None:
        """Pulls the cable: the phone goes on, but everything that was connected ends."""
        with self.lock:
            self.is_plugged = False
            for end in self._sockets:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def plug(self) -> None:
        self.is_plugged = True

    def set_ready(self, is_ready: bool) -> None:
        """Whether it is done with starting."""
        (self.root / "properties/sys.boot_completed").write_text(f"{is_ready:d}\n")

    def kill_all(self) -> None:
        """Kills all processes, at once."""
        with self.lock:
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def reboot(self, seconds: float, clock_back_s: float) -> None:
        """Restarts the phone: it is back after some seconds, and takes as many to get ready.

        Its steady clock begins anew then, and the other is set back, for programs that use its own C library.
        """
        self.unplug()
        self.kill_all()
        self.environment |= {"FAKE_BOOTED_S": str(int(time.monotonic())), "FAKE_CLOCK_BACK_S": str(int(clock_back_s))}

        def come_back() -> None:
            time.sleep(seconds)
            self.set_ready(False)
            self.plug()
            time.sleep(seconds)
            self.set_ready(True)

        threading.Thread(target=come_back, daemon=True).start()

    def run(self, command: str, connection: socket.socket) -> None:
        """Runs a command, with its streams in packets; returns when it has ended or the cable is pulled."""
        self.commands.append(command)
        local = re.sub(r"(?<![\w.])/(?=(?:data|vendor|system)/)", f"{self.root}/", command)
        path = f"{self.root}/bin:{os.environ.get('PATH', os.defpath)}"
        with self.lock:
            if not self.is_plugged:
                return
            process = subprocess.Popen(
                ["/bin/sh", "-c", local], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**os.environ, **self.environment, "PATH": path}, start_new_session=True, cwd=self.root,
            )  # fmt: skip
            self._processes.add(process)
            self._sockets.add(connection)
        assert process.stdin and process.stdout and process.stderr
        turn = threading.Lock()
        pumps = [
            threading.Thread(target=self._send, args=(connection, turn, kind, stream), daemon=True)
            for kind, stream in ((STDOUT, process.stdout), (STDERR, process.stderr))
        ]
        taker = threading.Thread(target=self._take, args=(connection, process.stdin), daemon=True)
        for thread in (*pumps, taker):
            thread.start()
        for thread in pumps:
            thread.join()
        status = process.wait()
        with contextlib.suppress(OSError), turn:
            connection.sendall(struct.pack("<BIB", EXIT, 1, status if status >= 0 else 128 - status))
            connection.shutdown(socket.SHUT_RDWR)  # the client reads until the end
        with self.lock:
            self._processes.discard(process)
            self._sockets.discard(connection)

    def _send(self, connection: socket.socket, turn: threading.Lock, kind: int, stream: IO[bytes]) -> None:
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):
                with contextlib.suppress(OSError), turn:
                    connection.sendall(struct.pack("<BI", kind, len(data)) + data)

    def _take(self, connection: socket.socket, stdin: IO[bytes]) -> None:
        """Passes on the client's input; its end, and that of the link, end the program's."""
        with contextlib.suppress(OSError, ValueError, ConnectionError), stdin:
            while True:
                kind, size = struct.unpack("<BI", _exactly(connection, 5))
                data = _exactly(connection, size)
                if kind == CLOSE_STDIN:
                    return
                if kind == STDIN:
                    stdin.write(data)
                    stdin.flush()


class FakeAdb:
    """The server, on a port of its own, which ANDROID_ADB_SERVER_PORT names to clients. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.phones: dict[str, FakePhone] = {}
        self.requests: list[str] = []
        """All that was asked of it."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would else accept for the next server:
        self._accepting.join()
        self._listener.close()  # that may get the number of this descriptor
        for phone in self.phones.values():
            phone.unplug()
            phone.kill_all()

    def add(self, serial: str) -> FakePhone:
        """A new phone, plugged in."""
        self.phones[serial] = FakePhone(serial, self._folder / serial)
        return self.phones[serial]

    def restart(self) -> None:
        """Has all connections end, as when the server is killed and started again."""
        for phone in self.phones.values():
            phone.unplug()
            phone.plug()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        phone: FakePhone | None = None
        with connection, contextlib.suppress(OSError, ConnectionError):
            while True:
                request = _exactly(connection, int(_exactly(connection, 4), 16)).decode()
                self.requests.append(request)
                service = request.removeprefix("host:")
                if phone is not None and request.startswith("shell,v2,"):
                    connection.sendall(b"OKAY")
                    return phone.run(request.partition(":")[2], connection)
                if service == "version":
                    return _answer(connection, f"{VERSION:04x}")
                if service in ("devices", "devices-l"):
                    return _answer(connection, "".join(self._listed(is_long=service.endswith("-l"))))
                if service == "host-features":
                    return _answer(connection, "shell_v2,cmd")
                if found := re.fullmatch(r"host-serial:(.*):features", request):
                    return self._features(connection, found[1])
                found = re.fullmatch(r"(?:tport:serial|transport):(.*)", service)
                if not found or (phone := self._usable(connection, found[1])) is None:
                    if not found:
                        _fail(connection, f"unknown host service {request!r}")
                    return None
                connection.sendall(b"OKAY" + (struct.pack("<Q", 1) if service.startswith("tport") else b""))

    def _listed(self, *, is_long: bool) -> Iterator[str]:
        for number, phone in enumerate(self.phones.values(), start=1):
            if phone.is_plugged:
                state = "no permissions (user in plugdev group; are your udev rules wrong?); see [http://x]"
                state = state if phone.state == "no permissions" else phone.state
                more = f" product:fake model:{phone.model} device:fake transport_id:{number}" if is_long else ""
                yield f"{phone.serial:22} {state}{more}\n"

    def _features(self, connection: socket.socket, serial: str) -> None:
        if phone := self._usable(connection, serial):
            _answer(connection, phone.features)

    def _usable(self, connection: socket.socket, serial: str) -> FakePhone | None:
        """The phone; the client is told why where there is none."""
        phone = self.phones.get(serial)
        if phone is None or not phone.is_plugged:
            _fail(connection, f"device '{serial}' not found")
        elif phone.state != "device":
            _fail(connection, f"device {phone.state}")
        else:
            return phone
        return None


POCL = Path("/etc/OpenCL/vendors/pocl.icd")
LOADER = Path("/usr/lib/x86_64-linux-gnu/libOpenCL.so.1")


def missing_for_kernels() -> str:
    """Return what must be installed for phones with PoCL, whose agent is built without Android's NDK, or nothing."""
    if not (POCL.exists() and LOADER.exists()):
        return "Debian's pocl-opencl-icd is not installed"
    return "" if shutil.which("ld.lld") and shutil.which("clang") else "clang and lld are not installed"


def give_pocl(phone: FakePhone) -> None:
    """Gives a phone Debian's PoCL for its vendor's driver, and what programs for Android need."""
    give_bionic(phone, LOADER)
    phone.environment["OCL_ICD_VENDORS"] = str(POCL)


def give_bionic(phone: FakePhone, vendor_library: Path, compiler: str = "cc") -> None:
    """Gives a phone what programs for Android need: a dynamic linker, the libraries libc, libdl and libm by their names
    there, of which few functions differ from this system's, and an OpenCL library of a vendor."""
    libraries = phone.root / "vendor/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libOpenCL.so").symlink_to(vendor_library)
    sources = {"libc.so": _BIONIC, "libdl.so": "", "libm.so": ""}
    for name, source in sources.items():
        more = ["-lm", "-ldl"] if name == "libm.so" else []
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name},--no-as-needed", "-x", "c", "-", "-o",
             str(libraries / name), *more],
            input=source.encode(), check=True,
        )  # fmt: skip
    short = Path(f"/tmp/{abs(hash((phone.serial, os.getpid(), time.monotonic_ns()))) % 10**8:08}")
    short.mkdir()
    (short / "ld.so").symlink_to("/lib64/ld-linux-x86-64.so.2")
    linker = f"{short}//ld.so"
    assert len(linker) == len("/system/bin/linker64")
    chmod = shutil.which("chmod")
    phone.program("chmod", f'sed -i \'s#/system/bin/linker64#{linker}#\' "$2" && exec {chmod} "$@"')


_BIONIC = """
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <dlfcn.h>

struct action { int flags; void (*handler)(int); unsigned long mask; void (*restorer)(void); };

int *__errno(void) { return &errno; }

void __libc_init(void *stack, void (*at_exit)(void), int (*main)(int, char **, char **), void *const *structors) {
    long count = *(long *)stack;
    char **arguments = (char **)stack + 1;
    exit(main((int)count, arguments, arguments + count + 1));
}

int sigaction(int number, const struct sigaction *given, struct sigaction *former) {
    static int (*next)(int, const struct sigaction *, struct sigaction *);
    struct action *action = (struct action *)given;
    struct sigaction here;
    if (!next) next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    memset(&here, 0, sizeof here);
    if (action) { here.sa_flags = action->flags; here.sa_handler = action->handler; }
    return next(number, action ? &here : 0, 0);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    const char *back = getenv(which == CLOCK_REALTIME ? "FAKE_CLOCK_BACK_S" : "FAKE_BOOTED_S");
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (next(which, now)) return -1;
    if (back && (which == CLOCK_REALTIME || which == CLOCK_MONOTONIC || which == CLOCK_MONOTONIC_RAW))
        now->tv_sec -= atol(back);
    return 0;
}
"""


def _answer(connection: socket.socket, text: str) -> None:
    connection.sendall(f"OKAY{len(text):04x}{text}".encode())


def _fail(connection: socket.socket, text: str) -> None:
    connection.sendall(f"FAIL{len(text):04x}{text}".encode())


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data
