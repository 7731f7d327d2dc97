"""The command `autotune capture`: write kernel files from the kernels that a program launches."""

import argparse
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import JSON, argument, command, integer
from autotune.cli.output import print_json, print_note
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.own.capture.recording import Launch

_MEBIBYTE = 2**20


@command(
    argument(
        "-o", dest="folder", metavar="FOLDER", type=Path, default=Path("captured"), help="a new folder (captured)"
    ),
    integer("--top", 1, 1000, "kernels to write, those that take most time (3)", default=3),
    integer("--memory", 1, 2**30, "MiB of contents to copy at most (1024)", default=1024),
    JSON,
    argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="the program, with its arguments"),
    examples=("capture -- ./app --size 512", "capture -o kernels --top 5 -- python app.py"),
)
def capture_command(options: argparse.Namespace) -> int:
    """Run a program and write files of its slowest OpenCL kernels; autotune tune reads them.

    Each gets a folder with its source, and with the contents of its arguments before and after one launch.
    """
    from autotune.own.capture.recording import record

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("there is no program to run", hint="autotune capture -- ./app arguments")
    folder: Path = options.folder
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", hint="name a new folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".records-", dir=folder.resolve()) as records:
        launches, status = record(program, Path(records), options.memory * _MEBIBYTE)
        rows = _write(launches, folder, options.top)
    if status:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        print_note(f"autotune: {program[0]} ended {how}; what it launched before is recorded")
    if options.json:
        print_json(rows)
    else:
        _print(rows, launches)
    return 0


def _write(launches: "list[Launch]", folder: Path, top: int) -> list[dict[str, object]]:
    """Write the kernels that take most time, and return what to print of each."""
    from autotune.kernels import is_family
    from autotune.own.capture.conversion import Conversion, Unsuitable

    by_kernel: dict[object, list[Launch]] = {}
    for launch in launches:
        by_kernel.setdefault(launch.identity, []).append(launch)
    total_ns = sum(launch.time_ns for launch in launches) or 1.0
    order = sorted(by_kernel.values(), key=lambda group: -sum(launch.time_ns for launch in group))
    rows: list[dict[str, object]] = []
    for group in order[:top]:
        chosen = max(group, key=lambda launch: (launch.has_changed, bool(launch.arguments)))
        time_ns = sum(launch.time_ns for launch in group)
        name = re.sub(r"[^a-z0-9_]", "_", chosen.kernel.lower()).lstrip("_0123456789")[:20] or "kernel"
        if is_family(name) or name == "reference":
            name += "_kernel"
        place = folder / name
        for number in range(2, 1000):
            place = folder / name if not place.exists() else folder / f"{name}_{number}"
            if not place.exists():
                break
        row: dict[str, object] = {
            "kernel": chosen.kernel, "runs": sum(launch.runs for launch in group), "time_ns": round(time_ns),
            "share": time_ns / total_ns, "global_size": chosen.global_size, "local_size": chosen.local_size,
            "sizes": len(group), "file": "", "parameters": [], "obstacle": "",
        }  # fmt: skip
        meaning = f"{chosen.kernel}: {time_ns / total_ns:.0%} of the time of the program's kernels."
        try:
            conversion = Conversion(chosen, place.name, meaning)
            row |= {"file": str(conversion.write(place)), "parameters": [*conversion.parameters]}
        except (Unsuitable, UsageError) as error:
            shutil.rmtree(place, ignore_errors=True)
            row["obstacle"] = error.message
        rows.append(row)
    return rows


def _print(rows: list[dict[str, object]], launches: "list[Launch]") -> None:
    total_ms = sum(launch.time_ns for launch in launches) / 1e6
    print(f"{sum(launch.runs for launch in launches)} launches took {total_ms:.1f} ms")
    for row in rows:
        share, time_ms = float(str(row["share"])), float(str(row["time_ns"])) / 1e6
        print(f"{share:6.1%}  {time_ms:9.2f} ms  {row['runs']!s:>6} launches  {row['kernel']}")
        if row["obstacle"]:
            print(f"        not written: {row['obstacle']}")
        else:
            print(f"        {row['file']}: {', '.join(map(str, row['parameters']))}")  # type: ignore[call-overload]
    written = [row["file"] for row in rows if row["file"]]
    if written:
        print(f"next: autotune check {written[0]}, then autotune tune {written[0]}")
