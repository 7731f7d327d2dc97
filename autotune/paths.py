"""Locations of files, shipped and the user's own, and writing those that several processes share.

It loads the standard library only, since the runtime lookup uses it too.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path

from autotune.errors import AutotuneError, NewerSchemaError, StoreError

_PACKAGE = Path(__file__).parent

PAGE = _PACKAGE / "service" / "page"
"""The folder of the service's page, which reports are made of, too."""

APPLICATION_ID = 0x4154554E
"""Marks an SQLite file as a database of this project ("ATUN" in its header)."""

LOCK_WAIT_S = 10.0

UPGRADE_HINT = "upgrade autotune: in its checkout, git pull and pip install ."


def install_hint(extra: str) -> str:
    """Return how to install an extra. On PyPI, the name belongs to another project."""
    return f'in the checkout of autotune: pip install ".[{extra}]"'


def data_folder(name: str) -> Path:
    """Return the folder `templates` or `db`: inside an installed package, beside it in a checkout.

    Raises AutotuneError when it is in neither place.
    """
    # Inside first: beside an installed package there are folders of other projects, which may have the same name.
    for place in (_PACKAGE, _PACKAGE.parent):
        if (place / name).is_dir():
            return place / name
    raise AutotuneError(f"the data folder {name!r} of autotune is missing", hint="install autotune again")


def schema_revisions() -> tuple[str, ...]:
    """Return the revisions of the database schema that this version knows, oldest first, such as ``0100``."""
    versions = data_folder("db") / "migrations" / "versions"
    return tuple(sorted(path.name[:4] for path in versions.glob("[0-9][0-9][0-9][0-9]_*.py")))


def is_newest_revision(place: object, revision: str) -> bool:
    """Return whether a database schema is the newest that this version of autotune knows.

    `place` names the database in messages. Raises StoreError for an unknown schema.
    """
    known = schema_revisions()
    if revision in known:
        return revision == known[-1]
    if revision < known[0]:
        raise StoreError(
            f"{place} was made by a development version of autotune (schema {revision[:20]}), which cannot be read",
            hint="name another database with --db, or move this one away and tune again",
        )
    raise NewerSchemaError(
        f"{place} has schema {revision[:20]}, this version of autotune supports {known[-1]} at most", hint=UPGRADE_HINT
    )


def user_data_folder() -> Path:
    """Return the folder for user data on this system; not created. Raises AutotuneError without a home folder."""
    return _user_folder("XDG_DATA_HOME", ".local/share", on_mac="Application Support")


def user_cache_folder() -> Path:
    """Return the folder for caches on this system; not created. Raises AutotuneError without a home folder."""
    return _user_folder("XDG_CACHE_HOME", ".cache", on_mac="Caches", on_windows="autotune/cache")


def default_database() -> Path:
    """Return the path of the default database; not created. Raises AutotuneError without a home folder."""
    return user_data_folder() / "autotune.sqlite"


def _user_folder(variable: str, below_home: str, *, on_mac: str, on_windows: str = "autotune") -> Path:
    if sys.platform == "win32":
        return _base("LOCALAPPDATA", "AppData/Local") / on_windows
    if sys.platform == "darwin":
        return _home() / "Library" / on_mac / "autotune"
    return _base(variable, below_home) / "autotune"


def _base(variable: str, below_home: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    # The XDG specification says that a relative path must be ignored.
    return named if named.is_absolute() else _home() / below_home


def _home() -> Path:
    home = Path("~")
    with contextlib.suppress(RuntimeError):
        # An empty HOME would expand to the root folder, which is not a place for user data.
        home = home if os.environ.get("HOME") == "" else home.expanduser()
    if not home.is_absolute():
        raise AutotuneError("there is no home folder to keep data in", hint="set HOME, or name a database with --db")
    return home


# Files that several processes write


def append_at_once(path: Path, data: bytes, most_bytes: float = inf) -> None:
    """Append in one write, so that what processes append does not mix; nothing beyond a size. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size + len(data) <= most_bytes:
            os.write(descriptor, data)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that readers see as it was or complete. Raises OSError.

    A link stays, and what it points to is replaced; a pipe or a device is written to. So is what /dev/stdout is, behind
    what it holds, even if that is a file.
    """
    is_open_elsewhere = str(path.absolute()).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    if is_open_elsewhere or (path.exists() and not (path.is_file() or path.is_dir())):
        with path.open("ab") as file:
            file.write(data)
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, a file beside it, which stays. Waits for other holders, at most LOCK_WAIT_S."""
    from filelock import FileLock

    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_WAIT_S, poll_interval=0.01)
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # after the wait, or in a network folder that has no locks
            held.enter_context(lock)
        yield


def safe_path() -> dict[str, str]:
    """Return environment variables with which a child of this interpreter finds what this process imports.

    The folder of the user's script, or the present one, is not searched: a `random.py` there is not Python's.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    users = {"", *([os.path.dirname(os.path.abspath(script))] if script else [])}  # noqa: PTH100, PTH120
    with contextlib.suppress(OSError):  # the present folder may be gone
        users.add(os.getcwd())  # noqa: PTH109 - as Python writes it in the path
    places = [place for place in sys.path if place not in users]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys([*places, str(_PACKAGE.parent)]))}
