"""The parser of the command line: how a command declares its arguments, those that several have, and their values.

A module declares a command with the decorator `command`; `plugins.COMMANDS` lists these modules.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import autotune
from autotune.device.families import FAMILIES
from autotune.errors import UsageError, did_you_mean
from autotune.kernels import FILES, KERNEL_FILES, family_names, is_family
from autotune.plugins import COMMANDS, entry_points, part

MAX_SECONDS = 366 * 24 * 3600

Argument = Callable[[Any], object]
"""Adds an argument, or several, to a parser or a group of one."""


class Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._given: list[str] = []

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the commands that this parser knows."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return tuple(name for group in groups for name in group.choices)

    def error(self, message: str) -> NoReturn:
        invalid = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if invalid and (guess := did_you_mean(invalid[1], re.findall(r"[\w-]+", invalid[2]))):
            what = message.partition(":")[0].replace("argument COMMAND", "there is no command")
            raise UsageError(f"{what} {invalid[1]!r}", hint=guess)
        known = self._option_string_actions
        unknown = [word for word in self._given if word.startswith("--") and word.partition("=")[0] not in known]
        if unknown and "are required" in message:
            self._refuse(unknown)  # probably a misspelling of what is missing
        raise UsageError(message, hint=f"{self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. Raises UsageError, with a hint of the command, for arguments it does not know."""
        self._given = list(args or [])
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            self._refuse(unknown)
        return options, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        guesses = (did_you_mean(word.partition("=")[0], self._option_string_actions) for word in unknown)
        hint = next(filter(None, guesses), f"{self.prog} --help")
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", hint=hint)


@dataclass(frozen=True)
class Command:
    """A command: a function named `NAME_command`, whose docstring is its description in the help."""

    run: Callable[[argparse.Namespace], int]
    examples: Sequence[str]
    arguments: Sequence[Argument]

    @property
    def name(self) -> str:
        return self.run.__name__.removesuffix("_command")

    @property
    def summary(self) -> str:
        """The first sentence of the description, or the part of it before a colon or semicolon, in lower case."""
        short = re.split(r"[.:;](?:\s|$)", self.run.__doc__ or "", maxsplit=1)[0]
        return short[:1].lower() + short[1:]

    def add_to(self, subparsers: Any) -> None:
        meaning = " ".join((self.run.__doc__ or "").split())  # python -OO leaves docstrings out
        lines = [f"example{'s' if len(self.examples) > 1 else ''}:", *(f"  autotune {line}" for line in self.examples)]
        parser = subparsers.add_parser(self.name, help=self.summary, description=meaning, epilog="\n".join(lines))
        parser.set_defaults(command=self.run, prog=parser.prog)
        for add in self.arguments:
            add(parser)


