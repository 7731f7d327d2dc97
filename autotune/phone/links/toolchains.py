"""Agents built from source, for this machine, phones and boards, by the compilers that are here; each is built once.

For Android any clang with LLVM's linker will do, such as the one in the package ``ziglang`` of PyPI: the agent is
linked against stubs of the phone's libraries, which are made of the declarations in ``bionic.h``. Android's NDK, where
it is installed, comes first.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import DeviceSelectionError
from autotune.paths import install_hint, locked, user_cache_folder
from autotune.phone.agent import FOLDER

BIONIC = Path(__file__).with_name("bionic.h")
"""What the agent may use of Android's C library: declarations for a compiler without its headers."""
START = Path(__file__).with_name("bionic_start.c")
"""Where a program for Android begins."""
LIMIT_S = 300.0
"""Limit for a compiler; zig's builds libraries of its own at its first start."""

_OWN = ("cc", "gcc", "clang")
"""Compilers of a machine for itself."""
_FLAGS = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-s")
_ANDROID_API = 24
_GLIBC = "2.17"
"""Version of the C library that agents for boards are linked against: that of CentOS 7."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of machine for which agents are built."""

    name: str
    machine: str
    """As `uname -m` tells it."""
    clang: str
    """Clang's name of the target, without a version of Android."""
    is_android: bool = False
    gcc: str = ""
    """The cross compiler of Debian and others; empty for Android."""

    @property
    def bits(self) -> int:
        return 64 if "64" in self.machine else 32


ANDROID = {
    target.name: target
    for target in (
        Target(name="arm64-v8a", machine="aarch64", clang="aarch64-linux-android", is_android=True),
        Target(name="armeabi-v7a", machine="armv7l", clang="armv7a-linux-androideabi", is_android=True),
        Target(name="x86_64", machine="x86_64", clang="x86_64-linux-android", is_android=True),
    )
}
"""Targets by Android's name of their ABI."""

