"""Lists of problems: merging them, what of them a device can hold, and reading them from a file of shapes."""

import contextlib
import csv
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from autotune.errors import ProblemError, UsageError
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Request

MAX_CALLS = 10**12
MAX_FILE_BYTES = 4 * 2**20
MAX_LABEL = 200
MAX_SHAPE_WORDS = 16
"""How many words of a line may belong to its shape: more than any family has."""
_FORM = "SHAPE [words of the shape] [xCOUNT] [label]"
_WORD_OF_SHAPE = re.compile(
    r"(?:[a-z_]+=\S*|[nt][nt]|half|double|const(?:ant)?-[abc]+"
    r"|(?:(?:b?float|fp|bf|u?int)\d+|[fiu](?:8|16|32|64))(?:-\S*)?)(?=\s|$)",
    re.IGNORECASE,
)
"""Matches a layout, ``name=value``, or a plausible name of a numeric mode or of constant operands."""


def merge(requests: Iterable[Request]) -> list[Request]:
    """Merge requests for equal problems: add up their calls and join their different labels."""
    calls: dict[Problem, int] = {}
    labels: dict[Problem, dict[str, None]] = {}
    for request in requests:
        calls[request.problem] = calls.get(request.problem, 0) + request.calls
        labels.setdefault(request.problem, {})[request.label] = None
    return [
        Request(problem=problem, calls=count, label=", ".join(label for label in labels[problem] if label))
        for problem, count in calls.items()
    ]


def fitting(own: Iterable[Request], others: Iterable[Request], limits: DeviceLimits) -> tuple[list[Request], list[str]]:
    """Return the requests that a device can hold, merged, and why it cannot hold each of the left out `others`.

    Raises ProblemError when it cannot hold one of `own`.
    """
    kept, left_out = list(own), []
    for request in kept:
        request.problem.check_device(limits)
    for request in merge(others):
        try:
            request.problem.check_device(limits)
            kept.append(request)
        except ProblemError as error:
            left_out.append(str(error))
    return merge(kept), left_out


def size_names(problem_type: type[Problem]) -> tuple[str, ...]:
    """Return the names of the sizes without a default, in order: m, n, k for GEMM."""
    fields = dataclasses.fields(problem_type)
    return tuple(f.name for f in fields if f.type is int and f.default is dataclasses.MISSING)


def read_shapes(path: Path, problem_type: type[Problem] = GemmProblem) -> list[Request]:
    """Read sizes from a text file as `parse_shapes` does, merging equal ones. Raises UsageError."""
    return parse_shapes(read_lines(path), str(path), problem_type)


def parse_shapes(text: Iterable[str], place: str, problem_type: type[Problem] = GemmProblem) -> list[Request]:
    """Parse sizes from the lines of a text and merge equal ones.

    Each line is ``SHAPE [words of the shape] [xCOUNT] [label]``; ``#`` begins a comment. Or the text is CSV, with a
    header naming fields of the problem and optionally ``calls`` and ``label``; an empty cell leaves a field at its
    default. Raises UsageError naming place and line.
    """
    lines = list(text)
    requests = []
    for number, found in parse_lines(lines, problem_type):
        if isinstance(found, UsageError):
            raise UsageError(f"{place}:{number}: {found.message}", hint=found.hint) from found
        requests.append(found)
    if not requests:
        is_empty = not any(map(_without_comment, lines))
        what = "no shapes" if is_empty else "a header and no shapes"
        raise UsageError(f"{place}: holds {what}", hint="one a line, such as 512,512,512 x3 label")
    return merge(requests)


def parse_lines(text: Iterable[str], problem_type: type[Problem]) -> Iterator[tuple[int, Request | UsageError]]:
    """Parse a text as `parse_shapes` does, and yield what each line holds, or why it cannot be read."""
    lines = [(number, _without_comment(line)) for number, line in enumerate(text, start=1)]
    lines = [(number, line) for number, line in lines if line]
    header = [name.strip().lower() for name in lines[0][1].split(",")] if lines else []
    is_csv = not set(header).isdisjoint(size_names(problem_type))
    for number, line in lines[1:] if is_csv else lines:
        try:
            yield number, _from_csv(header, line, problem_type) if is_csv else _from_line(line, problem_type)
        except UsageError as error:
            yield number, error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, numbered as in an editor. Raises UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: is larger than {MAX_FILE_BYTES // 2**20} MiB", hint="is it a list of shapes?")
    try:
        # Not splitlines(), which also breaks at form feeds, so that line numbers agree with an editor's.
        return data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not text in UTF-8", hint="is it a list of shapes?") from error


def _without_comment(line: str) -> str:
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()


def _from_line(line: str, problem_type: type[Problem]) -> Request:
    line = re.sub(r"(?<=[0-9])\s*,\s*(?=[-+]?[0-9])", ",", line)
    end = _shape_end(line, problem_type)
    problem, rest = problem_type.parse(line[:end]), line[end:].strip()
    count, label = "1", rest
    if match := re.match(r"[xX](\S+)(?:\s+|$)", rest):
        count, label = match[1], rest[match.end() :]
    if match := _WORD_OF_SHAPE.match(label):
        # A label must not look like a word of the shape: this parse raises the error that says why it does not fit.
        problem_type.parse(f"{line[:end]} {match[0]}")
        raise UsageError(f"{match[0]!r} comes after the number of calls", hint=_FORM)
    return Request(problem=problem, calls=_calls(count), label=_label(label))


def _shape_end(line: str, problem_type: type[Problem]) -> int:
    """Return the end of the longest prefix of a line that is a shape, or else of its first word.

    Where sizes are wrong, those of an example show which words belong to the shape, so that the error is about them.
    """
    ends = [word.end() for word in islice(re.finditer(r"\S+", line), MAX_SHAPE_WORDS)]
    for sizes in (line[: ends[0]], *(example.split()[0] for example in problem_type.shape_examples[:1])):
        for end in reversed(ends):
            with contextlib.suppress(ProblemError):
                problem_type.parse(sizes + line[ends[0] : end])
                return end
    return ends[0]


def _from_csv(header: list[str], line: str, problem_type: type[Problem]) -> Request:
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True, strict=True))]
    except csv.Error as error:
        raise UsageError(f"is not a line of CSV: {error}") from error
    if len(set(header)) != len(header):
        raise UsageError("the header names a column twice")
    if len(cells) != len(header):
        raise UsageError(f"{len(cells)} cells under a header of {len(header)}")
    row = dict(zip(header, cells, strict=True))
    calls, label = _calls(row.pop("calls", "1")), _label(row.pop("label", ""))
    problem = problem_type.from_dict(_values(row, problem_type))
    return Request(problem=problem, calls=calls, label=label)


def _values(row: Mapping[str, str], problem_type: type[Problem]) -> dict[str, Value]:
    fields = {field.name: field for field in dataclasses.fields(problem_type)}
    values: dict[str, Value] = {}
    for name, text in row.items():
        field = fields.get(name)
        if not text and field is not None and field.default is not dataclasses.MISSING:
            continue
        values[name] = _integer(name, text) if field is not None and field.type is int else text
    return values


def _integer(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ProblemError(f"{name[:80]} is {text[:80]!r}, not an integer")
    return int(text)


def _calls(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 1 <= int(text) <= MAX_CALLS:
        raise UsageError(f"{text[:80]!r} is not a number of calls", hint=f"1 to {MAX_CALLS}, such as x3")
    return int(text)


def _label(text: str) -> str:
    if len(text) > MAX_LABEL or not text.isprintable():
        raise UsageError(f"a label is at most {MAX_LABEL} printable characters", hint=_FORM)
    return text
