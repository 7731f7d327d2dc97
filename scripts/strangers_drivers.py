"""The drivers and processors that scripts/strangers runs on: how each is installed, and how Python is started there.

Nothing is installed on the machine itself. Packages of Python go into virtual environments of the work folder, packages
of Debian's unstable release are unpacked into a folder that processes are rooted in. A processor is emulated by QEMU
for the whole tree of processes: the "interpreter" of such an environment is a shell script that starts the real one in
QEMU, and Python starts its children by that name.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_WHEELS = {"amd64": "x86_64", "arm64": "aarch64"}
_UNSTABLE = ("base-files", "libc6", "dash", "coreutils", "python3", "ocl-icd-libopencl1", "pocl-opencl-icd")
_V3 = "+lahf_lm,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+aes,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+abm,+movbe,+xsave"
PROXMOX_V3 = f"kvm64,{_V3}"
"""The type x86-64-v3 of a popular hypervisor: a Pentium 4 by its model, with the features of a Haswell."""


class UnavailableError(Exception):
    """A driver cannot be had here. The text says why."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """How Python is started on a driver."""

    python: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A driver or a processor. `slowness` multiplies budgets and limits."""

    name: str
    about: str
    place: "Callable[[Work], Place]"
    slowness: float = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """The folder for all that is prepared. Without `installs` only what is there already is used."""

    folder: Path
    installs: bool = False

    def made(self, name: str, make: Callable[[Path], None]) -> Path:
        """A folder that is made once. Raises UnavailableError."""
        path, stamp = self.folder / name, self.folder / f"{name}.done"
        if not stamp.exists():
            if not self.installs:
                raise UnavailableError(f"{name} is not prepared (scripts/strangers --prepare --work {self.folder})")
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            make(path)
            stamp.touch()
        return path

    def vendors(self, name: str, *libraries: str) -> dict[str, str]:
        """Has the loader find these drivers alone, and the PoCL of PyPI where the environment has it."""
        folder = self.folder / "vendors" / name
        folder.mkdir(parents=True, exist_ok=True)
        for library in libraries:
            (folder / f"{Path(library).name}.icd").write_text(f"{library}\n", encoding="utf-8")
        return {"OCL_ICD_VENDORS": str(folder)}


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns standard output. Raises UnavailableError with the last line of standard error."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of this file
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"{Path(command[0]).name} failed: {last}")
    return done.stdout


def requirements() -> list[str]:
    """What tuning needs, without a driver."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["tune"]]


def environment_with(work: Work, name: str, *packages: str) -> Path:
    """The interpreter of a virtual environment that has autotune's requirements and these packages."""

    def make(path: Path) -> None:
        run(sys.executable, "-m", "venv", str(path))
        run(str(path / "bin/python"), "-m", "pip", "install", "--quiet", *requirements(), *packages)

    return work.made(f"venv-{name}", make) / "bin/python"


def pocl_of_pypi(work: Work) -> Place:
    python = environment_with(work, "pocl", "pyopencl[pocl]")
    return Place(python=(str(python),), environment=work.vendors("none"))


def installed_driver(work: Work, *, vendor: str, package: str, **environment: str) -> Place:
    """A driver of the system, by the file that registers it."""
    registered = _SYSTEM_VENDORS / f"{vendor}.icd"
    if not registered.exists() and work.installs and os.geteuid() == 0 and shutil.which("apt-get"):
        run("apt-get", "install", "--yes", "--no-install-recommends", package)
    if not registered.exists():
        raise UnavailableError(f"{package} is not installed (apt install {package})")
    python = environment_with(work, "plain")
    library = registered.read_text(encoding="utf-8").strip()
    return Place(python=(str(python),), environment={**work.vendors(vendor, library), **environment})


def intel(work: Work) -> Place:
    """Intel's runtime for processors. The wheel registers a path of the machine it was built on."""
    python = environment_with(work, "intel", "intel-opencl-rt", "intel-cmplr-lib-rt")
    driver = python.parents[1] / "lib/libintelocl.so"
    if not driver.exists():
        raise UnavailableError("the wheel intel-opencl-rt has no lib/libintelocl.so")
    vendors = work.vendors("intel", str(driver))
    return Place(python=(str(python),), environment={**vendors, "LD_LIBRARY_PATH": str(driver.parent)})


def oclgrind(work: Work) -> Place:
    program = shutil.which("oclgrind")
    if program is None:
        raise UnavailableError("oclgrind is not installed (apt install oclgrind)")
    python = environment_with(work, "plain")
    return Place(python=(program, str(python)), environment=work.vendors("none"))


