"""The agent, a program in C that runs a device's driver on another machine, and the device port to it.

The host sends commands to its standard input and reads answers from its standard output, whatever link (`links/`)
carries them. `protocol.h` defines both, for the agent and for `frames`.
"""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
COMPILER_OPTIONS = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-ldl",)
"""To be linked after the sources."""


def sources() -> list[Path]:
    """Return the files to compile, all in one command, with COMPILER_OPTIONS and LIBRARIES."""
    return sorted(FOLDER.glob("*.c"))


def source_digest() -> str:
    """Return a digest of all that an agent is built from, headers included."""
    hashed = hashlib.sha256()
    for path in [*sources(), *sorted(FOLDER.glob("*.h"))]:
        hashed.update(f"{path.name}\n".encode() + path.read_bytes())
    return hashed.hexdigest()[:32]
