"""Running a program with the recording library, and what it recorded."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from struct import iter_unpack
from types import FrameType
from typing import Any

from autotune.errors import AutotuneError, UsageError
from autotune.paths import user_cache_folder

SOURCE = Path(__file__).with_name("layer.c")
_OPTIONS = ("-std=gnu99", "-O2", "-shared", "-fPIC", "-pthread")
_COUNTER = "=4Q"
_BINARY_CACHES = {"PYOPENCL_NO_CACHE": "1"}
"""Variables that make libraries build programs from source, not from binaries that they keep."""
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""Signals by which somebody ends a program, which is then not run a second time."""
PRIVATE, LOCAL = 0x119E, 0x119C
_READ_ONLY_IMAGE, _CONSTANT, _IS_CONST = 0x11A0, 0x119D, 1


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument of a launch: memory, a value of `size` bytes, or local memory of that size."""

    name: str
    type: str
    address: int
    access: int
    qualifier: int
    size: int
    value: bytes
    memory: int = 0
    """Identifies a buffer or an image; `parent` the buffer of which it is a part from `offset` on."""
    parent: int = 0
    offset: int = 0
    flags: int = 0
    bytes: int = 0
    object: int = 0
    """Kind of the memory object, such as ``CL_MEM_OBJECT_BUFFER``."""
    order: int = 0
    channel: int = 0
    region: tuple[int, ...] = ()
    before: Path = Path()
    after: Path | None = None
    """The contents after the launch, if it changed them."""

    @property
    def is_read_only(self) -> bool:
        return (
            self.address == _CONSTANT
            or self.access == _READ_ONLY_IMAGE
            or (not self.order and bool(self.qualifier & _IS_CONST))
        )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with sizes that a program launched, `runs` times."""

    kernel: str
    source: Path
    options: str
    device: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    """Empty if the driver chose the work-group."""
    offset: tuple[int, ...]
    obstacle: str
    """Why there are no contents, if that is known."""
    runs: int
    time_ns: float
    """Of all runs together: those without a time count as the mean of the others."""
    folder: Path
    """Working directory of the program."""
    arguments: tuple[Argument, ...]
    """Empty unless the contents of one run are here."""

    @property
    def has_changed(self) -> bool:
        """Whether its contents are here, and it changed some: those that it left may be inputs or outputs."""
        return any(argument.after for argument in self.arguments)

    @property
    def identity(self) -> tuple[str, Path, str]:
        """What the launches of one kernel have in common."""
        return self.kernel, self.source, self.options


def record(command: Sequence[str], folder: Path, most_bytes: int) -> tuple[list[Launch], int]:
    """Run a program, and return its launches and its exit status, negative for a signal.

    Records are kept in `folder`, with up to `most_bytes` of contents. Raises UsageError when the program cannot be
    started, or where there is no compiler, and AutotuneError when it used no OpenCL.
    """
    library = build_library()
    status = 0
    # The loader's layers see every call, also those of libraries that the program loads itself.
    for loaded in ({"OPENCL_LAYERS": str(library)}, {"LD_PRELOAD": str(library)}):
        variables = {"AUTOTUNE_CAPTURE": str(folder), "AUTOTUNE_CAPTURE_BYTES": str(most_bytes)}
        status, was_ended = _run(command, {**loaded, **variables})
        if any(folder.iterdir()) or was_ended:
            break
    if not any(folder.iterdir()):
        raise AutotuneError(
            f"{command[0]} ended with status {status}, and called no OpenCL function that could be recorded",
            hint="it must load libOpenCL.so, and have the architecture of this machine",
        )
    launches = [launch for process in sorted(folder.iterdir()) for launch in _launches(process)]
    return sorted(launches, key=lambda launch: -launch.time_ns), status


