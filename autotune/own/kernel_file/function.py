"""Functions of a kernel file: Python of others, which makes contents or says what is right."""

import inspect
import runpy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autotune.errors import ProblemError
from autotune.own.kernel_file.format import KernelFile
from autotune.own.kernel_file.source import inside


def parameters(file: KernelFile, function: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name. Raises ProblemError where there is no such function."""
    path, _, name = function.rpartition(":")
    return inspect.signature(_function(inside(file.path.parent, path), name)).parameters


def called(file: KernelFile, function: str, known: Mapping[str, Any]) -> Any:
    """Return what a function returns for those of the known values that it takes. Raises ProblemError if it fails."""
    path, _, name = function.rpartition(":")
    found = _function(inside(file.path.parent, path), name)
    accepted = inspect.signature(found).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC and key not in known:
            raise ProblemError(f"{path}: {name} asks for {key}, which is none of {', '.join(known)}")
    given = {key: value for key, value in known.items() if takes_all or key in accepted}
    try:
        return found(**{k: value.copy() if isinstance(value, np.ndarray) else value for k, value in given.items()})
    except (Exception, SystemExit) as error:  # code of others may raise anything
        raise ProblemError(f"{path}: {name} failed: {type(error).__name__}: {error}") from error


_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_loading: list[Path] = []
"""Python files that are being loaded."""


def is_loading_reference() -> bool:
    """Return whether the file of a reference is being loaded, which must not tune anything."""
    return bool(_loading)


@cache
def _function(path: Path, name: str) -> Callable[..., Any]:
    _loading.append(path)
    try:
        found = runpy.run_path(str(path))[name]
    except KeyError as error:
        raise ProblemError(f"{path} defines no function {name}") from error
    except (Exception, SystemExit) as error:  # code of others may raise anything
        raise ProblemError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        _loading.pop()
    function: Callable[..., Any] = found
    return function
