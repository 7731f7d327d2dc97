"""Shared by the commands: the parser, options that several commands have, and the parsing of option values."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import UsageError, did_you_mean
from autotune.kernels import family_names

MAX_SECONDS = 366 * 24 * 3600


class Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
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
        unknown = [word for word in self._given if word.startswith("--") and not self._knows(word)]
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

    def _knows(self, word: str) -> bool:
        return word.partition("=")[0] in self._option_string_actions

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        guesses = (did_you_mean(word.partition("=")[0], self._option_string_actions) for word in unknown)
        hint = next(filter(None, guesses), f"{self.prog} --help")
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", hint=hint)


def add_command(subparsers: Any, name: str, command: Any, meaning: str, *examples: str) -> argparse.ArgumentParser:
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


def add_device(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--device",
        metavar="D",
        required=required,
        help="slug, family (adreno, mali, nvidia, amd, intel, cpu, gpu), platform:device numbers, or part of a name",
    )


def add_family(parser: argparse.ArgumentParser, meaning: str, *, default: str | None = "gemm") -> None:
    parser.add_argument(
        "--family",
        metavar="NAME",
        choices=family_names(),
        default=default,
        help=f"kernel family, {' or '.join(family_names())}: {meaning}" + (f" ({default})" if default else ""),
    )


def add_shape(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "--shape",
        metavar="SHAPE",
        nargs="+",
        action="extend",
        default=[],
        help=f"{meaning}; one value per shape, quoted if it has words: "
        '512,512,512 (or 512x512x512) "64,64,64 nt float16 batch=12" "1,4096,4096 constant=b"; '
        "for reduce BATCH,CHANNELS[,operation[,dtype]]",
    )


def add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="file with one shape per line: SHAPE [words of the shape] [xCOUNT] [label], # begins a comment; "
        "or CSV with the header m,n,k,calls,label",
    )


def add_database(parser: Any) -> None:
    parser.add_argument(
        "--db",
        metavar="X",
        help="SQLite file, or postgresql://user@host/database; by default a file in the user's data folder",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_wide(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wide",
        action="store_true",
        help="show every column of the table, also those that do not fit the terminal: trials of this run, samples of "
        "the winner's time, verifications of its result, ...",
    )


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to tune, on which device, and for how long."""
    add_device(parser)
    add_family(parser, "that of the shapes given here; a preset has its own")
    add_shape(parser, "a shape to tune")
    add_shapes(parser)
    parser.add_argument(
        "--preset", metavar="NAME", action="append", default=[], help="the products of a network; see autotune presets"
    )
    parser.add_argument("--trials", metavar="N", type=parse_trials, help="at most N new trials for each shape")
    parser.add_argument("--budget", metavar="TIME", type=parse_budget, help="time for all shapes: 90s, 10m, 1h30m")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="search only these: naive, dot, ...",
    )
    parser.add_argument("--seed", metavar="N", type=parse_seed, default=0, help="seed of the search and its inputs (0)")


def add_server(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--server", metavar="URL", required=required, help="address of autotune serve, such as http://10.0.0.5:8765"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="file with the service's token in its first line"
    )


def parse_budget(text: str) -> float:
    """Return the seconds of ``90s``, ``10m``, ``10min``, ``1.5h`` or ``1h30m``. Raises UsageError."""
    number = r"(\d{1,9}(?:\.\d{1,9})?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text.strip().lower(), re.ASCII)
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= MAX_SECONDS:
        raise UsageError(f"--budget: expected a duration such as 90s, 10m or 1h30m, got {text.strip()[:80]!r}")
    return total


def parse_share(text: str) -> float:
    """Return the share, between 0 and 1 exclusive, of ``1%`` or ``0.01``. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", text.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        given = text.strip()[:80]
        raise UsageError(
            f"--until-gain: expected a share above 0 and below 1, got {given!r}", hint="such as 1% or 0.01"
        )
    return share


def _integer(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) or not least <= int(text) <= most:
        raise UsageError(f"{name}: expected an integer from {least} to {most}, got {text.strip()[:80]!r}")
    return int(text)


def parse_trials(text: str) -> int:
    return _integer("--trials", text, 1, 10**9)


def parse_sample(text: str) -> int:
    return _integer("--sample", text, 1, 10**9)


def parse_holdout(text: str) -> int:
    return _integer("--holdout", text, 1, 10**6)


def parse_jobs(text: str) -> int:
    return _integer("--jobs", text, 1, 1024)


def parse_seed(text: str) -> int:
    return _integer("--seed", text, 0, 2**31 - 1)


def parse_port(text: str) -> int:
    return _integer("--port", text, 0, 65535)


def parse_job(text: str) -> int:
    return _integer("JOB", text, 1, 2**31 - 1)
