"""The format of a command file: a TOML file that says what to run, what to vary, and what number to improve."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from autotune.codec import Bounds, Items, Pattern
from autotune.model.configuration import Value
from autotune.own.tuned_file import Faults, TunedFile, guess, names_in, read_tuned_file

MEMBER = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
"""A name or a number of a place in JSON."""
NANOSECONDS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
"""Of the units of a time."""
LIMIT_S = 600.0
MOST_WORDS = 256


@dataclass(frozen=True, kw_only=True)
class CommandEntry:
    """Commands, each a list of a program and its arguments: no shell reads them.

    In them, ``{name}`` stands for the value of a parameter or a size, and ``{{`` for a brace.
    """

    is_sparse: ClassVar = True

    run: Annotated[tuple[str, ...], Items(MOST_WORDS, 1)]
    """What is measured."""
    build: Annotated[tuple[str, ...], Items(MOST_WORDS)] = ()
    """Run before, unless the same command with the same `files` was built last."""
    check: Annotated[tuple[str, ...], Items(MOST_WORDS)] = ()
    """Run once a trial, before what is measured: results are wrong unless its exit status is 0."""
    expect: str = ""
    """A regular expression that the output of `check`, or of `run` where there is no `check`, must contain."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the environment for `run` and `check`; an empty text sets none."""
    folder: str = "."
    """Where the commands run, from the folder of the command file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write before building, each with the Jinja2 template that it is made of, by their paths from `folder`
    and from the folder of the command file."""
    limit_s: Annotated[float, Bounds(0, 86_400, excludes_least=True)] = LIMIT_S
    """Longest time of each command, in seconds."""


@dataclass(frozen=True, kw_only=True)
class MetricEntry:
    """The number to improve, from the output of `run`; without `pattern` and `json` it is how long that takes."""

    is_sparse: ClassVar = True

    pattern: str = ""
    """A regular expression with one group, which is the number; of several matches the last counts."""
    json: str = ""
    """The place of the number in output that is JSON, such as ``results[0].avg_ts``."""
    better: Annotated[str, Pattern("higher|lower", "must be higher or lower")] = "lower"
    unit: str = ""
    """Unit of the number: for a time ``s``, ``ms``, ``us`` or ``ns``."""


@dataclass(frozen=True, kw_only=True)
class CommandFile(TunedFile):
    """A command file. Constraints are expressions over sizes and parameters."""

    title: ClassVar = "command file"

    command: CommandEntry
    metric: MetricEntry = field(default_factory=MetricEntry)

    @property
    def texts_with_names(self) -> Iterator[tuple[str, str]]:
        """All texts in which braces stand for names, with their keys."""
        for key in ("build", "check", "run"):
            yield from ((f"command.{key}", word) for word in getattr(self.command, key))
        for name, text in self.command.environment.items():
            yield f"command.environment.{name}", text

    @property
    def inputs(self) -> list[Path]:
        """The templates of its files."""
        return [self.path.parent / name for name in self.command.files.values()]


def words_of(command: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Return the program and arguments of a command."""
    return [word.format_map(values) for word in command]


def read_command_file(path: Path) -> CommandFile:
    """Return the content of a command file. Raises UsageError, which names the file, the line and the key."""
    return read_tuned_file(CommandFile, path, _faults)


def _faults(file: CommandFile) -> Faults:
    known, used = {*file.sizes, *file.parameters}, set[str]()
    for key, text in file.texts_with_names:
        try:
            names = names_in(text)
        except ValueError:
            yield key, f"{text[:80]!r}: braces stand for names, such as {{THREADS}}, unless they are doubled"
            continue
        used |= names
        for name in sorted(names - known):
            yield key, f"{text[:80]!r} uses {name}, which is not known here{guess(name, known)}"
    for template in file.inputs:
        if not template.is_file():
            yield "command.files", f"there is no template {template}"
        else:
            used |= {*re.findall(r"\w+", template.read_text(encoding="utf-8", errors="replace"))}
    for name in file.parameters:
        if name not in used:
            yield f"parameters.{name}", "has no effect: no command, variable or template uses it"
    yield from _metric(file)


def _metric(file: CommandFile) -> Faults:
    metric = file.metric
    if metric.pattern and metric.json:
        yield "metric", "has both pattern and json: give one"
    if not re.fullmatch(f"(?:{MEMBER.pattern})*", metric.json):
        yield "metric.json", f"{metric.json[:80]!r} is not a place such as results[0].fps"
    for key, text in (("command.expect", file.command.expect), ("metric.pattern", metric.pattern)):
        try:
            groups = re.compile(text).groups
        except re.error as error:
            yield key, f"{text[:80]!r} is not a regular expression: {error}"
            continue
        if text and key == "metric.pattern" and groups != 1:
            yield key, f"{text[:80]!r} needs one group in parentheses, the number"
    if metric.better == "lower" and metric.unit not in ("", *NANOSECONDS):
        yield "metric.unit", f"a time is in {', '.join(NANOSECONDS)}, not {metric.unit[:20]!r}"
    if metric.better == "higher" and not (metric.pattern or metric.json):
        yield "metric.better", "how long a command runs is better lower: give pattern or json"
