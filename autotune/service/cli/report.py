"""The command `autotune report`: what tuning gained on a device, as a page to keep or as drawings."""

import argparse
from pathlib import Path

from autotune.cli.arguments import DATABASE, DEVICE, argument, command, family, flag
from autotune.cli.export import opened_source
from autotune.cli.output import print_note, write
from autotune.errors import TableError, UsageError


@command(
    DEVICE,
    family("all that are tuned if left out", default=None),
    argument("-o", "--output", metavar="FILE", type=Path, help="page to write; standard output if left out"),
    argument("--svg", metavar="DIR", type=Path, help="folder to write the drawings to, for papers and web pages"),
    flag("--force", "overwrite files that autotune did not write"),
    DATABASE,
    examples=(
        "report --device adreno-730 -o report.html",
        "report --device nvidia-h200 --family gemm --svg pictures",
    ),
)
def report_command(options: argparse.Namespace) -> int:
    """Write what tuning gained on a device: one HTML file that needs no network, or drawings as SVG."""
    from autotune.export.contents import joined, read_tables, stored_families
    from autotune.export.formats import check_replaceable
    from autotune.service.report.document import write_report
    from autotune.service.report.pictures import pictures

    with opened_source(options) as (store, slug):
        families = [options.family] if options.family else stored_families(store, slug)
        tables = {name: read_tables(store, slug, name, trials=True) for name in families}
    if not any(table.winners for of_family in tables.values() for table in of_family):
        what = f"nothing of {options.family}" if options.family else "nothing"
        raise TableError(f"{what} is tuned on {slug} yet", hint=f"tune it with autotune run --device {slug}")
    files: dict[Path | None, str] = {}
    if options.output or not options.svg:
        files[options.output] = write_report(joined(list(tables.values())))
    for name, (table,) in tables.items() if options.svg else ():
        files |= {options.svg / file: drawn for file, drawn in pictures(table.device.slug, name, table.winners).items()}
    for path in files:
        if path and not options.force:
            check_replaceable(path)
    if options.svg:
        _make(options.svg)
    for path, text in files.items():
        write(path, text)
        if path:
            print_note(f"wrote {path}")
    return 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error