def unstable(work: Work, architecture: str, library: str = "pocl") -> Place:
    """A driver of Debian's unstable release, with the Python of that release, rooted in a folder of its packages."""
    root = work.made(f"unstable-{architecture}", partial(_unpack, work, architecture))
    packages = work.made(f"packages-{architecture}", partial(_install_for, root, architecture))
    vendors = "/etc/OpenCL/only"
    (root / vendors[1:]).mkdir(exist_ok=True, parents=True)
    for registered in (root / "etc/OpenCL/vendors").glob("*.icd"):
        only = root / vendors[1:] / registered.stem
        only.mkdir(exist_ok=True)
        shutil.copy(registered, only)
    native = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if native == architecture:
        emulator = ""
    elif native == "amd64":
        emulator = str(find_qemu(work, _WHEELS[architecture]))
    else:
        raise UnavailableError(f"nothing here runs programs for {architecture}")
    enter = work.folder / "enter.sh"
    enter.write_text(_ENTER, encoding="utf-8")
    python = ("unshare", "--user", "--map-root-user", "--mount", "sh", str(enter), str(root), "/usr/bin/python3")
    environment = {
        "BINDS": f"{REPOSITORY} {work.folder}", "EMULATOR": emulator, "PYTHONPATH": f"{REPOSITORY}:{packages}",
        "OCL_ICD_VENDORS": f"{vendors}/{library}", "RUSTICL_ENABLE": "llvmpipe", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    run(*python, "-c", "import pyopencl", environment=environment)
    return Place(python=python, environment=environment)


_ENTER = r"""
# enter.sh ROOT COMMAND ...: runs a command rooted in a folder, in a mount namespace of its own.
set -e
root=$1
shift
mount -t tmpfs none "$root/tmp"
for folder in /proc /sys /dev; do mount --rbind "$folder" "$root$folder"; done
for folder in $BINDS; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
if [ -n "$EMULATOR" ]; then
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":arm64:M::$elf:$mask:$EMULATOR:F" >/proc/sys/fs/binfmt_misc/register
fi
exec chroot "$root" "$@"
"""
"""A user namespace has its own binfmt_misc from Linux 6.7 on, so that no other process is emulated."""


def emulated(work: Work, *, name: str, cpu: str) -> Place:
    """The PoCL of PyPI on an emulated processor, as QEMU's -cpu takes it."""
    native = pocl_of_pypi(work)
    python = emulate(work.folder / f"emulated-{name}", find_qemu(work, "x86_64"), cpu, Path(native.python[0]))
    return Place(python=(str(python),), environment=native.environment)


def find_qemu(work: Work, machine: str) -> Path:
    """The newest emulator: that of Debian's unstable release, else that of this system."""
    newest = work.folder / f"unstable-amd64/usr/bin/qemu-{machine}"
    installed = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if work.installs:
        unstable_root = partial(_unpack, work, "amd64")
        work.made("unstable-amd64", unstable_root)
    if newest.exists():
        return newest
    if installed is None:
        raise UnavailableError(f"qemu-{machine} is not installed (apt install qemu-user-static)")
    return Path(installed)


def emulate(folder: Path, qemu: Path, cpu: str, python: Path) -> Path:
    """Makes a virtual environment like that of `python` whose interpreter, and its children, see another processor.

    QEMU looks into its prefix (-L) before it looks below /. There is /proc/cpuinfo, which drivers and autotune read
    beside what the processor says itself; /sys and the rest of /proc are linked, for those who open / and go on from
    there.
    """
    if platform.machine() != "x86_64":
        raise UnavailableError("processors of x86-64 are emulated on such a processor only")
    model = cpu.partition(",")[0]
    known = subprocess.run([str(qemu), "-cpu", "help"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    if model not in known.split():
        raise UnavailableError(f"{qemu.name} here does not know {model}")
    prefix, root = python.parents[1], folder / "root"
    for made in (folder / "bin", root / "proc"):
        made.mkdir(parents=True, exist_ok=True)
    for real in (Path("/sys"), *Path("/proc").iterdir()):
        link = root / real.relative_to("/")
        if real.name != "cpuinfo" and not real.name.isdigit() and not link.is_symlink():
            link.symlink_to(real)
    if not (folder / "lib").exists():
        (folder / "lib").symlink_to(prefix / "lib")
    configuration = prefix / "pyvenv.cfg"
    home = Path(os.path.realpath(python))
    text = configuration.read_text() if configuration.exists() else f"home = {home.parent}\n"
    (folder / "pyvenv.cfg").write_text(text, encoding="utf-8")
    wrapper = folder / "bin/python"
    start = shlex.join([str(qemu), "-L", str(root), "-cpu", cpu])
    wrapper.write_text(f'#!/bin/sh\nexec {start} -0 "$0" {shlex.quote(str(home))} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    cpuinfo = root / "proc/cpuinfo"
    if not cpuinfo.exists() or not cpuinfo.stat().st_size:
        told = json.loads(run(str(wrapper), "-I", "-c", _READ_CPUID))
        cpuinfo.write_text(_cpuinfo(told, os.cpu_count() or 1), encoding="ascii")
    return wrapper


_READ_CPUID = r"""
import ctypes, json, mmap
code = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
page = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
function = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(address)
def leaf(number):
    registers = (ctypes.c_uint32 * 4)()
    function(number, 0, ctypes.addressof(registers))
    return list(registers)
names = [0x80000002, 0x80000003, 0x80000004]
print(json.dumps({hex(n): leaf(n) for n in (0, 1, 7, 0x80000001, *names)}))
"""
"""Executes CPUID, whose answers are four registers a leaf: EAX, EBX, ECX, EDX."""
_EBX, _ECX, _EDX = 1, 2, 3
_FLAGS: dict[tuple[str, int], dict[int, str]] = {
    ("0x1", _EDX): {
        0: "fpu", 4: "tsc", 8: "cx8", 15: "cmov", 19: "clflush", 23: "mmx", 24: "fxsr", 25: "sse", 26: "sse2",
    },
    ("0x1", _ECX): {
        0: "pni", 1: "pclmulqdq", 9: "ssse3", 12: "fma", 13: "cx16", 19: "sse4_1", 20: "sse4_2", 22: "movbe",
        23: "popcnt", 25: "aes", 26: "xsave", 28: "avx", 29: "f16c", 30: "rdrand",
    },
    ("0x7", _EBX): {
        3: "bmi1", 5: "avx2", 8: "bmi2", 16: "avx512f", 17: "avx512dq", 19: "adx", 23: "clflushopt", 29: "sha_ni",
        30: "avx512bw", 31: "avx512vl",
    },
    ("0x80000001", _ECX): {0: "lahf_lm", 5: "abm", 6: "sse4a", 11: "xop", 16: "fma4"},
    ("0x80000001", _EDX): {29: "lm"},
}  # fmt: skip
"""Bits of CPUID by the names that Linux has for them."""


def _cpuinfo(cpuid: Mapping[str, Sequence[int]], cores: int) -> str:
    """What Linux would write into /proc/cpuinfo on that processor."""
    vendor = b"".join(cpuid["0x0"][register].to_bytes(4, "little") for register in (_EBX, _EDX, _ECX)).decode()
    parts = [register.to_bytes(4, "little") for leaf in range(2, 5) for register in cpuid[f"0x8000000{leaf}"]]
    version = cpuid["0x1"][0]
    family, model = version >> 8 & 15, version >> 4 & 15
    if family in {6, 15}:
        model += (version >> 16 & 15) << 4
    if family == 15:
        family += version >> 20 & 255
    flags = [name for (leaf, register), bits in _FLAGS.items() for bit, name in bits.items()
             if cpuid[leaf][register] >> bit & 1]  # fmt: skip
    entries = {
        "vendor_id": vendor, "cpu family": family, "model": model,
        "model name": b"".join(parts).split(b"\0")[0].decode().strip(), "stepping": version & 15,
        "cpu MHz": "2000.000", "cpu cores": cores, "flags": " ".join(flags),
    }  # fmt: skip
    return "".join(
        "".join(f"{key}\t: {value}\n" for key, value in {"processor": core, **entries}.items()) + "\n"
        for core in range(cores)
    )


def _unpack(work: Work, architecture: str, root: Path) -> None:
    """Unpacks packages of Debian's unstable release, without running any of their scripts."""
    if not _DEBIAN_KEYS.exists() or not shutil.which("apt-get"):
        raise UnavailableError("needs apt-get and Debian's keys (apt install debian-archive-keyring)")
    wanted = [*_UNSTABLE, *(["mesa-opencl-icd", "qemu-user"] if architecture == "amd64" else [])]
    state = work.folder / f"apt-{architecture}"
    for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg",
                   "var/cache/apt/archives/partial"):  # fmt: skip
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "var/lib/dpkg/status").touch()
    source = f"deb [signed-by={_DEBIAN_KEYS}] {_mirror()} unstable main\n"
    (state / "etc/apt/sources.list").write_text(source, encoding="utf-8")
    configuration = state / "apt.conf"
    configuration.write_text(
        f'Dir "{state}";\nDir::State::status "{state}/var/lib/dpkg/status";\nAPT::Architecture "{architecture}";\n'
        f'APT::Architectures {{ "{architecture}"; }};\nAPT::Sandbox::User "";\nAcquire::Check-Valid-Until "false";\n',
        encoding="utf-8",
    )
    apt = {"APT_CONFIG": str(configuration)}
    run("apt-get", "update", environment=apt)
    run("apt-get", "install", "--yes", "--no-install-recommends", "--download-only", *wanted, environment=apt)
    archives = sorted(
        (state / "var/cache/apt/archives").glob("*.deb"), key=lambda path: not path.name.startswith("base-f")
    )
    for archive in archives:  # base-files first: it makes /bin a link to /usr/bin
        run("dpkg-deb", "--extract", str(archive), str(root))
    shutil.rmtree(state)


def _mirror() -> str:
    """Where this system has its packages of Debian from."""
    fields = "$(ORIGIN) $(LABEL) $(REPO_URI)"
    for line in run("apt-get", "indextargets", "--format", fields, "Created-By: Packages").splitlines():
        if line.startswith("Debian Debian "):
            return line.split()[2]
    raise UnavailableError("this system has no packages of Debian's")


def _install_for(root: Path, architecture: str, folder: Path) -> None:
    """Installs autotune's requirements for the Python of another system, from wheels."""
    version = max(root.glob("usr/lib/python3.[0-9]*"), key=lambda path: int(path.name.split(".")[1])).name.removeprefix(
        "python"
    )
    platforms = [f"--platform=manylinux{tag}_{_WHEELS[architecture]}" for tag in ("2014", "_2_27", "_2_28")]
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--python-version", version,
        "--implementation", "cp", *platforms, "--only-binary=:all:", *requirements(),
    )  # fmt: skip


def strangers() -> list[Stranger]:
    """All that are known, the quickest first."""
    mesa = {"RUSTICL_ENABLE": "llvmpipe"}
    found = [
        Stranger(name="pocl-pypi", about="PoCL of PyPI", place=pocl_of_pypi),
        Stranger(
            name="pocl-debian", about="PoCL of Debian",
            place=partial(installed_driver, vendor="pocl", package="pocl-opencl-icd"),
        ),
        Stranger(
            name="rusticl", about="Mesa's Rusticl of Debian, llvmpipe", slowness=2,
            place=partial(installed_driver, vendor="rusticl", package="mesa-opencl-icd", **mesa),
        ),
        Stranger(name="intel", about="Intel's runtime of PyPI", place=intel),
        Stranger(name="oclgrind", about="Oclgrind", place=oclgrind, slowness=3),
        Stranger(
            name="pocl-unstable", about="PoCL of Debian unstable", place=partial(unstable, architecture="amd64")
        ),
        Stranger(
            name="rusticl-unstable", about="Mesa's Rusticl of Debian unstable, llvmpipe", slowness=2,
            place=partial(unstable, architecture="amd64", library="rusticl"),
        ),
    ]  # fmt: skip
    processors = {
        "nehalem": "Nehalem", "haswell": "Haswell", "skylake-server": "Skylake-Server", "epyc-rome": "EPYC-Rome",
        "epyc-milan": "EPYC-Milan", "epyc-genoa": "EPYC-Genoa", "max": "max",
        "raptor-lake": "max,vendor=GenuineIntel,family=6,model=183", "proxmox-v3": PROXMOX_V3,
        "zen-5": "max,vendor=AuthenticAMD,family=26,model=2",
    }  # fmt: skip
    for name, cpu in processors.items():
        about = f"PoCL of PyPI, emulated {cpu.split(',')[0] if name == cpu.lower() else name}"
        found.append(Stranger(name=name, about=about, place=partial(emulated, name=name, cpu=cpu), slowness=4))
    arm = partial(unstable, architecture="arm64")
    return [
        *found,
        Stranger(name="pocl-arm64", about="PoCL of Debian unstable, emulated arm64", place=arm, slowness=10),
    ]
