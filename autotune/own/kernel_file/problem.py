"""The problems of a kernel file: its sizes, with the work and the buffers that the file gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.errors import UsageError
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.plan import Role
from autotune.own.kernel_file.format import Formula, KernelFile
from autotune.own.tuned_family import FileProblem
from autotune.space.expression import Expression


@dataclass(frozen=True, kw_only=True)
class KernelFileProblem(FileProblem):
    """The sizes of a kernel file."""

    file: ClassVar[KernelFile]

    @property
    def flops(self) -> int:
        return self._work("flops")

    @property
    def bytes_moved(self) -> int:
        return self._work("bytes") or sum(b.size_bytes for b in self._operands)

    def check_device(self, limits: DeviceLimits) -> None:
        self.check_memory({b.name: b.size_bytes for b in self._operands}, limits)
        super().check_device(limits)

    def is_constant(self, operand: str) -> bool:
        return operand != ""

    @property
    def _operands(self) -> list[Any]:
        family = self.file_family
        return [b for b in family.plan(self, family.baseline).buffers if b.role is not Role.VIEW]

    def _work(self, name: str) -> int:
        return int(evaluated(getattr(self.file.work, name), self.to_dict(), f"work.{name}"))


def evaluated(formula: Formula, values: Mapping[str, Value], key: str) -> int:
    if not isinstance(formula, str):
        return formula
    try:
        return int(Expression(formula)(values))
    except (ZeroDivisionError, TypeError) as error:
        raise UsageError(f"{key}: {formula!r} cannot be evaluated for {dict(values)}") from error
