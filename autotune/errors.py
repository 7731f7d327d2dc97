"""Every error the project raises on purpose.

AutotuneError                   one line, with a hint how to fix it; exit status 1
├── UsageError                  the request itself is wrong; exit status 2
│   ├── DeviceSelectionError    several devices match the selector, or none does
│   │   ├── NoSuchDeviceError
│   │   └── DeviceAwayError     a phone or board that may come back: unplugged, starting, locked
│   └── ProblemError            sizes or types that cannot be tuned
├── ConfigurationError          a configuration outside its search space
├── KernelError                 a kernel could not be run
│   ├── BuildError              the driver's compiler rejected it
│   └── LaunchError             the driver refused to run it
│       └── WorkGroupError      it does not support this work-group size
├── WorkerError                 the measuring process cannot be started
│   └── WorkerLostError         the measuring process is lost, with the trial it was measuring
├── DeviceLostError             the process that runs a device's driver is lost, with what it was doing
│   ├── AgentKilledError        something outside killed it
│   └── LinkLostError           the link to it ended, or carried something else
├── StoreError                  the database cannot be used as requested
│   ├── MissingDatabaseError
│   ├── NotADatabaseError
│   ├── NewerSchemaError
│   ├── ReadOnlyDatabaseError
│   └── DatabaseAwayError       the server does not answer
├── TableError                  a tuning table that cannot be read or trusted
└── ServiceError                a service that cannot be used as requested
    ├── UnreachableError        it does not answer
    └── RefusedError            it refuses the request
"""

from collections.abc import Iterable

_OTHER_NAMES = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("i8", "char"), "int8"),
}
"""Common names of types, and their names in this project."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a hint such as ``did you mean run?``; empty if no name is close."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    word = word.strip().lower()[:80]
    meant = _OTHER_NAMES.get(word, word)
    if word in by_lower:
        return ""
    close = get_close_matches(meant, by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else ""


class AutotuneError(Exception):
    """An error with a message for the user; `hint` says how to fix it."""

    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(AutotuneError):
    """The request itself is wrong."""

    exit_status = 2


class DeviceSelectionError(UsageError):
    """Several devices match the selector, or none does."""


class NoSuchDeviceError(DeviceSelectionError):
    """No device matches the selector."""


class DeviceAwayError(DeviceSelectionError):
    """A phone or board does not answer, and may do so later: unplugged, starting, not authorised yet."""


class ProblemError(UsageError):
    """Sizes or types that cannot be tuned."""


class ConfigurationError(AutotuneError):
    """A configuration outside its search space."""


class KernelError(AutotuneError):
    """A kernel could not be run."""


class BuildError(KernelError):
    """The driver's compiler rejected the kernel."""


class LaunchError(KernelError):
    """The driver refused to run the kernel."""


class WorkGroupError(LaunchError):
    """The kernel cannot run with work-groups of this size."""


class WorkerError(AutotuneError):
    """The measuring process cannot be started."""


class WorkerLostError(WorkerError):
    """The measuring process or machine is lost, together with the trial it was measuring."""


class DeviceLostError(AutotuneError):
    """The process that runs a device's driver is lost, together with what it was doing."""


class AgentKilledError(DeviceLostError):
    """Something outside killed that process, as a system does when memory runs out; the driver may be fine."""


class LinkLostError(DeviceLostError):
    """The link to an agent ended before the agent said how, or carried something other than its answers."""


class StoreError(AutotuneError):
    """The database cannot be used as requested."""


class NotADatabaseError(StoreError):
    """The file is not a database of this project."""


class MissingDatabaseError(StoreError):
    """The database to read does not exist."""


class NewerSchemaError(StoreError):
    """The database was written by a newer version of this project."""


class ReadOnlyDatabaseError(StoreError):
    """The database can be read but not written."""


class DatabaseAwayError(StoreError):
    """The database server cannot be reached, or was lost and did not come back in time."""


class TableError(AutotuneError):
    """A tuning table that cannot be read or trusted."""


class ServiceError(AutotuneError):
    """A service that cannot be used as requested."""


class UnreachableError(ServiceError):
    """The service does not answer."""


class RefusedError(ServiceError):
    """The service refuses the request; `status` is the HTTP status."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