def build_library() -> Path:
    """Return the recording library, compiled if it is not in the cache. Raises UsageError without a compiler."""
    if sys.platform != "linux":
        raise UsageError("programs can be captured on Linux only")
    compiler = find_compiler()
    text = SOURCE.read_bytes()
    command = [*compiler, *_OPTIONS]
    digest = hashlib.sha256(text + shlex.join(command).encode()).hexdigest()[:16]
    path = user_cache_folder() / f"capture-{digest}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    done = subprocess.run([*command, "-o", draft, SOURCE, "-ldl"], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        words = (done.stderr or "no message").strip().splitlines()[0]
        raise UsageError(f"{compiler[0]} cannot build the recording library: {words}", hint="name a C compiler in CC")
    draft.replace(path)
    return path


def find_compiler() -> list[str]:
    """Return the command of the C compiler. Raises UsageError when there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in (given,) if given else (["cc"], ["gcc"], ["clang"]):
        if shutil.which(command[0]):
            return command
    raise UsageError(
        f"there is no C compiler{f' {given[0]}' if given else ''}, which builds the recording library",
        hint="apt install gcc, or name one in CC",
    )


def _run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, bool]:
    """Run a program; return its exit status, and whether somebody ended it, directly or through this process."""
    for name in ("OPENCL_LAYERS", "LD_PRELOAD"):
        if name in variables and os.environ.get(name):
            variables = {**variables, name: f"{variables[name]}:{os.environ[name]}"}
    with _passing_signals() as passing:
        try:
            process = subprocess.Popen(command, env={**os.environ, **_BINARY_CACHES, **variables})  # noqa: S603
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
        passing.to(process)
        while True:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # the terminal sends it to the program, too
                passing.asked.append(signal.SIGINT)
            else:
                return status, bool(passing.asked) or -status in _ENDING


class _Passing:
    """Passes on signals to a program once there is one; the second kills it."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        """The signals that have come so far."""
        self._process: subprocess.Popen[bytes] | None = None

    def to(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        if self.asked:  # while it was being started
            process.send_signal(self.asked[0])

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.asked.append(number)  # first, as the next may come while this one is being sent
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if len(self.asked) > 1 else number)


@contextmanager
def _passing_signals() -> Iterator[_Passing]:
    """While entered, SIGTERM and SIGHUP end the program, and this process goes on; a second one kills the program."""
    passing = _Passing()
    numbers = [n for n in _ENDING if n != signal.SIGKILL and signal.getsignal(n) is not signal.SIG_IGN]
    former = {number: signal.signal(number, passing) for number in numbers}
    try:
        yield passing
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _launches(process: Path) -> Iterator[Launch]:
    """Yield what one process recorded; its last line may be cut off."""
    counters = [*iter_unpack(_COUNTER, (process / "counters.bin").read_bytes())]
    found: dict[int, Launch] = {}
    folder = Path()
    for line in _lines(process / "records.jsonl"):
        if "process" in line:
            folder = Path(_text(line["folder"]))
        elif "launch" in line:
            runs, timed, time_ns, _ = counters[line["launch"]]
            found[line["launch"]] = Launch(
                kernel=line["kernel"], source=process / f"program-{line['program']}.cl", options=_text(line["options"]),
                device=line["device"], global_size=tuple(line["global_size"]), local_size=tuple(line["local_size"]),
                offset=tuple(line["offset"]), obstacle=line["obstacle"], runs=runs,
                time_ns=time_ns * runs / max(timed, 1), folder=folder, arguments=(),
            )  # fmt: skip
        elif counters[line["contents"]][3]:
            number = line["contents"]
            arguments = (_argument(entry, process, f"{number}-{i}") for i, entry in enumerate(line["arguments"]))
            found[number] = replace(found[number], arguments=tuple(arguments))
    yield from (launch for launch in found.values() if launch.runs)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _text(recorded: str) -> str:
    """Return a text of which each byte was recorded as a character."""
    return recorded.encode("latin-1").decode("utf-8", "surrogateescape")


def _argument(entry: dict[str, Any], folder: Path, name: str) -> Argument:
    after = folder / f"{name}-after.bin"
    return Argument(
        **{
            **entry,
            "value": bytes.fromhex(entry["value"]),
            "region": tuple(entry.get("region", ())),
            "before": folder / f"{name}-before.bin",
            "after": after if after.exists() else None,
        }
    )
