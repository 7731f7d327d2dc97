"""The arguments of every command, with their help texts."""

import argparse
from pathlib import Path
from typing import Any

import autotune
from autotune.cli.compile import DEFAULT_SIZE, compile_command
from autotune.cli.devices import devices_command
from autotune.cli.doctor import doctor_command
from autotune.cli.evaluate import HELD_OUT, evaluate_command
from autotune.cli.export import export_command
from autotune.cli.help import help_command
from autotune.cli.import_table import import_command
from autotune.cli.jobs import cancel_command, jobs_command, submit_command
from autotune.cli.lookup import lookup_command
from autotune.cli.misses import misses_command
from autotune.cli.options import (
    Parser,
    add_command,
    add_database,
    add_device,
    add_family,
    add_json,
    add_server,
    add_shape,
    add_shapes,
    add_wanted,
    add_wide,
    parse_budget,
    parse_holdout,
    parse_job,
    parse_jobs,
    parse_port,
    parse_sample,
    parse_seed,
    parse_share,
)
from autotune.cli.presets import presets_command
from autotune.cli.run import run_command
from autotune.cli.serve import serve_command
from autotune.cli.show import show_command
from autotune.cli.status import status_command
from autotune.cli.verify import verify_command
from autotune.cli.worker import worker_command, workers_command
from autotune.export.formats import FORMATS


