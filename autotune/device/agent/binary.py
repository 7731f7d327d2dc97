"""The agent for this machine, built from source by its own C compiler, and kept in the user's cache."""

import os
import shutil
import subprocess
from pathlib import Path

from autotune.device.agent import COMPILER_OPTIONS, LIBRARIES, source_digest, sources
from autotune.errors import DeviceSelectionError
from autotune.paths import user_cache_folder

_COMPILERS = ("cc", "gcc", "clang")
_LIMIT_S = 300.0


def built_here() -> Path:
    """Return the path of the agent, after building it if it is not in the cache. Raises DeviceSelectionError."""
    path = user_cache_folder() / "agents" / f"agent-{source_digest()}"
    if not path.exists():
        found = filter(None, map(shutil.which, _COMPILERS))
        build([next(found, "")], path)
    return path


def build(compiler: list[str], path: Path) -> None:
    """Build an agent with a compiler's command. Raises DeviceSelectionError with the compiler's first error."""
    if not compiler or not compiler[0]:
        raise DeviceSelectionError(
            "there is no C compiler to build the agent with", hint=f"install one of {', '.join(_COMPILERS)}"
        )
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    command = [*compiler, *COMPILER_OPTIONS, "-s", "-o", str(draft), *map(str, sources()), *LIBRARIES]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
        if done.returncode:
            lines = done.stderr.splitlines()
            told = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
            raise DeviceSelectionError(f"the agent could not be built with {compiler[0]}: {told[:300]}")
        draft.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceSelectionError(f"the agent could not be built with {compiler[0]}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
