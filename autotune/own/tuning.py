"""`autotune.tune`: tune a kernel of one's own from Python."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.display.progress import progress
from autotune.display.words import gain_text
from autotune.errors import UsageError
from autotune.kernels import FILES, families_of_files, find_family
from autotune.model.events import Outcome
from autotune.model.trial import Request, time_text
from autotune.own.function_source import function_source
from autotune.own.kernel_file.family import FileFamily
from autotune.own.kernel_file.function import is_loading_reference
from autotune.own.kernel_file.source import with_includes
from autotune.own.tuned_family import TunedFileFamily
from autotune.paths import user_cache_folder
from autotune.search import Budget
from autotune.search import tune as tune_requests
from autotune.store import Store

Reference = Callable[..., Any] | NDArray[Any] | Mapping[str, NDArray[Any]]


def tune(
    kernel: str | Path | Mapping[str, Any],
    *,
    device: str,
    reference: Reference | None = None,
    shapes: Sequence[str] = (),
    trials: int | None = None,
    seconds: float | None = None,
    db: str | Path | None = None,
    listener: Callable[[Any], None] | None = None,
) -> "Outcomes":
    """Tune a kernel of your own; return an outcome, with its winner, for each shape.

    `kernel` is a kernel file, or a mapping with the same keys, in which `source` may be the OpenCL C itself, and `file`
    of an argument an array. `device` is as that of ``autotune run --device``.

    `reference` is a function of a module, a script or a notebook, called with the arrays and sizes that its parameters
    name, that returns the output, or a mapping of outputs by name; or the right output itself, or such a mapping. A
    script that calls `tune` with a function must do so under ``if __name__ == "__main__"``, because other processes
    load it. `listener` is called with each event, in place of lines about the progress. `shapes` are as those of
    ``autotune tune --shape``, by default the sizes of the file. Without `trials` and `seconds`, there are 100 trials
    for each shape.

    Raises UsageError for a wrong kernel file, DeviceSelectionError, ProblemError, StoreError.
    """
    from autotune.device.discovery import find_device

    if is_loading_reference():
        raise UsageError("the script calls autotune.tune while it is loaded", hint='use if __name__ == "__main__":')
    path = _written(kernel, reference) if isinstance(kernel, Mapping) else Path(kernel)
    if reference is not None and not isinstance(kernel, Mapping):
        raise UsageError("a kernel file names its reference itself", hint="python = 'FILE.py:FUNCTION'")
    family = use_file(path)
    parse = family.problem_type.parse
    requests = [Request(problem=parse(shape)) for shape in shapes] if shapes else family.requests
    chosen = find_device(device)
    budget = Budget(trials=100 if trials is None and seconds is None else trials, seconds=seconds)
    with (
        Store.open(None if db is None else str(db)) as store,
        progress(budget, sys.stderr, is_quiet=listener is not None) as shown,
    ):
        return Outcomes(tune_requests(chosen, requests, store, budget, listener or shown))


class Outcomes(list[Outcome]):
    """The outcomes of `tune`, which notebooks and terminals show as a table."""

    def _lines(self) -> list[tuple[str, ...]]:
        """Return what a table shows: a title, and a line for each shape."""
        lines: list[tuple[str, ...]] = [("shape", "time", "vs default", "configuration")]
        for outcome in self:
            winner = outcome.winner
            found = (time_text(winner.time_ns), gain_text(winner), str(winner.configuration)) if winner else None
            lines.append((outcome.request.problem.label, *(found or ("-", "-", outcome.no_winner_reason))))
        return lines

    def __repr__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join(padded)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        title, *lines = (map(escape, line) for line in self._lines())
        head = "".join(f"<th>{cell}</th>" for cell in title)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
        return f"<table><tr>{head}</tr>{body}</table>"


def use_file(path: Path) -> TunedFileFamily:
    """Add a kernel file or command file to the families of this process and its children, and return its family.

    Raises UsageError when the file is missing or wrong.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="autotune init KERNEL.cl writes one")
    resolved = path.resolve()
    listed = [one for one in os.environ.get(FILES, "").split(os.pathsep) if not _is_replaced(Path(one), resolved)]
    os.environ[FILES] = os.pathsep.join(dict.fromkeys(filter(None, (str(resolved), *listed))))
    for cached in (families_of_files, find_family):
        cached.cache_clear()
    found = families_of_files().values()
    return next(family for family in found if isinstance(family, TunedFileFamily) and family.file.path == resolved)


def use_kernel_file(path: Path) -> FileFamily:
    """Do the same as `use_file` with a file that describes a kernel. Raises UsageError."""
    family = use_file(path)
    if not isinstance(family, FileFamily):
        raise UsageError(f"{path} describes a command, not a kernel")
    return family


def _is_replaced(earlier: Path, later: Path) -> bool:
    """Return whether both files were written by `tune` for kernels of one name, as where a cell is run again."""
    names = [path.parent.name.rpartition("-")[0] for path in (earlier, later)]
    kept = (user_cache_folder() / "kernels").resolve()
    return earlier.parent.parent == later.parent.parent == kept and names[0] == names[1]


def _written(kernel: Mapping[str, Any], reference: Reference | None) -> Path:
    """Write a kernel file to a folder of the cache, with its sources, reference and arrays, and return its path."""
    content = {**kernel, "arguments": {name: dict(entry) for name, entry in kernel.get("arguments", {}).items()}}
    given = content.get("source", "")
    if isinstance(given, str) and _is_source(given):
        texts = {"kernel.cl": given}
    else:
        texts = {Path(name).name: with_includes(Path(name)) for name in ([given] if isinstance(given, str) else given)}
    content["source"] = list(texts)
    arrays = {}
    for name, entry in content["arguments"].items():
        if isinstance(entry.get("file"), np.ndarray):
            arrays[f"{name}.npy"] = entry["file"]
            entry |= {"fill": "file", "file": f"{name}.npy"}
    if isinstance(reference, np.ndarray):
        written = [name for name, entry in content["arguments"].items() if entry.get("access") in ("out", "inout")]
        reference = dict.fromkeys(written[:1], reference)
    if isinstance(reference, Mapping):
        arrays |= {f"right_{name}.npy": np.asarray(values) for name, values in reference.items()}
        content["reference"] = {
            **content.get("reference", {}), "outputs": {name: f"right_{name}.npy" for name in reference}
        }  # fmt: skip
    elif reference is not None:
        texts["reference.py"] = function_source(reference)
        content["reference"] = {**content.get("reference", {}), "python": f"reference.py:{reference.__name__}"}
    texts["kernel.json"] = json.dumps(content, indent=1)
    digest = hashlib.sha256(json.dumps(texts).encode())
    for name, values in arrays.items():
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    name = re.sub(r"\W", "_", str(content.get("name")))[:32]
    folder = user_cache_folder() / "kernels" / f"{name}-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, values in arrays.items():
        np.save(folder / name, values, allow_pickle=False)
    return folder / "kernel.json"


def _is_source(text: str) -> bool:
    """Return whether a text is OpenCL C rather than the name of a file, also in one line."""
    return "\n" in text or re.search(r"\bkernel\b[^;{}]*\([^;{}]*\)[^;{}]*\{", text) is not None