def command(*arguments: Argument, examples: Sequence[str]) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Return a decorator that declares a command; it makes the function a `Command`."""
    return lambda run: Command(run, examples, arguments)


def make_parser() -> Parser:
    parser = Parser(prog="autotune", usage="autotune [-h] [-V] COMMAND ...", description=autotune.__doc__)
    parser.add_argument("-V", "--version", action="version", version=f"autotune {autotune.__version__}")
    subparsers = parser.add_subparsers(prog="autotune", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    lines: list[str] = []
    others = tuple(point.module for point in entry_points("autotune.commands").values())
    for group, modules in {**COMMANDS, "of other packages": others}.items():
        members = [one for name in modules for one in vars(import_module(name)).values() if isinstance(one, Command)]
        lines += [f"{group}:", *(f"  {one.name:11} {one.summary}" for one in members), ""] if members else []
        for one in members:
            one.add_to(subparsers)
    lines += ["example: autotune run --device cpu --shape 512,512,512 --budget 2m", "manual:  autotune help"]
    parser.epilog = "\n".join(lines)
    return parser


def argument(*names: str, **settings: Any) -> Argument:
    """Return what adds an argument; the parameters are those of `argparse.ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **settings)


def flag(name: str, meaning: str) -> Argument:
    return argument(name, action="store_true", help=meaning)


def file(name: str, meaning: str) -> Argument:
    return argument(name, metavar="FILE", type=Path, help=meaning)


def words(name: str, metavar: str, meaning: str) -> Argument:
    """Return what adds an argument of one or more words, which may be given repeatedly."""
    return argument(name, metavar=metavar, nargs="+", action="extend", default=[], help=meaning)


def repeated(name: str, metavar: str, meaning: str, **settings: Any) -> Argument:
    """Return what adds an argument of one word, which may be given repeatedly."""
    return argument(name, metavar=metavar, action="append", default=[], help=meaning, **settings)


def one_of(*arguments: Argument) -> Argument:
    """Return what adds arguments that exclude each other."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_one in arguments:
            add_one(group)

    return add


def family(meaning: str, *, default: str | None = "gemm") -> Argument:
    def add(parser: Any) -> None:  # only now, since a family's file may be wrong
        names = family_names()
        text = f"kernel family, {', '.join(names)} or a kernel file: {meaning}" + (f" ({default})" if default else "")
        parser.add_argument("--family", metavar="NAME", type=_family, default=default, help=text)

    return add


def _family(text: str) -> str:
    """Return the name of a family, or of that of a kernel file, which the process and its children know from then on.

    Raises UsageError.
    """
    if text.endswith(KERNEL_FILES):
        name: str = part("use_file")(Path(text)).name
        return name
    if not is_family(text):
        there = f"there are {', '.join(family_names())}; name your kernel's file, or list it in {FILES}"
        raise UsageError(f"--family: there is no kernel family {text[:80]!r}", hint=there)
    return text


def shape(meaning: str) -> Argument:
    return words(
        "--shape",
        "SHAPE",
        f"{meaning}; one value per shape, quoted if it has words: "
        '512,512,512 (or 512x512x512) "64,64,64 nt float16 batch=12" "1,4096,4096 constant=b"; '
        'for qgemm "2048,1,2048 q4_0"; for reduce and rows BATCH,CHANNELS[,operation[,dtype]]',
    )


def parse_duration(name: str, text: str) -> float:
    """Return the seconds of ``90s``, ``10m``, ``10min``, ``1.5h`` or ``1h30m``. Raises UsageError, which has `name`."""
    number = r"(\d{1,9}(?:\.\d{1,9})?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text.strip().lower(), re.ASCII)
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= MAX_SECONDS:
        raise UsageError(f"{name}: expected a duration such as 90s, 10m or 1h30m, got {text.strip()[:80]!r}")
    return total


def integer(name: str, least: int, most: int, meaning: str, **settings: Any) -> Argument:
    """Return what adds an argument with an integer. Parsing raises UsageError for anything else."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) or not least <= int(text) <= most:
            raise UsageError(f"{name}: expected an integer from {least} to {most}, got {text.strip()[:80]!r}")
        return int(text)

    return argument(name.lower(), metavar=name if name.isupper() else "N", type=parse, help=meaning, **settings)


def duration(name: str, meaning: str) -> Argument:
    return argument(name, metavar="TIME", type=partial(parse_duration, name), help=meaning)


def parse_rhythm(text: str) -> tuple[float, float]:
    """Return work and pause of ``8ms/33ms`` in nanoseconds. Raises UsageError."""
    number = r"(\d{1,6}(?:\.\d{1,6})?)(us|ms|s)"
    match = re.fullmatch(f"{number}/{number}", text.strip().lower(), re.ASCII)
    nanoseconds = {"us": 1e3, "ms": 1e6, "s": 1e9}
    work, pause = (float(match[at]) * nanoseconds[match[at + 1]] for at in (1, 3)) if match else (0.0, 0.0)
    if not (0 < work <= 1e10 and 0 < pause <= 1e10):
        raise UsageError(f"--rhythm: expected work and pause such as 8ms/33ms, at most 10s, got {text.strip()[:80]!r}")
    return work, pause


RHYTHM = argument(
    "--rhythm",
    metavar="WORK/PAUSE",
    type=parse_rhythm,
    help="times finalists in bursts with pauses between, as the application will run them: 8ms/33ms",
)


def seed(meaning: str) -> Argument:
    return integer("--seed", 0, 2**31 - 1, f"{meaning} (0)", default=0)


_DEVICE = f"slug, family ({', '.join(FAMILIES)}), platform:device numbers, or part of a name"
DEVICE = argument("--device", metavar="D", required=True, help=_DEVICE)
ANY_DEVICE = argument("--device", metavar="D", help=_DEVICE)
SHAPES = repeated(
    "--shapes",
    "FILE",
    "file with one shape per line: SHAPE [words of the shape] [xCOUNT] [label], # begins a comment; "
    "or CSV with the header m,n,k,calls,label; or a model in a GGUF file, of which the header is read",
    type=Path,
)
TOKENS = integer("--tokens", 1, 2**20, "of a model's step: 1 when it writes, more when it reads a prompt (1)")
DEPTH = integer("--depth", 1, 2**27, "keys in the cache of a preset of attention (4096, or those of the prompt)")
DATABASE = argument(
    "--db",
    metavar="X",
    help="SQLite file, or postgresql://user@host/database; by default a file in the user's data folder",
)
JSON = flag("--json", "print JSON instead of text")
LEARN_FROM = words(
    "--learn-from", "FILE", "results of other tuners to begin with: T4, or a cache of Kernel Tuner; never stored"
)
DEADLINE = duration(
    "--deadline",
    "hard end, so long after the start of the command: the search gets what fits before it; whatever still runs "
    "shortly before it is broken off, with exit status 124",
)
QUIET = flag("--quiet", "no progress, only the final table")
MARKDOWN = flag("--markdown", "print the table as Markdown")
WIDE = flag(
    "--wide",
    "show every column of the table, also those that do not fit the terminal: trials of this run, samples of "
    "the winner's time, verifications of its result, ...",
)
BUNDLED = (
    DEVICE,
    family("that of the shapes given here; a preset has its own"),
    shape("a shape to tune"),
    SHAPES,
    TOKENS,
    repeated("--preset", "NAME", "the products of a network; see autotune presets"),
    DEPTH,
    duration("--budget", "time for all shapes: 90s, 10m, 1h30m"),
    words("--algorithm", "NAME", "search only these: naive, dot, ..."),
    seed("seed of the proposals; inputs are drawn afresh in every run"),
)
"""The arguments that say what to tune, on which device, and for how long."""
WANTED = (*BUNDLED, integer("--trials", 1, 10**9, "at most N new trials for each shape"))
_SERVER = "address of autotune serve, such as http://10.0.0.5:8765"
TOKEN = file("--token-file", "file with the service's token in its first line")
SERVER = (argument("--server", metavar="URL", required=True, help=_SERVER), TOKEN)
ANY_SERVER = (argument("--server", metavar="URL", help=_SERVER), TOKEN)
