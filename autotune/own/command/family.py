"""A command file as a family, of which a configuration is what to run."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import ClassVar

from autotune.errors import UsageError
from autotune.model.configuration import Configuration, Value
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.own.command.format import NANOSECONDS, CommandFile, words_of
from autotune.own.kernel_file.source import inside, verbatim
from autotune.own.tuned_family import FileProblem, TunedFileFamily
from autotune.space.case import Case


@dataclass(frozen=True, kw_only=True)
class CommandProblem(FileProblem):
    """The sizes of a command file."""

    file: ClassVar[CommandFile]

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes_moved(self) -> int:
        return 0

    def rate_text(self, time_ns: float) -> str:
        metric = self.file.metric
        if metric.better == "higher":
            return f"{1e9 / time_ns:.4g} {metric.unit}".rstrip()
        unit = metric.unit or "s"
        return f"{time_ns / NANOSECONDS[unit]:.4g} {unit}"


class CommandFamily(TunedFileFamily):
    """The family that a command file describes, of which a configuration says what to run."""

    file: CommandFile
    is_command = True

    def __init__(self, file: CommandFile, module: str) -> None:
        """`module` is the name under which the problem's class can be imported.

        Raises UsageError when a template cannot be read.
        """
        self.file = file
        super().__init__(file, CommandProblem, module)
        self.space_version = 1  # type: ignore[misc]
        self.meaning = file.meaning or f"the command of {file.path.name}"  # type: ignore[misc]
        self.algorithms = (self._algorithm("the command of the file"),)  # type: ignore[misc]
        # A check, a run, and another run where they are short.
        self.run_limit_s = 3 * file.command.limit_s  # type: ignore[misc]
        self.remedy = "run the command by hand, as `autotune show` prints it"  # type: ignore[misc]
        names = "".join(f"{{{{ {name} }}}}" for name in file.parameters)
        what = {"command": _plain(file.command), "metric": _plain(file.metric)}
        del what["command"]["limit_s"]
        texts = {written: _read(inside(file.path.parent, name)) for written, name in file.command.files.items()}
        # Trials are made again when any of this changes, as those of kernels when the source does.
        meaning = verbatim(json.dumps([what, texts], sort_keys=True))
        self.template_files = {f"{file.name}.cl.j2": names + meaning, **texts}  # type: ignore[misc]

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:  # noqa: ARG002 - nothing is launched
        return Plan(buffers=(), launches=())

    def make_case(self, problem: Problem, seed: int) -> Case:  # noqa: ARG002
        raise UsageError(f"{self.name} is a command, which is run rather than compared")

    def examples(self) -> tuple[Problem, ...]:
        return tuple(request.problem for request in self.requests)

    def values_of(self, problem: Problem, configuration: Configuration) -> Mapping[str, Value]:
        """Return what the names in braces stand for."""
        return {**problem.to_dict(), **dict(configuration.values)}

    def environment(self, values: Mapping[str, Value]) -> dict[str, str]:
        """Return the variables to set; one whose text is empty is left as it is."""
        texts = {name: text.format_map(values) for name, text in self.file.command.environment.items()}
        return {name: text for name, text in texts.items() if text}

    def files(self, values: Mapping[str, Value]) -> dict[str, str]:
        """Return the texts of the files to write, by path. Raises BuildError when a template fails."""
        from autotune.kernels.render import render_text  # loads Jinja2

        return {name: render_text(self, f"{self.name}/{name}", values) for name in self.file.command.files}

    def use(self, problem: Problem, configuration: Configuration) -> str:
        """Return the commands, with folder and environment, then a diff of the files from those of the default."""
        values, command = self.values_of(problem, configuration), self.file.command
        variables = [f"{name}={shlex.quote(text)}" for name, text in self.environment(values).items()]
        run = " ".join([*variables, shlex.join(words_of(command.run, values))])
        change = [] if command.folder == "." else [f"cd {shlex.quote(command.folder)}"]
        build = [shlex.join(words_of(command.build, values))] if command.build else []
        lines = [" && ".join([*change, *build, run])]
        before = self.files(self.values_of(problem, self.usual))
        for name, text in self.files(values).items():
            old, new = before[name].splitlines(), text.splitlines()
            lines += unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
        return "\n".join(lines)


def _read(path: Path) -> str:
    """Return the text of a template as it is. Raises UsageError."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _plain(entry: object) -> dict[str, object]:
    """Return the values of an entry that JSON can hold."""
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(entry).items()}
