"""The table of export formats, from which the command line, the service and the page take theirs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

from autotune.plugins import PARTS

if TYPE_CHECKING:
    from autotune.export.contents import DeviceTable

MARK = "<!-- Written by autotune. -->"
"""Follows the first tag of every picture and page that may be written again."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """An export format, and everything elsewhere that depends on it."""

    name: str
    """As ``--format`` and the service take it."""
    title: str
    """On the button of the page."""
    meaning: str
    """For the help of the command."""
    ending: str
    media_type: str
    beginning: bytes
    """Regular expression for how its files begin: the command overwrites no others."""
    writer: str = ""
    """``module:function`` that returns the text for device tables and a family; a copy of the database has none."""
    families: Literal["joined", "appended", "single"] = "joined"
    """Whether several families become one table, one table after the other, or cannot be written."""
    has_shipped: bool = False
    """Whether it holds what a lookup answers from: beneath the results of a database, the tables that ship as well."""
    has_trials: bool = False
    """Whether it tells how the trials of a device ended."""
    has_files: bool = False
    """Whether its text holds files by name, which the command writes into a folder."""
    has_rule: bool = False
    """Whether it holds the rule for defaults, so that a device without measurements has a table too."""
    has_folder: bool = False
    """Whether the command can write a folder of sources instead, see `export_package`."""

    def text(self, tables: "Sequence[DeviceTable]", family: str) -> str:
        module, _, function = self.writer.partition(":")
        write = cast("Callable[[Sequence[DeviceTable], str], str]", getattr(import_module(module), function))
        return write(tables, family)


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="json", title="JSON", meaning="everything that is known, for programs and autotune import",
            ending="json", media_type="application/json", beginning=rb'\s*\{\s*"format": "autotune',
            writer="autotune.export.text_tables:write_json",
        ),
        Format(
            name="csv", title="CSV", meaning="one family for spreadsheets",
            ending="csv", media_type="text/csv; charset=utf-8", beginning=rb"device,family,",
            writer="autotune.export.text_tables:write_csv", families="single",
        ),
        Format(
            name="markdown", title="Markdown", meaning="for people",
            ending="md", media_type="text/markdown; charset=utf-8",
            beginning=rb"## [^\n]*\n\n[^\n]*[Ff]amily `|Nothing is stored yet\.",
            writer="autotune.export.text_tables:write_markdown", families="appended",
        ),
        Format(
            name="c", title="C header", meaning="a C99 header for applications",
            ending="h", media_type="text/x-c; charset=utf-8", beginning=rb"/\* [^\n]*[Ww]ritten by autotune",
            writer="autotune.export.c_package:write_c", families="appended",
            has_shipped=True, has_rule=True, has_folder=True,
        ),
        Format(
            name="defines", title="Compiler options", meaning="a line of options such as -DTILE=16 for each shape",
            ending="txt", media_type="text/plain; charset=utf-8", beginning=rb"# Written by autotune",
            writer="autotune.export.choices:write_defines", families="appended", has_shipped=True,
        ),
        Format(
            name="files", title="JSON by size", meaning="JSON files by sizes: one for each family, device and types",
            ending="json", media_type="application/json", beginning=rb'\s*\{\s*"format": "autotune',
            writer="autotune.export.text_tables:write_files", has_shipped=True, has_files=True,
        ),
        Format(
            name="toml", title="TOML", meaning="the same in one file",
            ending="toml", media_type="application/toml", beginning=rb"# Written by autotune",
            writer="autotune.export.text_tables:write_toml", has_shipped=True,
        ),
        Format(
            name="sqlite", title="SQLite", meaning="the database with all trials",
            ending="sqlite", media_type="application/vnd.sqlite3",
            beginning=rb"SQLite format 3\0",  # the store checks its contents
        ),
        Format(
            name="html", title="HTML report", meaning="a page with pictures, as autotune report writes it",
            ending="html", media_type="text/html; charset=utf-8", beginning=rb"<!doctype html>\n" + MARK.encode(),
            writer=PARTS["write_report"], has_trials=True,
        ),
    )
}  # fmt: skip

TRIAL_FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="t4", title="T4", meaning="the trials of one shape, as other tuners write their results",
            ending="json", media_type="application/json", beginning=rb'\{"tool": "autotune',
        ),
        Format(
            name="kernel-tuner", title="Kernel Tuner", meaning="the same as a cache that Kernel Tuner replays",
            ending="json", media_type="application/json", beginning=rb'\{"tool": "autotune',
        ),
    )
}  # fmt: skip
"""What the command writes of the trials of one problem, which `own` writes."""