LINUX = {
    target.machine: target
    for target in (
        Target(name="aarch64-linux", machine="aarch64", clang="aarch64-linux-gnu", gcc="aarch64-linux-gnu-gcc"),
        Target(name="armv7-linux", machine="armv7l", clang="arm-linux-gnueabihf", gcc="arm-linux-gnueabihf-gcc"),
        Target(name="x86_64-linux", machine="x86_64", clang="x86_64-linux-gnu", gcc="x86_64-linux-gnu-gcc"),
    )
}
"""Targets by what `uname -m` tells."""


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A way to build the agent for a target."""

    name: str
    compile: tuple[str, ...]
    """Command that compiles and links, or compiles only, where there is a `link`."""
    link: tuple[str, ...] = ()
    """LLVM's linker, which links for Android without its libraries."""
    flags: tuple[str, ...] = field(default=_FLAGS)

    def build(self, target: Target, sources: Sequence[Path], program: Path) -> None:
        """Build a program. Raises DeviceSelectionError with what the compiler says."""
        if not self.link:
            libraries = ("-ldl", "-lm", *(() if target.is_android else ("-lpthread",)))
            self._call([*self.compile, *self.flags, "-o", str(program), *map(str, sources), *libraries])
            return
        with tempfile.TemporaryDirectory(prefix="autotune-agent-") as folder:
            self._build_for_android(target, sources, program, Path(folder))

    def _build_for_android(self, target: Target, sources: Sequence[Path], program: Path, folder: Path) -> None:
        """Compile with the headers in `bionic.h`, and link against stubs of the libraries that it names."""
        for header in re.findall(r"^// header: (\S+)$", BIONIC.read_text(encoding="utf-8"), re.MULTILINE):
            (folder / header).parent.mkdir(exist_ok=True)
            (folder / header).write_text(f'#include "{BIONIC}"\n', encoding="utf-8")
        shared = ("-fPIC", "-fno-stack-protector", "-fno-builtin-bcmp", "-fno-emulated-tls")
        flags = (*(flag for flag in self.flags if flag != "-s"), *shared, "-ffunction-sections", "-nostdinc")
        objects = []
        for number, source in enumerate([*sources, START]):
            objects.append(str(folder / f"{number}.o"))
            self._call([*self.compile, *flags, "-isystem", str(folder), "-c", str(source), "-o", objects[-1]])
        libraries = [self._stub(folder, name, symbols) for name, symbols in bionic_symbols().items()]
        linker = "/system/bin/linker64" if target.bits == 64 else "/system/bin/linker"
        self._call(
            [
                *self.link,
                *("-pie", "-s", "--gc-sections", "--no-undefined", "--as-needed", "-e", "_start"),
                *("--hash-style=both", "-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "max-page-size=16384"),
                *("--dynamic-linker", linker, "-o", str(program), *objects, *libraries),
            ]
        )

    def _stub(self, folder: Path, name: str, symbols: Sequence[str]) -> str:
        """Return a library that has the symbols, to link against."""
        source, stub = folder / f"{name}.c", folder / name
        data = ("stdin", "stdout", "stderr", "environ")
        lines = [f"void *{symbol};" if symbol in data else f"void {symbol}(void) {{}}" for symbol in symbols]
        source.write_text("\n".join(lines), encoding="utf-8")
        compiled = str(folder / f"{name}.o")
        self._call(
            [*self.compile, "-w", "-O1", "-ffreestanding", "-fno-builtin", "-fPIC", "-c", str(source), "-o", compiled]
        )
        self._call([*self.link, "-shared", "-soname", name, "-o", str(stub), compiled])
        return str(stub)

    def _call(self, command: Sequence[str]) -> None:
        try:
            done = subprocess.run(  # noqa: S603 - a compiler of this machine
                command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceSelectionError(f"{self.name} cannot build the agent: {error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            told = lines[0].strip()[:300] if lines else f"exit status {done.returncode}"
            raise DeviceSelectionError(f"{self.name} cannot build the agent: {told}")


_DECLARED = re.compile(r"(?!typedef|static|#)(?:extern .*?\b(\w+);|[A-Za-z_][\w *]*?\b(\w+)\(.*\).*;)$")


def bionic_symbols() -> dict[str, list[str]]:
    """Return the symbols of Android's libraries that agents may use, by the library's name, from `bionic.h`."""
    found: dict[str, list[str]] = {}
    library = "libc.so"
    for line in BIONIC.read_text(encoding="utf-8").splitlines():
        if changed := re.fullmatch(r"// library: (\S+)", line):
            library = changed[1]
        elif symbol := _DECLARED.match(line):
            found.setdefault(library, []).append(symbol[1] or symbol[2])
    return found


def sources() -> list[Path]:
    """Return the C files of the agent."""
    return sorted(FOLDER.glob("*.c"))


def source_digest() -> str:
    """Return a digest of everything that agents are built from."""
    digest = hashlib.sha256()
    for path in [*sorted(FOLDER.glob("*.[ch]")), BIONIC, START]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build_agent(target: Target) -> Path:
    """Return the agent for a target, from the cache or built now by the first compiler that is there.

    Raises DeviceSelectionError when there is none, or the build fails.
    """
    compiler = next(_compilers(target), None)
    if compiler is None:
        raise DeviceSelectionError(f"no compiler here builds the agent for {target.name}", hint=_mend(target))
    return _built(target, compiler)


def build_here() -> Path:
    """Return the agent for this machine, as `build_agent` does, built by its own compiler."""
    name = next(filter(shutil.which, _OWN), None)
    if name is None:
        hint = f"install one of {', '.join(_OWN)}"
        raise DeviceSelectionError("there is no C compiler to build the agent with", hint=hint)
    machine = platform.machine()
    return _built(
        Target(name=f"here-{machine}", machine=machine, clang=""),
        Compiler(name=name, compile=(name,)),
    )


def _built(target: Target, compiler: Compiler) -> Path:
    stamp = "\0".join((source_digest(), target.name, compiler.name, *compiler.compile, *compiler.link, *compiler.flags))
    program = user_cache_folder() / "agents" / f"{target.name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if program.exists():  # also in a folder that is read-only
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with locked(program):
        if not program.exists():
            draft = program.with_name(f".{program.name}.{os.getpid()}")
            try:
                compiler.build(target, sources(), draft)
                draft.replace(program)
            finally:
                draft.unlink(missing_ok=True)
    return program


def can_build(target: Target) -> bool:
    """Return whether a compiler for the target is here."""
    return next(_compilers(target), None) is not None


def _compilers(target: Target) -> Iterator[Compiler]:
    """Yield the compilers of this machine for a target, the best first."""
    zig = (sys.executable, "-m", "ziglang") if find_spec("ziglang") else (shutil.which("zig") or "",)
    if not target.is_android:
        if zig[0]:
            yield Compiler(name="zig", compile=(*zig, "cc", "-target", f"{target.clang}.{_GLIBC}"))
        own = _OWN if target.machine == platform.machine() and sys.platform == "linux" else ()
        for name in (target.gcc, *own):
            if found := shutil.which(name):
                yield Compiler(name=name, compile=(found,))
        return
    triple = f"{target.clang}{_ANDROID_API}"
    for ndk in _ndks():
        for found in sorted(ndk.glob(f"toolchains/llvm/prebuilt/*/bin/{triple}-clang*")):
            if found.suffix in ("", ".cmd") and not found.name.endswith("++"):
                yield Compiler(name=f"the NDK in {ndk}", compile=(str(found),))
                break
    if zig[0]:
        yield Compiler(name="zig", compile=(*zig, "clang", f"--target={triple}"), link=(*zig, "ld.lld"))
    clang, lld = shutil.which("clang"), shutil.which("ld.lld")
    if clang and lld:
        yield Compiler(name="clang", compile=(clang, f"--target={triple}"), link=(lld,))


def _ndks() -> Iterator[Path]:
    """Yield the folders of Android's NDK: those that variables name, then those of an SDK, newest first."""
    for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    homes = [os.environ[name] for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT") if os.environ.get(name)]
    usual = ("~/Android/Sdk", "~/Library/Android/sdk", "~/AppData/Local/Android/Sdk", "/usr/lib/android-sdk")
    for home in [*homes, *map(os.path.expanduser, usual)]:
        folders = Path(home).glob("ndk/*")
        yield from sorted(folders, key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.name)], reverse=True)
        yield Path(home) / "ndk-bundle"


def _mend(target: Target) -> str:
    zig = f"install zig's compiler ({install_hint('phone')}, or pip install ziglang)"
    if target.is_android:
        clang = "clang and lld (Debian, Ubuntu: apt install clang lld)"
        return f"{zig}; or {clang}; or Android's NDK, and set ANDROID_NDK_HOME"
    return f"{zig}; or {target.gcc} (Debian, Ubuntu: apt install gcc-{target.gcc.removesuffix('-gcc')})"
