"""The command `autotune init`: write a first kernel file for a source of OpenCL C, or from a file of another tuner."""

import argparse
import json
import re
from pathlib import Path

from autotune.cli.arguments import argument, command, flag
from autotune.cli.output import print_json, print_note
from autotune.errors import UsageError

READY = Path(__file__).parent.parent / "command" / "ready"
"""The folder of command files for programs of others."""


@command(
    argument("source", metavar="SOURCE", type=Path, nargs="?", help="the source, such as kernel.cl, or a T1 file"),
    argument("-o", "--output", metavar="FILE", type=Path, help="the kernel file; beside the source unless given"),
    argument("--kernel", metavar="NAME", default="", help="its kernel function; the first unless given"),
    argument(
        "--for", dest="program", metavar="NAME", default="", help="copy the command file of a program, or `list` them"
    ),
    flag("--schema", "print the JSON schema of kernel files instead, for editors"),
    examples=(
        "init matmul.cl",
        "init kernels.cl --kernel softmax -o softmax.toml",
        "init convolution.T1.json",
        "init --for llama-bench",
        "init --schema > kernel.schema.json",
    ),
)
def init_command(options: argparse.Namespace) -> int:
    """Write a first kernel file for a source: its arguments, its numeric defines as parameters, and the work-group.

    A file that ends in .json is read as T1, the format in which Kernel Tuner and KTT describe a kernel.
    """
    if options.schema:
        from autotune.own.kernel_file.schema import schema

        print_json(schema())
        return 0
    if options.program and (options.source or options.output or options.kernel):
        raise UsageError("--for takes no source, no --output and no --kernel: it writes to the current folder")
    if options.program:
        return _copy_command(options.program)
    from autotune.kernels import is_family
    from autotune.own.kernel_file.draft import draft
    from autotune.own.kernel_file.format import REFERENCE
    from autotune.own.kernel_file.reading import read_kernel_file
    from autotune.own.kernel_file.signature import check_signatures
    from autotune.own.kernel_file.t1 import from_t1

    source: Path | None = options.source
    if source is None:
        raise UsageError("name the source of the kernel", hint="autotune init kernel.cl")
    path: Path = options.output or source.with_suffix(".toml")
    notes: list[str] = []
    if source.suffix == ".json":
        source, text, notes = from_t1(source)
    else:
        text = draft(source, options.kernel)
    name = re.search(r'(?m)^name = "(\w+)"$', text)
    if name and (is_family(name[1]) or name[1] == REFERENCE):
        text = text.replace(name[0], f'name = "{name[1][:25]}_kernel"', 1)
    if path.resolve().parent not in (source.resolve().parent, *source.resolve().parents):
        raise UsageError(f"{path} must lie in a folder that holds {source}", hint=f"-o {source.with_suffix('.toml')}")
    shown = source.resolve().relative_to(path.resolve().parent).as_posix()
    try:
        with path.open("x", encoding="utf-8") as file:
            line = f"source = {json.dumps(source.name, ensure_ascii=False)}"
            file.write(text.replace(line, f"source = {json.dumps(shown, ensure_ascii=False)}", 1))
    except FileExistsError as error:
        raise UsageError(f"{path} exists and was left as it is", hint="name another file with -o") from error
    for note in notes:
        print_note(f"not translated: {note}")
    try:
        check_signatures(read_kernel_file(path))
    except UsageError as error:
        print_note(f"not complete: {error.message}")
    print_note(f"wrote {path}: fill in what it marks, then autotune check {path}, and autotune tune {path} --device D")
    return 0


def _copy_command(name: str) -> int:
    """Copy a ready command file, and the templates that it names, to the current folder; or list them."""
    names = sorted(path.stem for path in READY.glob("*.toml"))
    if name == "list":
        print("\n".join(names))
        return 0
    if name not in names:
        raise UsageError(f"there is no command file {name[:80]!r}", hint=f"there are {', '.join(names)}")
    wanted = [READY / f"{name}.toml", *READY.glob(f"{name}*.j2")]
    for path in wanted:
        if Path(path.name).exists():
            raise UsageError(f"{path.name} exists and was left as it is", hint="move it away")
    for path in wanted:
        Path(path.name).write_bytes(path.read_bytes())
    files = " and ".join(path.name for path in wanted)
    print_note(f"wrote {files}: say where the program is, then autotune tune {name}.toml --device D")
    return 0
