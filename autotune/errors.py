"""Every error the project raises on purpose.

AutotuneError                   one line for people, with the mend; exit status 1
├── UsageError                  the request itself is wrong; exit status 2
│   ├── DeviceSelectionError    several devices fit the selector, or none does
│   │   └── NoSuchDeviceError
│   └── ProblemError            sizes or types that cannot be tuned
├── ConfigurationError          a configuration outside its search space
├── KernelError                 a kernel did not get as far as running
│   ├── BuildError              the driver's compiler refused it
│   └── LaunchError             the driver refused to run it
│       └── WorkGroupError      with work-groups of this size
├── WorkerError                 the measuring process cannot be started
│   └── WorkerLostError         it is gone together with the trial that it was measuring
├── StoreError                  the database cannot be used as asked
│   ├── MissingDatabaseError
│   ├── NotADatabaseError
│   ├── NewerSchemaError
│   ├── ReadOnlyDatabaseError
│   └── DatabaseAwayError       the server does not answer
├── TableError                  a tuning table that cannot be read or trusted
└── ServiceError                a service that cannot be used as asked
    ├── UnreachableError        there is no answer from it
    └── RefusedError            it answers that it will not
"""

from collections.abc import Iterable

_OTHER_NAMES = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("i8", "char"), "int8"),
}
"""What people call things that have another name here."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """``did you mean run?``; empty where no name is close."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    word = word.strip().lower()[:80]
    meant = _OTHER_NAMES.get(word, word)
    if word in by_lower:
        return ""
    close = get_close_matches(meant, by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else ""


class AutotuneError(Exception):
    """An error with a message for people; `hint` says what to do about it."""

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
    """Several devices fit the selector, or none does."""


class NoSuchDeviceError(DeviceSelectionError):
    """No device fits the selector."""


class ProblemError(UsageError):
    """Sizes or types that cannot be tuned."""


class ConfigurationError(AutotuneError):
    """A configuration outside its search space."""


class KernelError(AutotuneError):
    """A kernel did not get as far as running."""


class BuildError(KernelError):
    """The driver's compiler refused the kernel."""


class LaunchError(KernelError):
    """The driver refused to run the kernel."""


class WorkGroupError(LaunchError):
    """The kernel cannot run with work-groups of this size."""


class WorkerError(AutotuneError):
    """The measuring process cannot be started."""


class WorkerLostError(WorkerError):
    """The place that measures is gone, together with the trial that it was measuring."""


class StoreError(AutotuneError):
    """The database cannot be used as asked."""


class NotADatabaseError(StoreError):
    """The file is not a database of this project."""


class MissingDatabaseError(StoreError):
    """There is no database where one is to be read."""


class NewerSchemaError(StoreError):
    """The database was written by a newer version of this project."""


class ReadOnlyDatabaseError(StoreError):
    """The database can be read, but not written."""


class DatabaseAwayError(StoreError):
    """The database server cannot be reached, or went away and did not come back in time."""


class TableError(AutotuneError):
    """A tuning table that cannot be read or trusted."""


class ServiceError(AutotuneError):
    """A service that cannot be used as asked."""


class UnreachableError(ServiceError):
    """There is no answer from the service."""


class RefusedError(ServiceError):
    """The service answers that it will not; `status` is HTTP's."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
