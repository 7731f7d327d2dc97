"""The arguments of every command, with their help, and how each is read."""

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

import autotune
from autotune.cli import building, checking, commands, evaluating, exporting, run, service
from autotune.errors import UsageError
from autotune.family import family_names

MAX_SECONDS = 366 * 24 * 3600
FORMATS = ("json", "csv", "markdown", "c", "sqlite")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What a command does not know is told with the help of that command."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            prog = getattr(options, "prog", self.prog)
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", hint=f"{prog} --help")
        return options


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autotune",
        description=autotune.__doc__,
        epilog="example: autotune run --device cpu --shape 512,512,512 --budget 2m",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"autotune {autotune.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_devices, _add_presets, _add_run, _add_verify, _add_status, _add_compile, _add_evaluate, _add_lookup,
        _add_export, _add_import, _add_serve, _add_worker, _add_submit, _add_jobs, _add_cancel,
    ):  # fmt: skip
        add(subparsers)
    return parser


def _add(subparsers: Any, name: str, command: Any, meaning: str, *examples: str) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        name,
        help=meaning[0].lower() + meaning[1:].rstrip("."),
        description=meaning,
        epilog="\n".join([f"example{'s' if len(examples) > 1 else ''}:", *(f"  autotune {line}" for line in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    assert isinstance(parser, argparse.ArgumentParser)
    parser.set_defaults(command=command, prog=parser.prog)
    return parser


def _add_device(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--device",
        metavar="D",
        required=required,
        help="slug, family (adreno, mali, nvidia, amd, intel, cpu, gpu), platform:device numbers, or part of a name",
    )


def _add_family(parser: argparse.ArgumentParser, meaning: str, *, default: str | None = "gemm") -> None:
    parser.add_argument(
        "--family",
        metavar="NAME",
        choices=family_names(),
        default=default,
        help=f"kernel family, {' or '.join(family_names())}: {meaning}" + (f" ({default})" if default else ""),
    )


def _add_shape(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "--shape",
        metavar="SHAPE",
        nargs="+",
        action="extend",
        default=[],
        help=f"{meaning}; one value each, quoted where it has words: "
        '512,512,512 "64,64,64 nt float16 batch=12"; for reduce BATCH,CHANNELS[,operation[,dtype]]',
    )


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="one shape a line, SHAPE [words of the shape] [xCOUNT] [label], # begins a comment; "
        "or CSV with the header m,n,k,calls,label",
    )


def _add_database(parser: Any) -> None:
    parser.add_argument(
        "--db",
        metavar="X",
        help="SQLite file, or postgresql://user@host/database; by default a file in the user's data folder",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def _add_devices(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "devices",
        commands.devices_command,
        "List every OpenCL device, and how far its clocks can be trusted.",
        "devices",
        "devices --no-clocks --json",
    )
    parser.add_argument("--no-clocks", action="store_true", help="ask the drivers only, run nothing on the devices")
    _add_json(parser)


def _add_presets(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "presets",
        commands.presets_command,
        "List the presets, or the shapes of one.",
        "presets",
        "presets resnet50",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset whose shapes to list")
    _add_json(parser)


def _add_run(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "run",
        run.run_command,
        "Search the fastest kernel for each shape and keep it. The same command again continues.",
        "run --device cpu --shape 512,512,512 --budget 2m",
        "run --device adreno --shape 64,3136,576 1000,1,2048 --trials 200 --algorithm microtile",
        "run --device mali --preset resnet50 --budget 1h --db phone.sqlite",
        "run --device mali --shape 512,512,512 --until-gain 1%",
        'run --device cpu --shape 512,512,512 "64,64,64 nt float16" --trials 50',
        "run --device cpu --family reduce --shape 64,1000 512,768,max --budget 1m",
        "run --device gpu --shapes shapes.txt --trials 100 --json > winners.json",
    )
    _add_wanted(parser)
    parser.add_argument(
        "--misses", action="store_true", help="sizes that lookups on this machine asked for and never found"
    )
    parser.add_argument(
        "--until-gain",
        metavar="SHARE",
        type=parse_share,
        help="end a shape's search where 25 more trials are expected to save less than this: 1%%, 0.01",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        default="ours",
        help="what proposes configurations: ours, tpe, random, exhaustive, or a class of Optuna's kind by its path, "
        "such as optuna.samplers:CmaEsSampler (ours)",
    )
    parser.add_argument(
        "--sampler-options", metavar="JSON", default="", help='arguments of that class: \'{"multivariate": true}\''
    )
    parser.add_argument(
        "--retry-quarantined",
        action="store_true",
        help="begin with what crashed, hung or was running when an earlier run was killed; otherwise never run again",
    )
    parser.add_argument(
        "--no-crossover",
        dest="crossover",
        action="store_false",
        help="do not compare a few of the products with the host's BLAS, some seconds at the end",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    _add_database(parser)
    _add_json(parser)
    _add_server(parser, required=False)


def _add_verify(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "verify",
        checking.verify_command,
        "Verify and time what is tuned again; what fails or lost its lead gives way to the next best or the default.",
        "verify --device adreno",
        "verify --device cpu --shape 512,512,512 --json",
    )
    _add_device(parser)
    _add_family(parser, "all that are tuned when left out; gemm for shapes given here", default=None)
    _add_shape(parser, "a tuned shape to verify, instead of all")
    _add_shapes(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    _add_database(parser)
    _add_json(parser)


def _add_status(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "status",
        checking.status_command,
        "Tell for each device what is tuned, what is out of date, and how the trials ended.",
        "status",
        "status --device adreno --json",
    )
    _add_device(parser, required=False)
    _add_database(parser)
    _add_json(parser)


def _add_compile(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "compile",
        building.compile_command,
        "Build kernels without running them: failures, spills and limits, which a later run then skips.",
        "compile --device adreno --algorithm microtile --sample 2000",
        "compile --device mali --shape 512,512,512 --jobs 8 --db phone.sqlite --json > builds.json",
    )
    _add_device(parser)
    _add_family(parser, "whose configurations to build")
    _add_shape(
        parser, f"a shape whose valid configurations to build; {building.DEFAULT_SIZE} for every size when left out"
    )
    parser.add_argument(
        "--algorithm", metavar="NAME", nargs="+", action="extend", default=[], help="build these alone: naive, dot, ..."
    )
    parser.add_argument(
        "--sample", metavar="N", type=_sample, help="at most N configurations of each algorithm, drawn at random"
    )
    parser.add_argument("--seed", metavar="N", type=_seed, default=0, help="of the sample (0)")
    parser.add_argument("--jobs", metavar="N", type=_jobs, help="processes that build; one for each core by default")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    _add_database(parser)
    _add_json(parser)


def _add_evaluate(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "evaluate",
        evaluating.evaluate_command,
        "Measure how much of the tuned speed is reached at sizes left out, predicted from the others.",
        "evaluate --device cpu --holdout 10",
        "evaluate --device adreno --shapes others.txt --budget 10m --json > regret.json",
    )
    _add_device(parser)
    _add_family(parser, "whose sizes to hold out")
    _add_shape(parser, "a tuned shape to hold out")
    _add_shapes(parser)
    parser.add_argument(
        "--holdout", metavar="N", type=_holdout, help=f"hold out N of the tuned shapes ({evaluating.HELD_OUT})"
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=parse_budget,
        help="tune these shapes afresh in so much time, and compare with that: then they need not be tuned before",
    )
    parser.add_argument("--quiet", action="store_true", help="no line for each size, only the table")
    _add_database(parser)
    _add_json(parser)


def _add_lookup(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "lookup",
        commands.lookup_command,
        "Print the configuration to use for a shape: measured, predicted, nearest measured, or the default.",
        "lookup --device cpu 512 512 512 --explain",
        "lookup --device adreno-730 64,3136,576 --table table.json --json",
        "lookup --device cpu 512 512 512 nt float16 batch=4",
        "lookup --device cpu --family reduce 512 768 max",
    )
    _add_device(parser)
    _add_family(parser, "of the shape")
    parser.add_argument(
        "shape", metavar="SHAPE", nargs="+", help="sizes and words: M N K [nt] [float16] [batch=4], or M,N,K"
    )
    parser.add_argument("--explain", action="store_true", help="say where the answer comes from and why")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--table", metavar="FILE", type=Path, help="an exported table (JSON or SQLite)")
    _add_database(source)
    _add_json(parser)


def _add_export(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "export",
        exporting.export_command,
        "Write the tuning table of a device, or of all, for use in an application.",
        "export --device adreno-730 --format c --output autotune_adreno_730.h",
        "export --device adreno-730 --format c --kernels autotune_c --also adreno-740",
        "export --format csv --family reduce",
        "export --format json > tables.json",
    )
    _add_device(parser, required=False)
    _add_family(parser, "all that are stored when left out; CSV holds one", default=None)
    parser.add_argument("--format", choices=FORMATS, required=True, help="form of the table")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where to; standard output when left out")
    parser.add_argument(
        "--kernels",
        metavar="DIR",
        type=Path,
        help="with c: a folder of C99 with the kernels, and what builds and runs them",
    )
    parser.add_argument(
        "--also",
        metavar="SLUG",
        action="append",
        default=[],
        help="with --kernels: another device to answer for, by what its relatives measured",
    )
    _add_database(parser)


def _add_import(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "import",
        commands.import_command,
        "Take an exported JSON table into the database; better measurements stay.",
        "import tables.json",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="what autotune export --format json wrote")
    _add_database(parser)


def _add_wanted(parser: argparse.ArgumentParser) -> None:
    """What to tune, where, and for how long."""
    _add_device(parser)
    _add_family(parser, "of the shapes given here; a preset knows its own")
    _add_shape(parser, "a shape to tune for")
    _add_shapes(parser)
    parser.add_argument(
        "--preset", metavar="NAME", action="append", default=[], help="the products of a network; see autotune presets"
    )
    parser.add_argument("--trials", metavar="N", type=_trials, help="at most N new trials for each shape")
    parser.add_argument("--budget", metavar="TIME", type=parse_budget, help="time for all shapes: 90s, 10m, 1h30m")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="search these alone: naive, dot, ...",
    )
    parser.add_argument("--seed", metavar="N", type=_seed, default=0, help="of the search and its inputs (0)")


def _add_server(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--server", metavar="URL", required=required, help="of autotune serve, such as http://10.0.0.5:8765")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="whose first line is the service's token")


def _add_serve(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "serve",
        service.serve_command,
        "Serve jobs, lookups and tables over HTTP; devices come with autotune worker.",
        "serve",
        "serve --host 0.0.0.0 --token-file token --read-token-file read-token --db postgresql://...",
    )
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=_port, default=8765, help="port (8765; 0 for a free one)")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="token for everything, in its first line")
    parser.add_argument("--read-token-file", metavar="FILE", type=Path, help="token for reading only")
    _add_database(parser)


def _add_worker(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "worker",
        service.worker_command,
        "Offer the devices of this machine to a service; calls out only.",
        "worker --server http://10.0.0.5:8765 --token-file token",
        "worker --server http://10.0.0.5:8765 --device adreno --name phone-3",
    )
    _add_server(parser)
    parser.add_argument("--name", metavar="NAME", help="of this machine, for people; its host name when left out")
    parser.add_argument("--device", metavar="D", action="append", default=[], help="offer this one only")


def _add_submit(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "submit",
        service.submit_command,
        "Give a service something to tune, and leave.",
        "submit --server http://10.0.0.5:8765 --device adreno-730 --shape 64,3136,576 --trials 200",
        "submit --server http://10.0.0.5:8765 --device mali --preset resnet50 --budget 2h",
    )
    _add_wanted(parser)
    _add_server(parser)
    _add_json(parser)


def _add_jobs(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "jobs",
        service.jobs_command,
        "List the jobs of a service, or look at one, or follow it.",
        "jobs --server http://10.0.0.5:8765",
        "jobs 3 --follow --server http://10.0.0.5:8765",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", type=_job, help="the number of one")
    parser.add_argument("--follow", action="store_true", help="show its progress until it has ended, then its table")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    _add_server(parser)
    _add_json(parser)


def _add_cancel(subparsers: Any) -> None:
    parser = _add(
        subparsers,
        "cancel",
        service.cancel_command,
        "Stop a job of a service after the running trial; what it found stays.",
        "cancel 3 --server http://10.0.0.5:8765",
    )
    parser.add_argument("job", metavar="JOB", type=_job, help="its number")
    _add_server(parser)


def parse_budget(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1.5h`` or ``1h30m``. Raises UsageError."""
    number = r"(\d{1,9}(?:\.\d{1,9})?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s?)?", text.strip().lower(), re.ASCII)
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= MAX_SECONDS:
        raise UsageError(
            f"--budget: {text.strip()[:80]!r} is no time above zero and below a year", hint="90s, 10m, 1h30m"
        )
    return total


def parse_share(text: str) -> float:
    """A share above 0 and below 1 of ``1%`` or ``0.01``. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", text.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise UsageError(f"--until-gain: {text.strip()[:80]!r} is no share above 0 and below 1", hint="1%, 0.01")
    return share


def _integer(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) or not least <= int(text) <= most:
        raise UsageError(f"{name}: {text.strip()[:80]!r} is no integer from {least} to {most}")
    return int(text)


def _trials(text: str) -> int:
    return _integer("--trials", text, 1, 10**9)


def _sample(text: str) -> int:
    return _integer("--sample", text, 1, 10**9)


def _holdout(text: str) -> int:
    return _integer("--holdout", text, 1, 10**6)


def _jobs(text: str) -> int:
    return _integer("--jobs", text, 1, 1024)


def _seed(text: str) -> int:
    return _integer("--seed", text, 0, 2**31 - 1)


def _port(text: str) -> int:
    return _integer("--port", text, 0, 65535)


def _job(text: str) -> int:
    return _integer("JOB", text, 1, 2**31 - 1)
