"""`autotune.tune`: tune a kernel of one's own from Python."""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.kernels import FILES, families_of_files, find_family
from autotune.model.events import Outcome
from autotune.model.trial import Request
from autotune.own.kernel_file.family import FileFamily
from autotune.own.kernel_file.function import is_loading_reference
from autotune.own.kernel_file.source import read_text, with_includes
from autotune.paths import user_cache_folder
from autotune.search import Budget, builders_for
from autotune.search import tune as tune_requests
from autotune.store import Store


def tune(
    kernel: str | Path | Mapping[str, Any],
    *,
    reference: Callable[..., Any] | None = None,
    device: str = "cpu",
    shapes: Sequence[str] = (),
    trials: int | None = None,
    seconds: float | None = None,
    db: str | Path | None = None,
    listener: Callable[[Any], None] = lambda _: None,
) -> list[Outcome]:
    """Tune a kernel of your own; return an outcome, with its winner, for each shape.

    `kernel` is a kernel file, or a mapping with the same keys, in which `source` may be the OpenCL C itself.
    `reference` is a function of a module or script, called with the arrays and sizes that its parameters name; it
    returns the output, or a mapping of outputs by name. A script that calls `tune` with it must do so under
    ``if __name__ == "__main__"``, because other processes load it. `shapes` are as those of ``autotune tune --shape``,
    by default the sizes of the file. Without `trials` and `seconds`, there are 100 trials for each shape.

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
    with Store.open(None if db is None else str(db)) as store:
        return tune_requests(chosen, requests, store, budget, listener, builds=builders_for(chosen))


def use_file(path: Path) -> FileFamily:
    """Add a kernel file to the families of this process and its children, and return its family.

    Raises UsageError when the file is missing or wrong.
    """
    if not path.is_file():
        raise UsageError(f"there is no kernel file {path}", hint="autotune init KERNEL.cl writes one")
    listed = os.environ.get(FILES, "").split(os.pathsep)
    resolved = path.resolve()
    os.environ[FILES] = os.pathsep.join(dict.fromkeys(filter(None, (str(resolved), *listed))))
    for cached in (families_of_files, find_family):
        cached.cache_clear()
    found = families_of_files().values()
    return next(family for family in found if isinstance(family, FileFamily) and family.file.path == resolved)


def _written(kernel: Mapping[str, Any], reference: Callable[..., Any] | None) -> Path:
    """Write a kernel file to a folder of the cache, with its sources and reference, and return its path."""
    content = dict(kernel)
    given = content.get("source", "")
    if isinstance(given, str) and "\n" in given:
        texts = {"kernel.cl": given}
    else:
        texts = {Path(name).name: with_includes(Path(name)) for name in ([given] if isinstance(given, str) else given)}
    content["source"] = list(texts)
    if reference is not None:
        script = inspect.getsourcefile(reference)
        if script is None or "<" in reference.__qualname__ or not Path(script).is_file():
            raise UsageError(f"{reference!r} is not a function of a module or script", hint="define it with def")
        texts["reference.py"] = read_text(Path(script))
        content["reference"] = {**content.get("reference", {}), "python": f"reference.py:{reference.__name__}"}
    texts["kernel.json"] = json.dumps(content, indent=1)
    folder = user_cache_folder() / "kernels" / hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "kernel.json"
