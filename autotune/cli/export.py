"""The commands `export`, which writes tables, and `distill`, which makes a rule from tables of many devices."""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import ANY_DEVICE, DATABASE, argument, command, family, file, flag, integer, repeated, shape
from autotune.cli.lookup import named_device, named_or_absent_device
from autotune.cli.output import print_note, write
from autotune.device.machine import absent_device
from autotune.errors import DeviceSelectionError, MissingDatabaseError, UsageError
from autotune.export import export_package, export_table
from autotune.export.formats import FORMATS, TRIAL_FORMATS, Format
from autotune.lookup.json_table import Contents, read_contents
from autotune.paths import data_folder
from autotune.plugins import part

if TYPE_CHECKING:
    from autotune.distill.rules import Judged
    from autotune.export.contents import Beneath
    from autotune.store import Store

_MEANINGS = "; ".join(f"{form.name}: {form.meaning}" for form in (*FORMATS.values(), *TRIAL_FORMATS.values()))
KERNELS, DEPTH = 8, 5
SHOWN = 12
"""Devices or sizes that are listed, those with the slowest rules; the mean is that of all."""


@command(
    ANY_DEVICE,
    family("all that are stored if left out; CSV holds one", default=None),
    argument("--format", "--as", choices=(*FORMATS, *TRIAL_FORMATS), required=True, help=f"of the table: {_MEANINGS}"),
    shape("with --format t4 or kernel-tuner: the shape whose trials are written"),
    file("--output", "file to write, with --format files a folder; standard output if left out"),
    argument(
        "--kernels",
        metavar="DIR",
        type=Path,
        help="with --format c: folder to write the kernels to, with C99 code that builds and runs them",
    ),
    repeated("--also", "SLUG", "with --kernels: another device to include, from the measurements of its relatives"),
    flag("--force", "overwrite files that autotune did not write, but never a changed main.c"),
    DATABASE,
    examples=(
        "export --device adreno-730 --format c --output autotune_adreno_730.h",
        "export --device adreno-730 --format c --kernels autotune_c --also adreno-740",
        "export --format csv --family reduce",
        "export --format files --output tuned",
        "export --format json > tables.json",
        "export --format t4 --device adreno-730 --shape 512,512,512 --family gemm --output results.json",
    ),
)
def export_command(options: argparse.Namespace) -> int:
    """Write the tuning table of a device, or of all, for an application; or trials for other tuners."""
    if options.format in TRIAL_FORMATS:
        return _export_trials(options)
    form = FORMATS[options.format]
    _check_options(options, form)
    from autotune.export.contents import shipped_tables, stored_families
    from autotune.export.formats import check_replaceable

    if options.output and not options.force:
        check_replaceable(options.output)
    with opened_source(options, may_be_absent=form.has_rule) as (store, slug):
        beneath = shipped_tables(store, slug)
        families = [options.family] if options.family else stored_families(store, slug, beneath)
        if options.family is None and (untaken := [name for name in families if not form.takes(name)]):
            print_note(f"left out: {', '.join(untaken)}, of which the sources are rendered from templates")
        if form.has_folder:
            _print_left_out(store, slug, families, beneath)
        if options.kernels:
            kept = export_package(
                store, slug, families, options.kernels,
                beneath=beneath, also=options.also, force=options.force, listener=_now_and_then(),
            )  # fmt: skip
            for name in kept:
                print_note(f"left {options.kernels / name} as it is: it was changed")
        elif not form.writer:
            store.snapshot(options.output, slug)
        elif form.has_files and options.output:
            text = export_table(store, slug, options.family, form.name, beneath)
            _write_files(options.output, json.loads(text)["files"], force=options.force)
        else:
            write(options.output, export_table(store, slug, options.family, form.name, beneath))
    if options.kernels or options.output:
        print_note(f"wrote {options.kernels or options.output}")
    return 0