def make_parser() -> Parser:
    parser = Parser(
        prog="autotune",
        description=autotune.__doc__,
        epilog="example: autotune run --device cpu --shape 512,512,512 --budget 2m\nmanual:  autotune help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"autotune {autotune.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_devices, _add_doctor, _add_presets, _add_run, _add_verify, _add_status, _add_compile, _add_evaluate,
        _add_lookup, _add_show, _add_misses, _add_export, _add_import, _add_help, _add_serve, _add_worker, _add_workers,
        _add_submit, _add_jobs, _add_cancel,
    ):  # fmt: skip
        add(subparsers)
    return parser


def _add_devices(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "devices",
        devices_command,
        "List every OpenCL device, and how far its clocks can be trusted.",
        "devices",
        "devices --no-clocks --json",
    )
    parser.add_argument("--no-clocks", action="store_true", help="ask the drivers only, run nothing on the devices")
    add_json(parser)


def _add_doctor(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        doctor_command,
        "Check which features of a device work, each in a child process; searches avoid those that do not.",
        "doctor",
        "doctor --device cpu --json",
    )
    add_device(parser, required=False)
    add_database(parser)
    add_json(parser)


def _add_presets(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "presets",
        presets_command,
        "List the presets, or the shapes of one.",
        "presets",
        "presets resnet50",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset whose shapes to list")
    add_json(parser)


def _add_run(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "run",
        run_command,
        "Search for the fastest kernel for each shape and store it. Repeating the command continues the search.",
        "run --device cpu --shape 512,512,512 --budget 2m",
        "run --device adreno --shape 64,3136,576 1000,1,2048 --trials 200 --algorithm microtile",
        "run --device mali --preset resnet50 --budget 1h --db phone.sqlite",
        "run --device mali --shape 512,512,512 --until-gain 1%",
        'run --device cpu --shape 512,512,512 "64,64,64 nt float16" --trials 50',
        "run --device cpu --family reduce --shape 64,1000 512,768,max --budget 1m",
        "run --device gpu --shapes shapes.txt --trials 100 --json > winners.json",
    )
    add_wanted(parser)
    parser.add_argument(
        "--misses", action="store_true", help="tune the sizes that lookups on this machine asked for and never found"
    )
    parser.add_argument(
        "--until-gain",
        metavar="SHARE",
        type=parse_share,
        help="end a shape's search once 25 more trials are expected to save less than this: 1%%, 0.01",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        default="ours",
        help="sampler that proposes configurations: ours, tpe, random, exhaustive, or the path of an Optuna sampler "
        "class, such as optuna.samplers:CmaEsSampler (ours)",
    )
    parser.add_argument(
        "--sampler-options", metavar="JSON", default="", help="arguments of that class: '{\"multivariate\": true}'"
    )
    parser.add_argument(
        "--retry-quarantined",
        action="store_true",
        help="begin with the configurations that crashed, hung or were running when an earlier run was killed; "
        "without this option they are never run again",
    )
    parser.add_argument(
        "--no-crossover",
        dest="crossover",
        action="store_false",
        help="skip the comparison of a few products with the host's BLAS at the end, which takes some seconds",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    add_wide(parser)
    add_database(parser)
    add_json(parser)
    add_server(parser, required=False)


def _add_verify(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "verify",
        verify_command,
        "Verify and time winners again; one that fails or lost its lead is replaced by the next best or the default.",
        "verify --device adreno",
        "verify --device cpu --shape 512,512,512 --json",
    )
    add_device(parser)
    add_family(parser, "all that are tuned if left out; gemm for shapes given here", default=None)
    add_shape(parser, "a tuned shape to verify, instead of all")
    add_shapes(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    add_database(parser)
    add_json(parser)


def _add_status(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "status",
        status_command,
        "Show for each device what is tuned, what is out of date, and how the trials ended.",
        "status",
        "status --device adreno --json",
    )
    add_device(parser, required=False)
    add_database(parser)
    add_json(parser)


def _add_compile(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "compile",
        compile_command,
        "Build kernels without running them, to find failures, spills and limits, which a later run then skips.",
        "compile --device adreno --algorithm microtile --sample 2000",
        "compile --device mali --shape 512,512,512 --jobs 8 --db phone.sqlite --json > builds.json",
    )
    add_device(parser)
    add_family(parser, "whose configurations to build")
    add_shape(parser, f"a shape to build the valid configurations of; {DEFAULT_SIZE} for every size if left out")
    parser.add_argument(
        "--algorithm", metavar="NAME", nargs="+", action="extend", default=[], help="build only these: naive, dot, ..."
    )
    parser.add_argument(
        "--sample", metavar="N", type=parse_sample, help="at most N configurations of each algorithm, drawn at random"
    )
    parser.add_argument("--seed", metavar="N", type=parse_seed, default=0, help="seed of the sample (0)")
    parser.add_argument(
        "--jobs", metavar="N", type=parse_jobs, help="number of build processes; one for each core by default"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    add_database(parser)
    add_json(parser)


def _add_evaluate(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "evaluate",
        evaluate_command,
        "Measure how much of the tuned speed is reached at held-out sizes, predicted from the others.",
        "evaluate --device cpu --holdout 10",
        "evaluate --device adreno --shapes others.txt --budget 10m --json > regret.json",
    )
    add_device(parser)
    add_family(parser, "whose sizes to hold out")
    add_shape(parser, "a tuned shape to hold out")
    add_shapes(parser)
    parser.add_argument(
        "--holdout", metavar="N", type=parse_holdout, help=f"hold out N of the tuned shapes ({HELD_OUT})"
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=parse_budget,
        help="tune these shapes afresh within this time and compare with that; they need not be tuned before",
    )
    parser.add_argument("--quiet", action="store_true", help="no line for each size, only the table")
    add_database(parser)
    add_json(parser)


def _add_lookup(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "lookup",
        lookup_command,
        "Print the configuration to use for a shape: measured, predicted, nearest measured, or the default.",
        "lookup --device cpu 512 512 512 --explain",
        "lookup --device adreno-730 64,3136,576 --table table.json --json",
        "lookup --device cpu 512 512 512 nt float16 batch=4",
        "lookup --device cpu --family reduce 512 768 max",
    )
    _add_asked(parser)
    parser.add_argument("--explain", action="store_true", help="show where the answer comes from and why")
    parser.add_argument("--tuned", action="store_true", help="fail if there is only the built-in default")


def _add_asked(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to look up, and in which table."""
    add_device(parser)
    add_family(parser, "that of the shape")
    parser.add_argument(
        "shape",
        metavar="SHAPE",
        nargs="+",
        help="sizes and words: M N K [nt] [float16] [batch=4] [constant=b], or M,N,K",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--table", metavar="FILE", type=Path, help="an exported table (JSON or SQLite)")
    add_database(source)
    add_json(parser)


def _add_show(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "show",
        show_command,
        "Show the kernel to use for a shape: source, build options, buffers, sizes, arguments, for your own host code.",
        "show --device adreno-730 64,3136,576",
        "show --device cpu 512 512 512 --source > gemm.cl",
        "show --device cpu --family reduce 512 768 max --json",
    )
    _add_asked(parser)
    parser.add_argument("--source", action="store_true", help="print the OpenCL source alone")


def _add_misses(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "misses",
        misses_command,
        "List the sizes that lookups on this machine asked for and never found; autotune run --misses tunes them.",
        "misses",
        "misses --clear",
    )
    parser.add_argument("--device", metavar="SLUG", help="only those of this device")
    parser.add_argument("--clear", action="store_true", help="forget them all")
    add_json(parser)


def _add_help(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "help",
        lambda options: help_command(make_parser(), options),
        "Show a topic of the manual, or how a command is used; without an argument, list the topics.",
        "help start",
        "help run",
        "help tuning | less",
    )
    parser.add_argument("topic", metavar="TOPIC", nargs="*", help="a topic of the manual, or a command")


def _add_export(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "export",
        export_command,
        "Write the tuning table of a device, or of all, for use in an application.",
        "export --device adreno-730 --format c --output autotune_adreno_730.h",
        "export --device adreno-730 --format c --kernels autotune_c --also adreno-740",
        "export --format csv --family reduce",
        "export --format json > tables.json",
    )
    add_device(parser, required=False)
    add_family(parser, "all that are stored if left out; CSV holds one", default=None)
    formats = "; ".join(f"{form.name}: {form.meaning}" for form in FORMATS.values())
    parser.add_argument("--format", choices=FORMATS, required=True, help=f"format of the table: {formats}")
    parser.add_argument("--output", metavar="FILE", type=Path, help="file to write; standard output if left out")
    parser.add_argument(
        "--kernels",
        metavar="DIR",
        type=Path,
        help="with --format c: folder to write the kernels to, with C99 code that builds and runs them",
    )
    parser.add_argument(
        "--also",
        metavar="SLUG",
        action="append",
        default=[],
        help="with --kernels: another device to include, from the measurements of its relatives",
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite files that autotune did not write, but never a changed main.c"
    )
    add_database(parser)


def _add_import(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "import",
        import_command,
        "Import an exported JSON table into the database; better measurements there are kept.",
        "import tables.json",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="file written by autotune export --format json")
    add_database(parser)


def _add_serve(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "serve",
        serve_command,
        "Serve jobs, lookups and tables over HTTP; autotune worker adds devices.",
        "serve",
        "serve --host 0.0.0.0 --token-file token --read-token-file read-token --db postgresql://...",
    )
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=parse_port, default=8765, help="port (8765; 0 for a free one)")
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="file with the administrators' token in its first line"
    )
    for scope, meaning in (
        ("read", "reading only"),
        ("submit", "reading, jobs and uploads"),
        ("worker", "workers only"),
    ):
        parser.add_argument(f"--{scope}-token-file", metavar="FILE", type=Path, help=f"file with a token for {meaning}")
    parser.add_argument("--public-url", metavar="URL", default="", help="address of a proxy in front of the service")
    add_database(parser)


def _add_worker(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "worker",
        worker_command,
        "Offer the devices of this machine to a service; makes outgoing connections only.",
        "worker --server http://10.0.0.5:8765 --token-file worker-token",
        "worker --server http://10.0.0.5:8765 --device adreno --name phone-3",
    )
    add_server(parser)
    parser.add_argument("--name", metavar="NAME", help="name of this machine, for people; its host name if left out")
    parser.add_argument("--device", metavar="D", action="append", default=[], help="offer only this device")


def _add_workers(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "workers",
        workers_command,
        "Administer the workers of a service.",
        "workers forget phone-3 --server http://10.0.0.5:8765 --token-file token",
    )
    parser.add_argument(
        "action", choices=["forget"], help="forget: let the name be enrolled again, for example after a new disk"
    )
    parser.add_argument("name", metavar="NAME", help="name of the worker")
    add_server(parser)


def _add_submit(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "submit",
        submit_command,
        "Submit shapes to tune to a service, without waiting for the results.",
        "submit --server http://10.0.0.5:8765 --device adreno-730 --shape 64,3136,576 --trials 200",
        "submit --server http://10.0.0.5:8765 --device mali --preset resnet50 --budget 2h",
    )
    add_wanted(parser)
    add_server(parser)
    add_json(parser)


def _add_jobs(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "jobs",
        jobs_command,
        "List the jobs of a service, or show or follow one of them.",
        "jobs --server http://10.0.0.5:8765",
        "jobs 3 --follow --server http://10.0.0.5:8765",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", type=parse_job, help="number of a job")
    parser.add_argument("--follow", action="store_true", help="show the job's progress until it ends, then its table")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table")
    add_wide(parser)
    add_server(parser)
    add_json(parser)


def _add_cancel(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "cancel",
        cancel_command,
        "Stop a job of a service after the running trial; its results are kept.",
        "cancel 3 --server http://10.0.0.5:8765",
    )
    parser.add_argument("job", metavar="JOB", type=parse_job, help="number of the job")
    add_server(parser)