def _now_and_then() -> Callable[[str, int, int], None]:
    """Return a listener that prints every ten seconds how far the rendering of kernels has come."""
    from autotune.display.progress import PLAIN_LINE_EVERY_S

    said = time.monotonic()

    def progress(family: str, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= PLAIN_LINE_EVERY_S:
            said = time.monotonic()
            print_note(f"{family}: {done} of {total} configurations rendered")

    return progress


def _write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files by name. Raises UsageError when they cannot be written and, unless `force`, for others' files."""
    from autotune.export.formats import check_replaceable

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be a folder: {error.strerror}") from error
    for name in files:
        if not force:
            check_replaceable(folder / name)
    for name, text in files.items():
        write(folder / name, text)


def _check_options(options: argparse.Namespace, form: Format) -> None:
    """Raise UsageError for options that do not go together."""
    if options.shape:
        raise UsageError(f"a {form.title} table holds every shape", hint="leave out --shape")
    if not form.writer and options.output is None:
        raise UsageError(f"a {form.title} table can be written only to a file", hint="give --output FILE")
    if not form.writer and options.family:
        raise UsageError(f"a {form.title} table holds every kernel family", hint="leave out --family")
    if options.kernels and (not form.has_folder or options.output):
        raise UsageError("--kernels writes a folder of C files", hint="use --format c --kernels DIR, without --output")
    if options.also and not options.kernels:
        raise UsageError("--also needs --kernels", hint="give --kernels DIR")


def _export_trials(options: argparse.Namespace) -> int:
    """Write the trials of one problem. Raises UsageError for options that leave open which, or that say more."""
    from autotune.export.formats import check_replaceable

    title = TRIAL_FORMATS[options.format].title
    if missing := [option for option in ("device", "family") if not getattr(options, option)]:
        hint = f"give {' and '.join(f'--{option}' for option in missing)}"
        raise UsageError(f"{title} holds the trials of one device and family", hint=hint)
    if options.kernels or options.also:
        raise UsageError(f"{title} holds no kernels", hint="leave out --kernels and --also")
    if len(options.shape) > 1:
        raise UsageError(f"{title} holds the trials of one shape", hint="quote it if it has words")
    if options.output and not options.force:
        check_replaceable(options.output)
    with opened_source(options) as (store, slug):
        wanted = options.shape[0] if options.shape else None
        text: str = part("export_trials")(store, str(slug), options.family, wanted, options.format)
    write(options.output, text)
    if options.output:
        print_note(f"wrote {options.output}")
    return 0


def _print_left_out(store: "Store", slug: str | None, families: Sequence[str], beneath: "Beneath") -> None:
    from autotune.export.contents import best_winners

    found = [winner.problem for family in families for winner in best_winners(store, slug, family, beneath)]
    left_out = sum(problem != problem.plain for problem in found)
    if left_out:
        print_note(f"left out of C: {left_out} tuned with constant operands, which C code cannot ask for")


@contextlib.contextmanager
def opened_source(options: argparse.Namespace, *, may_be_absent: bool = False) -> "Iterator[tuple[Store, str | None]]":
    """Yield the store to export from, and the slug of the requested device; None for all devices.

    The store is the database or, if that has nothing of the device, the table shipped for it, or one without winners
    where the device `may_be_absent`. Raises DeviceSelectionError when neither has the device, and MissingDatabaseError
    when without a database no device is requested.
    """
    from autotune.store import Store

    shipped = {path.stem: path for path in sorted((data_folder("db") / "tables").glob("*.json"))}
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(Store.open(options.db, read_only=True))
        except MissingDatabaseError:
            if not options.device:
                raise
            known = []
        else:
            if not options.device:
                yield store, None
                return
            known = store.devices()
        stored = {device.slug for device in known}
        others = [absent_device(slug) for slug in shipped if slug not in stored]
        find = named_or_absent_device if may_be_absent else named_device
        device = find(options.device, [*known, *others])
        slug = device.slug
        if slug in stored:
            yield store, slug
        elif slug in shipped:
            yield stack.enter_context(_opened(read_contents(shipped[slug]))), slug
        elif may_be_absent:
            here = [] if device.presumed_from else [device]
            yield stack.enter_context(_opened(Contents(devices=here, winners=[]))), slug
        else:
            there = ", ".join(sorted(stored | shipped.keys()))
            raise DeviceSelectionError(f"nothing is stored for {slug}", hint=f"there are {there}; or tune it")


@contextlib.contextmanager
def _opened(contents: Contents) -> "Iterator[Store]":
    """Yield a temporary database with the contents of a JSON table."""
    from autotune.store import Store

    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "table.sqlite") as store:
        store.import_winners(contents.winners, contents.devices)
        yield store


@command(
    argument(
        "tables",
        metavar="TABLE",
        nargs="+",
        type=Path,
        help="JSON of autotune export, a SQLite file, or measurements of other tuners; see autotune help winners",
    ),
    family("that of autotune's tables", default=None),
    integer("--kernels", 1, 64, f"at most N kernels ({KERNELS})", default=KERNELS),
    integer("--depth", 0, 8, f"at most N questions from the root to a kernel ({DEPTH})", default=DEPTH),
    argument(
        "--output", "-o", metavar="FILE", type=Path,
        help="rule.h for C99, rule.py or rule.json; without it, only the report is printed",
    ),
    flag("--force", "overwrite a file that autotune did not write"),
    examples=("distill phone.json board.sqlite --family gemm --output rule.h", "distill clblast.json -o rule.py"),
)  # fmt: skip
def distill_command(options: argparse.Namespace) -> int:
    """Choose a few kernels from many tables, with a rule to pick one; the rule uses size and device."""
    from autotune.distill.cases import read_cases
    from autotune.distill.rules import distill, judge, mean_of
    from autotune.export.formats import check_replaceable
    from autotune.export.rule_text import write_rule

    if options.output and not options.force:
        check_replaceable(options.output)
    kernel, cases = read_cases(options.tables, options.family)
    rule = distill(kernel, cases, options.kernels, options.depth)
    judged = judge(cases, options.kernels, options.depth)
    text = write_rule(rule, judged, options.output.suffix) if options.output else ""
    devices = len({case.device for case in cases})
    print(f"{len(rule.kernels)} kernels for {kernel}, from {len(cases)} problems on {devices} devices")
    for left_out, lines in judged.items():
        print(f"\nrules made without a {left_out}, judged there: fractions of the best speed measured, geometric means")
        _print_judged(left_out, lines)
        mean = mean_of(lines)
        if mean.default is not None and mean.rule < mean.default:
            how = "measured" if mean.measured == 1 else f"measured in {mean.measured:.0%}, else estimated"
            print_note(f"where a {left_out} was left out, the default does better than the rule ({how})")
    if options.output:
        write(options.output, text)
        sys.stdout.flush()  # the report comes first, also in a file that both streams go to
        print_note(f"wrote {options.output}")
    return 0


def _print_judged(left_out: str, lines: "Sequence[Judged]") -> None:
    from autotune.display.console import Page
    from autotune.distill.rules import mean_of

    columns = (left_out, "rule", "nearest device", "default", "best of the kernels", "one kernel", "measured")
    rows = [
        (
            line.left_out, f"{line.rule:.3f}", f"{line.nearest:.3f}",
            "" if line.default is None else f"{line.default:.3f}",
            f"{line.best:.3f}", f"{line.single:.3f}", f"{line.measured:.0%}",
        )
        for line in [*sorted(lines, key=lambda line: line.rule)[:SHOWN], mean_of(lines)]
    ]  # fmt: skip
    Page(sys.stdout).table(columns, rows)
